//! Operations that change a page, in place. The drive decides what has a simple condition ([`condition`]); others were decided on a look.

use super::looks::{arguments, damaged};
use super::op_state::{Change, ChangeValue, OpStage, OrderedOp, Shown};
use super::{OrderedSession, check_value, scratch};
use crate::ordered::cache::durability_ticket::DurabilityTicket;
use crate::ordered::node_table::NodeId;
use crate::ordered::slabs::SlotShare;
use crate::ordered::tree::OrderedTree;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tapetum_base::error::Error;
use tapetum_base::keyspace::decide::Answer;
use tapetum_base::keyspace::item::ItemHead;
use tapetum_base::keyspace::request::{Condition, Outcome, Request, ValueRange};
use tapetum_base::log::Sync;
use tapetum_base::session::session_core::SessionCore;
use tapetum_drive::fail_point;
use tapetum_drive::programs::OUTPUT_SHORT;
use tapetum_drive::programs::node::{NodeArguments, NodeFlags, PutCondition, PutOutcome, PutRequests, PutResult};
use tapetum_drive::{Lease, LocalBuffer, Purpose, Returned};
use tapetum_kernels::ordered::{NODE_RECORD_BYTES_MAX, node_record_bytes};
use tapetum_kernels::record::{Codec, Header, Marks, Record};

impl OrderedSession {
    /// Sends the program that stores or removes an operation's record, under a new stamp. A value that no node takes is written to an
    /// extension first.
    pub(super) fn change(
        &mut self,
        core: &mut SessionCore,
        (number, mut op): (usize, Box<OrderedOp>),
        node: NodeId,
        page: LocalBuffer,
    ) {
        if let Err(error) = self.may_change(core, &op, node) {
            self.state.cache.give_back(node, page, |_| ());
            return self.fail(core, (number, op), error);
        }
        match large_value(&op) {
            None => op.kept.extension = None,
            Some(_) if op.kept.extension.as_ref().is_some_and(|written| written.basis == basis(&op)) => {}
            Some(_) => {
                self.state.cache.give_back(node, page, |_| ());
                return self.write_extension(core, (number, op));
            }
        }
        let kept = op.kept.scratch.take();
        let Some(mut scratch) = kept.or_else(|| self.take_scratch(core)) else {
            self.state.cache.give_back(node, page, |_| ());
            return self.wait_for_memory((number, op), node);
        };
        op.kept.stamp = core.base.log.give_stamp();
        let known = if op.kept.change.is_some() { NodeFlags::EXTENSION_KNOWN } else { NodeFlags::NONE };
        let arguments = Self::change_arguments(core, &op, NodeFlags::IN_PLACE.with(known));
        with_record(&op, |record| {
            PutRequests::new(&arguments, &mut self.reused.parameters).push(condition_of(&op), record);
        });
        let on = (&core.queue, Purpose::Put);
        let operation = scratch::change(on, self.state.programs.put, &self.reused.parameters, (&page, &mut scratch));
        op.kept.stage = OpStage::Changes(node);
        self.ops.put(number, op);
        self.pages_taken += 1;
        self.submit(core, (number as u64, Purpose::Put), operation, Lease::Buffers([page, scratch]));
    }

    /// Where flash is full, what a node has room for is stored in it: its image takes a slot for the one that it gives back.
    pub(super) fn may_change(&self, core: &SessionCore, op: &OrderedOp, node: NodeId) -> Result<(), Error> {
        core.base.log.poisoned()?;
        check_value(core, value_to_store(op).len())?;
        let removes = match &op.kept.change {
            Some(change) => matches!(change.value, ChangeValue::Removed),
            None => matches!(op.request.borrow(), Request::Delete { .. }),
        };
        let has_slot = || self.state.cache.with(node, |meta| meta.has_slot()) == Some(true);
        if Self::is_full(op) && !removes && !has_slot() { Err(Error::FullFlash) } else { Ok(()) }
    }

    /// Whether flash has no room for more of an operation's keyspace.
    pub(super) fn is_full(op: &OrderedOp) -> bool {
        op.kept.tree.as_ref().is_some_and(|tree| tree.is_full.load(Ordering::Relaxed))
    }

    /// What a program is told that changes a page of the cache: conditions are of what counts now.
    pub(super) fn change_arguments(core: &SessionCore, op: &OrderedOp, flags: NodeFlags) -> NodeArguments {
        let watermark = core.base.keyspaces.watermark(op.keyspace.id());
        NodeArguments { watermark, now: core.base.now(), ..arguments(flags) }
    }

    /// A program has changed a cached page, or not.
    pub(super) fn changed(
        &mut self,
        core: &mut SessionCore,
        (number, mut op): (usize, Box<OrderedOp>),
        node: NodeId,
        returned: Returned,
    ) {
        if !op.kept.group.is_empty() {
            return self.group_changed(core, (number, op), node, returned);
        }
        let Returned { completion, lease } = returned;
        let Lease::Buffers([page, scratch]) = lease else { unreachable!("it was lent both") };
        self.give_scratch(core, scratch);
        if completion.status == OUTPUT_SHORT {
            // Nothing was changed: its record names an extension, and that is to be known.
            op.kept.looks_first = true;
            return self.look(core, (number, op), node, page);
        }
        let outcome = PutOutcome::of_result(completion.result);
        let Some((done, used_bytes)) = outcome.filter(|_| completion.is_success()) else {
            // What is left of the page nobody knows.
            core.base.log.poison("a change of a data node", damaged(node));
            self.state.cache.give_back(node, page, |_| ());
            return self.fail(core, (number, op), damaged(node));
        };
        match done.result {
            PutResult::Stored | PutResult::Replaced | PutResult::Removed | PutResult::Missing => {
                let ticket = self.end_change(&mut op, (node, page), done.result);
                self.note_used(op.keyspace.id(), &op.request.key, (node, used_bytes));
                self.answer_change(core, &op, ticket, done.result);
                self.ops.forget(number, op);
            }
            PutResult::NoRoom => self.make_room(core, (number, op), node, page),
            PutResult::OutsideFences => {
                self.state.cache.give_back(node, page, |_| ());
                op.kept.change = None;
                self.try_again(number, op);
            }
            PutResult::Refused => {
                let ticket = self.state.cache.give_back(node, page, |meta| meta.wait_for(meta.changed_stamp));
                self.answer_refused(core, &op, ticket);
                self.ops.forget(number, op);
            }
            PutResult::NotTried | PutResult::Unfit => {
                self.state.cache.give_back(node, page, |_| ());
                self.fail(core, (number, op), damaged(node));
            }
        }
    }

    /// Gives a page back with what it now has, and has it written. The ticket to wait for.
    fn end_change(
        &mut self,
        op: &mut OrderedOp,
        (node, page): (NodeId, LocalBuffer),
        result: PutResult,
    ) -> Option<Arc<DurabilityTicket>> {
        let waits = self.state.base.log.sync() == Sync::Always;
        let tree = op.kept.tree.clone().expect("it was attempted");
        let gone = match result {
            PutResult::Replaced | PutResult::Removed => gone_extension(&tree, op),
            _ => None,
        };
        tree.note(result);
        let (ticket, is_new) = self.state.cache.give_back(node, page, |meta| {
            if result == PutResult::Missing {
                return (meta.wait_for(meta.removed_stamp), false);
            }
            meta.changed(op.kept.stamp, result == PutResult::Removed);
            // Free when the image that ceases to name it is durable, as the slots of the images are that name it.
            meta.shared.extend(gone.filter(|_| !fail_point!(OrderedFreeExtensionEarly)));
            (waits.then(|| meta.ticket()), !std::mem::replace(&mut meta.is_listed, true))
        });
        if let Some(extension) = op.kept.extension.take() {
            // A record names it.
            let _ = extension.share.keep();
        }
        if is_new {
            self.state.write_back.list(&tree, node);
        }
        ticket
    }

    pub(super) fn answer_change(
        &mut self,
        core: &mut SessionCore,
        op: &OrderedOp,
        ticket: Option<Arc<DurabilityTicket>>,
        result: PutResult,
    ) {
        let stamp = op.kept.stamp;
        let outcome = match &op.kept.change {
            None if result == PutResult::Removed => Outcome::Deleted,
            None => Outcome::Stored { stamp },
            Some(Change { value: ChangeValue::Removed, .. }) if result == PutResult::Missing => Outcome::Missing,
            Some(Change { value: ChangeValue::Removed, .. }) => Outcome::Deleted,
            Some(Change { flags, expiry, marks, value, answer, shown, .. }) => {
                let value_bytes = match value {
                    ChangeValue::Given => op.request.value().len(),
                    ChangeValue::Bytes(value) => value.len(),
                    ChangeValue::Kept { raw_bytes, .. } => *raw_bytes as usize,
                    ChangeValue::Removed => 0,
                };
                let head = ItemHead { flags: *flags, expiry: *expiry, stamp, value_bytes, marks: *marks };
                let answer = answer.unwrap_or(Answer::Stored);
                let none = ValueRange { start: 0, end: 0 };
                let shown = if answer.shows_value() { core.values.add(shown) } else { none };
                answer.outcome(head, shown)
            }
        };
        self.answer(core, op.token, Shown::of(ticket), outcome);
    }

    /// The condition of a request did not hold, as the page was. What it saw may be durable with `ticket`, and with the last deletion of
    /// everything.
    pub(super) fn answer_refused(
        &mut self,
        core: &mut SessionCore,
        op: &OrderedOp,
        ticket: Option<Arc<DurabilityTicket>>,
    ) {
        let outcome = match op.request.borrow() {
            Request::Delete { .. } => Outcome::Missing,
            _ => Outcome::NotStored,
        };
        let deleted_by = core.base.keyspaces.mark(op.keyspace.id()).watermark;
        // All of a dropped keyspace is deleted.
        let deleted_by = if deleted_by == u64::MAX { 0 } else { deleted_by };
        self.answer(core, op.token, Shown { ticket, deleted_by, read_flash: false }, outcome);
    }
}

/// What the drive is to look at before it makes a request's change, if that decides it.
pub(super) fn condition(request: &Request<'_>) -> Option<PutCondition> {
    match request {
        Request::Put { condition: Condition::Always, .. } => Some(PutCondition::Always),
        Request::Put { condition: Condition::Absent, .. } => Some(PutCondition::Absent),
        Request::Put { condition: Condition::Present, .. } | Request::Delete { stamp: None, .. } => {
            Some(PutCondition::Present)
        }
        _ => None,
    }
}

/// The same of an operation; one that was decided before has none.
pub(super) fn condition_of(op: &OrderedOp) -> PutCondition {
    let undecided = op.kept.change.is_none().then(|| condition(&op.request.borrow())).flatten();
    undecided.unwrap_or(PutCondition::Always)
}

/// Works on the record that an operation writes.
pub(super) fn with_record<T>(op: &OrderedOp, work: impl FnOnce(&Record<'_>) -> T) -> T {
    let request = op.request.borrow();
    let (key, stamp) = (request.key(), op.kept.stamp);
    let (flags, expiry, marks, value) = match (&op.kept.change, &request) {
        (Some(Change { value: ChangeValue::Removed, .. }), _) | (None, Request::Delete { .. }) => {
            return work(&Record { header: Header::tombstone(stamp, key.len()), key, stored: &[] });
        }
        (Some(Change { flags, expiry, marks, value, .. }), _) => (*flags, *expiry, *marks, value),
        (None, Request::Put { flags, expiry, .. }) => (*flags, *expiry, Marks::NONE, &ChangeValue::Given),
        (None, _) => unreachable!("others look before they write"),
    };
    let named = match (&op.kept.extension, value) {
        (Some(written), _) => Some((written.reference, written.reference.stored_bytes)),
        (None, ChangeValue::Kept { reference, raw_bytes }) => Some((*reference, *raw_bytes)),
        (None, _) => None,
    };
    if let Some((reference, raw_bytes)) = named {
        let stored = reference.encode();
        let header = Header::value(stamp, key.len(), stored.len());
        let header = Header { codec: Codec::OutOfLine, raw_bytes, flags, expiry, marks, ..header };
        return work(&Record { header, key, stored: &stored });
    }
    let stored = value_to_store(op);
    let header = Header { flags, expiry, marks, ..Header::value(stamp, key.len(), stored.len()) };
    work(&Record { header, key, stored })
}

/// The bytes that are to be stored.
fn value_to_store(op: &OrderedOp) -> &[u8] {
    match &op.kept.change {
        None | Some(Change { value: ChangeValue::Given, .. }) => op.request.value(),
        Some(Change { value: ChangeValue::Bytes(value), .. }) => value,
        Some(_) => &[],
    }
}

/// The value that an operation stores, if no node takes it.
pub(super) fn large_value(op: &OrderedOp) -> Option<&[u8]> {
    let value = value_to_store(op);
    let request = op.request.borrow();
    let (flags, expiry, marks) = match (&op.kept.change, &request) {
        (Some(Change { flags, expiry, marks, .. }), _) => (*flags, *expiry, *marks),
        (None, Request::Put { flags, expiry, .. }) => (*flags, *expiry, Marks::NONE),
        (None, _) => return None,
    };
    let header = Header { flags, expiry, marks, ..Header::value(0, request.key().len(), value.len()) };
    (node_record_bytes(&header) > NODE_RECORD_BYTES_MAX).then_some(value)
}

/// The stamp of the item that the value which an operation stores was made of; `None` where it is the request's.
pub(super) fn basis(op: &OrderedOp) -> Option<u64> {
    let made = op.kept.change.as_ref().filter(|change| !matches!(change.value, ChangeValue::Given));
    made.map(|change| change.basis)
}

/// The share of the extension that goes with a record, if one does.
fn gone_extension(tree: &OrderedTree, op: &OrderedOp) -> Option<SlotShare> {
    let gone = op.kept.replaced?;
    if matches!(&op.kept.change, Some(Change { value: ChangeValue::Kept { .. }, .. })) {
        return None;
    }
    let space = tree.extensions(gone.class(op.request.key.len())?);
    Some(space.resume(space.map().number(gone.slot)?))
}
