//! The image for containers: the binary alone, a user, a place for data. An archive as Docker writes it, which `docker load`, `podman load`
//! and `skopeo copy docker-archive:` read. Not the layout of OCI: that has no health check, and podman would prefer it to this one.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::elf::{self, Libraries};
use super::{Release, parts, tree};
use crate::Failure;

/// As other images without root have it. Nobody's number on usual systems.
const USER: u32 = 65532;
const PASSWD: &str = "root:x:0:0:root:/:/sbin/nologin\ntapetum:x:65532:65532:tapetum:/data:/sbin/nologin\n";
const GROUP: &str = "root:x:0:\ntapetum:x:65532:\n";
/// A second, in the unit of health checks.
const NANOSECONDS: u64 = 1_000_000_000;

pub fn make(release: &Release) -> Result<PathBuf, Failure> {
    if elf::libraries(&fs::read(&release.binary)?)? != Libraries::None {
        return Err("an image holds no libraries: --binary must name a static binary, or leave it out".into());
    }
    let folder = release.scratch.join("image");
    let layer = layer(release, &folder)?;
    let archive = folder.join("archive");
    let layer = take(&archive, &fs::read(&layer)?, "tar")?;
    let config = take(&archive, config(release, &layer.sha256)?.to_string().as_bytes(), "json")?;
    let tags = [format!("tapetum:{}", release.version), "tapetum:latest".into()];
    let manifest = json!([{ "Config": config.name, "RepoTags": tags, "Layers": [layer.name] }]);
    tree::write(&archive.join("manifest.json"), manifest.to_string(), 0o644)?;
    let package = release.folder.join(format!("tapetum-{}-image.tar", release.version));
    tree::remove(&package)?;
    tree::tar(release, &archive, &["manifest.json", &config.name, &layer.name], 0, &package)?;
    Ok(package)
}

/// The single layer's archive.
fn layer(release: &Release, folder: &Path) -> Result<PathBuf, Failure> {
    let root = folder.join("root");
    tree::write(&root.join("tapetum"), fs::read(&release.binary)?, 0o755)?;
    tree::write(&root.join("etc/passwd"), PASSWD, 0o644)?;
    tree::write(&root.join("etc/group"), GROUP, 0o644)?;
    tree::write_papers(release, parts::BINARY, &root.join("usr/share/doc/tapetum"))?;
    tree::open_folders(&root)?;
    let data = folder.join("volume");
    fs::create_dir_all(data.join("data"))?;
    fs::set_permissions(data.join("data"), std::os::unix::fs::PermissionsExt::from_mode(0o700))?;
    let layer = folder.join("layer.tar");
    tree::tar(release, &root, &["etc", "tapetum", "usr"], 0, &layer)?;
    tree::tar(release, &data, &["data"], USER, &layer)?;
    Ok(layer)
}

/// How a container of the image runs.
fn config(release: &Release, layer_sha256: &str) -> Result<Value, Failure> {
    let architecture = match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => return Err(format!("images for {other} are not made").into()),
    };
    Ok(json!({
        "created": release.timestamp,
        "architecture": architecture,
        "os": "linux",
        "config": {
            "User": format!("{USER}:{USER}"),
            "WorkingDir": "/data",
            "Env": ["PATH=/", "TAPETUM_DATA=/data"],
            "Entrypoint": ["/tapetum"],
            "Cmd": ["serve"],
            "Volumes": { "/data": {} },
            "ExposedPorts": { "11211/tcp": {} },
            "StopSignal": "SIGTERM",
            // Asks the server through the socket beside the data, whatever its addresses are. A large store is recovered first.
            "Healthcheck": {
                "Test": ["CMD", "/tapetum", "stats"],
                "Interval": 10 * NANOSECONDS,
                "Timeout": 5 * NANOSECONDS,
                "StartPeriod": 300 * NANOSECONDS,
                "StartInterval": NANOSECONDS,
                "Retries": 3,
            },
            "Labels": {
                "org.opencontainers.image.title": "tapetum",
                "org.opencontainers.image.version": release.version,
                "org.opencontainers.image.licenses": "MIT OR Apache-2.0",
            },
        },
        "rootfs": { "type": "layers", "diff_ids": [format!("sha256:{layer_sha256}")] },
        "history": [{ "created": release.timestamp, "created_by": "cargo x package image" }],
    }))
}

/// A file of the archive.
struct Member {
    sha256: String,
    name: String,
}

/// Keeps bytes in the archive's folder, named by their checksum.
fn take(archive: &Path, bytes: &[u8], ending: &str) -> Result<Member, Failure> {
    let sha256: String = Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect();
    let name = format!("{sha256}.{ending}");
    tree::write(&archive.join(&name), bytes, 0o644)?;
    Ok(Member { sha256, name })
}
