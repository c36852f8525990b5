//! Flash of several members, one behind the other:
//!
//! ```text
//!  member 0   │ used              │ not used │
//!  member 1   │ head │ used              │ not used │
//!  member 2   │ head │ used              │
//!  the set    │ used of member 0  │ used of member 1  │ used of member 2  │
//! ```
//! 1. Each byte of the set is a byte of one member ([`SetMember`]).
//! 2. A command that lies within a member goes there as it is. Others are cut, and end when their last part has; a flush has a part on each.
//! 3. A failed part fails its command, and no other.
//!
//! Threads: a queue has a queue of each member, which it uses on its own thread.

use std::cell::OnceCell;
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;
use std::time::Duration;

use super::parts::Parts;
use super::{Flash, FlashError, FlashQueue, Health, Reservation};
use crate::event::{EventSet, is_readable_within};
use crate::memory::PairMemory;
use crate::protocol::{Command, Completion, MemoryAddress, Operation, Status};

/// A member, and the part of it that belongs to the set.
#[derive(Clone)]
pub struct SetMember {
    pub flash: Arc<dyn Flash>,
    /// What lies before is not part of the set.
    pub head_bytes: u64,
    pub used_bytes: u64,
}

/// See the [module](self).
pub struct SetFlash {
    members: Arc<[SetMember]>,
    sector_bytes: u32,
}

impl SetFlash {
    /// # Panics
    /// If there is no member, one is in another process, or has not what is to be used, in whole sectors of all.
    pub fn new(members: Vec<SetMember>) -> SetFlash {
        let sector_bytes = members.iter().map(|member| member.flash.sector_bytes()).max().expect("a set has members");
        for SetMember { flash, head_bytes, used_bytes } in &members {
            let is_whole = [head_bytes, used_bytes].iter().all(|bytes| bytes.is_multiple_of(sector_bytes.into()));
            assert!(is_whole && *used_bytes > 0, "a member is used in whole sectors");
            assert!(head_bytes + used_bytes <= flash.capacity_bytes(), "a member has what is used of it");
            assert!(flash.elsewhere().is_none(), "members are in this process");
        }
        SetFlash { members: members.into(), sector_bytes }
    }

    fn queue(&self, open: impl Fn(&dyn Flash) -> io::Result<Box<dyn FlashQueue>>) -> io::Result<Box<dyn FlashQueue>> {
        let queues = self.members.iter().map(|member| open(&*member.flash)).collect::<io::Result<Vec<_>>>()?;
        let (members, event, parts, done) = (self.members.clone(), OnceCell::new(), Parts::default(), Vec::new());
        Ok(Box::new(SetQueue { queues, members, event, parts, done, in_flight: 0 }))
    }
}

impl Flash for SetFlash {
    fn capacity_bytes(&self) -> u64 {
        self.members.iter().map(|member| member.used_bytes).sum()
    }

    fn grow(&self, _capacity_bytes: u64) -> Result<(), FlashError> {
        Err(FlashError::Set { place: self.place() })
    }

    fn reserve(&self) -> Result<Reservation, FlashError> {
        let mut all = Reservation::Held;
        for member in self.members.iter() {
            if member.flash.reserve()? == Reservation::Unsupported {
                all = Reservation::Unsupported;
            }
        }
        Ok(all)
    }

    /// That of the first member that is not sound.
    fn health(&self) -> Health {
        let healths = self.members.iter().map(|member| member.flash.health());
        healths.into_iter().find(|health| *health != Health::Sound).unwrap_or(Health::Sound)
    }

    fn sector_bytes(&self) -> u32 {
        self.sector_bytes
    }

    /// No more than divides what lies before each member: such a write is a member's own, and as aligned there as in the set.
    fn atomic_write_bytes(&self) -> u32 {
        let of_member = |SetMember { flash, head_bytes, used_bytes }: &SetMember| {
            let aligned = 1 << (head_bytes | used_bytes).trailing_zeros().min(31);
            flash.atomic_write_bytes().min(aligned)
        };
        self.members.iter().map(of_member).min().unwrap_or(0)
    }

    fn member_starts(&self) -> Vec<u64> {
        let starts = self.members.iter().scan(0, |next, member| {
            let start = *next;
            *next += member.used_bytes;
            Some(start)
        });
        starts.collect()
    }

    fn describe(&self) -> String {
        let members: Vec<_> = self.members.iter().map(|member| member.flash.describe()).collect();
        format!("{} members: {}", members.len(), members.join("; "))
    }

    fn place(&self) -> String {
        self.members.iter().map(|member| member.flash.place()).collect::<Vec<_>>().join(", ")
    }

    fn open_queue(&self, memory: &PairMemory, depth: u32) -> io::Result<Box<dyn FlashQueue>> {
        self.queue(|flash| flash.open_queue(memory, depth))
    }

    fn open_queue_of_one_thread(&self, memory: &PairMemory, depth: u32) -> io::Result<Box<dyn FlashQueue>> {
        self.queue(|flash| flash.open_queue_of_one_thread(memory, depth))
    }
}

struct SetQueue {
    /// Of each member.
    queues: Vec<Box<dyn FlashQueue>>,
    members: Arc<[SetMember]>,
    /// Readable while a member has completions.
    event: OnceCell<Option<EventSet>>,
    parts: Parts,
    /// Completions that a wait has found.
    done: Vec<Completion>,
    in_flight: usize,
}

/// A part of a range: the member, where it lies there, and where it begins in the command's.
struct Piece {
    member: usize,
    flash: u64,
    from: u64,
    length: u64,
}

/// The parts of a range of the set.
fn pieces(members: &[SetMember], flash: u64, length: u64) -> impl Iterator<Item = Piece> {
    let mut start = 0;
    members.iter().enumerate().filter_map(move |(member, SetMember { head_bytes, used_bytes, .. })| {
        let (own, end) = (start, start + used_bytes);
        start = end;
        let (first, last) = (flash.max(own), (flash + length).min(end));
        (first < last).then(|| Piece {
            member,
            flash: head_bytes + first - own,
            from: first - flash,
            length: last - first,
        })
    })
}

impl SetQueue {
    /// # Safety
    /// As [`FlashQueue::submit`]; `part` makes an operation of a piece whose ranges lie in the command's.
    unsafe fn submit_pieces(&mut self, tag: u64, (flash, length): (u64, u64), part: impl Fn(&Piece) -> Operation) {
        let mut pieces = pieces(&self.members, flash, length);
        let Some(first) = pieces.next() else { unreachable!("the queue pair has checked the range") };
        let rest = pieces.map(|piece| {
            // SAFETY: as below.
            unsafe { self.queues[piece.member].submit(&Command::new(tag, part(&piece))) };
        });
        let parts = 1 + rest.count();
        if parts > 1 {
            self.parts.begin(tag, parts);
        }
        // SAFETY: a part of the command's range, which our caller gave to the drive. No other part overlaps it.
        unsafe { self.queues[first.member].submit(&Command::new(tag, part(&first))) };
    }

    /// The descriptor is made when it is first asked for: those who never sleep pay nothing. `None` where a member has none, or the system
    /// refuses one.
    fn event(&self) -> Option<&EventSet> {
        let make = || {
            let fds: Option<Vec<RawFd>> = self.queues.iter().map(|queue| queue.event_fd()).collect();
            EventSet::new(&fds?).ok()
        };
        self.event.get_or_init(make).as_ref()
    }

    fn poll_all(&mut self, completions: &mut Vec<Completion>) {
        let first = completions.len();
        for queue in &mut self.queues {
            queue.poll(completions);
        }
        self.parts.join(completions, first);
        self.in_flight -= completions.len() - first;
    }
}

impl FlashQueue for SetQueue {
    unsafe fn submit(&mut self, command: &Command) {
        let tag = command.tag;
        self.in_flight += 1;
        match command.operation {
            Operation::Read { flash, local, length } => {
                let part = |piece: &Piece| Operation::Read {
                    flash: piece.flash,
                    local: local + piece.from,
                    length: piece.length as u32,
                };
                // SAFETY: by our caller's word.
                unsafe { self.submit_pieces(tag, (flash, length.into()), part) };
            }
            Operation::Write { flash, from, length, fua } => {
                let part = |piece: &Piece| {
                    let from = MemoryAddress { offset: from.offset + piece.from, ..from };
                    Operation::Write { flash: piece.flash, from, length: piece.length as u32, fua }
                };
                // SAFETY: by our caller's word.
                unsafe { self.submit_pieces(tag, (flash, length.into()), part) };
            }
            Operation::Discard { flash, length } => {
                let part = |piece: &Piece| Operation::Discard { flash: piece.flash, length: piece.length };
                // SAFETY: by our caller's word.
                unsafe { self.submit_pieces(tag, (flash, length), part) };
            }
            Operation::Flush => {
                self.parts.begin(tag, self.queues.len());
                for queue in &mut self.queues {
                    // SAFETY: a flush has no ranges.
                    unsafe { queue.submit(&Command::new(tag, Operation::Flush)) };
                }
            }
            Operation::Execute { .. }
            | Operation::Pipeline { .. }
            | Operation::Compute { .. }
            | Operation::Cancel { .. }
            | Operation::Identify { .. } => {
                self.in_flight -= 1;
                self.done.push(Completion::new(tag, Status::Unsupported));
            }
        }
    }

    fn poll(&mut self, completions: &mut Vec<Completion>) {
        completions.append(&mut self.done);
        self.poll_all(completions);
    }

    fn wait(&mut self, timeout: Option<Duration>) {
        let mut done = std::mem::take(&mut self.done);
        self.poll_all(&mut done);
        self.done = done;
        // A member without a descriptor must be polled.
        if self.done.is_empty()
            && self.in_flight > 0
            && let Some(event) = self.event()
        {
            is_readable_within(event.as_raw_fd(), timeout);
        }
    }

    /// Commands that completed without it come out of the next poll, which precedes any sleep.
    fn event_fd(&self) -> Option<RawFd> {
        self.event().map(AsRawFd::as_raw_fd)
    }

    fn rest(&mut self) {
        self.queues.iter_mut().for_each(|queue| queue.rest());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::env::Env;
    use crate::flash::faulty::FaultyFlash;
    use crate::host::testing::run;
    use crate::host::{Drive, QueuePair};
    use crate::memory::{LocalBuffer, LocalMemory};
    use crate::protocol::Opcode;

    const HEAD: u64 = 4096;

    /// Three members of 1 MiB behind a head, and a drive over them.
    fn set() -> ([FaultyFlash; 3], Drive) {
        let members = [1, 2, 3].map(|seed| FaultyFlash::new(HEAD + (1 << 20), seed));
        let member =
            |flash: &FaultyFlash| SetMember { flash: Arc::new(flash.clone()), head_bytes: HEAD, used_bytes: 1 << 20 };
        let set = Arc::new(SetFlash::new(members.iter().map(member).collect()));
        assert_eq!((set.capacity_bytes(), set.member_starts()), (3 << 20, vec![0, 1 << 20, 2 << 20]));
        let drive = Drive::new(set, LocalMemory::new(4 << 20).unwrap(), Vec::new(), Env::simulated(1).0);
        (members, drive)
    }

    fn write(buffer: &LocalBuffer, flash: u64, length: u32) -> Operation {
        Operation::Write { flash, from: MemoryAddress::local(buffer.offset()), length, fua: false }
    }

    fn read(pair: &mut QueuePair, buffer: &mut LocalBuffer, flash: u64, length: u32) -> i32 {
        run(pair, Operation::Read { flash, local: buffer.offset(), length }, buffer).errno
    }

    #[test]
    fn a_command_over_several_members_is_one_and_heads_are_left_alone() {
        let (members, drive) = set();
        let (mut pair, mut buffer) = (drive.queue_pair(4).unwrap(), drive.local().allocate(2 << 20).unwrap());
        for (sector, bytes) in buffer.bytes_mut().chunks_exact_mut(512).enumerate() {
            bytes.fill((sector / 7) as u8);
        }
        let (from, length) = ((1 << 20) - 1024, (1 << 20) + 2048);
        let written = write(&buffer, from, length);
        assert_eq!(run(&mut pair, written, &mut buffer).errno, 0);
        assert_eq!(run(&mut pair, Operation::Flush, &mut buffer).errno, 0);
        for (member, flushes) in members.iter().map(|member| (member, member.submitted(Opcode::Flush))) {
            assert!(flushes == 1 && member.peek(0, HEAD).iter().all(|byte| *byte == 0));
            assert_eq!(member.submitted(Opcode::Write), 1, "a part each");
        }
        let expected = buffer.bytes()[..length as usize].to_vec();
        buffer.bytes_mut().fill(0xff);
        assert_eq!(read(&mut pair, &mut buffer, from, length), 0);
        assert!(buffer.bytes()[..length as usize] == expected && buffer.bytes()[length as usize] == 0xff);
        assert_eq!(members[1].peek(HEAD, 1 << 20), expected[1024..1024 + (1 << 20)]);
    }

    #[test]
    fn a_part_that_fails_fails_its_command_alone() {
        let (members, drive) = set();
        let (mut pair, mut buffer) = (drive.queue_pair(4).unwrap(), drive.local().allocate(2 << 20).unwrap());
        for member in &members[1..] {
            member.fail_nth(Opcode::Read, 1);
            assert_eq!(read(&mut pair, &mut buffer, (1 << 20) - 4096, (1 << 20) + 8192), libc::EIO);
            assert_eq!(read(&mut pair, &mut buffer, (1 << 20) - 4096, (1 << 20) + 8192), 0);
        }
        members[2].fail_nth(Opcode::Flush, 1);
        assert_eq!(run(&mut pair, Operation::Flush, &mut buffer).errno, libc::EIO);
        members[2].fail_nth(Opcode::Read, 1);
        assert_eq!(read(&mut pair, &mut buffer, 0, 4096), 0, "on another member");
    }

    #[test]
    fn a_set_keeps_its_size_and_names_all_members() {
        let member = || SetMember {
            flash: Arc::new(crate::flash::memory::MemoryFlash::new(1 << 20)),
            head_bytes: 0,
            used_bytes: 1 << 20,
        };
        let set = SetFlash::new(vec![member(), member()]);
        assert!(matches!(set.grow(1), Err(FlashError::Set { .. })));
        assert!(set.describe().starts_with("2 members: "));
        assert_eq!(set.place(), format!("{0}, {0}", member().flash.place()));
    }
}
