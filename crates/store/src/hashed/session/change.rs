//! A change: an operation decided on its item as it is, under the lock of the key's shard, and the record that this takes.

use super::attempt::{KnownItem, LOCKED_BYTES_MAX, WriteError, append};
use super::large::OutOfLine;
use super::large_write::Basis;
use super::limits::check_value;
use super::{Attempt, HashedMeans, HashedSession};
use crate::hashed::buffer::Shard;
use crate::hashed::large::inline_bytes_max;
use crate::hashed::room::Admission;
use std::sync::MutexGuard;
use std::sync::atomic::Ordering;
use tapetum_base::error::Error;
use tapetum_base::log::Draft;
use tapetum_base::request::decide::{
    Answer, Current, Decision, NewValue, counts_as_read, decide, keeps_reads, unchanged,
};
use tapetum_base::request::item::{Access, ItemHead};
use tapetum_base::request::{Outcome, Request};
use tapetum_base::session::order::OpTarget;
use tapetum_base::session::session_core::SessionCore;
use tapetum_kernels::record::{Codec, Header};

struct DecidedWrite<'a> {
    /// The header, without the fields that depend on the value.
    header: Header,
    value: NewValue,
    /// `None` for a deletion.
    answer: Option<Answer>,
    /// The item as it was, if there was one.
    current: Option<ItemHead>,
    access: Access,
    /// The place of its value, if that is in extents of its own.
    large: Option<&'a OutOfLine>,
}

impl DecidedWrite<'_> {
    /// The large value of an item whose value does not change: it stays in place.
    fn large_that_stays(&self) -> Option<&OutOfLine> {
        self.large.filter(|_| matches!(self.value, NewValue::Same) && self.answer.is_some())
    }

    /// The new value; that of the item as it was is in `scratch`.
    fn value_bytes<'a>(&'a self, request: &Request<'a>, scratch: &'a [u8]) -> &'a [u8] {
        match (&self.value, *request) {
            (NewValue::Made(bytes), _) => bytes,
            (NewValue::Same, _) => scratch,
            (NewValue::Given, Request::Put { value, .. }) => value,
            (NewValue::Given, _) => &[],
        }
    }
}

fn failed(core: &mut SessionCore, token: u64, error: Error) -> Option<Attempt> {
    core.answer(token, Outcome::Failed(error));
    Some(Attempt::Answered)
}

impl HashedSession {
    /// Decides on the known state, under the shard's lock; `None` when it must be looked at again, in the next buffer. `current`'s value is in
    /// `scratch`.
    pub(super) fn decide(
        &mut self,
        (core, engine): HashedMeans<'_>,
        shard: MutexGuard<'_, Shard>,
        target: OpTarget,
        request: &Request<'_>,
        (current, large, stamp): KnownItem<'_>,
    ) -> Option<Attempt> {
        let asked_about = current.filter(|_| keeps_reads(request));
        let access = asked_about.map(|item| engine.access(&shard, target.hash, item.stamp)).unwrap_or_default();
        let known = current.map(|item| Current::new(item, access, &self.scratch));
        let decision = decide(request, known);
        let key_bytes = request.key().len();
        let (header, value, answer) = match decision {
            Decision::Answer(outcome) => {
                drop(shard);
                core.answer_after(target.token, stamp, outcome);
                return Some(Attempt::Answered);
            }
            Decision::Show => {
                drop(shard);
                let Some(item) = current else { unreachable!("what is shown is there") };
                let value = core.values.add(&self.scratch);
                core.answer_after(target.token, stamp, unchanged(item, access, value));
                return Some(Attempt::Answered);
            }
            Decision::Delete => (Header::tombstone(0, key_bytes), NewValue::Given, None),
            Decision::Store { flags, expiry, marks, value, answer } => {
                (Header { flags, expiry, marks, ..Header::value(0, key_bytes, 0) }, value, Some(answer))
            }
        };
        let write = DecidedWrite { header, value, answer, current, access, large };
        self.write((core, engine), shard, target, request, write)
    }

    /// Writes the decided change; `None` as in [`HashedSession::decide`].
    fn write(
        &mut self,
        (core, engine): HashedMeans<'_>,
        mut shard: MutexGuard<'_, Shard>,
        OpTarget { token, keyspace, hash, .. }: OpTarget,
        request: &Request<'_>,
        write: DecidedWrite<'_>,
    ) -> Option<Attempt> {
        let (header, answer, current, stays) = (write.header, write.answer, write.current, write.large_that_stays());
        let value = write.value_bytes(request, &self.scratch);
        let was_read = write.access.was_read || counts_as_read(request);
        if !matches!(write.value, NewValue::Same)
            && let Err(error) = check_value(engine, value.len())
        {
            drop(shard);
            return failed(core, token, error);
        }
        if value.len() > inline_bytes_max(&engine.geometry).min(LOCKED_BYTES_MAX)
            && let (Some(answer), None) = (answer, stays)
        {
            // Compressed and written with no lock held; the record goes out if the decision still holds then.
            let seen = shard.see(hash);
            drop(shard);
            let basis = Basis { seen, current: current.map(|item| (item.stamp, item.expiry)), was_read };
            let value = value.to_vec();
            return Some(self.write_large(header, value, answer, basis));
        }
        if answer.is_some() {
            match engine.admit(|| current.is_some()) {
                Admission::Go => {}
                Admission::Wait => return Some(Attempt::Waits),
                Admission::Refuse(error) => {
                    drop(shard);
                    return failed(core, token, error);
                }
            }
        }
        let (codec, stored, raw_bytes) = match stays {
            Some(large) => (Codec::OutOfLine, &large.reference[..], large.raw_bytes),
            None => {
                let (codec, stored) = self.compressor.compress(value);
                (codec, stored, value.len() as u32)
            }
        };
        let (key, header) = (request.key(), Header { codec, stored_bytes: stored.len() as u32, raw_bytes, ..header });
        let done = append(engine, &mut shard, keyspace, hash, Draft { header, key, stored });
        if done.is_ok()
            && let (Some(large), Some(place)) = (stays, shard.get(hash))
        {
            engine.name_large(&mut shard, place, large.extents.clone());
        }
        if done.is_ok() && was_read {
            shard.note_read(hash);
        }
        drop(shard);
        let stamp = match done {
            Ok(stamp) => stamp,
            Err(WriteError::Refused(error)) => return failed(core, token, error),
            Err(WriteError::NoRoom) => return if engine.rotate() { None } else { Some(Attempt::Waits) },
        };
        let bytes = key.len() + value.len();
        let outcome = answer.map_or(Outcome::Deleted, |answer| {
            engine.counters.user_write_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
            let shown = core.values.add(if answer.shows_value() { &self.scratch } else { &[] });
            answer.outcome(ItemHead { stamp, ..ItemHead::of(&header) }, shown)
        });
        core.answer_after(token, stamp, outcome);
        Some(Attempt::Answered)
    }
}
