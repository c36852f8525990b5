//! A buffer in parts, each of which may be leased to a command of its own.

use super::{LocalBuffer, Written};
use crate::protocol::LocalRange;
use std::sync::Arc;

/// A buffer that is cut into parts, in order. Nobody can read or write the whole buffer until all parts are dropped.
#[derive(Debug)]
pub struct PartedBuffer {
    whole: Arc<LocalBuffer>,
    /// The end of the last part.
    reached: usize,
    /// What of it is yet to reach the drive: parts take theirs with them.
    written: Written,
}

impl PartedBuffer {
    pub fn new(buffer: LocalBuffer) -> PartedBuffer {
        let mut buffer = buffer;
        let written = std::mem::take(buffer.written());
        PartedBuffer { whole: Arc::new(buffer), reached: 0, written }
    }

    /// The next part: `length` bytes from byte `at` of the buffer on, behind all parts that were cut before.
    ///
    /// # Panics
    /// When it begins before the last part ends, or goes beyond the buffer.
    pub fn cut(&mut self, at: usize, length: usize) -> BufferPart {
        let whole = self.whole.range();
        let is_inside = at <= whole.length as usize && length <= whole.length as usize - at;
        assert!(
            self.reached <= at && is_inside,
            "a part at {at}+{length} of {whole:?}, of which {} are cut",
            self.reached
        );
        self.reached = at + length;
        let range = LocalRange { offset: whole.offset + at as u64, length: length as u32 };
        BufferPart { whole: self.whole.clone(), range, written: self.written.take_inside(range) }
    }

    /// Returns the buffer, or an error with all of this while parts of it exist.
    pub fn join(self) -> Result<LocalBuffer, PartedBuffer> {
        let (reached, written) = (self.reached, self.written);
        match Arc::try_unwrap(self.whole) {
            Ok(mut whole) => {
                *whole.written() = written;
                Ok(whole)
            }
            Err(whole) => Err(PartedBuffer { whole, reached, written }),
        }
    }

    /// Bytes of the whole buffer.
    pub fn len(&self) -> usize {
        self.whole.len()
    }

    pub fn is_empty(&self) -> bool {
        self.whole.is_empty()
    }
}

/// A part of a buffer, which overlaps no other one. The buffer is freed when its last part is, unless it is joined first.
#[derive(Debug)]
pub struct BufferPart {
    whole: Arc<LocalBuffer>,
    range: LocalRange,
    written: Written,
}

impl BufferPart {
    /// The part, as commands name it.
    pub fn range(&self) -> LocalRange {
        self.range
    }

    /// As [`LocalBuffer::written`].
    pub(crate) fn written(&mut self) -> &mut Written {
        &mut self.written
    }

    pub(crate) fn whole(&self) -> &LocalBuffer {
        &self.whole
    }
}

#[cfg(test)]
mod tests {
    use crate::memory::{BLOCK_BYTES, LocalMemory, PartedBuffer};

    #[test]
    fn a_buffer_is_whole_again_when_its_parts_are_gone() {
        let local = LocalMemory::new(2 * BLOCK_BYTES).unwrap();
        let mut parted = PartedBuffer::new(local.allocate(2 * BLOCK_BYTES).unwrap());
        let (first, second) = (parted.cut(0, 512), parted.cut(1024, 512));
        assert_eq!((first.range().offset, second.range().offset, second.range().length), (0, 1024, 512));
        drop(first);
        let parted = parted.join().unwrap_err();
        drop(second);
        assert_eq!(parted.join().unwrap().len(), 2 * BLOCK_BYTES);
        let mut parted = PartedBuffer::new(local.allocate(1).unwrap());
        let part = parted.cut(0, 1);
        drop(parted);
        assert_eq!(local.bytes_used(), BLOCK_BYTES, "a part keeps it");
        drop(part);
        assert_eq!(local.bytes_used(), 0);
    }

    #[test]
    #[should_panic(expected = "a part at 1+1")]
    fn parts_do_not_overlap() {
        let mut parted = PartedBuffer::new(LocalMemory::new(BLOCK_BYTES).unwrap().allocate(8).unwrap());
        let _part = parted.cut(0, 2);
        parted.cut(1, 1);
    }

    #[test]
    #[should_panic(expected = "a part at 8+1")]
    fn parts_are_inside() {
        PartedBuffer::new(LocalMemory::new(BLOCK_BYTES).unwrap().allocate(8).unwrap()).cut(8, 1);
    }
}
