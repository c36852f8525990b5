//! The first rows in the order of one of their values.
//!
//! ```text
//! partial:  rows u32 · row, one behind the other: the value as a row of one column · length u32 · the row's bytes
//! ```
//! 1. NULLs come last in either order. Rows with equal values are in the order of their bytes, so the result does not
//!    depend on how the records were divided.
//! 2. There are never more rows than the query wants, nor more bytes of them than the limit.

use super::groups::MergeError;
use super::rows::{read_row, write_row};
use super::value::{OwnedScalar, ScalarType};
use super::wire::{ScanReader, WireError};
use std::cmp::Ordering;
use std::collections::BinaryHeap;

pub const TOP_ROWS_MAX: usize = 1 << 16;
pub const TOP_BYTES_MAX: usize = 16 << 20;

/// Bytes of a row in a partial besides its own, about: the value in the order, and lengths.
const ROW_HEAD_BYTES: usize = 24;

/// The first rows take more bytes than the limit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TopTooLarge;

pub struct TopRows {
    of: ScalarType,
    is_descending: bool,
    rows_max: usize,
    /// The greatest row of the heap is the last one in the order.
    heap: BinaryHeap<TopRow>,
    bytes: usize,
}

struct TopRow {
    value: Option<OwnedScalar>,
    row: Box<[u8]>,
    is_descending: bool,
}

impl TopRow {
    fn bytes(&self) -> usize {
        self.row.len() + self.value.as_ref().map_or(0, OwnedScalar::heap_bytes)
    }
}

impl Ord for TopRow {
    fn cmp(&self, other: &TopRow) -> Ordering {
        let by_value = match (&self.value, &other.value) {
            (Some(a), Some(b)) => {
                let ordering = a.as_scalar().compare(b.as_scalar()).unwrap_or(Ordering::Equal);
                if self.is_descending { ordering.reverse() } else { ordering }
            }
            (a, b) => a.is_none().cmp(&b.is_none()),
        };
        by_value.then_with(|| self.row.cmp(&other.row))
    }
}

impl PartialOrd for TopRow {
    fn partial_cmp(&self, other: &TopRow) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for TopRow {
    fn eq(&self, other: &TopRow) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for TopRow {}

impl TopRows {
    /// # Panics
    /// When `rows_max` is more than [`TOP_ROWS_MAX`].
    pub fn new(of: ScalarType, is_descending: bool, rows_max: usize) -> TopRows {
        assert!(rows_max <= TOP_ROWS_MAX, "{rows_max} rows");
        TopRows { of, is_descending, rows_max, heap: BinaryHeap::new(), bytes: 0 }
    }

    /// Takes a row if it is one of the first so far.
    pub fn push(&mut self, value: Option<OwnedScalar>, row: &[u8]) -> Result<(), TopTooLarge> {
        let row = TopRow { value, row: row.into(), is_descending: self.is_descending };
        if self.heap.len() == self.rows_max {
            match self.heap.peek() {
                Some(last) if row < *last => {}
                _ => return Ok(()),
            }
            self.bytes -= self.heap.pop().map_or(0, |last| last.bytes());
        }
        self.bytes += row.bytes();
        self.heap.push(row);
        if self.bytes > TOP_BYTES_MAX { Err(TopTooLarge) } else { Ok(()) }
    }

    /// Bytes that [`TopRows::encode`] appends, about.
    pub fn bytes(&self) -> usize {
        self.bytes + self.heap.len() * ROW_HEAD_BYTES
    }

    pub fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&(self.heap.len() as u32).to_le_bytes());
        for TopRow { value, row, .. } in &self.heap {
            write_row(1, [value.as_ref().map(OwnedScalar::as_scalar)].into_iter(), out);
            out.extend_from_slice(&(row.len() as u32).to_le_bytes());
            out.extend_from_slice(row);
        }
    }

    /// Merges the first of other rows, each of which `check` must accept.
    pub fn merge(
        &mut self,
        partial: &[u8],
        mut check: impl FnMut(&[u8]) -> Result<(), WireError>,
    ) -> Result<(), MergeError> {
        let mut reader = ScanReader::new(partial);
        for _ in 0..reader.u32()? {
            let mut value = None;
            read_row(&[self.of], &mut reader, |read| value = read.map(|read| read.to_owned()))?;
            let length = reader.u32()? as usize;
            let row = reader.take(length)?;
            check(row)?;
            self.push(value, row).map_err(|TopTooLarge| MergeError::TooMany)?;
        }
        if reader.is_empty() { Ok(()) } else { Err(WireError::Malformed.into()) }
    }

    /// The rows, the first one first.
    pub fn into_rows(self) -> Vec<Box<[u8]>> {
        self.heap.into_sorted_vec().into_iter().map(|row| row.row).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn push(top: &mut TopRows, value: Option<i64>) {
        let row = value.unwrap_or(0).to_be_bytes();
        top.push(value.map(OwnedScalar::Int), &row).unwrap();
    }

    fn values(top: TopRows) -> Vec<i64> {
        top.into_rows().iter().map(|row| i64::from_be_bytes(row[..].try_into().unwrap())).collect()
    }

    #[test]
    fn the_first_rows_are_kept_and_nulls_come_last() {
        for (is_descending, expected) in [(false, [-3, 1, 4]), (true, [9, 7, 4])] {
            let mut top = TopRows::new(ScalarType::Int, is_descending, 3);
            [Some(4), None, Some(9), Some(1), Some(7), Some(-3)].into_iter().for_each(|value| push(&mut top, value));
            assert_eq!(values(top), expected);
        }
        let mut top = TopRows::new(ScalarType::Int, true, 3);
        [None, Some(4), None, None].into_iter().for_each(|value| push(&mut top, value));
        assert_eq!(values(top), [4, 0, 0]);
    }

    #[test]
    fn the_first_of_parts_merge_to_the_first_of_all() {
        let numbers = |from: i64| (from..200).step_by(2).map(|number| number * 37 % 199);
        let (mut left, mut right, mut whole) = (
            TopRows::new(ScalarType::Int, true, 5),
            TopRows::new(ScalarType::Int, true, 5),
            TopRows::new(ScalarType::Int, true, 5),
        );
        numbers(0).for_each(|number| push(&mut left, Some(number)));
        numbers(1).for_each(|number| push(&mut right, Some(number)));
        numbers(0).chain(numbers(1)).for_each(|number| push(&mut whole, Some(number)));
        let mut partial = Vec::new();
        right.encode(&mut partial);
        for length in 0..partial.len() {
            let cut = TopRows::new(ScalarType::Int, true, 5).merge(&partial[..length], |_| Ok(()));
            assert_eq!(cut, Err(MergeError::Wire(WireError::Short)), "{length} bytes");
        }
        left.merge(&partial, |_| Ok(())).unwrap();
        assert_eq!(values(left), values(whole));
    }

    #[test]
    fn the_bytes_of_rows_are_bounded() {
        let mut top = TopRows::new(ScalarType::Int, false, 10);
        let row = vec![0; TOP_BYTES_MAX / 4];
        for number in (0..4).rev() {
            top.push(Some(OwnedScalar::Int(number)), &row).unwrap();
        }
        assert_eq!(top.push(Some(OwnedScalar::Int(9)), b"x"), Err(TopTooLarge));
        let mut top = TopRows::new(ScalarType::Int, false, 0);
        assert_eq!(top.push(None, &row), Ok(()));
        assert!(top.into_rows().is_empty());
    }
}
