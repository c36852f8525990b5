//! The freezes of a store, by their ids, and the moments of ordered keyspaces that queries and scans have for themselves.
//!
//! An id is a stamp: no freeze of an earlier opening had it. Those that have ended are remembered for a while, so that their owners learn why.

use super::{FreezeEnd, FreezeError, FreezeOptions, FreezeReport, FrozenStore};
use crate::hashed::HashedEngine;
use crate::ordered::frozen::FrozenTree;
use crate::ordered::slabs::hold::HOLDS_MAX;
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;
use tapetum_base::error::Error;
use tapetum_base::media::io::lock;
use tapetum_base::stats::Stats;

/// Freezes of a store. Each has a copy of what write buffers had, and the places of all nodes.
pub const FREEZES_MAX: usize = 64;
/// Freezes of one owner.
pub const FREEZES_OF_OWNER_MAX: usize = 8;
/// The longest time between two renewals.
pub const LASTS_MAX: Duration = Duration::from_secs(24 * 3600);
/// Moments of queries and scans at once.
const OWN_MAX: usize = 4096;
const _: () = assert!(OWN_MAX + FREEZES_MAX < HOLDS_MAX as usize);
/// Ended freezes that are remembered.
const ENDED_MAX: usize = 256;

#[derive(Default)]
struct State {
    freezes: BTreeMap<u64, Arc<FrozenStore>>,
    /// The owners of freezes that are being made.
    begun: Vec<String>,
    ended: VecDeque<(u64, FreezeEnd)>,
    /// The store is being closed.
    is_closed: bool,
    /// The longest time that writers waited for one.
    pause_max_us: u64,
    /// The trees that queries and scans hold, the oldest first.
    own: VecDeque<(u64, Weak<FrozenTree>)>,
}

/// See the [module](self).
#[derive(Default)]
pub struct FreezeList {
    state: Mutex<State>,
}

/// A place for a freeze that is being made.
pub struct FreezePlace {
    list: Arc<FreezeList>,
    owner: String,
}

impl Drop for FreezePlace {
    fn drop(&mut self) {
        let begun = &mut lock(&self.list.state).begun;
        if let Some(place) = begun.iter().position(|owner| *owner == self.owner) {
            begun.swap_remove(place);
        }
    }
}

impl FreezePlace {
    pub fn add(self, frozen: FrozenStore) -> Arc<FrozenStore> {
        let frozen = Arc::new(frozen);
        let mut state = lock(&self.list.state);
        state.pause_max_us = state.pause_max_us.max(frozen.pause_us);
        state.freezes.insert(frozen.id, frozen.clone());
        let is_closed = state.is_closed;
        drop(state);
        if is_closed {
            self.list.end(frozen.id, FreezeEnd::Closed);
        }
        frozen
    }
}

impl FreezeList {
    /// A place for one more.
    pub fn begin(self: &Arc<Self>, options: &FreezeOptions) -> Result<FreezePlace, FreezeError> {
        check_lasts(options.lasts)?;
        self.end_expired();
        let mut state = lock(&self.state);
        if state.is_closed {
            return Err(Error::Closed.into());
        }
        let owners = state.freezes.values().map(|frozen| &frozen.owner).chain(&state.begun);
        let (mut of_all, mut of_owner) = (0, 0);
        for owner in owners {
            of_all += 1;
            of_owner += usize::from(*owner == options.owner);
        }
        if of_owner >= FREEZES_OF_OWNER_MAX {
            let owner = options.owner.clone();
            return Err(FreezeError::TooManyOfOwner { owner, limit: FREEZES_OF_OWNER_MAX });
        }
        if of_all >= FREEZES_MAX {
            return Err(FreezeError::TooMany { limit: FREEZES_MAX });
        }
        state.begun.push(options.owner.clone());
        Ok(FreezePlace { list: self.clone(), owner: options.owner.clone() })
    }

    /// Takes note of a moment that a query or a scan has for itself, which gives way as a freeze does.
    ///
    /// # Errors
    /// If there are too many, or the store is being closed.
    pub fn note_own(&self, now_us: u64, tree: &Arc<FrozenTree>) -> Result<(), Error> {
        let mut state = lock(&self.state);
        state.own.retain(|(_, tree)| tree.strong_count() > 0);
        if state.is_closed {
            return Err(Error::Closed);
        }
        if state.own.len() >= OWN_MAX {
            let why = format!(
                "{OWN_MAX} scans and queries of ordered keyspaces are under way: end some, or let them read one freeze"
            );
            return Err(Error::Options(why));
        }
        state.own.push_back((now_us, Arc::downgrade(tree)));
        Ok(())
    }

    pub fn find(&self, id: u64) -> Result<Arc<FrozenStore>, FreezeError> {
        let state = lock(&self.state);
        if let Some(frozen) = state.freezes.get(&id) {
            return Ok(frozen.clone());
        }
        let ended = state.ended.iter().find(|(of, _)| *of == id);
        Err(ended.map_or(FreezeError::Unknown { id }, |(_, why)| FreezeError::Ended { id, why: *why }))
    }

    pub fn renew(&self, id: u64, now_us: u64, lasts: Duration) -> Result<(), FreezeError> {
        check_lasts(lasts)?;
        self.find(id)?.renew(now_us, lasts)
    }

    /// Ends a freeze, if it has not ended.
    pub fn end(&self, id: u64, why: FreezeEnd) {
        let frozen = {
            let mut state = lock(&self.state);
            let Some(frozen) = state.freezes.remove(&id) else { return };
            if state.ended.len() == ENDED_MAX {
                state.ended.pop_front();
            }
            state.ended.push_back((id, why));
            frozen
        };
        frozen.end(why);
    }

    /// Ends all, and all that are made from here on: the store is being closed.
    pub fn close(&self) {
        lock(&self.state).is_closed = true;
        self.all().iter().for_each(|frozen| self.end(frozen.id, FreezeEnd::Closed));
        self.own().iter().for_each(|(_, tree)| tree.give_up());
    }

    /// The trees that queries and scans hold, the oldest first.
    fn own(&self) -> Vec<(u64, Arc<FrozenTree>)> {
        let state = lock(&self.state);
        state.own.iter().filter_map(|(begun_us, tree)| Some((*begun_us, tree.upgrade()?))).collect()
    }

    /// Ends those whose time is over.
    pub fn end_expired(&self) {
        let expired = self.all().into_iter().filter(|frozen| frozen.ended() == Some(FreezeEnd::Expired));
        expired.for_each(|frozen| self.end(frozen.id, FreezeEnd::Expired));
    }

    /// All of them, the oldest first.
    pub fn all(&self) -> Vec<Arc<FrozenStore>> {
        lock(&self.state).freezes.values().cloned().collect()
    }

    /// Whether there is none, and none that a query or a scan has for itself.
    pub fn is_empty(&self) -> bool {
        let state = lock(&self.state);
        state.freezes.is_empty() && state.own.iter().all(|(_, tree)| tree.strong_count() == 0)
    }

    pub fn reports(&self, engine: &HashedEngine) -> Vec<FreezeReport> {
        self.all().iter().map(|frozen| frozen.report(engine)).collect()
    }

    pub fn add_stats(&self, engine: &HashedEngine, stats: &mut Stats) {
        let reports = self.reports(engine);
        stats.freezes = reports.len() as u64;
        stats.freeze_flash_bytes = reports.iter().map(|report| report.flash_bytes).sum();
        stats.freeze_memory_bytes = reports.iter().map(|report| report.memory_bytes).sum();
        stats.freeze_age_us = reports.first().map_or(0, |oldest| oldest.age_us);
        stats.freeze_pause_us = lock(&self.state).pause_max_us;
    }

    /// Ends those that keep too much.
    pub fn end_greedy(&self, engine: &HashedEngine) {
        for frozen in self.all() {
            if frozen.is_too_old() || frozen.flash_bytes(engine) > frozen.flash_bytes_max {
                self.end(frozen.id, FreezeEnd::FlashNeeded);
            }
        }
    }

    /// Ends the oldest that keeps flash from writers, as they need some; whether there was one.
    pub fn end_oldest(&self, engine: &HashedEngine) -> bool {
        let named = self.all().into_iter().find(|frozen| frozen.flash_bytes(engine) > 0);
        let own = self.own().into_iter().find(|(_, tree)| tree.check().is_ok() && tree.flash_bytes() > 0);
        match (named, own) {
            (Some(frozen), Some((begun_us, tree))) if begun_us < frozen.begun_us => tree.give_up(),
            (Some(frozen), _) => self.end(frozen.id, FreezeEnd::FlashNeeded),
            (None, Some((_, tree))) => tree.give_up(),
            (None, None) => return false,
        }
        true
    }
}

fn check_lasts(lasts: Duration) -> Result<(), FreezeError> {
    let is_right = lasts >= Duration::from_millis(1) && lasts <= LASTS_MAX;
    if is_right { Ok(()) } else { Err(FreezeError::Lasts { limit: LASTS_MAX }) }
}
