//! Straight-line I/O for cold, many-step work: recovery, flush, collection.
//!
//! A task is an `async` function; `Io` is its queue pair. Nothing wakes anything: whoever owns the task polls it, and each
//! poll first reaps completions. That is what lets the simulator own time and order. One thread at a time.

use crate::error::Error;
use crate::media::transfer::Transfer;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::future::Future;
use std::ops::Range;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll, Waker};
use std::time::Duration;
use tapetum_drive::locks::whole;
use tapetum_drive::{
    Command, Completion, Drive, HostView, Lease, LocalBuffer, Operation, Purpose, QueueFull, QueuePair, Returned, Size,
};

/// Locks a mutex; a panic where another thread panicked while it held it.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    whole(mutex.lock())
}

struct Inner {
    queue: QueuePair,
    completed: BTreeMap<u64, Completion>,
    /// Commands that the queue had no place for, in order. Whoever starts them has limits of its own.
    unsent: VecDeque<(Command, Lease)>,
    /// Commands on their way that nobody waits for any more.
    forgotten: BTreeSet<u64>,
    batch: Vec<Returned>,
    tag_next: u64,
    /// A task gave way although it could have gone on.
    gave_way: bool,
}

impl Inner {
    fn tag(&mut self) -> u64 {
        self.tag_next += 1;
        self.tag_next
    }

    fn start(&mut self, operation: Operation, purpose: Purpose, lease: Lease) -> Tag {
        let command = Command::new(self.tag(), operation).of(purpose);
        self.unsent.push_back((command, lease));
        self.send();
        Tag(command.tag)
    }

    /// Submits what the queue has places for by now.
    fn send(&mut self) {
        while let Some((command, lease)) = self.unsent.pop_front() {
            if let Err(QueueFull { lease }) = self.queue.submit(command, lease) {
                return self.unsent.push_front((command, lease));
            }
        }
    }
}

/// A cheap handle on a queue pair that tasks await. What it moves is counted by the handle's purpose.
#[derive(Clone)]
pub struct Io {
    inner: Arc<Mutex<Inner>>,
    purpose: Purpose,
}

/// A command on its way.
#[must_use]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Tag(u64);

impl Io {
    pub fn new(queue: QueuePair) -> Io {
        Io {
            purpose: Purpose::Other,
            inner: Arc::new(Mutex::new(Inner {
                queue,
                completed: BTreeMap::new(),
                unsent: VecDeque::new(),
                forgotten: BTreeSet::new(),
                batch: Vec::new(),
                tag_next: 0,
                gave_way: false,
            })),
        }
    }

    /// A handle on the same queue pair, for this purpose.
    pub fn of(&self, purpose: Purpose) -> Io {
        Io { inner: self.inner.clone(), purpose }
    }

    /// Bytes of a buffer in place. They cross to the host.
    pub fn look<'a>(&self, buffer: &'a LocalBuffer, bytes: Range<usize>) -> &'a [u8] {
        lock(&self.inner).queue.look(self.purpose, buffer, bytes)
    }

    /// As [`Io::look`], for whoever looks at the same bytes again and again.
    pub fn view(&self, buffer: LocalBuffer, bytes: Range<usize>) -> HostView {
        lock(&self.inner).queue.view(self.purpose, buffer, bytes)
    }

    /// Bytes of a buffer, for the host to write all of them.
    pub fn fill<'a>(&self, buffer: &'a mut LocalBuffer, bytes: Range<usize>) -> &'a mut [u8] {
        lock(&self.inner).queue.fill(self.purpose, buffer, bytes)
    }

    /// Puts bytes that the host has in front of those of a view.
    pub fn prepend(&self, view: &mut HostView, bytes: &[u8]) {
        lock(&self.inner).queue.prepend(self.purpose, view, bytes);
    }

    /// Starts a command. What it was lent is dropped when it has ended, before its completion is there.
    pub fn start(&self, operation: Operation, lease: Lease) -> Tag {
        lock(&self.inner).start(operation, self.purpose, lease)
    }

    pub fn finish(&self, tag: Tag) -> impl Future<Output = Completion> + Send + use<> {
        let inner = self.inner.clone();
        std::future::poll_fn(move |_| match lock(&inner).completed.remove(&tag.0) {
            Some(completion) => Poll::Ready(completion),
            None => Poll::Pending,
        })
    }

    /// Reads `length` bytes at `flash` into `buffer` at `at`. The buffer is away until then: who gives up has an empty one.
    pub async fn read(&self, flash: u64, buffer: &mut LocalBuffer, at: usize, length: usize) -> Result<(), Error> {
        let mut transfer = Transfer::new(self, buffer.take());
        transfer.start_read(flash, at, length);
        transfer.end_into("read", buffer).await
    }

    /// Writes the first `length` bytes of `buffer`, which is away until then; a flush makes them durable.
    pub async fn write(&self, flash: u64, buffer: &mut LocalBuffer, length: usize) -> Result<(), Error> {
        let mut transfer = Transfer::new(self, buffer.take());
        transfer.start_write(flash, 0, length, false);
        transfer.end_into("write", buffer).await
    }

    /// As [`Io::write`], and durable when it is done.
    pub async fn write_durably(&self, flash: u64, buffer: &mut LocalBuffer, length: usize) -> Result<(), Error> {
        let mut transfer = Transfer::new(self, buffer.take());
        transfer.start_write(flash, 0, length, true);
        transfer.end_into("write", buffer).await
    }

    /// Has the drive write to `buffer` what it is and has; nothing, where that is longer.
    pub async fn identify(&self, buffer: &mut LocalBuffer) -> Result<(), Error> {
        let length = buffer.len();
        self.fill(buffer, 0..length).fill(0);
        let mut transfer = Transfer::new(self, buffer.take());
        transfer.start_identify();
        transfer.end_into("command that asks what the drive has", buffer).await
    }

    pub async fn flush(&self) -> Result<(), Error> {
        let tag = self.start(Operation::Flush, Lease::Nothing);
        let completion = self.finish(tag).await;
        self.succeeded(&completion, "flush")
    }

    /// How a command ended, of which `what` says what it was.
    pub fn succeeded(&self, completion: &Completion, what: &str) -> Result<(), Error> {
        match completion.is_success() {
            true => Ok(()),
            false => Err(Error::of_command(lock(&self.inner).queue.drive(), what, completion)),
        }
    }

    /// Reaps completions; whether there were any.
    pub fn pump(&self) -> bool {
        let mut inner = lock(&self.inner);
        let Inner { queue, completed, forgotten, batch, .. } = &mut *inner;
        queue.poll(batch);
        let any = !batch.is_empty();
        let ended = batch.drain(..).map(|Returned { completion, .. }| (completion.tag, completion));
        completed.extend(ended.filter(|(tag, _)| !forgotten.remove(tag)));
        inner.send();
        any
    }

    /// Nobody waits for these commands any more.
    pub fn forget<'a>(&self, tags: impl IntoIterator<Item = &'a Tag>) {
        let mut inner = lock(&self.inner);
        let Inner { completed, forgotten, .. } = &mut *inner;
        forgotten.extend(tags.into_iter().map(|tag| tag.0).filter(|tag| completed.remove(tag).is_none()));
    }

    pub fn drive(&self) -> Drive {
        lock(&self.inner).queue.drive().clone()
    }

    /// Local memory for a task. Readers give theirs back as they end, so it is waited for, within reason.
    pub fn allocate(&self, bytes: usize) -> impl Future<Output = Result<LocalBuffer, Error>> + Send + use<> {
        const PATIENCE_US: u64 = 10_000_000;
        let drive = self.drive();
        let until_us = drive.env().now_us() + PATIENCE_US;
        std::future::poll_fn(move |_| match drive.local().allocate(bytes) {
            Some(buffer) => Poll::Ready(Ok(buffer)),
            // No waiting helps where there is less.
            None if drive.env().now_us() < until_us && bytes <= drive.local().bytes_total() => Poll::Pending,
            None => Poll::Ready(Err(Error::Options(format!(
                "the pools of memory are too small: {} were not to be had, {} of {} are in use; give the store more memory",
                Size(bytes as u64),
                Size(drive.local().bytes_used() as u64),
                Size(drive.local().bytes_total() as u64),
            )))),
        })
    }

    /// Lets the owner of the task do something else first.
    pub fn step(&self) -> impl Future<Output = ()> + Send + use<> {
        let inner = self.inner.clone();
        let mut stepped = false;
        std::future::poll_fn(move |_| {
            if std::mem::replace(&mut stepped, true) {
                return Poll::Ready(());
            }
            lock(&inner).gave_way = true;
            Poll::Pending
        })
    }

    /// Lets the owner of the task wait for a moment: what the task waits for is not this one's.
    pub fn pause(&self) -> impl Future<Output = ()> + Send + use<> {
        let mut paused = false;
        std::future::poll_fn(move |_| match std::mem::replace(&mut paused, true) {
            true => Poll::Ready(()),
            false => Poll::Pending,
        })
    }

    /// Whether a task gave way since this was asked last: it would go on at once.
    pub fn gave_way(&self) -> bool {
        std::mem::take(&mut lock(&self.inner).gave_way)
    }

    pub fn in_flight(&self) -> usize {
        let inner = lock(&self.inner);
        inner.queue.in_flight() + inner.unsent.len()
    }

    pub fn wait(&self, timeout: Duration) {
        lock(&self.inner).queue.wait(Some(timeout));
    }

    /// Waits until the drive has let go of all buffers. Tasks that wait for what comes are not to be polled any more.
    pub fn drain(&self) {
        let mut inner = lock(&self.inner);
        inner.unsent.clear();
        inner.queue.drain();
    }
}

pub type Task<T> = Pin<Box<dyn Future<Output = T> + Send>>;

pub fn poll_once<T>(task: &mut Task<T>) -> Option<T> {
    match task.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(value) => Some(value),
        Poll::Pending => None,
    }
}

/// Polls a future to its end, with its I/O. `None` when the drive answers nothing more (a simulated crash).
pub fn run<T>(io: &Io, future: impl Future<Output = T>, stopped: impl Fn() -> bool) -> Option<T> {
    let mut future = std::pin::pin!(future);
    loop {
        let any = io.pump();
        if let Poll::Ready(value) = future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            return Some(value);
        }
        if stopped() {
            return None;
        }
        match (io.gave_way() || any, io.in_flight()) {
            (true, _) => {}
            // It waits for somebody else.
            (false, 0) => lock(&io.inner).queue.drive().env().rest(),
            (false, _) => io.wait(Duration::from_millis(10)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tapetum_drive::{Env, FaultyFlash, LocalMemory};

    #[test]
    fn who_gives_up_a_read_cannot_reach_what_the_drive_still_writes() {
        // This flash panics when somebody touches a buffer that a command in flight names.
        let flash = Arc::new(FaultyFlash::new(1 << 20, 1));
        let drive = Drive::new(flash, LocalMemory::new(8192).unwrap(), Vec::new(), Env::simulated(1).0);
        let io = Io::new(drive.queue_pair(4).unwrap());
        let mut buffer = drive.local().allocate(4096).unwrap();
        {
            let mut reading = std::pin::pin!(io.read(0, &mut buffer, 0, 4096));
            assert!(reading.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        }
        buffer.bytes_mut().fill(1);
        assert_eq!((buffer.len(), drive.local().bytes_used()), (0, 4096), "the drive has it");
        while io.in_flight() > 0 {
            io.pump();
        }
        assert_eq!(drive.local().bytes_used(), 0, "nobody has it");
    }

    #[test]
    fn a_buffer_is_back_when_its_read_is_over() {
        let drive = Drive::new(
            Arc::new(FaultyFlash::new(1 << 20, 1)),
            LocalMemory::new(8192).unwrap(),
            Vec::new(),
            Env::simulated(1).0,
        );
        let io = Io::new(drive.queue_pair(4).unwrap());
        let mut buffer = drive.local().allocate(4096).unwrap();
        buffer.bytes_mut().fill(7);
        run(&io, io.write_durably(0, &mut buffer, 4096), || false).unwrap().unwrap();
        buffer.bytes_mut().fill(0);
        run(&io, io.read(0, &mut buffer, 512, 1024), || false).unwrap().unwrap();
        assert_eq!(buffer.bytes().iter().filter(|byte| **byte == 7).count(), 1024);
        assert_eq!((buffer.bytes()[511], buffer.bytes()[512]), (0, 7));
    }
}
