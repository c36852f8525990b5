//! Work that the drive does, or the host, with the drive in a process of its own: the CPU of each side, and the bytes that cross.

use std::hint::black_box;
use std::time::Instant;

use tapetum::{GraphOptions, KeyspaceHandle, QuerySide, Store, StoreOptions, Sync};
use tapetum_bench::drive_process::{DriveProcess, TABLE_BYTES};
use tapetum_bench::embedded::{Pipe, create_over, keep_full, settle, usable};
use tapetum_bench::fields::PairReader;
use tapetum_bench::filter::Filter;
use tapetum_bench::graph::{self, EdgeSet};
use tapetum_bench::process::Usage;
use tapetum_bench::queries::{FieldsGet, query};
use tapetum_bench::random::Random;
use tapetum_bench::workload::{Values, key};
use tapetum_kernels::graph::{Direction, Normalization};
use tapetum_kernels::scan::Scalar;

use crate::Failure;
use crate::arguments::Arguments;
use crate::results::outcome::{Outcome, Reach};
use crate::results::spread::Spread;
use crate::workspace::Scratch;

const ROW_BYTES: usize = 100;
const EDGES: u64 = 50_000;
const FILE_BYTES: usize = 16 << 10;
/// Values of which two fields are read in a turn.
const FIELD_READS: u64 = 4000;
const MEMORY_BYTES: u64 = 128 << 20;

pub fn run(arguments: &Arguments) -> Result<(), Failure> {
    let (items, files) = (arguments.number("items", 500_000)?, arguments.number("files", 8000)?);
    let rounds = arguments.number("rounds", 5)?.max(1);
    let binary = arguments.server();
    arguments.finish()?;
    let binary = arguments.measured_server(binary)?;
    let scratch = Scratch::new("drive-process-work")?;
    let about = format!(
        "{items} items of {ROW_BYTES} bytes, {files} of {} KiB; the drive sleeps as soon as it has nothing to do",
        FILE_BYTES >> 10
    );
    let mut outcome = Outcome::new(arguments, "drive-process-work", about);
    let capacity_bytes = usable(2 * (items * 2 * ROW_BYTES as u64 + files * FILE_BYTES as u64) + (256 << 20));
    let memory = (2 * MEMORY_BYTES + (64 << 20)).to_string();
    let process = DriveProcess::start(&binary, scratch.folder(), capacity_bytes + TABLE_BYTES, &["--memory", &memory])?;
    let flash = process.attach("default", capacity_bytes)?;
    let options = StoreOptions::new(flash.capacity_bytes(), MEMORY_BYTES);
    let store = create_over(&flash, &StoreOptions { sync: Sync::EverySecond, ..options })?;
    let rows = load(&store, "rows", items, ROW_BYTES)?;
    let files_handle = load(&store, "files", files, FILE_BYTES)?;
    settle(&store)?;
    let bench = WorkBench { process: process.process(), rows, items, files: files_handle, files_count: files };
    outcome.columns(&["work, by", "ms", "CPU ms, host", "CPU ms, drive", "bytes to the drive", "bytes to the host"]);
    for (name, work) in WORKS {
        let mut costs = [Vec::new(), Vec::new()];
        for _ in 0..rounds {
            for (costs, side) in costs.iter_mut().zip([QuerySide::Drive, QuerySide::Host]) {
                costs.push(bench.measure(work, side)?);
            }
        }
        tell(&mut outcome, name, &costs);
    }
    store.close()?;
    outcome.end()
}

type Work = fn(&WorkBench, QuerySide) -> Result<(), Failure>;

const WORKS: [(&str, Work); 3] = [
    ("a scan that keeps 0.1 %", WorkBench::scan),
    ("betweenness of 50,000 edges", WorkBench::betweenness),
    ("two fields of each of 4000 values", WorkBench::fields),
];

/// What one turn took, on both sides.
#[derive(Clone, Copy, Default)]
struct Cost {
    elapsed_ms: f64,
    host_cpu_ms: f64,
    drive_cpu_ms: f64,
    to_drive_bytes: f64,
    to_host_bytes: f64,
}

struct WorkBench {
    /// The drive's.
    process: u32,
    rows: KeyspaceHandle,
    items: u64,
    files: KeyspaceHandle,
    files_count: u64,
}

impl WorkBench {
    fn measure(&self, work: Work, side: QuerySide) -> Result<Cost, Failure> {
        let used = || Usage::with_drive(&[std::process::id()], Some(self.process));
        let (before, crossed, begun) = (used()?, self.rows.store().drive().counters(), Instant::now());
        work(self, side)?;
        let elapsed = begun.elapsed();
        let (Usage { cpu_us, drive_cpu_us, .. }, after) =
            (used()?.since(&before), self.rows.store().drive().counters());
        Ok(Cost {
            elapsed_ms: elapsed.as_micros() as f64 / 1e3,
            host_cpu_ms: (cpu_us - drive_cpu_us) as f64 / 1e3,
            drive_cpu_ms: drive_cpu_us as f64 / 1e3,
            to_drive_bytes: (after.host_to_local_bytes - crossed.host_to_local_bytes) as f64,
            to_host_bytes: (after.local_to_host_bytes - crossed.local_to_host_bytes) as f64,
        })
    }

    fn scan(&self, side: QuerySide) -> Result<(), Failure> {
        let filter = Filter { below: self.items / 1000, json: false };
        let mut kept = 0;
        let mut take = |values: &[Option<Scalar<'_>>]| {
            black_box(values);
            kept += 1;
        };
        self.rows.query(&query(filter)?, side, &mut take)?;
        filter.check(kept, self.items)
    }

    fn betweenness(&self, side: QuerySide) -> Result<(), Failure> {
        let edges = EdgeSet::first(EDGES.min(self.items));
        let options = GraphOptions {
            direction: Direction::Directed,
            normalization: Normalization::None,
            sampling: edges.sampling(),
            seed: graph::SEED,
            top: graph::TOP,
            memory_bytes: graph::MEMORY_BYTES,
            parts: 1,
        };
        let report = self.rows.betweenness(&edges.query()?, &options, side, &mut |_| true)?;
        if report.top.is_empty() { Err("the graph has no nodes".into()) } else { Ok(()) }
    }

    fn fields(&self, side: QuerySide) -> Result<(), Failure> {
        let (mut reader, mut random) = (FieldsGet::new(&self.files, side)?, Random::new(7));
        for _ in 0..FIELD_READS {
            let index = random.below(self.files_count);
            match reader.read(&key(index))? {
                Some((first, _)) if first == index => {}
                other => return Err(format!("item {index} was answered with {other:?}").into()),
            }
        }
        Ok(())
    }
}

/// A keyspace of so many items, whose values begin with their numbers.
fn load(store: &Store, name: &str, items: u64, value_bytes: usize) -> Result<KeyspaceHandle, Failure> {
    let keyspace = store.create_keyspace(name)?;
    let (values, mut random, mut value, mut indexes) =
        (Values::new(value_bytes, 50), Random::new(1), Vec::new(), 0..items);
    let next = |pipe: &mut Pipe, now: Instant| {
        let Some(index) = indexes.next() else { return false };
        values.fill(index, &mut random, &mut value);
        pipe.put(now, &key(index), &value);
        true
    };
    keep_full(store, keyspace.keyspace(), next, |_| Ok(()))?;
    Ok(keyspace)
}

type Figure = fn(&Cost) -> f64;

/// A line for each side, and the drive's way ÷ the host's, turn by turn.
fn tell(outcome: &mut Outcome, name: &str, costs: &[Vec<Cost>; 2]) {
    let [of_drive, of_host] = costs;
    for (costs, side) in [(of_drive, "the drive"), (of_host, "the host")] {
        let figures: [Figure; 5] = [
            |cost| cost.elapsed_ms,
            |cost| cost.host_cpu_ms,
            |cost| cost.drive_cpu_ms,
            |cost| cost.to_drive_bytes,
            |cost| cost.to_host_bytes,
        ];
        let figures = figures.iter().map(|figure| Spread::of(costs.iter().map(figure))).collect();
        outcome.line(format!("{name}, {side}"), figures);
    }
    let figures: [(&str, Figure); 4] = [
        ("time", |cost| cost.elapsed_ms),
        ("the host's CPU", |cost| cost.host_cpu_ms),
        ("CPU of both", |cost| cost.host_cpu_ms + cost.drive_cpu_ms),
        ("bytes across", |cost| cost.to_drive_bytes + cost.to_host_bytes),
    ];
    for (what, figure) in figures {
        let ratios = of_drive.iter().zip(of_host).map(|(drive, host)| figure(drive) / figure(host));
        outcome.hold(format!("{name}: {what}, by the drive ÷ by the host"), Spread::of(ratios), Reach::Reported);
    }
}
