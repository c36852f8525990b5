//! Figures: what docs/BENCHMARKS.md reports, each from one command against the release build: over loopback, or through the
//! API in this process, which then is a release build too.

mod embedded;
mod flash_reads;
mod growth_latency;
mod index_memory;
mod index_scale;
mod load;
mod memory_peak;
mod overwrites;
mod raw_disk;
mod restart;
mod warm;

use std::time::Duration;

use crate::Failure;
use crate::arguments::Arguments;
use crate::workspace::{self, Profile, Scratch};
use tapetum_bench::server::{Server, ServerOptions};

type Figure = fn(&Arguments) -> Result<(), Failure>;

/// Those that take a few minutes at most: `all` makes them.
const SHORT: [(&str, Figure); 7] = [
    ("flash-reads", flash_reads::run),
    ("index-memory", index_memory::run),
    ("memory-peak", memory_peak::run),
    ("load", load::run),
    ("growth-latency", growth_latency::run),
    ("restart", restart::run),
    ("warm", warm::run),
];
const LONG: [(&str, Figure); 2] = [("index-scale", index_scale::run), ("overwrites", overwrites::run)];

pub fn run(name: &str, words: &[String]) -> Result<(), Failure> {
    let arguments = Arguments::parse(words)?;
    let figures: Vec<(&str, Figure)> = match name {
        "all" => SHORT.to_vec(),
        name => SHORT.iter().chain(&LONG).filter(|figure| figure.0 == name).copied().collect(),
    };
    if figures.is_empty() {
        let names: Vec<&str> = SHORT.iter().chain(&LONG).map(|figure| figure.0).collect();
        return Err(format!("there is no figure {name}; there are {} and all", names.join(", ")).into());
    }
    if cfg!(debug_assertions) {
        // What is measured in this process must be the build that users run.
        return workspace::again_in_release("figures", name, words);
    }
    figures.into_iter().try_for_each(|(_, figure)| figure(&arguments))
}

/// A server of its own for one figure, over an empty data directory that goes after it.
struct Bench {
    server: Server,
    _scratch: Scratch,
}

impl Bench {
    fn start(name: &str, arguments: &Arguments, options: &[&str]) -> Result<Bench, Failure> {
        let binary = arguments.server();
        arguments.finish()?;
        let binary = workspace::server(binary, Profile::Release)?;
        let scratch = Scratch::new(name)?;
        let data = scratch.folder().join("data");
        println!("{name}: tapetum serve {}", options.join(" "));
        let server = ServerOptions::new(&binary, &data, options)?.start()?;
        Ok(Bench { server, _scratch: scratch })
    }

    fn server(&self) -> &Server {
        &self.server
    }

    fn end(self) -> Result<(), Failure> {
        self.server.terminate()
    }
}

/// Prints one row: what, how much, and against what it is held.
fn row(what: &str, figure: String, reach: &str) {
    println!("  {what:<58} {figure:>16}   {reach}");
}

fn mebibytes(bytes: u64) -> String {
    format!("{:.1} MiB", bytes as f64 / (1 << 20) as f64)
}

fn seconds(time: Duration) -> String {
    format!("{:.3} s", time.as_secs_f64())
}

fn microseconds(nanoseconds: u64) -> String {
    format!("{:.0} µs", nanoseconds as f64 / 1000.0)
}

/// Fails the command when a figure misses what is promised, so that a script can hold it.
fn hold(kept: bool, promise: &str) -> Result<(), Failure> {
    if kept { Ok(()) } else { Err(format!("not reached: {promise}").into()) }
}
