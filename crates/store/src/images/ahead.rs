//! How many pictures a loader has at the drive at once, and how many threads make its batches.
//!
//! A picture takes memory from its submission to its reply: its file and its row of the batch in local memory, and as much once more if a program
//! gathers the parts that the one before gave. All pictures that a loader has at the drive take at most half of local memory together. A single
//! picture is always submitted, whatever it takes.

use super::set::ImageSet;

/// The most threads of a loader.
const THREADS_MAX: usize = 64;
/// The most pictures of a thread that are at the drive at once: as many as a session has there.
const PICTURES_MAX: usize = 32;
/// Fewer would leave the drive without work while a reply is on its way.
const PICTURES_LEAST: usize = 4;
/// Pictures of all threads of a loader.
const PICTURES_OF_ALL: usize = 64;
/// Local memory that a session takes to run programs.
const SESSION_BYTES: usize = 512 << 10;
/// Bytes of a picture's file if its size is unknown: more than most photographs of half a megapixel take.
pub(super) const FILE_BYTES_UNKNOWN: usize = 128 << 10;

/// Local memory that pictures of a set take at the drive.
#[derive(Clone, Copy, Debug)]
pub(super) struct PictureCost {
    pub row_bytes: usize,
    /// Bytes of files whose size the set does not know.
    pub file_bytes_unknown: usize,
}

impl PictureCost {
    fn of_file(&self, file_bytes: usize) -> usize {
        2 * (file_bytes + self.row_bytes)
    }

    /// # Panics
    /// When the set has no such item.
    pub fn of_item(&self, set: &ImageSet, item: usize) -> usize {
        self.of_file(set.file_bytes(item).unwrap_or(self.file_bytes_unknown))
    }

    /// In the mean.
    pub fn of_set(&self, set: &ImageSet) -> usize {
        self.of_file(set.file_bytes_mean().unwrap_or(self.file_bytes_unknown))
    }
}

/// Limits of the pictures that one thread may have at the drive, and the current load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct AheadBudget {
    pictures_max: usize,
    bytes_max: usize,
    pictures: usize,
    bytes: usize,
}

impl AheadBudget {
    /// How many threads of those wanted there are, and what each may have, if pictures of `picture_bytes` in the mean are to fit into
    /// `bytes` of local memory.
    pub fn shared(threads_wanted: usize, picture_bytes: usize, bytes: usize) -> (usize, AheadBudget) {
        let thread_bytes = SESSION_BYTES + PICTURES_LEAST * picture_bytes;
        let threads = threads_wanted.clamp(1, THREADS_MAX).min(bytes / thread_bytes).max(1);
        let pictures_max = (PICTURES_OF_ALL / threads).clamp(PICTURES_LEAST, PICTURES_MAX);
        let bytes_max = (bytes / threads).saturating_sub(SESSION_BYTES);
        (threads, AheadBudget { pictures_max, bytes_max, pictures: 0, bytes: 0 })
    }

    /// Counts a picture of so many bytes, if there is room for it.
    pub fn take(&mut self, bytes: usize) -> bool {
        let has_room = self.pictures < self.pictures_max && self.bytes + bytes <= self.bytes_max;
        if has_room || self.pictures == 0 {
            self.pictures += 1;
            self.bytes += bytes;
            return true;
        }
        false
    }

    /// A picture that was counted is no longer at the drive.
    pub fn give(&mut self, bytes: usize) {
        self.pictures -= 1;
        self.bytes -= bytes;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: usize = 1 << 20;

    #[test]
    fn a_thread_has_as_many_pictures_at_the_drive_as_it_has_memory_for() {
        let (_, mut budget) = AheadBudget::shared(1, MIB, 8 * MIB);
        let taken = (0..40).take_while(|_| budget.take(MIB)).count();
        assert_eq!(taken, 7, "half a mebibyte is the session's");
        budget.give(MIB);
        assert!(!budget.take(2 * MIB) && budget.take(MIB / 4) && budget.take(MIB / 4));
        // Small ones are as many as a session has there.
        let (_, mut budget) = AheadBudget::shared(1, 1000, 8 * MIB);
        assert_eq!((0..40).take_while(|_| budget.take(1000)).count(), PICTURES_MAX);
        // One that has no room comes alone.
        let (threads, mut budget) = AheadBudget::shared(3, 100 * MIB, 8 * MIB);
        assert!(threads == 1 && budget.take(100 * MIB) && !budget.take(1));
    }

    #[test]
    fn there_are_no_more_threads_than_memory_for_them() {
        let threads = |wanted, picture_bytes| AheadBudget::shared(wanted, picture_bytes, 16 * MIB).0;
        assert_eq!((threads(0, 1000), threads(4, 1000), threads(1000, 1000)), (1, 4, 31));
        assert_eq!((threads(64, MIB / 8), threads(64, 3 * MIB)), (16, 1));
    }

    #[test]
    fn pictures_take_what_their_files_take() {
        let mut set = ImageSet::new(Vec::new());
        let cost = PictureCost { row_bytes: 100, file_bytes_unknown: 5000 };
        assert_eq!(cost.of_set(&set), 10_200);
        [3000, 0, 1000].into_iter().for_each(|bytes| set.push(b"key", 0, bytes));
        let of_items = [0, 1, 2].map(|item| cost.of_item(&set, item));
        assert_eq!(of_items, [6200, 10_200, 2200]);
        assert_eq!(cost.of_set(&set), 4200, "of those that are known");
    }
}
