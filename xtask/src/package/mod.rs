//! `cargo x package`: what users install. One binary, linked whole (static), goes into all packages, with the licences of all that it
//! contains.
//!
//! ```text
//!                        ┌─► deb     tapetum_VERSION-REVISION_ARCH.deb: binary, unit, settings, manual, completions
//! binary ─► strip ───────┼─► static  tapetum-VERSION-MACHINE-linux.tar.gz: the same files without Debian
//! crates ─► licences ────┼─► image   tapetum-VERSION-image.tar: for docker load, podman load
//!           and parts    └─► wheel   tapetum-VERSION-….whl: the Python package and the command
//! ```
//! Invariants:
//! 1. The same commit, toolchain and machine give the same bytes: files have the commit's time and no owner's name.
//! 2. A crate of the binary whose licence `deny.toml` does not allow ends the command.

pub mod deb;
mod elf;
pub mod image;
mod licences;
mod parts;
mod tree;
pub mod wheel;

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::Failure;
use crate::arguments::Arguments;
use crate::workspace::{self, succeed};

/// The contents of packages, and the folder where they go.
pub struct Release {
    pub version: String,
    /// The revision of the package, for a version that is packaged again.
    pub revision: u64,
    /// The commit's time, in seconds since 1970.
    pub unix_seconds: u64,
    /// The same as `2026-11-30T02:26:57Z`.
    pub timestamp: String,
    /// The stripped binary.
    pub binary: PathBuf,
    /// Files on the way; each package has a folder in it.
    pub scratch: PathBuf,
    pub folder: PathBuf,
    /// The compression of the Debian package: 0 is quick to make, 9 is small.
    pub compression: u64,
}

const KINDS: [&str; 4] = ["deb", "static", "image", "wheel"];

/// `cargo x package [KIND]…`, all of them if none is named.
///
/// `--binary FILE` is packaged as it is; otherwise the release build is made first.
pub fn run(kinds: &[String], arguments: &Arguments) -> Result<(), Failure> {
    if let Some(unknown) = kinds.iter().find(|kind| !KINDS.contains(&kind.as_str())) {
        return Err(format!("there is no package {unknown}; there are {}", KINDS.join(", ")).into());
    }
    let named = arguments.text("binary").map(PathBuf::from);
    let folder = arguments.text("into").map_or_else(|| workspace::target().join("packages"), PathBuf::from);
    let revision = arguments.number("revision", 1)?;
    let profile = arguments.text("profile").unwrap_or("release").to_owned();
    let compression = arguments.number("compression", 6)?;
    arguments.finish()?;
    let binary = named.map_or_else(|| build_static(&profile), Ok)?;
    std::fs::create_dir_all(&folder)?;
    workspace::keeping("package", |scratch| {
        let release = Release { revision, compression, ..Release::of(&binary, scratch, &folder)? };
        for kind in KINDS.iter().filter(|kind| kinds.is_empty() || kinds.iter().any(|wanted| wanted == *kind)) {
            let package = match *kind {
                "deb" => deb::make(&release)?,
                "static" => tree::make_archive(&release)?,
                "image" => image::make(&release)?,
                _ => wheel::make(&release, &profile)?,
            };
            let bytes = std::fs::metadata(&package)?.len();
            println!("{} ({:.1} MB)", package.display(), bytes as f64 / 1e6);
        }
        Ok(())
    })
}

impl Release {
    /// Packages of this binary, made in `scratch` and left in `folder`.
    pub fn of(binary: &Path, scratch: &Path, folder: &Path) -> Result<Release, Failure> {
        let stripped = scratch.join("tapetum");
        let mut strip = Command::new("strip");
        strip.arg("--strip-all").arg("-o").arg(&stripped).arg(binary);
        succeed(&mut strip, format!("{} cannot be stripped; strip's message is above", binary.display()))?;
        let mut commit = Command::new("git");
        commit.args(["log", "-1", "--format=%ct %cd", "--date=format-local:%Y-%m-%dT%H:%M:%SZ"]);
        let times = output(commit.env("TZ", "UTC").current_dir(workspace::root()))?;
        let (seconds, timestamp) = times.trim().split_once(' ').ok_or("git log names no time")?;
        Ok(Release {
            version: env!("CARGO_PKG_VERSION").into(),
            revision: 1,
            unix_seconds: seconds.parse()?,
            timestamp: timestamp.into(),
            binary: stripped,
            scratch: scratch.to_owned(),
            folder: std::path::absolute(folder)?,
            compression: 6,
        })
    }
}

/// The commit, as `tapetum --version` prints it. A tree with changes has a `+`.
fn build_name() -> Result<String, Failure> {
    let words = ["describe", "--always", "--dirty=+", "--abbrev=8", "--exclude", "*"];
    Ok(output(Command::new("git").args(words).current_dir(workspace::root()))?.trim().to_owned())
}

/// The Rust target whose C library can be linked whole.
fn target() -> String {
    format!("{}-unknown-linux-gnu", std::env::consts::ARCH)
}

/// A binary that needs no library of the system that it runs on.
pub fn build_static(profile: &str) -> Result<PathBuf, Failure> {
    let target = target();
    let mut cargo = workspace::cargo(&["build", "--locked", "--profile", profile, "--package", "tapetum-server"]);
    // With a target named, the flags do not reach build scripts and macros, which cannot be static.
    cargo.args(["--features", "images", "--target", &target]);
    cargo.env("RUSTFLAGS", "-C target-feature=+crt-static").env("TAPETUM_BUILD", build_name()?);
    succeed(&mut cargo, "tapetum does not build; cargo's message is above")?;
    Ok(workspace::target().join(target).join(profile).join("tapetum"))
}

/// The output of a program.
fn output(command: &mut Command) -> Result<String, Failure> {
    let program = command.get_program().to_string_lossy().into_owned();
    let done = command.output().map_err(|error| format!("{program}: {error}"))?;
    if !done.status.success() {
        return Err(format!("{program} failed: {}", String::from_utf8_lossy(&done.stderr).trim()).into());
    }
    Ok(String::from_utf8(done.stdout)?)
}
