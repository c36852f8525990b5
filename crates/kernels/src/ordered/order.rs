//! The order of a node's records by key. The node does not keep it: it is computed into a caller's scratch for a scan
//! or a split.

use super::layout::{offset_at, u16_at};
use super::{NODE_SLOTS_MAX, NodeError, NodeRecord, NodeRef};
use std::ops::Range;

/// The order of one node's records. It is invalid once the node changes.
pub struct NodeOrder {
    places: [OrderPlace; NODE_SLOTS_MAX],
    count: usize,
}

#[derive(Clone, Copy)]
struct OrderPlace {
    /// Bytes of the key behind the prefix that all keys share, as a number; zeros behind its end.
    prefix: u64,
    /// Offsets in the page at which the record and its key begin.
    record_at: u16,
    key_at: u16,
    key_bytes: u16,
}

impl OrderPlace {
    const NONE: OrderPlace = OrderPlace { prefix: 0, record_at: 0, key_at: 0, key_bytes: 0 };

    fn key<'a>(&self, node: &NodeRef<'a>) -> &'a [u8] {
        let from = usize::from(self.key_at);
        node.bytes.get(from..from + usize::from(self.key_bytes)).unwrap_or(&[])
    }
}

impl Default for NodeOrder {
    fn default() -> NodeOrder {
        NodeOrder::new()
    }
}

impl NodeOrder {
    /// The order of no records.
    pub const fn new() -> NodeOrder {
        NodeOrder { places: [OrderPlace::NONE; NODE_SLOTS_MAX], count: 0 }
    }

    /// Computes the order of a node's records.
    ///
    /// # Errors
    /// [`NodeError::Damaged`] when a record is inconsistent, or two have the same key.
    pub fn sort(&mut self, node: &NodeRef<'_>) -> Result<(), NodeError> {
        self.count = 0;
        let places = &mut self.places[..node.count()];
        for (slot, place) in places.iter_mut().enumerate() {
            let record = node.record(slot)?;
            let key_at = record.stored_at() - record.key.len();
            *place = OrderPlace {
                prefix: 0,
                record_at: u16_at(node.bytes, offset_at(slot)) as u16,
                key_at: key_at as u16,
                key_bytes: record.key.len() as u16,
            };
        }
        let shared = shared_bytes(node, places);
        places.iter_mut().for_each(|place| place.prefix = prefix(place.key(node), shared));
        places.sort_unstable_by(|one, other| {
            one.prefix.cmp(&other.prefix).then_with(|| one.key(node).cmp(other.key(node)))
        });
        if !places.is_sorted_by(|one, other| one.key(node) < other.key(node)) {
            return Err(NodeError::Damaged);
        }
        self.count = node.count();
        Ok(())
    }

    pub fn count(&self) -> usize {
        self.count
    }

    /// The key in a place below the count; empty for any other place.
    pub fn key<'a>(&self, node: &NodeRef<'a>, place: usize) -> &'a [u8] {
        self.places[..self.count].get(place).map_or(&[], |place| place.key(node))
    }

    /// The record in a place of the order.
    ///
    /// # Errors
    /// [`NodeError::Damaged`] when there is none.
    pub fn record<'a>(&self, node: &NodeRef<'a>, place: usize) -> Result<NodeRecord<'a>, NodeError> {
        let place = self.places[..self.count].get(place).ok_or(NodeError::Damaged)?;
        node.record_at(place.record_at.into())
    }

    /// The place of the first key that is not below `key`; the count when there is none.
    pub fn lower_bound(&self, node: &NodeRef<'_>, key: &[u8]) -> usize {
        self.places[..self.count].partition_point(|place| place.key(node) < key)
    }

    /// Records in the order of their keys, from either end.
    pub fn records<'a>(
        &'a self,
        node: NodeRef<'a>,
        places: Range<usize>,
    ) -> impl DoubleEndedIterator<Item = Result<NodeRecord<'a>, NodeError>> {
        places.map(move |place| self.record(&node, place))
    }
}

/// The number of bytes that all keys begin with.
fn shared_bytes(node: &NodeRef<'_>, places: &[OrderPlace]) -> usize {
    let Some((first, rest)) = places.split_first() else { return 0 };
    let first = first.key(node);
    rest.iter().fold(first.len(), |shared, place| common_bytes(&first[..shared], place.key(node)))
}

/// The number of bytes that both begin with.
pub(super) fn common_bytes(one: &[u8], other: &[u8]) -> usize {
    let (words, _) = one.as_chunks::<8>();
    let (others, _) = other.as_chunks::<8>();
    let mut at = 0;
    for (word, other) in words.iter().zip(others) {
        let differs = u64::from_le_bytes(*word) ^ u64::from_le_bytes(*other);
        if differs != 0 {
            return at + differs.trailing_zeros() as usize / 8;
        }
        at += 8;
    }
    at + one[at..].iter().zip(&other[at..]).take_while(|(one, other)| one == other).count()
}

fn prefix(key: &[u8], shared: usize) -> u64 {
    let rest = key.get(shared..).unwrap_or(&[]);
    match rest.first_chunk() {
        Some(bytes) => u64::from_be_bytes(*bytes),
        None => {
            let mut bytes = [0; 8];
            bytes[..rest.len()].copy_from_slice(rest);
            u64::from_be_bytes(bytes)
        }
    }
}
