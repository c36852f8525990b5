//! Reads all groups of data nodes and keeps the data that the live rule needs.
//!
//! Each thread takes the next piece that nobody has begun. It has a queue pair of its own, and several pieces in flight. A simulation has one
//! thread, the caller's.

use super::super::images::{ImageHead, NodeImages};
use super::super::slabs::SlotSpace;
use super::super::slabs::group_table::Group;
use super::super::slabs::slot_class::PAGE_BYTES;
use super::super::slabs::slot_round::{RoundImages, SlotRound};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use tapetum_base::error::Error;
use tapetum_base::media::io::{Io, lock, run};
use tapetum_base::media::transfer::Transfer;
use tapetum_drive::{Drive, LocalBuffer, Purpose, fail_point};
use tapetum_kernels::ordered::extension::ExtensionReference;
use tapetum_kernels::ordered::{NodeError, NodeRef, SlotSalt};

/// Bytes of one read: half an extent of a large store.
const PIECE_BYTES: u64 = 256 << 10;
const PIECE_PAGES: u32 = (PIECE_BYTES / PAGE_BYTES) as u32;
/// Pieces in flight for each thread: one more than the drive works on while another piece is examined.
const DEPTH: u32 = 4;
const PROGRESS_INTERVAL_US: u64 = 1_000_000;

/// An extension that a record of an image names.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NamedExtension {
    /// The place of the image in the set.
    pub image: u32,
    pub pages: u32,
    /// The number of the extension's slot. `None`: there is no such slot.
    pub slot: Option<u32>,
}

/// The images found in the groups of a keyspace's nodes.
#[derive(Default)]
pub struct ReadImages {
    pub set: NodeImages,
    pub named: Vec<NamedExtension>,
    /// Slots of open groups with neither an image nor zeros.
    pub torn: Vec<u32>,
    /// The highest stamp that an image attests as durable.
    pub stamp_durable: u64,
    pub of_round: RoundImages,
}

/// Neighbouring slots of a group.
#[derive(Clone, Copy)]
struct SlotPiece {
    /// The number of the first slot.
    first: u32,
    pages: u32,
    version: u64,
    /// The first extent of the group, and the place of the piece's first slot there.
    group: u32,
    place: u32,
    is_open: bool,
}

struct ReadWork {
    space: SlotSpace,
    /// The last round in the manifest.
    round: Option<SlotRound>,
    pieces: Vec<SlotPiece>,
    /// The number of the next piece to read.
    next: AtomicUsize,
    done: AtomicUsize,
    failed: AtomicBool,
    memory_bytes: u64,
    /// Bytes of everything that all threads have found so far.
    taken_bytes: AtomicU64,
    found: Mutex<ReadImages>,
    told_us: Mutex<u64>,
    drive: Drive,
}

/// The number of pages of an extension, and its slot.
pub fn named_by(space: &SlotSpace, reference: &ExtensionReference, key_bytes: usize) -> Option<(u32, Option<u32>)> {
    let class = reference.class(key_bytes)?;
    Some(((class.bytes() / PAGE_BYTES) as u32, space.map().number(reference.slot)))
}

/// Reads all nodes of a space.
pub async fn read_images(drive: &Drive, io: &Io, space: &SlotSpace, memory_bytes: u64) -> Result<ReadImages, Error> {
    let env = drive.env();
    let work = Arc::new(ReadWork {
        space: space.clone(),
        round: space.found_round(),
        pieces: pieces(space),
        next: AtomicUsize::new(0),
        done: AtomicUsize::new(0),
        failed: AtomicBool::new(false),
        memory_bytes,
        taken_bytes: AtomicU64::new(0),
        found: Mutex::default(),
        told_us: Mutex::new(env.now_us()),
        drive: drive.clone(),
    });
    let mut helpers = Vec::new();
    // Each thread has buffers for its pieces in flight: a quarter of local memory for all threads.
    let affordable = drive.local().bytes_total() as u64 / 4 / (u64::from(DEPTH) * PIECE_BYTES);
    for number in 1..env.parallelism().min(work.pieces.len()).min(affordable as usize) {
        let work = work.clone();
        // If a thread or a queue pair cannot be made, the other threads do its part.
        let Ok(queue) = drive.queue_pair(DEPTH.next_power_of_two()) else { break };
        let io = Io::new(queue).of(Purpose::Recover);
        let help = move || run(&io, work.read_next(&io), || false).unwrap_or(Ok(()));
        let Ok(thread) = env.spawn(&format!("tapetum-nodes-{number}"), help) else { break };
        helpers.push(thread);
    }
    let mut result = work.read_next(io).await;
    for helper in helpers {
        let helped = helper.join().unwrap_or_else(|_| Err(Error::Io("a recovery thread panicked".into())));
        result = result.and(helped);
    }
    result?;
    let mut found = std::mem::take(&mut *lock(&work.found));
    found.put_in_order();
    Ok(found)
}

fn pieces(space: &SlotSpace) -> Vec<SlotPiece> {
    let map = *space.map();
    let mut pieces = Vec::new();
    for group in space.groups() {
        let (begin, pages) = (map.first_of(group.first), map.pages(group.extents));
        for at in (0..pages).step_by(PIECE_PAGES as usize) {
            let pages = PIECE_PAGES.min(pages - at);
            let Group { first: of, version, open: is_open, .. } = group;
            pieces.push(SlotPiece { first: begin + at, pages, version, group: of, place: at, is_open });
        }
    }
    if fail_point!(OrderedSkipGroup) {
        // The groups that were opened first have most of the images.
        pieces.drain(..pieces.len().min(1));
    }
    pieces
}

impl ReadWork {
    /// Reads pieces until none is left, and adds their images to `found`.
    async fn read_next(&self, io: &Io) -> Result<(), Error> {
        let mut found = ReadImages::default();
        let read = self.read_into(io, &mut found).await;
        if read.is_err() {
            self.failed.store(true, Ordering::Relaxed);
            return read;
        }
        // Each thread sorts its part while others read. Merging two sorted runs is fast.
        found.put_in_order();
        lock(&self.found).append(found);
        Ok(())
    }

    async fn read_into(&self, io: &Io, found: &mut ReadImages) -> Result<(), Error> {
        let (mut reading, mut spare): (VecDeque<(Transfer, SlotPiece)>, Vec<LocalBuffer>) = Default::default();
        while !self.failed.load(Ordering::Relaxed) {
            while reading.len() < DEPTH as usize
                && let Some(piece) = self.pieces.get(self.next.fetch_add(1, Ordering::Relaxed))
            {
                let buffer = match spare.pop() {
                    Some(buffer) => buffer,
                    // A thread that has a buffer continues with it instead of waiting for another one.
                    None => match self.drive.local().allocate(PIECE_BYTES as usize) {
                        Some(buffer) => buffer,
                        None => io.allocate(PIECE_BYTES as usize).await?,
                    },
                };
                let mut transfer = Transfer::new(io, buffer);
                transfer.start_read(self.space.map().flash(piece.first), 0, piece.pages as usize * PAGE_BYTES as usize);
                reading.push_back((transfer, *piece));
            }
            let Some((transfer, piece)) = reading.pop_front() else { break };
            let (buffer, read) = transfer.end("read").await;
            read?;
            let before = found.bytes();
            found.look(
                &self.space,
                self.round.as_ref(),
                &piece,
                io.look(&buffer, 0..piece.pages as usize * PAGE_BYTES as usize),
            )?;
            spare.push(buffer);
            self.count(found.bytes() - before)?;
            self.tell();
        }
        Ok(())
    }

    fn count(&self, bytes: u64) -> Result<(), Error> {
        let taken = self.taken_bytes.fetch_add(bytes, Ordering::Relaxed) + bytes;
        match taken > self.memory_bytes {
            true => Err(Error::Options(format!(
                "the data nodes of an ordered keyspace take more than {} MiB to recover: give the store more memory",
                self.memory_bytes >> 20
            ))),
            false => Ok(()),
        }
    }

    fn tell(&self) {
        let done = self.done.fetch_add(1, Ordering::Relaxed) + 1;
        let now_us = self.drive.env().now_us();
        let mut told_us = lock(&self.told_us);
        if now_us >= *told_us + PROGRESS_INTERVAL_US {
            *told_us = now_us;
            let all = self.pieces.len();
            tracing::info!("recovering: {done} of {all} pieces of data nodes are read");
        }
    }
}

impl ReadImages {
    fn bytes(&self) -> u64 {
        self.set.bytes()
            + (self.named.len() * size_of::<NamedExtension>()
                + self.torn.len() * size_of::<u32>()
                + self.of_round.bytes()) as u64
    }

    fn append(&mut self, mut other: ReadImages) {
        if self.set.is_empty() {
            std::mem::swap(self, &mut other);
        }
        let behind = self.set.len() as u32;
        self.set.append(&other.set);
        self.named.extend(other.named.iter().map(|named| NamedExtension { image: behind + named.image, ..*named }));
        self.torn.extend(other.torn);
        self.stamp_durable = self.stamp_durable.max(other.stamp_durable);
        self.of_round.append(other.of_round);
    }

    fn put_in_order(&mut self) {
        let places = self.set.put_in_order();
        self.named.iter_mut().for_each(|named| named.image = places[named.image as usize]);
    }

    fn look(
        &mut self,
        space: &SlotSpace,
        round: Option<&SlotRound>,
        piece: &SlotPiece,
        bytes: &[u8],
    ) -> Result<(), Error> {
        for (at, page) in (0..).zip(bytes.chunks_exact(PAGE_BYTES as usize)) {
            let (number, group, place) = (piece.first + at, piece.group, piece.place + at);
            let may_be_torn = || piece.is_open && round.is_none_or(|round| round.may_be_torn(group, place));
            let salt =
                SlotSalt { store: space.options().store_id, slot: space.map().address(number), version: piece.version };
            match NodeRef::check(page, salt) {
                Ok(node) => {
                    round.into_iter().for_each(|round| self.of_round.look(round, group, place, &node));
                    self.take(space, number, node)?;
                }
                Err(NodeError::Blank) => (),
                Err(NodeError::Checksum) if may_be_torn() => self.torn.push(number),
                Err(error) => return Err(damage(space, number, error)),
            }
        }
        Ok(())
    }

    fn take(&mut self, space: &SlotSpace, slot: u32, node: NodeRef<'_>) -> Result<(), Error> {
        if node.keyspace() != space.options().keyspace.0 {
            return Err(damage(space, slot, NodeError::Damaged));
        }
        let id = u32::try_from(node.id()).map_err(|_| damage(space, slot, NodeError::Damaged))?;
        let (stamp, records) = (node.stamp(), node.count() as u16);
        let head = ImageHead { low: node.low_fence(), high: node.high_fence(), stamp, slot, id, records };
        let image = self.set.push(&head);
        self.stamp_durable = self.stamp_durable.max(node.durable());
        for named in node.extensions() {
            let named = named.ok().and_then(|(reference, key_bytes)| named_by(space, &reference, key_bytes));
            let (pages, slot) = named.ok_or_else(|| damage(space, slot, NodeError::Damaged))?;
            self.named.push(NamedExtension { image, pages, slot });
        }
        Ok(())
    }
}

fn damage(space: &SlotSpace, number: u32, error: NodeError) -> Error {
    let address = space.map().address(number);
    let (slot, extent, flash) = (address.page(), address.extent().number(), space.map().flash(number));
    let place = format!(
        "slot {slot} of extent {extent} (byte {flash} of the drive), of keyspace {}",
        space.options().keyspace.0
    );
    match error {
        NodeError::Version(version) => Error::OtherFormat(format!(
            "the data node in {place} has the version {version}, which this tapetum does not know: use the newer tapetum that wrote it"
        )),
        NodeError::Checksum => Error::Corrupt(format!(
            "{place} holds no intact data node, and no write to it was on its way when the store was left"
        )),
        _ => Error::Corrupt(format!("the data node in {place} does not hold together")),
    }
}
