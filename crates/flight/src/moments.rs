//! Moments: which freeze a statement reads.
//!
//! 1. A statement sees everything that was acknowledged before it came: it gets a freeze that was begun later, or one after which nothing was
//!    written.
//! 2. Statements that come while a freeze is made share the next one. So a flood of them takes few.
//! 3. A freeze stays for [`LASTS`], so that its tickets can be shown again. Where there are as many as may be, the one goes first whose
//!    tickets have all been read to their end, the longest unused before others; if none is like that, the statement comes again.
//!
//! Threads: any. Whoever needs a freeze waits for those who make one.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use tapetum::{FreezeError, FreezeOptions, Store};
use tapetum_service::failure::{Failure, FailureKind};

/// How long a ticket is good for, from its making or its renewal.
pub const LASTS: Duration = Duration::from_secs(60);
/// The owner of the door's freezes.
const OWNER: &str = "flight";
/// A ticket that nobody has shown for so long is not waited for.
const UNREAD_MAX: Duration = Duration::from_secs(10);
/// A freeze that nobody has used for so long has ended, unless it is renewed by its tickets: then it is only not given up early.
const FORGOTTEN: Duration = Duration::from_secs(600);

/// A moment of the store that is open now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moment {
    /// Changes whenever the store is opened again.
    pub opening: u64,
    pub freeze: u64,
}

/// See the [module](self).
pub struct Moments {
    /// Held while a freeze is made, which takes long.
    making: Mutex<()>,
    state: Mutex<State>,
}

struct State {
    /// The store whose freezes these are.
    store: Weak<Store>,
    opening: u64,
    newest: Option<(u64, Instant)>,
    freezes: HashMap<u64, Use>,
}

struct Use {
    used: Instant,
    /// Tickets that nobody has read to the end yet.
    unread: usize,
    reading: usize,
}

impl Moments {
    /// `first`: a number that no other server's door begins with.
    pub fn new(first: u64) -> Moments {
        let state = State { store: Weak::new(), opening: first, newest: None, freezes: HashMap::new() };
        Moments { making: Mutex::default(), state: Mutex::new(state) }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The number of the store's opening.
    pub fn opening(&self, store: &Arc<Store>) -> u64 {
        let mut state = self.state();
        state.look_at(store);
        state.opening
    }

    /// A moment of the store for a statement that came at `came`, with one ticket; `None`, if there are as many as may be, and all are in use.
    pub fn take(&self, store: &Arc<Store>, came: Instant) -> Result<Option<Moment>, Failure> {
        let _making = self.making.lock().unwrap_or_else(PoisonError::into_inner);
        let shared = self.state().shared(store, came);
        let found = match shared {
            Some(freeze) => Some(freeze),
            None => self.make(store)?,
        };
        let Some(freeze) = found else { return Ok(None) };
        let mut state = self.state();
        let used = state.freezes.entry(freeze).or_insert_with(|| Use { used: came, unread: 0, reading: 0 });
        (used.used, used.unread) = (Instant::now(), used.unread + 1);
        Ok(Some(Moment { opening: state.opening, freeze }))
    }

    /// A new freeze; `None`, if there are as many as may be, and all are in use.
    fn make(&self, store: &Store) -> Result<Option<u64>, Failure> {
        loop {
            let begun = Instant::now();
            let options = FreezeOptions { owner: OWNER.into(), lasts: LASTS, flash_bytes_max: None };
            match store.freeze(&options) {
                Ok(freeze) => {
                    let id = freeze.leave().id();
                    let mut state = self.state();
                    state.freezes.retain(|_, used| used.reading > 0 || used.used.elapsed() < FORGOTTEN);
                    state.newest = Some((id, begun));
                    return Ok(Some(id));
                }
                Err(FreezeError::TooManyOfOwner { .. } | FreezeError::TooMany { .. }) => {
                    if !self.state().release_one(store) {
                        return Ok(None);
                    }
                }
                Err(FreezeError::Store(error)) => {
                    return Err(Failure::new(FailureKind::Unavailable, error.to_string()));
                }
                Err(error) => return Err(Failure::new(FailureKind::Full, error.to_string())),
            }
        }
    }

    /// A ticket of a freeze is read now. The drop ends that.
    pub fn read(self: &Arc<Self>, freeze: u64) -> Reading {
        let mut state = self.state();
        let used = state.freezes.get_mut(&freeze);
        let is_counted = used.is_some();
        if let Some(used) = used {
            (used.used, used.reading) = (Instant::now(), used.reading + 1);
        }
        Reading { moments: Arc::clone(self), freeze, is_counted, is_whole: false }
    }

    /// There are so many more tickets of a freeze.
    pub fn expect(&self, freeze: u64, tickets: usize) {
        if let Some(used) = self.state().freezes.get_mut(&freeze) {
            used.unread += tickets;
        }
    }

    /// Nobody will show so many tickets of a freeze any more.
    pub fn forget(&self, freeze: u64, tickets: usize) {
        if let Some(used) = self.state().freezes.get_mut(&freeze) {
            used.unread = used.unread.saturating_sub(tickets);
        }
    }
}

/// See [`Moments::read`].
pub struct Reading {
    moments: Arc<Moments>,
    freeze: u64,
    /// The freeze is one of the door's.
    is_counted: bool,
    is_whole: bool,
}

impl Reading {
    /// The rows were read to their end.
    pub fn finish(mut self) {
        self.is_whole = true;
    }
}

impl Drop for Reading {
    fn drop(&mut self) {
        let mut state = self.moments.state();
        if let Some(used) = state.freezes.get_mut(&self.freeze).filter(|_| self.is_counted) {
            used.reading -= 1;
            used.unread = used.unread.saturating_sub(self.is_whole.into());
        }
    }
}

impl State {
    /// Forgets the freezes of a store that is not open any more.
    fn look_at(&mut self, store: &Arc<Store>) {
        if !std::ptr::eq(self.store.as_ptr(), Arc::as_ptr(store)) {
            *self = State {
                store: Arc::downgrade(store),
                opening: self.opening.wrapping_add(1),
                newest: None,
                freezes: HashMap::new(),
            };
        }
    }

    /// A freeze that shows all that was acknowledged before `came`.
    fn shared(&mut self, store: &Arc<Store>, came: Instant) -> Option<u64> {
        self.look_at(store);
        let (freeze, begun) = self.newest?;
        let is_new_enough = begun >= came || store.frozen(freeze).is_ok_and(|view| view.is_now());
        let is_there = is_new_enough && store.renew_freeze(freeze, LASTS).is_ok();
        if is_there { Some(freeze) } else { None }
    }

    /// Ends the freeze that is needed least, if there is one that nobody needs.
    fn release_one(&mut self, store: &Store) -> bool {
        let there: Vec<u64> =
            store.freezes().into_iter().filter(|report| report.owner == OWNER).map(|report| report.id).collect();
        self.freezes.retain(|id, _| there.contains(id));
        let is_free = |used: &Use| used.reading == 0 && (used.unread == 0 || used.used.elapsed() >= UNREAD_MAX);
        let free = self.freezes.iter().filter(|(_, used)| is_free(used)).min_by_key(|(_, used)| used.used);
        let Some((&id, _)) = free else { return false };
        self.freezes.remove(&id);
        // It may have ended meanwhile.
        let _ = store.release_freeze(id);
        true
    }
}
