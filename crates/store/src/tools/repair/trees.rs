//! An ordered keyspace that may be damaged: which data nodes can be read, what is live without the others, and which values are lost.
//!
//! 1. An image counts by its own checksum, and the live one for a key is decided among those that count. Nothing unreadable is believed; the fences
//!    that a damaged head seems to have are only reported.
//! 2. In a group that the manifest names open, a crash leaves images that do not hold: they are not reported, unless the checkpoint of anchors names
//!    them.

use super::report::{Loss, RepairReport};
use super::roots::Roots;
use super::tree_nodes::{BadSlot, TreeNodes};
use crate::ordered::anchor_checkpoint::CheckpointKeyspace;
use crate::ordered::check::read_value;
use crate::ordered::images::{Gap, LiveImages, NodeImages, Tile};
use crate::ordered::recover::LogRecords;
use crate::ordered::slabs::group_table::GroupTable;
use crate::ordered::slabs::keyspace_slots::{KeyspaceSlots, SlabOptions};
use std::collections::{BTreeMap, BTreeSet};
use tapetum_base::error::Error;
use tapetum_base::keyspace::KeyspaceId;
use tapetum_base::keyspace::catalogue::Keyspace;
use tapetum_base::media::io::Io;
use tapetum_kernels::ordered::extension::ExtensionReference;
use tapetum_kernels::ordered::{NODE_BYTES, NodeRecord, NodeRef};
use tapetum_kernels::record::{Codec, Record};

/// Damaged data nodes that are named with a range of keys, at most.
const PLACES_MAX: usize = 4;

/// A keyspace as it was found.
pub struct FoundTree {
    pub slots: KeyspaceSlots,
    pub images: NodeImages,
    pub live: LiveImages,
    /// Slots that hold neither an image nor zeros; whether images that were durable are among them, or not there at all.
    pub bad: Vec<u32>,
    has_lost: bool,
    /// By the number of the tile, keys whose values cannot be read.
    pub lost: BTreeMap<usize, BTreeSet<Vec<u8>>>,
    /// Stamps of records of the log whose values cannot be read.
    pub lost_in_log: BTreeSet<u64>,
    /// The checkpoint of anchors is not right any more.
    is_outdated: bool,
}

impl FoundTree {
    /// All keys, range by range in their order: the number of the tile, its image's stamp, and the fences. In a gap there is no tile, and only the
    /// log has anything.
    pub fn ranges(&self) -> Vec<TreeRange<'_>> {
        let mut ranges = Vec::new();
        for (number, tile) in self.live.tiles.iter().enumerate() {
            let (low, high) = self.images.fences_of(tile);
            ranges.push(TreeRange { tile: Some(number), stamp: self.images.get(tile.image()).stamp, low, high });
        }
        for Gap { from, to } in &self.live.gaps {
            ranges.push(TreeRange { tile: None, stamp: 0, low: from, high: to.as_deref() });
        }
        if ranges.is_empty() {
            ranges.push(TreeRange { tile: None, stamp: 0, low: &[], high: None });
        }
        ranges.sort_by_key(|range| range.low);
        ranges
    }

    pub fn is_damaged(&self) -> bool {
        let is_whole = !self.has_lost && self.lost.is_empty() && self.lost_in_log.is_empty();
        !is_whole || !self.live.gaps.is_empty() || self.is_outdated
    }
}

/// A range of keys for which one image is live, or none.
pub struct TreeRange<'a> {
    pub tile: Option<usize>,
    pub stamp: u64,
    pub low: &'a [u8],
    pub high: Option<&'a [u8]>,
}

/// Records that the log has of a keyspace, in the order of their stamps.
pub struct TreeLog(Vec<Vec<u8>>);

impl TreeLog {
    pub fn of(roots: &Roots, keyspace: KeyspaceId) -> TreeLog {
        let mut records = Vec::new();
        roots.log.each(|_, record| {
            if KeyspaceId::of(&record.header) == keyspace && !record.key.is_empty() {
                let mut bytes = vec![0; record.header.record_bytes()];
                record.encode(&mut bytes);
                records.push(bytes);
            }
        });
        TreeLog(records)
    }

    pub fn records(&self) -> LogRecords<'_> {
        LogRecords::of(self.0.iter().filter_map(|bytes| Record::parse(bytes).ok()))
    }
}

/// The slots of a keyspace.
pub fn slots_of(roots: &Roots, keyspace: KeyspaceId) -> Result<KeyspaceSlots, Error> {
    let slabs = SlabOptions::new(&roots.superblock.geometry, roots.superblock.store_id)?;
    Ok(KeyspaceSlots::new(&slabs, keyspace, roots.installer.of::<GroupTable>()))
}

/// Looks at all of a keyspace.
pub async fn look_at_tree(
    io: &Io,
    roots: &Roots,
    keyspace: &Keyspace,
    report: &mut RepairReport,
) -> Result<FoundTree, Error> {
    let slots = slots_of(roots, keyspace.id)?;
    let mut nodes = TreeNodes::read(io, slots.nodes()).await?;
    let live = loop {
        match nodes.images.live() {
            Ok(live) => break live,
            // Nobody can tell which of the two was written.
            Err(same) => nodes.put_aside(same.slots[1]),
        }
    };
    let checkpoint = roots.anchors.get(&keyspace.id);
    let damaged = nodes.bad.iter().filter(|bad| !bad.may_be_torn).map(|bad| bad.slot).collect();
    let mut tell = Tell { keyspace, nodes: &nodes, slots: &slots, live: &live, damaged, report };
    let is_outdated = match checkpoint {
        _ if roots.is_manifest_damaged => tell.of_manifest(),
        Some(checkpoint) => tell.by_checkpoint(checkpoint),
        None => tell.by_heads(),
    };
    tell.of_gaps(checkpoint.is_some_and(|checkpoint| !checkpoint.nodes.is_empty()));
    let has_lost = nodes.missing > 0 || nodes.bad.iter().any(|bad| !bad.may_be_torn);
    let bad = nodes.bad.iter().map(|bad| bad.slot).collect();
    let TreeNodes { images, named, .. } = nodes;
    let mut found = FoundTree {
        slots,
        images,
        live,
        bad,
        has_lost,
        lost: BTreeMap::new(),
        lost_in_log: BTreeSet::new(),
        is_outdated,
    };
    look_at_log(io, roots, keyspace, &mut found, report).await;
    look_at_values(io, roots, keyspace, &named, &mut found, report).await?;
    for gap in &found.live.gaps {
        report.nodes_rewritten.push(format!("an empty data node for the keys {}", range(&keyspace.name, gap)));
    }
    Ok(found)
}

fn range(name: &str, Gap { from, to }: &Gap) -> String {
    Loss::Range { keyspace: name.into(), from: from.clone(), to: to.clone(), place: String::new() }.keys()
}

/// Reads the image of a tile again.
pub async fn read_image(io: &Io, found: &FoundTree, tile: &Tile) -> Result<Vec<u8>, Error> {
    let mut buffer = io.allocate(NODE_BYTES).await?;
    let slot = found.images.get(tile.image()).slot;
    io.read(found.slots.nodes().map().flash(slot), &mut buffer, 0, NODE_BYTES).await?;
    Ok(io.look(&buffer, 0..NODE_BYTES).to_vec())
}

/// The records of a tile, as its image has them.
pub fn records_of<'n>(image: &'n [u8], low: &[u8], high: Option<&[u8]>) -> Result<Vec<NodeRecord<'n>>, Error> {
    let misread = |error| Error::Corrupt(format!("a data node cannot be read twice: {error:?}"));
    let records = NodeRef::look(image).map_err(misread)?.records().collect::<Result<Vec<_>, _>>().map_err(misread)?;
    let is_in = |key: &[u8]| low <= key && high.is_none_or(|high| key < high);
    Ok(records.into_iter().filter(|record| is_in(record.key)).collect())
}

fn lost_value(keyspace: &Keyspace, key: &[u8], reference: &ExtensionReference) -> Loss {
    let (page, extent, name) = (reference.slot.page(), reference.slot.extent().number(), &keyspace.name);
    let place = format!("keyspace \"{name}\"; its value in page {page} of extent {extent} is damaged");
    Loss::Item { key: key.to_vec(), place }
}

/// Looks at each value in an extension that the log names, and no image.
async fn look_at_log(io: &Io, roots: &Roots, keyspace: &Keyspace, found: &mut FoundTree, report: &mut RepairReport) {
    let log = TreeLog::of(roots, keyspace.id);
    let log = log.records();
    let mut lost = BTreeSet::new();
    for range in found.ranges() {
        for record in log.above(range.stamp, range.low, range.high) {
            if record.header.codec != Codec::OutOfLine {
                continue;
            }
            let Ok(reference) = ExtensionReference::parse(record.stored) else { continue };
            let read = read_value(io, &found.slots, &reference, record.key, record.header.raw_bytes, |_| ());
            if !read.await.unwrap_or(false) {
                report.losses.push(lost_value(keyspace, record.key, &reference));
                lost.insert(record.header.stamp);
            }
        }
    }
    found.lost_in_log = lost;
}

/// Looks at each value that a live record has in an extension.
async fn look_at_values(
    io: &Io,
    roots: &Roots,
    keyspace: &Keyspace,
    named: &[bool],
    found: &mut FoundTree,
    report: &mut RepairReport,
) -> Result<(), Error> {
    let log = TreeLog::of(roots, keyspace.id);
    let log = log.records();
    for (number, tile) in found.live.tiles.iter().enumerate() {
        if !named[tile.image() as usize] {
            continue;
        }
        let ((low, high), stamp) = (found.images.fences_of(tile), found.images.get(tile.image()).stamp);
        let written: BTreeSet<&[u8]> = log.above(stamp, low, high).map(|record| record.key).collect();
        let image = read_image(io, found, tile).await?;
        let mut lost = BTreeSet::new();
        for record in records_of(&image, low, high)? {
            let Ok(Some(reference)) = record.extension() else { continue };
            let read = read_value(io, &found.slots, &reference, record.key, record.header.raw_bytes, |_| ());
            if written.contains(record.key) || read.await.unwrap_or(false) {
                continue;
            }
            report.losses.push(lost_value(keyspace, record.key, &reference));
            lost.insert(record.key.to_vec());
        }
        if !lost.is_empty() {
            let (from, to) = (low.to_vec(), high.map(<[u8]>::to_vec));
            let keys = range(&keyspace.name, &Gap { from, to });
            report.nodes_rewritten.push(format!("the data node with the keys {keys}"));
            found.lost.insert(number, lost);
        }
    }
    Ok(())
}

/// Reports the cost of damaged data nodes.
struct Tell<'a> {
    keyspace: &'a Keyspace,
    nodes: &'a TreeNodes,
    slots: &'a KeyspaceSlots,
    live: &'a LiveImages,
    /// Slots in which there should be an image.
    damaged: BTreeSet<u32>,
    report: &'a mut RepairReport,
}

impl Tell<'_> {
    fn place(&self, slot: u32) -> String {
        let map = self.slots.nodes().map();
        let address = map.address(slot);
        let (page, extent) = (address.page(), address.extent().number());
        format!("the data node in page {page} of extent {extent}, byte {} of the drive", map.flash(slot))
    }

    fn older(&mut self, from: &[u8], to: Option<&[u8]>, place: String) {
        let (keyspace, from, to) = (self.keyspace.name.clone(), from.to_vec(), to.map(<[u8]>::to_vec));
        self.report.losses.push(Loss::Older { keyspace, from, to, place });
    }

    /// Whether a range lies in one gap.
    fn is_gap(&self, from: &[u8], to: Option<&[u8]>) -> bool {
        self.live.tiles.is_empty()
            || self.live.gaps.iter().any(|gap| {
                let ends = match (&gap.to, to) {
                    (None, _) => true,
                    (Some(gap), Some(to)) => to <= &gap[..],
                    (Some(_), None) => false,
                };
                gap.from.as_slice() <= from && ends
            })
    }

    /// Groups that the manifest does not know any more may have had newer images, of any keys.
    fn of_manifest(&mut self) -> bool {
        self.older(&[], None, "frames of the manifest that cannot be read may have named newer data nodes".into());
        true
    }

    /// The checkpoint names each image that is live.
    fn by_checkpoint(&mut self, checkpoint: &CheckpointKeyspace) -> bool {
        let images = (0..self.nodes.images.len() as u32).map(|image| self.nodes.images.get(image));
        let there: BTreeMap<u32, u64> = images.map(|image| (image.slot, image.stamp)).collect();
        let (mut missing, mut is_outdated) = (BTreeSet::new(), false);
        for (number, node) in checkpoint.nodes.iter().enumerate() {
            if there.get(&node.home.slot) == Some(&node.home.stamp) {
                continue;
            }
            is_outdated = true;
            missing.insert(node.home.slot);
            let to = checkpoint.nodes.get(number + 1).map(|next| &next.anchor[..]);
            if !self.is_gap(&node.anchor, to) {
                let place = format!("{} is damaged", self.place(node.home.slot));
                self.older(&node.anchor, to, place);
            }
        }
        self.damaged.clone_from(&missing);
        for bad in self.nodes.bad.iter().filter(|bad| !bad.may_be_torn && !missing.contains(&bad.slot)) {
            self.report.made_anew.push(format!("{}, in whose place there is a newer one", self.place(bad.slot)));
        }
        is_outdated
    }

    /// Damaged heads may still say what was there.
    fn by_heads(&mut self) -> bool {
        for bad in self.nodes.bad.iter().filter(|bad| !bad.may_be_torn) {
            let place = self.place(bad.slot);
            match &bad.head {
                Some(head) if self.is_replaced(bad) => {
                    let keys = range(&self.keyspace.name, &Gap { from: head.low.clone(), to: head.high.clone() });
                    let what = format!("{place}: newer ones have its keys, which seem to be {keys}");
                    self.report.made_anew.push(what);
                }
                Some(head) if self.is_gap(&head.low, head.high.as_deref()) => {}
                Some(head) => {
                    self.older(
                        &head.low,
                        head.high.as_deref(),
                        format!("{place} is damaged; its head seems to say so"),
                    );
                }
                None => self.older(&[], None, format!("{place} is damaged; nobody knows what keys it had")),
            }
        }
        if self.nodes.missing as usize > self.nodes.bad.len() {
            self.older(&[], None, "data nodes that were written are not there; nobody knows what keys they had".into());
        }
        false
    }

    /// Whether newer images have all keys that a damaged one seems to have had.
    fn is_replaced(&self, bad: &BadSlot) -> bool {
        let Some(head) = &bad.head else { return false };
        let high = head.high.as_deref();
        let meets = |low: &[u8], other_high: Option<&[u8]>| {
            high.is_none_or(|high| low < high) && other_high.is_none_or(|other| &head.low[..] < other)
        };
        let older = |tile: &&Tile| {
            let (low, tile_high) = self.nodes.images.fences_of(tile);
            meets(low, tile_high) && self.nodes.images.get(tile.image()).stamp <= head.stamp
        };
        let is_open = |gap: &Gap| meets(&gap.from, gap.to.as_deref());
        !self.live.tiles.is_empty()
            && !self.live.tiles.iter().any(|tile| older(&tile))
            && !self.live.gaps.iter().any(is_open)
    }

    fn of_gaps(&mut self, had_nodes: bool) {
        let mut text = String::from("no data node that can be read has them");
        for (number, slot) in self.damaged.iter().enumerate().take(PLACES_MAX + 1) {
            match number {
                PLACES_MAX => text.push_str(&format!("; {} more are damaged", self.damaged.len() - number)),
                _ => text.push_str(&format!("; {} is damaged", self.place(*slot))),
            }
        }
        let place = || text.clone();
        let name = &self.keyspace.name;
        // If no image is left at all, there is no gap between images.
        let had_some = had_nodes || self.nodes.bad.iter().any(|bad| !bad.may_be_torn);
        if self.live.tiles.is_empty() && had_some {
            let loss = Loss::Range { keyspace: name.clone(), from: Vec::new(), to: None, place: place() };
            self.report.losses.push(loss);
        }
        for Gap { from, to } in &self.live.gaps {
            let loss = Loss::Range { keyspace: name.clone(), from: from.clone(), to: to.clone(), place: place() };
            self.report.losses.push(loss);
        }
    }
}
