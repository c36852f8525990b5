//! The interface between the server and a store: a session for each worker, and the figures. Dispatch is static.

use std::ops::Range;
use std::os::fd::RawFd;
use tapetum::{
    AbsentBlocks, Access, Ask, BlockDevice, DramItem, Error, Inspection, KeyDigest, Keyspace, KeyspaceId, KeyspaceRef,
    KeyspaceWrites, ListCursor, ListPart, Location, PlainPut, Reply, Request, SlabClass, Stats, ValueRange,
};
use tapetum_drive::engine::StageSnapshot;

/// Used by one thread at a time. Requests for one key take effect in the order of submission, except one that asks for room: it takes
/// effect when it is allowed. Replies come in any order. [`crate::store::store_slot::Seat`] must forward each method, including those with
/// a default.
pub trait Session: Send + 'static {
    /// Submits a request. Never blocks; copies what it needs. A refusal comes as a reply. The caller has checked `has_room`. Keys, here and
    /// below, are those of `keyspace`.
    fn submit(&mut self, keyspace: KeyspaceRef, token: u64, request: Request<'_>);
    /// Whether one more request may be submitted. If not, replies make room.
    fn has_room(&self) -> bool {
        true
    }
    /// Takes replies. Never blocks. A value stays readable until the next poll.
    fn poll(&mut self, replies: &mut Vec<Reply>);
    fn bytes(&self, value: ValueRange) -> &[u8];
    fn in_flight(&self) -> usize;
    /// Descriptors that are readable while `poll` may make progress; `poll` drains them.
    fn event_fds(&self) -> Vec<RawFd>;

    /// The tokens of the requests in flight. Needed only if sessions are exchanged under their worker: see [`crate::store::store_slot`].
    fn tokens_in_flight(&self) -> Vec<u64> {
        unreachable!("its store is never exchanged")
    }

    /// A descriptor that is readable when the session must be exchanged.
    fn exchange_fd(&self) -> Option<RawFd> {
        None
    }

    /// Exchanges the session, if it must be, and returns the replies to all requests in flight. `event_fds` are different from then on.
    fn exchange(&mut self) -> Option<Vec<Reply>> {
        None
    }

    /// Submits a request that asks for room before it brings a value longer than `value_bytes`: see [`tapetum::Session::take_asks`].
    fn submit_within(&mut self, keyspace: KeyspaceRef, token: u64, request: Request<'_>, _value_bytes: usize) {
        self.submit(keyspace, token, request);
    }

    /// The reply comes when all acknowledged writes are durable: see [`tapetum::Session::submit_sync`]. The caller has checked `has_room`.
    fn submit_sync(&mut self, _token: u64) {
        unreachable!("nobody asks it for more than its answers say")
    }

    /// `false` is certain: see [`tapetum::Session::has_probably`].
    fn has_probably(&self, _keyspace: KeyspaceRef, _key: &[u8]) -> bool {
        true
    }

    /// See [`tapetum::Session::absent_blocks`].
    fn absent_blocks(
        &self,
        _keyspace: KeyspaceRef,
        _device: BlockDevice,
        _blocks: Range<u64>,
        _looks_max: usize,
    ) -> AbsentBlocks {
        AbsentBlocks::default()
    }

    /// How often the session was exchanged. Each exchange may lose writes that were acknowledged and not yet durable.
    fn exchanges(&self) -> u64 {
        0
    }

    fn take_asks(&mut self, _asks: &mut Vec<Ask>) {}

    fn allow_value(&mut self, _token: u64, _value_bytes: usize) {
        unreachable!("it never asks")
    }

    fn give_up_value(&mut self, _token: u64) {
        unreachable!("it never asks")
    }

    /// Whether gets can be answered at once, in stages, if DRAM has the items: see [`tapetum::Session::digest_each`].
    fn answers_from_dram(&self) -> bool {
        false
    }

    /// Whether puts can be done at once, in the same stages.
    fn puts_at_once(&self) -> bool {
        false
    }

    fn answers_at_once(&self) -> bool {
        self.answers_from_dram() || self.puts_at_once()
    }

    fn digest_each(&self, _keyspace: KeyspaceRef, _keys: &[&[u8]], _digests: &mut [KeyDigest]) {}

    /// `puts`: one bit for each key; see [`tapetum::Session::fetch_each`].
    fn fetch_each(&self, _keys: &[KeyDigest], _puts: u32) {}

    fn get_from_dram(
        &mut self,
        _keyspace: KeyspaceRef,
        _key: KeyDigest,
        _out: &mut Vec<u8>,
        _head: impl FnMut(&mut Vec<u8>, &DramItem, &dyn Fn() -> Access) -> bool,
    ) -> Option<DramItem> {
        None
    }

    /// See [`tapetum::Session::put_at_once`].
    fn put_at_once(&mut self, _keyspace: KeyspaceRef, _key: KeyDigest, _put: PlainPut<'_>) -> Option<u64> {
        None
    }
}

pub trait Store: Send + Sync + 'static {
    type Session: Session;
    fn session(&self) -> Result<Self::Session, Error>;
    fn stats(&self) -> Stats;
    /// Each keyspace, and its approximate number of items.
    fn keyspace_items(&self) -> Vec<(Keyspace, u64)> {
        Vec::new()
    }
    /// Bytes written to segments for each keyspace since the store was opened.
    fn keyspace_writes(&self) -> Vec<(KeyspaceId, KeyspaceWrites)> {
        Vec::new()
    }
    /// The classes of slots in DRAM, the smallest first.
    fn slabs(&self) -> Vec<SlabClass>;
    /// Counters of the drive's programs as stages of pipelines.
    fn stages(&self) -> Vec<StageSnapshot> {
        Vec::new()
    }
    /// This and the following methods may block for long, and must not be called by a worker.
    fn list_keys(&self, _keyspace: KeyspaceRef, _cursor: &ListCursor) -> Result<ListPart, Error> {
        Err(Error::Unusable("this store does not list its keys".into()))
    }
    fn inspect(&self) -> Result<Inspection, Error>;
    fn locate(&self, keyspace: KeyspaceRef, key: &[u8]) -> Result<Location, Error>;
    fn resize_capacity(&self, bytes: u64) -> Result<(), Error>;
    fn resize_memory(&self, bytes: u64) -> Result<(), Error>;
}
