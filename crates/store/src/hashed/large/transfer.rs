//! A large value on its way to or from its extents: a few commands at once, through a few buffers of local memory.
//!
//! The value is cut into *pieces*, each within one run and a slot of local memory; piece `n` passes through slot `n` modulo
//! the number of slots. Pieces may complete in any order and are taken in theirs. One thread at a time; nothing here
//! waits. The drive has a slot's buffer while a command moves its piece.

use crate::media::geometry::Geometry;
use std::collections::VecDeque;
use tapetum_drive::{Command, Completion, LocalBuffer, MemoryAddress, Operation, Purpose, QueuePair, Returned, Status};
use tapetum_kernels::reference::Run;

/// The most that one command moves.
const PIECE_BYTES_MAX: u64 = 256 << 10;
/// Commands on their way at once.
const SLOTS_MAX: usize = 4;

/// A part of the value that one command moves.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Piece {
    pub flash: u64,
    /// Bytes of the value in it.
    pub bytes: u32,
    /// Bytes that are moved: whole sectors.
    pub length: u32,
}

/// Cuts `stored_bytes` bytes in `runs` into pieces of at most `piece_bytes_max`.
pub fn pieces(geometry: &Geometry, runs: &[Run], stored_bytes: u32, piece_bytes_max: u64) -> VecDeque<Piece> {
    let mut pieces = VecDeque::new();
    let mut left = u64::from(stored_bytes);
    for run in runs {
        let mut flash = geometry.extent_offset(run.first);
        let end = flash + u64::from(run.count) * geometry.extent_bytes;
        while flash < end && left > 0 {
            let bytes = left.min(end - flash).min(piece_bytes_max);
            let length = bytes.next_multiple_of(u64::from(geometry.sector_bytes)) as u32;
            pieces.push_back(Piece { flash, bytes: bytes as u32, length });
            flash += bytes;
            left -= bytes;
        }
    }
    pieces
}

struct TransferSlot {
    /// `None` while the drive has it.
    buffer: Option<LocalBuffer>,
    piece: Piece,
}

pub struct Transfer {
    /// Those that were not started.
    pieces: VecDeque<Piece>,
    slots: Vec<TransferSlot>,
    /// Pieces started, and pieces taken, so far.
    started: usize,
    taken: usize,
    in_flight: usize,
    /// The first command that did not succeed.
    failed: Option<Completion>,
}

impl Transfer {
    /// `allocate` gives local memory, or `None` when there is none now.
    pub fn new(
        geometry: &Geometry,
        runs: &[Run],
        stored_bytes: u32,
        mut allocate: impl FnMut(usize) -> Option<LocalBuffer>,
    ) -> Option<Transfer> {
        let pieces = pieces(geometry, runs, stored_bytes, PIECE_BYTES_MAX);
        let length_max = pieces.iter().map(|piece| piece.length).max().unwrap_or(0);
        let piece = Piece { flash: 0, bytes: 0, length: 0 };
        let slots: Option<Vec<TransferSlot>> = (0..SLOTS_MAX.min(pieces.len()))
            .map(|_| Some(TransferSlot { buffer: Some(allocate(length_max as usize)?), piece }))
            .collect();
        Some(Transfer { pieces, slots: slots?, started: 0, taken: 0, in_flight: 0, failed: None })
    }

    /// Starts reads while slots are free, and the queue has places. `tag` makes a tag of a slot; `completed` is to be given what
    /// comes back with it.
    pub fn read(&mut self, queue: &mut QueuePair, tag: impl Fn(usize) -> u64) {
        self.start(queue, (tag, Purpose::Get), |_, piece, buffer| Operation::Read {
            flash: piece.flash,
            local: buffer.offset(),
            length: piece.length,
        });
    }

    /// Starts writes of `stored` while slots are free, and the queue has places; each is durable when it is done (unless `fua` is
    /// off). `tag` as in [`Transfer::read`].
    pub fn write(&mut self, queue: &mut QueuePair, stored: &[u8], fua: bool, tag: impl Fn(usize) -> u64) {
        let left: usize = self.pieces.iter().map(|piece| piece.bytes as usize).sum();
        let mut at = stored.len() - left;
        self.start(queue, (tag, Purpose::Put), |queue, piece, buffer| {
            let (bytes, length) = (piece.bytes as usize, piece.length);
            let image = queue.fill(Purpose::Put, buffer, 0..length as usize);
            image[..bytes].copy_from_slice(&stored[at..at + bytes]);
            image[bytes..].fill(0);
            at += bytes;
            Operation::Write { flash: piece.flash, from: MemoryAddress::local(buffer.offset()), length, fua }
        });
    }

    fn start(
        &mut self,
        queue: &mut QueuePair,
        (tag, purpose): (impl Fn(usize) -> u64, Purpose),
        mut operation: impl FnMut(&QueuePair, Piece, &mut LocalBuffer) -> Operation,
    ) {
        while self.failed.is_none() && self.started - self.taken < self.slots.len() && queue.credits() > 0 {
            let Some(piece) = self.pieces.pop_front() else { return };
            let number = self.started % self.slots.len();
            let slot = &mut self.slots[number];
            let Some(mut buffer) = slot.buffer.take() else { unreachable!("slots are started and taken in order") };
            slot.piece = piece;
            self.started += 1;
            self.in_flight += 1;
            let command = Command::new(tag(number), operation(queue, piece, &mut buffer)).of(purpose);
            queue.submit(command, buffer.into()).expect("the queue had a place");
        }
    }

    /// Pieces are left and none is on its way, as the queue had no place: to be begun anew.
    pub fn is_idle(&self) -> bool {
        self.in_flight == 0 && self.failed.is_none() && !self.pieces.is_empty()
    }

    pub fn completed(&mut self, slot: usize, Returned { completion, lease }: Returned) {
        self.slots[slot].buffer = Some(lease.into_buffer());
        self.in_flight -= 1;
        if completion.status != Status::Success {
            self.failed.get_or_insert(completion);
        }
    }

    /// The next piece that is done, in the order of the value: its buffer, and how many bytes of it. It is taken by this, and its
    /// slot is free.
    pub fn take(&mut self) -> Option<(&LocalBuffer, usize)> {
        if self.taken == self.started || self.failed.is_some() {
            return None;
        }
        let count = self.slots.len();
        let slot = &self.slots[self.taken % count];
        let buffer = slot.buffer.as_ref()?;
        self.taken += 1;
        Some((buffer, slot.piece.bytes as usize))
    }

    /// Its local memory, when nothing is on its way.
    pub fn into_buffers(self) -> impl Iterator<Item = LocalBuffer> {
        assert_eq!(self.in_flight, 0);
        self.slots.into_iter().filter_map(|slot| slot.buffer)
    }

    /// What came of it, when nothing is on its way and nothing is left to start: the completion of what failed, if so.
    pub fn outcome(&self) -> Option<Result<(), Completion>> {
        match (self.in_flight, self.failed) {
            (0, Some(failed)) => Some(Err(failed)),
            (0, None) if self.pieces.is_empty() && self.taken == self.started => Some(Ok(())),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use tapetum_drive::{Drive, Env, LocalMemory, MemoryFlash};

    #[test]
    fn a_transfer_has_ended_when_all_pieces_are_started_done_and_taken() {
        let geometry = Geometry::new(4 << 20, 64 << 10, 2, 512).unwrap();
        let local = LocalMemory::new(1 << 20).unwrap();
        let drive = Drive::new(Arc::new(MemoryFlash::new(4 << 20)), local, Vec::new(), Env::system());
        let mut queue = drive.queue_pair(16).unwrap();
        // A piece more than can be on their way at once.
        let runs: Vec<Run> = (0..=SLOTS_MAX as u32).map(|number| Run { first: 2 * number, count: 1 }).collect();
        let stored_bytes = runs.len() as u32 * geometry.extent_bytes as u32;
        let allocate = |bytes| drive.local().allocate(bytes);
        let mut transfer = Transfer::new(&geometry, &runs, stored_bytes, allocate).unwrap();
        for pieces in [SLOTS_MAX, 1] {
            assert_eq!(transfer.outcome(), None, "not all are started");
            transfer.read(&mut queue, |slot| slot as u64);
            let mut done = Vec::new();
            while done.len() < pieces {
                queue.poll(&mut done);
            }
            assert_eq!(transfer.outcome(), None, "not all are done");
            done.into_iter()
                .for_each(|returned: Returned| transfer.completed(returned.completion.tag as usize, returned));
            assert_eq!(transfer.outcome(), None, "not all are taken");
            assert_eq!((0..).take_while(|_| transfer.take().is_some()).count(), pieces);
        }
        assert_eq!(transfer.outcome(), Some(Ok(())));
    }

    #[test]
    fn pieces_cover_the_value_within_runs_in_whole_sectors() {
        let geometry = Geometry::new(4 << 20, 64 << 10, 2, 512).unwrap();
        let runs = [Run { first: 3, count: 2 }, Run { first: 9, count: 1 }];
        let of = |first: u32, at: u64| geometry.extent_offset(first) + at;
        let cut: Vec<Piece> = pieces(&geometry, &runs, 8192 + 700, 5120).into();
        assert_eq!(
            cut,
            [
                Piece { flash: of(3, 0), bytes: 5120, length: 5120 },
                Piece { flash: of(3, 5120), bytes: 3072, length: 3072 },
                Piece { flash: of(9, 0), bytes: 700, length: 1024 },
            ]
        );
        assert_eq!(pieces(&geometry, &runs, 12288, 256 << 10).len(), 2);
    }
}
