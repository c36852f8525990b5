//! The bugs that are planted to show that the simulator finds them: their names in `fail_point!` of the store and the drive, and a
//! description of each.

/// By name.
pub type Bug = &'static str;

/// Bugs of the store. Two are left out. `OrderedCloseEarly` (a group of slots is closed while images are written to it): no run has caught
/// it, because an image must be in flight during the edit of the manifest that closes its group, all slots of which must be in use then,
/// and it must be torn. `SkipLogGap` (recovery takes the log up to a hole in it): none of 401 runs caught it with a manifest that is kept
/// twice; a unit test plants it (`tools/repair/tests.rs` of the store).
pub const OF_STORE: &[(Bug, &str)] = &[
    ("FlushBeforeLog", "a write buffer is flushed while the log has not written all of it"),
    ("AcknowledgeEarly", "a write is acknowledged when its group is sent, not when it is durable"),
    ("SyncEarly", "a barrier is answered before what it covers is durable"),
    ("ReadUndurable", "a read returns what is not durable yet"),
    ("SkipSegmentFlush", "no flush between a segment and the manifest record that names it"),
    ("InstallEarly", "the manifest record goes out before the segment's last writes"),
    ("ReuseExtentEarly", "a collected segment's extents are free before the manifest record that drops it is durable"),
    ("TrimLogEarly", "a write buffer's zone is reused before the manifest record that trims it is durable"),
    ("ForgetOutput", "the manifest record of a flush that wrote several segments leaves out the last one"),
    ("SplitFrame", "what an install says, and the log's trim, are two frames of the manifest, the trim first"),
    (
        "ManifestOldListGone",
        "the old list of the manifest is written over before the new one is durable in the other area",
    ),
    ("ForgetDeath", "one death of an install is not written down"),
    ("ForgetTombstone", "a tombstone kills nothing"),
    ("SkipRecheck", "what died during a collection is alive in its output"),
    ("SkipGroupChecksum", "recovery believes a log group without its checksum"),
    ("SkipChain", "recovery follows the log without checking that groups belong together"),
    ("ForgetReplay", "recovery marks the log as flushed before it is"),
    ("SplitBatch", "a batch may end up in two log groups"),
    ("SkipPartition", "recovery forgets one partition of the index"),
    ("AppendBeforeLarge", "the record that names a large value is appended before the value is durable"),
    ("FreeLargeEarly", "a large value's extents are free before its record's death is durable"),
    ("FreeLargeUnderReader", "a large value's extents are free while a reader reads them"),
    ("DropLargeInCollection", "a collection does not hand the extents of large values on"),
    ("ForgetLargeInLog", "recovery does not claim the extents that a log record names"),
    ("StaleCheckpoint", "a checkpoint of the index is believed although frames follow it"),
    (
        "TrustCheckpoint",
        "a checkpoint of the index is not flushed before the manifest names it, and is believed without its checksums",
    ),
    ("TakeRoomEarly", "a resize takes extents over before the superblock that gives them is durable"),
    (
        "KeepPayloadBits",
        "a resize gives out segment numbers for which the index has no bits (and the highest first, which are seldom reached)",
    ),
    ("GrowWithoutNewest", "a partition that grows is built without the segment that is being installed"),
    ("GrowWithDead", "a partition that grows is built with records that are not valid any more"),
    ("EvictUndurably", "a segment that makes room is out of sight before the manifest record that drops it is written"),
    ("CollectionWithoutFloor", "whoever asks gets the extents that are kept for a collection"),
    ("FlushWithoutFloor", "whoever asks gets the extents that are kept for flushes"),
    ("EvictExtentsEarly", "its extents are free before that record is durable"),
    ("ForgetLargeDeath", "an install does not write down that records of large values died"),
    ("SameVersion", "all segments have the same version: pages of an older one pass for the newer one's"),
    (
        "DecideLate",
        "a conditional write, or a lease, is decided on what was read from flash though it was written over meanwhile",
    ),
    ("MissUnreadable", "what cannot be read counts as missing"),
    ("TrustLarge", "a large value is returned whatever its checksum says"),
    ("RetryFlush", "a flush before an install that failed is tried again, and what then succeeds is believed"),
    ("TrustShortLog", "recovery takes a log that lost what was there when the store was last opened"),
    ("TrustCachedLog", "recovery takes log groups that a failed flush left in the drive's cache for durable"),
    ("OpenOverFailure", "a store opens although what it shows could not be made durable"),
    ("AcknowledgeFull", "a write of the log that found no space is acknowledged"),
    ("TierOutlivesWrite", "the DRAM tier keeps what was written over"),
    ("TierOutlivesEviction", "the DRAM tier keeps what was evicted from flash"),
    ("TierFillsLate", "the DRAM tier takes what was read from flash though it was written over meanwhile"),
    ("TierKeepsFlushed", "the DRAM tier takes what a flush moved though it was written over meanwhile"),
    (
        "TierKeepsGiven",
        "the DRAM tier keeps what a flush gave it though it is written over before the buffer is released",
    ),
    ("TierWarmsLate", "warming puts into the DRAM tier what it read from flash though it was written over meanwhile"),
    ("TierForgetsDeletion", "the DRAM tier gives what a deletion of everything took, or what expired"),
    ("TierForgetsMarks", "the DRAM tier takes a leased or stale item from flash for one that is neither"),
    ("TierJumpsTheQueue", "a get is answered at once before what the session was given earlier"),
    ("PutJumpsTheQueue", "a put is done at once before what the session was given earlier"),
    ("DropUndurably", "a keyspace is dropped before the manifest record that says so is durable"),
    ("ForgetUnpurged", "the id of a dropped keyspace is free before its records are dead"),
    ("BlockTornGroup", "a flush makes a group of a block device of the blocks in its buffer alone"),
    ("BlockLostHole", "a flush leaves in a group what was trimmed of it"),
    (
        "OrderedReuseSlotEarly",
        "a slot of an ordered keyspace is free although something that is not durable yet replaces what it holds",
    ),
    ("OrderedSkipGroup", "recovery of an ordered keyspace forgets some of its groups"),
    (
        "OrderedTrustCachedImage",
        "recovery of an ordered keyspace takes images that may be in nothing but the drive's cache for durable",
    ),
    (
        "OrderedForgetOlder",
        "recovery of an ordered keyspace writes over images that newer ones replace which may be in nothing but the drive's cache",
    ),
    ("OrderedImageBeforeLog", "an image with a change of a batch is written before the log has the batch durable"),
    ("OrderedTrimBatch", "the log is trimmed although pages lack images with a batch's changes"),
    ("OrderedForgetBatch", "recovery makes no record of the log again"),
    (
        "OrderedStaleCheckpoint",
        "a checkpoint of anchors is believed by later openings than the one that ends its generation",
    ),
    ("OrderedAcknowledgeEarly", "a change of a node is acknowledged when its image is written, without a flush"),
    ("OrderedNameEarly", "the record that names an extension is written before the extension is durable"),
    (
        "OrderedMergeForgets",
        "the slot of a node that was merged into its neighbour is free before the merged image is durable",
    ),
    ("OrderedSplitForgets", "a split leaves a record out of both halves"),
    ("OrderedMergeDrops", "a merged node lacks a record"),
    ("OrderedPurgeLive", "a purge of dead records takes a live one along"),
    ("OrderedPutForgets", "of several changes of a node by one command the last is not made"),
    ("OrderedMergeByDeadUnit", "a merged page is believed though its unit died"),
    (
        "OrderedFreeExtensionEarly",
        "the slot of a replaced extension is free before the image that ceases to name it is durable",
    ),
    ("OrderedKeepStamp", "recovery writes images again under the stamps that they had"),
    ("OrderedScanExpired", "a scan shows what expired"),
    ("OrderedScanSkips", "a scan goes on behind the first key of the next node"),
    ("OrderedScanUndurable", "a scan shows what is not durable yet"),
    ("QueryUndurable", "a query at the drive shows changes of cached nodes that are not durable yet"),
    ("QueryForgetMissed", "a query at the drive leaves out keys that were not where they were said to be"),
    (
        "QueryForgetReplaced",
        "a query at the drive shows records of hashed keyspaces on which a write buffer has a later word",
    ),
    ("FreezeWithoutSlots", "a freeze does not hold the slots of ordered keyspaces"),
    ("FreezeWithoutExtensions", "a freeze does not hold the slots of extensions"),
    ("FreezeForgetDeaths", "a freeze shows records of segments that were dead at its moment"),
    ("FreezeWithoutTail", "a freeze does not show the records of the write buffer that is being filled"),
    ("BackupNameEarly", "a backup is named before all that it consists of is in the depot"),
    ("BackupFileEarly", "a file of the depot is named before it is durable"),
    ("BackupNamesUnsynced", "a put ends before the name of its file is durable"),
    ("BackupTrustNumbers", "a backup takes over a segment of the same number as if it had the same version"),
];

/// Bugs of the device half.
pub const OF_DEVICE: &[(Bug, &str)] = &[
    ("LostCompletion", "the arbiter forgets that a task has ended"),
    ("SubBufferTwice", "a sub-buffer is given to two tasks"),
    ("NoReservation", "a pipeline is admitted without a reservation"),
    ("StarvedApplication", "one application is always served first"),
    ("NoQuarantine", "sub-buffers of a task that runs beyond its deadline are given to others"),
    ("DeadUnitsCount", "units that died go on being counted"),
    ("CancelFreesRunning", "sub-buffers of a task that runs are given to others when its pipeline is given up"),
    ("LeaseInFlight", "a buffer is given back while a command is in flight that had it"),
    ("LostKick", "a drive in another process that sleeps is not woken for a command"),
    ("SinkNotDurable", "what is to be on flash for good when its pipeline has ended is written as if it was not"),
];

/// Bugs of the lease of a depot, and of generations.
pub const OF_LEASE: &[(Bug, &str)] = &[
    ("LeaseBelievedTwice", "whoever puts a number of a lease believes in it, though a higher number is there"),
    ("LeaseTakenUnseen", "a lease is taken that was not seen unchanged for longer than it lasts"),
    ("BackupBelieveOlder", "a backup of an older generation is believed that came after a later one had begun"),
];

/// Runs `work`, with a bug planted if one is named.
pub fn with_bug<T>(bug: Option<Bug>, work: impl FnOnce() -> T) -> T {
    // SAFETY: the simulator's drives have no threads, and its flash moves bytes only in `poll`.
    unsafe { tapetum_drive::planted::with(bug.unwrap_or_default(), work) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;
    use std::path::Path;

    fn gather(folder: &Path, names: &mut BTreeSet<String>) {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                gather(&path, names);
            } else if let Ok(text) = std::fs::read_to_string(&path) {
                let behind = text.split("fail_point!(").skip(1);
                names.extend(behind.filter_map(|rest| Some(rest.split_once(')')?.0.to_owned())));
            }
        }
    }

    #[test]
    fn every_bug_has_a_place_and_every_place_a_bug() {
        let mut places = BTreeSet::new();
        for package in ["base", "store", "drive"] {
            gather(&Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(package).join("src"), &mut places);
        }
        let bugs: BTreeSet<_> =
            OF_STORE.iter().chain(OF_DEVICE).chain(OF_LEASE).map(|(bug, _)| (*bug).to_owned()).collect();
        assert_eq!(bugs.len(), OF_STORE.len() + OF_DEVICE.len() + OF_LEASE.len());
        let unlisted: Vec<_> = places.difference(&bugs).collect();
        // Those have tests of their own, beside the code.
        let of_others = [
            "AbsenceNotDurable",
            "CopiesLeftUnequal",
            "CopyForgotten",
            "EndTwice",
            "EpochUnchecked",
            "FreeBeforeDrained",
            "OrderedCloseEarly",
            "ParityForgotten",
            "SkipLogGap",
        ];
        assert_eq!(unlisted, of_others);
        assert_eq!(bugs.difference(&places).next(), None);
    }
}
