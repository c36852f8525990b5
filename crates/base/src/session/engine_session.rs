//! The interface between a session and an engine. Each engine has a part of the session, which serves the keyspaces of its kind.
//!
//! ```text
//! Session ─ hashed keyspace ─► HashedSession, held by value: no virtual call
//!    └─ of another kind ─► OtherEngines ─► dyn EngineSession, opened when a keyspace of its kind is first named
//! ```
//! 1. An engine's part has its operations ([`Operations`](crate::session::order::Operations)) and their order by key. All parts share the session's
//!    [`SessionCore`]: its queue, local memory, replies.
//! 2. The tag of a command names the part that receives its completion ([`EngineSlot::tag`]).
//! 3. Parts take their locks for a batch in the order of their slots, the hashed part first.
//!
//! Threads: the session's.

use super::batch::{BatchPart, BatchStop, Write};
use crate::error::Error;
use crate::keyspace::states::KeyspaceRef;
use crate::keyspace_kind::KeyspaceKind;
use crate::request::Request;
use crate::request::key_range::{KeyRange, ScanReply};
use crate::session::near::NearGet;
use crate::session::order::OpTarget;
use crate::session::session_core::SessionCore;
use crate::wake::shared_event::SharedEvent;
use tapetum_drive::Returned;

/// The low bits of a command's tag, which the engine itself assigns.
pub const OWN_TAG_BITS: u32 = 58;

/// The number of an engine's part of a session, in the order in which the parts were opened.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct EngineSlot(u8);

impl EngineSlot {
    pub const HASHED: EngineSlot = EngineSlot(0);
    /// For commands whose completions tell nothing.
    pub const NOBODY: EngineSlot = EngineSlot((u64::MAX >> OWN_TAG_BITS) as u8);

    /// The part that receives the completion of a command with this tag.
    #[inline]
    pub fn of(tag: u64) -> EngineSlot {
        EngineSlot((tag >> OWN_TAG_BITS) as u8)
    }

    /// The tag of a command of this part; `own` has [`OWN_TAG_BITS`] bits.
    pub fn tag(self, own: u64) -> u64 {
        u64::from(self.0) << OWN_TAG_BITS | own
    }

    /// The `own` that [`EngineSlot::tag`] was given.
    pub fn own(tag: u64) -> u64 {
        tag & ((1 << OWN_TAG_BITS) - 1)
    }
}

/// The reason why an engine's operations wait. Later ones are more pressing.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum EngineWait {
    /// Nothing, or commands in flight.
    Commands,
    /// A change by others that nobody signals: the session checks again after a while.
    Change,
    /// The next poll, which makes progress at once.
    Poll,
}

/// An engine's part of a session. It answers each decided operation by [`SessionCore::answer_after`].
pub trait EngineSession: Send {
    /// Starts an operation that the session has not refused.
    fn start(&mut self, core: &mut SessionCore, target: OpTarget, request: &Request<'_>);

    /// Starts a get whose value goes through programs of the drive.
    fn start_through(&mut self, core: &mut SessionCore, target: OpTarget, key: &[u8], near: Box<NearGet>);

    /// Gives up the gets through programs that have this token.
    fn cancel_through(&mut self, core: &mut SessionCore, token: u64);

    /// Takes the completion of a command of this part.
    fn complete(&mut self, core: &mut SessionCore, returned: Returned);

    /// Sends the gathered commands. Called before completions are taken, and before the session sleeps.
    fn send(&mut self, _core: &mut SessionCore) {}

    /// Retries the waiting operations, in order.
    fn poll(&mut self, core: &mut SessionCore);

    /// Fails the waiting operations: the store was closed.
    fn fail_waiting(&mut self, core: &mut SessionCore);

    /// Called before the session and its queue pair go. Takes back the leases of commands that need no flash, as others may wait for them.
    fn leave(&mut self, _core: &mut SessionCore) {}

    /// Readable when a poll may make progress for a reason that neither the session's queue pair nor the log signals.
    fn shared_event(&self) -> Option<&SharedEvent> {
        None
    }

    /// The reason why its operations wait.
    fn waits(&self) -> EngineWait;

    /// The tokens of its unanswered operations.
    fn tokens(&self) -> Vec<u64>;

    fn in_flight(&self) -> usize;

    /// Bytes of keys and values that its operations hold.
    fn kept_bytes(&self) -> usize;

    /// Grants `value_bytes` to an operation that asked ([`crate::session::asks`]). It goes on as if it was submitted now.
    fn allow_value(&mut self, core: &mut SessionCore, number: usize, value_bytes: usize);

    /// Ends an operation that asked and was answered meanwhile.
    fn give_up_value(&mut self, number: usize);

    /// Starts a scan of a keyspace that returns at most `items_max` items. [`EngineSession::take_scanned`] returns its answer.
    fn start_scan(&mut self, keyspace: KeyspaceRef, _token: u64, _range: KeyRange, _items_max: usize) {
        unreachable!("{:?} has no order of keys", keyspace.kind())
    }

    /// Takes the answers of finished scans.
    fn take_scanned(&mut self, _replies: &mut Vec<ScanReply>) {}

    /// Bytes that a batched write's record has in the log for its value.
    fn logged_bytes(&self, write: &Write<'_>) -> usize {
        write.value().len()
    }

    /// Prepares this engine's part of a batch: admits it and makes its records. Returns with no lock held. Reads and writes that must come first go
    /// out with [`EngineSession::send`], and the caller submits the batch again.
    fn prepare<'a>(
        &'a mut self,
        core: &SessionCore,
        writes: &'a [Write<'a>],
    ) -> Result<Box<dyn BatchPart + 'a>, BatchStop>;
}

/// All parts of a session but the hashed engine's, by slot.
#[derive(Default)]
pub struct OtherEngines {
    opened: Vec<(KeyspaceKind, Box<dyn EngineSession>)>,
}

impl OtherEngines {
    /// The slot of the part for a kind of keyspace, if it was opened.
    pub fn find(&self, kind: KeyspaceKind) -> Option<EngineSlot> {
        let at = self.opened.iter().position(|(other, _)| *other == kind)?;
        Some(EngineSlot(at as u8 + 1))
    }

    /// Adds the part for a kind; `open` receives its slot.
    pub fn add(
        &mut self,
        kind: KeyspaceKind,
        open: impl FnOnce(EngineSlot) -> Result<Box<dyn EngineSession>, Error>,
    ) -> Result<EngineSlot, Error> {
        let slot = EngineSlot(self.opened.len() as u8 + 1);
        self.opened.push((kind, open(slot)?));
        Ok(slot)
    }

    pub fn are_none(&self) -> bool {
        self.opened.is_empty()
    }

    pub fn get(&mut self, EngineSlot(slot): EngineSlot) -> &mut dyn EngineSession {
        &mut *self.opened[usize::from(slot) - 1].1
    }

    /// [`EngineSession::logged_bytes`] of the part for a kind. If that was not opened, the length of the value.
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
