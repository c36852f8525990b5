//! Parity: the exclusive or of blocks, which gives any one of them back from the others (XDP, section 3.4).
//!
//! Written once and compiled twice, for AVX2 and for any processor; both are held to the same vectors.

/// Adds `block` to `sum`. A sum of zeros and blocks is their parity; with a block added once more it is that of the others.
///
/// # Panics
/// If the lengths differ.
#[inline]
pub fn add(sum: &mut [u8], block: &[u8]) {
    assert_eq!(sum.len(), block.len(), "blocks of a parity are equally long");
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("avx2") {
        // SAFETY: the processor has what it needs.
        return unsafe { add_avx2(sum, block) };
    }
    add_portable(sum, block);
}

#[inline(always)]
fn add_portable(sum: &mut [u8], block: &[u8]) {
    sum.iter_mut().zip(block).for_each(|(sum, byte)| *sum ^= byte);
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn add_avx2(sum: &mut [u8], block: &[u8]) {
    add_portable(sum, block);
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_parity_of_known_blocks() {
        let mut sum = [0; 4];
        for block in [[0x0f, 1, 2, 255], [0xf0, 1, 4, 1], [0x11, 0, 8, 0]] {
            add(&mut sum, &block);
        }
        assert_eq!(sum, [0xee, 0, 14, 254]);
    }

    proptest! {
        #[test]
        fn any_block_comes_back_from_the_others(
            blocks in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 129), 1..6),
            lost in any::<proptest::sample::Index>(),
            from in 0..40usize,
        ) {
            let part = |block: &[u8]| block[from..].to_vec();
            let (mut sum, mut portable) = (vec![0; 129 - from], vec![0; 129 - from]);
            for block in &blocks {
                add(&mut sum, &part(block));
                add_portable(&mut portable, &part(block));
            }
            prop_assert_eq!(&sum, &portable);
            let lost = lost.index(blocks.len());
            for (_, block) in blocks.iter().enumerate().filter(|(number, _)| *number != lost) {
                add(&mut sum, &part(block));
            }
            prop_assert_eq!(sum, part(&blocks[lost]));
        }
    }

    #[test]
    #[should_panic(expected = "equally long")]
    fn blocks_of_other_lengths_are_our_mistake() {
        add(&mut [0; 3], &[0; 2]);
    }
}
