//! Figures that a store reports of itself. Each call looks at the store as it is, and may be made from any thread.

use crate::api::session::Application;
use crate::api::store::Store;
use crate::hashed::tier::SlabClass;
use crate::hashed::write_count::KeyspaceWrites;
use tapetum_base::engine::ItemCounts;
use tapetum_base::error::Error;
use tapetum_base::keyspace::KeyspaceId;
use tapetum_base::keyspace::catalogue::Keyspace;
use tapetum_base::keyspace_kind::KeyspaceKind;
use tapetum_base::media::io::Io;
use tapetum_base::stats::Stats;
use tapetum_drive::engine::{ApplicationSnapshot, StageSnapshot};
use tapetum_drive::{Identity, Purpose};

impl Store {
    pub fn stats(&self) -> Stats {
        if self.refuse_forked().is_err() {
            return Stats::default();
        }
        let mut stats = self.base().stats();
        self.engines().iter().for_each(|engine| engine.add_stats(&mut stats));
        self.freezes_list().add_stats(self.hashed(), &mut stats);
        stats
    }

    /// Each keyspace, by id, and about how many items it has; none of them is left out. Items that have expired, or were deleted with everything
    /// else, count until their room is reclaimed. Keys that only write buffers of a hashed keyspace have are estimated from 4,096 of them, if there
    /// are more. A single hashed keyspace has as many items as [`Stats::items`] says.
    pub fn keyspace_items(&self) -> Vec<(Keyspace, u64)> {
        let (base, mut counts) = (self.base(), ItemCounts::new());
        if self.refuse_forked().is_err() {
            return Vec::new();
        }
        self.engines().iter().for_each(|engine| engine.add_counts(&mut counts));
        let stamp_given = base.log.stamp_given();
        let with_items = |keyspace: Keyspace| {
            // Each item has a stamp of its own, above what is deleted of its keyspace.
            let most = stamp_given.saturating_sub(base.keyspaces.watermark(keyspace.id));
            let items = counts.get(&keyspace.id).copied().unwrap_or(0).min(most);
            (keyspace, items)
        };
        base.keyspaces.list().into_iter().map(with_items).collect()
    }

    /// Each keyspace, by id, and how many items it has: keys of write buffers are looked up on flash. Items that have expired, or were deleted with
    /// everything else, count until their room is reclaimed.
    ///
    /// # Errors
    /// When flash cannot be read.
    pub fn count_items(&self) -> Result<Vec<(Keyspace, u64)>, Error> {
        self.refuse_forked()?;
        let queue = self.drive().queue_pair(64).map_err(|error| Error::Io(error.to_string()))?;
        let io = Io::new(queue).of(Purpose::Scan);
        let all = async {
            let mut counts = ItemCounts::new();
            for engine in self.engines() {
                counts.append(&mut engine.clone().count_items(io.clone()).await?);
            }
            Ok::<_, Error>(counts)
        };
        let counts = self.hashed().run_beside_maintenance(&io, all)??;
        let with_items = |keyspace: Keyspace| {
            let items = counts.get(&keyspace.id).copied().unwrap_or(0);
            (keyspace, items)
        };
        Ok(self.base().keyspaces.list().into_iter().map(with_items).collect())
    }

    /// Bytes written to segments of each hashed keyspace since the store was opened.
    pub fn keyspace_writes(&self) -> Vec<(KeyspaceId, KeyspaceWrites)> {
        let keyspaces = self.keyspaces().into_iter();
        let hashed = keyspaces.filter(|keyspace| keyspace.kind == KeyspaceKind::Hashed);
        hashed.map(|Keyspace { id, .. }| (id, self.hashed().writes_of(id))).collect()
    }

    /// The classes of slots that the DRAM tier has, the smallest first; none without a tier.
    pub fn slabs(&self) -> Vec<SlabClass> {
        let engine = self.hashed();
        let tier = engine.tier.as_ref().filter(|_| self.refuse_forked().is_ok());
        tier.map_or_else(Vec::new, |tier| tier.slabs(engine.access_clock.seconds()))
    }

    /// The drive's identity, and the programs that it has.
    pub fn drive_identity(&self) -> Identity {
        self.drive().identity()
    }

    /// The work of the drive's units for each application, and its weight.
    pub fn applications(&self) -> Vec<ApplicationSnapshot> {
        self.drive().applications()
    }

    /// The application of a name, for pipelines that are to be counted as its own.
    ///
    /// # Errors
    /// [`Error::Options`] when the store was opened without it.
    pub fn application(&self, name: &str) -> Result<Application, Error> {
        self.refuse_forked()?;
        let known = self.applications();
        let place = known.iter().position(|application| application.name == name);
        let place = place.and_then(|place| u16::try_from(place).ok()).ok_or_else(|| {
            let names: Vec<&str> = known.iter().map(|application| &application.name[..]).collect();
            Error::Options(format!(
                "there is no application {name:?}: give it a weight when the store is opened; there are {}",
                names.join(", ")
            ))
        })?;
        Ok(Application(place))
    }

    /// The work of the drive's programs as stages of pipelines.
    pub fn stage_counters(&self) -> Vec<StageSnapshot> {
        self.drive().stage_counters()
    }
}
