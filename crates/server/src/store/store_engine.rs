//! The embedded crate's store and session behind the doors' traits.

use std::ops::Range;
use std::os::fd::RawFd;

use tapetum::{
    AbsentBlocks, Access, Ask, BlockDevice, DramItem, Error, Inspection, KeyDigest, Keyspace, KeyspaceId, KeyspaceRef,
    KeyspaceWrites, ListCursor, ListPart, Location, Reply, Request, SlabClass, Stats, ValueRange,
};
use tapetum_drive::engine::StageSnapshot;

use crate::store::engine;
use tapetum::PlainPut;

impl engine::Session for tapetum::Session {
    fn submit(&mut self, keyspace: KeyspaceRef, token: u64, request: Request<'_>) {
        self.submit_to(keyspace, token, request).expect("the worker looks for room first");
    }

    fn has_room(&self) -> bool {
        self.has_room()
    }

    fn poll(&mut self, replies: &mut Vec<Reply>) {
        self.poll(replies);
    }

    fn bytes(&self, value: ValueRange) -> &[u8] {
        self.bytes(value)
    }

    fn in_flight(&self) -> usize {
        self.in_flight()
    }

    fn event_fds(&self) -> Vec<RawFd> {
        self.event_fds()
    }

    fn tokens_in_flight(&self) -> Vec<u64> {
        self.tokens_in_flight()
    }

    fn submit_within(&mut self, keyspace: KeyspaceRef, token: u64, request: Request<'_>, value_bytes: usize) {
        self.submit_within(keyspace, token, request, value_bytes).expect("the worker looks for room first");
    }

    fn submit_sync(&mut self, token: u64) {
        self.submit_sync(token).expect("the worker looks for room first");
    }

    fn has_probably(&self, keyspace: KeyspaceRef, key: &[u8]) -> bool {
        self.has_probably(keyspace, key)
    }

    fn absent_blocks(
        &self,
        keyspace: KeyspaceRef,
        device: BlockDevice,
        blocks: Range<u64>,
        looks_max: usize,
    ) -> AbsentBlocks {
        self.absent_blocks(keyspace, device, blocks, looks_max)
    }

    fn take_asks(&mut self, asks: &mut Vec<Ask>) {
        self.take_asks(asks);
    }

    fn allow_value(&mut self, token: u64, value_bytes: usize) {
        self.allow_value(token, value_bytes);
    }

    fn give_up_value(&mut self, token: u64) {
        self.give_up_value(token);
    }

    fn answers_from_dram(&self) -> bool {
        self.answers_from_dram()
    }

    fn digest_each(&self, keyspace: KeyspaceRef, keys: &[&[u8]], digests: &mut [KeyDigest]) {
        self.digest_each(keyspace, keys, digests);
    }

    fn fetch_each(&self, keys: &[KeyDigest], puts: u32) {
        self.fetch_each(keys, puts);
    }

    fn get_from_dram(
        &mut self,
        keyspace: KeyspaceRef,
        key: KeyDigest,
        out: &mut Vec<u8>,
        head: impl FnMut(&mut Vec<u8>, &DramItem, &dyn Fn() -> Access) -> bool,
    ) -> Option<DramItem> {
        self.get_from_dram(keyspace, key, out, head)
    }

    fn puts_at_once(&self) -> bool {
        self.puts_at_once()
    }

    fn put_at_once(&mut self, keyspace: KeyspaceRef, digest: KeyDigest, put: PlainPut<'_>) -> Option<u64> {
        self.put_at_once(keyspace, digest, put)
    }
}

impl engine::Store for tapetum::Store {
    type Session = tapetum::Session;

    fn session(&self) -> Result<tapetum::Session, Error> {
        self.session()
    }

    fn slabs(&self) -> Vec<SlabClass> {
        self.slabs()
    }

    fn stages(&self) -> Vec<StageSnapshot> {
        self.stage_counters()
    }

    fn stats(&self) -> Stats {
        self.stats()
    }

    fn keyspace_items(&self) -> Vec<(Keyspace, u64)> {
        self.keyspace_items()
    }

    fn keyspace_writes(&self) -> Vec<(KeyspaceId, KeyspaceWrites)> {
        self.keyspace_writes()
    }

    fn list_keys(&self, keyspace: KeyspaceRef, cursor: &ListCursor) -> Result<ListPart, Error> {
        self.list_keys(keyspace, cursor)
    }

    fn inspect(&self) -> Result<Inspection, Error> {
        tapetum::inspect(self)
    }

    fn locate(&self, keyspace: KeyspaceRef, key: &[u8]) -> Result<Location, Error> {
        tapetum::locate(self, keyspace, key)
    }

    fn resize_capacity(&self, bytes: u64) -> Result<(), Error> {
        self.resize_capacity(bytes)
    }

    fn resize_memory(&self, bytes: u64) -> Result<(), Error> {
        self.resize_memory(bytes)
    }
}
