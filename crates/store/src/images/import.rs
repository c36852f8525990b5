//! A folder of pictures becomes a set: a folder a class, as torchvision's `ImageFolder` has them, or files without classes.
//!
//! An item's key is its path below the folder, its flags are its class. Files are taken as they are; a file that is no picture in spite of its name is
//! reported when it is decoded. A class may be a link to a folder; links below it are not followed. If a folder is imported again, its items are
//! overwritten.

use super::set::ImageSet;
use crate::api::blocking::KeyspaceHandle;
use crate::api::session::Session;
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::{fmt, fs, io};
use tapetum_base::debug_as_text;
use tapetum_base::error::Error;
use tapetum_base::request::{Condition, Outcome, Request};
use tapetum_kernels::expiry::Expiry;
use tapetum_kernels::record::KEY_BYTES_MAX;

/// Files on their way to the log at once.
const PUTS_MAX: usize = 64;

/// Endings of the files that are taken.
const ENDINGS: [&str; 4] = ["jpg", "jpeg", "png", "webp"];
/// The same in words.
pub const ENDINGS_NAMED: &str = ".jpg, .jpeg, .png or .webp";

/// Endings of files that are named when they are left out.
const ENDINGS_TOLD: usize = 8;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ImportReport {
    pub files: u64,
    pub bytes: u64,
    pub left_out: LeftOut,
    pub classes: u64,
}

/// Files that an import did not take, counted by what they are: "2 .png, 1 without an ending".
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LeftOut(BTreeMap<String, u64>);

impl LeftOut {
    pub fn files(&self) -> u64 {
        self.0.values().sum()
    }

    /// `is_outside`: it lies beside the folders of classes.
    fn add(&mut self, path: &Path, is_outside: bool) {
        let ending = path.extension().map(|ending| format!(".{}", ending.to_string_lossy().to_lowercase()));
        let outside = if is_outside { " outside the folders of classes" } else { "" };
        let kind = format!("{}{outside}", ending.unwrap_or_else(|| "without an ending".into()));
        *self.0.entry(kind).or_default() += 1;
    }

    fn append(&mut self, other: LeftOut) {
        other.0.into_iter().for_each(|(kind, files)| *self.0.entry(kind).or_default() += files);
    }
}

impl fmt::Display for LeftOut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut kinds: Vec<_> = self.0.iter().collect();
        kinds.sort_by_key(|(_, files)| Reverse(**files));
        for (place, (kind, files)) in kinds.iter().take(ENDINGS_TOLD).enumerate() {
            write!(f, "{}{files} {kind}", if place == 0 { "" } else { ", " })?;
        }
        let rest: u64 = kinds.iter().skip(ENDINGS_TOLD).map(|(_, files)| **files).sum();
        if rest > 0 { write!(f, ", {rest} others") } else { Ok(()) }
    }
}

pub enum ImportError {
    Read {
        path: PathBuf,
        error: io::Error,
    },
    /// The folder has no pictures.
    Nothing {
        folder: PathBuf,
        left_out: LeftOut,
    },
    /// Folders beside it have pictures: without it, labels would be those of other classes than where it has some.
    EmptyClass {
        folder: PathBuf,
        left_out: LeftOut,
    },
    /// The store does not take a file.
    Put {
        path: PathBuf,
        error: Error,
    },
    /// A path is longer than a key, or no UTF-8.
    Name {
        path: PathBuf,
    },
    Store(Error),
}

impl fmt::Display for ImportError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ImportError::Read { path, error } => write!(f, "cannot read {}: {error}", path.display()),
            ImportError::Nothing { folder, left_out } => {
                write!(f, "there are no {ENDINGS_NAMED} files in {}, nor in its folders", folder.display())?;
                match left_out.files() {
                    0 => write!(f, ": give a folder that has some"),
                    _ => write!(f, ", but {left_out}: convert them to JPEG, PNG or WebP first"),
                }
            }
            ImportError::EmptyClass { folder, left_out } => {
                write!(f, "each folder is a class, and {} has no {ENDINGS_NAMED} files", folder.display())?;
                match left_out.files() {
                    0 => write!(f, ": put some there, or take the folder away"),
                    _ => write!(f, ", but {left_out}: convert them to JPEG, PNG or WebP, or take the folder away"),
                }
            }
            ImportError::Put { path, error } => write!(f, "{}: {error}", path.display()),
            ImportError::Name { path } => write!(
                f,
                "the path {} is no UTF-8, or longer than {KEY_BYTES_MAX} bytes: give the file another name",
                path.display()
            ),
            ImportError::Store(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for ImportError {}

debug_as_text!(ImportError);

impl From<Error> for ImportError {
    fn from(error: Error) -> ImportError {
        ImportError::Store(error)
    }
}

/// A file of a [`PictureFolder`].
pub struct PictureFile {
    pub path: PathBuf,
    pub key: String,
    /// Its class.
    pub label: u32,
    /// Known when it has been read.
    bytes: u32,
}

impl PictureFile {
    /// What is in it.
    pub fn read(&mut self) -> Result<Vec<u8>, ImportError> {
        let value = fs::read(&self.path).map_err(|error| ImportError::Read { path: self.path.clone(), error })?;
        self.bytes = u32::try_from(value.len()).unwrap_or(u32::MAX);
        Ok(value)
    }
}

/// The pictures below a folder: which there are, not what is in them.
#[derive(Default)]
pub struct PictureFolder {
    pub files: Vec<PictureFile>,
    /// A name of each class.
    pub classes: Vec<String>,
    pub left_out: LeftOut,
}

/// Imports a folder. `progress` hears of files and bytes so far, and of how many files there are, and says whether to go on.
///
/// # Errors
/// The first file that cannot be read; what was imported before stays, without a set.
pub fn import_folder(
    keyspace: &KeyspaceHandle,
    folder: &Path,
    mut progress: impl FnMut(&ImportReport, u64) -> bool,
) -> Result<ImportReport, ImportError> {
    let mut found = PictureFolder::find(folder)?;
    let mut report = found.report();
    let total = found.files.len() as u64;
    keyspace.store().with_session(|session| {
        Ok(put_files(session, keyspace, &mut found.files, |file| {
            report.files += 1;
            report.bytes += u64::from(file.bytes);
            progress(&report, total)
        }))
    })??;
    found.set().save(keyspace)?;
    Ok(report)
}

fn put_files(
    session: &mut Session,
    keyspace: &KeyspaceHandle,
    files: &mut [PictureFile],
    mut done: impl FnMut(&PictureFile) -> bool,
) -> Result<(), ImportError> {
    let (mut replies, mut goes_on) = (Vec::new(), true);
    let mut result = Ok(());
    let mut submitted = 0;
    loop {
        while goes_on && result.is_ok() && session.in_flight() < PUTS_MAX && session.has_room() {
            let Some(file) = files.get_mut(submitted) else { break };
            match file.read() {
                Ok(value) => {
                    let (key, flags) = (file.key.as_bytes(), file.label);
                    let put =
                        Request::Put { key, value: &value, flags, expiry: Expiry::NONE, condition: Condition::Always };
                    assert_eq!(session.submit_to(keyspace.keyspace(), submitted as u64, put), Ok(()), "there is room");
                    submitted += 1;
                }
                Err(error) => result = Err(error),
            }
        }
        if session.in_flight() == 0 {
            break;
        }
        crate::api::blocking::poll_or_wait(session, &mut replies);
        for reply in replies.drain(..) {
            let file = &files[reply.token as usize];
            match reply.outcome {
                Outcome::Failed(error) => result = result.and(Err(ImportError::Put { path: file.path.clone(), error })),
                _ => goes_on &= done(file),
            }
        }
    }
    match goes_on {
        true => result,
        false => Err(Error::Options("the import was stopped: import the folder again".into()).into()),
    }
}

impl PictureFolder {
    /// Looks for the pictures of a folder.
    ///
    /// # Errors
    /// If there are none, or a class has none.
    pub fn find(folder: &Path) -> Result<PictureFolder, ImportError> {
        let mut found = PictureFolder::default();
        let mut empty = None;
        let (folders, files) = entries(folder, true)?;
        for class in folders {
            let mut of_class = PictureFolder::default();
            of_class.walk(folder, &class, found.classes.len() as u32)?;
            match of_class.files.is_empty() {
                true => empty = empty.or(Some((class, of_class.left_out.clone()))),
                false => found.classes.push(key_of(folder, &class)?),
            }
            found.files.append(&mut of_class.files);
            found.left_out.append(of_class.left_out);
        }
        if let (false, Some((folder, left_out))) = (found.classes.is_empty(), empty) {
            return Err(ImportError::EmptyClass { folder, left_out });
        }
        // Without classes the files of the folder itself are the set.
        match found.classes.is_empty() {
            true => files.into_iter().try_for_each(|file| found.add(folder, file, 0))?,
            false => files.iter().for_each(|file| found.left_out.add(file, true)),
        }
        if found.files.is_empty() {
            return Err(ImportError::Nothing { folder: folder.into(), left_out: found.left_out });
        }
        Ok(found)
    }

    /// The report of an import that has taken none of them yet.
    pub fn report(&self) -> ImportReport {
        ImportReport { left_out: self.left_out.clone(), classes: self.classes.len() as u64, ..ImportReport::default() }
    }

    /// The set of its pictures, which have been read.
    pub fn set(&self) -> ImageSet {
        let mut set = ImageSet::new(self.classes.clone());
        self.files.iter().for_each(|file| set.push(file.key.as_bytes(), file.label, file.bytes));
        set
    }

    fn walk(&mut self, root: &Path, folder: &Path, label: u32) -> Result<(), ImportError> {
        let mut folders = vec![folder.to_path_buf()];
        while let Some(folder) = folders.pop() {
            // No links are followed here, so that a walk ends.
            let (inner, files) = entries(&folder, false)?;
            folders.extend(inner.into_iter().rev());
            files.into_iter().try_for_each(|file| self.add(root, file, label))?;
        }
        Ok(())
    }

    fn add(&mut self, root: &Path, path: PathBuf, label: u32) -> Result<(), ImportError> {
        let ending = path.extension().and_then(|ending| ending.to_str()).map(str::to_ascii_lowercase);
        if !ending.is_some_and(|ending| ENDINGS.contains(&&*ending)) {
            self.left_out.add(&path, false);
            return Ok(());
        }
        let key = key_of(root, &path)?;
        self.files.push(PictureFile { path, key, label, bytes: 0 });
        Ok(())
    }
}

fn key_of(root: &Path, path: &Path) -> Result<String, ImportError> {
    let below = path.strip_prefix(root).ok().and_then(Path::to_str);
    let fits = below.filter(|key| (1..=KEY_BYTES_MAX).contains(&key.len()));
    fits.map(str::to_owned).ok_or_else(|| ImportError::Name { path: path.into() })
}

/// Folders and files, in the order of their names. A link to a folder is a folder if it is followed, else a file.
fn entries(folder: &Path, follows_links: bool) -> Result<(Vec<PathBuf>, Vec<PathBuf>), ImportError> {
    let failed = |error| ImportError::Read { path: folder.into(), error };
    let (mut folders, mut files) = (Vec::new(), Vec::new());
    for entry in fs::read_dir(folder).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let (kind, path) = (entry.file_type().map_err(failed)?, entry.path());
        match kind.is_dir() || (follows_links && kind.is_symlink() && path.is_dir()) {
            true => folders.push(path),
            false => files.push(path),
        }
    }
    folders.sort();
    files.sort();
    Ok((folders, files))
}
