//! `cargo x demo`: Tapetum and memcached with extstore side by side, with the same DRAM and flash. Both are loaded, queried, killed with
//! SIGKILL, and restarted. A client's answers are counted, printed, and drawn.

mod watch;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use tapetum_bench::budget::Budget;
use tapetum_bench::caches::{self, Cache};
use tapetum_bench::workload::{Population, Values};

use crate::Failure;
use crate::arguments::{Arguments, Mode};
use crate::results::chart::{Chart, Line, Scale};
use crate::results::spread::{Spread, grouped};
use crate::row::Row;
use crate::workspace::{self, Scratch};
use watch::{BIN, Watch};

const NAMES: [&str; 2] = ["Tapetum", "memcached + extstore"];
const KILL_AT: Duration = Duration::from_secs(10);
const END_AT: Duration = Duration::from_secs(25);
/// Long enough for both to restart, on any machine.
const SMOKE_END_AT: Duration = Duration::from_secs(5);
const SECOND: Duration = Duration::from_secs(1);
const TELL_EVERY: Duration = Duration::from_secs(10);
const KEPT_ASKED: u64 = 20_000;

pub const ROW: Row = Row::new("demo", demo, "--items 1000 --value 200 --flash 256MiB --rate 1000");

/// The time of the kill, and the end.
#[derive(Clone, Copy)]
struct Times {
    kill: Duration,
    end: Duration,
}

pub fn run(words: &[String], mode: Mode) -> Result<(), Failure> {
    match mode {
        Mode::Smoke { binaries } => ROW.smoke(binaries),
        // The servers are separate processes, so this one need not be a release build.
        mode => demo(&Arguments::parse(words, mode)?),
    }
}

fn demo(arguments: &Arguments) -> Result<(), Failure> {
    let items = arguments.number("items", 1_000_000)?.max(1000);
    let value_bytes = arguments.size("value", 1000)?;
    let budget =
        Budget { memory_bytes: arguments.size("memory", 64 << 20)?, flash_bytes: arguments.size("flash", 2 << 30)? };
    let load_rate = arguments.size("load-rate", caches::LOAD_BYTES_PER_SECOND)?;
    let rate = arguments.number("rate", 10_000)?.max(1);
    let picture = arguments.text("picture").map(PathBuf::from);
    let binary = arguments.server();
    arguments.finish()?;
    let picture = picture.map_or_else(|| usual_picture(arguments), Ok)?;
    let times = Times { kill: arguments.sized(KILL_AT, SECOND), end: arguments.sized(END_AT, SMOKE_END_AT) };
    let scratch = Scratch::new("demo")?;
    let extstore = Cache::extstore(scratch.folder(), budget)?;
    let binary = arguments.measured_server(binary)?;
    let mut caches = [Cache::tapetum(&binary, scratch.folder(), budget)?, extstore];
    let population = Population::new(items, Values::new(value_bytes as usize, 100));
    caches.iter_mut().try_for_each(Cache::start)?;

    let about =
        format!("{} items of {} bytes; each has {}", grouped(items), grouped(value_bytes), budget_shown(budget));
    println!("{about}\n");
    let loaded = load(&caches, &population, load_rate)?;
    let why = why_evicted(&caches[1], value_bytes, budget)?;
    if let Some([takes, hold]) = &why {
        println!("\n  {}: {takes} {hold}; it evicted the other items", NAMES[1]);
    }
    let seen = ask_and_kill(&mut caches, &population, rate, times)?;
    end(&about, &loaded, why, &seen, &picture, times)
}

/// The path of the picture: in the documents, except for a smoke run.
fn usual_picture(arguments: &Arguments) -> Result<PathBuf, Failure> {
    let folder = arguments.sized(workspace::root().join("docs"), arguments.results());
    std::fs::create_dir_all(&folder)?;
    Ok(folder.join("demo.svg"))
}

/// The state of a cache once it is loaded.
struct Loaded {
    kept: f64,
    resident_bytes: u64,
}

fn load(caches: &[Cache; 2], population: &Population, rate: u64) -> Result<[Loaded; 2], Failure> {
    columns("items stored", NAMES.map(str::to_owned));
    let mut told = Instant::now();
    caches::load(caches, population, rate, |stored| {
        if told.elapsed() >= TELL_EVERY {
            told = Instant::now();
            let [one, other] = [caches[0].resident_bytes()?, caches[1].resident_bytes()?];
            columns(&grouped(stored), [one, other].map(|bytes| format!("{} MiB resident", bytes >> 20)));
        }
        Ok(())
    })?;
    let look = |cache: &Cache| -> Result<Loaded, Failure> {
        cache.settle()?;
        Ok(Loaded { kept: cache.kept(population, KEPT_ASKED)?, resident_bytes: cache.resident_bytes()? })
    };
    let loaded = [look(&caches[0])?, look(&caches[1])?];
    columns("all, resident", loaded.each_ref().map(|loaded| format!("{} MiB", loaded.resident_bytes >> 20)));
    columns("still there", loaded.each_ref().map(|loaded| percent(loaded.kept)));
    Ok(loaded)
}

/// Two lines that explain why extstore evicted items that flash had room for: its memory is full of the headers of items on flash.
fn why_evicted(extstore: &Cache, value_bytes: u64, budget: Budget) -> Result<Option<[String; 2]>, Failure> {
    let (stats, slabs) = (extstore.stats("")?, extstore.stats("slabs")?);
    let is = |name: &str| stats.get(name).copied().unwrap_or(0) > 0;
    let class = caches::header_chunks(&slabs, value_bytes).max_by_key(|(_, used)| *used);
    Ok(class.filter(|_| is("evictions") && !is("extstore_objects_evicted")).map(|(bytes, _)| {
        [
            format!("each item on flash takes {bytes} B of"),
            format!("DRAM, and {} MiB hold no more", budget.memory_bytes >> 20),
        ]
    }))
}

/// The answers that a client of a cache got.
struct Seen {
    by_second: Vec<f64>,
    before: f64,
    /// In the second that begins with the first answer after the kill.
    after: f64,
    outage: Duration,
}

fn ask_and_kill(
    caches: &mut [Cache; 2],
    population: &Population,
    rate: u64,
    times: Times,
) -> Result<[Seen; 2], Failure> {
    println!("\n{} GETs a second of each, zipfian; what is missing is not stored again\n", grouped(rate));
    columns("second", NAMES.map(|name| format!("{name}, found")));
    let begun = Instant::now();
    let watches = [0, 1].map(|place| Watch::new(caches[place].address(), population, rate, begun));
    std::thread::scope(|scope| {
        let clients = watches.each_ref().map(|watch| scope.spawn(move || watch.ask(times.end)));
        let mut second = Duration::ZERO;
        while second < times.end {
            if second == times.kill {
                caches.iter_mut().try_for_each(Cache::kill)?;
                caches.iter_mut().try_for_each(Cache::spawn)?;
                println!("  kill -9 of both; both are started again");
            }
            second += SECOND;
            // A little later, so that the GETs of this second are answered.
            std::thread::sleep((second + BIN).saturating_sub(begun.elapsed()));
            let rates = watches.each_ref().map(|watch| watch.hit_rate(second - SECOND..second));
            columns(&second.as_secs().to_string(), rates.map(percent));
        }
        clients.into_iter().try_for_each(|client| client.join().expect("a client panicked"))
    })?;
    let [one, other] = watches;
    Ok([Seen::of(&one, NAMES[0], times)?, Seen::of(&other, NAMES[1], times)?])
}

impl Seen {
    fn of(watch: &Watch<'_>, name: &str, times: Times) -> Result<Seen, Failure> {
        let outage = watch.outage().ok_or_else(|| format!("{name} did not answer again after it was killed"))?;
        let seconds = 0..times.end.as_secs() as u32;
        // Counted from the first tenth of a second with answers.
        let back = outage.end + BIN;
        Ok(Seen {
            by_second: seconds.map(|second| watch.hit_rate(SECOND * second..SECOND * (second + 1))).collect(),
            before: watch.hit_rate(SECOND.min(times.kill - SECOND)..(times.kill - SECOND).max(SECOND)),
            after: watch.hit_rate(back..back + SECOND),
            outage: outage.end - outage.start,
        })
    }
}

fn end(
    about: &str,
    loaded: &[Loaded; 2],
    why: Option<[String; 2]>,
    seen: &[Seen; 2],
    picture: &Path,
    times: Times,
) -> Result<(), Failure> {
    println!();
    columns("", NAMES.map(str::to_owned));
    columns("found before the kill", seen.each_ref().map(|seen| percent(seen.before)));
    columns("answers again after", seen.each_ref().map(|seen| format!("{} ms", seen.outage.as_millis())));
    columns("found in the first second then", seen.each_ref().map(|seen| percent(seen.after)));
    let lines = seen.iter().zip(NAMES).map(|(seen, name)| {
        let points = seen.by_second.iter().enumerate();
        Line::new(name, points.map(|(second, rate)| (second as f64 + 0.5, Spread::once(rate * 100.0))))
    });
    let mut notes = Vec::new();
    for ((name, loaded), seen) in NAMES.iter().zip(loaded).zip(seen) {
        notes.extend([
            String::new(),
            format!("{name}:"),
            format!("  {} of the items kept", percent(loaded.kept)),
            format!("  {} MiB resident", loaded.resident_bytes >> 20),
            format!("  answered again after {} ms", seen.outage.as_millis()),
        ]);
    }
    notes.extend(why.into_iter().flatten().map(|line| format!("  {line}")));
    let axes = ["seconds", "GETs that found their item, %"];
    let chart = Chart::new(about, axes, Scale::Linear, lines.collect());
    let chart = Chart { mark: Some((times.kill.as_secs_f64(), "kill -9, restart".into())), notes, ..chart };
    std::fs::write(picture, chart.svg())?;
    println!("\ndrawn: {}", picture.display());
    Ok(())
}

fn columns(what: &str, [one, other]: [String; 2]) {
    println!("  {what:<32} {one:>22} {other:>28}");
}

fn percent(share: f64) -> String {
    format!("{:.1} %", share * 100.0)
}

fn budget_shown(budget: Budget) -> String {
    format!("{} MiB of DRAM and {} MiB of flash", grouped(budget.memory_bytes >> 20), grouped(budget.flash_bytes >> 20))
}
