//! The attempt: decides an operation on what is known now, under the lock of its key's shard, and appends what it writes.

use super::change::{Answer, Current, Decision, NewValue, decide, needs_current};
use super::flash_read::FlashRead;
use super::{Attempt, FromFlash, Local, check_value};
use crate::buffer::Shard;
use crate::error::Error;
use crate::log::{AppendError, Draft};
use crate::request::{Outcome, Request};
use crate::shared::{Admission, Shared};
use std::sync::MutexGuard;
use std::sync::atomic::Ordering;
use tapetum_kernels::hash::HashKey;
use tapetum_kernels::record::{Codec, Header, Kind, Record};

enum WriteError {
    NoRoom,
    Refused(Error),
}

/// Appends a record and lets readers find it. The caller holds the shard.
fn append(shared: &Shared, shard: &mut Shard, hash: HashKey, draft: Draft<'_>) -> Result<u64, WriteError> {
    if shard.is_full() {
        return Err(WriteError::NoRoom);
    }
    let mut given = (0, 0);
    match shared.log.append(&[draft], |_, stamp, place| given = (stamp, place)) {
        Ok(()) => {
            shard.insert(hash, given.1);
            Ok(given.0)
        }
        Err(AppendError::BufferFull) => Err(WriteError::NoRoom),
        Err(AppendError::Poisoned) => Err(WriteError::Refused(poison(shared))),
    }
}

pub(super) fn poison(shared: &Shared) -> Error {
    shared.log.poisoned().err().unwrap_or_else(|| Error::Poisoned("unknown".into()))
}

impl Local {
    pub(super) fn delete_all(&mut self, shared: &Shared, token: u64, at: u32) -> Attempt {
        match shared.mark_deletion(if at <= shared.now() { 0 } else { at }) {
            Ok(Some(stamp)) => self.answer_after(shared, token, stamp, Outcome::Done),
            Ok(None) => return Attempt::Waits,
            Err(error) => self.answer(token, Outcome::Failed(error)),
        }
        Attempt::Answered
    }

    /// Decides an operation if that can be done now.
    pub(super) fn attempt(
        &mut self,
        shared: &Shared,
        token: u64,
        hash: HashKey,
        request: &Request<'_>,
        flash: Option<FromFlash>,
    ) -> Attempt {
        if let Request::DeleteAll { at } = *request {
            return self.delete_all(shared, token, at);
        }
        loop {
            let sequence = shared.install_sequence.load(Ordering::SeqCst);
            let shard = shared.shard(hash);
            let flash = flash.as_ref().filter(|flash| flash.version == shard.version(hash));
            if !needs_current(request) {
                let Request::Put { key, value, flags, expiry, .. } = *request else {
                    unreachable!("only a put is blind")
                };
                drop(shard);
                return self.put(shared, token, hash, (key, value, flags, expiry));
            }
            let shard = match request {
                Request::Get { .. } => match self.get_from_buffer(shared, token, hash, shard) {
                    Ok(()) => return Attempt::Answered,
                    Err(shard) => shard,
                },
                _ => shard,
            };
            let (current, stamp) = match shard.get(hash) {
                Some(place) => {
                    let record = shared.log.record(place.buffer, place.place);
                    let live = record.header.kind == Kind::Value && shared.is_live(&record.header, shared.now());
                    if live {
                        self.inflate_into_scratch(&record);
                    }
                    let header = record.header;
                    let shown_by = header.stamp.max(shared.deletion_of(header.stamp));
                    (live.then_some((header.flags, header.expiry, header.stamp)), shown_by)
                }
                None => match flash {
                    Some(flash) if flash.version == shard.version(hash) => {
                        // Everything may have been deleted since it was read: that changes no version.
                        let now = shared.now();
                        let found = flash.found.filter(|(_, expiry, stamp)| shared.is_live_stamp(*stamp, *expiry, now));
                        let deleted = flash.found.map_or(0, |(_, _, stamp)| shared.deletion_of(stamp));
                        (found, flash.shown_by.max(deleted))
                    }
                    _ => {
                        let version = shard.version(hash);
                        drop(shard);
                        match shared.candidate(hash) {
                            // Nobody has it: decide on that, unless somebody wrote it just now.
                            None => {
                                let shard = shared.shard(hash);
                                if shard.version(hash) != version {
                                    continue;
                                }
                                match self.decide(shared, shard, token, hash, request, None, 0) {
                                    Some(attempt) => return attempt,
                                    None => continue,
                                }
                            }
                            Some(segment) => {
                                let pages = segment.start_pages(hash);
                                return Attempt::NeedsFlash {
                                    read: FlashRead::new(segment, (version, sequence), pages),
                                };
                            }
                        }
                    }
                },
            };
            if let Some(attempt) = self.decide(shared, shard, token, hash, request, current, stamp) {
                return attempt;
            }
        }
    }

    /// Answers a get whose key is in a write buffer; gives the shard back when it is in none.
    pub(super) fn get_from_buffer<'a>(
        &mut self,
        shared: &Shared,
        token: u64,
        hash: HashKey,
        shard: MutexGuard<'a, Shard>,
    ) -> Result<(), MutexGuard<'a, Shard>> {
        let Some(place) = shard.get(hash) else { return Err(shard) };
        let record = shared.log.record(place.buffer, place.place);
        let header = record.header;
        if header.kind != Kind::Value || !shared.is_live(&header, shared.now()) {
            drop(shard);
            let stamp = header.stamp.max(shared.deletion_of(header.stamp));
            self.answer_after(shared, token, stamp, Outcome::Missing);
            return Ok(());
        }
        let values = &mut self.values[self.values_now];
        let start = values.len();
        if header.codec == Codec::Raw {
            values.extend_from_slice(record.stored);
            drop(shard);
        } else {
            // Inflated outside of the lock: the buffer may be reused as soon as the shard is released.
            self.scratch.clear();
            self.scratch.extend_from_slice(record.stored);
            drop(shard);
            values.resize(start + header.raw_bytes as usize, 0);
            let inflated = self.decompressor.decompress(&self.scratch, &mut values[start..]);
            assert!(inflated.is_ok(), "the arena holds what was compressed");
        }
        let value = self.range_from(start);
        let outcome = Outcome::Value { flags: header.flags, stamp: header.stamp, expiry: header.expiry, value };
        self.answer_after(shared, token, header.stamp, outcome);
        Ok(())
    }

    pub(super) fn inflate_into_scratch(&mut self, record: &Record<'_>) {
        self.scratch.clear();
        if record.header.codec == Codec::Raw {
            self.scratch.extend_from_slice(record.stored);
        } else {
            self.scratch.resize(record.header.raw_bytes as usize, 0);
            let inflated = self.decompressor.decompress(record.stored, &mut self.scratch);
            assert!(inflated.is_ok(), "the arena holds what was compressed");
        }
    }

    /// A put that needs to know nothing: compressed outside of any lock.
    pub(super) fn put(
        &mut self,
        shared: &Shared,
        token: u64,
        hash: HashKey,
        (key, value, flags, expiry): (&[u8], &[u8], u32, u32),
    ) -> Attempt {
        let (codec, stored) = self.compressor.compress(value);
        let header =
            Header { codec, flags, expiry, raw_bytes: value.len() as u32, ..Header::value(0, key.len(), stored.len()) };
        loop {
            let mut shard = shared.shard(hash);
            match shared.admit(|| shard.get(hash).is_some() || shared.index.lookup(hash).is_some()) {
                Admission::Go => {}
                Admission::Wait => return Attempt::Waits,
                Admission::Refuse(error) => {
                    drop(shard);
                    self.answer(token, Outcome::Failed(error));
                    return Attempt::Answered;
                }
            }
            let done = append(shared, &mut shard, hash, Draft { header, key, stored });
            drop(shard);
            match done {
                Ok(stamp) => {
                    shared.counters.user_write_bytes.fetch_add((key.len() + value.len()) as u64, Ordering::Relaxed);
                    self.answer_after(shared, token, stamp, Outcome::Stored { stamp });
                    return Attempt::Answered;
                }
                Err(WriteError::Refused(error)) => {
                    self.answer(token, Outcome::Failed(error));
                    return Attempt::Answered;
                }
                Err(WriteError::NoRoom) if shared.rotate() => {}
                Err(WriteError::NoRoom) => return Attempt::Waits,
            }
        }
    }

    /// Decides on what is known, under the shard's lock; `None` when it must be looked at again, in the next buffer. `current`'s value is in `scratch`.
    #[allow(clippy::too_many_arguments)]
    pub(super) fn decide(
        &mut self,
        shared: &Shared,
        mut shard: MutexGuard<'_, Shard>,
        token: u64,
        hash: HashKey,
        request: &Request<'_>,
        current: Option<(u32, u32, u64)>,
        stamp: u64,
    ) -> Option<Attempt> {
        let known = current.map(|(flags, expiry, stamp)| Current { flags, expiry, stamp, value: &self.scratch });
        let decision = decide(request, known);
        let key = request.key();
        let (header, value, answer) = match decision {
            Decision::Answer(outcome) => {
                drop(shard);
                self.answer_after(shared, token, stamp, outcome);
                return Some(Attempt::Answered);
            }
            Decision::Show => unreachable!("a get that found its key was answered"),
            Decision::Delete => (Header::tombstone(0, key.len()), NewValue::Given, None),
            Decision::Store { flags, expiry, value, answer } => {
                (Header { flags, expiry, ..Header::value(0, key.len(), 0) }, value, Some(answer))
            }
        };
        let value: &[u8] = match (&value, request) {
            (NewValue::Made(bytes), _) => bytes,
            (NewValue::Same, _) => &self.scratch,
            (NewValue::Given, Request::Put { value, .. }) => value,
            (NewValue::Given, _) => &[],
        };
        if let Err(error) = check_value(shared, value.len()) {
            drop(shard);
            self.answer(token, Outcome::Failed(error));
            return Some(Attempt::Answered);
        }
        if answer.is_some() {
            match shared.admit(|| current.is_some()) {
                Admission::Go => {}
                Admission::Wait => return Some(Attempt::Waits),
                Admission::Refuse(error) => {
                    drop(shard);
                    self.answer(token, Outcome::Failed(error));
                    return Some(Attempt::Answered);
                }
            }
        }
        let (codec, stored) = self.compressor.compress(value);
        let header = Header { codec, stored_bytes: stored.len() as u32, raw_bytes: value.len() as u32, ..header };
        let done = append(shared, &mut shard, hash, Draft { header, key, stored });
        drop(shard);
        let stamp = match done {
            Ok(stamp) => stamp,
            Err(WriteError::Refused(error)) => {
                self.answer(token, Outcome::Failed(error));
                return Some(Attempt::Answered);
            }
            Err(WriteError::NoRoom) => {
                return if shared.rotate() { None } else { Some(Attempt::Waits) };
            }
        };
        if answer.is_some() {
            shared.counters.user_write_bytes.fetch_add((key.len() + value.len()) as u64, Ordering::Relaxed);
        }
        let outcome = match answer {
            None => Outcome::Deleted,
            Some(Answer::Stored) => Outcome::Stored { stamp },
            Some(Answer::Touched) => Outcome::Touched { stamp },
            Some(Answer::Number(number)) => Outcome::Number { number, stamp },
            Some(Answer::Value) => {
                let values = &mut self.values[self.values_now];
                let start = values.len();
                values.extend_from_slice(&self.scratch);
                Outcome::Value { flags: header.flags, stamp, expiry: header.expiry, value: self.range_from(start) }
            }
        };
        self.answer_after(shared, token, stamp, outcome);
        Some(Attempt::Answered)
    }
}
