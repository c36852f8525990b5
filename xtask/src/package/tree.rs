//! The files that packages have in common, and how they get into archives.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::{Release, licences, parts};
use crate::Failure;
use crate::workspace::{self, succeed};

const COMPLETIONS: [(&str, &str); 3] = [
    ("bash", "usr/share/bash-completion/completions/tapetum"),
    ("zsh", "usr/share/zsh/vendor-completions/_tapetum"),
    ("fish", "usr/share/fish/vendor_completions.d/tapetum.fish"),
];

/// Writes a file and the folders above it.
pub fn write(path: &Path, bytes: impl AsRef<[u8]>, mode: u32) -> Result<(), Failure> {
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder)?;
    }
    fs::write(path, bytes)?;
    Ok(fs::set_permissions(path, fs::Permissions::from_mode(mode))?)
}

/// Writes what a package says about its contents, which these packages of the workspace became: licences, the bill of materials.
pub fn write_papers(release: &Release, of: &[&str], folder: &Path) -> Result<(), Failure> {
    let parts = parts::all(of)?;
    licences::check(&parts)?;
    for licence in ["LICENSE-MIT", "LICENSE-APACHE"] {
        write(&folder.join(licence), fs::read(workspace::root().join(licence))?, 0o644)?;
    }
    write(&folder.join("THIRD-PARTY"), licences::texts(&parts)?, 0o644)?;
    write(&folder.join("sbom.cdx.json"), parts::bill(release, &parts)?, 0o644)
}

/// Writes the documents, which messages and settings name, and the dashboard and alerts.
pub fn write_documents(folder: &Path) -> Result<(), Failure> {
    let root = workspace::root();
    for entry in fs::read_dir(root.join("docs"))? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "md") {
            write(&folder.join("docs").join(path.file_name().unwrap_or_default()), fs::read(&path)?, 0o644)?;
        }
    }
    for part in ["grafana", "prometheus"] {
        for path in files(&root.join("packaging").join(part))? {
            write(&folder.join(part).join(path.file_name().unwrap_or_default()), fs::read(&path)?, 0o644)?;
        }
    }
    Ok(())
}

/// Writes the manual's pages and the shells' completions, which the binary prints, below `root`.
pub fn write_help(release: &Release, root: &Path) -> Result<(), Failure> {
    let pages = root.join("usr/share/man/man1");
    fs::create_dir_all(&pages)?;
    let mut help = Command::new(&release.binary);
    succeed(help.args(["help", "--man-pages"]).arg(&pages), "the binary wrote no pages of the manual")?;
    for (shell, path) in COMPLETIONS {
        let script = super::output(Command::new(&release.binary).args(["help", "--completions", shell]))?;
        write(&root.join(path), script, 0o644)?;
    }
    Ok(())
}

/// Compresses files in place, without names and times.
pub fn gzip(files: impl IntoIterator<Item = PathBuf>) -> Result<(), Failure> {
    succeed(Command::new("gzip").args(["-9", "-n"]).args(files), "gzip failed; its message is above")
}

/// Gives folders their usual mode, whatever the umask was.
pub fn open_folders(folder: &Path) -> Result<(), Failure> {
    fs::set_permissions(folder, fs::Permissions::from_mode(0o755))?;
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            open_folders(&entry.path())?;
        }
    }
    Ok(())
}

/// The files of a folder and of those in it.
pub fn files(folder: &Path) -> Result<Vec<PathBuf>, Failure> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        match entry.file_type()?.is_dir() {
            true => found.extend(files(&entry.path())?),
            false => found.push(entry.path()),
        }
    }
    found.sort();
    Ok(found)
}

/// Puts members of `folder` into an archive: by name, with the commit's time, and with this user and group.
pub fn tar(release: &Release, folder: &Path, members: &[&str], owner: u32, archive: &Path) -> Result<(), Failure> {
    let mut tar = Command::new("tar");
    tar.args(["--append", "--sort=name", "--numeric-owner", "--format=ustar"]);
    tar.arg(format!("--mtime=@{}", release.unix_seconds));
    tar.arg(format!("--owner={owner}")).arg(format!("--group={owner}"));
    tar.arg("--file").arg(archive).arg("--directory").arg(folder).args(members);
    succeed(&mut tar, "tar failed; its message is above")
}

/// The static binary with everything that goes beside it, for systems without a package of their own.
pub fn make_archive(release: &Release) -> Result<PathBuf, Failure> {
    let name = format!("tapetum-{}-{}-linux", release.version, std::env::consts::ARCH);
    let folder = release.scratch.join("static");
    let root = folder.join(&name);
    write(&root.join("tapetum"), fs::read(&release.binary)?, 0o755)?;
    for file in ["tapetum.service", "tapetum.toml"] {
        write(&root.join(file), fs::read(workspace::root().join("packaging").join(file))?, 0o644)?;
    }
    write_help(release, &root)?;
    write_papers(release, parts::BINARY, &root)?;
    write_documents(&root)?;
    open_folders(&root)?;
    let archive = release.folder.join(format!("{name}.tar"));
    let compressed = archive.with_extension("tar.gz");
    for old in [&archive, &compressed] {
        remove(old)?;
    }
    tar(release, &folder, &[&name], 0, &archive)?;
    gzip([archive])?;
    Ok(compressed)
}

/// Removes a file of an earlier run.
pub fn remove(file: &Path) -> Result<(), Failure> {
    match fs::remove_file(file) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error.into()),
        _ => Ok(()),
    }
}
