//! A row of docs/BENCHMARKS.md: a command that measures something, and its smoke run.

use std::fmt;
use std::path::PathBuf;

use crate::arguments::{Arguments, Checked, Mode};
use crate::{Failure, workspace};

/// Stands for the folder of the binaries in a row's smoke options.
const THIS: &str = "THIS";

/// A command that measures something.
#[derive(Clone, Copy)]
pub struct Row {
    pub name: &'static str,
    run: fn(&Arguments) -> Result<(), Failure>,
    smoke: &'static str,
}

/// A figure that misses its aim. The row ended, and fails.
#[derive(Debug)]
pub struct Missed(pub String);

impl fmt::Display for Missed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "not reached: {}", self.0)
    }
}

impl std::error::Error for Missed {}

impl Row {
    /// `smoke` are the options of a smoke run: as little as it takes, and no contender that must be compiled from elsewhere.
    pub const fn new(name: &'static str, run: fn(&Arguments) -> Result<(), Failure>, smoke: &'static str) -> Row {
        Row { name, run, smoke }
    }

    /// Runs it as `cargo x COMMAND NAME WORDS`.
    pub fn start(&self, command: &str, words: &[String], mode: Mode) -> Result<(), Failure> {
        match mode {
            Mode::Smoke { binaries } => self.smoke(binaries),
            // Some measure in this process, which must be the build that users run. It takes minutes: a typing slip is told before.
            Mode::Measure if cfg!(debug_assertions) => match (self.run)(&Arguments::parse(words, Mode::Check)?) {
                Err(failure) if failure.is::<Checked>() => workspace::again_in_release(&[command, self.name], words),
                done => done,
            },
            mode => (self.run)(&Arguments::parse(words, mode)?),
        }
    }

    /// Runs it small; missed aims do not matter.
    pub fn smoke(&self, binaries: PathBuf) -> Result<(), Failure> {
        let this = binaries.to_string_lossy().into_owned();
        let words: Vec<String> = self.smoke.split_whitespace().map(|word| word.replace(THIS, &this)).collect();
        match (self.run)(&Arguments::parse(&words, Mode::Smoke { binaries })?) {
            Err(failure) if failure.is::<Missed>() => Ok(()),
            done => done,
        }
    }
}

/// What `words` say of the run: `--smoke BINARIES` stands alone.
pub fn mode(words: &[String]) -> Result<Mode, Failure> {
    match words {
        [word, binaries] if word == "--smoke" => Ok(Mode::Smoke { binaries: std::path::absolute(binaries)? }),
        words if words.iter().any(|word| word == "--smoke") => {
            Err("--smoke BINARIES takes the row's own smallest sizes: give no other option beside it".into())
        }
        _ => Ok(Mode::Measure),
    }
}
