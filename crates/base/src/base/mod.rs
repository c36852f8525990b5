//! The base that every engine of a store stands on: the drive and its areas, the commit log, the manifest, extents, options.
//!
//! Lock order: an engine's own locks → log → extents.

pub mod client;
pub mod deletion;
pub mod fence;
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
use fence::Fence;
use pace::Pace;
use std::future::poll_fn;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, OnceLock};
use std::task::Poll;
use std::time::Duration;
use tapetum_drive::locks::whole;
use tapetum_drive::{Drive, MemberState, Opcode, OverlayFlash, ProcessMark};
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
        // A thread that is wanted already was notified.
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
    /// Keeps the writes of a store that was opened read-only away from its drive. `None`: the store was opened for writing.
    pub overlay: Option<OverlayFlash>,
    pub geometry: Geometry,
    pub store_id: u64,
    pub hasher: KeyHasher,
    pub keyspaces: KeyspaceStates,
    pub keyspace_changes: KeyspaceChanges,
    pub options: StoreOptions,
    pub log: Log,
    pub extents: Arc<Mutex<Extents>>,
    /// The manifest with its clients' states; `None` while somebody has it, and for good once a failure has left a change of it half made.
    pub installer: Mutex<Option<Box<Installer>>>,
    /// As on flash. Only a resize changes it.
    pub superblock: Mutex<Superblock>,
    /// The last resize that was requested.
    pub resizing: Mutex<Option<Resizing>>,
    /// The memory budget of the whole store. A resize changes the share that the index may take of it.
    pub memory_bytes: AtomicU64,
    /// The largest value that the store takes, before compression.
    pub value_bytes_max: usize,
    /// Bytes of the pools, which are allocated when the store is opened.
    pub pools_bytes: u64,
    pub pace: Pace,
    pub engines: ClientList,
    /// The line of requests that need much local memory at once.
    pub memory_turns: Arc<MemoryTurns>,
    pub wakeup: Wakeup,
    /// From when on nothing is acknowledged, if anything fences the store.
    pub fence: OnceLock<Fence>,
    /// The store was closed: nobody frees room any more.
    pub closed: AtomicBool,
}

/// Exclusive use of the installer. The drop gives it back and publishes its state to the engines. In the middle of a change
/// ([`Installer::begin_change`]) the drop gives nothing back: the store has failed, and whoever waits for the installer learns that.
pub struct InstallerGuard {
    base: Arc<Base>,
    /// `Some` until the drop.
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
        let whole = self.installer.take().filter(|installer| !installer.is_half_made());
        whole.into_iter().for_each(|installer| self.base.give_installer(installer));
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

    /// Gives the installer back, and first lets the engines take over its state.
    pub fn give_installer(&self, installer: Box<Installer>) {
        self.engines.installed(&installer);
        *lock(&self.installer) = Some(installer);
    }

    /// Makes the root of an engine durable. Everything that the root names must be durable already. A failure poisons the log.
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

    /// Records the end of the log in the manifest when the store is closed, so that a log that is lost later is noticed. The whole log must be
    /// durable. Writes nothing if the manifest has no room or an install was given up.
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

    /// An error in a forked child. Every call checks this before it takes a lock: a lock held by a thread of the parent is never released in the
    /// child.
    pub fn refuse_forked(&self) -> Result<(), Error> {
        if self.made.is_here() { Ok(()) } else { Err(Error::Forked) }
    }

    /// An error if the store was opened read-only, or by a parent process that forked this one, or its fence has passed.
    pub fn refuse_to_write(&self) -> Result<(), Error> {
        self.refuse_forked()?;
        match self.overlay {
            Some(_) => Err(Error::ReadOnly),
            None if self.is_fenced() => Err(Error::Fenced),
            None => Ok(()),
        }
    }

    /// Whether no write may be acknowledged any more.
    pub fn is_fenced(&self) -> bool {
        self.fence.get().is_some_and(Fence::has_passed)
    }

    /// An error if the keyspace was dropped or belongs to another store, or if a parent process that forked this one opened the store.
    pub fn refuse_dropped(&self, keyspace: KeyspaceRef) -> Result<(), Error> {
        self.refuse_forked()?;
        if self.keyspaces.is_open(keyspace) {
            return Ok(());
        }
        let is_of_store = self.keyspaces.is_of_store(keyspace);
        Err(Error::Keyspace(if is_of_store { KeyspaceError::Gone } else { KeyspaceError::OfOtherStore }))
    }

    /// The memory budget as it is now, in shares.
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

    /// Whether a record is live: neither deleted with everything else nor expired.
    pub fn is_live(&self, header: &Header, now_ms: u64) -> bool {
        self.is_live_stamp(KeyspaceId::of(header), header.stamp, header.expiry, now_ms)
    }

    pub fn is_live_stamp(&self, keyspace: KeyspaceId, stamp: u64, expiry: Expiry, now_ms: u64) -> bool {
        stamp > self.keyspaces.watermark(keyspace) && !expiry.has_passed(now_ms)
    }

    /// [`Base::is_live_stamp`] at this moment. Reads the clock only if there is an expiry.
    pub fn is_live_now(&self, keyspace: KeyspaceId, stamp: u64, expiry: Expiry) -> bool {
        self.is_live_stamp(keyspace, stamp, expiry, if expiry.is_none() { 0 } else { self.now_ms() })
    }

    /// Seals the active write buffer if the next one is free. Returns whether writes may be retried. The caller holds no lock of an engine.
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

    /// Whether writes must wait for flush and collector. False if the log is poisoned, as neither will run then.
    pub fn is_paced(&self) -> bool {
        self.log.filled_bytes() >= self.pace.limit_bytes() && self.log.poisoned().is_ok()
    }

    /// The gate of all writers: runs `change` while no writer of any engine is between its append and the moment readers see the record. Deleting
    /// everything, changing keyspaces and freezing the store thus see each write wholly or not at all. The caller holds no lock of an engine.
    pub fn hold_writers(&self, change: impl FnOnce()) {
        let mut change = Some(change);
        self.engines.hold_writers(&mut || {
            change.take().into_iter().for_each(|change| change());
            None
        });
    }

    /// The figures that belong to no engine.
    pub fn stats(&self) -> Stats {
        let (counters, geometry) = (self.drive.counters(), &self.geometry);
        let process = counters.process.unwrap_or_default();
        let members = self.drive.flash().members();
        let of_members = |figure: &dyn Fn(&MemberState) -> u64| members.iter().map(figure).sum();
        // Held no longer than this: in the lock order, engines' locks come before extents.
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
            drive_process_cpu_us: process.cpu_us,
            drive_process_resident_bytes: process.resident_bytes,
            drive_wakes: counters.drive_wakes,
            host_wakes: counters.host_wakes,
            members_lost: of_members(&|member| member.is_lost.into()),
            member_reads_failed: of_members(&|member| member.reads_failed),
            member_writes_failed: of_members(&|member| member.writes_failed),
            member_reads_rebuilt: of_members(&|member| member.rebuilt),
            flash_read_commands: counters.opcode(Opcode::Read).completed,
            drive_bytes: counters.purposes,
            ..Stats::default()
        }
    }

    /// Bytes of the drive that the store may use.
    pub fn capacity_bytes(&self) -> u64 {
        lock(&self.superblock).capacity_bytes
    }
}
