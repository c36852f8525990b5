//! Prefetches memory before it is needed. This is a hint: it changes nothing but time.

/// The size of a cache line on x86-64.
pub const CACHE_LINE_BYTES: usize = 64;

/// Brings the cache line at `place` nearer to the processor.
#[inline(always)]
pub fn prefetch<T>(place: *const T) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a hint, which any address may be given; SSE is part of x86-64.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(place.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = place;
}

#[cfg(test)]
mod tests {
    use super::prefetch;

    #[test]
    fn any_address_will_do() {
        prefetch(&7u8);
        prefetch(std::ptr::null::<u64>());
    }
}
