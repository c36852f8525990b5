//! SipHash-1-3 of several keys side by side, each in a lane of a register. Written once, as a macro: functions with `target_feature`
//! are not generic over their instructions.

/// `fn hash_lanes` with the instructions of `$feature`. In scope where it is used: `LANES`, `Register`, and `splat`, `add`, `xor` and
/// `rotate_left` over words of 64 bits.
macro_rules! hash_lanes {
    ($feature:literal) => {
        /// SipHash's state, of [`LANES`] keys.
        #[derive(Clone, Copy)]
        struct LaneState([Register; 4]);

        impl LaneState {
            #[target_feature(enable = $feature)]
            #[inline]
            fn round(&mut self) {
                let LaneState([v0, v1, v2, v3]) = self;
                *v0 = add(*v0, *v1);
                *v2 = add(*v2, *v3);
                *v1 = xor(rotate_left::<13>(*v1), *v0);
                *v3 = xor(rotate_left::<16>(*v3), *v2);
                *v0 = rotate_left::<32>(*v0);
                *v2 = add(*v2, *v1);
                *v0 = add(*v0, *v3);
                *v1 = xor(rotate_left::<17>(*v1), *v2);
                *v3 = xor(rotate_left::<21>(*v3), *v0);
                *v2 = rotate_left::<32>(*v2);
            }

            /// Takes in a word of each key.
            #[target_feature(enable = $feature)]
            #[inline]
            fn absorb(&mut self, words: [u64; LANES]) {
                // SAFETY: both are equally long, and every value of either is valid.
                let words = unsafe { std::mem::transmute::<[u64; LANES], Register>(words) };
                self.0[3] = xor(self.0[3], words);
                self.round();
                self.0[0] = xor(self.0[0], words);
            }

            /// Half of the digests.
            #[target_feature(enable = $feature)]
            #[inline]
            fn squeeze(&mut self, into: usize, mark: i64) -> [u64; LANES] {
                self.0[into] = xor(self.0[into], splat(mark));
                self.round();
                self.round();
                self.round();
                let LaneState([v0, v1, v2, v3]) = *self;
                let half = xor(xor(v0, v1), xor(v2, v3));
                // SAFETY: both are equally long, and every value of either is valid.
                unsafe { std::mem::transmute::<Register, [u64; LANES]>(half) }
            }
        }

        /// The digests of keys with equally many whole words.
        #[target_feature(enable = $feature)]
        pub fn hash_lanes(secret: &[u8; 16], keys: &[&[u8]; LANES]) -> [HashKey; LANES] {
            let parts = keys.map(<[u8]>::as_chunks::<8>);
            let mut state = LaneState(start(secret).map(|word| splat(word as i64)));
            for at in 0..parts[0].0.len() {
                state.absorb(parts.map(|(words, _)| u64::from_le_bytes(words[at])));
            }
            state.absorb(words_of_last(keys, parts.map(|(_, rest)| rest)));
            let low = state.squeeze(2, 0xee);
            let high = state.squeeze(1, 0xdd);
            std::array::from_fn(|lane| HashKey(u128::from(low[lane]) | u128::from(high[lane]) << 64))
        }
    };
}
pub(super) use hash_lanes;
