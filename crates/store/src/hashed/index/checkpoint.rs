//! The index checkpoint: the whole index on flash when a store is closed, so that opening it reads the index instead of
//! building it from key tables.
//!
//! ```text
//!  chunks, in extents that are free:   the image of the index (index/image.rs), cut into chunks of equal size
//!  manifest frame "Checkpoint":
//!   fingerprint bits u32 · chunk bytes u32 · partitions u32 · shape × partitions
//!   · extents, a list · crc of each chunk, a list · keys by keyspace, a list: id u16 · count u64
//!  shape: buckets u32 · payload bits u32 · entries u64 · extensions free, fresh, used u32
//! ```
//! A chunk's crc is salted with its place on flash and the store's generation. The chunks are durable before the frame is
//! written. The checkpoint holds only while its frame is the manifest's last: any install, any snapshot and the record
//! "opened" end it, and then its extents are free, since no segment names them. So nothing ever has to take one back.
//!
//! It duplicates the key tables. If anything is wrong with it, it is skipped and the index is built from them.

use crate::hashed::HashedEngine;
use crate::hashed::index::{GlobalIndex, IndexImage, IndexRestorer, PartitionShape};
use crate::hashed::item_count::by_keyspace::ItemTally;
use crate::hashed::manifest_client::HashedEdit;
use tapetum_base::error::Error;
use tapetum_base::installer::Installer;
use tapetum_base::keyspace::KeyspaceId;
use tapetum_base::manifest::items::{ClientId, FrameItems};
use tapetum_base::media::extents::{ExtentOwner, Extents};
use tapetum_base::media::flight::Flying;
use tapetum_base::media::geometry::Geometry;
use tapetum_base::media::io::{Io, lock};
use tapetum_base::media::row_end::end_row;
use tapetum_base::media::wire::{Reader, Short, Writer};
use tapetum_drive::{LocalMemory, fail_point};
use tapetum_kernels::checksum::{Salt, checksum};

const CHUNK_BYTES_MAX: u64 = 256 << 10;
const SHAPE_BYTES: usize = 28;
/// Bytes of a keyspace's count in the frame.
const ITEMS_BYTES: usize = 10;

/// The manifest's description of a checkpoint.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Checkpoint {
    fingerprint_bits: u32,
    chunk_bytes: u32,
    shapes: Vec<PartitionShape>,
    extents: Vec<u32>,
    /// Checksum of each chunk.
    crcs: Vec<u32>,
    /// Keys by keyspace; empty if the tapetum that wrote it did not count them.
    items: Vec<(KeyspaceId, u64)>,
}

impl Checkpoint {
    /// Keys by keyspace.
    pub fn tally(&self) -> ItemTally {
        self.items.iter().map(|(id, items)| (*id, *items as i64)).collect()
    }

    pub fn extents(&self) -> &[u32] {
        &self.extents
    }

    pub fn encode(&self, writer: &mut Writer) {
        writer.u32(self.fingerprint_bits);
        writer.u32(self.chunk_bytes);
        writer.u32(self.shapes.len() as u32);
        for shape in &self.shapes {
            writer.u32(shape.buckets);
            writer.u32(shape.payload_bits);
            writer.u64(shape.entries);
            writer.u32(shape.extensions_free);
            writer.u32(shape.extensions_fresh);
            writer.u32(shape.extensions_used);
        }
        writer.extents(&self.extents);
        writer.list(&self.crcs);
        writer.u32(self.items.len() as u32);
        for (id, items) in &self.items {
            writer.u16(id.0);
            writer.u64(*items);
        }
    }

    pub fn parse(reader: &mut Reader<'_>) -> Result<Checkpoint, Short> {
        let (fingerprint_bits, chunk_bytes) = (reader.u32()?, reader.u32()?);
        let shapes = (0..reader.count(SHAPE_BYTES)?).map(|_| {
            Ok(PartitionShape {
                buckets: reader.u32()?,
                payload_bits: reader.u32()?,
                entries: reader.u64()?,
                extensions_free: reader.u32()?,
                extensions_fresh: reader.u32()?,
                extensions_used: reader.u32()?,
            })
        });
        let shapes = shapes.collect::<Result<_, _>>()?;
        let (extents, crcs) = (reader.extents()?, reader.list()?);
        let counts = if reader.is_empty() { 0 } else { reader.count(ITEMS_BYTES)? };
        let items = (0..counts).map(|_| Ok((KeyspaceId(reader.u16()?), reader.u64()?))).collect::<Result<_, _>>()?;
        Ok(Checkpoint { fingerprint_bits, chunk_bytes, shapes, extents, crcs, items })
    }

    /// The place of chunk `number`; `None` if it has none.
    fn place(&self, geometry: &Geometry, number: usize) -> Option<u64> {
        let per_extent = chunks_per_extent(geometry, self.chunk_bytes)?;
        let extent = *self.extents.get(number / per_extent)?;
        Some(geometry.extent_offset(extent) + (number % per_extent) as u64 * u64::from(self.chunk_bytes))
    }

    /// Whether no segment has the checkpoint's extents.
    pub fn is_apart(&self, extents: &mut Extents) -> bool {
        let taken = self.extents.iter().take_while(|extent| extents.claim(ExtentOwner::Checkpoint, **extent)).count();
        self.extents[..taken].iter().for_each(|extent| extents.release(*extent));
        taken == self.extents.len()
    }
}

fn chunks_per_extent(geometry: &Geometry, chunk_bytes: u32) -> Option<usize> {
    let whole = chunk_bytes.is_multiple_of(4096) && chunk_bytes > 0;
    let count = geometry.extent_bytes.checked_div(u64::from(chunk_bytes))?;
    (whole && count > 0).then_some(count as usize)
}

fn chunk_crc(store_id: u64, flash: u64, generation: u64, bytes: &[u8]) -> u32 {
    checksum(Salt { store: store_id, address: flash, version: generation }, &[bytes])
}

/// Writes the index to free extents and names them in the manifest. Nothing is merged or installed meanwhile, nor after, or
/// the checkpoint does not hold. `false` when there is no room for it.
pub async fn write(engine: &HashedEngine, io: &Io, installer: &mut Installer) -> Result<bool, Error> {
    let image = IndexImage::of(&engine.index);
    let chunk_bytes = engine.geometry.extent_bytes.min(CHUNK_BYTES_MAX);
    let chunks = image.bytes().div_ceil(chunk_bytes) as usize;
    let per_extent = (engine.geometry.extent_bytes / chunk_bytes) as usize;
    let Some(extents) = lock(&engine.extents).take_last(chunks.div_ceil(per_extent) as u32) else { return Ok(false) };
    let mut checkpoint = Checkpoint {
        fingerprint_bits: engine.index.geometry().fingerprint_bits,
        chunk_bytes: chunk_bytes as u32,
        shapes: image.shapes(),
        extents,
        crcs: Vec::with_capacity(chunks),
        items: engine.item_count.by_keyspace.on_flash().iter().map(|(id, items)| (id, items as u64)).collect(),
    };
    let mut flying = Flying::new(io, engine.drive.local(), chunk_bytes as usize);
    let mut words = image.words();
    for number in 0..chunks {
        let sent_first = if flying.spare.is_empty() { flying.next("write of a checkpoint").await? } else { None };
        let Some(mut buffer) = flying.spare.pop().or(sent_first) else { return Ok(false) };
        let length = buffer.len();
        let bytes = io.fill(&mut buffer, 0..length);
        for out in bytes.chunks_exact_mut(8) {
            out.copy_from_slice(&words.next().unwrap_or(0).to_le_bytes());
        }
        let Some(flash) = checkpoint.place(&engine.geometry, number) else {
            unreachable!("every chunk has its extent")
        };
        checkpoint.crcs.push(chunk_crc(engine.store_id, flash, installer.marks.opening.generation, bytes));
        flying.write(flash, buffer);
    }
    while flying.next("write of a checkpoint").await?.is_some() {}
    if let Some(last) = chunks.checked_sub(1).and_then(|last| checkpoint.place(&engine.geometry, last)) {
        let row_bytes = lock(&engine.extents).row_bytes();
        end_row(io, &engine.geometry, row_bytes, last + chunk_bytes).await?;
    }
    if !fail_point!(TrustCheckpoint) {
        engine.log.flush_elsewhere(io).await?;
    }
    let mut items = FrameItems::default();
    items.put(ClientId::HASHED, |writer| HashedEdit::Checkpoint(checkpoint).encode(writer));
    installer.append_if_room(&items).await
}

/// Parameters for loading a checkpoint, and the values that it must match.
pub struct CheckpointSource<'a> {
    pub geometry: &'a Geometry,
    pub store_id: u64,
    /// The generation of the store that wrote it.
    pub generation: u64,
    /// Keys that are valid on flash.
    pub entries: u64,
    pub trusting: bool,
}

/// Makes a checkpoint the index; what is amiss if that cannot be.
pub async fn load(
    source: &CheckpointSource<'_>,
    io: &Io,
    local: &LocalMemory,
    index: &GlobalIndex,
    checkpoint: &Checkpoint,
) -> Result<(), String> {
    if checkpoint.fingerprint_bits != index.geometry().fingerprint_bits {
        return Err("it has fingerprints of another width".into());
    }
    if chunks_per_extent(source.geometry, checkpoint.chunk_bytes).is_none() {
        return Err("its chunks do not fit the extents".into());
    }
    let image_bytes = checkpoint.crcs.len() as u64 * u64::from(checkpoint.chunk_bytes);
    let restorer = IndexRestorer::new(index, &checkpoint.shapes, image_bytes);
    let mut restorer = restorer.ok_or("its partitions are not such as this index has, or there is no memory")?;
    if restorer.entries() != source.entries {
        return Err(format!("it has {} keys instead of {}", restorer.entries(), source.entries));
    }
    // A checkpoint without counts was written by a tapetum that did not count. Counts that do not add up are not believed.
    let counted = checkpoint.items.iter().try_fold(0u64, |sum, (_, items)| sum.checked_add(*items));
    if counted != Some(source.entries) {
        return Err("it does not say which keyspaces its keys are in".into());
    }
    let mut flying = Flying::new(io, local, checkpoint.chunk_bytes as usize);
    let mut sent = 0;
    for (number, crc) in checkpoint.crcs.iter().enumerate() {
        while sent < checkpoint.crcs.len()
            && let Some(buffer) = flying.spare.pop()
        {
            let flash = checkpoint.place(source.geometry, sent).ok_or("it has more chunks than extents")?;
            flying.read(flash, buffer);
            sent += 1;
        }
        let read = flying.next("read of a checkpoint").await.map_err(|error| error.to_string())?;
        let buffer = read.ok_or("there is no memory to read it")?;
        let flash = checkpoint.place(source.geometry, number).unwrap_or(0);
        let bytes = io.look(&buffer, 0..buffer.len());
        let holds = chunk_crc(source.store_id, flash, source.generation, bytes) == *crc;
        if !holds && !source.trusting {
            return Err(format!("chunk {number} at byte {flash} of the drive is damaged"));
        }
        restorer.push(bytes);
        flying.spare.push(buffer);
    }
    restorer.install().map_err(|error| format!("it is too short: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_encoded_is_parsed_and_a_short_frame_is_refused() {
        let shape = PartitionShape {
            buckets: 3,
            payload_bits: 4,
            entries: 5,
            extensions_free: 6,
            extensions_fresh: 7,
            extensions_used: 8,
        };
        let checkpoint = Checkpoint {
            fingerprint_bits: 6,
            chunk_bytes: 4096,
            shapes: vec![shape; 2],
            extents: vec![9, 8],
            crcs: vec![1, 2, 3],
            items: vec![(KeyspaceId(0), 3), (KeyspaceId(7), 2)],
        };
        let mut writer = Writer::default();
        checkpoint.encode(&mut writer);
        assert_eq!(Checkpoint::parse(&mut Reader::new(&writer)), Ok(checkpoint.clone()));
        // Checkpoints of earlier versions end with the checksums.
        let uncounted = writer.len() - 4 - 2 * ITEMS_BYTES;
        for length in (0..writer.len()).filter(|length| *length != uncounted) {
            assert_eq!(Checkpoint::parse(&mut Reader::new(&writer[..length])), Err(Short));
        }
        let uncounted = Checkpoint::parse(&mut Reader::new(&writer[..uncounted])).unwrap();
        assert_eq!(uncounted, Checkpoint { items: Vec::new(), ..checkpoint });
    }

    fn with(extents: Vec<u32>) -> Checkpoint {
        let (shapes, crcs, items) = Default::default();
        Checkpoint { fingerprint_bits: 6, chunk_bytes: 4096, shapes, extents, crcs, items }
    }

    #[test]
    fn chunks_tile_the_extents_in_their_order() {
        let geometry = Geometry::new(1 << 30, 2 << 20, 2, 512).unwrap();
        let chunks_each = geometry.extent_bytes / 4096;
        assert!(chunks_each > 1);
        let checkpoint = with(vec![9, 3]);
        let places: Vec<u64> = (0..).map_while(|number| checkpoint.place(&geometry, number)).collect();
        let starts = [9, 3].map(|extent| geometry.extent_offset(extent));
        let tiles = starts.iter().flat_map(|start| (0..chunks_each).map(move |number| start + number * 4096));
        assert_eq!(places, tiles.collect::<Vec<_>>());
    }

    #[test]
    fn chunks_that_do_not_fit_extents_are_refused() {
        let geometry = Geometry::new(1 << 30, 2 << 20, 2, 512).unwrap();
        let extent_bytes = geometry.extent_bytes as u32;
        let count = |chunk_bytes| chunks_per_extent(&geometry, chunk_bytes);
        assert_eq!([4096, extent_bytes].map(count), [Some(extent_bytes as usize / 4096), Some(1)]);
        assert_eq!([0, 4095, 6000, 2 * extent_bytes].map(count), [None; 4]);
    }

    #[test]
    fn extents_that_a_segment_has_are_noticed() {
        let mut extents = Extents::new(10);
        assert!(extents.claim(ExtentOwner::Flush, 4));
        assert!(with(vec![9, 8]).is_apart(&mut extents));
        assert!(!with(vec![9, 4]).is_apart(&mut extents) && !with(vec![9, 9]).is_apart(&mut extents));
        assert!(!with(vec![10]).is_apart(&mut extents));
        assert_eq!(extents.free_count(), 9);
    }
}
