//! Splits: a node that has no room for a record becomes two.
//!
//! ```text
//! page taken, a place reserved for the upper half ─► both halves made ─► anchor of the upper half ─► lower half given back ─► upper one
//! ```
//! A reader that comes with the new anchor finds the upper half taken until it is there. One that came with the old one finds that the
//! lower half's fences do not cover its key, and asks the search layer again, which has the anchor by then.

use super::changes::with_record;
use super::looks::damaged;
use super::op_state::OrderedOp;
use super::{OrderedSession, of_search};
use crate::error::Error;
use crate::keyspace::KeyspaceId;
use crate::ordered::node_table::NodeId;
use crate::ordered::search::AnchorChange;
use crate::session::session_core::SessionCore;
use tapetum_drive::{LocalBuffer, Purpose, QueuePair};
use tapetum_kernels::ordered::{
    Arrival, NODE_BYTES, NodeError, NodeOrder, NodePage, NodeRef, node_record_bytes, split,
};

impl OrderedSession {
    /// Splits a node for an operation's record; the operation is attempted again.
    pub(super) fn split(
        &mut self,
        core: &mut SessionCore,
        (number, mut op): (usize, Box<OrderedOp>),
        node: NodeId,
        page: LocalBuffer,
    ) {
        let made = self.try_split(core, &op, node, page);
        op.kept.change = None;
        match made {
            Ok(true) => self.try_again(number, op),
            Ok(false) if self.state.cache.table.is_full() => self.fail(core, (number, op), Error::FullIndex),
            Ok(false) => self.wait_for_room(number, op),
            Err(error) => self.fail(core, (number, op), error),
        }
    }

    /// Whether there was room for another page. The page is given back in any case.
    fn try_split(
        &mut self,
        core: &mut SessionCore,
        op: &OrderedOp,
        node: NodeId,
        page: LocalBuffer,
    ) -> Result<bool, Error> {
        let keyspace = op.keyspace.id();
        let state = self.state.clone();
        let tree = match self.tree_of(keyspace) {
            Ok(tree) => tree,
            Err(error) => {
                state.cache.give_back(node, page, |_| ());
                return Err(error);
            }
        };
        let Some((upper, mut left, mut right)) = self.take_halves(core, keyspace) else {
            state.cache.give_back(node, page, |_| ());
            return Ok(false);
        };
        let made = with_record(op, |record| {
            let arrival = Arrival { key: record.key, record_bytes: node_record_bytes(&record.header) };
            halve(&core.queue, &page, (arrival, upper), (&mut left, &mut right), &mut self.order)
        });
        let anchored = made.map_err(|_| damaged(node)).and_then(|()| {
            let right = core.queue.look(Purpose::Put, &right, 0..NODE_BYTES);
            let anchor = NodeRef::look(right).map_err(|_| damaged(node))?.low_fence();
            self.trees[tree].search.insert(anchor, upper.0.into()).map_err(of_search)
        });
        match anchored {
            Ok(AnchorChange::Done) => {}
            other => {
                state.cache.discard(upper, right);
                state.cache.give_back(node, page, |_| ());
                self.give_page(left);
                return other.and(Err(damaged(node)));
            }
        }
        let tree = self.trees[tree].tree.clone();
        let of_upper = state.cache.give_back(node, left, |meta| meta.split(|slot| tree.nodes.resume(slot)));
        state.cache.give_back(upper, right, |meta| *meta = of_upper);
        [node, upper].into_iter().for_each(|node| state.list(&tree, node));
        self.give_page(page);
        Ok(true)
    }
}

impl OrderedSession {
    /// A new node, a buffer for the lower half, and the new node's page. `None`: there is no room for them now.
    fn take_halves(&mut self, core: &SessionCore, keyspace: KeyspaceId) -> Option<(NodeId, LocalBuffer, LocalBuffer)> {
        let left = self.take_page(core)?;
        let upper = self.state.cache.table.give();
        let right = upper.and_then(|upper| self.state.cache.reserve(upper, keyspace.0));
        match (upper, right) {
            (Some(upper), Some(right)) => Some((upper, left, right)),
            (upper, _) => {
                upper.into_iter().for_each(|upper| self.state.cache.table.free(upper));
                self.give_page(left);
                None
            }
        }
    }
}

/// Makes two pages of one, so that there is room for the arrival, or more than there was.
fn halve(
    queue: &QueuePair,
    page: &LocalBuffer,
    (arrival, upper): (Arrival<'_>, NodeId),
    (left, right): (&mut LocalBuffer, &mut LocalBuffer),
    order: &mut NodeOrder,
) -> Result<(), NodeError> {
    let node = NodeRef::look(queue.look(Purpose::Put, page, 0..NODE_BYTES))?;
    order.sort(&node)?;
    let halves = (page_of(queue, left)?, page_of(queue, right)?);
    split((&node, order), Some(arrival), upper.0.into(), halves)?;
    Ok(())
}

/// A page's bytes, to be written.
pub(super) fn page_of<'a>(queue: &QueuePair, buffer: &'a mut LocalBuffer) -> Result<&'a mut NodePage, NodeError> {
    queue.fill(Purpose::Put, buffer, 0..NODE_BYTES).try_into().map_err(|_| NodeError::Damaged)
}
