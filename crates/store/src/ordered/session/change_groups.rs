//! Changes of one node that go to the drive with one command: made in their order, each under its own stamp, if its condition holds.

use super::changes::{condition_of, with_record};
use super::groups::{GroupKind, Members};
use super::looks::damaged;
use super::op_state::{OpStage, OrderedOp};
use super::scratch;
use super::{OrderedSession, Reused};
use crate::ordered::cache::durability_ticket::DurabilityTicket;
use crate::ordered::node_table::NodeId;
use crate::ordered::tree::OrderedTree;
use std::sync::Arc;
use tapetum_base::log::Sync;
use tapetum_base::session::session_core::SessionCore;
use tapetum_drive::programs::OUTPUT_SHORT;
use tapetum_drive::programs::node::{NodeFlags, PutOutcome, PutRequests, PutResult};
use tapetum_drive::{Lease, LocalBuffer, Purpose, Returned};

impl OrderedSession {
    /// Sends the program that makes a change, and those that may go along.
    pub(super) fn change_with_others(
        &mut self,
        core: &mut SessionCore,
        (number, mut op): (usize, Box<OrderedOp>),
        node: NodeId,
        page: LocalBuffer,
    ) {
        let group = match self.may_change(core, &op, node) {
            Ok(()) if !Self::is_full(&op) => self.gather(&op, node, GroupKind::Changes),
            _ => Vec::new(),
        };
        if group.is_empty() {
            return self.change(core, (number, op), node, page);
        }
        let kept = op.kept.scratch.take();
        let Some(mut scratch) = kept.or_else(|| self.take_scratch(core)) else {
            self.state.cache.give_back(node, page, |_| ());
            let members = self.take_members((number, op), group);
            return self.starve_members(members, node);
        };
        let arguments = Self::change_arguments(core, &op, NodeFlags::IN_PLACE);
        let OrderedSession { ops, reused: Reused { parameters, .. }, .. } = self;
        let mut requests = PutRequests::new(&arguments, parameters);
        let mut push = |op: &mut OrderedOp| {
            op.kept.stamp = core.base.log.give_stamp();
            with_record(op, |record| requests.push(condition_of(op), record));
        };
        push(&mut op);
        group.iter().for_each(|number| push(ops.get_mut(*number).expect("it is kept")));
        let on = (&core.queue, Purpose::Put);
        let operation = scratch::change(on, self.state.programs.put, &self.reused.parameters, (&page, &mut scratch));
        (op.kept.stage, op.kept.group) = (OpStage::Changes(node), group);
        self.ops.put(number, op);
        self.pages_taken += 1;
        self.submit(core, (number as u64, Purpose::Put), operation, Lease::Buffers([page, scratch]));
    }

    /// There is no memory for a group: it is the first in line, and goes on when there is some.
    fn starve_members(&mut self, mut members: Members, node: NodeId) {
        let first = members.remove(0);
        self.put_members_back(members, node);
        self.wait_for_memory(first, node);
    }

    /// A program has made the changes of a group, or some of them.
    pub(super) fn group_changed(
        &mut self,
        core: &mut SessionCore,
        (number, mut op): (usize, Box<OrderedOp>),
        node: NodeId,
        Returned { completion, lease }: Returned,
    ) {
        let Lease::Buffers([page, scratch]) = lease else { unreachable!("it was lent both") };
        self.give_scratch(core, scratch);
        let tree = op.kept.tree.clone().expect("it was attempted");
        let group = std::mem::take(&mut op.kept.group);
        let mut members = self.take_members((number, op), group);
        if completion.status == OUTPUT_SHORT
            && let Some((_, op)) = members.get_mut(completion.result[1] as usize)
        {
            // Nothing was changed: this one's record names an extension, and that is to be known.
            op.kept.looks_first = true;
            self.state.cache.give_back(node, page, |_| ());
            return self.put_members_back(members, node);
        }
        let results = PutOutcome::of_results(completion.result, members.len());
        let Some((results, used_bytes)) = results.filter(|_| completion.is_success()) else {
            // What is left of the page nobody knows.
            core.base.log.poison("a change of a data node", damaged(node));
            self.state.cache.give_back(node, page, |_| ());
            return self.fail_members(core, members, &damaged(node));
        };
        let ticket = self.note_changes(&tree, (node, &members), &results);
        let is_refused = results[..members.len()].contains(&PutResult::Refused);
        let of_page = is_refused.then(|| self.state.cache.with(node, |meta| meta.wait_for(meta.changed_stamp)));
        let of_page = of_page.flatten().flatten();
        if let Some(((_, op), _)) = members.iter().zip(results).find(|(_, result)| result.took_effect()) {
            self.note_used(op.keyspace.id(), &op.request.key, (node, used_bytes));
        }
        let (mut without_room, mut left) = (None, Members::new());
        for ((number, op), result) in members.drain(..).zip(results) {
            match result {
                PutResult::Stored | PutResult::Replaced | PutResult::Removed => {
                    self.answer_change(core, &op, ticket.clone(), result);
                    self.ops.forget(number, op);
                }
                PutResult::Refused => {
                    self.answer_refused(core, &op, of_page.clone());
                    self.ops.forget(number, op);
                }
                // One of the same key goes first.
                _ if !self.ops.is_first(number, &op) => left.push((number, op)),
                PutResult::NotTried => left.push((number, op)),
                PutResult::NoRoom => without_room = Some((number, op)),
                PutResult::OutsideFences => self.try_again(number, op),
                _ => self.fail(core, (number, op), damaged(node)),
            }
        }
        self.reused.members = members;
        self.put_members_back(left, node);
        match without_room {
            Some(member) => self.make_room(core, member, node, page),
            None => self.state.cache.give_back(node, page, |_| ()),
        }
    }

    /// Tells the cache and the write-back of changes that were made. The ticket to wait for.
    fn note_changes(
        &self,
        tree: &Arc<OrderedTree>,
        (node, members): (NodeId, &Members),
        results: &[PutResult],
    ) -> Option<Arc<DurabilityTicket>> {
        let changes =
            |result: &PutResult| matches!(result, PutResult::Stored | PutResult::Replaced | PutResult::Removed);
        let all = || members.iter().zip(results).map(|((_, op), result)| (op.kept.stamp, *result));
        let made = || all().filter(|(_, result)| changes(result));
        made().for_each(|(_, result)| tree.note(result));
        let newest = made().map(|(stamp, _)| stamp).max()?;
        let removed = made().filter(|(_, result)| *result == PutResult::Removed).map(|(stamp, _)| stamp).max();
        let waits = self.state.base.log.sync() == Sync::Always;
        let told = self.state.cache.with(node, |meta| {
            meta.changed(newest, false);
            removed.into_iter().for_each(|stamp| meta.changed(stamp, true));
            (waits.then(|| meta.ticket()), !std::mem::replace(&mut meta.is_listed, true))
        });
        let (ticket, is_new) = told.expect("a page that is taken stays");
        if is_new {
            self.state.write_back.list(tree, node);
        }
        ticket
    }
}
