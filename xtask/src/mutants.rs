//! cargo-mutants over the modules that durability depends on: each function is changed slightly, in a copy of the checkout, and a test must
//! fail. Judges run in turn, the quickest first; each gets only the mutants that earlier ones missed.
//!
//! It ends with an error that names the surviving mutants. Details are in the target folder, in `mutants-PACKAGE/mutants.out`.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::arguments::Arguments;
use crate::{Failure, workspace};

/// Files of one package, and the judges of their mutants, in order.
struct Subject {
    package: &'static str,
    files: &'static [&'static str],
    judges: &'static [Judge],
}

/// Tests of packages, with a time limit, because a mutant may make one wait for ever.
struct Judge {
    packages: &'static str,
    /// Further arguments of `cargo`, also when it compiles.
    cargo: &'static [&'static str],
    /// Arguments of the tests.
    tests: &'static [&'static str],
    timeout_s: u32,
}

impl Judge {
    /// Judges mutants. Returns the names of those that none of its tests catches. A mutant that makes a test hang counts as caught.
    fn missed(&self, mut mutants: Command, output: &Path) -> Result<Vec<String>, Failure> {
        mutants.args(["--test-package", self.packages, "--timeout", &self.timeout_s.to_string()]);
        mutants.args(self.cargo.iter().map(|argument| format!("--cargo-arg={argument}")));
        mutants.args(["--", "--"]).args(self.tests);
        let status = mutants.status()?;
        match status.code() {
            Some(0) => Ok(Vec::new()),
            // Missed, or timed out.
            Some(2 | 3) => {
                let missed = std::fs::read_to_string(output.join("mutants.out/missed.txt"))?;
                Ok(missed.lines().map(str::to_owned).collect())
            }
            _ => Err(format!("cargo-mutants ended with {status}; its message is above").into()),
        }
    }

    /// All tests.
    const fn whole(packages: &'static str, timeout_s: u32) -> Judge {
        Judge { packages, cargo: &[], tests: &[], timeout_s }
    }
}

/// The judges of base and the engines.
const OF_STORES: &[Judge] = &[
    // loom's models take twenty times as long as the other unit tests together, and the tier's own model as long as all the rest.
    Judge {
        packages: "tapetum-base,tapetum",
        cargo: &["--lib"],
        tests: &["--skip", "models", "--skip", "tier::"],
        timeout_s: 20,
    },
    Judge { packages: "tapetum-sim", cargo: &["--test=simulation"], tests: &[], timeout_s: 60 },
    Judge::whole("tapetum-base,tapetum", 180),
];

const SUBJECTS: [Subject; 3] = [
    Subject {
        package: "tapetum-kernels",
        files: &[
            "crates/kernels/src/record.rs",
            "crates/kernels/src/checksum.rs",
            "crates/kernels/src/range_checksums.rs",
            "crates/kernels/src/data_page.rs",
            "crates/kernels/src/key_table.rs",
            "crates/kernels/src/reference.rs",
        ],
        judges: &[Judge::whole("tapetum-kernels", 30), Judge::whole("tapetum,tapetum-sim", 180)],
    },
    Subject {
        package: "tapetum-base",
        files: &[
            "crates/base/src/log/*.rs",
            "crates/base/src/manifest/*.rs",
            "crates/base/src/media/superblock.rs",
            "crates/base/src/recover/*.rs",
            "crates/base/src/media/extents.rs",
            "crates/base/src/maintenance/resize.rs",
            "crates/base/src/manifest/keyspaces.rs",
            "crates/base/src/installer.rs",
            "crates/base/src/media/wire.rs",
        ],
        judges: OF_STORES,
    },
    Subject {
        package: "tapetum",
        files: &[
            "crates/store/src/hashed/large/*.rs",
            "crates/store/src/hashed/key_tables/key_mend/*.rs",
            "crates/store/src/hashed/install/mod.rs",
            "crates/store/src/hashed/flush/mod.rs",
            "crates/store/src/hashed/collect/mod.rs",
            "crates/store/src/hashed/index/checkpoint.rs",
            "crates/store/src/hashed/catalog.rs",
            "crates/store/src/hashed/buffer/mod.rs",
            "crates/store/src/hashed/buffer/*.rs",
            "crates/store/src/hashed/segment/*.rs",
            "crates/store/src/hashed/flush/key_check.rs",
            "crates/store/src/hashed/segment/unreadable.rs",
            "crates/store/src/hashed/index/index_recovery.rs",
            "crates/store/src/hashed/index/image.rs",
            "crates/store/src/hashed/collect/victim.rs",
            "crates/store/src/hashed/manifest_room.rs",
            "crates/store/src/hashed/manifest_client.rs",
            "crates/store/src/hashed/deletion.rs",
        ],
        judges: OF_STORES,
    },
];

pub fn run(arguments: &Arguments) -> Result<(), Failure> {
    let only = arguments.text("only").map(str::to_owned);
    let shard = arguments.text("shard").map(str::to_owned);
    arguments.finish()?;
    let program = cargo_mutants()?;
    let is_meant = |file: &&&str| only.as_ref().is_none_or(|only| file.contains(only));
    if !SUBJECTS.iter().flat_map(|subject| subject.files).any(|file| is_meant(&file)) {
        return Err(format!("--only {}: no pattern in xtask/src/mutants.rs has that", only.unwrap_or_default()).into());
    }
    let mut survivors = Vec::new();
    for Subject { package, files, judges } in SUBJECTS {
        let files: Vec<_> = files.iter().filter(is_meant).collect();
        if files.is_empty() {
            continue;
        }
        let output = workspace::target().join(format!("mutants-{package}"));
        std::fs::create_dir_all(&output)?;
        let mut missed: Vec<String> = Vec::new();
        for (turn, judge) in judges.iter().enumerate() {
            let mut mutants = command(&program, &output);
            mutants.args(["--package", package]);
            mutants.args(files.iter().flat_map(|file| ["--file", file]));
            match turn {
                0 => mutants.args(shard.iter().flat_map(|shard| ["--shard", shard])),
                _ if missed.is_empty() => break,
                _ => mutants.args(missed.iter().map(|name| format!("--re={}", exactly(name)))),
            };
            missed = judge.missed(mutants, &output)?;
        }
        survivors.extend(missed);
    }
    match survivors.is_empty() {
        true => Ok(()),
        false => Err(format!("{} mutants survive:\n{}", survivors.len(), survivors.join("\n")).into()),
    }
}

/// A regular expression that matches only this text.
fn exactly(text: &str) -> String {
    let escaped = |character: char| match character {
        '\\' | '.' | '+' | '*' | '?' | '(' | ')' | '|' | '[' | ']' | '{' | '}' | '^' | '$' | '#' | '&' | '-' | '~' => {
            format!("\\{character}")
        }
        _ => character.to_string(),
    };
    format!("^{}$", text.chars().map(escaped).collect::<String>())
}

fn command(program: &Path, output: &Path) -> Command {
    let mut mutants = Command::new(program);
    mutants.current_dir(workspace::root()).arg("mutants").arg("--output").arg(output);
    mutants.env("CARGO_TARGET_DIR", workspace::target().join("mutants"));
    mutants.args(["--baseline", "skip"]);
    // Nothing depends on a debug print.
    mutants.args(["--exclude-re", "impl (Debug|Display)"]);
    mutants
}

/// The path of cargo-mutants in the target folder; it is installed there if missing.
fn cargo_mutants() -> Result<PathBuf, Failure> {
    let folder = workspace::target().join("tools");
    let program = folder.join("bin/cargo-mutants");
    if !program.exists() {
        let mut cargo = Command::new("cargo");
        cargo.current_dir(workspace::root()).args(["install", "--locked", "cargo-mutants", "--root"]).arg(&folder);
        workspace::succeed(&mut cargo, "cargo-mutants cannot be installed; cargo's message is above")?;
    }
    Ok(program)
}
