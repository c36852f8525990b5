//! A file system of one directory whose files lose what was not synced when the power is cut, mounted through FUSE.
//!
//! Everything passes the page cache by, so what is asked of this is what its user asked of the kernel: a write comes with
//! O_DSYNC when its file was opened so or it alone was made so (RWF_DSYNC), and a flush comes as a sync. Names and lengths
//! are durable at once.
//!
//! The kernel asks from several threads, the test switches the power: all of it under one lock.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fuser::{
    BackgroundSession, BsdFileFlags, Config, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation,
    INodeNo, LockOwner, MountOption, OpenFlags, RenameFlags, ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory,
    ReplyEmpty, ReplyEntry, ReplyOpen, ReplyWrite, Request, TimeOrNow, WriteFlags,
};

use super::volatile::{Cut, SECTOR_BYTES, VolatileFile};
use crate::Failure;
use tapetum_bench::random::Random;

/// The kernel is to ask each time.
const CACHED: Duration = Duration::ZERO;
const THREADS: usize = 4;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Power {
    On,
    /// Who asks waits: nobody hears anything from a drive without power.
    Cut,
    /// Who asked is gone: the kernel is told so.
    Off,
}

struct State {
    power: Power,
    /// Whether syncs are lost too: a drive that lies.
    forgets_syncs: bool,
    names: BTreeMap<OsString, u64>,
    files: BTreeMap<u64, VolatileFile>,
    inode_next: u64,
    /// Where the durable parts of files lie.
    folder: PathBuf,
    syncs: u64,
    synced_writes: u64,
}

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
    _session: BackgroundSession,
}

/// What was asked of a mount.
#[derive(Clone, Copy, Debug, Default)]
pub struct Asked {
    pub syncs: u64,
    /// Writes that had to be durable by themselves.
    pub synced_writes: u64,
}

impl Mount {
    /// Mounts an empty file system at `path`, the durable part of which lies in `folder`.
    pub fn new(path: &Path, folder: &Path, forgets_syncs: bool) -> Result<Mount, Failure> {
        std::fs::create_dir_all(path)?;
        std::fs::create_dir_all(folder)?;
        let state = State {
            power: Power::On,
            forgets_syncs,
            names: BTreeMap::new(),
            files: BTreeMap::new(),
            inode_next: INodeNo::ROOT.0 + 1,
            folder: folder.to_owned(),
            syncs: 0,
            synced_writes: 0,
        };
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
        Ok(Mount { shared, _session: session })
    }

    /// Cuts the power. From here on nothing is answered and nothing written.
    pub fn cut(&self, random: &mut Random) -> Result<Cut, Failure> {
        let mut state = self.shared.lock();
        state.power = Power::Cut;
        let mut sum = Cut::default();
        for file in state.files.values_mut() {
            let cut = file.cut(random)?;
            sum.sectors_lost += cut.sectors_lost;
            sum.sectors_kept += cut.sectors_kept;
        }
        Ok(sum)
    }

    /// Lets go of those that wait for an answer and cannot hear it any more.
    pub fn release(&self) {
        self.shared.lock().power = Power::Off;
        self.shared.switched.notify_all();
    }

    pub fn restore(&self) {
        self.shared.lock().power = Power::On;
    }

    pub fn asked(&self) -> Asked {
        let state = self.shared.lock();
        Asked { syncs: state.syncs, synced_writes: state.synced_writes }
    }
}

impl State {
    fn file(&mut self, inode: INodeNo) -> Result<&mut VolatileFile, Errno> {
        self.files.get_mut(&inode.0).ok_or(Errno::ENOENT)
    }

    fn named(&self, parent: INodeNo, name: &OsStr) -> Result<INodeNo, Errno> {
        if parent != INodeNo::ROOT {
            return Err(Errno::ENOTDIR);
        }
        self.names.get(name).map(|inode| INodeNo(*inode)).ok_or(Errno::ENOENT)
    }

    fn create(&mut self, parent: INodeNo, name: &OsStr) -> Result<INodeNo, Errno> {
        if self.named(parent, name).is_ok() {
            return Err(Errno::EEXIST);
        }
        let inode = self.inode_next;
        self.inode_next += 1;
        let path = self.folder.join(inode.to_string());
        let durable = File::options().read(true).write(true).create_new(true).open(path).map_err(errno)?;
        self.files.insert(inode, VolatileFile::new(durable));
        self.names.insert(name.to_owned(), inode);
        Ok(INodeNo(inode))
    }

    fn remove(&mut self, parent: INodeNo, name: &OsStr) -> Result<(), Errno> {
        let inode = self.named(parent, name)?;
        self.names.remove(name);
        // Who has it open still gets errors, which nobody does who removes it.
        self.files.remove(&inode.0);
        std::fs::remove_file(self.folder.join(inode.0.to_string())).map_err(errno)
    }

    fn rename(&mut self, from: (INodeNo, &OsStr), to: (INodeNo, &OsStr)) -> Result<(), Errno> {
        let inode = self.named(from.0, from.1)?;
        if self.named(to.0, to.1).is_ok() {
            self.remove(to.0, to.1)?;
        }
        self.names.remove(from.1);
        self.names.insert(to.1.to_owned(), inode.0);
        Ok(())
    }

    fn attributes(&self, inode: INodeNo) -> Result<FileAttr, Errno> {
        let (kind, perm, size) = match self.files.get(&inode.0) {
            _ if inode == INodeNo::ROOT => (FileType::Directory, 0o700, 0),
            Some(file) => (FileType::RegularFile, 0o600, file.length_bytes()),
            None => return Err(Errno::ENOENT),
        };
        let never: SystemTime = UNIX_EPOCH;
        Ok(FileAttr {
            ino: inode,
            size,
            blocks: size.div_ceil(SECTOR_BYTES as u64),
            atime: never,
            mtime: never,
            ctime: never,
            crtime: never,
            kind,
            perm,
            nlink: 1,
            // SAFETY: the call takes nothing and cannot fail.
            uid: unsafe { libc::geteuid() },
            // SAFETY: as above.
            gid: unsafe { libc::getegid() },
            rdev: 0,
            blksize: 4096,
            flags: 0,
        })
    }

    fn write(&mut self, inode: INodeNo, offset: u64, data: &[u8], durably: bool) -> Result<(), Errno> {
        let forgets = self.forgets_syncs;
        self.synced_writes += u64::from(durably);
        let file = self.file(inode)?;
        file.write(offset, data).map_err(errno)?;
        if durably && !forgets {
            file.sync_range(offset, data.len()).map_err(errno)?;
        }
        Ok(())
    }

    fn sync(&mut self, inode: INodeNo) -> Result<(), Errno> {
        self.syncs += 1;
        if self.forgets_syncs {
            return Ok(());
        }
        self.file(inode)?.sync().map_err(errno)
    }
}

fn errno(error: io::Error) -> Errno {
    Errno::from_i32(error.raw_os_error().unwrap_or(libc::EIO))
}

/// What the kernel speaks to.
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

    fn fsyncdir(&self, _: &Request, _: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        reply_empty(reply, self.with(|_| Ok(())));
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
            let file = state.file(inode)?;
            match offset + length {
                _ if mode != 0 => Err(Errno::EOPNOTSUPP),
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
        _: RenameFlags,
        reply: ReplyEmpty,
    ) {
        reply_empty(reply, self.with(|state| state.rename((parent, name), (parent_new, name_new))));
    }

    fn readdir(&self, _: &Request, _: INodeNo, _: FileHandle, offset: u64, mut reply: ReplyDirectory) {
        let names = match self.with(|state| Ok(state.names.clone())) {
            Ok(names) => names,
            Err(error) => return reply.error(error),
        };
        for (place, (name, inode)) in names.iter().enumerate().skip(offset as usize) {
            if reply.add(INodeNo(*inode), place as u64 + 1, FileType::RegularFile, name) {
                break;
            }
        }
        reply.ok();
    }
}
