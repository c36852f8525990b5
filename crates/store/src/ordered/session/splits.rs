//! Splits: a node without room for a record becomes two.
//!
//! ```text
//! page taken, a place reserved for the upper half ─► both halves made ─► anchor of the upper half ─► lower half given back ─► upper one
//! ```
//! A reader with the new anchor finds the upper half taken until it is given back. A reader with the old one finds that the lower half's fences do
//! not cover its key, and asks the search layer again, which has the anchor by then.
//!
//! Each half gets a promise of a slot first: the pages of a full store have a place on flash.
//!
//! A node that was never durable is not split: one half might become durable before the other, and then no image would have the other's keys.

use super::changes::{is_full, with_record};
use super::context::{Context, OrderedMeans};
use super::in_hand::OpInHand;
use super::looks::damaged;
use super::merges::Merges;
use super::op_state::{OrderedOp, Step, TakenPage};
use super::purges::purge;
use crate::ordered::cache::page_meta::SplitPromises;
use crate::ordered::node_table::NodeId;
use crate::ordered::search::AnchorChange;
use crate::ordered::slabs::{SHARES_MAX, SlotShare};
use crate::ordered::tree::{OrderedTree, of_search};
use tapetum_base::error::Error;
use tapetum_base::keyspace::KeyspaceId;
use tapetum_base::session::session_core::SessionCore;
use tapetum_drive::{LocalBuffer, Purpose, QueuePair};
use tapetum_kernels::ordered::{
    Arrival, NODE_BYTES, NodeError, NodeOrder, NodePage, NodeRef, node_record_bytes, split, split_at,
};

/// The most pages made from one image that are not durable yet. Beyond that none of them is split again.
const SHARES_WRITTEN_MAX: u16 = 4096;
const _: () = assert!(SHARES_WRITTEN_MAX < SHARES_MAX / 2);
/// Ids that are tried for a new node. A full set of the cache, whose pages must all be written first, has no place for it.
const IDS_TRIED: usize = 8;

pub(super) enum NodeCut<'k> {
    /// The cut gives this record room.
    For(Arrival<'k>),
    /// The cut is in front of this key, or in the middle if no half has room for it as a fence.
    At(&'k [u8]),
}

/// Makes room in a node for an operation's record: removes dead records, or else splits the node. The operation is attempted again.
pub(super) fn make_room(
    (cx, core): OrderedMeans<'_>,
    merges: &mut Merges,
    op: &mut OpInHand<'_>,
    TakenPage { node, mut page }: TakenPage,
) -> Step {
    let tree = op.kept.tree.clone().expect("it was attempted");
    match purge(core, &tree, &mut page) {
        Ok(purged) if purged.is_none() => split_for((cx, core), op, TakenPage { node, page }),
        Ok(purged) => {
            let used_bytes = purged.used_bytes;
            cx.state.cache.give_back(node, page, |meta| purged.tell(meta));
            cx.state.list(&tree, node);
            merges.note_used(cx, op.keyspace.id(), &op.request.key, node, used_bytes);
            op.kept.change = None;
            Step::Again
        }
        Err(_) => {
            core.base.log.poison("a change of a data node", damaged(node));
            cx.state.cache.give_back(node, page, |_| ());
            Step::Fail(damaged(node))
        }
    }
}

/// Splits a node for an operation's record.
fn split_for(
    (cx, core): (&mut Context, &SessionCore),
    op: &mut OrderedOp,
    TakenPage { node, page }: TakenPage,
) -> Step {
    let keyspace = op.keyspace.id();
    let made = with_record(op, |record| {
        let arrival = Arrival { key: record.key, record_bytes: node_record_bytes(&record.header) };
        try_split((cx, core), keyspace, TakenPage { node, page }, &NodeCut::For(arrival))
    });
    op.kept.change = None;
    match made {
        Ok(true) => Step::Split,
        Ok(false) if !cx.state.may_grow() => Step::Fail(Error::FullIndex),
        Ok(false) if is_full(op) => Step::Fail(Error::FullFlash),
        Ok(false) => Step::AwaitRoom,
        Err(error) => Step::Fail(error),
    }
}

/// Splits a node. Returns whether there was room for another page, and the node was durable before. The page is given back in any case.
pub(super) fn try_split(
    (cx, core): (&mut Context, &SessionCore),
    keyspace: KeyspaceId,
    TakenPage { node, page }: TakenPage,
    cut: &NodeCut<'_>,
) -> Result<bool, Error> {
    assert!(cx.may_change, "nodes change within the gate alone");
    let state = cx.state.clone();
    let Some(_held) = state.write_back.hold_open() else {
        state.cache.give_back(node, page, |_| ());
        return Err(Error::Closed);
    };
    let tree = match cx.tree_of(keyspace) {
        Ok(tree) => tree,
        Err(error) => {
            state.cache.give_back(node, page, |_| ());
            return Err(error);
        }
    };
    // A tree's first node needs an image before it is split: recovery treats keys that no image covers as damage.
    if state.cache.with(node, |meta| meta.durable_stamp) == Some(0) {
        state.cache.give_back(node, page, |meta| meta.is_dirty |= meta.flying.is_none());
        state.list(&cx.trees[tree].tree, node);
        return Ok(false);
    }
    let promises = if state.may_grow() { promises(cx, &cx.trees[tree].tree, node) } else { None };
    let halves = promises.and_then(|promises| Some((promises, take_halves((cx, core), keyspace)?)));
    let Some((promises, (upper, mut left, mut right))) = halves else {
        state.cache.give_back(node, page, |_| ());
        return Ok(false);
    };
    let made = halve(&core.queue, &page, cut, upper, &mut left, &mut right, &mut cx.order);
    let anchored = made.map_err(|_| damaged(node)).and_then(|()| {
        let right = core.queue.look(Purpose::Put, &right, 0..NODE_BYTES);
        let anchor = NodeRef::look(right).map_err(|_| damaged(node))?.low_fence();
        cx.trees[tree].search.insert(anchor, upper.0.into()).map_err(of_search)
    });
    let used = [&left, &right].map(|half| {
        NodeRef::look(core.queue.look(Purpose::Put, half, 0..NODE_BYTES)).map_or(NODE_BYTES, |half| half.used_bytes())
    });
    match anchored {
        Ok(AnchorChange::Done) => {
            for (node, used_bytes) in [node, upper].into_iter().zip(used) {
                state.cache.table.note_used(node, used_bytes);
            }
        }
        other => {
            state.cache.discard(upper, right);
            state.cache.give_back(node, page, |_| ());
            cx.give_page(left);
            return other.and(Err(damaged(node)));
        }
    }
    let tree = cx.trees[tree].tree.clone();
    let of_upper = state.cache.give_back(node, left, |meta| meta.split(|slot| tree.nodes.resume(slot), promises));
    state.cache.give_back(upper, right, |meta| *meta = of_upper);
    [node, upper].into_iter().for_each(|node| state.list(&tree, node));
    cx.give_page(page);
    Ok(true)
}

/// Slots for both halves of a node whose page the caller has. `None`: there are too few, or too many undurable pages were made from one image, some
/// of which must be written first.
fn promises(cx: &Context, tree: &OrderedTree, node: NodeId) -> Option<SplitPromises> {
    let (is_promised, is_shared_by_many) = cx.state.cache.with(node, |meta| {
        let most = meta.shared.iter().map(SlotShare::shares).max();
        (meta.promise.is_some(), most >= Some(SHARES_WRITTEN_MAX))
    })?;
    if is_shared_by_many {
        return None;
    }
    let lower = if is_promised { None } else { Some(tree.nodes.promise()?) };
    Some(SplitPromises { lower, upper: tree.nodes.promise()? })
}

/// Takes a new node, a buffer for the lower half, and the new node's page. `None`: there is no room for them now.
fn take_halves(
    (cx, core): (&Context, &SessionCore),
    keyspace: KeyspaceId,
) -> Option<(NodeId, LocalBuffer, LocalBuffer)> {
    let left = cx.take_page(core)?;
    let cache = &cx.state.cache;
    let (mut without_place, mut halves) = (Vec::new(), None);
    while without_place.len() < IDS_TRIED
        && let Some(upper) = cache.table.give()
    {
        if let Some(right) = cache.reserve(upper, keyspace.0) {
            halves = Some((upper, right));
            break;
        }
        without_place.push(upper);
    }
    without_place.into_iter().for_each(|node| cache.table.free(node));
    match halves {
        Some((upper, right)) => Some((upper, left, right)),
        None => {
            cx.give_page(left);
            None
        }
    }
}

/// Splits a page into two.
fn halve(
    queue: &QueuePair,
    page: &LocalBuffer,
    cut: &NodeCut<'_>,
    upper: NodeId,
    left: &mut LocalBuffer,
    right: &mut LocalBuffer,
    order: &mut NodeOrder,
) -> Result<(), NodeError> {
    let node = NodeRef::look(queue.look(Purpose::Put, page, 0..NODE_BYTES))?;
    order.sort(&node)?;
    let (left, right) = (page_of(queue, left)?, page_of(queue, right)?);
    let arrival = match cut {
        NodeCut::For(arrival) => Some(*arrival),
        NodeCut::At(key) => match split_at(&node, order, key, upper.0.into(), left, right) {
            Err(NodeError::NoRoom) => None,
            done => return done,
        },
    };
    split(&node, order, arrival, upper.0.into(), left, right)?;
    Ok(())
}

/// A page's bytes, for writing.
pub(super) fn page_of<'a>(queue: &QueuePair, buffer: &'a mut LocalBuffer) -> Result<&'a mut NodePage, NodeError> {
    queue.fill(Purpose::Put, buffer, 0..NODE_BYTES).try_into().map_err(|_| NodeError::Damaged)
}
