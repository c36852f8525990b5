//! The nightly toolchain, for the fuzzer and for tests under AddressSanitizer: stable cannot instrument code.

use std::process::Command;

use crate::arguments::Arguments;
use crate::{Failure, workspace};

/// A tool of the nightly toolchain, whichever one runs us.
pub fn tool(name: &str) -> Command {
    let mut command = Command::new("rustup");
    command.args(["run", "nightly", name]);
    command
}

/// The machine's target. If cargo is given it, build scripts are not instrumented.
pub fn host() -> Result<String, Failure> {
    let output = tool("rustc").arg("-vV").output()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let host = text.lines().find_map(|line| line.strip_prefix("host: "));
    host.map(str::to_owned).ok_or_else(|| "there is no nightly: rustup toolchain install nightly".into())
}

/// The tests of the crates that have unsafe code, under AddressSanitizer.
pub fn test_asan(arguments: &Arguments) -> Result<(), Failure> {
    let only = arguments.text("only").map(str::to_owned);
    arguments.finish()?;
    let mut cargo = tool("cargo");
    cargo.current_dir(workspace::root()).env("RUSTFLAGS", "-Zsanitizer=address");
    cargo.args(["test", "--locked", "--target", &host()?, "--target-dir"]).arg(workspace::target().join("asan"));
    for package in ["tapetum-kernels", "tapetum-drive", "tapetum-base", "tapetum", "tapetum-server"] {
        cargo.args(["--package", package]);
    }
    cargo.args(["--lib", "--tests", "--no-fail-fast"]);
    // loom switches stacks by itself, which AddressSanitizer takes for damage.
    cargo.args(["--", "--skip", "models"]).args(only);
    workspace::succeed(&mut cargo, "AddressSanitizer found an error, or a test failed; the message is above")
}
