//! Tests written in Python, run by unittest: tests/clients, real clients in a virtual environment of the target folder, and
//! tests/system, the server on what an operating system does to it (file systems, limits, clocks, signals), which needs no
//! packages. They start the server themselves, since some restart it.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::Failure;
use crate::arguments::Arguments;
use crate::workspace::{self, Profile};

/// `--only NAME` picks a module, class or test.
pub fn clients(arguments: &Arguments) -> Result<(), Failure> {
    run("clients", &environment()?.join("bin/python"), arguments)
}

/// As [`clients`]; tests that only root can run say so when they are left out.
pub fn system(arguments: &Arguments) -> Result<(), Failure> {
    run("system", Path::new("python3"), arguments)
}

fn run(tests: &str, interpreter: &Path, arguments: &Arguments) -> Result<(), Failure> {
    let binary = arguments.server();
    let only = arguments.text("only").map(str::to_owned);
    arguments.finish()?;
    let binary = workspace::server(binary, Profile::Test)?;
    workspace::keeping(tests, |scratch| unittest(tests, interpreter, &binary, scratch, only.as_deref()))
}

fn unittest(tests: &str, interpreter: &Path, binary: &Path, scratch: &Path, only: Option<&str>) -> Result<(), Failure> {
    let mut python = Command::new(interpreter);
    python.current_dir(workspace::root().join("tests").join(tests)).args(["-m", "unittest"]);
    match only {
        Some(name) => python.arg(name),
        None => python.arg("discover"),
    };
    python.env("TAPETUM_SERVER", binary).env("TAPETUM_SCRATCH", scratch);
    // No byte code beside the sources.
    python.env("PYTHONDONTWRITEBYTECODE", "1");
    if !python.status()?.success() {
        return Err(format!("a test of tests/{tests} failed; unittest's message is above").into());
    }
    Ok(())
}

/// The virtual environment, made or brought up to the pinned requirements where it is not yet.
fn environment() -> Result<PathBuf, Failure> {
    let folder = workspace::target().join("venv");
    let requirements = workspace::root().join("tests/clients/requirements.txt");
    let installed = folder.join("requirements.txt");
    let wanted = std::fs::read(&requirements)?;
    if std::fs::read(&installed).is_ok_and(|have| have == wanted) {
        return Ok(folder);
    }
    let made = Command::new("python3").args(["-m", "venv"]).arg(&folder).status()?;
    if !made.success() {
        return Err("python3 cannot make a virtual environment (apt-get install python3-venv)".into());
    }
    let pip = Command::new(folder.join("bin/python"))
        .args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--requirement"])
        .arg(&requirements)
        .status()?;
    if !pip.success() {
        return Err("pip could not install tests/clients/requirements.txt; its message is above".into());
    }
    std::fs::write(installed, wanted)?;
    Ok(folder)
}
