//! Scans of ordered keyspaces, for callers that wait: an iterator that asks for a part at a time.

use crate::api::blocking::{Item, KeyspaceHandle};
use std::time::Duration;
use tapetum_base::error::{Error, KeyspaceError};
use tapetum_base::keyspace_kind::KeyspaceKind;
use tapetum_base::request::key_range::{KeyRange, ScanPart, ScannedItem};

/// Items that one part has at most.
const PART_ITEMS: usize = 1024;

/// The items of a range of keys, in their order or against it. A key that is there from the first to the last call of `next` is shown once,
/// whatever is written meanwhile; one that came or went may be shown or not. An error ends it.
pub struct Scan {
    keyspace: KeyspaceHandle,
    rest: Option<KeyRange>,
    items: std::vec::IntoIter<ScannedItem>,
}

impl KeyspaceHandle {
    /// Scans a range of an ordered keyspace.
    ///
    /// # Errors
    /// [`KeyspaceError::Unordered`] if it is a hashed one, whose keys have no order.
    pub fn scan(&self, range: KeyRange) -> Result<Scan, Error> {
        if self.keyspace().kind() != KeyspaceKind::Ordered {
            return Err(Error::Keyspace(KeyspaceError::Unordered));
        }
        Ok(Scan { keyspace: self.clone(), rest: Some(range), items: Vec::new().into_iter() })
    }

    /// Some items at the range's beginning, and what is left of it.
    pub(crate) fn scan_part(&self, range: KeyRange) -> Result<ScanPart, Error> {
        self.store().with_session(|session| {
            session.submit_scan(self.keyspace(), 0, range, PART_ITEMS)?;
            let (mut replies, mut scanned) = (Vec::new(), Vec::new());
            loop {
                session.poll(&mut replies);
                session.take_scanned(&mut scanned);
                if let Some(reply) = scanned.pop() {
                    return reply.part;
                }
                session.wait(Some(Duration::from_millis(10)));
            }
        })
    }
}

impl Iterator for Scan {
    type Item = Result<(Vec<u8>, Item), Error>;

    fn next(&mut self) -> Option<Result<(Vec<u8>, Item), Error>> {
        if let Err(error) = self.keyspace.store().refuse_forked() {
            let is_over = self.rest.take().is_none() && self.items.as_slice().is_empty();
            self.items = Vec::new().into_iter();
            return if is_over { None } else { Some(Err(error)) };
        }
        loop {
            if let Some(ScannedItem { key, value, flags, expiry, stamp }) = self.items.next() {
                return Some(Ok((key, Item { value, flags, expiry, stamp })));
            }
            match self.keyspace.scan_part(self.rest.take()?) {
                Ok(ScanPart { items, rest }) => (self.items, self.rest) = (items.into_iter(), rest),
                Err(error) => return Some(Err(error)),
            }
        }
    }
}
