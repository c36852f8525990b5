//! A file system on a block device, as root. Written files must be there when it is mounted again. Durable files must be there after the
//! server was killed, or the power was cut, under writers.

use std::fs::{self, File};
use std::io::Write;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::fuse_disk::{FuseDisk, Mounted};
use super::{DISK, Disk, said};
use crate::Failure;
use crate::kill::Fault;
use tapetum_bench::random::{Random, mix};

/// Files of the writer; each is replaced repeatedly.
const FILES: u64 = 24;
const FILE_BYTES_MAX: u64 = 400 << 10;
const KEPT_BYTES_MAX: usize = 16 << 20;

/// A file system that is made on a device.
#[derive(Clone, Copy)]
pub struct FileSystem {
    pub name: &'static str,
    make: &'static [&'static str],
    check: &'static [&'static str],
}

pub const EXT4: FileSystem =
    FileSystem { name: "ext4", make: &["mkfs.ext4", "-q", "-F"], check: &["fsck.ext4", "-f", "-n"] };
/// A file system of less than 300 MB is only for tests.
const XFS: FileSystem =
    FileSystem { name: "xfs", make: &["mkfs.xfs", "-q", "-f", "--unsupported"], check: &["xfs_repair", "-n"] };

/// A command with the device as its last word.
fn command(words: &[&str], device: &Path) -> Result<String, Failure> {
    said(Command::new(words[0]).args(&words[1..]).arg(device))
}

impl FileSystem {
    pub fn named(name: &str) -> Result<FileSystem, Failure> {
        let found = [EXT4, XFS].into_iter().find(|known| known.name == name);
        found.ok_or_else(|| "--file-system takes ext4 and xfs".into())
    }

    pub fn make(self, device: &Path) -> Result<(), Failure> {
        command(self.make, device).map(drop)
    }

    /// Checks the unmounted file system.
    fn check(self, device: &Path) -> Result<(), Failure> {
        command(self.check, device).map(drop)
    }

    /// Writes files to a new file system. They must be there when it is mounted again, and its check must pass.
    pub fn keeps(self, disk: &Disk, scratch: &Path) -> Result<(), Failure> {
        let server = disk.start()?;
        let shown = FuseDisk::show(&disk.uri(DISK), &scratch.join("fuse"))?;
        let mount = || Mounted::new(shown.path(), &scratch.join("files"));
        self.make(shown.path())?;
        let mounted = mount()?;
        let original = fs::read(std::env::current_exe()?)?;
        let original = &original[..original.len().min(KEPT_BYTES_MAX)];
        fs::write(mounted.folder().join("kept"), original)?;
        fs::write(mounted.folder().join("removed"), original)?;
        fs::remove_file(mounted.folder().join("removed"))?;
        mounted.unmount()?;
        self.check(shown.path())?;
        let mounted = mount()?;
        let found = fs::read(mounted.folder().join("kept"))?;
        mounted.unmount()?;
        if found != original {
            return Err(format!("a file on {} is not what was written", self.name).into());
        }
        drop(shown);
        server.terminate()
    }

    /// Strikes `cycles` times under a writer that makes each file durable. Returns the number of durable files, none of which may be lost.
    pub fn survives(
        self,
        disk: &Disk,
        scratch: &Path,
        cycles: u64,
        seed: u64,
        fault: &mut impl Fault,
    ) -> Result<u64, Failure> {
        let mut random = Random::new(seed);
        let mut files =
            Files { versions: vec![Versions::default(); FILES as usize], random: Random::new(mix(seed)), made: 0 };
        let (fuse, folder) = (scratch.join("fuse"), scratch.join("files"));
        let mut server = disk.start()?;
        self.make(FuseDisk::show(&disk.uri(DISK), &fuse)?.path())?;
        for _ in 0..cycles {
            let shown = FuseDisk::show(&disk.uri(DISK), &fuse)?;
            let mounted = Mounted::new(shown.path(), &folder)?;
            let striking = AtomicBool::new(false);
            let load = Duration::from_millis(20 + random.below(1500));
            std::thread::scope(|scope| -> Result<(), Failure> {
                let writer = scope.spawn(|| files.write_until(mounted.folder(), &striking));
                std::thread::sleep(load);
                striking.store(true, Ordering::SeqCst);
                let struck = fault.strike(server, &mut random);
                writer.join().expect("a writer panicked").and(struck)
            })?;
            drop(mounted);
            drop(shown);
            server = disk.start()?;
            let shown = FuseDisk::show(&disk.uri(DISK), &fuse)?;
            // It replays its journal.
            let mounted = Mounted::new(shown.path(), &folder)?;
            files.verify(mounted.folder())?;
            mounted.unmount()?;
            self.check(shown.path())?;
        }
        server.terminate()?;
        Ok(files.made)
    }
}

#[derive(Clone, Copy, Default)]
struct Versions {
    /// The last version known to be durable; 0 is none.
    durable: u64,
    /// The last version begun.
    begun: u64,
}

/// Files that are replaced by new versions: each is written beside the old one, made durable, and renamed.
struct Files {
    versions: Vec<Versions>,
    random: Random,
    /// Number of versions made durable.
    made: u64,
}

fn content(file: u64, version: u64) -> Vec<u8> {
    let mut random = Random::new(mix(file ^ mix(version)));
    let mut bytes = vec![0; 8 + random.below(FILE_BYTES_MAX) as usize];
    bytes[..8].copy_from_slice(&version.to_be_bytes());
    random.fill(&mut bytes[8..]);
    bytes
}

impl Files {
    /// Replaces files until an error, which is allowed once the server is struck.
    fn write_until(&mut self, folder: &Path, striking: &AtomicBool) -> Result<(), Failure> {
        loop {
            match self.replace(folder) {
                Ok(()) if striking.load(Ordering::SeqCst) => return Ok(()),
                Ok(()) => {}
                Err(_) if striking.load(Ordering::SeqCst) => return Ok(()),
                Err(error) => return Err(format!("a file could not be written while the server ran: {error}").into()),
            }
        }
    }

    fn replace(&mut self, folder: &Path) -> std::io::Result<()> {
        let file = self.random.below(FILES);
        let versions = &mut self.versions[file as usize];
        versions.begun += 1;
        let (beside, name) = (folder.join("beside"), folder.join(file.to_string()));
        let mut written = File::create(&beside)?;
        written.write_all(&content(file, versions.begun))?;
        written.sync_all()?;
        fs::rename(&beside, &name)?;
        File::open(folder)?.sync_all()?;
        versions.durable = versions.begun;
        self.made += 1;
        Ok(())
    }

    fn verify(&mut self, folder: &Path) -> Result<(), Failure> {
        for (file, versions) in (0..).zip(&mut self.versions) {
            let found = match fs::read(folder.join(file.to_string())) {
                Ok(found) => found,
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => Vec::new(),
                Err(error) => return Err(format!("file {file} cannot be read: {error}").into()),
            };
            let version = found.first_chunk().map_or(0, |bytes| u64::from_be_bytes(*bytes));
            if version > 0 && found != content(file, version) {
                return Err(format!("file {file} is not what was written: it begins as version {version}").into());
            }
            let Versions { durable, begun } = *versions;
            if !(durable..=begun).contains(&version) {
                return Err(format!("file {file} has version {version}: {durable} was durable, {begun} begun").into());
            }
            // A version that is read after a restart is durable.
            *versions = Versions { durable: version, begun: version };
        }
        Ok(())
    }
}
