//! Batches made ahead by threads of the store's process.
//!
//! A request waits in a list until a thread takes it; its result waits until it is asked for, in the order of the requests. The caller decides how
//! many requests are in flight, and so how much memory batches take.
//!
//! 1. Each request has one result, in order.
//! 2. A loader that is dropped has no thread any more: each ends with its current picture.
//! 3. The pictures that its threads have at the drive take at most half of local memory ([`ahead`](super::ahead)): with many threads each has fewer
//!    pictures there, and a loader has as many threads as that leaves room for.

use super::ahead::{AheadBudget, FILE_BYTES_UNKNOWN, PictureCost};
use super::bound_plan::BoundPlan;
use super::reader::{BatchRequest, PictureBatch, PictureReader};
use super::set::ImageSet;
use crate::api::blocking::KeyspaceHandle;
use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;
use tapetum_base::error::Error;
use tapetum_base::media::io::lock;
use tapetum_drive::OfProcess;

/// How a loader is sized.
#[derive(Clone, Copy, Debug)]
pub struct LoaderOptions {
    /// The most threads.
    pub threads: usize,
    /// Bytes of files whose size the set does not have: those that were imported by an older version.
    pub file_bytes: usize,
}

impl Default for LoaderOptions {
    fn default() -> LoaderOptions {
        LoaderOptions { threads: 1, file_bytes: FILE_BYTES_UNKNOWN }
    }
}

/// Counts of a loader's work.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LoaderStats {
    pub batches: u64,
    pub pictures: u64,
    pub failed: u64,
    /// How many threads make batches: fewer than were asked for where local memory has no room for them.
    pub threads: usize,
    /// Time in which the caller waited for a batch.
    pub waited_us: u64,
}

#[derive(Default)]
struct LoaderState {
    requests: VecDeque<(u64, BatchRequest)>,
    results: BTreeMap<u64, Result<PictureBatch, Error>>,
    submitted: u64,
    taken: u64,
    /// Threads that have not ended.
    threads: usize,
    stats: LoaderStats,
}

#[derive(Default)]
struct LoaderShared {
    state: Mutex<LoaderState>,
    requested: Condvar,
    made: Condvar,
    stop: AtomicBool,
}

pub struct PictureLoader {
    shared: Arc<LoaderShared>,
    keyspace: KeyspaceHandle,
    threads: OfProcess<Vec<JoinHandle<()>>>,
}

impl PictureLoader {
    /// # Errors
    /// [`Error::Options`] when the plan does not end in a batch; when there are no more threads.
    pub fn start(
        keyspace: &KeyspaceHandle,
        set: &Arc<ImageSet>,
        plan: &BoundPlan,
        options: LoaderOptions,
    ) -> Result<PictureLoader, Error> {
        let no_batch = || Error::Options("the pipeline ends in no batch: add one, such as batch 128".into());
        let (_, shape) = plan.plan().batch().ok_or_else(no_batch)?;
        keyspace.store().refuse_forked()?;
        let cost = PictureCost { row_bytes: shape.bytes(), file_bytes_unknown: options.file_bytes };
        let local_bytes = keyspace.store().drive().local().bytes_total();
        let (threads, ahead) = AheadBudget::shared(options.threads, cost.of_set(set), local_bytes / 2);
        let shared = Arc::new(LoaderShared::default());
        let threads_started = OfProcess::new(Vec::new());
        let mut loader = PictureLoader { shared: shared.clone(), keyspace: keyspace.clone(), threads: threads_started };
        lock(&shared.state).stats.threads = threads;
        for _ in 0..threads {
            let (shared, keyspace, set, plan) = (shared.clone(), keyspace.clone(), set.clone(), plan.clone());
            lock(&shared.state).threads += 1;
            let env = loader.keyspace.store().drive().env().clone();
            let work = move || {
                // Also when it panics: nobody waits for a thread that is gone.
                let _end = ThreadEnd(shared.clone());
                shared.serve(PictureReader::new(&keyspace, set, &plan, cost, ahead));
            };
            match env.spawn("tapetum-loader", work) {
                Ok(thread) => loader.threads.push(thread),
                Err(error) => {
                    lock(&loader.shared.state).threads -= 1;
                    return Err(Error::Io(format!("no thread for a loader: {error}")));
                }
            }
        }
        Ok(loader)
    }

    pub fn keyspace(&self) -> &KeyspaceHandle {
        &self.keyspace
    }

    /// Asks for another batch.
    pub fn submit(&self, request: BatchRequest) {
        if !self.threads.is_here() {
            return;
        }
        let mut state = lock(&self.shared.state);
        let number = state.submitted;
        state.submitted += 1;
        state.requests.push_back((number, request));
        self.shared.requested.notify_one();
    }

    /// Requests whose results were not taken.
    pub fn pending(&self) -> u64 {
        if !self.threads.is_here() {
            return 0;
        }
        let state = lock(&self.shared.state);
        state.submitted - state.taken
    }

    /// The next result; `None` if it is not there within `timeout`, or nothing was asked for.
    pub fn next(&self, timeout: Duration) -> Option<Result<PictureBatch, Error>> {
        if let Err(error) = self.keyspace.store().refuse_forked() {
            return Some(Err(error));
        }
        let env = self.keyspace.store().drive().env();
        let began_us = env.now_us();
        let state = lock(&self.shared.state);
        let is_missing = |state: &mut LoaderState| {
            state.taken < state.submitted && state.threads > 0 && !state.results.contains_key(&state.taken)
        };
        let waited = self.shared.made.wait_timeout_while(state, timeout, is_missing);
        let (mut state, _) = waited.unwrap_or_else(|poisoned| poisoned.into_inner());
        state.stats.waited_us += env.now_us() - began_us;
        let taken = state.taken;
        let result = match state.results.remove(&taken) {
            Some(result) => result,
            None if state.threads == 0 && taken < state.submitted => {
                Err(Error::Io("the threads of the loader have ended: what they said is on standard error".into()))
            }
            None => return None,
        };
        state.taken += 1;
        Some(result)
    }

    pub fn stats(&self) -> LoaderStats {
        if !self.threads.is_here() {
            return LoaderStats::default();
        }
        lock(&self.shared.state).stats
    }
}

impl LoaderShared {
    fn next_request(&self) -> Option<(u64, BatchRequest)> {
        let state = lock(&self.state);
        let waits = |state: &mut LoaderState| state.requests.is_empty() && !self.stop.load(Ordering::SeqCst);
        let waited = self.requested.wait_while(state, waits);
        let mut state = waited.unwrap_or_else(|poisoned| poisoned.into_inner());
        if self.stop.load(Ordering::SeqCst) { None } else { state.requests.pop_front() }
    }

    fn serve(&self, mut reader: Result<PictureReader, Error>) {
        while let Some((number, request)) = self.next_request() {
            let result = match &mut reader {
                Ok(reader) => reader.read(&request, &self.stop),
                Err(error) => Err(error.clone()),
            };
            // Stopped.
            let Some(result) = result.transpose() else { return };
            let mut state = lock(&self.state);
            if let Ok(batch) = &result {
                state.stats.batches += 1;
                state.stats.pictures += batch.labels.len() as u64;
                state.stats.failed += batch.failed.len() as u64;
            }
            state.results.insert(number, result);
            self.made.notify_all();
        }
    }
}

struct ThreadEnd(Arc<LoaderShared>);

impl Drop for ThreadEnd {
    fn drop(&mut self) {
        lock(&self.0.state).threads -= 1;
        self.0.made.notify_all();
    }
}

impl Drop for PictureLoader {
    fn drop(&mut self) {
        if !self.threads.is_here() {
            return;
        }
        {
            // Under the lock, so that no thread goes to sleep between its look and this.
            let _state = lock(&self.shared.state);
            self.shared.stop.store(true, Ordering::SeqCst);
            self.shared.requested.notify_all();
        }
        for thread in self.threads.drain(..) {
            // A panic there has been reported.
            let _ = thread.join();
        }
    }
}
