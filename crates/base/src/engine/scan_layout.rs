//! The layout of records on the drive, for a query there: lists of pieces, one list for each pipeline.
//!
//! ```text
//! layout ─► list: pieces, what is read of them, later words on keys ─► pipeline ─┬─ frames ─────────────► released
//!   ▲                                                                            └─ no more room for them ─► the rest is listed
//!   └────────────────────────────────────────────────────────────────────────────┘
//! ```
//! 1. All lists together have each record once. Records that a piece misses come back with the frames.
//! 2. The records of a list may be shown once the layout allows it: when they are durable, at sync modes that wait for that.

use crate::error::Error;
use tapetum_drive::{ATTACHMENT_BYTES_MAX, LocalBuffer, QueuePair, SOURCE_RANGES_MAX, SourceRange};
use tapetum_kernels::scan::access::ValueHome;
use tapetum_kernels::scan::result::{DeferredRecord, MissedKeys, StoppedRun};

#[derive(Clone, Copy, Debug)]
pub struct ListLimits {
    pub ranges: usize,
    /// Bytes of pieces and of replaced keys.
    pub attachment_bytes: usize,
    /// Bytes that are read. A single piece may exceed them.
    pub read_bytes: u64,
}

impl ListLimits {
    /// The limits beside a query of `query_bytes` bytes in the attachment.
    pub fn beside(query_bytes: usize, read_bytes: u64) -> ListLimits {
        let attachment_bytes = ATTACHMENT_BYTES_MAX.saturating_sub(query_bytes);
        ListLimits { ranges: SOURCE_RANGES_MAX, attachment_bytes, read_bytes }
    }
}

/// The work of the next pipeline.
#[derive(Default)]
pub struct ScanList {
    /// The layout's id of the list.
    pub id: u64,
    /// The pieces, encoded.
    pub pieces: Vec<u8>,
    pub piece_count: u32,
    pub ranges: Vec<SourceRange>,
    /// Keys that have a later record elsewhere.
    pub replaced: Vec<Vec<u8>>,
    /// The watermark of the deletions of everything: records up to this stamp are deleted.
    pub deleted_through: u64,
    /// Milliseconds since 1970.
    pub now_ms: u64,
    /// The copies that ranges of local memory name.
    pub copies: Option<LocalBuffer>,
    /// Keys that this list is known not to find.
    pub missed: Vec<MissedKeys>,
}

/// The reason why there is no list.
#[derive(Clone, PartialEq, Debug)]
pub enum LayoutError {
    Store(Error),
    /// One piece has more replaced keys than an attachment can hold.
    TooManyReplaced,
    /// The data that it was to list is no longer held.
    TooOld,
    /// A run reported a stop at a place that does not exist.
    Place,
}

impl From<Error> for LayoutError {
    fn from(error: Error) -> LayoutError {
        LayoutError::Store(error)
    }
}

/// The queue pair and buffer that copy cached pages.
#[derive(Default)]
pub struct PageCopier {
    pub pair: Option<QueuePair>,
    /// The buffer for copies, unless it is lent.
    pub room: Option<LocalBuffer>,
}

pub trait ScanLayout: Send {
    /// The next list; `None`: nothing is left.
    fn next(&mut self, limits: &ListLimits) -> Result<Option<ScanList>, LayoutError>;

    /// Lists again the rest of a list whose run stopped; all of it if the run gave nothing.
    fn again(&mut self, id: u64, stopped: Option<&StoppedRun>) -> Result<(), LayoutError>;

    /// Whether the records of a list may be shown now.
    fn may_show(&mut self, _id: u64) -> Result<bool, LayoutError> {
        Ok(true)
    }

    /// An error if the listed data is no longer held. In that case the data that was read may belong to something else.
    fn check(&self) -> Result<(), LayoutError> {
        Ok(())
    }

    /// The list was worked through, and its data may be let go.
    fn release(&mut self, id: u64);

    /// The copier of pages, if this layout copies any.
    fn copier(&mut self) -> Option<&mut PageCopier> {
        None
    }

    /// The place of a value out of line; `None`: it may have moved.
    fn value(&self, record: &DeferredRecord) -> Result<Option<(ValueHome, Vec<SourceRange>)>, LayoutError>;
}
