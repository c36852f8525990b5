//! After a crash the two copies of a write that was on its way may differ. What the first copy holds counts, and is written to the other.

use std::io;
use std::time::Duration;

use super::Set;
use super::shape::Cell;
use crate::fail_point;
use crate::flash::FlashQueue;
use crate::memory::{LocalBuffer, LocalMemory, PairMemory};
use crate::protocol::{Command, MemoryAddress, Operation};

/// The most bytes that are compared at once.
const STEP_BYTES: u64 = 1 << 20;

/// Two places that hold the same.
struct Twins {
    cells: [Cell; 2],
    is_own: bool,
    length: u64,
}

/// Makes all copies equal, and durable; how many bytes were written. Nothing is done where one of them is lost.
pub fn make_equal(set: &Set) -> io::Result<u64> {
    if fail_point!(CopiesLeftUnequal) {
        return Ok(0);
    }
    let memory = LocalMemory::new(2 * STEP_BYTES as usize)?;
    let mut buffers = Vec::new();
    for _ in 0..2 {
        buffers.push(memory.allocate(STEP_BYTES as usize).ok_or_else(|| io::Error::from_raw_os_error(libc::ENOMEM))?);
    }
    let memory = PairMemory::from(memory);
    let queues = set.members.iter().map(|member| member.flash.open_queue(&memory, 2));
    let mut mover =
        Mover { set, queues: queues.collect::<io::Result<_>>()?, buffers, written: vec![0; set.members.len()] };
    for twins in all_twins(set) {
        if twins.cells.iter().all(|cell| !set.losses.is_lost(cell.member)) {
            mover.make_equal(&twins)?;
        }
    }
    for member in 0..set.members.len() {
        if mover.written[member] > 0 {
            mover.run(&[(member, Operation::Flush)])?;
        }
    }
    Ok(mover.written.iter().sum())
}

fn all_twins(set: &Set) -> impl Iterator<Item = Twins> {
    let shape = set.shape;
    let own = (0..shape.own_bytes).step_by(STEP_BYTES as usize).map(move |at| {
        let length = STEP_BYTES.min(shape.own_bytes - at);
        Twins { cells: [0, 1].map(|member| Cell { member, at }), is_own: true, length }
    });
    let of_run = move |(first, count): (u32, u32)| {
        let chunks = u64::from(count) * shape.extent_bytes / shape.chunk_bytes();
        (0..chunks).map(move |chunk| {
            let at = set.rows.place_in_run(first) + chunk * shape.chunk_bytes();
            let (cells, _) = shape.copy_cells(set.rows.run_of(first), at);
            Twins { cells, is_own: false, length: shape.chunk_bytes() }
        })
    };
    own.chain(set.rows.runs().into_iter().flat_map(of_run))
}

struct Mover<'a> {
    // First, so that its commands have ended before the memory that they fill is freed.
    queues: Vec<Box<dyn FlashQueue>>,
    set: &'a Set,
    buffers: Vec<LocalBuffer>,
    /// Bytes, by member.
    written: Vec<u64>,
}

impl Mover<'_> {
    fn make_equal(&mut self, twins: &Twins) -> io::Result<()> {
        let Twins { cells, is_own, length } = twins;
        let flash = cells.map(|cell| self.set.flash(cell.member, *is_own, cell.at));
        let length = *length as usize;
        let read = |number: usize| Operation::Read {
            flash: flash[number],
            local: self.buffers[number].offset(),
            length: length as u32,
        };
        self.run(&[(cells[0].member, read(0)), (cells[1].member, read(1))])?;
        if self.buffers[0].bytes()[..length] == self.buffers[1].bytes()[..length] {
            return Ok(());
        }
        let from = MemoryAddress::local(self.buffers[0].offset());
        let write = Operation::Write { flash: flash[1], from, length: length as u32, fua: false };
        self.run(&[(cells[1].member, write)])?;
        self.written[cells[1].member] += length as u64;
        Ok(())
    }

    /// Runs commands side by side.
    fn run(&mut self, operations: &[(usize, Operation)]) -> io::Result<()> {
        for (member, operation) in operations {
            // SAFETY: places of the members that the shape has; nobody else has the buffers, and nobody looks at them before this returns.
            unsafe { self.queues[*member].submit(&Command::new(0, *operation)) };
        }
        let (mut left, mut ended) = (operations.len(), Vec::new());
        let mut result = Ok(());
        while left > 0 {
            for (member, _) in operations {
                self.queues[*member].poll(&mut ended);
            }
            for completion in ended.drain(..) {
                left -= 1;
                if !completion.is_success() {
                    result = Err(io::Error::from_raw_os_error(completion.errno));
                }
            }
            if left > 0 {
                // Whichever ends first: the other one is looked at soon enough.
                self.queues[operations[0].0].wait(Some(Duration::from_millis(1)));
            }
        }
        result
    }
}
