//! Operations that change a page in place. The drive decides simple conditions ([`condition`]); the others were decided on a look at the record.

use super::attempt::check_value;
use super::context::{Context, OrderedMeans};
use super::extensions::write_extension;
use super::groups::{GroupKind, gather};
use super::in_hand::OpInHand;
use super::looks::{arguments, damaged, failed_at};
use super::merges::Merges;
use super::node_turns::NodeTurns;
use super::op_state::{Change, ChangeValue, OpStage, OrderedOp, Shown, Step, TakenPage};
use super::scratch;
use crate::ordered::cache::durability_ticket::DurabilityTicket;
use crate::ordered::node_table::NodeId;
use crate::ordered::slabs::SlotShare;
use crate::ordered::tree::OrderedTree;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tapetum_base::error::Error;
use tapetum_base::log::Sync;
use tapetum_base::request::decide::Answer;
use tapetum_base::request::item::ItemHead;
use tapetum_base::request::{Condition, Outcome, Request, ValueRange};
use tapetum_base::session::session_core::SessionCore;
use tapetum_drive::programs::OUTPUT_SHORT;
use tapetum_drive::programs::node::{NodeArguments, NodeFlags, PutCondition, PutOutcome, PutRequests, PutResult};
use tapetum_drive::{Lease, Purpose, Returned, fail_point};
use tapetum_kernels::ordered::{NODE_BYTES, NODE_RECORD_BYTES_MAX, node_record_bytes};
use tapetum_kernels::record::{Codec, Header, Kind, Marks, Record};

/// Sends the program that stores or removes an operation's record under a new stamp, and the records of others that may go along. A value that no
/// node can hold is written to an extension first.
pub(super) fn change(
    (cx, core): OrderedMeans<'_>,
    turns: &mut NodeTurns,
    op: &mut OpInHand<'_>,
    TakenPage { node, page }: TakenPage,
) -> Step {
    assert!(cx.may_change, "nodes change within the gate alone");
    if let Err(error) = may_change(cx, core, op, node) {
        cx.state.cache.give_back(node, page, |_| ());
        return Step::Fail(error);
    }
    match large_value(op) {
        None => op.kept.extension = None,
        Some(_) if op.kept.extension.as_ref().is_some_and(|written| written.basis == basis(op)) => {}
        Some(_) => {
            cx.state.cache.give_back(node, page, |_| ());
            return write_extension((cx, core), op);
        }
    }
    let room = room_in(cx, op, node);
    let kept = op.kept.scratch.take();
    if lacks_room(op, room) {
        kept.into_iter().for_each(|scratch| cx.give_scratch(core, scratch));
        return Step::MakeRoom(page);
    }
    op.kept.fits = false;
    let Some(mut scratch) = kept.or_else(|| cx.take_scratch(core)) else {
        cx.state.cache.give_back(node, page, |_| ());
        return cx.starves();
    };
    let group = if is_full(op) { Vec::new() } else { gather(turns, op, (node, room), GroupKind::Changes) };
    let known = if op.kept.change.is_some() { NodeFlags::EXTENSION_KNOWN } else { NodeFlags::NONE };
    let arguments = change_arguments(core, op, NodeFlags::IN_PLACE.with(known));
    let mut requests = PutRequests::new(&arguments, &mut cx.parameters);
    let mut push = |op: &mut OrderedOp| {
        op.kept.stamp = core.base.log.give_stamp();
        with_record(op, |record| requests.push(condition_of(op), record));
    };
    push(op);
    group.iter().for_each(|number| push(op.others().get_mut(*number).expect("it is kept")));
    let program = cx.state.programs.put;
    let operation = scratch::change(&core.queue, Purpose::Put, program, &cx.parameters, &page, &mut scratch);
    op.kept.stage = OpStage::Changes(node, group);
    cx.submit_at_page(core, op.number() as u64, Purpose::Put, operation, Lease::Buffers([page, scratch]));
    Step::AtNode
}

/// The bytes of further records that a node has room for. If the keyspace does not grow, most keys are there and take no room.
fn room_in(cx: &Context, op: &OrderedOp, node: NodeId) -> usize {
    let grows = op.kept.tree.as_ref().is_some_and(|tree| tree.grows());
    if grows { cx.state.cache.table.room_bytes(node) } else { usize::MAX }
}

/// Whether an operation's record surely has no room if its key is new. Then it is not sent in vain.
fn lacks_room(op: &OrderedOp, room_bytes: usize) -> bool {
    let bytes = |record: &Record<'_>| match record.header.kind {
        Kind::Tombstone => 0,
        _ => node_record_bytes(&record.header),
    };
    room_bytes < NODE_BYTES && !op.kept.fits && with_record(op, bytes) > room_bytes
}

/// An error if flash is full, unless the change removes a record or the node has a slot: then the node's next image takes that slot's place.
fn may_change(cx: &Context, core: &SessionCore, op: &OrderedOp, node: NodeId) -> Result<(), Error> {
    core.base.log.refuse_changes()?;
    check_value(core, value_to_store(op).len())?;
    let removes = match &op.kept.change {
        Some(change) => matches!(change.value, ChangeValue::Removed),
        None => matches!(op.request.borrow(), Request::Delete { .. }),
    };
    let has_slot = || cx.state.cache.with(node, |meta| meta.has_slot()) == Some(true);
    if is_full(op) && !removes && !has_slot() { Err(Error::FullFlash) } else { Ok(()) }
}

/// Whether flash has no more room for an operation's keyspace.
pub(super) fn is_full(op: &OrderedOp) -> bool {
    op.kept.tree.as_ref().is_some_and(|tree| tree.is_full.load(Ordering::Relaxed))
}

/// The arguments of a program that changes a cached page. Conditions apply to live records.
fn change_arguments(core: &SessionCore, op: &OrderedOp, flags: NodeFlags) -> NodeArguments {
    let watermark = core.base.keyspaces.watermark(op.keyspace.id());
    NodeArguments { watermark, now_ms: core.base.now_ms(), ..arguments(flags) }
}

/// Called when a program has changed a cached page for one operation, or has not.
pub(super) fn changed(
    (cx, core): OrderedMeans<'_>,
    merges: &mut Merges,
    op: &mut OpInHand<'_>,
    node: NodeId,
    Returned { completion, lease }: Returned,
) -> Step {
    let Lease::Buffers([page, scratch]) = lease else { unreachable!("it was lent both") };
    cx.give_scratch(core, scratch);
    if completion.status == OUTPUT_SHORT {
        // Nothing was changed: the record names an extension, which must be known first.
        op.kept.looks_first = true;
        return Step::Look(page);
    }
    let outcome = PutOutcome::of_result(completion.result);
    let Some((done, used_bytes)) = outcome.filter(|_| completion.is_success()) else {
        // The page's content is undefined.
        let error = || failed_at(node, completion.status);
        core.base.log.poison("a change of a data node", error());
        cx.state.cache.give_back(node, page, |meta| meta.is_lost = true);
        return Step::Fail(error());
    };
    match done.result {
        PutResult::Stored | PutResult::Replaced | PutResult::Removed | PutResult::Missing => {
            let ticket = end_change(cx, op, TakenPage { node, page }, done.result);
            merges.note_used(cx, op.keyspace.id(), &op.request.key, node, used_bytes);
            answer_change(core, op, ticket, done.result)
        }
        PutResult::NoRoom => Step::MakeRoom(page),
        PutResult::OutsideFences => {
            cx.state.cache.give_back(node, page, |_| ());
            op.kept.change = None;
            Step::Again
        }
        PutResult::Refused => {
            let ticket = cx.state.cache.give_back(node, page, |meta| meta.wait_for(meta.changed_stamp));
            answer_refused(core, op, ticket)
        }
        PutResult::NotTried | PutResult::Unfit => {
            cx.state.cache.give_back(node, page, |_| ());
            Step::Fail(damaged(node))
        }
    }
}

/// Gives a changed page back and lists it for writing. Returns the ticket to wait for.
fn end_change(
    cx: &Context,
    op: &mut OrderedOp,
    TakenPage { node, page }: TakenPage,
    result: PutResult,
) -> Option<Arc<DurabilityTicket>> {
    let waits = cx.state.base.log.sync() == Sync::Always;
    let tree = op.kept.tree.clone().expect("it was attempted");
    let gone = match result {
        PutResult::Replaced | PutResult::Removed => gone_extension(&tree, op),
        _ => None,
    };
    tree.note(result);
    let (ticket, is_new) = cx.state.cache.give_back(node, page, |meta| {
        if result == PutResult::Missing {
            return (meta.wait_for(meta.removed_stamp), false);
        }
        meta.changed(op.kept.stamp, result == PutResult::Removed);
        // The extension is freed when the image that no longer names it is durable, as are the slots of the images that name it.
        meta.shared.extend(gone.filter(|_| !fail_point!(OrderedFreeExtensionEarly)));
        (waits.then(|| meta.ticket()), meta.list())
    });
    if let Some(extension) = op.kept.extension.take() {
        // A record names the extension.
        let _ = extension.written.share.keep();
    }
    if is_new {
        cx.state.write_back.list(&tree, node);
    }
    ticket
}

pub(super) fn answer_change(
    core: &mut SessionCore,
    op: &OrderedOp,
    ticket: Option<Arc<DurabilityTicket>>,
    result: PutResult,
) -> Step {
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
    Step::Answer(Shown::of(ticket), outcome)
}

/// Answers a request whose condition did not hold on the page. What it saw is durable with `ticket` and with the last deletion of everything.
pub(super) fn answer_refused(core: &SessionCore, op: &OrderedOp, ticket: Option<Arc<DurabilityTicket>>) -> Step {
    let outcome = match op.request.borrow() {
        Request::Delete { .. } => Outcome::Missing,
        _ => Outcome::NotStored,
    };
    let deleted_by = core.base.keyspaces.mark(op.keyspace.id()).watermark;
    // Everything in a dropped keyspace is deleted.
    let deleted_by = if deleted_by == u64::MAX { 0 } else { deleted_by };
    Step::Answer(Shown { ticket, deleted_by, read_flash: false }, outcome)
}

/// The condition of a request, if the drive can decide it before the change.
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

/// As [`condition`], for an operation. One that was decided before has none.
fn condition_of(op: &OrderedOp) -> PutCondition {
    let undecided = op.kept.change.is_none().then(|| condition(&op.request.borrow())).flatten();
    undecided.unwrap_or(PutCondition::Always)
}

/// Runs `work` on the record that an operation writes.
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
        (Some(new), _) => Some((new.written.reference, new.written.reference.stored_bytes)),
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

/// The bytes to store.
fn value_to_store(op: &OrderedOp) -> &[u8] {
    match &op.kept.change {
        None | Some(Change { value: ChangeValue::Given, .. }) => op.request.value(),
        Some(Change { value: ChangeValue::Bytes(value), .. }) => value,
        Some(_) => &[],
    }
}

/// The value that an operation stores, if no node can hold it.
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

/// The stamp of the item from which the stored value was made; `None` if the value is the request's own.
pub(super) fn basis(op: &OrderedOp) -> Option<u64> {
    let made = op.kept.change.as_ref().filter(|change| !matches!(change.value, ChangeValue::Given));
    made.map(|change| change.basis)
}

/// The share of the extension that is removed with a record, if there is one.
fn gone_extension(tree: &OrderedTree, op: &OrderedOp) -> Option<SlotShare> {
    let gone = op.kept.replaced?;
    if matches!(&op.kept.change, Some(Change { value: ChangeValue::Kept { .. }, .. })) {
        return None;
    }
    let space = tree.extensions(gone.class(op.request.key.len())?);
    Some(space.resume(space.map().number(gone.slot)?))
}
