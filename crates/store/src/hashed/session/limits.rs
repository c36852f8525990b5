//! Checks of requests that the hashed engine refuses.

use crate::hashed::HashedEngine;
use crate::hashed::large::inline_bytes_max;
use tapetum_base::error::{Error, KeyspaceError};
use tapetum_base::keyspace::block_device::BLOCK_BYTES;
use tapetum_base::keyspace::states::KeyspaceRef;
use tapetum_base::keyspace_kind::KeyspaceKind;
use tapetum_base::request::{Condition, Request};
use tapetum_kernels::expiry::Expiry;

use tapetum_kernels::block_group::GROUP_KEY_BYTES;
use tapetum_kernels::ordered::NODE_KEY_BYTES_MAX;
use tapetum_kernels::record::{HEADER_BYTES_MAX, KEY_BYTES_MAX};

/// Limits of the requests and batches of a keyspace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    pub key_bytes: usize,
    pub value_bytes: usize,
    /// An ordered keyspace takes fewer, where their keys lie far apart and the cache of nodes is small.
    pub batch_writes: usize,
    /// Keys and values of a batch, with about 64 bytes that the log takes beside each write.
    pub batch_bytes: usize,
}

impl Limits {
    pub fn of(engine: &HashedEngine, kind: KeyspaceKind) -> Limits {
        let key_bytes = if kind == KeyspaceKind::Ordered { NODE_KEY_BYTES_MAX } else { key_bytes_max(engine) };
        Limits {
            key_bytes: key_bytes.min(KEY_BYTES_MAX),
            value_bytes: value_bytes_max(engine),
            batch_writes: batch_writes_max(engine),
            batch_bytes: batch_bytes_max(engine),
        }
    }
}

/// An error if a request cannot be done, whatever the store holds.
pub fn refuse(engine: &HashedEngine, keyspace: KeyspaceRef, request: &Request<'_>) -> Result<(), Error> {
    tapetum_base::session::refuse(engine, keyspace, request)?;
    let key = request.key();
    if keyspace.is_grouped() {
        refuse_ungrouped(engine, keyspace, request)?;
    }
    check_value(engine, request.payload_bytes() - key.len())?;
    let limit_bytes = key_bytes_max(engine);
    if key.len() > limit_bytes {
        return Err(Error::KeyTooLong { limit_bytes });
    }
    Ok(())
}

/// The longest key: its record must fit into an empty write buffer, and into a segment beside what pages take, with as much of a value
/// as lies in line.
fn key_bytes_max(engine: &HashedEngine) -> usize {
    let with_value = HEADER_BYTES_MAX + inline_bytes_max(&engine.geometry);
    (engine.log.record_bytes_max() - with_value).min(engine.geometry.segment_bytes as usize / 4 * 3)
}

/// An error if a request is not one that the blocks of a device with groups take.
fn refuse_ungrouped(engine: &HashedEngine, keyspace: KeyspaceRef, request: &Request<'_>) -> Result<(), Error> {
    let group_blocks = keyspace.group_blocks() as u64;
    let block_of = |key: &[u8]| {
        let Some((first, [place])) = key.split_first_chunk::<GROUP_KEY_BYTES>() else { return None };
        let (first, place) = (u64::from_be_bytes(*first), u64::from(*place));
        (first.is_multiple_of(group_blocks) && place < group_blocks).then_some(first + place)
    };
    let is_block_key = |key: &[u8]| block_of(key).is_some();
    let is_taken = match *request {
        Request::Get { key } | Request::Delete { key, .. } => is_block_key(key),
        Request::Put { key, value, flags: 0, expiry: Expiry::NONE, condition } => {
            let sets_marks = matches!(condition, Condition::StampOrOlder(_));
            is_block_key(key) && value.len() == BLOCK_BYTES && !sets_marks
        }
        _ => false,
    };
    if !is_taken {
        return Err(Error::Keyspace(KeyspaceError::IsGrouped));
    }
    let blocks = engine.keyspaces.device_blocks(keyspace.id);
    match (request, block_of(request.key())) {
        (Request::Put { .. }, Some(block)) if block >= blocks => {
            Err(Error::Keyspace(KeyspaceError::NoBlock { block, blocks }))
        }
        _ => Ok(()),
    }
}

/// The largest value that a store takes.
pub fn value_bytes_max(engine: &HashedEngine) -> usize {
    engine.base.value_bytes_max
}

pub fn check_value(engine: &HashedEngine, bytes: usize) -> Result<(), Error> {
    let limit_bytes = value_bytes_max(engine);
    if bytes > limit_bytes { Err(Error::ValueTooLarge { limit_bytes }) } else { Ok(()) }
}

/// The most bytes of a batch: it lies in one group of the log, with all values that no engine has stored elsewhere before.
pub fn batch_bytes_max(engine: &HashedEngine) -> usize {
    engine.geometry.segment_bytes as usize / 2
}

/// The most writes of a batch: the shards' tables take this many, whatever their keys are.
pub fn batch_writes_max(engine: &HashedEngine) -> usize {
    engine.geometry.buffer_entries_max() / engine.buffers.shards().len() / 2
}
