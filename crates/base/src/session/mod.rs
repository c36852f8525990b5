//! The state that the parts of a session share, whatever their engines: queue pair, local memory, replies, the order of operations.

pub mod asks;
pub mod batch;
pub mod engine_session;
pub mod joined_bytes;
pub mod near;
pub mod order;
pub mod owned;
pub mod reply_values;
pub mod session_core;
pub mod spare_buffers;

use crate::base::Base;
use crate::error::Error;
use crate::keyspace::states::KeyspaceRef;
use crate::request::Request;
use tapetum_kernels::record::KEY_BYTES_MAX;

/// A session that keeps so many bytes of keys and values takes no operation. The limit is a quarter of the store's memory if that is less. These are
/// eight of the largest values.
pub const KEPT_BYTES_MAX: usize = 128 << 20;
/// See [`KEPT_BYTES_MAX`].
const KEPT_MEMORY_PART: u64 = 4;
/// An error if no engine can carry out a request.
pub fn refuse(base: &Base, keyspace: KeyspaceRef, request: &Request<'_>) -> Result<(), Error> {
    base.refuse_dropped(keyspace)?;
    if !matches!(request, Request::Get { .. }) {
        base.refuse_to_write()?;
    }
    let key = request.key();
    if key.is_empty() && !matches!(request, Request::DeleteAll { .. }) {
        return Err(Error::KeyEmpty);
    }
    if key.len() > KEY_BYTES_MAX {
        return Err(Error::KeyTooLong { limit_bytes: KEY_BYTES_MAX });
    }
    Ok(())
}
