//! What the hashed engine refuses.

use crate::error::Error;
use crate::hashed::HashedEngine;
use crate::hashed::large::inline_bytes_max;
use crate::keyspace::request::Request;
use crate::keyspace::states::KeyspaceRef;
use crate::session;
use tapetum_kernels::record::HEADER_BYTES_MAX;

/// An error if a request cannot be done, whatever the store holds.
pub fn refuse(engine: &HashedEngine, keyspace: KeyspaceRef, request: &Request<'_>) -> Result<(), Error> {
    session::refuse(engine, keyspace, request)?;
    let key = request.key();
    check_value(engine, request.payload_bytes() - key.len())?;
    // A record must fit into an empty write buffer, and into a segment beside what pages take, with as much of a value as
    // lies in line.
    let with_value = HEADER_BYTES_MAX + inline_bytes_max(&engine.geometry);
    let limit_bytes = (engine.log.record_bytes_max() - with_value).min(engine.geometry.segment_bytes as usize / 4 * 3);
    if key.len() > limit_bytes {
        return Err(Error::KeyTooLong { limit_bytes });
    }
    Ok(())
}

/// The largest value that a store takes.
pub fn value_bytes_max(engine: &HashedEngine) -> usize {
    engine.base.value_bytes_max
}

pub fn check_value(engine: &HashedEngine, bytes: usize) -> Result<(), Error> {
    let limit_bytes = value_bytes_max(engine);
    if bytes > limit_bytes { Err(Error::ValueTooLarge { limit_bytes }) } else { Ok(()) }
}

/// The most writes of a batch: the shards' tables take as many whatever their keys are.
pub fn batch_writes_max(engine: &HashedEngine) -> usize {
    engine.geometry.buffer_entries_max() / engine.buffers.shards().len() / 2
}
