//! A store that runs in this process without threads: every step of it is made here.

use std::sync::Arc;
use tapetum::Expiry;

use tapetum::{
    CheckReport, Condition, Error, KeyspaceKind, KeyspaceRef, Outcome, Reply, Request, Session, Step, Store,
    StoreOptions,
};
use tapetum_drive::{Drive, Env, Flash, LocalMemory, programs};

use super::history::{Content, History, name, read_value, value};
use crate::Failure;

pub const CAPACITY_BYTES: u64 = 8 << 20;
const SEGMENT_BYTES: u64 = 64 << 10;
/// Operations on their way at once.
const DEPTH: usize = 64;
/// Steps of maintenance one after the other in which nothing gets further, with an ordered keyspace: each command ends at once here.
const WAITS_MAX: u32 = 200;

/// The keyspace of those that are ordered.
const ORDERED: &str = "sorted";

pub struct Running {
    store: Store,
    /// The keys that are read and written.
    keyspace: KeyspaceRef,
    session: Session,
}

/// The answer to a read.
pub enum Answer {
    Content(Content),
    /// Bytes that the key never had.
    Wrong(String),
    Error(Error),
}

pub fn options() -> StoreOptions {
    StoreOptions { segment_bytes: SEGMENT_BYTES, partition_bits: 2, ..StoreOptions::new(CAPACITY_BYTES, 16 << 20) }
}

/// A drive whose chance comes from `seed`, and whose time stands still.
pub fn drive(flash: Arc<dyn Flash>, seed: u64) -> Result<Drive, Failure> {
    let local = LocalMemory::new(options().local_memory_bytes() as usize)?;
    Ok(Drive::new(flash, local, programs::built_in(), Env::simulated(seed).0))
}

impl Running {
    /// Opens the store, to work on its keyspace of a kind.
    pub fn open(drive: &Drive, options: &StoreOptions, kind: KeyspaceKind) -> Result<Running, Error> {
        let store = Store::open_with(drive, options, || false)?;
        let keyspace = match kind {
            KeyspaceKind::Hashed => KeyspaceRef::DEFAULT,
            _ => store.keyspace(ORDERED)?.keyspace(),
        };
        let session = store.session()?;
        Ok(Running { store, keyspace, session })
    }

    /// Makes a store with a keyspace of a kind.
    pub fn create(drive: &Drive, options: &StoreOptions, kind: KeyspaceKind) -> Result<(), Error> {
        Store::create_on(drive, options)?;
        if kind == KeyspaceKind::Hashed {
            return Ok(());
        }
        let store = Store::open_with(drive, options, || false)?;
        store.create_keyspace_of(ORDERED, kind)?;
        store.close()
    }

    pub fn store(&self) -> &Store {
        &self.store
    }

    /// Reads keys, and lets maintenance wait meanwhile; `hear` is given each one's answer.
    pub fn read(&mut self, keys: &[u32], mut hear: impl FnMut(u32, Answer)) {
        let keyspace = self.keyspace;
        let request = |session: &mut Session, place: usize| {
            session.submit_to(keyspace, place as u64, Request::Get { key: &name(keys[place]) }).unwrap();
        };
        let hear = |session: &Session, reply: Reply| {
            let key = keys[reply.token as usize];
            hear(
                key,
                match reply.outcome {
                    Outcome::Missing => Answer::Content(None),
                    Outcome::Value { value, .. } => match read_value(key, session.bytes(value)) {
                        Ok(time) => Answer::Content(Some(time)),
                        Err(wrong) => Answer::Wrong(wrong),
                    },
                    Outcome::Failed(error) => Answer::Error(error),
                    other => Answer::Wrong(format!("{other:?}")),
                },
            );
        };
        run(&mut self.session, keys.len(), request, hear, || false);
    }

    /// Writes keys, each stored anew or deleted, and enters them in the history. The errors are the result.
    pub fn write(&mut self, writes: &[(u32, bool)], history: &mut History) -> Vec<Error> {
        // One at a time of a key, or answers could not be told apart; times are given as if all went out in order.
        let (first, keyspace) = (history.time(), self.keyspace);
        let mut failed = vec![None; writes.len()];
        let request = |session: &mut Session, place: usize| {
            let (key, stored) = writes[place];
            let name = name(key);
            let value = value(key, first + place as u32);
            session
                .submit_to(
                    keyspace,
                    place as u64,
                    match stored {
                        true => Request::Put {
                            key: &name,
                            value: &value,
                            flags: 0,
                            expiry: Expiry::NONE,
                            condition: Condition::Always,
                        },
                        false => Request::Delete { key: &name, stamp: None },
                    },
                )
                .unwrap();
        };
        let hear = |_: &Session, reply: Reply| match reply.outcome {
            Outcome::Failed(error) => failed[reply.token as usize] = Some(error),
            Outcome::Stored { .. } | Outcome::Deleted | Outcome::Missing => {}
            other => unreachable!("a write was answered with {other:?}"),
        };
        let store = &self.store;
        run(&mut self.session, writes.len(), request, hear, || store.maintain() == Step::Busy);
        for ((key, stored), failed) in writes.iter().zip(&failed) {
            match failed {
                None => history.acknowledged(*key, *stored),
                Some(_) => history.doubtful(*key, *stored),
            }
        }
        failed.into_iter().flatten().collect()
    }

    /// Lets maintenance come to rest. Changed data nodes wait for their time to be written, and time stands still: they may stay.
    pub fn settle(&mut self) {
        let (mut idle, mut waits) = (0, 0);
        let waits_max = if self.keyspace.kind() == KeyspaceKind::Hashed { u32::MAX } else { WAITS_MAX };
        while idle < 3 && waits < waits_max {
            match self.store.maintain() {
                Step::Idle => idle += 1,
                step => {
                    (idle, waits) = (0, if step == Step::Busy { 0 } else { waits + 1 });
                    std::thread::yield_now();
                }
            }
        }
    }

    pub fn check(&self) -> Result<CheckReport, Error> {
        tapetum::check(&self.store)
    }

    pub fn close(self) -> Result<(), Error> {
        drop(self.session);
        self.store.close()
    }
}

/// Submits `count` requests, not too many at once, and hears all replies. `beside` does something else meanwhile, and says
/// whether there is more of it at once.
fn run(
    session: &mut Session,
    count: usize,
    mut submit: impl FnMut(&mut Session, usize),
    mut hear: impl FnMut(&Session, Reply),
    mut beside: impl FnMut() -> bool,
) {
    let (mut submitted, mut answered) = (0, 0);
    let mut replies = Vec::new();
    while answered < count {
        while submitted < count && submitted - answered < DEPTH {
            submit(session, submitted);
            submitted += 1;
        }
        session.poll(&mut replies);
        answered += replies.len();
        if !beside() && replies.is_empty() {
            std::thread::yield_now();
        }
        for reply in replies.drain(..) {
            hear(session, reply);
        }
    }
}
