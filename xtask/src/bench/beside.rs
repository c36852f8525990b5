//! The server of this tree beside that of another, as `--server` names it: zipfian GETs of caches in turns, a part of them from flash.
//! By it a change of the way from socket to socket is judged; nothing is to be reached.

use std::path::Path;

use tapetum_bench::caches::{self, Budget, Cache};
use tapetum_bench::turn::Report;
use tapetum_bench::workload::{Population, Values};

use super::KEY_BYTES;
use super::extstore::{CONNECTIONS, DATA_PARTS, take_turns};
use super::outcome::{Outcome, Reach};
use super::series::read_quantile;
use crate::Failure;
use crate::arguments::Arguments;
use crate::workspace::Scratch;

/// Flash over data.
const FLASH_PARTS: u64 = 2;

pub fn run(arguments: &Arguments) -> Result<(), Failure> {
    let other =
        arguments.server().ok_or("beside needs --server PATH: the tapetum of another tree, built for release")?;
    let memory_bytes = arguments.size("memory", 64 << 20)?;
    let value_bytes = arguments.size("value", 200)?;
    let depth = arguments.number("depth", 1)?.max(1);
    let items = arguments.number("items", memory_bytes * DATA_PARTS / (KEY_BYTES + value_bytes))?;
    let rounds = arguments.number("rounds", 15)?;
    arguments.finish()?;
    let budget = Budget { memory_bytes, flash_bytes: memory_bytes * DATA_PARTS * FLASH_PARTS };
    let about = format!(
        "zipfian GETs, {depth} at a time over each of {CONNECTIONS} connections, of {items} items of {value_bytes} bytes, {} MiB of DRAM, beside {}",
        memory_bytes >> 20,
        other.display()
    );
    println!("beside: {about}");
    let scratch = Scratch::new("bench-beside")?;
    let cache = |binary: &Path, name: &'static str| -> Result<Cache, Failure> {
        let folder = scratch.folder().join(name);
        std::fs::create_dir(&folder)?;
        let mut cache = Cache::tapetum(binary, &folder, budget)?;
        cache.name = name;
        Ok(cache)
    };
    let ours = arguments.measured_server(None)?;
    let mut caches = [cache(&ours, "this")?, cache(&other, "other")?];
    let population = Population::new(items, Values::new(value_bytes as usize, 100));
    caches.iter_mut().try_for_each(Cache::start)?;
    caches::load(&caches, &population, caches::LOAD_BYTES_PER_SECOND, |_| Ok(()))?;
    caches.iter().try_for_each(Cache::settle)?;
    let series = take_turns(arguments, &caches, &population, (depth, rounds), str::to_owned)?;
    let mut outcome = Outcome::new(arguments, "beside", about);
    let [ours, theirs] = &series;
    let mut report = |what: &str, found| outcome.hold(format!("{what} ÷ the other's"), found, Reach::Reported);
    report("GETs a second", ours.ratio(theirs, Report::operations_per_second));
    report("CPU a GET", ours.ratio(theirs, Report::cpu_us_per_operation));
    report("P99", ours.ratio(theirs, read_quantile(0.99)));
    outcome.series(series);
    outcome.end()
}
