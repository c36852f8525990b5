//! Operations that look at their key's record: all that the drive does not decide.

use super::context::{Context, OrderedMeans, StructureStop};
use super::extensions::read_extension;
use super::groups::{GroupKind, gather};
use super::in_hand::OpInHand;
use super::node_turns::NodeTurns;
use super::op_state::{Change, ChangeValue, OpStage, OrderedOp, Shown, Step, TakenPage};
use super::scratch;
use crate::ordered::node_table::NodeId;
use tapetum_base::error::Error;
use tapetum_base::request::decide::{Answer, Current, Decision, NewValue, decide, needs_value};
use tapetum_base::request::item::{Access, ItemHead};
use tapetum_base::request::{Outcome, Request};
use tapetum_base::session::session_core::SessionCore;
use tapetum_drive::programs::node::{ANY_NODE, GetRequests, ItemPlace, ItemReader, NodeArguments, NodeFlags, NodeItem};
use tapetum_drive::{Lease, LocalBuffer, Purpose, Returned, Status};
use tapetum_kernels::expiry::Expiry;
use tapetum_kernels::extent_address::ExtentAddress;
use tapetum_kernels::ordered::extension::ExtensionReference;
use tapetum_kernels::ordered::{ImageSeal, SlotAddress, SlotSalt};
use tapetum_kernels::record::Marks;

/// The result of `node-get` for a key.
pub(super) enum NodeFind {
    /// The key belongs to another node.
    OutsideFences,
    Missing,
    /// The value is in the page, from this byte on.
    InPage(ItemHead, usize),
    /// The value is in an extension.
    InExtension(ItemHead, ExtensionReference),
}

impl NodeFind {
    pub fn head(&self) -> Option<&ItemHead> {
        match self {
            NodeFind::InPage(head, _) | NodeFind::InExtension(head, _) => Some(head),
            NodeFind::Missing | NodeFind::OutsideFences => None,
        }
    }

    fn of(item: &NodeItem<'_>) -> Option<NodeFind> {
        let head = ItemHead {
            flags: item.flags,
            expiry: item.expiry,
            stamp: item.stamp,
            value_bytes: item.raw_bytes as usize,
            marks: item.marks,
        };
        match item.place {
            ItemPlace::OutsideFences => Some(NodeFind::OutsideFences),
            ItemPlace::Missing => Some(NodeFind::Missing),
            ItemPlace::Page(at) => Some(NodeFind::InPage(head, at)),
            ItemPlace::Extension(reference) => Some(NodeFind::InExtension(head, reference)),
            ItemPlace::Here(_) | ItemPlace::NotWanted => None,
        }
    }
}

/// A live item, and its value as far as it is known.
#[derive(Clone, Copy)]
struct LiveItem<'a> {
    head: ItemHead,
    value: &'a [u8],
}

/// Sends the program that looks for an operation's key in its node's page. If the operation is a get, the keys of other gets go along.
pub(super) fn look(
    (cx, core): OrderedMeans<'_>,
    turns: &mut NodeTurns,
    op: &mut OpInHand<'_>,
    TakenPage { node, page }: TakenPage,
) -> Step {
    let kept = op.kept.scratch.take();
    let Some(mut scratch) = kept.or_else(|| cx.take_scratch(core)) else {
        cx.state.cache.give_back(node, page, |_| ());
        return cx.starves();
    };
    let group = push_gets(cx, turns, op, node, &arguments(NodeFlags::RAW_IN_PAGE));
    let program = cx.state.programs.get;
    let operation = scratch::look(&core.queue, Purpose::Get, program, &cx.parameters, page.range(), &mut scratch);
    op.kept.stage = OpStage::Looks(node, group);
    cx.submit_at_page(core, op.number() as u64, Purpose::Get, operation, Lease::Buffers([page, scratch]));
    Step::AtNode
}

/// Makes the parameters of a program that looks for an operation's key. If the operation is a get, the keys of the others go along.
pub(super) fn push_gets(
    cx: &mut Context,
    turns: &mut NodeTurns,
    op: &mut OpInHand<'_>,
    node: NodeId,
    arguments: &NodeArguments,
) -> Vec<usize> {
    let group = gather(turns, op, (node, usize::MAX), GroupKind::Gets);
    let (op, others) = op.with_others();
    let mut requests = GetRequests::new(arguments, &mut cx.parameters);
    requests.push(&op.request.key);
    for number in &group {
        requests.push(&others.get(*number).expect("it is kept").request.key);
    }
    group
}

/// Called when a program has looked at a cached page for an operation other than a get.
pub(super) fn looked(
    (cx, core): OrderedMeans<'_>,
    op: &mut OpInHand<'_>,
    node: NodeId,
    Returned { completion, lease }: Returned,
) -> Step {
    let Lease::Buffers([page, scratch]) = lease else { unreachable!("it was lent both") };
    let found = match completion.is_success() {
        true => found_in(core, &scratch, completion.result[0]),
        false => None,
    };
    cx.give_scratch(core, scratch);
    let early = match &found {
        None => Some(Step::Fail(failed_at(node, completion.status))),
        Some(NodeFind::OutsideFences) => Some(Step::Again),
        Some(found) => must_ask(core, op, found).map(Step::Ask),
    };
    let (None, Some(found)) = (&early, found) else {
        cx.state.cache.give_back(node, page, |_| ());
        return early.expect("it goes no further");
    };
    if let NodeFind::InExtension(head, reference) = found
        && is_live(core, op, &head)
        && needs_value(&op.request.borrow())
        && op.kept.read.as_ref().is_none_or(|(stamp, _)| *stamp != head.stamp)
    {
        op.kept.ticket = cx.state.cache.give_back(node, page, |meta| meta.wait_for(head.stamp));
        return read_extension((cx, core), op, head, reference);
    }
    if let Some(change) = decided(core, op, &found, &page) {
        op.kept.change = Some(change);
        op.kept.replaced = if let NodeFind::InExtension(_, reference) = found { Some(reference) } else { None };
        return Step::Change(page);
    }
    let outcome = answer_of(core, op, &found, &page);
    // An expired item hides the durable one, as a removal does.
    let seen = found.head().map(|head| head.stamp);
    let ticket = cx.state.cache.give_back(node, page, |meta| meta.durability().wait_for(seen));
    let deleted_by = found.head().map_or(0, |head| deleted_by(core, op, head));
    Step::Answer(Shown { ticket, deleted_by, read_flash: false }, outcome)
}

/// The found item, if it is live.
fn item<'a>(core: &SessionCore, op: &'a OrderedOp, found: &NodeFind, page: &'a LocalBuffer) -> Option<LiveItem<'a>> {
    let (head, value) = match *found {
        NodeFind::InPage(head, at) => (head, core.queue.look(Purpose::Get, page, at..at + head.value_bytes)),
        NodeFind::InExtension(head, _) => {
            (head, op.kept.read.as_ref().map(|(_, value)| &value[..]).unwrap_or_default())
        }
        NodeFind::Missing | NodeFind::OutsideFences => return None,
    };
    is_live(core, op, &head).then_some(LiveItem { head, value })
}

fn decision(op: &OrderedOp, item: Option<LiveItem<'_>>) -> Decision {
    let current = item.map(|item| Current::new(item.head, Access::default(), item.value));
    decide(&op.request.borrow(), current)
}

/// The change that an operation makes, if it makes one.
fn decided(core: &SessionCore, op: &OrderedOp, found: &NodeFind, page: &LocalBuffer) -> Option<Change> {
    if let Request::Get { .. } = op.request.borrow() {
        return None;
    }
    let item = item(core, op, found, page);
    let old = item.map(|item| item.value).unwrap_or_default();
    let (flags, expiry, marks, value, answer) = match decision(op, item) {
        Decision::Answer(_) | Decision::Show => return None,
        Decision::Delete => (0, Expiry::NONE, Marks::NONE, ChangeValue::Removed, None),
        Decision::Store { flags, expiry, marks, value, answer } => {
            let value = match (value, found) {
                (NewValue::Given, _) => ChangeValue::Given,
                (NewValue::Same, NodeFind::InExtension(head, reference)) => {
                    ChangeValue::Kept { reference: *reference, raw_bytes: head.value_bytes as u32 }
                }
                (NewValue::Same, _) => ChangeValue::Bytes(old.to_vec()),
                (NewValue::Made(value), _) => ChangeValue::Bytes(value),
            };
            (flags, expiry, marks, value, Some(answer))
        }
    };
    let shown = if answer.is_some_and(Answer::shows_value) { old.to_vec() } else { Vec::new() };
    let basis = item.map_or(0, |item| item.head.stamp);
    Some(Change { flags, expiry, marks, value, answer, shown, basis })
}

/// The answer of an operation that writes nothing.
pub(super) fn answer_of(core: &mut SessionCore, op: &OrderedOp, found: &NodeFind, page: &LocalBuffer) -> Outcome {
    let item = item(core, op, found, page);
    match (decision(op, item), item) {
        (Decision::Answer(outcome), _) => outcome,
        (Decision::Show, Some(LiveItem { head, value })) => {
            let value = core.values.add(value);
            match op.request.borrow() {
                Request::GetAndLease { .. } => tapetum_base::request::decide::unchanged(head, Access::default(), value),
                _ => Outcome::Value { flags: head.flags, stamp: head.stamp, expiry: head.expiry, value },
            }
        }
        // A change answers for writes, and an absent item shows nothing.
        _ => Outcome::Missing,
    }
}

/// The result that a `node-get` of one key wrote.
pub(super) fn found_in(core: &SessionCore, scratch: &LocalBuffer, filled: u64) -> Option<NodeFind> {
    let item = ItemReader::new(scratch::filled(&core.queue, Purpose::Get, scratch, filled)).next()?;
    NodeFind::of(&item)
}

/// The results that a `node-get` of several keys wrote, one for each key that it reached; `None` for an invalid one.
pub(super) fn founds_in(core: &SessionCore, scratch: &LocalBuffer, filled: u64) -> Vec<Option<NodeFind>> {
    let items = ItemReader::new(scratch::filled(&core.queue, Purpose::Get, scratch, filled));
    items.map(|item| NodeFind::of(&item)).collect()
}

/// Whether an item is live: not deleted with everything else, not expired.
pub(super) fn is_live(core: &SessionCore, op: &OrderedOp, head: &ItemHead) -> bool {
    !head.expiry.has_passed(core.base.now_ms()) && head.stamp > core.base.keyspaces.watermark(op.keyspace.id())
}

/// The stamp of the deletion of everything that deleted an item; 0 if none did.
pub(super) fn deleted_by(core: &SessionCore, op: &OrderedOp, head: &ItemHead) -> u64 {
    let watermark = core.base.keyspaces.watermark(op.keyspace.id());
    if head.stamp <= watermark { watermark } else { 0 }
}

/// The bytes for which an operation must ask first, if it must.
pub(super) fn must_ask(core: &SessionCore, op: &OrderedOp, found: &NodeFind) -> Option<usize> {
    match found {
        NodeFind::InPage(head, _) | NodeFind::InExtension(head, _)
            if op.must_ask_for(head.value_bytes) && is_live(core, op, head) =>
        {
            Some(head.value_bytes)
        }
        _ => None,
    }
}

/// The arguments of a program over a cached page, whose checksum is not checked.
pub(super) fn arguments(flags: NodeFlags) -> NodeArguments {
    let salt = SlotSalt { store: 0, slot: SlotAddress::new(ExtentAddress::new(0, 0), 0), version: 0 };
    NodeArguments { salt, id: ANY_NODE, stamp: 0, watermark: 0, seal: ImageSeal::default(), now_ms: 0, flags }
}

/// The error of a program over a node's page that ended so: its unit died, its drive is gone, or the page is damaged.
pub(super) fn failed_at(node: NodeId, status: Status) -> Error {
    match status {
        Status::UnitLost => Error::Io(format!("the compute unit that had data node {} died", node.0)),
        // Of a drive in another process.
        Status::Failed => Error::Io(format!("the drive ended while it had data node {}", node.0)),
        _ => damaged(node),
    }
}

/// The error of programs that did not change a node's page.
pub(super) fn stopped_at(node: NodeId, stop: StructureStop) -> Error {
    match stop {
        StructureStop::Failed(status) => failed_at(node, status),
        StructureStop::NoMemory | StructureStop::Stopped => damaged(node),
    }
}

/// The error of a page in memory that has changed by itself.
pub(super) fn damaged(node: NodeId) -> Error {
    Error::Corrupt(format!("the cached page of data node {}", node.0))
}
