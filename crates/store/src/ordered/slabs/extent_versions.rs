//! For each extent of a space, the version of its group. It is read without the space's lock, as each read of a node needs it.
//!
//! ```text
//! extent ─► chunk of 1,024 extents, made when a group comes to one of them ─► version + 1, or 0
//! ```
//! 1. A version is stored before a slot of its group is given out, and stays until the group is removed. A thread that learns of a slot through a
//!    lock, after it was given out, sees the version of the slot's group or of a later one. So an image of an earlier group is refused.
//!
//! Threads: any. Changes are made under the space's lock.

use std::ops::Range;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use tapetum_base::memory::memory_word::Word;

const CHUNK_EXTENTS: usize = 1 << 10;

#[derive(Default)]
struct GroupVersion<W>(W);

impl<W: Word> GroupVersion<W> {
    fn set(&self, version: Option<u64>) {
        // Relaxed suffices, as a slot is given out with ordering.
        self.0.store(version.map_or(0, |version| version + 1), Ordering::Relaxed);
    }

    fn get(&self) -> Option<u64> {
        self.0.load(Ordering::Relaxed).checked_sub(1)
    }
}

type VersionChunk = Box<[GroupVersion<AtomicU64>]>;

/// See the [module](self). Empty if there are no extents.
#[derive(Default)]
pub struct ExtentVersions {
    chunks: Box<[OnceLock<VersionChunk>]>,
}

impl ExtentVersions {
    pub fn new(extents_max: u32) -> ExtentVersions {
        let chunks = (extents_max as usize).div_ceil(CHUNK_EXTENTS);
        ExtentVersions { chunks: (0..chunks).map(|_| OnceLock::new()).collect() }
    }

    /// Sets the version of the extents' group, or none.
    pub fn set(&self, extents: Range<u32>, version: Option<u64>) {
        for extent in extents.map(|extent| extent as usize) {
            let Some(chunk) = self.chunks.get(extent / CHUNK_EXTENTS) else { return };
            let chunk = chunk.get_or_init(|| (0..CHUNK_EXTENTS).map(|_| GroupVersion::default()).collect());
            chunk[extent % CHUNK_EXTENTS].set(version);
        }
    }

    /// The version of an extent's group.
    pub fn get(&self, extent: u32) -> Option<u64> {
        let extent = extent as usize;
        self.chunks.get(extent / CHUNK_EXTENTS)?.get()?[extent % CHUNK_EXTENTS].get()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_extent_has_the_version_of_the_group_that_has_it() {
        let versions = ExtentVersions::new(3000);
        versions.set(1020..1028, Some(0));
        versions.set(2999..3000, Some(7));
        let found = [1019, 1020, 1027, 1028, 2999, 5000].map(|extent| versions.get(extent));
        assert_eq!(found, [None, Some(0), Some(0), None, Some(7), None]);
        versions.set(1020..1028, None);
        assert_eq!(versions.get(1024), None);
        let none = ExtentVersions::default();
        none.set(0..9, Some(1));
        assert_eq!(none.get(3), None);
    }
}

#[cfg(test)]
mod models {
    use super::*;
    use tapetum_base::memory::memory_word::model::*;

    /// A group takes over the extent of another one, and gives out a slot of it; a reader learns of the slot.
    fn a_reader_of_a_slot_sees_its_version<const WEAK: u8>() {
        use loom::sync::Arc;
        loom::model(|| {
            let version: Arc<GroupVersion<ModelWord<SOUND>>> = Arc::default();
            let told: Arc<ModelWord<WEAK>> = Arc::default();
            version.set(Some(1));
            let giver = {
                let (version, told) = (version.clone(), told.clone());
                loom::thread::spawn(move || {
                    version.set(None);
                    version.set(Some(2));
                    told.store(1, Ordering::Release);
                })
            };
            if told.load(Ordering::Acquire) == 1 {
                assert_eq!(version.get(), Some(2), "of the slot that it was told of");
            }
            giver.join().unwrap();
        });
    }

    #[test]
    fn who_is_told_of_a_slot_sees_the_version_of_its_group() {
        a_reader_of_a_slot_sees_its_version::<SOUND>();
    }

    #[test]
    #[should_panic(expected = "of the slot that it was told of")]
    fn the_model_sees_that_a_slot_must_be_told_of_in_order() {
        a_reader_of_a_slot_sees_its_version::<RELAXED_STORE>();
    }
}
