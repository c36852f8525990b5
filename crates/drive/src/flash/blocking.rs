//! Moves a file's bytes by `pread` and `pwrite` on one drive thread for each queue pair: for kernels and sandboxes that
//! refuse io_uring.
//!
//! The thread runs commands one by one in the order of submission. The owner collects commands in `unsent` and hands
//! them over in one step at `poll` or `wait`; `Shared::done_count` lets an idle `poll` return without a lock.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use super::FlashQueue;
use super::file::DataFile;
use crate::command::{Command, Completion, LocalRange, Operation, Status};
use crate::env::Env;
use crate::event::Event;
use crate::local_memory::LocalMemory;

pub(super) struct BlockingQueue {
    shared: Arc<Shared>,
    unsent: Vec<Command>,
    in_flight: usize,
    thread: Option<JoinHandle<()>>,
}

struct Shared {
    state: Mutex<State>,
    /// Told when `todo` grows or the queue closes; when `done` grows.
    work: Condvar,
    completed: Condvar,
    /// The length of `State::done`, changed only under its lock.
    done_count: AtomicUsize,
    /// Readable exactly while `State::done` is not empty.
    event: Event,
}

#[derive(Default)]
struct State {
    todo: VecDeque<Command>,
    done: Vec<Completion>,
    closed: bool,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl BlockingQueue {
    pub(super) fn new(data: Arc<DataFile>, local: &LocalMemory, env: &Env) -> io::Result<BlockingQueue> {
        let shared = Arc::new(Shared {
            state: Mutex::default(),
            work: Condvar::new(),
            completed: Condvar::new(),
            done_count: AtomicUsize::new(0),
            event: Event::new()?,
        });
        let (theirs, local) = (shared.clone(), local.clone());
        let thread = env.spawn("drive-io", move || serve(&theirs, &data, &local))?;
        Ok(BlockingQueue { shared, unsent: Vec::new(), in_flight: 0, thread: Some(thread) })
    }

    fn send(&mut self) {
        if !self.unsent.is_empty() {
            self.shared.lock().todo.extend(self.unsent.drain(..));
            self.shared.work.notify_one();
        }
    }
}

impl FlashQueue for BlockingQueue {
    fn submit(&mut self, command: &Command) {
        self.unsent.push(*command);
        self.in_flight += 1;
    }

    fn poll(&mut self, completions: &mut Vec<Completion>) {
        self.send();
        if self.shared.done_count.load(Ordering::Acquire) == 0 {
            return;
        }
        let mut state = self.shared.lock();
        self.in_flight -= state.done.len();
        completions.append(&mut state.done);
        self.shared.done_count.store(0, Ordering::Release);
        self.shared.event.clear();
    }

    fn wait(&mut self, timeout: Option<Duration>) {
        self.send();
        if self.in_flight == 0 {
            return;
        }
        let state = self.shared.lock();
        let nothing_done = |state: &mut State| state.done.is_empty();
        match timeout {
            None => drop(self.shared.completed.wait_while(state, nothing_done)),
            Some(timeout) => drop(self.shared.completed.wait_timeout_while(state, timeout, nothing_done)),
        }
    }

    fn event_fd(&self) -> Option<RawFd> {
        Some(self.shared.event.as_raw_fd())
    }
}

impl Drop for BlockingQueue {
    fn drop(&mut self) {
        {
            let mut state = self.shared.lock();
            state.closed = true;
            state.todo.clear();
        }
        self.shared.work.notify_one();
        if let Some(thread) = self.thread.take() {
            // A panic there has been reported there.
            let _ = thread.join();
        }
    }
}

/// The drive thread.
fn serve(shared: &Shared, data: &DataFile, local: &LocalMemory) {
    loop {
        let command = {
            let idle = |state: &mut State| state.todo.is_empty() && !state.closed;
            let waited = shared.work.wait_while(shared.lock(), idle);
            let mut state = waited.unwrap_or_else(PoisonError::into_inner);
            let Some(command) = state.todo.pop_front() else { return };
            command
        };
        let completion = run(&command, data, local);
        let mut state = shared.lock();
        state.done.push(completion);
        shared.done_count.store(state.done.len(), Ordering::Release);
        // Last: who is woken by it looks at the count, and is not woken a second time.
        if state.done.len() == 1 {
            shared.event.raise();
        }
        drop(state);
        shared.completed.notify_one();
    }
}

fn run(command: &Command, data: &DataFile, local: &LocalMemory) -> Completion {
    let moved = match command.operation {
        Operation::Read { flash, local: offset, length } => {
            let Some(memory) = local.pointer(LocalRange { offset, length }) else {
                return Completion::new(command.tag, Status::InvalidField);
            };
            // SAFETY: inside local memory, and the drive's own until the command completes.
            let bytes = unsafe { std::slice::from_raw_parts_mut(memory.as_ptr(), length as usize) };
            data.file().read_exact_at(bytes, flash)
        }
        Operation::Write { flash, local: offset, length, fua } => {
            let Some(memory) = local.pointer(LocalRange { offset, length }) else {
                return Completion::new(command.tag, Status::InvalidField);
            };
            // SAFETY: inside local memory, and nobody writes it until the command completes.
            let bytes = unsafe { std::slice::from_raw_parts(memory.as_ptr(), length as usize) };
            if fua { write_durably(data, bytes, flash) } else { data.file().write_all_at(bytes, flash) }
        }
        Operation::Flush => data.file().sync_data(),
        Operation::Discard { .. } => Ok(()), // The reservation must hold, so the blocks stay.
        Operation::Execute { .. } | Operation::Pipeline { .. } => {
            return Completion::new(command.tag, Status::Unsupported);
        }
    };
    match moved {
        Ok(()) => Completion::success(command.tag),
        // A file that ends early has no errno of its own.
        Err(error) => Completion::failed(command.tag, error.raw_os_error().unwrap_or(libc::EIO)),
    }
}

/// Writes with RWF_DSYNC, which syncs these bytes alone.
fn write_durably(data: &DataFile, mut bytes: &[u8], mut offset: u64) -> io::Result<()> {
    while !bytes.is_empty() {
        let piece = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
        // SAFETY: the one piece is a live slice, which the kernel only reads.
        let wrote = unsafe { libc::pwritev2(data.fd(), &piece, 1, offset as libc::off_t, libc::RWF_DSYNC) };
        match usize::try_from(wrote) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(wrote) => {
                bytes = &bytes[wrote..];
                offset += wrote as u64;
            }
            Err(_) => {
                let error = io::Error::last_os_error();
                if error.kind() != io::ErrorKind::Interrupted {
                    return Err(error);
                }
            }
        }
    }
    Ok(())
}
