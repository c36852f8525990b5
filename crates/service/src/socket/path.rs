//! Paths of sockets. The system takes 107 bytes at most; longer ones are named through the folder that they are in.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// The longest path that a socket's address has room for, its end included.
const PATH_BYTES_MAX: usize = 107;

/// A path that the system takes, as long as this lives.
pub struct SocketPath {
    short: PathBuf,
    _folder: Option<File>,
}

impl SocketPath {
    /// # Errors
    /// If its folder cannot be opened.
    pub fn of(path: &Path) -> io::Result<SocketPath> {
        if path.as_os_str().len() <= PATH_BYTES_MAX {
            return Ok(SocketPath { short: path.into(), _folder: None });
        }
        let (Some(folder), Some(name)) = (path.parent(), path.file_name()) else {
            return Err(io::Error::other("this is no path of a file"));
        };
        let folder = File::options().read(true).custom_flags(rustix::fs::OFlags::PATH.bits() as i32).open(folder)?;
        let short = PathBuf::from(format!("/proc/self/fd/{}", folder.as_raw_fd())).join(name);
        Ok(SocketPath { short, _folder: Some(folder) })
    }

    pub fn short(&self) -> &Path {
        &self.short
    }
}
