//! A server process for tests and measurements: started on a free loopback port over a data directory, stopped by signal, killed when
//! dropped. Its output goes to a file beside the data directory.

use std::fs::File;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::ops::Range;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use crate::Failure;

/// How to start a server. The same options restart it on the same data and the same port.
#[derive(Clone)]
pub struct ServerOptions {
    pub binary: PathBuf,
    pub data: PathBuf,
    /// The file for its output, beside the data directory.
    pub log: PathBuf,
    pub address: SocketAddr,
    /// Options of `tapetum serve`, passed on unchanged.
    pub options: Vec<String>,
    /// Options of memcached, the reference.
    pub memcached_options: Vec<String>,
    /// It accepts datagrams at the same address.
    pub udp: bool,
}

impl ServerOptions {
    pub fn new(binary: &Path, data: &Path, options: &[&str]) -> Result<ServerOptions, Failure> {
        Ok(ServerOptions {
            binary: binary.to_owned(),
            data: data.to_owned(),
            log: data.with_extension("log"),
            address: free_address()?,
            options: options.iter().map(|option| (*option).to_owned()).collect(),
            memcached_options: Vec::new(),
            udp: false,
        })
    }

    /// memcached keeps nothing.
    fn is_memcached(&self) -> bool {
        self.binary.file_name().is_some_and(|name| name == "memcached")
    }

    fn command(&self) -> Command {
        let mut command = Command::new(&self.binary);
        if self.is_memcached() {
            let (host, port) = (self.address.ip().to_string(), self.address.port().to_string());
            command
                .args(["-u", "root", "-l", &host, "-p", &port, "-m", "4096", "-I", "32m"])
                .args(&self.memcached_options);
            if self.udp {
                command.args(["-U", &port]);
            }
        } else {
            command.arg("serve");
            if !self.options.iter().any(|option| option == "--drive") {
                command.arg("--data").arg(&self.data);
            }
            command.args(["--memcached", &self.address.to_string()]).args(&self.options);
            if self.udp {
                command.args(["--udp", &self.address.to_string()]);
            }
        }
        command
    }

    /// Starts the process and returns at once: it may still be recovering.
    pub fn spawn(&self) -> Result<Server, Failure> {
        let log = File::options().create(true).append(true).open(&self.log)?;
        let mut command = self.command();
        die_with_parent(&mut command);
        let child = command
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()
            .map_err(|error| format!("{} cannot be started: {error}", self.binary.display()))?;
        Ok(Server { child, options: self.clone() })
    }

    pub fn start(&self) -> Result<Server, Failure> {
        let mut server = self.spawn()?;
        server.wait_until_ready()?;
        Ok(server)
    }
}

pub struct Server {
    child: Child,
    options: ServerOptions,
}

impl Server {
    pub fn address(&self) -> SocketAddr {
        self.options.address
    }

    pub fn process(&self) -> u32 {
        self.child.id()
    }

    /// Waits until it answers `version`: recovery may take a while.
    pub fn wait_until_ready(&mut self) -> Result<(), Failure> {
        let begun = Instant::now();
        while begun.elapsed() < Duration::from_secs(120) {
            self.expect_alive()?;
            if answers(self.address()) {
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        Err(format!("the server did not answer within 120 s\n{}", self.log_tail()).into())
    }

    /// An error with the end of its log, if it has ended.
    pub fn expect_alive(&mut self) -> Result<(), Failure> {
        match self.child.try_wait()? {
            None => Ok(()),
            Some(status) => Err(format!("the server ended while starting, {status}\n{}", self.log_tail()).into()),
        }
    }

    /// Sends SIGTERM, like a user, and waits for the end.
    pub fn terminate(mut self) -> Result<(), Failure> {
        // SAFETY: kill takes two integers. The process is our child and was not waited for, so its id is still valid.
        let sent = unsafe { libc::kill(self.child.id() as libc::pid_t, libc::SIGTERM) };
        assert_eq!(sent, 0, "our own child takes signals");
        let status = self.wait(Duration::from_secs(60))?;
        if !status.success() && !self.options.is_memcached() {
            return Err(format!("the server ended with {status} on SIGTERM\n{}", self.log_tail()).into());
        }
        Ok(())
    }

    /// Sends SIGKILL, and waits for the end.
    pub fn kill(self) -> Result<(), Failure> {
        self.kill_and_then(|| ())
    }

    /// As [`Server::kill`], of one that may have ended by itself, with an error that it told.
    pub fn kill_if_running(mut self) -> Result<(), Failure> {
        match self.child.try_wait()? {
            Some(status) if status.code().is_none() => {
                Err(format!("the server had ended by itself, {status}\n{}", self.log_tail()).into())
            }
            Some(_) => Ok(()),
            None => self.kill(),
        }
    }

    /// Sends SIGKILL, calls `let_go` to end calls in which the process waits uninterruptibly, and waits for the end.
    pub fn kill_and_then(mut self, let_go: impl FnOnce()) -> Result<(), Failure> {
        let ended = self.child.try_wait()?;
        if ended.is_none() {
            self.child.kill()?;
        }
        let_go();
        match ended {
            Some(status) => Err(format!("the server had ended by itself, {status}\n{}", self.log_tail()).into()),
            None => Ok(self.child.wait().map(drop)?),
        }
    }

    pub fn log_tail(&self) -> String {
        let text = std::fs::read(&self.options.log).unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        let lines: Vec<&str> = text.lines().collect();
        let tail = lines[lines.len().saturating_sub(15)..].join("\n");
        format!("the end of {}:\n{tail}", &self.options.log.display())
    }

    fn wait(&mut self, limit: Duration) -> Result<ExitStatus, Failure> {
        let begun = Instant::now();
        while begun.elapsed() < limit {
            if let Some(status) = self.child.try_wait()? {
                return Ok(status);
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        Err(format!("the server did not stop within {limit:?}\n{}", self.log_tail()).into())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may have ended already, which is the only error.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Makes the child die with the thread that starts it, so that none stays behind when a run is killed.
pub fn die_with_parent(command: &mut Command) {
    let ask = || {
        // SAFETY: the call takes two integers, and only changes which signal the parent's end sends.
        match unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) } {
            0 => Ok(()),
            _ => Err(std::io::Error::last_os_error()),
        }
    };
    // SAFETY: between fork and exec there is only one system call, which takes two integers; nothing is allocated, and no lock taken.
    unsafe { command.pre_exec(ask) };
}

fn answers(address: SocketAddr) -> bool {
    let ask = || -> std::io::Result<bool> {
        let mut stream = TcpStream::connect_timeout(&address, Duration::from_secs(1))?;
        stream.set_read_timeout(Some(Duration::from_secs(10)))?;
        stream.write_all(b"version\r\n")?;
        let mut reply = [0; 8];
        stream.read_exact(&mut reply)?;
        Ok(&reply == b"VERSION ")
    };
    ask().unwrap_or(false)
}

/// Ports that the system gives to no client by itself: one of those could take the port of a server that is killed and started again.
const PORTS: Range<u16> = 12_000..32_000;

/// An address that is free now. If it is taken before the server starts, the server reports that and the run fails.
pub fn free_address() -> Result<SocketAddr, Failure> {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    // Processes that run beside each other begin at different ports.
    let from = std::process::id().wrapping_mul(97);
    for _ in PORTS {
        let step = from.wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed));
        let port = PORTS.start + (step % u32::from(PORTS.end - PORTS.start)) as u16;
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        if TcpListener::bind(address).is_ok() {
            return Ok(address);
        }
    }
    Err(format!("no port of {} to {} is free", PORTS.start, PORTS.end).into())
}
