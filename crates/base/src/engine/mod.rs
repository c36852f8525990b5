//! An engine holds the keyspaces of one kind. It uses the [`Base`](crate::base::Base) and knows no other engine.
//!
//! ```text
//! opening:  make ─► replay of each of its log records, in order ─► recover ─► jobs
//! open:     sessions · jobs of maintenance · a client of the log
//! closing:  jobs wound down ─► close
//! ```
//! 1. A log record belongs to the engine of its keyspace's kind. No other engine sees it.
//! 2. A store opens only if there is an engine for each kind of keyspace in it, dropped keyspaces included.
//! 3. The id of a dropped keyspace is reused only when no engine holds anything of it ([`BaseClient::holds`]).
//!
//! Threads: any. The store and its sessions hold engines, and engines hold the base. The base holds engines only weakly.

pub mod check_report;
pub mod inspection;
pub mod job;
pub mod key_place;
pub mod scan_layout;

use crate::base::client::BaseClient;
use crate::engine::check_report::{CheckPart, CheckPlace, CheckReport};
use crate::engine::inspection::Inspection;
use crate::engine::job::Job;
use crate::engine::key_place::KeyPlace;
use crate::error::Error;
use crate::installer::Installer;
use crate::keyspace::KeyspaceId;
use crate::log::Place;
use crate::media::io::{Io, Task};
use crate::session::engine_session::{EngineSession, EngineSlot};
use crate::stats::Stats;
use std::collections::BTreeMap;
use std::sync::Arc;
use tapetum_kernels::record::Record;

/// Progress of the images of one keyspace: how many are durable, and how many of them an opening after a crash would miss if lost. For tests.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct ImageMarks {
    /// Images that have become durable since the store was opened, and the highest stamp of them.
    pub landed: u64,
    pub landed_stamp: u64,
    /// How many of the first of them the manifest attests; `None`: it attests none of any life.
    pub settled: Option<u64>,
    /// The highest stamp up to which a durable image attests others.
    pub told_stamp: u64,
}

impl ImageMarks {
    /// Whether everything that was durable at the `earlier` marks is attested.
    pub fn attest(&self, earlier: &ImageMarks) -> bool {
        self.settled.is_some_and(|settled| earlier.landed <= settled || earlier.landed_stamp <= self.told_stamp)
    }
}

pub type ItemCounts = BTreeMap<KeyspaceId, u64>;

pub trait Engine: BaseClient {
    /// Replays a log record, before the store is open. Records come in the order of their stamps.
    fn replay(&self, place: Place, record: &Record<'_>) -> Result<(), Error>;

    /// Makes the engine ready to serve, after all records were replayed. It starts from what it left in the manifest (a root by `Base::set_root`, or
    /// as a client), which it may change, and gives the installer back. Nobody allocates extents before every engine has claimed its own here.
    fn recover(self: Arc<Self>, io: Io, installer: Box<Installer>) -> Task<Result<Box<Installer>, Error>>;

    /// Opens its part of a session. Sessions hold the part of hashed keyspaces by value and never ask for it here.
    fn open_session(self: Arc<Self>, slot: EngineSlot) -> Result<Box<dyn EngineSession>, Error>;

    /// Its recurring work while the store is open.
    fn jobs(self: Arc<Self>, io: &Io) -> Vec<Box<dyn Job>>;

    /// Adds the approximate number of items of each open keyspace. It counts every item, and may also count dead ones whose room is not freed yet.
    fn add_counts(&self, counts: &mut ItemCounts);

    /// The number of items of each open keyspace; may read flash. Expired and deleted items count until their room is freed.
    fn count_items(self: Arc<Self>, _: Io) -> Task<Result<ItemCounts, Error>> {
        let mut counts = ItemCounts::new();
        self.add_counts(&mut counts);
        Box::pin(async { Ok(counts) })
    }

    fn add_stats(&self, stats: &mut Stats);

    /// Adds the facts about its data that the manifest does not have, for tools.
    fn inspect(&self, _: &mut Inspection) -> Result<(), Error> {
        Ok(())
    }

    /// Finds the place of a key, for tools.
    fn locate(self: Arc<Self>, io: Io, keyspace: KeyspaceId, key: Vec<u8>) -> Task<Result<KeyPlace, Error>>;

    /// The image marks of one of its keyspaces, if that is kept in images.
    fn image_marks(&self, _: KeyspaceId) -> Option<ImageMarks> {
        None
    }

    /// Reads all of its data on flash and checks it.
    fn check(self: Arc<Self>, io: Io) -> Task<Result<CheckReport, Error>>;

    /// Reads a part of its data on flash and checks what a checksum tells, while others read and write.
    fn check_part(self: Arc<Self>, io: Io, from: CheckPlace) -> Task<Result<CheckPart, Error>>;

    /// Advances its writes to flash without its jobs. Called when somebody waits for a flush, as only one flush runs at a time.
    fn move_on(&self) {}

    /// Called when its jobs were wound down and the log is durable. Leaves a checkpoint that makes the next opening quick.
    fn close(self: Arc<Self>, io: Io) -> Task<Result<(), Error>>;
}
