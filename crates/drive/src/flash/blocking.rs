//! Moves a file's bytes by `pread` and `pwrite` on one drive thread for each queue pair: for kernels and sandboxes that
//! refuse io_uring.
//!
//! The thread runs commands one by one in the order of submission. The owner collects commands in `unsent` and hands
//! them over in one step at `poll` or `wait`; `Shared::done_count` lets an idle `poll` return without a lock.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::Duration;

use super::data_file::DataFile;
use super::{FlashQueue, RETRIES_MAX, is_put_off};
use crate::env::Env;
use crate::event::Event;
use crate::locks::whole;
use crate::memory::PairMemory;
use crate::protocol::{Command, Completion, MemoryAddress, Operation, Status};

pub(super) struct BlockingQueue {
    shared: Arc<Shared>,
    unsent: Vec<Command>,
    in_flight: usize,
    thread: Option<JoinHandle<()>>,
}

struct Shared {
    state: Mutex<DoneState>,
    /// Told when `todo` grows or the queue closes; when `done` grows.
    work: Condvar,
    completed: Condvar,
    /// The length of `DoneState::done`, changed only under its lock.
    done_count: AtomicUsize,
    /// Readable exactly while `DoneState::done` is not empty.
    event: Event,
}

#[derive(Default)]
struct DoneState {
    todo: VecDeque<Command>,
    done: Vec<Completion>,
    closed: bool,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, DoneState> {
        whole(self.state.lock())
    }
}

impl BlockingQueue {
    pub(super) fn new(data: Arc<DataFile>, memory: &PairMemory, env: &Env) -> io::Result<BlockingQueue> {
        let shared = Arc::new(Shared {
            state: Mutex::default(),
            work: Condvar::new(),
            completed: Condvar::new(),
            done_count: AtomicUsize::new(0),
            event: Event::new()?,
        });
        let (theirs, memory) = (shared.clone(), memory.clone());
        let thread = env.spawn_drive_thread("drive-io", move || serve(&theirs, &data, &memory))?;
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
    unsafe fn submit(&mut self, command: &Command) {
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
        let nothing_done = |state: &mut DoneState| state.done.is_empty();
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
fn serve(shared: &Shared, data: &DataFile, memory: &PairMemory) {
    loop {
        let command = {
            let idle = |state: &mut DoneState| state.todo.is_empty() && !state.closed;
            let waited = shared.work.wait_while(shared.lock(), idle);
            let mut state = whole(waited);
            let Some(command) = state.todo.pop_front() else { return };
            command
        };
        // SAFETY: it was submitted, and its completion is not given yet. `drop` waits for this thread.
        let completion = unsafe { run(&command, data, memory) };
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

/// # Safety
/// As [`FlashQueue::submit`].
unsafe fn run(command: &Command, data: &DataFile, memory: &PairMemory) -> Completion {
    let moved = match command.operation {
        Operation::Read { flash, length, .. } | Operation::Write { flash, length, .. } => {
            let (way, address) = match command.operation {
                Operation::Write { from, fua, .. } => (Way::In { flags: data.write_flags(flash, length, fua) }, from),
                Operation::Read { local, .. } => (Way::Out, MemoryAddress::local(local)),
                _ => unreachable!("it moves bytes"),
            };
            let Some(memory) = memory.pointer(address, length) else {
                return Completion::new(command.tag, Status::InvalidField);
            };
            move_all(length as usize, data.sector_bytes() as usize, |done| {
                let (flash, left) = (flash + done as u64, length as usize - done);
                // SAFETY: inside its region from `done` on, and the drive's until the command completes, by our caller's word.
                unsafe { transfer(data.fd(), way, memory.as_ptr().add(done), left, flash) }
            })
        }
        Operation::Flush => move_all(0, 1, |_| data.file().sync_data().map(|()| 0)),
        Operation::Discard { .. } => Ok(()), // The reservation must hold, so the blocks stay.
        Operation::Execute { .. }
        | Operation::Pipeline { .. }
        | Operation::Compute { .. }
        | Operation::Cancel { .. }
        | Operation::Identify { .. } => {
            return Completion::new(command.tag, Status::Unsupported);
        }
    };
    match moved {
        Ok(()) => Completion::success(command.tag),
        Err(errno) => Completion::failed(command.tag, errno),
    }
}

#[derive(Clone, Copy)]
enum Way {
    Out,
    /// With the kernel's flags.
    In {
        flags: i32,
    },
}

/// One system call; how many bytes it moved.
///
/// # Safety
/// `memory` has `length` bytes, which nobody else writes, and of which nobody else reads what is read into.
unsafe fn transfer(fd: RawFd, way: Way, memory: *mut u8, length: usize, flash: u64) -> io::Result<usize> {
    let (memory, flash) = (memory.cast(), flash as libc::off_t);
    let piece = libc::iovec { iov_base: memory, iov_len: length };
    // SAFETY: the caller's.
    let moved = unsafe {
        match way {
            Way::Out => libc::pread(fd, memory, length, flash),
            Way::In { flags: 0 } => libc::pwrite(fd, memory, length, flash),
            Way::In { flags } => libc::pwritev2(fd, &piece, 1, flash, flags),
        }
    };
    usize::try_from(moved).map_err(|_| io::Error::last_os_error())
}

/// Takes steps from where the last one ended until `length` bytes are moved; the errno of the one that failed. As the ring does: a
/// short step goes on from its last whole sector, one that gets nowhere fails, and the kernel may put it off so often.
fn move_all(length: usize, sector_bytes: usize, mut step: impl FnMut(usize) -> io::Result<usize>) -> Result<(), i32> {
    let (mut done, mut retries) = (0, 0);
    loop {
        match step(done) {
            Ok(moved) if done + moved == length => return Ok(()),
            Ok(moved) if moved >= sector_bytes => {
                done += moved - moved % sector_bytes;
                retries = 0;
            }
            Ok(_) => return Err(libc::EIO),
            Err(error) => {
                // A file that ends early has no errno of its own.
                let errno = error.raw_os_error().unwrap_or(libc::EIO);
                if !is_put_off(errno) || retries == RETRIES_MAX {
                    return Err(errno);
                }
                retries += 1;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_short_step_goes_on_from_its_last_whole_sector() {
        let mut from = Vec::new();
        let steps = |done| {
            from.push(done);
            Ok([5000, 4096, 4096][from.len() - 1])
        };
        assert_eq!(move_all(12288, 4096, steps), Ok(()));
        assert_eq!(from, [0, 4096, 8192]);
        assert_eq!(move_all(4096, 512, |_| Ok(100)), Err(libc::EIO));
        assert_eq!(move_all(4096, 512, |_| Ok(0)), Err(libc::EIO));
    }

    #[test]
    fn what_is_put_off_for_ever_fails_with_what_the_kernel_says() {
        for errno in [libc::EAGAIN, libc::EINTR] {
            let mut steps = 0;
            let put_off = |_| {
                steps += 1;
                Err(io::Error::from_raw_os_error(errno))
            };
            assert_eq!(move_all(4096, 512, put_off), Err(errno));
            assert_eq!(steps, RETRIES_MAX + 1);
        }
        let mut steps = 0;
        let soon = |_| {
            steps += 1;
            if steps < 10 { Err(io::Error::from_raw_os_error(libc::EINTR)) } else { Ok(4096) }
        };
        assert_eq!(move_all(4096, 512, soon), Ok(()));
        assert_eq!(move_all(4096, 512, |_| Err(io::Error::from_raw_os_error(libc::ENOSPC))), Err(libc::ENOSPC));
    }
}
