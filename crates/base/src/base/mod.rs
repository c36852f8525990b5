//! What every engine of a store stands on: the drive and what lies on it, the commit log, the manifest, extents, options.
//!
//! Lock order: an engine's own locks → log → extents.

pub mod client;
pub mod deletion;
pub mod log_trim;
pub mod pace;

use crate::error::{Error, KeyspaceError};
use crate::installer::Installer;
use crate::keyspace::KeyspaceId;
use crate::keyspace::changing::KeyspaceChanges;
use crate::keyspace::hasher::KeyHasher;
use crate::keyspace::states::{KeyspaceRef, KeyspaceStates};
use crate::keyspace_kind::KeyspaceKind;
use crate::log::Log;
use crate::manifest::base_marks::MarksEdit;
use crate::manifest::engine_roots::EngineRoots;
use crate::manifest::items::FrameItems;
use crate::media::extents::Extents;
use crate::media::geometry::Geometry;
use crate::media::io::lock;
use crate::media::superblock::Superblock;
use crate::memory::budget::MemoryBudget;
use crate::options::StoreOptions;
use crate::stats::Stats;
use crate::wake::memory_turns::MemoryTurns;
use crate::wake::under_way::UnderWay;
use client::ClientList;
use pace::Pace;
use std::future::poll_fn;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::task::Poll;
use std::time::Duration;
use tapetum_drive::locks::whole;
use tapetum_drive::{Drive, Opcode, OverlayFlash, ProcessMark};
use tapetum_kernels::expiry::Expiry;
use tapetum_kernels::record::Header;

/// Wakes the maintenance thread.
#[derive(Default)]
pub struct Wakeup {
    wanted: Mutex<bool>,
    condition: Condvar,
}

impl Wakeup {
    pub fn wake(&self) {
        // Who is wanted already was told.
        if !std::mem::replace(&mut *lock(&self.wanted), true) {
            self.condition.notify_all();
        }
    }

    /// Sleeps until [`Wakeup::wake`] or for `timeout`.
    pub fn sleep(&self, timeout: Duration) {
        let wanted = lock(&self.wanted);
        let waited = self.condition.wait_timeout_while(wanted, timeout, |wanted| !*wanted);
        let (mut wanted, _) = whole(waited);
        *wanted = false;
    }
}

/// A resize under way, to so many bytes.
pub type Resizing = UnderWay<u64>;

pub struct Base {
    /// The process that opened the store.
    pub made: ProcessMark,
    pub drive: Drive,
    /// What is written to the drive of a store that was opened to read stays here. `None`: opened to write.
    pub overlay: Option<OverlayFlash>,
    pub geometry: Geometry,
    pub store_id: u64,
    pub hasher: KeyHasher,
    pub keyspaces: KeyspaceStates,
    pub keyspace_changes: KeyspaceChanges,
    pub options: StoreOptions,
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
    /// The largest value that the store takes, before compression.
    pub value_bytes_max: usize,
    /// Bytes of everything that was allocated when the store was opened.
    pub pools_bytes: u64,
    pub pace: Pace,
    pub engines: ClientList,
    /// The line of requests that need much local memory at once.
    pub memory_turns: Arc<MemoryTurns>,
    pub wakeup: Wakeup,
    /// The store was closed: nobody makes room any more.
    pub closed: AtomicBool,
}

/// The installer, as long as somebody has it. When this is dropped, others may have it, and see the room that there is now.
pub struct InstallerGuard {
    base: Arc<Base>,
    /// There until the drop.
    installer: Option<Box<Installer>>,
}

impl Deref for InstallerGuard {
    type Target = Installer;

    fn deref(&self) -> &Installer {
        self.installer.as_deref().expect("it is there until the drop")
    }
}

impl DerefMut for InstallerGuard {
    fn deref_mut(&mut self) -> &mut Installer {
        self.installer.as_deref_mut().expect("it is there until the drop")
    }
}

impl Drop for InstallerGuard {
    fn drop(&mut self) {
        self.installer.take().into_iter().for_each(|installer| self.base.give_installer(installer));
    }
}

impl Base {
    /// Waits for the installer and takes it.
    pub fn take_installer(self: &Arc<Self>) -> impl Future<Output = InstallerGuard> + Send + use<> {
        let base = self.clone();
        poll_fn(move |_| base.try_take_installer().map_or(Poll::Pending, Poll::Ready))
    }

    /// Takes the installer, unless somebody has it.
    pub fn try_take_installer(self: &Arc<Self>) -> Option<InstallerGuard> {
        let installer = lock(&self.installer).take()?;
        Some(InstallerGuard { base: self.clone(), installer: Some(installer) })
    }

    /// Lets others have the installer, and leaves what it has where they see it.
    pub fn give_installer(&self, installer: Box<Installer>) {
        self.engines.installed(&installer);
        *lock(&self.installer) = Some(installer);
    }

    /// Makes the root of an engine durable. What it names is durable already. A failure poisons the log.
    pub async fn set_root(self: &Arc<Self>, kind: KeyspaceKind, root: Vec<u8>) -> Result<(), Error> {
        let mut installer = self.take_installer().await;
        let mut items = FrameItems::default();
        EngineRoots::put(kind, &root, &mut items);
        let appended = installer.append(&items).await;
        match &appended {
            Ok(()) => installer.roots.set(kind, root),
            Err(error) => self.log.poison("the root of an engine", error.clone()),
        }
        appended
    }

    /// Has the manifest say where the log ends when the store is closed, so that a log that is lost later is missed. All of the log is
    /// durable. Nothing is said where the manifest has no room, or an install was given up.
    pub async fn note_log_end(self: Arc<Self>) -> Result<(), Error> {
        let end = self.log.durable_stamp();
        let Some(mut installer) = self.try_take_installer().filter(|installer| installer.marks.stamp_named() < end)
        else {
            return Ok(());
        };
        let known = MarksEdit::Know(end);
        let mut items = FrameItems::default();
        MarksEdit::put(&[known], &mut items);
        let appended = installer.append_if_room(&items).await;
        if appended == Ok(true) {
            installer.marks.edit(&known);
        }
        appended.map(drop)
    }

    /// An error in a forked child. Every call asks before it takes a lock: one that a thread of the parent held is never free there.
    pub fn refuse_forked(&self) -> Result<(), Error> {
        if self.made.is_here() { Ok(()) } else { Err(Error::Forked) }
    }

    /// An error if the store was opened to read, or by a process that this one was forked from.
    pub fn refuse_to_write(&self) -> Result<(), Error> {
        self.refuse_forked()?;
        if self.overlay.is_some() { Err(Error::ReadOnly) } else { Ok(()) }
    }

    /// An error if a keyspace is not there any more, or is another store's, or the store was opened by a process that this one was forked from.
    pub fn refuse_dropped(&self, keyspace: KeyspaceRef) -> Result<(), Error> {
        self.refuse_forked()?;
        if self.keyspaces.is_open(keyspace) {
            return Ok(());
        }
        let is_of_store = self.keyspaces.is_of_store(keyspace);
        Err(Error::Keyspace(if is_of_store { KeyspaceError::Gone } else { KeyspaceError::OfOtherStore }))
    }

    /// The budget of memory as it is, in shares.
    pub fn budget(&self) -> MemoryBudget {
        MemoryBudget { memory_bytes: self.memory_bytes.load(Ordering::SeqCst), ..self.options.budget() }
    }

    /// Unix seconds.
    pub fn now(&self) -> u32 {
        self.drive.env().unix_seconds()
    }

    /// Milliseconds since 1970: what expiries are held against.
    pub fn now_ms(&self) -> u64 {
        self.drive.env().unix_millis()
    }

    /// Whether a record is there at all: not deleted with everything else, not expired.
    pub fn is_live(&self, header: &Header, now_ms: u64) -> bool {
        self.is_live_stamp(KeyspaceId::of(header), header.stamp, header.expiry, now_ms)
    }

    pub fn is_live_stamp(&self, keyspace: KeyspaceId, stamp: u64, expiry: Expiry, now_ms: u64) -> bool {
        stamp > self.keyspaces.watermark(keyspace) && !expiry.has_passed(now_ms)
    }

    /// [`Base::is_live_stamp`] at this moment; the clock is read only where an expiry asks for it.
    pub fn is_live_now(&self, keyspace: KeyspaceId, stamp: u64, expiry: Expiry) -> bool {
        self.is_live_stamp(keyspace, stamp, expiry, if expiry.is_none() { 0 } else { self.now_ms() })
    }

    /// Seals the active write buffer if the next one is free; whether writes may be tried again. The caller holds no lock of an engine.
    pub fn rotate(&self) -> bool {
        let mut rotated = false;
        self.engines.hold_writers(&mut || {
            let buffer = self.log.rotate()?;
            self.keyspaces.seal();
            self.pace.sealed(self.geometry.segment_bytes);
            rotated = true;
            Some(buffer)
        });
        if rotated {
            self.wakeup.wake();
        }
        rotated
    }

    /// Whether writes are to wait for flush and collector; not for those that will never come.
    pub fn is_paced(&self) -> bool {
        self.log.filled_bytes() >= self.pace.limit_bytes() && self.log.poisoned().is_ok()
    }

    /// The gate of all writers: runs `change` while none, of whichever engine, is between an append and what readers see of it. What deletes
    /// everything, changes keyspaces, or freezes the store has no write between its two halves. The caller holds no lock of an engine.
    pub fn hold_writers(&self, change: impl FnOnce()) {
        let mut change = Some(change);
        self.engines.hold_writers(&mut || {
            change.take().into_iter().for_each(|change| change());
            None
        });
    }

    /// The figures that are no engine's.
    pub fn stats(&self) -> Stats {
        let (counters, geometry) = (self.drive.counters(), &self.geometry);
        // Held no longer than this: engines' locks come before extents in the lock order.
        let used_extents = {
            let extents = lock(&self.extents);
            u64::from(extents.count() - extents.free_count())
        };
        Stats {
            memory_limit_bytes: self.memory_bytes.load(Ordering::Relaxed),
            memory_used_bytes: self.pools_bytes,
            flash_limit_bytes: self.capacity_bytes(),
            flash_used_bytes: geometry.extents_offset() + used_extents * geometry.extent_bytes,
            flash_write_bytes: counters.local_to_flash_bytes,
            log_write_bytes: self.log.log_write_bytes(),
            flash_to_local_bytes: counters.flash_to_local_bytes,
            local_to_host_bytes: counters.local_to_host_bytes,
            flash_read_commands: counters.opcode(Opcode::Read).completed,
            drive_bytes: counters.purposes,
            ..Stats::default()
        }
    }

    /// What the store may use of its drive.
    pub fn capacity_bytes(&self) -> u64 {
        lock(&self.superblock).capacity_bytes
    }
}
