//! Opens a store with its engines. This is where base and engines meet: the base reads its own state, each engine reads its own, and nothing is
//! written before all of it holds.
//!
//! ```text
//! superblock ─► manifest ─► extents claimed ─► log ─► believed ─► fences ─► "opened" ─► base ─► engines ─► records replayed ─► recovered
//! ```

use crate::hashed::HashedEngine;
use crate::hashed::catalog::Catalog;
use crate::hashed::opening::FoundHashed;
use crate::hashed::opening::claims::claim_segments;
use crate::ordered::engine::OrderedEngine;
use crate::ordered::slabs::claims::claim_groups;
use crate::ordered::slabs::group_table::GroupTable;
use std::sync::{Arc, Mutex};
use tapetum_base::base::Base;
use tapetum_base::base::client::BaseClient;
use tapetum_base::engine::Engine;
use tapetum_base::error::Error;
use tapetum_base::installer::{Clients, EngineClient};
use tapetum_base::keyspace_kind::KeyspaceKind;
use tapetum_base::media::extents::Extents;
use tapetum_base::media::io::{Io, lock};
use tapetum_base::media::superblock::FoundSuperblock;
use tapetum_base::needs::DrivePrograms;
use tapetum_base::options::StoreOptions;
use tapetum_base::recover::{FoundBase, FoundLog, OpenedBase, read_superblock, refuse_other_kinds, replay_into};
use tapetum_drive::{Drive, OverlayFlash};

/// The states that the engines of a store keep in its manifest.
pub fn engine_clients() -> Vec<Box<dyn EngineClient>> {
    vec![Box::<Catalog>::default(), Box::<GroupTable>::default()]
}

/// The contents of an empty store's manifest.
pub fn empty_clients() -> Clients {
    Clients::empty(engine_clients)
}

pub struct OpenedEngines {
    pub base: Arc<Base>,
    pub hashed: Arc<HashedEngine>,
    pub ordered: Arc<OrderedEngine>,
    /// All of them, that of hashed keyspaces first.
    pub all: Arc<[Arc<dyn Engine>]>,
}

/// Opens the store on a drive.
pub async fn open(drive: &Drive, io: &Io, options: &StoreOptions) -> Result<OpenedEngines, Error> {
    let found = read_superblock(drive, io).await?;
    found.superblock.features.check_write()?;
    let mut found = FoundStore::read(drive, io, found).await?;
    make_copies_equal(drive)?;
    found.base.make_durable(&mut found.log, io).await?;
    found.into_engines(drive, io, options, None).await
}

/// In a set with redundancy: what was found counts, and is what the first copy of all that is there twice holds.
fn make_copies_equal(drive: &Drive) -> Result<(), Error> {
    let written = drive.flash().make_copies_equal().map_err(|error| Error::Io(error.to_string()))?;
    if written > 0 {
        tracing::info!("wrote {written} bytes of copies again, which a crash had left unequal");
    }
    Ok(())
}

/// Opens the store on the drive of an overlay, to read; the overlay takes what is rebuilt. Only an opening to write makes the recovered state
/// durable.
pub async fn open_read_only(
    drive: &Drive,
    io: &Io,
    options: &StoreOptions,
    overlay: OverlayFlash,
) -> Result<OpenedEngines, Error> {
    let found = read_superblock(drive, io).await?;
    let found = FoundStore::read(drive, io, found).await?;
    found.into_engines(drive, io, options, Some(overlay)).await
}

/// The state that base and hashed engine have read and verified.
struct FoundStore {
    base: FoundBase,
    log: FoundLog,
    hashed: FoundHashed,
    extents: Arc<Mutex<Extents>>,
}

impl FoundStore {
    /// Reads. Nothing is written but pages of fences that are damaged, after all the rest held.
    async fn read(drive: &Drive, io: &Io, found: FoundSuperblock) -> Result<FoundStore, Error> {
        let programs = DrivePrograms::find(io).await?;
        let mut base = FoundBase::read(drive, io, found, engine_clients).await?;
        refuse_other_kinds(&base.installer, &[KeyspaceKind::Hashed, KeyspaceKind::Ordered])?;
        claim_segments(&mut base.extents, &base.superblock, base.installer.of::<Catalog>())?;
        claim_groups(&mut base.extents, base.installer.of::<GroupTable>())?;
        let log = base.read_log(io).await?;
        let extents = Arc::new(Mutex::new(base.take_extents()));
        let mut hashed = FoundHashed::claim(programs, &mut base, &log, &extents)?;
        base.believe(&log)?;
        hashed.open_segments(drive, io, &mut base).await?;
        Ok(FoundStore { base, log, hashed, extents })
    }

    /// Brings all of it into memory.
    async fn into_engines(
        self,
        drive: &Drive,
        io: &Io,
        options: &StoreOptions,
        overlay: Option<OverlayFlash>,
    ) -> Result<OpenedEngines, Error> {
        let FoundStore { base, log, hashed, extents } = self;
        let told = hashed.tell(&base.superblock.geometry, options, extents);
        let OpenedBase { base, mut installer, records, mut watch } =
            base.into_base(log, drive, overlay, options, told)?;
        let (hashed, rest) = hashed.into_engine(&base, installer.marks.opening.generation)?;
        let ordered = OrderedEngine::new(&base);
        let all: Arc<[Arc<dyn Engine>]> = Arc::new([hashed.clone(), ordered.clone()]);
        base.engines.set(all.iter().map(|engine| engine.clone() as Arc<dyn BaseClient>));
        replay_into(&all, &base, &installer.keyspaces, records)?;
        watch.lap("write buffers");
        let catalog = std::mem::take(installer.of_mut::<Catalog>());
        *installer.of_mut::<Catalog>() = rest.take_in(&hashed, io, catalog).await?;
        watch.lap("index");
        let (keys, segments) = (hashed.index.entries(), installer.of::<Catalog>().segments.len());
        let in_log = hashed.buffers.entries();
        tracing::info!("found {keys} keys in {segments} segments, and {in_log} in the log: {watch}");
        for engine in all.iter() {
            installer = engine.clone().recover(io.clone(), installer).await?;
        }
        lock(&base.extents).end_recovery();
        base.give_installer(installer);
        Ok(OpenedEngines { base, hashed, ordered, all })
    }
}
