//! The package for Debian and its kin. Its scripts are files in packaging/debian, with what dh_installsystemd and debconf want of them.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::elf::{self, Libraries};
use super::{Release, output, parts, tree};
use crate::Failure;
use crate::workspace::{self, succeed};

const SCRIPTS: [&str; 3] = ["postinst", "prerm", "postrm"];

pub fn make(release: &Release) -> Result<PathBuf, Failure> {
    let root = release.scratch.join("deb");
    lay_out(release, &root)?;
    let installed_bytes =
        tree::files(&root)?.iter().map(|file| Ok(fs::metadata(file)?.len())).sum::<Result<u64, Failure>>()?;
    let version = format!("{}-{}", release.version, release.revision);
    let architecture = output(Command::new("dpkg").arg("--print-architecture"))?.trim().to_owned();
    write_control(release, &root, &version, &architecture, installed_bytes)?;
    let package = release.folder.join(format!("tapetum_{version}_{architecture}.deb"));
    let mut build = Command::new("dpkg-deb");
    build
        .args(["--root-owner-group", "-Zxz"])
        .arg(format!("-z{}", release.compression))
        .arg("--build")
        .arg(&root)
        .arg(&package);
    build.stdout(std::process::Stdio::null()).env("SOURCE_DATE_EPOCH", release.unix_seconds.to_string());
    succeed(&mut build, "dpkg-deb failed; its message is above")?;
    Ok(package)
}

/// Lays out the files as they will be installed.
fn lay_out(release: &Release, root: &Path) -> Result<(), Failure> {
    let packaging = workspace::root().join("packaging");
    tree::write(&root.join("usr/bin/tapetum"), fs::read(&release.binary)?, 0o755)?;
    let unit = fs::read(packaging.join("tapetum.service"))?;
    tree::write(&root.join("usr/lib/systemd/system/tapetum.service"), unit, 0o644)?;
    tree::write(&root.join("etc/tapetum.toml"), fs::read(packaging.join("tapetum.toml"))?, 0o644)?;
    tree::write_help(release, root)?;
    tree::gzip(tree::files(&root.join("usr/share/man"))?)?;
    let papers = root.join("usr/share/doc/tapetum");
    tree::write_documents(&papers)?;
    tree::write_papers(release, parts::BINARY, &papers)?;
    // Debian has its text.
    fs::remove_file(papers.join("LICENSE-APACHE"))?;
    fs::remove_file(papers.join("LICENSE-MIT"))?;
    tree::write(&papers.join("changelog"), fs::read(workspace::root().join("CHANGELOG.md"))?, 0o644)?;
    tree::gzip(["changelog", "THIRD-PARTY", "sbom.cdx.json"].map(|name| papers.join(name)))?;
    let mit = fs::read_to_string(workspace::root().join("LICENSE-MIT"))?;
    // In this form a line of a text is indented, and an empty one is a dot.
    let mit: Vec<String> =
        mit.trim().lines().map(|line| if line.is_empty() { " .".into() } else { format!(" {line}") }).collect();
    let copyright = fs::read_to_string(packaging.join("debian/copyright"))?.replace("@MIT@", &mit.join("\n"));
    tree::write(&papers.join("copyright"), copyright, 0o644)?;
    tree::open_folders(root)
}

fn write_control(
    release: &Release,
    root: &Path,
    version: &str,
    architecture: &str,
    installed_bytes: u64,
) -> Result<(), Failure> {
    let source = workspace::root().join("packaging/debian");
    let libraries = match elf::libraries(&fs::read(&release.binary)?)? {
        Libraries::None => String::new(),
        Libraries::Glibc { minor } => format!("libc6 (>= 2.{minor}), libgcc-s1, "),
    };
    let control = fs::read_to_string(source.join("control"))?
        .replace("@VERSION@", version)
        .replace("@ARCHITECTURE@", architecture)
        .replace("@KIBIBYTES@", &installed_bytes.div_ceil(1024).to_string())
        .replace("@LIBRARIES@", &libraries);
    let sums = output(
        Command::new("sh").current_dir(root).args(["-c", "find usr -type f -print0 | sort -z | xargs -0 md5sum"]),
    )?;
    let debian = root.join("DEBIAN");
    tree::write(&debian.join("control"), control, 0o644)?;
    tree::write(&debian.join("md5sums"), sums, 0o644)?;
    tree::write(&debian.join("conffiles"), "/etc/tapetum.toml\n", 0o644)?;
    tree::write(&debian.join("templates"), fs::read(source.join("templates"))?, 0o644)?;
    for script in SCRIPTS {
        tree::write(&debian.join(script), fs::read(source.join(script))?, 0o755)?;
    }
    tree::open_folders(&debian)
}
