//! Groups: operations of a session that wait in line at one node go to the drive with one command. Gets go with gets, and changes that the drive
//! decides ([`condition`]) go together.
//!
//! 1. A group may have several operations of one key, in the order of their submission. If one of them is not decided, the later ones of its key
//!    wait behind it, also within the group.
//! 2. The first operation of a group is at the node. It has the numbers of the others, which are in no line.
//! 3. A put without room ends a group: the operations behind it were not tried, and go back to the front of the line.

use super::Waits;
use super::changes::{answer_change, answer_refused, condition, large_value, with_record};
use super::context::{Context, OrderedMeans};
use super::extensions::read_extension;
use super::fetches::read_error;
use super::in_hand::{GroupInHand, GroupNumbers, OpInHand, Ops};
use super::looks::{NodeFind, answer_of, damaged, deleted_by, failed_at, founds_in, is_live, must_ask};
use super::merges::Merges;
use super::node_turns::NodeTurns;
use super::op_state::{FetchedPage, OpStage, OrderedOp, Shown, Step};
use super::scratch::{GET_PARAMETERS_MAX, PUT_PARAMETERS_MAX};
use crate::ordered::cache::Installed;
use crate::ordered::cache::durability_ticket::DurabilityTicket;
use crate::ordered::cache::page_meta::{Durability, PageMeta, PageUse};
use crate::ordered::node_table::{HomedNode, NodeHome, NodeId};
use std::sync::Arc;
use tapetum_base::keyspace::KeyspaceId;
use tapetum_base::log::Sync;
use tapetum_base::request::Request;
use tapetum_base::session::session_core::SessionCore;
use tapetum_drive::programs::OUTPUT_SHORT;
use tapetum_drive::programs::node::{
    ARGUMENTS_BYTES, NODE_BARE_REQUESTS_MAX, NODE_REQUESTS_MAX, PutOutcome, PutResult, put_request_bytes,
};
use tapetum_drive::{Completion, Lease, LocalBuffer, Returned};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum GroupKind {
    Gets,
    /// Removals, and puts of values that a node can hold, whose conditions the drive decides.
    Changes,
}

impl GroupKind {
    /// The most bytes of requests, and the most requests.
    fn limits(self) -> (usize, usize) {
        match self {
            GroupKind::Gets => (GET_PARAMETERS_MAX - ARGUMENTS_BYTES, NODE_REQUESTS_MAX),
            GroupKind::Changes => (PUT_PARAMETERS_MAX - ARGUMENTS_BYTES, NODE_BARE_REQUESTS_MAX),
        }
    }

    /// Bytes of an operation's request, if it is of this kind.
    pub fn bytes(self, op: &OrderedOp) -> Option<usize> {
        match (self, op.request.borrow()) {
            (GroupKind::Gets, Request::Get { key }) => Some(size_of::<u16>() + key.len()),
            (GroupKind::Changes, request) if !op.kept.looks_first && condition(&request).is_some() => {
                let is_plain = op.kept.change.is_none() && op.kept.extension.is_none() && large_value(op).is_none();
                is_plain.then(|| with_record(op, put_request_bytes))
            }
            _ => None,
        }
    }
}

/// The room that is left in a group.
struct GroupRoom {
    kind: GroupKind,
    keyspace: KeyspaceId,
    bytes: usize,
    count: usize,
    /// Bytes of records of further keys for which the node has room.
    node_bytes: usize,
}

impl GroupRoom {
    /// The room behind the first operation of a group, if that may have others.
    fn behind(op: &OrderedOp, kind: GroupKind, node_bytes: usize) -> Option<GroupRoom> {
        let (bytes, count) = kind.limits();
        let (keyspace, own_bytes) = (op.keyspace.id(), kind.bytes(op)?);
        let node_bytes = node_bytes.saturating_sub(own_bytes);
        Some(GroupRoom { kind, keyspace, bytes: bytes.checked_sub(own_bytes)?, count: count - 1, node_bytes })
    }

    /// Adds an operation of another key if it may go along. Returns whether it does.
    fn takes_key(&mut self, op: &OrderedOp) -> bool {
        let left = self.kind.bytes(op).and_then(|bytes| self.node_bytes.checked_sub(bytes));
        let takes = left.is_some() && self.takes(op);
        if let (Some(left), true) = (left, takes) {
            self.node_bytes = left;
        }
        takes
    }

    /// Adds an operation if it may go along. Returns whether it does.
    fn takes(&mut self, op: &OrderedOp) -> bool {
        let left = self.kind.bytes(op).and_then(|bytes| self.bytes.checked_sub(bytes));
        match left.filter(|_| self.count > 0 && self.keyspace == op.keyspace.id()) {
            Some(left) => {
                (self.bytes, self.count) = (left, self.count - 1);
                true
            }
            None => false,
        }
    }
}

/// Takes operations that may go along out of the line, as far as the node has room for their keys' records, and those of the same keys behind them.
pub(super) fn gather(
    turns: &mut NodeTurns,
    op: &mut OpInHand<'_>,
    (node, node_bytes): (NodeId, usize),
    kind: GroupKind,
) -> Vec<usize> {
    let mut group = Vec::new();
    let (op, ops) = op.with_others();
    let Some(mut room) = GroupRoom::behind(op, kind, node_bytes) else { return group };
    turns.take_those(node, |number| {
        let other = ops.get_mut(number).filter(|other| room.takes_key(other));
        let Some(other) = other else { return false };
        other.kept.stage = OpStage::GoesAlong;
        group.push(number);
        true
    });
    let mut behind = op.next_of_key();
    for place in 0..=group.len() {
        while let Some(number) = behind {
            let Some(other) = ops.get(number) else { break };
            if ops.is_behind_deletion(other) || !room.takes(other) {
                break;
            }
            behind = other.next_of_key();
            group.push(number);
            let other = ops.get_mut(number).expect("it was just looked at");
            (other.kept.stage, other.kept.tree) = (OpStage::GoesAlong, op.kept.tree.clone());
        }
        behind = group.get(place).and_then(|number| ops.get(*number)?.next_of_key());
    }
    group
}

/// The results of a program for the gets of a group, on a cached page or one that was read from flash.
pub(super) struct GetAnswers {
    founds: std::vec::IntoIter<Option<NodeFind>>,
    durability: Durability,
    node: NodeId,
    is_from_flash: bool,
}

impl GetAnswers {
    /// `None`: the program did not run.
    pub fn of(
        (cx, core): (&Context, &SessionCore),
        node: NodeId,
        home: Option<NodeHome>,
        scratch: &LocalBuffer,
        completion: &Completion,
    ) -> Option<GetAnswers> {
        let founds = completion.is_success().then(|| founds_in(core, scratch, completion.result[0]))?;
        founds.first()?.as_ref()?;
        // If the node moved while its page was read, the page was the node when these gets had begun: its answers are right, and durable.
        let durability = match home {
            Some(_) => Durability::OF_FLASH,
            None => cx.state.cache.with(node, |meta| meta.durability()).expect("a page that is taken stays"),
        };
        Some(GetAnswers { founds: founds.into_iter(), durability, node, is_from_flash: home.is_some() })
    }

    /// Whether the first get must look at the page again once it is cached, as its value is in an extension. The others follow.
    pub fn first_looks_again(&mut self, core: &SessionCore, first: &OrderedOp) -> bool {
        let looks_again = self.is_from_flash
            && matches!(self.founds.as_slice(), [Some(NodeFind::InExtension(head, _)), ..] if is_live(core, first, head));
        looks_again && self.founds.next().is_some()
    }

    /// The step of the next get. `None`: it must look again, because the output was full, it may not read an extension now, or an earlier one of its
    /// key goes first.
    pub fn step(&mut self, (cx, core): OrderedMeans<'_>, op: &mut OpInHand<'_>, page: &LocalBuffer) -> Option<Step> {
        let found = self.founds.next().filter(|_| op.is_first())?;
        let found = match found {
            None => return Some(Step::Fail(damaged(self.node))),
            Some(NodeFind::OutsideFences) => return Some(Step::Again),
            Some(found) => found,
        };
        if let Some(value_bytes) = must_ask(core, op, &found) {
            return Some(Step::Ask(value_bytes));
        }
        if let NodeFind::InExtension(head, reference) = found
            && is_live(core, op, &head)
        {
            if self.is_from_flash || !cx.has_credit(core) {
                return None;
            }
            op.kept.ticket = self.durability.wait_for(Some(head.stamp));
            return Some(read_extension((cx, core), op, head, reference));
        }
        let outcome = answer_of(core, op, &found, page);
        // An expired item hides the durable one, as a removal does.
        let ticket = self.durability.wait_for(found.head().map(|head| head.stamp));
        let deleted_by = found.head().map_or(0, |head| deleted_by(core, op, head));
        Some(Step::Answer(Shown { ticket, deleted_by, read_flash: self.is_from_flash }, outcome))
    }
}

/// The results of a program for the changes of a group.
pub(super) struct ChangeAnswers {
    node: NodeId,
    results: [PutResult; NODE_BARE_REQUESTS_MAX],
    place: usize,
    /// The member without room. It stays at the node, whose page must get some.
    pub without_room: Option<usize>,
    /// The ticket for changes that were made; `of_page` is that for refused ones.
    ticket: Option<Arc<DurabilityTicket>>,
    of_page: Option<Arc<DurabilityTicket>>,
}

impl ChangeAnswers {
    /// Notes the changes that were made. `None`: the page's content is undefined.
    pub fn of(
        cx: &mut Context,
        merges: &mut Merges,
        node: NodeId,
        group: &GroupInHand<'_>,
        completion: &Completion,
    ) -> Option<ChangeAnswers> {
        let results = PutOutcome::of_results(completion.result, group.count());
        let (results, used_bytes) = results.filter(|_| completion.is_success())?;
        let ticket = note_changes(cx, node, group, &results);
        let is_refused = results[..group.count()].contains(&PutResult::Refused);
        let of_page = is_refused.then(|| cx.state.cache.with(node, |meta| meta.wait_for(meta.changed_stamp)));
        let of_page = of_page.flatten().flatten();
        if let Some((op, _)) = group.iter().zip(results).find(|(_, result)| result.took_effect()) {
            merges.note_used(cx, op.keyspace.id(), &op.request.key, node, used_bytes);
        }
        Some(ChangeAnswers { node, results, place: 0, without_room: None, ticket, of_page })
    }

    /// The step of the next change. `None`: it was not made yet.
    pub fn step(&mut self, core: &mut SessionCore, op: &OpInHand<'_>) -> Option<Step> {
        let result = self.results[self.place];
        self.place += 1;
        match result {
            PutResult::Stored | PutResult::Replaced | PutResult::Removed => {
                Some(answer_change(core, op, self.ticket.clone(), result))
            }
            PutResult::Refused => Some(answer_refused(core, op, self.of_page.clone())),
            // An earlier one of the same key goes first.
            _ if !op.is_first() => None,
            PutResult::NotTried => None,
            PutResult::NoRoom => {
                self.without_room = Some(op.number());
                Some(Step::AtNode)
            }
            PutResult::OutsideFences => Some(Step::Again),
            _ => Some(Step::Fail(damaged(self.node))),
        }
    }
}

/// Notes changes in the cache and the write-back. Returns the ticket to wait for.
fn note_changes(
    cx: &Context,
    node: NodeId,
    group: &GroupInHand<'_>,
    results: &[PutResult],
) -> Option<Arc<DurabilityTicket>> {
    let tree = group.iter().next().and_then(|op| op.kept.tree.as_ref()).expect("it was attempted");
    let changes = |result: &PutResult| matches!(result, PutResult::Stored | PutResult::Replaced | PutResult::Removed);
    let all = || group.iter().zip(results).map(|(op, result)| (op.kept.stamp, *result));
    let made = || all().filter(|(_, result)| changes(result));
    made().for_each(|(_, result)| tree.note(result));
    let newest = made().map(|(stamp, _)| stamp).max()?;
    let removed = made().filter(|(_, result)| *result == PutResult::Removed).map(|(stamp, _)| stamp).max();
    let waits = cx.state.base.log.sync() == Sync::Always;
    let told = cx.state.cache.with(node, |meta| {
        meta.changed(newest, false);
        removed.into_iter().for_each(|stamp| meta.changed(stamp, true));
        (waits.then(|| meta.ticket()), meta.list())
    });
    let (ticket, is_new) = told.expect("a page that is taken stays");
    if is_new {
        cx.state.write_back.list(tree, node);
    }
    ticket
}

impl Waits {
    /// Carries out the step of each member of a group. Members for which `step` returns `None` go back to the front of the line at their node.
    fn advance_group(
        &mut self,
        (cx, core): OrderedMeans<'_>,
        mut group: GroupInHand<'_>,
        node: NodeId,
        mut step: impl FnMut(&mut Context, &mut SessionCore, &mut OpInHand<'_>) -> Option<Step>,
    ) {
        let mut left = Vec::new();
        while let Some(mut op) = group.next() {
            match step(cx, core, &mut op) {
                Some(step) => self.advance((cx, core), op, None, step),
                None => left.extend(op.back_in_line()),
            }
        }
        left.into_iter().rev().for_each(|number| self.turns.put_in_front(node, number));
        cx.members = group.finish();
    }

    /// Called when a program has looked for the keys of gets, in a cached page or in one that was read from this home.
    pub(super) fn gets_looked(
        &mut self,
        (cx, core): OrderedMeans<'_>,
        ops: &mut Ops,
        numbers: GroupNumbers<'_>,
        node: NodeId,
        home: Option<NodeHome>,
        Returned { completion, lease }: Returned,
    ) {
        let Lease::Buffers([page, scratch]) = lease else { unreachable!("it was lent both") };
        let mut group = GroupInHand::take(ops, numbers, std::mem::take(&mut cx.members));
        let Some(mut answers) = GetAnswers::of((cx, core), node, home, &scratch, &completion) else {
            cx.give_scratch(core, scratch);
            let error = match home {
                None => {
                    cx.state.cache.give_back(node, page, |_| ());
                    Some(failed_at(node, completion.status))
                }
                Some(home) => {
                    self.fetches.end(cx, page);
                    // If another image is in the slot, the node has moved.
                    let is_current = cx.state.cache.is_current(node, home);
                    is_current.then(|| read_error(core, HomedNode { node, home }, &completion))
                }
            };
            self.advance_group((cx, core), group, node, |_, _, _| error.clone().map(Step::Fail));
            return self.leave(cx, node);
        };
        let keyspace = group.iter().next().map_or(0, |op| op.keyspace.id().0);
        let looks_again = group.iter().next().is_some_and(|first| answers.first_looks_again(core, first));
        if looks_again {
            drop(group.next());
        }
        self.advance_group((cx, core), group, node, |cx, core, op| answers.step((cx, core), op, &page));
        match home {
            None => cx.state.cache.give_back(node, page, |_| ()),
            Some(home) if looks_again => {
                let mut op = OpInHand::take(ops, numbers.first);
                op.kept.scratch = Some(scratch);
                cx.again.tries = true;
                let fetched = FetchedPage { node, home, page };
                return self.advance((cx, core), op, Some(node), Step::AwaitPlace(fetched));
            }
            Some(home) => match cx.state.cache.install(node, home, page, PageMeta::new(keyspace, PageUse::ByKey)) {
                Installed::Done(page) | Installed::NoRoom(page) | Installed::Stale(page) => self.fetches.end(cx, page),
            },
        }
        cx.give_scratch(core, scratch);
        self.leave(cx, node);
    }

    /// Called when a program has made the changes of a group, or some of them.
    pub(super) fn group_changed(
        &mut self,
        (cx, core): OrderedMeans<'_>,
        ops: &mut Ops,
        numbers: GroupNumbers<'_>,
        node: NodeId,
        Returned { completion, lease }: Returned,
    ) {
        let Lease::Buffers([page, scratch]) = lease else { unreachable!("it was lent both") };
        cx.give_scratch(core, scratch);
        let mut group = GroupInHand::take(ops, numbers, std::mem::take(&mut cx.members));
        if completion.status == OUTPUT_SHORT
            && let Some(op) = group.get_mut(completion.result[1] as usize)
        {
            // Nothing was changed: this operation's record names an extension, which must be known first.
            op.kept.looks_first = true;
            cx.state.cache.give_back(node, page, |_| ());
            self.advance_group((cx, core), group, node, |_, _, _| None);
            return self.leave(cx, node);
        }
        let Some(mut answers) = ChangeAnswers::of(cx, &mut self.merges, node, &group, &completion) else {
            let error = || failed_at(node, completion.status);
            core.base.log.poison("a change of a data node", error());
            cx.state.cache.give_back(node, page, |meta| meta.is_lost = true);
            self.advance_group((cx, core), group, node, |_, _, _| Some(Step::Fail(error())));
            return self.leave(cx, node);
        };
        self.advance_group((cx, core), group, node, |_, core, op| answers.step(core, op));
        match answers.without_room {
            Some(number) => {
                let op = OpInHand::take(ops, number);
                self.advance((cx, core), op, Some(node), Step::MakeRoom(page));
            }
            None => {
                cx.state.cache.give_back(node, page, |_| ());
                self.leave(cx, node);
            }
        }
    }
}
