//! A file system whose files and folders lose what was not synced when the power is cut, mounted through FUSE.
//!
//! Nothing goes through the page cache, so this file system gets the requests that its user made of the kernel: a write has O_DSYNC if its
//! file was opened with it or the write asked for it (RWF_DSYNC), and a flush comes as a sync. Names are durable when their folder was
//! synced, lengths at once.
//!
//! The kernel asks from several threads, the test switches the power: all of it under one lock.

use std::ffi::{CString, OsStr};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use fuser::{
    BackgroundSession, BsdFileFlags, Config, Errno, FileAttr, FileHandle, Filesystem, FopenFlags, Generation, INodeNo,
    LockOwner, MountOption, OpenFlags, RenameFlags, ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory, ReplyEmpty,
    ReplyEntry, ReplyOpen, ReplyWrite, Request, TimeOrNow, WriteFlags,
};

use super::state::{Asked, Forgets, Power, Room, State, errno};
use super::volatile::Cut;
use crate::Failure;
use tapetum_bench::random::Random;

/// The kernel is to ask each time.
const CACHED: Duration = Duration::ZERO;
const THREADS: usize = 4;
const UNMOUNT_WAIT: Duration = Duration::from_millis(50);
const UNMOUNT_TRIES: usize = 100;

struct Shared {
    state: Mutex<State>,
    switched: Condvar,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The state, when there is power.
    fn powered(&self) -> Result<MutexGuard<'_, State>, Errno> {
        let waits = |state: &mut State| state.power == Power::Cut;
        let state = self.switched.wait_while(self.lock(), waits).unwrap_or_else(PoisonError::into_inner);
        if state.power == Power::On { Ok(state) } else { Err(Errno::EIO) }
    }
}

/// The mounted file system; dropping it takes it down.
pub struct Mount {
    shared: Arc<Shared>,
    path: CString,
    _session: BackgroundSession,
}

impl Mount {
    /// Mounts an empty file system at `path`, the durable part of which lies in `folder`.
    pub fn new(path: &Path, folder: &Path, forgets: Forgets) -> Result<Mount, Failure> {
        std::fs::create_dir_all(path)?;
        std::fs::create_dir_all(folder)?;
        let state = State::new(folder, forgets);
        let shared = Arc::new(Shared { state: Mutex::new(state), switched: Condvar::new() });
        let mut config = Config::default();
        config.mount_options = vec![MountOption::FSName("tapetum-power-cut".to_owned())];
        config.n_threads = Some(THREADS);
        let session = fuser::spawn_mount(VolatileFolder { shared: shared.clone() }, path, &config).map_err(|error| {
            format!(
                "no FUSE file system can be mounted at {}: {error}; it needs /dev/fuse (load the kernel's module fuse, or \
                 give the container the device) and, where you are not root, fusermount3 of Debian's package fuse3",
                path.display()
            )
        })?;
        Ok(Mount { shared, path: CString::new(path.as_os_str().as_bytes())?, _session: session })
    }

    /// Cuts the power. From here on nothing is answered and nothing written.
    pub fn cut(&self, random: &mut Random) -> Result<Cut, Failure> {
        self.shared.lock().cut(random)
    }

    /// Answers the requests whose callers have gone.
    pub fn release(&self) {
        self.shared.lock().power = Power::Off;
        self.shared.switched.notify_all();
    }

    pub fn restore(&self) {
        self.shared.lock().power = Power::On;
    }

    pub fn set_room(&self, room: Room) {
        self.shared.lock().room = room;
    }

    pub fn asked(&self) -> Asked {
        self.shared.lock().asked
    }
}

impl Drop for Mount {
    /// The rings of a killed server close its files a moment after it has ended.
    fn drop(&mut self) {
        for _ in 0..UNMOUNT_TRIES {
            // SAFETY: the path ends with a zero and lives through the call.
            let unmounted = unsafe { libc::umount2(self.path.as_ptr(), 0) } == 0;
            if unmounted || std::io::Error::last_os_error().raw_os_error() != Some(libc::EBUSY) {
                return; // What else is wrong the session says, which unmounts where only fusermount3 may.
            }
            std::thread::sleep(UNMOUNT_WAIT);
        }
    }
}

/// The file system as the kernel calls it.
struct VolatileFolder {
    shared: Arc<Shared>,
}

impl VolatileFolder {
    fn with<T>(&self, work: impl FnOnce(&mut State) -> Result<T, Errno>) -> Result<T, Errno> {
        work(&mut *self.shared.powered()?)
    }
}

fn reply_empty(reply: ReplyEmpty, done: Result<(), Errno>) {
    match done {
        Ok(()) => reply.ok(),
        Err(error) => reply.error(error),
    }
}

fn reply_attributes(reply: ReplyAttr, found: Result<FileAttr, Errno>) {
    match found {
        Ok(attributes) => reply.attr(&CACHED, &attributes),
        Err(error) => reply.error(error),
    }
}

/// Past the page cache, with writes at once.
fn open_flags() -> FopenFlags {
    FopenFlags::FOPEN_DIRECT_IO | FopenFlags::FOPEN_PARALLEL_DIRECT_WRITES
}

impl Filesystem for VolatileFolder {
    fn lookup(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        match self.with(|state| state.attributes(state.named(parent, name)?)) {
            Ok(attributes) => reply.entry(&CACHED, &attributes, Generation(0)),
            Err(error) => reply.error(error),
        }
    }

    fn getattr(&self, _: &Request, inode: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        reply_attributes(reply, self.with(|state| state.attributes(inode)));
    }

    fn setattr(
        &self,
        _: &Request,
        inode: INodeNo,
        _mode: Option<u32>,
        _uid: Option<u32>,
        _gid: Option<u32>,
        size: Option<u64>,
        _atime: Option<TimeOrNow>,
        _mtime: Option<TimeOrNow>,
        _ctime: Option<SystemTime>,
        _handle: Option<FileHandle>,
        _crtime: Option<SystemTime>,
        _chgtime: Option<SystemTime>,
        _bkuptime: Option<SystemTime>,
        _flags: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let set = |state: &mut State| {
            if let Some(size) = size {
                state.file(inode)?.set_length(size).map_err(errno)?;
            }
            state.attributes(inode)
        };
        reply_attributes(reply, self.with(set));
    }

    fn create(&self, _: &Request, parent: INodeNo, name: &OsStr, _: u32, _: u32, _: i32, reply: ReplyCreate) {
        let create = |state: &mut State| {
            let inode = state.create(parent, name)?;
            state.attributes(inode)
        };
        match self.with(create) {
            Ok(attributes) => reply.created(&CACHED, &attributes, Generation(0), FileHandle(0), open_flags()),
            Err(error) => reply.error(error),
        }
    }

    fn mkdir(&self, _: &Request, parent: INodeNo, name: &OsStr, _: u32, _: u32, reply: ReplyEntry) {
        let make = |state: &mut State| {
            let inode = state.make_folder(parent, name)?;
            state.attributes(inode)
        };
        match self.with(make) {
            Ok(attributes) => reply.entry(&CACHED, &attributes, Generation(0)),
            Err(error) => reply.error(error),
        }
    }

    fn open(&self, _: &Request, inode: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        match self.with(|state| state.attributes(inode)) {
            Ok(_) => reply.opened(FileHandle(0), open_flags()),
            Err(error) => reply.error(error),
        }
    }

    fn read(
        &self,
        _: &Request,
        inode: INodeNo,
        _: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        match self.with(|state| state.file(inode)?.read(offset, size as usize).map_err(errno)) {
            Ok(bytes) => reply.data(&bytes),
            Err(error) => reply.error(error),
        }
    }

    fn write(
        &self,
        _: &Request,
        inode: INodeNo,
        _: FileHandle,
        offset: u64,
        data: &[u8],
        _: WriteFlags,
        flags: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let durably = flags.0 & libc::O_DSYNC != 0;
        match self.with(|state| state.write(inode, offset, data, durably)) {
            Ok(()) => reply.written(data.len() as u32),
            Err(error) => reply.error(error),
        }
    }

    fn flush(&self, _: &Request, _: INodeNo, _: FileHandle, _: LockOwner, reply: ReplyEmpty) {
        reply.ok(); // Closing a file promises nothing.
    }

    fn fsync(&self, _: &Request, inode: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        reply_empty(reply, self.with(|state| state.sync(inode)));
    }

    fn fsyncdir(&self, _: &Request, inode: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        reply_empty(reply, self.with(|state| state.sync_names(inode)));
    }

    fn fallocate(
        &self,
        _: &Request,
        inode: INodeNo,
        _: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        let allocate = |state: &mut State| {
            let room = state.room;
            let file = state.file(inode)?;
            match offset + length {
                _ if mode != 0 => Err(Errno::EOPNOTSUPP),
                _ if room == Room::None => Err(Errno::ENOSPC),
                end if end > file.length_bytes() => file.set_length(end).map_err(errno),
                _ => Ok(()),
            }
        };
        reply_empty(reply, self.with(allocate));
    }

    fn unlink(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        reply_empty(reply, self.with(|state| state.remove(parent, name)));
    }

    fn rename(
        &self,
        _: &Request,
        parent: INodeNo,
        name: &OsStr,
        parent_new: INodeNo,
        name_new: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        reply_empty(reply, self.with(|state| state.rename((parent, name), (parent_new, name_new), flags)));
    }

    fn readdir(&self, _: &Request, folder: INodeNo, _: FileHandle, offset: u64, mut reply: ReplyDirectory) {
        let entries = match self.with(|state| state.entries(folder)) {
            Ok(entries) => entries,
            Err(error) => return reply.error(error),
        };
        for (place, (name, inode, kind)) in entries.iter().enumerate().skip(offset as usize) {
            if reply.add(*inode, place as u64 + 1, *kind, name) {
                break;
            }
        }
        reply.ok();
    }
}
