//! Loads a field of each record into a column.

use super::columns::{Column, ColumnData, Selection};
use super::{BatchMisfits, Machine, RowMisfit, Span, SpanSource};
use crate::scan::batch::Rows;
use crate::scan::fields::{Misfit, NumberPlace, RawField};
use crate::scan::format::{ByteOrder, Part};
use crate::scan::json_scanner::unescape;
use crate::scan::value::Scalar;

impl BatchMisfits {
    fn add(&mut self, misfit: RowMisfit) {
        self.count += 1;
        // Another field may have failed for a later record before.
        if self.first.is_none_or(|first| misfit.row < first.row) {
            self.first = Some(misfit);
        }
    }
}

/// A field that is in the same place of each record.
struct LoadOf<'a> {
    field: usize,
    part: Part,
    at: usize,
    rows: Rows<'a>,
}

impl LoadOf<'_> {
    #[inline(always)]
    fn each<T, const N: usize>(
        &self,
        there: &mut [bool],
        data: &mut [T],
        selection: &mut Selection,
        misfits: &mut BatchMisfits,
        read: impl Fn(&[u8; N]) -> T,
    ) {
        let LoadOf { field, part, at, rows } = *self;
        selection.retain(|row| {
            let bytes = match part {
                Part::Key => rows.key(row),
                Part::Value => rows.value(row),
            };
            match bytes.get(at..).and_then(|bytes| bytes.first_chunk()) {
                Some(bytes) => (there[row], data[row]) = (true, read(bytes)),
                None => {
                    misfits.add(RowMisfit { row, field, misfit: Misfit::Short });
                    return false;
                }
            }
            true
        });
    }
}

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
    pub(super) fn load(&mut self, field: usize, place: usize, rows: Rows<'_>) {
        match self.reader.number_place(field) {
            Some(number) => self.load_numbers(field, number, place, rows),
            None => self.load_any(field, place, rows),
        }
    }

    /// Loads whole numbers that are in the same place of each record.
    fn load_numbers(&mut self, field: usize, number: NumberPlace, place: usize, rows: Rows<'_>) {
        let NumberPlace { part, at, bytes, order, is_signed } = number;
        let of = LoadOf { field, part, at, rows };
        let Machine { columns, selection, misfits, .. } = self;
        let Column { there, data } = &mut columns[place];
        let is_little = order == ByteOrder::Little;
        match (data, bytes) {
            (ColumnData::Unsigned(data), 8) if is_little => {
                of.each(there, data, selection, misfits, |bytes| u64::from_le_bytes(*bytes));
            }
            (ColumnData::Unsigned(data), 8) => {
                of.each(there, data, selection, misfits, |bytes| u64::from_be_bytes(*bytes));
            }
            (ColumnData::Int(data), 8) if is_little => {
                of.each(there, data, selection, misfits, |bytes| i64::from_le_bytes(*bytes));
            }
            (ColumnData::Int(data), 4) if is_little && is_signed => {
                of.each(there, data, selection, misfits, |bytes| i32::from_le_bytes(*bytes).into());
            }
            (ColumnData::Int(data), 4) if is_little => {
                of.each(there, data, selection, misfits, |bytes| u32::from_le_bytes(*bytes).into());
            }
            (ColumnData::Int(data), 2) if is_little && !is_signed => {
                of.each(there, data, selection, misfits, |bytes| u16::from_le_bytes(*bytes).into());
            }
            _ => self.load_any(field, place, rows),
        }
    }

    fn load_any(&mut self, field: usize, place: usize, rows: Rows<'_>) {
        let Machine { reader, columns, selection, unescaped, misfits, .. } = self;
        let column = &mut columns[place];
        let (there, data) = (&mut column.there, &mut column.data);
        let base = rows.bytes().as_ptr().addr();
        let in_batch = |bytes: &[u8]| Span {
            source: SpanSource::Batch,
            // A part of the rows' bytes.
            at: (bytes.as_ptr().addr() - base) as u32,
            bytes: bytes.len() as u32,
        };
        selection.retain(|row| {
            let raw = match reader.read(field, rows.key(row), rows.value(row)) {
                Ok(raw) => raw,
                Err(misfit) => {
                    misfits.add(RowMisfit { row, field, misfit });
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scan::batch::RowBatch;
    use crate::scan::fields::FieldReader;
    use crate::scan::format::Format;
    use crate::scan::program::{Instruction, Program};

    #[test]
    fn numbers_in_place_are_those_that_the_reader_reads() {
        for kind in ["u8", "u16le", "u16be", "u32le", "u64le", "u64be", "i16le", "i32le", "i32be", "i64le", "i64be"] {
            let format = Format::parse(&format!("value: before u8, number {kind}")).unwrap();
            let types: Vec<_> = format.fields().iter().map(|field| field.kind.scalar_type()).collect();
            let program = Program::new(vec![Instruction::Field(1)], Vec::new(), &types).unwrap();
            let (mut machine, mut batch) = (Machine::new(&format, program), RowBatch::new());
            let value = |row: usize| [3, 0x81, 0x92, 0xa3, 0xb4, 0xc5, 0xd6, 0xe7, 0xf8, 9][..row % 11].to_vec();
            (0..40).for_each(|row| batch.push(b"key", &value(row)));
            let kept = machine.run(&batch).to_vec();
            let (mut misfits, reader) = (0, FieldReader::new(&format));
            for row in 0..40 {
                let value = value(row);
                let read = reader.read(1, b"key", &value);
                assert_eq!(kept.contains(&(row as u16)), read.is_ok(), "{kind} of {} bytes", value.len());
                let expected = match read {
                    Ok(Some(RawField::Int(number))) => Scalar::Int(number),
                    Ok(Some(RawField::Unsigned(number))) => Scalar::Unsigned(number),
                    Ok(other) => panic!("{other:?}"),
                    Err(misfit) => {
                        misfits += 1;
                        assert_eq!(misfit, Misfit::Short);
                        continue;
                    }
                };
                assert_eq!(machine.value(&batch, 0, row), Some(expected), "{kind}");
            }
            let first = RowMisfit { row: 0, field: 1, misfit: Misfit::Short };
            assert_eq!(machine.misfits(), BatchMisfits { count: misfits, first: Some(first) });
        }
    }
}
