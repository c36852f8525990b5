//! The write-back: pages that were changed become images on flash, each in a slot where nothing is that may be live.
//!
//! ```text
//! listed ─► page taken, sealed into a copy, given back ─► copy written ─► flushed with all that were written before ─► landed
//!    ▲             stamp, slot                                                                                       │
//!    └───────────────────────────── changed meanwhile ◄──────────────────────────────────────────────────────────────┘
//! ```
//! 1. The stamp of an image is given while its page is taken, so an image of overlapping keys that is made later has a higher one.
//! 2. A page has one image on its way. What changes meanwhile is in its next one.
//! 3. An image that is on its way holds shares of the slots that it replaces. It gives them up when it has *landed*: when a flush that
//!    began after it was written has ended. Then its slot and stamp are the node's home, and those who wait for it are told.
//! 4. An image with a change of a batch is written when the log has the batch durable. Its sealed copy waits for that.
//! 5. Where nobody waits for flash, an image is its node's home when it was written, and the page may leave the cache; a flush comes within a
//!    second, or when slots are short.
//! 6. One flush of the drive is on its way at a time, whoever's it is ([`Log::begin_flush_elsewhere`](tapetum_base::log::Log)). It covers all
//!    images, and all extensions, that were written before it began.
//! 7. Where a write of a page is atomic ([`OrderedLimits::in_place`](super::tree::OrderedLimits)), an image goes over the one that it replaces if
//!    nobody else has a share of that slot: after a power failure one of the two is there.
//! 8. A failure poisons the log. Nothing that was on its way lands after that.
//!
//! Threads: any. One thread at a time does the work for all who ask ([`Turns`]). Whoever waits for an image, or for room in the cache,
//! asks at every poll, so nobody's progress depends on another one. Locks under its turn: the lists, the cache's sets, the log's.

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

/// What a thread asks for: the work that is due, or all of it.
const LOOK: u64 = 1;
const HURRY: u64 = 2;
/// That no image is made any more, if none is on its way.
const CLOSE: u64 = 4;
const SECOND_US: u64 = 1_000_000;
/// If more than one in so many of the cached pages is listed, they are written at once.
const LISTED_PART: usize = 4;

#[derive(Clone)]
pub struct ListedPage {
    pub tree: Arc<OrderedTree>,
    pub node: NodeId,
}

pub struct WriteBack {
    listed: Mutex<VecDeque<ListedPage>>,
    /// Of what others have written, which no flush covers yet.
    unflushed: Mutex<Vec<Arc<DurabilityTicket>>>,
    turns: Turns<AtomicU64, ImageWriter>,
    /// Readable when images may have got further.
    pub event: SharedEvent,
    /// Pages that are listed, images on their way, and what waits for a flush.
    unfinished: AtomicUsize,
    images: AtomicU64,
    /// See [`WriteBack::is_starved`].
    is_starved: AtomicBool,
    /// How often slots were looked for.
    looks: AtomicU64,
    is_closed: AtomicBool,
    /// See [`WriteBack::is_behind`].
    is_behind: AtomicBool,
}

/// A change of several nodes is under way.
pub struct HeldOpen<'a>(&'a WriteBack);

impl Drop for HeldOpen<'_> {
    fn drop(&mut self) {
        self.0.finished(1);
    }
}

impl WriteBack {
    /// # Errors
    /// The operating system's, when it has no more rings to give; and when local memory has no room for copies of pages.
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
            is_behind: AtomicBool::new(false),
        })
    }

    /// Adds a page that was not listed.
    pub fn list(&self, tree: &Arc<OrderedTree>, node: NodeId) {
        // In one order with the end: who changes a page lists it, and looks then whether images are made still.
        self.unfinished.fetch_add(1, Ordering::SeqCst);
        lock(&self.listed).push_back(ListedPage { tree: tree.clone(), node });
    }

    /// What the caller has written is to be flushed: done when it is durable. Others' writes are covered by the same flush.
    pub fn flush_written(&self) -> Arc<DurabilityTicket> {
        let ticket = DurabilityTicket::new();
        self.unfinished.fetch_add(1, Ordering::Relaxed);
        lock(&self.unflushed).push(ticket.clone());
        ticket
    }

    /// Whether pages are to be written, or images on their way.
    pub fn has_work(&self) -> bool {
        self.unfinished.load(Ordering::Relaxed) > 0
    }

    /// Images that have landed.
    pub fn images(&self) -> u64 {
        self.images.load(Ordering::Relaxed)
    }

    /// Moves images on. Where writes are answered before they are durable, a page is written within a second, or, if somebody is in a
    /// `hurry` for room, at once. Never blocks on flash.
    pub fn advance(&self, state: &OrderedState, hurry: bool) {
        let now_us = state.base.drive.env().now_us();
        // Pages are written before somebody needs their places.
        let many = lock(&self.listed).len() > state.cache.pages() / LISTED_PART;
        let hurry = hurry || many || state.base.log.sync() == Sync::Always;
        let left = self.turns.run(if hurry { HURRY } else { LOOK }, |writer, asks| {
            writer.work(state, (asks & HURRY != 0, now_us), asks & CLOSE != 0);
        });
        if left {
            // Each of them asks again.
            state.base.log.wake();
        }
    }

    /// Makes no image any more, unless one is on its way; whether that is so. Pages that are changed later stay as they are.
    pub fn close(&self, state: &OrderedState) -> bool {
        let now_us = state.base.drive.env().now_us();
        let _ =
            self.turns.run(CLOSE, |writer, asks| writer.work(state, (asks & HURRY != 0, now_us), asks & CLOSE != 0));
        self.is_closed()
    }

    /// Whether a page found no slot when pages were last looked for, while no image was on its way that gives one back.
    pub fn is_starved(&self) -> bool {
        self.is_starved.load(Ordering::Relaxed)
    }

    /// How often slots were looked for: [`WriteBack::is_starved`] says what the last look found, and another thread may be at the next one.
    pub fn looks(&self) -> u64 {
        self.looks.load(Ordering::SeqCst)
    }

    /// Whether a page that was changed more than a second ago has no image on its way yet. Who changes pages waits then, so that what a crash
    /// takes is bounded where changes are acknowledged before they are durable: to two seconds, and the time that the drive takes for the
    /// images on their way. It is false while pages wait for slots: deletions give these.
    pub fn is_behind(&self) -> bool {
        self.is_behind.load(Ordering::Relaxed) && !self.is_starved()
    }

    /// Whether no image is made any more: a change of a page from here on is lost, and must not be acknowledged.
    pub fn is_closed(&self) -> bool {
        self.is_closed.load(Ordering::SeqCst)
    }

    /// Makes no image any more, unless a page was listed meanwhile.
    fn end(&self) {
        self.is_closed.store(true, Ordering::SeqCst);
        if self.unfinished.load(Ordering::SeqCst) > 0 {
            self.is_closed.store(false, Ordering::SeqCst);
        }
    }

    /// Keeps images being made until the change of several nodes that this is for is over, or is given up; `None`: none is made any more.
    /// A checkpoint of anchors sees such a change whole or not at all.
    pub fn hold_open(&self) -> Option<HeldOpen<'_>> {
        // In one order with the end, as a page that is listed.
        self.unfinished.fetch_add(1, Ordering::SeqCst);
        let held = HeldOpen(self);
        (!self.is_closed()).then_some(held)
    }

    fn finished(&self, pages: usize) {
        self.unfinished.fetch_sub(pages, Ordering::Relaxed);
    }
}
