//! The Python wheel: what maturin makes of ./python, and with it the command `tapetum`, licences and the bill of materials. The static
//! binary asks nothing of the system, so the wheel's tag is that of the native half, which maturin finds.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::{Release, parts, tree};
use crate::Failure;
use crate::environment::environment;
use crate::workspace::{self, succeed};

/// Makes the wheel with the native half in this profile of cargo's.
pub fn make(release: &Release, profile: &str) -> Result<PathBuf, Failure> {
    let programs = environment("venv-wheel", "packaging/requirements.txt", &[])?.join("bin");
    let folder = release.scratch.join("wheel");
    let mut maturin = Command::new(programs.join("maturin"));
    maturin.args(["build", "--quiet", "--locked", "--profile", profile, "--manifest-path"]);
    maturin.arg(workspace::root().join("python/Cargo.toml")).arg("--out").arg(folder.join("built"));
    maturin.env("CARGO_TARGET_DIR", workspace::target());
    succeed(&mut maturin, "maturin made no wheel; its message is above")?;
    let wheel = |words: &[&str], more: &[&Path]| {
        let mut wheel = Command::new(programs.join("wheel"));
        wheel.args(words).args(more).stdout(std::process::Stdio::null());
        wheel.env("SOURCE_DATE_EPOCH", release.unix_seconds.to_string());
        succeed(&mut wheel, "wheel failed; its message is above")
    };
    wheel(&["unpack", "--dest"], &[&folder.join("unpacked"), &only_entry(&folder.join("built"))?])?;
    let root = folder.join("unpacked").join(format!("tapetum-{}", release.version));
    add(release, &root)?;
    fs::create_dir_all(folder.join("packed"))?;
    wheel(&["pack", "--dest-dir"], &[&folder.join("packed"), &root])?;
    let packed = only_entry(&folder.join("packed"))?;
    let package = release.folder.join(packed.file_name().ok_or("a wheel without a name")?);
    fs::copy(packed, &package)?;
    Ok(package)
}

/// Adds what maturin does not know of. `wheel pack` lists it in RECORD.
fn add(release: &Release, root: &Path) -> Result<(), Failure> {
    let stem = format!("tapetum-{}", release.version);
    let command = root.join(format!("{stem}.data/scripts/tapetum"));
    tree::write(&command, fs::read(&release.binary)?, 0o755)?;
    let info = root.join(format!("{stem}.dist-info"));
    let licences = info.join("licenses");
    tree::write_papers(release, parts::WHEEL, &licences)?;
    fs::create_dir_all(info.join("sboms"))?;
    fs::rename(licences.join("sbom.cdx.json"), info.join("sboms/tapetum.cdx.json"))?;
    let named: String =
        ["LICENSE-MIT", "LICENSE-APACHE", "THIRD-PARTY"].map(|name| format!("License-File: {name}\n")).concat();
    let metadata = fs::read_to_string(info.join("METADATA"))?;
    let line = "License-Expression: MIT OR Apache-2.0\n";
    if !metadata.contains(line) {
        return Err("the wheel's METADATA names no licence: python/pyproject.toml has it".into());
    }
    tree::write(&info.join("METADATA"), metadata.replacen(line, &format!("{line}{named}"), 1), 0o644)
}

fn only_entry(folder: &Path) -> Result<PathBuf, Failure> {
    let entries: Vec<PathBuf> =
        fs::read_dir(folder)?.map(|entry| Ok(entry?.path())).collect::<Result<_, std::io::Error>>()?;
    match &entries[..] {
        [only] => Ok(only.clone()),
        _ => Err(format!("{} has {} files instead of one", folder.display(), entries.len()).into()),
    }
}
