//! `programs` and `pipeline run`: lists the programs of a drive, and runs them.

use std::error::Error;
use std::sync::Arc;
use std::{fmt, io};

use tapetum::{ItemPipeline, KeyspaceHandle};
use tapetum_drive::engine::{EngineOptions, StageSnapshot};
use tapetum_drive::{
    Drive, Env, Identity, LocalMemory, MemoryFlash, PipelineFailure, PipelineReason, ProgramId, arbiter::UnitCount,
    programs,
};

use crate::host_pipeline::{self, HostPipelineError};
use crate::reply::StageRow;

/// Local memory of the computing drive, besides the input: its sub-buffers and the longest output. Untouched pages cost nothing.
const LOCAL_BYTES: usize = OUTPUT_BYTES_MAX as usize + (8 << 20);
/// The longest output.
const OUTPUT_BYTES_MAX: u32 = 1 << 30;

/// The longest output of a pipeline that runs in the store's own local memory.
const NEAR_OUTPUT_BYTES_MAX: u32 = 1 << 20;

/// Short names that people type, and the programs that they stand for.
const SHORT_NAMES: [(&str, bool, &str); 4] = [
    ("zstd", false, "zstd-compress"),
    ("zstd", true, "zstd-decompress"),
    ("snappy", false, "snappy-compress"),
    ("snappy", true, "snappy-decompress"),
];

/// Why a pipeline's text is invalid.
#[derive(Debug)]
pub enum PipelineTextError {
    Empty { stage: usize },
    UnknownProgram { stage: usize, name: String, known: Vec<String> },
    UnknownUnits { name: String, known: Vec<String> },
    UnknownWord { stage: usize, word: String },
    LateFetch { stage: usize },
    UnitsWithoutNumber { text: String },
    Run(HostPipelineError),
    NoDrive(io::Error),
}

impl fmt::Display for PipelineTextError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PipelineTextError::Empty { stage } => {
                write!(f, "stage {stage} is empty: write programs with | between them, such as 'zstd -d | sha256'")
            }
            PipelineTextError::UnknownProgram { stage, name, known } => {
                write!(f, "stage {stage}: there is no program {name:?}; the drive has {}", known.join(", "))
            }
            PipelineTextError::UnknownUnits { name, known } => {
                write!(f, "there is no program {name:?} to give threads; those that take them are {}", known.join(", "))
            }
            PipelineTextError::UnknownWord { stage, word } => {
                write!(
                    f,
                    "stage {stage}: {word:?} means nothing to its program; -d decompresses, -1 to -22 are zstd's levels"
                )
            }
            PipelineTextError::LateFetch { stage } => {
                write!(f, "stage {stage}: fetch brings the bytes, so it can only be the first word")
            }
            PipelineTextError::UnitsWithoutNumber { text } => {
                write!(f, "{text:?} does not name compute units: write PROGRAM=NUMBER, such as zstd=1")
            }
            PipelineTextError::Run(error) => error.fmt(f),
            PipelineTextError::NoDrive(error) => write!(f, "there is no drive to compute on: {error}"),
        }
    }
}

impl std::error::Error for PipelineTextError {}

fn drive(source_bytes: usize) -> Result<Drive, PipelineTextError> {
    let local = LocalMemory::new(LOCAL_BYTES + source_bytes).map_err(PipelineTextError::NoDrive)?;
    Ok(Drive::new(Arc::new(MemoryFlash::new(4096)), local, programs::built_in(), Env::system()))
}

/// The programs, one on each line.
pub fn list() -> Result<String, PipelineTextError> {
    let identity = drive(0)?.identity();
    let width = identity.programs.iter().map(|program| program.name.len()).max().unwrap_or(0);
    let mut out = format!("{:width$}  version  in parts\n", "program");
    for program in &identity.programs {
        let in_parts = if program.is_stream { "yes" } else { "no" };
        out.push_str(&format!("{:width$}  {:7}  {in_parts}\n", program.name, program.version));
    }
    Ok(out)
}

/// The program with this name, with or without -d.
fn stage_program(
    identity: &Identity,
    stage: usize,
    name: &str,
    decompress: bool,
) -> Result<ProgramId, PipelineTextError> {
    let short = SHORT_NAMES.iter().find(|(short, back, _)| *short == name && *back == decompress);
    let whole = short.map_or(name, |(_, _, whole)| whole);
    if decompress && short.is_none() {
        return Err(PipelineTextError::UnknownWord { stage, word: "-d".into() });
    }
    let unknown = || PipelineTextError::UnknownProgram { stage, name: name.into(), known: stream_names(identity) };
    program(identity, whole).ok_or_else(unknown)
}

fn program(identity: &Identity, name: &str) -> Option<ProgramId> {
    identity.programs.iter().find(|program| program.name == name).map(|program| program.id)
}

/// A program that stages run; only such programs get threads.
fn stream_program(identity: &Identity, name: &str) -> Option<ProgramId> {
    identity.programs.iter().find(|program| program.is_stream && program.name == name).map(|program| program.id)
}

fn stream_names(identity: &Identity) -> Vec<String> {
    identity.programs.iter().filter(|program| program.is_stream).map(|program| program.name.clone()).collect()
}

/// Parses `fetch | zstd -d | sha256` into the drive's programs.
fn parse(identity: &Identity, text: &str) -> Result<Vec<(ProgramId, Vec<u8>)>, PipelineTextError> {
    let mut stages = Vec::new();
    for (place, text) in text.split('|').enumerate() {
        // The number as the drive counts stages; fetch does not count.
        let stage = stages.len();
        let mut words = text.split_whitespace();
        let Some(name) = words.next() else { return Err(PipelineTextError::Empty { stage }) };
        if name == "fetch" {
            match (place, words.next()) {
                (0, None) => continue,
                (0, Some(word)) => return Err(PipelineTextError::UnknownWord { stage, word: word.into() }),
                _ => return Err(PipelineTextError::LateFetch { stage }),
            }
        }
        let (mut decompress, mut parameters) = (false, Vec::new());
        for word in words {
            let level = word.strip_prefix('-').and_then(|level| level.parse::<i32>().ok());
            match level {
                _ if word == "-d" => decompress = true,
                Some(level) if (1..=22).contains(&level) && matches!(name, "zstd" | "zstd-compress") => {
                    parameters = level.to_le_bytes().to_vec();
                }
                _ => return Err(PipelineTextError::UnknownWord { stage, word: word.into() }),
            }
        }
        stages.push((stage_program(identity, stage, name, decompress)?, parameters));
    }
    Ok(stages)
}

/// Parses units. A short name means all of its programs.
fn units(identity: &Identity, texts: &[String]) -> Result<Vec<UnitCount>, PipelineTextError> {
    let mut all: Vec<UnitCount> = Vec::new();
    for text in texts {
        let without = || PipelineTextError::UnitsWithoutNumber { text: text.clone() };
        let (name, number) = text.split_once('=').ok_or_else(without)?;
        let units = number.parse().ok().filter(|units| (1..=64).contains(units)).ok_or_else(without)?;
        let short: Vec<&str> =
            SHORT_NAMES.iter().filter(|(short, _, _)| *short == name).map(|(_, _, whole)| *whole).collect();
        for name in if short.is_empty() { vec![name] } else { short } {
            let unknown = || PipelineTextError::UnknownUnits { name: name.into(), known: stream_names(identity) };
            let program = stream_program(identity, name).ok_or_else(unknown)?;
            // The last number given counts.
            all.retain(|count| count.program != program);
            all.push(UnitCount { program, units });
        }
    }
    Ok(all)
}

/// Like `units`, by program names of this build, for opening a store.
pub fn named_units(texts: &[String]) -> Result<Vec<(String, u16)>, PipelineTextError> {
    let identity = drive(0)?.identity();
    let name = |count: UnitCount| (identity.programs[usize::from(count.program.0)].name.clone(), count.units);
    Ok(units(&identity, texts)?.into_iter().map(name).collect())
}

/// The compute units that a pipeline gets.
#[derive(Clone, Copy)]
pub struct UnitChoice<'a> {
    /// Counts by program, such as `zstd=2`.
    pub compute_units: &'a [String],
    /// Whether each unit stays on one core.
    pub pin: bool,
}

/// The output of a pipeline, and its stages' counters.
pub struct PipelineRun {
    pub bytes: Vec<u8>,
    pub stages: Vec<StageRow>,
}

/// The output of the pipeline for `bytes`. A digest is printed as text.
pub fn run(text: &str, choice: UnitChoice<'_>, bytes: &[u8]) -> Result<PipelineRun, PipelineTextError> {
    let mut drive = drive(bytes.len())?;
    let identity = drive.identity();
    let stages = parse(&identity, text)?;
    let UnitChoice { compute_units, pin } = choice;
    let units = units(&identity, compute_units)?;
    if !units.is_empty() {
        drive = drive.with_compute_units(&EngineOptions { pin, ..EngineOptions::with_units(units) });
    }
    if stages.is_empty() {
        // `fetch` alone returns the bytes unchanged.
        return Ok(PipelineRun { bytes: bytes.to_vec(), stages: rows(drive.stage_counters()) });
    }
    let is_digest = is_digest(&identity, &stages);
    let out = host_pipeline::run(&drive, &stages, bytes, OUTPUT_BYTES_MAX).map_err(PipelineTextError::Run)?;
    Ok(PipelineRun { bytes: if is_digest { hex(&out) } else { out }, stages: rows(drive.stage_counters()) })
}

/// What became of an item's pipeline.
pub enum ItemRun {
    Ran(PipelineRun),
    NoItem,
    /// The output is too long for the store's local memory: [`run`] has its own.
    TooLong,
}

/// The output of the pipeline for an item, computed by the item's drive in the store's local memory.
pub fn run_item(keyspace: &KeyspaceHandle, key: &[u8], text: &str) -> Result<ItemRun, Box<dyn Error>> {
    let identity = keyspace.store().drive_identity();
    let stages = parse(&identity, text)?;
    if stages.is_empty() {
        // An uncompressed value passes no program, and a pipeline needs at least one.
        return Ok(match keyspace.get(key)? {
            Some(item) => {
                ItemRun::Ran(PipelineRun { bytes: item.value, stages: rows(keyspace.store().stage_counters()) })
            }
            None => ItemRun::NoItem,
        });
    }
    let is_digest = is_digest(&identity, &stages);
    let (output_bytes_max, application) = (NEAR_OUTPUT_BYTES_MAX, keyspace.application());
    let pipeline = ItemPipeline { stages, output_bytes_max, application, ..ItemPipeline::default() };
    match keyspace.get_through(key, &pipeline) {
        Ok(None) => Ok(ItemRun::NoItem),
        Ok(Some(out)) => {
            let bytes = if is_digest { hex(&out) } else { out };
            Ok(ItemRun::Ran(PipelineRun { bytes, stages: rows(keyspace.store().stage_counters()) }))
        }
        Err(tapetum::Error::Pipeline(PipelineFailure {
            reason: PipelineReason::OutputTooLong | PipelineReason::NoLocalMemory,
            ..
        })) => Ok(ItemRun::TooLong),
        Err(tapetum::Error::Pipeline(failure)) => {
            let error = HostPipelineError::of(failure, &identity, &pipeline.stages);
            Err(PipelineTextError::Run(error).into())
        }
        Err(error) => Err(error.into()),
    }
}

fn rows(stages: Vec<StageSnapshot>) -> Vec<StageRow> {
    stages.into_iter().map(StageRow::from).collect()
}

/// A line for each stage that ran.
pub fn stage_lines(stages: &[StageRow]) -> String {
    let width = stages.iter().map(|stage| stage.name.len()).max().unwrap_or(0);
    let mut out = format!(
        "{:width$}  {:>8} {:>12} {:>12} {:>9} {:>8} {:>6}\n",
        "stage", "tasks", "bytes in", "bytes out", "unit us", "failures", "waits"
    );
    for stage in stages.iter().filter(|stage| stage.tasks > 0) {
        let StageRow { name, tasks, bytes_in, bytes_out, unit_us, failures, waits } = stage;
        out.push_str(&format!(
            "{name:width$}  {tasks:8} {bytes_in:12} {bytes_out:12} {unit_us:9} {failures:8} {waits:6}\n"
        ));
    }
    out
}

fn is_digest(identity: &Identity, stages: &[(ProgramId, Vec<u8>)]) -> bool {
    let last = stages.last().and_then(|(last, _)| identity.programs.iter().find(|program| program.id == *last));
    last.is_some_and(|program| matches!(&program.name[..], "sha256" | "crc32c"))
}

/// A digest as a line of text.
fn hex(digest: &[u8]) -> Vec<u8> {
    let digits = |bytes: &mut dyn Iterator<Item = &u8>| bytes.map(|byte| format!("{byte:02x}")).collect::<String>();
    // A crc is a number, and is written with its most significant digits first.
    let is_number = digest.len() == 4;
    let mut hex = if is_number { digits(&mut digest.iter().rev()) } else { digits(&mut digest.iter()) };
    hex.push('\n');
    hex.into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(text: &str, units: &[String], bytes: &[u8]) -> Result<Vec<u8>, PipelineTextError> {
        super::run(text, UnitChoice { compute_units: units, pin: false }, bytes).map(|run| run.bytes)
    }

    #[test]
    fn a_pipeline_is_written_as_in_a_shell() {
        let stored = run("fetch | zstd -19 | snappy", &[], b"mirror mirror mirror").unwrap();
        let units = ["zstd=1".to_owned(), "sha256=2".to_owned()];
        assert_eq!(run("snappy -d | zstd -d", &units, &stored).unwrap(), b"mirror mirror mirror");
        let digest = run("snappy-decompress|zstd-decompress|sha256", &units, &stored).unwrap();
        assert_eq!(digest, run("sha256", &[], b"mirror mirror mirror").unwrap());
        assert_eq!(run("crc32c", &[], b"123456789").unwrap(), b"e3069283\n");
    }

    #[test]
    fn fetch_alone_brings_the_bytes_as_they_are() {
        assert_eq!(run("fetch", &[], b"any bytes").unwrap(), b"any bytes");
        assert_eq!(run("fetch", &[], b"").unwrap(), b"");
    }

    #[test]
    fn a_short_name_means_both_directions() {
        let identity = drive(0).unwrap().identity();
        let units = units(&identity, &["zstd=2".into(), "sha256=1".into(), "zstd-compress=3".into()]).unwrap();
        let names = units.iter().map(|count| (&*identity.programs[usize::from(count.program.0)].name, count.units));
        assert_eq!(names.collect::<Vec<_>>(), [("zstd-decompress", 2), ("sha256", 1), ("zstd-compress", 3)]);
    }

    #[test]
    fn stages_that_did_something_have_a_line() {
        let choice = UnitChoice { compute_units: &["sha256=1".into()], pin: true };
        let ran = super::run("zstd | sha256", choice, &[7; 100_000]).unwrap();
        let lines = stage_lines(&ran.stages);
        let first_words: Vec<_> = lines.lines().filter_map(|line| line.split_whitespace().next()).collect();
        assert_eq!(first_words, ["stage", "sha256", "zstd-compress", "source", "sink"]);
    }

    #[test]
    fn what_is_wrong_is_told_with_its_stage() {
        let told = |text: &str, units: &[&str]| {
            let units: Vec<String> = units.iter().map(|text| (*text).into()).collect();
            run(text, &units, b"bytes").unwrap_err().to_string()
        };
        assert!(told("zstd -d | ", &[]).starts_with("stage 1 is empty"));
        assert!(told("gzip", &[]).contains("no program \"gzip\"; the drive has concat, crc32c"));
        assert!(told("concat | sha256 -x", &[]).starts_with("stage 1: \"-x\""));
        assert!(told("sha256 -d", &[]).starts_with("stage 0: \"-d\""));
        assert!(told("zstd | fetch", &[]).starts_with("stage 1: fetch"));
        assert!(told("zstd -d", &[]).starts_with("stage 0, zstd-decompress: its input is damaged"));
        assert!(told("fetch | gzip", &[]).starts_with("stage 0: there is no program"));
        assert!(told("sha256", &["gzip=1"]).starts_with("there is no program \"gzip\" to give threads"));
        let of_node = told("sha256", &["node-get=1"]);
        assert!(of_node.contains("no program \"node-get\"") && !of_node.contains("node-put"), "{of_node}");
        assert!(told("sha256", &["sha256"]).contains("PROGRAM=NUMBER"));
    }
}
