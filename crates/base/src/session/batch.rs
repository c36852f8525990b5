//! An engine's part of a batch: several writes in one log group and one write buffer, so that a crash leaves all of them or none.

use crate::error::Error;
use crate::keyspace::states::KeyspaceRef;
use crate::log::Draft;
use crate::request::{Condition, Request};
use crate::session::session_core::SessionCore;
use tapetum_kernels::expiry::Expiry;
use tapetum_kernels::record::{Codec, Header};

/// One write of a batch.
#[derive(Clone, Copy, Debug)]
pub enum Write<'a> {
    Put { keyspace: KeyspaceRef, key: &'a [u8], value: &'a [u8], flags: u32, expiry: Expiry },
    Delete { keyspace: KeyspaceRef, key: &'a [u8] },
}

impl<'a> Write<'a> {
    pub fn is_put(&self) -> bool {
        matches!(self, Write::Put { .. })
    }

    pub fn key(&self) -> &'a [u8] {
        match *self {
            Write::Put { key, .. } | Write::Delete { key, .. } => key,
        }
    }

    pub fn keyspace(&self) -> KeyspaceRef {
        match *self {
            Write::Put { keyspace, .. } | Write::Delete { keyspace, .. } => keyspace,
        }
    }

    pub fn value(&self) -> &'a [u8] {
        match *self {
            Write::Put { value, .. } => value,
            Write::Delete { .. } => &[],
        }
    }

    /// The request that the write would be outside a batch.
    pub fn request(&self) -> Request<'a> {
        match *self {
            Write::Put { key, value, flags, expiry, .. } => {
                Request::Put { key, value, flags, expiry, condition: Condition::Always }
            }
            Write::Delete { key, .. } => Request::Delete { key, stamp: None },
        }
    }

    /// The write's record, with its value in stored form.
    pub fn draft<'b>(&self, codec: Codec, stored: &'b [u8]) -> Draft<'b>
    where
        'a: 'b,
    {
        let header = match *self {
            Write::Put { key, value, flags, expiry, .. } => Header {
                codec,
                flags,
                expiry,
                raw_bytes: value.len() as u32,
                ..Header::value(0, key.len(), stored.len())
            },
            Write::Delete { key, .. } => Header::tombstone(0, key.len()),
        };
        let header = Header { keyspace: self.keyspace().id.0, ..header };
        Draft { header, key: self.key(), stored }
    }
}

/// The reason why a batch was not appended.
pub enum BatchStop {
    /// The caller submits it again later.
    Busy,
    /// The write buffer has no room for the batch.
    Full,
    Refused(Error),
}

/// An engine's prepared part of a batch. Dropping it releases its locks.
pub trait BatchPart {
    /// Locks the keys against others and checks that there is room for them.
    fn lock(&mut self, core: &mut SessionCore) -> Result<(), BatchStop>;

    /// Appends its records to those of the group, in the order of its writes.
    fn add_drafts<'a>(&'a self, drafts: &mut Vec<Draft<'a>>);

    /// Called after the append: each record has this stamp and this place in the active buffer. Makes the records visible to readers.
    fn appended(&mut self, core: &mut SessionCore, records: &[(u64, u32)]);
}
