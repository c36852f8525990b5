//! The host's metadata of a cached page.

use super::durability_ticket::DurabilityTicket;
use crate::ordered::slabs::{SlotPromise, SlotShare};
use std::sync::Arc;

/// The limit of the use counter.
const HEAT_MAX: u8 = 3;

/// The kind of access to a page. Pages that a long scan reads once are evicted before pages that are read by key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PageUse {
    /// By key, or by a short scan.
    ByKey,
    ByScan,
    /// The page was just read for this access, which was counted then.
    Again,
}

/// An image of a page on its way to durability.
pub struct FlyingImage {
    pub stamp: u64,
    /// The image is the node's home already: it was written, and nobody waits for its durability.
    pub is_home: bool,
    /// The ticket of its changes, if somebody waits for them.
    pub ticket: Option<Arc<DurabilityTicket>>,
}

/// See [`PageMeta::durability`].
pub struct Durability {
    durable_stamp: u64,
    removed_stamp: u64,
    ticket: Option<Arc<DurabilityTicket>>,
}

impl Durability {
    /// The durability of a page as it is on flash: nobody needs to wait.
    pub const OF_FLASH: Durability = Durability { durable_stamp: u64::MAX, removed_stamp: 0, ticket: None };

    /// The ticket that must be done before a look may be shown that saw this stamp, or no record. `None`: all of it is durable.
    pub fn wait_for(&self, seen: Option<u64>) -> Option<Arc<DurabilityTicket>> {
        self.ticket.clone().filter(|_| seen.unwrap_or(self.removed_stamp) > self.durable_stamp)
    }
}

/// See the [module](self). The metadata of a cached page, accessed under the lock of its set.
#[derive(Default)]
pub struct PageMeta {
    pub keyspace: u16,
    pub(super) heat: u8,
    /// The page was changed since its last image was made.
    pub is_dirty: bool,
    /// A change of the page failed half-way: nobody reads or writes it any more. The store takes no writes then, and this ends when it is opened again.
    pub is_lost: bool,
    /// The page is in the list of pages to write.
    pub(super) is_listed: bool,
    /// The slot of its newest image, durable or in flight. It is this node's alone, and its number is kept.
    pub slot: Option<u32>,
    /// A promise of a slot for its next image, if it has no slot.
    pub promise: Option<SlotPromise>,
    /// Shares of other slots whose images its next image replaces.
    pub shared: Vec<SlotShare>,
    /// Tickets of changes that its next image will have.
    pub tickets: Vec<Arc<DurabilityTicket>>,
    pub flying: Option<FlyingImage>,
    /// Records and removals up to this stamp are durable.
    pub durable_stamp: u64,
    /// The stamp of the last record or removal, or of the last one that came with a part of another node.
    pub changed_stamp: u64,
    /// The stamp of the last removal.
    pub removed_stamp: u64,
    /// The stamp of the last record of a batch. An image with that record is written only when the log is durable up to this stamp.
    pub log_stamp: u64,
}

/// Slots for the halves of a split. The lower half needs none if its page has a promise already.
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

    /// Whether the page was used since the hand last passed it; counts as a pass.
    pub(super) fn cool(&mut self) -> bool {
        let is_warm = self.heat > 0;
        self.heat = self.heat.saturating_sub(1);
        is_warm
    }

    /// Whether the page equals the image in its home, so that it may be evicted.
    pub fn is_clean(&self) -> bool {
        !self.is_dirty && !self.is_being_written()
    }

    /// Whether the page is of this keyspace, and equals the image in this slot.
    pub fn is_image(&self, keyspace: u16, slot: u32) -> bool {
        self.keyspace == keyspace && self.slot == Some(slot) && self.is_clean()
    }

    /// Whether a slot for its next image is guaranteed, whatever others take meanwhile.
    pub fn has_slot(&self) -> bool {
        self.slot.is_some() || self.promise.is_some()
    }

    /// Whether it has an image in flight that is not the node's home yet.
    pub fn is_being_written(&self) -> bool {
        self.flying.as_ref().is_some_and(|image| !image.is_home)
    }

    /// Notes a record in the page or, if `removes`, the removal of one. The caller has the page.
    pub fn changed(&mut self, stamp: u64, removes: bool) {
        self.is_dirty = true;
        self.changed_stamp = self.changed_stamp.max(stamp);
        if removes {
            self.removed_stamp = self.removed_stamp.max(stamp);
        }
    }

    /// Marks a changed page as listed. Whether it was not: then the caller lists it.
    pub fn list(&mut self) -> bool {
        self.is_dirty && !std::mem::replace(&mut self.is_listed, true)
    }

    /// Whether a listed page may be written now. If not, it is listed no more.
    pub fn stays_listed(&mut self) -> bool {
        self.is_listed = self.is_dirty && !self.is_being_written();
        self.is_listed
    }

    /// An image with this stamp has all changes so far. Returns their tickets.
    pub fn begin_image(&mut self, stamp: u64) -> Vec<Arc<DurabilityTicket>> {
        let tickets = std::mem::take(&mut self.tickets);
        self.flying = Some(FlyingImage { stamp, is_home: false, ticket: tickets.first().cloned() });
        (self.is_dirty, self.is_listed) = (false, false);
        tickets
    }

    /// The ticket of the changes since the last image.
    pub fn ticket(&mut self) -> Arc<DurabilityTicket> {
        if self.tickets.is_empty() {
            self.tickets.push(DurabilityTicket::new());
        }
        self.tickets[0].clone()
    }

    /// The durable part of the page, and the ticket of the rest.
    pub fn durability(&self) -> Durability {
        // A later image has everything that the one in flight has.
        let flying = || self.flying.as_ref()?.ticket.clone();
        let ticket = self.tickets.first().cloned().or_else(flying);
        Durability { durable_stamp: self.durable_stamp, removed_stamp: self.removed_stamp, ticket }
    }

    /// The ticket that must be done before a look that saw a stamp may be shown. `None`: it is durable.
    pub fn wait_for(&self, seen: u64) -> Option<Arc<DurabilityTicket>> {
        if seen <= self.durable_stamp { None } else { self.durability().ticket }
    }

    /// Splits off a part of the page's records into another page. Returns that page's metadata. Both pages must be written, each to a slot of its
    /// own.
    pub fn split(&mut self, resume: impl FnOnce(u32) -> SlotShare, promises: SplitPromises) -> PageMeta {
        if let Some(slot) = self.slot.take() {
            self.shared.push(resume(slot));
        }
        self.promise = self.promise.take().or(promises.lower);
        self.is_dirty = true;
        self.tickets.iter().for_each(|ticket| ticket.add_image());
        // Both halves have the changes of the image in flight, which are not durable before it is. The next image of either half has them as well.
        if self.tickets.is_empty() && self.changed_stamp > self.durable_stamp {
            let ticket = self.ticket();
            ticket.add_image();
        }
        PageMeta {
            keyspace: self.keyspace,
            heat: self.heat,
            is_dirty: true,
            is_lost: false,
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

    /// Merges the metadata of a page whose records are now in this one. Neither page is being written.
    pub fn merge(&mut self, other: PageMeta, resume: impl Fn(u32) -> SlotShare) {
        debug_assert!(!self.is_being_written() && !other.is_being_written(), "an image is of one node");
        // The durability of that image says nothing about the added records.
        self.flying = None;
        self.is_dirty = true;
        self.shared.extend(other.slot.map(resume));
        self.shared.extend(other.shared);
        for ticket in other.tickets {
            match self.tickets.iter().any(|own| Arc::ptr_eq(own, &ticket)) {
                // One image has the changes of both pages.
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
