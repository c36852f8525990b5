//! Calls of [`Store`] that open or grow a store at a path, by [`Options`].

use super::{OpenError, Options, Place, store_bytes};
use crate::api::store::Store;
use tapetum_base::error::Error;

impl Store {
    /// Opens the store at a directory, file or block device, as [`Options::new`] would; makes it where there is none. A store in use, by this process
    /// or another, is waited for, 3 seconds at most: a process that was killed holds its file until its last writes have ended.
    ///
    /// # Errors
    /// Each says what to do; where one is returned, nothing foreign was changed.
    pub fn open(place: impl Into<Place>) -> Result<Store, OpenError> {
        Options::new().open(place)
    }

    /// Opens the store at a directory, file or block device to read, beside others that read: nothing is written, and without the
    /// right to write.
    ///
    /// # Errors
    /// As [`Store::open`].
    pub fn open_read_only(place: impl Into<Place>) -> Result<Store, OpenError> {
        Options::new().open_read_only(place)
    }

    /// Grows the store to `capacity_bytes`, as [`Options::capacity_bytes`] takes them, while it serves; at most to four times what it was
    /// made with. The file of the drive grows with it. When this returns, all of it is in use.
    pub fn resize_capacity(&self, capacity_bytes: u64) -> Result<(), Error> {
        let resizing = self.begin_resize_drive(store_bytes(capacity_bytes))?;
        self.wait_for(|| resizing.result(), |timeout| resizing.wait(timeout))
    }
}
