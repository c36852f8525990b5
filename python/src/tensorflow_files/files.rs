//! Items of mounted stores as files: `tapetum://MOUNT/KEYSPACE/KEY`, and pictures, `…?pipeline=resnet50&seed=1&epoch=2&item=3`.
//!
//! A folder is the part of keys before a `/`. Folders are not stored, so every folder exists and can be written to.

use crate::handles::Handle;
use crate::pipeline::{Pipeline, picture};
use crate::words::PythonWords;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Display;
use std::sync::{Mutex, MutexGuard, PoisonError};
use tapetum::images::{ImageChance, ImagePlan, PictureError, PictureProblem};
use tapetum::{Error, KeyspaceHandle, QueryError, Store, Write};

/// The most names in a folder.
const CHILDREN_MAX: usize = 1 << 20;
/// The most bytes of a file being written: no store takes longer values.
pub const FILE_BYTES_MAX: usize = 16 << 20;
const SCHEME: &str = "tapetum://";

/// TensorFlow's error numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub enum FileErrorCode {
    Unknown = 2,
    InvalidArgument = 3,
    NotFound = 5,
    ResourceExhausted = 8,
    FailedPrecondition = 9,
    OutOfRange = 11,
    Internal = 13,
}

#[derive(Debug)]
pub struct FileError {
    pub code: FileErrorCode,
    pub told: String,
}

impl FileError {
    pub fn new(code: FileErrorCode, told: impl Display) -> FileError {
        FileError { code, told: told.to_string() }
    }
}

impl From<QueryError> for FileError {
    fn from(error: QueryError) -> FileError {
        FileError::new(FileErrorCode::Unknown, error.words())
    }
}

impl From<Error> for FileError {
    fn from(error: Error) -> FileError {
        FileError::new(FileErrorCode::Unknown, error.words())
    }
}

static MOUNTS: Mutex<BTreeMap<String, Handle<Store>>> = Mutex::new(BTreeMap::new());

fn mounts() -> MutexGuard<'static, BTreeMap<String, Handle<Store>>> {
    MOUNTS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Mounts a store under a name, in place of an earlier one.
pub fn mount(name: &str, store: Handle<Store>) {
    mounts().insert(name.to_owned(), store);
}

pub fn unmount(name: &str) -> bool {
    mounts().remove(name).is_some()
}

/// A parsed name. Without a key it is the keyspace's folder, without a keyspace the store's.
pub struct FileName {
    store: Store,
    whole: String,
    keyspace: Option<String>,
    key: String,
    picture: Option<(Pipeline, ImageChance)>,
}

impl FileName {
    pub fn parse(whole: &str) -> Result<FileName, FileError> {
        let wrong = |told: &str| FileError::new(FileErrorCode::InvalidArgument, format!("{whole}: {told}"));
        let form = "a name is tapetum://MOUNT/KEYSPACE/KEY";
        let rest = whole.strip_prefix(SCHEME).ok_or_else(|| wrong(form))?;
        let (path, asked) = match rest.split_once("?pipeline=") {
            Some((path, asked)) => (path, Some(asked)),
            None => (rest, None),
        };
        let (name, path) = path.split_once('/').unwrap_or((path, ""));
        let (keyspace, key) = path.split_once('/').unwrap_or((path, ""));
        let picture = asked.map(|asked| asked_picture(asked).map_err(|told| wrong(&told))).transpose()?;
        let mounts = mounts();
        let missing = || format!("{whole}: no store is mounted as {name:?}: tapetum.tensorflow.mount(store, {name:?})");
        let store = mounts.get(name).ok_or_else(|| FileError::new(FileErrorCode::NotFound, missing()))?;
        let refused = |error: pyo3::PyErr| FileError::new(FileErrorCode::FailedPrecondition, error);
        let store = (*store.get().map_err(refused)?).clone();
        let keyspace = (!keyspace.is_empty()).then(|| keyspace.to_owned());
        Ok(FileName { store, whole: whole.into(), keyspace, key: key.trim_end_matches('/').into(), picture })
    }

    fn missing(&self) -> FileError {
        FileError::new(FileErrorCode::NotFound, format!("{}: there is no such key", self.whole))
    }

    fn keyspace(&self) -> Result<KeyspaceHandle, FileError> {
        let name = self.keyspace.as_ref().ok_or_else(|| self.missing())?;
        self.store
            .keyspace(name)
            .map_err(|error| FileError::new(FileErrorCode::NotFound, format!("{}: {}", self.whole, error.words())))
    }

    /// The item to write. An error if the name has a pipeline, because its result cannot be written.
    fn item(&self) -> Result<(KeyspaceHandle, &[u8]), FileError> {
        if self.picture.is_some() || self.key.is_empty() {
            let told = format!("{}: what is written has a keyspace and a key, and no pipeline", self.whole);
            return Err(FileError::new(FileErrorCode::InvalidArgument, told));
        }
        Ok((self.keyspace()?, self.key.as_bytes()))
    }

    pub fn read(&self) -> Result<Vec<u8>, FileError> {
        let keyspace = self.keyspace()?;
        let key = self.key.as_bytes();
        if key.is_empty() {
            return Err(self.missing());
        }
        let Some((pipeline, chance)) = &self.picture else {
            return keyspace.get(key)?.map(|item| item.value).ok_or_else(|| self.missing());
        };
        match picture(&keyspace, pipeline, key, *chance) {
            Ok((samples, _)) => Ok(samples),
            Err(PictureError { problem: PictureProblem::Missing, .. }) => Err(self.missing()),
            Err(told) => Err(FileError::new(FileErrorCode::FailedPrecondition, told)),
        }
    }

    pub fn write(&self, bytes: &[u8]) -> Result<(), FileError> {
        let (keyspace, key) = self.item()?;
        keyspace.put(key, bytes)?;
        Ok(())
    }

    pub fn delete(&self) -> Result<(), FileError> {
        let (keyspace, key) = self.item()?;
        if keyspace.delete(key)? { Ok(()) } else { Err(self.missing()) }
    }

    /// In one batch, so that both changes happen or none.
    pub fn rename(&self, to: &FileName) -> Result<(), FileError> {
        let ((from, from_key), (into, into_key)) = (self.item()?, to.item()?);
        let item = from.get(from_key)?.ok_or_else(|| self.missing())?;
        if self.whole == to.whole {
            return Ok(());
        }
        let (keyspace, value) = (into.keyspace(), &item.value[..]);
        let put = Write::Put { keyspace, key: into_key, value, flags: item.flags, expiry: item.expiry };
        let delete = Write::Delete { keyspace: from.keyspace(), key: from_key };
        Ok(self.store.batch(&[put, delete])?)
    }

    pub fn is_directory(&self) -> Result<bool, FileError> {
        if self.keyspace.is_none() {
            return Ok(true);
        }
        let keyspace = self.keyspace()?;
        Ok(self.key.is_empty() || self.below(&keyspace)?.next().transpose()?.is_some())
    }

    /// Names directly below a folder, each folder once.
    pub fn children(&self) -> Result<BTreeSet<String>, FileError> {
        if self.keyspace.is_none() {
            let listed = self.store.keyspaces().into_iter();
            let live = listed.filter(|keyspace| keyspace.state == tapetum::KeyspaceState::Live);
            return Ok(live.map(|keyspace| keyspace.name).collect());
        }
        let keyspace = self.keyspace()?;
        let (mut names, skipped) = (BTreeSet::new(), self.prefix().len());
        for key in self.below(&keyspace)? {
            let key = key?;
            // Keys that are not text have no name.
            let Some(name) = key.get(skipped..).and_then(|name| std::str::from_utf8(name).ok()) else { continue };
            let name = name.split('/').next().unwrap_or(name);
            if !name.is_empty() && !name.contains('\0') {
                names.insert(name.to_owned());
            }
            if names.len() > CHILDREN_MAX {
                let told =
                    format!("{}: the folder has more than {CHILDREN_MAX} names: use the keyspace's scan", self.whole);
                return Err(FileError::new(FileErrorCode::ResourceExhausted, told));
            }
        }
        if names.is_empty() && !self.key.is_empty() { Err(self.missing()) } else { Ok(names) }
    }

    fn prefix(&self) -> String {
        if self.key.is_empty() { String::new() } else { format!("{}/", self.key) }
    }

    /// The keys below a folder, as they are now.
    fn below(&self, keyspace: &KeyspaceHandle) -> Result<impl Iterator<Item = Result<Vec<u8>, QueryError>>, FileError> {
        let mut items = keyspace.snapshot_items(self.prefix().as_bytes())?;
        Ok(std::iter::from_fn(move || items.next_key().map(|listed| listed.map(|listed| listed.key)).transpose()))
    }
}

/// A pipeline and its random seed from a name: "resnet50&seed=1&epoch=2&item=3".
fn asked_picture(asked: &str) -> Result<(Pipeline, ImageChance), String> {
    let mut parts = asked.split('&');
    let text = parts.next().unwrap_or_default();
    let plan = text.parse::<ImagePlan>().map_err(|error| error.to_string())?;
    let mut chance = ImageChance::default();
    for part in parts {
        let known = part.split_once('=').and_then(|(name, value)| Some((name, value.parse().ok()?)));
        match known {
            Some(("seed", value)) => chance.seed = value,
            Some(("epoch", value)) => chance.epoch = value,
            Some(("item", value)) => chance.item = value,
            _ => return Err(format!("{part}: behind the pipeline stand seed, epoch and item, such as &seed=1")),
        }
    }
    Ok((plan.into(), chance))
}
