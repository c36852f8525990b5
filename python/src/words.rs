//! Errors of the crates in Python's words: they name arguments and methods of the package.

use std::fmt::Display;
use tapetum::images::{ImportError, PictureError, PictureProblem, SetError};
use tapetum::{Error, FreezeError, KeyspaceError, OpenError, QueryError};
use tapetum_drive::{FlashError, Size};

pub trait PythonWords: Display {
    fn words(&self) -> String {
        self.to_string()
    }
}

impl PythonWords for &str {}
impl PythonWords for String {}

impl PythonWords for Error {
    fn words(&self) -> String {
        match self {
            Error::BatchTooLarge { limit_bytes, limit_writes } => format!(
                "the batch is larger than this store writes at once: {limit_writes} writes of {limit_bytes} bytes together, keys included. \
                 Split it into several, each of which is written whole; a store that is made with a larger capacity= and memory= may take more"
            ),
            Error::FullManifest => {
                "the manifest is full: its size was set when the store was made, and the store has grown since. Delete \
                 keys, or make a store of a larger capacity= and put the items of this one there, as scan() gives them"
                    .into()
            }
            Error::ReadOnly => "the store was opened to read: open it without read_only=True to change it".into(),
            Error::Keyspace(error) => error.words(),
            _ => format!("{self}{}", arguments_of(self)),
        }
    }
}

impl PythonWords for FreezeError {
    fn words(&self) -> String {
        match self {
            FreezeError::Store(error) => error.words(),
            _ => self.to_string(),
        }
    }
}

/// The arguments of `tapetum.open` that an error is about, to be appended to it.
fn arguments_of(error: &Error) -> &'static str {
    match error {
        Error::FullFlash => " (capacity=)",
        Error::FullIndex | Error::TooLittleMemory { .. } => " (memory=)",
        Error::ValueTooLarge { limit_bytes } if *limit_bytes < tapetum_kernels::record::VALUE_BYTES_MAX => {
            " (memory=, capacity=)"
        }
        Error::Options(why) => argument_of(why),
        _ => "",
    }
}

/// Errors of options are plain text that says what is too small or wrong.
fn argument_of(why: &str) -> &'static str {
    let named = [("memory", " (memory=)"), ("capacity", " (capacity=)"), ("weight", " (weights=)")];
    named.into_iter().find(|(word, _)| why.contains(word)).map_or("", |(_, argument)| argument)
}

impl PythonWords for KeyspaceError {
    fn words(&self) -> String {
        match self {
            KeyspaceError::Unknown { name } => format!(
                "there is no keyspace {name:?}: store.keyspace({name:?}, create=True) makes it, and store.keyspaces() has those there are"
            ),
            KeyspaceError::Gone => "the keyspace was dropped: store.keyspace(name, create=True) makes it anew".into(),
            KeyspaceError::Ordered => {
                "the keyspace is ordered, and its items come in the order of their keys: use keyspace.scan(start=…, end=…)".into()
            }
            KeyspaceError::Unordered => {
                "the keyspace has no order of keys: make one with ordered=True for scans, and put its items there"
                    .into()
            }
            _ => self.to_string(),
        }
    }
}

impl PythonWords for QueryError {
    fn words(&self) -> String {
        match self {
            QueryError::Store(error) => error.words(),
            QueryError::ResultTooLarge => format!("{self} (memory=)"),
            _ => self.to_string(),
        }
    }
}

impl PythonWords for OpenError {
    fn words(&self) -> String {
        match self {
            OpenError::NoStore { path } => format!(
                "there is no store at {}: give its path, or leave create=False and read_only=True out to make one",
                path.display()
            ),
            OpenError::InUse { path } => format!(
                "{} is in use: use the store that is open already, or close it first; several processes may have it open with \
                 read_only=True",
                path.display()
            ),
            OpenError::Memory { path, memory_bytes, least_bytes, .. } => format!(
                "memory={} is too little for the write buffers of {}: give {} or more",
                Size(*memory_bytes),
                path.display(),
                Size::at_least(*least_bytes)
            ),
            OpenError::Flash(
                FlashError::NoSpace { .. } | FlashError::TooSmall { .. } | FlashError::FileSizeLimit { .. },
            ) => {
                format!("{self} (capacity=)")
            }
            OpenError::Store { path, error } => format!("{}: {}", path.display(), error.words()),
            _ => self.to_string(),
        }
    }
}

impl PythonWords for SetError {
    fn words(&self) -> String {
        match self {
            SetError::None { keyspace } => format!(
                "the keyspace {keyspace} has no pictures: store.import_images(folder, keyspace={keyspace:?}) takes those of a folder"
            ),
            SetError::Store(error) => error.words(),
            _ => self.to_string(),
        }
    }
}

impl PythonWords for ImportError {
    fn words(&self) -> String {
        match self {
            ImportError::Store(error) => error.words(),
            ImportError::Put { path, error } => format!("{}: {}", path.display(), error.words()),
            _ => self.to_string(),
        }
    }
}

impl PythonWords for PictureError {
    fn words(&self) -> String {
        match &self.problem {
            PictureProblem::Store(error) => format!("{}: {}", String::from_utf8_lossy(&self.key), error.words()),
            _ => self.to_string(),
        }
    }
}
