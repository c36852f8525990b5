//! Where the store comes from: the one place of the server that knows drives, files and geometry.
//!
//! `--data DIR` holds the file `drive`, or `--drive` names a file or block device. A new store is made under another name
//! and renamed when it is whole, so that an interrupted creation leaves nothing that looks like a store. A block device is
//! taken only if it holds a store, or zeros in its first and last MiB. Nothing foreign is ever written to.

// The server is above the simulator: it may wait for a lock.
#![allow(clippy::disallowed_methods)]

use std::fmt;
use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom};
use std::os::fd::RawFd;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tapetum::{
    Access, Ask, DramItem, Error, Full, Inspection, KeyDigest, Location, Reply, Request, SlabClass, Slabs, Stats,
    StoreOptions, Sync, ValueRange,
};
use tapetum_drive::{Drive, Env, FileClaim, FileFlash, Flash, FlashError, IoEngine, LocalMemory, programs};

use crate::engine;
use crate::tools::repair;
use crate::{os, size, unfinished};

/// The most that a new store takes without being told.
const CAPACITY_DEFAULT_BYTES: u64 = 10 << 30;
/// Local memory to look at a superblock with.
const PROBE_BYTES: usize = 1 << 20;
/// Local memory to read a manifest with, of which only what is used is taken.
const INSPECT_BYTES: usize = 64 << 20;
/// The list of hot keys in --data.
const HOT_KEYS: &str = "hot-keys";
/// What must be zero for a block device to count as empty: so much at its beginning and at its end, where partition tables,
/// file systems, RAID and LVM leave their marks.
const BLANK_BYTES: u64 = 1 << 20;

impl engine::Session for tapetum::Session {
    fn submit(&mut self, token: u64, request: Request<'_>) {
        self.submit(token, request).expect("the worker looks for room first");
    }

    fn has_room(&self) -> bool {
        self.has_room()
    }

    fn poll(&mut self, replies: &mut Vec<Reply>) {
        self.poll(replies);
    }

    fn bytes(&self, value: ValueRange) -> &[u8] {
        self.bytes(value)
    }

    fn in_flight(&self) -> usize {
        self.in_flight()
    }

    fn event_fds(&self) -> Vec<RawFd> {
        self.event_fds()
    }

    fn tokens_in_flight(&self) -> Vec<u64> {
        self.tokens_in_flight()
    }

    fn submit_within(&mut self, token: u64, request: Request<'_>, value_bytes: usize) {
        self.submit_within(token, request, value_bytes).expect("the worker looks for room first");
    }

    fn take_asks(&mut self, asks: &mut Vec<Ask>) {
        self.take_asks(asks);
    }

    fn allow_value(&mut self, token: u64, value_bytes: usize) {
        self.allow_value(token, value_bytes);
    }

    fn give_up_value(&mut self, token: u64) {
        self.give_up_value(token);
    }

    fn answers_from_dram(&self) -> bool {
        self.answers_from_dram()
    }

    fn digest_each(&self, keys: &[&[u8]], digests: &mut [KeyDigest]) {
        self.digest_each(keys, digests);
    }

    fn fetch_each(&self, keys: &[KeyDigest], puts: u32) {
        self.fetch_each(keys, puts);
    }

    fn get_from_dram(
        &mut self,
        key: KeyDigest,
        out: &mut Vec<u8>,
        head: impl FnMut(&mut Vec<u8>, &DramItem, &dyn Fn() -> Access) -> bool,
    ) -> Option<DramItem> {
        self.get_from_dram(key, out, head)
    }

    fn puts_at_once(&self) -> bool {
        self.puts_at_once()
    }

    fn put_at_once(&mut self, key: KeyDigest, item: (&[u8], &[u8]), about: (u32, u32)) -> Option<u64> {
        self.put_at_once(key, item, about)
    }
}

impl engine::Store for tapetum::Store {
    type Session = tapetum::Session;

    fn session(&self) -> Result<tapetum::Session, Error> {
        self.session()
    }

    fn slabs(&self) -> Vec<SlabClass> {
        self.slabs()
    }

    fn stats(&self) -> Stats {
        self.stats()
    }

    fn inspect(&self) -> Result<Inspection, Error> {
        tapetum::inspect(self)
    }

    fn locate(&self, key: &[u8]) -> Result<Location, Error> {
        tapetum::locate(self, key)
    }

    fn resize_capacity(&self, bytes: u64) -> Result<(), Error> {
        self.resize_capacity(store_bytes(bytes))
    }

    fn resize_memory(&self, bytes: u64) -> Result<(), Error> {
        self.resize_memory(bytes)
    }
}

/// Where a store lies.
#[derive(Clone, Debug)]
pub struct Place {
    pub data: PathBuf,
    pub drive: Option<PathBuf>,
}

impl Place {
    pub fn path(&self) -> PathBuf {
        self.drive.clone().unwrap_or_else(|| self.data.join("drive"))
    }

    /// Where the list of hot keys is, unless somebody says otherwise: beside a file. Beside a block device is no place for it.
    pub fn hot_keys(&self) -> Option<PathBuf> {
        match &self.drive {
            None => Some(self.data.join(HOT_KEYS)),
            Some(drive) => {
                let is_device = fs::metadata(drive).is_ok_and(|metadata| metadata.file_type().is_block_device());
                let mut name = drive.as_os_str().to_owned();
                name.push(format!(".{HOT_KEYS}"));
                (!is_device).then(|| name.into())
            }
        }
    }
}

#[derive(Clone, Debug)]
pub struct OpenOptions {
    /// For a new store; `None` is the default.
    pub capacity_bytes: Option<u64>,
    pub memory_bytes: u64,
    /// The part of `memory_bytes` that the front doors take.
    pub front_bytes: u64,
    /// For a new store; `None` is the default.
    pub write_buffer_bytes: Option<u64>,
    /// The part of it for copies in DRAM of items that are often asked for.
    pub tier_bytes: u64,
    pub slabs: Slabs,
    pub value_bytes_max: usize,
    pub sync: Sync,
    pub full: Full,
    /// Make the store if there is none.
    pub create: bool,
}

#[derive(Debug)]
pub enum OpenError {
    /// There is no store, and none was to be made.
    NoStore {
        path: PathBuf,
    },
    /// The data directory holds something else.
    Foreign {
        data: PathBuf,
        found: PathBuf,
    },
    /// Where a new store is made before it has its name is a file of somebody else's.
    ForeignUnfinished {
        path: PathBuf,
    },
    /// Something has the name that the store was to have.
    NameTaken {
        path: PathBuf,
    },
    /// A block device that holds something else.
    NotBlank {
        path: PathBuf,
    },
    /// Another process has it open.
    InUse {
        path: PathBuf,
    },
    /// The check found something; each line names its place.
    Damaged {
        path: PathBuf,
        problems: Vec<String>,
    },
    /// The store's buffers do not fit into the budget.
    Memory {
        path: PathBuf,
        memory_bytes: u64,
        tier_bytes: u64,
        least_bytes: u64,
    },
    Flash(FlashError),
    Store {
        path: PathBuf,
        error: Error,
    },
    Io {
        path: PathBuf,
        doing: &'static str,
        error: io::Error,
    },
}

impl fmt::Display for OpenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            OpenError::NoStore { path } => write!(
                f,
                "there is no store at {}: give --data or --drive as the server has it, or start a server to make one",
                path.display()
            ),
            OpenError::Foreign { data, found } => write!(
                f,
                "{} holds no store, but other things ({}): give --data an empty or new directory; nothing was written",
                data.display(),
                found.display()
            ),
            OpenError::ForeignUnfinished { path } => write!(
                f,
                "{} is in the way, and no store that was being made: move it, or give another --drive; nothing was written",
                path.display()
            ),
            OpenError::NameTaken { path } => write!(
                f,
                "{} was not there, or is a link to nothing, and has the name that a new store was to have: look at it, then \
                 start again, or give another --data or --drive; nothing in it was changed",
                path.display()
            ),
            OpenError::NotBlank { path } => write!(
                f,
                "{} holds no store, but is not blank: give another --drive, or zero its first and last MiB if its contents \
                 are not needed; nothing was written",
                path.display()
            ),
            OpenError::InUse { path } => write!(
                f,
                "{} is in use, by a running server most likely: talk to it with a memcached client (figures: tapetum \
                 stats --memcached ADDR, a look inside: tapetum inspect --memcached ADDR), or stop it first",
                path.display()
            ),
            OpenError::Damaged { path, problems } => {
                let advice = repair::advice(self);
                write!(f, "{} is damaged: {}{advice}, and a copy restores it", path.display(), problems.join("; "))
            }
            OpenError::Memory { path, memory_bytes, tier_bytes, least_bytes } => {
                let (memory, least) = (size::shown(*memory_bytes), least_bytes >> 20);
                let (less_tier, or_less) = match tier_bytes {
                    0 => (String::new(), ""),
                    bytes => (format!(" less {} for the tier", size::shown(*bytes)), ", or a smaller --tier"),
                };
                write!(
                    f,
                    "{} has write buffers that {memory} of memory{less_tier} are too few for: give --memory {least}MiB or \
                     more{or_less}",
                    path.display()
                )
            }
            OpenError::Flash(error) => write!(f, "{error}"),
            OpenError::Store { path, error } => write!(f, "{}: {error}{}", path.display(), repair::advice(self)),
            OpenError::Io { path, doing, error } => write!(f, "cannot {doing} {}: {error}", path.display()),
        }
    }
}

impl std::error::Error for OpenError {}

fn flash_error(error: FlashError) -> OpenError {
    match error {
        FlashError::Locked { path } => OpenError::InUse { path },
        other => OpenError::Flash(other),
    }
}

/// Opens the store at `place`, with its maintenance thread.
pub fn open(place: &Place, options: &OpenOptions) -> Result<tapetum::Store, OpenError> {
    let path = place.path();
    let env = Env::system();
    if options.create
        && !is_there(&path)?
        && let Some(flash) = create_file(place, &path, options, &env)?
    {
        return open_on(flash, &path, options, &env, tapetum::Store::open);
    }
    let kind = match fs::metadata(&path) {
        Ok(metadata) => metadata.file_type(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Err(OpenError::NoStore { path }),
        Err(error) => return Err(OpenError::Io { path, doing: "look at", error }),
    };
    let flash = open_flash(&path, &env)?;
    if kind.is_block_device() && options.create && is_blank(&path)? {
        let flash = create_on_device(flash, &path, options, &env)?;
        return open_on(flash, &path, options, &env, tapetum::Store::open);
    }
    let flash: Arc<dyn Flash> = Arc::new(flash);
    if kind.is_block_device() && options.create && !holds_store(&flash, &path, &env)? {
        return Err(OpenError::NotBlank { path });
    }
    let store = open_on(flash, &path, options, &env, tapetum::Store::open)?;
    grow_as_told(&store, &path, options)?;
    Ok(store)
}

fn is_there(path: &Path) -> Result<bool, OpenError> {
    path.try_exists().map_err(|error| OpenError::Io { path: path.into(), doing: "look at", error })
}

/// Opens the store at `place` to read: nothing is written, beside others that read, and without the right to write.
pub fn open_read_only(place: &Place, options: &OpenOptions) -> Result<tapetum::Store, OpenError> {
    examine(place, options, tapetum::Store::open_read_only)
}

/// Lets `work` read the drive of a store, beside others that read.
pub fn examine<T>(
    place: &Place,
    options: &OpenOptions,
    work: impl FnOnce(&Drive, &StoreOptions) -> Result<T, Error>,
) -> Result<T, OpenError> {
    let path = place.path();
    let env = Env::system();
    open_on(open_flash_read_only(&path, &env)?, &path, options, &env, work)
}

/// Lets `work` have the drive of a store, alone.
pub fn operate<T>(
    place: &Place,
    options: &OpenOptions,
    work: impl FnOnce(&Drive, &StoreOptions) -> Result<T, Error>,
) -> Result<T, OpenError> {
    open_on(lock(place)?, &place.path(), options, &Env::system(), work)
}

/// The drive of a store, which nobody else has as long as this lives.
pub fn lock(place: &Place) -> Result<Arc<dyn Flash>, OpenError> {
    match open_flash(&place.path(), &Env::system()) {
        Ok(flash) => Ok(Arc::new(flash)),
        Err(OpenError::Flash(FlashError::NotFound { path })) => Err(OpenError::NoStore { path }),
        Err(error) => Err(error),
    }
}

fn open_flash_read_only(path: &Path, env: &Env) -> Result<Arc<dyn Flash>, OpenError> {
    match when_free(|| FileFlash::open_read_only(path, IoEngine::Auto, env)) {
        Ok(flash) => Ok(Arc::new(flash)),
        Err(OpenError::Flash(FlashError::NotFound { path })) => Err(OpenError::NoStore { path }),
        Err(error) => Err(error),
    }
}

/// Opens the store that lies on `flash`, and that this process has had open before.
pub fn open_again(place: &Place, flash: Arc<dyn Flash>, options: &OpenOptions) -> Result<tapetum::Store, OpenError> {
    open_on(flash, &place.path(), options, &Env::system(), tapetum::Store::open)
}

/// Whoever starts a server with a larger --capacity means the store to have it. One that reads takes the store as it is.
fn grow_as_told(store: &tapetum::Store, path: &Path, options: &OpenOptions) -> Result<(), OpenError> {
    let Some(wanted_bytes) = options.capacity_bytes.filter(|_| options.create) else { return Ok(()) };
    let has_bytes = store.stats().flash_limit_bytes;
    let (path_shown, has) = (path.display(), size::shown(has_bytes));
    // Both may have been rounded down.
    if wanted_bytes < has_bytes {
        let wanted = size::shown(wanted_bytes);
        tracing::warn!("{path_shown} keeps its {has}: a store does not shrink to a --capacity of {wanted}");
    } else if store_bytes(wanted_bytes) > has_bytes + 4096 {
        let grown = store.resize_capacity(store_bytes(wanted_bytes));
        grown.map_err(|error| OpenError::Store { path: path.into(), error })?;
        tracing::info!("{path_shown} has grown from {has} to {}", size::shown(store_bytes(wanted_bytes)));
    }
    Ok(())
}

/// What superblock and manifest say of a store that nobody has open. Nothing is written.
pub fn inspect(place: &Place) -> Result<Inspection, OpenError> {
    let path = place.path();
    let env = Env::system();
    let drive = drive(&open_flash_read_only(&path, &env)?, INSPECT_BYTES, &path, &env)?;
    tapetum::inspect_drive(&drive).map_err(|error| OpenError::Store { path, error })
}

/// Grows the store at `place`, which no server has open, to `capacity_bytes`. One that has them is left as it is.
pub fn grow(place: &Place, options: &OpenOptions, capacity_bytes: u64) -> Result<(), OpenError> {
    let path = place.path();
    let failed = |error| OpenError::Store { path: path.clone(), error };
    let has = ("capacity_bytes".to_string(), store_bytes(capacity_bytes) / 4096 * 4096);
    if inspect(place)?.superblock.contains(&has) {
        return Ok(());
    }
    let store = open(place, options)?;
    let grown = store.resize_capacity(store_bytes(capacity_bytes));
    let closed = store.close();
    grown.and(closed).map_err(failed)
}

/// A process that was killed holds its file or device until its last writes have ended: it is waited for, a live one is not
/// for long.
fn when_free<T>(attempt: impl Fn() -> Result<T, FlashError>) -> Result<T, OpenError> {
    const WAIT: Duration = Duration::from_millis(50);
    for _ in 0..60 {
        match attempt() {
            Err(FlashError::Locked { .. } | FlashError::DeviceBusy { .. }) => std::thread::sleep(WAIT),
            other => return other.map_err(flash_error),
        }
    }
    attempt().map_err(flash_error)
}

fn open_flash(path: &Path, env: &Env) -> Result<FileFlash, OpenError> {
    when_free(|| FileFlash::open(path, IoEngine::Auto, env))
}

/// Tests the store at `place` from its first byte to its last; how many of what was read, or what is wrong.
pub fn check(place: &Place, options: &OpenOptions) -> Result<Vec<(&'static str, u64)>, OpenError> {
    let store = open_read_only(place, options)?;
    let path = place.path();
    let report = tapetum::check(&store).map_err(|error| OpenError::Store { path: path.clone(), error })?;
    match report.problems.is_empty() {
        true => Ok(vec![
            ("segments", report.segments),
            ("records", report.records),
            ("valid_records", report.valid_records),
        ]),
        false => Err(OpenError::Damaged { path, problems: report.problems }),
    }
}

/// The part of a budget of memory that the front doors take.
pub fn front_bytes(memory_bytes: u64) -> u64 {
    (memory_bytes / 10).clamp(2 << 20, 256 << 20)
}

/// The least whole budget, in mebibytes, for a store with such segments.
fn memory_least_bytes(options: &StoreOptions, segment_bytes: u64, has_front: bool) -> u64 {
    let suffices = |total: &u64| {
        let memory_bytes = total.saturating_sub(if has_front { front_bytes(*total) } else { 0 });
        StoreOptions { memory_bytes, ..*options }.check(segment_bytes).is_ok()
    };
    // What is enough for the largest segments ends the search.
    (1..1 << 20).map(|mebibytes| mebibytes << 20).find(suffices).unwrap_or(u64::MAX)
}

/// The file system keeps its own notes on a file; with them it stays within the capacity too.
fn store_bytes(capacity_bytes: u64) -> u64 {
    capacity_bytes - capacity_bytes / 4096
}

fn store_options(capacity_bytes: u64, options: &OpenOptions) -> StoreOptions {
    // Segments by what is not the tier's, so that the largest value does not depend on the front doors.
    let whole = StoreOptions::new(capacity_bytes, options.memory_bytes.saturating_sub(options.tier_bytes));
    let whole = options.write_buffer_bytes.map_or(whole, |bytes| whole.with_write_buffers_of(bytes));
    StoreOptions {
        memory_bytes: options.memory_bytes.saturating_sub(options.front_bytes),
        tier_bytes: options.tier_bytes,
        slabs: options.slabs,
        value_bytes_max: options.value_bytes_max,
        sync: options.sync,
        full: options.full,
        ..whole
    }
}

/// Bytes of a new store: as told, or a part of what is free.
fn capacity(place: &Place, options: &OpenOptions) -> Result<u64, OpenError> {
    match options.capacity_bytes {
        Some(bytes) => Ok(bytes),
        None => {
            let path = place.path();
            let directory = unfinished::folder_of(&path);
            let doing = "look at the free space of";
            let free = os::free_bytes(directory).map_err(|error| OpenError::Io { path, doing, error })?;
            Ok(CAPACITY_DEFAULT_BYTES.min(free / 2))
        }
    }
}

/// Makes the store under another name, and gives it its own when it is whole. `None` if somebody else has made it meanwhile.
///
/// Who holds the lock of the file under the other name is the only one who makes a store here, so all that decides is looked at
/// under it.
fn create_file(
    place: &Place,
    path: &Path,
    options: &OpenOptions,
    env: &Env,
) -> Result<Option<Arc<dyn Flash>>, OpenError> {
    let io_error = |doing| move |error| OpenError::Io { path: path.to_path_buf(), doing, error };
    if place.drive.is_none() {
        fs::create_dir_all(&place.data).map_err(io_error("make the directory of"))?;
        refuse_foreign(&place.data)?;
    }
    let capacity_bytes = store_bytes(capacity(place, options)?);
    let unfinished = unfinished::path_of(path);
    let head = if place.drive.is_some() { head_of_ours(&unfinished, env)? } else { Vec::new() };
    let claim = when_free(|| FileClaim::take(&unfinished, 0o600)).map_err(|error| match error {
        OpenError::InUse { .. } => OpenError::InUse { path: path.into() },
        other => other,
    })?;
    if is_there(path)? {
        claim.remove().map_err(io_error("remove the beginnings of"))?;
        return Ok(None);
    }
    if place.drive.is_some() && !is_empty_or(&head, &head_of(claim.file(), &unfinished)?) {
        return Err(OpenError::ForeignUnfinished { path: unfinished });
    }
    let flash = FileFlash::create_in(claim, capacity_bytes, IoEngine::Auto, env).map_err(flash_error)?;
    let flash = Arc::new(flash);
    let made = create_on(&(Arc::clone(&flash) as Arc<dyn Flash>), path, options, env);
    let doing = "make durable the folders of";
    let durable = made.and_then(|()| unfinished::sync_folders_of(path).map_err(io_error(doing)));
    let named = durable.and_then(|()| flash.rename(path).map_err(flash_error));
    if let Err(error) = named {
        // What is left says nothing; should it stay, the next creation writes over it.
        let _ = fs::remove_file(&unfinished);
        return Err(match error {
            OpenError::Flash(FlashError::AlreadyExists { path }) => OpenError::NameTaken { path },
            other => other,
        });
    }
    tracing::info!("made a store of {} at {}", size::shown(flash.capacity_bytes()), path.display());
    Ok(Some(flash))
}

/// Makes the store on all of a blank device, or on as much of it as is asked for.
fn create_on_device(
    device: FileFlash,
    path: &Path,
    options: &OpenOptions,
    env: &Env,
) -> Result<Arc<dyn Flash>, OpenError> {
    let capacity_bytes = options.capacity_bytes.map_or(device.capacity_bytes(), store_bytes);
    let flash: Arc<dyn Flash> = Arc::new(device.with_capacity(capacity_bytes).map_err(flash_error)?);
    create_on(&flash, path, options, env)?;
    tracing::info!("made a store of {} on {}", size::shown(flash.capacity_bytes()), path.display());
    Ok(flash)
}

/// Beside a `--drive` anything may lie. What an interrupted creation left begins with zeros, or is a store that only lacks its
/// name: how it begins, and an error if it is something else.
fn head_of_ours(path: &Path, env: &Env) -> Result<Vec<u8>, OpenError> {
    let head = match File::open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        other => head_of(&other.map_err(|error| OpenError::Io { path: path.into(), doing: "open", error })?, path)?,
    };
    let holds_ours = || match FileFlash::open(path, IoEngine::Blocking, env) {
        Ok(flash) => holds_store(&(Arc::new(flash) as Arc<dyn Flash>), path, env),
        Err(error @ FlashError::Locked { .. }) => Err(flash_error(error)),
        Err(_) => Ok(false),
    };
    match is_empty_or(&[], &head) || holds_ours()? {
        true => Ok(head),
        false => Err(OpenError::ForeignUnfinished { path: path.into() }),
    }
}

fn head_of(file: &File, path: &Path) -> Result<Vec<u8>, OpenError> {
    let mut head = Vec::new();
    let read = file.take(4096).read_to_end(&mut head);
    read.map_err(|error| OpenError::Io { path: path.into(), doing: "read", error })?;
    Ok(head)
}

/// Whether a file begins with zeros, or as it did before.
fn is_empty_or(before: &[u8], head: &[u8]) -> bool {
    head == before || head.iter().all(|&byte| byte == 0)
}

fn refuse_foreign(data: &Path) -> Result<(), OpenError> {
    let io_error = |error| OpenError::Io { path: data.to_path_buf(), doing: "list", error };
    for entry in fs::read_dir(data).map_err(io_error)? {
        let name = entry.map_err(io_error)?.file_name();
        // A list of hot keys says nothing to another store, and is written over.
        // A store may have been made there meanwhile: that is seen under the lock.
        let is_ours = ["drive", "drive.unfinished", HOT_KEYS, "hot-keys.unfinished"].iter().any(|own| name == *own);
        if !is_ours && name != "lost+found" {
            return Err(OpenError::Foreign { data: data.into(), found: name.into() });
        }
    }
    Ok(())
}

fn is_blank(path: &Path) -> Result<bool, OpenError> {
    let read = || {
        let mut device = File::open(path)?;
        let mut bytes = Vec::new();
        device.by_ref().take(BLANK_BYTES).read_to_end(&mut bytes)?;
        let length = device.seek(SeekFrom::End(0))?;
        device.seek(SeekFrom::Start(length.saturating_sub(BLANK_BYTES)))?;
        device.read_to_end(&mut bytes)?;
        Ok(bytes.iter().all(|&byte| byte == 0))
    };
    read().map_err(|error| OpenError::Io { path: path.into(), doing: "read", error })
}

fn drive(flash: &Arc<dyn Flash>, local_bytes: usize, path: &Path, env: &Env) -> Result<Drive, OpenError> {
    let doing = "have memory for";
    let local = LocalMemory::new(local_bytes);
    let local = local.map_err(|error| OpenError::Io { path: path.into(), doing, error })?;
    Ok(Drive::new(Arc::clone(flash), local, programs::built_in(), env.clone()))
}

fn holds_store(flash: &Arc<dyn Flash>, path: &Path, env: &Env) -> Result<bool, OpenError> {
    match tapetum::Store::segment_bytes(&drive(flash, PROBE_BYTES, path, env)?) {
        Ok(_) => Ok(true),
        Err(Error::Unusable(_)) => Ok(false),
        Err(error) => Err(OpenError::Store { path: path.into(), error }),
    }
}

fn create_on(flash: &Arc<dyn Flash>, path: &Path, options: &OpenOptions, env: &Env) -> Result<(), OpenError> {
    let made = store_options(flash.capacity_bytes(), options);
    check_memory(path, options, &made, made.segment_bytes)?;
    let drive = drive(flash, 4 * PROBE_BYTES, path, env)?;
    tapetum::Store::create(&drive, &made).map_err(|error| OpenError::Store { path: path.into(), error })
}

fn open_on<T>(
    flash: Arc<dyn Flash>,
    path: &Path,
    options: &OpenOptions,
    env: &Env,
    open: impl FnOnce(&Drive, &StoreOptions) -> Result<T, Error>,
) -> Result<T, OpenError> {
    let failed = |error| OpenError::Store { path: path.into(), error };
    let segment_bytes = tapetum::Store::segment_bytes(&drive(&flash, PROBE_BYTES, path, env)?).map_err(failed)?;
    let opened = store_options(flash.capacity_bytes(), options);
    check_memory(path, options, &opened, segment_bytes)?;
    if options.write_buffer_bytes.is_some_and(|bytes| bytes != segment_bytes) {
        let (path, made) = (path.display(), size::shown(segment_bytes));
        tracing::warn!(
            "{path} was made with write buffers of {made} and keeps them: --write-buffer is for a new store"
        );
    }
    let drive = drive(&flash, opened.local_memory_bytes(segment_bytes) as usize, path, env)?;
    open(&drive, &opened).map_err(failed)
}

/// An error if a store with segments of `segment_bytes` does not fit into the budget.
fn check_memory(path: &Path, options: &OpenOptions, store: &StoreOptions, segment_bytes: u64) -> Result<(), OpenError> {
    if store.check(segment_bytes).is_ok() {
        return Ok(());
    }
    let least_bytes = memory_least_bytes(store, segment_bytes, options.front_bytes > 0);
    let (path, memory_bytes, tier_bytes) = (path.into(), options.memory_bytes, options.tier_bytes);
    Err(OpenError::Memory { path, memory_bytes, tier_bytes, least_bytes })
}
