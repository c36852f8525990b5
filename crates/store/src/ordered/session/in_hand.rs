//! Operations in hand: taken out of their slots while a step works on them. Dropping one puts it back.
//!
//! An operation is either in its slot in [`Operations`] or in hand. It ends only by [`OpInHand::forget`].
//!
//! Threads: the session's.

use super::op_state::{OpStage, OrderedOp, OrderedOpState};
use std::ops::{Deref, DerefMut};
use tapetum_base::session::order::Operations;

pub(super) type Ops = Operations<OrderedOpState>;

/// See the [module](self).
pub(super) struct OpInHand<'o> {
    ops: &'o mut Ops,
    number: usize,
    /// `None` when the operation does not go back to its slot.
    op: Option<Box<OrderedOp>>,
}

impl<'o> OpInHand<'o> {
    pub fn take(ops: &'o mut Ops, number: usize) -> OpInHand<'o> {
        let op = Some(ops.take(number));
        OpInHand { ops, number, op }
    }

    /// Takes the first operation that is waiting for an attempt.
    pub fn take_waiting(ops: &'o mut Ops) -> Option<OpInHand<'o>> {
        let (number, op) = ops.take_waiting()?;
        Some(OpInHand { ops, number, op: Some(op) })
    }

    pub fn number(&self) -> usize {
        self.number
    }

    /// All other operations of the session.
    pub fn others(&mut self) -> &mut Ops {
        self.ops
    }

    /// The operation, and all others.
    pub fn with_others(&mut self) -> (&mut OrderedOp, &mut Ops) {
        (self.op.as_deref_mut().expect("it is in hand"), self.ops)
    }

    /// Whether the operation is the first of its key. Later ones wait until it is decided.
    pub fn is_first(&self) -> bool {
        self.ops.is_first(self.number, self)
    }

    pub fn is_behind_deletion(&self) -> bool {
        self.ops.is_behind_deletion(self)
    }

    /// Queues the operation for another attempt, behind the waiting ones.
    pub fn attempt_again(mut self) {
        let op = self.op.take().expect("it is in hand");
        self.ops.wait_again(self.number, op);
    }

    /// Lets the operation ask. It has no place in the order until it is allowed.
    pub fn step_aside(mut self) {
        let op = self.op.take().expect("it is in hand");
        self.ops.step_aside(self.number, op);
    }

    /// Ends the operation, which was decided and answered. The next one of its key may go on.
    pub fn forget(mut self) {
        let op = self.op.take().expect("it is in hand");
        self.ops.forget(self.number, op);
    }

    /// The operation was not decided at its node. Returns its number if it must go back to the line there. If it is not the first of its key, it
    /// follows the first one.
    pub fn back_in_line(mut self) -> Option<usize> {
        let is_first = self.is_first();
        self.kept.stage = if is_first { OpStage::InLine } else { OpStage::Begins };
        is_first.then_some(self.number)
    }
}

impl Deref for OpInHand<'_> {
    type Target = OrderedOp;

    fn deref(&self) -> &OrderedOp {
        self.op.as_deref().expect("it is in hand")
    }
}

impl DerefMut for OpInHand<'_> {
    fn deref_mut(&mut self) -> &mut OrderedOp {
        self.op.as_deref_mut().expect("it is in hand")
    }
}

impl Drop for OpInHand<'_> {
    fn drop(&mut self) {
        if let Some(op) = self.op.take() {
            self.ops.put(self.number, op);
        }
    }
}

/// The operations of a group, in their order. Those that were taken have left `None`.
pub(super) type Members = Vec<(usize, Option<Box<OrderedOp>>)>;

/// The numbers of the operations of a group: the first, which has the command, and those that went along.
#[derive(Clone, Copy)]
pub(super) struct GroupNumbers<'a> {
    pub first: usize,
    pub others: &'a [usize],
}

/// A group in hand: the first operation of a command and those that went along. While a member is here, nobody else works on it.
pub(super) struct GroupInHand<'o> {
    ops: &'o mut Ops,
    members: Members,
    /// The index of the first member in hand.
    at: usize,
}

impl<'o> GroupInHand<'o> {
    /// Takes the members; `room` is an empty vector for them.
    pub fn take(ops: &'o mut Ops, numbers: GroupNumbers<'_>, mut room: Members) -> GroupInHand<'o> {
        let all = std::iter::once(numbers.first).chain(numbers.others.iter().copied());
        room.extend(all.map(|number| (number, Some(ops.take(number)))));
        GroupInHand { ops, members: room, at: 0 }
    }

    /// Takes the next member, to work on it alone.
    pub fn next(&mut self) -> Option<OpInHand<'_>> {
        let (number, op) = self.members.get_mut(self.at)?;
        self.at += 1;
        Some(OpInHand { number: *number, op: op.take(), ops: self.ops })
    }

    /// The members that nobody took yet, in their order.
    pub fn iter(&self) -> impl Iterator<Item = &OrderedOp> {
        self.members[self.at..].iter().filter_map(|(_, op)| op.as_deref())
    }

    pub fn count(&self) -> usize {
        self.members.len() - self.at
    }

    pub fn get_mut(&mut self, place: usize) -> Option<&mut OrderedOp> {
        self.members.get_mut(self.at + place)?.1.as_deref_mut()
    }

    /// Puts the remaining members back. Returns the vector for the next group.
    pub fn finish(mut self) -> Members {
        self.put_back();
        std::mem::take(&mut self.members)
    }

    fn put_back(&mut self) {
        for (number, op) in self.members.drain(..) {
            op.into_iter().for_each(|op| self.ops.put(number, op));
        }
    }
}

impl Drop for GroupInHand<'_> {
    fn drop(&mut self) {
        self.put_back();
    }
}
