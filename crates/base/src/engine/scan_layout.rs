//! What a query at the drive knows of where records lie: lists of pieces, each for one pipeline.
//!
//! ```text
//! layout ─► list: pieces, what is read of them, later words on keys ─► pipeline ─┬─ frames ─────────────► released
//!   ▲                                                                            └─ no more room for them ─► the rest is listed
//!   └────────────────────────────────────────────────────────────────────────────┘
//! ```
//! 1. Lists together have each record once. What a piece misses comes back with the frames.
//! 2. What a list shows may be shown when the layout says so: when it is durable, where that is waited for.

use crate::error::Error;
use tapetum_drive::{ATTACHMENT_BYTES_MAX, LocalBuffer, QueuePair, SOURCE_RANGES_MAX, SourceRange};
use tapetum_kernels::scan::access::ValueHome;
use tapetum_kernels::scan::result::{DeferredRecord, MissedKeys, StoppedRun};

#[derive(Clone, Copy, Debug)]
pub struct ListLimits {
    pub ranges: usize,
    /// Bytes of pieces and of keys with a later word on them.
    pub attachment_bytes: usize,
    /// Bytes that are read. One piece may have more.
    pub read_bytes: u64,
}

impl ListLimits {
    /// With so many bytes of a query beside the pieces.
    pub fn beside(query_bytes: usize, read_bytes: u64) -> ListLimits {
        let attachment_bytes = ATTACHMENT_BYTES_MAX.saturating_sub(query_bytes);
        ListLimits { ranges: SOURCE_RANGES_MAX, attachment_bytes, read_bytes }
    }
}

/// What the next pipeline is to look at.
#[derive(Default)]
pub struct ScanList {
    /// The layout's name for it.
    pub id: u64,
    /// Encoded.
    pub pieces: Vec<u8>,
    pub piece_count: u32,
    pub ranges: Vec<SourceRange>,
    /// Keys that have a later record elsewhere.
    pub replaced: Vec<Vec<u8>>,
    /// Records up to this stamp were deleted together.
    pub deleted_through: u64,
    /// Milliseconds since 1970.
    pub now_ms: u64,
    /// Copies that ranges of local memory name.
    pub copies: Option<LocalBuffer>,
    /// Keys of which it is known already that they are not found this way.
    pub missed: Vec<MissedKeys>,
}

/// Why there is no list.
#[derive(Clone, PartialEq, Debug)]
pub enum LayoutError {
    Store(Error),
    /// One piece takes more than an attachment.
    TooManyReplaced,
    /// What it was to list is not held any more.
    TooOld,
    /// A run says that it stopped where there is no such place.
    Place,
}

impl From<Error> for LayoutError {
    fn from(error: Error) -> LayoutError {
        LayoutError::Store(error)
    }
}

/// What copies a cached page beside.
#[derive(Default)]
pub struct PageCopier {
    pub pair: Option<QueuePair>,
    /// Room for copies, if it is not lent.
    pub room: Option<LocalBuffer>,
}

pub trait ScanLayout: Send {
    /// The next list; `None`: nothing is left.
    fn next(&mut self, limits: &ListLimits) -> Result<Option<ScanList>, LayoutError>;

    /// Lists what was left of a list by a run that stopped; of one that gave nothing, all of it.
    fn again(&mut self, id: u64, stopped: Option<&StoppedRun>) -> Result<(), LayoutError>;

    /// Whether what a list shows may be shown by now.
    fn may_show(&mut self, _id: u64) -> Result<bool, LayoutError> {
        Ok(true)
    }

    /// An error if what it lists is not held any more: then what was read may be something else.
    fn check(&self) -> Result<(), LayoutError> {
        Ok(())
    }

    /// A list was looked at.
    fn release(&mut self, id: u64);

    /// What it copies pages with, if it copies any.
    fn copier(&mut self) -> Option<&mut PageCopier> {
        None
    }

    /// Where a value out of line lies; `None`: it may be somewhere else by now.
    fn value(&self, record: &DeferredRecord) -> Result<Option<(ValueHome, Vec<SourceRange>)>, LayoutError>;
}
