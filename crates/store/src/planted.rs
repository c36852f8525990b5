//! Bugs that can be planted, to show that the simulator sees them. Compiled in only with the feature `planted-bugs`,
//! which nothing but the simulator enables; without it [`Planted::has`] is a constant.

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Bug {
    /// A write is acknowledged when its group is sent, not when it is durable.
    AcknowledgeEarly,
    /// A barrier is answered before what it covers is durable.
    SyncEarly,
    /// A read returns what is not durable yet.
    ReadUndurable,
    /// No flush between a segment and the manifest record that names it.
    SkipSegmentFlush,
    /// The manifest record goes out before the segment's last writes.
    InstallEarly,
    /// A collected segment's extents are free before the manifest record that drops it is durable.
    ReuseExtentEarly,
    /// A write buffer is flushed while the log has not written all of it.
    FlushBeforeLog,
    /// A write buffer's zone is reused before the manifest record that trims it is durable.
    TrimLogEarly,
    /// What an install says, and the log's trim, are two frames of the manifest, the trim first.
    SplitFrame,
    /// One death of an install is not written down.
    ForgetDeath,
    /// A tombstone kills nothing.
    ForgetTombstone,
    /// What died during a collection is alive in its output.
    SkipRecheck,
    /// Recovery believes a log group without its checksum.
    SkipGroupChecksum,
    /// Recovery follows the log without checking that groups belong together.
    SkipChain,
    /// Recovery marks the log as flushed before it is.
    ForgetReplay,
    /// A batch may end up in two log groups.
    SplitBatch,
    /// A resize takes extents over before the superblock that gives them is durable.
    TakeRoomEarly,
    /// A resize gives out segment numbers for which the index has no bits (and the highest first, which are seldom reached).
    KeepPayloadBits,
    /// A partition that grows is built without the segment that is being installed.
    GrowWithoutNewest,
    /// A partition that grows is built with records that are not valid any more.
    GrowWithDead,
    /// A segment that makes room is out of sight before the manifest record that drops it is written.
    EvictUndurably,
    /// Its extents are free before that record is durable.
    EvictExtentsEarly,
    /// Recovery forgets one partition of the index.
    SkipPartition,
    /// The record that names a large value is appended before the value is durable.
    AppendBeforeLarge,
    /// A large value's extents are free before its record's death is durable.
    FreeLargeEarly,
    /// A large value's extents are free while a reader reads them.
    FreeLargeUnderReader,
    /// A collection does not hand the extents of large values on.
    DropLargeInCollection,
    /// Recovery does not claim the extents that a log record names.
    ForgetLargeInLog,
    /// A checkpoint of the index is believed although frames follow it.
    StaleCheckpoint,
    /// A checkpoint of the index is not flushed before the manifest names it, and is believed without its checksums.
    TrustCheckpoint,
    /// An install does not write down that records of large values died.
    ForgetLargeDeath,
    /// All segments have the same version: pages of an older one pass for the newer one's.
    SameVersion,
    /// A conditional write, or a lease, is decided on what was read from flash though it was written over meanwhile.
    DecideLate,
    /// What cannot be read counts as missing.
    MissUnreadable,
    /// A large value is returned whatever its checksum says.
    TrustLarge,
    /// A flush before an install that failed is tried again, and what then succeeds is believed.
    RetryFlush,
    /// Recovery takes the log up to a hole in it.
    SkipLogGap,
    /// Recovery takes a log that lost what was there when the store was last opened.
    TrustShortLog,
    /// Recovery takes log groups that a failed flush left in the drive's cache for durable.
    TrustCachedLog,
    /// A store opens although what it shows could not be made durable.
    OpenOverFailure,
    /// A write of the log that found no space is acknowledged.
    AcknowledgeFull,
    /// A store that has failed closes as if it had not.
    CloseOverFailure,
    /// The DRAM tier keeps what was written over.
    TierOutlivesWrite,
    /// The DRAM tier keeps what was evicted from flash.
    TierOutlivesEviction,
    /// The DRAM tier takes what was read from flash though it was written over meanwhile.
    TierFillsLate,
    /// The DRAM tier takes what a flush moved though it was written over meanwhile.
    TierKeepsFlushed,
    /// The DRAM tier keeps what a flush gave it though it is written over before the buffer is released.
    TierKeepsGiven,
    /// Warming puts into the DRAM tier what it read from flash though it was written over meanwhile.
    TierWarmsLate,
    /// The DRAM tier gives what a deletion of everything took, or what expired.
    TierForgetsDeletion,
    /// The DRAM tier takes a leased or stale item from flash for one that is neither.
    TierForgetsMarks,
    /// A get is answered at once before what the session was given earlier.
    TierJumpsTheQueue,
    /// A put is done at once before what the session was given earlier.
    PutJumpsTheQueue,
    /// A keyspace is dropped before the manifest record that says so is durable.
    DropUndurably,
    /// The id of a dropped keyspace is free before its records are dead.
    ForgetUnpurged,
    /// A flush makes a group of a block device of the blocks in its buffer alone.
    BlockTornGroup,
    /// A flush leaves in a group what was trimmed of it.
    BlockLostHole,
    /// A slot of an ordered keyspace is free although something that is not durable yet replaces what it holds.
    OrderedReuseSlotEarly,
    /// Recovery of an ordered keyspace forgets some of its groups.
    OrderedSkipGroup,
    /// Recovery of an ordered keyspace takes images that may be in nothing but the drive's cache for durable.
    OrderedTrustCachedImage,
    /// Recovery of an ordered keyspace writes over images that newer ones replace which may be in nothing but the drive's cache.
    OrderedForgetOlder,
    /// A group of slots is closed while images are written to it.
    OrderedCloseEarly,
    /// An image with a change of a batch is written before the log has the batch durable.
    OrderedImageBeforeLog,
    /// The log is trimmed although pages lack images with a batch's changes.
    OrderedTrimBatch,
    /// Recovery makes no record of the log again.
    OrderedForgetBatch,
    /// A checkpoint of anchors is believed by later openings than the one that ends its generation.
    OrderedStaleCheckpoint,
    /// A change of a node is acknowledged when its image is written, without a flush.
    OrderedAcknowledgeEarly,
    /// The record that names an extension is written before the extension is durable.
    OrderedNameEarly,
    /// The slot of a node that was merged into its neighbour is free before the merged image is durable.
    OrderedMergeForgets,
    /// The slot of a replaced extension is free before the image that ceases to name it is durable.
    OrderedFreeExtensionEarly,
    /// Recovery writes images again under the stamps that they had.
    OrderedKeepStamp,
    /// A scan shows what expired.
    OrderedScanExpired,
    /// A scan goes on behind the first key of the next node.
    OrderedScanSkips,
    /// A scan shows what is not durable yet.
    OrderedScanUndurable,
    /// A query at the drive shows changes of cached nodes that are not durable yet.
    QueryUndurable,
    /// A query at the drive leaves out keys that were not where they were said to be.
    QueryForgetMissed,
    /// A query at the drive shows records of hashed keyspaces on which a write buffer has a later word.
    QueryForgetReplaced,
}

/// Those that the simulator catches. It has not caught `OrderedCloseEarly`: an image has to be on its way over the edit of the manifest that closes its
/// group, all slots of which have to be in use by then, and to be torn.
pub const ALL: &[Bug] = &[
    // First those that take many runs to catch: the others are tried beside them.
    Bug::CloseOverFailure,
    Bug::FlushBeforeLog,
    Bug::AcknowledgeEarly,
    Bug::SyncEarly,
    Bug::ReadUndurable,
    Bug::SkipSegmentFlush,
    Bug::InstallEarly,
    Bug::ReuseExtentEarly,
    Bug::TrimLogEarly,
    Bug::SplitFrame,
    Bug::ForgetDeath,
    Bug::ForgetTombstone,
    Bug::SkipRecheck,
    Bug::SkipGroupChecksum,
    Bug::SkipChain,
    Bug::ForgetReplay,
    Bug::SplitBatch,
    Bug::SkipPartition,
    Bug::AppendBeforeLarge,
    Bug::FreeLargeEarly,
    Bug::FreeLargeUnderReader,
    Bug::DropLargeInCollection,
    Bug::ForgetLargeInLog,
    Bug::StaleCheckpoint,
    Bug::TrustCheckpoint,
    Bug::TakeRoomEarly,
    Bug::KeepPayloadBits,
    Bug::GrowWithoutNewest,
    Bug::GrowWithDead,
    Bug::EvictUndurably,
    Bug::EvictExtentsEarly,
    Bug::ForgetLargeDeath,
    Bug::SameVersion,
    Bug::DecideLate,
    Bug::MissUnreadable,
    Bug::TrustLarge,
    Bug::RetryFlush,
    Bug::SkipLogGap,
    Bug::TrustShortLog,
    Bug::TrustCachedLog,
    Bug::OpenOverFailure,
    Bug::AcknowledgeFull,
    Bug::TierOutlivesWrite,
    Bug::TierOutlivesEviction,
    Bug::TierFillsLate,
    Bug::TierKeepsFlushed,
    Bug::TierKeepsGiven,
    Bug::TierWarmsLate,
    Bug::TierForgetsDeletion,
    Bug::TierForgetsMarks,
    Bug::TierJumpsTheQueue,
    Bug::PutJumpsTheQueue,
    Bug::DropUndurably,
    Bug::ForgetUnpurged,
    Bug::BlockTornGroup,
    Bug::BlockLostHole,
    Bug::OrderedReuseSlotEarly,
    Bug::OrderedSkipGroup,
    Bug::OrderedTrustCachedImage,
    Bug::OrderedForgetOlder,
    Bug::OrderedImageBeforeLog,
    Bug::OrderedTrimBatch,
    Bug::OrderedForgetBatch,
    Bug::OrderedStaleCheckpoint,
    Bug::OrderedAcknowledgeEarly,
    Bug::OrderedNameEarly,
    Bug::OrderedMergeForgets,
    Bug::OrderedFreeExtensionEarly,
    Bug::OrderedKeepStamp,
    Bug::OrderedScanExpired,
    Bug::OrderedScanSkips,
    Bug::OrderedScanUndurable,
    Bug::QueryUndurable,
    Bug::QueryForgetMissed,
    Bug::QueryForgetReplaced,
];

#[derive(Clone, Copy, Default, Debug)]
pub struct Planted {
    #[cfg(feature = "planted-bugs")]
    bug: Option<Bug>,
}

impl Planted {
    #[cfg(feature = "planted-bugs")]
    pub fn bug(bug: Bug) -> Planted {
        Planted { bug: Some(bug) }
    }

    #[inline]
    #[cfg(feature = "planted-bugs")]
    pub fn has(self, bug: Bug) -> bool {
        self.bug == Some(bug)
    }

    #[inline]
    #[cfg(not(feature = "planted-bugs"))]
    pub fn has(self, _: Bug) -> bool {
        false
    }
}
