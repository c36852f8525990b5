//! The stores to be damaged: files with a history, at their end and at earlier moments.
//!
//! One life fills a store, overwrites, deletes, collects, closes and reopens it. Its file is kept in two states: *closed*, with a
//! checkpoint of the index, and *crashed*, with writes that only the log has. For an ordered keyspace, the checkpoint is that of anchors,
//! and the last writes are in data nodes.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use tapetum::inspect::AreaKind;
use tapetum::{
    Inspection, KeyPlace, KeyspaceKind, SegmentPlace, Store, StoreOptions, Sync, inspect, inspect_drive, locate,
};
use tapetum_drive::{Command, Drive, MemoryFlash, Operation};
use tapetum_kernels::data_page::SegmentSalt;
#[cfg(test)]
use tapetum_kernels::data_page::{PageRun, PageSize, Trailer, record_checksum};
use tapetum_kernels::fence_page;
#[cfg(test)]
use tapetum_kernels::record::Codec;

use super::history::{History, KEYS, KEYS_ABSENT, name};
use super::running::{CAPACITY_BYTES, Running, drive, options};
use crate::Failure;
use tapetum_bench::random::Random;

pub const BLOCK_BYTES: usize = 4096;
/// How often the manifest must have been restarted.
const EPOCHS: u64 = 3;
/// The most earlier moments to keep; the last ones are kept.
const OLDER_MAX: usize = 10;
/// Bytes of a drive to read at once.
const LOOK_BYTES: usize = 64 << 10;
/// Writes at the end, each durable before the next one.
const TAIL: usize = 24;

/// The part of the store that a block belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Region {
    Superblock,
    Manifest,
    ManifestCopy,
    Log,
    DataPages,
    KeyTables,
    Fences,
    LargeValues,
    /// Slots of data nodes.
    Nodes,
    Extensions,
    Checkpoint,
    Free,
}

impl Region {
    pub const ALL: [Region; 12] = [
        Region::Superblock,
        Region::Manifest,
        Region::ManifestCopy,
        Region::Log,
        Region::DataPages,
        Region::KeyTables,
        Region::Fences,
        Region::LargeValues,
        Region::Nodes,
        Region::Extensions,
        Region::Checkpoint,
        Region::Free,
    ];
}

/// Blocks by region, each with its segment if it has one.
pub type Blocks = BTreeMap<Region, Vec<(usize, Option<u32>)>>;

/// A file of a store, and the answers that the store must give.
pub struct Subject {
    /// The kind of the keyspace that is read and written.
    pub kind: KeyspaceKind,
    pub image: Vec<u8>,
    /// The file at earlier moments of the same store.
    pub older: Vec<Arc<Vec<u8>>>,
    pub blocks: Blocks,
    pub history: History,
    pub tail: Tail,
    /// The manifest's last frame. If it is damaged, nobody can tell whether it was ever written.
    pub last_frame: Range<u64>,
}

/// The last writes, which only the log has: the offset of each one's record on the drive, ascending. Each has its own log group, which says
/// that the groups before it were durable.
#[derive(Clone, Default)]
pub struct Tail {
    pub places: Vec<(u32, u64)>,
}

impl Subject {
    /// The bytes before this may be written by opening the store: everything before the log; with data nodes the whole drive.
    pub fn opened_bytes(&self) -> usize {
        if self.kind == KeyspaceKind::Ordered {
            return self.image.len();
        }
        self.blocks[&Region::Log].first().map_or(0, |block| block.0) * BLOCK_BYTES
    }
}

#[cfg(test)]
impl Subject {
    /// Damages every raw value that lies within a page, and corrects its checksum. Returns how many.
    pub fn reseal_values(&mut self, inspection: &Inspection) -> usize {
        let (mut count, salts) = (0, salts(inspection));
        for (block, segment) in &self.blocks[&Region::DataPages] {
            let segment = inspection.segments.iter().find(|known| Some(known.number as u32) == *segment);
            let Some((salt, size)) = segment.and_then(|segment| {
                Some((*salts.get(&(segment.number as u32))?, PageSize::of(segment.data_page_bytes as u32)?))
            }) else {
                continue;
            };
            let block = &mut self.image[block * BLOCK_BYTES..][..BLOCK_BYTES];
            count += block.chunks_exact_mut(size.bytes()).map(|page| reseal_page(salt, size, page)).sum::<usize>();
        }
        count
    }
}

#[cfg(test)]
fn reseal_page(salt: SegmentSalt, page_size: PageSize, page: &mut [u8]) -> usize {
    let number = (0..128).find_map(|number| Some((number, Trailer::parse(salt, number, page).ok()?)));
    let Some((first_page, trailer)) = number else { return 0 };
    let start = page_size.address(first_page);
    let (mut address, mut count) = (start + u64::from(trailer.first), 0);
    for _ in 0..trailer.starts {
        let Ok(record) = (PageRun { bytes: page, first_page, page_size }).record(salt, address) else { break };
        let (from, length) = ((address - start) as usize, record.header.record_bytes());
        if record.header.codec == Codec::Raw && record.header.stored_bytes > 100 {
            page[from + length - 1] ^= 1;
            let crc = record_checksum(salt, address, &page[from..from + length]);
            page[from..from + 4].copy_from_slice(&crc.to_le_bytes());
            count += 1;
        }
        address += length as u64;
    }
    count
}

pub struct Subjects {
    pub closed: Subject,
    pub crashed: Subject,
}

struct Life {
    kind: KeyspaceKind,
    flash: Arc<MemoryFlash>,
    seed: u64,
    random: Random,
    history: History,
    older: Vec<Arc<Vec<u8>>>,
}

impl Life {
    fn drive(&mut self) -> Result<Drive, Failure> {
        // Each opening needs another seed, or it would draw the same numbers.
        self.seed += 1;
        drive(self.flash.clone(), self.seed)
    }

    /// The whole drive as it is now.
    fn image(&mut self) -> Result<Vec<u8>, Failure> {
        let drive = self.drive()?;
        let length = LOOK_BYTES as u32;
        let mut buffer = drive.local().allocate(LOOK_BYTES).ok_or("no local memory to look at the drive with")?;
        let mut queue = drive.queue_pair(1)?;
        let (mut image, mut done) = (Vec::new(), Vec::new());
        for flash in (0..CAPACITY_BYTES).step_by(LOOK_BYTES) {
            let operation = Operation::Read { flash, local: buffer.offset(), length };
            queue.submit(Command::new(0, operation), buffer.into()).expect("a queue of one command");
            while queue.poll(&mut done) == 0 {}
            let Some(returned) = done.pop() else { unreachable!("it is done") };
            buffer = returned.lease.into_buffer();
            image.extend_from_slice(buffer.bytes());
        }
        Ok(image)
    }

    fn remember(&mut self) -> Result<(), Failure> {
        let image = self.image()?;
        self.older.push(Arc::new(image));
        self.older.drain(..self.older.len().saturating_sub(OLDER_MAX));
        Ok(())
    }

    /// Writes random keys. Returns the last one.
    fn write(&mut self, store: &mut Running, count: u32) -> Result<u32, Failure> {
        let draw = |random: &mut Random| (random.below(u64::from(KEYS)) as u32, !random.one_in(8));
        let writes: Vec<_> = (0..count).map(|_| draw(&mut self.random)).collect();
        match (store.write(&writes, &mut self.history).pop(), writes.last()) {
            (None, Some((key, _))) => Ok(*key),
            (error, _) => Err(format!("the store to be damaged does not take its writes: {error:?}").into()),
        }
    }

    /// Writes one item after the other, until enough of them are in one log zone.
    fn write_tail(&mut self, store: &mut Running) -> Result<Tail, Failure> {
        let mut tail = Tail::default();
        if self.kind == KeyspaceKind::Ordered {
            for _ in 0..TAIL {
                self.write(store, 1)?;
            }
            return Ok(tail);
        }
        while tail.places.len() < TAIL {
            let time = self.history.time();
            let key = self.write(store, 1)?;
            let KeyPlace::Buffer { flash_bytes, .. } =
                locate(store.store(), tapetum::KeyspaceRef::DEFAULT, &name(key))?.place
            else {
                continue;
            };
            if tail.places.last().is_some_and(|last| last.1 > flash_bytes) {
                tail.places.clear(); // It went on in the other zone.
            }
            tail.places.push((time, flash_bytes));
        }
        Ok(tail)
    }

    fn subject(&mut self, tail: Tail) -> Result<Subject, Failure> {
        let image = self.image()?;
        let inspection = inspect_drive(&self.drive()?)?;
        let (blocks, last_frame) = (blocks(&inspection, &image), last_frame(&inspection, &image));
        let (older, history) = (self.older.clone(), self.history.clone());
        Ok(Subject { kind: self.kind, image, older, blocks, history, tail, last_frame })
    }
}

/// Makes both states. The seed decides each byte: the store is in memory, where nothing happens unless asked for.
pub fn make(seed: u64, kind: KeyspaceKind) -> Result<Subjects, Failure> {
    let flash = Arc::new(MemoryFlash::new(CAPACITY_BYTES));
    let mut life =
        Life { kind, flash, seed, random: Random::new(seed), history: History::default(), older: Vec::new() };
    Running::create(&life.drive()?, &options(), kind)?;
    let unsynced = StoreOptions { sync: Sync::No, ..options() };
    let mut store = Running::open(&life.drive()?, &unsynced, kind)?;
    let all: Vec<_> = (0..KEYS).map(|key| (key, true)).collect();
    store.write(&all, &mut life.history);
    // Until the manifest was restarted in its other area, and in the first area again.
    while field(&inspect(store.store())?.manifest, "epoch") < EPOCHS {
        life.write(&mut store, 2000)?;
        store.settle();
        life.remember()?;
        store.close()?;
        store = Running::open(&life.drive()?, &unsynced, kind)?;
    }
    store.close()?;
    let mut store = Running::open(&life.drive()?, &options(), kind)?;
    let tail = life.write_tail(&mut store)?;
    store.close()?;
    let closed = life.subject(tail)?;
    life.remember()?;
    let mut store = Running::open(&life.drive()?, &options(), kind)?;
    life.write(&mut store, 400)?;
    store.settle();
    let tail = life.write_tail(&mut store)?;
    drop(store);
    let crashed = life.subject(tail)?;
    Ok(Subjects { closed, crashed })
}

/// The frame that ends where the manifest does.
fn last_frame(inspection: &Inspection, image: &[u8]) -> Range<u64> {
    const SECTOR_BYTES: u64 = 512;
    let area = inspection.areas.iter().find(|area| area.kind == AreaKind::Manifest).map_or(0, |area| area.offset_bytes);
    let end = area + field(&inspection.manifest, "used_bytes");
    let is_frame = |at: &u64| image[*at as usize..].starts_with(b"TMAN");
    let begin = (area..end).step_by(SECTOR_BYTES as usize).filter(is_frame).last();
    begin.unwrap_or(end)..end
}

/// The keys of each segment: those in it, or for which the index leads there.
pub fn keys_by_segment(store: &Store) -> Result<BTreeMap<u32, Vec<u32>>, Failure> {
    let mut keys: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
    for key in 0..KEYS + KEYS_ABSENT {
        match locate(store, tapetum::KeyspaceRef::DEFAULT, &name(key))?.place {
            KeyPlace::Segment(SegmentPlace { segment, .. }) | KeyPlace::Nowhere { segment: Some(segment) } => {
                keys.entry(segment).or_default().push(key);
            }
            KeyPlace::Nowhere { segment: None } | KeyPlace::Buffer { .. } | KeyPlace::Node(_) => {}
        }
    }
    Ok(keys)
}

fn field(fields: &[(String, u64)], name: &str) -> u64 {
    fields.iter().find(|field| field.0 == name).map_or(0, |field| field.1)
}

fn salts(inspection: &Inspection) -> BTreeMap<u32, SegmentSalt> {
    let store = field(&inspection.superblock, "store_id");
    let segments = inspection.segments.iter();
    segments.map(|segment| (segment.number as u32, SegmentSalt { store, version: segment.version })).collect()
}

pub fn blocks(inspection: &Inspection, image: &[u8]) -> Blocks {
    let salts = salts(inspection);
    let mut blocks = Blocks::new();
    for area in &inspection.areas {
        let salt = area.segment.and_then(|segment| salts.get(&segment)).copied();
        let is_fences =
            |bytes| salt.is_some_and(|salt| (0..4).any(|page| fence_page::parse(salt, page, bytes).is_ok()));
        let from = area.offset_bytes as usize / BLOCK_BYTES;
        for block in from..from + area.length_bytes as usize / BLOCK_BYTES {
            let bytes = &image[block * BLOCK_BYTES..][..BLOCK_BYTES];
            let region = match area.kind {
                AreaKind::Superblock => Region::Superblock,
                AreaKind::Manifest => Region::Manifest,
                AreaKind::ManifestCopy => Region::ManifestCopy,
                AreaKind::Log => Region::Log,
                AreaKind::Data => Region::DataPages,
                AreaKind::Keys if is_fences(bytes) => Region::Fences,
                AreaKind::Keys => Region::KeyTables,
                // Held: values that only the log refers to.
                AreaKind::Large | AreaKind::Held => Region::LargeValues,
                AreaKind::Nodes => Region::Nodes,
                AreaKind::Extensions => Region::Extensions,
                AreaKind::Checkpoint => Region::Checkpoint,
                _ => Region::Free,
            };
            blocks.entry(region).or_default().push((block, area.segment));
        }
    }
    blocks
}
