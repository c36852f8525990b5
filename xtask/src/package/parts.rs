//! The parts of the binary: crates, the C libraries that crates compile, and the system's C library. From cargo's own resolution with the
//! features that packages have, so no crate is named that only helps to compile or test.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::process::Command;

use serde_json::{Value, json};

use super::{Release, output, target};
use crate::{Failure, workspace};

/// Something that the binary contains.
#[derive(Clone, Debug)]
pub struct Part {
    pub name: String,
    pub version: String,
    /// By SPDX.
    pub licence: String,
    /// The address at which programs that look for known holes find it.
    pub url: String,
    pub home: Option<String>,
    pub authors: Vec<String>,
    pub sha256: Option<String>,
    /// The files that may have its licence's text.
    pub texts: Vec<PathBuf>,
    /// Whether it is a crate of this repository.
    pub is_ours: bool,
}

/// A C library among a crate's sources.
struct Vendored {
    name: &'static str,
    of_crate: &'static str,
    folder: &'static str,
    licence: &'static str,
    texts: &'static [&'static str],
}

const VENDORED: [Vendored; 2] = [
    // Also under the GPL, as one chooses.
    Vendored { name: "libzstd", of_crate: "zstd-sys", folder: "zstd", licence: "BSD-3-Clause", texts: &["LICENSE"] },
    Vendored {
        name: "libjpeg-turbo",
        of_crate: "turbojpeg-sys",
        folder: "libjpeg-turbo",
        licence: "IJG AND BSD-3-Clause",
        texts: &["LICENSE.md", "README.ijg"],
    },
];

/// The packages of this workspace that become the binary, and those of the wheel.
pub const BINARY: &[&str] = &["tapetum-server"];
pub const WHEEL: &[&str] = &["tapetum-server", "tapetum-python"];

/// All parts of these packages, each once, by name.
pub fn all(of: &[&str]) -> Result<Vec<Part>, Failure> {
    let metadata = workspace::cargo(&["metadata", "--locked", "--format-version", "1", "--filter-platform", &target()])
        .output()
        .map_err(|error| format!("cargo metadata: {error}"))?;
    let metadata: Value = serde_json::from_slice(&metadata.stdout)
        .map_err(|_| format!("cargo metadata failed: {}", String::from_utf8_lossy(&metadata.stderr).trim()))?;
    let checksums = checksums(&std::fs::read_to_string(workspace::root().join("Cargo.lock"))?);
    let linked = linked(of)?;
    let packages = metadata["packages"].as_array().ok_or("cargo metadata names no packages")?;
    let mut parts = Vec::new();
    for package in packages {
        let text = |key: &str| package[key].as_str().map(str::to_owned);
        let name = text("name").ok_or("cargo metadata names a package without a name")?;
        let version = text("version").ok_or_else(|| format!("{name} has no version"))?;
        if !linked.contains(&(name.clone(), version.clone())) {
            continue;
        }
        let licence = text("license").ok_or_else(|| format!("the crate {name} names no licence"))?;
        let manifest = PathBuf::from(text("manifest_path").ok_or_else(|| format!("{name} lies nowhere"))?);
        let folder = manifest.parent().ok_or_else(|| format!("{name} lies nowhere"))?.to_owned();
        let authors = package["authors"].as_array().into_iter().flatten();
        parts.extend(VENDORED.iter().filter(|vendored| vendored.of_crate == name).map(|vendored| Part {
            name: vendored.name.into(),
            // Crates name it behind the +, where they do.
            version: version.split_once('+').map_or("unknown", |(_, named)| named).trim_start_matches("zstd.").into(),
            licence: vendored.licence.into(),
            url: format!("pkg:generic/{}", vendored.name),
            home: None,
            authors: Vec::new(),
            sha256: None,
            texts: vendored.texts.iter().map(|text| folder.join(vendored.folder).join(text)).collect(),
            is_ours: false,
        }));
        parts.push(Part {
            url: format!("pkg:cargo/{name}@{}", version.replace('+', "%2B")),
            home: text("repository"),
            authors: authors.filter_map(|author| author.as_str().map(str::to_owned)).collect(),
            sha256: checksums.get(&(name.clone(), version.clone())).cloned(),
            texts: texts_in(&folder)?,
            is_ours: package["source"].is_null(),
            name,
            version,
            licence,
        });
    }
    parts.extend(of_toolchain()?);
    parts.sort_by(|one, other| (&one.name, &one.version).cmp(&(&other.name, &other.version)));
    Ok(parts)
}

/// Names and versions of the crates that are linked.
fn linked(of: &[&str]) -> Result<BTreeSet<(String, String)>, Failure> {
    let mut cargo = workspace::cargo(&["tree", "--locked", "--features", "tapetum-server/images"]);
    cargo.args(of.iter().flat_map(|package| ["--package", package]));
    cargo.args(["--edges", "normal,no-proc-macro", "--prefix", "none", "--format", "{p}", "--target", &target()]);
    let names = output(&mut cargo)?;
    let crates = names.lines().filter_map(|line| {
        let mut words = line.split_whitespace();
        Some((words.next()?.to_owned(), words.next()?.strip_prefix('v')?.to_owned()))
    });
    Ok(crates.collect())
}

/// The files at the top of a crate that may hold its licence.
fn texts_in(folder: &std::path::Path) -> Result<Vec<PathBuf>, Failure> {
    const NAMES: [&str; 5] = ["LICENSE", "LICENCE", "COPYING", "NOTICE", "UNLICENSE"];
    let files = std::fs::read_dir(folder)?.collect::<Result<Vec<_>, _>>()?;
    let mut texts: Vec<PathBuf> = files
        .into_iter()
        .filter(|file| {
            let name = file.file_name().to_string_lossy().to_uppercase();
            NAMES.iter().any(|start| name.starts_with(start)) && file.path().is_file()
        })
        .map(|file| file.path())
        .collect();
    texts.sort();
    Ok(texts)
}

/// SHA-256 of each crate's archive, by name and version, as Cargo.lock keeps them.
fn checksums(lock: &str) -> BTreeMap<(String, String), String> {
    let field = |entry: &str, name: &str| {
        let line = entry.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(" = \""));
        line.map(|value| value.trim_end_matches('"').to_owned())
    };
    let entries = lock.split("[[package]]");
    entries
        .filter_map(|entry| Some(((field(entry, "name")?, field(entry, "version")?), field(entry, "checksum")?)))
        .collect()
}

/// The parts that the compiler and the system put into a static binary.
fn of_toolchain() -> Result<[Part; 2], Failure> {
    let rustc = output(Command::new(std::env::var_os("RUSTC").unwrap_or("rustc".into())).arg("--version"))?;
    let rust = rustc.split_whitespace().nth(1).unwrap_or("unknown").to_owned();
    let glibc = output(Command::new("getconf").arg("GNU_LIBC_VERSION"))?;
    let glibc = glibc.split_whitespace().nth(1).unwrap_or("unknown").to_owned();
    let part = |name: &str, version: String, licence: &str, home: &str| Part {
        url: format!("pkg:generic/{name}@{version}"),
        name: name.into(),
        version,
        licence: licence.into(),
        home: Some(home.into()),
        authors: Vec::new(),
        sha256: None,
        texts: Vec::new(),
        is_ours: false,
    };
    Ok([
        part("rust-std", rust, "MIT OR Apache-2.0", "https://github.com/rust-lang/rust"),
        part("glibc", glibc, "LGPL-2.1-or-later", "https://sourceware.org/glibc"),
    ])
}

/// The software bill of materials, in CycloneDX's JSON.
pub fn bill(release: &Release, parts: &[Part]) -> Result<String, Failure> {
    let components = parts.iter().map(|part| {
        let mut component = json!({
            "type": "library",
            "bom-ref": format!("{}@{}", part.name, part.version),
            "name": part.name,
            "version": part.version,
            "purl": part.url,
            "licenses": [{ "expression": part.licence.replace(" / ", " OR ").replace('/', " OR ") }],
        });
        if let Some(sha256) = &part.sha256 {
            component["hashes"] = json!([{ "alg": "SHA-256", "content": sha256 }]);
        }
        if let Some(home) = &part.home {
            component["externalReferences"] = json!([{ "type": "vcs", "url": home }]);
        }
        component
    });
    let (others, ours): (Vec<&Part>, Vec<&Part>) = parts.iter().partition(|part| !part.is_ours);
    let all: Vec<String> =
        others.into_iter().chain(ours).map(|part| format!("{}@{}", part.name, part.version)).collect();
    let bill = json!({
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {
            "timestamp": release.timestamp,
            "component": {
                "type": "application",
                "bom-ref": "tapetum",
                "name": "tapetum",
                "version": release.version,
                "licenses": [{ "expression": "MIT OR Apache-2.0" }],
            },
        },
        "components": components.collect::<Vec<_>>(),
        "dependencies": [{ "ref": "tapetum", "dependsOn": all }],
    });
    Ok(serde_json::to_string_pretty(&bill)? + "\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parts_are_those_of_the_binary_each_once() {
        let parts = all(BINARY).unwrap();
        let names: Vec<&str> = parts.iter().map(|part| part.name.as_str()).collect();
        for name in ["libzstd", "libjpeg-turbo", "rustls", "tonic", "glibc", "tapetum-kernels"] {
            assert_eq!(names.iter().filter(|other| **other == name).count(), 1, "{name}");
        }
        // They compile or test it.
        for name in ["serde_derive", "cc", "proptest", "fuser", "pyo3"] {
            assert!(!names.contains(&name), "{name}");
        }
        let of_registry = parts.iter().filter(|part| part.url.starts_with("pkg:cargo/") && !part.is_ours);
        assert!(of_registry.clone().count() > 50);
        assert!(of_registry.clone().all(|part| part.sha256.as_ref().is_some_and(|sum| sum.len() == 64)));
    }
}
