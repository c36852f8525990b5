//! Queues of operations and answers that wait for no node: operations for room or for their extensions, and answers for durability. The session's
//! poll checks each of them, so none depends on a notification.

use super::extensions::waits_for_extension;
use super::in_hand::{OpInHand, Ops};
use super::op_state::{OpStage, Shown};
use crate::ordered::cache::durability_ticket::DurabilityTicket;
use std::collections::VecDeque;
use std::sync::Arc;
use tapetum_base::error::Error;
use tapetum_base::log::Sync;
use tapetum_base::request::Outcome;
use tapetum_base::session::session_core::SessionCore;

/// Operations that wait for a place for a new node, for a slot, or for much memory. Some are attempted at each poll, and one more for each that
/// succeeded.
#[derive(Default)]
pub(super) struct RoomQueue {
    waiting: VecDeque<usize>,
}

impl RoomQueue {
    pub fn join(&mut self, op: &mut OpInHand<'_>) {
        op.kept.stage = OpStage::AwaitsRoom;
        self.waiting.push_back(op.number());
    }

    /// Lets the next operation try, as there may be room.
    pub fn found(&mut self, ops: &mut Ops) {
        self.waiting.pop_front().into_iter().for_each(|number| ops.attempt_again(number));
    }

    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    pub fn take_all(&mut self) -> impl Iterator<Item = usize> {
        self.waiting.drain(..)
    }
}

/// Operations that wait for their extensions: for a slot, or for durability.
#[derive(Default)]
pub(super) struct ExtensionQueue {
    waiting: Vec<usize>,
}

impl ExtensionQueue {
    pub fn join(&mut self, op: &mut OpInHand<'_>) {
        op.kept.stage = OpStage::AwaitsExtension;
        self.waiting.push(op.number());
    }

    /// Attempts the operations that need not wait any more, or all.
    pub fn wake(&mut self, ops: &mut Ops, all: bool) {
        let goes_on = |number: &mut usize| all || !ops.get(*number).is_some_and(waits_for_extension);
        let ready: Vec<usize> = self.waiting.extract_if(.., goes_on).collect();
        ready.into_iter().for_each(|number| ops.attempt_again(number));
    }

    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    pub fn take_all(&mut self) -> impl Iterator<Item = usize> {
        self.waiting.drain(..)
    }
}

/// An answer that waits until what it shows is durable. Its operation is over.
struct HeldAnswer {
    token: u64,
    ticket: Arc<DurabilityTicket>,
    deleted_by: u64,
    read_flash: bool,
    outcome: Outcome,
    /// The bytes of the outcome's value.
    value: Vec<u8>,
}

#[derive(Default)]
pub(super) struct HeldAnswers {
    held: Vec<HeldAnswer>,
}

impl HeldAnswers {
    /// Answers once the seen or written records are durable, at sync modes that wait for that.
    pub fn answer(&mut self, core: &mut SessionCore, token: u64, shown: Shown, outcome: Outcome) {
        let Shown { ticket, deleted_by, read_flash } = shown;
        match ticket.filter(|ticket| core.base.log.sync() == Sync::Always && !ticket.is_done()) {
            None => core.answer_shown(token, deleted_by, outcome, read_flash),
            Some(ticket) => {
                let value = outcome.value().map(|value| core.values.bytes(value).to_vec()).unwrap_or_default();
                self.held.push(HeldAnswer { token, ticket, deleted_by, read_flash, outcome, value });
            }
        }
    }

    /// Sends the durable answers; all of them if nothing becomes durable any more.
    pub fn release(&mut self, core: &mut SessionCore) {
        if self.held.is_empty() {
            return;
        }
        let poisoned = core.base.log.poisoned().err();
        let mut place = 0;
        while place < self.held.len() {
            let is_durable = self.held[place].ticket.is_done();
            if !is_durable && poisoned.is_none() {
                place += 1;
                continue;
            }
            let mut held = self.held.swap_remove(place);
            match &poisoned {
                Some(error) if !is_durable => core.answer(held.token, Outcome::Failed(error.clone())),
                _ => {
                    if let Some(value) = held.outcome.value_mut() {
                        *value = core.values.add(&held.value);
                    }
                    core.answer_shown(held.token, held.deleted_by, held.outcome, held.read_flash);
                }
            }
        }
    }

    pub fn fail_all(&mut self, core: &mut SessionCore, error: &Error) {
        self.held.drain(..).for_each(|held| core.answer(held.token, Outcome::Failed(error.clone())));
    }

    pub fn count(&self) -> usize {
        self.held.len()
    }

    pub fn tokens(&self) -> impl Iterator<Item = u64> {
        self.held.iter().map(|held| held.token)
    }

    pub fn value_bytes(&self) -> usize {
        self.held.iter().map(|held| held.value.len()).sum()
    }
}
