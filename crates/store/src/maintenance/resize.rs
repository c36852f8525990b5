//! Resizes of an open store: who asks for one, and who waits for its end. The engine whose job takes the new room does it
//! (`hashed/resize.rs`).

use crate::base::Base;
use crate::error::Error;
use crate::media::geometry::whole_pages;
use crate::media::io::lock;
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;
use tapetum_drive::{FlashError, Size};

/// A resize under way, for who waits for it and for maintenance, which does it. Clones share it.
#[derive(Clone)]
pub struct Resizing {
    state: Arc<State>,
}

struct State {
    capacity_bytes: u64,
    result: Mutex<Option<Result<(), Error>>>,
    ended: Condvar,
}

impl Resizing {
    /// What it came to, once it is over.
    pub fn result(&self) -> Option<Result<(), Error>> {
        lock(&self.state.result).clone()
    }

    /// Waits until it is over, or for `timeout`.
    pub fn wait(&self, timeout: Duration) {
        let result = lock(&self.state.result);
        drop(self.state.ended.wait_timeout_while(result, timeout, |result| result.is_none()));
    }

    pub(crate) fn capacity_bytes(&self) -> u64 {
        self.state.capacity_bytes
    }

    pub(crate) fn end(&self, result: Result<(), Error>) {
        *lock(&self.state.result) = Some(result);
        self.state.ended.notify_all();
    }
}

/// Leaves a resize for maintenance to do; one at a time.
pub fn ask(base: &Base, capacity_bytes: u64) -> Result<Resizing, Error> {
    let mut asked = lock(&base.resizing);
    if asked.as_ref().is_some_and(|resizing| resizing.result().is_none()) {
        return Err(Error::Options("the store is being resized already: try again when that is done".into()));
    }
    let state = State { capacity_bytes, result: Mutex::new(None), ended: Condvar::new() };
    let resizing = Resizing { state: Arc::new(state) };
    *asked = Some(resizing.clone());
    base.wakeup.wake();
    Ok(resizing)
}

/// Makes the flash large enough; blocks for as long as the system takes to reserve it. Returns the capacity to go for.
pub fn grow_flash(base: &Base, capacity_bytes: u64) -> Result<u64, Error> {
    let capacity_bytes = whole_pages(capacity_bytes);
    let (now_bytes, most_bytes) = (base.capacity_bytes(), base.geometry.capacity_max_bytes());
    if capacity_bytes < now_bytes {
        return Err(Error::Options(format!(
            "the store has {} and cannot shrink to {}: give more, or load its items into a new store",
            Size(now_bytes),
            Size(capacity_bytes)
        )));
    }
    if capacity_bytes > most_bytes {
        return Err(Error::Options(format!(
            "a store made with {} can grow to {} and not to {}: give less, or load its items into a new store",
            Size(base.geometry.created_bytes),
            Size(most_bytes),
            Size(capacity_bytes)
        )));
    }
    match base.drive.flash().grow(capacity_bytes) {
        Ok(()) => Ok(capacity_bytes),
        // These say what to do about it.
        Err(error @ (FlashError::NoSpace { .. } | FlashError::TooSmall { .. } | FlashError::FileSizeLimit { .. })) => {
            Err(Error::Options(error.to_string()))
        }
        Err(error) => Err(Error::Io(error.to_string())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tapetum_drive::Env;

    #[test]
    fn who_waits_for_a_resize_sees_its_end() {
        let state = State { capacity_bytes: 1, result: Mutex::new(None), ended: Condvar::new() };
        let resizing = Resizing { state: Arc::new(state) };
        resizing.wait(Duration::from_millis(1));
        assert_eq!(resizing.result(), None);
        let maintenance = resizing.clone();
        let ending = Env::system().spawn("resize", move || maintenance.end(Ok(()))).unwrap();
        resizing.wait(Duration::from_secs(600));
        assert_eq!(resizing.result(), Some(Ok(())));
        ending.join().unwrap();
    }
}
