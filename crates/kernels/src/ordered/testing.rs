//! Helpers that the tests of nodes and extensions share.

use super::extension::{ExtensionReference, REFERENCE_BYTES};
use super::{
    NODE_BYTES, NewNode, NodeCut, NodeError, NodeMut, NodeOrder, NodePage, NodeRef, NodeSplit, SlotAddress, SlotSalt,
    split_off, split_rest,
};
use crate::expiry::Expiry;
use crate::extent_address::ExtentAddress;
use crate::random::mix;
use crate::record::{Codec, Header, Marks, Record};

/// The salt of a slot of a test's store.
pub fn salt(page: u32) -> SlotSalt {
    SlotSalt { store: 5, slot: SlotAddress::new(ExtentAddress::new(0, 3), page), version: 11 }
}

pub fn blank() -> Box<NodePage> {
    Box::new([0; NODE_BYTES])
}

/// An empty node that covers all keys between two fences.
pub fn node(low_fence: &[u8], high_fence: Option<&[u8]>) -> Box<NodePage> {
    let mut page = blank();
    NodeMut::format(&mut page, &NewNode { keyspace: 3, id: 17, low_fence, high_fence }).unwrap();
    page
}

/// Makes both halves of a node; the right one has the id 18.
pub fn split(
    node: &NodeRef<'_>,
    order: &NodeOrder,
    cut: NodeCut<'_>,
) -> Result<(NodeSplit, [Box<NodePage>; 2]), NodeError> {
    let (mut left, mut right) = (blank(), blank());
    let done = split_off(node, order, cut, 18, &mut right)?;
    split_rest(node, &NodeRef::look(&right[..])?, &mut left)?;
    Ok((done, [left, right]))
}

pub fn raw<'a>(stamp: u64, key: &'a [u8], stored: &'a [u8]) -> Record<'a> {
    Record { header: Header::value(stamp, key.len(), stored.len()), key, stored }
}

/// The longest header that a record in a node can have, for a value in an extension.
pub fn outside_header(stamp: u64, key: &[u8]) -> Header {
    let mut header = Header::value(stamp, key.len(), REFERENCE_BYTES);
    (header.codec, header.raw_bytes) = (Codec::OutOfLine, 16 << 20);
    (header.flags, header.expiry) = (u32::MAX, Expiry::NEVER);
    header.marks = Marks { stale: true, leased: true };
    header
}

pub fn reference(stamp: u64) -> ExtensionReference {
    ExtensionReference { stamp, slot: salt(9).slot, codec: Codec::Zstd, stored_bytes: 12_345 }
}

/// Numbers that look random, the same ones in every run.
pub struct Numbers(u64);

impl Numbers {
    pub fn new(seed: u64) -> Numbers {
        Numbers(seed)
    }

    pub fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0) as usize % end
    }
}
