//! Records that are looked at together: up to [`BATCH_ROWS`] keys and values.
//!
//! A [`RowBatch`] has copies of them, one behind the other. A [`LentBatch`] has only their places in bytes that somebody lends when it is run:
//! in those of a page, say, most records are not worth a copy.

use std::ops::Range;

/// Rows that a batch has at most: their columns lie in the processor's caches.
pub const BATCH_ROWS: usize = 1024;
/// Bytes of keys and values after which a batch is full. One record may be longer.
pub const BATCH_BYTES: usize = 1 << 20;

/// Room is kept from one batch to the next.
#[derive(Default)]
pub struct RowBatch {
    bytes: Vec<u8>,
    rows: Vec<RowPlace>,
}

#[derive(Clone, Copy)]
struct RowPlace {
    key_at: u32,
    key_end: u32,
    value_at: u32,
    end: u32,
}

/// Places of records in bytes that are lent. Room is kept from one batch to the next.
#[derive(Default)]
pub struct LentBatch {
    rows: Vec<RowPlace>,
    row_bytes: usize,
}

/// The records of a batch.
#[derive(Clone, Copy)]
pub struct Rows<'a> {
    rows: &'a [RowPlace],
    bytes: &'a [u8],
}

impl RowBatch {
    pub fn new() -> RowBatch {
        RowBatch::default()
    }

    pub fn clear(&mut self) {
        self.bytes.clear();
        self.rows.clear();
        // A record of many megabytes came by.
        if self.bytes.capacity() > 4 * BATCH_BYTES {
            self.bytes = Vec::new();
        }
    }

    pub fn len(&self) -> usize {
        self.rows.len()
    }

    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Whether it is to be run before another row is pushed.
    pub fn is_full(&self) -> bool {
        self.rows.len() >= BATCH_ROWS || self.bytes.len() >= BATCH_BYTES
    }

    /// # Panics
    /// When the batch is full.
    pub fn push(&mut self, key: &[u8], value: &[u8]) {
        let filled = self.push_with(key.len(), value.len(), |into_key, into_value| {
            into_key.copy_from_slice(key);
            into_value.copy_from_slice(value);
            true
        });
        assert!(filled, "the fill says so");
    }

    /// Pushes a row whose key and value `fill` writes; none, if that returns false, as it does.
    ///
    /// # Panics
    /// When the batch is full, or a row has 2 GiB.
    pub fn push_with(
        &mut self,
        key_bytes: usize,
        value_bytes: usize,
        fill: impl FnOnce(&mut [u8], &mut [u8]) -> bool,
    ) -> bool {
        assert!(!self.is_full(), "a full batch is run first");
        assert!(key_bytes.saturating_add(value_bytes) < 1 << 31, "a row of 2 GiB");
        let key_at = self.bytes.len();
        let (value_at, end) = (key_at + key_bytes, key_at + key_bytes + value_bytes);
        self.bytes.resize(end, 0);
        let (key, value) = self.bytes[key_at..].split_at_mut(key_bytes);
        let filled = fill(key, value);
        if filled {
            let [key_at, value_at, end] = [key_at, value_at, end].map(|at| at as u32);
            self.rows.push(RowPlace { key_at, key_end: value_at, value_at, end });
        } else {
            self.bytes.truncate(key_at);
        }
        filled
    }

    /// Bytes of all keys and values.
    pub fn row_bytes(&self) -> usize {
        self.bytes.len()
    }
}

impl LentBatch {
    pub fn clear(&mut self) {
        self.rows.clear();
        self.row_bytes = 0;
    }

    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Whether it is to be run before another row is pushed.
    pub fn is_full(&self) -> bool {
        self.rows.len() >= BATCH_ROWS || self.row_bytes >= BATCH_BYTES
    }

    /// Bytes of all keys and values.
    pub fn row_bytes(&self) -> usize {
        self.row_bytes
    }

    /// Pushes a row whose key and value lie here in the bytes that are lent.
    ///
    /// # Panics
    /// When the batch is full.
    #[inline]
    pub fn push(&mut self, key: Range<u32>, value: Range<u32>) {
        assert!(!self.is_full(), "a full batch is run first");
        self.row_bytes += key.len() + value.len();
        let (key_at, key_end, value_at, end) = (key.start, key.end, value.start, value.end);
        self.rows.push(RowPlace { key_at, key_end, value_at, end });
    }

    /// Its records, in these bytes.
    pub fn rows<'a>(&'a self, bytes: &'a [u8]) -> Rows<'a> {
        Rows { rows: &self.rows, bytes }
    }
}

impl<'a> From<&'a RowBatch> for Rows<'a> {
    fn from(batch: &'a RowBatch) -> Rows<'a> {
        Rows { rows: &batch.rows, bytes: &batch.bytes }
    }
}

impl<'a> Rows<'a> {
    pub fn len(self) -> usize {
        self.rows.len()
    }

    pub fn is_empty(self) -> bool {
        self.rows.is_empty()
    }

    #[inline]
    pub fn key(self, row: usize) -> &'a [u8] {
        let place = self.rows[row];
        &self.bytes[place.key_at as usize..place.key_end as usize]
    }

    #[inline]
    pub fn value(self, row: usize) -> &'a [u8] {
        let place = self.rows[row];
        &self.bytes[place.value_at as usize..place.end as usize]
    }

    /// The bytes in which all keys and values lie.
    pub fn bytes(self) -> &'a [u8] {
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lent_rows_are_those_that_were_copied() {
        let (mut batch, mut lent, bytes) = (RowBatch::new(), LentBatch::default(), b"--onefirst--twosecond-");
        assert!(lent.is_empty() && lent.rows(bytes).is_empty());
        for (key, value) in [(2..5, 5..10), (12..15, 15..21)] {
            let part = |range: &Range<u32>| &bytes[range.start as usize..range.end as usize];
            batch.push(part(&key), part(&value));
            lent.push(key, value);
        }
        let (rows, own) = (lent.rows(bytes), Rows::from(&batch));
        assert_eq!((rows.len(), lent.row_bytes()), (own.len(), batch.row_bytes()));
        assert_eq!((rows.key(0), rows.value(1)), (&b"one"[..], &b"second"[..]));
        assert!((0..2).all(|row| (rows.key(row), rows.value(row)) == (own.key(row), own.value(row))));
        lent.clear();
        (0..BATCH_ROWS).for_each(|_| lent.push(0..1, 1..1));
        assert!(lent.is_full());
    }
}
