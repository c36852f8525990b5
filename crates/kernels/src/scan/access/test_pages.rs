//! Pages of data nodes, for tests of their accessors.

use crate::extent_address::ExtentAddress;
use crate::ordered::{ImageSeal, NODE_BYTES, NewNode, NodeMut, NodePage, SlotAddress, SlotSalt};
use crate::record::{Header, Record};

pub(super) const STORE: u64 = 5;
pub(super) const VERSION: u64 = 11;
pub(super) const KEYSPACE: u16 = 3;

pub(super) fn slot(page: u32) -> SlotAddress {
    SlotAddress::new(ExtentAddress::new(0, 3), page)
}

/// The sealed page of a node with these keys.
pub(super) fn page(at: u32, stamp: u64, low: &str, high: Option<&str>, keys: &[&str]) -> Vec<u8> {
    let mut page: Box<NodePage> = Box::new([0; NODE_BYTES]);
    let (low_fence, high_fence) = (low.as_bytes(), high.map(str::as_bytes));
    let new = NewNode { keyspace: KEYSPACE, id: 17, low_fence, high_fence };
    let mut node = NodeMut::format(&mut page, &new).unwrap();
    for key in keys {
        let header = Header::value(stamp, key.len(), 3);
        node.put(&Record { header, key: key.as_bytes(), stored: b"abc" }).unwrap();
    }
    let seal = ImageSeal { stamp, durable: 0, round_images: 0 };
    node.seal(SlotSalt { store: STORE, slot: slot(at), version: VERSION }, seal);
    page.to_vec()
}
