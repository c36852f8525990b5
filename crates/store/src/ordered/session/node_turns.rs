//! Turns at nodes. The operations of a session that want the same node's page wait in one line, and one of them is at the node at a time. So each is
//! attempted when the one before it has left, and not at each poll.
//!
//! ```text
//!                 ┌──────────────── left, others stand in line ───────────────┐
//! join ──► ready ─┴─► next: the first of the line is at the node ─► left, none stands in line ─► forgotten
//!            ▲  ▲ └─► busy     another thread has the page: ready in the next round
//!            │  └───► starved  no memory to work with: one of them is ready in each round
//!            │  └───► gated    a freeze is being made, and the first of the line is a change
//!            └──────► parked   its page is to be read, and as many are read as may be
//! ```
//! 1. A node with a turn is in exactly one of these states, and the operations in its line are in no other list.
//! 2. A node is ready, busy, starved, parked or gated only while an operation is in its line. Otherwise an operation is at it.
//!
//! Threads: the session's.

use crate::ordered::node_table::NodeId;
use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasherDefault, Hasher};

/// Empty lines that are kept for reuse.
const SPARE_LINES: usize = 64;
/// How many operations of a line are checked for those that may go along with the first.
const LOOKED_MAX: usize = 64;

/// Ids of nodes are dense: a multiplication spreads them.
#[derive(Default)]
struct NodeHasher(u64);

impl Hasher for NodeHasher {
    fn write_u32(&mut self, node: u32) {
        self.0 = u64::from(node).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(32);
    }

    fn write(&mut self, _: &[u8]) {
        unreachable!("a node's id is one number");
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

/// The line at one node.
#[derive(Default)]
struct NodeTurn {
    /// Numbers of operations.
    line: VecDeque<usize>,
    /// An operation is at the node.
    is_taken: bool,
}

/// The reason why the line at a node waits, together with its first operation.
#[derive(Clone, Copy)]
pub(super) enum LineWait {
    /// Another thread has the page.
    Page,
    /// There is no memory for the operation's command.
    Memory,
    /// The session already reads as many pages as it may.
    Reads,
    /// A freeze is being made, and it is a change.
    Gate,
}

/// See the [module](self).
#[derive(Default)]
pub(super) struct NodeTurns {
    turns: HashMap<NodeId, NodeTurn, BuildHasherDefault<NodeHasher>>,
    ready: VecDeque<NodeId>,
    busy: Vec<NodeId>,
    starved: VecDeque<NodeId>,
    parked: VecDeque<NodeId>,
    gated: Vec<NodeId>,
    spare: Vec<VecDeque<usize>>,
}

impl NodeTurns {
    /// Puts an operation at the end of the line at a node.
    pub fn join(&mut self, node: NodeId, number: usize) {
        let (ready, spare) = (&mut self.ready, &mut self.spare);
        let turn = self.turns.entry(node).or_insert_with(|| {
            ready.push_back(node);
            NodeTurn { line: spare.pop().unwrap_or_default(), is_taken: false }
        });
        turn.line.push_back(number);
    }

    fn turn(&mut self, node: NodeId) -> &mut NodeTurn {
        self.turns.get_mut(&node).expect("somebody is at the node, or stands in its line")
    }

    /// The next ready node, and the first operation of its line, which is at the node from here on.
    pub fn next(&mut self) -> Option<(NodeId, usize)> {
        let node = self.ready.pop_front()?;
        let turn = self.turn(node);
        let number = turn.line.pop_front().expect("somebody stands in line at a node that is ready");
        turn.is_taken = true;
        Some((node, number))
    }

    pub fn are_ready(&self) -> bool {
        !self.ready.is_empty()
    }

    /// The operation at a node, if there is one, has left: it is the next one's turn.
    pub fn left(&mut self, node: NodeId) {
        let Some(turn) = self.turns.get_mut(&node).filter(|turn| turn.is_taken) else { return };
        if !turn.line.is_empty() {
            turn.is_taken = false;
            return self.ready.push_back(node);
        }
        let NodeTurn { line, .. } = self.turns.remove(&node).unwrap_or_default();
        if self.spare.len() < SPARE_LINES {
            self.spare.push(line);
        }
    }

    /// Puts an operation at the front of the line. Another one is at the node.
    pub fn put_in_front(&mut self, node: NodeId, number: usize) {
        self.turn(node).line.push_front(number);
    }

    /// Puts the operation at a node back to the front of its line, which waits for this.
    pub fn step_back(&mut self, node: NodeId, number: usize, wait: LineWait) {
        self.put_in_front(node, number);
        self.turn(node).is_taken = false;
        match wait {
            LineWait::Page => self.busy.push(node),
            LineWait::Memory => self.starved.push_back(node),
            LineWait::Reads => self.parked.push_back(node),
            LineWait::Gate => self.gated.push(node),
        }
    }

    /// Lets `pages` parked nodes go on, as so many more pages may be read.
    pub fn unpark(&mut self, pages: usize) {
        let count = pages.min(self.parked.len());
        self.ready.extend(self.parked.drain(..count));
    }

    pub fn are_parked(&self) -> bool {
        !self.parked.is_empty()
    }

    /// Begins a round: taken pages are tried again.
    pub fn begin_round(&mut self) {
        self.ready.extend(self.busy.drain(..));
    }

    /// Lets one starved node try whether there is memory. Returns whether there was one.
    pub fn feed(&mut self) -> bool {
        let fed = self.starved.pop_front();
        self.ready.extend(fed);
        fed.is_some()
    }

    /// Lets changes go on: no freeze is being made.
    pub fn open_gate(&mut self) {
        self.ready.extend(self.gated.drain(..));
    }

    pub fn are_gated(&self) -> bool {
        !self.gated.is_empty()
    }

    pub fn are_starved(&self) -> bool {
        !self.starved.is_empty()
    }

    /// Takes the first of the line at a node that an operation is at.
    pub fn take_next(&mut self, node: NodeId) -> Option<usize> {
        self.turn(node).line.pop_front()
    }

    /// Takes the operations that `takes` accepts out of the line at a node that an operation is at. Checks only the first few.
    pub fn take_those(&mut self, node: NodeId, mut takes: impl FnMut(usize) -> bool) {
        let line = &mut self.turn(node).line;
        let (looked, mut kept) = (line.len().min(LOOKED_MAX), 0);
        for place in 0..looked {
            let number = line[place];
            if !takes(number) {
                line[kept] = number;
                kept += 1;
            }
        }
        line.drain(kept..looked);
    }

    /// Takes an operation from the line at a node that no operation is at.
    pub fn take_any(&mut self) -> Option<usize> {
        let NodeTurns { ready, busy, starved, parked, gated, .. } = self;
        ready.extend(busy.drain(..).chain(starved.drain(..)).chain(parked.drain(..)).chain(gated.drain(..)));
        let (node, number) = self.next()?;
        self.left(node);
        Some(number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NODE: NodeId = NodeId(7);

    #[test]
    fn those_in_line_have_their_turn_one_after_the_other() {
        let mut turns = NodeTurns::default();
        (0..3).for_each(|number| turns.join(NODE, number));
        turns.join(NodeId(8), 9);
        assert_eq!(turns.next(), Some((NODE, 0)));
        assert_eq!(turns.next(), Some((NodeId(8), 9)));
        assert_eq!(turns.next(), None, "somebody is at each");
        turns.left(NODE);
        assert_eq!(turns.next(), Some((NODE, 1)));
        (3..9).for_each(|number| turns.join(NODE, number));
        turns.take_those(NODE, |number| number % 2 == 1);
        let rest: Vec<usize> = std::iter::from_fn(|| turns.take_next(NODE)).collect();
        assert_eq!(rest, [2, 4, 6, 8]);
        turns.left(NODE);
        turns.left(NodeId(8));
        assert!(turns.turns.is_empty() && !turns.are_ready());
    }

    #[test]
    fn whoever_has_to_wait_stays_the_first() {
        let mut turns = NodeTurns::default();
        turns.join(NODE, 0);
        for wait in [LineWait::Page, LineWait::Memory, LineWait::Reads, LineWait::Gate] {
            assert_eq!(turns.next(), Some((NODE, 0)));
            turns.step_back(NODE, 0, wait);
            turns.join(NODE, 1);
            assert_eq!(turns.next(), None);
            turns.begin_round();
            turns.open_gate();
            if !turns.are_ready() && !turns.feed() {
                turns.unpark(1);
            }
        }
        assert_eq!(turns.next(), Some((NODE, 0)));
    }

    #[test]
    fn all_that_stand_in_line_are_found() {
        let mut turns = NodeTurns::default();
        (0..8).for_each(|number| turns.join(NodeId(number / 2), number as usize));
        turns.next();
        let (busy, first) = turns.next().unwrap();
        turns.step_back(busy, first, LineWait::Page);
        let (parked, first) = turns.next().unwrap();
        turns.step_back(parked, first, LineWait::Reads);
        let mut found: Vec<usize> = std::iter::from_fn(|| turns.take_any()).collect();
        found.sort_unstable();
        assert_eq!(found, [2, 3, 4, 5, 6, 7], "1 waits for who is at its node");
        turns.left(NodeId(0));
        assert_eq!(turns.take_any(), Some(1));
        assert!(turns.turns.is_empty());
    }
}
