//! A file system on a block device, as root: nbdfuse shows the device as a file, and a loop device makes a disk of it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use super::{DISK, Disk, said};
use crate::Failure;

/// How long nbdfuse may take to show its file.
const PATIENCE: Duration = Duration::from_secs(60);

/// What was mounted, and goes when this does.
struct Mounted {
    fuse: Child,
    folder: PathBuf,
    device: String,
}

impl Drop for Mounted {
    fn drop(&mut self) {
        // What is gone already says so, and that is as good.
        let _ = Command::new("umount").arg(self.folder.join("files")).output();
        let _ = Command::new("losetup").args(["-d", &self.device]).output();
        let _ = Command::new("fusermount3").arg("-u").arg(self.folder.join("fuse")).output();
        let _ = self.fuse.wait();
    }
}

/// A file system that is made on a device.
#[derive(Clone, Copy)]
pub struct FileSystem {
    name: &'static str,
    make: &'static [&'static str],
    check: &'static [&'static str],
}

const KNOWN: [FileSystem; 2] = [
    FileSystem { name: "ext4", make: &["mkfs.ext4", "-q", "-F"], check: &["fsck.ext4", "-f", "-n"] },
    // One of less than 300 MB is made for tests alone.
    FileSystem { name: "xfs", make: &["mkfs.xfs", "-q", "-f", "--unsupported"], check: &["xfs_repair", "-n"] },
];

/// A command with the device as its last word.
fn command(words: &[&str], device: &str) -> Result<String, Failure> {
    said(Command::new(words[0]).args(&words[1..]).arg(device))
}

impl FileSystem {
    pub fn named(name: &str) -> Result<FileSystem, Failure> {
        let found = KNOWN.into_iter().find(|known| known.name == name);
        found.ok_or_else(|| "--file-system takes ext4 and xfs".into())
    }

    /// Files that were written to a new file system are there when it is mounted again, and its check is content.
    pub fn run(self, disk: &Disk, scratch: &Path) -> Result<(), Failure> {
        let server = disk.start()?;
        let folder = scratch.join("mounts");
        for name in ["fuse", "files"] {
            fs::create_dir_all(folder.join(name))?;
        }
        let mounted = show(disk, &folder)?;
        let (device, files) = (&mounted.device[..], folder.join("files"));
        command(self.make, device)?;
        let mount = || said(Command::new("mount").args(["-o", "discard", device]).arg(&files));
        let unmount = || said(Command::new("umount").arg(&files));
        mount()?;
        let original = fs::read(std::env::current_exe()?)?;
        let original = &original[..original.len().min(16 << 20)];
        fs::write(files.join("kept"), original)?;
        fs::write(files.join("removed"), original)?;
        fs::remove_file(files.join("removed"))?;
        unmount()?;
        command(self.check, device)?;
        mount()?;
        let found = fs::read(files.join("kept"))?;
        unmount()?;
        if found != original {
            return Err(format!("a file on {} is not what was written", self.name).into());
        }
        drop(mounted);
        server.terminate()?;
        println!("test-nbd: {}", self.name);
        Ok(())
    }
}

/// Makes a loop device of the device, as nbdfuse shows it in the folder.
fn show(disk: &Disk, folder: &Path) -> Result<Mounted, Failure> {
    let fuse = Command::new("nbdfuse").arg(folder.join("fuse")).arg(disk.uri(DISK)).spawn()?;
    let mut mounted = Mounted { fuse, folder: folder.to_owned(), device: String::new() };
    let (image, begun) = (folder.join("fuse/nbd"), Instant::now());
    while !image.exists() {
        if begun.elapsed() > PATIENCE || mounted.fuse.try_wait()?.is_some() {
            return Err("nbdfuse shows no device".into());
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    mounted.device = said(Command::new("losetup").args(["--show", "-f"]).arg(&image))?.trim().to_owned();
    Ok(mounted)
}
