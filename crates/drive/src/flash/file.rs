//! Flash in a regular file or a block device.
//!
//! Opened with O_DIRECT if the file system supports it, so that completions mean the device and no page cache doubles the memory budget;
//! otherwise buffered, with the same durability (a force-unit-access write and a flush reach the device either way). Blocks are reserved at
//! creation, and again when the file is opened (`reserve`); a discard keeps them. The descriptor that carries the data also holds the lock
//! (`flock`), so lock and data cannot get apart. A writer is alone; readers share the lock, and reserve nothing.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Seek, SeekFrom};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use super::alignment::{self, Contents};
use super::blocking::BlockingQueue;
use super::claim::{self, FileClaim, Lock};
use super::data_file::DataFile;
use super::error::FlashError;
use super::reserve::{self, reserve, reserve_missing};
use super::uring::{self, UringQueue};
use super::{Flash, FlashQueue, Health, Reservation};
use crate::env::Env;
use crate::locks::whole;
use crate::memory::PairMemory;

/// How a file's bytes move.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum IoEngine {
    /// io_uring, or the blocking engine if the kernel refuses io_uring.
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

/// The page cache accepts any alignment; this is the smallest sector of a drive.
const BUFFERED_SECTOR_BYTES: u32 = 512;
/// The unit of a new file's size.
const BLOCK_BYTES: u64 = 4096;
/// Only its owner may read and write a store.
const FILE_MODE: u32 = 0o600;

impl FileFlash {
    /// Makes a file of `capacity_bytes` (rounded down to 4096) with all its blocks reserved, or takes a block device that has at least as
    /// many. The new file and its name are durable when this returns. A file's contents read as zero; a device keeps its contents.
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

    /// Like [`FileFlash::create`], in a file that is already locked. Its contents are lost; if this fails, the file is deleted.
    pub fn create_in(
        claim: FileClaim,
        capacity_bytes: u64,
        engine: IoEngine,
        env: &Env,
    ) -> Result<FileFlash, FlashError> {
        let path = claim.path().to_path_buf();
        let made = fill_with_zeros(claim, capacity_bytes, engine, env);
        if made.is_err() {
            // The file is ours and useless. Report the first error, not this one's.
            let _ = fs::remove_file(path);
        }
        made
    }

    /// Uses only the first `capacity_bytes` (rounded down to 4096). An error if it has fewer.
    pub fn with_capacity(self, capacity_bytes: u64) -> Result<FileFlash, FlashError> {
        let (path, available_bytes) = (self.data.path(), self.capacity_bytes());
        let needed_bytes = whole_blocks(&path, capacity_bytes)?;
        if available_bytes < needed_bytes {
            return Err(FlashError::TooSmall { path, capacity_bytes: available_bytes, needed_bytes });
        }
        Ok(FileFlash { capacity_bytes: AtomicU64::new(needed_bytes), ..self })
    }

    /// Renames the file within its folder, durably. An error if the name exists.
    pub fn rename(&self, to: &Path) -> Result<(), FlashError> {
        self.data.rename(to, |from| claim::rename_new(from, to)).map_err(|source| match source.kind() {
            io::ErrorKind::AlreadyExists => FlashError::AlreadyExists { path: to.into() },
            _ => FlashError::Io { path: to.into(), doing: "give its name to", source },
        })?;
        let doing = "make durable the name of";
        claim::sync_folder_of(to).map_err(|source| FlashError::Io { path: to.into(), doing, source })
    }

    /// Opens a file or device for this process alone. Its capacity is its size, rounded down to sectors.
    pub fn open(path: &Path, engine: IoEngine, env: &Env) -> Result<FileFlash, FlashError> {
        // On a device, O_EXCL refuses one that is mounted.
        let flags = if is_device(path)? { libc::O_EXCL } else { 0 };
        let mut options = OpenOptions::new();
        let file = claim::open_locked(options.read(true).write(true).custom_flags(flags), path, Lock::Alone)?;
        if reserve_missing(&file, path)? == Reservation::Unsupported {
            reserve::warn_of_missing(&file, path);
        }
        FileFlash::from_file(file, path, Contents::Kept, engine, env)
    }

    /// Opens a file or device read-only, beside other readers; works without write permission and on a read-only file system. Commands that
    /// write fail.
    pub fn open_read_only(path: &Path, engine: IoEngine, env: &Env) -> Result<FileFlash, FlashError> {
        is_device(path)?;
        let file = claim::open_locked(OpenOptions::new().read(true), path, Lock::Shared)?;
        FileFlash::from_file(file, path, Contents::Kept, engine, env)
    }

    /// A ring, or a thread if the kernel refuses this ring. Each queue tries for itself, because limits on locked memory may allow some
    /// rings and not others.
    fn ring_or_thread<Q: FlashQueue + 'static>(
        &self,
        memory: &PairMemory,
        ring: impl FnOnce() -> io::Result<Q>,
    ) -> io::Result<Box<dyn FlashQueue>> {
        if self.engine != IoEngine::Blocking {
            match ring() {
                Ok(queue) => return Ok(Box::new(queue)),
                Err(error) if self.engine == IoEngine::Uring => return Err(error),
                Err(error) => self.data.say_ring_refused(&error),
            }
        }
        Ok(Box::new(BlockingQueue::new(self.data.clone(), memory, &self.env)?))
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
        if engine == IoEngine::Uring {
            uring::probe().map_err(|source| FlashError::UringRefused { source })?;
        }
        let flash = FileFlash {
            data: Arc::new(DataFile::new(file, path, sector_bytes, direct)),
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

    /// Reserves blocks for the new part like creation does for all. A device must be large enough already.
    fn grow(&self, capacity_bytes: u64) -> Result<(), FlashError> {
        let _growing = whole(self.growing.lock());
        let (file, sector_bytes) = (self.data.file(), self.data.sector_bytes());
        let path: &Path = &self.data.path();
        let now_bytes = self.capacity_bytes();
        let capacity_bytes = capacity_bytes.next_multiple_of(u64::from(sector_bytes));
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
            // Nobody uses the new blocks yet. Report the first error, not this one's.
            let _ = file.set_len(metadata.len());
            return Err(error);
        }
        file.sync_all().map_err(failed("make durable the new size of"))?;
        self.capacity_bytes.store(capacity_bytes, Ordering::SeqCst);
        Ok(())
    }

    fn health(&self) -> Health {
        self.data.health()
    }

    fn sector_bytes(&self) -> u32 {
        self.data.sector_bytes()
    }

    fn atomic_write_bytes(&self) -> u32 {
        self.data.atomic_write_bytes()
    }

    fn describe(&self) -> String {
        let engine = match self.engine {
            IoEngine::Auto => "io_uring where it is allowed",
            IoEngine::Uring => "io_uring",
            IoEngine::Blocking => "pread/pwrite on drive threads",
        };
        let cache = if self.data.is_direct() { "direct" } else { "buffered" };
        format!(
            "{}: {} bytes, sectors of {}, {cache}, {engine}",
            self.data.path().display(),
            self.capacity_bytes(),
            self.data.sector_bytes()
        )
    }

    fn reserve(&self) -> Result<Reservation, FlashError> {
        reserve_missing(self.data.file(), &self.data.path())
    }

    fn place(&self) -> String {
        self.data.path().display().to_string()
    }

    fn open_queue(&self, memory: &PairMemory, depth: u32) -> io::Result<Box<dyn FlashQueue>> {
        self.ring_or_thread(memory, || UringQueue::new(self.data.clone(), memory, depth))
    }

    fn open_queue_of_one_thread(&self, memory: &PairMemory, depth: u32) -> io::Result<Box<dyn FlashQueue>> {
        self.ring_or_thread(memory, || UringQueue::of_one_thread(self.data.clone(), memory, depth))
    }
}

/// Whether it is a block device. An error if it is no regular file either.
fn is_device(path: &Path) -> Result<bool, FlashError> {
    let metadata = fs::metadata(path).map_err(|source| match source.kind() {
        io::ErrorKind::NotFound => FlashError::NotFound { path: path.into() },
        _ => FlashError::Io { path: path.into(), doing: "look at", source },
    })?;
    match metadata.file_type().is_block_device() {
        true => Ok(true),
        false if metadata.is_file() => Ok(false),
        false => Err(FlashError::NotFileOrDevice { path: path.into() }),
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
    let synced = flash.data.file().sync_all().and_then(|()| claim::sync_folder_of(path));
    synced.map_err(failed("make durable the new file"))?;
    Ok(flash)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::flash::test_path::TestPath;
    use crate::memory::LocalMemory;
    use crate::protocol::MemoryAddress;

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
        let reserved_bytes = std::os::unix::fs::MetadataExt::blocks(&flash.data.file().metadata().unwrap()) * 512;
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
        let reserved_bytes = std::os::unix::fs::MetadataExt::blocks(&flash.data.file().metadata().unwrap()) * 512;
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
    fn those_that_read_share_the_file_and_keep_a_writer_out() {
        let path = TestPath::new();
        let read = || FileFlash::open_read_only(&path, IoEngine::Auto, &Env::system());
        let flash = create(&path).unwrap();
        assert!(matches!(read(), Err(FlashError::Locked { .. })));
        drop(flash);
        let readers = (read().unwrap(), read().unwrap());
        assert_eq!(readers.0.capacity_bytes(), CAPACITY_BYTES);
        assert!(matches!(open(&path), Err(FlashError::Locked { .. })));
        drop(readers);
        assert!(open(&path).is_ok());
        assert!(matches!(
            FileFlash::open_read_only(Path::new("/dev/null"), IoEngine::Auto, &Env::system()),
            Err(FlashError::NotFileOrDevice { .. })
        ));
    }

    #[test]
    fn writes_to_a_file_that_was_opened_to_read_fail() {
        use crate::protocol::{Command, Operation, Status};
        let path = TestPath::new();
        drop(create(&path).unwrap());
        for engine in [IoEngine::Auto, IoEngine::Blocking] {
            let flash = FileFlash::open_read_only(&path, engine, &Env::system()).unwrap();
            assert!(flash.grow(2 * CAPACITY_BYTES).is_err());
            let local = LocalMemory::new(8192).unwrap();
            let buffer = local.allocate(4096).unwrap();
            let mut queue = flash.open_queue(&local.clone().into(), 1).unwrap();
            let (flash, local, length) = (0, buffer.offset(), 4096);
            let ends = [
                (Operation::Write { flash, from: MemoryAddress::local(local), length, fua: true }, Status::Failed),
                (Operation::Write { flash, from: MemoryAddress::local(local), length, fua: false }, Status::Failed),
                (Operation::Read { flash, local, length }, Status::Success),
            ];
            for (operation, ended) in ends {
                let mut completions = Vec::new();
                // SAFETY: the buffer is left alone until this is done.
                unsafe { queue.submit(&Command::new(1, operation)) };
                while completions.is_empty() {
                    queue.poll(&mut completions);
                    queue.wait(None);
                }
                assert_eq!(completions[0].status, ended, "{operation:?}");
            }
        }
        assert!(fs::read(&*path).unwrap().iter().all(|byte| *byte == 0));
    }

    #[test]
    fn a_file_that_lost_its_name_is_known_and_can_be_copied() {
        let (path, other) = (TestPath::new(), TestPath::new());
        let flash = create(&path).unwrap();
        assert_eq!(flash.health(), Health::Sound);
        fs::rename(&*path, &*other).unwrap();
        assert_eq!(flash.health(), Health::Renamed);
        flash.rename(&path).unwrap_err();
        fs::rename(&*other, &*path).unwrap();
        assert_eq!(flash.health(), Health::Sound);
        fs::write(&*other, b"in its place").unwrap();
        fs::rename(&*other, &*path).unwrap();
        let Health::Removed { rescue } = flash.health() else { panic!("{:?}", flash.health()) };
        assert_eq!(fs::copy(rescue, &*other).unwrap(), CAPACITY_BYTES);
    }

    #[test]
    fn a_queue_keeps_the_lock() {
        let path = TestPath::new();
        let flash = create(&path).unwrap();
        let queue = flash.open_queue(&LocalMemory::new(4096).unwrap().into(), 1).unwrap();
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
    fn a_refused_ring_is_replaced_by_a_thread_unless_somebody_insists() {
        let path = TestPath::new();
        let flash = create(&path).unwrap();
        let local = PairMemory::from(LocalMemory::new(4096).unwrap());
        let refused = || Err::<BlockingQueue, _>(io::Error::from_raw_os_error(libc::ENOMEM));
        assert!(flash.ring_or_thread(&local, refused).is_ok());
        // The next call asks again.
        let asked = std::cell::Cell::new(false);
        let ring = || {
            asked.set(true);
            BlockingQueue::new(flash.data.clone(), &local, &flash.env)
        };
        assert!(flash.ring_or_thread(&local, ring).is_ok() && asked.get());
        let insists = FileFlash { engine: IoEngine::Uring, ..flash };
        assert_eq!(insists.ring_or_thread(&local, refused).err().unwrap().raw_os_error(), Some(libc::ENOMEM));
    }
}
