//! Files that are seen whole or not at all: written under another name, durable, and then given their own.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

/// What a file is called until it is whole.
pub fn path_of(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".unfinished");
    name.into()
}

/// Gives the file that is whole and durable under its other name its own, in the place of what was there; durably.
pub fn finish(path: &Path) -> io::Result<()> {
    fs::rename(path_of(path), path)?;
    File::open(folder_of(path))?.sync_all()
}

/// The folder that a file is in.
pub fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}
