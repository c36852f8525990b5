//! The items of a range of keys at one moment, read by the host: in the order of keys, or against it.
//!
//! A node comes from the cache, if it is there as its image is, and from flash else. Values in extensions are read when they are asked for.
//!
//! Threads: the caller's.

use super::copies::PageCopy;
use super::nodes::NodeAt;
use super::{FrozenTree, KeySpan};
use crate::ordered::cache::PageLook;
use crate::ordered::check::read_value;
use std::ops::Range;
use std::sync::Arc;
use tapetum_base::engine::scan_layout::LayoutError;
use tapetum_base::error::Error;
use tapetum_base::media::io::Io;
use tapetum_base::request::key_range::KeyRange;
use tapetum_kernels::ordered::extension::ExtensionReference;
use tapetum_kernels::ordered::{NODE_BYTES, NodeOrder, NodePage, NodeRef};
use tapetum_kernels::record::Header;

/// Nodes of a part.
const PART_NODES: usize = 64;

/// A record, whose value may not have been read yet.
pub struct FrozenRecord {
    pub key: Vec<u8>,
    pub header: Header,
    value: FrozenValue,
}

enum FrozenValue {
    Here(Vec<u8>),
    Extension(ExtensionReference),
}

/// See the [module](self).
pub struct FrozenScan {
    tree: Arc<FrozenTree>,
    io: Io,
    span: KeySpan,
    is_reverse: bool,
    /// The nodes that are left, by their places.
    left: Range<usize>,
}

impl FrozenScan {
    /// # Errors
    /// [`Error::KeyTooLong`]: no node holds a key of the range.
    pub fn new(tree: Arc<FrozenTree>, io: Io, range: &KeyRange) -> Result<FrozenScan, Error> {
        let span = KeySpan::of(range)?;
        let nodes = tree.nodes.len();
        let end = match &span.to {
            _ if span.is_empty() || nodes == 0 => 0,
            Some(to) => tree.nodes.floor(to) + 1,
            None => nodes,
        };
        let left = if end == 0 { 0..0 } else { tree.nodes.floor(&span.from)..end };
        Ok(FrozenScan { tree, io, span, is_reverse: range.is_reverse, left })
    }

    /// Adds the records of the next part; whether there may be more.
    ///
    /// # Errors
    /// [`LayoutError::TooOld`] if the flash that the moment held was needed.
    pub async fn step(&mut self, into: &mut Vec<FrozenRecord>) -> Result<bool, LayoutError> {
        while !self.tree.is_durable()? {
            self.tree.check()?;
            self.io.pause().await;
        }
        let mut order = Box::new(NodeOrder::new());
        for _ in 0..PART_NODES {
            let next = if self.is_reverse { self.left.next_back() } else { self.left.next() };
            let Some(place) = next else { return Ok(false) };
            self.tree.check()?;
            let page = self.page(place).await?;
            let node = NodeRef::look(&page[..]).map_err(|_| self.damaged(place))?;
            order.sort(&node).map_err(|_| self.damaged(place))?;
            let before = into.len();
            for slot in 0..node.count() {
                let record = order.record(&node, slot).map_err(|_| self.damaged(place))?;
                let (header, moment) = (record.header, &self.tree.moment);
                let is_live = header.stamp > moment.deleted_through && !header.expiry.has_passed(moment.now_ms);
                if !is_live || !self.span.has(record.key) {
                    continue;
                }
                let value = match record.extension().map_err(|_| self.damaged(place))? {
                    Some(reference) => FrozenValue::Extension(reference),
                    None => FrozenValue::Here(record.stored.to_vec()),
                };
                into.push(FrozenRecord { key: record.key.to_vec(), header, value });
            }
            if self.is_reverse {
                into[before..].reverse();
            }
        }
        Ok(!self.left.is_empty())
    }

    /// The value of a record of this scan.
    ///
    /// # Errors
    /// As [`FrozenScan::step`].
    pub async fn read(&self, record: &FrozenRecord) -> Result<Vec<u8>, LayoutError> {
        let FrozenRecord { key, header, value } = record;
        let reference = match value {
            FrozenValue::Here(value) => return Ok(value.clone()),
            FrozenValue::Extension(reference) => reference,
        };
        let mut stored = Vec::with_capacity(reference.stored_bytes as usize);
        let show = |bytes: &[u8]| stored.extend_from_slice(bytes);
        let is_whole = read_value(&self.io, &self.tree.slots, reference, key, header.raw_bytes, show).await?;
        // Where it was not held any more, others may have written there.
        self.tree.check()?;
        match is_whole {
            true => Ok(stored),
            false => Err(Error::Corrupt(format!("the value of the key {:?}", String::from_utf8_lossy(key))).into()),
        }
    }

    /// The page of a node.
    async fn page(&self, place: usize) -> Result<Box<NodePage>, LayoutError> {
        let tree = &self.tree;
        let slot = match tree.nodes.at(place) {
            NodeAt::Copy(copy) => return self.copied(copy).ok_or_else(|| self.damaged(place).into()),
            NodeAt::Cached => return Err(Error::Io("a node of one key is read at the drive".into()).into()),
            NodeAt::Slot(slot) => slot,
        };
        let (cache, node) = (&tree.state.cache, tree.nodes.node(place));
        if let PageLook::Taken(page) = cache.take_if(node, |meta| meta.is_image(tree.keyspace.0, slot)) {
            let copy = page_of(self.io.look(&page, 0..NODE_BYTES));
            cache.give_back(node, page, |_| ());
            tree.check()?;
            return Ok(copy);
        }
        let (nodes, map) = (tree.slots.nodes(), tree.slots.nodes().map());
        let mut buffer = self.io.allocate(NODE_BYTES).await?;
        self.io.read(map.flash(slot), &mut buffer, 0, NODE_BYTES).await?;
        let page = page_of(self.io.look(&buffer, 0..NODE_BYTES));
        let checked =
            nodes.salt(map.address(slot)).map(|salt| NodeRef::check(&page[..], salt).map(|node| node.stamp()));
        let is_it = matches!(checked, Some(Ok(stamp)) if stamp <= tree.image_stamp_max);
        tree.check()?;
        if is_it { Ok(page) } else { Err(self.damaged(place).into()) }
    }

    /// `None`: a drive that stopped has it.
    fn copied(&self, copy: &PageCopy) -> Option<Box<NodePage>> {
        if let PageCopy::Host(page) = copy {
            return Some(page.clone());
        }
        let page = copy.take()?;
        let copied = page_of(self.io.look(&page, 0..NODE_BYTES));
        copy.give_back(page);
        Some(copied)
    }

    fn damaged(&self, place: usize) -> Error {
        let keyspace = self.tree.keyspace.0;
        match self.tree.nodes.at(place) {
            NodeAt::Slot(slot) => {
                let flash = self.tree.slots.nodes().map().flash(slot);
                Error::Corrupt(format!("a data node of ordered keyspace {keyspace} at byte {flash} of the drive"))
            }
            NodeAt::Copy(_) | NodeAt::Cached => {
                Error::Corrupt(format!("a data node of ordered keyspace {keyspace} in memory"))
            }
        }
    }
}

fn page_of(bytes: &[u8]) -> Box<NodePage> {
    Box::new(bytes.try_into().expect("a page has the bytes of a node"))
}
