//! Deletions of everything: at once, or planned for a time. A mark in the log says so; its stamp is the *watermark*, and nothing with a
//! stamp up to it is there any more.
//!
//! Threads: any; a mark is written with every shard held, so that no write slips between its stamp and its effect.

use crate::error::Error;
use crate::hashed::catalog::Marks;
use crate::log::{AppendError, Draft};
use crate::media::io::lock;
use crate::shared::Shared;
use std::sync::atomic::Ordering;
use tapetum_kernels::record::Header;

impl Shared {
    /// Deletes everything written so far, or plans to do so at a time, by a mark in the log. Returns its stamp, or `None`
    /// when the log has no room now.
    pub fn mark_deletion(&self, at: u32) -> Result<Option<u64>, Error> {
        loop {
            match self.append_mark(at, |draft, placed| self.log.append(&[draft], placed)) {
                Ok(stamp) => return Ok(Some(stamp)),
                Err(AppendError::Poisoned) => self.log.poisoned()?,
                Err(AppendError::BufferFull) if self.rotate() => {}
                Err(AppendError::BufferFull) => return Ok(None),
            }
        }
    }

    /// Deletes everything if the time that was planned for it has come: before anything is read or written after it.
    pub fn check_watermark(&self) {
        let is_due = || {
            let at = self.watermark_at.load(Ordering::SeqCst);
            at != 0 && at <= self.now()
        };
        if !is_due() {
            return;
        }
        // There is room: the log keeps some for this.
        let mark = |draft: Draft<'_>, placed: &mut dyn FnMut(usize, u64, u32)| {
            if is_due() { self.log.append_planned(draft, placed) } else { Ok(()) }
        };
        if self.append_mark(0, mark).is_err() {
            // Poisoned: nothing is written any more, and readers are not shown what is deleted. The plan is on flash.
            self.watermark.fetch_max(self.log.stamp_last(), Ordering::SeqCst);
        }
    }

    fn append_mark(
        &self,
        at: u32,
        append: impl FnOnce(Draft<'_>, &mut dyn FnMut(usize, u64, u32)) -> Result<(), AppendError>,
    ) -> Result<u64, AppendError> {
        let body = at.to_le_bytes();
        let draft = Draft { header: Header::control(0, body.len()), key: &[], stored: &body };
        let mut given = 0;
        // Every shard is held: no write slips between the mark's stamp and its effect.
        let _shards: Vec<_> = self.shards.iter().map(lock).collect();
        append(draft, &mut |_, stamp, _| {
            given = stamp;
            self.watermark_at.store(at, Ordering::SeqCst);
            if at == 0 {
                self.watermark.fetch_max(stamp, Ordering::SeqCst);
            }
        })?;
        Ok(given)
    }

    /// The stamp of the deletion that took a record with `stamp`, 0 if none did: an answer that shows it waits for it.
    pub fn deletion_of(&self, stamp: u64) -> u64 {
        let watermark = self.watermark.load(Ordering::SeqCst);
        if stamp <= watermark { watermark } else { 0 }
    }

    /// The marks to install; every stamp up to `stamp_max` is in segments then. `then` is the watermark, and when it is
    /// to rise, at the end of what is in segments: a later plan is the log's to keep, or it would outlive writes that
    /// were lost before it. A later watermark ends the plan, and leaves nothing that was before it.
    pub fn marks(&self, then: (u64, u32), stamp_max: u64, log_crc: u32) -> Marks {
        let watermark = self.watermark.load(Ordering::SeqCst);
        Marks { watermark, watermark_at: if watermark == then.0 { then.1 } else { 0 }, stamp_max, log_crc }
    }
}
