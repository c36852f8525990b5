//! Backups: one moment of a whole store, copied to a depot, and restored from there.
//!
//! ```text
//!  depot:  store · packs/… (bytes of the drive) · backups/… (a manifest each) · numbers/… · generations/… · lease/…
//!
//!  create ─► freeze ─► what the last backup lacks ─► packs ─► manifest          restore ─► packs ─► drive, as after a crash at that moment
//! ```
//! `docs/decisions/backups.md` says why.

mod backups;
mod create;
pub mod depot;
mod digest;
mod error;
mod folder;
pub mod lease;
mod linked_put;
mod manifest;
mod name;
mod numbers;
mod pack;
mod prune;
mod restore;
mod task;
#[cfg(test)]
mod tests;
mod verify;

pub use backups::{
    GenerationStart, find, last_of_history, last_start, list, list_all, named_owner, owner, read, refuse_other_store,
};
pub use create::{BackupOptions, BackupReport};
pub use depot::{Depot, DepotError, ObjectEntry};
pub use digest::Digest;
pub use error::BackupError;
pub use folder::FolderDepot;
pub use linked_put::{LinkedFiles, put_linked};
pub use manifest::BackupManifest;
pub use name::BackupName;
pub use numbers::missing;
pub use prune::{Pruned, prune};
pub use restore::{LostParts, Restore, Restored, restore, superblock};
pub use tapetum_base::manifest::base_marks::History;
pub use task::{BackupTask, restore_onto};
pub use verify::{Verified, verify};
