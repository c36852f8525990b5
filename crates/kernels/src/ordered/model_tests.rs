//! Many nodes, as a host keeps them, against a map: puts, removals, splits and merges, and scans both ways.

use super::extension::{ExtensionClass, ExtensionReference};
use super::split_tests::check_halves;
use super::testing::{Numbers, blank, node, salt, split};
use super::{
    Arrival, ImageSeal, NODE_RECORD_BYTES_MAX, NodeCut, NodeError, NodeMut, NodeOrder, NodePage, NodeRef, SplitSide,
    merge, merged_bytes, node_record_bytes,
};
use crate::expiry::Expiry;
use crate::record::{Codec, Header, Record};
use std::collections::BTreeMap;
use std::ops::Bound;

/// Neighbours become one when that leaves it so full at most.
const MERGED_BYTES_MAX: usize = 3000;

/// Nodes by their low fences, and what they should hold.
struct Model {
    nodes: BTreeMap<Vec<u8>, Box<NodePage>>,
    map: BTreeMap<Vec<u8>, (Header, Vec<u8>)>,
    order: NodeOrder,
    splits: usize,
    merges: usize,
}

impl Model {
    fn new() -> Model {
        let nodes = BTreeMap::from([(Vec::new(), node(b"", None))]);
        Model { nodes, map: BTreeMap::new(), order: NodeOrder::default(), splits: 0, merges: 0 }
    }

    fn page(&mut self, key: &[u8]) -> &mut NodePage {
        self.nodes.range_mut::<[u8], _>((Bound::Unbounded, Bound::Included(key))).next_back().unwrap().1
    }

    fn put(&mut self, header: Header, key: &[u8], stored: Vec<u8>) {
        let record = Record { header, key, stored: &stored };
        let before = self.map.get(key).map(|(header, _)| header.stamp);
        loop {
            let has_room =
                NodeRef::look(&self.page(key)[..]).unwrap().has_room(key, node_record_bytes(&header)).unwrap();
            let put = NodeMut::look(self.page(key)).unwrap().put(&record);
            assert_eq!(has_room, put.is_ok());
            match put {
                Ok(replaced) => {
                    assert_eq!(replaced.map(|replaced| replaced.stamp), before);
                    break;
                }
                Err(NodeError::NoRoom) => self.split(key, node_record_bytes(&header)),
                Err(error) => panic!("{error:?}"),
            }
        }
        self.map.insert(key.to_vec(), (header, stored));
    }

    fn split(&mut self, key: &[u8], record_bytes: usize) {
        self.splits += 1;
        let page = Box::new(*self.page(key));
        let reader = NodeRef::look(&page[..]).unwrap();
        self.order.sort(&reader).unwrap();
        let cut = NodeCut::For(Some(Arrival { key, record_bytes }));
        let (done, mut halves) = split(&reader, &self.order, cut).unwrap();
        check_halves(&page, &mut halves);
        let [left, right] = halves;
        let fence = NodeRef::look(&right[..]).unwrap().low_fence().to_vec();
        assert_eq!(done.side == SplitSide::Right, key >= &fence[..]);
        self.nodes.insert(reader.low_fence().to_vec(), left);
        self.nodes.insert(fence, right);
    }

    fn remove(&mut self, key: &[u8]) {
        let removed = NodeMut::look(self.page(key)).unwrap().remove(key).unwrap();
        let expected = self.map.remove(key).map(|(header, _)| header.stamp);
        assert_eq!(removed.map(|removed| removed.stamp), expected);
        let low = NodeRef::look(self.page(key)).unwrap().low_fence().to_vec();
        self.merge_at(&low);
        let before = self.nodes.range::<[u8], _>((Bound::Unbounded, Bound::Excluded(&low[..]))).next_back();
        if let Some(before) = before.map(|(low, _)| low.clone()) {
            self.merge_at(&before);
        }
    }

    /// Merges the node of this low fence with the one behind it, if that leaves room.
    fn merge_at(&mut self, low: &[u8]) {
        let left = self.nodes[low].clone();
        let left = NodeRef::look(&left[..]).unwrap();
        let Some(high) = left.high_fence() else { return };
        let right = NodeRef::look(&self.nodes[high][..]).unwrap();
        if merged_bytes(&left, &right).unwrap() <= MERGED_BYTES_MAX {
            self.merges += 1;
            let mut merged = blank();
            merge(&left, &right, &mut merged).unwrap();
            self.nodes.remove(high);
            self.nodes.insert(low.to_vec(), merged);
        }
    }

    /// Seals and checks all nodes, and reads everything: by key, and in both orders.
    fn check(&mut self) {
        let mut fence = Some(Vec::new());
        let (mut forwards, mut backwards) = (Vec::new(), Vec::new());
        for (low, page) in &mut self.nodes {
            NodeMut::look(&mut page[..]).unwrap().seal(salt(1), ImageSeal { stamp: 77, durable: 0, round_images: 0 });
            let reader = NodeRef::check(&page[..], salt(1)).unwrap();
            assert_eq!(Some(low), fence.as_ref());
            fence = reader.high_fence().map(<[u8]>::to_vec);
            self.order.sort(&reader).unwrap();
            let records = self.order.records(reader, 0..self.order.count());
            forwards.extend(records.map(|record| record.unwrap().key.to_vec()));
        }
        assert_eq!(fence, None);
        for page in self.nodes.values().rev() {
            let reader = NodeRef::look(&page[..]).unwrap();
            self.order.sort(&reader).unwrap();
            let records = self.order.records(reader, 0..self.order.count()).rev();
            backwards.extend(records.map(|record| record.unwrap().key.to_vec()));
        }
        assert!(forwards.iter().eq(self.map.keys()));
        assert!(backwards.iter().eq(self.map.keys().rev()));
        for (key, (header, stored)) in &self.map {
            let page =
                self.nodes.range::<[u8], _>((Bound::Unbounded, Bound::Included(&key[..]))).next_back().unwrap().1;
            let reader = NodeRef::look(&page[..]).unwrap();
            let found = reader.get(key).unwrap().unwrap();
            assert_eq!((found.header, found.stored), (*header, &stored[..]));
            let place = {
                self.order.sort(&reader).unwrap();
                self.order.lower_bound(&reader, key)
            };
            assert_eq!(self.order.key(&reader, place), key);
        }
    }
}

/// A key of few different bytes, so that many are prefixes of each other, and of any length.
fn key(numbers: &mut Numbers, length_max: usize) -> Vec<u8> {
    let length = 1 + if numbers.below(4) == 0 { numbers.below(length_max) } else { numbers.below(10) };
    let stem = [0, b'a', 0xff][numbers.below(3)];
    let mut key = vec![stem; length];
    let tail = numbers.below(length.min(4) + 1);
    key[length - tail..].iter_mut().for_each(|byte| *byte = [0, 1, b'a', 0xfe, 0xff][numbers.below(5)]);
    key
}

/// A value that lies in the node, or in an extension of any size.
fn value(numbers: &mut Numbers, stamp: u64, key: &[u8]) -> (Header, Vec<u8>) {
    let kind = numbers.below(10);
    let inline_max = NODE_RECORD_BYTES_MAX + 2000 - node_record_bytes(&Header::value(stamp, key.len(), 2000));
    let length = match kind {
        0 => inline_max - numbers.below(2),
        1 | 2 => numbers.below(inline_max),
        _ => numbers.below(130),
    };
    let mut header = Header::value(stamp, key.len(), length);
    (header.flags, header.expiry) = ([0, 7][numbers.below(2)], Expiry::from_millis([0, 9][numbers.below(2)]));
    if kind == 9 {
        let class = [4 << 10, 8 << 10, 16 << 10, 32 << 10, 64 << 10, 128 << 10, 16 << 20][numbers.below(7)];
        let stored_bytes = (class - 32 - key.len() + numbers.below(2)).min(16 << 20) as u32;
        let reference = ExtensionReference { stamp, slot: salt(stamp as u32).slot, codec: Codec::Raw, stored_bytes };
        assert!(ExtensionClass::of(key.len(), stored_bytes as usize).is_some());
        let stored = reference.encode().to_vec();
        (header.codec, header.stored_bytes, header.raw_bytes) = (Codec::OutOfLine, stored.len() as u32, stored_bytes);
        return (header, stored);
    }
    if node_record_bytes(&header) > NODE_RECORD_BYTES_MAX {
        (header.flags, header.expiry) = (0, Expiry::NONE);
    }
    (header, (0..length).map(|place| (stamp as usize + place) as u8).collect())
}

fn churn(seed: u64, steps: usize, length_max: usize) {
    let mut numbers = Numbers::new(seed);
    let mut model = Model::new();
    for step in 1..=steps {
        // More is put at first, and more removed at last.
        let removes = numbers.below(steps) < step * 4 / 5;
        let known = if model.map.is_empty() { None } else { model.map.keys().nth(numbers.below(model.map.len())) };
        let (some, other) = (known.cloned(), key(&mut numbers, length_max));
        let key = if removes || numbers.below(3) == 0 { some.unwrap_or(other) } else { other };
        if removes {
            model.remove(&key);
        } else {
            let (header, stored) = value(&mut numbers, step as u64, &key);
            model.put(header, &key, stored);
        }
        if step % (steps / 8) == 0 {
            model.check();
        }
    }
    while let Some(key) = model.map.keys().next().cloned() {
        model.remove(&key);
    }
    model.check();
    assert!(model.splits > 3 && model.merges > 3, "{} splits, {} merges", model.splits, model.merges);
    assert_eq!(model.nodes.len(), 1, "merges give the space back");
}

#[test]
fn nodes_hold_what_a_map_holds() {
    (0..12).for_each(|seed| churn(seed, 1500, 60));
}

#[test]
fn nodes_with_the_longest_keys_hold_what_a_map_holds() {
    (100..108).for_each(|seed| churn(seed, 800, 1024));
}
