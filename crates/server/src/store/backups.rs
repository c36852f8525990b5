//! Keeps backups of the served store: one every so often, under a lease that fences the store.
//!
//! ```text
//!  lease thread:   renewed every third of its time ─► fence moved      lost ─► nothing more: the fence passes, and no backup is made
//!  backup thread:  a backup every so often ─► old ones removed now and then
//! ```
//! 1. The lease is held before a client is served, and the fence is never behind its end.
//! 2. When the server stops, its last backup has everything, and then the lease is given back.
//! 3. A depot that cannot be reached is tried again: by then the fence may have passed, and goes on when a renewal succeeds.
//!
//! Threads: two of its own.

// The server is above the simulator: these threads wait by the clock.
#![allow(clippy::disallowed_methods)]

use std::io;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use tapetum::Fence;
use tapetum::backup::lease::Lease;
use tapetum::backup::{BackupError, BackupOptions, Depot, list, prune};
use tapetum_drive::env::Env;
use tapetum_service::size;

use crate::store::store_slot::StoreSlot;

/// A lease is renewed so often in its time.
const RENEWALS: u32 = 3;
/// How soon something that failed is tried again.
const RETRY: Duration = Duration::from_secs(1);

#[derive(Clone, Copy, Debug)]
pub struct BackupPlan {
    pub every: Duration,
    /// How many backups stay.
    pub keep: usize,
    /// How long the lease of a standby lasts when it is promoted.
    pub lease_ms: u64,
}

struct Shared {
    slot: Arc<StoreSlot>,
    depot: Arc<dyn Depot>,
    plan: BackupPlan,
    env: Env,
    generation: u64,
    /// `None` when it was lost.
    lease: Mutex<Option<Lease>>,
    fence: Fence,
    is_over: Mutex<bool>,
    over: Condvar,
}

/// See the [module](self).
pub struct BackupKeeper {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl BackupKeeper {
    /// Begins with a backup at once. The slot's stores have the fence.
    pub fn start(slot: Arc<StoreSlot>, plan: BackupPlan, lease: Lease, fence: Fence) -> io::Result<BackupKeeper> {
        slot.backups().begin(false, plan.every);
        let shared = Arc::new(Shared {
            slot,
            depot: Arc::clone(lease.depot()),
            plan,
            env: Env::system(),
            generation: lease.generation(),
            lease: Mutex::new(Some(lease)),
            fence,
            is_over: Mutex::new(false),
            over: Condvar::new(),
        });
        let mut keeper = BackupKeeper { shared, threads: Vec::new() };
        let (renewing, backing_up) = (Arc::clone(&keeper.shared), Arc::clone(&keeper.shared));
        keeper.spawn("tapetum-lease", move || renewing.renew_lease())?;
        keeper.spawn("tapetum-backups", move || backing_up.make_backups())?;
        Ok(keeper)
    }

    fn spawn(&mut self, name: &str, work: impl FnOnce() + Send + 'static) -> io::Result<()> {
        self.threads.push(std::thread::Builder::new().name(name.into()).spawn(work)?);
        Ok(())
    }

    /// Makes the last backup, and gives the lease back. Nobody writes any more.
    pub fn stop(self) {
        *lock(&self.shared.is_over) = true;
        self.shared.over.notify_all();
        for thread in self.threads {
            // A panic has ended the process.
            let _ = thread.join();
        }
        let Some(mut lease) = lock(&self.shared.lease).take() else { return };
        if let Err(error) = lease.renew() {
            return tracing::warn!("no last backup was made: {error}");
        }
        self.shared.fence.move_to(lease.ends_ms());
        let mut keep = || lease.keep().is_ok();
        match self.shared.back_up(&mut keep) {
            Ok(()) => lease.note_behind(Some(0)),
            Err(error) => tracing::warn!("no last backup was made: {error}"),
        }
        if let Err(error) = lease.release() {
            tracing::warn!("the lease of the backups ends by itself: {error}");
        }
    }
}

impl Shared {
    /// Waits; whether the server goes on.
    fn waits(&self, time: Duration) -> bool {
        let waited = self.over.wait_timeout_while(lock(&self.is_over), time, |is_over| !*is_over);
        !*waited.unwrap_or_else(PoisonError::into_inner).0
    }

    fn is_over(&self) -> bool {
        *lock(&self.is_over)
    }

    fn renew_lease(&self) {
        let lasts = lock(&self.lease).as_ref().map_or(RETRY, |lease| Duration::from_millis(lease.lasts_ms()));
        let (mut said, mut pause) = (None, lasts / RENEWALS);
        while self.waits(pause) {
            let mut held = lock(&self.lease);
            let Some(lease) = &mut *held else { return };
            let moment_ms = self.slot.backups().moment_ms.load(Ordering::SeqCst);
            lease.note_behind((moment_ms > 0).then(|| self.env.unix_millis().saturating_sub(moment_ms)));
            let renewed = lease.renew();
            self.fence.move_to(lease.ends_ms());
            pause = if renewed.is_ok() { lasts / RENEWALS } else { RETRY.min(lasts / RENEWALS) };
            match renewed {
                Err(BackupError::LostLease { place }) => {
                    *held = None;
                    tracing::error!(
                        "the lease of the backups at {place} was taken by another: a standby serves in the place of this server; writes are \
                         refused from now on, reads go on, and no more backups are made"
                    );
                    return;
                }
                Err(error) => say_once(&mut said, &format!("the lease of the backups was not renewed: {error}")),
                Ok(()) if said.take().is_some() => tracing::info!("the lease of the backups is renewed again"),
                Ok(()) => {}
            }
        }
    }

    fn make_backups(&self) {
        let (mut said, mut made) = (None, 0);
        loop {
            let backed_up = self.back_up(&mut || !self.is_over() && lock(&self.lease).is_some());
            let pause = match backed_up {
                Ok(()) => {
                    made += 1;
                    said = None;
                    self.plan.every
                }
                Err(BackupError::Cancelled) => return,
                Err(error) => {
                    self.slot.backups().note_failed();
                    say_once(&mut said, &format!("no backup was made: {error}"));
                    self.plan.every.min(RETRY)
                }
            };
            // Some more than are to stay are there in between.
            if made >= (self.plan.keep / 4).max(1) {
                made = 0;
                self.prune();
            }
            if !self.waits(pause) {
                return;
            }
        }
    }

    fn back_up(&self, go_on: &mut dyn FnMut() -> bool) -> Result<(), BackupError> {
        let store = self.slot.store()?;
        let options = BackupOptions { generation: self.generation, anew: false };
        let made = store.backup(&self.depot, &options, &mut |_| go_on())?;
        self.slot.backups().note_made(made.moment_unix_ms);
        let (number, copied) = (made.name.sequence, size::shown(made.copied_bytes));
        tracing::debug!("backup {number} at {}: {copied} copied", self.depot.place());
        Ok(())
    }

    /// Removes old backups, if the lease is held for certain.
    fn prune(&self) {
        let is_due = list(&*self.depot).is_ok_and(|names| names.len() > self.plan.keep);
        if is_due && let Err(error) = prune(&*self.depot, self.plan.keep, &mut || !self.fence.has_passed()) {
            tracing::warn!("old backups stay: {error}");
        }
    }
}

/// Warns of something that is tried again and again, once.
fn say_once(said: &mut Option<String>, told: &str) {
    if said.as_deref() != Some(told) {
        tracing::warn!("{told}; trying again");
        *said = Some(told.to_owned());
    }
}
