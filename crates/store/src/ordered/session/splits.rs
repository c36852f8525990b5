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
        let (tree, spare, upper) = (self.tree_of(keyspace)?, self.take_page(core), state.cache.table.give());
        let (Some(mut left), Some(upper)) = (spare, upper) else {
            state.cache.give_back(node, page, |_| ());
            return if upper.is_none() { Err(Error::FullIndex) } else { Ok(false) };
        };
        let Some(mut right) = state.cache.reserve(upper, keyspace.0) else {
            state.cache.table.free(upper);
            state.cache.give_back(node, page, |_| ());
            self.give_page(left);
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
