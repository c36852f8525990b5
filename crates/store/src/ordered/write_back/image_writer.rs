//! The writer of images, used by the thread whose turn it is: a queue pair, copies of pages, and the images in flight.

use super::{ListedPage, SECOND_US};
use crate::ordered::cache::PageLook;
use crate::ordered::cache::durability_ticket::DurabilityTicket;
use crate::ordered::node_table::NodeHome;
use crate::ordered::slabs::{RESERVED_SLOTS, SlotShare};
use crate::ordered::tree::OrderedState;
use std::collections::BTreeSet;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Poll;
use std::time::Duration;
use tapetum_base::error::Error;
use tapetum_base::keyspace::KeyspaceId;
use tapetum_base::log::Sync;
use tapetum_base::media::io::lock;
use tapetum_drive::fail_point;
use tapetum_drive::programs::node::{ANY_NODE, ARGUMENTS_BYTES, NodeArguments, NodeFlags};
use tapetum_drive::{
    Command, Completion, Drive, Lease, LocalBuffer, LocalRange, MemoryAddress, Operation, Purpose, QueuePair, Returned,
};
use tapetum_kernels::ordered::{ImageSeal, NODE_BYTES};

/// The most images that are sealed or written at once: twice what a fast drive writes at a time.
const COPIES: usize = 64;
/// The most images that are written and wait for a flush.
const WRITTEN_MAX: usize = 4096;
/// A flush is sent when this many images were written, although others are being written.
const FLUSH_IMAGES: usize = 16;
/// The same limit if nobody waits until images are durable.
const FLUSH_IMAGES_LAZY: usize = WRITTEN_MAX / 4;
/// A copy of a page, followed by the arguments of the program.
const COPY_BYTES: usize = NODE_BYTES + ARGUMENTS_BYTES;

const TAG_SEAL: u64 = 0;
const TAG_WRITE: u64 = 1;
const TAG_FLUSH: u64 = 2;
const TAG_KINDS: u64 = 3;

/// An image, from when its page was sealed until it has landed.
struct Image {
    page: ListedPage,
    stamp: u64,
    /// The image attests the images of its keyspace up to this stamp.
    attests: u64,
    /// The image's slot. The page's metadata, or the node table, keeps another share.
    slot: SlotShare,
    /// Shares of the slots whose images it replaces.
    replaced: Vec<SlotShare>,
    tickets: Vec<Arc<DurabilityTicket>>,
    /// The image is written when the log is durable up to this stamp.
    log_stamp: u64,
    /// When the second began in which the page was sealed.
    second_began_us: u64,
}

pub struct ImageWriter {
    queue: QueuePair,
    batch: Vec<Returned>,
    copies: Vec<LocalBuffer>,
    /// Images by number.
    images: Vec<Option<Image>>,
    free: Vec<usize>,
    /// The stamps of images that have not landed.
    stamps: BTreeSet<u64>,
    /// The number of pages that the drive is sealing.
    sealing: usize,
    /// Sealed copies that wait for the log.
    held: Vec<(usize, LocalBuffer)>,
    writing: usize,
    /// Images that are written, and in no flush yet.
    written: Vec<usize>,
    is_flushing: bool,
    flushing: Vec<usize>,
    /// Tickets of other writers' writes that the flush in flight covers.
    flushing_tickets: Vec<Arc<DurabilityTicket>>,
    /// A flush must free slots, or its time has come.
    flush_is_due: bool,
    arguments: Vec<u8>,
    /// The number of pages that may be written in this second, if nobody hurries.
    due: usize,
    second_began_us: u64,
}

impl ImageWriter {
    pub fn new(drive: &Drive) -> Result<ImageWriter, Error> {
        let queue = drive.queue_pair(COPIES as u32 + 1).map_err(|error| Error::Io(error.to_string()))?;
        let copy = || drive.local().allocate(COPY_BYTES);
        let copies: Option<Vec<LocalBuffer>> = (0..COPIES).map(|_| copy()).collect();
        let copies = copies.ok_or_else(|| {
            Error::Options("the memory for pages that are written is not to be had: give the store more memory".into())
        })?;
        Ok(ImageWriter {
            queue,
            batch: Vec::new(),
            copies,
            images: Vec::new(),
            free: Vec::new(),
            stamps: BTreeSet::new(),
            sealing: 0,
            held: Vec::new(),
            writing: 0,
            written: Vec::new(),
            is_flushing: false,
            flushing: Vec::new(),
            flushing_tickets: Vec::new(),
            flush_is_due: false,
            arguments: Vec::new(),
            due: 0,
            second_began_us: 0,
        })
    }

    pub fn event_fd(&self) -> Option<RawFd> {
        self.queue.event_fd()
    }

    pub fn work(&mut self, state: &OrderedState, hurry: bool, now_us: u64, closes: bool) {
        if closes && self.stamps.is_empty() {
            state.write_back.end();
        }
        if now_us >= self.second_began_us + SECOND_US {
            self.second_began_us = now_us;
            state.write_back.is_behind.store(self.due > 0 && state.base.log.sync() != Sync::Always, Ordering::Relaxed);
            self.due = lock(&state.write_back.listed).len();
            self.flush_is_due = true;
        }
        loop {
            let any = self.reap(state);
            if any && state.base.log.sync() != Sync::Always {
                // Sessions that wait for room may find some.
                state.base.log.wake();
            }
            if state.base.log.poisoned().is_err() {
                return;
            }
            let sealed = self.seal_pages(state, hurry);
            let written = self.write_held(state, now_us);
            if !any && !sealed && !written && !self.flush(state, hurry) {
                return;
            }
        }
    }

    /// Takes completions and starts submitted commands. Returns whether there were completions.
    fn reap(&mut self, state: &OrderedState) -> bool {
        let mut batch = std::mem::take(&mut self.batch);
        self.queue.poll(&mut batch);
        let any = !batch.is_empty();
        batch.drain(..).for_each(|returned| self.completed(state, returned));
        self.batch = batch;
        any
    }

    fn completed(&mut self, state: &OrderedState, Returned { completion, lease }: Returned) {
        let (kind, number) = (completion.tag & TAG_KINDS, (completion.tag >> 2) as usize);
        match (kind, lease) {
            (TAG_SEAL, Lease::Buffers([page, copy])) => self.sealed(state, number, &completion, page, copy),
            (TAG_WRITE, Lease::Buffer(copy)) => {
                self.copies.push(copy);
                self.writing -= 1;
                if fail_point!(OrderedAcknowledgeEarly)
                    && let Some(image) = &mut self.images[number]
                {
                    image.tickets.drain(..).for_each(|ticket| ticket.image_done());
                }
                match completion.is_success() {
                    true => self.was_written(state, number),
                    false => self.fail(state, "write", &completion),
                }
            }
            _ => {
                let failed =
                    (!completion.is_success()).then(|| Error::of_command(self.queue.drive(), "flush", &completion));
                self.is_flushing = false;
                state.base.log.end_flush_elsewhere(failed.as_ref());
                if failed.is_none() {
                    self.landed(state);
                }
            }
        }
    }

    fn was_written(&mut self, state: &OrderedState, number: usize) {
        self.written.push(number);
        if state.base.log.sync() != Sync::Always {
            let Some(image) = &self.images[number] else { unreachable!("it is on its way") };
            state.cache.moved(image.page.node, NodeHome { slot: image.slot.number(), stamp: image.stamp });
        }
    }

    fn fail(&self, state: &OrderedState, what: &str, completion: &Completion) {
        let error = Error::of_command(self.queue.drive(), what, completion);
        state.base.log.poison("the image of a data node", error);
    }

    /// Seals listed pages, as many as there are copies for. Returns whether there were any.
    fn seal_pages(&mut self, state: &OrderedState, hurry: bool) -> bool {
        let mut busy = Vec::new();
        let (mut any, mut lacks_slot) = (false, false);
        if state.write_back.is_closed() {
            return false;
        }
        // A bound, so that busy pages do not come round again.
        let listed = lock(&state.write_back.listed).len();
        for _ in 0..if hurry { listed } else { listed.min(self.due) } {
            if self.copies.is_empty() || self.stamps.len() >= WRITTEN_MAX {
                break;
            }
            let Some(page) = lock(&state.write_back.listed).pop_front() else { break };
            if page.tree.is_dropped() {
                // A later keyspace may have its id, and a node of that the page's.
                state.write_back.finished(1);
                continue;
            }
            let look = state.cache.take_if(page.node, |meta| {
                // Its id may belong to another tree by now.
                meta.keyspace == page.tree.keyspace.0 && meta.stays_listed()
            });
            match look {
                PageLook::Taken(buffer) => match self.seal(state, page, buffer) {
                    Ok(()) => any = true,
                    // All of its slots are in use until groups are opened or images land.
                    Err(page) => {
                        busy.push(page);
                        (self.flush_is_due, lacks_slot) = (true, true);
                        break;
                    }
                },
                PageLook::Busy => busy.push(page),
                // The page is clean or was merged, or its next image comes when the one in flight has landed.
                PageLook::Absent(_) | PageLook::Gone | PageLook::Lost => state.write_back.finished(1),
            }
            self.due = self.due.saturating_sub(1);
        }
        if self.due == 0 {
            state.write_back.is_behind.store(false, Ordering::Relaxed);
        }
        lock(&state.write_back.listed).extend(busy);
        state.write_back.is_starved.store(lacks_slot && self.stamps.is_empty(), Ordering::Relaxed);
        state.write_back.looks.fetch_add(1, Ordering::SeqCst);
        self.await_pages(state);
        any
    }

    /// Sends a page to be sealed, under a new stamp, for a free slot. Returns the page if there is none.
    fn seal(&mut self, state: &OrderedState, page: ListedPage, buffer: LocalBuffer) -> Result<(), ListedPage> {
        let nodes = &page.tree.nodes;
        let (own, is_promised) = state
            .cache
            .with(page.node, |meta| (meta.slot, meta.promise.is_some()))
            .expect("a page that is taken stays");
        let over = own.filter(|_| state.limits.in_place).and_then(|number| nodes.share_alone(number));
        let is_over = over.is_some();
        let room = nodes.has_room_for(self.stamps.len() + 1) || self.stamps.len() < RESERVED_SLOTS as usize;
        let another = || {
            let near = own.map(|number| nodes.map().address(number));
            if is_promised { nodes.take_promised(near) } else { nodes.take(near) }
        };
        let slot = over.or_else(|| room.then(another).flatten());
        // If flash is full, an image takes a reserved slot, one image at a time. It may if it frees its old slot, or if it was promised a slot
        // before others took the last extents; also while half of the reserved slots are left, as a keyspace's first node has neither.
        let may_have_kept = own.is_some() || is_promised || nodes.has_room_for(RESERVED_SLOTS as usize / 2);
        let kept_back = || (may_have_kept && self.stamps.is_empty()).then(|| nodes.take_kept_back()).flatten();
        let Some(slot) = slot.or_else(kept_back) else {
            state.cache.give_back(page.node, buffer, |_| ());
            return Err(page);
        };
        let stamp = state.base.log.give_stamp();
        let (replaced, tickets, log_stamp) = state
            .cache
            .with(page.node, |meta| {
                let mut replaced = std::mem::take(&mut meta.shared);
                if !is_over {
                    replaced.extend(meta.slot.replace(slot.clone().keep()).map(|number| nodes.resume(number)));
                    meta.promise = None;
                }
                (replaced, meta.begin_image(stamp), meta.log_stamp.max(deletion_before(state, page.tree.keyspace)))
            })
            .expect("a page that is taken stays");
        let mut copy = self.copies.pop().expect("the caller looks for one first");
        let number = self.free.pop().unwrap_or_else(|| {
            self.images.push(None);
            self.images.len() - 1
        });
        self.stamps.insert(stamp);
        self.arguments.clear();
        let durable = self.durable(stamp);
        // If images are written in place, some images of the round may be gone.
        let round_images = if state.limits.in_place { 0 } else { page.tree.nodes.round_images(durable) };
        let (salt, id, flags) = (slot.salt(), ANY_NODE, NodeFlags::SEAL);
        let seal = ImageSeal { stamp, durable, round_images };
        NodeArguments { salt, id, stamp: 0, watermark: 0, seal, now_ms: 0, flags }.encode(&mut self.arguments);
        self.queue.fill(Purpose::Flush, &mut copy, NODE_BYTES..COPY_BYTES).copy_from_slice(&self.arguments);
        let operation = Operation::Execute {
            program: state.programs.realign,
            parameters: LocalRange { offset: copy.offset() + NODE_BYTES as u64, length: ARGUMENTS_BYTES as u32 },
            input: buffer.range(),
            output: LocalRange { offset: copy.offset(), length: NODE_BYTES as u32 },
        };
        let attests = if round_images > 0 { durable } else { 0 };
        let second_began_us = self.second_began_us;
        self.images[number] = Some(Image { page, stamp, attests, slot, replaced, tickets, log_stamp, second_began_us });
        self.sealing += 1;
        self.submit(TAG_SEAL | (number as u64) << 2, operation, Lease::Buffers([buffer, copy]));
        Ok(())
    }

    /// The stamp up to which all images are durable when the next one gets `stamp`.
    fn durable(&self, stamp: u64) -> u64 {
        self.stamps.first().copied().unwrap_or(stamp) - 1
    }

    fn submit(&mut self, tag: u64, operation: Operation, lease: Lease) {
        let command = Command::new(tag, operation).of(Purpose::Flush);
        self.queue.submit(command, lease).expect("fewer commands are on their way than the queue pair takes");
    }

    /// Waits until all pages are given back: programs are short.
    fn await_pages(&mut self, state: &OrderedState) {
        while self.sealing > 0 {
            if !self.reap(state) {
                if self.queue.event_fd().is_none() {
                    // A simulated drive that stopped never answers.
                    return;
                }
                self.queue.wait(Some(Duration::from_millis(1)));
            }
        }
    }

    fn sealed(
        &mut self,
        state: &OrderedState,
        number: usize,
        completion: &Completion,
        page: LocalBuffer,
        copy: LocalBuffer,
    ) {
        self.sealing -= 1;
        let Some(image) = &self.images[number] else { unreachable!("it is on its way") };
        state.cache.give_back(image.page.node, page, |_| ());
        if !completion.is_success() {
            return self.fail(state, "program over a data node", completion);
        }
        let is_early = fail_point!(OrderedImageBeforeLog);
        match image.log_stamp > state.base.log.durable_stamp() && !is_early {
            true => self.held.push((number, copy)),
            false => self.write(number, copy),
        }
    }

    /// Advances the log for copies that wait for it, and writes those that need not wait any more. Returns whether there were any.
    fn write_held(&mut self, state: &OrderedState, now_us: u64) -> bool {
        if self.held.is_empty() {
            return false;
        }
        state.base.log.advance(true, now_us);
        let durable = state.base.log.durable_stamp();
        let may_go = |(number, _): &mut (usize, LocalBuffer)| {
            self.images[*number].as_ref().is_some_and(|image| image.log_stamp <= durable)
        };
        let ready: Vec<_> = self.held.extract_if(.., may_go).collect();
        let any = !ready.is_empty();
        ready.into_iter().for_each(|(number, copy)| self.write(number, copy));
        any
    }

    /// Whether a flush would release copies that wait for the log.
    fn log_wants_flush(&self, state: &OrderedState) -> bool {
        let written = state.base.log.written_stamp();
        let stamps = self.held.iter().filter_map(|(number, _)| self.images[*number].as_ref());
        written > state.base.log.durable_stamp() && stamps.into_iter().any(|image| image.log_stamp <= written)
    }

    fn write(&mut self, number: usize, copy: LocalBuffer) {
        let Some(image) = &self.images[number] else { unreachable!("it is on its way") };
        let operation = Operation::Write {
            flash: image.slot.flash_offset(),
            from: MemoryAddress::local(copy.offset()),
            length: NODE_BYTES as u32,
            fua: false,
        };
        self.writing += 1;
        self.submit(TAG_WRITE | (number as u64) << 2, operation, Lease::Buffer(copy));
    }

    /// Sends a flush, if there is something to flush and no other flush is in flight.
    fn flush(&mut self, state: &OrderedState, hurry: bool) -> bool {
        let others = lock(&state.write_back.unflushed).len();
        let any = !self.written.is_empty() || others > 0;
        let is_wanted =
            any && self.is_flush_worth_it(state, hurry, others) || !self.held.is_empty() && self.log_wants_flush(state);
        if self.is_flushing || !is_wanted {
            return false;
        }
        let Poll::Ready(Ok(())) = state.base.log.begin_flush_elsewhere() else { return false };
        self.is_flushing = true;
        std::mem::swap(&mut self.written, &mut self.flushing);
        self.flushing_tickets = std::mem::take(&mut *lock(&state.write_back.unflushed));
        // Images still being written were due as well: their flush is the next one, not that of the next second.
        self.flush_is_due &= self.writing > 0 || self.sealing > 0 || !self.held.is_empty();
        self.submit(TAG_FLUSH, Operation::Flush, Lease::Nothing);
        true
    }

    /// Whether the writes, also those of `others`, should be flushed now.
    fn is_flush_worth_it(&self, state: &OrderedState, hurry: bool, others: usize) -> bool {
        let rests = self.writing == 0;
        match state.base.log.sync() {
            Sync::Always => rests || self.written.len() + others >= FLUSH_IMAGES,
            _ if others > 0 => rests || others >= FLUSH_IMAGES,
            // Pages may be evicted before the flush, so making room needs none.
            Sync::EverySecond | Sync::No => {
                let is_last = hurry && rests && lock(&state.write_back.listed).is_empty();
                self.flush_is_due || is_last || self.written.len() >= FLUSH_IMAGES_LAZY
            }
        }
    }

    /// Makes flushed images their nodes' homes.
    fn landed(&mut self, state: &OrderedState) {
        let (landed, flushed) = (self.flushing.len(), self.flushing_tickets.len());
        self.flushing_tickets.drain(..).for_each(|ticket| ticket.image_done());
        for number in self.flushing.drain(..) {
            let Some(image) = self.images[number].take() else { unreachable!("it is on its way") };
            self.free.push(number);
            let Image { page, stamp, attests, slot, replaced, tickets, log_stamp: _, second_began_us } = image;
            self.stamps.remove(&stamp);
            let mut is_changed = false;
            state.cache.landed(page.node, NodeHome { slot: slot.number(), stamp }, |meta| {
                is_changed = meta.list();
            });
            slot.settle(stamp);
            page.tree.nodes.attested(stamp, attests);
            drop((slot, replaced));
            tickets.iter().for_each(|ticket| ticket.image_done());
            if is_changed {
                state.write_back.list(&page.tree, page.node);
                // It would have been due when this second began, but for its image in flight.
                let is_due = second_began_us < self.second_began_us;
                self.due += usize::from(is_due);
                self.flush_is_due |= is_due;
            }
        }
        state.write_back.images.fetch_add(landed as u64, Ordering::Relaxed);
        state.write_back.finished(landed + flushed);
        state.base.log.wake();
    }
}

/// The stamp of the last deletion of everything in a keyspace, 0 if there was none. A later image may depend on that deletion.
fn deletion_before(state: &OrderedState, keyspace: KeyspaceId) -> u64 {
    let watermark = state.base.keyspaces.mark(keyspace).watermark;
    // Everything in a dropped keyspace is deleted.
    if watermark == u64::MAX { 0 } else { watermark }
}
