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
    path: PathBuf,
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
}

/// Through the page cache any address will do; this is the drive's smallest.
const BUFFERED_SECTOR_BYTES: u32 = 512;
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
        let capacity_bytes = capacity_bytes - capacity_bytes % 4096;
        if capacity_bytes == 0 {
            return Err(FlashError::TooSmall { path: path.into(), capacity_bytes: 0, needed_bytes: 4096 });
        }
        match fs::metadata(path) {
            Ok(metadata) if metadata.file_type().is_block_device() => {
                let flash = FileFlash::open(path, engine, env)?;
                let available_bytes = flash.capacity_bytes();
                if available_bytes < capacity_bytes {
                    return Err(FlashError::TooSmall {
                        path: path.into(),
                        capacity_bytes: available_bytes,
                        needed_bytes: capacity_bytes,
                    });
                }
                Ok(FileFlash { capacity_bytes: AtomicU64::new(capacity_bytes), ..flash })
            }
            Ok(metadata) if metadata.is_file() => Err(FlashError::AlreadyExists { path: path.into() }),
            Ok(_) => Err(FlashError::NotFileOrDevice { path: path.into() }),
            Err(error) if error.kind() == io::ErrorKind::NotFound => create_file(path, capacity_bytes, engine, env),
            Err(source) => Err(FlashError::Io { path: path.into(), doing: "look at", source }),
        }
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
        let file = open_locked(options.custom_flags(flags), path)?;
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
        let data = DataFile { file, path: path.into(), sector_bytes, direct };
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
        let DataFile { file, path, sector_bytes, .. } = &*self.data;
        let now_bytes = self.capacity_bytes();
        let capacity_bytes = capacity_bytes.next_multiple_of(u64::from(*sector_bytes));
        if capacity_bytes <= now_bytes {
            return Ok(());
        }
        let failed = |doing| move |source| FlashError::Io { path: path.clone(), doing, source };
        let metadata = file.metadata().map_err(failed("look at"))?;
        if metadata.file_type().is_block_device() {
            let size_bytes = (&*file).seek(SeekFrom::End(0)).map_err(failed("measure"))?;
            if size_bytes < capacity_bytes {
                let (path, needed_bytes) = (path.clone(), capacity_bytes);
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
            self.data.path.display(),
            self.capacity_bytes(),
            self.data.sector_bytes
        )
    }

    fn place(&self) -> String {
        self.data.path.display().to_string()
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

fn create_file(path: &Path, capacity_bytes: u64, engine: IoEngine, env: &Env) -> Result<FileFlash, FlashError> {
    let file = open_locked(OpenOptions::new().read(true).write(true).create_new(true).mode(0o600), path)?;
    let made = reserve(&file, path, 0, capacity_bytes)
        .and_then(|()| FileFlash::from_file(file, path, Contents::New, engine, env))
        .and_then(|flash| {
            let doing = "make durable the new file";
            let synced = sync_name(&flash.data.file, path);
            synced.map(|()| flash).map_err(|source| FlashError::Io { path: path.into(), doing, source })
        });
    if made.is_err() {
        // Ours, and of no use. The error that made this necessary is the one to tell.
        let _ = fs::remove_file(path);
    }
    made
}

fn open_locked(options: &mut OpenOptions, path: &Path) -> Result<File, FlashError> {
    let file = options.open(path).map_err(|source| match source.raw_os_error() {
        Some(libc::EEXIST) => FlashError::AlreadyExists { path: path.into() },
        Some(libc::ENOENT) => FlashError::NotFound { path: path.into() },
        Some(libc::EBUSY) => FlashError::DeviceBusy { path: path.into() },
        _ => FlashError::Io { path: path.into(), doing: "open", source },
    })?;
    // SAFETY: the descriptor is open; flock touches no memory.
    if unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) } == 0 {
        return Ok(file);
    }
    let source = io::Error::last_os_error();
    match source.raw_os_error() {
        Some(libc::EWOULDBLOCK) => Err(FlashError::Locked { path: path.into() }),
        _ => Err(FlashError::Io { path: path.into(), doing: "lock", source }),
    }
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

fn sync_name(file: &File, path: &Path) -> io::Result<()> {
    file.sync_all()?;
    let parent = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    File::open(parent)?.sync_all()
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
