//! The transfer of a long run of bytes to or from flash, such as a large value: a few commands at once, through a few buffers of local memory.
//!
//! The run is cut into *pieces*, each of neighbouring bytes on flash and within a buffer. Piece `n` passes through buffer `n` modulo the number of
//! buffers. Pieces may complete in any order and are taken in theirs. One thread at a time; nothing here waits. The drive has a buffer while a
//! command moves its piece.

use std::collections::VecDeque;
use tapetum_drive::{Command, Completion, LocalBuffer, MemoryAddress, Operation, Purpose, QueuePair, Returned, Status};

/// The most bytes of one command.
pub const PIECE_BYTES_MAX: u64 = 256 << 10;
/// The most commands in flight.
const SLOTS_MAX: usize = 4;

/// The part that one command moves.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Piece {
    pub flash: u64,
    /// Bytes of the run.
    pub bytes: u32,
    /// Bytes that are moved: whole units.
    pub length: u32,
}

/// Cuts `bytes` neighbouring bytes of flash into pieces of at most `piece_bytes_max`, a multiple of `unit_bytes`.
pub fn cut(flash: u64, bytes: u64, piece_bytes_max: u64, unit_bytes: u64) -> impl Iterator<Item = Piece> {
    (0..bytes).step_by(piece_bytes_max as usize).map(move |at| {
        let bytes = piece_bytes_max.min(bytes - at);
        Piece { flash: flash + at, bytes: bytes as u32, length: bytes.next_multiple_of(unit_bytes) as u32 }
    })
}

struct PieceSlot {
    /// `None` while the drive has it.
    buffer: Option<LocalBuffer>,
    piece: Piece,
}

/// A command of a transfer that the drive has returned, and the slot of its piece.
pub struct ReturnedPiece {
    pub slot: usize,
    pub returned: Returned,
}

/// See the [module](self).
pub struct PieceTransfer {
    /// Pieces that were not started.
    pieces: VecDeque<Piece>,
    slots: Vec<PieceSlot>,
    /// Pieces started, and pieces taken, so far.
    started: usize,
    taken: usize,
    /// Bytes of the pieces that were started.
    begun_bytes: u64,
    in_flight: usize,
    /// The first command that failed.
    failed: Option<Completion>,
}

impl PieceTransfer {
    /// `allocate` gives local memory, or `None` if there is none now. One buffer is enough to begin.
    pub fn new(
        pieces: VecDeque<Piece>,
        mut allocate: impl FnMut(usize) -> Option<LocalBuffer>,
    ) -> Option<PieceTransfer> {
        let length_max = pieces.iter().map(|piece| piece.length).max().unwrap_or(0);
        let piece = Piece { flash: 0, bytes: 0, length: 0 };
        let slot = |_| Some(PieceSlot { buffer: Some(allocate(length_max as usize)?), piece });
        let slots: Vec<PieceSlot> = (0..SLOTS_MAX.min(pieces.len())).map_while(slot).collect();
        if slots.is_empty() && !pieces.is_empty() {
            return None;
        }
        Some(PieceTransfer { pieces, slots, started: 0, taken: 0, begun_bytes: 0, in_flight: 0, failed: None })
    }

    /// Starts reads while buffers and places in the queue are free. `tag` makes a tag from a buffer's number. The caller passes the completion with
    /// that tag to `completed`.
    pub fn read(&mut self, queue: &mut QueuePair, purpose: Purpose, tag: impl Fn(usize) -> u64) {
        self.start(queue, tag, purpose, |_, piece, _, buffer| Operation::Read {
            flash: piece.flash,
            local: buffer.offset(),
            length: piece.length,
        });
    }

    /// Starts writes while buffers and places in the queue are free. `fill` gets a piece's offset in the run and writes its bytes. `fua`: each write
    /// is durable when it completes. `tag` as in [`PieceTransfer::read`].
    pub fn write(
        &mut self,
        queue: &mut QueuePair,
        fua: bool,
        tag: impl Fn(usize) -> u64,
        mut fill: impl FnMut(u64, &mut [u8]),
    ) {
        self.start(queue, tag, Purpose::Put, |queue, piece, at, buffer| {
            let (bytes, length) = (piece.bytes as usize, piece.length);
            let image = queue.fill(Purpose::Put, buffer, 0..length as usize);
            fill(at, &mut image[..bytes]);
            image[bytes..].fill(0);
            Operation::Write { flash: piece.flash, from: MemoryAddress::local(buffer.offset()), length, fua }
        });
    }

    fn start(
        &mut self,
        queue: &mut QueuePair,
        tag: impl Fn(usize) -> u64,
        purpose: Purpose,
        mut operation: impl FnMut(&QueuePair, Piece, u64, &mut LocalBuffer) -> Operation,
    ) {
        while self.failed.is_none() && self.started - self.taken < self.slots.len() && queue.credits() > 0 {
            let Some(piece) = self.pieces.pop_front() else { return };
            let number = self.started % self.slots.len();
            let slot = &mut self.slots[number];
            let Some(mut buffer) = slot.buffer.take() else { unreachable!("slots are started and taken in order") };
            slot.piece = piece;
            self.started += 1;
            self.in_flight += 1;
            let command = Command::new(tag(number), operation(queue, piece, self.begun_bytes, &mut buffer)).of(purpose);
            self.begun_bytes += u64::from(piece.bytes);
            queue.submit(command, buffer.into()).expect("the queue had a place");
        }
    }

    /// Whether pieces are left and none is in flight, as the queue was full: the caller must start again.
    pub fn is_idle(&self) -> bool {
        self.in_flight == 0 && self.failed.is_none() && !self.pieces.is_empty()
    }

    pub fn completed(&mut self, ReturnedPiece { slot, returned: Returned { completion, lease } }: ReturnedPiece) {
        self.slots[slot].buffer = Some(lease.into_buffer());
        self.in_flight -= 1;
        if completion.status != Status::Success {
            self.failed.get_or_insert(completion);
        }
    }

    /// Takes the next piece in order, if it is done: its buffer and its length in bytes. This frees its slot.
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

    /// Starts no more pieces: the data is not wanted.
    pub fn stop(&mut self) {
        self.pieces.clear();
    }

    /// Its local memory. Nothing may be in flight.
    pub fn into_buffers(self) -> impl Iterator<Item = LocalBuffer> {
        assert_eq!(self.in_flight, 0);
        self.slots.into_iter().filter_map(|slot| slot.buffer)
    }

    /// The result, once nothing is in flight and nothing is left to start: an error is the completion of the failed command.
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

    fn drive() -> Drive {
        let local = LocalMemory::new(1 << 20).unwrap();
        Drive::new(Arc::new(MemoryFlash::new(4 << 20)), local, Vec::new(), Env::system())
    }

    fn wait(queue: &mut QueuePair, transfer: &mut PieceTransfer, pieces: usize) {
        let mut done = Vec::new();
        while done.len() < pieces {
            queue.poll(&mut done);
        }
        done.into_iter().for_each(|returned: Returned| {
            transfer.completed(ReturnedPiece { slot: returned.completion.tag as usize, returned });
        });
    }

    #[test]
    fn a_transfer_has_ended_when_all_pieces_are_started_done_and_taken() {
        let drive = drive();
        let mut queue = drive.queue_pair(16).unwrap();
        // One piece more than can be in flight at once.
        let pieces = cut(8192, (SLOTS_MAX as u64 + 1) * 4096, 4096, 512).collect();
        let mut transfer = PieceTransfer::new(pieces, |bytes| drive.local().allocate(bytes)).unwrap();
        for pieces in [SLOTS_MAX, 1] {
            assert_eq!(transfer.outcome(), None, "not all are started");
            transfer.read(&mut queue, Purpose::Get, |slot| slot as u64);
            wait(&mut queue, &mut transfer, pieces);
            assert_eq!(transfer.outcome(), None, "not all are taken");
            assert_eq!((0..).take_while(|_| transfer.take().is_some()).count(), pieces);
        }
        assert_eq!(transfer.outcome(), Some(Ok(())));
    }

    /// Memory is short: only one buffer can be allocated.
    #[test]
    fn what_is_written_through_one_buffer_is_read_through_several() {
        let drive = drive();
        let mut queue = drive.queue_pair(16).unwrap();
        let value: Vec<u8> = (0..10_000_u32).map(|at| (at / 7) as u8).collect();
        let pieces = || cut(4096, value.len() as u64, 4096, 512).collect();
        let mut one = Some(());
        let mut transfer =
            PieceTransfer::new(pieces(), |bytes| one.take().and_then(|()| drive.local().allocate(bytes))).unwrap();
        while transfer.outcome().is_none() {
            transfer.write(
                &mut queue,
                false,
                |slot| slot as u64,
                |at, to| {
                    to.copy_from_slice(&value[at as usize..][..to.len()]);
                },
            );
            wait(&mut queue, &mut transfer, 1);
            while transfer.take().is_some() {}
        }
        assert_eq!(transfer.into_buffers().count(), 1);
        let mut transfer = PieceTransfer::new(pieces(), |bytes| drive.local().allocate(bytes)).unwrap();
        transfer.read(&mut queue, Purpose::Get, |slot| slot as u64);
        wait(&mut queue, &mut transfer, 3);
        let mut read = Vec::new();
        while let Some((buffer, bytes)) = transfer.take() {
            queue.copy_to_host(Purpose::Get, buffer, 0..bytes, &mut read);
        }
        assert!(read == value && transfer.outcome() == Some(Ok(())));
    }

    #[test]
    fn what_is_stopped_ends_with_what_is_on_its_way() {
        let drive = drive();
        let mut queue = drive.queue_pair(16).unwrap();
        let pieces = cut(0, 9 * 4096, 4096, 512).collect();
        let mut transfer = PieceTransfer::new(pieces, |bytes| drive.local().allocate(bytes)).unwrap();
        transfer.read(&mut queue, Purpose::Get, |slot| slot as u64);
        transfer.stop();
        wait(&mut queue, &mut transfer, SLOTS_MAX);
        while transfer.take().is_some() {}
        assert_eq!(transfer.outcome(), Some(Ok(())));
    }

    #[test]
    fn pieces_cover_a_range_in_whole_units() {
        let cut: Vec<Piece> = cut(4096, 8192 + 700, 5120, 512).collect();
        let last = Piece { flash: 9216, bytes: 3772, length: 4096 };
        assert_eq!(cut, [Piece { flash: 4096, bytes: 5120, length: 5120 }, last]);
    }
}
