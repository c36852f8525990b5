//! Snappy's raw format: a length and compressed bytes, without checksums.

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SnappyError {
    /// The output needs this many bytes of room.
    RoomShort(usize),
    Corrupt,
    /// Snappy's lengths have 32 bits.
    TooLong,
}

/// Compresses `raw` to `out`. Returns the compressed length.
pub fn compress(raw: &[u8], out: &mut [u8]) -> Result<usize, SnappyError> {
    let room = compressed_bytes_max(raw.len());
    if room == 0 {
        return Err(SnappyError::TooLong);
    }
    if out.len() < room {
        return Err(SnappyError::RoomShort(room));
    }
    snap::raw::Encoder::new().compress(raw, out).map_err(|_| SnappyError::TooLong)
}

/// The room that compressing `raw_bytes` bytes needs, whatever they are; 0 if they are too many.
pub fn compressed_bytes_max(raw_bytes: usize) -> usize {
    snap::raw::max_compress_len(raw_bytes)
}

/// The raw length that `stored` states.
pub fn raw_bytes(stored: &[u8]) -> Result<usize, SnappyError> {
    snap::raw::decompress_len(stored).map_err(|_| SnappyError::Corrupt)
}

/// Decompresses `stored` to `out`. Returns the raw length.
pub fn decompress(stored: &[u8], out: &mut [u8]) -> Result<usize, SnappyError> {
    let room = raw_bytes(stored)?;
    if out.len() < room {
        return Err(SnappyError::RoomShort(room));
    }
    snap::raw::Decoder::new().decompress(stored, out).map_err(|_| SnappyError::Corrupt)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn what_was_compressed_comes_back(raw in proptest::collection::vec(0..4_u8, 0..4000)) {
            let mut stored = vec![0; compressed_bytes_max(raw.len())];
            let length = compress(&raw, &mut stored).unwrap();
            let mut out = vec![9; raw.len()];
            prop_assert_eq!(decompress(&stored[..length], &mut out), Ok(raw.len()));
            prop_assert_eq!(out, raw);
        }

        #[test]
        fn damage_never_panics(stored in proptest::collection::vec(any::<u8>(), 0..200), room in 0..2000_usize) {
            let _ = decompress(&stored, &mut vec![0; room]);
        }
    }

    #[test]
    fn short_room_says_how_much_it_takes() {
        let raw = [7; 1000];
        let mut stored = vec![0; compressed_bytes_max(raw.len())];
        assert_eq!(compress(&raw, &mut stored[1..]), Err(SnappyError::RoomShort(stored.len())));
        let length = compress(&raw, &mut stored).unwrap();
        assert_eq!(decompress(&stored[..length], &mut [0; 999]), Err(SnappyError::RoomShort(1000)));
    }
}
