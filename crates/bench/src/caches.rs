//! Two caches within the same DRAM and flash: `tapetum serve --cache`, and memcached with extstore, set as it keeps most. Each is
//! a server process with one worker thread, which can be killed and started again on its data.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::budget::Budget;
use crate::client::Connection;
use crate::confine::Confined;
use crate::process::{self, Usage};
use crate::server::{Server, ServerOptions};
use crate::turn::{Length, Report, Turn};
use crate::workload::{Key, Population};
use crate::{Failure, sockets};

/// If items of a KiB are stored faster, it still evicts some.
pub const LOAD_BYTES_PER_SECOND: u64 = 12 << 20;

pub struct Cache {
    pub name: &'static str,
    options: ServerOptions,
    confined_bytes: Option<u64>,
    running: Option<Running>,
}

struct Running {
    server: Server,
    // Goes when the server has gone.
    _confined: Option<Confined>,
}

impl Cache {
    /// Its data lie in this folder.
    pub fn tapetum(binary: &Path, folder: &Path, budget: Budget) -> Result<Cache, Failure> {
        let [memory, flash] = [budget.memory_bytes, budget.flash_bytes].map(|bytes| bytes.to_string());
        let options = ["--cache", "--threads", "1", "--memory", &memory, "--capacity", &flash];
        let options = ServerOptions::new(binary, &folder.join("tapetum"), &options)?;
        Ok(Cache { name: "tapetum", options, confined_bytes: None, running: None })
    }

    /// The same of memcached, which must be installed.
    pub fn extstore(folder: &Path, budget: Budget) -> Result<Cache, Failure> {
        expect_memcached()?;
        let data = folder.join("extstore");
        std::fs::create_dir_all(&data)?;
        let mut options = ServerOptions::new("memcached".as_ref(), &data, &[])?;
        options.memcached_options = budget.extstore_options(&data);
        let confined_bytes = Some(budget.extstore_confined_bytes());
        Ok(Cache { name: "extstore", options, confined_bytes, running: None })
    }

    /// Starts it and comes back at once: it may still be recovering.
    pub fn spawn(&mut self) -> Result<(), Failure> {
        assert!(self.running.is_none(), "it is started once");
        let server = self.options.spawn()?;
        let confined = self.confined_bytes.map(|bytes| Confined::new(server.process(), bytes)).transpose()?;
        self.running = Some(Running { server, _confined: confined });
        Ok(())
    }

    pub fn start(&mut self) -> Result<(), Failure> {
        self.spawn()?;
        self.running.as_mut().expect("just started").server.wait_until_ready()
    }

    /// SIGKILL.
    pub fn kill(&mut self) -> Result<(), Failure> {
        self.running.take().expect("it runs").server.kill()
    }

    /// Nothing more of it happens until it is resumed.
    pub fn pause(&self) {
        self.signal(libc::SIGSTOP);
    }

    pub fn resume(&self) {
        self.signal(libc::SIGCONT);
    }

    fn signal(&self, signal: libc::c_int) {
        // SAFETY: takes two integers. The process is our own child and not yet waited for.
        unsafe { libc::kill(self.process() as libc::pid_t, signal) };
    }

    /// Waits until the writes that the stored items cause have ended.
    pub fn settle(&self) -> Result<(), Failure> {
        sockets::settle(self.process())
    }

    pub fn address(&self) -> SocketAddr {
        self.options.address
    }

    fn process(&self) -> u32 {
        self.running.as_ref().expect("it runs").server.process()
    }

    pub fn resident_bytes(&self) -> Result<u64, Failure> {
        Ok(process::read(self.process())?.resident_bytes)
    }

    pub fn usage(&self) -> Result<Usage, Failure> {
        Usage::of(&[self.process()])
    }

    pub fn stats(&self, kind: &str) -> Result<BTreeMap<String, u64>, Failure> {
        let stats = Connection::open(self.address())?.stats(kind)?;
        Ok(stats.into_iter().filter_map(|(name, text)| Some((name, text.parse().ok()?))).collect())
    }

    /// The share of all items that are there, of so many asked for uniformly.
    pub fn kept(&self, population: &Population, asked: u64) -> Result<f64, Failure> {
        let turn = Turn::uniform("c", "get", 8, 16, Length::Operations(asked), 5);
        let latencies = sockets::run(self.address(), population, &turn)?;
        Ok(1.0 - latencies.missing as f64 / latencies.operations() as f64)
    }

    /// Runs a turn over sockets, resumed for as long as it takes.
    pub fn turn(&self, population: &Population, turn: &Turn) -> Result<Report, Failure> {
        self.resume();
        let before = self.usage()?;
        let begun = Instant::now();
        let latencies = sockets::run(self.address(), population, turn)?;
        let seconds = begun.elapsed().as_secs_f64();
        let usage = self.usage()?.since(&before);
        self.pause();
        Ok(Report { latencies, seconds, usage })
    }
}

/// Stores the items in each of the caches, so many bytes a second at most: extstore drops what comes faster than it makes room.
/// Tells after every tenth of a second how many are stored.
pub fn load(
    caches: &[Cache],
    population: &Population,
    bytes_per_second: u64,
    mut told: impl FnMut(u64) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let item_bytes = (size_of::<Key>() + population.values().bytes()) as u64;
    let rate = (bytes_per_second / item_bytes).max(10);
    let begun = Instant::now();
    let mut stored = 0;
    while stored < population.count() {
        let next = (stored + rate / 10).min(population.count());
        for cache in caches {
            sockets::load(cache.address(), population, stored..next)?;
        }
        stored = next;
        told(stored)?;
        let due = Duration::from_secs_f64(stored as f64 / rate as f64);
        std::thread::sleep(due.saturating_sub(begun.elapsed()));
    }
    Ok(())
}

/// The slab classes in which extstore keeps the DRAM part of items on flash, from its `stats slabs`: a whole item does not fit into them.
/// The bytes of a chunk, and how many chunks are used.
pub fn header_chunks(slabs: &BTreeMap<String, u64>, value_bytes: u64) -> impl Iterator<Item = (u64, u64)> {
    let classes = slabs.iter().filter_map(|(name, bytes)| Some((name.strip_suffix(":chunk_size")?, *bytes)));
    classes.filter(move |(_, bytes)| *bytes < value_bytes).map(move |(class, bytes)| {
        let used = slabs.get(&format!("{class}:used_chunks")).copied().unwrap_or(0);
        (bytes, used)
    })
}

fn expect_memcached() -> Result<(), Failure> {
    match Command::new("memcached").arg("-V").stdout(Stdio::null()).status() {
        Ok(_) => Ok(()),
        Err(error) if error.kind() == ErrorKind::NotFound => {
            Err("memcached is not installed: `make setup-bench` installs it, or `apt-get install memcached`".into())
        }
        Err(error) => Err(format!("memcached cannot be started: {error}").into()),
    }
}
