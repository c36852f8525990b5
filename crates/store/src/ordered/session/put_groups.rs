//! Puts of one node that go to the drive with one command: stored in their order, each under its own stamp.

use super::OrderedSession;
use super::changes::with_record;
use super::groups::{GroupKind, Members};
use super::looks::{arguments, damaged};
use super::op_state::{OpStage, OrderedOp};
use super::scratch;
use crate::log::Sync;
use crate::ordered::cache::durability_ticket::DurabilityTicket;
use crate::ordered::node_table::NodeId;
use crate::ordered::tree::OrderedTree;
use crate::session::session_core::SessionCore;
use std::sync::Arc;
use tapetum_drive::programs::OUTPUT_SHORT;
use tapetum_drive::programs::node::{NodeFlags, PutCondition, PutOutcome, PutRequests, PutResult};
use tapetum_drive::{Lease, LocalBuffer, Purpose, Returned};

impl OrderedSession {
    /// Sends the program that stores the record of a put, and of those that may go along.
    pub(super) fn put(
        &mut self,
        core: &mut SessionCore,
        (number, mut op): (usize, Box<OrderedOp>),
        node: NodeId,
        page: LocalBuffer,
    ) {
        let group = match self.may_change(core, &op) {
            Ok(()) => self.gather(&op, node, GroupKind::Puts),
            Err(_) => Vec::new(),
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
        let OrderedSession { ops, parameters, .. } = self;
        let mut requests = PutRequests::new(&arguments(NodeFlags::IN_PLACE), parameters);
        let mut push = |op: &mut OrderedOp| {
            op.kept.stamp = core.base.log.give_stamp();
            with_record(op, |record| requests.push(PutCondition::Always, record));
        };
        push(&mut op);
        group.iter().for_each(|number| push(ops.get_mut(*number).expect("it is kept")));
        let on = (&core.queue, Purpose::Put);
        let operation = scratch::change(on, self.state.programs.put, &self.parameters, (&page, &mut scratch));
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

    /// A program has stored the records of puts, or some of them.
    pub(super) fn puts_changed(
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
        let ticket = self.note_puts(&tree, (node, &members), &results);
        if let Some(((_, op), _)) = members.iter().zip(results).find(|(_, result)| result.took_effect()) {
            self.note_used(op.keyspace.id(), &op.request.key, (node, used_bytes));
        }
        let (mut without_room, mut left) = (None, Members::new());
        for ((number, op), result) in members.drain(..).zip(results) {
            match result {
                PutResult::Stored | PutResult::Replaced => {
                    self.answer_change(core, &op, ticket.clone(), result);
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
        self.spare_members = members;
        self.put_members_back(left, node);
        match without_room {
            Some(member) => self.make_room(core, member, node, page),
            None => self.state.cache.give_back(node, page, |_| ()),
        }
    }

    /// Tells the cache and the write-back of records that were stored. The ticket to wait for.
    fn note_puts(
        &self,
        tree: &Arc<OrderedTree>,
        (node, members): (NodeId, &Members),
        results: &[PutResult],
    ) -> Option<Arc<DurabilityTicket>> {
        let is_stored = |result: &PutResult| matches!(result, PutResult::Stored | PutResult::Replaced);
        let stored = || members.iter().zip(results).filter(|(_, result)| is_stored(result));
        stored().for_each(|(_, result)| tree.note(*result));
        let newest = stored().map(|((_, op), _)| op.kept.stamp).max()?;
        let waits = self.state.base.log.sync() == Sync::Always;
        let told = self.state.cache.with(node, |meta| {
            meta.changed(newest, false);
            (waits.then(|| meta.ticket()), !std::mem::replace(&mut meta.is_listed, true))
        });
        let (ticket, is_new) = told.expect("a page that is taken stays");
        if is_new {
            self.state.write_back.list(tree, node);
        }
        ticket
    }
}
