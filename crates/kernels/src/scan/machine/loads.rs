//! Loads a field of each record into a column.

use super::columns::{Column, ColumnData};
use super::{Machine, RowMisfit, Span, SpanSource};
use crate::scan::batch::RowBatch;
use crate::scan::fields::RawField;
use crate::scan::json_scanner::unescape;
use crate::scan::value::Scalar;

impl Machine {
    /// A value of the only row.
    pub(super) fn load_value(&mut self, value: Option<Scalar<'_>>, place: usize) {
        let Machine { columns, unescaped, .. } = self;
        let Column { there, data } = &mut columns[place];
        there[0] = value.is_some();
        match (value, data) {
            (None, _) => {}
            (Some(Scalar::Bool(value)), ColumnData::Bool(data)) => data[0] = value,
            (Some(Scalar::Int(value) | Scalar::Timestamp(value)), ColumnData::Int(data)) => data[0] = value,
            (Some(Scalar::Unsigned(value)), ColumnData::Unsigned(data)) => data[0] = value,
            (Some(Scalar::Float(value)), ColumnData::Float(data)) => data[0] = value,
            (Some(value), ColumnData::Span(data)) => {
                let (at, bytes) = (unescaped.len() as u32, value.bytes().unwrap_or_default());
                unescaped.extend_from_slice(bytes);
                data[0] = Span { source: SpanSource::Unescaped, at, bytes: bytes.len() as u32 };
            }
            _ => unreachable!("a row has the types that the program was checked for"),
        }
    }

    /// Records that do not fit are looked at no more.
    pub(super) fn load(&mut self, field: usize, place: usize, batch: &RowBatch) {
        let Machine { reader, columns, selection, unescaped, misfits, .. } = self;
        let column = &mut columns[place];
        let (there, data) = (&mut column.there, &mut column.data);
        let base = batch.bytes().as_ptr().addr();
        let in_batch = |bytes: &[u8]| Span {
            source: SpanSource::Batch,
            // A part of the batch's own bytes.
            at: (bytes.as_ptr().addr() - base) as u32,
            bytes: bytes.len() as u32,
        };
        selection.retain(|row| {
            let raw = match reader.read(field, batch.key(row), batch.value(row)) {
                Ok(raw) => raw,
                Err(misfit) => {
                    misfits.count += 1;
                    // Another field may have failed for a later record before.
                    if misfits.first.is_none_or(|first| row < first.row) {
                        misfits.first = Some(RowMisfit { row, field, misfit });
                    }
                    return false;
                }
            };
            there[row] = raw.is_some();
            match (raw, &mut *data) {
                (None, _) => {}
                (Some(RawField::Bool(value)), ColumnData::Bool(data)) => data[row] = value,
                (Some(RawField::Int(value) | RawField::Timestamp(value)), ColumnData::Int(data)) => data[row] = value,
                (Some(RawField::Unsigned(value)), ColumnData::Unsigned(data)) => data[row] = value,
                (Some(RawField::Float(value)), ColumnData::Float(data)) => data[row] = value,
                (Some(RawField::Bytes(bytes) | RawField::Text(bytes)), ColumnData::Span(data)) => {
                    // An empty one may lie anywhere.
                    data[row] = if bytes.is_empty() { Span::default() } else { in_batch(bytes) };
                }
                (Some(RawField::Escaped(content)), ColumnData::Span(data)) => {
                    let at = unescaped.len();
                    let whole = unescape(content, |piece| {
                        unescaped.extend_from_slice(piece);
                        true
                    });
                    assert!(whole.is_ok(), "its escapes were checked when it was read");
                    let bytes = (unescaped.len() - at) as u32;
                    data[row] = Span { source: SpanSource::Unescaped, at: at as u32, bytes };
                }
                _ => unreachable!("a field has its format's type"),
            }
            true
        });
    }
}
