//! The checkpoint of anchors: the state that recovery would find for all ordered keyspaces. A clean stop leaves it, so that the next opening reads
//! it instead of every data node.
//!
//! ```text
//!  pieces, in extents that are free:
//!   0     4                                  piece bytes
//!   +-----+----------------------------------+
//!   | crc | bytes of the stream, then zeros  |          crc: salted with the piece's place on flash and the generation
//!   +-----+----------------------------------+
//!  stream: keyspaces, one behind the other
//!   keyspace u16 · items u64 · nodes u32 · node × nodes · class × slabs and large ones
//!   node:  anchor bytes u16 · anchor · slot u32 · stamp u64            in the order of their anchors
//!   class: code u8 · slots u32 · slot u32 × slots                      extensions that are live
//!  root: generation u64 · stamp u64 · stream bytes u64 · piece bytes u32 · runs: (first extent u32 · extents u32) × …
//! ```
//! 1. It is written when every page equals its durable image, no image is being made, no split or merge is under way
//!    ([`WriteBack::hold_open`](super::write_back::WriteBack::hold_open)), and no batch can be appended. The pieces are durable before the root is.
//! 2. It is valid for the opening that ends its generation, and for no later one: later ones write state that it lacks. Nothing is written to its
//!    extents before that opening has read it; after that nobody owns them.
//! 3. It is a copy of the nodes' state. If it is damaged, or the log has a record above its stamp, it is ignored, and nodes are read.

use super::search::AnchorKey;
use super::slabs::SlotSpace;
use super::slabs::keyspace_slots::KeyspaceSlots;
use super::slabs::slot_class::SlotClass;
use super::tree::{FoundNode, OrderedTree, of_search};
use crate::ordered::cache::MirrorCache;
use crate::ordered::node_table::{NodeHome, NodeId};
use std::collections::BTreeMap;
use std::sync::Arc;
use tapetum_base::base::Base;
use tapetum_base::error::Error;
use tapetum_base::keyspace::KeyspaceId;
use tapetum_base::media::flight::Flying;
use tapetum_base::media::geometry::Geometry;
use tapetum_base::media::io::{Io, lock};
use tapetum_base::media::row_end::end_row;
use tapetum_base::media::wire::{Reader, Short, Writer};
use tapetum_drive::LocalMemory;
use tapetum_kernels::checksum::{Salt, checksum};

const PIECE_BYTES_MAX: u64 = 256 << 10;
const CRC_BYTES: usize = 4;

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AnchorRoot {
    /// The store's generation when it was written.
    pub generation: u64,
    /// No image, and no record of a batch, has a higher stamp.
    pub stamp: u64,
    stream_bytes: u64,
    piece_bytes: u32,
    /// Runs of extents: the first one and their number.
    runs: Vec<(u32, u32)>,
}

impl AnchorRoot {
    pub fn encode(&self) -> Vec<u8> {
        let mut writer = Writer::default();
        writer.u64(self.generation);
        writer.u64(self.stamp);
        writer.u64(self.stream_bytes);
        writer.u32(self.piece_bytes);
        for (first, count) in &self.runs {
            writer.u32(*first);
            writer.u32(*count);
        }
        writer.into_bytes()
    }

    pub fn parse(root: &[u8]) -> Result<AnchorRoot, Short> {
        let mut reader = Reader::new(root);
        let (generation, stamp, stream_bytes) = (reader.u64()?, reader.u64()?, reader.u64()?);
        let piece_bytes = reader.u32()?;
        let mut runs = Vec::new();
        while !reader.is_empty() {
            runs.push((reader.u32()?, reader.u32()?));
        }
        Ok(AnchorRoot { generation, stamp, stream_bytes, piece_bytes, runs })
    }

    /// Whether the checkpoint lies in this extent.
    pub fn has(&self, extent: u32) -> bool {
        self.runs.iter().any(|(first, count)| extent.checked_sub(*first).is_some_and(|behind| behind < *count))
    }

    /// Bytes of the stream in a piece.
    fn payload(&self) -> usize {
        self.piece_bytes as usize - CRC_BYTES
    }

    fn pieces(&self) -> u64 {
        self.stream_bytes.div_ceil(self.payload() as u64)
    }

    fn places(&self, geometry: &Geometry) -> Vec<u64> {
        let (piece_bytes, pieces) = (u64::from(self.piece_bytes), self.pieces() as usize);
        let extents = self.runs.iter().flat_map(|(first, count)| *first..first.saturating_add(*count));
        let of_extent = |extent| {
            let first = geometry.extent_offset(extent);
            (0..geometry.extent_bytes / piece_bytes).map(move |piece| first + piece * piece_bytes)
        };
        extents.flat_map(of_extent).take(pieces).collect()
    }

    /// Whether the checkpoint can be read.
    fn is_sound(&self, media: &AnchorMedia<'_>) -> bool {
        let (piece_bytes, extent_bytes) = (u64::from(self.piece_bytes), media.geometry.extent_bytes);
        let extents: u64 = self.runs.iter().map(|(_, count)| u64::from(*count)).sum();
        let is_there = |first: u32, run: u32| first.checked_add(run).is_some_and(|end| end <= media.extents);
        piece_bytes >= 4096
            && extent_bytes.is_multiple_of(piece_bytes)
            && self.runs.iter().all(|(first, run)| is_there(*first, *run))
            && self.pieces() <= extents * (extent_bytes / piece_bytes)
    }

    fn crc(&self, store_id: u64, flash: u64, payload: &[u8]) -> u32 {
        checksum(Salt { store: store_id, address: flash, version: self.generation }, &[payload])
    }
}

/// The drive that has a checkpoint.
pub struct AnchorMedia<'a> {
    pub geometry: &'a Geometry,
    pub store_id: u64,
    pub local: &'a LocalMemory,
    /// The number of the drive's extents.
    pub extents: u32,
}

impl AnchorMedia<'_> {
    pub fn of(base: &Base) -> AnchorMedia<'_> {
        let extents = lock(&base.extents).count();
        AnchorMedia { geometry: &base.geometry, store_id: base.store_id, local: base.drive.local(), extents }
    }
}

/// A tree and its slots, for the checkpoint.
pub type CheckpointTree = (Arc<OrderedTree>, KeyspaceSlots);

fn parts<'a>(
    cache: &'a MirrorCache,
    trees: &'a [CheckpointTree],
) -> impl Iterator<Item = Result<Vec<u8>, Error>> + Send + 'a {
    trees.iter().flat_map(move |(tree, slots)| -> Box<dyn Iterator<Item = Result<Vec<u8>, Error>> + Send + 'a> {
        match (nodes(cache, tree), nodes(cache, tree)) {
            (Ok(counted), Ok(nodes)) => {
                let mut head = Writer::default();
                head.u16(tree.keyspace.0);
                head.u64(tree.items());
                head.u32(counted.count() as u32);
                let extensions = slots.spaces().filter(|space| space.options().class != SlotClass::Nodes);
                Box::new(
                    std::iter::once(Ok(head.into_bytes()))
                        .chain(nodes.map(Ok))
                        .chain(extensions.map(|space| Ok(class(space)))),
                )
            }
            (Err(error), _) | (_, Err(error)) => Box::new(std::iter::once(Err(error))),
        }
    })
}

/// The nodes of a tree that are on flash, encoded for the stream.
fn nodes<'a>(
    cache: &'a MirrorCache,
    tree: &OrderedTree,
) -> Result<impl Iterator<Item = Vec<u8>> + Send + use<'a>, Error> {
    let mut search = tree.search.handle().map_err(of_search)?;
    let mut anchor = AnchorKey::new();
    let mut next = Some(search.floor(&[], &mut anchor));
    let all = std::iter::from_fn(move || {
        let node = next?;
        let home = cache.table.home(NodeId(node as u32));
        let mut writer = Writer::default();
        writer.u16(anchor.len() as u16);
        writer.raw(&anchor);
        next = search.next(&mut anchor);
        Some(home.map(|home| {
            writer.u32(home.slot);
            writer.u64(home.stamp);
            writer.into_bytes()
        }))
    });
    Ok(all.flatten())
}

/// The live extensions of a class, encoded.
fn class(space: &SlotSpace) -> Vec<u8> {
    let (used, mut writer) = (space.slots_in_use(), Writer::default());
    writer.u8(space.options().class.code());
    writer.u32(used.len() as u32);
    used.iter().for_each(|slot| writer.u32(*slot));
    writer.into_bytes()
}

/// Writes a checkpoint durably to free extents. Returns its root, which nothing names yet. `None`: there is no room.
pub async fn write(
    base: &Arc<Base>,
    io: &Io,
    cache: &MirrorCache,
    trees: &[CheckpointTree],
    generation: u64,
    stamp: u64,
) -> Result<Option<AnchorRoot>, Error> {
    let stream_bytes =
        parts(cache, trees).map(|part| part.map(|part| part.len() as u64)).sum::<Result<u64, Error>>()?;
    let piece_bytes = base.geometry.extent_bytes.min(PIECE_BYTES_MAX) as u32;
    let mut root = AnchorRoot { generation, stamp, stream_bytes, piece_bytes, runs: Vec::new() };
    let per_extent = base.geometry.extent_bytes / u64::from(piece_bytes);
    let Some(runs) = take_extents(base, root.pieces().div_ceil(per_extent)) else { return Ok(None) };
    root.runs = runs;
    let mut places = root.places(&base.geometry).into_iter();
    let mut flying = Flying::new(io, base.drive.local(), piece_bytes as usize);
    if flying.spare.is_empty() {
        return Ok(None);
    }
    let mut gathered: Vec<u8> = Vec::with_capacity(2 * root.payload());
    for part in parts(cache, trees) {
        gathered.extend_from_slice(&part?);
        while gathered.len() >= root.payload() {
            send(base, io, &root, &mut flying, &gathered[..root.payload()], places.next()).await?;
            gathered.drain(..root.payload());
        }
    }
    if !gathered.is_empty() {
        send(base, io, &root, &mut flying, &gathered, places.next()).await?;
    }
    while flying.next("write of a checkpoint of anchors").await?.is_some() {}
    if let Some(last) = root.places(&base.geometry).last() {
        let row_bytes = lock(&base.extents).row_bytes();
        end_row(io, &base.geometry, row_bytes, last + u64::from(piece_bytes)).await?;
    }
    base.log.flush_elsewhere(io).await?;
    Ok(Some(root))
}

async fn send(
    base: &Base,
    io: &Io,
    root: &AnchorRoot,
    flying: &mut Flying<'_>,
    payload: &[u8],
    place: Option<u64>,
) -> Result<(), Error> {
    let sent_first =
        if flying.spare.is_empty() { flying.next("write of a checkpoint of anchors").await? } else { None };
    let (Some(mut buffer), Some(flash)) = (flying.spare.pop().or(sent_first), place) else {
        unreachable!("there is a buffer, and a place for each piece")
    };
    let bytes = io.fill(&mut buffer, 0..root.piece_bytes as usize);
    bytes[CRC_BYTES..CRC_BYTES + payload.len()].copy_from_slice(payload);
    bytes[CRC_BYTES + payload.len()..].fill(0);
    let crc = root.crc(base.store_id, flash, &bytes[CRC_BYTES..]);
    bytes[..CRC_BYTES].copy_from_slice(&crc.to_le_bytes());
    flying.write(flash, buffer);
    Ok(())
}

/// Takes `count` free extents from the end of the drive, as runs. None is given back, as the store is being closed.
fn take_extents(base: &Base, count: u64) -> Option<Vec<(u32, u32)>> {
    let mut taken = lock(&base.extents).take_last(u32::try_from(count).ok()?)?;
    taken.sort_unstable();
    let runs = taken.chunk_by(|one, next| one + 1 == *next);
    Some(runs.map(|run| (run[0], run.len() as u32)).collect())
}

#[derive(Default)]
pub struct CheckpointKeyspace {
    pub items: u64,
    pub nodes: Vec<FoundNode>,
    /// Numbers of the slots of live extensions, with their class.
    pub extensions: Vec<(SlotClass, u32)>,
}

/// Reads a checkpoint. The error says why it is invalid.
pub async fn read(
    media: &AnchorMedia<'_>,
    io: &Io,
    root: &AnchorRoot,
    memory_bytes: u64,
) -> Result<BTreeMap<KeyspaceId, CheckpointKeyspace>, String> {
    if !root.is_sound(media) {
        return Err("its root makes no sense".into());
    }
    if root.stream_bytes > memory_bytes / 2 {
        return Err("there is no memory for it".into());
    }
    let mut stream = Vec::with_capacity(root.stream_bytes as usize);
    let mut flying = Flying::new(io, media.local, root.piece_bytes as usize);
    let places = root.places(media.geometry);
    let mut sent = 0;
    for place in &places {
        while sent < places.len()
            && let Some(buffer) = flying.spare.pop()
        {
            flying.read(places[sent], buffer);
            sent += 1;
        }
        let read = flying.next("read of a checkpoint of anchors").await.map_err(|error| error.to_string())?;
        let buffer = read.ok_or("there is no memory to read it")?;
        let (crc, payload) = io.look(&buffer, 0..root.piece_bytes as usize).split_at(CRC_BYTES);
        if crc != root.crc(media.store_id, *place, payload).to_le_bytes() {
            return Err(format!("the piece at byte {place} of the drive is damaged"));
        }
        let left = root.stream_bytes as usize - stream.len();
        stream.extend_from_slice(&payload[..payload.len().min(left)]);
        flying.spare.push(buffer);
    }
    parse(&stream).map_err(|Short| "it does not hold together".into())
}

fn parse(stream: &[u8]) -> Result<BTreeMap<KeyspaceId, CheckpointKeyspace>, Short> {
    let (mut keyspaces, mut reader) = (BTreeMap::new(), Reader::new(stream));
    while !reader.is_empty() {
        let id = KeyspaceId(reader.u16()?);
        let mut keyspace = CheckpointKeyspace { items: reader.u64()?, ..CheckpointKeyspace::default() };
        for _ in 0..reader.u32()? {
            let anchor_bytes = reader.u16()?;
            let anchor = reader.take(anchor_bytes.into())?.to_vec();
            let home = NodeHome { slot: reader.u32()?, stamp: reader.u64()? };
            keyspace.nodes.push(FoundNode { anchor, home, records: 0 });
        }
        let is_first = keyspace.nodes.first().is_none_or(|node| node.anchor.is_empty());
        if !is_first || !keyspace.nodes.is_sorted_by(|one, next| one.anchor < next.anchor) {
            return Err(Short);
        }
        for _ in SlotClass::SLABS {
            // One entry for each class but that of nodes, including the large ones.
            let [code] = reader.array()?;
            let class = SlotClass::from_code(code).filter(|class| *class != SlotClass::Nodes).ok_or(Short)?;
            for _ in 0..reader.u32()? {
                keyspace.extensions.push((class, reader.u32()?));
            }
        }
        keyspaces.insert(id, keyspace);
    }
    Ok(keyspaces)
}

/// Claims the slots of a keyspace, and keeps the shares. The error says which slot does not exist or has an owner.
pub fn claim(slots: &KeyspaceSlots, keyspace: &CheckpointKeyspace) -> Result<(), String> {
    let of_nodes = keyspace.nodes.iter().map(|node| (SlotClass::Nodes, node.home.slot));
    for (class, slot) in of_nodes.chain(keyspace.extensions.iter().copied()) {
        let share = slots.of_class(class).claim(slot).filter(|share| share.is_only());
        let share = share.ok_or_else(|| format!("it names slot {slot}, which is none, or another one's"))?;
        let _ = share.keep();
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_root_reads_back_and_a_short_one_is_refused() {
        let root = AnchorRoot {
            generation: 7,
            stamp: 1 << 40,
            stream_bytes: 99,
            piece_bytes: 4096,
            runs: vec![(9, 2), (3, 1)],
        };
        let bytes = root.encode();
        assert_eq!(AnchorRoot::parse(&bytes), Ok(root));
        assert!((0..28).all(|length| AnchorRoot::parse(&bytes[..length]) == Err(Short)));
        assert_eq!(AnchorRoot::parse(&bytes[..bytes.len() - 1]), Err(Short));
    }
}
