//! Batches: several writes in one log group and one write buffer, so that all of them are there after a crash, or none.
//!
//! ```text
//! every engine: prepare ─► every engine: lock ─► one group of the log ─► every engine: appended, unlock
//!    └─ busy, refused         └─ full ─► seal the buffer, begin anew
//! ```

use super::Session;
use crate::hashed::session::limits;
use std::sync::atomic::Ordering;
use tapetum_base::error::Error;
use tapetum_base::keyspace_kind::KeyspaceKind;
use tapetum_base::log::AppendError;
use tapetum_base::request::Outcome;
use tapetum_base::session::batch::{BatchPart, BatchStop, Write};
use tapetum_base::session::refuse;

/// Approximate bytes that the log takes for a record beside its key and value.
const RECORD_BESIDE_BYTES: usize = 64;

/// There is no room now: poll, and submit again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Busy;

impl Session {
    /// Writes several keys at once, of one keyspace or of several: all of them or none, also across a crash.
    pub fn submit_batch(&mut self, token: u64, writes: &[Write<'_>]) -> Result<(), Busy> {
        if let Err(error) = self.core.base.refuse_to_write() {
            self.core.answer(token, Outcome::Failed(error));
            return Ok(());
        }
        self.hashed_engine.check_watermark();
        if !self.has_room() {
            return Err(Busy);
        }
        // Before the attempt: room that is freed after it must wake the session.
        self.core.notifier.set_waiting(true);
        loop {
            let busy = match self.try_batch(writes) {
                Ok(stamp) => {
                    self.core.answer_after(token, stamp, Outcome::Done);
                    false
                }
                Err(BatchStop::Refused(error)) => {
                    self.core.answer(token, Outcome::Failed(error));
                    false
                }
                Err(BatchStop::Full) if self.hashed_engine.rotate() => continue,
                Err(BatchStop::Full | BatchStop::Busy) if self.core.base.closed.load(Ordering::SeqCst) => {
                    self.core.answer(token, Outcome::Failed(Error::Closed));
                    false
                }
                Err(BatchStop::Full | BatchStop::Busy) => true,
            };
            self.core.batch_waits = busy;
            return if busy { Err(Busy) } else { Ok(()) };
        }
    }

    /// Appends a batch if that can be done now; the last stamp of it.
    fn try_batch(&mut self, writes: &[Write<'_>]) -> Result<u64, BatchStop> {
        self.check_batch(writes).map_err(BatchStop::Refused)?;
        let Session { core, hashed, others, hashed_engine, .. } = self;
        let of_kind = |kind| writes.iter().copied().filter(|write| write.keyspace().kind() == kind).collect();
        let hashed_writes: Vec<Write<'_>> = of_kind(KeyspaceKind::Hashed);
        let other_writes: Vec<Vec<Write<'_>>> = others.iter_mut().map(|(kind, _)| of_kind(kind)).collect();
        let mut hashed_part = hashed.prepare(hashed_engine, &hashed_writes)?;
        let mut parts: Vec<(usize, &mut dyn BatchPart)> = vec![(hashed_writes.len(), &mut hashed_part)];
        let mut other_parts = Vec::new();
        for ((_, engine), writes) in others.iter_mut().zip(&other_writes) {
            if !writes.is_empty() {
                other_parts.push((writes.len(), engine.prepare(&*core, writes)?));
            }
        }
        parts.extend(other_parts.iter_mut().map(|(count, part)| (*count, &mut **part as &mut dyn BatchPart)));
        for (_, part) in &mut parts {
            part.lock(core)?;
        }
        // Checked with the locks held: after a drop, nothing is written.
        for write in writes {
            core.base.refuse_dropped(write.keyspace()).map_err(BatchStop::Refused)?;
        }
        let mut drafts = Vec::with_capacity(writes.len());
        parts.iter().for_each(|(_, part)| part.add_drafts(&mut drafts));
        let mut records = Vec::with_capacity(drafts.len());
        core.base.log.append(&drafts, |_, stamp, place| records.push((stamp, place))).map_err(|error| match error {
            AppendError::BufferFull => BatchStop::Full,
            AppendError::Refused(error) => BatchStop::Refused(error),
        })?;
        drop(drafts);
        let mut left = &records[..];
        for (count, part) in &mut parts {
            let own;
            (own, left) = left.split_at(*count);
            part.appended(core, own);
        }
        Ok(records.last().map_or(0, |(stamp, _)| *stamp))
    }

    fn check_batch(&mut self, writes: &[Write<'_>]) -> Result<(), Error> {
        let mut bytes = 0;
        for write in writes {
            let (request, kind) = (write.request(), write.keyspace().kind());
            match kind == KeyspaceKind::Hashed {
                true => limits::refuse(&self.hashed_engine, write.keyspace(), &request)?,
                false => refuse(&self.core.base, write.keyspace(), &request)?,
            }
            // It knows what its records take in the log.
            self.engine_of(kind)?;
            bytes += write.key().len() + self.others.logged_bytes(kind, write) + RECORD_BESIDE_BYTES;
        }
        let limit_bytes = limits::batch_bytes_max(&self.hashed_engine);
        let limit_writes = limits::batch_writes_max(&self.hashed_engine);
        let fits = bytes <= limit_bytes && writes.len() <= limit_writes;
        if fits { Ok(()) } else { Err(Error::BatchTooLarge { limit_bytes, limit_writes }) }
    }
}
