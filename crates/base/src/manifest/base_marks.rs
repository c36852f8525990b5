//! The base's own state in the manifest: the trim of the log, the deletions of keyspaces' items, the last opening of the store, and its history.
//!
//! ```text
//!  item: edits, one behind the other, up to its end; so is a piece of a snapshot
//!   1 trim:     buffer next u64 · stamp max u64 · log crc u32
//!   2 deletion: keyspace u16 · watermark u64 · planned at u32
//!   3 drop:     keyspace u16
//!   4 opened:   generation u64 · stamp base u64 · stamp opened u64
//!   5 known:    stamp u64
//!   6 history:  id u64 · parent 16 bytes                    of a store that was restored
//! ```
//! The frame of any engine may contain such edits.

use super::client::{ManifestClient, Misfit, pieces};
use super::items::{ClientId, FrameItems};
use crate::keyspace::KeyspaceId;
use crate::keyspace::deletion_mark::{DeletionMark, DeletionMarks};
use crate::media::wire::{Reader, Short, Writer};

const TRIM: u8 = 1;
const DELETION: u8 = 2;
const DROP: u8 = 3;
const OPENED: u8 = 4;
const KNOWN: u8 = 5;
const HISTORY: u8 = 6;

pub const TRIM_BYTES: u64 = 1 + 20;
const DELETION_BYTES: u64 = 1 + 14;
const OPENED_BYTES: u64 = 1 + 24;
const KNOWN_BYTES: u64 = 1 + 8;
const HISTORY_BYTES: u64 = 1 + 24;

/// The trimmed part of the log.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct LogTrim {
    /// Log records of write buffers below this number are no longer needed.
    pub buffer_next: u64,
    /// No stamp above this one had been given when the log was trimmed.
    pub stamp_max: u64,
    /// The crc of the last log group that was trimmed, which the next group names. Without it, a group that a crash once cut off could pass for the
    /// first of its buffer.
    pub log_crc: u32,
}

/// An opening of the store.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Opening {
    /// How often the store was opened.
    pub generation: u64,
    /// Stamps from here on were not given before.
    pub stamp_base: u64,
    /// The last stamp that was durable then. A log that ends before it has lost its end.
    pub stamp_opened: u64,
}

/// Tells a store that was restored from the one that it was restored from, and from others restored from that: all give the same stamps and versions
/// to what they write from then on.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct History {
    /// A random number; 0: the store was made, and never restored.
    pub id: u64,
    /// The first bytes of the digest of the backup that it began from.
    pub parent: [u8; 16],
}

#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct BaseMarks {
    pub trim: LogTrim,
    pub deletions: DeletionMarks,
    pub opening: Opening,
    /// This stamp was durable when the store was last closed, or when the manifest dropped the deletion mark of a dropped keyspace.
    pub stamp_known: u64,
    pub history: History,
}

/// A change of the marks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MarksEdit {
    Trim(LogTrim),
    Delete(KeyspaceId, DeletionMark),
    /// Removes the mark of a keyspace that was dropped.
    Drop(KeyspaceId),
    Open(Opening),
    /// Records that this stamp was durable once.
    Know(u64),
    Descend(History),
}

impl MarksEdit {
    pub fn encode(&self, writer: &mut Writer) {
        match self {
            MarksEdit::Trim(LogTrim { buffer_next, stamp_max, log_crc }) => {
                writer.u8(TRIM);
                writer.u64(*buffer_next);
                writer.u64(*stamp_max);
                writer.u32(*log_crc);
            }
            MarksEdit::Delete(keyspace, DeletionMark { watermark, planned_at }) => {
                writer.u8(DELETION);
                writer.u16(keyspace.0);
                writer.u64(*watermark);
                writer.u32(*planned_at);
            }
            MarksEdit::Drop(keyspace) => {
                writer.u8(DROP);
                writer.u16(keyspace.0);
            }
            MarksEdit::Open(Opening { generation, stamp_base, stamp_opened }) => {
                writer.u8(OPENED);
                [generation, stamp_base, stamp_opened].into_iter().for_each(|number| writer.u64(*number));
            }
            MarksEdit::Know(stamp) => {
                writer.u8(KNOWN);
                writer.u64(*stamp);
            }
            MarksEdit::Descend(History { id, parent }) => {
                writer.u8(HISTORY);
                writer.u64(*id);
                writer.raw(parent);
            }
        }
    }

    pub fn parse(reader: &mut Reader<'_>) -> Result<MarksEdit, Short> {
        let [edit] = reader.array()?;
        Ok(match edit {
            TRIM => {
                let (buffer_next, stamp_max) = (reader.u64()?, reader.u64()?);
                MarksEdit::Trim(LogTrim { buffer_next, stamp_max, log_crc: reader.u32()? })
            }
            DELETION => {
                let (keyspace, watermark) = (KeyspaceId(reader.u16()?), reader.u64()?);
                MarksEdit::Delete(keyspace, DeletionMark { watermark, planned_at: reader.u32()? })
            }
            DROP => MarksEdit::Drop(KeyspaceId(reader.u16()?)),
            OPENED => {
                let (generation, stamp_base) = (reader.u64()?, reader.u64()?);
                MarksEdit::Open(Opening { generation, stamp_base, stamp_opened: reader.u64()? })
            }
            KNOWN => MarksEdit::Know(reader.u64()?),
            HISTORY => {
                let id = reader.u64()?;
                MarksEdit::Descend(History { id, parent: reader.array()? })
            }
            _ => return Err(Short),
        })
    }

    /// Adds edits to a frame as one item, if there are any.
    pub fn put(edits: &[MarksEdit], items: &mut FrameItems) {
        if !edits.is_empty() {
            items.put(ClientId::MARKS, |writer| edits.iter().for_each(|edit| edit.encode(writer)));
        }
    }
}

/// Bytes in a frame of the edits that set `marks` deletion marks.
pub fn deletions_bytes(marks: usize) -> u64 {
    marks as u64 * DELETION_BYTES
}

impl BaseMarks {
    /// The last stamp of a deletion. An install first makes the log durable up to it.
    pub fn stamp_deleted(&self) -> u64 {
        self.deletions.values().map(|mark| mark.watermark).fold(self.stamp_known, u64::max)
    }

    /// The last stamp that the log is known to have had, as far as the manifest knows.
    pub fn stamp_durable(&self) -> u64 {
        self.opening.stamp_opened.max(self.stamp_deleted())
    }

    /// The last stamp whose loss an opening notices. The log need not have the stamps that a trim names.
    pub fn stamp_named(&self) -> u64 {
        self.stamp_durable().max(self.trim.stamp_max)
    }

    /// Lowers all stamps above `end`, where the log is to end there. Nothing that remains has such a stamp.
    pub fn end_log_at(&mut self, end: u64) {
        self.deletions.values_mut().for_each(|mark| mark.watermark = mark.watermark.min(end));
        self.stamp_known = self.stamp_known.min(end);
        self.opening.stamp_opened = end;
    }

    pub fn edit(&mut self, edit: &MarksEdit) {
        match *edit {
            MarksEdit::Trim(trim) => {
                let buffer_next = self.trim.buffer_next.max(trim.buffer_next);
                self.trim = LogTrim { buffer_next, ..trim };
            }
            MarksEdit::Delete(keyspace, mark) => {
                self.deletions.insert(keyspace, mark);
            }
            MarksEdit::Drop(keyspace) => {
                if let Some(mark) = self.deletions.remove(&keyspace) {
                    self.edit(&MarksEdit::Know(mark.watermark));
                }
            }
            MarksEdit::Open(opening) => self.opening = opening,
            MarksEdit::Know(stamp) => self.stamp_known = self.stamp_known.max(stamp),
            MarksEdit::Descend(history) => self.history = history,
        }
    }
}

fn parse_all(bytes: &[u8]) -> Result<Vec<MarksEdit>, Short> {
    let (mut reader, mut edits) = (Reader::new(bytes), Vec::new());
    while !reader.is_empty() {
        edits.push(MarksEdit::parse(&mut reader)?);
    }
    Ok(edits)
}

impl ManifestClient for BaseMarks {
    fn id(&self) -> ClientId {
        ClientId::MARKS
    }

    /// Edits that create the state from an empty one.
    fn snapshot(&self) -> Box<dyn Iterator<Item = Vec<u8>> + Send + '_> {
        let deletions = self.deletions.iter().map(|(keyspace, mark)| MarksEdit::Delete(*keyspace, *mark));
        let whole = [MarksEdit::Trim(self.trim), MarksEdit::Open(self.opening), MarksEdit::Know(self.stamp_known)];
        let history = (self.history.id != 0).then_some(MarksEdit::Descend(self.history));
        pieces(whole.into_iter().chain(history).chain(deletions), |edit, writer| edit.encode(writer))
    }

    fn snapshot_bytes_max(&self) -> u64 {
        let history = if self.history.id == 0 { 0 } else { HISTORY_BYTES };
        TRIM_BYTES + OPENED_BYTES + KNOWN_BYTES + history + deletions_bytes(self.deletions.len())
    }

    fn apply(&mut self, edit: &[u8]) -> Result<(), Misfit> {
        parse_all(edit)?.iter().for_each(|edit| self.edit(edit));
        Ok(())
    }

    /// Keeps the highest numbers, so that no generation and no stamp is given twice.
    fn glean(&mut self, edit: &[u8]) {
        for edit in parse_all(edit).unwrap_or_default() {
            if let MarksEdit::Open(Opening { generation, stamp_base, stamp_opened }) = edit {
                let known = &mut self.opening;
                known.generation = known.generation.max(generation);
                known.stamp_base = known.stamp_base.max(stamp_base);
                known.stamp_opened = known.stamp_opened.max(stamp_opened);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filled() -> BaseMarks {
        let trim = LogTrim { buffer_next: 3, stamp_max: 5, log_crc: 7 };
        let mark = DeletionMark { watermark: 11, planned_at: 13 };
        let opening = Opening { generation: 2, stamp_base: 17, stamp_opened: 4 };
        let later = DeletionMark { watermark: 12, ..mark };
        let deletions = [(KeyspaceId(300), mark), (KeyspaceId(1), later)].into();
        let history = History { id: 1 << 50, parent: [7; 16] };
        BaseMarks { trim, deletions, opening, stamp_known: 6, history }
    }

    #[test]
    fn marks_are_what_their_snapshot_says_and_as_long_as_is_counted_with() {
        let marks = filled();
        let pieces: Vec<_> = marks.snapshot().collect();
        let mut loaded = BaseMarks::default();
        pieces.iter().for_each(|piece| loaded.load(piece).unwrap());
        assert_eq!(loaded, marks);
        assert_eq!(pieces.iter().map(|piece| piece.len() as u64).sum::<u64>(), marks.snapshot_bytes_max());
        let [piece] = &pieces[..] else { panic!("{} pieces", pieces.len()) };
        assert!(BaseMarks::default().apply(&piece[..piece.len() - 1]).is_err());
        assert!(BaseMarks::default().apply(&[9, 0, 0]).is_err());
    }

    #[test]
    fn what_was_deleted_of_a_dropped_keyspace_leaves_its_stamp() {
        let mut marks = filled();
        marks.edit(&MarksEdit::Drop(KeyspaceId(9)));
        assert_eq!(marks, filled());
        marks.edit(&MarksEdit::Drop(KeyspaceId(1)));
        assert_eq!((marks.stamp_known, marks.deletions.len()), (12, 1));
        assert_eq!((marks.trim, marks.stamp_deleted()), (filled().trim, filled().stamp_deleted()));
    }

    #[test]
    fn where_the_log_is_made_to_end_nothing_is_said_of_later_stamps() {
        let mut marks = filled();
        marks.end_log_at(11);
        assert_eq!((marks.stamp_deleted(), marks.opening.stamp_opened), (11, 11));
        assert_eq!(marks.deletions.values().map(|mark| mark.planned_at).collect::<Vec<_>>(), [13, 13]);
        marks.end_log_at(5);
        assert_eq!((marks.stamp_deleted(), marks.stamp_known, marks.opening.stamp_opened), (5, 5, 5));
    }

    #[test]
    fn a_trim_goes_forward_and_an_opening_that_was_gleaned_goes_back_nowhere() {
        let mut marks = filled();
        marks.edit(&MarksEdit::Trim(LogTrim { buffer_next: 1, stamp_max: 6, log_crc: 8 }));
        assert_eq!(marks.trim, LogTrim { buffer_next: 3, stamp_max: 6, log_crc: 8 });
        let mut writer = Writer::default();
        MarksEdit::Open(Opening { generation: 1, stamp_base: 20, stamp_opened: 3 }).encode(&mut writer);
        marks.glean(&writer);
        assert_eq!(marks.opening, Opening { generation: 2, stamp_base: 20, stamp_opened: 4 });
    }
}
