//! Little-endian fields, written to and read from byte buffers; the reader checks every length.

use std::ops::Deref;
use tapetum_kernels::expiry::Expiry;
use tapetum_kernels::extent_address::ExtentAddress;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Short;

/// Appends fields. Reads as the bytes written so far.
#[derive(Default)]
pub struct Writer {
    bytes: Vec<u8>,
}

impl Deref for Writer {
    type Target = Vec<u8>;

    fn deref(&self) -> &Vec<u8> {
        &self.bytes
    }
}

impl Writer {
    pub fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }

    pub fn u8(&mut self, value: u8) {
        self.bytes.push(value);
    }

    pub fn raw(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    pub fn u16(&mut self, value: u16) {
        self.bytes.extend_from_slice(&value.to_le_bytes());
    }

    pub fn u32(&mut self, value: u32) {
        self.bytes.extend_from_slice(&value.to_le_bytes());
    }

    pub fn u64(&mut self, value: u64) {
        self.bytes.extend_from_slice(&value.to_le_bytes());
    }

    pub fn expiry(&mut self, value: Expiry) {
        self.bytes.extend_from_slice(&value.to_bytes());
    }

    pub fn varint(&mut self, mut value: u32) {
        while value >= 0x80 {
            self.bytes.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.bytes.push(value as u8);
    }

    pub fn list(&mut self, values: &[u32]) {
        self.u32(values.len() as u32);
        values.iter().for_each(|&value| self.u32(value));
    }

    /// The addresses of extents of the only member.
    pub fn extents(&mut self, numbers: &[u32]) {
        self.u32(numbers.len() as u32);
        numbers.iter().for_each(|&number| self.u32(ExtentAddress::new(0, number).word()));
    }

    /// Sets a field that was written before what it depends on was known.
    pub fn set_u32(&mut self, at: usize, value: u32) {
        self.bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
    }

    /// Appends zeros up to this length.
    pub fn pad(&mut self, length: usize) {
        self.bytes.resize(length, 0);
    }

    pub fn shrink(&mut self) {
        self.bytes.shrink_to_fit();
    }

    /// An ascending list, as differences.
    pub fn ascending(&mut self, values: &[u32]) {
        self.u32(values.len() as u32);
        let mut previous = 0;
        for &value in values {
            assert!(value >= previous);
            self.varint(value - previous);
            previous = value;
        }
    }
}

pub struct Reader<'a> {
    bytes: &'a [u8],
}

impl<'a> Reader<'a> {
    pub fn new(bytes: &'a [u8]) -> Reader<'a> {
        Reader { bytes }
    }

    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    pub fn take(&mut self, length: usize) -> Result<&'a [u8], Short> {
        if length > self.bytes.len() {
            return Err(Short);
        }
        let (now, rest) = self.bytes.split_at(length);
        self.bytes = rest;
        Ok(now)
    }

    pub fn array<const N: usize>(&mut self) -> Result<[u8; N], Short> {
        let mut array = [0; N];
        array.copy_from_slice(self.take(N)?);
        Ok(array)
    }

    pub fn u16(&mut self) -> Result<u16, Short> {
        Ok(u16::from_le_bytes(self.array()?))
    }

    pub fn u32(&mut self) -> Result<u32, Short> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    pub fn u64(&mut self) -> Result<u64, Short> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    pub fn expiry(&mut self) -> Result<Expiry, Short> {
        let mut word = [0; 8];
        word[..Expiry::BYTES].copy_from_slice(self.take(Expiry::BYTES)?);
        Ok(Expiry::from_flash(u64::from_le_bytes(word)))
    }

    pub fn varint(&mut self) -> Result<u32, Short> {
        let mut value = 0u32;
        for shift in [0, 7, 14, 21, 28] {
            let byte = self.array::<1>()?[0];
            value |= u32::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(Short)
    }

    /// A count of things of at least `each` bytes, so that nobody allocates for more than there can be.
    pub fn count(&mut self, each: usize) -> Result<usize, Short> {
        let count = self.u32()? as usize;
        if count > self.bytes.len() / each { Err(Short) } else { Ok(count) }
    }

    pub fn list(&mut self) -> Result<Vec<u32>, Short> {
        let count = self.count(4)?;
        (0..count).map(|_| self.u32()).collect()
    }

    /// Numbers of extents; one of a member that is not there makes no sense.
    pub fn extents(&mut self) -> Result<Vec<u32>, Short> {
        let count = self.count(4)?;
        let mut number = || ExtentAddress::from_word(self.u32()?).number_of_only_member().ok_or(Short);
        (0..count).map(|_| number()).collect()
    }

    pub fn ascending(&mut self) -> Result<Vec<u32>, Short> {
        let count = self.count(1)?;
        let mut previous = 0u32;
        let mut next = || {
            previous = previous.checked_add(self.varint()?).ok_or(Short)?;
            Ok(previous)
        };
        (0..count).map(|_| next()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_and_a_short_input_is_refused() {
        let mut writer = Writer::default();
        writer.u16(1);
        writer.u64(2);
        writer.list(&[7, 8]);
        writer.ascending(&[3, 3, 500, u32::MAX]);
        let read = |bytes: &[u8]| {
            let mut reader = Reader::new(bytes);
            Ok::<_, Short>((reader.u16()?, reader.u64()?, reader.list()?, reader.ascending()?))
        };
        assert_eq!(read(&writer), Ok((1, 2, vec![7, 8], vec![3, 3, 500, u32::MAX])));
        for length in 0..writer.len() {
            assert_eq!(read(&writer[..length]), Err(Short));
        }
    }

    #[test]
    fn an_extent_of_another_member_is_refused() {
        let mut writer = Writer::default();
        writer.extents(&[7, 8]);
        assert_eq!(Reader::new(&writer).extents(), Ok(vec![7, 8]));
        writer.set_u32(4, 7 | 1 << 28);
        assert_eq!(Reader::new(&writer).extents(), Err(Short));
    }

    #[test]
    fn a_count_of_more_than_there_can_be_is_refused() {
        let bytes = [2, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7];
        assert_eq!([1, 3, 4].map(|each| Reader::new(&bytes).count(each)), [Ok(2), Ok(2), Err(Short)]);
    }
}
