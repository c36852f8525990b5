//! What waits, and when it goes on.
//!
//! ```text
//! waits for                              where                        goes on
//! the page of a node                     node_turns                   when those before it have left the node
//! a place for a page that was read       room_lines                   when the set has one
//! an extension: to be durable, a slot    for_extensions               when that is so
//! another node, a slot, much memory      for_room                     some at each poll, and one for each that goes on
//! what is durable for its answer         held                         when it is
//! ```
//! The session's poll looks after each of them, so none depends on being told.

use super::op_state::OrderedOp;
use super::{OrderedSession, Waits};
use crate::ordered::cache::page_meta::PageUse;
use crate::ordered::node_table::NodeId;
use std::time::Duration;
use tapetum_base::engine::engine_session::{EngineSlot, EngineWait};
use tapetum_base::keyspace::request::Outcome;
use tapetum_base::session::order::closed;
use tapetum_base::session::session_core::SessionCore;

/// How often a poll attempts what tries again, before it leaves that to the next one.
const ROUNDS_MAX: usize = 8;
/// Of the operations that wait for room, how many a poll attempts, and as many more as go on.
const FOR_ROOM_TRIED: usize = 8;

impl OrderedSession {
    /// Attempts what waits, in order, moves the write-back on, and answers what has become durable. No page is taken when it returns.
    pub fn poll(&mut self, core: &mut SessionCore) {
        (self.again.wants_room, self.again.is_short) = (false, false);
        self.wake_waiting(core);
        for _ in 0..ROUNDS_MAX {
            self.again.tries = false;
            self.turns.begin_round();
            self.give_places(core);
            let mut count = self.ops.begin_attempts();
            loop {
                for _ in 0..count {
                    let Some((number, op)) = self.ops.take_waiting() else { break };
                    self.attempt(core, number, op);
                }
                let any = self.take_turns(core);
                self.await_pages(core);
                count = self.ops.take_woken();
                if count == 0 && !(any && self.turns.are_ready()) {
                    break;
                }
            }
            self.attempt_scans(core);
            self.await_pages(core);
            if !self.again.tries && !self.may_unpark() {
                break;
            }
        }
        self.attempt_merges(core);
        self.again.wants_room |= !self.rooms.are_none() || !self.waits.for_room.is_empty();
        if self.state.write_back.has_work() {
            self.state.write_back.advance(&self.state, self.again.wants_room);
        }
        self.release_held(core);
    }

    /// Attempts operations whose extensions are durable, and some of those that wait for room: the others follow as these go on.
    fn wake_waiting(&mut self, core: &SessionCore) {
        let all = core.base.log.poisoned().is_err();
        let OrderedSession { ops, waits: Waits { for_extensions, .. }, .. } = self;
        let goes_on = |number: &mut usize| all || !ops.get(*number).is_some_and(Self::waits_for_extension);
        let ready: Vec<usize> = for_extensions.extract_if(.., goes_on).collect();
        ready.into_iter().for_each(|number| self.ops.attempt_again(number));
        (0..FOR_ROOM_TRIED).for_each(|_| self.found_room());
    }

    /// An operation that waited for room has gone on: there may be some for the next one.
    pub(super) fn found_room(&mut self) {
        if let Some(number) = self.waits.for_room.pop_front() {
            self.ops.attempt_again(number);
        }
    }

    /// Operations that are the first at their nodes go on, as many as may have commands on their way; whether any did.
    fn take_turns(&mut self, core: &mut SessionCore) -> bool {
        let mut any = false;
        self.turns.unpark(self.fetches.most.saturating_sub(self.fetches.on_their_way));
        while self.has_credit(core) {
            let Some((node, number)) = self.turns.next() else {
                if self.again.is_short || !self.turns.feed() {
                    break;
                }
                continue;
            };
            let op = self.ops.take(number);
            self.take_turn(core, (number, op), node, PageUse::ByKey);
            self.step_off(number, node);
            any = true;
        }
        any
    }

    /// An operation has gone on at a node; if it is not there any more, it is the next one's turn.
    pub(super) fn step_off(&mut self, number: usize, node: NodeId) {
        if self.ops.get(number).is_none_or(|op| op.kept.stage.node() != Some(node)) {
            self.turns.left(node);
            self.again.tries |= self.turns.are_ready();
        }
    }

    fn may_unpark(&self) -> bool {
        self.fetches.on_their_way < self.fetches.most && self.turns.are_parked()
    }

    /// Polls until no page is with a command: programs are short, and run in the poll where the drive has no threads.
    pub(super) fn await_pages(&mut self, core: &mut SessionCore) {
        while self.pages_taken > 0 {
            let mut completions = std::mem::take(&mut self.reused.completions);
            core.queue.poll(&mut completions);
            let none = completions.is_empty();
            for returned in completions.drain(..) {
                match EngineSlot::of(returned.completion.tag) == self.slot {
                    true => self.complete(core, returned),
                    false => core.completions.push(returned),
                }
            }
            self.reused.completions = completions;
            if none {
                if core.queue.event_fd().is_none() {
                    // A simulated drive that stopped never answers.
                    return;
                }
                core.queue.wait(Some(Duration::from_millis(1)));
            }
        }
    }

    /// An operation is attempted again, at once.
    pub(super) fn try_again(&mut self, number: usize, op: Box<OrderedOp>) {
        self.again.tries = true;
        self.ops.wait_again(number, op);
    }

    /// An operation is attempted again when there may be room: for another node, for an extension, or in memory.
    pub(super) fn wait_for_room(&mut self, number: usize, op: Box<OrderedOp>) {
        self.ops.put(number, op);
        self.waits.for_room.push_back(number);
    }

    /// An operation that is at a node goes on there when there is memory.
    pub(super) fn wait_for_memory(&mut self, (number, op): (usize, Box<OrderedOp>), node: NodeId) {
        (self.again.wants_room, self.again.is_short) = (true, true);
        self.ops.put(number, op);
        self.turns.starves(node, number);
    }

    /// What keeps its operations, the most pressing of it.
    pub fn waits(&self) -> EngineWait {
        // A drive without an event descriptor ends what it does in the next polls.
        let is_polled = self.state.write_back.event.fd.is_none() && self.state.write_back.has_work();
        if self.again.tries || self.may_unpark() || (is_polled && self.in_flight() > 0) {
            return EngineWait::Poll;
        }
        let at_nodes = self.turns.are_ready() || self.turns.are_starved() || !self.rooms.are_none();
        let others = !self.waits.held.is_empty() || self.merges.wait() || self.scans.wait();
        let others = others || at_nodes || !self.waits.for_room.is_empty() || !self.waits.for_extensions.is_empty();
        let own = if others { EngineWait::Change } else { EngineWait::Commands };
        self.ops.waits().max(self.scans.waits()).max(own)
    }

    /// Ends what waits: the store was closed.
    pub fn fail_waiting(&mut self, core: &mut SessionCore) {
        while let Some(number) = self.rooms.take_any() {
            let op = self.ops.take(number);
            let node = op.kept.stage.node();
            self.fail(core, (number, op), closed());
            node.into_iter().for_each(|node| self.step_off(number, node));
        }
        let waiting = self.waits.for_room.drain(..).chain(self.waits.for_extensions.drain(..));
        waiting.chain(std::iter::from_fn(|| self.turns.take_any())).for_each(|number| self.ops.attempt_again(number));
        while let Some((number, op)) = self.ops.take_waiting() {
            self.fail(core, (number, op), closed());
        }
        for held in self.waits.held.drain(..) {
            core.answer(held.token, Outcome::Failed(closed()));
        }
        self.fail_scans();
    }
}
