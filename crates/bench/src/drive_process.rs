//! `tapetum drive`, as a process of a measurement: started over a file in a folder, killed when dropped.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use tapetum_drive::{AttachedFlash, Attaching, Env, Flash};

use crate::Failure;
use crate::server::die_with_parent;

/// How long it may take to open its file.
const START_MAX: Duration = Duration::from_secs(60);

/// Room beside a partition for the table of partitions, and for alignment.
pub const TABLE_BYTES: u64 = 16 << 20;

pub struct DriveProcess {
    child: Child,
    socket: PathBuf,
}

impl DriveProcess {
    /// Starts `binary` over the file `drive` in `folder`, which is made with `capacity_bytes` if it is not there.
    pub fn start(binary: &Path, folder: &Path, capacity_bytes: u64, options: &[&str]) -> Result<DriveProcess, Failure> {
        std::fs::create_dir_all(folder)?;
        let (file, socket) = (folder.join("drive"), folder.join("drive.sock"));
        let mut command = Command::new(binary);
        command.arg("drive").arg("--file").arg(&file).arg("--socket").arg(&socket);
        command.args(["--capacity", &capacity_bytes.to_string()]).args(options);
        die_with_parent(&mut command);
        let log = std::fs::File::create(folder.join("drive.log"))?;
        let child = command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log).spawn();
        let child = child.map_err(|error| format!("{} cannot be started: {error}", binary.display()))?;
        let mut drive = DriveProcess { child, socket };
        let begun = Instant::now();
        while std::os::unix::net::UnixStream::connect(&drive.socket).is_err_and(|error| !is_other_kind(&error)) {
            if let Some(status) = drive.child.try_wait()? {
                let log = std::fs::read_to_string(folder.join("drive.log"))?;
                return Err(format!("the drive ended while starting, {status}\n{log}").into());
            }
            if begun.elapsed() > START_MAX {
                return Err("the drive did not start within a minute".into());
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(drive)
    }

    pub fn process(&self) -> u32 {
        self.child.id()
    }

    /// A partition of it, which is made with `capacity_bytes` if it is not there.
    pub fn attach(&self, name: &str, capacity_bytes: u64) -> Result<Arc<dyn Flash>, Failure> {
        let attaching = Attaching { create_bytes: Some(capacity_bytes), take_over: false };
        Ok(Arc::new(AttachedFlash::attach(&self.socket, name, attaching, &Env::system())?))
    }
}

/// A drive that listens refuses a stream: its socket keeps messages apart.
fn is_other_kind(error: &std::io::Error) -> bool {
    error.raw_os_error() == Some(libc::EPROTOTYPE)
}

impl Drop for DriveProcess {
    fn drop(&mut self) {
        // It may have ended already, which is the only error.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
