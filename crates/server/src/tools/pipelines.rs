//! `programs` and `pipeline run`: what a drive can compute, and computing it.

use std::fmt;
use std::io;
use std::sync::Arc;

use tapetum_drive::engine::{EngineOptions, PipelineEngine, PipelineError, PipelineWork};
use tapetum_drive::{Drive, Env, Identity, LocalMemory, MemoryFlash, ProgramId, arbiter::UnitCount, programs};

/// Local memory of the drive that computes, beside what it is given: its sub-buffers and the longest output. Pages that nobody
/// touches cost nothing.
const LOCAL_BYTES: usize = OUTPUT_BYTES_MAX + (8 << 20);
/// The longest output.
const OUTPUT_BYTES_MAX: usize = 1 << 30;

/// What is written instead of a program's name.
const SHORT_NAMES: [(&str, bool, &str); 4] = [
    ("zstd", false, "zstd-compress"),
    ("zstd", true, "zstd-decompress"),
    ("snappy", false, "snappy-compress"),
    ("snappy", true, "snappy-decompress"),
];

/// What is wrong with a pipeline as it was written.
#[derive(Debug)]
pub enum PipelineTextError {
    Empty { stage: usize },
    UnknownProgram { stage: usize, name: String, known: Vec<String> },
    UnknownWord { stage: usize, word: String },
    LateFetch { stage: usize },
    UnitsWithoutNumber { text: String },
    Run(PipelineError),
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
                write!(f, "{text:?} are no compute units: write PROGRAM=NUMBER, such as zstd-decompress=1")
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

/// The programs, a line each.
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

/// The program that is called so, with or without -d.
fn find(identity: &Identity, stage: usize, name: &str, decompress: bool) -> Result<ProgramId, PipelineTextError> {
    let short = SHORT_NAMES.iter().find(|(short, back, _)| *short == name && *back == decompress);
    let whole = short.map_or(name, |(_, _, whole)| whole);
    if decompress && short.is_none() {
        return Err(PipelineTextError::UnknownWord { stage, word: "-d".into() });
    }
    identity.programs.iter().find(|program| program.name == whole).map(|program| program.id).ok_or_else(|| {
        let known = identity.programs.iter().filter(|program| program.is_stream).map(|program| program.name.clone());
        PipelineTextError::UnknownProgram { stage, name: name.into(), known: known.collect() }
    })
}

/// `fetch | zstd -d | sha256`, as the drive has it.
fn parse(identity: &Identity, text: &str) -> Result<Vec<(ProgramId, Vec<u8>)>, PipelineTextError> {
    let mut stages = Vec::new();
    for (stage, text) in text.split('|').enumerate() {
        let mut words = text.split_whitespace();
        let Some(name) = words.next() else { return Err(PipelineTextError::Empty { stage }) };
        if name == "fetch" {
            match (stage, words.next()) {
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
        stages.push((find(identity, stage, name, decompress)?, parameters));
    }
    Ok(stages)
}

fn units(identity: &Identity, texts: &[String]) -> Result<Vec<UnitCount>, PipelineTextError> {
    let unit = |text: &String| {
        let without = || PipelineTextError::UnitsWithoutNumber { text: text.clone() };
        let (name, number) = text.split_once('=').ok_or_else(without)?;
        let units = number.parse().ok().filter(|units| (1..=64).contains(units)).ok_or_else(without)?;
        Ok(UnitCount { program: find(identity, 0, name, false)?, units })
    };
    texts.iter().map(unit).collect()
}

/// What comes of `bytes`; of a digest its text.
pub fn run(text: &str, compute_units: &[String], bytes: &[u8]) -> Result<Vec<u8>, PipelineTextError> {
    let drive = drive(bytes.len())?;
    let identity = drive.identity();
    let stages = parse(&identity, text)?;
    let options = EngineOptions { units: units(&identity, compute_units)?, ..EngineOptions::default() };
    let engine: PipelineEngine = drive.pipelines(&options).map_err(PipelineTextError::NoDrive)?;
    let last = stages.last().and_then(|(last, _)| identity.programs.iter().find(|program| program.id == *last));
    let is_digest = last.is_some_and(|program| matches!(&program.name[..], "sha256" | "crc32c"));
    let work = PipelineWork { stages, output_bytes_max: OUTPUT_BYTES_MAX, ..PipelineWork::default() };
    let out = engine.run(&work, bytes).map_err(PipelineTextError::Run)?;
    if !is_digest {
        return Ok(out);
    }
    let is_number = out.len() == 4;
    let digits = |bytes: &mut dyn Iterator<Item = &u8>| bytes.map(|byte| format!("{byte:02x}")).collect::<String>();
    // A crc is a number, which is written with its largest digits first.
    let mut hex = if is_number { digits(&mut out.iter().rev()) } else { digits(&mut out.iter()) };
    hex.push('\n');
    Ok(hex.into_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pipeline_is_written_as_in_a_shell() {
        let stored = run("fetch | zstd -19 | snappy", &[], b"mirror mirror mirror").unwrap();
        let units = ["zstd-decompress=1".to_owned()];
        assert_eq!(run("snappy -d | zstd -d", &units, &stored).unwrap(), b"mirror mirror mirror");
        let digest = run("snappy-decompress|zstd-decompress|sha256", &units, &stored).unwrap();
        assert_eq!(digest, run("sha256", &[], b"mirror mirror mirror").unwrap());
        assert_eq!(run("crc32c", &[], b"123456789").unwrap(), b"e3069283\n");
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
        assert!(told("fetch", &[]).contains("no stages"));
        assert!(told("sha256", &["sha256"]).contains("PROGRAM=NUMBER"));
    }
}
