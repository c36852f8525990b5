//! Flash in a regular file or a block device.
//!
//! Opened with O_DIRECT where the file system can, so that completions speak of the device and no page cache doubles
//! the memory budget; buffered elsewhere, with the same durability (a force-unit-access write and a flush reach the
//! device either way). Blocks are reserved at creation and stay reserved: a discard keeps them. The descriptor that
//! carries the data also carries the lock (`flock`), so a lock cannot outlive or miss its data.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Seek, SeekFrom};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use super::alignment::{self, Contents};
use super::blocking::BlockingQueue;
use super::claim::{self, FileClaim};
use super::error::FlashError;
use super::uring::{self, UringQueue};
use super::{Flash, FlashQueue};
use crate::env::Env;
use crate::local_memory::LocalMemory;

/// How a file's bytes move.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum IoEngine {
    /// io_uring, or the blocking engine where the kernel refuses it.
    #[default]
    Auto,
    /// io_uring, or an error.
    Uring,
    /// `pread` and `pwrite` on one drive thread for each queue pair.
    Blocking,
}

/// A file or block device as flash.
pub struct FileFlash {
    data: Arc<DataFile>,
    capacity_bytes: AtomicU64,
    /// Held while the file grows.
    growing: Mutex<()>,
    engine: IoEngine,
    env: Env,
}

/// The open descriptor; every queue shares it.
pub(super) struct DataFile {
    file: File,
    /// Changes when a file that is whole gets its name.
    path: Mutex<PathBuf>,
    sector_bytes: u32,
    direct: bool,
}

impl DataFile {
    pub(super) fn fd(&self) -> RawFd {
        self.file.as_raw_fd()
    }

    pub(super) fn file(&self) -> &File {
        &self.file
    }

    fn path(&self) -> PathBuf {
        self.path.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// Through the page cache any address will do; this is the drive's smallest.
const BUFFERED_SECTOR_BYTES: u32 = 512;
/// The unit of a new file's size.
const BLOCK_BYTES: u64 = 4096;
/// A store is its owner's alone.
const FILE_MODE: u32 = 0o600;

impl Drop for DataFile {
    fn drop(&mut self) {
        // Closing would do, but a ring that held the file too lets go of it some time after it is closed.
        // SAFETY: the descriptor is open; flock touches no memory.
        unsafe { libc::flock(self.fd(), libc::LOCK_UN) };
    }
}

impl FileFlash {
    /// Makes a file of `capacity_bytes` (rounded down to 4096) with all its blocks reserved, or takes a block device
    /// that has at least as many. The new file and its name are durable when this returns; its contents read as zero,
    /// a device's are whatever was there.
    pub fn create(path: &Path, capacity_bytes: u64, engine: IoEngine, env: &Env) -> Result<FileFlash, FlashError> {
        match fs::metadata(path) {
            Ok(metadata) if metadata.file_type().is_block_device() => {
                FileFlash::open(path, engine, env)?.with_capacity(capacity_bytes)
            }
            Ok(metadata) if metadata.is_file() => Err(FlashError::AlreadyExists { path: path.into() }),
            Ok(_) => Err(FlashError::NotFileOrDevice { path: path.into() }),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                FileFlash::create_in(FileClaim::take_new(path, FILE_MODE)?, capacity_bytes, engine, env)
            }
            Err(source) => Err(FlashError::Io { path: path.into(), doing: "look at", source }),
        }
    }

    /// As [`FileFlash::create`], in a file that is claimed already. Whatever it holds is lost; where this fails, the file is gone.
    pub fn create_in(
        claim: FileClaim,
        capacity_bytes: u64,
        engine: IoEngine,
        env: &Env,
    ) -> Result<FileFlash, FlashError> {
        let path = claim.path().to_path_buf();
        let made = fill_with_zeros(claim, capacity_bytes, engine, env);
        if made.is_err() {
            // Ours, and of no use. The error that made this necessary is the one to tell.
            let _ = fs::remove_file(path);
        }
        made
    }

    /// Only the first `capacity_bytes` (rounded down to 4096) of it, of which it must have as many.
    pub fn with_capacity(self, capacity_bytes: u64) -> Result<FileFlash, FlashError> {
        let (path, available_bytes) = (self.data.path(), self.capacity_bytes());
        let needed_bytes = whole_blocks(&path, capacity_bytes)?;
        if available_bytes < needed_bytes {
            return Err(FlashError::TooSmall { path, capacity_bytes: available_bytes, needed_bytes });
        }
        Ok(FileFlash { capacity_bytes: AtomicU64::new(needed_bytes), ..self })
    }

    /// Gives the file another name in the same folder, durably; an error if something has that name already.
    pub fn rename(&self, to: &Path) -> Result<(), FlashError> {
        let mut path = self.data.path.lock().unwrap_or_else(PoisonError::into_inner);
        claim::rename_new(&path, to).map_err(|source| match source.kind() {
            io::ErrorKind::AlreadyExists => FlashError::AlreadyExists { path: to.into() },
            _ => FlashError::Io { path: to.into(), doing: "give its name to", source },
        })?;
        *path = to.into();
        let doing = "make durable the name of";
        claim::sync_folder_of(to).map_err(|source| FlashError::Io { path: to.into(), doing, source })
    }

    /// Opens a file or device, for this process alone. Its capacity is its size, rounded down to sectors.
    pub fn open(path: &Path, engine: IoEngine, env: &Env) -> Result<FileFlash, FlashError> {
        let metadata = fs::metadata(path).map_err(|source| match source.kind() {
            io::ErrorKind::NotFound => FlashError::NotFound { path: path.into() },
            _ => FlashError::Io { path: path.into(), doing: "look at", source },
        })?;
        let mut options = OpenOptions::new();
        options.read(true).write(true);
        let flags = if metadata.file_type().is_block_device() {
            libc::O_EXCL // On a device: refused while it is mounted.
        } else if metadata.is_file() {
            0
        } else {
            return Err(FlashError::NotFileOrDevice { path: path.into() });
        };
        let file = claim::open_locked(options.custom_flags(flags), path)?;
        FileFlash::from_file(file, path, Contents::Kept, engine, env)
    }

    #[cfg(test)]
    pub(super) fn data(&self) -> &Arc<DataFile> {
        &self.data
    }

    fn from_file(
        file: File,
        path: &Path,
        contents: Contents,
        engine: IoEngine,
        env: &Env,
    ) -> Result<FileFlash, FlashError> {
        let failed = |doing| move |source| FlashError::Io { path: path.into(), doing, source };
        let size_bytes = (&file).seek(SeekFrom::End(0)).map_err(failed("measure"))?;
        let doing = "find out how to read";
        let direct_sector_bytes = alignment::go_direct(&file, contents).map_err(failed(doing))?;
        let direct = direct_sector_bytes.is_some();
        let sector_bytes = direct_sector_bytes.unwrap_or(BUFFERED_SECTOR_BYTES);
        if !direct {
            tracing::info!(path = %path.display(), "no O_DIRECT here: bytes pass through the page cache");
        }
        let capacity_bytes = size_bytes - size_bytes % u64::from(sector_bytes);
        if capacity_bytes == 0 {
            return Err(FlashError::TooSmall {
                path: path.into(),
                capacity_bytes: size_bytes,
                needed_bytes: u64::from(sector_bytes),
            });
        }
        let engine = choose_engine(engine, uring::probe)?;
        let data = DataFile { file, path: Mutex::new(path.into()), sector_bytes, direct };
        let flash = FileFlash {
            data: Arc::new(data),
            capacity_bytes: AtomicU64::new(capacity_bytes),
            growing: Mutex::new(()),
            engine,
            env: env.clone(),
        };
        tracing::info!(flash = flash.describe(), "flash opened");
        Ok(flash)
    }
}

impl Flash for FileFlash {
    fn capacity_bytes(&self) -> u64 {
        self.capacity_bytes.load(Ordering::SeqCst)
    }

    /// Reserves blocks for the new part as creation does for all; a device is as large as it is.
    fn grow(&self, capacity_bytes: u64) -> Result<(), FlashError> {
        let _growing = self.growing.lock().unwrap_or_else(PoisonError::into_inner);
        let DataFile { file, sector_bytes, .. } = &*self.data;
        let path: &Path = &self.data.path();
        let now_bytes = self.capacity_bytes();
        let capacity_bytes = capacity_bytes.next_multiple_of(u64::from(*sector_bytes));
        if capacity_bytes <= now_bytes {
            return Ok(());
        }
        let failed = |doing| move |source| FlashError::Io { path: path.into(), doing, source };
        let metadata = file.metadata().map_err(failed("look at"))?;
        if metadata.file_type().is_block_device() {
            let size_bytes = (&*file).seek(SeekFrom::End(0)).map_err(failed("measure"))?;
            if size_bytes < capacity_bytes {
                let needed_bytes = capacity_bytes;
                let path = path.into();
                return Err(FlashError::TooSmall { path, capacity_bytes: size_bytes, needed_bytes });
            }
        } else if let Err(error) = reserve(file, path, now_bytes, capacity_bytes) {
            // What was reserved is nobody's yet. The error that made this necessary is the one to tell.
            let _ = file.set_len(metadata.len());
            return Err(error);
        }
        file.sync_all().map_err(failed("make durable the new size of"))?;
        self.capacity_bytes.store(capacity_bytes, Ordering::SeqCst);
        Ok(())
    }

    fn sector_bytes(&self) -> u32 {
        self.data.sector_bytes
    }

    fn describe(&self) -> String {
        let engine = if self.engine == IoEngine::Blocking { "pread/pwrite on drive threads" } else { "io_uring" };
        let cache = if self.data.direct { "direct" } else { "buffered" };
        format!(
            "{}: {} bytes, sectors of {}, {cache}, {engine}",
            self.data.path().display(),
            self.capacity_bytes(),
            self.data.sector_bytes
        )
    }

    fn place(&self) -> String {
        self.data.path().display().to_string()
    }

    fn open_queue(&self, local: &LocalMemory, depth: u32) -> io::Result<Box<dyn FlashQueue>> {
        if self.engine == IoEngine::Blocking {
            return Ok(Box::new(BlockingQueue::new(self.data.clone(), local, &self.env)?));
        }
        Ok(Box::new(UringQueue::new(self.data.clone(), local, depth, self.data.sector_bytes)?))
    }

    fn open_queue_of_one_thread(&self, local: &LocalMemory, depth: u32) -> io::Result<Box<dyn FlashQueue>> {
        if self.engine == IoEngine::Blocking {
            return self.open_queue(local, depth);
        }
        Ok(Box::new(UringQueue::of_one_thread(self.data.clone(), local, depth, self.data.sector_bytes)?))
    }
}

fn whole_blocks(path: &Path, capacity_bytes: u64) -> Result<u64, FlashError> {
    match capacity_bytes - capacity_bytes % BLOCK_BYTES {
        0 => Err(FlashError::TooSmall { path: path.into(), capacity_bytes, needed_bytes: BLOCK_BYTES }),
        whole_bytes => Ok(whole_bytes),
    }
}

fn fill_with_zeros(
    claim: FileClaim,
    capacity_bytes: u64,
    engine: IoEngine,
    env: &Env,
) -> Result<FileFlash, FlashError> {
    let path = claim.path().to_path_buf();
    let path = path.as_path();
    let failed = |doing| move |source| FlashError::Io { path: path.into(), doing, source };
    let file = claim.into_file();
    let capacity_bytes = whole_blocks(path, capacity_bytes)?;
    file.set_len(0).map_err(failed("empty"))?;
    reserve(&file, path, 0, capacity_bytes)?;
    let flash = FileFlash::from_file(file, path, Contents::New, engine, env)?;
    let synced = flash.data.file.sync_all().and_then(|()| claim::sync_folder_of(path));
    synced.map_err(failed("make durable the new file"))?;
    Ok(flash)
}

/// Reserves blocks, so that a later write cannot find the file system full.
fn reserve(file: &File, path: &Path, from_bytes: u64, capacity_bytes: u64) -> Result<(), FlashError> {
    let needed_bytes = capacity_bytes - from_bytes;
    let (Ok(from), Ok(length)) = (libc::off_t::try_from(from_bytes), libc::off_t::try_from(needed_bytes)) else {
        return Err(FlashError::NoSpace { path: path.into(), needed_bytes });
    };
    loop {
        // `posix_fallocate` writes where the file system has no reservation of its own.
        // SAFETY: the descriptor is open; the call touches no memory.
        match unsafe { libc::posix_fallocate(file.as_raw_fd(), from, length) } {
            0 => return Ok(()),
            libc::EINTR => {}
            libc::ENOSPC | libc::EFBIG | libc::EDQUOT => {
                return Err(FlashError::NoSpace { path: path.into(), needed_bytes });
            }
            errno => {
                let source = io::Error::from_raw_os_error(errno);
                return Err(FlashError::Io { path: path.into(), doing: "reserve space for", source });
            }
        }
    }
}

fn choose_engine(asked: IoEngine, probe: impl Fn() -> io::Result<()>) -> Result<IoEngine, FlashError> {
    if asked == IoEngine::Blocking {
        return Ok(IoEngine::Blocking);
    }
    match probe() {
        Ok(()) => Ok(IoEngine::Uring),
        Err(source) if asked == IoEngine::Uring => Err(FlashError::UringRefused { source }),
        Err(source) => {
            tracing::info!(%source, "io_uring refused: one blocking drive thread for each queue pair instead");
            Ok(IoEngine::Blocking)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::flash::test_path::TestPath;

    const CAPACITY_BYTES: u64 = 1 << 20;

    fn create(path: &TestPath) -> Result<FileFlash, FlashError> {
        FileFlash::create(path, CAPACITY_BYTES + 100, IoEngine::Auto, &Env::system())
    }

    fn open(path: &Path) -> Result<FileFlash, FlashError> {
        FileFlash::open(path, IoEngine::Auto, &Env::system())
    }

    #[test]
    fn a_new_file_is_reserved_and_opens_again() {
        let path = TestPath::new();
        let flash = create(&path).unwrap();
        assert_eq!(flash.capacity_bytes(), CAPACITY_BYTES);
        let reserved_bytes = std::os::unix::fs::MetadataExt::blocks(&flash.data.file.metadata().unwrap()) * 512;
        assert!(reserved_bytes >= CAPACITY_BYTES);
        drop(flash);
        assert_eq!(open(&path).unwrap().capacity_bytes(), CAPACITY_BYTES);
    }

    #[test]
    fn a_file_grows_with_its_blocks_reserved_and_stays_as_it_is_where_it_cannot() {
        let path = TestPath::new();
        let flash = create(&path).unwrap();
        flash.grow(CAPACITY_BYTES / 2).unwrap();
        assert_eq!(flash.capacity_bytes(), CAPACITY_BYTES, "it never shrinks");
        flash.grow(3 * CAPACITY_BYTES).unwrap();
        assert_eq!(flash.capacity_bytes(), 3 * CAPACITY_BYTES);
        let reserved_bytes = std::os::unix::fs::MetadataExt::blocks(&flash.data.file.metadata().unwrap()) * 512;
        assert!(reserved_bytes >= 3 * CAPACITY_BYTES);
        assert!(matches!(flash.grow(1 << 62), Err(FlashError::NoSpace { .. })));
        drop(flash);
        assert_eq!(open(&path).unwrap().capacity_bytes(), 3 * CAPACITY_BYTES);
    }

    #[test]
    fn one_opener_at_a_time() {
        let path = TestPath::new();
        let flash = create(&path).unwrap();
        assert!(matches!(open(&path), Err(FlashError::Locked { .. })));
        assert!(matches!(create(&path), Err(FlashError::AlreadyExists { .. })));
        drop(flash);
        assert!(open(&path).is_ok());
    }

    #[test]
    fn a_queue_keeps_the_lock() {
        let path = TestPath::new();
        let flash = create(&path).unwrap();
        let queue = flash.open_queue(&LocalMemory::new(4096).unwrap(), 1).unwrap();
        drop(flash);
        assert!(matches!(open(&path), Err(FlashError::Locked { .. })));
        drop(queue);
        assert!(open(&path).is_ok());
    }

    #[test]
    fn what_cannot_be_flash_is_refused() {
        let path = TestPath::new();
        assert!(matches!(open(&path), Err(FlashError::NotFound { .. })));
        assert!(matches!(open(Path::new("/dev/null")), Err(FlashError::NotFileOrDevice { .. })));
        assert!(matches!(open(&std::env::temp_dir()), Err(FlashError::NotFileOrDevice { .. })));
        fs::write(&*path, [1; 100]).unwrap();
        assert!(matches!(open(&path), Err(FlashError::TooSmall { capacity_bytes: 100, .. })));
    }

    #[test]
    fn a_file_that_does_not_fit_leaves_nothing_behind() {
        let path = TestPath::new();
        let made = FileFlash::create(&path, 1 << 62, IoEngine::Auto, &Env::system());
        assert!(matches!(made, Err(FlashError::NoSpace { .. })));
        assert!(!path.exists());
    }

    #[test]
    fn a_refused_ring_falls_back_only_when_nobody_insists() {
        let refused = || Err(io::Error::from_raw_os_error(libc::EPERM));
        assert!(matches!(choose_engine(IoEngine::Auto, refused), Ok(IoEngine::Blocking)));
        assert!(matches!(choose_engine(IoEngine::Uring, refused), Err(FlashError::UringRefused { .. })));
        assert!(matches!(choose_engine(IoEngine::Auto, || Ok(())), Ok(IoEngine::Uring)));
    }
}
