//! What every engine of a store stands on: the drive and what lies on it, the commit log, the manifest, extents, options.
//!
//! Lock order: an engine's own locks → log → extents.

use crate::error::Error;
use crate::installer::Installer;
use crate::keyspace::changing::KeyspaceChanges;
use crate::keyspace::hasher::KeyHasher;
use crate::keyspace::keyspace_error::KeyspaceError;
use crate::keyspace::states::{KeyspaceRef, KeyspaceStates};
use crate::log::Log;
use crate::maintenance::resize::Resizing;
use crate::media::extents::Extents;
use crate::media::geometry::Geometry;
use crate::media::io::lock;
use crate::media::superblock::Superblock;
use crate::opening::options::StoreOptions;
use crate::planted::Planted;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Condvar, Mutex};
use std::task::Poll;
use std::time::Duration;
use tapetum_drive::locks::whole;
use tapetum_drive::{Drive, OverlayFlash};

/// Wakes the maintenance thread.
#[derive(Default)]
pub struct Wakeup {
    wanted: Mutex<bool>,
    condition: Condvar,
}

impl Wakeup {
    pub fn wake(&self) {
        *lock(&self.wanted) = true;
        self.condition.notify_all();
    }

    /// Sleeps until [`Wakeup::wake`] or for `timeout`.
    pub fn sleep(&self, timeout: Duration) {
        let wanted = lock(&self.wanted);
        let waited = self.condition.wait_timeout_while(wanted, timeout, |wanted| !*wanted);
        let (mut wanted, _) = whole(waited);
        *wanted = false;
    }
}

pub struct Base {
    pub drive: Drive,
    /// What is written to the drive of a store that was opened to read stays here. `None`: opened to write.
    pub overlay: Option<OverlayFlash>,
    pub geometry: Geometry,
    pub store_id: u64,
    pub hasher: KeyHasher,
    pub keyspaces: KeyspaceStates,
    pub keyspace_changes: KeyspaceChanges,
    pub options: StoreOptions,
    pub planted: Planted,
    pub log: Log,
    pub extents: Arc<Mutex<Extents>>,
    /// The manifest with its clients' states; `None` while somebody has it.
    pub installer: Mutex<Option<Box<Installer>>>,
    /// As on flash. Changed by a resize alone.
    pub superblock: Mutex<Superblock>,
    /// The last one that was asked for.
    pub resizing: Mutex<Option<Resizing>>,
    /// The budget for everything in memory; a resize changes what the index may take of it.
    pub memory_bytes: AtomicU64,
    /// Bytes of everything that was allocated when the store was opened.
    pub pools_bytes: u64,
    pub wakeup: Wakeup,
    /// The store was closed: nobody makes room any more.
    pub closed: AtomicBool,
}

impl Base {
    /// Waits for the installer and takes it.
    pub fn take_installer(self: &Arc<Self>) -> impl Future<Output = Box<Installer>> + Send + use<> {
        let base = self.clone();
        std::future::poll_fn(move |_| lock(&base.installer).take().map_or(Poll::Pending, Poll::Ready))
    }

    /// An error if the store was opened to read.
    pub fn refuse_to_write(&self) -> Result<(), Error> {
        if self.overlay.is_some() { Err(Error::ReadOnly) } else { Ok(()) }
    }

    /// An error if a keyspace was dropped.
    pub fn refuse_dropped(&self, keyspace: KeyspaceRef) -> Result<(), Error> {
        if self.keyspaces.is_open(keyspace) { Ok(()) } else { Err(Error::Keyspace(KeyspaceError::Gone)) }
    }

    pub fn now(&self) -> u32 {
        self.drive.env().unix_seconds()
    }

    /// What the store may use of its drive.
    pub fn capacity_bytes(&self) -> u64 {
        lock(&self.superblock).capacity_bytes
    }
}
