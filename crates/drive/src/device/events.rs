//! Events: commands of one queue pair that wait for others of the same queue pair.
//!
//! ```text
//! free ──► pending ──► done ─────┐
//!             ▲   └──► failed ───┤
//!             └── signalled anew ┘
//! ```
//! 1. An event is pending from the submission of the one command that signals it until that command has ended.
//! 2. A command may wait only for an event that was signalled before the command was submitted. So a held command waits, directly or
//!    through others, for a command that is not held: there are no cycles, and nothing is held when nothing else is in flight.
//! 3. A held command keeps its credit, so no more are held than the queue pair has credits.
//!
//! The table belongs to one controller, and to one thread at a time.

use super::compute::ComputeRequest;
use crate::protocol::{Command, Completion, EventId, LocalRange, Opcode, Operation, Purpose, Status};
use std::collections::VecDeque;

/// The rest of a command, once it runs: how to report its end.
#[derive(Clone, Copy)]
pub(super) struct CommandEnd {
    pub tag: u64,
    /// The host's slot of the command.
    pub slot: u32,
    pub signals: Option<EventId>,
    pub is_quiet: bool,
    pub purpose: Purpose,
}

impl CommandEnd {
    pub fn of(command: &Command, slot: u32) -> CommandEnd {
        let Command { tag, events, purpose, .. } = *command;
        CommandEnd { tag, slot, signals: events.signals, is_quiet: events.is_quiet, purpose }
    }
}

pub(super) enum CommandStart {
    Now,
    After(EventId),
    /// Never, because a command it waits for failed; the first that failed has this tag.
    Aborted {
        first: u64,
    },
}

/// A checked command that waits for an event.
pub(super) struct HeldCommand {
    pub end: CommandEnd,
    pub work: HeldWork,
}

pub(super) enum HeldWork {
    Flash(Operation),
    Identify {
        into: LocalRange,
    },
    /// The pipeline's index in the controller, and the reads that it begins with.
    Pipeline {
        place: u32,
        opcode: Opcode,
        reads: Vec<(u64, LocalRange)>,
    },
    Compute(Box<ComputeRequest>),
    Cancel {
        tag: u64,
        pipeline: Option<u16>,
    },
}

impl HeldWork {
    pub fn opcode(&self) -> Opcode {
        match self {
            HeldWork::Flash(operation) => operation.opcode(),
            HeldWork::Identify { .. } => Opcode::Identify,
            HeldWork::Pipeline { opcode, .. } => *opcode,
            HeldWork::Compute(_) => Opcode::Compute,
            HeldWork::Cancel { .. } => Opcode::Cancel,
        }
    }
}

/// How the command ended for which others wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EventOutcome {
    Done,
    /// The tag of the command that failed first.
    Failed {
        first: u64,
    },
}

impl EventOutcome {
    pub fn of(completion: &Completion) -> EventOutcome {
        match completion.status {
            Status::Success => EventOutcome::Done,
            Status::Aborted => EventOutcome::Failed { first: completion.result[0] },
            _ => EventOutcome::Failed { first: completion.tag },
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum EventState {
    Free,
    Pending,
    Ended(EventOutcome),
}

struct EventSlot {
    state: EventState,
    /// Empty unless the event is pending.
    waiting: Vec<HeldCommand>,
}

#[derive(Default)]
pub(super) struct EventTable {
    /// Indexed by event number - 1, up to the highest number signalled.
    slots: Vec<EventSlot>,
    held: usize,
    /// Commands whose event has ended; for each event in the order of submission.
    released: VecDeque<(HeldCommand, EventOutcome)>,
}

impl EventTable {
    /// When a command that waits for `after` may start.
    ///
    /// # Errors
    /// [`Status::InvalidEvent`], if no command signals it.
    pub fn start(&self, after: Option<EventId>) -> Result<CommandStart, Status> {
        let Some(event) = after else { return Ok(CommandStart::Now) };
        match self.slots.get(place(event)).map(|slot| slot.state) {
            None | Some(EventState::Free) => Err(Status::InvalidEvent),
            Some(EventState::Pending) => Ok(CommandStart::After(event)),
            Some(EventState::Ended(EventOutcome::Done)) => Ok(CommandStart::Now),
            Some(EventState::Ended(EventOutcome::Failed { first })) => Ok(CommandStart::Aborted { first }),
        }
    }

    /// Makes an event pending.
    ///
    /// # Errors
    /// [`Status::InvalidEvent`], if the event is already pending, or does not exist.
    pub fn begin(&mut self, event: EventId) -> Result<(), Status> {
        if event.number() > EventId::MAX {
            return Err(Status::InvalidEvent);
        }
        if self.slots.len() <= place(event) {
            self.slots.resize_with(place(event) + 1, || EventSlot { state: EventState::Free, waiting: Vec::new() });
        }
        let state = &mut self.slots[place(event)].state;
        if *state == EventState::Pending {
            return Err(Status::InvalidEvent);
        }
        *state = EventState::Pending;
        Ok(())
    }

    /// Keeps a command until its pending event ends.
    pub fn hold(&mut self, event: EventId, command: HeldCommand) {
        let slot = &mut self.slots[place(event)];
        assert!(slot.state == EventState::Pending, "event {} is not pending", event.number());
        slot.waiting.push(command);
        self.held += 1;
    }

    /// Ends a pending event, and releases the commands that wait for it.
    pub fn end(&mut self, event: EventId, outcome: EventOutcome) {
        let EventSlot { state, waiting } = &mut self.slots[place(event)];
        assert!(*state == EventState::Pending, "event {} is not pending", event.number());
        *state = EventState::Ended(outcome);
        self.held -= waiting.len();
        self.released.extend(waiting.drain(..).map(|command| (command, outcome)));
    }

    /// The next command whose event has ended.
    pub fn next_released(&mut self) -> Option<(HeldCommand, EventOutcome)> {
        self.released.pop_front()
    }

    pub fn has_released(&self) -> bool {
        !self.released.is_empty()
    }

    /// The `Compute` commands with this tag that have not started.
    pub fn computes(&mut self, tag: u64) -> impl Iterator<Item = &mut ComputeRequest> {
        let waiting = self.slots.iter_mut().flat_map(|slot| &mut slot.waiting);
        let all = waiting.chain(self.released.iter_mut().map(|(command, _)| command));
        all.filter(move |command| command.end.tag == tag).filter_map(|command| match &mut command.work {
            HeldWork::Compute(request) => Some(&mut **request),
            _ => None,
        })
    }

    /// How many commands wait for events.
    pub fn held(&self) -> usize {
        self.held
    }
}

fn place(event: EventId) -> usize {
    usize::from(event.number()) - 1
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(number: u16) -> EventId {
        EventId::new(number).unwrap()
    }

    fn flush(tag: u64) -> HeldCommand {
        let end = CommandEnd::of(&Command::new(tag, Operation::Flush), 0);
        HeldCommand { end, work: HeldWork::Flash(Operation::Flush) }
    }

    #[test]
    fn an_event_releases_what_waits_in_its_order_and_is_used_again() {
        let mut table = EventTable::default();
        assert!(matches!(table.start(Some(event(3))), Err(Status::InvalidEvent)));
        for outcome in [EventOutcome::Done, EventOutcome::Failed { first: 9 }] {
            table.begin(event(3)).unwrap();
            assert_eq!(table.begin(event(3)), Err(Status::InvalidEvent), "pending already");
            assert!(matches!(table.start(Some(event(2))), Err(Status::InvalidEvent)), "never signalled");
            assert!(matches!(table.start(Some(event(3))), Ok(CommandStart::After(at)) if at == event(3)));
            (0..3).for_each(|tag| table.hold(event(3), flush(tag)));
            assert!(table.held() == 3 && !table.has_released());
            table.end(event(3), outcome);
            assert!(table.held() == 0 && table.has_released());
            for tag in 0..3 {
                let (command, found) = table.next_released().unwrap();
                assert_eq!((command.end.tag, found), (tag, outcome));
            }
            assert!(!table.has_released());
        }
        assert!(matches!(table.start(Some(event(3))), Ok(CommandStart::Aborted { first: 9 })));
    }

    #[test]
    fn numbers_have_a_limit() {
        let mut table = EventTable::default();
        assert_eq!(table.begin(event(EventId::MAX)), Ok(()));
        assert_eq!(table.begin(event(EventId::MAX + 1)), Err(Status::InvalidEvent));
        assert!(matches!(table.start(Some(event(u16::MAX))), Err(Status::InvalidEvent)));
    }
}
