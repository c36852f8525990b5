//! Devices by their names: a partition of a drive behind its socket (`drive.sock/PARTITION`), or a file or block device opened in this process.

use crate::types::CsStatus;
use std::ffi::OsStr;
use std::fs::FileType;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;
use std::sync::Arc;
use tapetum_drive::programs::built_in;
use tapetum_drive::{AttachedFlash, Attaching, Drive, Env, FileFlash, Flash, FlashError, IoEngine};

/// Local memory that is asked for. A drive that refuses it is asked for half, and so on.
const MEMORY_BYTES: usize = 64 << 20;
const MEMORY_BYTES_MIN: usize = 1 << 20;

/// Why a device was not opened or made, for the program and for its user.
#[derive(Debug)]
pub struct OpenFailure {
    pub status: CsStatus,
    pub why: String,
}

impl OpenFailure {
    pub fn of_io(error: &io::Error) -> OpenFailure {
        let status = match error.kind() {
            io::ErrorKind::NotFound => CsStatus::NoSuchEntityExists,
            io::ErrorKind::PermissionDenied => CsStatus::NoPermissions,
            io::ErrorKind::OutOfMemory => CsStatus::NotEnoughMemory,
            _ => CsStatus::DeviceError,
        };
        OpenFailure { status, why: error.to_string() }
    }
}

impl From<FlashError> for OpenFailure {
    fn from(error: FlashError) -> OpenFailure {
        let status = match &error {
            FlashError::NotFound { .. } => CsStatus::NoSuchEntityExists,
            FlashError::AlreadyExists { .. } | FlashError::Set { .. } => CsStatus::InvalidArg,
            FlashError::Locked { .. } | FlashError::DeviceBusy { .. } | FlashError::Held { .. } => {
                CsStatus::HandleInUse
            }
            FlashError::NotFileOrDevice { .. } => CsStatus::EntityNotOnDevice,
            FlashError::TooSmall { .. }
            | FlashError::NoSpace { .. }
            | FlashError::FileSizeLimit { .. }
            | FlashError::NotReserved { .. } => CsStatus::OutOfResources,
            FlashError::ReadOnly => CsStatus::NoPermissions,
            FlashError::Drive { .. } => CsStatus::DeviceNotAvailable,
            FlashError::UringRefused { .. } => CsStatus::DeviceError,
            FlashError::Io { source, .. } => OpenFailure::of_io(source).status,
        };
        OpenFailure { status, why: error.to_string() }
    }
}

/// A name stands for one of these.
enum Place<'a> {
    Partition { socket: &'a Path, name: &'a str },
    File(&'a Path),
}

/// Asks the operating system for the kind of thing at a path. `None`: nothing is there.
fn kind(path: &Path) -> Result<Option<FileType>, OpenFailure> {
    match path.metadata() {
        Ok(metadata) => Ok(Some(metadata.file_type())),
        // A partition is behind its socket: what is there is no folder.
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => Ok(None),
        Err(error) => Err(OpenFailure::of_io(&error)),
    }
}

fn place(name: &[u8]) -> Result<Place<'_>, OpenFailure> {
    let path = Path::new(OsStr::from_bytes(name));
    if let (Some(socket), Some(partition)) = (path.parent(), path.file_name())
        && kind(socket)?.is_some_and(|kind| kind.is_socket())
    {
        let name = partition.to_str().ok_or_else(|| OpenFailure {
            status: CsStatus::InvalidArg,
            why: format!("{} is no partition's name: it is not UTF-8", path.display()),
        })?;
        return Ok(Place::Partition { socket, name });
    }
    Ok(Place::File(path))
}

/// Whether a name may stand for a device. A partition behind a socket that is there may still not be one: that the drive says.
pub fn find(name: &[u8]) -> Result<(), OpenFailure> {
    let Place::File(path) = place(name)? else { return Ok(()) };
    let failed = |status, why: &str| Err(OpenFailure { status, why: format!("{}: {why}", path.display()) });
    match kind(path)? {
        Some(kind) if kind.is_file() || kind.is_block_device() => Ok(()),
        Some(kind) if kind.is_socket() => failed(
            CsStatus::EntityNotOnDevice,
            "a drive's socket: put the partition's name behind it, as in drive.sock/NAME",
        ),
        Some(_) => failed(CsStatus::EntityNotOnDevice, "neither a file nor a block device"),
        None => failed(CsStatus::NoSuchEntityExists, "nothing is there"),
    }
}

/// The drive of a name, and whether a store was made there.
pub fn open_drive(name: &[u8], env: &Env) -> Result<(Drive, bool), OpenFailure> {
    let mut bytes = MEMORY_BYTES;
    let (flash, is_of_store): (Arc<dyn Flash>, bool) = match place(name)? {
        Place::Partition { socket, name } => {
            let attached = AttachedFlash::attach(socket, name, Attaching::default(), env)?;
            let was_made = attached.was_made();
            (Arc::new(attached), was_made)
        }
        Place::File(path) => (Arc::new(FileFlash::open(path, IoEngine::Auto, env)?), false),
    };
    loop {
        match Drive::over(flash.clone(), bytes, built_in(), env.clone()) {
            Ok(drive) => return Ok((drive, is_of_store)),
            Err(_) if bytes > MEMORY_BYTES_MIN => bytes /= 2,
            Err(error) => return Err(OpenFailure::of_io(&error)),
        }
    }
}

/// Makes a partition, or a file, of so many bytes. A partition that is there already stays as it is.
pub fn create(name: &[u8], bytes: u64, env: &Env) -> Result<(), OpenFailure> {
    match place(name)? {
        Place::Partition { socket, name } => {
            let attaching = Attaching { create_bytes: Some(bytes), take_over: false };
            AttachedFlash::attach(socket, name, attaching, env)?;
        }
        Place::File(path) => {
            FileFlash::create(path, bytes, IoEngine::Auto, env)?;
        }
    }
    Ok(())
}
