//! Operations whose pages were read, and wait for a place in the cache: a line for each set that has none. They are looked after when the
//! set has one, in their order.

use super::OrderedSession;
use super::op_state::OpStage;
use crate::ordered::cache::Installed;
use crate::ordered::cache::page_meta::{PageMeta, PageUse};
use std::collections::VecDeque;
use tapetum_base::session::session_core::SessionCore;

/// A set of the cache, and the numbers of operations.
struct RoomLine {
    set: usize,
    line: VecDeque<usize>,
}

/// See the [module](self). No line is empty; there are no more than pages that a session reads at once.
#[derive(Default)]
pub(super) struct RoomLines {
    lines: Vec<RoomLine>,
}

impl RoomLines {
    fn join(&mut self, set: usize, number: usize) {
        match self.lines.iter_mut().find(|line| line.set == set) {
            Some(line) => line.line.push_back(number),
            None => self.lines.push(RoomLine { set, line: VecDeque::from([number]) }),
        }
    }

    pub fn are_none(&self) -> bool {
        self.lines.is_empty()
    }

    /// Takes the first of a line.
    fn take(&mut self, at: usize) -> Option<usize> {
        let number = self.lines[at].line.pop_front();
        if self.lines[at].line.is_empty() {
            self.lines.swap_remove(at);
        }
        number
    }

    /// Takes an operation out of any line.
    pub fn take_any(&mut self) -> Option<usize> {
        self.lines.len().checked_sub(1).and_then(|at| self.take(at))
    }
}

impl OrderedSession {
    /// An operation whose page was read waits for a place, behind others that do: the next round looks for one.
    pub(super) fn await_place(&mut self, number: usize) {
        let node = self.ops.get(number).and_then(|op| op.kept.stage.node()).expect("its page was read");
        self.rooms.join(self.state.cache.set_of(node), number);
        self.again.tries = true;
    }

    /// Puts pages that were read into the cache, as far as there are places. Their operations go on at once: before another page takes the
    /// place.
    pub(super) fn give_places(&mut self, core: &mut SessionCore) {
        if !self.rooms.are_none()
            && let Err(error) = core.base.log.poisoned()
        {
            // No page is written any more that would make room.
            while let Some(number) = self.rooms.take_any() {
                let op = self.ops.take(number);
                let node = op.kept.stage.node();
                self.fail(core, (number, op), error.clone());
                node.into_iter().for_each(|node| self.step_off(number, node));
            }
        }
        for at in (0..self.rooms.lines.len()).rev() {
            while self.rooms.lines.get(at).is_some_and(|line| self.may_have_place(line.line[0]))
                && self.has_credit(core)
            {
                let Some(number) = self.rooms.take(at) else { break };
                self.install(core, number);
            }
        }
    }

    fn may_have_place(&self, number: usize) -> bool {
        match self.ops.get(number).map(|op| &op.kept.stage) {
            Some(OpStage::Fetched(node, home, _)) => self.state.cache.may_install(*node, *home),
            _ => unreachable!("it waits for a place"),
        }
    }

    /// Puts a page that was read into the cache, or gives it up if it is not the node any more.
    fn install(&mut self, core: &mut SessionCore, number: usize) {
        let mut op = self.ops.take(number);
        let OpStage::Fetched(node, home, page) = std::mem::take(&mut op.kept.stage) else {
            unreachable!("it waits for a place")
        };
        let meta = PageMeta::new(op.keyspace.id().0, PageUse::ByKey);
        match self.state.cache.install(node, home, page, meta) {
            Installed::Done(page) | Installed::Stale(page) => {
                self.end_fetch(page);
                self.take_turn(core, (number, op), node, PageUse::Again);
                self.step_off(number, node);
            }
            Installed::NoRoom(page) => {
                // Another session was faster.
                op.kept.stage = OpStage::Fetched(node, home, page);
                self.ops.put(number, op);
                self.rooms.join(self.state.cache.set_of(node), number);
            }
        }
    }
}
