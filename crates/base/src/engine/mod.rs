//! An engine holds the keyspaces of one kind. It stands on the [`Base`](crate::base::Base) and knows no other engine.
//!
//! ```text
//! opening:  make ─► replay of each of its log records, in order ─► recover ─► jobs
//! open:     sessions · jobs of maintenance · a client of the log
//! closing:  jobs wound down ─► close
//! ```
//! 1. A record of the log belongs to the engine of its keyspace's kind; no other sees it.
//! 2. A store opens only with an engine for each kind of keyspace that it has, dropped ones included.
//! 3. The id of a dropped keyspace is given again only when no engine holds anything of it ([`BaseClient::holds`]).
//!
//! Threads: any. The store and its sessions hold engines, engines hold the base; the base knows them weakly.

pub mod check_report;
pub mod inspection;
pub mod job;
pub mod key_place;
pub mod scan_layout;

use crate::base::client::BaseClient;
use crate::engine::check_report::CheckReport;
use crate::engine::inspection::Inspection;
use crate::engine::job::Job;
use crate::engine::key_place::KeyPlace;
use crate::engine::scan_layout::ScanLayout;
use crate::error::Error;
use crate::installer::Installer;
use crate::keyspace::KeyspaceId;
use crate::keyspace::states::KeyspaceRef;
use crate::log::Place;
use crate::media::io::{Io, Task};
use crate::request::key_range::KeyRange;
use crate::session::engine_session::{EngineSession, EngineSlot};
use crate::stats::Stats;
use std::collections::BTreeMap;
use std::sync::Arc;
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

pub trait Engine: BaseClient {
    /// Takes a record of the log back, before the store is open. Records come in the order of their stamps.
    fn replay(&self, place: Place, record: &Record<'_>) -> Result<(), Error>;

    /// All was replayed: makes ready to serve, from what it left in the manifest (a root by `Base::set_root`, or as a client), which it may
    /// change. Gives the installer back. Nobody takes extents before every engine has claimed its own here.
    fn recover(self: Arc<Self>, io: Io, installer: Box<Installer>) -> Task<Result<Box<Installer>, Error>>;

    /// Its part of a session. Sessions hold that of hashed keyspaces by value, and never ask for it.
    fn open_session(self: Arc<Self>, slot: EngineSlot) -> Box<dyn EngineSession>;

    /// What it has to do again and again while the store is open.
    fn jobs(self: Arc<Self>, io: &Io) -> Vec<Box<dyn Job>>;

    /// Adds about how many items each of its open keyspaces has: none is missing, those may count whose room is still to be taken back.
    fn add_counts(&self, counts: &mut ItemCounts);

    /// How many items each of its open keyspaces has; it may read flash to know. Expired and deleted ones count until their room is taken back.
    fn count_items(self: Arc<Self>, _: Io) -> Task<Result<ItemCounts, Error>> {
        let mut counts = ItemCounts::new();
        self.add_counts(&mut counts);
        Box::pin(async { Ok(counts) })
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
