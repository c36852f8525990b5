//! Records that are looked at together: up to [`BATCH_ROWS`] keys and values, one behind the other.

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
    value_at: u32,
    end: u32,
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
            self.rows.push(RowPlace { key_at: key_at as u32, value_at: value_at as u32, end: end as u32 });
        } else {
            self.bytes.truncate(key_at);
        }
        filled
    }

    #[inline]
    pub fn key(&self, row: usize) -> &[u8] {
        let place = self.rows[row];
        &self.bytes[place.key_at as usize..place.value_at as usize]
    }

    #[inline]
    pub fn value(&self, row: usize) -> &[u8] {
        let place = self.rows[row];
        &self.bytes[place.value_at as usize..place.end as usize]
    }

    /// All keys and values.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }
}
