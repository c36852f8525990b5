//! The log's records of a keyspace: records of batches, which recovery replays if no image has them.

use std::collections::BTreeMap;
use tapetum_kernels::record::Record;

/// The last log record of each key.
#[derive(Default)]
pub struct LogRecords<'r> {
    records: BTreeMap<&'r [u8], Record<'r>>,
}

impl<'r> LogRecords<'r> {
    /// Collects records, which come in the order of their stamps.
    pub fn of(records: impl IntoIterator<Item = Record<'r>>) -> LogRecords<'r> {
        LogRecords { records: records.into_iter().map(|record| (record.key, record)).collect() }
    }

    pub fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    /// The records in this range that an image with this stamp lacks: an image has all below its stamp.
    pub fn above(&self, stamp: u64, low: &[u8], high: Option<&[u8]>) -> impl Iterator<Item = &Record<'r>> {
        let from = self.records.range::<[u8], _>((std::ops::Bound::Included(low), std::ops::Bound::Unbounded));
        let of_tile = from.take_while(move |(key, _)| high.is_none_or(|high| **key < high));
        of_tile.map(|(_, record)| record).filter(move |record| record.header.stamp > stamp)
    }
}
