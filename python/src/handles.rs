//! The parts of an open store that Python objects hold, so that closing the store takes them from all objects.
//!
//! 1. After [`StoreHandles::close`] nobody gets a handle's value, and no new handle is made. Calls that already have the value run to their
//!    end, and the last of them drops it.
//! 2. The list has at most a few entries for each live handle.

use crate::errors::ClosedError;
use pyo3::{PyErr, PyResult};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use tapetum::Error;
use tapetum_drive::OfProcess;

/// The least entries in the list before those of dropped handles are removed.
const ENTRIES_LEAST: usize = 64;

/// All handles of one open store.
#[derive(Default)]
pub struct StoreHandles {
    list: Mutex<HandleList>,
}

#[derive(Default)]
struct HandleList {
    is_closed: bool,
    slots: Vec<Weak<dyn Emptied>>,
    /// With so many entries, those of dropped handles are removed.
    entries_max: usize,
}

trait Emptied: Send + Sync {
    fn empty(&self);
}

struct Slot<T>(Mutex<Option<Arc<T>>>);

impl<T> Slot<T> {
    fn lock(&self) -> MutexGuard<'_, Option<Arc<T>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T: Send + Sync> Emptied for Slot<T> {
    fn empty(&self) {
        // Drop it after the slot is unlocked, because that may take a while.
        let held = self.lock().take();
        drop(held);
    }
}

/// One object's part of a store. It belongs to the process that made it, and is taken away when the store is closed.
pub struct Handle<T> {
    slot: OfProcess<Arc<Slot<T>>>,
    all: Arc<StoreHandles>,
}

fn closed() -> PyErr {
    ClosedError::new_err("the store was closed: open it again")
}

impl StoreHandles {
    /// A handle on `value`.
    ///
    /// # Errors
    /// [`ClosedError`].
    pub fn hold<T: Send + Sync + 'static>(self: &Arc<Self>, value: T) -> PyResult<Handle<T>> {
        let slot = Arc::new(Slot(Mutex::new(Some(Arc::new(value)))));
        let mut list = self.list.lock().unwrap_or_else(PoisonError::into_inner);
        if list.is_closed {
            return Err(closed());
        }
        if list.slots.len() >= list.entries_max {
            list.slots.retain(|slot| slot.strong_count() > 0);
            list.entries_max = (2 * list.slots.len()).max(ENTRIES_LEAST);
        }
        let weak: Weak<dyn Emptied> = Arc::<Slot<T>>::downgrade(&slot);
        list.slots.push(weak);
        drop(list);
        Ok(Handle { slot: OfProcess::new(slot), all: self.clone() })
    }

    /// Takes the value of each handle.
    pub fn close(&self) {
        let slots = {
            let mut list = self.list.lock().unwrap_or_else(PoisonError::into_inner);
            list.is_closed = true;
            std::mem::take(&mut list.slots)
        };
        slots.iter().filter_map(Weak::upgrade).for_each(|slot| slot.empty());
    }
}

impl<T: Send + Sync + 'static> Handle<T> {
    fn slot(&self) -> PyResult<&Slot<T>> {
        match self.slot.is_here() {
            true => Ok(&self.slot),
            false => Err(ClosedError::new_err(Error::Forked.to_string())),
        }
    }

    /// # Errors
    /// [`ClosedError`], if the store was closed, or this was made before a fork.
    pub fn get(&self) -> PyResult<Arc<T>> {
        self.slot()?.lock().clone().ok_or_else(closed)
    }

    /// Takes the value, so that each later call reports a closed store. `None` if it was already taken.
    ///
    /// # Errors
    /// [`ClosedError`], if it was made before a fork.
    pub fn take(&self) -> PyResult<Option<Arc<T>>> {
        Ok(self.slot()?.lock().take())
    }

    /// The handles of the same store.
    pub fn all(&self) -> &Arc<StoreHandles> {
        &self.all
    }
}
