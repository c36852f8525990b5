//! `--name value` pairs. An option that no command asked for is an error, so that a typing mistake cannot silently run the default: every
//! getter marks its name, and `finish` looks for unmarked ones.
//!
//! Every command reads all its options, calls `finish`, and only then builds or starts anything. So a typing mistake costs no time, and the
//! test of the documents' commands ([`Mode::Check`]) ends there.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::Failure;
use crate::workspace::{self, Profile};

/// Run time of everything timed, in a smoke run.
const SMOKE_TIME: Duration = Duration::from_millis(30);

/// The purpose of running a row or a figure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Mode {
    /// For its figures, on the release build.
    Measure,
    /// To see that it runs to its end: small and short, with the binaries in this folder. Its figures mean nothing.
    Smoke { binaries: PathBuf },
    /// To see that the options exist: `finish` ends it with [`Checked`].
    Check,
}

/// The end of a run that only checks its options.
#[derive(Debug)]
pub struct Checked;

impl fmt::Display for Checked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("its options are right, and no more was to be done")
    }
}

impl std::error::Error for Checked {}

pub struct Arguments {
    values: BTreeMap<String, String>,
    asked: RefCell<BTreeSet<String>>,
    mode: Mode,
}

impl Arguments {
    pub fn parse(words: &[String], mode: Mode) -> Result<Arguments, Failure> {
        let mut values = BTreeMap::new();
        let mut words = words.iter();
        while let Some(word) = words.next() {
            let name = word.strip_prefix("--").ok_or_else(|| format!("expected --option, found {word}"))?;
            let value = words.next().ok_or_else(|| format!("--{name} needs a value"))?;
            if values.insert(name.to_owned(), value.clone()).is_some() {
                return Err(format!("--{name} is given twice").into());
            }
        }
        Ok(Arguments { values, asked: RefCell::default(), mode })
    }

    pub fn text(&self, name: &str) -> Option<&str> {
        self.asked.borrow_mut().insert(name.to_owned());
        self.values.get(name).map(String::as_str)
    }

    pub fn number(&self, name: &str, default: u64) -> Result<u64, Failure> {
        match self.text(name) {
            None => Ok(default),
            Some(text) => text.parse().map_err(|_| format!("--{name} takes a whole number, not {text}").into()),
        }
    }

    pub fn optional_number(&self, name: &str) -> Result<Option<u64>, Failure> {
        self.text(name).map(|_| self.number(name, 0)).transpose()
    }

    /// Bytes: a whole number, alone or followed by KiB, MiB or GiB.
    pub fn size(&self, name: &str, default: u64) -> Result<u64, Failure> {
        match self.text(name) {
            None => Ok(default),
            Some(text) => parse_size(text)
                .ok_or_else(|| format!("--{name} takes bytes, such as 4096, 64KiB, 256MiB or 4GiB, not {text}").into()),
        }
    }

    /// The `tapetum` named by the options.
    pub fn server(&self) -> Option<PathBuf> {
        self.text("server").map(PathBuf::from)
    }

    /// The folder of the binaries of a smoke run.
    pub fn smoke_binaries(&self) -> Option<&Path> {
        match &self.mode {
            Mode::Smoke { binaries } => Some(binaries),
            Mode::Measure | Mode::Check => None,
        }
    }

    /// `size`, or `smoke` in a smoke run: for sizes that are not options.
    pub fn sized<T>(&self, size: T, smoke: T) -> T {
        if self.smoke_binaries().is_some() { smoke } else { size }
    }

    /// `time`, or almost nothing in a smoke run.
    pub fn time(&self, time: Duration) -> Duration {
        self.sized(time, time.min(SMOKE_TIME))
    }

    /// The `tapetum` to test: the one named by the options, or that of the test build, which is then built. No option may be read
    /// afterwards.
    pub fn tested_server(&self) -> Result<PathBuf, Failure> {
        let named = self.server();
        self.finish()?;
        named.map_or_else(|| workspace::build_server(Profile::Test), Ok)
    }

    /// The folder for results of a row or figure.
    pub fn results(&self) -> PathBuf {
        workspace::target().join(self.sized("bench", "bench/smoke"))
    }

    /// The `tapetum` to measure: the `named` one, or that of the release build, which is then built.
    pub fn measured_server(&self, named: Option<PathBuf>) -> Result<PathBuf, Failure> {
        match (named, self.smoke_binaries()) {
            (Some(named), _) => Ok(named),
            (None, Some(binaries)) => Ok(binaries.join("tapetum")),
            (None, None) => workspace::build_server(Profile::Release),
        }
    }

    pub fn finish(&self) -> Result<(), Failure> {
        let asked = self.asked.borrow();
        match self.values.keys().find(|name| !asked.contains(*name)) {
            None if self.mode == Mode::Check => Err(Checked.into()),
            None => Ok(()),
            Some(name) => {
                let known: Vec<String> = asked.iter().map(|name| format!("--{name}")).collect();
                Err(format!("there is no option --{name} here; there are {}", known.join(", ")).into())
            }
        }
    }
}

fn parse_size(text: &str) -> Option<u64> {
    let digits = text.trim_end_matches(|c: char| !c.is_ascii_digit());
    let unit: u64 = match &text[digits.len()..] {
        "" => 1,
        "KiB" => 1 << 10,
        "MiB" => 1 << 20,
        "GiB" => 1 << 30,
        _ => return None,
    };
    digits.parse::<u64>().ok()?.checked_mul(unit)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<String> {
        text.split_whitespace().map(str::to_owned).collect()
    }

    #[test]
    fn sizes_take_binary_units_only() {
        assert_eq!(parse_size("4096"), Some(4096));
        assert_eq!(parse_size("256MiB"), Some(256 << 20));
        assert_eq!(parse_size("3GB"), None);
        assert_eq!(parse_size("GiB"), None);
        assert_eq!(parse_size("99999999999GiB"), None);
    }

    #[test]
    fn an_option_nobody_asked_for_is_refused() {
        let arguments = Arguments::parse(&words("--cycles 3 --cylces 4"), Mode::Measure).unwrap();
        assert_eq!(arguments.number("cycles", 30).unwrap(), 3);
        assert!(arguments.finish().unwrap_err().to_string().contains("--cylces"));
    }

    #[test]
    fn a_value_is_never_taken_for_an_option() {
        assert!(Arguments::parse(&words("30"), Mode::Measure).is_err());
        assert!(Arguments::parse(&words("--cycles"), Mode::Measure).is_err());
        assert!(Arguments::parse(&words("--seed 1 --seed 2"), Mode::Measure).is_err());
    }
}
