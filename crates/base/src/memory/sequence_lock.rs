//! The sequence lock of a bucket, of the index with its chain of extensions or of the DRAM tier: one writer, and readers
//! that write nothing.
//!
//! The sequence is in the bucket's header: odd while the bucket is being written, another even number afterwards. A reader
//! that sees the same even one before and after its look saw the bucket as it was before or after a write. Until then it may
//! see anything, and must bear it.

use crate::memory::memory_word::Word;
use std::sync::atomic::Ordering;
use tapetum_kernels::{delta_bucket, tag_bucket};

/// A bucket's first word, which holds its sequence.
pub trait SequenceHeader: Copy {
    fn of(word: u64) -> Self;
    fn word(self) -> u64;
    fn sequence(self) -> u32;
    fn with_sequence(self, sequence: u32) -> Self;
}

macro_rules! header {
    ($header:ty) => {
        impl SequenceHeader for $header {
            #[inline(always)]
            fn of(word: u64) -> Self {
                Self(word)
            }

            #[inline(always)]
            fn word(self) -> u64 {
                self.0
            }

            #[inline(always)]
            fn sequence(self) -> u32 {
                <$header>::sequence(self)
            }

            #[inline(always)]
            fn with_sequence(self, sequence: u32) -> Self {
                <$header>::with_sequence(self, sequence)
            }
        }
    };
}

header!(delta_bucket::BucketHeader);
header!(tag_bucket::TagHeader);

/// The header of a bucket, unless it is being written now.
#[inline(always)]
pub fn begin<W: Word, H: SequenceHeader>(header: &W) -> Option<H> {
    let header = H::of(header.load(Ordering::Acquire));
    (header.sequence() % 2 == 0).then_some(header)
}

/// Whether all that was seen of a bucket since it had the header that [`begin`] gave is the bucket as it was then.
#[inline(always)]
pub fn is_unchanged<W: Word, H: SequenceHeader>(header: &W, since: H) -> bool {
    // Pairs with the fence in `write`: who saw anything newer than `since` also sees a newer header.
    W::fence(Ordering::Acquire);
    header.load(Ordering::Relaxed) == since.word()
}

/// What `look` sees of a bucket with this header while nobody writes it.
#[inline(always)]
pub fn read<W: Word, H: SequenceHeader, T>(header: &W, mut look: impl FnMut(H) -> T) -> T {
    let mut spins = 0;
    loop {
        if let Some(begun) = begin(header) {
            let seen = look(begun);
            if is_unchanged(header, begun) {
                return seen;
            }
        }
        spins += 1;
        W::pause(spins);
    }
}

/// Writes a bucket: `store` what is behind the header, then `new` as the header, but for its sequence.
#[inline(always)]
pub fn write<W: Word, H: SequenceHeader>(header: &W, new: H, store: impl FnOnce()) {
    let old = H::of(header.load(Ordering::Relaxed));
    let sequence = old.sequence().wrapping_add(1);
    header.store(old.with_sequence(sequence).word(), Ordering::Relaxed);
    W::fence(Ordering::Release);
    store();
    header.store(new.with_sequence(sequence.wrapping_add(1)).word(), Ordering::Release);
}

#[cfg(test)]
mod models {
    use super::{read, write};
    use crate::memory::memory_word::Word;
    use crate::memory::memory_word::model::*;
    use loom::sync::Arc;
    use loom::thread;
    use std::sync::atomic::Ordering;
    use tapetum_kernels::delta_bucket::BucketHeader;

    // The writer has the thread that comes first: loom does not see that a load and a later store may change places where the
    // storing thread has loaded the word in between, as `write` does.

    fn relaxed<const WEAK: u8>(word: &ModelWord<WEAK>) -> u64 {
        word.load(Ordering::Relaxed)
    }

    /// A bucket of two words, which are always equal, written twice.
    fn a_bucket_is_seen_whole<const WEAK: u8>() {
        loom::model(|| {
            let bucket: Arc<[ModelWord<WEAK>; 3]> = Arc::default();
            let reader = {
                let bucket = bucket.clone();
                thread::spawn(move || {
                    let (first, second) =
                        read(&bucket[0], |_: BucketHeader| (relaxed(&bucket[1]), relaxed(&bucket[2])));
                    assert_eq!(first, second);
                })
            };
            for value in 1..=2 {
                write(&bucket[0], BucketHeader(0), || {
                    bucket[1].store(value, Ordering::Relaxed);
                    bucket[2].store(value, Ordering::Relaxed);
                });
            }
            reader.join().unwrap();
            assert_eq!(read(&bucket[0], |_: BucketHeader| relaxed(&bucket[2])), 2);
        });
    }

    #[test]
    fn a_reader_sees_a_bucket_before_or_after_a_write() {
        a_bucket_is_seen_whole::<SOUND>();
    }

    #[test]
    #[should_panic]
    fn without_the_readers_fence_the_model_fails() {
        a_bucket_is_seen_whole::<NO_ACQUIRE_FENCE>();
    }

    #[test]
    #[should_panic]
    fn without_the_writers_fence_the_model_fails() {
        a_bucket_is_seen_whole::<NO_RELEASE_FENCE>();
    }

    #[test]
    #[should_panic]
    fn without_the_release_of_the_header_the_model_fails() {
        a_bucket_is_seen_whole::<RELAXED_STORE>();
    }

    #[test]
    #[should_panic]
    fn without_the_acquisition_of_the_header_the_model_fails() {
        a_bucket_is_seen_whole::<RELAXED_LOAD>();
    }

    const OURS: u64 = 1;
    const LINK: u64 = 2;
    const OTHERS: u64 = 3;

    /// An extension leaves one bucket, is put on the list of free ones (which writes a link into it), and goes to another.
    /// `early`: it is given back before the bucket that it leaves is written.
    fn an_extension_moves(early: bool) {
        loom::model(move || {
            let extended = BucketHeader(0).with_extension(Some(0), 7);
            let buckets: Arc<[ModelWord<SOUND>; 2]> = Arc::new([ModelWord::new(extended.0), ModelWord::new(0)]);
            let extension = Arc::new(ModelWord::<SOUND>::new(OURS));
            let reader = {
                let (buckets, extension) = (buckets.clone(), extension.clone());
                thread::spawn(move || {
                    let seen =
                        read(&buckets[0], |header: BucketHeader| header.extension().map(|_| relaxed(&extension)));
                    assert!(seen.is_none_or(|seen| seen == OURS), "{seen:?} in our extension");
                    let seen =
                        read(&buckets[1], |header: BucketHeader| header.extension().map(|_| relaxed(&extension)));
                    assert!(seen.is_none_or(|seen| seen == OTHERS), "{seen:?} in the other's extension");
                })
            };
            let set = |value| extension.store(value, Ordering::Relaxed);
            if early {
                set(LINK);
            }
            write(&buckets[0], BucketHeader(0), || ());
            set(LINK);
            write(&buckets[1], extended, || set(OTHERS));
            reader.join().unwrap();
        });
    }

    #[test]
    fn a_reader_follows_no_extension_that_has_left() {
        an_extension_moves(false);
    }

    #[test]
    #[should_panic]
    fn with_an_extension_that_is_given_back_early_the_model_fails() {
        an_extension_moves(true);
    }
}
