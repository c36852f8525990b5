//! Seeds that once failed. `tapetum-sim --failed` runs them all, in every `make test`. A seed shows its old fault only while the simulator asks
//! for the same as it did then; a run costs a second.

use crate::{Load, Setup};

pub struct FailedRun {
    pub seed: u64,
    pub operations: u64,
    /// Copies in trouble after each crash.
    pub troubles: u64,
    pub load: Option<Load>,
    /// Whether it makes backups, and restores them.
    pub backups: bool,
    /// The fault that it showed.
    pub what: &'static str,
}

const fn with_faults(seed: u64, what: &'static str) -> FailedRun {
    FailedRun { seed, operations: 2000, troubles: 5, load: None, backups: false, what }
}

/// In the order in which they failed. The first six have the options of `make test`; those of their failures were not kept. A new one goes to
/// the end, with the options of its run.
pub const FAILED: &[FailedRun] = &[
    with_faults(300_000_097, "a collection's change behind a frame of the manifest whose write failed"),
    with_faults(199, "a deletion of everything missed a key that came back when damage took its eviction"),
    with_faults(20_407, "the last group of a damaged log judged by a state that the model does not keep"),
    with_faults(157, "a copy judged whose opening wrote over its last install"),
    with_faults(8, "a key missing while its item moved"),
    with_faults(738, "two readers of one key table took its version for another segment's"),
    FailedRun {
        seed: 454_514_831,
        operations: 600,
        troubles: 1,
        load: Some(Load::Ordered),
        backups: false,
        what: "a first node, changed while its first image was on its way, was taken for clean when it was to be split",
    },
    FailedRun {
        seed: 906_514_989,
        operations: 6000,
        troubles: 1,
        load: Some(Load::Brim),
        backups: false,
        what: "an ordered keyspace that was full stayed so when extents were free again, for nobody asked for slots",
    },
    FailedRun {
        seed: 4_842_134,
        operations: 6000,
        troubles: 1,
        load: Some(Load::Brim),
        backups: false,
        what: "a collection that a failure had stopped kept the local memory that reads wait for",
    },
    FailedRun {
        seed: 700_000_020,
        operations: 8000,
        troubles: 1,
        load: Some(Load::Brim),
        backups: false,
        what: "an extension of a dropped keyspace was still being written when its extents became a segment's",
    },
    FailedRun {
        seed: 827_041_300,
        operations: 600,
        troubles: 1,
        load: Some(Load::Ordered),
        backups: false,
        what: "a query of a hashed keyspace showed keys twice after a failure that had stopped an install between catalog and index",
    },
    FailedRun {
        seed: 1281,
        operations: 600,
        troubles: 1,
        load: Some(Load::Ordered),
        backups: false,
        what: "pages that freezes had copied to local memory left no room between them for the buffers of scans",
    },
    with_faults(
        48,
        "writers of an evicting store waited for large values that a freeze alone kept, until its time was over",
    ),
    FailedRun {
        seed: 3_942_452_117,
        operations: 4000,
        troubles: 1,
        load: Some(Load::Brim),
        backups: false,
        what: "no slot was kept back for recovery, as free extents that are no neighbours counted as groups",
    },
    FailedRun {
        seed: 2_165_093_439,
        operations: 4000,
        troubles: 0,
        load: None,
        backups: true,
        what: "a backup named a segment of a dropped keyspace, which its moment did not hold, and copied what was written over it",
    },
    FailedRun {
        seed: 2_613_093_878,
        operations: 600,
        troubles: 1,
        load: Some(Load::Ordered),
        backups: false,
        what: "a page that was changed while its image was on its way waited for another second",
    },
    FailedRun {
        seed: 3_821_570_085,
        operations: 4000,
        troubles: 1,
        load: Some(Load::Brim),
        backups: false,
        what: "an ordered keyspace whose free slots were all reserved asked for no extents, and a freeze kept them",
    },
];

impl FailedRun {
    pub fn setup(&self) -> Setup {
        Setup {
            operations_max: self.operations,
            troubles: self.troubles,
            load: self.load,
            backups: self.backups,
            // Its operations end it.
            ..Setup::new(self.seed, u32::MAX)
        }
    }
}
