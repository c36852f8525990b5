//! Reads the binary forms of scans: formats, programs, queries, results. Nothing here panics, whatever the bytes are.

/// Why bytes were not read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WireError {
    /// They end too early.
    Short,
    /// A version that this code does not know.
    Version(u8),
    /// They do not hold together.
    Malformed,
}

/// A reader of bytes from front to back.
pub struct ScanReader<'a> {
    rest: &'a [u8],
}

impl<'a> ScanReader<'a> {
    pub fn new(bytes: &'a [u8]) -> ScanReader<'a> {
        ScanReader { rest: bytes }
    }

    pub fn rest(&self) -> &'a [u8] {
        self.rest
    }

    pub fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    pub fn take(&mut self, bytes: usize) -> Result<&'a [u8], WireError> {
        let (taken, rest) = self.rest.split_at_checked(bytes).ok_or(WireError::Short)?;
        self.rest = rest;
        Ok(taken)
    }

    pub fn array<const N: usize>(&mut self) -> Result<[u8; N], WireError> {
        let (taken, rest) = self.rest.split_first_chunk::<N>().ok_or(WireError::Short)?;
        self.rest = rest;
        Ok(*taken)
    }

    pub fn u8(&mut self) -> Result<u8, WireError> {
        self.array().map(|[byte]| byte)
    }

    pub fn u16(&mut self) -> Result<u16, WireError> {
        self.array().map(u16::from_le_bytes)
    }

    pub fn u32(&mut self) -> Result<u32, WireError> {
        self.array().map(u32::from_le_bytes)
    }

    pub fn u64(&mut self) -> Result<u64, WireError> {
        self.array().map(u64::from_le_bytes)
    }

    pub fn text(&mut self, bytes: usize) -> Result<&'a str, WireError> {
        std::str::from_utf8(self.take(bytes)?).map_err(|_| WireError::Malformed)
    }
}
