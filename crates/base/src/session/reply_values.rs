//! The values of a session's replies: of this poll's and of the last one's, so that what was replied stays readable for a poll.

use crate::request::ValueRange;

/// Larger buffers are given back when a poll ends.
pub const KEEP_BYTES: usize = 1 << 20;
/// Set in a range's ends where it is of the second half; the rest is the place there.
const SECOND: usize = !(usize::MAX >> 1);

#[derive(Default)]
pub struct ReplyValues {
    halves: [Vec<u8>; 2],
    now: usize,
}

impl ReplyValues {
    /// The values of this poll.
    pub fn current(&mut self) -> &mut Vec<u8> {
        &mut self.halves[self.now]
    }

    /// Appends to the values of this poll.
    pub fn add(&mut self, value: &[u8]) -> ValueRange {
        let values = self.current();
        let start = values.len();
        values.extend_from_slice(value);
        self.range_from(start)
    }

    /// As [`ReplyValues::add`]; a value that is the first is not copied.
    pub fn add_owned(&mut self, value: Vec<u8>) -> ValueRange {
        if !self.current().is_empty() {
            return self.add(&value);
        }
        *self.current() = value;
        self.range_from(0)
    }

    /// Names the bytes of this poll's values from `start` on.
    pub fn range_from(&self, start: usize) -> ValueRange {
        let half = if self.now == 1 { SECOND } else { 0 };
        ValueRange { start: start | half, end: self.halves[self.now].len() | half }
    }

    pub fn bytes(&self, value: ValueRange) -> &[u8] {
        let half = usize::from(value.start & SECOND != 0);
        &self.halves[half][value.start & !SECOND..value.end & !SECOND]
    }

    /// The values of this poll stay while the next one's gather.
    pub fn turn(&mut self) {
        self.now ^= 1;
        let values = self.current();
        values.clear();
        if values.capacity() > KEEP_BYTES {
            *values = Vec::new();
        }
    }
}
