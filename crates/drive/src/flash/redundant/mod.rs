//! Flash of several members, one of which may be lost: mirrors, and RAID5 without a write hole (XDP, sections 3 and 7).
//!
//! The set is one range of bytes, as any flash; where they lie is [`shape`]'s matter, what form each extent has [`rows`]', how commands run
//! [`queue`]'s, and how a member is lost [`losses`]'.
//!
//! 1. What was acknowledged is on two members, or on one and in a parity; or its absence on a lost member is durable on the others.
//! 2. A stripe is written once and whole, its parity with its last bytes. So no write reads, and none can leave a parity that is of neither
//!    its old nor its new bytes. What is written in place is there twice.
//! 3. After a crash the first copy is the one that counts, until [`RedundantFlash::make_copies_equal`] has made the other the same.
//! 4. One loss is made up for. After a second one, commands that need what is gone fail, and others do not.
//!
//! Threads: a queue has queues of each member, which it uses on its own thread.

pub mod absent;
mod copies;
pub mod losses;
mod pieces;
mod queue;
pub mod rows;
pub mod shape;
#[cfg(test)]
mod tests;

use std::io;
use std::sync::Arc;

use losses::{Losses, MemberState, RecordAbsence};
use queue::RedundantQueue;
use rows::Rows;
use shape::{CHUNK_BYTES_MIN, Shape};

use super::set::SetMember;
use super::{Flash, FlashError, FlashQueue, Health, Reservation};
use crate::memory::PairMemory;

/// What all queues of a set share.
pub struct Set {
    pub shape: Shape,
    pub members: Vec<SetMember>,
    pub rows: Arc<Rows>,
    pub losses: Losses,
}

impl Set {
    /// Where a member has a byte of its rows, or of its own bytes.
    fn flash(&self, member: usize, is_own: bool, at: u64) -> u64 {
        let own_bytes = if !is_own && member < 2 { self.shape.own_bytes } else { 0 };
        self.members[member].head_bytes + own_bytes + at
    }
}

/// See the [module](self).
#[derive(Clone)]
pub struct RedundantFlash {
    set: Arc<Set>,
    sector_bytes: u32,
}

/// What a member needs for its part of a set.
pub fn member_bytes(shape: &Shape, member: usize) -> u64 {
    shape.rows_bytes() + if member < 2 { shape.own_bytes } else { 0 }
}

impl RedundantFlash {
    /// `members` in the order of their places. A lost one may be any flash, which is not touched. `record` makes a loss durable on the others.
    ///
    /// # Panics
    /// If there are not as many members as the shape has, at least two, or one has too few bytes.
    pub fn new(shape: Shape, members: Vec<SetMember>, lost: u32, record: RecordAbsence) -> RedundantFlash {
        assert!(members.len() == shape.members && members.len() >= 2, "a set has as many members as its shape");
        let losses = Losses::new(members.len(), lost, record);
        let there = || members.iter().enumerate().filter(|(member, _)| !losses.is_lost(*member));
        for (number, member) in there() {
            let needed_bytes = member_bytes(&shape, number);
            assert!(needed_bytes <= member.used_bytes, "what is used of a member is enough");
            assert!(member.head_bytes + needed_bytes <= member.flash.capacity_bytes(), "a member is large enough");
        }
        let sector_bytes = there().map(|(_, member)| member.flash.sector_bytes()).max().expect("one is there");
        assert!(u64::from(sector_bytes) <= CHUNK_BYTES_MIN && shape.own_bytes.is_multiple_of(sector_bytes.into()));
        let rows = Arc::new(Rows::new(shape));
        RedundantFlash { set: Arc::new(Set { shape, members, rows, losses }), sector_bytes }
    }

    fn queue(
        &self,
        memory: &PairMemory,
        open: impl Fn(&dyn Flash) -> io::Result<Box<dyn FlashQueue>>,
    ) -> io::Result<Box<dyn FlashQueue>> {
        let queues = self.set.members.iter().map(|member| open(&*member.flash)).collect::<io::Result<Vec<_>>>()?;
        Ok(Box::new(RedundantQueue::new(self.set.clone(), queues, memory.clone())))
    }

    fn there(&self) -> impl Iterator<Item = &SetMember> {
        let members = self.set.members.iter().enumerate();
        members.filter(|(number, _)| !self.set.losses.is_lost(*number)).map(|(_, member)| member)
    }
}

impl Flash for RedundantFlash {
    fn capacity_bytes(&self) -> u64 {
        self.set.shape.capacity_bytes()
    }

    fn grow(&self, _capacity_bytes: u64) -> Result<(), FlashError> {
        Err(FlashError::Set { place: self.place() })
    }

    fn reserve(&self) -> Result<Reservation, FlashError> {
        let mut all = Reservation::Held;
        for member in self.there() {
            if member.flash.reserve()? == Reservation::Unsupported {
                all = Reservation::Unsupported;
            }
        }
        Ok(all)
    }

    /// That of the first member that is not sound.
    fn health(&self) -> Health {
        let mut healths = self.there().map(|member| member.flash.health());
        healths.find(|health| *health != Health::Sound).unwrap_or(Health::Sound)
    }

    fn sector_bytes(&self) -> u32 {
        self.sector_bytes
    }

    /// No more than divides what lies before the rows: such a write is in one chunk, as aligned there as in the set.
    fn atomic_write_bytes(&self) -> u32 {
        let own_bytes = self.set.shape.own_bytes;
        let of_member = |member: &SetMember| {
            let aligned = 1 << (member.head_bytes | own_bytes | self.set.shape.chunk_bytes()).trailing_zeros().min(31);
            member.flash.atomic_write_bytes().min(aligned)
        };
        self.there().map(of_member).min().unwrap_or(0)
    }

    fn rows(&self) -> Option<&Arc<Rows>> {
        Some(&self.set.rows)
    }

    fn members(&self) -> Vec<MemberState> {
        let members = self.set.members.iter().enumerate();
        members.map(|(number, member)| self.set.losses.state(number, member.flash.place())).collect()
    }

    fn make_copies_equal(&self) -> io::Result<u64> {
        copies::make_equal(&self.set)
    }

    fn describe(&self) -> String {
        let members: Vec<_> = self.set.members.iter().map(|member| member.flash.describe()).collect();
        format!("{} members, {:?}: {}", members.len(), self.set.shape.redundancy, members.join("; "))
    }

    fn place(&self) -> String {
        self.set.members.iter().map(|member| member.flash.place()).collect::<Vec<_>>().join(", ")
    }

    fn open_queue(&self, memory: &PairMemory, depth: u32) -> io::Result<Box<dyn FlashQueue>> {
        self.queue(memory, |flash| flash.open_queue(memory, depth))
    }

    fn open_queue_of_one_thread(&self, memory: &PairMemory, depth: u32) -> io::Result<Box<dyn FlashQueue>> {
        self.queue(memory, |flash| flash.open_queue_of_one_thread(memory, depth))
    }
}
