//! Memory that two processes share: a file without a name, sealed, so that neither can cut it short under the other.
//!
//! Its maker decides who writes: the other side may write too ([`SharedFile::new`]), or only read ([`SharedFile::read_by_others`]; the
//! kernel refuses any other mapping). What the other side may write is never a slice here: it is copied, each byte once, by atomic loads.

use super::mapping::Mapping;
use rustix::fs::{MemfdFlags, SealFlags};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};

const TMPFS_MAGIC: rustix::fs::FsWord = 0x0102_1994;
const NEVER_RESIZED: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW);

pub struct SharedFile {
    mapping: Mapping,
    file: OwnedFd,
}

impl SharedFile {
    /// A new one of `bytes` zeros, which the other side may write. Pages take memory only when they are first used.
    ///
    /// # Errors
    /// The operating system's.
    pub fn new(name: &str, bytes: usize) -> io::Result<SharedFile> {
        SharedFile::sealed(name, bytes, SealFlags::empty())
    }

    /// As [`SharedFile::new`], but the other side only reads.
    ///
    /// # Errors
    /// The operating system's, such as EINVAL before Linux 5.1.
    pub fn read_by_others(name: &str, bytes: usize) -> io::Result<SharedFile> {
        SharedFile::sealed(name, bytes, SealFlags::FUTURE_WRITE)
    }

    fn sealed(name: &str, bytes: usize, more: SealFlags) -> io::Result<SharedFile> {
        let file = rustix::fs::memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        rustix::fs::ftruncate(&file, bytes as u64)?;
        let mapping = Mapping::of_file(file.as_fd(), bytes, true)?;
        rustix::fs::fcntl_add_seals(&file, NEVER_RESIZED | SealFlags::SEAL | more)?;
        Ok(SharedFile { mapping, file })
    }

    /// One that another process made, of at least `bytes`.
    ///
    /// # Errors
    /// If it is something else, can be cut short or is too short, or the operating system's.
    pub fn of_other(file: OwnedFd, bytes: usize, is_written: bool) -> io::Result<SharedFile> {
        let seals = rustix::fs::fcntl_get_seals(&file)
            .map_err(|_| io::Error::other("what was sent is no memory: send a sealed file of memfd_create"))?;
        if !seals.contains(NEVER_RESIZED) {
            return Err(io::Error::other("the memory that was sent can be cut short: seal it against that"));
        }
        // Large pages may run out when they are first used, which ends the process.
        if rustix::fs::fstatfs(&file)?.f_type != TMPFS_MAGIC {
            return Err(io::Error::other("the memory that was sent has pages of another kind: send small ones"));
        }
        if bytes == 0 || u64::try_from(rustix::fs::fstat(&file)?.st_size).is_ok_and(|size| size < bytes as u64) {
            return Err(io::Error::other(format!("the memory that was sent has fewer than {} bytes", bytes.max(1))));
        }
        let mapping = Mapping::of_file(file.as_fd(), bytes, is_written)?;
        Ok(SharedFile { mapping, file })
    }

    pub fn bytes(&self) -> usize {
        self.mapping.bytes()
    }

    pub fn file(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// The address of a range; `None` unless all of it is inside.
    pub fn pointer(&self, offset: u64, length: u32) -> Option<NonNull<u8>> {
        self.mapping.pointer(offset, length)
    }

    /// A word that both sides may change at any time.
    ///
    /// # Panics
    /// Unless it is inside and aligned.
    pub fn word(&self, offset: usize) -> &AtomicU32 {
        let pointer = self.inside(offset, 4);
        // SAFETY: aligned and inside the mapping, which lives as long as `self`; all accesses to it are atomic.
        unsafe { AtomicU32::from_ptr(pointer.as_ptr().cast()) }
    }

    /// As [`SharedFile::word`], of eight bytes.
    ///
    /// # Panics
    /// As [`SharedFile::word`].
    pub fn long_word(&self, offset: usize) -> &AtomicU64 {
        let pointer = self.inside(offset, 8);
        // SAFETY: as above.
        unsafe { AtomicU64::from_ptr(pointer.as_ptr().cast()) }
    }

    fn inside(&self, offset: usize, length: u32) -> NonNull<u8> {
        assert!(offset.is_multiple_of(length as usize), "{offset} is not aligned to {length}");
        self.pointer(offset as u64, length).unwrap_or_else(|| panic!("{offset} of {} shared bytes", self.bytes()))
    }

    /// Copies bytes that the other side may be writing; each is read once.
    ///
    /// # Safety
    /// Nobody else has a reference to the bytes behind `into`, and the range is inside this file.
    pub unsafe fn copy_out(&self, offset: u64, length: u32, into: NonNull<u8>) {
        let Some(from) = self.pointer(offset, length) else {
            panic!("{offset}+{length} of {} shared bytes", self.bytes())
        };
        // SAFETY: both ranges are as long by our caller's word, and inside their memory.
        unsafe { copy_racing(from, into, length as usize) };
    }

    /// Copies bytes to where the other side may read and write meanwhile; each is written once.
    ///
    /// # Safety
    /// Nobody writes the bytes behind `from` meanwhile, and this file was mapped to be written.
    pub unsafe fn copy_in(&self, offset: u64, length: u32, from: NonNull<u8>) {
        let Some(into) = self.pointer(offset, length) else {
            panic!("{offset}+{length} of {} shared bytes", self.bytes())
        };
        // SAFETY: both ranges are as long by our caller's word, and inside their memory.
        unsafe { copy_into_racing(from, into, length as usize) };
    }
}

/// # Safety
/// `length` bytes behind both are memory, and those behind `into` are ours alone.
unsafe fn copy_racing(from: NonNull<u8>, into: NonNull<u8>, length: usize) {
    let (from, into) = (from.as_ptr(), into.as_ptr());
    let byte = |at: usize| {
        // SAFETY: inside by our caller's word; atomic, so that a write at the same time is no race.
        let value = unsafe { AtomicU8::from_ptr(from.add(at)) }.load(Ordering::Relaxed);
        // SAFETY: inside by our caller's word.
        unsafe { into.add(at).write(value) };
    };
    let word = |at: usize| {
        // SAFETY: inside, and aligned; atomic, so that a write at the same time is no race.
        let value = unsafe { AtomicU64::from_ptr(from.add(at).cast()) }.load(Ordering::Relaxed);
        // SAFETY: inside by our caller's word.
        unsafe { into.add(at).cast::<u64>().write_unaligned(value) };
    };
    by_words(from.align_offset(8), length, byte, word);
}

/// # Safety
/// `length` bytes behind both are memory, and nobody writes those behind `from` meanwhile.
unsafe fn copy_into_racing(from: NonNull<u8>, into: NonNull<u8>, length: usize) {
    let (from, into) = (from.as_ptr(), into.as_ptr());
    let byte = |at: usize| {
        // SAFETY: inside by our caller's word.
        let value = unsafe { from.add(at).read() };
        // SAFETY: inside by our caller's word; atomic, so that an access at the same time is no race.
        unsafe { AtomicU8::from_ptr(into.add(at)) }.store(value, Ordering::Relaxed);
    };
    let word = |at: usize| {
        // SAFETY: inside by our caller's word.
        let value = unsafe { from.add(at).cast::<u64>().read_unaligned() };
        // SAFETY: inside, and aligned; atomic, so that an access at the same time is no race.
        unsafe { AtomicU64::from_ptr(into.add(at).cast()) }.store(value, Ordering::Relaxed);
    };
    by_words(into.align_offset(8), length, byte, word);
}

/// Single bytes up to `head`, where the side that is shared is aligned, and behind the last whole word.
fn by_words(head: usize, length: usize, byte: impl Fn(usize), word: impl Fn(usize)) {
    let head = head.min(length);
    let words = (length - head) / 8;
    (0..head).for_each(&byte);
    (0..words).for_each(|number| word(head + 8 * number));
    (head + 8 * words..length).for_each(byte);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_other_side_has_the_same_bytes_and_can_neither_cut_nor_be_cut() {
        let ours = SharedFile::new("test", 8192).unwrap();
        let theirs = SharedFile::of_other(ours.file().try_clone_to_owned().unwrap(), 8192, true).unwrap();
        theirs.word(4096).store(7, Ordering::Relaxed);
        assert_eq!(ours.word(4096).load(Ordering::Relaxed), 7);
        assert!(rustix::fs::ftruncate(theirs.file(), 4096).is_err());
        assert!(SharedFile::of_other(ours.file().try_clone_to_owned().unwrap(), 8193, true).is_err());
    }

    #[test]
    fn who_only_reads_cannot_map_it_to_write() {
        let ours = SharedFile::read_by_others("test", 4096).unwrap();
        let theirs = |is_written| SharedFile::of_other(ours.file().try_clone_to_owned().unwrap(), 4096, is_written);
        assert!(theirs(true).is_err());
        ours.long_word(8).store(9, Ordering::Relaxed);
        assert_eq!(theirs(false).unwrap().long_word(8).load(Ordering::Relaxed), 9);
    }

    #[test]
    fn what_is_no_memory_is_refused() {
        let event = crate::event::Event::new().unwrap();
        assert!(SharedFile::of_other(event.as_fd().try_clone_to_owned().unwrap(), 1, false).is_err());
        let unsealed = rustix::fs::memfd_create("test", MemfdFlags::ALLOW_SEALING).unwrap();
        rustix::fs::ftruncate(&unsealed, 4096).unwrap();
        assert!(SharedFile::of_other(unsealed, 4096, false).is_err());
    }

    #[test]
    fn ranges_are_copied_whatever_their_alignment() {
        let mut bytes: Vec<u64> = (0..64).map(|at| at * 0x0101_0101_0101_0101).collect();
        let first = NonNull::new(bytes.as_mut_ptr().cast::<u8>()).unwrap();
        for (from, length) in [(0, 0), (1, 6), (3, 5), (7, 30), (8, 64), (511, 1), (13, 400)] {
            let mut into = vec![0xaa_u8; length + 1];
            let pointer = NonNull::new(into.as_mut_ptr()).unwrap();
            // SAFETY: both are longer than the range.
            unsafe { copy_racing(first.add(from), pointer, length) };
            let wanted: Vec<u8> = (from..from + length).map(|at| (at / 8) as u8).collect();
            assert!(into[..length] == wanted[..] && into[length] == 0xaa, "{from}+{length}");
        }
    }
}
