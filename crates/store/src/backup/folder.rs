//! A depot that is a folder. An object is put by a link ([`super::linked_put`]).

// Above the simulator: a folder is of the system.
#![allow(clippy::disallowed_methods)]

use super::depot::{Depot, DepotError, ObjectEntry};
use super::linked_put::{LinkedFiles, put_linked};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use tapetum_drive::Env;

/// What the names of objects begin with that are being put.
const UNFINISHED: &str = ".unfinished-";

/// See the [module](self).
pub struct FolderDepot {
    folder: PathBuf,
    env: Env,
}

impl FolderDepot {
    /// The depot in a folder that is there.
    ///
    /// # Errors
    /// If it is no folder.
    pub fn open(folder: &Path) -> Result<FolderDepot, DepotError> {
        let is_folder = fs::metadata(folder).map_err(failed("read", folder))?.is_dir();
        if !is_folder {
            let why = "it is no folder: give another place for backups".into();
            return Err(DepotError { doing: format!("keep backups in {}", folder.display()), why, is_full: false });
        }
        Ok(FolderDepot { folder: folder.into(), env: Env::system() })
    }

    /// The depot in a folder, which is made if it is not there.
    ///
    /// # Errors
    /// If it cannot be made.
    pub fn make(folder: &Path) -> Result<FolderDepot, DepotError> {
        fs::create_dir_all(folder).map_err(failed("make the folder", folder))?;
        FolderDepot::open(folder)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }
}

impl LinkedFiles for &FolderDepot {
    type File = File;

    fn write(&mut self, name: &str, bytes: &[u8]) -> Result<File, DepotError> {
        let path = self.path(name);
        let mut file = OpenOptions::new().write(true).create_new(true).open(&path).map_err(failed("make", &path))?;
        file.write_all(bytes).map_err(failed("write", &path))?;
        Ok(file)
    }

    fn sync(&mut self, name: &str, file: &File) -> Result<(), DepotError> {
        file.sync_all().map_err(failed("write", &self.path(name)))
    }

    fn link(&mut self, name: &str, other: &str) -> Result<bool, DepotError> {
        match fs::hard_link(self.path(name), self.path(other)) {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(false),
            Err(error) => Err(failed("link", &self.path(other))(error)),
        }
    }

    fn remove(&mut self, name: &str) -> Result<(), DepotError> {
        self.delete(name)
    }

    fn sync_names(&mut self, name: &str) -> Result<(), DepotError> {
        sync(self.path(name).parent().unwrap_or(&self.folder))
    }
}

impl Depot for FolderDepot {
    fn put_new(&self, name: &str, bytes: &[u8]) -> Result<bool, DepotError> {
        let path = self.path(name);
        let parent = path.parent().unwrap_or(&self.folder);
        let is_new = !parent.is_dir();
        if is_new {
            // The depot's own folder is not made anew: it may be a disk that is not mounted.
            fs::metadata(&self.folder).map_err(failed("read", &self.folder))?;
            fs::create_dir_all(parent).map_err(failed("make the folder", parent))?;
            sync(parent.parent().unwrap_or(&self.folder))?;
        }
        let (folder, _) = name.rsplit_once('/').unwrap_or((".", name));
        let unfinished = format!("{folder}/{UNFINISHED}{:016x}", self.env.random_u64());
        put_linked(&mut &*self, name, &unfinished, bytes)
    }

    fn get(&self, name: &str) -> Result<Option<Vec<u8>>, DepotError> {
        let path = self.path(name);
        match fs::read(&path) {
            Ok(bytes) => Ok(Some(bytes)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                // A disk that is gone is not an object that is gone.
                fs::metadata(&self.folder).map_err(failed("read", &self.folder))?;
                Ok(None)
            }
            Err(error) => Err(failed("read", &path)(error)),
        }
    }

    fn list(&self, folder: &str) -> Result<Vec<ObjectEntry>, DepotError> {
        let path = self.path(folder);
        fs::metadata(&self.folder).map_err(failed("read", &self.folder))?;
        let entries = match fs::read_dir(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries.map_err(failed("list", &path))?,
        };
        let mut objects = Vec::new();
        for entry in entries {
            let entry = entry.map_err(failed("list", &path))?;
            let (name, is_file) = (entry.file_name(), entry.file_type().is_ok_and(|kind| kind.is_file()));
            // Whoever prunes may have removed it since.
            let (Some(name), true, Ok(metadata)) = (name.to_str(), is_file, entry.metadata()) else { continue };
            if !name.starts_with(UNFINISHED) {
                objects.push(ObjectEntry { name: format!("{folder}/{name}"), bytes: metadata.len() });
            }
        }
        objects.sort_by(|one, other| one.name.cmp(&other.name));
        Ok(objects)
    }

    fn delete(&self, name: &str) -> Result<(), DepotError> {
        let path = self.path(name);
        match fs::remove_file(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            removed => removed.map_err(failed("remove", &path)),
        }
    }

    fn clean(&self) -> Result<(), DepotError> {
        let folders = fs::read_dir(&self.folder).map_err(failed("list", &self.folder))?;
        let folders = folders.filter_map(|entry| Some(entry.ok()?.path())).filter(|path| path.is_dir());
        for folder in folders {
            for entry in fs::read_dir(&folder).map_err(failed("list", &folder))?.flatten() {
                if entry.file_name().to_str().is_some_and(|name| name.starts_with(UNFINISHED)) {
                    fs::remove_file(entry.path()).map_err(failed("remove", &entry.path()))?;
                }
            }
        }
        Ok(())
    }

    fn place(&self) -> String {
        self.folder.display().to_string()
    }
}

fn sync(folder: &Path) -> Result<(), DepotError> {
    File::open(folder).and_then(|folder| folder.sync_all()).map_err(failed("make durable", folder))
}

fn failed(doing: &str, path: &Path) -> impl FnOnce(io::Error) -> DepotError {
    let doing = format!("{doing} {}", path.display());
    move |error| {
        let is_full = matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded);
        DepotError { doing, why: error.to_string(), is_full }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::folder::Folder;

    #[test]
    fn an_object_is_put_once_and_what_was_cut_short_is_no_object() {
        let folder = Folder::new("depot");
        let depot = FolderDepot::make(&folder.join("deep/in")).unwrap();
        assert_eq!(depot.put_new("packs/ab", b"one"), Ok(true));
        assert_eq!(depot.put_new("packs/ab", b"two"), Ok(false));
        fs::write(depot.path("packs/.unfinished-7"), b"th").unwrap();
        let entry = |name: &str, bytes| ObjectEntry { name: name.into(), bytes };
        assert_eq!(depot.list("packs"), Ok(vec![entry("packs/ab", 3)]));
        assert_eq!((depot.get("packs/ab"), depot.get("packs/cd")), (Ok(Some(b"one".into())), Ok(None)));
        depot.clean().unwrap();
        assert!(!depot.path("packs/.unfinished-7").exists());
        assert_eq!(
            (depot.delete("packs/ab"), depot.delete("packs/ab"), depot.list("packs")),
            (Ok(()), Ok(()), Ok(vec![]))
        );
    }

    #[test]
    fn a_folder_that_is_gone_is_an_error_and_not_an_empty_depot() {
        let folder = Folder::new("depot-gone");
        let path = folder.join("mounted");
        let depot = FolderDepot::make(&path).unwrap();
        fs::remove_dir(&path).unwrap();
        assert!(depot.put_new("packs/ab", b"one").unwrap_err().to_string().contains("mounted"));
        assert!(depot.get("packs/ab").is_err() && depot.list("packs").is_err());
        fs::write(&path, b"").unwrap();
        assert!(FolderDepot::open(&path).err().unwrap().to_string().contains("no folder"));
    }
}
