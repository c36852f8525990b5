//! The contents of the file system, and the effect of power cuts: one value, behind the mount's lock.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use fuser::{Errno, FileAttr, FileType, INodeNo, RenameFlags};

use super::names::Names;
use super::volatile::{Cut, SECTOR_BYTES, VolatileFile};
use crate::Failure;
use tapetum_bench::random::Random;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Power {
    On,
    /// Requests wait: a drive without power does not answer.
    Cut,
    /// The server is gone: the kernel gets an error.
    Off,
}

/// The syncs that a lying drive ignores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Forgets {
    Nothing,
    /// Syncs of files.
    Bytes,
    /// Syncs of folders.
    Names,
}

/// Counts of the requests to a mount.
#[derive(Clone, Copy, Debug, Default)]
pub struct Asked {
    pub syncs: u64,
    /// Writes that had to be durable by themselves.
    pub synced_writes: u64,
    pub folder_syncs: u64,
}

/// Whether writes find room. Every write allocates new blocks, as with copy on write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Room {
    Enough,
    /// A reservation fails as well.
    None,
    /// A reservation succeeds nevertheless.
    NoneUnsaid,
}

pub struct State {
    pub power: Power,
    pub room: Room,
    pub asked: Asked,
    forgets: Forgets,
    names: Names,
    files: BTreeMap<u64, VolatileFile>,
    inode_next: u64,
    /// The folder with the durable parts of files.
    folder: PathBuf,
}

impl State {
    pub fn new(folder: &Path, forgets: Forgets) -> State {
        State {
            power: Power::On,
            room: Room::Enough,
            asked: Asked::default(),
            forgets,
            names: Names::new(INodeNo::ROOT.0),
            files: BTreeMap::new(),
            inode_next: INodeNo::ROOT.0 + 1,
            folder: folder.to_owned(),
        }
    }

    pub fn cut(&mut self, random: &mut Random) -> Result<Cut, Failure> {
        self.power = Power::Cut;
        let mut sum = Cut { names_lost: self.names.cut(random), ..Cut::default() };
        for file in self.files.values_mut() {
            let cut = file.cut(random)?;
            sum.sectors_lost += cut.sectors_lost;
            sum.sectors_kept += cut.sectors_kept;
        }
        self.forget_dead()?;
        Ok(sum)
    }

    /// Removes files without a name, now and after any cut. A process that has one open gets errors.
    fn forget_dead(&mut self) -> io::Result<()> {
        let alive = self.names.alive();
        let dead: Vec<u64> = self.files.keys().copied().filter(|inode| !alive.contains(inode)).collect();
        for inode in dead {
            self.files.remove(&inode);
            std::fs::remove_file(self.folder.join(inode.to_string()))?;
        }
        Ok(())
    }

    pub fn file(&mut self, inode: INodeNo) -> Result<&mut VolatileFile, Errno> {
        self.files.get_mut(&inode.0).ok_or(Errno::ENOENT)
    }

    pub fn named(&self, parent: INodeNo, name: &OsStr) -> Result<INodeNo, Errno> {
        if !self.names.is_folder(parent.0) {
            return Err(Errno::ENOTDIR);
        }
        self.names.find(parent.0, name).map(INodeNo).ok_or(Errno::ENOENT)
    }

    pub fn entries(&self, folder: INodeNo) -> Result<Vec<(OsString, INodeNo, FileType)>, Errno> {
        let entries = self.names.entries(folder.0).ok_or(Errno::ENOTDIR)?;
        let kind = |inode| if self.names.is_folder(inode) { FileType::Directory } else { FileType::RegularFile };
        Ok(entries.iter().map(|(name, inode)| (name.clone(), INodeNo(*inode), kind(*inode))).collect())
    }

    fn new_inode(&mut self, parent: INodeNo, name: &OsStr) -> Result<INodeNo, Errno> {
        match self.named(parent, name) {
            Err(error) if error == Errno::ENOENT => {}
            Err(error) => return Err(error),
            Ok(_) => return Err(Errno::EEXIST),
        }
        self.inode_next += 1;
        Ok(INodeNo(self.inode_next - 1))
    }

    pub fn create(&mut self, parent: INodeNo, name: &OsStr) -> Result<INodeNo, Errno> {
        let inode = self.new_inode(parent, name)?;
        let path = self.folder.join(inode.0.to_string());
        let durable = File::options().read(true).write(true).create_new(true).open(path).map_err(errno)?;
        self.files.insert(inode.0, VolatileFile::new(durable));
        self.names.link(parent.0, name, inode.0);
        Ok(inode)
    }

    pub fn make_folder(&mut self, parent: INodeNo, name: &OsStr) -> Result<INodeNo, Errno> {
        let inode = self.new_inode(parent, name)?;
        self.names.make_folder(parent.0, name, inode.0);
        Ok(inode)
    }

    pub fn remove(&mut self, parent: INodeNo, name: &OsStr) -> Result<(), Errno> {
        if self.names.is_folder(self.named(parent, name)?.0) {
            return Err(Errno::EISDIR);
        }
        self.names.unlink(parent.0, name);
        self.forget_dead().map_err(errno)
    }

    pub fn rename(&mut self, from: (INodeNo, &OsStr), to: (INodeNo, &OsStr), flags: RenameFlags) -> Result<(), Errno> {
        let inode = self.named(from.0, from.1)?;
        match self.named(to.0, to.1) {
            Ok(_) if flags.contains(RenameFlags::RENAME_NOREPLACE) => return Err(Errno::EEXIST),
            Ok(replaced) if self.names.is_folder(replaced.0) => return Err(Errno::EISDIR),
            Ok(replaced) if replaced == inode => return Ok(()),
            Err(error) if error != Errno::ENOENT => return Err(error),
            _ => {}
        }
        self.names.rename((from.0.0, from.1), (to.0.0, to.1));
        self.forget_dead().map_err(errno)
    }

    pub fn attributes(&self, inode: INodeNo) -> Result<FileAttr, Errno> {
        let (kind, perm, size) = match self.files.get(&inode.0) {
            _ if self.names.is_folder(inode.0) => (FileType::Directory, 0o700, 0),
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
            nlink: if kind == FileType::Directory { 2 } else { self.names.links(inode.0) },
            // SAFETY: the call takes no arguments and cannot fail.
            uid: unsafe { libc::geteuid() },
            // SAFETY: as above.
            gid: unsafe { libc::getegid() },
            rdev: 0,
            blksize: 4096,
            flags: 0,
        })
    }

    pub fn write(&mut self, inode: INodeNo, offset: u64, data: &[u8], durably: bool) -> Result<(), Errno> {
        let (forgets, room) = (self.forgets == Forgets::Bytes, self.room);
        self.asked.synced_writes += u64::from(durably);
        let file = self.file(inode)?;
        if room != Room::Enough {
            // The write fails half way.
            let half = data.len() / 2 / SECTOR_BYTES * SECTOR_BYTES;
            file.write(offset, &data[..half]).map_err(errno)?;
            return Err(Errno::ENOSPC);
        }
        file.write(offset, data).map_err(errno)?;
        if durably && !forgets {
            file.sync_range(offset, data.len()).map_err(errno)?;
        }
        Ok(())
    }

    pub fn sync(&mut self, inode: INodeNo) -> Result<(), Errno> {
        self.asked.syncs += 1;
        if self.forgets == Forgets::Bytes {
            return Ok(());
        }
        self.file(inode)?.sync().map_err(errno)
    }

    /// Makes the names in a folder durable.
    pub fn sync_names(&mut self, folder: INodeNo) -> Result<(), Errno> {
        self.asked.folder_syncs += 1;
        if self.forgets == Forgets::Names {
            return Ok(());
        }
        self.names.sync(folder.0);
        self.forget_dead().map_err(errno)
    }
}

pub fn errno(error: io::Error) -> Errno {
    Errno::from_i32(error.raw_os_error().unwrap_or(libc::EIO))
}
