//! The contenders: servers of NBD, each over a member of its own.

use std::fs;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use super::fio::FioTurn;
use super::member::Member;
use crate::Failure;
use crate::nbd::{DISK, said};
use tapetum_bench::process::cpu_us_with_ended_threads;
use tapetum_bench::server::{Server, ServerOptions, die_with_parent};

const START_MAX: Duration = Duration::from_secs(20);
/// The control groups in which the kernel limits page caches.
const MEMORY: &str = "/sys/fs/cgroup/memory";

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Contender {
    /// Tapetum with single blocks.
    Blocks,
    /// Tapetum with groups as large as a page of InnoDB.
    Groups4,
    Groups8,
    Groups16,
    Nbdkit,
    QemuNbd,
}

impl Contender {
    /// The contenders of the row `block`.
    pub const ALL: [Contender; 5] =
        [Contender::Blocks, Contender::Groups8, Contender::Groups16, Contender::Nbdkit, Contender::QemuNbd];

    pub fn label(self) -> &'static str {
        match self {
            Contender::Blocks => "tapetum",
            Contender::Groups4 => "tapetum groups of 4",
            Contender::Groups8 => "tapetum groups of 8",
            Contender::Groups16 => "tapetum groups of 16",
            Contender::Nbdkit => "nbdkit",
            Contender::QemuNbd => "qemu-nbd",
        }
    }

    pub fn is_ours(self) -> bool {
        !matches!(self, Contender::Nbdkit | Contender::QemuNbd)
    }

    fn group_blocks(self) -> &'static str {
        match self {
            Contender::Groups4 => "4",
            Contender::Groups8 => "8",
            Contender::Groups16 => "16",
            _ => "1",
        }
    }
}

enum Running {
    Ours(Server),
    Rival(Rival),
}

/// A rival's process, and the control group that limits its page cache.
pub struct Rival {
    child: Child,
    group: Option<PathBuf>,
}

/// A contender's server, and its member.
pub struct Exporter {
    contender: Contender,
    // Dropped before the member that it has open.
    running: Running,
    member: Member,
    socket: PathBuf,
}

impl Exporter {
    pub fn start(
        contender: Contender,
        member: Member,
        binary: &Path,
        folder: &Path,
        device_bytes: u64,
        memory_bytes: u64,
    ) -> Result<Exporter, Failure> {
        let name = contender.label().replace(' ', "-");
        let socket = folder.join(&name).with_extension("sock");
        let running = match contender.is_ours() {
            true => {
                let (device, memory) = (member.device().display().to_string(), memory_bytes.to_string());
                let store = ["--drive", &device, "--memory", &memory];
                let mut create = Command::new(binary);
                create.args(["keyspace", "create", DISK, "--block-device", &device_bytes.to_string()]);
                said(create.args(["--create", "--group-blocks", contender.group_blocks()]).args(store))?;
                let door = format!("unix:{}", socket.display());
                let words = ["--threads", "1", "--sync", "everysec", "--nbd", &door].into_iter().chain(store);
                Running::Ours(ServerOptions::new(binary, &folder.join(&name), &words.collect::<Vec<_>>())?.start()?)
            }
            false => Running::Rival(Rival::start(contender, &member, &socket, memory_bytes)?),
        };
        let begun = Instant::now();
        while UnixStream::connect(&socket).is_err() {
            if begun.elapsed() > START_MAX {
                return Err(format!("{} takes no client within {START_MAX:?}", contender.label()).into());
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(Exporter { contender, running, member, socket })
    }

    pub fn contender(&self) -> Contender {
        self.contender
    }

    pub fn member(&self) -> &Member {
        &self.member
    }

    pub fn uri(&self) -> String {
        let export = if self.contender.is_ours() { DISK } else { "" };
        format!("nbd+unix:///{export}?socket={}", self.socket.display())
    }

    /// CPU time of the server so far.
    pub fn cpu_us(&self) -> Result<u64, Failure> {
        match &self.running {
            Running::Ours(server) => cpu_us_with_ended_threads(server.process()),
            Running::Rival(rival) => cpu_us_with_ended_threads(rival.child.id()),
        }
    }

    /// Runs a turn, and adds the server's resources and the bytes written to its member.
    pub fn timed(&self, turn: impl FnOnce(&str) -> Result<FioTurn, Failure>) -> Result<FioTurn, Failure> {
        let before = (self.cpu_us()?, self.member.written_bytes()?);
        let turn = turn(&self.uri())?;
        let server_cpu_us = (self.cpu_us()? - before.0) as f64;
        let member_written_bytes = (self.member.written_bytes()? - before.1) as f64;
        Ok(FioTurn { server_cpu_us, member_written_bytes, ..turn })
    }

    pub fn stop(self) -> Result<(), Failure> {
        match self.running {
            Running::Ours(server) => server.terminate(),
            Running::Rival(_) => Ok(()),
        }
    }
}

impl Rival {
    /// Checks that the rivals can run here.
    pub fn check() -> Result<(), Failure> {
        for (program, package) in [("nbdkit", "nbdkit"), ("qemu-nbd", "qemu-utils")] {
            if Command::new(program).arg("--version").output().is_err() {
                return Err(format!("{program} is missing: apt-get install {package}").into());
            }
        }
        match Path::new(MEMORY).join("memory.limit_in_bytes").exists() {
            true => Ok(()),
            false => Err(format!("the kernel has no {MEMORY}: it takes control groups of version 1").into()),
        }
    }

    fn start(contender: Contender, member: &Member, socket: &Path, memory_bytes: u64) -> Result<Rival, Failure> {
        let mut command;
        let mut group = None;
        if contender == Contender::Nbdkit {
            command = Command::new("nbdkit");
            command.arg("--foreground").arg("-U").arg(socket).arg("file").arg(member.device());
            let made = Path::new(MEMORY).join(format!("tapetum-block-{}", std::process::id()));
            fs::create_dir_all(&made)?;
            fs::write(made.join("memory.limit_in_bytes"), memory_bytes.to_string())?;
            group = Some(made);
        } else {
            command = Command::new("qemu-nbd");
            command.args(["-f", "raw", "--cache=none", "--aio=io_uring", "-e", "8", "-t", "-k"]).arg(socket);
            command.arg(member.device());
        }
        die_with_parent(&mut command);
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).spawn();
        let child = child.map_err(|error| format!("{command:?}: {error}; apt-get install nbdkit qemu-utils"))?;
        let rival = Rival { child, group };
        if let Some(group) = &rival.group {
            // From now on the group is charged for the rival's page cache.
            fs::write(group.join("cgroup.procs"), rival.child.id().to_string())?;
        }
        Ok(rival)
    }
}

impl Drop for Rival {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
        if let Some(group) = &self.group {
            // Its pages may keep the group alive a moment longer; an empty group costs nothing.
            let _ = fs::remove_dir(group);
        }
    }
}
