//! An engine's part of a batch: several writes in one log group and one write buffer, so that all of them are there after a crash, or none.

use crate::error::Error;
use crate::keyspace::states::KeyspaceRef;
use crate::log::Draft;
use crate::request::{Condition, Request};
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

    /// The request that it is alone.
    pub fn request(&self) -> Request<'a> {
        match *self {
            Write::Put { key, value, flags, expiry, .. } => {
                Request::Put { key, value, flags, expiry, condition: Condition::Always }
            }
            Write::Delete { key, .. } => Request::Delete { key, stamp: None },
        }
    }

    /// Its record, with its value as it is stored.
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

/// Why a batch was not appended.
pub enum BatchStop {
    /// It is to be submitted again later.
    Busy,
    /// The write buffer has no room for it.
    Full,
    Refused(Error),
}

/// An engine's part of a batch that it has prepared. Dropping it unlocks what it locked.
pub trait BatchPart {
    /// Locks what keeps others from the keys, and looks whether there is room for them.
    fn lock(&mut self) -> Result<(), BatchStop>;

    /// Appends its records to those of the group, in the order of its writes.
    fn add_drafts<'a>(&'a self, drafts: &mut Vec<Draft<'a>>);

    /// They were appended, each with this stamp and at this place in the active buffer. Lets readers find them.
    fn appended(&mut self, records: &[(u64, u32)]);
}
