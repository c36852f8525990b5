//! Chains: how the controller holds, releases and ends commands that use events (`device/events.rs`).

use super::{Controller, EndedCommand, Pipeline, TransferOwner};
use crate::device::events::{CommandEnd, CommandStart, EventOutcome, HeldCommand, HeldWork};
use crate::protocol::{Completion, EventUse, LocalRange, Opcode, Status};
use std::time::Duration;

impl Controller {
    /// When a command may start; none, if it was refused.
    pub(super) fn begin_events(&mut self, end: CommandEnd, events: EventUse, opcode: Opcode) -> Option<CommandStart> {
        // Before `signals` is pending: nothing waits for itself.
        let start = self.events.start(events.after);
        if let Some(event) = events.signals
            && let Err(status) = self.events.begin(event)
        {
            // The event is another command's to end.
            self.refuse(CommandEnd { signals: None, ..end }, opcode, 0, status);
            return None;
        }
        start.map_err(|status| self.refuse(end, opcode, 0, status)).ok()
    }

    /// # Safety
    /// As [`Controller::start`].
    pub(super) unsafe fn start_or_hold(&mut self, command: HeldCommand, start: CommandStart) {
        let ended = match start {
            // SAFETY: by our caller's word.
            CommandStart::Now => unsafe { self.start(command) },
            CommandStart::After(event) => return self.events.hold(event, command),
            CommandStart::Aborted { first } => Some(self.abort(command, first)),
        };
        self.done.extend(ended);
    }

    /// Starts a command, and gives its end if that is so soon.
    ///
    /// # Safety
    /// The command was checked. Until it has ended, what it writes nobody else touches, and what it reads nobody writes or frees.
    unsafe fn start(&mut self, HeldCommand { end, work }: HeldCommand) -> Option<EndedCommand> {
        match work {
            HeldWork::Flash(operation) => {
                // SAFETY: by our caller's word.
                unsafe { self.submit_to_flash(TransferOwner::Command(end), operation) };
                None
            }
            // SAFETY: by our caller's word.
            HeldWork::Identify { into } => Some(unsafe { self.identify(end, into) }),
            HeldWork::Pipeline { place, reads, .. } => {
                self.pipelines[place as usize].submitted_us = self.started_us();
                // SAFETY: by our caller's word.
                unsafe { self.start_pipeline(place, &reads) };
                None
            }
            HeldWork::Compute(request) => self.start_compute(end, *request),
            HeldWork::Cancel { tag, pipeline } => Some(self.cancel(end, tag, pipeline)),
        }
    }

    /// Ends a command that is not to start.
    fn abort(&mut self, HeldCommand { end, work }: HeldCommand, first: u64) -> EndedCommand {
        self.counters.completed(work.opcode(), Status::Aborted);
        if let HeldWork::Pipeline { place, .. } = work {
            self.free_pipeline(place);
        }
        self.ended(end, Completion { result: [first, 0], ..Completion::new(end.tag, Status::Aborted) })
    }

    /// Tells whatever waits for a command that it has ended.
    pub(super) fn ended(&mut self, end: CommandEnd, completion: Completion) -> EndedCommand {
        if let Some(event) = end.signals {
            self.events.end(event, EventOutcome::of(&completion));
        }
        EndedCommand { slot: end.slot, is_silent: end.is_quiet && completion.is_success(), completion }
    }

    pub(super) fn start_released(&mut self, ended: &mut Vec<EndedCommand>) {
        while let Some((command, outcome)) = self.events.next_released() {
            ended.extend(match outcome {
                // SAFETY: it was checked, and what it names is the drive's by the word of who submitted it.
                EventOutcome::Done => unsafe { self.start(command) },
                EventOutcome::Failed { first } => Some(self.abort(command, first)),
            });
        }
    }

    /// Brings chains forward until there is a completion: whoever waits is not woken for a command that ends quietly.
    pub(super) fn wait_for_chain(&mut self, timeout: Option<Duration>) {
        let now_us = |controller: &Controller| controller.device.env.now_us();
        let until_us = timeout.map(|timeout| now_us(self).saturating_add(timeout.as_micros() as u64));
        let mut left_before = None;
        loop {
            let mut done = std::mem::take(&mut self.done);
            self.poll(&mut done);
            self.done = done;
            // A simulated drive that stopped brings nothing forward, and does not block either.
            let left = (self.in_flash, self.events.held());
            let is_stuck = left_before.replace(left) == Some(left) && !self.is_computing();
            let left_us = until_us.map(|until_us| until_us.saturating_sub(now_us(self)));
            let has_completion = self.done.iter().any(|ended| !ended.is_silent);
            let is_away = self.in_flash > 0 || self.is_computing();
            if has_completion || !is_away || self.is_ready() || is_stuck || left_us == Some(0) {
                return;
            }
            self.sleep(left_us.map(Duration::from_micros));
        }
    }

    /// For a pipeline that does not start at once.
    pub(super) fn hold_pipeline(&mut self, place: u32, reads: &[(u64, LocalRange)], start: CommandStart) {
        let Pipeline { end, opcode, .. } = self.pipelines[place as usize];
        let command = HeldCommand { end, work: HeldWork::Pipeline { place, opcode, reads: reads.to_vec() } };
        // SAFETY: it was checked, and what it names is the drive's by the word of who submitted it.
        unsafe { self.start_or_hold(command, start) };
    }
}
