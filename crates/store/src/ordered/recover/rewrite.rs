//! Rewrites images, and zeroes torn slots, before a keyspace is opened.

use super::super::images::{ImageHead, NodeImages, Tile};
use super::super::slabs::SlotShare;
use super::super::slabs::group_table::GroupEdit;
use super::super::slabs::growth::{GroupLog, grow};
use super::super::slabs::keyspace_slots::KeyspaceSlots;
use super::super::slabs::slot_class::PAGE_BYTES;
use super::super::slabs::slot_round::SlotRound;
use super::image_reader::named_by;
use super::node_ids::NodeIds;
use super::{LogRecords, RecoveredNode, claim_extension, place};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;
use tapetum_base::error::Error;
use tapetum_base::media::extents::Extents;
use tapetum_base::media::io::Io;
use tapetum_drive::{LocalBuffer, fail_point};
use tapetum_kernels::ordered::extension::ExtensionReference;
use tapetum_kernels::ordered::{ImageSeal, NODE_BYTES, NewNode, NodeError, NodeMut, NodeRef, separator};
use tapetum_kernels::record::{Codec, Header, Kind, Record};

pub struct Rewrite<'a, L> {
    io: &'a Io,
    slots: &'a KeyspaceSlots,
    extents: &'a Mutex<Extents>,
    log: &'a mut L,
    stamp_durable: u64,
    stamp_next: u64,
    page: LocalBuffer,
    /// Shares of the written images' slots, and their stamps, until the images are durable.
    written: Vec<(SlotShare, u64)>,
    /// Shares of the slots of replaced images, until their replacements are durable.
    replaced: Vec<SlotShare>,
    /// Log records that were replayed.
    pub made_again: u64,
    /// A planted bug: the next write gets this stamp in place of a new one.
    kept_stamp: Option<u64>,
}

/// A node whose image must be replaced.
pub struct Replaced<'l> {
    pub node: RecoveredNode,
    /// The extensions that the image names are not claimed yet.
    pub is_part: bool,
    /// Keys that the new image must not have.
    pub lost: &'l BTreeSet<Vec<u8>>,
}

/// Records in the order of keys, for a node with these fences.
struct NodePart<'n> {
    low: Vec<u8>,
    high: Option<Vec<u8>>,
    records: &'n [Record<'n>],
}

impl<'a, L: GroupLog> Rewrite<'a, L> {
    pub async fn new(
        io: &'a Io,
        slots: &'a KeyspaceSlots,
        extents: &'a Mutex<Extents>,
        log: &'a mut L,
        stamp_durable: u64,
        stamp_next: u64,
    ) -> Result<Rewrite<'a, L>, Error> {
        let page = io.allocate(NODE_BYTES).await?;
        Ok(Rewrite {
            io,
            slots,
            extents,
            log,
            stamp_durable,
            stamp_next,
            page,
            written: Vec::new(),
            replaced: Vec::new(),
            made_again: 0,
            kept_stamp: None,
        })
    }

    /// Writes zeros to torn slots, so that their groups can be closed.
    pub async fn zero(&mut self, torn: &[u32]) -> Result<(), Error> {
        self.io.fill(&mut self.page, 0..NODE_BYTES).fill(0);
        for slot in torn {
            self.io.write(self.slots.nodes().map().flash(*slot), &mut self.page, NODE_BYTES).await?;
        }
        Ok(())
    }

    /// Writes a node to another slot, under a new stamp and with the fences of its tile, and adds it to `recovered`. Log records of its keys above
    /// its image's stamp are included. If there is too little room, the node becomes two or more. Without an id of its own, it gets a new one.
    /// Returns the number of extensions claimed.
    pub async fn write_again(
        &mut self,
        set: &mut NodeImages,
        Replaced { node, is_part, lost }: &Replaced<'_>,
        log: &LogRecords<'_>,
        ids: &mut NodeIds,
        recovered: &mut Vec<RecoveredNode>,
    ) -> Result<u64, Error> {
        let bytes = self.read(node.slot).await?;
        let salt = self.slots.nodes().salt(self.slots.nodes().map().address(node.slot));
        let salt = salt.expect("a share of the slot is kept");
        let image = NodeRef::check(&bytes, salt).map_err(|error| self.misread(node.slot, error))?;
        let (low, high) = set.fences_of(&node.tile);
        let (low, high) = (low.to_vec(), high.map(<[u8]>::to_vec));
        let of_image = image.records().collect::<Result<Vec<_>, _>>();
        let of_image = of_image.map_err(|error| self.misread(node.slot, error))?;
        let is_in_tile = |key: &[u8]| *low <= *key && high.as_ref().is_none_or(|high| key < &high[..]);
        let in_tile = of_image.iter().filter(|record| is_in_tile(record.key) && !lost.contains(record.key));
        let mut records: BTreeMap<&[u8], Record<'_>> = in_tile
            .map(|record| (record.key, Record { header: record.header, key: record.key, stored: record.stored }))
            .collect();
        self.made_again += make_again(&mut records, log.above(image.stamp(), &low, high.as_deref()));
        let records: Vec<Record<'_>> = records.into_values().collect();
        let extensions = if *is_part { self.claim_extensions(node.slot, &records)? } else { 0 };
        self.kept_stamp = fail_point!(OrderedKeepStamp).then_some(node.stamp);
        self.write_parts(set, node.id, ids, NodePart { low, high, records: &records }, recovered).await?;
        self.replaced.push(self.slots.nodes().resume(node.slot));
        Ok(extensions)
    }

    /// Makes the nodes of a range of keys of which only log records are durable. Returns the number of extensions claimed.
    pub async fn write_new(
        &mut self,
        set: &mut NodeImages,
        low: &[u8],
        high: Option<&[u8]>,
        log: &LogRecords<'_>,
        ids: &mut NodeIds,
        recovered: &mut Vec<RecoveredNode>,
    ) -> Result<u64, Error> {
        let mut records = BTreeMap::new();
        self.made_again += make_again(&mut records, log.above(0, low, high));
        let records: Vec<Record<'_>> = records.into_values().collect();
        let extensions = self.claim_extensions(0, &records)?;
        let all = NodePart { low: low.to_vec(), high: high.map(<[u8]>::to_vec), records: &records };
        self.write_parts(set, None, ids, all, recovered).await?;
        Ok(extensions)
    }

    /// Writes records as one node or more. Each gets a new id, except the first one if it has an id.
    async fn write_parts(
        &mut self,
        set: &mut NodeImages,
        mut own_id: Option<u32>,
        ids: &mut NodeIds,
        all: NodePart<'_>,
        recovered: &mut Vec<RecoveredNode>,
    ) -> Result<(), Error> {
        // The upper parts are at the front.
        let mut parts = vec![all];
        while let Some(part) = parts.pop() {
            let id = *own_id.get_or_insert_with(|| ids.give());
            match self.write_part(set, id, &part).await? {
                Some(node) => {
                    recovered.push(node);
                    own_id = None;
                }
                None => {
                    let (left, right) = part.records.split_at(part.records.len() / 2);
                    let between = separator(left[left.len() - 1].key, right[0].key).to_vec();
                    parts.push(NodePart { low: between.clone(), high: part.high, records: right });
                    parts.push(NodePart { low: part.low, high: Some(between), records: left });
                }
            }
        }
        Ok(())
    }

    /// `None`: there are too many records for one node.
    async fn write_part(
        &mut self,
        set: &mut NodeImages,
        id: u32,
        part: &NodePart<'_>,
    ) -> Result<Option<RecoveredNode>, Error> {
        let new = NewNode {
            keyspace: self.slots.keyspace().0,
            id: id.into(),
            low_fence: &part.low,
            high_fence: part.high.as_deref(),
        };
        let mut bytes = [0; NODE_BYTES];
        let mut node = NodeMut::format(&mut bytes, &new).expect("the fences of a tile are a range");
        for record in part.records {
            match node.put(record) {
                Ok(_) => (),
                Err(NodeError::NoRoom) => return Ok(None),
                Err(error) => unreachable!("it was in a node, and is between the fences: {error:?}"),
            }
        }
        let share = self.take().await?;
        let stamp = self.kept_stamp.unwrap_or(self.stamp_next);
        self.stamp_next += 1;
        node.seal(share.salt(), ImageSeal { stamp, durable: self.stamp_durable, round_images: 0 });
        self.io.fill(&mut self.page, 0..NODE_BYTES).copy_from_slice(&bytes);
        self.io.write(share.flash_offset(), &mut self.page, NODE_BYTES).await?;
        let records = part.records.len() as u16;
        let head = ImageHead { low: &part.low, high: part.high.as_deref(), stamp, slot: share.number(), id, records };
        let tile = Tile::whole(set.push(&head));
        self.written.push((share.clone(), stamp));
        Ok(Some(RecoveredNode { tile, stamp, slot: share.keep(), id: Some(id) }))
    }

    async fn take(&mut self) -> Result<SlotShare, Error> {
        let nodes = self.slots.nodes();
        if let Some(share) = nodes.take_kept_back() {
            return Ok(share);
        }
        // A full group is closed first, and the next change opens it again.
        for turn in 0..3 {
            grow(nodes, self.io, self.extents, self.log, || self.stamp_next - 1).await?;
            if let Some(share) = nodes.take_kept_back() {
                return Ok(share);
            }
            if turn == 0 {
                self.flush().await?;
            }
        }
        Err(Error::FullFlash)
    }

    /// Makes all writes durable, and frees the slots that they replace.
    async fn flush(&mut self) -> Result<(), Error> {
        self.log.flush().await?;
        self.written.drain(..).for_each(|(share, stamp)| share.settle(stamp));
        self.replaced.clear();
        Ok(())
    }

    async fn read(&mut self, slot: u32) -> Result<Vec<u8>, Error> {
        self.io.read(self.slots.nodes().map().flash(slot), &mut self.page, 0, PAGE_BYTES as usize).await?;
        Ok(self.io.look(&self.page, 0..NODE_BYTES).to_vec())
    }

    fn claim_extensions(&self, slot: u32, records: &[Record<'_>]) -> Result<u64, Error> {
        let mut claimed = 0;
        for record in records.iter().filter(|record| record.header.codec == Codec::OutOfLine) {
            let reference = ExtensionReference::parse(record.stored).ok();
            let named = reference.and_then(|reference| named_by(self.slots.nodes(), &reference, record.key.len()));
            let (pages, at) = named.ok_or_else(|| self.misread(slot, NodeError::Damaged))?;
            claimed += claim_extension(self.slots, pages, at)?;
        }
        Ok(claimed)
    }

    fn misread(&self, slot: u32, error: NodeError) -> Error {
        Error::Corrupt(format!("{} held an intact data node and does not any more: {error:?}", place(self.slots, slot)))
    }

    /// As [`Rewrite::end`]; also ends the round: earlier attestations no longer count, and no slot is torn.
    pub async fn end_round(mut self) -> Result<u64, Error> {
        self.flush().await?;
        self.log.append(vec![GroupEdit::Round(SlotRound::none(self.slots.keyspace(), self.stamp_next))]).await?;
        Ok(self.stamp_next + 1)
    }

    /// Makes all writes durable. Returns the stamp for the next image.
    pub async fn end(mut self) -> Result<u64, Error> {
        self.flush().await?;
        Ok(self.stamp_next)
    }
}

/// Replays log records on an image's records. Returns their number.
fn make_again<'r>(records: &mut BTreeMap<&'r [u8], Record<'r>>, log: impl Iterator<Item = &'r Record<'r>>) -> u64 {
    let mut made = 0;
    for record in log {
        made += 1;
        // The node has the keyspace.
        let header = Header { keyspace: 0, ..record.header };
        let _ = match header.kind {
            Kind::Tombstone => records.remove(record.key),
            _ => records.insert(record.key, Record { header, ..*record }),
        };
    }
    made
}
