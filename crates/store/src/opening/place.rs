//! The place of a store: a directory of its own, a file or block device, several of these, or a partition of a drive in another process.

use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use super::OpenError;
use tapetum_drive::unfinished;

/// The file of a store in a directory of its own.
const DRIVE: &str = "drive";
/// The list of hot keys in such a directory.
const HOT_KEYS: &str = "hot-keys";
/// What the name of a drive ends with in that of the file which a standby locks.
const STANDBY_LOCK: &str = ".standby";
/// The socket of a server, in such a directory.
const SOCKET: &str = "tapetum.sock";
/// Sockets of servers whose stores are block devices, beside which there is no place for them.
const SOCKETS_OF_DEVICES: &str = "/run/tapetum";
/// These bytes at its beginning and at its end must be zero for a block device to count as empty: partition tables, file systems, RAID and LVM leave
/// their marks there.
const BLANK_BYTES: u64 = 1 << 20;

/// The place of a store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// In this directory, which holds nothing else.
    Directory(PathBuf),
    /// In this file, or on this block device.
    Drive(PathBuf),
    /// In a partition of the drive that listens at `socket`.
    Partition { socket: PathBuf, name: String },
    /// On several files or block devices, two at least: the members of a set, in any order.
    Members(Vec<PathBuf>),
}

/// The partition of a drive if none is named.
const PARTITION: &str = "default";
/// How the socket of a drive is named, so that one that is not there yet is known.
const SOCKET_EXTENSION: &str = "sock";

impl Place {
    /// What is at `path`: a file or block device, or a drive's socket; else a directory, which may be yet to be made.
    pub fn at(path: impl Into<PathBuf>) -> Place {
        let path = path.into();
        match fs::metadata(&path) {
            Ok(found) if found.is_file() || found.file_type().is_block_device() => Place::Drive(path),
            Ok(found) if found.is_dir() => Place::Directory(path),
            _ => match partition_at(&path, is_socket) {
                Some(partition) => partition,
                None => Place::Directory(path),
            },
        }
    }

    /// A drive: a file or block device, or the socket of one in another process, with a partition's name behind it or without. Such a socket
    /// need not be there: its name ends with `.sock`.
    pub fn on_drive(path: impl Into<PathBuf>) -> Place {
        let path = path.into();
        let is_named = |path: &Path| {
            is_socket(path) || path.extension().is_some_and(|end| end == SOCKET_EXTENSION) && !path.is_file()
        };
        partition_at(&path, is_named).unwrap_or(Place::Drive(path))
    }

    /// The drives of `--drive`: one, or the members of a set.
    ///
    /// # Panics
    /// If there is none.
    pub fn on_drives(paths: &[PathBuf]) -> Place {
        match paths {
            [] => panic!("a store has a drive"),
            [one] => Place::on_drive(one),
            members => Place::Members(members.to_vec()),
        }
    }

    /// The path of the file or device; of a set, the first in the order of the alphabet, so that it is one however they are given.
    pub fn path(&self) -> PathBuf {
        match self {
            Place::Members(members) => members.iter().min().cloned().unwrap_or_default(),
            Place::Directory(directory) => directory.join(DRIVE),
            Place::Drive(path) => path.clone(),
            Place::Partition { socket, name } => socket.join(name),
        }
    }

    /// Whether there may be a store: of a partition, only its drive knows.
    pub fn may_have_store(&self) -> bool {
        match self {
            Place::Partition { .. } => true,
            Place::Members(members) => members.iter().any(|member| member.exists()),
            Place::Directory(_) | Place::Drive(_) => self.path().exists(),
        }
    }

    /// As [`Place::path`]; an error where nothing was given.
    pub(super) fn given_path(&self) -> Result<PathBuf, OpenError> {
        let given = match self {
            Place::Directory(given) | Place::Drive(given) | Place::Partition { socket: given, .. } => given,
            Place::Members(_) => &self.path(),
        };
        if given.as_os_str().is_empty() { Err(OpenError::NoPath) } else { Ok(self.path()) }
    }

    /// The usual place of the list of hot keys: beside a file. Beside a block device or a partition there is no place for it.
    pub fn hot_keys(&self) -> Option<PathBuf> {
        match self {
            Place::Directory(directory) => Some(directory.join(HOT_KEYS)),
            Place::Partition { .. } => None,
            Place::Drive(_) | Place::Members(_) => {
                let drive = self.path();
                (!is_device(&drive)).then(|| beside(&drive, &format!(".{HOT_KEYS}")))
            }
        }
    }

    /// The file that is locked by whoever follows backups here, or promotes what did. `None`: a block device, a partition or a set follows none.
    pub fn standby_lock(&self) -> Option<PathBuf> {
        let path = self.path();
        match self {
            Place::Partition { .. } | Place::Members(_) => None,
            Place::Directory(_) | Place::Drive(_) => (!is_device(&path)).then(|| beside(&path, STANDBY_LOCK)),
        }
    }

    /// The place of the socket at which a server of this store answers commands.
    pub fn socket(&self) -> PathBuf {
        match self {
            Place::Directory(directory) => directory.join(SOCKET),
            Place::Partition { socket, name } => beside(socket, &format!("-{name}.serve")),
            Place::Drive(_) | Place::Members(_) => match fs::metadata(self.path()) {
                // A device may have many names, and has one number.
                Ok(found) if found.file_type().is_block_device() => {
                    let number = found.rdev();
                    Path::new(SOCKETS_OF_DEVICES).join(format!("device-{number}.sock"))
                }
                _ => beside(&self.path(), ".sock"),
            },
        }
    }
}

impl<P: AsRef<Path>> From<P> for Place {
    /// As [`Place::at`].
    fn from(path: P) -> Place {
        Place::at(path.as_ref())
    }
}

fn is_device(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|found| found.file_type().is_block_device())
}

/// The path whose name continues that of a file.
fn beside(path: &Path, end: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(end);
    name.into()
}

fn is_socket(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|found| found.file_type().is_socket())
}

/// The partition that `path` names: a socket's, or one behind it.
fn partition_at(path: &Path, is_socket: impl Fn(&Path) -> bool) -> Option<Place> {
    if is_socket(path) {
        return Some(Place::Partition { socket: path.into(), name: PARTITION.into() });
    }
    let (socket, name) = (path.parent()?, path.file_name()?.to_str()?);
    is_socket(socket).then(|| Place::Partition { socket: socket.into(), name: name.into() })
}

/// The folders that making a store makes, the innermost first.
pub(super) fn missing_folders(place: &Place) -> Vec<PathBuf> {
    let Place::Directory(directory) = place else { return Vec::new() };
    let is_absent = |error: io::Error| error.kind() == io::ErrorKind::NotFound;
    let is_missing = |folder: &&Path| !folder.as_os_str().is_empty() && folder.symlink_metadata().is_err_and(is_absent);
    directory.ancestors().take_while(is_missing).map(Path::to_owned).collect()
}

/// Makes the directory of a new store. An error if it holds something else.
pub(super) fn make_directory(directory: &Path) -> Result<(), OpenError> {
    fs::create_dir_all(directory).map_err(OpenError::io(directory, "make the directory"))?;
    let unreadable = || OpenError::io(directory, "list");
    for entry in fs::read_dir(directory).map_err(unreadable())? {
        let name = entry.map_err(unreadable())?.file_name();
        // A list of hot keys says nothing to another store, and is written over; so is the socket of a server that was killed. The caller
        // may have the lock of a standby.
        // A store may have been made there meanwhile: that is seen under the lock.
        let ours =
            [DRIVE, HOT_KEYS, SOCKET].map(|name| [Path::new(name).to_path_buf(), unfinished::path_of(Path::new(name))]);
        let is_ours = ours.as_flattened().iter().any(|own| *own == name) || *name == *format!("{DRIVE}{STANDBY_LOCK}");
        if !is_ours && name != "lost+found" {
            return Err(OpenError::Foreign { directory: directory.into(), found: name.into() });
        }
    }
    Ok(())
}

/// Whether a block device counts as empty.
pub(super) fn is_blank(path: &Path) -> Result<bool, OpenError> {
    let read = || {
        let mut device = File::open(path)?;
        let mut bytes = Vec::new();
        device.by_ref().take(BLANK_BYTES).read_to_end(&mut bytes)?;
        let length = device.seek(SeekFrom::End(0))?;
        device.seek(SeekFrom::Start(length.saturating_sub(BLANK_BYTES)))?;
        device.read_to_end(&mut bytes)?;
        Ok(bytes.iter().all(|&byte| byte == 0))
    };
    read().map_err(OpenError::io(path, "read"))
}

pub(super) fn head_of(file: &File, path: &Path) -> Result<Vec<u8>, OpenError> {
    let mut head = Vec::new();
    let read = file.take(4096).read_to_end(&mut head);
    read.map_err(OpenError::io(path, "read"))?;
    Ok(head)
}

/// Whether a file begins with zeros, or as it did before.
pub(super) fn is_empty_or(before: &[u8], head: &[u8]) -> bool {
    head == before || head.iter().all(|&byte| byte == 0)
}

pub(super) fn is_there(path: &Path) -> Result<bool, OpenError> {
    path.try_exists().map_err(OpenError::io(path, "look at"))
}

/// The type of the file at `path`; `None` if there is none.
pub(super) fn kind(path: &Path) -> Result<Option<fs::FileType>, OpenError> {
    match fs::metadata(path) {
        Ok(metadata) => Ok(Some(metadata.file_type())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(OpenError::io(path, "look at")(error)),
    }
}
