//! An engine holds the keyspaces of one kind. It stands on the [`Base`](crate::base::Base) and knows no other engine.
//!
//! ```text
//! opening:  make ─► replay of each of its log records, in order ─► recover ─► jobs
//! open:     sessions · jobs of maintenance · a client of the log
//! closing:  jobs wound down ─► close
//! ```
//! 1. A record of the log belongs to the engine of its keyspace's kind; no other sees it.
//! 2. A store opens only with an engine for each kind of keyspace that it has, dropped ones included.
//! 3. The id of a dropped keyspace is given again only when no engine holds anything of it ([`Engine::holds`]).
//!
//! Threads: any. The store and its sessions hold engines, engines hold the base; the base knows them weakly.

pub mod batch;
pub mod check_report;
pub mod engine_session;
pub mod inspection;
pub mod job;
pub mod key_place;
pub mod scan_layout;

use crate::engine::check_report::CheckReport;
use crate::engine::engine_session::{EngineSession, EngineSlot};
use crate::engine::inspection::Inspection;
use crate::engine::job::Job;
use crate::engine::key_place::KeyPlace;
use crate::engine::scan_layout::ScanLayout;
use crate::error::Error;
use crate::installer::Installer;
use crate::keyspace::KeyspaceId;
use crate::keyspace::key_range::KeyRange;
use crate::keyspace::states::KeyspaceRef;
use crate::keyspace_kind::KeyspaceKind;
use crate::log::Place;
use crate::log::client::LogClient;
use crate::media::io::{Io, Task};
use crate::stats::Stats;
use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock, Weak};
use tapetum_kernels::record::Record;

/// What a keyspace that is kept in images has written, and how much of that an opening after a crash would miss. For tests.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct ImageMarks {
    /// Images that have become durable since the store was opened, and the highest stamp of them.
    pub landed: u64,
    pub landed_stamp: u64,
    /// Those among the first of them that the manifest attests; `None`: it attests none of any life.
    pub settled: Option<u64>,
    /// The highest stamp up to which a durable image attests others.
    pub told_stamp: u64,
}

impl ImageMarks {
    /// Whether all that was durable when the keyspace had the `earlier` marks is attested.
    pub fn attest(&self, earlier: &ImageMarks) -> bool {
        self.settled.is_some_and(|settled| earlier.landed <= settled || earlier.landed_stamp <= self.told_stamp)
    }
}

pub type ItemCounts = BTreeMap<KeyspaceId, u64>;

pub trait Engine: LogClient {
    fn kind(&self) -> KeyspaceKind;

    /// Takes a record of the log back, before the store is open. Records come in the order of their stamps.
    fn replay(&self, place: Place, record: &Record<'_>) -> Result<(), Error>;

    /// All was replayed: makes ready to serve, from what it left in the manifest (a root by `Base::set_root`, or as a client), which it may
    /// change. Gives the installer back. Nobody takes extents before every engine has claimed its own here.
    fn recover(self: Arc<Self>, io: Io, installer: Box<Installer>) -> Task<Result<Box<Installer>, Error>>;

    /// Its part of a session. Sessions hold that of hashed keyspaces by value, and never ask for it.
    fn open_session(self: Arc<Self>, slot: EngineSlot) -> Box<dyn EngineSession>;

    /// What it has to do again and again while the store is open.
    fn jobs(self: Arc<Self>, io: &Io) -> Vec<Box<dyn Job>>;

    /// Whether anything of a dropped keyspace is left in it, or can come.
    fn holds(&self, keyspace: KeyspaceId) -> bool;

    /// Whether the manifest has room to name one keyspace more, beside what it may have to say of this engine's data.
    fn has_room_for_keyspace(&self) -> bool {
        true
    }

    /// A keyspace was created, renamed, dropped or forgotten.
    fn keyspaces_changed(&self) {}

    /// Somebody else has changed what the installer has, and is about to give it back: leaves behind what others may know of that.
    fn installed(&self, _: &Installer) {}

    /// Adds about how many items each of its open keyspaces has: none is missing, those may count whose room is still to be taken back.
    fn add_counts(&self, counts: &mut ItemCounts);

    /// How many items each of its open keyspaces has; it may read flash to know. Expired and deleted ones count until their room is taken back.
    fn count_items(self: Arc<Self>, _: Io) -> Task<Result<ItemCounts, Error>> {
        let mut counts = ItemCounts::new();
        self.add_counts(&mut counts);
        Box::pin(async { Ok(counts) })
    }

    /// What its indexes take in memory. All engines share what the budget has for them.
    fn index_bytes(&self) -> u64 {
        0
    }

    /// What it keeps of local memory as long as the store is open.
    fn local_bytes(&self) -> u64 {
        0
    }

    fn add_stats(&self, stats: &mut Stats);

    /// Where the records of a range of keys lie, for a query at the drive; `None`: an engine that tells it another way.
    fn scan_layout(&self, _: KeyspaceRef, _: &KeyRange) -> Result<Option<Box<dyn ScanLayout>>, Error> {
        Ok(None)
    }

    /// Adds what it knows of its data beside what the manifest says, for tools.
    fn inspect(&self, _: &mut Inspection) -> Result<(), Error> {
        Ok(())
    }

    /// Where a key of a keyspace lives, for tools.
    fn locate(self: Arc<Self>, io: Io, keyspace: KeyspaceId, key: Vec<u8>) -> Task<Result<KeyPlace, Error>>;

    /// The marks of one of its keyspaces, if that is kept in images.
    fn image_marks(&self, _: KeyspaceId) -> Option<ImageMarks> {
        None
    }

    /// Reads all that it has on flash and looks whether it holds.
    fn check(self: Arc<Self>, io: Io) -> Task<Result<CheckReport, Error>>;

    /// Moves on what it has on its way to flash, without its jobs: somebody waits for a flush, and one is on its way at a time.
    fn move_on(&self) {}

    /// Its jobs were wound down, and the log is durable: leaves what makes the next opening quick.
    fn close(self: Arc<Self>, io: Io) -> Task<Result<(), Error>>;
}

/// The engines of an open store, as its base knows them.
#[derive(Default)]
pub struct EngineList {
    engines: OnceLock<Vec<Weak<dyn Engine>>>,
}

impl EngineList {
    /// Once, when the store is opened.
    pub fn set(&self, engines: &[Arc<dyn Engine>]) {
        let set = self.engines.set(engines.iter().map(Arc::downgrade).collect());
        assert!(set.is_ok(), "engines are made once");
    }

    /// Those that are still there: what is gone has no writers any more.
    fn live(&self) -> Vec<Arc<dyn Engine>> {
        self.engines.get().into_iter().flatten().filter_map(Weak::upgrade).collect()
    }

    pub fn find(&self, kind: KeyspaceKind) -> Option<Arc<dyn Engine>> {
        self.live().into_iter().find(|engine| engine.kind() == kind)
    }

    /// Whether anything of a dropped keyspace is left in an engine.
    pub fn hold(&self, keyspace: KeyspaceId) -> bool {
        self.live().iter().any(|engine| engine.holds(keyspace))
    }

    /// [`Engine::has_room_for_keyspace`] of all of them.
    pub fn have_room_for_keyspace(&self) -> bool {
        self.live().iter().all(|engine| engine.has_room_for_keyspace())
    }

    pub fn keyspaces_changed(&self) {
        self.live().iter().for_each(|engine| engine.keyspaces_changed());
    }

    pub fn installed(&self, installer: &Installer) {
        self.live().iter().for_each(|engine| engine.installed(installer));
    }

    /// What the indexes of all engines but that of this kind take in memory.
    pub fn others_index_bytes(&self, kind: KeyspaceKind) -> u64 {
        self.live().iter().filter(|engine| engine.kind() != kind).map(|engine| engine.index_bytes()).sum()
    }

    /// What all engines keep of local memory as long as the store is open.
    pub fn local_bytes(&self) -> u64 {
        self.live().iter().map(|engine| engine.local_bytes()).sum()
    }

    /// Asks all engines but that of this kind to come to need no log record up to a stamp.
    pub fn checkpoint_others_through(&self, kind: KeyspaceKind, stamp: u64) {
        let engines = self.live();
        let needing = engines.iter().filter(|engine| engine.kind() != kind && engine.stamp_needed() <= stamp);
        needing.for_each(|engine| engine.checkpoint_through(stamp));
    }

    /// Whether an engine but that of this kind needs a log record up to a stamp.
    pub fn others_need(&self, kind: KeyspaceKind, stamp: u64) -> bool {
        self.live().iter().any(|engine| engine.kind() != kind && engine.stamp_needed() <= stamp)
    }

    /// [`LogClient::hold_writers`] of all of them at once.
    pub fn hold_writers(&self, change: &mut dyn FnMut() -> Option<u64>) {
        hold_writers_of(&self.live(), change);
    }
}

fn hold_writers_of(engines: &[Arc<dyn Engine>], change: &mut dyn FnMut() -> Option<u64>) -> Option<u64> {
    let Some((first, others)) = engines.split_first() else { return change() };
    let mut gone_on_to = None;
    first.hold_writers(&mut || {
        gone_on_to = hold_writers_of(others, change);
        gone_on_to
    });
    gone_on_to
}
