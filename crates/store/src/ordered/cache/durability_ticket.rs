//! Tickets: a change of a page waits on one until it is durable.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// A ticket for the changes of a page since its last image was made. It is done when an image of every page with a part of them is durable: more
/// than one page, if it was split meanwhile.
pub struct DurabilityTicket {
    /// Images that are not made or not durable yet.
    images: AtomicU32,
}

impl DurabilityTicket {
    /// A ticket for the next image of one page.
    pub fn new() -> Arc<DurabilityTicket> {
        Arc::new(DurabilityTicket { images: AtomicU32::new(1) })
    }

    /// A ticket for changes that are durable already.
    pub fn done() -> Arc<DurabilityTicket> {
        Arc::new(DurabilityTicket { images: AtomicU32::new(0) })
    }

    /// Another page also has a part of the changes. The caller's page still has some, so the ticket is not done.
    pub fn add_image(&self) {
        let before = self.images.fetch_add(1, Ordering::SeqCst);
        debug_assert!(before > 0, "it was done already");
    }

    /// An image became durable, or an expected one is not needed, because another one will have its changes.
    pub fn image_done(&self) {
        let before = self.images.fetch_sub(1, Ordering::SeqCst);
        debug_assert!(before > 0, "more images than it was for");
    }

    pub fn is_done(&self) -> bool {
        self.images.load(Ordering::SeqCst) == 0
    }
}
