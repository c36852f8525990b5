//! A block device as a disk of this machine, as root: nbdfuse shows it as a file, and a loop device makes a disk of that. It goes when it is
//! dropped, also where its server is gone.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use super::said;
use crate::Failure;
use crate::loop_device::LoopDevice;

/// How long nbdfuse may take to show its file.
const PATIENCE: Duration = Duration::from_secs(60);

pub struct FuseDisk {
    /// `None` before nbdfuse shows its file.
    device: Option<LoopDevice>,
    fuse: Child,
    folder: PathBuf,
}

impl FuseDisk {
    /// Whether there can be one here; an error says why not.
    pub fn check(scratch: &Path) -> Result<(), Failure> {
        let file = scratch.join("checked");
        fs::File::create(&file)?.set_len(1 << 20)?;
        let checked = LoopDevice::over(&file).map(drop);
        fs::remove_file(file)?;
        checked.map_err(|why| format!("there can be no loop device, which takes root ({why})").into())
    }

    /// The device with this URI; nbdfuse shows its file in a new folder.
    pub fn show(uri: &str, folder: &Path) -> Result<FuseDisk, Failure> {
        fs::create_dir_all(folder)?;
        let fuse = Command::new("nbdfuse").arg(folder).arg(uri).spawn();
        let fuse = fuse.map_err(|error| format!("nbdfuse cannot be run: {error}; apt-get install libnbd-bin fuse3"))?;
        let mut disk = FuseDisk { device: None, fuse, folder: folder.to_owned() };
        let (image, begun) = (folder.join("nbd"), Instant::now());
        while !image.exists() {
            if begun.elapsed() > PATIENCE || disk.fuse.try_wait()?.is_some() {
                return Err(format!("nbdfuse shows no device in {}", folder.display()).into());
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        disk.device = Some(LoopDevice::over(&image)?);
        Ok(disk)
    }

    pub fn path(&self) -> &Path {
        &self.device.as_ref().expect("it was shown").path
    }
}

impl Drop for FuseDisk {
    fn drop(&mut self) {
        drop(self.device.take());
        // If it is gone already, fusermount3 fails, which is as good.
        let _ = Command::new("fusermount3").arg("-u").arg(&self.folder).output();
        let _ = self.fuse.wait();
    }
}

/// A file system of a disk in a folder, until it is dropped.
pub struct Mounted {
    folder: PathBuf,
}

impl Mounted {
    pub fn new(device: &Path, folder: &Path) -> Result<Mounted, Failure> {
        fs::create_dir_all(folder)?;
        said(Command::new("mount").args(["-o", "discard"]).arg(device).arg(folder))?;
        Ok(Mounted { folder: folder.to_owned() })
    }

    pub fn folder(&self) -> &Path {
        &self.folder
    }

    pub fn unmount(self) -> Result<(), Failure> {
        let unmounted = said(Command::new("umount").arg(&self.folder));
        std::mem::forget(self);
        unmounted.map(drop)
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        // Its disk may be gone: then nothing more can be written.
        let _ = Command::new("umount").arg(&self.folder).output();
    }
}
