//! The write-back: it writes dirty pages as images to flash, each to a slot without an image that may be live.
//!
//! ```text
//! listed ─► page taken, sealed into a copy, given back ─► copy written ─► flushed with all that were written before ─► landed
//!    ▲             stamp, slot                                                                                       │
//!    └───────────────────────────── changed meanwhile ◄──────────────────────────────────────────────────────────────┘
//! ```
//! 1. An image gets its stamp while its page is taken, so a later image of overlapping keys has a higher one.
//! 2. A page has one image in flight. Changes made meanwhile are in its next one.
//! 3. An image in flight holds shares of the slots that it replaces. It gives them up when it has *landed*: when a flush that began after its write
//!    has ended. Then its slot and stamp become the node's home, and everyone who waits for it is told.
//! 4. An image with a change of a batch is written once the batch is durable in the log. Its sealed copy waits for that.
//! 5. If nobody waits for flash, an image becomes its node's home when it is written, and the page may be evicted. A flush comes within a second, or
//!    when slots are short.
//! 6. One flush of the drive is in flight at a time, whoever sent it ([`Log::begin_flush_elsewhere`](tapetum_base::log::Log)). It covers all images,
//!    and all extensions, that were written before it began.
//! 7. If a write of a page is atomic ([`OrderedLimits::in_place`](super::tree::OrderedLimits)), an image overwrites the one that it replaces, unless
//!    somebody else has a share of that slot: after a power failure one of the two is there.
//! 8. A failure poisons the log. No image in flight lands after that.
//!
//! Threads: any. One thread at a time does the work for all that ask ([`Turns`]). A session that waits for an image, or for room in the cache, asks
//! at every poll, so no session depends on another one's progress. Locks under its turn: the lists, the cache's sets, the log's.

mod image_writer;

use super::cache::durability_ticket::DurabilityTicket;
use super::node_table::NodeId;
use super::tree::{OrderedState, OrderedTree};
use image_writer::ImageWriter;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use tapetum_base::error::Error;
use tapetum_base::log::Sync;
use tapetum_base::log::turns::Turns;
use tapetum_base::media::io::lock;
use tapetum_base::wake::shared_event::SharedEvent;
use tapetum_drive::Drive;

/// A thread's request: the due work, or all of it.
const LOOK: u64 = 1;
const HURRY: u64 = 2;
/// Requests that no more images are made, if none is in flight.
const CLOSE: u64 = 4;
const SECOND_US: u64 = 1_000_000;
/// If more than one in this many of the cached pages is listed, they are written at once.
const LISTED_PART: usize = 4;

#[derive(Clone)]
pub struct ListedPage {
    pub tree: Arc<OrderedTree>,
    pub node: NodeId,
}

pub struct WriteBack {
    listed: Mutex<VecDeque<ListedPage>>,
    /// Tickets of other writers' writes that no flush covers yet.
    unflushed: Mutex<Vec<Arc<DurabilityTicket>>>,
    turns: Turns<AtomicU64, ImageWriter>,
    /// Readable when images may have made progress.
    pub event: SharedEvent,
    /// The number of listed pages, images in flight, and writes that wait for a flush.
    unfinished: AtomicUsize,
    images: AtomicU64,
    /// See [`WriteBack::is_starved`].
    is_starved: AtomicBool,
    /// How often slots were looked for.
    looks: AtomicU64,
    is_closed: AtomicBool,
    /// See [`WriteBack::has_ended`].
    has_ended: AtomicBool,
    /// See [`WriteBack::is_behind`].
    is_behind: AtomicBool,
}

/// A split or a merge is under way. Images are made until this is dropped.
pub struct HeldOpen<'a>(&'a WriteBack);

impl Drop for HeldOpen<'_> {
    fn drop(&mut self) {
        self.0.finished(1);
    }
}

impl WriteBack {
    /// # Errors
    /// The operating system's, if it has no more rings; and if local memory has no room for copies of pages.
    pub fn new(drive: &Drive) -> Result<WriteBack, Error> {
        let writer = ImageWriter::new(drive)?;
        Ok(WriteBack {
            listed: Mutex::default(),
            unflushed: Mutex::default(),
            event: SharedEvent::new(writer.event_fd()),
            turns: Turns::new(writer),
            unfinished: AtomicUsize::new(0),
            images: AtomicU64::new(0),
            is_starved: AtomicBool::new(false),
            looks: AtomicU64::new(0),
            is_closed: AtomicBool::new(false),
            has_ended: AtomicBool::new(false),
            is_behind: AtomicBool::new(false),
        })
    }

    /// Adds a page that was not listed.
    pub fn list(&self, tree: &Arc<OrderedTree>, node: NodeId) {
        // SeqCst orders this with `end`: a thread that changes a page lists it, and then checks whether images are still made.
        self.unfinished.fetch_add(1, Ordering::SeqCst);
        lock(&self.listed).push_back(ListedPage { tree: tree.clone(), node });
    }

    /// Requests a flush of the caller's writes. The ticket is done when they are durable. The same flush covers others' writes.
    pub fn flush_written(&self) -> Arc<DurabilityTicket> {
        let ticket = DurabilityTicket::new();
        self.unfinished.fetch_add(1, Ordering::Relaxed);
        lock(&self.unflushed).push(ticket.clone());
        ticket
    }

    /// The number of changed pages that have no image in flight.
    pub fn listed(&self) -> usize {
        lock(&self.listed).len()
    }

    /// Whether pages must be written, or images are in flight.
    pub fn has_work(&self) -> bool {
        self.unfinished.load(Ordering::Relaxed) > 0
    }

    /// The number of images that have landed.
    pub fn images(&self) -> u64 {
        self.images.load(Ordering::Relaxed)
    }

    /// Advances images. If writes are answered before they are durable, a page is written within a second, or at once if somebody needs room in a
    /// `hurry`. Never blocks on flash.
    pub fn advance(&self, state: &OrderedState, hurry: bool) {
        let now_us = state.base.drive.env().now_us();
        // Pages are written before somebody needs their places.
        let many = lock(&self.listed).len() > state.cache.pages() / LISTED_PART;
        let hurry = hurry || many || state.base.log.sync() == Sync::Always;
        let left = self.turns.run(if hurry { HURRY } else { LOOK }, |writer, asks| {
            writer.work(state, asks & HURRY != 0, now_us, asks & CLOSE != 0);
        });
        if left {
            // The woken threads ask again.
            state.base.log.wake();
        }
    }

    /// Stops making images, unless one is in flight. Returns whether it has stopped. Pages that are changed later stay as they are.
    pub fn close(&self, state: &OrderedState) -> bool {
        let now_us = state.base.drive.env().now_us();
        let _ = self.turns.run(CLOSE, |writer, asks| writer.work(state, asks & HURRY != 0, now_us, asks & CLOSE != 0));
        self.has_ended()
    }

    /// Whether the last search found no slot for a page, while no image in flight was going to free one.
    pub fn is_starved(&self) -> bool {
        self.is_starved.load(Ordering::Relaxed)
    }

    /// The number of searches for slots. [`WriteBack::is_starved`] has the result of the last one; another thread may run the next.
    pub fn looks(&self) -> u64 {
        self.looks.load(Ordering::SeqCst)
    }

    /// Whether a page that was changed more than a second ago has no image in flight yet. Writers then wait, which bounds the loss in a crash where
    /// changes are acknowledged before they are durable: to two seconds, and the drive's time for the images in flight. False while pages wait for
    /// slots, as deletions free these.
    pub fn is_behind(&self) -> bool {
        self.is_behind.load(Ordering::Relaxed) && !self.is_starved()
    }

    /// Whether it has ended for good. [`WriteBack::is_closed`] may become false again, if a page was listed meanwhile.
    pub fn has_ended(&self) -> bool {
        self.has_ended.load(Ordering::SeqCst)
    }

    /// Whether images are no longer made: a change of a page from here on is lost, and must not be acknowledged.
    pub fn is_closed(&self) -> bool {
        self.is_closed.load(Ordering::SeqCst)
    }

    /// Stops making images, unless a page was listed meanwhile.
    fn end(&self) {
        if self.has_ended() {
            return;
        }
        self.is_closed.store(true, Ordering::SeqCst);
        match self.unfinished.load(Ordering::SeqCst) {
            0 => self.has_ended.store(true, Ordering::SeqCst),
            _ => self.is_closed.store(false, Ordering::SeqCst),
        }
    }

    /// Holds back the end of images while a split or a merge changes several nodes, so that a checkpoint of anchors has such a change whole or not
    /// at all. `None`: images are no longer made, and the change must not begin.
    pub fn hold_open(&self) -> Option<HeldOpen<'_>> {
        // SeqCst orders this with `end`, as in `list`.
        self.unfinished.fetch_add(1, Ordering::SeqCst);
        let held = HeldOpen(self);
        (!self.is_closed()).then_some(held)
    }

    fn finished(&self, pages: usize) {
        self.unfinished.fetch_sub(pages, Ordering::Relaxed);
    }
}
