//! The leases of the commands in flight, by slot.
//!
//! ```text
//! lent ──► in a slot ──► its command's heir's slot ──► … ──► returned
//!              └─ quiet command ended ─► kept by its event ─► the heir's slot
//! ```
//! 1. A lease is in one slot, or kept by one event, and nowhere else.
//! 2. It is returned only when no command that had it is in flight any more: an heir that ends first (because it was refused) is parked
//!    until then.
//! 3. An heir waits for the event that its predecessor signals, so the drive starts it after that one has ended.

use super::{Lease, Returned};
use crate::device::EndedCommand;
use crate::fail_point;
use crate::protocol::{EventId, EventUse};

const NONE: u32 = u32::MAX;

/// A command in flight, or a free slot.
struct LeaseSlot {
    lease: Lease,
    /// The slot of the command that took the lease over.
    heir: u32,
    /// The slot of the command in flight whose lease this one took over.
    from: u32,
    signals: Option<EventId>,
    /// It has ended, but its lease is still in use by its predecessor.
    is_parked: bool,
}

enum EventLease {
    /// The lease is in this slot, of the last command in flight that signals the event.
    InSlot(u32),
    /// The lease of a quiet command that has ended; otherwise nothing.
    Kept(Lease),
}

#[derive(Default)]
pub(super) struct LeaseTable {
    slots: Vec<LeaseSlot>,
    free: Vec<u32>,
    /// Indexed by event number - 1, up to the highest number signalled.
    events: Vec<EventLease>,
    /// Ends of the slots that are parked.
    parked: Vec<EndedCommand>,
}

impl LeaseTable {
    /// Takes the lease of a command that is submitted next. Returns its slot.
    pub fn begin(&mut self, lease: Lease, events: EventUse) -> u32 {
        let place = self.free.pop().unwrap_or_else(|| {
            self.slots.push(LeaseSlot {
                lease: Lease::Nothing,
                heir: NONE,
                from: NONE,
                signals: None,
                is_parked: false,
            });
            self.slots.len() as u32 - 1
        });
        // A free slot has no lease and no heir.
        self.slots[place as usize].signals = events.signals;
        if !matches!(lease, Lease::Inherited) {
            self.slots[place as usize].lease = lease;
        } else if let Some(event) = events.after {
            let (lease, from) = self.inherit(event, place);
            let slot = &mut self.slots[place as usize];
            (slot.lease, slot.from) = (lease, from);
        }
        if let Some(event) = events.signals.filter(|event| event.number() <= EventId::MAX) {
            let number = usize::from(event.number());
            if self.events.len() < number {
                self.events.resize_with(number, || EventLease::Kept(Lease::Nothing));
            }
            self.events[number - 1] = EventLease::InSlot(place);
        }
        place
    }

    /// Takes over the lease of the command that signals an event, if nobody has. Returns it, and the command's slot if that is in flight.
    fn inherit(&mut self, event: EventId, heir: u32) -> (Lease, u32) {
        let Some(entry) = self.events.get_mut(usize::from(event.number()) - 1) else { return (Lease::Nothing, NONE) };
        match entry {
            EventLease::Kept(lease) => (std::mem::take(lease), NONE),
            EventLease::InSlot(from) => {
                let slot = &mut self.slots[*from as usize];
                if slot.heir != NONE {
                    return (Lease::Nothing, NONE);
                }
                slot.heir = heir;
                (std::mem::take(&mut slot.lease), *from)
            }
        }
    }

    pub fn lease(&self, place: u32) -> &Lease {
        &self.slots[place as usize].lease
    }

    /// A command has ended: appends its completion, unless it is silent, and those of heirs that were parked for it.
    pub fn end(&mut self, ended: &EndedCommand, returned: &mut Vec<Returned>) {
        let slot = &mut self.slots[ended.slot as usize];
        if slot.from != NONE || slot.heir != NONE || slot.signals.is_some() {
            return self.end_in_chain(*ended, returned);
        }
        self.free.push(ended.slot);
        let lease = std::mem::take(&mut slot.lease);
        if !ended.is_silent {
            returned.push(Returned { completion: ended.completion, lease });
        }
    }

    fn end_in_chain(&mut self, ended: EndedCommand, returned: &mut Vec<Returned>) {
        let mut next = Some(ended);
        while let Some(ended) = next {
            let slot = &mut self.slots[ended.slot as usize];
            if slot.from != NONE && !matches!(slot.lease, Lease::Nothing) && !fail_point!(LeaseInFlight) {
                slot.is_parked = true;
                self.parked.push(ended);
                return;
            }
            let lease = std::mem::take(&mut slot.lease);
            let [heir, from] = [&mut slot.heir, &mut slot.from].map(|slot| std::mem::replace(slot, NONE));
            let lease = match slot.signals.take() {
                Some(event) => self.end_event(event, &ended, lease),
                None => lease,
            };
            self.free.push(ended.slot);
            if from != NONE {
                self.slots[from as usize].heir = heir;
            }
            next = match self.slots.get_mut(heir as usize) {
                Some(slot) => {
                    slot.from = from;
                    std::mem::take(&mut slot.is_parked).then(|| self.unpark(heir))
                }
                None => None,
            };
            if !ended.is_silent {
                returned.push(Returned { completion: ended.completion, lease });
            }
        }
    }

    fn unpark(&mut self, slot: u32) -> EndedCommand {
        let Some(place) = self.parked.iter().position(|ended| ended.slot == slot) else {
            unreachable!("its slot says that it is parked")
        };
        self.parked.swap_remove(place)
    }

    /// Ends the event that a command signals: it keeps a quiet command's lease. Returns the lease that goes back with the completion.
    fn end_event(&mut self, event: EventId, ended: &EndedCommand, lease: Lease) -> Lease {
        let Some(entry) = self.events.get_mut(usize::from(event.number()) - 1) else { return lease };
        if !matches!(entry, EventLease::InSlot(slot) if *slot == ended.slot) {
            return lease;
        }
        let (kept, left) = if ended.is_silent { (lease, Lease::Nothing) } else { (Lease::Nothing, lease) };
        *entry = EventLease::Kept(kept);
        left
    }

    pub fn in_flight(&self) -> usize {
        self.slots.len() - self.free.len()
    }
}
