//! The session's part in sweeps ([`crate::ordered::sweeps`]): a walk over a tree's nodes that wishes merges for those that are known to have room.

use super::OrderedSession;
use crate::ordered::node_table::NodeId;
use crate::ordered::search::AnchorKey;
use tapetum_base::keyspace::KeyspaceId;
use tapetum_base::session::engine_session::EngineSession;
use tapetum_base::session::session_core::SessionCore;
use tapetum_kernels::ordered::NODE_BYTES;

/// Nodes that a step looks at.
const NODES_PER_STEP: usize = 256;
/// With so many wishes, those included whose pages are being read, the walk waits.
const WISHES_MAX: usize = 64;
/// Merges that a step tries, so that others of the thread's tasks are not kept waiting.
const TRIES_PER_STEP: usize = 8;

/// The room of sparse nodes. Of three nodes that fit in two, and of two that fit in one, one has so much.
const SPARSE_ROOM_BYTES: usize = NODE_BYTES / 3;

/// A walk that looks at more nodes for one merge finds little.
const NODES_PER_MERGE: u64 = 64;

/// A walk over the nodes of a tree, in the order of their anchors.
pub struct NodeWalk {
    keyspace: KeyspaceId,
    /// The anchor of the next node. `None`: all nodes were looked at.
    next: Option<Box<AnchorKey>>,
    /// Nodes that were looked at, and nodes that were merged into others.
    looked: u64,
    merged: u64,
}

impl NodeWalk {
    pub fn new(keyspace: KeyspaceId) -> NodeWalk {
        NodeWalk { keyspace, next: Some(Box::default()), looked: 0, merged: 0 }
    }

    /// Whether it was worth its time.
    pub fn found_much(&self) -> bool {
        self.merged * NODES_PER_MERGE >= self.looked.max(1)
    }
}

impl OrderedSession {
    /// Takes a step of a walk, and polls. The session has no other work. Returns whether the walk is over, and its merges were made or given up.
    /// A walk ends early if its keyspace is dropped.
    pub fn walk(&mut self, core: &mut SessionCore, walk: &mut NodeWalk) -> bool {
        let mut completions = std::mem::take(&mut core.completions);
        core.queue.poll(&mut completions);
        completions.drain(..).for_each(|returned| self.complete(core, returned));
        // The vector is used again.
        completions.append(&mut core.completions);
        core.completions = completions;
        self.wish_on(walk);
        self.waits.merges.try_at_most(TRIES_PER_STEP);
        self.attempt_in_pass(core);
        self.waits.merges.forget_put_off();
        walk.merged += self.waits.merges.take_made();
        walk.next.is_none() && !self.waits.merges.wait() && self.reads.count() == 0
    }

    /// Wishes merges for some of the next nodes.
    fn wish_on(&mut self, walk: &mut NodeWalk) {
        let OrderedSession { waits, cx, reads, .. } = self;
        // Its reads take no more of the cache than a session's.
        let wishes_max = WISHES_MAX.min(waits.fetches.left());
        if waits.merges.count() + reads.count() >= wishes_max {
            return;
        }
        let Some(mut anchor) = walk.next.take() else { return };
        let Ok(tree) = cx.tree_of(walk.keyspace) else { return };
        let mut node = cx.trees[tree].search.floor(&anchor.clone(), &mut anchor);
        for _ in 0..NODES_PER_STEP {
            walk.looked += 1;
            let (node_id, table) = (NodeId(node as u32), &cx.state.cache.table);
            if table.room_bytes_known(node_id) >= SPARSE_ROOM_BYTES {
                let used_bytes = table.used_bytes(node_id);
                waits.merges.wish(cx, walk.keyspace, &anchor, used_bytes);
            }
            // Its place among the session's trees may be another one by now.
            let Ok(tree) = cx.tree_of(walk.keyspace) else { return };
            match cx.trees[tree].search.next(&mut anchor) {
                Some(next) => node = next,
                None => return,
            }
            if waits.merges.count() + reads.count() >= wishes_max {
                break;
            }
        }
        walk.next = Some(anchor);
    }
}
