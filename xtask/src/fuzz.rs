//! Runs libFuzzer over the targets of `crates/fuzzing`, one after the other. It needs nightly for its instrumentation, and has its own
//! target folder. AddressSanitizer runs too.
//!
//! The inputs that a run finds stay in the target folder, where the next run begins. `minimize` moves those that should always be replayed
//! into `fuzz/corpus`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::arguments::Arguments;
use crate::{Failure, nightly, workspace};

/// The same flags as cargo-fuzz's: coverage of edges and of comparisons.
const RUSTFLAGS: &str = "-Zsanitizer=address -Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
    -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
    -Cllvm-args=-sanitizer-coverage-trace-compares --cfg fuzzing";

pub fn run(arguments: &Arguments) -> Result<(), Failure> {
    let runs = arguments.number("runs", 3_000_000)?;
    let fuzzer = Fuzzer::build(arguments)?;
    println!("{:<20} {:>10} {:>6} {:>8} {:>7} {:>6}", "target", "executions", "edges", "features", "inputs", "s");
    for target in &fuzzer.targets {
        fuzzer.run(target, runs)?;
    }
    Ok(())
}

pub fn minimize(arguments: &Arguments) -> Result<(), Failure> {
    let fuzzer = Fuzzer::build(arguments)?;
    for target in &fuzzer.targets {
        fuzzer.minimize(target)?;
    }
    Ok(())
}

struct Target {
    name: String,
    length_max: String,
}

struct Fuzzer {
    folder: PathBuf,
    binary: PathBuf,
    targets: Vec<Target>,
}

impl Fuzzer {
    fn build(arguments: &Arguments) -> Result<Fuzzer, Failure> {
        let only = arguments.text("only").map(str::to_owned);
        arguments.finish()?;
        let folder = workspace::target().join("fuzz");
        let host = nightly::host()?;
        let mut cargo = nightly::tool("cargo");
        cargo.current_dir(workspace::root().join("fuzz")).env("RUSTFLAGS", RUSTFLAGS);
        cargo.args(["build", "--quiet", "--release", "--locked", "--target", &host, "--target-dir"]).arg(&folder);
        workspace::succeed(&mut cargo, "the fuzzer does not build; cargo's message is above")?;
        let binary = folder.join(host).join("release/tapetum-fuzz");
        let mut targets = list(&binary)?;
        if let Some(only) = only {
            targets.retain(|target| target.name == only);
            if targets.is_empty() {
                return Err(format!("there is no target {only}").into());
            }
        }
        Ok(Fuzzer { folder, binary, targets })
    }

    /// libFuzzer for a target, with its output in `log`.
    fn command(&self, target: &Target, log: &Path) -> Result<Command, Failure> {
        let mut command = Command::new(&self.binary);
        command.env("FUZZ_TARGET", &target.name).stderr(fs::File::create(log)?).stdout(Stdio::null());
        // No target needs much memory or time.
        command.args(["-rss_limit_mb=1024", "-malloc_limit_mb=64", "-timeout=10", "-detect_leaks=0"]);
        Ok(command)
    }

    fn run(&self, target: &Target, runs: u64) -> Result<(), Failure> {
        let Target { name, length_max } = target;
        let found = self.found(name)?;
        let log = self.folder.join(format!("{name}.log"));
        let artifacts = format!("{}/failed-{name}-", self.folder.display());
        let mut command = self.command(target, &log)?;
        command.arg(format!("-runs={runs}")).arg(format!("-max_len={length_max}"));
        command.arg(format!("-artifact_prefix={artifacts}")).arg("-print_final_stats=1");
        command.arg(&found).arg(corpus(name)?);
        let succeeded = command.status()?.success();
        let said = String::from_utf8_lossy(&fs::read(&log)?).into_owned();
        if !succeeded {
            return Err(format!(
                "{name} failed; its message is in {}, its input in {artifacts}*: copy that to fuzz/corpus/{name} and run \
                 cargo test --package tapetum-fuzzing",
                log.display()
            )
            .into());
        }
        let done = said.lines().rev().find(|line| line.contains("DONE")).unwrap_or_default();
        let word_after = |text: &str, name: &str| {
            let mut words = text.split_whitespace();
            words.find(|word| *word == name).and_then(|_| words.next()).unwrap_or("?").to_owned()
        };
        let executions = word_after(&said, "stat::number_of_executed_units:");
        let ended = said.lines().rev().find(|line| line.starts_with("Done ")).unwrap_or_default();
        println!(
            "{name:<20} {executions:>10} {:>6} {:>8} {:>7} {:>6}",
            word_after(done, "cov:"),
            word_after(done, "ft:"),
            word_after(done, "corp:").split('/').next().unwrap_or_default(),
            word_after(ended, "in"),
        );
        Ok(())
    }

    /// Keeps as few inputs as reach the same edges.
    fn minimize(&self, target: &Target) -> Result<(), Failure> {
        let name = &target.name;
        let kept = self.folder.join("kept").join(name);
        if kept.exists() {
            fs::remove_dir_all(&kept)?;
        }
        fs::create_dir_all(&kept)?;
        let log = self.folder.join(format!("{name}-merge.log"));
        let corpus = corpus(name)?;
        let mut command = self.command(target, &log)?;
        command.args(["-merge=1", "-use_counters=0"]).arg(&kept).arg(&corpus).arg(self.found(name)?);
        workspace::succeed(&mut command, format!("{name} could not be merged; see {}", log.display()))?;
        // Inputs that failed once stay, whatever code they reach.
        for file in fs::read_dir(&corpus)? {
            let file = file?;
            if !file.file_name().as_encoded_bytes().starts_with(b"failed-") {
                fs::remove_file(file.path())?;
            }
        }
        let (mut files, mut bytes) = (0, 0);
        for file in fs::read_dir(&kept)? {
            let file = file?;
            bytes += fs::copy(file.path(), corpus.join(file.file_name()))?;
            files += 1;
        }
        println!("{name:<20} {files:>4} files {bytes:>8} bytes");
        Ok(())
    }

    /// The folder that keeps inputs between runs.
    fn found(&self, name: &str) -> Result<PathBuf, Failure> {
        let folder = self.folder.join("found").join(name);
        fs::create_dir_all(&folder)?;
        Ok(folder)
    }
}

fn corpus(name: &str) -> Result<PathBuf, Failure> {
    let folder = workspace::root().join("fuzz/corpus").join(name);
    fs::create_dir_all(&folder)?;
    Ok(folder)
}

fn list(binary: &Path) -> Result<Vec<Target>, Failure> {
    let output = Command::new(binary).env("FUZZ_TARGET", "list").output()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let target = |line: &str| {
        let (name, length_max) = line.split_once(' ')?;
        Some(Target { name: name.to_owned(), length_max: length_max.to_owned() })
    };
    Ok(text.lines().filter_map(target).collect())
}
