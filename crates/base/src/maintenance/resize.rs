//! Resizes of an open store: who asks for one, and who waits for its end. The engine whose job takes the new room does it
//! (`hashed/resize.rs`).

use crate::base::{Base, Resizing};
use crate::error::Error;
use crate::media::geometry::whole_pages;
use crate::media::io::lock;
use tapetum_drive::{FlashError, Size};

/// Leaves a resize for maintenance to do; one at a time.
pub fn ask(base: &Base, capacity_bytes: u64) -> Result<Resizing, Error> {
    let mut asked = lock(&base.resizing);
    if asked.as_ref().is_some_and(|resizing| resizing.result().is_none()) {
        return Err(Error::Options("the store is being resized already: try again when that is done".into()));
    }
    let resizing = Resizing::new(capacity_bytes);
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
    match base.drive.grow(capacity_bytes) {
        Ok(()) => Ok(capacity_bytes),
        // These say what to do about it.
        Err(error @ (FlashError::NoSpace { .. } | FlashError::TooSmall { .. } | FlashError::FileSizeLimit { .. })) => {
            Err(Error::Options(error.to_string()))
        }
        Err(error) => Err(Error::Io(error.to_string())),
    }
}
