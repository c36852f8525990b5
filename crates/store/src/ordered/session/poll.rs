//! The session's poll: it continues waiting operations as far as they get.
//!
//! ```text
//! waits                       in               goes on
//! InLine                      node_turns       when those before it have left the node
//! AwaitsPlace                 fetches          when the set of the cache has a place
//! AwaitsExtension             queues           when the extension is durable, or has a slot
//! AwaitsRoom                  queues           some at each poll, and one for each that goes on
//! an answer                   queues           when what it shows is durable
//! a scan, a merge             scans, merges    at each poll
//! ```
//! The poll checks each of them, so none depends on a notification.

use super::attempt::attempt;
use super::context::may_wait;
use super::in_hand::OpInHand;
use super::op_state::Step;
use super::{OrderedSession, Waits};
use crate::ordered::cache::page_meta::PageUse;
use crate::ordered::node_table::NodeId;
use tapetum_base::error::Error;
use tapetum_base::session::engine_session::{EngineSession, EngineSlot, EngineWait};
use tapetum_base::session::session_core::SessionCore;

/// How often a poll attempts operations that retry, before it leaves that to the next poll.
const ROUNDS_MAX: usize = 8;
/// How many operations that wait for room a poll attempts; for each that succeeds it attempts one more.
const FOR_ROOM_TRIED: usize = 8;

impl OrderedSession {
    /// Attempts waiting operations in order, advances the write-back, and sends durable answers. No page is taken when it returns.
    pub(super) fn attempt_all(&mut self, core: &mut SessionCore) {
        (self.cx.again.wants_room, self.cx.again.is_short) = (false, false);
        self.waits.extensions.wake(&mut self.ops, core.base.log.poisoned().is_err());
        (0..FOR_ROOM_TRIED).for_each(|_| self.waits.room.found(&mut self.ops));
        if self.cx.may_change {
            self.waits.turns.open_gate();
        }
        for _ in 0..ROUNDS_MAX {
            self.cx.again.tries = false;
            self.waits.turns.begin_round();
            self.give_places(core);
            self.attempt_operations(core);
            self.scans.attempt((&mut self.cx, core));
            self.await_pages(core);
            if !self.cx.again.tries && !self.waits.may_unpark() {
                break;
            }
        }
        let OrderedSession { waits, reads, cx, .. } = self;
        waits.merges.attempt((cx, core), reads);
        cx.again.wants_room |= waits.fetches.await_places() || !waits.room.is_empty();
        if cx.state.write_back.has_work() {
            cx.state.write_back.advance(&cx.state, cx.again.wants_room);
        }
        waits.held.release(core);
    }

    /// Attempts operations, and those whose turn it is at their nodes, until none gets further.
    fn attempt_operations(&mut self, core: &mut SessionCore) {
        let mut count = self.ops.begin_attempts();
        loop {
            for _ in 0..count {
                let Some(mut op) = OpInHand::take_waiting(&mut self.ops) else { break };
                let step = attempt(&mut self.cx, core, &mut op);
                self.waits.advance((&mut self.cx, core), op, None, step);
            }
            let any = self.take_turns(core);
            self.await_pages(core);
            count = self.ops.take_woken();
            if count == 0 && !(any && self.waits.turns.are_ready()) {
                return;
            }
        }
    }

    /// Carries out a step of an operation at a node.
    fn advance_at(&mut self, core: &mut SessionCore, number: usize, node: NodeId, step: Step) {
        let op = OpInHand::take(&mut self.ops, number);
        self.waits.advance((&mut self.cx, core), op, Some(node), step);
    }

    /// Continues operations that are the first at their nodes, as many as may have commands in flight. Returns whether there were any.
    fn take_turns(&mut self, core: &mut SessionCore) -> bool {
        let mut any = false;
        self.waits.turns.unpark(self.waits.fetches.left());
        while self.cx.has_credit(core) {
            let Some((node, number)) = self.waits.turns.next() else {
                if self.cx.again.is_short || !self.waits.turns.feed() {
                    break;
                }
                continue;
            };
            self.advance_at(core, number, node, Step::Turn(PageUse::ByKey));
            any = true;
        }
        any
    }

    /// Installs fetched pages in the cache, as far as there are places. Their operations go on at once, before another page takes the place.
    fn give_places(&mut self, core: &mut SessionCore) {
        if self.waits.fetches.await_places()
            && let Err(error) = core.base.log.poisoned()
        {
            // No page is written any more that would make room.
            self.fail_places(core, &error);
        }
        for line in (0..self.waits.fetches.lines()).rev() {
            while self.waits.fetches.has_place(&self.cx, line) && self.cx.has_credit(core) {
                let Some((number, node)) = self.waits.fetches.take(line) else { break };
                let mut op = OpInHand::take(&mut self.ops, number);
                let step = self.waits.fetches.install(&self.cx, &mut op);
                self.waits.advance((&mut self.cx, core), op, Some(node), step);
            }
        }
    }

    fn fail_places(&mut self, core: &mut SessionCore, error: &Error) {
        while let Some((number, node)) = self.waits.fetches.take_any() {
            self.advance_at(core, number, node, Step::Fail(error.clone()));
        }
    }

    /// Polls until no page is with a command. Programs are short, and run within the poll if the drive has no threads.
    pub(super) fn await_pages(&mut self, core: &mut SessionCore) {
        while self.cx.has_pages_taken() {
            let mut completions = std::mem::take(&mut self.cx.completions);
            // Those first that came while a step waited for its own command.
            completions.append(&mut core.completions);
            core.queue.poll(&mut completions);
            let mut any = false;
            for returned in completions.drain(..) {
                match EngineSlot::of(returned.completion.tag) == self.cx.slot {
                    true => {
                        any = true;
                        self.complete(core, returned);
                    }
                    false => core.completions.push(returned),
                }
            }
            self.cx.completions = completions;
            if !any && !may_wait(&mut core.queue) {
                return;
            }
        }
    }

    /// The most pressing reason why its operations wait.
    pub(super) fn wait_reason(&self) -> EngineWait {
        let OrderedSession { ops, waits, scans, cx, .. } = self;
        // A drive without an event descriptor completes its work in the next polls.
        let is_polled = cx.state.write_back.event.fd.is_none() && cx.state.write_back.has_work();
        if cx.again.tries || waits.may_unpark() || (is_polled && self.in_flight() > 0) {
            return EngineWait::Poll;
        }
        let own = if waits.wait() || scans.wait() { EngineWait::Change } else { EngineWait::Commands };
        ops.waits().max(scans.waits()).max(own)
    }

    /// Fails the waiting operations: the store was closed.
    pub(super) fn fail_all_waiting(&mut self, core: &mut SessionCore) {
        self.fail_places(core, &Error::Closed);
        let OrderedSession { ops, waits, scans, cx, .. } = self;
        let Waits { turns, room, extensions, .. } = waits;
        let waiting = room.take_all().chain(extensions.take_all());
        waiting.chain(std::iter::from_fn(|| turns.take_any())).for_each(|number| ops.attempt_again(number));
        while let Some(op) = OpInHand::take_waiting(ops) {
            waits.advance((cx, core), op, None, Step::Fail(Error::Closed));
        }
        waits.held.fail_all(core, &Error::Closed);
        scans.fail_waiting(&Error::Closed);
    }
}

impl Waits {
    fn may_unpark(&self) -> bool {
        self.fetches.left() > 0 && self.turns.are_parked()
    }

    /// Whether an operation waits for other threads.
    fn wait(&self) -> bool {
        let at_nodes =
            self.turns.are_ready() || self.turns.are_starved() || self.turns.are_gated() || self.fetches.await_places();
        let for_more = !self.room.is_empty() || !self.extensions.is_empty() || self.held.count() > 0;
        at_nodes || for_more || self.merges.wait()
    }
}
