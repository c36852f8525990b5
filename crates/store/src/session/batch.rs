//! Batches: several writes in one log group and one write buffer, so that all of them are there after a crash, or none.

use super::attempt::poison;
use super::{Local, refuse};
use crate::error::Error;
use crate::hashed::large::inline_raw_bytes_max;
use crate::keyspace::request::{Condition, Outcome, Request};
use crate::keyspace::states::KeyspaceRef;
use crate::log::{AppendError, Draft};
use crate::maintenance::room::Admission;
use crate::media::io::lock;
use crate::shared::Shared;
use tapetum_kernels::hash::HashKey;
use tapetum_kernels::record::{Codec, Header};

/// One write of a batch.
#[derive(Clone, Copy, Debug)]
pub enum Write<'a> {
    Put { keyspace: KeyspaceRef, key: &'a [u8], value: &'a [u8], flags: u32, expiry: u32 },
    Delete { keyspace: KeyspaceRef, key: &'a [u8] },
}

/// There is no room now: poll, and submit again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Busy;

impl Local {
    pub(super) fn batch(&mut self, shared: &Shared, token: u64, writes: &[Write<'_>]) -> Result<(), Busy> {
        let hashes: Vec<HashKey> = writes.iter().map(|write| shared.hash(write.keyspace().id, write.key())).collect();
        if shared.is_paced() || self.deletes_all() || hashes.iter().any(|hash| self.undecided.contains_key(hash)) {
            return Err(Busy);
        }
        if let Err(error) = check_batch(shared, writes) {
            self.answer(token, Outcome::Failed(error));
            return Ok(());
        }
        if writes.iter().any(Write::is_put) {
            let has_probably = |hash| shared.has_probably(&shared.shard(hash), hash);
            let overwrites = || writes.iter().zip(&hashes).all(|(write, &hash)| !write.is_put() || has_probably(hash));
            match shared.admit(overwrites) {
                Admission::Go => {}
                Admission::Wait => return Err(Busy),
                Admission::Refuse(error) => {
                    self.answer(token, Outcome::Failed(error));
                    return Ok(());
                }
            }
        }
        let mut values = Vec::with_capacity(writes.len());
        for write in writes {
            let value = write.value();
            let (codec, stored) = match value.len() > inline_raw_bytes_max(&shared.geometry) {
                true => (Codec::Raw, value),
                false => self.compressor.compress(value),
            };
            values.push((codec, stored.to_vec()));
        }
        let drafts: Vec<Draft<'_>> =
            writes.iter().zip(&values).map(|(write, (codec, stored))| write.draft(*codec, stored)).collect();
        let bits = shared.geometry.partition_bits;
        let mut numbers: Vec<usize> = hashes.iter().map(|hash| hash.partition(bits)).collect();
        numbers.sort_unstable();
        numbers.dedup();
        let mut shards: Vec<_> = numbers.iter().map(|number| lock(&shared.shards[*number])).collect();
        let mut stamp_last = 0;
        let mut places = Vec::with_capacity(writes.len());
        // With the shards held: after a drop, nothing is written.
        if let Some(error) = writes.iter().find_map(|write| shared.refuse_dropped(write.keyspace()).err()) {
            self.answer(token, Outcome::Failed(error));
            return Ok(());
        }
        let room = shards.iter().all(|shard| shard.has_room_for(writes.len()));
        let appended = if room {
            shared.log.append(&drafts, |_, stamp, place| {
                stamp_last = stamp;
                places.push(place);
            })
        } else {
            Err(shared.log.poisoned().map_or(AppendError::Poisoned, |()| AppendError::BufferFull))
        };
        match appended {
            Ok(()) => {
                for (hash, place) in hashes.iter().zip(places) {
                    if let Ok(at) = numbers.binary_search(&hash.partition(bits)) {
                        shared.insert(&mut shards[at], *hash, place);
                    }
                }
                drop(shards);
                self.answer_after(shared, token, stamp_last, Outcome::Done);
                Ok(())
            }
            Err(AppendError::BufferFull) => {
                drop(shards);
                if shared.rotate() { self.batch(shared, token, writes) } else { Err(Busy) }
            }
            Err(AppendError::Poisoned) => {
                drop(shards);
                self.answer(token, Outcome::Failed(poison(shared)));
                Ok(())
            }
        }
    }
}

fn check_batch(shared: &Shared, writes: &[Write<'_>]) -> Result<(), Error> {
    let mut bytes = 0;
    for write in writes {
        let request = match *write {
            Write::Put { key, value, flags, expiry, .. } => {
                Request::Put { key, value, flags, expiry, condition: Condition::Always }
            }
            Write::Delete { key, .. } => Request::Delete { key, stamp: None },
        };
        refuse(shared, write.keyspace(), &request)?;
        bytes += request.payload_bytes() + 64;
    }
    // It lies in one group of the log, large values too.
    let limit_bytes = shared.geometry.segment_bytes as usize / 2;
    let limit_writes = shared.geometry.buffer_entries_max() / shared.shards.len() / 2;
    let fits = bytes <= limit_bytes && writes.len() <= limit_writes;
    if fits { Ok(()) } else { Err(Error::BatchTooLarge { limit_bytes, limit_writes }) }
}

impl<'a> Write<'a> {
    fn is_put(&self) -> bool {
        matches!(self, Write::Put { .. })
    }

    fn key(&self) -> &'a [u8] {
        match *self {
            Write::Put { key, .. } | Write::Delete { key, .. } => key,
        }
    }

    fn keyspace(&self) -> KeyspaceRef {
        match *self {
            Write::Put { keyspace, .. } | Write::Delete { keyspace, .. } => keyspace,
        }
    }

    fn value(&self) -> &'a [u8] {
        match *self {
            Write::Put { value, .. } => value,
            Write::Delete { .. } => &[],
        }
    }

    fn draft<'b>(&self, codec: Codec, stored: &'b [u8]) -> Draft<'b>
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
