//! cargo-mutants over the modules that durability rests on: each function is changed a little, in a copy of the checkout,
//! and a test must fail. Of the store the simulation judges first, of the kernels their unit tests, which are sooner done; what
//! the first lets pass is judged by the others as well.
//!
//! It ends with an error when mutants survive: their names are in the target folder, in `mutants-PACKAGE/mutants.out/missed.txt`.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::Failure;
use crate::arguments::Arguments;
use crate::workspace;

/// Files of one package, and whose tests judge their mutants, in turn.
struct Subject {
    package: &'static str,
    files: &'static [&'static str],
    judges: [&'static str; 2],
}

const SUBJECTS: [Subject; 2] = [
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
        judges: ["tapetum-kernels", "tapetum,tapetum-sim"],
    },
    Subject {
        package: "tapetum",
        files: &[
            "crates/store/src/log/*.rs",
            "crates/store/src/large/*.rs",
            "crates/store/src/key_mend/*.rs",
            "crates/store/src/manifest/*.rs",
            "crates/store/src/install.rs",
            "crates/store/src/superblock.rs",
            "crates/store/src/flush.rs",
            "crates/store/src/collect.rs",
            "crates/store/src/recover.rs",
            "crates/store/src/checkpoint.rs",
            "crates/store/src/extents.rs",
        ],
        judges: ["tapetum-sim", "tapetum"],
    },
];
/// A mutant may make a test wait for ever.
const TIMEOUT_S: &str = "180";

pub fn run(arguments: &Arguments) -> Result<(), Failure> {
    let only = arguments.text("only").map(str::to_owned);
    let shard = arguments.text("shard").map(str::to_owned);
    arguments.finish()?;
    let program = cargo_mutants()?;
    let is_meant = |file: &&&str| only.as_ref().is_none_or(|only| file.contains(only));
    if !SUBJECTS.iter().flat_map(|subject| subject.files).any(|file| is_meant(&file)) {
        return Err(format!("there is no file {} among those that are changed", only.unwrap_or_default()).into());
    }
    let mut survivors = Vec::new();
    for Subject { package, files, judges } in SUBJECTS {
        let files: Vec<_> = files.iter().filter(is_meant).collect();
        if files.is_empty() {
            continue;
        }
        let output = workspace::target().join(format!("mutants-{package}"));
        std::fs::create_dir_all(&output)?;
        let judge = |by: &str, iterate: bool| -> Result<bool, Failure> {
            let mut mutants = command(&program, &output);
            mutants.args(["--package", package, "--test-package", by]);
            mutants.args(files.iter().flat_map(|file| ["--file", file]));
            mutants.args(shard.iter().flat_map(|shard| ["--shard", shard]));
            mutants.args(iterate.then_some("--iterate"));
            Ok(mutants.status()?.success())
        };
        if !judge(judges[0], false)? && !judge(judges[1], true)? {
            survivors.push(output.join("mutants.out/missed.txt").display().to_string());
        }
    }
    match survivors.is_empty() {
        true => Ok(()),
        false => Err(format!("mutants survive: see {}", survivors.join(" and ")).into()),
    }
}

fn command(program: &Path, output: &Path) -> Command {
    let mut mutants = Command::new(program);
    mutants.current_dir(workspace::root()).arg("mutants").arg("--output").arg(output);
    mutants.env("CARGO_TARGET_DIR", workspace::target().join("mutants"));
    mutants.args(["--baseline", "skip", "--timeout", TIMEOUT_S]);
    // A debug print is not what anything rests on.
    mutants.args(["--exclude-re", "impl (Debug|Display)"]);
    mutants
}

/// In the target folder, and installed there when it is missing.
fn cargo_mutants() -> Result<PathBuf, Failure> {
    let folder = workspace::target().join("tools");
    let program = folder.join("bin/cargo-mutants");
    if !program.exists() {
        let mut cargo = Command::new("cargo");
        cargo.current_dir(workspace::root()).args(["install", "--locked", "cargo-mutants", "--root"]).arg(&folder);
        if !cargo.status()?.success() {
            return Err("cargo-mutants cannot be installed; cargo's message is above".into());
        }
    }
    Ok(program)
}
