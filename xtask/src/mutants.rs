//! cargo-mutants over the modules that durability rests on: each function is changed a little, in a copy of the checkout,
//! and a test must fail. The simulation judges first; what it lets pass is judged by the unit tests as well.
//!
//! It ends with an error when mutants survive: their names are in the target folder, in `mutants.out/missed.txt`.

use std::path::PathBuf;
use std::process::Command;

use crate::Failure;
use crate::arguments::Arguments;
use crate::workspace;

const FILES: [&str; 15] = [
    "crates/store/src/log/*.rs",
    "crates/store/src/large/*.rs",
    "crates/store/src/manifest.rs",
    "crates/store/src/install.rs",
    "crates/store/src/superblock.rs",
    "crates/store/src/flush.rs",
    "crates/store/src/collect.rs",
    "crates/store/src/recover.rs",
    "crates/store/src/checkpoint.rs",
    "crates/store/src/extents.rs",
    "crates/kernels/src/record.rs",
    "crates/kernels/src/checksum.rs",
    "crates/kernels/src/data_page.rs",
    "crates/kernels/src/key_table.rs",
    "crates/kernels/src/reference.rs",
];
/// A mutant may make a test wait for ever.
const TIMEOUT_S: &str = "180";

pub fn run(arguments: &Arguments) -> Result<(), Failure> {
    let only = arguments.text("only").map(str::to_owned);
    let shard = arguments.text("shard").map(str::to_owned);
    arguments.finish()?;
    let program = cargo_mutants()?;
    let judge = |packages: &[&str], iterate: bool| -> Result<bool, Failure> {
        let mut mutants = Command::new(&program);
        mutants.current_dir(workspace::root()).arg("mutants").arg("--output").arg(workspace::target());
        mutants.env("CARGO_TARGET_DIR", workspace::target().join("mutants"));
        mutants.args(["--package", "tapetum", "--package", "tapetum-kernels", "--baseline", "skip"]);
        mutants.args(["--timeout", TIMEOUT_S, "--test-package", &packages.join(",")]);
        mutants.args(
            FILES
                .iter()
                .filter(|file| only.as_ref().is_none_or(|only| file.contains(only)))
                .flat_map(|file| ["--file", file]),
        );
        mutants.args(shard.iter().flat_map(|shard| ["--shard", shard]));
        mutants.args(iterate.then_some("--iterate"));
        // A debug print is not what anything rests on.
        mutants.args(["--exclude-re", "impl (Debug|Display)"]);
        Ok(mutants.status()?.success())
    };
    let caught = judge(&["tapetum-sim"], false)? || judge(&["tapetum", "tapetum-kernels"], true)?;
    match caught {
        true => Ok(()),
        false => Err("mutants survive: see mutants.out/missed.txt in the target folder".into()),
    }
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
