//! What the service costs: requests to a store in this process, and the same ones through the socket of a server that has a copy of it, in
//! turns. And what those who scan cost memcached's clients, by the threads of the drive that they have, and their weight.

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use tapetum::{KeyspaceKind, Options, Place, Sync};
use tapetum_bench::latencies::quantile_us;
use tapetum_bench::random::Random;
use tapetum_bench::server::{Server, ServerOptions};
use tapetum_bench::turn::{Length, Report, Turn};
use tapetum_bench::workload::{Population, Values};
use tapetum_bench::{process, sockets};
use tapetum_kernels::scan::Scalar;
use tapetum_service::caller::{Caller, CallerLeft};
use tapetum_service::reply::Reply;
use tapetum_service::request::{Betweenness, Query, QueryWords, Range, Request, ScanWanted, Side, Sources};
use tapetum_service::service::{Access, Service};

use crate::arguments::Arguments;
use crate::results::outcome::{Outcome, Reach};
use crate::results::series::Series;
use crate::results::spread::Spread;
use crate::{Failure, workspace};

pub(super) const MEMORY: &str = "512MiB";
pub(super) const MEMORY_BYTES: u64 = 512 << 20;
const CAPACITY_BYTES: u64 = 2 << 30;
pub(super) const FIELDS: &str = "key: id u64be; value: year u16be, place u16be, text string";
const EDGE_FIELDS: &str = "key: source u32be, target u32be";
const TEXT_BYTES: usize = 96;
/// Those who scan beside memcached's clients.
const SCANNERS: usize = 10;
/// The least of memcached's throughput beside those who scan, and the most of its P99.
const KEPT_LEAST: f64 = 0.7;
const P99_MOST: f64 = 3.0;
/// The least of the rate in process that is left through the socket.
const SERVED_LEAST: f64 = 0.9;

pub fn run(arguments: &Arguments) -> Result<(), Failure> {
    let records = arguments.number("items", 300_000)?;
    let rounds = arguments.number("rounds", 9)?;
    arguments.finish()?;
    let binary = arguments.measured_server(None)?;
    let scratch = workspace::Scratch::new("service")?;
    let [here, there] = fill_twice(scratch.folder(), records)?;
    let about = format!("{records} records of 100 bytes, hashed and ordered; --memory {MEMORY}");
    let mut outcome = Outcome::new(arguments, "service", about);
    compare(&mut outcome, &binary, (&here, &there), rounds)?;
    beside_scans(&mut outcome, arguments, &binary, (&there, records), rounds)?;
    outcome.end()
}

/// A store, to be opened here, and a copy of it, to be served.
pub(super) fn fill_twice(scratch: &Path, records: u64) -> Result<[PathBuf; 2], Failure> {
    let [here, there] = ["here", "there"].map(|name| scratch.join(name));
    fill(&here, records)?;
    fs::create_dir_all(&there)?;
    for file in fs::read_dir(&here)? {
        let file = file?;
        fs::copy(file.path(), there.join(file.file_name()))?;
    }
    Ok([here, there])
}

/// Records in a hashed and in an ordered keyspace, and a graph.
fn fill(data: &Path, records: u64) -> Result<(), Failure> {
    let options = Options::new().capacity_bytes(CAPACITY_BYTES).memory_bytes(MEMORY_BYTES).sync(Sync::No);
    let store = options.open(data)?;
    let (hashed, ordered) =
        (store.create_keyspace("hashed")?, store.create_keyspace_of("ordered", KeyspaceKind::Ordered)?);
    let edges = store.create_keyspace("edges")?;
    let mut random = Random::new(7);
    for id in 0..records {
        let mut value = [(1950 + random.below(75)) as u16, random.below(1000) as u16].map(u16::to_be_bytes).concat();
        value.resize(4 + TEXT_BYTES, b'a' + (id % 26) as u8);
        hashed.put(&id.to_be_bytes(), &value)?;
        ordered.put(&id.to_be_bytes(), &value)?;
    }
    let nodes = (records / 8).max(2);
    for _ in 0..records / 2 {
        let edge = [random.below(nodes) as u32, random.below(nodes) as u32].map(u32::to_be_bytes).concat();
        edges.put(&edge, b"")?;
    }
    Ok(store.close()?)
}

pub(super) fn query(keyspace: &str, condition: Option<&str>, select: &str) -> Request {
    let words = QueryWords {
        fields: FIELDS.into(),
        condition: condition.map(str::to_owned),
        select: select.into(),
        ..QueryWords::default()
    };
    Request::Query(Query {
        keyspace: keyspace.into(),
        freeze: None,
        words,
        range: Range::default(),
        side: Side::Drive,
        application: None,
    })
}

fn requests() -> [(&'static str, Request); 5] {
    let scan = Request::Scan {
        keyspace: "ordered".into(),
        freeze: None,
        range: Range::default(),
        limit: None,
        wanted: ScanWanted::Items,
    };
    let edges = QueryWords { fields: EDGE_FIELDS.into(), select: "source, target".into(), ..QueryWords::default() };
    let graph = Request::Betweenness(Betweenness {
        keyspace: "edges".into(),
        freeze: None,
        words: edges,
        side: Side::Drive,
        application: None,
        is_undirected: false,
        is_normalized: false,
        sources: Sources::Samples(4),
        seed: 1,
        top: 10,
        memory_bytes: 256 << 20,
        parts: 1,
    });
    [
        ("a scan of all items", scan),
        ("a query of one row", query("hashed", None, "count(*), sum(place)")),
        ("a query of a hundredth of the rows", query("hashed", Some("place < 10"), "id, year")),
        ("a query of all rows", query("ordered", None, "id, year, text")),
        ("a graph", graph),
    ]
}

/// Counts what it is told.
#[derive(Default)]
struct Counting {
    rows: u64,
}

impl Caller for Counting {
    fn take(&mut self, reply: Reply) -> Result<(), CallerLeft> {
        if let Reply::Items(items) = reply {
            self.rows += items.len() as u64;
        }
        Ok(())
    }

    fn row(&mut self, values: &[Option<Scalar<'_>>]) {
        self.rows += u64::from(!values.is_empty());
    }

    fn has_left(&mut self) -> bool {
        false
    }
}

/// Each request in process and through the socket.
fn compare(outcome: &mut Outcome, binary: &Path, (here, there): (&Path, &Path), rounds: u64) -> Result<(), Failure> {
    let options = Options::new().memory_bytes(MEMORY_BYTES);
    let mut opened = Service::reach(&Place::at(here), &options, Access::Read)?;
    let server = serve(binary, there, &[])?;
    let mut served = Service::reach(&Place::at(there), &options, Access::Read)?;
    if opened.is_served() || !served.is_served() {
        return Err("the one store is to be opened here, and the other served".into());
    }
    for (name, request) in requests() {
        let (mut time, mut cpu) = (Vec::new(), Vec::new());
        let mut rows = None;
        for _ in 0..=rounds {
            let own = std::process::id();
            let (here, there) =
                (ask(&mut opened, &request, &[own])?, ask(&mut served, &request, &[own, server.process()])?);
            if here.rows != there.rows {
                return Err(format!("{name}: {} rows here, and {} there", here.rows, there.rows).into());
            }
            // The first round warms caches.
            if rows.replace(here.rows).is_some() {
                time.push(here.seconds / there.seconds);
                cpu.push(here.cpu_us / there.cpu_us);
            }
        }
        let time = Spread::of(time);
        println!("  {name}: {}", time.shown());
        outcome.hold(format!("{name}, rate through the socket ÷ in process"), time, Reach::AtLeast(SERVED_LEAST));
        outcome.hold(
            format!("{name}, CPU in process ÷ through the socket"),
            Spread::of(cpu),
            Reach::AtLeast(SERVED_LEAST),
        );
    }
    drop(served);
    opened.close()?;
    server.terminate()
}

struct Asked {
    seconds: f64,
    cpu_us: f64,
    rows: u64,
}

fn ask(service: &mut Service, request: &Request, processes: &[u32]) -> Result<Asked, Failure> {
    let (before, begun, mut counting) = (process::Usage::of(processes)?, Instant::now(), Counting::default());
    service.call(request.clone(), &mut counting)?;
    let seconds = begun.elapsed().as_secs_f64();
    let cpu_us = process::Usage::of(processes)?.since(&before).cpu_us as f64;
    Ok(Asked { seconds, cpu_us: cpu_us.max(1.0), rows: counting.rows })
}

fn serve(binary: &Path, data: &Path, more: &[&str]) -> Result<Server, Failure> {
    let options = [&["--memory", MEMORY, "--sync", "no"], more].concat();
    ServerOptions::new(binary, data, &options)?.start()
}

/// memcached's GETs with and without those who scan, in turns.
fn beside_scans(
    outcome: &mut Outcome,
    arguments: &Arguments,
    binary: &Path,
    (data, items): (&Path, u64),
    rounds: u64,
) -> Result<(), Failure> {
    let population = Population::new(items, Values::new(100, 100));
    for (name, more) in [
        ("on waiting threads", &[][..]),
        ("on one thread of the drive, weight 1", &["--compute-units", "scan=1", "--weight", "scans=1"][..]),
        ("on one thread of the drive, weight 8", &["--compute-units", "scan=1", "--weight", "scans=8"]),
    ] {
        let server = serve(binary, data, more)?;
        let address = server.address();
        sockets::load(address, &population, 0..items)?;
        let application = (!more.is_empty()).then(|| "scans".to_owned());
        let (mut alone, mut beside) =
            (Series::new(&format!("alone, {name}")), Series::new(&format!("beside scans {name}")));
        for round in 0..rounds {
            let length = Length::Time(arguments.time(Duration::from_secs(1)));
            let turn = Turn::uniform("c", "get", 32, 4, length, round);
            let measure = || behave(address, &population, &turn, server.process());
            alone.reports.push(measure()?);
            beside.reports.push(scanned(data, application.as_deref(), measure)?);
        }
        let p99 = |report: &Report| quantile_us(&report.latencies.reads, 0.99);
        let (kept, slower) = (beside.ratio(&alone, Report::operations_per_second), beside.ratio(&alone, p99));
        println!("  scans {name}: throughput kept {}", kept.shown());
        outcome.hold(format!("GETs kept beside {SCANNERS} that scan, {name}"), kept, Reach::AtLeast(KEPT_LEAST));
        outcome.hold(format!("their P99 ÷ alone, {name}"), slower, Reach::AtMost(P99_MOST));
        outcome.series([alone, beside]);
        server.terminate()?;
    }
    Ok(())
}

fn behave(address: SocketAddr, population: &Population, turn: &Turn, server: u32) -> Result<Report, Failure> {
    let (before, begun) = (process::Usage::of(&[server])?, Instant::now());
    let latencies = sockets::run(address, population, turn)?;
    let seconds = begun.elapsed().as_secs_f64();
    Ok(Report { latencies, seconds, usage: process::Usage::of(&[server])?.since(&before) })
}

/// Does some work while others scan.
fn scanned(
    data: &Path,
    application: Option<&str>,
    work: impl FnOnce() -> Result<Report, Failure>,
) -> Result<Report, Failure> {
    let stop = AtomicBool::new(false);
    std::thread::scope(|threads| {
        let scan = || -> Result<(), Failure> {
            let mut service = Service::reach(&Place::at(data), &Options::new(), Access::Read)?;
            let mut request = query("hashed", Some("place < 10"), "id, year");
            if let Request::Query(query) = &mut request {
                query.application = application.map(str::to_owned);
            }
            while !stop.load(Ordering::Relaxed) {
                service.call(request.clone(), &mut Counting::default())?;
            }
            Ok(())
        };
        let scanners: Vec<_> = (0..SCANNERS).map(|_| threads.spawn(scan)).collect();
        std::thread::sleep(Duration::from_millis(100));
        let done = work();
        stop.store(true, Ordering::Relaxed);
        scanners.into_iter().try_for_each(|scanner| scanner.join().expect("a scan panicked"))?;
        done
    })
}
