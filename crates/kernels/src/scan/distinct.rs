//! The distinct values of one type, for an aggregate that counts each once.
//!
//! ```text
//! state:  values u32 · value, one behind the other, in the order of their bytes
//! value:  length as a varint · bytes: bool 1; numbers, timestamps 8, little endian; string, bytes: as they are
//! ```
//! Two values are the same as in [`super::rows`]: NaN equals itself, and -0 equals 0.

use super::rows::{one_form, read_varint, write_varint};
use super::value::Scalar;
use super::wire::{ScanReader, WireError};
use std::collections::BTreeSet;

/// Bytes that a value takes beside its own: its place in the tree and its allocation. With them 16 MiB hold 400,000 numbers.
const VALUE_BYTES: usize = 32;

#[derive(Clone, PartialEq, Debug, Default)]
pub struct DistinctValues {
    values: BTreeSet<Box<[u8]>>,
}

impl DistinctValues {
    /// Returns how many bytes more the values take.
    #[inline]
    pub fn add(&mut self, value: Scalar<'_>) -> isize {
        match value {
            Scalar::Bool(value) => self.insert(&[u8::from(value)]),
            Scalar::Int(value) | Scalar::Timestamp(value) => self.insert(&value.to_le_bytes()),
            Scalar::Unsigned(value) => self.insert(&value.to_le_bytes()),
            Scalar::Float(value) => self.insert(&one_form(value).to_bits().to_le_bytes()),
            Scalar::Text(value) => self.insert(value.as_bytes()),
            Scalar::Bytes(value) => self.insert(value),
        }
    }

    fn insert(&mut self, value: &[u8]) -> isize {
        if self.values.contains(value) {
            return 0;
        }
        self.values.insert(value.into());
        (value.len() + VALUE_BYTES) as isize
    }

    /// Returns how many bytes more the values take.
    pub fn merge(&mut self, other: &DistinctValues) -> isize {
        other.values.iter().map(|value| self.insert(value)).sum()
    }

    pub fn count(&self) -> u64 {
        self.values.len() as u64
    }

    pub fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&(self.values.len() as u32).to_le_bytes());
        for value in &self.values {
            write_varint(value.len() as u64, out);
            out.extend_from_slice(value);
        }
    }

    pub fn decode(reader: &mut ScanReader<'_>) -> Result<DistinctValues, WireError> {
        let (count, mut values) = (reader.u32()?, DistinctValues::default());
        for _ in 0..count {
            let length = usize::try_from(read_varint(reader)?).map_err(|_| WireError::Malformed)?;
            let value = reader.take(length)?;
            if values.values.last().is_some_and(|last| **last >= *value) {
                return Err(WireError::Malformed);
            }
            values.values.insert(value.into());
        }
        Ok(values)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_values_are_one() {
        for (values, count) in [
            (&[Scalar::Float(0.0), Scalar::Float(-0.0), Scalar::Float(f64::NAN), Scalar::Float(-f64::NAN)][..], 2),
            (&[Scalar::Bool(true), Scalar::Bool(false), Scalar::Bool(true)], 2),
            (&[Scalar::Text(""), Scalar::Text("a"), Scalar::Text("")], 2),
            (&[Scalar::Int(-1), Scalar::Int(255), Scalar::Int(-1)], 2),
        ] {
            let mut distinct = DistinctValues::default();
            values.iter().for_each(|value| {
                distinct.add(*value);
            });
            assert_eq!(distinct.count(), count, "{values:?}");
        }
    }

    #[test]
    fn values_read_back_and_ascend() {
        let (mut values, mut bytes) = (DistinctValues::default(), Vec::new());
        let grown: isize = ["b", "long", "", "b"].map(|text| values.add(Scalar::Text(text))).into_iter().sum();
        assert_eq!(grown, 5 + 3 * VALUE_BYTES as isize);
        values.encode(&mut bytes);
        assert_eq!(bytes, b"\x03\0\0\0\0\x01b\x04long");
        assert_eq!(DistinctValues::decode(&mut ScanReader::new(&bytes)), Ok(values));
        for length in 0..bytes.len() {
            assert_eq!(DistinctValues::decode(&mut ScanReader::new(&bytes[..length])), Err(WireError::Short));
        }
        for twice in [b"\x02\0\0\0\x01b\x01b", b"\x02\0\0\0\x01b\x01a"] {
            assert_eq!(DistinctValues::decode(&mut ScanReader::new(twice)), Err(WireError::Malformed));
        }
    }
}
