//! Ranges of local memory, and lists read from it.

use crate::protocol::LocalRange;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

/// Copies bytes, a multiple of eight, from memory that the host may be writing. Each byte is read once.
///
/// # Safety
/// `from` is aligned to eight bytes, and so many bytes behind it are memory that nobody frees.
pub unsafe fn copy_once<const BYTES: usize>(from: NonNull<u8>) -> [u8; BYTES] {
    const { assert!(BYTES.is_multiple_of(8)) }
    let mut bytes = [0; BYTES];
    for (place, word) in bytes.as_chunks_mut::<8>().0.iter_mut().enumerate() {
        // SAFETY: aligned and inside by our caller's word; atomic, so that a write at the same time is no race.
        let from = unsafe { AtomicU64::from_ptr(from.as_ptr().add(8 * place).cast()) };
        *word = from.load(Ordering::Relaxed).to_ne_bytes();
    }
    bytes
}

/// Whether two ranges overlap. Both are inside local memory.
pub fn overlap(one: LocalRange, other: LocalRange) -> bool {
    one.length > 0 && other.length > 0 && one.offset < other.end() && other.offset < one.end()
}
