//! Figures: what docs/BENCHMARKS.md reports, each from one command against the release build: over loopback, or through the
//! API in this process, which then is a release build too.

mod console;
mod crossing;
mod drive_process;
mod drive_process_work;
mod embedded;
mod flash_reads;
mod growth_latency;
mod index_scale;
mod memory_peak;
mod ordered_operations;
mod ordered_space;
mod overwrites;
mod raw_disk;
mod restart;
mod warm;

use crate::Failure;
use crate::arguments::{Arguments, Mode};
use crate::row::Row;
use crate::workspace::{self, Scratch};
use tapetum_bench::server::{Server, ServerOptions};

/// Those that take a few minutes at most: `all` makes them.
pub const SHORT: [Row; 9] = [
    Row::new("console", console::run, "--seconds 1"),
    Row::new("crossing", crossing::run, "--items 500 --capacity 256MiB --memory 64MiB"),
    Row::new("drive-process-link", drive_process::run, "--rounds 1 --milliseconds 30"),
    Row::new("drive-process-work", drive_process_work::run, "--items 2000 --files 100 --rounds 1"),
    Row::new("flash-reads", flash_reads::run, "--items 2000 --gets 2000"),
    Row::new("memory-peak", memory_peak::run, "--write 64MiB"),
    Row::new("growth-latency", growth_latency::run, "--items 5000 --seconds 1 --capacity 256MiB --memory 64MiB"),
    Row::new("restart", restart::run, "--items 5000 --runs 1 --write-ms 100 --capacity 256MiB --memory 64MiB"),
    Row::new("warm", warm::run, "--items 5000 --runs 1 --rate 2000"),
];
pub const LONG: [Row; 4] = [
    Row::new("index-scale", index_scale::run, "--from 20000 --to 40000 --final 60000 --capacity 256MiB --memory 64MiB"),
    Row::new(
        "ordered-operations",
        ordered_operations::run,
        "--items 5000 --operations 50 --capacity 256MiB --memory 64MiB",
    ),
    Row::new("ordered-space", ordered_space::run, "--items 5000 --capacity 256MiB --memory 64MiB"),
    Row::new("overwrites", overwrites::run, "--capacity 64MiB --memory 32MiB --value 2000 --rounds 1"),
];

pub fn run(name: &str, words: &[String], mode: Mode) -> Result<(), Failure> {
    if name == "all" {
        if cfg!(debug_assertions) && mode == Mode::Measure {
            return workspace::again_in_release(&["figures", name], words);
        }
        return SHORT.iter().try_for_each(|row| row.start("figures", words, mode.clone()));
    }
    let Some(row) = SHORT.iter().chain(&LONG).find(|row| row.name == name) else {
        let names: Vec<&str> = SHORT.iter().chain(&LONG).map(|row| row.name).collect();
        return Err(format!("there is no figure {name}; there are {} and all", names.join(", ")).into());
    };
    row.start("figures", words, mode)
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
        let binary = arguments.measured_server(binary)?;
        let scratch = Scratch::new(name)?;
        let data = scratch.folder().join("data");
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

fn mebibytes(bytes: u64) -> f64 {
    bytes as f64 / (1 << 20) as f64
}
