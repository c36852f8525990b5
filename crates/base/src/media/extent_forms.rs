//! What extents become in a set with redundancy: stripes where they are written once, copies where they are written in place. Elsewhere nothing.
//!
//! A run of copies takes more extents than it has addresses for: those *behind* it, which go when its first extent goes.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use tapetum_drive::Rows;
use tapetum_kernels::reference::Run;

#[derive(Default)]
pub struct ExtentForms {
    rows: Option<Arc<Rows>>,
    /// By the first extent of its run.
    behind: BTreeMap<u32, Range<u32>>,
}

impl ExtentForms {
    pub fn of(rows: Option<Arc<Rows>>) -> ExtentForms {
        ExtentForms { rows, behind: BTreeMap::new() }
    }

    /// The bytes of an extent that are written whole: see [`Rows::row_bytes`].
    pub fn row_bytes(&self) -> u64 {
        self.rows.as_ref().map_or(1, |rows| rows.row_bytes())
    }

    /// The extents that a run of `count` takes if it is written in place.
    pub fn run_extents(&self, count: u32) -> u32 {
        self.rows.as_ref().map_or(count, |rows| rows.run_extents(count))
    }

    pub fn take_stripe(&self, extent: u32) {
        if let Some(rows) = &self.rows {
            rows.take_stripe(extent);
        }
    }

    pub fn find_stripe(&self, extent: u32) {
        if let Some(rows) = &self.rows {
            rows.find_stripe(extent);
        }
    }

    /// A run, and those behind it, is taken or found.
    pub fn begin_copies(&mut self, run: Run) {
        let Some(rows) = &self.rows else { return };
        rows.begin_copies(run.first, run.count);
        let (end, all) = (run.first + run.count, rows.run_extents(run.count));
        if all > run.count {
            self.behind.insert(run.first, end..run.first + all);
        }
    }

    /// The extents behind the run that begins with this one, if one does.
    pub fn behind(&self, first: u32) -> Option<Range<u32>> {
        self.behind.get(&first).cloned()
    }

    /// This extent is freed; as [`ExtentForms::behind`].
    pub fn end(&mut self, extent: u32) -> Option<Range<u32>> {
        if let Some(rows) = &self.rows {
            rows.end_copies(extent);
        }
        self.behind.remove(&extent)
    }
}
