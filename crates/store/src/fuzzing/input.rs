//! An input taken apart: numbers and bytes from its front, zeros behind its end.

pub struct Input<'a> {
    rest: &'a [u8],
}

impl<'a> Input<'a> {
    pub fn new(bytes: &'a [u8]) -> Input<'a> {
        Input { rest: bytes }
    }

    pub fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    /// Up to `length` bytes.
    pub fn bytes(&mut self, length: usize) -> &'a [u8] {
        let (now, rest) = self.rest.split_at(length.min(self.rest.len()));
        self.rest = rest;
        now
    }

    pub fn rest(&mut self) -> &'a [u8] {
        std::mem::take(&mut self.rest)
    }

    pub fn array<const N: usize>(&mut self) -> [u8; N] {
        let mut array = [0; N];
        let bytes = self.bytes(N);
        array[..bytes.len()].copy_from_slice(bytes);
        array
    }

    pub fn u8(&mut self) -> u8 {
        self.array::<1>()[0]
    }

    pub fn u16(&mut self) -> u16 {
        u16::from_le_bytes(self.array())
    }

    pub fn u32(&mut self) -> u32 {
        u32::from_le_bytes(self.array())
    }

    pub fn u64(&mut self) -> u64 {
        u64::from_le_bytes(self.array())
    }

    pub fn u128(&mut self) -> u128 {
        u128::from_le_bytes(self.array())
    }

    /// A number below `end`, which is not 0.
    pub fn below(&mut self, end: usize) -> usize {
        let number = if end <= 256 { usize::from(self.u8()) } else { self.u32() as usize };
        number % end
    }

    /// A number of any length: most are short.
    pub fn number(&mut self) -> u32 {
        let shift = self.u8() % 32;
        self.u32() >> shift
    }
}
