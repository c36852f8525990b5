//! Words in an anonymous mapping of their own: the memory of an index partition, of the DRAM tier and of the write buffers' tables. What is let go of goes
//! back to the system at once, and no allocator's fragmentation stands between the accounted bytes and the real ones.

use std::io;
use std::ops::Deref;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// Bytes that are mapped now by all regions that share the account.
pub type Account = Arc<AtomicUsize>;

/// Zeroed words, aligned to a page. Shared freely: they are atomic.
pub struct Region {
    words: NonNull<AtomicU64>,
    len: usize,
    account: Account,
}

// SAFETY: the region owns its mapping, which any thread may unmap, and gives out shared references to atomics only.
unsafe impl Send for Region {}
// SAFETY: as above.
unsafe impl Sync for Region {}

/// The system's page size.
pub fn page_bytes() -> usize {
    // SAFETY: a plain query with no memory involved.
    usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(4096)
}

impl Region {
    /// Maps `len` words, which must be a whole number of pages and not none.
    pub fn new(len: usize, account: &Account) -> io::Result<Region> {
        let bytes = len.checked_mul(size_of::<AtomicU64>()).ok_or(io::ErrorKind::OutOfMemory)?;
        assert!(bytes > 0 && bytes.is_multiple_of(page_bytes()), "a region of {bytes} bytes");
        // SAFETY: a new private mapping at an address that the system chooses touches no memory of ours.
        let address = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                bytes,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        if address == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let words = NonNull::new(address.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        account.fetch_add(bytes, Ordering::Relaxed);
        Ok(Region { words, len, account: account.clone() })
    }

    /// As [`Region::new`], in huge pages where the system has some: for memory that is read at random places.
    pub fn new_huge(len: usize, account: &Account) -> io::Result<Region> {
        let region = Region::new(len, account)?;
        // SAFETY: advice about the mapping that the region owns, whole; what it holds stays as it is.
        let advised = unsafe { libc::madvise(region.words.as_ptr().cast(), region.bytes(), libc::MADV_HUGEPAGE) };
        if advised != 0 {
            // A kernel without huge pages: small ones do.
            debug_assert_eq!(io::Error::last_os_error().raw_os_error(), Some(libc::EINVAL));
        }
        Ok(region)
    }

    pub fn bytes(&self) -> usize {
        self.len * size_of::<AtomicU64>()
    }
}

impl Deref for Region {
    type Target = [AtomicU64];

    #[inline(always)]
    fn deref(&self) -> &[AtomicU64] {
        // SAFETY: the mapping holds `len` zeroed or since stored words, is aligned to a page and lives as long as self.
        unsafe { std::slice::from_raw_parts(self.words.as_ptr(), self.len) }
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: this is exactly the mapping that `new` made, and no reference outlives self.
        let result = unsafe { libc::munmap(self.words.as_ptr().cast(), self.bytes()) };
        debug_assert_eq!(result, 0, "munmap of a whole mapping does not fail");
        self.account.fetch_sub(self.bytes(), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_words_than_there_are_addresses_are_refused() {
        let page_words = page_bytes() / 8;
        assert!(Region::new((1 << 61) + page_words, &Account::default()).is_err());
    }

    #[test]
    fn is_zeroed_and_accounted() {
        let account = Account::default();
        for make in [Region::new, Region::new_huge] {
            let region = make(page_bytes() / 8 * 3, &account).expect("a few pages");
            assert!(region.iter().all(|word| word.load(Ordering::Relaxed) == 0));
            region[region.len() - 1].store(7, Ordering::Relaxed);
            assert_eq!(account.load(Ordering::Relaxed), page_bytes() * 3);
            drop(region);
            assert_eq!(account.load(Ordering::Relaxed), 0);
        }
    }

    #[test]
    fn a_mapping_that_cannot_be_is_an_error() {
        let account = Account::default();
        assert!(Region::new((1 << 57) / 8, &account).is_err());
        assert_eq!(account.load(Ordering::Relaxed), 0);
    }
}
