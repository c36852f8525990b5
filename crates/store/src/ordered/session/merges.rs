//! Merges: two neighbours that fit in one node become one, and three sparse ones become two, so that deletions free space.
//!
//! ```text
//! node uses less ─► fits with a neighbour? ─► wish ─► both pages taken ─► merged into a third ─► right anchor goes ─► left one given back
//!                     (the node table)         ▲          └─ not cached: read, installed
//!                   half of it with each?      ├── taken, or on its way to flash: at a later poll, so many times
//!                     └──────────────► wish ───┴─► split in the middle ─► a wish of each half
//! ```
//! Dead records of both are removed first. No operation waits for a merge. A tree with wishes that were not carried out in the poll that made them
//! is swept later, as a session may end before it gets to them ([`crate::ordered::sweeps`]).

use super::context::{Context, OrderedMeans, StructureStop};
use super::looks::{arguments, failed_at};
use super::op_state::TakenPage;
use super::page_reads::{PageRead, PageReadEnd, PageReader, PageReads};
use super::purges::{Purged, purge};
use super::scratch::{self, PageStage};
use super::splits::{Split, try_split};
use crate::ordered::cache::PageLook;
use crate::ordered::cache::page_meta::PageMeta;
use crate::ordered::node_table::{HomedNode, NodeHome, NodeId};
use crate::ordered::search::{AnchorChange, AnchorKey};
use crate::ordered::tree::of_search;
use std::collections::{BTreeSet, VecDeque};
use tapetum_base::error::Error;
use tapetum_base::keyspace::KeyspaceId;
use tapetum_drive::programs::node::{NodeCutAt, NodeFlags, SplitHalves, encode_merge};
use tapetum_drive::{Lease, LocalBuffer, Purpose, fail_point};
use tapetum_kernels::ordered::{BLOCK_BYTES, HEAD_BYTES, NODE_BYTES};

/// The most bytes of a merged node. So it can grow by a fifth of a node's bytes before it is split, and its halves shrink as much before they are
/// merged again. A node has three records of 1 KiB.
const MERGED_BYTES_MAX: usize = NODE_BYTES * 85 / 100;
/// Bytes that two nodes have twice and a merged one once.
const COMMON_BYTES: usize = HEAD_BYTES + BLOCK_BYTES;
/// The bytes used by a node with only dead records. Its neighbours' records may be dead as well, and nobody noted that.
pub(super) const ALL_DEAD: usize = 0;
/// The most wishes of a session: one for each operation that it may have in flight.
const WISHES_MAX: usize = 1024;
const TRIES_PER_POLL: usize = 64;
/// Attempts until a wish is given up. During some of them pages are in flight to flash.
const TRIES_MAX: u32 = 1000;

/// A key whose node may fit in one with a neighbour.
pub(super) struct MergeWish {
    keyspace: KeyspaceId,
    key: Vec<u8>,
    /// The node has only dead records, as a scan saw.
    is_all_dead: bool,
    tries: u32,
}

pub(super) struct Merges {
    /// Without those whose neighbours' pages are being read.
    wishes: VecDeque<MergeWish>,
    /// How many of them a poll tries.
    tries_per_poll: usize,
    /// Keyspaces with wishes that were not carried out in the poll that made them, or were given up.
    put_off: BTreeSet<KeyspaceId>,
    made: u64,
}

impl Default for Merges {
    fn default() -> Merges {
        Merges { wishes: VecDeque::new(), tries_per_poll: TRIES_PER_POLL, put_off: BTreeSet::new(), made: 0 }
    }
}

/// A way to free a node.
enum Plan {
    Merge(NodePair),
    /// This node's halves may fit with its neighbours, which use so many bytes.
    Halve {
        node: NodeId,
        left_bytes: usize,
        right_bytes: usize,
    },
}

/// Two neighbours that may fit in one node.
struct NodePair {
    left: NodeId,
    right: NodeId,
    /// The anchor of the right node.
    anchor: Box<AnchorKey>,
}

/// Two neighbours whose pages are taken.
struct Neighbours {
    left: TakenPage,
    right: TakenPage,
    /// The anchor of the right node.
    anchor: Box<AnchorKey>,
}

enum NeighbourLook {
    Taken(Neighbours),
    /// The page of this node must be read.
    Absent(NodeId, NodeHome),
    /// The pages cannot be taken now.
    Busy,
}

/// The result of a try.
enum Tried {
    /// The nodes were merged; the merged node uses so many bytes.
    Merged(usize),
    /// The node became two, with these anchors.
    Halved([Box<AnchorKey>; 2]),
    NotNow,
    Reads(NodeId, NodeHome),
    Over,
}

impl Merges {
    /// Whether some wishes must be tried again.
    pub fn wait(&self) -> bool {
        !self.wishes.is_empty()
    }

    /// Called when the page that a wish waited for was read, or not. A failed read is no error here: the next operation at the node reports it.
    pub fn page_was_read(&mut self, wish: MergeWish, end: &PageReadEnd) {
        if !matches!(end, PageReadEnd::Failed(_)) {
            self.wishes.push_back(wish);
        }
    }

    /// Notes the bytes that the node of a key uses.
    pub fn note_used(&mut self, cx: &mut Context, keyspace: KeyspaceId, key: &[u8], node: NodeId, used_bytes: usize) {
        if cx.state.cache.table.note_used(node, used_bytes) {
            self.wish(cx, keyspace, key, used_bytes);
        }
    }

    /// The number of wishes to be tried, without those that wait for a page.
    pub fn count(&self) -> usize {
        self.wishes.len()
    }

    /// From now on, tries at most so many in a poll.
    pub fn try_at_most(&mut self, tries: usize) {
        self.tries_per_poll = tries;
    }

    /// Wishes a merge for the node of a key, which has `used_bytes` bytes of live records.
    pub fn wish(&mut self, cx: &mut Context, keyspace: KeyspaceId, key: &[u8], used_bytes: usize) {
        if used_bytes > MERGED_BYTES_MAX {
            return;
        }
        let Ok(tree) = cx.tree_of(keyspace) else { return };
        if self.wishes.len() >= WISHES_MAX {
            self.put_off.insert(keyspace);
            return;
        }
        let wished = match plan_of(cx, tree, key, used_bytes) {
            Some(_) => Some(key.to_vec()),
            None => neighbour_to_halve(cx, tree, key, used_bytes),
        };
        let is_all_dead = used_bytes == ALL_DEAD;
        self.wishes.extend(wished.map(|key| MergeWish { keyspace, key, is_all_dead, tries: 0 }));
    }

    /// Tries the wishes, and reads neighbours' pages for them.
    pub fn attempt(&mut self, (cx, core): OrderedMeans<'_>, reads: &mut PageReads) {
        let tries = if cx.may_change { self.wishes.len().min(self.tries_per_poll) } else { 0 };
        self.put_off.extend(self.wishes.iter().skip(tries).map(|wish| wish.keyspace));
        for _ in 0..tries {
            let Some(mut wish) = self.wishes.pop_front() else { return };
            wish.tries += 1;
            // The next operation at the node reports the error.
            match try_merge((cx, core), &wish).unwrap_or(Tried::Over) {
                Tried::Merged(used_bytes) => {
                    self.made += 1;
                    self.wish(cx, wish.keyspace, &wish.key, used_bytes);
                }
                Tried::Halved(anchors) => {
                    for anchor in anchors {
                        let half = MergeWish { key: anchor.to_vec(), ..wish };
                        let used_bytes = used_bytes(cx, &half).unwrap_or(NODE_BYTES);
                        self.wish(cx, half.keyspace, &half.key, used_bytes);
                    }
                }
                // The dead records are gone, and the rest is known.
                Tried::Over if wish.is_all_dead => {
                    let used_bytes = used_bytes(cx, &wish).unwrap_or(NODE_BYTES);
                    self.wish(cx, wish.keyspace, &wish.key, used_bytes);
                }
                Tried::Over => {}
                Tried::NotNow => self.put_off(wish),
                Tried::Reads(node, home) => self.read((cx, core), reads, wish, HomedNode { node, home }),
            }
        }
    }

    /// Has maintenance sweep the trees with wishes that were put off, as the session may end before it gets to them.
    pub fn want_sweeps(&mut self, cx: &mut Context) {
        while let Some(keyspace) = self.put_off.pop_first() {
            if let Ok(tree) = cx.tree_of(keyspace) {
                cx.state.want_sweep(&cx.trees[tree].tree);
            }
        }
    }

    /// For a sweep, which gets to all its wishes: as [`Merges::want_sweeps`], without sweeps.
    pub fn forget_put_off(&mut self) {
        self.put_off.clear();
    }

    /// The number of merges since this was last asked.
    pub fn take_made(&mut self) -> u64 {
        std::mem::take(&mut self.made)
    }

    /// Tries a wish at a later poll, unless it was tried too often.
    fn put_off(&mut self, wish: MergeWish) {
        self.put_off.insert(wish.keyspace);
        if wish.tries < TRIES_MAX {
            self.wishes.push_back(wish);
        }
    }

    /// Reads a page that a wish waits for, if the cache has a place for it.
    fn read(
        &mut self,
        (cx, core): OrderedMeans<'_>,
        reads: &mut PageReads,
        wish: MergeWish,
        HomedNode { node, home }: HomedNode,
    ) {
        let may_install = cx.state.cache.may_install(node, home);
        cx.again.wants_room |= !may_install;
        if !may_install || reads.has(node) || wish.tries >= TRIES_MAX {
            return self.put_off(wish);
        }
        self.put_off.insert(wish.keyspace);
        // No record has the empty key, which stands for the leftmost node.
        let key = if wish.key.is_empty() { vec![0] } else { wish.key.clone() };
        let read = PageRead { keyspace: wish.keyspace, node, home, key, reader: PageReader::Merge(wish) };
        if let Some(PageRead { reader: PageReader::Merge(wish), .. }) = reads.begin((cx, core), read) {
            self.put_off(wish);
        }
    }
}

/// The bytes used by the node of a wish's key, as far as the node table knows.
fn used_bytes(cx: &mut Context, wish: &MergeWish) -> Result<usize, Error> {
    let tree = cx.tree_of(wish.keyspace)?;
    let node = cx.node_of(tree, &wish.key);
    Ok(cx.state.cache.table.used_bytes(node))
}

fn try_merge((cx, core): OrderedMeans<'_>, wish: &MergeWish) -> Result<Tried, Error> {
    let state = cx.state.clone();
    let Some(_held) = state.write_back.hold_open() else { return Ok(Tried::Over) };
    let tree = cx.tree_of(wish.keyspace)?;
    // Another wish may have merged the node meanwhile.
    let used_bytes = if wish.is_all_dead { ALL_DEAD } else { used_bytes(cx, wish)? };
    let pair = match plan_of(cx, tree, &wish.key, used_bytes) {
        Some(Plan::Merge(pair)) => pair,
        Some(Plan::Halve { node, left_bytes, right_bytes }) => {
            // Each half is merged with its neighbour, which is the fuller one: the other is the other half.
            let fit = |halves: &SplitHalves| {
                let (lower, upper) = (halves.lower_used_bytes, halves.upper_used_bytes);
                let fits = |half, other| half + other <= MERGED_BYTES_MAX + COMMON_BYTES;
                fits(lower, left_bytes) && fits(upper, right_bytes) && left_bytes > upper && right_bytes > lower
            };
            return try_halve((cx, core), wish, tree, node, fit);
        }
        None => return Ok(Tried::Over),
    };
    let Neighbours { mut left, mut right, anchor } = match take_pair(cx, pair, wish.keyspace) {
        NeighbourLook::Taken(neighbours) => neighbours,
        NeighbourLook::Absent(node, home) => return Ok(Tried::Reads(node, home)),
        NeighbourLook::Busy => return Ok(Tried::NotNow),
    };
    let keyspace_tree = cx.trees[tree].tree.clone();
    let mut is_lost = false;
    let mut purged = [left.node, right.node].map(|node| Purged::none(state.cache.table.used_bytes(node)));
    for (TakenPage { node, page }, purged) in [&mut left, &mut right].into_iter().zip(&mut purged) {
        match purge((cx, core), &keyspace_tree, page, None) {
            Ok(done) => {
                state.cache.table.note_used(*node, done.used_bytes);
                *purged = done;
            }
            Err(StructureStop::NoMemory) => {}
            Err(StructureStop::Stopped) => return Ok(Tried::Over),
            Err(StructureStop::Failed(status)) => {
                core.base.log.poison("a change of a data node", failed_at(*node, status));
                state.cache.with(*node, |meta| meta.is_lost = true);
                is_lost = true;
            }
        }
    }
    let [of_left, of_right] = purged;
    let made = if is_lost { None } else { Some(merge_into((cx, core), [&mut left.page, &mut right.page])) };
    let is_short = matches!(made, Some(Err(StructureStop::NoMemory)));
    let (used_bytes, merged) = match made {
        Some(Ok((used_bytes, merged))) => (Some(used_bytes), Some(merged)),
        Some(Err(StructureStop::Stopped)) => return Ok(Tried::Over),
        None | Some(Err(StructureStop::NoMemory | StructureStop::Failed(_))) => (None, None),
    };
    let removed = match used_bytes {
        Some(_) => cx.trees[tree].search.remove(&anchor, right.node.0.into()).map_err(of_search),
        None => Ok(AnchorChange::Absent),
    };
    let (merged, used_bytes) = match (&removed, merged, used_bytes) {
        (Ok(AnchorChange::Done), Some(merged), Some(used_bytes)) => (merged, used_bytes),
        (_, merged, _) => {
            merged.into_iter().for_each(|page| cx.give_page(page));
            for (TakenPage { node, page }, purged) in [(left, of_left), (right, of_right)] {
                state.cache.give_back(node, page, |meta| purged.tell(meta));
                state.list(&keyspace_tree, node);
            }
            return removed.map(|_| if is_short { Tried::NotNow } else { Tried::Over });
        }
    };
    let mut meta_of_right = state.cache.discard(right.node, right.page);
    of_right.tell(&mut meta_of_right);
    if fail_point!(OrderedMergeForgets) {
        meta_of_right.shared.clear();
        drop(meta_of_right.slot.take().map(|slot| keyspace_tree.nodes.resume(slot)));
    }
    state.cache.table.note_used(left.node, used_bytes);
    state.cache.give_back(left.node, merged, |meta| {
        of_left.tell(meta);
        meta.merge(meta_of_right, |slot| keyspace_tree.nodes.resume(slot));
    });
    state.list(&keyspace_tree, left.node);
    cx.give_page(left.page);
    Ok(Tried::Merged(used_bytes))
}

/// Splits a node in the middle, for its halves to be merged with its neighbours, if they fit.
fn try_halve(
    (cx, core): OrderedMeans<'_>,
    wish: &MergeWish,
    tree: usize,
    node: NodeId,
    fit: impl FnOnce(&SplitHalves) -> bool,
) -> Result<Tried, Error> {
    let lower = Box::new(cx.anchor.clone());
    let page = match take_for_merge(cx, node, wish.keyspace) {
        Ok(page) => page,
        Err(NeighbourLook::Absent(node, home)) => return Ok(Tried::Reads(node, home)),
        Err(_) => return Ok(Tried::NotNow),
    };
    match try_split((cx, core), wish.keyspace, TakenPage { node, page }, NodeCutAt::Middle, fit)? {
        Split::Done => {
            let mut upper = lower.clone();
            let is_there = cx.trees[tree].search.next(&mut upper).is_some();
            Ok(if is_there { Tried::Halved([lower, upper]) } else { Tried::Over })
        }
        Split::NotNow => Ok(Tried::NotNow),
        Split::NotWanted | Split::Stopped => Ok(Tried::Over),
    }
}

/// A plan for a key's node, which uses so many bytes, as far as the node table knows: it is merged with the neighbour that makes the fuller merged
/// node, or its halves are with both neighbours.
fn plan_of(cx: &mut Context, tree: usize, key: &[u8], used_bytes: usize) -> Option<Plan> {
    let node = cx.node_of(tree, key);
    let search = &mut cx.trees[tree].search;
    let (mut behind, mut before) = (Box::new(cx.anchor.clone()), Box::new(cx.anchor.clone()));
    let right = search.next(&mut behind).map(|right| NodeId(right as u32));
    let left = search.previous(&mut before).map(|left| NodeId(left as u32));
    let table = &cx.state.cache.table;
    let fits = |other: &NodeId| {
        let together = (used_bytes + table.used_bytes(*other)).saturating_sub(COMMON_BYTES);
        (together <= MERGED_BYTES_MAX || used_bytes == ALL_DEAD).then_some(together)
    };
    let takes_half = |other_bytes: usize| takes_half_of(used_bytes, other_bytes);
    let [of_left, of_right] = [&left, &right].map(|other| other.as_ref().and_then(fits));
    match (left, right) {
        (Some(left), _) if of_left > of_right => {
            Some(Plan::Merge(NodePair { left, right: node, anchor: Box::new(cx.anchor.clone()) }))
        }
        (_, Some(right)) if of_right.is_some() => Some(Plan::Merge(NodePair { left: node, right, anchor: behind })),
        (Some(left), Some(right)) => {
            // A merge looks at both pages, so it may be planned on a guess. On a guess, nodes would be split in vain here.
            let (left_bytes, right_bytes) = (table.used_bytes_known(left)?, table.used_bytes_known(right)?);
            let fit = takes_half(left_bytes) && takes_half(right_bytes);
            fit.then_some(Plan::Halve { node, left_bytes, right_bytes })
        }
        _ => None,
    }
}

/// Whether a half of a node that uses `used_bytes` may fit with a neighbour that uses `other_bytes`. The exact bytes are known when the halves are made.
fn takes_half_of(used_bytes: usize, other_bytes: usize) -> bool {
    let half_bytes = used_bytes.saturating_sub(COMMON_BYTES) / 2;
    other_bytes + half_bytes <= MERGED_BYTES_MAX && other_bytes > half_bytes
}

/// The neighbour of a key's node whose halves may fit with its neighbours, since the node uses no more than `used_bytes`: the neighbour's
/// anchor. The last of three nodes to shrink is not always the middle one.
fn neighbour_to_halve(cx: &mut Context, tree: usize, key: &[u8], used_bytes: usize) -> Option<Vec<u8>> {
    cx.node_of(tree, key);
    let (mut before, mut behind) = (cx.anchor.clone(), cx.anchor.clone());
    let search = &mut cx.trees[tree].search;
    let neighbours = [(search.previous(&mut before), before), (search.next(&mut behind), behind)];
    neighbours.into_iter().find_map(|(neighbour, anchor)| {
        let neighbour_bytes = cx.state.cache.table.used_bytes(NodeId(neighbour? as u32));
        let may = takes_half_of(neighbour_bytes, used_bytes);
        let is_planned = may && matches!(plan_of(cx, tree, &anchor, neighbour_bytes), Some(Plan::Halve { .. }));
        is_planned.then(|| anchor.to_vec())
    })
}

/// Takes the pages of two neighbours, if both are available at once.
fn take_pair(cx: &Context, pair: NodePair, keyspace: KeyspaceId) -> NeighbourLook {
    let NodePair { left, right, anchor } = pair;
    let left = match take_for_merge(cx, left, keyspace) {
        Ok(page) => TakenPage { node: left, page },
        Err(look) => return look,
    };
    match take_for_merge(cx, right, keyspace) {
        Ok(page) => NeighbourLook::Taken(Neighbours { left, right: TakenPage { node: right, page }, anchor }),
        Err(look) => {
            cx.state.cache.give_back(left.node, left.page, |_| ());
            look
        }
    }
}

fn take_for_merge(cx: &Context, node: NodeId, keyspace: KeyspaceId) -> Result<LocalBuffer, NeighbourLook> {
    let may = |meta: &mut PageMeta| !meta.is_being_written() && meta.keyspace == keyspace.0;
    match cx.state.cache.take_if(node, may) {
        PageLook::Taken(page) => Ok(page),
        PageLook::Busy => Err(NeighbourLook::Busy),
        PageLook::Absent(home) => Err(NeighbourLook::Absent(node, home)),
        PageLook::Gone | PageLook::Lost => Err(match cx.state.cache.absent_home(node) {
            Some(home) => NeighbourLook::Absent(node, home),
            None => NeighbourLook::Busy,
        }),
    }
}

/// Has the drive merge two neighbours' pages into a third one, if that leaves room to spare. Returns the bytes that it uses, and the page.
fn merge_into(
    (cx, core): OrderedMeans<'_>,
    [left, right]: [&mut LocalBuffer; 2],
) -> Result<(usize, LocalBuffer), StructureStop> {
    let (merged, mut scratch) = cx.take_both(core).ok_or(StructureStop::NoMemory)?;
    encode_merge(&arguments(NodeFlags::NONE), MERGED_BYTES_MAX, &mut cx.parameters);
    let inputs = [left.range(), right.range()];
    let (program, output) = (cx.state.programs.merge, merged.range());
    let stage = PageStage { program, parameters: &cx.parameters, inputs: &inputs, output };
    let operation = scratch::make_pages(&core.queue, Purpose::Structure, &[stage], &mut scratch);
    let lease = Lease::Pages(Box::new([left.take(), right.take(), merged, scratch]));
    let returned = cx.run(core, Purpose::Structure, operation, lease).ok_or(StructureStop::Stopped)?;
    let Lease::Pages(pages) = returned.lease else { unreachable!("it was lent four") };
    let merged;
    let scratch;
    [*left, *right, merged, scratch] = *pages;
    cx.give_scratch(core, scratch);
    if returned.completion.is_success() || fail_point!(OrderedMergeByDeadUnit) {
        return Ok((returned.completion.result[0] as usize, merged));
    }
    cx.give_page(merged);
    Err(StructureStop::Failed(returned.completion.status))
}

#[cfg(test)]
mod tests {
    use crate::ordered::store_bench::Bench;
    use tapetum_base::log::Sync;
    use tapetum_base::request::{Outcome, Request};
    use tapetum_drive::Purpose;

    /// A node with room between full ones, which are not known to be full after a reopening.
    #[test]
    fn an_overwrite_after_a_reopening_changes_no_structure() {
        let mut bench = Bench::of_bytes(16 << 20, Sync::Always, 1);
        let orders = bench.orders();
        let keys: Vec<Vec<u8>> = (0..300).map(|number| format!("key {number:04}").into_bytes()).collect();
        let put = |bench: &mut Bench, key: &[u8]| {
            let stored = bench.put(orders, key, &[1; 1000]);
            assert!(matches!(stored, Some(Outcome::Stored { .. })), "{stored:?}");
        };
        keys.iter().for_each(|key| put(&mut bench, key));
        // Three to a node.
        assert_eq!(bench.store.stats().nodes, 100);
        for key in keys.iter().skip(4).step_by(9) {
            assert_eq!(bench.run(orders, Request::Delete { key, stamp: None }), Some(Outcome::Deleted));
        }
        let mut bench = bench.reopen();
        let structure = |bench: &Bench| bench.store.ordered().base.drive.counters().purpose(Purpose::Structure);
        let before = structure(&bench);
        keys.iter().skip(3).step_by(9).for_each(|key| put(&mut bench, key));
        assert_eq!((bench.store.stats().nodes, structure(&bench)), (100, before));
    }
}
