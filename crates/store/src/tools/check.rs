//! Checks. Of a store that nobody else uses: every checksum of every record and key-table page, and the invariants that tie them together. Of one
//! in use: the checksums, part by part.

use crate::api::store::Store;
use crate::hashed::HashedEngine;
use std::sync::Arc;
use tapetum_base::engine::check_report::{CheckPlace, CheckReport, MADE_ANEW};
use tapetum_base::error::Error;
use tapetum_base::media::geometry::SUPERBLOCK_BYTES;
use tapetum_base::media::io::Io;
use tapetum_base::media::superblock::Superblock;
use tapetum_drive::Purpose;

/// Checks an open store. Manifest and log were checked by opening it. In a store that was opened to read, the parts that the opening rebuilt are
/// named too: they are damaged on the drive.
pub fn check(store: &Store) -> Result<CheckReport, Error> {
    let engine = store.hashed();
    let queue = engine.drive.queue_pair(64).map_err(|error| Error::Io(error.to_string()))?;
    let io = Io::new(queue).of(Purpose::Check);
    let all = async {
        let mut report = CheckReport::default();
        check_superblocks(&io, &mut report).await?;
        check_manifest(engine, &mut report).await;
        for engine in store.engines() {
            report.add(engine.clone().check(io.clone()).await?);
        }
        Ok(report)
    };
    engine.run_beside_maintenance(&io, all)?
}

/// A check of a store that is in use: what is on flash is read, part by part, and its checksums looked at. What ties the parts together changes
/// meanwhile, and is for [`check`].
pub struct CheckInUse<'a> {
    store: &'a Store,
    io: Io,
    /// The engine whose turn it is, and where it goes on.
    engine: usize,
    place: CheckPlace,
    report: CheckReport,
}

impl<'a> CheckInUse<'a> {
    pub fn new(store: &'a Store) -> Result<CheckInUse<'a>, Error> {
        let queue = store.hashed().drive.queue_pair(64).map_err(|error| Error::Io(error.to_string()))?;
        let (io, place, report) = (Io::new(queue).of(Purpose::Check), CheckPlace::default(), CheckReport::default());
        Ok(CheckInUse { store, io, engine: 0, place, report })
    }

    /// Checks the next part: the records of a segment, some of its large values, or some nodes. Whether there is more.
    ///
    /// # Errors
    /// Damage is none: the report names it.
    pub fn step(&mut self) -> Result<bool, Error> {
        let Some(engine) = self.store.engines().get(self.engine) else { return Ok(false) };
        let task = Arc::clone(engine).check_part(self.io.clone(), std::mem::take(&mut self.place));
        let part = self.store.hashed().run_beside_maintenance(&self.io, task)??;
        self.report.add(part.report);
        match part.next {
            Some(next) => self.place = next,
            None => self.engine += 1,
        }
        Ok(true)
    }

    pub fn report(&self) -> &CheckReport {
        &self.report
    }
}

async fn check_superblocks(io: &Io, report: &mut CheckReport) -> Result<(), Error> {
    let both = 2 * SUPERBLOCK_BYTES as usize;
    let mut buffer = io.allocate(both).await?;
    io.read(0, &mut buffer, 0, both).await?;
    for (number, copy) in io.look(&buffer, 0..both).chunks_exact(SUPERBLOCK_BYTES as usize).enumerate() {
        if !Superblock::holds(copy) {
            report.problems.push(format!("copy {number} of the superblock, {MADE_ANEW}"));
        }
    }
    Ok(())
}

/// Damage of one copy of the manifest. Damage of both copies was seen when the store was opened.
async fn check_manifest(engine: &Arc<HashedEngine>, report: &mut CheckReport) {
    let installer = engine.take_installer().await;
    let summary = installer.manifest.summary();
    drop(installer);
    report.problems.extend(summary.copies_damaged().map(|copy| format!("{copy}, {MADE_ANEW}")));
}
