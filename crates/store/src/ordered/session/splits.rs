//! Splits: a node without room for a record becomes two.
//!
//! ```text
//! page taken, a place reserved for the upper half ─► both halves made ─► anchor of the upper half ─► lower half given back ─► upper one
//!                                                    (by the drive)
//! ```
//! The host learns the separator and the bytes that each half uses. Until both halves are made, the page stays as it was.
//!
//! A reader with the new anchor finds the upper half taken until it is given back. A reader with the old one finds that the lower half's fences do
//! not cover its key, and asks the search layer again, which has the anchor by then.
//!
//! Each half gets a promise of a slot first: the pages of a full store have a place on flash.
//!
//! A node that was never durable is not split: one half might become durable before the other, and then no image would have the other's keys.

use super::changes::{is_full, with_record};
use super::context::{Context, OrderedMeans, StructureStop};
use super::in_hand::OpInHand;
use super::looks::{arguments, damaged, failed_at};
use super::merges::Merges;
use super::op_state::{OrderedOp, Step, TakenPage};
use super::purges::purge;
use super::scratch::{self, PageStage};
use crate::ordered::cache::page_meta::SplitPromises;
use crate::ordered::node_table::NodeId;
use crate::ordered::search::AnchorChange;
use crate::ordered::slabs::{SHARES_MAX, SlotShare};
use crate::ordered::tree::{OrderedTree, of_search};
use tapetum_base::error::Error;
use tapetum_base::keyspace::KeyspaceId;
use tapetum_base::session::session_core::SessionCore;
use tapetum_drive::programs::node::{NodeCutAt, NodeFlags, NodeSplitRequest, RecordRoom, SplitHalves};
use tapetum_drive::{Completion, Lease, LocalBuffer, Purpose, Status};
use tapetum_kernels::ordered::{Arrival, NODE_BYTES, node_record_bytes};
use tapetum_kernels::record::Record;

/// The most pages made from one image that are not durable yet. Beyond that none of them is split again.
const SHARES_WRITTEN_MAX: u16 = 4096;
const _: () = assert!(SHARES_WRITTEN_MAX < SHARES_MAX / 2);
/// Ids that are tried for a new node. A full set of the cache, whose pages must all be written first, has no place for it.
const IDS_TRIED: usize = 8;

/// The result of a try to split a node.
pub(super) enum Split {
    Done,
    /// There was no room for another page, or the node was not durable yet.
    NotNow,
    /// The halves are not wanted as they would be.
    NotWanted,
    /// The drive never answers again, and keeps the page.
    Stopped,
}

/// Makes room in a node for an operation's record: removes dead records, or else splits the node. The operation is attempted again, at once if the
/// drive says that there is room after all.
pub(super) fn make_room(
    (cx, core): OrderedMeans<'_>,
    merges: &mut Merges,
    op: &mut OpInHand<'_>,
    TakenPage { node, mut page }: TakenPage,
) -> Step {
    let tree = op.kept.tree.clone().expect("it was attempted");
    let purged = with_record(op, |record| purge((cx, core), &tree, &mut page, Some(arrival(record))));
    match purged {
        Ok(purged) if purged.is_none() => match purged.room {
            RecordRoom::Yes => {
                op.kept.fits = true;
                return Step::Change(page);
            }
            RecordRoom::No => return split_for((cx, core), op, TakenPage { node, page }),
            RecordRoom::NotAsked | RecordRoom::Elsewhere => cx.state.cache.give_back(node, page, |_| ()),
        },
        Ok(purged) => {
            let used_bytes = purged.used_bytes;
            cx.state.cache.give_back(node, page, |meta| purged.tell(meta));
            cx.state.list(&tree, node);
            merges.note_used(cx, op.keyspace.id(), &op.request.key, node, used_bytes);
        }
        Err(StructureStop::NoMemory) => {
            cx.state.cache.give_back(node, page, |_| ());
            return cx.starves();
        }
        Err(StructureStop::Stopped) => return Step::AtNode,
        Err(StructureStop::Failed(status)) => {
            core.base.log.poison("a change of a data node", failed_at(node, status));
            cx.state.cache.give_back(node, page, |meta| meta.is_lost = true);
            return Step::Fail(failed_at(node, status));
        }
    }
    op.kept.change = None;
    Step::Again
}

fn arrival<'a>(record: &Record<'a>) -> Arrival<'a> {
    Arrival { key: record.key, record_bytes: node_record_bytes(&record.header) }
}

/// Splits a node for an operation's record.
fn split_for((cx, core): OrderedMeans<'_>, op: &mut OrderedOp, TakenPage { node, page }: TakenPage) -> Step {
    let keyspace = op.keyspace.id();
    let made = with_record(op, |record| {
        try_split((cx, core), keyspace, TakenPage { node, page }, NodeCutAt::Best(arrival(record)), |_| true)
    });
    op.kept.change = None;
    match made {
        Ok(Split::Done) => Step::Split,
        Ok(Split::Stopped) => Step::AtNode,
        Ok(Split::NotWanted) => unreachable!("any halves are wanted"),
        Ok(Split::NotNow) if !cx.state.may_grow() => Step::Fail(Error::FullIndex),
        Ok(Split::NotNow) if is_full(op) => Step::Fail(Error::FullFlash),
        Ok(Split::NotNow) => Step::AwaitRoom,
        Err(error) => Step::Fail(error),
    }
}

/// Splits a node, if its halves are wanted when they are made. The page is given back in any case, unless the drive has stopped.
pub(super) fn try_split(
    (cx, core): OrderedMeans<'_>,
    keyspace: KeyspaceId,
    TakenPage { node, page }: TakenPage,
    cut: NodeCutAt<'_>,
    are_wanted: impl FnOnce(&SplitHalves) -> bool,
) -> Result<Split, Error> {
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
        return Ok(Split::NotNow);
    }
    let promises = if state.may_grow() { promises(cx, &cx.trees[tree].tree, node) } else { None };
    let halves = promises.and_then(|promises| Some((promises, take_halves((cx, core), keyspace)?)));
    let Some((promises, (upper, left, right))) = halves else {
        state.cache.give_back(node, page, |_| ());
        return Ok(Split::NotNow);
    };
    let (made, [page, left, right]) = match halve((cx, core), [page, left, right], upper, cut) {
        Ok(halved) => halved,
        Err(NotHalved::Stopped) => return Ok(Split::Stopped),
        Err(NotHalved::NoMemory([page, left, right])) => {
            state.cache.discard(upper, right);
            state.cache.give_back(node, page, |_| ());
            cx.give_page(left);
            return Ok(Split::NotNow);
        }
    };
    if made.as_ref().is_ok_and(|halves| !are_wanted(halves)) {
        state.cache.discard(upper, right);
        state.cache.give_back(node, page, |_| ());
        cx.give_page(left);
        return Ok(Split::NotWanted);
    }
    let anchored = match made {
        Ok(SplitHalves { separator_bytes, .. }) => {
            // A page has its low fence at its end.
            let anchor = core.queue.look(Purpose::Structure, &right, NODE_BYTES - separator_bytes..NODE_BYTES);
            cx.trees[tree].search.insert(anchor, upper.0.into()).map_err(of_search)
        }
        Err(status) => Err(failed_at(node, status)),
    };
    let (Ok(halves), Ok(AnchorChange::Done)) = (made, &anchored) else {
        state.cache.discard(upper, right);
        state.cache.give_back(node, page, |_| ());
        cx.give_page(left);
        return anchored.and(Err(damaged(node)));
    };
    state.cache.table.note_used(node, halves.lower_used_bytes);
    state.cache.table.note_used(upper, halves.upper_used_bytes);
    let tree = cx.trees[tree].tree.clone();
    let of_upper = state.cache.give_back(node, left, |meta| meta.split(|slot| tree.nodes.resume(slot), promises));
    state.cache.give_back(upper, right, |meta| *meta = of_upper);
    [node, upper].into_iter().for_each(|node| state.list(&tree, node));
    cx.give_page(page);
    Ok(Split::Done)
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

/// Why a page was not split by the drive.
enum NotHalved {
    NoMemory([LocalBuffer; 3]),
    Stopped,
}

/// Has the drive make both halves of the first page, the lower one in the second page and the upper one in the third. The inner error: the page
/// cannot be split, or a unit died; it is as it was.
fn halve(
    (cx, core): OrderedMeans<'_>,
    pages: [LocalBuffer; 3],
    upper: NodeId,
    cut: NodeCutAt<'_>,
) -> Result<(Result<SplitHalves, Status>, [LocalBuffer; 3]), NotHalved> {
    let Some(mut scratch) = cx.take_scratch(core) else { return Err(NotHalved::NoMemory(pages)) };
    let arguments = arguments(NodeFlags::NONE);
    let (mut of_upper, mut of_lower) = (std::mem::take(&mut cx.parameters), Vec::new());
    NodeSplitRequest { upper_id: upper.0.into(), cut }.encode(&arguments, &mut of_upper);
    arguments.encode(&mut of_lower);
    let [page, left, right] = pages.each_ref().map(LocalBuffer::range);
    let programs = cx.state.programs;
    let stages = [
        PageStage { program: programs.split, parameters: &of_upper, inputs: &[page], output: right },
        PageStage { program: programs.split_rest, parameters: &of_lower, inputs: &[page, right], output: left },
    ];
    let operation = scratch::make_pages(&core.queue, Purpose::Structure, &stages, &mut scratch);
    cx.parameters = of_upper;
    let [page, left, right] = pages;
    let lease = Lease::Pages(Box::new([page, left, right, scratch]));
    let returned = cx.run(core, Purpose::Structure, operation, lease).ok_or(NotHalved::Stopped)?;
    let Lease::Pages(pages) = returned.lease else { unreachable!("it was lent four") };
    let [page, left, right, scratch] = *pages;
    cx.give_scratch(core, scratch);
    let Completion { status, result, .. } = returned.completion;
    let halves = if status == Status::Success { Ok(SplitHalves::of_result(result)) } else { Err(status) };
    Ok((halves, [page, left, right]))
}
