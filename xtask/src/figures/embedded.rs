//! A store in this process, as an application embeds it, for the figures that are not about sockets.
//!
//! A [`Pipe`] is a session that is kept full: so many operations on their way, each timed from its submission to its
//! answer. One thread owns a pipe; with its own work and the store's maintenance thread, two cores are busy.

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use tapetum::{Condition, Outcome, Reply, Request, Session, Stats, Store, StoreOptions};
use tapetum_drive::{Drive, Env, FileFlash, IoEngine, LocalMemory, programs};

use super::Scratch;
use crate::Failure;
use crate::random::{Random, key16, mix};

/// What every figure at scale stores, unless it is told otherwise.
pub const KEY_BYTES: u64 = 16;
pub const VALUE_BYTES: u64 = 100;

/// Local memory to make a store with.
const CREATION_BYTES: usize = 4 << 20;
/// Sessions of one loading thread: while the log writes for one, another is served.
const SESSIONS: usize = 2;
const DEPTH: usize = 512;

/// A new store in a folder that goes with it.
pub struct Embedded {
    // In this order: the store is closed before its folder goes.
    pub store: Store,
    folder: PathBuf,
    _scratch: Scratch,
}

impl Embedded {
    pub fn start(name: &str, capacity_bytes: u64, memory_bytes: u64) -> Result<Embedded, Failure> {
        let scratch = Scratch::new(name)?;
        let folder = scratch.folder().join("data");
        let store = create(&folder, capacity_bytes, memory_bytes)?;
        Ok(Embedded { store, folder, _scratch: scratch })
    }

    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// What `du` would say of the store's file.
    pub fn bytes_on_disk(&self) -> Result<u64, Failure> {
        use std::os::unix::fs::MetadataExt;
        Ok(std::fs::metadata(self.folder.join("drive"))?.blocks() * 512)
    }
}

/// Makes a store in `folder` where `tapetum serve --data` looks for it, sized as that would size it, and opens it.
pub fn create(folder: &Path, capacity_bytes: u64, memory_bytes: u64) -> Result<Store, Failure> {
    std::fs::create_dir_all(folder)?;
    // As the server has it: the file system's own notes on the file count too.
    let capacity_bytes = capacity_bytes - capacity_bytes / 4096;
    let options = StoreOptions::new(capacity_bytes, memory_bytes);
    let env = Env::system();
    let flash = Arc::new(FileFlash::create(&folder.join("drive"), capacity_bytes, IoEngine::Auto, &env)?);
    let drive = |local_bytes: usize| -> Result<Drive, Failure> {
        Ok(Drive::new(flash.clone(), LocalMemory::new(local_bytes)?, programs::built_in(), env.clone()))
    };
    // By a drive of its own: what creation writes is not the store's to count.
    Store::create(&drive(CREATION_BYTES)?, &options)?;
    let local_bytes = options.local_memory_bytes(options.segment_bytes) as usize;
    Ok(Store::open(&drive(local_bytes)?, &options)?)
}

/// The value of an item in its `generation`: incompressible, and known without being kept.
pub fn fill_value(index: u64, generation: u64, bytes: u64, value: &mut Vec<u8>) {
    value.resize(bytes as usize, 0);
    Random::new(mix(index ^ mix(generation))).fill(value);
}

pub struct Pipe {
    session: Session,
    /// When the operation of each token was submitted.
    begun: Vec<Instant>,
    free: Vec<usize>,
    replies: Vec<Reply>,
    /// The longest wait for an answer so far.
    pub longest: Duration,
}

impl Pipe {
    pub fn new(store: &Store, depth: usize) -> Result<Pipe, Failure> {
        Ok(Pipe {
            session: store.session()?,
            begun: vec![Instant::now(); depth],
            free: (0..depth).rev().collect(),
            replies: Vec::new(),
            longest: Duration::ZERO,
        })
    }

    /// Operations that may be submitted now.
    pub fn room(&self) -> usize {
        self.free.len()
    }

    pub fn is_idle(&self) -> bool {
        self.free.len() == self.begun.len()
    }

    pub fn put(&mut self, now: Instant, key: &[u8], value: &[u8]) {
        self.submit(now, Request::Put { key, value, flags: 0, expiry: 0, condition: Condition::Always });
    }

    pub fn get(&mut self, now: Instant, key: &[u8]) -> usize {
        self.submit(now, Request::Get { key })
    }

    fn submit(&mut self, now: Instant, request: Request<'_>) -> usize {
        let token = self.free.pop().expect("the caller looks for room first");
        self.begun[token] = now;
        self.session.submit(token as u64, request);
        token
    }

    /// Takes the answers that are there, and gives those to gets, with the value if there was one and the time it took, to
    /// `got`; how many answers there were.
    pub fn poll(
        &mut self,
        mut got: impl FnMut(usize, Option<&[u8]>, Duration) -> Result<(), Failure>,
    ) -> Result<usize, Failure> {
        self.session.poll(&mut self.replies);
        let now = Instant::now();
        let count = self.replies.len();
        for Reply { token, outcome } in self.replies.drain(..) {
            let token = token as usize;
            let took = now - self.begun[token];
            self.longest = self.longest.max(took);
            self.free.push(token);
            match outcome {
                Outcome::Stored { .. } => {}
                Outcome::Value { value, .. } => got(token, Some(self.session.bytes(value)), took)?,
                Outcome::Missing => got(token, None, took)?,
                Outcome::Failed(error) => return Err(error.into()),
                other => return Err(format!("an operation was answered with {other:?}").into()),
            }
        }
        Ok(count)
    }

    /// Blocks until there may be an answer, for a millisecond at most.
    pub fn wait(&mut self) {
        self.session.wait(Some(Duration::from_millis(1)));
    }
}

/// Runs `next` on a thread of several pipes until it has nothing more to submit and all is answered. `next` submits one
/// operation, or says that there is none. The longest wait for an answer is the result.
pub fn keep_full(
    store: &Store,
    mut next: impl FnMut(&mut Pipe, Instant) -> bool,
    mut got: impl FnMut(Option<&[u8]>) -> Result<(), Failure>,
) -> Result<Duration, Failure> {
    let mut pipes = Vec::new();
    for _ in 0..SESSIONS {
        pipes.push(Pipe::new(store, DEPTH)?);
    }
    let mut more = true;
    while more || !pipes.iter().all(Pipe::is_idle) {
        let mut answers = 0;
        for pipe in &mut pipes {
            let now = Instant::now();
            while more && pipe.room() > 0 {
                more = next(pipe, now);
            }
            answers += pipe.poll(|_, value, _| got(value))?;
        }
        if answers == 0
            && let Some(pipe) = pipes.iter_mut().find(|pipe| !pipe.is_idle())
        {
            pipe.wait();
        }
    }
    Ok(pipes.iter().map(|pipe| pipe.longest).max().unwrap_or_default())
}

/// Stores the items of `indexes`, in no order of their keys; the longest wait for an answer.
pub fn store_items(store: &Store, indexes: Range<u64>, value_bytes: u64, threads: u64) -> Result<Duration, Failure> {
    let thread = |number: u64| {
        let mut indexes = (indexes.start + number..indexes.end).step_by(threads as usize);
        let mut value = Vec::new();
        let next = move |pipe: &mut Pipe, now: Instant| {
            let Some(index) = indexes.next() else { return false };
            fill_value(index, 0, value_bytes, &mut value);
            pipe.put(now, &key16(index), &value);
            true
        };
        move || keep_full(store, next, |_| Ok(()))
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..threads).map(|number| scope.spawn(thread(number))).collect();
        let mut longest = Duration::ZERO;
        for thread in threads {
            longest = longest.max(thread.join().expect("a loading thread panicked")?);
        }
        Ok(longest)
    })
}

/// Writes a few keys over and over, so that every buffer and pool has been in use and next to no index is left behind.
pub fn touch_pools(store: &Store) -> Result<(), Failure> {
    const KEYS: u64 = 1000;
    const WRITES: u64 = 2_000_000;
    let mut written = 0;
    let mut value = Vec::new();
    let next = |pipe: &mut Pipe, now: Instant| {
        fill_value(written, 0, VALUE_BYTES, &mut value);
        // Apart from the keys of `store_items`.
        pipe.put(now, &key16(u64::MAX - written % KEYS), &value);
        written += 1;
        written < WRITES
    };
    keep_full(store, next, |_| Ok(()))?;
    settle(store).map(|_| ())
}

/// Waits until flush and collector have come to rest; the moment of the last write that was seen.
pub fn settle(store: &Store) -> Result<Instant, Failure> {
    const REST: Duration = Duration::from_millis(300);
    let begun = Instant::now();
    let written = |stats: Stats| (stats.flash_write_bytes, stats.partitions_rebuilt, stats.flushes, stats.collections);
    let (mut last, mut since) = (store.stats(), begun);
    while since.elapsed() < REST || last.buffers_sealed > 0 || last.partitions_rebuilding > 0 {
        if begun.elapsed() > Duration::from_secs(300) {
            return Err("the store still writes, five minutes after the load ended".into());
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
