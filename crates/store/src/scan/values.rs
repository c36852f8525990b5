//! Values out of line, which pipelines over a layout came by: looked at where they lie, in pipelines of their own.

use std::collections::{BTreeMap, VecDeque};
use tapetum_base::engine::scan_layout::{LayoutError, ListLimits, ScanList};
use tapetum_drive::SourceRange;
use tapetum_kernels::scan::access::{PieceOfValue, ValueHome};
use tapetum_kernels::scan::result::{DeferredRecord, MissedKeys, StoppedRun};

/// Values that wait before they are looked at while others are still to come.
const GATHERED: usize = 1024;

type FoundHome = Option<(ValueHome, Vec<SourceRange>)>;

#[derive(Default)]
pub(super) struct ValueLists {
    waiting: VecDeque<DeferredRecord>,
    listed: BTreeMap<u64, Vec<DeferredRecord>>,
    id_next: u64,
}

impl ValueLists {
    pub fn add(&mut self, records: impl IntoIterator<Item = DeferredRecord>) {
        self.waiting.extend(records);
    }

    /// Whether enough values wait to be looked at before all others.
    pub fn has_many(&self) -> bool {
        self.waiting.len() >= GATHERED
    }

    /// The next list, of values that `home` finds; keys that it does not find are missed.
    pub fn next(
        &mut self,
        limits: &ListLimits,
        store: u64,
        keyspace: u16,
        missed: &mut Vec<MissedKeys>,
        home: impl Fn(&DeferredRecord) -> Result<FoundHome, LayoutError>,
    ) -> Result<Option<ScanList>, LayoutError> {
        let mut list = ScanList { id: self.id_next, ..ScanList::default() };
        let (mut records, mut read_bytes) = (Vec::new(), 0);
        while let Some(record) = self.waiting.front() {
            let Some((home, ranges)) = home(record)? else {
                missed.push(key_alone(&record.key));
                self.waiting.pop_front();
                continue;
            };
            let piece = PieceOfValue { store, keyspace, key: record.key.to_vec(), raw_bytes: record.raw_bytes, home };
            let before = list.pieces.len();
            piece.encode(&mut list.pieces);
            let has_room = list.ranges.len() + ranges.len() <= limits.ranges
                && list.pieces.len() <= limits.attachment_bytes
                && read_bytes < limits.read_bytes;
            if !has_room {
                list.pieces.truncate(before);
                break;
            }
            read_bytes += piece.bytes();
            list.ranges.extend(ranges);
            list.piece_count += 1;
            records.extend(self.waiting.pop_front());
        }
        if records.is_empty() {
            return Ok(None);
        }
        self.id_next += 1;
        self.listed.insert(list.id, records);
        Ok(Some(list))
    }

    /// As [`tapetum_base::engine::scan_layout::ScanLayout::again`].
    pub fn again(&mut self, id: u64, stopped: Option<&StoppedRun>) {
        let records = self.listed.remove(&id).unwrap_or_default();
        let done = stopped.map_or(0, |stopped| stopped.pieces as usize);
        records.into_iter().skip(done).rev().for_each(|record| self.waiting.push_front(record));
    }

    pub fn release(&mut self, id: u64) {
        self.listed.remove(&id);
    }
}

pub(super) fn key_alone(key: &[u8]) -> MissedKeys {
    MissedKeys { from: key.into(), to: Some([key, &[0]].concat().into()) }
}
