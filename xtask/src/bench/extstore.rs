//! `tapetum serve --cache` beside memcached with extstore, with the same DRAM and flash, and one server thread each: how many of the loaded
//! items are still there, zipfian GETs in turns, DRAM per item on flash, and items found after kill -9.

use std::collections::BTreeMap;
use std::time::Duration;

use tapetum_bench::budget::Budget;
use tapetum_bench::caches::{self, Cache};
use tapetum_bench::turn::{Report, Turn};
use tapetum_bench::workload::{Population, Values};

use super::KEY_BYTES;
use crate::Failure;
use crate::arguments::Arguments;
use crate::results::outcome::{Outcome, Reach};
use crate::results::series::{Series, read_quantile};
use crate::results::spread::Spread;
use crate::workspace::Scratch;

const VALUES_BYTES: [u64; 2] = [200, 1024];
/// Size of the data as a multiple of DRAM.
const DATA_PARTS: u64 = 8;
const CONNECTIONS: u64 = 64;
const KEPT_ASKED: u64 = 200_000;
const WARM_UP: Duration = Duration::from_secs(5);

pub fn run(arguments: &Arguments) -> Result<(), Failure> {
    let memory_bytes = arguments.size("memory", 64 << 20)?;
    // Room for a store's data besides the items, and for its collector.
    let flash_bytes = arguments.size("flash", memory_bytes * DATA_PARTS * 2)?;
    let values_bytes = match arguments.size("value", 0)? {
        0 => VALUES_BYTES.to_vec(),
        value_bytes => vec![value_bytes],
    };
    // 8 times the DRAM by default.
    let items_told = arguments.number("items", 0)?;
    let depth = arguments.number("depth", 1)?.max(1);
    let load_rate = arguments.size("load-rate", caches::LOAD_BYTES_PER_SECOND)?;
    let rounds = arguments.number("rounds", 11)?;
    arguments.finish()?;
    let budget = Budget { memory_bytes, flash_bytes };
    let binary = arguments.measured_server(None)?;
    let items_of = |value_bytes| match items_told {
        0 => memory_bytes * DATA_PARTS / (KEY_BYTES + value_bytes),
        items => items,
    };
    let about = format!(
        "zipfian GETs, {depth} at a time over each of {CONNECTIONS} connections, of {}, {} MiB of DRAM, {} MiB of flash",
        values_bytes
            .iter()
            .map(|bytes| format!("{} items of {bytes} bytes", items_of(*bytes)))
            .collect::<Vec<_>>()
            .join(" or "),
        memory_bytes >> 20,
        flash_bytes >> 20
    );
    let mut outcome = Outcome::new(arguments, "extstore", about);
    for value_bytes in values_bytes {
        let scratch = Scratch::new("bench-extstore")?;
        let ours = Cache::tapetum(&binary, scratch.folder(), budget)?;
        let mut caches = [ours, Cache::extstore(scratch.folder(), budget)?];
        let items = items_of(value_bytes);
        let population = Population::new(items, Values::new(value_bytes as usize, 100));
        caches.iter_mut().try_for_each(Cache::start)?;
        caches::load(&caches, &population, load_rate, |_| Ok(()))?;
        println!("  {items} items of {value_bytes} bytes are loaded");
        let mut row = Row { arguments, value_bytes, depth, population, outcome: &mut outcome };
        row.at_rest(&caches)?;
        row.turns(&caches, rounds)?;
        row.restart(&mut caches)?;
    }
    outcome.end()
}

/// The figures for one size of values.
struct Row<'a> {
    arguments: &'a Arguments,
    value_bytes: u64,
    /// GETs in flight on each connection.
    depth: u64,
    population: Population,
    outcome: &'a mut Outcome,
}

impl Row<'_> {
    fn hold(&mut self, what: &str, found: Spread, reach: Reach) {
        self.outcome.hold(format!("{} bytes: {what}", self.value_bytes), found, reach);
    }

    /// The share of items still there, and DRAM per item.
    fn at_rest(&mut self, caches: &[Cache; 2]) -> Result<(), Failure> {
        caches.iter().try_for_each(Cache::settle)?;
        let asked = self.arguments.sized(KEPT_ASKED, KEPT_ASKED / 100);
        let kept = [caches[0].kept(&self.population, asked)?, caches[1].kept(&self.population, asked)?];
        let each = [index_bytes_each(&caches[0])?, header_bytes_each(&caches[1], self.value_bytes)?];
        self.hold("items still there ÷ loaded", Spread::once(kept[0]), Reach::AtLeast(1.0));
        self.hold("extstore's items still there ÷ loaded", Spread::once(kept[1]), Reach::Reported);
        self.hold("DRAM of an item on flash ÷ extstore's", Spread::once(each[0] / each[1]), Reach::AtMost(0.1));
        self.hold("DRAM of an item on flash, B", Spread::once(each[0]), Reach::Reported);
        for (cache, name) in caches.iter().zip(["resident, MiB", "extstore's resident, MiB"]) {
            self.hold(name, Spread::once((cache.resident_bytes()? >> 20) as f64), Reach::Reported);
        }
        Ok(())
    }

    fn turns(&mut self, caches: &[Cache; 2], rounds: u64) -> Result<(), Failure> {
        let name = |name: &str| format!("{name}, {} bytes", self.value_bytes);
        let series = take_turns(self.arguments, caches, &self.population, self.depth, rounds, name)?;
        let [ours, theirs] = &series;
        self.hold("GETs a second ÷ extstore's", ours.ratio(theirs, Report::operations_per_second), Reach::AtLeast(1.2));
        self.hold("items found a second ÷ extstore's", ours.ratio(theirs, found_per_second), Reach::Reported);
        self.hold("hit rate", ours.spread(hit_rate), Reach::Reported);
        self.hold("extstore's hit rate", theirs.spread(hit_rate), Reach::Reported);
        self.hold("P99 ÷ extstore's", ours.ratio(theirs, read_quantile(0.99)), Reach::AtMost(0.7));
        self.outcome.series(series);
        Ok(())
    }

    /// GETs from the moment of the first answer.
    fn restart(&mut self, caches: &mut [Cache; 2]) -> Result<(), Failure> {
        for (cache, reach) in caches.iter_mut().zip([Reach::AtLeast(0.99), Reach::Reported]) {
            let second = Turn::zipfian_gets(CONNECTIONS, 1, self.arguments.time(Duration::from_secs(1)), 99);
            let before = hit_rate(&cache.turn(&self.population, &second)?);
            cache.kill()?;
            cache.start()?;
            let after = hit_rate(&cache.turn(&self.population, &second)?);
            let what = format!("hit rate in the first second after kill -9 ÷ before, {}", cache.name);
            self.hold(&what, Spread::once(after / before), reach);
        }
        Ok(())
    }
}

/// Zipfian GETs of one cache while the other is idle, after a turn that is not counted. Series are named by `name` of the cache.
fn take_turns(
    arguments: &Arguments,
    caches: &[Cache; 2],
    population: &Population,
    depth: u64,
    rounds: u64,
    name: impl Fn(&str) -> String,
) -> Result<[Series; 2], Failure> {
    caches.iter().for_each(Cache::pause);
    for cache in caches {
        cache.turn(population, &Turn::zipfian_gets(CONNECTIONS, depth, arguments.time(WARM_UP), 0))?;
    }
    let mut series = caches.each_ref().map(|cache| Series::new(&name(cache.name)));
    for round in 1..=rounds {
        for (cache, series) in caches.iter().zip(&mut series) {
            let turn = Turn::zipfian_gets(CONNECTIONS, depth, arguments.time(Duration::from_secs(1)), round);
            series.reports.push(cache.turn(population, &turn)?);
        }
    }
    caches.iter().for_each(Cache::resume);
    Ok(series)
}

fn found_per_second(report: &Report) -> f64 {
    report.operations_per_second() * hit_rate(report)
}

fn hit_rate(report: &Report) -> f64 {
    1.0 - report.latencies.missing as f64 / report.latencies.operations() as f64
}

/// From `stats`: the bytes of the index divided by its keys.
fn index_bytes_each(cache: &Cache) -> Result<f64, Failure> {
    let stats = cache.stats("")?;
    Ok(stat(&stats, "index_bytes")? as f64 / stat(&stats, "index_entries")? as f64)
}

/// From `stats`: the hash table, and the chunks of the classes that no whole item fits, which are the headers of items on flash.
fn header_bytes_each(cache: &Cache, value_bytes: u64) -> Result<f64, Failure> {
    let (stats, slabs) = (cache.stats("")?, cache.stats("slabs")?);
    let chunks = caches::header_chunks(&slabs, value_bytes);
    let header_bytes = stat(&stats, "hash_bytes")? + chunks.map(|(bytes, used)| bytes * used).sum::<u64>();
    Ok(header_bytes as f64 / stat(&stats, "extstore_objects_used")?.max(1) as f64)
}

fn stat(stats: &BTreeMap<String, u64>, name: &str) -> Result<u64, Failure> {
    stats.get(name).copied().ok_or_else(|| format!("the server's stats have no number {name}").into())
}
