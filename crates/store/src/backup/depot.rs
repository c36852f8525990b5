//! The place where backups are kept: a set of named objects that never change.
//!
//! A folder is one ([`super::folder`]), and object storage fits: names with slashes, whole objects, and "put if absent" as the only condition.
//!
//! 1. An object appears under its name whole and durable, or not at all.
//! 2. Of those who put an object under one name, one succeeds.
//! 3. Whoever lists sees every object whose put had returned before.
//!
//! Threads: any.

use std::fmt;
use tapetum_base::debug_as_text;

/// See the [module](self).
pub trait Depot: Send + Sync {
    /// Puts an object under a name that nobody has. `false`: there is one.
    ///
    /// # Errors
    /// If it may not be there, or not durable.
    fn put_new(&self, name: &str, bytes: &[u8]) -> Result<bool, DepotError>;

    /// All of an object; `None`: there is none of this name.
    ///
    /// # Errors
    /// If it cannot be read.
    fn get(&self, name: &str) -> Result<Option<Vec<u8>>, DepotError>;

    /// All objects whose names begin with `folder` and a slash, in the order of names.
    ///
    /// # Errors
    /// If they cannot be listed.
    fn list(&self, folder: &str) -> Result<Vec<ObjectEntry>, DepotError>;

    /// Removes an object, if it is there.
    ///
    /// # Errors
    /// If it may still be there.
    fn delete(&self, name: &str) -> Result<(), DepotError>;

    /// Removes what puts that were cut short have left. The caller alone puts.
    ///
    /// # Errors
    /// If something cannot be removed.
    fn clean(&self) -> Result<(), DepotError>;

    /// Where it is, for messages.
    fn place(&self) -> String;
}

/// An object as a list has it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ObjectEntry {
    pub name: String,
    pub bytes: u64,
}

/// An operation of a depot that did not succeed.
#[derive(Clone, PartialEq, Eq)]
pub struct DepotError {
    /// What was done, and to what, as in "write /backups/packs/ab".
    pub doing: String,
    pub why: String,
    /// There is no room.
    pub is_full: bool,
}

impl fmt::Display for DepotError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let DepotError { doing, why, is_full } = self;
        let advice = if *is_full { ": free some there, as with `tapetum backup prune`, and try again" } else { "" };
        write!(f, "cannot {doing}: {why}{advice}")
    }
}

debug_as_text!(DepotError);

impl std::error::Error for DepotError {}
