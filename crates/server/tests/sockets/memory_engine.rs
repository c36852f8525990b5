//! A store in memory behind the server's seam: what the real store must look like from outside. A session may answer late and in
//! any order, as one that reads flash does.

// Each test uses a part of it; and what is above the store may have clocks and threads of its own.
#![allow(dead_code, clippy::disallowed_methods)]

use std::collections::BTreeMap;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::{Arc, Mutex, MutexGuard};
use tapetum::Expiry;

use tapetum::{
    Access, Condition, Error, Initial, Inspection, KeyPlace, KeyspaceRef, Location, Marks, Outcome, Reply, Request,
    SlabClass, Stats, Terms, ValueRange,
};
use tapetum_drive::Event;
use tapetum_server::net::worker::unix_seconds;
use tapetum_server::protocol::number;
use tapetum_server::store::engine::{Session, Store};

#[derive(Clone)]
struct Record {
    value: Vec<u8>,
    flags: u32,
    expiry: Expiry,
    stamp: u64,
    marks: Marks,
    was_read: bool,
}

#[derive(Default)]
struct State {
    records: BTreeMap<Vec<u8>, Record>,
    stamp: u64,
    delete_all_at: u32,
}

#[derive(Clone, Default)]
pub struct MemoryStore {
    state: Arc<Mutex<State>>,
    /// Sessions hold outcomes back for some polls and give them in another order.
    pub late: bool,
    /// Gets of keys that start so fail.
    pub failing_prefix: Option<&'static [u8]>,
    pub value_bytes_max: usize,
}

impl MemoryStore {
    pub fn new() -> MemoryStore {
        MemoryStore { value_bytes_max: 16 << 20, ..MemoryStore::default() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }
}

impl Store for MemoryStore {
    type Session = MemorySession;

    fn session(&self) -> Result<MemorySession, Error> {
        Ok(MemorySession {
            store: self.clone(),
            event: Event::new().unwrap(),
            held: Vec::new(),
            values: Vec::new(),
            chance: 0x9e37_79b9_7f4a_7c15,
        })
    }

    fn slabs(&self) -> Vec<SlabClass> {
        Vec::new()
    }

    fn stats(&self) -> Stats {
        Stats { index_entries: self.state().records.len() as u64, ..Stats::default() }
    }

    fn inspect(&self) -> Result<Inspection, Error> {
        Ok(Inspection { superblock: vec![("store_id".into(), 7)], ..Inspection::default() })
    }

    fn locate(&self, _keyspace: KeyspaceRef, key: &[u8]) -> Result<Location, Error> {
        Ok(Location { hash: key.len() as u128, partition: None, place: KeyPlace::Nowhere { segment: None } })
    }

    fn resize_capacity(&self, bytes: u64) -> Result<(), Error> {
        match bytes {
            1_000_000_000.. => Ok(()),
            _ => Err(Error::Options("a capacity never shrinks".into())),
        }
    }

    /// Takes its time, as a real one may.
    fn resize_memory(&self, bytes: u64) -> Result<(), Error> {
        std::thread::sleep(std::time::Duration::from_millis(50));
        match bytes {
            10_000_000.. => Ok(()),
            _ => Err(Error::TooLittleMemory {
                memory_bytes: bytes,
                least_bytes: 10_000_000,
                needed_for: "this store".into(),
            }),
        }
    }
}

pub struct MemorySession {
    store: MemoryStore,
    event: Event,
    /// Outcomes not given yet; the value of a hit travels along.
    held: Vec<(u64, Outcome, Vec<u8>)>,
    values: Vec<u8>,
    chance: u64,
}

impl MemorySession {
    fn random(&mut self) -> u64 {
        self.chance ^= self.chance << 13;
        self.chance ^= self.chance >> 7;
        self.chance ^= self.chance << 17;
        self.chance
    }
}

impl Session for MemorySession {
    fn submit(&mut self, _keyspace: KeyspaceRef, token: u64, request: Request<'_>) {
        let now = unix_seconds();
        let mut state = self.store.state();
        let (outcome, value) = state.apply(&self.store, request, now);
        drop(state);
        self.held.push((token, outcome, value));
        self.event.raise();
    }

    fn poll(&mut self, replies: &mut Vec<Reply>) {
        self.event.clear();
        self.values.clear();
        let count = if self.store.late { self.random() as usize % (self.held.len() + 1) } else { self.held.len() };
        for _ in 0..count {
            let at = if self.store.late { self.random() as usize % self.held.len() } else { 0 };
            let (token, mut outcome, bytes) =
                if self.store.late { self.held.swap_remove(at) } else { self.held.remove(0) };
            if let Outcome::Value { value, .. } | Outcome::Leased { value, .. } = &mut outcome {
                *value = ValueRange { start: self.values.len(), end: self.values.len() + bytes.len() };
                self.values.extend_from_slice(&bytes);
            }
            replies.push(Reply { token, outcome, read_flash: false });
        }
        if !self.held.is_empty() {
            self.event.raise();
        }
    }

    fn submit_sync(&mut self, token: u64) {
        self.held.push((token, Outcome::Done, Vec::new()));
        self.event.raise();
    }

    fn has_probably(&self, _keyspace: KeyspaceRef, key: &[u8]) -> bool {
        self.store.state().records.contains_key(key)
    }

    fn bytes(&self, value: ValueRange) -> &[u8] {
        &self.values[value.start..value.end]
    }

    fn in_flight(&self) -> usize {
        self.held.len()
    }

    fn event_fds(&self) -> Vec<RawFd> {
        vec![self.event.as_raw_fd()]
    }
}

impl State {
    fn live(&mut self, key: &[u8], now: u32) -> Option<&mut Record> {
        let gone = |record: &Record| record.expiry.has_passed(u64::from(now) * 1000);
        if self.records.get(key).is_some_and(gone) {
            self.records.remove(key);
        }
        self.records.get_mut(key)
    }

    fn write(&mut self, key: &[u8], value: Vec<u8>, flags: u32, expiry: Expiry) -> u64 {
        self.stamp += 1;
        let stamp = self.stamp;
        self.records.insert(key.to_vec(), Record { value, flags, expiry, stamp, marks: Marks::NONE, was_read: false });
        stamp
    }

    fn apply(&mut self, store: &MemoryStore, request: Request<'_>, now: u32) -> (Outcome, Vec<u8>) {
        if self.delete_all_at != 0 && self.delete_all_at <= now {
            self.delete_all_at = 0;
            self.records.clear();
        }
        let plain = |outcome| (outcome, Vec::new());
        match request {
            Request::Get { key } | Request::GetAndTouch { key, .. } => {
                if store.failing_prefix.is_some_and(|prefix| key.starts_with(prefix)) {
                    return plain(Outcome::Failed(Error::Io("a planted failure".into())));
                }
                let touch = match request {
                    Request::GetAndTouch { expiry, .. } => Some(expiry),
                    _ => None,
                };
                match self.live(key, now) {
                    None => plain(Outcome::Missing),
                    Some(record) => {
                        record.expiry = touch.unwrap_or(record.expiry);
                        let &mut Record { flags, stamp, expiry, .. } = record;
                        let value = ValueRange { start: 0, end: 0 };
                        (Outcome::Value { flags, stamp, expiry, value }, record.value.clone())
                    }
                }
            }
            Request::GetAndLease { key, terms } => self.lease(key, terms, now),
            Request::Put { key, value, flags, expiry, condition } => {
                let record = self.live(key, now).cloned();
                let stamp = record.as_ref().map(|record| record.stamp);
                let older = |wanted| record.clone().filter(|record| wanted < record.stamp);
                plain(match (condition, stamp) {
                    (Condition::Absent, Some(_)) | (Condition::Present, None) => Outcome::NotStored,
                    (Condition::Stamp(_) | Condition::StampOrOlder(_), None) => Outcome::Missing,
                    (Condition::StampOrOlder(wanted), Some(stamp)) if wanted > stamp => Outcome::Exists,
                    (Condition::StampOrOlder(wanted), _) if let Some(old) = older(wanted) => {
                        let stamp = self.write(key, value.to_vec(), flags, old.expiry);
                        let marks = Marks { stale: true, ..old.marks };
                        self.records.entry(key.to_vec()).and_modify(|record| record.marks = marks);
                        Outcome::Stored { stamp }
                    }
                    (Condition::Stamp(wanted), Some(stamp)) if wanted != stamp => Outcome::Exists,
                    _ => Outcome::Stored { stamp: self.write(key, value.to_vec(), flags, expiry) },
                })
            }
            Request::Append { key, value, stamp } => plain(self.extend(store, key, b"", value, stamp, now)),
            Request::Prepend { key, value, stamp } => plain(self.extend(store, key, value, b"", stamp, now)),
            Request::Increment { key, delta, decrement, initial, stamp, touch } => {
                let change = |old: u64| if decrement { old.saturating_sub(delta) } else { old.wrapping_add(delta) };
                plain(self.increment(key, change, initial, stamp, touch, now))
            }
            Request::Touch { key, expiry } => plain(match self.live(key, now) {
                None => Outcome::Missing,
                Some(record) => {
                    record.expiry = expiry;
                    Outcome::Touched { stamp: record.stamp }
                }
            }),
            Request::Invalidate { key, stamp, expiry } => {
                self.stamp += 1;
                let stamp_next = self.stamp;
                plain(match self.live(key, now) {
                    None => Outcome::Missing,
                    Some(record) if stamp.is_some_and(|stamp| stamp != record.stamp) => Outcome::Exists,
                    Some(record) => {
                        record.marks = Marks { stale: true, leased: false };
                        (record.stamp, record.expiry) = (stamp_next, expiry.unwrap_or(record.expiry));
                        Outcome::Stored { stamp: stamp_next }
                    }
                })
            }
            Request::Delete { key, stamp } => plain(match self.live(key, now) {
                None => Outcome::Missing,
                Some(record) if stamp.is_some_and(|stamp| stamp != record.stamp) => Outcome::Exists,
                Some(_) => {
                    self.records.remove(key);
                    Outcome::Deleted
                }
            }),
            Request::DeleteAll { at } => {
                if at == 0 {
                    self.records.clear();
                }
                self.delete_all_at = at;
                plain(Outcome::Done)
            }
        }
    }

    fn lease(&mut self, key: &[u8], terms: Terms, now: u32) -> (Outcome, Vec<u8>) {
        let was_there = self.live(key, now).is_some();
        match terms.vivify.filter(|_| !was_there) {
            Some(expiry) => drop(self.write(key, Vec::new(), 0, expiry)),
            None if !was_there => return (Outcome::Missing, Vec::new()),
            None => {}
        }
        let Some(record) = self.records.get_mut(key) else { unreachable!("it was there, or was made") };
        let judged = terms.touch.filter(|_| terms.touch_first).unwrap_or(record.expiry);
        let soon = terms.recache_before.is_some_and(|before| !judged.is_none() && judged < before);
        let won = !was_there || (!record.marks.leased && (soon || (terms.stale && record.marks.stale)));
        record.marks.leased |= won;
        let expiry_before = was_there.then_some(record.expiry);
        record.expiry = terms.touch.filter(|_| was_there).unwrap_or(record.expiry);
        let access = Access { was_read: record.was_read, ..Access::default() };
        record.was_read |= !terms.unnoticed;
        let &mut Record { flags, stamp, marks, .. } = record;
        let value = ValueRange { start: 0, end: 0 };
        (Outcome::Leased { flags, stamp, expiry_before, marks, won, access, value }, record.value.clone())
    }

    fn extend(
        &mut self,
        store: &MemoryStore,
        key: &[u8],
        before: &[u8],
        after: &[u8],
        stamp: Option<u64>,
        now: u32,
    ) -> Outcome {
        let Some(record) = self.live(key, now) else { return Outcome::NotStored };
        if stamp.is_some_and(|stamp| stamp != record.stamp) {
            return Outcome::Exists;
        }
        let value = [before, &record.value, after].concat();
        if value.len() > store.value_bytes_max {
            return Outcome::Failed(Error::ValueTooLarge { limit_bytes: store.value_bytes_max });
        }
        let (flags, expiry) = (record.flags, record.expiry);
        Outcome::Stored { stamp: self.write(key, value, flags, expiry) }
    }

    fn increment(
        &mut self,
        key: &[u8],
        change: impl Fn(u64) -> u64,
        initial: Option<Initial>,
        stamp: Option<u64>,
        touch: Option<Expiry>,
        now: u32,
    ) -> Outcome {
        let Some(record) = self.live(key, now).cloned() else {
            return match initial {
                None => Outcome::Missing,
                Some(Initial { value, expiry }) => {
                    let stamp = self.write(key, value.to_string().into_bytes(), 0, expiry);
                    Outcome::Number { number: value, stamp, expiry_before: None }
                }
            };
        };
        if stamp.is_some_and(|stamp| stamp != record.stamp) {
            return Outcome::Exists;
        }
        let Some(old) = number::unsigned(&record.value) else { return Outcome::NotNumber };
        let number = change(old);
        let mut value = number.to_string().into_bytes();
        let padded = value.len().max(record.value.len());
        value.resize(padded, b' ');
        let stamp = self.write(key, value, record.flags, touch.unwrap_or(record.expiry));
        Outcome::Number { number, stamp, expiry_before: Some(record.expiry) }
    }
}
