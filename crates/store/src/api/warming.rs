//! Warms the DRAM tier of a store with the items that an earlier run of it had there.

use crate::api::store::Store;
use crate::hashed::session::KeyDigest;
use crate::hashed::tier::warm::Warming;
use std::ops::ControlFlow;
use tapetum_base::error::Error;

impl Store {
    /// The store's own number: hash keys of one store mean nothing to another.
    pub fn id(&self) -> u64 {
        self.hashed().store_id
    }

    /// Shows `visit` the items in DRAM that are worth warming it with after a restart, some at a time, those that are asked for
    /// more first, until it breaks off. Some may be missing or come twice.
    pub fn hot_keys(&self, visit: impl FnMut(&[KeyDigest]) -> ControlFlow<()>) {
        if self.refuse_forked().is_ok() {
            self.hashed().hot_keys(visit);
        }
    }

    /// Begins to put the items with these hash keys into DRAM, as far as flash has them and there is room.
    pub fn warm(&self, keys: Vec<KeyDigest>) -> Result<Warming, Error> {
        self.refuse_forked()?;
        Warming::begin(self.hashed(), keys)
    }
}
