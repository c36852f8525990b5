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

/// Files that were written to a new ext4 are there when it is mounted again, and its check is content.
pub fn run(disk: &Disk, scratch: &Path) -> Result<(), Failure> {
    let server = disk.start()?;
    let folder = scratch.join("mounts");
    for name in ["fuse", "files"] {
        fs::create_dir_all(folder.join(name))?;
    }
    let fuse = Command::new("nbdfuse").arg(folder.join("fuse")).arg(disk.uri(DISK)).spawn()?;
    let mut mounted = Mounted { fuse, folder: folder.clone(), device: String::new() };
    let (image, begun) = (folder.join("fuse/nbd"), Instant::now());
    while !image.exists() {
        if begun.elapsed() > PATIENCE || mounted.fuse.try_wait()?.is_some() {
            return Err("nbdfuse shows no device".into());
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    mounted.device = said(Command::new("losetup").args(["--show", "-f"]).arg(&image))?.trim().to_owned();
    let (device, files) = (&mounted.device, folder.join("files"));
    said(Command::new("mkfs.ext4").args(["-q", "-F", device]))?;
    let mount = || said(Command::new("mount").args(["-o", "discard", device]).arg(&files));
    let unmount = || said(Command::new("umount").arg(&files));
    mount()?;
    let original = std::env::current_exe()?;
    let original = fs::read(original)?;
    let original = &original[..original.len().min(16 << 20)];
    fs::write(files.join("kept"), original)?;
    fs::write(files.join("removed"), original)?;
    fs::remove_file(files.join("removed"))?;
    unmount()?;
    said(Command::new("fsck.ext4").args(["-f", "-n", device]))?;
    mount()?;
    let found = fs::read(files.join("kept"))?;
    unmount()?;
    if found != original {
        return Err("a file on ext4 is not what was written".into());
    }
    drop(mounted);
    server.terminate()?;
    println!("test-nbd: ext4");
    Ok(())
}
