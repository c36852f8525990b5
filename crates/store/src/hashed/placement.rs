//! The segments that a flush or a collection writes at once: one for each keyspace that has a good part of the bytes, and one that the others
//! share. So a scan of a keyspace reads few bytes of others.
//!
//! 1. An install names all of them, or none.
//! 2. They take no more room than one segment would, where room is scarce: then all keyspaces share one.

use crate::hashed::HashedEngine;
use crate::hashed::catalog::Catalog;
use crate::hashed::key_tables::finish_segment;
use crate::hashed::large::LargeExtents;
use crate::hashed::segment::layout::page_size;
use crate::hashed::segment::segment_names::SegmentName;
use crate::hashed::segment::view::Segment;
use crate::hashed::segment::writer::{SegmentStore, SegmentWriter};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use tapetum_base::error::Error;
use tapetum_base::keyspace::KeyspaceId;
use tapetum_base::media::extents::ExtentReservation;
use tapetum_base::media::io::{Io, lock};
use tapetum_kernels::data_page::PageSize;
use tapetum_kernels::hash::HashKey;
use tapetum_kernels::record::{Header, Kind};

/// A keyspace gets a segment of its own if it has one byte of this many of a full segment, or more.
const OWN_PART: u64 = 4;
/// Extents that a segment of its own takes beside the share of its records in one segment: the last of its data and of its key table are not full.
const EXTENTS_MORE: u64 = 2;
/// While more segment numbers than one in this many are taken, nothing is separated: small segments would use up the numbers.
const NUMBERS_PART: usize = 4;
/// Keyspaces are separated while the manifest has room for this many flushes.
const MANIFEST_FLUSHES: u64 = 4;
/// Segments that must be free, beside the reserve, where a flush separates keyspaces.
const FREE_SEGMENTS: u64 = 4;
/// Writers may take one byte of this many of local memory.
const LOCAL_PART: usize = 4;
/// Records of a buffer that are sampled for the shares of its keyspaces and the sizes of its records.
const SAMPLE_RECORDS: u64 = 2048;

/// Records of a keyspace that are to be written.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct RecordShare {
    pub records: u64,
    pub bytes: u64,
}

impl RecordShare {
    pub fn and(self, other: RecordShare) -> RecordShare {
        RecordShare { records: self.records + other.records, bytes: self.bytes + other.bytes }
    }
}

/// Records by keyspace. `None`: of keyspaces that are not known.
pub type RecordShares = BTreeMap<Option<KeyspaceId>, RecordShare>;

/// Which output takes the records of a keyspace. The first one is shared.
pub struct Placement {
    /// Those that have an output of their own, the second and following ones, ascending.
    own: Vec<KeyspaceId>,
    page_sizes: Vec<PageSize>,
}

impl Placement {
    /// All share one output.
    pub fn shared(engine: &HashedEngine, shares: &RecordShares) -> Placement {
        Placement::of(engine, shares, u64::MAX)
    }

    /// Keyspaces of `least_bytes` or more have their own.
    pub fn of(engine: &HashedEngine, shares: &RecordShares, least_bytes: u64) -> Placement {
        let of = |share: RecordShare| page_size(&engine.geometry, share.records, share.bytes);
        let is_own =
            |keyspace: &Option<KeyspaceId>, share: &RecordShare| keyspace.is_some() && share.bytes >= least_bytes;
        let (mut own, mut page_sizes) = (Vec::new(), Vec::new());
        let mut shared = RecordShare::default();
        for (keyspace, share) in shares {
            match keyspace {
                Some(keyspace) if is_own(&Some(*keyspace), share) => {
                    own.push(*keyspace);
                    page_sizes.push(of(*share));
                }
                _ => shared = shared.and(*share),
            }
        }
        page_sizes.insert(0, of(shared));
        Placement { own, page_sizes }
    }

    /// The number of outputs.
    pub fn outputs(&self) -> usize {
        self.page_sizes.len()
    }

    /// Outputs that may be written beside the first.
    pub fn more(&self) -> u64 {
        self.own.len() as u64
    }

    /// The output of a keyspace.
    pub fn output(&self, keyspace: KeyspaceId) -> usize {
        self.own.binary_search(&keyspace).map_or(0, |place| place + 1)
    }

    #[cfg(test)]
    pub fn page_size(&self, output: usize) -> PageSize {
        self.page_sizes[output]
    }

    /// A name for each output.
    pub fn take_names(&self, engine: &HashedEngine, catalog: &Catalog) -> Vec<SegmentName> {
        self.page_sizes.iter().map(|_| engine.segments.names.take(catalog)).collect()
    }
}

/// The placement of a write buffer's records. The reservation of the flush gets the extents that separate segments take more.
pub fn of_buffer(engine: &HashedEngine, buffer: u64, reserved: &mut ExtentReservation) -> Placement {
    let shares = buffer_shares(engine, buffer);
    let placement = Placement::of(engine, &shares, engine.geometry.segment_bytes / OWN_PART);
    let has_room = !engine.is_flash_tight(FREE_SEGMENTS);
    if has_room && may_separate(engine, &placement, reserved) { placement } else { Placement::shared(engine, &shares) }
}

/// The placement of the records that a collection keeps, which frees so many extents if they share a segment. Its reservation gets the extents that
/// separate segments take more.
pub fn of_collection(
    engine: &HashedEngine,
    shares: &RecordShares,
    extents_freed: u64,
    reserved: &mut ExtentReservation,
) -> Placement {
    let all_bytes: u64 = shares.values().map(|share| share.bytes).sum();
    // A quarter of little would be a small segment.
    let least_bytes = (all_bytes / OWN_PART).max(engine.geometry.segment_bytes / OWN_PART / OWN_PART);
    let placement = Placement::of(engine, shares, least_bytes);
    // Half of the gain is left, or collections would write much for little.
    let gains = 2 * placement.more() * EXTENTS_MORE <= extents_freed;
    if gains && may_separate(engine, &placement, reserved) { placement } else { Placement::shared(engine, shares) }
}

/// Whether there are segment numbers, room in the manifest, local memory and extents for all outputs of a placement. The extents are reserved then.
fn may_separate(engine: &HashedEngine, placement: &Placement, reserved: &mut ExtentReservation) -> bool {
    let numbers = engine.numbers_left() >= engine.segments.names.limit() as usize / NUMBERS_PART + placement.outputs();
    let writers_bytes = placement.outputs() * SegmentWriter::local_bytes_max(&engine.geometry);
    let has_memory = writers_bytes <= engine.drive.local().bytes_total() / LOCAL_PART;
    let in_manifest = engine.manifest_room.flushes_now() >= MANIFEST_FLUSHES;
    let extents = placement.more() * EXTENTS_MORE;
    placement.more() > 0 && numbers && in_manifest && has_memory && reserved.reserve_more(extents as u32)
}

/// The shares of a buffer's keyspaces, by the records of its first shards: hash keys spread them evenly.
fn buffer_shares(engine: &HashedEngine, buffer: u64) -> RecordShares {
    let (mut shares, mut batch, mut records, mut sampled) = (RecordShares::new(), Vec::new(), 0, 0);
    let shards = engine.buffers.shards();
    for shard in shards {
        lock(shard).sorted(buffer, &mut batch);
        sampled += 1;
        // SAFETY: the table gave the place. Only the flush that we are part of releases the buffer, at its end.
        let headers = batch.iter().map(|&(_, place)| unsafe { engine.log.record(buffer, place) }.header);
        for header in headers.filter(|header| header.kind == Kind::Value) {
            let share = shares.entry(Some(KeyspaceId::of(&header))).or_default();
            *share = share.and(RecordShare { records: 1, bytes: header.record_bytes() as u64 });
            records += 1;
        }
        if records >= SAMPLE_RECORDS {
            break;
        }
    }
    let scaled = |sum: u64| sum * shards.len() as u64 / sampled.max(1);
    shares.values_mut().for_each(|share| {
        *share = RecordShare { records: scaled(share.records), bytes: scaled(share.bytes) };
    });
    shares
}

/// Adds the shares of a victim's keyspaces, of which this much is left. Deaths are taken to be spread evenly.
pub fn add_victim(shares: &mut RecordShares, segment: &Segment, left: RecordShare) {
    let all_bytes = segment.descriptor.record_bytes.max(1);
    let part = |sum: u64, bytes: u64| (u128::from(sum) * u128::from(bytes) / u128::from(all_bytes)) as u64;
    let mut add = |keyspace: Option<KeyspaceId>, share: RecordShare| {
        let sum = shares.entry(keyspace).or_default();
        *sum = sum.and(share);
    };
    let listed = &segment.local_index.shares;
    if !listed.is_listed() {
        return add(None, left);
    }
    listed.iter().for_each(|share| {
        let (records, bytes) = (part(left.records, share.record_bytes), part(left.bytes, share.record_bytes));
        add(Some(share.keyspace), RecordShare { records, bytes });
    });
}

/// The segment numbers of outputs.
pub struct OutputNumbers<'a> {
    placement: &'a Placement,
    names: &'a [SegmentName],
}

impl OutputNumbers<'_> {
    /// By output.
    pub fn all(&self) -> Vec<u32> {
        self.names.iter().map(|name| name.number).collect()
    }

    /// The segment that takes a keyspace's records.
    pub fn of(&self, keyspace: KeyspaceId) -> u32 {
        self.names[self.placement.output(keyspace)].number
    }
}

/// The segments of a flush or a collection, while they are written. Those that get no record are not begun.
pub struct Outputs<'a> {
    engine: &'a HashedEngine,
    io: &'a Io,
    placement: &'a Placement,
    names: &'a [SegmentName],
    reserved: Arc<Mutex<ExtentReservation>>,
    key_table_bytes_max: u64,
    writers: Vec<Option<SegmentWriter>>,
}

/// The place of a record: the number of its output and of its entry there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OutputPlace {
    pub output: u8,
    pub entry: u32,
}

impl<'a> Outputs<'a> {
    pub fn new(
        engine: &'a HashedEngine,
        io: &'a Io,
        placement: &'a Placement,
        names: &'a [SegmentName],
        reserved: ExtentReservation,
    ) -> Outputs<'a> {
        Outputs {
            engine,
            io,
            placement,
            names,
            reserved: Arc::new(Mutex::new(reserved)),
            key_table_bytes_max: engine.key_tables_bytes_max(),
            writers: names.iter().map(|_| None).collect(),
        }
    }

    /// Appends a record to its keyspace's output. Hash keys must ascend.
    pub async fn add(&mut self, hash: HashKey, header: &Header, record: &[u8]) -> Result<OutputPlace, Error> {
        let output = self.placement.output(KeyspaceId::of(header));
        let writer = match &mut self.writers[output] {
            Some(writer) => writer,
            None => {
                let writer = self.begun(output).await?;
                self.writers[output].insert(writer)
            }
        };
        let entry = writer.entries();
        writer.add(hash, header, record).await?;
        Ok(OutputPlace { output: output as u8, entry })
    }

    async fn begun(&self, output: usize) -> Result<SegmentWriter, Error> {
        let (engine, reserved) = (self.engine, self.reserved.clone());
        let store = SegmentStore { id: engine.store_id, routes: engine.hasher.routes() };
        let (name, page_size) = (self.names[output], self.placement.page_sizes[output]);
        SegmentWriter::new(self.io, &engine.geometry, store, reserved, name, page_size, self.key_table_bytes_max).await
    }

    /// Says that the record that an output took last is a reference, and whose extents it names.
    pub fn own_large(&mut self, place: OutputPlace, header: &Header, extents: Arc<LargeExtents>) {
        let writer = self.writers[usize::from(place.output)].as_mut();
        writer.expect("an output that took a record is begun").own_large(header, extents);
    }

    pub fn numbers(&self) -> OutputNumbers<'a> {
        OutputNumbers { placement: self.placement, names: self.names }
    }

    /// Gives back the extents once no write to them is in flight.
    pub async fn give_up(self) -> Result<(), Error> {
        for writer in self.writers.into_iter().flatten() {
            writer.give_up().await?;
        }
        Ok(())
    }

    /// The segments, complete on the drive, by output. They are not durable yet, and in no manifest.
    pub async fn finish(self) -> Result<Vec<Arc<Segment>>, Error> {
        let mut segments = Vec::new();
        for writer in self.writers.into_iter().flatten() {
            segments.push(finish_segment(self.engine, writer).await?);
        }
        Ok(segments)
    }
}

#[cfg(test)]
#[path = "placement_tests.rs"]
mod tests;
