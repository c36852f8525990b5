//! Trimming the log, which the base does for all its clients. A zone is a write buffer: it is free when the manifest says so, in the frame that
//! installs what the buffer had.
//!
//! ```text
//! buffer sealed ─► begin_trim: clients checkpoint through its last stamp
//!               ─► leave_to_trim: no client but the engine that installs needs a record of it
//!               ─► edits: in the frame of the install ─► durable, and seen ─► release: the zone is free
//! ```
//! An engine needs leave to say in a frame that the log is trimmed. The base gives it when no other client needs a record of the buffer.
//!
//! Threads: maintenance's; one buffer is sealed at a time.

use crate::base::Base;
use crate::error::Error;
use crate::keyspace_kind::KeyspaceKind;
use crate::manifest::base_marks::{BaseMarks, LogTrim, MarksEdit};
use std::future::poll_fn;
use std::task::Poll;

/// Leave to trim the log through the sealed buffer.
pub struct TrimLeave {
    buffer: u64,
    /// The kind of the engine that installs its records of the buffer.
    installing: KeyspaceKind,
}

impl Base {
    /// Asks all clients of the log but the engine of `installing` to come to need no record of the sealed buffer.
    pub fn begin_trim(&self, installing: KeyspaceKind) {
        self.engines.checkpoint_others_through(installing, self.log.sealed().0);
    }

    /// Waits until none of them needs one.
    pub async fn leave_to_trim(&self, installing: KeyspaceKind, buffer: u64) -> Result<TrimLeave, Error> {
        self.begin_trim(installing);
        poll_fn(|_| match self.log.poisoned() {
            Ok(()) if self.engines.others_need(installing, self.log.sealed().0) => Poll::Pending,
            done => Poll::Ready(done),
        })
        .await?;
        Ok(TrimLeave { buffer, installing })
    }
}

impl TrimLeave {
    /// The frame of the install says this: where the log begins from then on, and what was deleted by then.
    pub fn edits(&self, base: &Base, installed: &BaseMarks) -> Vec<MarksEdit> {
        let (stamp_sealed, log_crc) = base.log.sealed();
        assert!(!base.engines.others_need(self.installing, stamp_sealed), "a client needs again what it did not need");
        let stamp_max = installed.trim.stamp_max.max(stamp_sealed);
        let trim = MarksEdit::Trim(LogTrim { buffer_next: self.buffer + 1, stamp_max, log_crc });
        let deletions = base.deletion_edits(&base.keyspaces.sealed(), &installed.deletions);
        std::iter::once(trim).chain(deletions).collect()
    }

    /// The frame is durable, and what it installed is found: lets the log have the zone again.
    ///
    /// # Safety
    /// Nobody reads a record of the buffer any more: the engine that installed names none, and all of it was written.
    pub unsafe fn release(&self, base: &Base) {
        // SAFETY: as the caller says; no other engine needs one.
        unsafe { base.log.release(self.buffer) };
        base.log.wake();
    }
}
