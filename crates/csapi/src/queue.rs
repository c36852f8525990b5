//! Requests that do not wait: a queue and a thread for each device that has had such a request.
//!
//! 1. Requests run in the order in which they were queued. Each ends once, and is told of once.
//! 2. The queue is bounded: a request that finds it full is refused.
//! 3. When the device is closed, the request that runs ends as it does; those behind it end as of a device that is not available.
//!
//! Threads: any. The thread of the queue holds no lock while it calls a program's function.

use crate::device::{Device, Outcome};
use crate::events::Event;
use crate::pointers::{Callback, Context, Out};
use crate::request::Request;
use crate::types::CsStatus;
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::{JoinHandle, ThreadId};
use tapetum_drive::locks::whole;

const QUEUED_MAX: usize = 256;

/// The end of a request is told to one of these.
pub enum Notice {
    Callback(Callback, Context),
    Event(Arc<Event>, u64),
}

struct Job {
    requests: Vec<Request>,
    notice: Notice,
    value: Out<u64>,
}

impl Job {
    fn end(self, outcome: Outcome) {
        let _ = self.value.write(outcome.value);
        match self.notice {
            Notice::Callback(callback, context) => callback.call(context, outcome.status as u32, outcome.value),
            Notice::Event(event, ticket) => event.end(ticket, outcome.status),
        }
    }
}

#[derive(Default)]
struct QueueState {
    jobs: VecDeque<Job>,
    is_closed: bool,
}

#[derive(Default)]
struct Queue {
    state: Mutex<QueueState>,
    changed: Condvar,
}

/// A device with its queue.
pub struct OpenDevice {
    pub device: Arc<Device>,
    queue: Arc<Queue>,
    /// Started by the first request.
    worker: Mutex<Option<JoinHandle<()>>>,
}

impl OpenDevice {
    pub fn new(device: Device) -> OpenDevice {
        OpenDevice { device: Arc::new(device), queue: Arc::default(), worker: Mutex::default() }
    }

    pub fn put(&self, requests: Vec<Request>, notice: Notice, value: Out<u64>) -> Result<(), CsStatus> {
        let mut worker = whole(self.worker.lock());
        if worker.is_none() {
            let (device, queue) = (self.device.clone(), self.queue.clone());
            let started = self.device.env().spawn("tapetum-cs", move || run(&device, &queue));
            *worker = Some(started.map_err(|_| CsStatus::OutOfResources)?);
        }
        let mut state = whole(self.queue.state.lock());
        if state.is_closed {
            return Err(CsStatus::InvalidHandle);
        }
        if state.jobs.len() == QUEUED_MAX {
            return Err(CsStatus::OutOfResources);
        }
        state.jobs.push_back(Job { requests, notice, value });
        self.queue.changed.notify_one();
        Ok(())
    }

    /// Whether this is the thread of the queue, as it is in a callback.
    pub fn is_worker(&self, thread: ThreadId) -> bool {
        whole(self.worker.lock()).as_ref().is_some_and(|worker| worker.thread().id() == thread)
    }

    /// Ends the queue, and waits for its thread.
    pub fn close(&self) {
        whole(self.queue.state.lock()).is_closed = true;
        self.queue.changed.notify_one();
        let worker = whole(self.worker.lock()).take();
        if let Some(worker) = worker {
            // A panic of the thread was reported by that thread.
            let _ = worker.join();
        }
    }
}

fn run(device: &Device, queue: &Queue) {
    loop {
        let mut state = whole(queue.state.lock());
        while state.jobs.is_empty() && !state.is_closed {
            state = whole(queue.changed.wait(state));
        }
        let is_closed = state.is_closed;
        let Some(job) = state.jobs.pop_front() else { return };
        drop(state);
        let outcome = match is_closed {
            true => CsStatus::DeviceNotAvailable.into(),
            // Whoever waits for the end hears of a panic too.
            false => catch_unwind(AssertUnwindSafe(|| device.run(&job.requests)))
                .unwrap_or_else(|_| CsStatus::FatalError.into()),
        };
        job.end(outcome);
    }
}
