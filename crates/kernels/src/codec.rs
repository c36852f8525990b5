//! Compression of values: zstd at level 1, left raw where that does not pay.
//!
//! A context is reused from value to value and belongs to one thread at a time. Values of like length are mostly of one kind:
//! after some that did not shrink only few are tried, until one does, because trying costs as much as everything else
//! that is done for a write.

use crate::record::{Codec, Record};
use std::io;

/// Values shorter than this are never worth a frame.
const COMPRESS_BYTES_MIN: usize = 64;
const LEVEL: i32 = 1;
/// After so many values that did not shrink, one behind the other, …
const MISSES_MAX: u32 = 32;
/// … one in so many is tried, of small ones fewer: trying these costs more than storing them.
const TRIED_EVERY: u32 = 16;
const SMALL_TRIED_EVERY: u32 = 256;
const SMALL_BYTES: usize = 256;

pub struct Compressor {
    context: zstd::bulk::Compressor<'static>,
    frame: Vec<u8>,
    /// Values that were not found to shrink since one did, by the binary logarithm of their length.
    misses: [u32; usize::BITS as usize],
}

impl Compressor {
    pub fn new() -> io::Result<Compressor> {
        let mut context = zstd::bulk::Compressor::new(LEVEL)?;
        // The record holds the length and a checksum already.
        context.include_contentsize(false)?;
        context.include_checksum(false)?;
        Ok(Compressor { context, frame: Vec::new(), misses: [0; usize::BITS as usize] })
    }

    /// The bytes to store for `value`: a zstd frame if that saves an eighth, else the value itself.
    pub fn compress<'a>(&'a mut self, value: &'a [u8]) -> (Codec, &'a [u8]) {
        if value.len() < COMPRESS_BYTES_MIN {
            return (Codec::Raw, value);
        }
        let misses = &mut self.misses[value.len().ilog2() as usize];
        let tried_every = if value.len() < SMALL_BYTES { SMALL_TRIED_EVERY } else { TRIED_EVERY };
        if *misses >= MISSES_MAX && !misses.is_multiple_of(tried_every) {
            *misses = misses.wrapping_add(1);
            return (Codec::Raw, value);
        }
        let worth = value.len() - value.len() / 8;
        self.frame.clear();
        self.frame.reserve(worth);
        // A frame that would not fit is a frame that does not pay.
        match self.context.compress_to_buffer(value, &mut LimitedFrame { frame: &mut self.frame, limit: worth }) {
            Ok(_) => {
                *misses = 0;
                (Codec::Zstd, &self.frame)
            }
            Err(_) => {
                *misses = misses.wrapping_add(1);
                (Codec::Raw, value)
            }
        }
    }

    /// The frame that [`Compressor::compress`] made last, for whoever keeps it.
    pub fn take_frame(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.frame)
    }

    /// Gives back the memory of an unusually large frame.
    pub fn shrink(&mut self, keep_bytes: usize) {
        if self.frame.capacity() > keep_bytes {
            self.frame = Vec::new();
        }
    }
}

/// An output that is exactly as large as a frame may be.
struct LimitedFrame<'a> {
    frame: &'a mut Vec<u8>,
    limit: usize,
}

// SAFETY: `as_mut_ptr` points at `as_mut_capacity` writable bytes (the vector reserved at least the limit), and
// `filled_until` is called with what zstd wrote there.
unsafe impl zstd::zstd_safe::WriteBuf for LimitedFrame<'_> {
    fn as_slice(&self) -> &[u8] {
        self.frame
    }

    fn capacity(&self) -> usize {
        self.limit
    }

    fn as_mut_ptr(&mut self) -> *mut u8 {
        self.frame.as_mut_ptr()
    }

    unsafe fn filled_until(&mut self, n: usize) {
        assert!(n <= self.limit);
        // SAFETY: zstd initialised the first `n` bytes.
        unsafe { self.frame.set_len(n) }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DecompressError;

pub struct Decompressor {
    context: zstd::bulk::Decompressor<'static>,
}

impl Decompressor {
    pub fn new() -> io::Result<Decompressor> {
        Ok(Decompressor { context: zstd::bulk::Decompressor::new()? })
    }

    /// Fills `out` from a frame; its length is the value's.
    pub fn decompress(&mut self, frame: &[u8], out: &mut [u8]) -> Result<(), DecompressError> {
        match self.context.decompress_to_buffer(frame, out) {
            Ok(length) if length == out.len() => Ok(()),
            _ => Err(DecompressError),
        }
    }

    /// Makes `value` the value of a record that holds it itself.
    pub fn inflate(&mut self, record: &Record<'_>, value: &mut Vec<u8>) -> Result<(), DecompressError> {
        value.clear();
        if record.header.codec == Codec::Raw {
            value.extend_from_slice(record.stored);
            return Ok(());
        }
        value.resize(record.header.raw_bytes as usize, 0);
        self.decompress(record.stored, value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn noise(length: usize) -> Vec<u8> {
        crate::random::SplitMix64::new(1).bytes(length)
    }

    #[test]
    fn text_shrinks_and_noise_stays_raw() {
        let mut compressor = Compressor::new().unwrap();
        let text = b"the mirror behind the retina ".repeat(40);
        let (codec, stored) = compressor.compress(&text);
        assert_eq!(codec, Codec::Zstd);
        assert!(stored.len() < text.len() / 4);
        let stored = stored.to_vec();
        let mut out = vec![0; text.len()];
        Decompressor::new().unwrap().decompress(&stored, &mut out).unwrap();
        assert_eq!(out, text);
        let noise = noise(1000);
        assert_eq!(compressor.compress(&noise), (Codec::Raw, &noise[..]));
        assert_eq!(compressor.compress(b"short").0, Codec::Raw);
    }

    #[test]
    fn values_that_do_not_shrink_keep_those_of_other_lengths_and_later_ones_from_nothing_much() {
        let mut compressor = Compressor::new().unwrap();
        let (noise, text) = (noise(1000), b"the mirror behind the retina ".repeat(35));
        (0..100).for_each(|_| assert_eq!(compressor.compress(&noise).0, Codec::Raw));
        assert_eq!(compressor.compress(&text[..500]).0, Codec::Zstd, "another length");
        let tried = (0..TRIED_EVERY).position(|_| compressor.compress(&text[..1000]).0 == Codec::Zstd);
        assert!(tried.is_some(), "one in so many is tried");
        assert!((0..100).all(|_| compressor.compress(&text[..1000]).0 == Codec::Zstd));
    }

    proptest! {
        #[test]
        fn a_damaged_frame_never_panics(mut frame in proptest::collection::vec(any::<u8>(), 0..200), length in 0..500usize) {
            let mut out = vec![0; length];
            let _ = Decompressor::new().unwrap().decompress(&frame, &mut out);
            frame.reverse();
            let _ = Decompressor::new().unwrap().decompress(&frame, &mut out);
        }
    }
}
