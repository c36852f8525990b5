//! The store as an embedded contender. `session`: each thread keeps a number of operations in flight. `blocking`: each thread makes one
//! blocking call after the other. `batches`: the same, with each write in its own batch. `query`: filtered scans, one after the other; with
//! `query-by-record` rows cross one by one, with `query-host` the host filters; `session-beside-query`: sessions beside such scans.
//! `fields` and `fields-host`: each thread gets two fields of one value after the other, at the drive or on the host. `graph` and
//! `graph-host`: betweenness of the edges that the items are.

#![allow(clippy::disallowed_methods)] // It measures real time with real threads.

use std::ops::Range;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tapetum::Expiry;

use tapetum::{KeyspaceHandle, KeyspaceKind, QuerySide, StoreOptions, Sync, Write};
use tapetum_bench::Failure;
use tapetum_bench::blocking::{self, Client};
use tapetum_bench::contend::{Contender, contend};
use tapetum_bench::drive_process::{DriveProcess, TABLE_BYTES};
use tapetum_bench::embedded::{
    Answer, DriveShape, Pipe, create_as, create_over, keep_full, open_as, open_over, ordered_options, settle, usable,
};
use tapetum_bench::latencies::Latencies;
use tapetum_bench::pace::{Pace, wake_promptly};
use tapetum_bench::random::{Random, mix};
use tapetum_bench::turn::{Length, Setup, Turn};
use tapetum_bench::workload::{Key, Operation, Operations, Population, Values, key};
use tapetum_bench::{fields, queries};
use tapetum_drive::Flash;

/// For shorter waits until the next operation is due, sleeping is not worth it.
const SPIN_MAX: Duration = Duration::from_micros(100);

/// The name of the ordered keyspace with the items.
const ORDERED: &str = "ordered";

struct Tapetum {
    keyspace: KeyspaceHandle,
    population: Population,
    /// Parts into which a graph's work at the drive is divided.
    parts: u8,
    /// Behind the store, which it outlives.
    drive: Option<DriveProcess>,
}

impl Tapetum {
    fn open(setup: &Setup) -> Result<Tapetum, Failure> {
        let sync = if setup.sync { Sync::Always } else { Sync::No };
        let options = |capacity_bytes| match setup.ordered {
            Some(node_cache_bytes) => ordered_options(capacity_bytes, setup.memory_bytes, node_cache_bytes, sync),
            None => StoreOptions { sync, ..StoreOptions::new(capacity_bytes, setup.memory_bytes) },
        };
        let capacity_bytes = usable(setup.capacity_bytes);
        let shape = DriveShape { threads: setup.drive_threads as usize, compute_units: setup.compute_units as u16 };
        let is_there = setup.data.join("drive").exists();
        let drive = setup.drive_process.map(|polls| drive_process(setup, polls)).transpose()?;
        let store = match (&drive, is_there) {
            (None, true) => open_as(&setup.data, options, shape)?,
            (None, false) => create_as(&setup.data, capacity_bytes, &options(capacity_bytes))?,
            (Some((_, flash)), true) => open_over(flash, &options(flash.capacity_bytes()), shape)?,
            (Some((_, flash)), false) => create_over(flash, &options(flash.capacity_bytes()))?,
        };
        let keyspace = match store.keyspaces().iter().any(|keyspace| keyspace.name == ORDERED) {
            _ if setup.ordered.is_none() => store.keyspace("default")?,
            true => store.keyspace(ORDERED)?,
            false => store.create_keyspace_of(ORDERED, KeyspaceKind::Ordered)?,
        };
        let values = setup.values();
        Ok(Tapetum {
            keyspace,
            population: Population::new(setup.items, values),
            parts: setup.compute_units.max(1) as u8,
            drive: drive.map(|(process, _)| process),
        })
    }
}

/// The drive of this setup, and a partition that is nearly all of it.
fn drive_process(setup: &Setup, polls: u32) -> Result<(DriveProcess, Arc<dyn Flash>), Failure> {
    let (binary, polls) = (std::env::current_exe()?.with_file_name("tapetum"), polls.to_string());
    let (capacity_bytes, memory) = (usable(setup.capacity_bytes), (2 * setup.memory_bytes + (64 << 20)).to_string());
    let drive = DriveProcess::start(
        &binary,
        &setup.data,
        capacity_bytes + TABLE_BYTES,
        &["--polls", &polls, "--memory", &memory],
    )?;
    let flash = drive.attach("default", capacity_bytes)?;
    Ok((drive, flash))
}

impl Contender for Tapetum {
    fn load(&mut self, indexes: Range<u64>) -> Result<(), Failure> {
        let mut random = Random::new(mix(indexes.start));
        let mut value = Vec::new();
        let mut indexes = indexes;
        let values = self.population.values();
        let next = |pipe: &mut Pipe, now: Instant| {
            let Some(index) = indexes.next() else { return false };
            values.fill(index, &mut random, &mut value);
            pipe.put(now, &key(index), &value);
            true
        };
        keep_full(self.keyspace.store(), self.keyspace.keyspace(), next, |_| Ok(())).map(drop)
    }

    fn remove(&mut self, mut indexes: Range<u64>) -> Result<(), Failure> {
        let next = |pipe: &mut Pipe, now: Instant| {
            let Some(index) = indexes.next() else { return false };
            pipe.delete(now, &key(index));
            true
        };
        keep_full(self.keyspace.store(), self.keyspace.keyspace(), next, |answer| match answer {
            Answer::Deleted => Ok(()),
            other => Err(format!("an item that was to be deleted was answered with {other:?}").into()),
        })
        .map(drop)
    }

    fn settle(&mut self) -> Result<(), Failure> {
        settle(self.keyspace.store()).map(drop)
    }

    fn turn(&self, turn: &Turn) -> Result<Latencies, Failure> {
        match turn.api.as_str() {
            "session" => self.sessions(turn),
            "blocking" => blocking::run(turn, &self.population, || Ok(Blocking(self.keyspace.clone()))),
            "batches" => blocking::run(turn, &self.population, || Ok(Batches(Blocking(self.keyspace.clone())))),
            "query" => self.queries(turn, QuerySide::Drive),
            "query-by-record" => self.queries(turn, QuerySide::DriveByRecord),
            "query-host" => self.queries(turn, QuerySide::Host),
            "session-beside-query" => self.sessions_beside_query(turn),
            "fields" => self.fields(turn, QuerySide::Drive),
            "fields-host" => self.fields(turn, QuerySide::Host),
            "graph" => queries::betweenness(&self.keyspace, turn, QuerySide::Drive, self.parts),
            "graph-host" => queries::betweenness(&self.keyspace, turn, QuerySide::Host, 1),
            other => Err(format!("the store has no way {other}; the head of its contender has them").into()),
        }
    }

    fn drive_process(&self) -> Option<u32> {
        self.drive.as_ref().map(DriveProcess::process)
    }

    fn close(self) -> Result<(), Failure> {
        Ok(self.keyspace.store().close()?)
    }
}

impl Tapetum {
    fn queries(&self, turn: &Turn, side: QuerySide) -> Result<Latencies, Failure> {
        queries::run(&self.keyspace, turn, self.population.count(), side, || false)
    }

    fn fields(&self, turn: &Turn, side: QuerySide) -> Result<Latencies, Failure> {
        fields::run(turn, &self.population, || queries::FieldsGet::new(&self.keyspace, side))
    }

    /// Repeats a scan that keeps one of a thousand items, while the sessions run.
    fn sessions_beside_query(&self, turn: &Turn) -> Result<Latencies, Failure> {
        let (is_over, count) = (AtomicBool::new(false), self.population.count());
        let scans = Turn { mix: "filter-1".into(), length: Length::Time(Duration::MAX), ..turn.clone() };
        std::thread::scope(|scope| {
            let scanning = scope.spawn(|| {
                queries::run(&self.keyspace, &scans, count, QuerySide::Drive, || is_over.load(Ordering::Relaxed))
            });
            let latencies = self.sessions(turn);
            is_over.store(true, Ordering::Relaxed);
            let scanned = scanning.join().expect("the thread of the scans panicked")?;
            let mut latencies = latencies?;
            latencies.count("scans", scanned.operations());
            Ok(latencies)
        })
    }

    fn sessions(&self, turn: &Turn) -> Result<Latencies, Failure> {
        let begun = Instant::now();
        std::thread::scope(|scope| {
            let threads: Vec<_> = (0..turn.threads)
                .map(|number| scope.spawn(move || Driver::new(self, turn, number)?.run(begun)))
                .collect();
            let mut latencies = Latencies::default();
            for thread in threads {
                latencies.add(&thread.join().expect("a session's thread panicked")?);
            }
            Ok(latencies)
        })
    }
}

/// An operation in flight.
#[derive(Clone, Copy)]
struct Asked {
    index: u64,
    /// Start of its latency.
    since: Instant,
    /// A write follows this read.
    modify: bool,
}

/// One session, and the operations that keep it full.
struct Driver<'a> {
    pipe: Pipe,
    operations: Operations<'a>,
    values: &'a Values,
    turn: &'a Turn,
    pace: Pace,
    /// Indexed by the pipe's tokens.
    asked: Vec<Asked>,
    /// Read-modify-writes whose read is complete.
    to_write: Vec<Asked>,
    left: u64,
    value: Vec<u8>,
    latencies: Latencies,
}

impl<'a> Driver<'a> {
    fn new(contender: &'a Tapetum, turn: &'a Turn, number: u64) -> Result<Driver<'a>, Failure> {
        let seed = mix(turn.seed) ^ number;
        let nothing = Asked { index: 0, since: Instant::now(), modify: false };
        Ok(Driver {
            pipe: Pipe::new(contender.keyspace.store(), contender.keyspace.keyspace(), turn.depth as usize)?,
            operations: Operations::new(&contender.population, turn.mix()?, turn.distribution()?, seed),
            values: contender.population.values(),
            turn,
            pace: Pace::new(turn.rate, turn.threads, number),
            asked: vec![nothing; turn.depth as usize],
            to_write: Vec::new(),
            left: turn.operations_max() / turn.threads,
            value: Vec::new(),
            latencies: Latencies::default(),
        })
    }

    fn run(mut self, begun: Instant) -> Result<Latencies, Failure> {
        wake_promptly();
        loop {
            let now = Instant::now();
            let more = now - begun < self.turn.time_max() && self.left > 0;
            if !more && self.pipe.is_idle() && self.to_write.is_empty() {
                return Ok(self.latencies);
            }
            self.submit(now, more)?;
            if self.poll()? == 0 {
                self.rest(now);
            }
        }
    }

    /// Nothing was answered: waits for an answer, or until an operation is due.
    fn rest(&mut self, now: Instant) {
        let until = self.pace.until(now);
        if self.turn.rate.is_some() && until < SPIN_MAX {
            std::hint::spin_loop();
        } else if self.pipe.is_idle() {
            std::thread::sleep(until);
        } else {
            self.pipe.wait();
        }
    }

    fn submit(&mut self, now: Instant, more: bool) -> Result<(), Failure> {
        while self.pipe.room() > 0 {
            if let Some(asked) = self.to_write.pop() {
                self.write(now, asked.index, asked.since);
                continue;
            }
            if !more || self.left == 0 {
                break;
            }
            let Some(since) = self.pace.take(now) else { break };
            self.left -= 1;
            match self.operations.draw() {
                Operation::Read(index) => self.read(now, Asked { index, since, modify: false }),
                Operation::ReadModifyWrite(index) => self.read(now, Asked { index, since, modify: true }),
                Operation::Update(index) | Operation::Insert(index) => self.write(now, index, since),
                Operation::Scan(index, items) => {
                    let token = self.pipe.scan(now, &key(index), items as usize)?;
                    self.asked[token] = Asked { index, since, modify: false };
                }
            }
        }
        Ok(())
    }

    fn read(&mut self, now: Instant, asked: Asked) {
        let token = self.pipe.get(now, &key(asked.index));
        self.asked[token] = asked;
    }

    fn write(&mut self, now: Instant, index: u64, since: Instant) {
        self.values.fill(index, self.operations.random(), &mut self.value);
        let token = self.pipe.put(now, &key(index), &self.value);
        self.asked[token] = Asked { index, since, modify: false };
    }

    fn poll(&mut self) -> Result<usize, Failure> {
        let now = Instant::now();
        self.pipe.poll(|token, answer, _| {
            let asked = self.asked[token];
            match answer {
                Answer::Stored => {
                    self.latencies.write(now - asked.since);
                    return Ok(());
                }
                Answer::Value(value) => self.values.check(asked.index, value)?,
                Answer::Scanned(_) => {}
                Answer::Deleted => return Err("nothing was to be deleted".into()),
                Answer::Missing => self.latencies.missing += 1,
            }
            if asked.modify {
                self.to_write.push(asked);
            } else {
                self.latencies.read(now - asked.since);
            }
            Ok(())
        })
    }
}

struct Blocking(KeyspaceHandle);

impl Client for Blocking {
    fn get(&mut self, keys: &[Key], found: &mut dyn FnMut(usize, &[u8])) -> Result<(), Failure> {
        match keys {
            [key] => {
                if let Some(item) = self.0.get(key)? {
                    found(0, &item.value);
                }
            }
            keys => {
                let keys: Vec<&[u8]> = keys.iter().map(|key| &key[..]).collect();
                for (place, item) in self.0.multi_get(&keys)?.iter().enumerate() {
                    if let Some(item) = item {
                        found(place, &item.value);
                    }
                }
            }
        }
        Ok(())
    }

    fn put(&mut self, key: &Key, value: &[u8]) -> Result<(), Failure> {
        self.0.put(key, value)?;
        Ok(())
    }
}

/// Each write is a batch, which goes to the log before the node.
struct Batches(Blocking);

impl Client for Batches {
    fn get(&mut self, keys: &[Key], found: &mut dyn FnMut(usize, &[u8])) -> Result<(), Failure> {
        self.0.get(keys, found)
    }

    fn put(&mut self, key: &Key, value: &[u8]) -> Result<(), Failure> {
        let Blocking(keyspace) = &self.0;
        let write = Write::Put { keyspace: keyspace.keyspace(), key, value, flags: 0, expiry: Expiry::NONE };
        Ok(keyspace.store().batch(&[write])?)
    }
}

fn main() -> ExitCode {
    contend(Tapetum::open)
}
