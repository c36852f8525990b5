//! A server behind the memcached protocol as a contender: its process, and one client thread for many connections, which serves those with
//! answers. `get`: each connection has as many GETs of one key in flight as the turn's depth. `multiget`: one GET of as many keys. A turn's
//! threads are its connections. At a rate, the connection that has been free the longest asks, and the client never sleeps. `udp`: see
//! [`datagrams`]. Only the server's CPU is counted.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::ops::Range;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use crate::budget::Budget;
use crate::client::{Connection, Line};
use crate::confine::Confined;
use crate::contend::Contender;
use crate::latencies::Latencies;
use crate::nbd_client::NbdClient;
use crate::pace::Pace;
use crate::process::Usage;
use crate::random::{Random, mix};
use crate::readiness::Readiness;
use crate::server::{Server, ServerOptions, free_address};
use crate::turn::{Setup, Turn};
use crate::workload::{Key, Operation, Operations, Population, Values, key};
use crate::{Failure, datagrams};

const LOAD_BATCH: usize = 64;
const LOAD_CONNECTIONS: usize = 8;
const REST: Duration = Duration::from_millis(500);
/// A server that answers nothing for so long has stopped.
const SILENCE_MAX: Duration = Duration::from_secs(60);

/// The keyspace that is a block device.
const EXPORT: &str = "disk0";

pub struct Sockets {
    server: Server,
    population: Population,
    /// An idle client of its block device.
    _visitor: Option<NbdClient>,
    // Dropped after the server.
    _confined: Option<Confined>,
}

impl Sockets {
    /// `tapetum serve` with a block device, and an idle client of that device.
    pub fn exporting(setup: &Setup, binary: PathBuf, options: &[&str]) -> Result<Sockets, Failure> {
        let (data, door) = (setup.data.join("data"), free_address()?.to_string());
        if !data.exists() {
            let size = setup.export_bytes.to_string();
            let made = Command::new(&binary)
                .args(["keyspace", "create", EXPORT, "--block-device", &size, "--data"])
                .arg(&data)
                .args(["--capacity", &setup.capacity_bytes.to_string(), "--memory", &setup.memory_bytes.to_string()])
                .output()?;
            if !made.status.success() {
                return Err(format!("no block device: {}", String::from_utf8_lossy(&made.stderr)).into());
            }
        }
        let sockets = Sockets::tapetum(setup, binary, &[options, &["--nbd", &door]].concat())?;
        Ok(Sockets { _visitor: Some(NbdClient::open(&door, EXPORT, false)?), ..sockets })
    }

    /// `tapetum serve`.
    pub fn tapetum(setup: &Setup, binary: PathBuf, options: &[&str]) -> Result<Sockets, Failure> {
        let server = ServerOptions::new(&binary, &setup.data.join("data"), options)?;
        Sockets::start(setup, ServerOptions { udp: true, ..server })
    }

    pub fn memcached(setup: &Setup, options: &[&str]) -> Result<Sockets, Failure> {
        let mut server = ServerOptions::new("memcached".as_ref(), &setup.data.join("data"), &[])?;
        server.memcached_options = options.iter().map(|option| (*option).to_owned()).collect();
        Sockets::start(setup, ServerOptions { udp: true, ..server })
    }

    /// memcached with extstore, which disables UDP. The budget limits it together with its page cache.
    pub fn extstore(setup: &Setup, budget: Budget) -> Result<Sockets, Failure> {
        let mut server = ServerOptions::new("memcached".as_ref(), &setup.data.join("data"), &[])?;
        server.memcached_options = budget.extstore_options(&setup.data);
        let sockets = Sockets::start(setup, server)?;
        let confined = Confined::new(sockets.server.process(), budget.extstore_confined_bytes())?;
        Ok(Sockets { _confined: Some(confined), ..sockets })
    }

    fn start(setup: &Setup, server: ServerOptions) -> Result<Sockets, Failure> {
        let values = Values::new(setup.value_bytes as usize, setup.random_percent);
        let population = Population::new(setup.items, values);
        Ok(Sockets { server: server.start()?, population, _visitor: None, _confined: None })
    }
}

impl Contender for Sockets {
    fn load(&mut self, indexes: Range<u64>) -> Result<(), Failure> {
        load(self.server.address(), &self.population, indexes)
    }

    fn settle(&mut self) -> Result<(), Failure> {
        settle(self.server.process())
    }

    fn turn(&self, turn: &Turn) -> Result<Latencies, Failure> {
        match turn.api.as_str() {
            "udp" => datagrams::run(self.server.address(), &self.population, turn),
            _ => run(self.server.address(), &self.population, turn),
        }
    }

    fn processes(&self) -> Vec<u32> {
        vec![self.server.process()]
    }

    fn close(self) -> Result<(), Failure> {
        self.server.terminate()
    }
}

/// Waits until the server is idle, which means that it has written nothing for a while.
pub fn settle(process: u32) -> Result<(), Failure> {
    let written = || -> Result<u64, Failure> { Ok(Usage::of(&[process])?.written_bytes) };
    let mut last = written()?;
    loop {
        std::thread::sleep(REST);
        let now = written()?;
        if now == last {
            return Ok(());
        }
        last = now;
    }
}

/// Stores these items.
pub fn load(address: SocketAddr, population: &Population, indexes: Range<u64>) -> Result<(), Failure> {
    let mut random = Random::new(mix(indexes.start));
    let mut value = Vec::new();
    let mut indexes = indexes.peekable();
    let mut lines: Vec<(Connection, usize)> = Vec::new();
    for _ in 0..LOAD_CONNECTIONS {
        lines.push((Connection::open(address)?, 0));
    }
    while indexes.peek().is_some() || lines.iter().any(|(_, stored)| *stored > 0) {
        for (connection, stored) in &mut lines {
            for _ in 0..std::mem::take(stored) {
                expect_stored(connection)?;
            }
            for index in indexes.by_ref().take(LOAD_BATCH) {
                population.values().fill(index, &mut random, &mut value);
                connection.queue_set(&key(index), 0, &value);
                *stored += 1;
            }
            connection.flush()?;
        }
    }
    Ok(())
}

/// Runs a turn over its own connections, on this thread.
pub fn run(address: SocketAddr, population: &Population, turn: &Turn) -> Result<Latencies, Failure> {
    if !["get", "multiget"].contains(&turn.api.as_str()) {
        return Err("a server is asked by get, multiget or udp".into());
    }
    if turn.rate.is_some() && turn.depth > 1 {
        return Err("at a rate there is one operation on its way in a connection".into());
    }
    let mut client = SocketClient {
        operations: Operations::new(population, turn.mix()?, turn.distribution()?, turn.seed),
        values: population.values(),
        together: turn.api == "multiget",
        latencies: Latencies::default(),
        value: Vec::new(),
    };
    let mut readiness = Readiness::new()?;
    let mut lines = Vec::new();
    for number in 0..turn.threads as usize {
        let connection = Connection::open(address)?;
        readiness.watch(&connection, number)?;
        lines.push(Asked { connection, reads: Vec::new(), answered: 0, found: 0, writes: 0, since: Instant::now() });
    }
    let mut free: VecDeque<usize> = (0..lines.len()).collect();
    let mut pace = Pace::new(turn.rate, 1, 0);
    let wait_ms = if turn.rate.is_some() { 0 } else { SILENCE_MAX.as_millis() as i32 };
    let begun = Instant::now();
    let mut heard = begun;
    loop {
        if begun.elapsed() < turn.time_max() && client.latencies.operations() < turn.operations_max() {
            while let Some(&number) = free.front()
                && let Some(since) = pace.take(Instant::now())
            {
                client.ask(&mut lines[number], turn.depth, since)?;
                free.pop_front();
            }
        } else if free.len() == lines.len() {
            return Ok(client.latencies);
        }
        for number in readiness.wait(wait_ms)? {
            heard = Instant::now();
            let line = &mut lines[number];
            line.connection.receive()?;
            client.take_answers(line)?;
            if line.is_answered() {
                free.push_back(number);
            }
        }
        if free.len() < lines.len() && heard.elapsed() > SILENCE_MAX {
            return Err(format!("the server has answered nothing for {} s", SILENCE_MAX.as_secs()).into());
        }
    }
}

/// A connection, and the requests on it: reads first, then writes.
struct Asked {
    connection: Connection,
    reads: Vec<u64>,
    /// Number of reads that are answered.
    answered: usize,
    /// Number of further reads that the partly received answer has found or skipped.
    found: usize,
    writes: u64,
    since: Instant,
}

impl Asked {
    fn is_answered(&self) -> bool {
        self.answered == self.reads.len() && self.writes == 0
    }
}

struct SocketClient<'a> {
    operations: Operations<'a>,
    values: &'a Values,
    /// The reads of a batch are one request.
    together: bool,
    latencies: Latencies,
    value: Vec<u8>,
}

impl SocketClient<'_> {
    fn ask(&mut self, line: &mut Asked, depth: u64, since: Instant) -> Result<(), Failure> {
        let mut writes = Vec::new();
        (line.answered, line.found) = (0, 0);
        line.reads.clear();
        for _ in 0..depth {
            match self.operations.draw() {
                Operation::Read(index) => line.reads.push(index),
                Operation::Update(index) | Operation::Insert(index) => writes.push(index),
                Operation::ReadModifyWrite(index) => {
                    line.reads.push(index);
                    writes.push(index);
                }
                Operation::Scan(..) => return Err("memcached's protocol has no scans".into()),
            }
        }
        let keys: Vec<Key> = line.reads.iter().map(|index| key(*index)).collect();
        if self.together && !keys.is_empty() {
            line.connection.queue_get(keys.iter().map(|key| &key[..]));
        } else {
            keys.iter().for_each(|key| line.connection.queue_get([&key[..]]));
        }
        for index in writes {
            self.values.fill(index, self.operations.random(), &mut self.value);
            line.connection.queue_set(&key(index), 0, &self.value);
            line.writes += 1;
        }
        line.since = since;
        Ok(line.connection.flush()?)
    }

    /// Takes the answers that have arrived.
    fn take_answers(&mut self, line: &mut Asked) -> Result<(), Failure> {
        while line.answered < line.reads.len() {
            if !self.take_values(line)? {
                return Ok(());
            }
        }
        while line.writes > 0 {
            match line.connection.take_line()? {
                Some(Line::Stored) => {}
                Some(other) => return Err(not_stored(&other)),
                None => return Ok(()),
            }
            line.writes -= 1;
            self.latencies.write(line.since.elapsed());
        }
        Ok(())
    }

    /// Takes the part of one request's answer that has arrived. Returns whether the answer is complete.
    fn take_values(&mut self, line: &mut Asked) -> Result<bool, Failure> {
        let asked = match self.together {
            true => &line.reads[line.answered..],
            false => &line.reads[line.answered..=line.answered],
        };
        let mut wrong = Ok(());
        let ended = line.connection.take_values(|value| {
            // Values come in the order of their keys; missing ones are left out.
            let passed = asked[line.found..].iter().take_while(|index| key(**index) != value.key).count();
            self.latencies.missing += passed as u64;
            line.found += passed;
            let index = asked.get(line.found).copied().unwrap_or(u64::MAX);
            line.found = (line.found + 1).min(asked.len());
            if wrong.is_ok() {
                wrong = self.values.check(index, value.bytes);
            }
        })?;
        wrong?;
        if ended {
            self.latencies.missing += (asked.len() - line.found) as u64;
            let took = line.since.elapsed();
            asked.iter().for_each(|_| self.latencies.read(took));
            line.answered += asked.len();
            line.found = 0;
        }
        Ok(ended)
    }
}

fn expect_stored(connection: &mut Connection) -> Result<(), Failure> {
    match connection.read_line()? {
        Line::Stored => Ok(()),
        other => Err(not_stored(&other)),
    }
}

fn not_stored(answer: &Line) -> Failure {
    format!("a set was answered with {answer:?}").into()
}
