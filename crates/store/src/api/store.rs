//! The store: what an application holds. Cheap to clone; every method may be called from any thread.
//!
//! Blocking calls (`blocking.rs`) are a thin loop over a [`Session`], of which a few are kept. Applications that want many operations
//! on their way at once take a session of their own. Maintenance runs on a thread of its own, or, in a simulation, when
//! [`Store::maintain`] is called.

use crate::api::key_desks::KeyDesks;
use crate::api::session::Session;
use crate::engines::{self, OpenedEngines, engine_clients};
use crate::freeze::FreezeJob;
use crate::freeze::list::FreezeList;
use crate::hashed::large::ValueLimits;
use crate::hashed::{self, HashedEngine};
use crate::ordered::engine::OrderedEngine;
use std::fmt;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;
use tapetum_base::base::fence::Fence;
use tapetum_base::base::{Base, Resizing};
use tapetum_base::engine::{Engine, ImageMarks};
use tapetum_base::error::Error;
use tapetum_base::keyspace_kind::KeyspaceKind;
use tapetum_base::maintenance::{Maintenance, Step, resize};
use tapetum_base::media::io::{Io, lock, run};
use tapetum_base::options::StoreOptions;
use tapetum_base::phase::Phase;
use tapetum_base::recover;
use tapetum_drive::{Drive, Flash, OfProcess, OverlayFlash, Purpose, QueuePair};

/// Commands a session has on its way at most before they queue in the process.
const SESSION_DEPTH: u32 = 256;

/// Sessions that are kept for blocking calls; each has a ring.
const SESSIONS_KEPT: usize = 64;

struct Inner {
    base: Arc<Base>,
    hashed: Arc<HashedEngine>,
    ordered: Arc<OrderedEngine>,
    /// All of them, that of hashed keyspaces first.
    engines: Arc<[Arc<dyn Engine>]>,
    freezes: Arc<FreezeList>,
    /// None maintains a store that was opened to read.
    maintenance: Option<Arc<Mutex<Maintenance>>>,
    sessions: Mutex<Vec<Session>>,
    key_desks: Arc<KeyDesks>,
    stopping: Arc<AtomicBool>,
    /// A checkpoint was written, or tried.
    closed: AtomicBool,
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// An open store: blocking calls, from any thread. A clone is another handle on the same store.
///
/// [`Store::close`] ends it. A store whose last handle is dropped without that is as after a crash of the process: what was acknowledged
/// with [`Sync::Always`](crate::Sync::Always) is there when it is opened again, of the last second with
/// [`Sync::EverySecond`](crate::Sync::EverySecond) perhaps not, and the index is built anew. Its files are free for another opening when
/// all handles, keyspaces, sessions and iterators of it are dropped, also after a close.
///
/// It belongs to the process that opened it. In a forked child each call gives [`Error::Forked`], or nothing where it gives figures, and
/// dropping it touches neither the store nor the parent: open it after the fork.
#[derive(Clone)]
pub struct Store {
    inner: OfProcess<Arc<Inner>>,
}

impl fmt::Debug for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let place = self.inner.base.drive.flash().place();
        f.debug_struct("Store").field("place", &place).finish_non_exhaustive()
    }
}

fn queue(drive: &Drive) -> Result<Io, Error> {
    Ok(Io::new(drive.queue_pair(SESSION_DEPTH).map_err(|error| Error::Io(error.to_string()))?).of(Purpose::Recover))
}

/// The error of a drive that answers no more.
fn stopped() -> Error {
    Error::Io("the drive stopped answering".into())
}

impl Store {
    /// Makes an empty store on `drive`; what was there is lost. `crashed` says that the drive answers no more.
    pub fn create_with(drive: &Drive, options: &StoreOptions, crashed: impl Fn() -> bool) -> Result<(), Error> {
        options.slabs.check(options.tier_bytes)?;
        let io = queue(drive)?;
        run(&io, recover::create(drive, &io, options, engine_clients), crashed).ok_or_else(stopped)?
    }

    /// Makes a store on `drive`.
    pub fn create_on(drive: &Drive, options: &StoreOptions) -> Result<(), Error> {
        Store::create_with(drive, options, || false)
    }

    /// Opens the store on `drive` without a maintenance thread: [`Store::maintain`] must be called.
    pub fn open_with(drive: &Drive, options: &StoreOptions, crashed: impl Fn() -> bool) -> Result<Store, Error> {
        options.slabs.check(options.tier_bytes)?;
        let io = queue(drive)?;
        let opened = run(&io, engines::open(drive, &io, options), crashed).ok_or_else(stopped)??;
        let freezes = Arc::default();
        let job = Box::new(FreezeJob::new(&opened.hashed, &opened.ordered, &freezes));
        let maintenance = Maintenance::new(&opened.base, &opened.all, vec![job], io.of(Purpose::Other));
        Ok(Store::of(opened, freezes, Some(Arc::new(Mutex::new(maintenance)))))
    }

    /// Opens the store on `drive` to read. Nothing is written to the drive, which may be one that cannot be written to, and others may read it
    /// meanwhile. Records that a crash left in the log are read into memory. A request that would change the store is answered with
    /// [`Error::ReadOnly`].
    pub fn open_read_only_on(drive: &Drive, options: &StoreOptions) -> Result<Store, Error> {
        options.slabs.check(options.tier_bytes)?;
        let overlay = OverlayFlash::new(drive.flash().clone(), options.memory_bytes / 4);
        let drive = drive.with_flash(Arc::new(overlay.clone()));
        let io = queue(&drive)?;
        let opening = engines::open_read_only(&drive, &io, options, overlay);
        let opened = run(&io, opening, || false).ok_or_else(stopped)??;
        Ok(Store::of(opened, Arc::default(), None))
    }

    fn of(opened: OpenedEngines, freezes: Arc<FreezeList>, maintenance: Option<Arc<Mutex<Maintenance>>>) -> Store {
        let inner = Inner {
            base: opened.base,
            hashed: opened.hashed,
            ordered: opened.ordered,
            engines: opened.all,
            freezes,
            maintenance,
            sessions: Mutex::new(Vec::new()),
            key_desks: Arc::default(),
            stopping: Arc::default(),
            closed: AtomicBool::new(false),
            thread: Mutex::new(None),
        };
        Store { inner: OfProcess::new(Arc::new(inner)) }
    }

    /// Opens the store on `drive`, with a thread for maintenance.
    pub fn open_on(drive: &Drive, options: &StoreOptions) -> Result<Store, Error> {
        // Pools take their memory now, so that the process does not grow later.
        drive.local().touch();
        let store = Store::open_with(drive, options, || false)?;
        // The thread holds the parts that it works on, and no handle. Dropping the last handle waits for the thread's current step, so that nothing
        // of this store is done to the drive after that.
        let Inner { base, maintenance, stopping, .. } = &**store.inner;
        let (base, maintenance, stopping) = (base.clone(), maintenance.clone(), stopping.clone());
        let thread = drive.env().spawn("tapetum-maintenance", move || {
            let _watch = PoisonOnPanic(base);
            let Some(maintenance) = maintenance.as_ref() else { return };
            let mut rest = lock(maintenance).rest();
            while !stopping.load(Ordering::SeqCst) {
                let step = lock(maintenance).step();
                rest.wait(step);
            }
        });
        *lock(&store.inner.thread) =
            Some(thread.map_err(|error| Error::Io(format!("no thread for maintenance: {error}")))?);
        Ok(store)
    }

    /// The segment size of the store on `drive`, to size its local memory by.
    pub fn segment_bytes(drive: &Drive) -> Result<u64, Error> {
        let io = queue(drive)?;
        run(&io, recover::segment_bytes(drive, &io), || false).ok_or_else(stopped)?
    }

    /// Waits for a result of maintenance, or does maintenance where there is no thread for that.
    pub(crate) fn wait_for(
        &self,
        result: impl Fn() -> Option<Result<(), Error>>,
        wait: impl Fn(Duration),
    ) -> Result<(), Error> {
        self.refuse_forked()?;
        let has_thread = lock(&self.inner.thread).is_some();
        loop {
            if let Some(result) = result() {
                return result;
            }
            if self.inner.stopping.load(Ordering::SeqCst) {
                return Err(Error::Closed);
            }
            match has_thread {
                true => wait(Duration::from_millis(50)),
                false => drop(self.maintain()),
            }
        }
    }

    /// A session of the caller's own.
    pub fn session(&self) -> Result<Session, Error> {
        self.session_on(self.inner.base.drive.queue_pair(SESSION_DEPTH))
    }

    /// A session for one thread alone: the first that submits to it and polls it must be the one that does so from then on,
    /// and drops it. Reads from flash cost it less.
    pub fn session_of_one_thread(&self) -> Result<Session, Error> {
        self.session_on(self.inner.base.drive.queue_pair_of_one_thread(SESSION_DEPTH))
    }

    fn session_on(&self, queue: std::io::Result<QueuePair>) -> Result<Session, Error> {
        self.refuse_forked()?;
        let engines = self.inner.engines.clone();
        Session::new(self.inner.hashed.clone(), engines, queue.map_err(|error| Error::Io(error.to_string()))?)
    }

    /// One bounded step of flush, collection and the log's clock.
    pub fn maintain(&self) -> Step {
        self.maintenance().map_or(Step::Idle, |maintenance| lock(maintenance).step())
    }

    /// The maintenance, if the store was opened to write and by this process.
    fn maintenance(&self) -> Option<&Arc<Mutex<Maintenance>>> {
        self.inner.maintenance.as_ref().filter(|_| self.inner.is_here())
    }

    /// An error in a forked child.
    pub(crate) fn refuse_forked(&self) -> Result<(), Error> {
        self.inner.base.refuse_forked()
    }

    /// The phases of flush, collector and a resize.
    pub fn phases(&self) -> Vec<Phase> {
        self.maintenance().map_or_else(Vec::new, |maintenance| lock(maintenance).phases())
    }

    /// No item with a higher stamp was evicted since the store was opened.
    pub fn evicted_through(&self) -> u64 {
        self.inner.hashed.levels.evicted_stamp_max.load(Ordering::SeqCst)
    }

    /// Whether log groups are gathering or on their way.
    pub fn log_is_busy(&self) -> bool {
        self.inner.is_here() && self.inner.base.log.has_pending()
    }

    /// The largest value in bytes.
    pub fn value_bytes_max(&self) -> usize {
        crate::api::session::value_bytes_max(&self.inner.hashed)
    }

    /// Limits of the largest value, beside the options and the format.
    pub fn value_limits(&self) -> ValueLimits {
        let base = &self.inner.base;
        ValueLimits::of(&base.geometry, base.memory_bytes.load(Ordering::SeqCst))
    }

    pub(crate) fn with_session<T>(&self, work: impl FnOnce(&mut Session) -> Result<T, Error>) -> Result<T, Error> {
        self.refuse_forked()?;
        let pooled = lock(&self.inner.sessions).pop();
        let mut session = match pooled {
            Some(session) => session,
            None => self.session()?,
        };
        let done = work(&mut session);
        let mut kept = lock(&self.inner.sessions);
        if kept.len() < SESSIONS_KEPT {
            kept.push(session);
        }
        done
    }

    /// Grows the store to so many bytes of its drive, and returns when that has grown: maintenance does the rest.
    pub fn begin_resize_drive(&self, drive_bytes: u64) -> Result<Resizing, Error> {
        let base = &self.inner.base;
        base.refuse_to_write()?;
        base.log.poisoned()?;
        let capacity_bytes = resize::grow_flash(base, drive_bytes)?;
        resize::ask(base, capacity_bytes)
    }

    /// Gives everything that the store keeps in memory another budget, while it serves. The index gets its share at once;
    /// pools keep theirs until the store is opened again.
    pub fn resize_memory(&self, memory_bytes: u64) -> Result<(), Error> {
        self.refuse_forked()?;
        hashed::resize::resize_memory(&self.inner.hashed, memory_bytes)
    }

    /// Acknowledges no write from the fence on, as long as it is not moved on. It is set once, before anybody writes.
    ///
    /// # Panics
    /// If it is set twice.
    pub fn fence(&self, fence: Fence) {
        assert!(self.inner.base.fence.set(fence).is_ok(), "a store has one fence");
    }

    pub fn drive(&self) -> &Drive {
        &self.inner.base.drive
    }

    /// Why the store takes no writes any more, if it has failed: it must be opened again.
    pub fn failure(&self) -> Option<Error> {
        let base = &self.inner.base;
        base.refuse_forked().and_then(|()| base.log.poisoned()).err()
    }

    /// Takes no writes from here on, because of `error`, and changes nothing on the drive any more; reads go on. Acknowledged writes are written
    /// before, as far as that takes less than a second.
    pub fn fail(&self, error: Error) {
        const PATIENCE_US: u64 = 1_000_000;
        let base = &self.inner.base;
        if base.refuse_forked().is_err() {
            return;
        }
        let until_us = base.drive.env().now_us() + PATIENCE_US;
        while base.log.has_pending() && base.log.poisoned().is_ok() {
            let now_us = base.drive.env().now_us();
            if now_us >= until_us {
                break;
            }
            base.log.advance(true, now_us);
            base.drive.env().rest();
        }
        base.log.poison("the store", error);
    }

    /// Stops maintenance, makes acknowledged writes durable, and leaves a checkpoint of the index, so that the store opens at once. Operations still
    /// in flight are lost unless they were acknowledged; writes are refused from here on ([`Error::Closed`]).
    pub fn close(&self) -> Result<(), Error> {
        self.refuse_forked()?;
        self.inner.base.closed.store(true, Ordering::SeqCst);
        self.inner.base.log.wake();
        self.close_with(|| false)
    }

    /// As [`Store::close`]; `crashed` says that the drive answers no more.
    pub fn close_with(&self, crashed: impl Fn() -> bool) -> Result<(), Error> {
        self.refuse_forked()?;
        self.inner.stopping.store(true, Ordering::SeqCst);
        self.inner.freezes.close();
        self.inner.base.wakeup.wake();
        let thread = lock(&self.inner.thread).take();
        if thread.is_some_and(|thread| thread.join().is_err()) {
            return Err(Error::Poisoned("maintenance panicked".into()));
        }
        let base = &self.inner.base;
        // A store that was opened to read is left as it is.
        let Some(maintenance) = &self.inner.maintenance else { return Ok(()) };
        // A write from here on would be acknowledged and lost.
        base.log.close();
        while base.log.has_pending() {
            base.log.poisoned()?;
            if crashed() {
                return Err(stopped());
            }
            base.log.advance(true, base.drive.env().now_us());
            self.move_on();
            base.drive.env().rest();
        }
        let mut rest = lock(maintenance).rest();
        while !lock(maintenance).wind_down() {
            if crashed() {
                return Err(stopped());
            }
            base.log.advance(true, base.drive.env().now_us());
            self.move_on();
            rest.wait(Step::Waiting);
        }
        let io = &lock(maintenance).manifest_io().clone();
        let fail = |error: &Error| base.log.poison("closing", error.clone());
        run(io, self.moving_on(base.log.flush_elsewhere(io)), &crashed).ok_or_else(stopped)?.inspect_err(fail)?;
        if !self.inner.closed.swap(true, Ordering::SeqCst) {
            let note = self.moving_on(base.clone().note_log_end());
            run(io, note, &crashed).ok_or_else(stopped)?.inspect_err(fail)?;
            // The checkpoint of the index, which the hashed one leaves, is the last word of the manifest.
            for engine in self.inner.engines.iter().rev() {
                let close = self.moving_on(engine.clone().close(io.clone()));
                run(io, close, &crashed).ok_or_else(stopped)?.inspect_err(fail)?;
            }
        }
        Ok(())
    }

    /// Does a part of closing. It may wait for its turn to flush, which an engine has: that moves on meanwhile.
    async fn moving_on<T>(&self, part: impl Future<Output = T>) -> T {
        let mut part = pin!(part);
        poll_fn(|context| {
            self.move_on();
            part.as_mut().poll(context)
        })
        .await
    }

    fn move_on(&self) {
        self.inner.engines.iter().for_each(|engine| engine.move_on());
    }

    /// Ends a store as a crash would, without a word to the drive, and gives back what it lies on, to be opened again. This is the
    /// way on for a store that has failed. An error while sessions or other handles of it live.
    pub fn abandon(self) -> Result<Arc<dyn Flash>, Error> {
        self.refuse_forked()?;
        let base = &self.inner.base;
        let (flash, base) = (base.drive.flash().clone(), Arc::downgrade(base));
        // The last handle waits for the step that maintenance is in.
        drop(self);
        match base.strong_count() {
            0 => Ok(flash),
            _ => Err(Error::Options("the store is still in use: drop its sessions and other handles first".into())),
        }
    }

    /// The part of a keyspace that an opening after a crash would miss, if the keyspace is kept in images. For tests.
    #[doc(hidden)]
    pub fn image_marks(&self, keyspace: crate::KeyspaceId) -> Option<ImageMarks> {
        self.inner.engines.iter().find_map(|engine| engine.image_marks(keyspace))
    }

    /// The engine of keyspaces of a kind.
    pub(crate) fn engine(&self, kind: KeyspaceKind) -> Option<&Arc<dyn Engine>> {
        self.inner.engines.iter().find(|engine| engine.kind() == kind)
    }

    pub(crate) fn ordered(&self) -> &Arc<OrderedEngine> {
        &self.inner.ordered
    }

    /// The freezes of this store.
    pub(crate) fn freezes_list(&self) -> &Arc<FreezeList> {
        &self.inner.freezes
    }

    pub(crate) fn engines(&self) -> &[Arc<dyn Engine>] {
        &self.inner.engines
    }

    pub(crate) fn base(&self) -> &Arc<Base> {
        &self.inner.base
    }

    pub(crate) fn key_desks(&self) -> &Arc<KeyDesks> {
        &self.inner.key_desks
    }

    /// The hashed engine, for the tools of this crate.
    pub(crate) fn hashed(&self) -> &Arc<HashedEngine> {
        &self.inner.hashed
    }
}

/// After a panic, maintenance makes no room any more: sessions that wait for room must learn of it.
struct PoisonOnPanic(Arc<Base>);

impl Drop for PoisonOnPanic {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let why = "maintenance panicked: what it said is on standard error".into();
            self.0.log.poison("maintenance", Error::Poisoned(why));
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.stopping.store(true, Ordering::SeqCst);
        // Sessions may live on: nobody makes room for them any more.
        self.base.closed.store(true, Ordering::SeqCst);
        self.base.log.wake();
        self.base.wakeup.wake();
        if let Some(thread) = lock(&self.thread).take() {
            // A panic there has been reported; this is not the place for another.
            let _ = thread.join();
        }
    }
}
