//! RocksDB as a contender, tuned as its guide says. `get`: each thread makes one Get after the other; `multiget`: each thread
//! gathers as many reads as its depth and asks for them together, the reads of a batch by io_uring. `filter`: an iterator over all items,
//! which are looked at one by one; `graph`: the same, and the betweenness of the edges that they are; `fields`: two fields of one value
//! after the other.
//!
//! The memory budget is the block cache's; index blocks, filters and memtables (up to half as much again) come on top, to
//! RocksDB's advantage.

use std::ops::Range;
use std::thread::available_parallelism;
use std::time::Instant;

use rocksdb::{
    BlockBasedOptions, Cache, ColumnFamilyDescriptor, DB, DBCompressionType, DBRawIterator, DataBlockIndexType, Options, ReadOptions,
    WaitForCompactOptions, WriteOptions,
};
use tapetum_bench::Failure;
use tapetum_bench::blocking::{self, Client};
use tapetum_bench::contend::Contender;
use tapetum_bench::fields::{self, Pair, PairReader};
use tapetum_bench::filter::{Filter, KEPT, LOOKED_AT, RETURNED_BYTES};
use tapetum_bench::graph::{self, EdgeSet};
use tapetum_bench::latencies::Latencies;
use tapetum_bench::turn::{Setup, Turn};
use tapetum_bench::workload::{Key, Population, key};

const FAMILY: &str = "default";
const LOADING_THREADS: u64 = 4;
const SCAN_READAHEAD_BYTES: usize = 64 << 10;
const FILTER_READAHEAD_BYTES: usize = 2 << 20;

/// Options without blobs.
pub fn options(setup: &Setup) -> Options {
    let cores = available_parallelism().map_or(2, |cores| cores.get() as i32);
    let mut table = BlockBasedOptions::default();
    table.set_block_cache(&Cache::new_hyper_clock_cache(setup.memory_bytes as usize, 0));
    table.set_block_size(4 << 10);
    table.set_bloom_filter(10.0, false);
    table.set_format_version(6);
    table.set_data_block_index_type(DataBlockIndexType::BinaryAndHash);
    let mut options = Options::default();
    options.create_if_missing(true);
    options.set_block_based_table_factory(&table);
    options.set_use_direct_reads(true);
    options.set_use_direct_io_for_flush_and_compaction(true);
    options.set_level_compaction_dynamic_level_bytes(true);
    options.set_max_background_jobs(cores.max(2) * 2);
    options.set_max_subcompactions(cores as u32);
    options.set_bytes_per_sync(1 << 20);
    options.set_wal_bytes_per_sync(1 << 20);
    options.set_write_buffer_size((setup.memory_bytes as usize / 8).clamp(8 << 20, 64 << 20));
    options.set_max_write_buffer_number(4);
    options.set_enable_pipelined_write(true);
    // Nearly every key that is asked for is there.
    options.set_optimize_filters_for_hits(true);
    options.set_compression_type(compression(setup));
    options.set_compression_options(-14, 1, 0, 0);
    options
}

/// As the paper on Retina has it: no cache of blocks, and no filter.
pub fn options_plain(setup: &Setup) -> Options {
    let mut table = BlockBasedOptions::default();
    table.disable_cache();
    table.set_block_size(4 << 10);
    table.set_format_version(6);
    let mut options = options(setup);
    options.set_block_based_table_factory(&table);
    options
}

/// Values apart from the tree, collected as BlobDB collects them.
pub fn options_with_blobs(setup: &Setup) -> Options {
    let mut options = options(setup);
    options.set_enable_blob_files(true);
    options.set_min_blob_size(64);
    options.set_blob_compression_type(compression(setup));
    options.set_enable_blob_gc(true);
    options
}

fn compression(setup: &Setup) -> DBCompressionType {
    if setup.compress { DBCompressionType::Zstd } else { DBCompressionType::None }
}

pub struct RocksDb {
    db: DB,
    sync: bool,
    population: Population,
}

impl RocksDb {
    pub fn open(setup: &Setup, options: &Options) -> Result<RocksDb, Failure> {
        let family = ColumnFamilyDescriptor::new(FAMILY, options.clone());
        let db = DB::open_cf_descriptors(options, setup.data.join("db"), [family])?;
        let values = setup.values();
        Ok(RocksDb { db, sync: setup.sync, population: Population::new(setup.items, values) })
    }

    fn client(&self) -> Thread<'_> {
        let mut write = WriteOptions::default();
        write.set_sync(self.sync);
        let mut read_many = ReadOptions::default();
        read_many.set_async_io(true);
        Thread { db: &self.db, write, read: ReadOptions::default(), read_many }
    }
}

impl RocksDb {
    /// From the first on, read ahead.
    fn all_items(&self) -> DBRawIterator<'_> {
        let mut read = ReadOptions::default();
        // Not async_io: an iterator over several levels can then wait for ever for a read that it has cancelled (RocksDB's issue 13774).
        read.set_readahead_size(FILTER_READAHEAD_BYTES);
        // It would drive out what gets use.
        read.fill_cache(false);
        let mut iterator = self.db.raw_iterator_opt(read);
        iterator.seek_to_first();
        iterator
    }

    fn betweenness(&self, turn: &Turn) -> Result<Latencies, Failure> {
        let (edges, mut latencies) = (EdgeSet::of(turn)?, Latencies::default());
        let begun = Instant::now();
        while begun.elapsed() < turn.time_max() && latencies.operations() < turn.operations_max() {
            let asked = Instant::now();
            let mut iterator = self.all_items();
            let result = edges.compute(|push| {
                let Some((key, value)) = iterator.item() else { return Ok(false) };
                push(key, value);
                iterator.next();
                Ok(true)
            })?;
            iterator.status()?;
            latencies.read(asked.elapsed());
            graph::count(&mut latencies, result.summary, &result.top);
        }
        Ok(latencies)
    }

    /// Scans of all items, one after the other.
    fn filtered_scans(&self, turn: &Turn) -> Result<Latencies, Failure> {
        let items = self.population.count();
        let (filter, mut latencies) = (Filter::of(turn, items)?, Latencies::default());
        let (begun, mut result) = (Instant::now(), Vec::new());
        while begun.elapsed() < turn.time_max() && latencies.operations() < turn.operations_max() {
            let asked = Instant::now();
            let mut iterator = self.all_items();
            let (mut kept, mut looked_at, mut bytes) = (0, 0, 0);
            result.clear();
            while let Some((key, value)) = iterator.item() {
                looked_at += 1;
                bytes += (key.len() + value.len()) as u64;
                if let Some(number) = filter.kept(value) {
                    kept += 1;
                    result.extend_from_slice(key);
                    result.extend_from_slice(&number.to_le_bytes());
                }
                iterator.next();
            }
            iterator.status()?;
            std::hint::black_box(&result);
            latencies.read(asked.elapsed());
            filter.check(kept, items)?;
            for (name, more) in [(KEPT, kept), (LOOKED_AT, looked_at), (RETURNED_BYTES, bytes)] {
                latencies.count(name, more);
            }
        }
        Ok(latencies)
    }
}

impl Contender for RocksDb {
    fn load(&mut self, indexes: Range<u64>) -> Result<(), Failure> {
        blocking::load(indexes, LOADING_THREADS, self.population.values(), || Ok(self.client()))
    }

    fn remove(&mut self, mut indexes: Range<u64>) -> Result<(), Failure> {
        Ok(indexes.try_for_each(|index| self.db.delete(key(index)))?)
    }

    fn settle(&mut self) -> Result<(), Failure> {
        let mut options = WaitForCompactOptions::default();
        options.set_flush(true);
        Ok(self.db.wait_for_compact(&options)?)
    }

    fn turn(&self, turn: &Turn) -> Result<Latencies, Failure> {
        match turn.api.as_str() {
            "filter" => return self.filtered_scans(turn),
            "graph" => return self.betweenness(turn),
            "fields" => return fields::run(turn, &self.population, || Ok(Fields(self.client()))),
            _ => {}
        }
        if (turn.api == "get") != (turn.depth == 1) || !["get", "multiget"].contains(&turn.api.as_str()) {
            return Err(format!("RocksDB has get, of depth 1, and multiget; not {} of {}", turn.api, turn.depth).into());
        }
        blocking::run(turn, &self.population, || Ok(self.client()))
    }

    fn close(self) -> Result<(), Failure> {
        Ok(self.db.flush()?)
    }
}

struct Thread<'a> {
    db: &'a DB,
    write: WriteOptions,
    read: ReadOptions,
    read_many: ReadOptions,
}

/// Takes values apart where they are pinned.
struct Fields<'a>(Thread<'a>);

impl PairReader for Fields<'_> {
    fn read(&mut self, key: &Key) -> Result<Option<Pair>, Failure> {
        let value = self.0.db.get_pinned_opt(key, &self.0.read)?;
        Ok(value.and_then(|value| fields::pair_of(&value)))
    }
}

impl Client for Thread<'_> {
    fn get(&mut self, keys: &[Key], found: &mut dyn FnMut(usize, &[u8])) -> Result<(), Failure> {
        if let [key] = keys {
            if let Some(value) = self.db.get_pinned_opt(key, &self.read)? {
                found(0, &value);
            }
            return Ok(());
        }
        let family = self.db.cf_handle(FAMILY).expect("it was opened with it");
        let values = self.db.batched_multi_get_cf_opt(family, keys, false, &self.read_many);
        for (place, value) in values.into_iter().enumerate() {
            if let Some(value) = value? {
                found(place, &value);
            }
        }
        Ok(())
    }

    fn put(&mut self, key: &Key, value: &[u8]) -> Result<(), Failure> {
        Ok(self.db.put_opt(key, value, &self.write)?)
    }

    fn scan(&mut self, from: &Key, items: u64) -> Result<u64, Failure> {
        let mut read = ReadOptions::default();
        read.set_readahead_size(SCAN_READAHEAD_BYTES);
        let mut iterator = self.db.raw_iterator_opt(read);
        iterator.seek(from);
        let mut seen = 0;
        while seen < items && iterator.valid() {
            std::hint::black_box(iterator.value());
            seen += 1;
            iterator.next();
        }
        iterator.status()?;
        Ok(seen)
    }
}
