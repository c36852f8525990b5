//! Splits a node into two, and merges two into one.
//!
//! When a node is cut, the separator becomes the high fence of the left half and the low fence of the right one. It is
//! the shortest key that is above all keys on the left and not above any on the right. A cut between two records always
//! fits: the separator is at most as long as the key on either side (and a byte), so the fence that a half gets takes
//! no more than the records that it loses.
//!
//! A split makes room for a record, its *arrival*. The arrival counts when the cut is chosen, and may get a half for
//! itself. If no cut makes room for it, the node is cut all the same. Then the half in which the arrival belongs has
//! fewer records, and the caller splits that half again. A node with one record is cut between that record and the
//! arrival, and then both have room. At most three splits in a row were seen.

use super::layout::slots_end;
use super::node_mut::NewNode;
use super::order::common_bytes;
use super::{NODE_BYTES, NODE_RECORD_BYTES_MAX, NODE_SLOTS_MAX, NodeError, NodeMut, NodeOrder, NodePage, NodeRef};
use std::cmp::Ordering;

/// Cuts that are off the middle by no more than this many bytes are equally good: the shortest separator wins.
const BALANCE_BYTES: usize = NODE_BYTES / 8;

/// A record that has no room yet.
#[derive(Clone, Copy, Debug)]
pub struct Arrival<'k> {
    pub key: &'k [u8],
    /// [`super::node_record_bytes`].
    pub record_bytes: usize,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SplitSide {
    Left,
    Right,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NodeSplit {
    /// The half in which the arrival belongs; the left one if there is no arrival.
    pub side: SplitSide,
    /// Whether the arrival has room there. If not, that half must be split again.
    pub has_room: bool,
}

/// The shortest key above `low` that is not above `high`, the higher one.
pub fn separator<'k>(low: &[u8], high: &'k [u8]) -> &'k [u8] {
    &high[..high.len().min(common_bytes(low, high) + 1)]
}

/// The place of a cut.
#[derive(Clone, Copy, Debug)]
pub enum NodeCut<'k> {
    /// The best place for this record, or the middle.
    For(Option<Arrival<'k>>),
    /// In front of this key, which need not be a record's; a half may have no records.
    At(&'k [u8]),
}

/// Makes the right half of a node whose order is given; it is not sealed. Its low fence is the separator.
///
/// # Errors
/// [`NodeError::TooFew`] when there is no place to cut; [`NodeError::OutsideFences`] and [`NodeError::Unfit`] when the arrival belongs in
/// another node or in none, or the key is none of this node's, or its first one; [`NodeError::NoRoom`] when a half has no room for that key as a
/// fence; [`NodeError::Damaged`] when a record is inconsistent.
pub fn split_off(
    node: &NodeRef<'_>,
    order: &NodeOrder,
    cut: NodeCut<'_>,
    right_id: u64,
    right: &mut NodePage,
) -> Result<NodeSplit, NodeError> {
    if order.count() != node.count() {
        return Err(NodeError::Damaged);
    }
    match cut {
        NodeCut::For(arrival) => split_off_for(node, order, arrival, right_id, right),
        NodeCut::At(separator) => {
            if !node.covers(separator) || separator == node.low_fence() {
                return Err(NodeError::OutsideFences);
            }
            let of_left = order.lower_bound(node, separator);
            let bytes = order.records(*node, 0..of_left).try_fold(0, |sum, record| Ok(sum + record?.bytes))?;
            if node.low_fence().len() + separator.len() + bytes + slots_end(of_left) > NODE_BYTES {
                return Err(NodeError::NoRoom);
            }
            make_right(node, order, separator, of_left, right_id, right)?;
            Ok(NodeSplit { side: SplitSide::Left, has_room: false })
        }
    }
}

fn split_off_for(
    node: &NodeRef<'_>,
    order: &NodeOrder,
    arrival: Option<Arrival<'_>>,
    right_id: u64,
    right: &mut NodePage,
) -> Result<NodeSplit, NodeError> {
    if let Some(Arrival { key, record_bytes }) = arrival {
        if key.is_empty() || record_bytes > NODE_RECORD_BYTES_MAX {
            return Err(NodeError::Unfit);
        }
        if !node.covers(key) {
            return Err(NodeError::OutsideFences);
        }
    }
    let cuts = Cuts::of(node, order, arrival)?;
    let cut = cuts.best().ok_or(NodeError::TooFew)?;
    let separator = separator(cuts.key(cut - 1), cuts.key(cut));
    let made = make_right(node, order, separator, cuts.records_before(cut), right_id, right);
    made.map_err(|_| NodeError::Damaged)?;
    let is_left = cuts.arrival_at.is_none_or(|at| at < cut);
    let side = if is_left { SplitSide::Left } else { SplitSide::Right };
    Ok(NodeSplit { side, has_room: cuts.sides(cut).has_room() })
}

/// Makes the right half, without the first `of_left` records.
fn make_right(
    node: &NodeRef<'_>,
    order: &NodeOrder,
    separator: &[u8],
    of_left: usize,
    right_id: u64,
    right: &mut NodePage,
) -> Result<(), NodeError> {
    let half = NewNode { keyspace: node.keyspace(), id: right_id, low_fence: separator, high_fence: node.high_fence() };
    let mut made = NodeMut::format(right, &half)?;
    for record in order.records(*node, of_left..node.count()) {
        made.append(&record?, node.bytes)?;
    }
    Ok(())
}

/// Makes the left half of a node, given the right one; it keeps the node's id and is not sealed.
///
/// # Errors
/// [`NodeError::NotNeighbours`] when the right page is no half of this node, and [`NodeError::Damaged`] when a record is inconsistent.
pub fn split_rest(node: &NodeRef<'_>, right: &NodeRef<'_>, left: &mut NodePage) -> Result<(), NodeError> {
    let separator = right.low_fence();
    if right.keyspace() != node.keyspace() || right.high_fence() != node.high_fence() {
        return Err(NodeError::NotNeighbours);
    }
    let half =
        NewNode { keyspace: node.keyspace(), id: node.id(), low_fence: node.low_fence(), high_fence: Some(separator) };
    let mut made = NodeMut::format(left, &half).map_err(|_| NodeError::NotNeighbours)?;
    for record in node.records() {
        let record = record?;
        if record.key < separator {
            made.append(&record, node.bytes).map_err(|_| NodeError::Damaged)?;
        }
    }
    let both = made.view().count() + right.count();
    if both == node.count() { Ok(()) } else { Err(NodeError::NotNeighbours) }
}

/// The places at which a node can be cut: in front of each item but the first. Items are the node's records in order,
/// and the arrival.
struct Cuts<'a> {
    node: &'a NodeRef<'a>,
    order: &'a NodeOrder,
    arrival: Option<Arrival<'a>>,
    /// The arrival's place among the items.
    arrival_at: Option<usize>,
    /// Whether the arrival takes the place of a record with its key.
    replaces: bool,
    items: usize,
    /// Bytes of all records before each place of the order, without slots.
    bytes_before: [u16; NODE_SLOTS_MAX + 1],
}

/// Bytes of the two halves, without the arrival and with it.
struct CutSides {
    made: [usize; 2],
    filled: [usize; 2],
}

impl CutSides {
    fn fits(&self) -> bool {
        self.made.iter().all(|bytes| *bytes <= NODE_BYTES)
    }

    fn has_room(&self) -> bool {
        self.fits() && self.filled.iter().all(|bytes| *bytes <= NODE_BYTES)
    }

    fn larger(&self) -> usize {
        self.filled[0].max(self.filled[1])
    }
}

impl<'a> Cuts<'a> {
    fn of(node: &'a NodeRef<'a>, order: &'a NodeOrder, arrival: Option<Arrival<'a>>) -> Result<Cuts<'a>, NodeError> {
        let mut bytes_before = [0; NODE_SLOTS_MAX + 1];
        let mut sum = 0_usize;
        for place in 0..order.count() {
            sum += order.record(node, place)?.bytes();
            // Overlapping records have more bytes than the page.
            bytes_before[place + 1] = u16::try_from(sum).map_err(|_| NodeError::Damaged)?;
        }
        let arrival_at = arrival.map(|arrival| order.lower_bound(node, arrival.key));
        let replaces = arrival.is_some_and(|arrival| arrival_at.is_some_and(|at| order.key(node, at) == arrival.key));
        let items = order.count() + usize::from(arrival.is_some() && !replaces);
        Ok(Cuts { node, order, arrival, arrival_at, replaces, items, bytes_before })
    }

    fn key(&self, item: usize) -> &'a [u8] {
        match (self.arrival_at.map(|at| item.cmp(&at)), self.arrival) {
            (Some(Ordering::Equal), Some(arrival)) => arrival.key,
            (Some(Ordering::Greater), _) if !self.replaces => self.order.key(self.node, item - 1),
            _ => self.order.key(self.node, item),
        }
    }

    /// The number of records in the left half.
    fn records_before(&self, cut: usize) -> usize {
        cut - usize::from(!self.replaces && self.arrival_at.is_some_and(|at| at < cut))
    }

    fn sides(&self, cut: usize) -> CutSides {
        let records = self.records_before(cut);
        let count = self.order.count();
        let bytes = |from: usize, to: usize| usize::from(self.bytes_before[to]) - usize::from(self.bytes_before[from]);
        let separator_bytes = separator(self.key(cut - 1), self.key(cut)).len();
        let low = self.node.low_fence().len() + separator_bytes + bytes(0, records);
        let high = self.node.high_fence().map_or(0, <[u8]>::len) + separator_bytes + bytes(records, count);
        let made = [low + slots_end(records), high + slots_end(count - records)];
        let mut filled = made;
        if let (Some(arrival), Some(at)) = (self.arrival, self.arrival_at) {
            let side = usize::from(at >= cut);
            if self.replaces {
                filled[side] = made[side] + arrival.record_bytes - bytes(at, at + 1).min(arrival.record_bytes);
            } else {
                let of_side = [records, count - records][side];
                filled[side] += arrival.record_bytes + slots_end(of_side + 1) - slots_end(of_side);
            }
        }
        CutSides { made, filled }
    }

    /// The cut to make, if one is possible.
    fn best(&self) -> Option<usize> {
        self.best_at_end().or_else(|| self.best_with_room()).or_else(|| self.best_for_the_next())
    }

    /// If keys come in order, they fill the last node of all. It stays full, and the arrival begins the next node.
    fn best_at_end(&self) -> Option<usize> {
        let last = self.items.checked_sub(1).filter(|last| *last > 0)?;
        let is_at_end = !self.replaces && self.arrival_at == Some(last) && self.node.high_fence().is_none();
        (is_at_end && self.sides(last).has_room()).then_some(last)
    }

    fn best_with_room(&self) -> Option<usize> {
        let cuts = || (1..self.items).map(|cut| (cut, self.sides(cut))).filter(|(_, sides)| sides.has_room());
        let even = cuts().map(|(_, sides)| sides.larger()).min()?;
        let near = cuts().filter(|(_, sides)| sides.larger() <= even + BALANCE_BYTES);
        let cost =
            |(cut, sides): &(usize, CutSides)| (separator(self.key(cut - 1), self.key(*cut)).len(), sides.larger());
        near.min_by_key(cost).map(|(cut, _)| cut)
    }

    /// If no cut has room: the cut that leaves the arrival's half with the fewest bytes.
    fn best_for_the_next(&self) -> Option<usize> {
        let cuts = (1..self.items).map(|cut| (cut, self.sides(cut))).filter(|(_, sides)| sides.fits());
        let cost = |(cut, sides): &(usize, CutSides)| {
            let is_right = self.arrival_at.is_some_and(|at| at >= *cut);
            sides.filled[usize::from(is_right)]
        };
        cuts.min_by_key(cost).map(|(cut, _)| cut)
    }
}

/// Bytes of the node that two neighbours would make.
///
/// # Errors
/// [`NodeError::NotNeighbours`] when their fences do not meet.
pub fn merged_bytes(left: &NodeRef<'_>, right: &NodeRef<'_>) -> Result<usize, NodeError> {
    if left.high_fence() != Some(right.low_fence()) || left.keyspace() != right.keyspace() {
        return Err(NodeError::NotNeighbours);
    }
    let fences = left.low_fence().len() + right.high_fence().map_or(0, <[u8]>::len);
    Ok(slots_end(left.count() + right.count()) + left.live_bytes() + right.live_bytes() + fences)
}

/// Makes one node of two neighbours, with the left one's id. It is not sealed.
///
/// # Errors
/// [`NodeError::NoRoom`] when they do not fit in one, and the errors of [`merged_bytes`].
pub fn merge(left: &NodeRef<'_>, right: &NodeRef<'_>, out: &mut NodePage) -> Result<(), NodeError> {
    if merged_bytes(left, right)? > NODE_BYTES {
        return Err(NodeError::NoRoom);
    }
    let (keyspace, id) = (left.keyspace(), left.id());
    let node = NewNode { keyspace, id, low_fence: left.low_fence(), high_fence: right.high_fence() };
    let mut made = NodeMut::format(out, &node).map_err(|_| NodeError::Damaged)?;
    for node in [left, right] {
        for record in node.records() {
            made.append(&record?, node.bytes).map_err(|_| NodeError::Damaged)?;
        }
    }
    Ok(())
}
