//! A store in this process, as an application embeds it.
//!
//! A [`Pipe`] is a session that is kept full: a number of operations in flight, each timed from its submission to its answer. One thread
//! owns a pipe. Its work and the store's maintenance thread keep two cores busy.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tapetum::Expiry;

use tapetum::{
    Condition, KeyBound, KeyRange, KeyspaceRef, Outcome, Reply, Request, ScanReply, Session, Stats, Store,
    StoreOptions, Sync,
};
use tapetum_drive::arbiter::UnitCount;
use tapetum_drive::engine::EngineOptions;
use tapetum_drive::{Drive, Env, FileFlash, Flash, IoEngine, programs};

use crate::Failure;

/// Local memory for creating a store, and for inspecting one.
const SMALL_LOCAL_BYTES: usize = 4 << 20;
/// Sessions of one loading thread: while the log writes for one, another is served.
const SESSIONS: usize = 2;
const DEPTH: usize = 512;

/// Creates a store in `folder` where `tapetum serve --data` looks for it, with the size that this would choose, and opens it.
pub fn create(folder: &Path, capacity_bytes: u64, memory_bytes: u64, sync: Sync) -> Result<Store, Failure> {
    let capacity_bytes = usable(capacity_bytes);
    create_as(folder, capacity_bytes, &StoreOptions { sync, ..StoreOptions::new(capacity_bytes, memory_bytes) })
}

/// As in the server: the file system's metadata for the file counts too.
pub fn usable(capacity_bytes: u64) -> u64 {
    capacity_bytes - capacity_bytes / 4096
}

/// Creates a store of `capacity_bytes` in `folder`, and opens it.
pub fn create_as(folder: &Path, capacity_bytes: u64, options: &StoreOptions) -> Result<Store, Failure> {
    std::fs::create_dir_all(folder)?;
    let flash = FileFlash::create(&folder.join("drive"), capacity_bytes, IoEngine::Auto, &Env::system())?;
    create_over(&(Arc::new(flash) as Arc<dyn Flash>), options)
}

/// Creates a store on this flash, and opens it.
pub fn create_over(flash: &Arc<dyn Flash>, options: &StoreOptions) -> Result<Store, Failure> {
    let env = Env::system();
    // A separate drive, whose counters are dropped, because creation must not be counted.
    Store::create_on(&drive(flash, SMALL_LOCAL_BYTES, &env)?, options)?;
    open_over(flash, options, DriveShape::default())
}

/// Options for a store with its items in an ordered keyspace. The cache of nodes is in addition to the rest. Write buffers are small,
/// because they only hold records of batches and deletions.
pub fn ordered_options(capacity: u64, memory: u64, node_cache_bytes: u64, sync: Sync) -> StoreOptions {
    let options = StoreOptions::new(capacity, memory);
    let write_buffer_bytes: u64 = (memory / 32).clamp(64 << 10, options.segment_bytes);
    let options = options.with_write_buffers_of(1 << write_buffer_bytes.ilog2()).with_node_cache(node_cache_bytes);
    StoreOptions { sync, ..options }
}

/// The drive's own threads.
#[derive(Clone, Copy, Default)]
pub struct DriveShape {
    pub threads: usize,
    /// Units of each program in [`PROGRAMS_WITH_UNITS`].
    pub compute_units: u16,
}

/// The programs of queries.
const PROGRAMS_WITH_UNITS: [&str; 3] = ["scan", "fields", "betweenness"];

/// Opens the store that [`create_as`] made in `folder`, with the options for its capacity.
pub fn open_as(folder: &Path, options: impl FnOnce(u64) -> StoreOptions, shape: DriveShape) -> Result<Store, Failure> {
    let flash: Arc<dyn Flash> = Arc::new(FileFlash::open(&folder.join("drive"), IoEngine::Auto, &Env::system())?);
    let options = options(flash.capacity_bytes());
    open_over(&flash, &options, shape)
}

/// Opens the store on this flash.
pub fn open_over(flash: &Arc<dyn Flash>, options: &StoreOptions, shape: DriveShape) -> Result<Store, Failure> {
    let env = &Env::system();
    let probe = drive(flash, SMALL_LOCAL_BYTES, env)?.identity();
    let with_units = probe.programs.iter().filter(|program| PROGRAMS_WITH_UNITS.contains(&&program.name[..]));
    let units: Vec<UnitCount> =
        with_units.map(|program| UnitCount { program: program.id, units: shape.compute_units }).collect();
    let units = (shape.compute_units > 0).then(|| EngineOptions::with_units(units));
    let units_bytes = units.as_ref().map_or(0, EngineOptions::sub_buffer_bytes_total);
    let mut drive = drive(flash, (options.local_memory_bytes() + units_bytes) as usize, env)?;
    if let Some(units) = &units {
        drive = drive.with_compute_units(units);
    }
    if shape.threads > 0 {
        drive = drive.with_threads(shape.threads)?;
    }
    Ok(Store::open_on(&drive, options)?)
}

fn drive(flash: &Arc<dyn Flash>, local_bytes: usize, env: &Env) -> Result<Drive, Failure> {
    Ok(Drive::over(flash.clone(), local_bytes, programs::built_in(), env.clone())?)
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Answer<'a> {
    Value(&'a [u8]),
    Missing,
    Stored,
    Deleted,
    /// A scan that saw so many items.
    Scanned(usize),
}

pub struct Pipe {
    session: Session,
    keyspace: KeyspaceRef,
    /// By token: when the operation was submitted.
    begun: Vec<Instant>,
    free: Vec<usize>,
    replies: Vec<Reply>,
    scanned: Vec<ScanReply>,
    /// The longest wait for an answer so far.
    pub longest: Duration,
}

impl Pipe {
    pub fn new(store: &Store, keyspace: KeyspaceRef, depth: usize) -> Result<Pipe, Failure> {
        Ok(Pipe {
            session: store.session_of_one_thread()?,
            keyspace,
            begun: vec![Instant::now(); depth],
            free: (0..depth).rev().collect(),
            replies: Vec::new(),
            scanned: Vec::new(),
            longest: Duration::ZERO,
        })
    }

    /// The number of operations that may be submitted now.
    pub fn room(&self) -> usize {
        self.free.len()
    }

    pub fn is_idle(&self) -> bool {
        self.free.len() == self.begun.len()
    }

    pub fn put(&mut self, now: Instant, key: &[u8], value: &[u8]) -> usize {
        self.submit(now, Request::Put { key, value, flags: 0, expiry: Expiry::NONE, condition: Condition::Always })
    }

    pub fn get(&mut self, now: Instant, key: &[u8]) -> usize {
        self.submit(now, Request::Get { key })
    }

    pub fn delete(&mut self, now: Instant, key: &[u8]) -> usize {
        self.submit(now, Request::Delete { key, stamp: None })
    }

    /// Scans so many items of an ordered keyspace, from a key on.
    pub fn scan(&mut self, now: Instant, from: &[u8], items: usize) -> Result<usize, Failure> {
        let token = self.take_token(now);
        let range = KeyRange { from: KeyBound::Included(from.to_vec()), ..KeyRange::default() };
        self.session.submit_scan(self.keyspace, token as u64, range, items)?;
        Ok(token)
    }

    fn submit(&mut self, now: Instant, request: Request<'_>) -> usize {
        let token = self.take_token(now);
        let submitted = self.session.submit_to(self.keyspace, token as u64, request);
        submitted.expect("the session has room for what this one has");
        token
    }

    fn take_token(&mut self, now: Instant) -> usize {
        let token = self.free.pop().expect("the caller looks for room first");
        self.begun[token] = now;
        token
    }

    /// Takes the answers that are there, and passes each to `answered`, with its token and its latency. Returns how many there were.
    pub fn poll(
        &mut self,
        mut answered: impl FnMut(usize, Answer<'_>, Duration) -> Result<(), Failure>,
    ) -> Result<usize, Failure> {
        self.session.poll(&mut self.replies);
        self.session.take_scanned(&mut self.scanned);
        let now = Instant::now();
        let count = self.replies.len() + self.scanned.len();
        let (begun, free, longest) = (&self.begun, &mut self.free, &mut self.longest);
        let mut end = |token: usize| {
            let took = now - begun[token];
            *longest = (*longest).max(took);
            free.push(token);
            took
        };
        for ScanReply { token, part } in self.scanned.drain(..) {
            let token = token as usize;
            answered(token, Answer::Scanned(part?.items.len()), end(token))?;
        }
        for Reply { token, outcome, .. } in self.replies.drain(..) {
            let token = token as usize;
            let took = end(token);
            match outcome {
                Outcome::Stored { .. } => answered(token, Answer::Stored, took)?,
                Outcome::Value { value, .. } => answered(token, Answer::Value(self.session.bytes(value)), took)?,
                Outcome::Deleted => answered(token, Answer::Deleted, took)?,
                Outcome::Missing => answered(token, Answer::Missing, took)?,
                Outcome::Failed(error) => return Err(error.into()),
                other => return Err(format!("an operation was answered with {other:?}").into()),
            }
        }
        Ok(count)
    }

    /// Blocks until there may be an answer, at most for a millisecond.
    pub fn wait(&mut self) {
        self.session.wait(Some(Duration::from_millis(1)));
    }
}

/// Runs `next` on a thread with several pipes until it has nothing more to submit and everything is answered. `next` submits one operation,
/// or says that there is none. Returns the longest wait for an answer.
pub fn keep_full(
    store: &Store,
    keyspace: KeyspaceRef,
    mut next: impl FnMut(&mut Pipe, Instant) -> bool,
    mut answered: impl FnMut(Answer<'_>) -> Result<(), Failure>,
) -> Result<Duration, Failure> {
    let mut pipes = Vec::new();
    for _ in 0..SESSIONS {
        pipes.push(Pipe::new(store, keyspace, DEPTH)?);
    }
    let mut more = true;
    while more || !pipes.iter().all(Pipe::is_idle) {
        let mut answers = 0;
        for pipe in &mut pipes {
            let now = Instant::now();
            while more && pipe.room() > 0 {
                more = next(pipe, now);
            }
            answers += pipe.poll(|_, answer, _| answered(answer))?;
        }
        if answers == 0
            && let Some(pipe) = pipes.iter_mut().find(|pipe| !pipe.is_idle())
        {
            pipe.wait();
        }
    }
    Ok(pipes.iter().map(|pipe| pipe.longest).max().unwrap_or_default())
}

/// Waits until flush and collector are idle, and no sparse nodes are left to be merged. Returns the time of the last write seen.
pub fn settle(store: &Store) -> Result<Instant, Failure> {
    const REST: Duration = Duration::from_millis(300);
    let begun = Instant::now();
    let written = |stats: Stats| (stats.flash_write_bytes, stats.partitions_rebuilt, stats.flushes, stats.collections);
    let (mut last, mut since) = (store.stats(), begun);
    let is_busy = |stats: &Stats| stats.buffers_sealed + stats.partitions_rebuilding + stats.node_sweeps > 0;
    while since.elapsed() < REST || is_busy(&last) {
        if begun.elapsed() > Duration::from_secs(300) {
            return Err("the store still writes, or merges nodes, five minutes after the load ended".into());
        }
        std::thread::sleep(Duration::from_millis(10));
        let now = store.stats();
        if written(now) != written(last) {
            since = Instant::now();
        }
        last = now;
    }
    Ok(since)
}
