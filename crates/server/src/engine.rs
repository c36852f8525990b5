//! What the server needs of a store: a session for each worker, and the figures. Dispatch is static.

use std::os::fd::RawFd;

use tapetum::{Access, DramItem, Error, Inspection, KeyDigest, Location, Reply, Request, SlabClass, Stats, ValueRange};

/// Used by one thread at a time. Requests for one key take effect in the order of submission; replies come in any order.
pub trait Session: Send + 'static {
    /// Never blocks; copies what it needs. A refusal comes as a reply.
    fn submit(&mut self, token: u64, request: Request<'_>);
    /// Never blocks. A value stays readable until the next poll.
    fn poll(&mut self, replies: &mut Vec<Reply>);
    fn bytes(&self, value: ValueRange) -> &[u8];
    fn in_flight(&self) -> usize;
    /// Readable while `poll` may make progress, which drains them.
    fn event_fds(&self) -> Vec<RawFd>;

    /// Whether gets may be answered at once, in stages, as far as DRAM has the items: see [`tapetum::Session::digest_each`].
    fn answers_from_dram(&self) -> bool {
        false
    }

    /// Whether puts may be done at once, in the same stages.
    fn puts_at_once(&self) -> bool {
        false
    }

    fn answers_at_once(&self) -> bool {
        self.answers_from_dram() || self.puts_at_once()
    }

    fn digest_each(&self, _keys: &[&[u8]], _digests: &mut [KeyDigest]) {}

    /// `puts`: see [`tapetum::Session::fetch_each`].
    fn fetch_each(&self, _keys: &[KeyDigest], _puts: u32) {}

    fn get_from_dram(
        &mut self,
        _key: KeyDigest,
        _out: &mut Vec<u8>,
        _head: impl FnMut(&mut Vec<u8>, &DramItem, &dyn Fn() -> Access) -> bool,
    ) -> Option<DramItem> {
        None
    }

    /// Of key and value, and flags and expiry: see [`tapetum::Session::put_at_once`].
    fn put_at_once(&mut self, _key: KeyDigest, _item: (&[u8], &[u8]), _about: (u32, u32)) -> Option<u64> {
        None
    }
}

pub trait Store: Send + Sync + 'static {
    type Session: Session;
    fn session(&self) -> Result<Self::Session, Error>;
    fn stats(&self) -> Stats;
    /// The classes of slots in DRAM, the smallest first.
    fn slabs(&self) -> Vec<SlabClass>;
    /// These block, for long perhaps: not for a worker.
    fn inspect(&self) -> Result<Inspection, Error>;
    fn locate(&self, key: &[u8]) -> Result<Location, Error>;
    fn resize_capacity(&self, bytes: u64) -> Result<(), Error>;
    fn resize_memory(&self, bytes: u64) -> Result<(), Error>;
}
