//! Merges: two neighbours that are nearly empty become one, so that deletes give space back.
//!
//! ```text
//! removal ─► node nearly empty ─► wish ─► both pages taken ─► merged into a third ─► right anchor goes ─► left one given back
//!                                  ▲          └─ not cached: read, installed
//!                                  └── taken, or on its way to flash: at a later poll, so many times
//! ```
//! Dead records of both go first. No operation waits for a merge. A wish that is given up is made again by the next removal from the node.

use super::page_reads::{PageRead, PageReader};
use super::purges::purge;
use super::splits::page_of;
use super::{OrderedSession, of_search};
use crate::error::Error;
use crate::keyspace::KeyspaceId;
use crate::ordered::cache::PageLook;
use crate::ordered::cache::page_meta::PageMeta;
use crate::ordered::node_table::{NodeHome, NodeId};
use crate::ordered::search::{AnchorChange, AnchorKey};
use crate::planted::Bug;
use crate::session::session_core::SessionCore;
use tapetum_drive::{LocalBuffer, Purpose, QueuePair};
use tapetum_kernels::ordered::{NODE_BYTES, NodeError, NodeRef, merge, merged_bytes};

/// A node that uses less than this is to be merged.
const SPARSE_BYTES: usize = NODE_BYTES * 35 / 100;
/// A merged node uses no more than this: it has room for what comes next.
const MERGED_BYTES_MAX: usize = NODE_BYTES * 70 / 100;
/// Wishes that a session keeps from one poll to the next.
const WISHES_MAX: usize = 64;
/// Polls for which a wish is kept: pages are on their way to flash for some.
const TRIES_MAX: u32 = 200;

/// A key whose node is nearly empty.
pub(super) struct MergeWish {
    keyspace: KeyspaceId,
    key: Vec<u8>,
    tries: u32,
}

/// The merges that a session wishes for.
#[derive(Default)]
pub(super) struct Merges {
    wishes: Vec<MergeWish>,
}

impl Merges {
    /// Whether some are to be tried again.
    pub fn wait(&self) -> bool {
        !self.wishes.is_empty()
    }

    /// The page that a wish waited for was read.
    pub fn wish_again(&mut self, wish: MergeWish) {
        self.wishes.push(wish);
    }
}

/// Two neighbours whose pages are taken.
struct Neighbours {
    left: (NodeId, LocalBuffer),
    right: (NodeId, LocalBuffer),
    /// The right one's anchor.
    anchor: Box<AnchorKey>,
}

enum NeighbourLook {
    Taken(Neighbours),
    /// The page of this one is to be read.
    Absent(NodeId, NodeHome),
    /// Not now.
    Busy,
    /// The tree has one node.
    Alone,
}

/// What came of a try.
enum Tried {
    /// The merged node uses so many bytes.
    Merged(usize),
    NotNow,
    Reads(NodeId, NodeHome),
    Over,
}

impl OrderedSession {
    /// The node of a key has lost records, and uses so many bytes.
    pub(super) fn wish_to_merge(&mut self, keyspace: KeyspaceId, key: &[u8], used_bytes: usize) {
        if used_bytes < SPARSE_BYTES && self.merges.wishes.len() < WISHES_MAX {
            self.merges.wishes.push(MergeWish { keyspace, key: key.to_vec(), tries: 0 });
        }
    }

    pub(super) fn attempt_merges(&mut self, core: &mut SessionCore) {
        for mut wish in std::mem::take(&mut self.merges.wishes) {
            wish.tries += 1;
            // Who is told what is wrong is the next operation that comes there.
            match self.try_merge(core, &wish).unwrap_or(Tried::Over) {
                Tried::Merged(used_bytes) if used_bytes < SPARSE_BYTES => {
                    self.merges.wishes.push(MergeWish { tries: 0, ..wish });
                }
                Tried::NotNow if wish.tries < TRIES_MAX => self.merges.wishes.push(wish),
                // The neighbour's page is there at the next try.
                Tried::Reads(node, home) if wish.tries < TRIES_MAX => {
                    // No record has the empty key, which is the leftmost node's.
                    let key = if wish.key.is_empty() { vec![0] } else { wish.key.clone() };
                    let keyspace = wish.keyspace;
                    self.read_page(core, PageRead { keyspace, node, home, key, reader: PageReader::Merge(wish) });
                }
                Tried::Merged(_) | Tried::NotNow | Tried::Reads(..) | Tried::Over => {}
            }
        }
    }

    fn try_merge(&mut self, core: &mut SessionCore, wish: &MergeWish) -> Result<Tried, Error> {
        let tree = self.tree_of(wish.keyspace)?;
        let Neighbours { mut left, mut right, anchor } = match self.neighbours(tree, wish) {
            NeighbourLook::Taken(neighbours) => neighbours,
            NeighbourLook::Absent(node, home) => return Ok(Tried::Reads(node, home)),
            NeighbourLook::Busy => return Ok(Tried::NotNow),
            NeighbourLook::Alone => return Ok(Tried::Over),
        };
        let state = self.state.clone();
        let keyspace_tree = self.trees[tree].tree.clone();
        let [of_left, of_right] =
            [&mut left, &mut right].map(|(_, page)| purge(core, &keyspace_tree, page).unwrap_or_default());
        let mut merged = self.take_page(core);
        let pages = (&left.1, &right.1);
        let used_bytes = merged.as_mut().and_then(|merged| merge_into(&core.queue, pages, merged).ok());
        let removed = match used_bytes {
            Some(_) => self.trees[tree].search.remove(&anchor, right.0.0.into()).map_err(of_search),
            None => Ok(AnchorChange::Absent),
        };
        let (Ok(AnchorChange::Done), Some(merged), Some(used_bytes)) = (&removed, merged, used_bytes) else {
            for ((node, page), purged) in [(left, of_left), (right, of_right)] {
                state.cache.give_back(node, page, |meta| purged.tell(meta));
                state.list(&keyspace_tree, node);
            }
            return removed.map(|_| Tried::Over);
        };
        let mut meta_of_right = state.cache.discard(right.0, right.1);
        of_right.tell(&mut meta_of_right);
        if core.base.planted.has(Bug::OrderedMergeForgets) {
            meta_of_right.shared.clear();
            drop(meta_of_right.slot.take().map(|slot| keyspace_tree.nodes.resume(slot)));
        }
        state.cache.give_back(left.0, merged, |meta| {
            of_left.tell(meta);
            meta.merge(meta_of_right, |slot| keyspace_tree.nodes.resume(slot));
        });
        state.list(&keyspace_tree, left.0);
        self.give_page(left.1);
        Ok(Tried::Merged(used_bytes))
    }

    /// The pages of a key's node and its right neighbour, or of the left one if there is none, if they can be had at once.
    fn neighbours(&mut self, tree: usize, wish: &MergeWish) -> NeighbourLook {
        let mut node = self.node_of(tree, &wish.key);
        let mut anchor = Box::new(self.anchor.clone());
        let search = &mut self.trees[tree].search;
        let right = match search.next(&mut anchor) {
            Some(right) => NodeId(right as u32),
            None => {
                *anchor = self.anchor.clone();
                let mut before = self.anchor.clone();
                let Some(left) = search.previous(&mut before) else { return NeighbourLook::Alone };
                std::mem::replace(&mut node, NodeId(left as u32))
            }
        };
        let left = match self.take_for_merge(node, wish.keyspace) {
            Ok(page) => (node, page),
            Err(look) => return look,
        };
        match self.take_for_merge(right, wish.keyspace) {
            Ok(page) => NeighbourLook::Taken(Neighbours { left, right: (right, page), anchor }),
            Err(look) => {
                self.state.cache.give_back(left.0, left.1, |_| ());
                look
            }
        }
    }

    fn take_for_merge(&self, node: NodeId, keyspace: KeyspaceId) -> Result<LocalBuffer, NeighbourLook> {
        let may = |meta: &mut PageMeta| !meta.is_being_written() && meta.keyspace == keyspace.0;
        match self.state.cache.take_if(node, may) {
            PageLook::Taken(page) => Ok(page),
            PageLook::Busy => Err(NeighbourLook::Busy),
            PageLook::Absent(home) => Err(NeighbourLook::Absent(node, home)),
            PageLook::Gone => Err(match self.state.cache.absent_home(node) {
                Some(home) => NeighbourLook::Absent(node, home),
                None => NeighbourLook::Busy,
            }),
        }
    }
}

/// Makes one page of two neighbours' pages, if that leaves room to spare; how many bytes it uses.
fn merge_into(
    queue: &QueuePair,
    (left, right): (&LocalBuffer, &LocalBuffer),
    merged: &mut LocalBuffer,
) -> Result<usize, NodeError> {
    let left = NodeRef::look(queue.look(Purpose::Put, left, 0..NODE_BYTES))?;
    let right = NodeRef::look(queue.look(Purpose::Put, right, 0..NODE_BYTES))?;
    let used_bytes = merged_bytes(&left, &right)?;
    if used_bytes > MERGED_BYTES_MAX {
        return Err(NodeError::NoRoom);
    }
    merge(&left, &right, page_of(queue, merged)?)?;
    Ok(used_bytes)
}
