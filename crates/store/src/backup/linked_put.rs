//! A put into a folder: a file gets the object's name when its bytes are durable.
//!
//! ```text
//! another name, written ─► synced ─► linked under its own ─► the other name removed ─► folder synced
//! ```
//! A link fails where the name is taken, and so of two that put one name, one succeeds. The simulator takes these steps over a folder that forgets
//! whatever was not synced.

use super::depot::DepotError;
use tapetum_drive::fail_point;

/// The files of a folder, by their names in it.
pub trait LinkedFiles {
    type File;

    /// Makes a file that is not there, with these bytes.
    ///
    /// # Errors
    /// As for all that follow: if it may not be done.
    fn write(&mut self, name: &str, bytes: &[u8]) -> Result<Self::File, DepotError>;

    /// Makes its bytes durable.
    fn sync(&mut self, name: &str, file: &Self::File) -> Result<(), DepotError>;

    /// Gives it another name. `false`: that one is taken.
    fn link(&mut self, name: &str, other: &str) -> Result<bool, DepotError>;

    fn remove(&mut self, name: &str) -> Result<(), DepotError>;

    /// Makes the names beside this one durable.
    fn sync_names(&mut self, name: &str) -> Result<(), DepotError>;
}

/// Puts an object by way of a file with another name, which nobody else uses. `false`: there is one of its name.
///
/// # Errors
/// If it may not be there, or not durable.
pub fn put_linked(files: &mut impl LinkedFiles, name: &str, other: &str, bytes: &[u8]) -> Result<bool, DepotError> {
    let put = write_and_link(files, name, other, bytes);
    // One that stays is removed by `clean`.
    let _ = files.remove(other);
    if put.as_ref().is_ok_and(|is_put| *is_put) && !fail_point!(BackupNamesUnsynced) {
        files.sync_names(name)?;
    }
    put
}

fn write_and_link(files: &mut impl LinkedFiles, name: &str, other: &str, bytes: &[u8]) -> Result<bool, DepotError> {
    let file = files.write(other, bytes)?;
    if !fail_point!(BackupFileEarly) {
        files.sync(other, &file)?;
    }
    files.link(other, name)
}
