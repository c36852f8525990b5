//! Completes requests of the store: outcomes of parts, and replies to jobs whose parts are all done.

use tapetum::{BLOCK_BYTES, ChangeStep, Error, Outcome};

use super::Transmission;
use crate::doors::connection::Client;
use crate::doors::context::Context;
use crate::doors::nbd::exports::Export;
use crate::doors::nbd::jobs::{Job, Part, PartKind};
use crate::doors::nbd::protocol::errors;

impl Transmission {
    /// Takes the outcome of a part.
    pub fn complete(&mut self, number: u32, outcome: &Outcome, client: &mut Client, cx: &mut Context<'_>) {
        self.pending -= 1;
        let part = self.parts.get_mut(number as usize);
        let value = outcome.value().map(|value| cx.seat.bytes(value));
        if part.is_get() {
            client.got(part.charge_bytes, value.map(<[u8]>::len), cx.gets);
        }
        let job = self.jobs.get_mut(part.job);
        match (&mut part.kind, outcome) {
            (kind, Outcome::Failed(error)) => job.fail(error_of(error, kind)),
            (PartKind::Put | PartKind::Delete | PartKind::Sync, _) => {}
            (PartKind::Change(change), _) => match change.take(outcome, value) {
                ChangeStep::GoesOn => return self.changing.push_back(number as usize),
                ChangeStep::NoBlock => job.fail(errors::IO),
                ChangeStep::Done => {}
            },
            // A value of another length was not written by a block device.
            (PartKind::Read, _) if value.is_some_and(|value| value.len() != BLOCK_BYTES) => job.fail(errors::IO),
            (PartKind::Read, _) => {
                job.fill(&part.piece, value);
                if value.is_none() {
                    self.export.counts[cx.worker].met_hole();
                }
            }
        }
        self.end_part(number as usize, client, cx);
    }

    pub(super) fn end_part(&mut self, number: usize, client: &mut Client, cx: &mut Context<'_>) {
        let Part { job, held_bytes, .. } = self.parts.take(number);
        self.held_bytes -= held_bytes;
        self.jobs.get_mut(job).parts -= 1;
        self.settle(job, client, cx);
    }

    /// Answers a job if all of it is done.
    pub(super) fn settle(&mut self, number: usize, client: &mut Client, cx: &mut Context<'_>) {
        let job = self.jobs.get(number);
        let is_queued = self.working.contains(&number);
        if job.parts > 0 || !job.is_handed_out() || is_queued || self.writing == Some(number) {
            return;
        }
        if job.needs_sync && job.error == 0 {
            return self.working.push_back(number);
        }
        let job = self.jobs.take(number);
        self.held_bytes -= job.held_bytes;
        count(&job, &self.export, cx);
        job.reply(self.is_structured, &mut client.out, cx.pool);
        self.leave_if_done(client);
    }
}

/// Counts a finished job.
pub(super) fn count(job: &Job, export: &Export, cx: &Context<'_>) {
    let took = cx.instant().saturating_duration_since(job.began);
    export.counts[cx.worker].answered(job.command(), job.length, took, job.error != 0);
}

/// The protocol's number for an error.
fn error_of(error: &Error, of: &PartKind) -> u32 {
    match error {
        _ if matches!(of, PartKind::Read) => errors::IO,
        Error::NoSpace { .. } => errors::NOSPC,
        error if error.is_full() => errors::NOSPC,
        Error::ReadOnly => errors::PERM,
        _ => errors::IO,
    }
}
