//! kill -9 under load: clients write, the server is killed at a random moment (sometimes once more while it recovers) and restarted on the
//! same data, and every acknowledged write must be there. A seed decides values, moments and kills; the interleaving is the machine's, so a
//! seed usually reproduces a failure, but not always. If the store has an ordered keyspace beside its hashed one, every other client writes
//! there.
//!
//! This tests the process: the kernel keeps the writes that it has. [`Run`] takes any [`Fault`]; `power_cut` has one that loses more, and
//! `test-kill-drive` puts the drive into a process of its own, so that either side is killed.

mod client;
mod drive_process;
mod model;

use std::ffi::OsString;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use self::client::{Client, Shared};
use self::drive_process::{DriveProcess, KillEitherSide};
use crate::arguments::Arguments;
use crate::{Failure, workspace};
use tapetum_bench::random::Random;
use tapetum_bench::server::{Server, ServerOptions, free_address};

/// Small enough that some values lie out of line, and that the collector has work.
const CAPACITY_BYTES: u64 = 128 << 20;
/// The capacity that such a store may grow to, and the size of a step.
pub const CAPACITY_MAX_BYTES: u64 = 4 * CAPACITY_BYTES;
const GROWTH_BYTES: u64 = CAPACITY_BYTES / 4;

const MEMORY: &str = "128MiB";
/// The keyspace of every other client.
const ORDERED: &str = "sorted";

/// The options of the tests that strike a server.
pub struct Plan {
    pub cycles: u64,
    pub seed: u64,
    pub clients: usize,
    pub binary: PathBuf,
}

impl Plan {
    pub fn parse(arguments: &Arguments) -> Result<Plan, Failure> {
        let cycles = arguments.number("cycles", 30)?;
        let seed = arguments.number("seed", u64::from(std::process::id()))?;
        let clients = arguments.number("connections", 8)? as usize;
        let binary = arguments.tested_server()?;
        Ok(Plan { cycles, seed, clients, binary })
    }
}

pub fn run(arguments: &Arguments) -> Result<(), Failure> {
    let plan = Plan::parse(arguments)?;
    workspace::keeping("kill", |scratch| {
        let mut run = Run::new(&plan, &scratch.join("data"), Kill)?.with_ordered()?;
        run.cycles(plan.cycles)?;
        println!("test-kill: {}", run.summary());
        Ok(())
    })
}

/// As [`run`], with the drive in a process of its own.
pub fn run_either_side(arguments: &Arguments) -> Result<(), Failure> {
    let plan = &Plan::parse(arguments)?;
    workspace::keeping("kill", |scratch| {
        let drive = DriveProcess::start(&plan.binary, &scratch.join("drive"))?;
        let socket = drive.socket();
        let fault = KillEitherSide(drive);
        let mut run = Run::new(plan, &scratch.join("data"), fault)?.on_device(&socket).with_ordered()?;
        run.cycles(plan.cycles)?;
        println!("test-kill-drive: {}; {} kills of the drive", run.summary(), run.fault().0.kills);
        Ok(())
    })
}

/// As [`run`], over three members with a parity, of which one is taken away between two lives, and is back at the end.
pub fn run_members(arguments: &Arguments) -> Result<(), Failure> {
    let plan = Plan::parse(arguments)?;
    workspace::keeping("kill", |scratch| {
        std::fs::create_dir(scratch.join("members"))?;
        let members = ["a", "b", "c"].map(|name| scratch.join("members").join(name));
        let mut run = Run::new(&plan, &scratch.join("data"), Kill)?.on_members(&members)?;
        let whole = plan.cycles / 2;
        run.cycles(whole)?;
        let gone = &members[run.random.below(3) as usize];
        std::fs::rename(gone, scratch.join("gone"))?;
        println!("  {} is taken away", gone.display());
        run.cycles(plan.cycles - whole)?;
        std::fs::rename(scratch.join("gone"), gone)?;
        println!("  {} is back", gone.display());
        run.cycles(1)?;
        println!("test-kill-members: {}", run.summary());
        Ok(())
    })
}

/// Gives the store this capacity while it serves. If it has that already, it answers at once.
fn grow(shared: &Shared, capacity_bytes: u64) -> Result<(), Failure> {
    let ask = || -> std::io::Result<String> {
        let mut stream = TcpStream::connect(shared.addresses[0])?;
        stream.write_all(format!("resize capacity {capacity_bytes}\r\n").as_bytes())?;
        let mut answer = String::new();
        BufReader::new(stream).read_line(&mut answer)?;
        Ok(answer)
    };
    match ask() {
        Ok(answer) if answer.starts_with("OK") => Ok(()),
        // The fault struck first.
        _ if shared.killing.load(Ordering::SeqCst) => Ok(()),
        other => Err(format!("a resize to {capacity_bytes} bytes was answered {other:?}").into()),
    }
}

/// The way in which a server ends.
pub trait Fault {
    fn strike(&mut self, server: Server, random: &mut Random) -> Result<(), Failure>;

    /// As [`Fault::strike`], of one that may not serve yet.
    fn strike_starting(&mut self, server: Server, random: &mut Random) -> Result<(), Failure> {
        self.strike(server, random)
    }

    /// Whether a server that is being struck may answer that it cannot do it.
    fn may_refuse(&self) -> bool {
        false
    }
}

pub struct Kill;

impl Fault for Kill {
    fn strike(&mut self, server: Server, _: &mut Random) -> Result<(), Failure> {
        server.kill()
    }
}

/// A server under load that a fault strikes again and again.
pub struct Run<F> {
    options: ServerOptions,
    /// The options that name the place of the data.
    place: Vec<OsString>,
    shared: Shared,
    clients: Vec<Client>,
    random: Random,
    seed: u64,
    fault: F,
    /// `None`: it does not grow.
    capacity_bytes: Option<u64>,
    cycles: u64,
    strikes: u64,
    in_doubt: usize,
}

impl<F: Fault> Run<F> {
    /// A new store in `data`.
    pub fn new(plan: &Plan, data: &Path, fault: F) -> Result<Run<F>, Failure> {
        let Plan { seed, clients, .. } = *plan;
        let options = ["--capacity", &CAPACITY_BYTES.to_string(), "--memory", MEMORY, "--sync", "always"];
        let options = ServerOptions::new(&plan.binary, data, &options)?;
        Ok(Run {
            shared: Shared::new([options.address; 2], clients, fault.may_refuse()),
            clients: (0..clients).map(|index| Client::new(index, seed)).collect(),
            random: Random::new(seed),
            seed,
            options,
            place: vec!["--data".into(), data.into()],
            fault,
            capacity_bytes: Some(CAPACITY_BYTES),
            cycles: 0,
            strikes: 0,
            in_doubt: 0,
        })
    }

    /// Puts the store on this device, or on the drive at this socket, of which it takes a part.
    pub fn on_device(mut self, device: &Path) -> Run<F> {
        let place = ["--drive".into(), device.display().to_string()];
        self.place = place.iter().map(OsString::from).collect();
        self.options.options.extend(place);
        self
    }

    /// Puts the store on these files, of which any one may be lost, and an ordered keyspace beside the hashed one.
    fn on_members(mut self, members: &[PathBuf; 3]) -> Result<Run<F>, Failure> {
        let names = members.iter().flat_map(|member| ["--drive".into(), member.clone().into_os_string()]);
        self.place = names.collect();
        let words = self.place.iter().map(|word| word.to_string_lossy().into_owned());
        self.options.options.extend(words.chain(["--redundancy", "raid5"].map(str::to_owned)));
        // The set keeps its size, of which a part is redundant.
        self.capacity_bytes = None;
        let given = self.options.options.iter_mut().filter(|word| **word == CAPACITY_BYTES.to_string());
        given.for_each(|word| *word = CAPACITY_MAX_BYTES.to_string());
        self.options.start()?.terminate()?;
        self.with_ordered()
    }

    /// Adds an ordered keyspace beside the hashed one. Every other client has its keys there.
    pub fn with_ordered(mut self) -> Result<Run<F>, Failure> {
        let capacity = CAPACITY_BYTES.to_string();
        let make = ["keyspace", "create", ORDERED, "--index", "ordered", "--capacity", &capacity, "--memory", MEMORY];
        let output = Command::new(&self.options.binary).args(make).args(&self.place).output()?;
        if !output.status.success() {
            return Err(format!("no ordered keyspace: {}", String::from_utf8_lossy(&output.stderr)).into());
        }
        let other = free_address()?;
        self.shared.addresses[1] = other;
        let listens = ["--memcached", &other.to_string(), "--keyspace", "default", "--keyspace", ORDERED];
        self.options.options.extend(listens.map(str::to_owned));
        Ok(self)
    }

    /// Makes the server write its log to this path, instead of beside its data.
    pub fn logging_to(mut self, log: &Path) -> Run<F> {
        self.options.log = log.to_owned();
        self
    }

    pub fn summary(&self) -> String {
        let Run { cycles, strikes, in_doubt, seed, .. } = self;
        let acknowledged = self.shared.acknowledged.load(Ordering::Relaxed);
        format!(
            "{cycles} cycles, {strikes} strikes, {acknowledged} writes acknowledged, none lost; {in_doubt} in doubt; seed {seed}"
        )
    }

    pub fn fault(&self) -> &F {
        &self.fault
    }

    /// Runs `cycles` lives: load, fault, restart, and every acknowledged write must be there.
    pub fn cycles(&mut self, cycles: u64) -> Result<(), Failure> {
        self.live(cycles).map_err(|failure| {
            let Run { seed, strikes, .. } = self;
            format!("{failure}\nseed {seed}, strike {strikes}").into()
        })
    }

    fn live(&mut self, cycles: u64) -> Result<(), Failure> {
        let mut server = self.options.start()?;
        for cycle in 1..=cycles {
            let before = self.shared.acknowledged.load(Ordering::Relaxed);
            let load_ms = self.load_and_strike(server)?;
            while self.random.one_in(3) {
                self.strike_while_starting()?;
            }
            let begun = Instant::now();
            server = self.options.start()?;
            let ready_ms = begun.elapsed().as_millis();
            self.verify()?;
            self.cycles += 1;
            let acknowledged = self.shared.acknowledged.load(Ordering::Relaxed) - before;
            println!("  cycle {cycle}: {acknowledged} acknowledged in {load_ms} ms, ready again after {ready_ms} ms");
        }
        // At the end a clean stop, the offline check, and the data once more.
        server.terminate()?;
        self.check_offline()?;
        let server = self.options.start()?;
        self.verify()?;
        server.terminate()
    }

    fn load_and_strike(&mut self, server: Server) -> Result<u64, Failure> {
        // Short and long runs, so that faults strike the first writes as well as flushes and collections.
        let longest_ms = 20 << self.random.below(8);
        let load_ms = 10 + self.random.below(longest_ms);
        if let Some(bytes) = &mut self.capacity_bytes
            && *bytes < CAPACITY_MAX_BYTES
            && self.random.one_in(3)
        {
            *bytes += GROWTH_BYTES;
        }
        let Run { shared, clients, fault, random, capacity_bytes, .. } = self;
        let (shared, capacity_bytes) = (&*shared, *capacity_bytes);
        shared.killing.store(false, Ordering::SeqCst);
        std::thread::scope(|scope| -> Result<(), Failure> {
            let threads: Vec<_> = clients.iter_mut().map(|client| scope.spawn(move || client.load(shared))).collect();
            let grower = scope.spawn(move || capacity_bytes.map_or(Ok(()), |bytes| grow(shared, bytes)));
            std::thread::sleep(Duration::from_millis(load_ms));
            shared.killing.store(true, Ordering::SeqCst);
            // The clients end only with the server, so strike it before reading their results.
            let struck = fault.strike(server, random);
            let ended: Result<(), Failure> =
                threads.into_iter().chain([grower]).try_for_each(|thread| thread.join().expect("a client panicked"));
            ended.and(struck)
        })?;
        self.strikes += 1;
        self.in_doubt += self.clients.iter().map(Client::in_doubt).sum::<usize>();
        Ok(load_ms)
    }

    fn strike_while_starting(&mut self) -> Result<(), Failure> {
        let server = self.options.spawn()?;
        std::thread::sleep(Duration::from_millis(self.random.below(100)));
        self.fault.strike_starting(server, &mut self.random)?;
        self.strikes += 1;
        Ok(())
    }

    fn verify(&mut self) -> Result<(), Failure> {
        let shared = &self.shared;
        std::thread::scope(|scope| {
            let threads: Vec<_> =
                self.clients.iter_mut().map(|client| scope.spawn(move || client.verify(shared))).collect();
            threads.into_iter().try_for_each(|thread| thread.join().expect("a client panicked"))
        })
    }

    fn check_offline(&self) -> Result<(), Failure> {
        let output = Command::new(&self.options.binary).arg("check").args(&self.place).output()?;
        if !output.status.success() {
            let text = String::from_utf8_lossy(&output.stderr).into_owned() + &String::from_utf8_lossy(&output.stdout);
            return Err(format!("tapetum check is not content: {text}").into());
        }
        Ok(())
    }
}
