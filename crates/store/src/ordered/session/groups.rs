//! Groups: operations of a session that stand in line at one node go to the drive with one command, gets with gets, and changes that the
//! drive decides ([`condition`]) with others.
//!
//! 1. Of a key, those that were submitted one behind the other may all be in a group, in their order. One that is not decided keeps the
//!    later ones of its key behind it, in the group too.
//! 2. The first of a group is at the node; it has the numbers of the others, which are in no line.
//! 3. A put that has no room ends a group: those behind it were not tried, and are the first of the line again.

use super::OrderedSession;
use super::changes::{condition, large_value, with_record};
use super::fetches::read_error;
use super::looks::{Found, damaged, deleted_by, founds_in, is_live, must_ask};
use super::op_state::{OpStage, OrderedOp, Shown};
use super::scratch::{GET_PARAMETERS_MAX, PUT_PARAMETERS_MAX};
use crate::ordered::cache::Installed;
use crate::ordered::cache::page_meta::{Durability, PageMeta, PageUse};
use crate::ordered::node_table::{NodeHome, NodeId};
use tapetum_base::error::Error;
use tapetum_base::keyspace::KeyspaceId;
use tapetum_base::keyspace::request::Request;
use tapetum_base::session::session_core::SessionCore;
use tapetum_drive::programs::node::{ARGUMENTS_BYTES, NODE_BARE_REQUESTS_MAX, NODE_REQUESTS_MAX, put_request_bytes};
use tapetum_drive::{Completion, Lease, LocalBuffer, Returned};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum GroupKind {
    Gets,
    /// Removals, and puts of values that a node takes, whose conditions the drive looks at.
    Changes,
}

impl GroupKind {
    /// Bytes of requests, and how many, at most.
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

/// The operations of a group, in their order.
pub(super) type Members = Vec<(usize, Box<OrderedOp>)>;

/// What may still go into a group.
struct GroupRoom {
    kind: GroupKind,
    keyspace: KeyspaceId,
    bytes: usize,
    count: usize,
}

impl GroupRoom {
    /// Behind the first operation of a group, if that may have others.
    fn behind(op: &OrderedOp, kind: GroupKind) -> Option<GroupRoom> {
        let (bytes, count) = kind.limits();
        let keyspace = op.keyspace.id();
        Some(GroupRoom { kind, keyspace, bytes: bytes.checked_sub(kind.bytes(op)?)?, count: count - 1 })
    }

    /// Whether an operation goes along; it does then.
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

impl OrderedSession {
    /// Takes those that may go with an operation at a node out of the line, and those of the same keys behind them.
    pub(super) fn gather(&mut self, op: &OrderedOp, node: NodeId, kind: GroupKind) -> Vec<usize> {
        let mut group = Vec::new();
        let Some(mut room) = GroupRoom::behind(op, kind) else { return group };
        let OrderedSession { ops, turns, .. } = self;
        turns.take_those(node, |number| {
            let is_taken = ops.get(number).is_some_and(|other| room.takes(other));
            group.extend(is_taken.then_some(number));
            is_taken
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
                ops.get_mut(number).expect("it was just looked at").kept.tree = op.kept.tree.clone();
            }
            behind = group.get(place).and_then(|number| ops.get(*number)?.next_of_key());
        }
        group
    }

    /// A group and its first, to be worked on.
    pub(super) fn take_members(&mut self, first: (usize, Box<OrderedOp>), group: Vec<usize>) -> Members {
        let mut members = std::mem::take(&mut self.reused.members);
        members.push(first);
        members.extend(group.into_iter().map(|number| (number, self.ops.take(number))));
        members
    }

    /// Operations that were not decided are the first in line at their node again.
    pub(super) fn put_members_back(&mut self, members: Members, node: NodeId) {
        for (number, op) in members.into_iter().rev() {
            if self.ops.is_first(number, &op) {
                self.turns.put_in_front(node, number);
            }
            self.ops.put(number, op);
        }
    }

    /// All of a group end with an error; none of it is decided.
    pub(super) fn fail_members(&mut self, core: &mut SessionCore, members: Members, error: &Error) {
        for member in members {
            self.fail(core, member, error.clone());
        }
    }

    /// A program has looked for the keys of gets, in a cached page or in one that was read from this home.
    pub(super) fn gets_looked(
        &mut self,
        core: &mut SessionCore,
        (number, mut op): (usize, Box<OrderedOp>),
        (node, home): (NodeId, Option<NodeHome>),
        Returned { completion, lease }: Returned,
    ) {
        let Lease::Buffers([page, scratch]) = lease else { unreachable!("it was lent both") };
        let group = std::mem::take(&mut op.kept.group);
        let mut founds = match completion.is_success() {
            true => founds_in(core, &scratch, completion.result[0]),
            false => Vec::new(),
        };
        let keyspace = op.keyspace.id().0;
        let mut members = self.take_members((number, op), group);
        if founds.first().is_none_or(Option::is_none) {
            self.give_scratch(core, scratch);
            return self.gets_failed(core, (members, page), (node, home), &completion);
        }
        // A page that moved on while it was read was the node when these gets had begun: its answers are right, and durable.
        let durability = match home {
            Some(_) => Durability::OF_FLASH,
            None => self.state.cache.with(node, |meta| meta.durability()).expect("a page that is taken stays"),
        };
        let mut first = None;
        if home.is_some()
            && let Some(Found::InExtension(head, _)) = &founds[0]
            && is_live(core, &members[0].1, head)
        {
            // It looks at the page again when that is in the cache.
            first = Some(members.remove(0));
            founds.remove(0);
        }
        let mut left = Members::new();
        for (place, (number, op)) in members.drain(..).enumerate() {
            let may_go_on = self.ops.is_first(number, &op);
            match founds.get_mut(place).map(Option::take) {
                Some(Some(found)) if may_go_on => {
                    let of_page = (&page, &durability, home.is_some());
                    left.extend(self.get_looked(core, (number, op), &found, of_page));
                }
                Some(None) if may_go_on => self.fail(core, (number, op), damaged(node)),
                // The output was full, or one of the same key goes first.
                _ => left.push((number, op)),
            }
        }
        self.reused.members = members;
        self.put_members_back(left, node);
        match (home, first) {
            (None, _) => self.state.cache.give_back(node, page, |_| ()),
            (Some(home), Some((number, mut op))) => {
                op.kept.stage = OpStage::Fetched(node, home, page);
                op.kept.scratch = Some(scratch);
                self.ops.put(number, op);
                return self.await_place(number);
            }
            (Some(home), None) => {
                match self.state.cache.install(node, home, page, PageMeta::new(keyspace, PageUse::ByKey)) {
                    Installed::Done(page) | Installed::NoRoom(page) | Installed::Stale(page) => self.end_fetch(page),
                }
            }
        }
        self.give_scratch(core, scratch);
    }

    /// Goes on with a get whose key a program has looked for; it comes back if it is to look again.
    fn get_looked(
        &mut self,
        core: &mut SessionCore,
        (number, mut op): (usize, Box<OrderedOp>),
        found: &Found,
        (page, durability, is_from_flash): (&LocalBuffer, &Durability, bool),
    ) -> Option<(usize, Box<OrderedOp>)> {
        if matches!(found, Found::OutsideFences) {
            self.try_again(number, op);
            return None;
        }
        if let Some(value_bytes) = must_ask(core, &op, found) {
            self.ask(core, (number, op), value_bytes);
            return None;
        }
        if let Found::InExtension(head, reference) = found
            && is_live(core, &op, head)
        {
            if is_from_flash || !self.has_credit(core) {
                return Some((number, op));
            }
            op.kept.ticket = durability.wait_for(Some(head.stamp));
            self.read_extension(core, (number, op), (*head, *reference));
            return None;
        }
        let outcome = self.answer_of(core, &op, found, page);
        // An item that has expired hides the one that is durable, as a removal does.
        let ticket = durability.wait_for(found.head().map(|head| head.stamp));
        let deleted_by = found.head().map_or(0, |head| deleted_by(core, &op, head));
        self.answer(core, op.token, Shown { ticket, deleted_by, read_flash: is_from_flash }, outcome);
        self.ops.forget(number, op);
        None
    }

    /// A program did not look for the keys of gets.
    fn gets_failed(
        &mut self,
        core: &mut SessionCore,
        (members, page): (Members, LocalBuffer),
        (node, home): (NodeId, Option<NodeHome>),
        completion: &Completion,
    ) {
        let Some(home) = home else {
            self.state.cache.give_back(node, page, |_| ());
            return self.fail_members(core, members, &damaged(node));
        };
        self.end_fetch(page);
        match self.state.cache.is_current(node, home) {
            true => {
                let error = read_error(core, (node, home), completion);
                self.fail_members(core, members, &error);
            }
            // Another image is in the slot: the node has moved.
            false => self.put_members_back(members, node),
        }
    }
}
