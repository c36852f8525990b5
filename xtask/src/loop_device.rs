//! A loop device over a file. Only root may make one. It goes when it is dropped.

use std::path::{Path, PathBuf};
use std::process::Command;

pub struct LoopDevice {
    pub path: PathBuf,
}

impl LoopDevice {
    /// An error says why there can be none.
    pub fn over(file: &Path) -> Result<LoopDevice, String> {
        let output = Command::new("losetup").args(["--find", "--show"]).arg(file).output();
        let output = output.map_err(|error| format!("losetup cannot be run: {error}"))?;
        match output.status.success() {
            true => Ok(LoopDevice { path: String::from_utf8_lossy(&output.stdout).trim().into() }),
            false => Err(String::from_utf8_lossy(&output.stderr).trim().into()),
        }
    }

    /// Has it pass the page cache by.
    pub fn direct(self) -> Result<LoopDevice, String> {
        let set = Command::new("losetup").arg("--direct-io=on").arg(&self.path).status();
        match set {
            Ok(status) if status.success() => Ok(self),
            _ => Err(format!("{} cannot pass the page cache by", self.path.display())),
        }
    }
}

impl Drop for LoopDevice {
    fn drop(&mut self) {
        let detached = Command::new("losetup").arg("--detach").arg(&self.path).status();
        if !detached.is_ok_and(|status| status.success()) {
            eprintln!("{} stays behind: losetup --detach it", self.path.display());
        }
    }
}
