//! Figures: what docs/BENCHMARKS.md reports, each from one command against the release build over loopback.

mod flash_reads;
mod index_memory;
mod memory_peak;
mod overwrites;

use std::path::PathBuf;

use crate::Failure;
use crate::arguments::Arguments;
use crate::server::{Server, ServerOptions};
use crate::workspace::{self, Profile};

pub fn run(name: &str, arguments: &Arguments) -> Result<(), Failure> {
    match name {
        "flash-reads" => flash_reads::run(arguments),
        "index-memory" => index_memory::run(arguments),
        "memory-peak" => memory_peak::run(arguments),
        "overwrites" => overwrites::run(arguments),
        "all" => {
            flash_reads::run(arguments)?;
            index_memory::run(arguments)?;
            memory_peak::run(arguments)?;
            overwrites::run(arguments)
        }
        other => Err(format!(
            "there is no figure {other}; there are flash-reads, index-memory, memory-peak, overwrites and all"
        )
        .into()),
    }
}

/// A server of its own for one figure, over an empty data directory that goes when the figure is done.
struct Bench {
    server: Option<Server>,
    scratch: PathBuf,
    data: PathBuf,
}

impl Bench {
    fn start(name: &str, arguments: &Arguments, options: &[&str]) -> Result<Bench, Failure> {
        let binary = arguments.server();
        arguments.finish()?;
        let binary = match binary {
            Some(binary) => binary,
            None => workspace::build_server(Profile::Release)?,
        };
        let scratch = workspace::scratch(name)?;
        let data = scratch.join("data");
        println!("{name}: tapetum serve {}", options.join(" "));
        let server = ServerOptions::new(&binary, &data, options)?.start()?;
        Ok(Bench { server: Some(server), scratch, data })
    }

    fn server(&self) -> &Server {
        self.server.as_ref().expect("it runs until `end`")
    }

    fn end(mut self) -> Result<(), Failure> {
        self.server.take().expect("it ends once").terminate()
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        self.server = None;
        if let Err(error) = std::fs::remove_dir_all(&self.scratch) {
            eprintln!("{} stays behind: {error}", self.scratch.display());
        }
    }
}

/// Prints one row: what, how much, and against what it is held.
fn row(what: &str, figure: String, reach: &str) {
    println!("  {what:<58} {figure:>16}   {reach}");
}

fn mebibytes(bytes: u64) -> String {
    format!("{:.1} MiB", bytes as f64 / (1 << 20) as f64)
}

/// Fails the command when a figure misses what is promised, so that a script can hold it.
fn hold(kept: bool, promise: &str) -> Result<(), Failure> {
    if kept { Ok(()) } else { Err(format!("not reached: {promise}").into()) }
}
