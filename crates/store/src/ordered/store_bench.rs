//! A store with keyspaces of both engines on a flash whose power fails, for tests.

use crate::api::session::{Session, Write};
use crate::hashed::collect::victim::tests::{SMALL_BYTES, drive_of, small_options};
use crate::{Error, Store, StoreOptions};
use std::sync::Arc;
use tapetum_base::keyspace::states::KeyspaceRef;
use tapetum_base::keyspace_kind::KeyspaceKind;
use tapetum_base::log::Sync;
use tapetum_base::request::{Condition, Outcome, Reply, Request};
use tapetum_drive::{Drive, Env, FaultyFlash, SimClock};
use tapetum_kernels::expiry::Expiry;

const PATIENCE: u32 = 1_000_000;

fn drive(flash: &FaultyFlash) -> (Drive, SimClock) {
    let (env, clock) = Env::simulated(1);
    (drive_of(Arc::new(flash.clone()), &small_options(), env), clock)
}

/// Nothing is maintained but by steps.
pub struct Bench {
    pub session: Session,
    pub store: Store,
    pub flash: FaultyFlash,
    pub clock: SimClock,
    options: StoreOptions,
}

impl Bench {
    pub fn new(sync: Sync, seed: u64) -> Bench {
        Bench::of_bytes(SMALL_BYTES, sync, seed)
    }

    /// On a flash of so many bytes.
    pub fn of_bytes(flash_bytes: u64, sync: Sync, seed: u64) -> Bench {
        Bench::with_options(flash_bytes, StoreOptions { sync, ..small_options() }, seed)
    }

    pub fn with_options(flash_bytes: u64, options: StoreOptions, seed: u64) -> Bench {
        let flash = FaultyFlash::new(flash_bytes, seed);
        Store::create_on(&drive(&flash).0, &options).unwrap();
        let bench = Bench::open(flash, options).unwrap();
        drop(bench.store.create_keyspace_of("orders", KeyspaceKind::Ordered).unwrap());
        bench
    }

    fn open(flash: FaultyFlash, options: StoreOptions) -> Result<Bench, Error> {
        let (drive, clock) = drive(&flash);
        let store = Store::open_with(&drive, &options, || false)?;
        Ok(Bench { session: store.session().unwrap(), store, flash, clock, options })
    }

    pub fn orders(&self) -> KeyspaceRef {
        self.store.keyspace("orders").unwrap().keyspace()
    }

    /// A step of all that goes on; the answer to the session's only operation, if it came. `None` once the flash has crashed.
    pub fn step(&mut self) -> Option<Option<Reply>> {
        self.store.maintain();
        let mut replies = Vec::new();
        self.session.poll(&mut replies);
        (!self.flash.crashed()).then(|| replies.pop())
    }

    pub fn answer(&mut self) -> Option<Outcome> {
        for _ in 0..PATIENCE {
            if let Some(reply) = self.step()? {
                return Some(reply.outcome);
            }
        }
        panic!("no answer; {:?} are on their way", self.session.tokens_in_flight());
    }

    pub fn batch(&mut self, writes: &[Write<'_>]) -> Option<Outcome> {
        for _ in 0..PATIENCE {
            if self.session.submit_batch(1, writes).is_ok() {
                return self.answer();
            }
            self.step()?;
        }
        panic!("a batch waits for ever");
    }

    pub fn run(&mut self, keyspace: KeyspaceRef, request: Request<'_>) -> Option<Outcome> {
        self.session.submit_to(keyspace, 1, request).unwrap();
        self.answer()
    }

    pub fn get(&mut self, keyspace: KeyspaceRef, key: &[u8]) -> Option<Vec<u8>> {
        match self.run(keyspace, Request::Get { key }).unwrap() {
            Outcome::Value { value, .. } => Some(self.session.bytes(value).to_vec()),
            Outcome::Missing => None,
            other => panic!("{other:?}"),
        }
    }

    pub fn put(&mut self, keyspace: KeyspaceRef, key: &[u8], value: &[u8]) -> Option<Outcome> {
        self.run(keyspace, Request::Put { key, value, flags: 0, expiry: Expiry::NONE, condition: Condition::Always })
    }

    /// As a power failure would leave it now that takes all that no flush covers.
    pub fn fork_durable(&self) -> Bench {
        Bench::open(self.flash.fork_durable(1), self.options).unwrap()
    }

    /// As a power failure left it, which comes now if it did not before.
    pub fn reopen(self) -> Bench {
        self.reopen_after(|_| ()).unwrap()
    }

    /// The same, where something became of the flash before it was opened.
    pub fn reopen_after(self, meanwhile: impl FnOnce(&FaultyFlash)) -> Result<Bench, Error> {
        let Bench { session, store, flash, options, .. } = self;
        drop((session, store));
        if !flash.crashed() {
            flash.crash();
        }
        let flash = flash.reopen();
        meanwhile(&flash);
        Bench::open(flash, options)
    }
}
