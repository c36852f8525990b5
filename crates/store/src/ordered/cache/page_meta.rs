//! What the host knows of a cached page.

use super::durability_ticket::DurabilityTicket;
use crate::ordered::slabs::{SlotPromise, SlotShare};
use std::sync::Arc;

/// How often a page was used counts up to this.
const HEAT_MAX: u8 = 3;

/// What a page is asked for by: what a long scan reads once is to go before what is read by key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PageUse {
    /// By key, or by a short scan.
    ByKey,
    ByScan,
    /// What was just read for this, and counted then.
    Again,
}

/// An image of a page on its way to be durable.
pub struct FlyingImage {
    pub stamp: u64,
    /// It is the node's home already: it was written, and nobody waits until it is durable.
    pub is_home: bool,
    /// Of the changes in it, if somebody waits for them.
    pub ticket: Option<Arc<DurabilityTicket>>,
}

/// See [`PageMeta::durability`].
pub struct Durability {
    durable_stamp: u64,
    removed_stamp: u64,
    ticket: Option<Arc<DurabilityTicket>>,
}

impl Durability {
    /// Of a page as it is on flash: nobody waits for that.
    pub const OF_FLASH: Durability = Durability { durable_stamp: u64::MAX, removed_stamp: 0, ticket: None };

    /// What to wait for before a look may be shown that saw this stamp, or no record; `None`: it is durable.
    pub fn wait_for(&self, seen: Option<u64>) -> Option<Arc<DurabilityTicket>> {
        self.ticket.clone().filter(|_| seen.unwrap_or(self.removed_stamp) > self.durable_stamp)
    }
}

/// See the [module](self). Of a page that is in the cache, looked at with the lock of its set held.
#[derive(Default)]
pub struct PageMeta {
    pub keyspace: u16,
    pub(super) heat: u8,
    /// It was changed since its last image was made.
    pub is_dirty: bool,
    /// It stands in the list of those that are to be written.
    pub is_listed: bool,
    /// The kept number of the slot of its newest image, durable or on its way, which is this node's alone.
    pub slot: Option<u32>,
    /// Of a slot for its next image, where it has none.
    pub promise: Option<SlotPromise>,
    /// Shares of slots whose images its next image replaces, besides that one.
    pub shared: Vec<SlotShare>,
    /// Tickets of changes that its next image will have.
    pub tickets: Vec<Arc<DurabilityTicket>>,
    pub flying: Option<FlyingImage>,
    /// Records and removals up to this stamp are durable.
    pub durable_stamp: u64,
    /// The last record or removal, or the last that came with a part of another node.
    pub changed_stamp: u64,
    /// The last removal.
    pub removed_stamp: u64,
    /// The last record that came with a batch: an image with it is written when the log is durable up to here.
    pub log_stamp: u64,
}

/// Slots for the halves of a split: for the lower one, unless its page has a promise already.
pub struct SplitPromises {
    pub lower: Option<SlotPromise>,
    pub upper: SlotPromise,
}

impl PageMeta {
    pub fn new(keyspace: u16, used: PageUse) -> PageMeta {
        let mut meta = PageMeta { keyspace, ..PageMeta::default() };
        meta.used(used);
        meta
    }

    pub fn used(&mut self, used: PageUse) {
        if used == PageUse::ByKey {
            self.heat = (self.heat + 1).min(HEAT_MAX);
        }
    }

    /// Whether it was used since the hand passed it last; the hand passes.
    pub(super) fn cool(&mut self) -> bool {
        let is_warm = self.heat > 0;
        self.heat = self.heat.saturating_sub(1);
        is_warm
    }

    /// Whether the page is as the image in its home, so that it may go.
    pub fn is_clean(&self) -> bool {
        !self.is_dirty && !self.is_being_written()
    }

    /// Whether there is a slot for its next image, whoever asks for slots meanwhile.
    pub fn has_slot(&self) -> bool {
        self.slot.is_some() || self.promise.is_some()
    }

    /// Whether it has an image on its way that is not the node's home yet.
    pub fn is_being_written(&self) -> bool {
        self.flying.as_ref().is_some_and(|image| !image.is_home)
    }

    /// A record or, if `removes`, the removal of one, is in the page. The caller has the page.
    pub fn changed(&mut self, stamp: u64, removes: bool) {
        self.is_dirty = true;
        self.changed_stamp = self.changed_stamp.max(stamp);
        if removes {
            self.removed_stamp = self.removed_stamp.max(stamp);
        }
    }

    /// The ticket of what was changed since the last image.
    pub fn ticket(&mut self) -> Arc<DurabilityTicket> {
        if self.tickets.is_empty() {
            self.tickets.push(DurabilityTicket::new());
        }
        self.tickets[0].clone()
    }

    /// What is durable of the page, and the ticket of what is not.
    pub fn durability(&self) -> Durability {
        // A later image has all that the one on its way has.
        let flying = || self.flying.as_ref()?.ticket.clone();
        let ticket = self.tickets.first().cloned().or_else(flying);
        Durability { durable_stamp: self.durable_stamp, removed_stamp: self.removed_stamp, ticket }
    }

    /// What to wait for before a look that saw a stamp may be shown; `None`: it is durable.
    pub fn wait_for(&self, seen: u64) -> Option<Arc<DurabilityTicket>> {
        if seen <= self.durable_stamp { None } else { self.durability().ticket }
    }

    /// Gives a part of the page's records to another page: what that is to begin with. Both are to be written, each to a slot of its own.
    pub fn split(&mut self, resume: impl FnOnce(u32) -> SlotShare, promises: SplitPromises) -> PageMeta {
        if let Some(slot) = self.slot.take() {
            self.shared.push(resume(slot));
        }
        self.promise = self.promise.take().or(promises.lower);
        self.is_dirty = true;
        self.tickets.iter().for_each(|ticket| ticket.add_image());
        // What is in the image on its way is in both halves, and not durable before that is; either half's next image has it as well.
        if self.tickets.is_empty() && self.changed_stamp > self.durable_stamp {
            let ticket = self.ticket();
            ticket.add_image();
        }
        PageMeta {
            keyspace: self.keyspace,
            heat: self.heat,
            is_dirty: true,
            is_listed: false,
            slot: None,
            promise: Some(promises.upper),
            shared: self.shared.clone(),
            tickets: self.tickets.clone(),
            flying: None,
            durable_stamp: self.durable_stamp,
            changed_stamp: self.changed_stamp,
            removed_stamp: self.removed_stamp,
            log_stamp: self.log_stamp,
        }
    }

    /// Takes in what is known of a page whose records are now in this one. Neither is being written.
    pub fn merge(&mut self, other: PageMeta, resume: impl Fn(u32) -> SlotShare) {
        debug_assert!(!self.is_being_written() && !other.is_being_written(), "an image is of one node");
        // That it becomes durable says nothing of the records that come in.
        self.flying = None;
        self.is_dirty = true;
        self.shared.extend(other.slot.map(resume));
        self.shared.extend(other.shared);
        for ticket in other.tickets {
            match self.tickets.iter().any(|own| Arc::ptr_eq(own, &ticket)) {
                // One image has the changes of both.
                true => ticket.image_done(),
                false => self.tickets.push(ticket),
            }
        }
        self.durable_stamp = self.durable_stamp.min(other.durable_stamp);
        self.changed_stamp = self.changed_stamp.max(other.changed_stamp);
        self.removed_stamp = self.removed_stamp.max(other.removed_stamp);
        self.log_stamp = self.log_stamp.max(other.log_stamp);
    }
}
