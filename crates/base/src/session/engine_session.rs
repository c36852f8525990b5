//! What a session asks of an engine: each has its part of the session, which does what is asked of the keyspaces of its kind.
//!
//! ```text
//! Session ─ hashed keyspace ─► HashedSession, held by value: no virtual call
//!    └─ of another kind ─► OtherEngines ─► dyn EngineSession, opened when a keyspace of its kind is first named
//! ```
//! 1. An engine's part has its operations ([`Operations`](crate::session::order::Operations)) and their order by key; all parts share the
//!    session's [`SessionCore`]: its queue, local memory, replies.
//! 2. The tag of a command names the part that hears of its completion ([`EngineSlot::tag`]).
//! 3. Parts lock for a batch in the order of their slots, the hashed one first.
//!
//! Threads: the session's.

use super::batch::{BatchPart, BatchStop, Write};
use crate::keyspace::states::KeyspaceRef;
use crate::keyspace_kind::KeyspaceKind;
use crate::request::Request;
use crate::request::key_range::{KeyRange, ScanReply};
use crate::session::order::OpTarget;
use crate::session::session_core::SessionCore;
use crate::wake::shared_event::SharedEvent;
use tapetum_drive::Returned;

/// Low bits of a command's tag, which are its engine's own.
pub const OWN_TAG_BITS: u32 = 58;

/// Which part of a session: engines have theirs in the order in which they were opened.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct EngineSlot(u8);

impl EngineSlot {
    pub const HASHED: EngineSlot = EngineSlot(0);

    /// The part that hears of the completion of a command with this tag.
    #[inline]
    pub fn of(tag: u64) -> EngineSlot {
        EngineSlot((tag >> OWN_TAG_BITS) as u8)
    }

    /// The tag of a command of this part; `own` has [`OWN_TAG_BITS`].
    pub fn tag(self, own: u64) -> u64 {
        u64::from(self.0) << OWN_TAG_BITS | own
    }

    /// What [`EngineSlot::tag`] was given.
    pub fn own(tag: u64) -> u64 {
        tag & ((1 << OWN_TAG_BITS) - 1)
    }
}

/// What keeps the operations of an engine, the most pressing of it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum EngineWait {
    /// Nothing, or commands that are on their way.
    Commands,
    /// Something that others do, and that nobody may tell of: it is looked at again after a while.
    Change,
    /// The next poll, which gets further at once.
    Poll,
}

/// An engine's part of a session. It answers by [`SessionCore::answer_after`], whenever an operation is decided.
pub trait EngineSession: Send {
    /// Starts an operation that the session has not refused.
    fn start(&mut self, core: &mut SessionCore, target: OpTarget, request: &Request<'_>);

    /// Takes the completion of a command of this part.
    fn complete(&mut self, core: &mut SessionCore, returned: Returned);

    /// Sends what was gathered. Called before completions are taken, and before the session sleeps.
    fn send(&mut self, _core: &mut SessionCore) {}

    /// Attempts what waits, in order.
    fn poll(&mut self, core: &mut SessionCore);

    /// Ends what waits: the store was closed.
    fn fail_waiting(&mut self, core: &mut SessionCore);

    /// Before the session goes, with its queue pair: takes back what is with commands that need no flash, and that others may wait for.
    fn leave(&mut self, _core: &mut SessionCore) {}

    /// Readable when a poll may get further, for other reasons than the session's queue pair and the log tell of.
    fn shared_event(&self) -> Option<&SharedEvent> {
        None
    }

    /// What keeps its operations.
    fn waits(&self) -> EngineWait;

    /// The tokens of its operations that are not answered.
    fn tokens(&self) -> Vec<u64>;

    fn in_flight(&self) -> usize;

    /// Bytes of keys and values that its operations keep.
    fn kept_bytes(&self) -> usize;

    /// An operation that asked ([`crate::session::asks`]) may bring so much, and goes on as if it was submitted now.
    fn allow_value(&mut self, core: &mut SessionCore, number: usize, value_bytes: usize);

    /// Ends an operation that asked; it was answered.
    fn give_up_value(&mut self, number: usize);

    /// Starts a scan of a keyspace, which gives so many items at most. Its answer comes by [`EngineSession::take_scanned`].
    fn start_scan(&mut self, scan: (KeyspaceRef, u64), _range: KeyRange, _items_max: usize) {
        unreachable!("{:?} has no order of keys", scan.0.kind())
    }

    /// Takes the answers to scans that are there.
    fn take_scanned(&mut self, _replies: &mut Vec<ScanReply>) {}

    /// Bytes of a write's value that its record in the log has, where it is part of a batch.
    fn logged_bytes(&self, write: &Write<'_>) -> usize {
        write.value().len()
    }

    /// Prepares its part of a batch, which has some: admits it, and makes its records. No lock is held when this returns. What it has to read
    /// or write before goes with [`EngineSession::send`], and the batch comes again.
    fn prepare<'a>(
        &'a mut self,
        core: &'a SessionCore,
        writes: &'a [Write<'a>],
    ) -> Result<Box<dyn BatchPart + 'a>, BatchStop>;
}

/// The parts of a session but the hashed engine's, by slot.
#[derive(Default)]
pub struct OtherEngines {
    opened: Vec<(KeyspaceKind, Box<dyn EngineSession>)>,
}

impl OtherEngines {
    /// The slot of the part for keyspaces of a kind, if it was opened.
    pub fn find(&self, kind: KeyspaceKind) -> Option<EngineSlot> {
        let at = self.opened.iter().position(|(other, _)| *other == kind)?;
        Some(EngineSlot(at as u8 + 1))
    }

    /// Adds the part for a kind; `open` is told its slot.
    pub fn add(&mut self, kind: KeyspaceKind, open: impl FnOnce(EngineSlot) -> Box<dyn EngineSession>) -> EngineSlot {
        let slot = EngineSlot(self.opened.len() as u8 + 1);
        self.opened.push((kind, open(slot)));
        slot
    }

    pub fn are_none(&self) -> bool {
        self.opened.is_empty()
    }

    pub fn get(&mut self, EngineSlot(slot): EngineSlot) -> &mut dyn EngineSession {
        &mut *self.opened[usize::from(slot) - 1].1
    }

    /// [`EngineSession::logged_bytes`] of the part for a kind; of one that was not opened, those of the value.
    pub fn logged_bytes(&self, kind: KeyspaceKind, write: &Write<'_>) -> usize {
        let part = self.opened.iter().find(|(other, _)| *other == kind);
        part.map_or(write.value().len(), |(_, part)| part.logged_bytes(write))
    }

    pub fn iter(&self) -> impl Iterator<Item = &dyn EngineSession> {
        self.opened.iter().map(|(_, part)| &**part)
    }

    pub fn iter_mut(&mut self) -> impl Iterator<Item = (KeyspaceKind, &mut dyn EngineSession)> {
        self.opened.iter_mut().map(|(kind, part)| (*kind, &mut **part as &mut dyn EngineSession))
    }
}
