//! Virtual environments of Python in the target folder, for tests and for what makes wheels.

use std::path::PathBuf;
use std::process::Command;

use crate::Failure;
use crate::workspace::{self, succeed};

/// A virtual environment, created or updated to the pinned requirements in this file of the checkout, if needed.
pub fn environment(name: &str, file: &str, options: &[&str]) -> Result<PathBuf, Failure> {
    let folder = workspace::target().join(name);
    let requirements = workspace::root().join(file);
    let installed = folder.join("requirements.txt");
    let wanted = std::fs::read(&requirements)?;
    // Two tests may want it at the same time.
    std::fs::create_dir_all(workspace::target())?;
    let lock = std::fs::File::create(folder.with_extension("lock"))?;
    lock.lock()?;
    if std::fs::read(&installed).is_ok_and(|have| have == wanted) {
        return Ok(folder);
    }
    succeed(
        Command::new("python3").args(["-m", "venv"]).args(options).arg(&folder),
        "python3 cannot make a virtual environment (apt-get install python3-venv)",
    )?;
    let install = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--requirement"];
    succeed(
        Command::new(folder.join("bin/python")).args(install).arg(&requirements),
        format!("pip could not install {file}; its message is above"),
    )?;
    std::fs::write(installed, wanted)?;
    Ok(folder)
}
