//! The drive as a process of its own: either side is killed, or both, and what was acknowledged is there.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use super::{CAPACITY_MAX_BYTES, Fault};
use crate::Failure;
use tapetum_bench::random::Random;
use tapetum_bench::server::{Server, die_with_parent};

/// Its log says this when stores find it.
const READY: &str = "stores find the drive at";
const FIND_MAX: Duration = Duration::from_secs(60);

pub struct DriveProcess {
    binary: PathBuf,
    folder: PathBuf,
    child: Child,
    pub kills: u64,
}

impl DriveProcess {
    /// Starts one with its file and its socket in `folder`.
    pub fn start(binary: &Path, folder: &Path) -> Result<DriveProcess, Failure> {
        fs::create_dir_all(folder)?;
        let child = spawn(binary, folder)?;
        Ok(DriveProcess { binary: binary.into(), folder: folder.into(), child, kills: 0 })
    }

    pub fn socket(&self) -> PathBuf {
        self.folder.join("drive.sock")
    }

    fn kill(&mut self) -> Result<(), Failure> {
        if let Some(status) = self.child.try_wait()? {
            return Err(format!("the drive had ended by itself, {status}: see {}", log(&self.folder).display()).into());
        }
        self.child.kill()?;
        self.child.wait()?;
        self.kills += 1;
        Ok(())
    }

    fn start_again(&mut self) -> Result<(), Failure> {
        self.child = spawn(&self.binary, &self.folder)?;
        Ok(())
    }
}

impl Drop for DriveProcess {
    fn drop(&mut self) {
        // It may have ended already, which is the only error.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn log(folder: &Path) -> PathBuf {
    folder.join("drive.log")
}

/// Returns when it can be found.
fn spawn(binary: &Path, folder: &Path) -> Result<Child, Failure> {
    let file = File::create(log(folder))?;
    let mut command = Command::new(binary);
    command.arg("drive").arg("--file").arg(folder.join("flash")).arg("--socket").arg(folder.join("drive.sock"));
    command.args(["--capacity", &(CAPACITY_MAX_BYTES + CAPACITY_MAX_BYTES / 4).to_string()]);
    die_with_parent(&mut command);
    let mut child = command.stdin(Stdio::null()).stdout(file.try_clone()?).stderr(file).spawn()?;
    let begun = Instant::now();
    loop {
        let said = fs::read_to_string(log(folder))?;
        if said.contains(READY) {
            return Ok(child);
        }
        if child.try_wait()?.is_some() || begun.elapsed() > FIND_MAX {
            return Err(format!("the drive is not to be found:\n{said}").into());
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Kills the server, the drive, or both in either order.
pub struct KillEitherSide(pub DriveProcess);

impl KillEitherSide {
    fn strike_with(
        &mut self,
        server: Server,
        random: &mut Random,
        kill: impl Fn(Server) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let KillEitherSide(drive) = self;
        match random.below(4) {
            0 => return kill(server),
            1 => {
                kill(server)?;
                drive.kill()?;
            }
            _ => {
                drive.kill()?;
                std::thread::sleep(Duration::from_millis(random.below(2) * random.below(300)));
                kill(server)?;
            }
        }
        drive.start_again()
    }
}

impl Fault for KillEitherSide {
    /// A server that finds its drive gone goes on answering until it is killed.
    fn strike(&mut self, server: Server, random: &mut Random) -> Result<(), Failure> {
        self.strike_with(server, random, Server::kill)
    }

    /// One that finds it gone while it starts ends by itself, and says why.
    fn strike_starting(&mut self, server: Server, random: &mut Random) -> Result<(), Failure> {
        self.strike_with(server, random, Server::kill_if_running)
    }

    fn may_refuse(&self) -> bool {
        true
    }
}
