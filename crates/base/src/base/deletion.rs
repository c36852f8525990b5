//! Deletions of everything in a keyspace, at once or planned for a time. A mark in the log records each one. The mark's stamp becomes the keyspace's
//! *watermark*: every record with a stamp up to it is deleted.
//!
//! Threads: any. A mark is written while all writers are held, so that no write slips between its stamp and its effect.

use crate::base::Base;
use crate::error::Error;
use crate::keyspace::KeyspaceId;
use crate::keyspace::deletion_mark::{DeletionMark, DeletionMarks};
use crate::keyspace::states::KeyspaceRef;
use crate::log::{AppendError, Draft};
use crate::manifest::base_marks::MarksEdit;
use std::collections::BTreeSet;
use tapetum_kernels::record::Header;

impl Base {
    /// Deletes everything written to a keyspace so far, or plans that for a time, by a mark in the log. Returns the mark's stamp, or `None` if the
    /// log has no room now.
    pub fn mark_deletion(&self, keyspace: KeyspaceRef, at: u32) -> Result<Option<u64>, Error> {
        // A time in the past means at once.
        let at = if at <= self.now() { 0 } else { at };
        loop {
            self.refuse_dropped(keyspace)?;
            if at != 0 && !self.may_plan(keyspace.id) {
                let limit = self.log.planned_max();
                return Err(Error::Options(format!(
                    "{limit} keyspaces have a planned deletion already: wait for one of them, or delete at once"
                )));
            }
            match self.append_mark(keyspace.id, at, |draft, placed| self.log.append(&[draft], placed)) {
                Ok(stamp) => return Ok(Some(stamp)),
                Err(AppendError::Refused(error)) => return Err(error),
                Err(AppendError::BufferFull) if self.rotate() => {}
                Err(AppendError::BufferFull) => return Ok(None),
            }
        }
    }

    /// Whether the log can reserve room for the mark of one more planned deletion. A keyspace that has a plan needs no more.
    fn may_plan(&self, keyspace: KeyspaceId) -> bool {
        self.keyspaces.mark(keyspace).planned_at != 0 || self.keyspaces.planned_count() < self.log.planned_max()
    }

    /// Carries out the planned deletions that are due. Called before anything is read or written.
    pub fn check_watermark(&self) {
        let is_due = |at: u32| at != 0 && at <= self.now();
        if !is_due(self.keyspaces.planned_next()) {
            return;
        }
        for keyspace in self.keyspaces.due(self.now()) {
            // The append does not lack room: the log reserves some for planned deletions.
            let mark = |draft: Draft<'_>, placed: &mut dyn FnMut(usize, u64, u32)| {
                let is_due = is_due(self.keyspaces.mark(keyspace).planned_at);
                if is_due { self.log.append_planned(draft, placed) } else { Ok(()) }
            };
            if self.append_mark(keyspace, 0, mark).is_err() {
                // The log failed or is closed: nothing is written any more. Raising the watermark hides the deleted records from readers. The plan
                // itself is on flash.
                self.keyspaces.raise(keyspace, self.log.stamp_last());
            }
        }
    }

    fn append_mark(
        &self,
        keyspace: KeyspaceId,
        at: u32,
        append: impl FnOnce(Draft<'_>, &mut dyn FnMut(usize, u64, u32)) -> Result<(), AppendError>,
    ) -> Result<u64, AppendError> {
        let body = at.to_le_bytes();
        let header = Header { keyspace: keyspace.0, ..Header::control(0, body.len()) };
        let draft = Draft { header, key: &[], stored: &body };
        let mut given = 0;
        let mut appended = Ok(());
        // No write slips between the mark's stamp and its effect.
        self.hold_writers(|| {
            appended = append(draft, &mut |_, stamp, _| given = stamp);
            if given != 0 {
                self.keyspaces.note(keyspace, given, at);
                self.log.keep_for_planned(self.keyspaces.planned_count());
            }
        });
        appended.map(|()| given)
    }

    /// The stamp of the deletion that covers a record with `stamp`, 0 if none does. An answer that shows the deletion waits for this stamp.
    pub fn deletion_of(&self, keyspace: KeyspaceId, stamp: u64) -> u64 {
        let watermark = self.keyspaces.watermark(keyspace);
        if stamp <= watermark && watermark != u64::MAX { watermark } else { 0 }
    }

    /// The edits of deletions for an install; only differences from `installed`. `then` are the marks at the end of the log range that the install
    /// moves into segments. A plan made later than that stays in the log: otherwise it could survive a crash that loses writes made before it. A
    /// later watermark cancels the plan and deletes everything before it.
    pub fn deletion_edits(&self, then: &DeletionMarks, installed: &DeletionMarks) -> Vec<MarksEdit> {
        let now = self.keyspaces.marks();
        let mark_of = |marks: &DeletionMarks, id: &KeyspaceId| marks.get(id).copied().unwrap_or_default();
        let to_install = |id: &KeyspaceId| {
            let (now, then) = (mark_of(&now, id), mark_of(then, id));
            let planned_at = if now.watermark == then.watermark { then.planned_at } else { 0 };
            (*id, DeletionMark { watermark: now.watermark, planned_at })
        };
        let ids: BTreeSet<&KeyspaceId> = now.keys().chain(installed.keys()).collect();
        let ids = ids.into_iter().filter(|id| self.keyspaces.has(**id));
        let changes = ids.map(to_install).filter(|(id, mark)| mark_of(installed, id) != *mark);
        changes.map(|(id, mark)| MarksEdit::Delete(id, mark)).collect()
    }
}
