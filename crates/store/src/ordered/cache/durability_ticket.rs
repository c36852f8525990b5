//! Tickets: how those who changed a page hear that their change is durable.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// Of changes of a page since its last image was made. It is done when an image of every page that has parts of them is durable: of more
/// than one, if the page was split meanwhile.
pub struct DurabilityTicket {
    /// Images that are still to come, or not durable.
    images: AtomicU32,
}

impl DurabilityTicket {
    /// For the next image of one page.
    pub fn new() -> Arc<DurabilityTicket> {
        Arc::new(DurabilityTicket { images: AtomicU32::new(1) })
    }

    /// Of what is durable already.
    pub fn done() -> Arc<DurabilityTicket> {
        Arc::new(DurabilityTicket { images: AtomicU32::new(0) })
    }

    /// Another page has a part of the changes, too. The caller's page has some, so that the ticket is not done.
    pub fn add_image(&self) {
        let before = self.images.fetch_add(1, Ordering::SeqCst);
        debug_assert!(before > 0, "it was done already");
    }

    /// An image is durable, or one that was to come is not needed: another one will have its changes.
    pub fn image_done(&self) {
        let before = self.images.fetch_sub(1, Ordering::SeqCst);
        debug_assert!(before > 0, "more images than it was for");
    }

    pub fn is_done(&self) -> bool {
        self.images.load(Ordering::SeqCst) == 0
    }
}
