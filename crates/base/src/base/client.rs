//! The questions that the base itself asks of an engine. [`Engine`](crate::engine::Engine) has those that sessions and maintenance ask.
//!
//! Threads: any. Engines hold the base; the base knows them weakly.

use crate::installer::Installer;
use crate::keyspace::KeyspaceId;
use crate::keyspace_kind::KeyspaceKind;
use crate::log::client::LogClient;
use std::sync::{Arc, OnceLock, Weak};

pub trait BaseClient: LogClient {
    fn kind(&self) -> KeyspaceKind;

    /// Whether the engine has anything left of a dropped keyspace, or may still get some.
    fn holds(&self, keyspace: KeyspaceId) -> bool;

    /// Whether the manifest has room to name one more keyspace, beside the edits that this engine's data may need.
    fn has_room_for_keyspace(&self) -> bool {
        true
    }

    /// A keyspace was created, renamed, dropped or forgotten.
    fn keyspaces_changed(&self) {}

    /// Another holder has changed the installer's state and is about to give it back. The engine copies what other threads may know of it.
    fn installed(&self, _: &Installer) {}

    /// Bytes of memory that its indexes take. All engines share the budget for indexes.
    fn index_bytes(&self) -> u64 {
        0
    }

    /// Bytes of local memory that it holds as long as the store is open.
    fn local_bytes(&self) -> u64 {
        0
    }
}

/// The engines of an open store, as its base knows them.
#[derive(Default)]
pub struct ClientList {
    engines: OnceLock<Vec<Weak<dyn BaseClient>>>,
}

impl ClientList {
    /// Called once, when the store is opened.
    pub fn set(&self, engines: impl Iterator<Item = Arc<dyn BaseClient>>) {
        let set = self.engines.set(engines.map(|engine| Arc::downgrade(&engine)).collect());
        assert!(set.is_ok(), "engines are made once");
    }

    /// The engines that still exist. A dropped engine has no writers.
    fn live(&self) -> Vec<Arc<dyn BaseClient>> {
        self.engines.get().into_iter().flatten().filter_map(Weak::upgrade).collect()
    }

    /// Whether an engine has anything left of a dropped keyspace.
    pub fn hold(&self, keyspace: KeyspaceId) -> bool {
        self.live().iter().any(|engine| engine.holds(keyspace))
    }

    /// [`BaseClient::has_room_for_keyspace`] of all of them.
    pub fn have_room_for_keyspace(&self) -> bool {
        self.live().iter().all(|engine| engine.has_room_for_keyspace())
    }

    /// A keyspace was created, renamed, dropped or forgotten.
    pub fn keyspaces_changed(&self) {
        self.live().iter().for_each(|engine| engine.keyspaces_changed());
    }

    /// Another holder has changed the installer's state and is about to give it back. The engine copies what other threads may know of it.
    pub fn installed(&self, installer: &Installer) {
        self.live().iter().for_each(|engine| engine.installed(installer));
    }

    /// Bytes of memory that the indexes of all engines but that of `kind` take.
    pub fn others_index_bytes(&self, kind: KeyspaceKind) -> u64 {
        self.live().iter().filter(|engine| engine.kind() != kind).map(|engine| engine.index_bytes()).sum()
    }

    /// Bytes of local memory that it holds as long as the store is open.
    pub fn local_bytes(&self) -> u64 {
        self.live().iter().map(|engine| engine.local_bytes()).sum()
    }

    /// Asks all engines but that of `kind` to checkpoint, so that they need no log record up to `stamp`.
    pub fn checkpoint_others_through(&self, kind: KeyspaceKind, stamp: u64) {
        let engines = self.live();
        let needing = engines.iter().filter(|engine| engine.kind() != kind && engine.stamp_needed() <= stamp);
        needing.for_each(|engine| engine.checkpoint_through(stamp));
    }

    /// Whether an engine other than that of `kind` needs a log record up to `stamp`.
    pub fn others_need(&self, kind: KeyspaceKind, stamp: u64) -> bool {
        self.live().iter().any(|engine| engine.kind() != kind && engine.stamp_needed() <= stamp)
    }

    /// [`LogClient::hold_writers`] of all engines at once.
    pub fn hold_writers(&self, change: &mut dyn FnMut() -> Option<u64>) {
        hold_writers_of(&self.live(), change);
    }
}

fn hold_writers_of(engines: &[Arc<dyn BaseClient>], change: &mut dyn FnMut() -> Option<u64>) -> Option<u64> {
    let Some((first, others)) = engines.split_first() else { return change() };
    let mut gone_on_to = None;
    first.hold_writers(&mut || {
        gone_on_to = hold_writers_of(others, change);
        gone_on_to
    });
    gone_on_to
}
