//! A controller on a thread of the drive's, as its queue pair sees it: two rings.

use crate::counters::QueueCounters;
use crate::device::threads::{AttachedController, DriveThread, DriveThreads, SubmittedCommand};
use crate::device::{Controller, EndedCommand};
use crate::event::is_readable_within;
use crate::protocol::{CREDITS, Command, LeasedRanges};
use crate::wakeup::Sleeper;
use std::cell::Cell;
use std::io;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::time::Duration;

pub(super) struct RemoteController {
    thread: DriveThread,
    number: usize,
    commands: rtrb::Producer<SubmittedCommand>,
    ended: rtrb::Consumer<EndedCommand>,
    sleeper: Sleeper,
    /// Somebody may sleep on the descriptor.
    is_asked: Cell<bool>,
    /// Commands were submitted that the thread was not told of.
    is_unsent: bool,
    in_flight: usize,
    counters: Arc<QueueCounters>,
    /// Taken from the ring, and not polled yet.
    taken: Vec<EndedCommand>,
    // Keeps the thread running.
    _threads: Arc<DriveThreads>,
}

impl RemoteController {
    pub fn new(controller: Controller, threads: Arc<DriveThreads>) -> io::Result<RemoteController> {
        let (sleeper, counters) = (Sleeper::new()?, controller.counters().clone());
        let (commands, their_commands) = rtrb::RingBuffer::new(CREDITS);
        let (their_ended, ended) = rtrb::RingBuffer::new(CREDITS);
        let (number, thread) = threads.next();
        thread.attach(AttachedController::new(controller, number, their_commands, their_ended, sleeper.waker()));
        Ok(RemoteController {
            thread,
            number,
            commands,
            ended,
            sleeper,
            is_asked: Cell::new(false),
            is_unsent: false,
            in_flight: 0,
            counters,
            taken: Vec::new(),
            _threads: threads,
        })
    }

    /// # Safety
    /// As [`Controller::submit`], and nobody writes or frees the list of stages until the command has ended: it is read later.
    pub unsafe fn submit(&mut self, command: Command, slot: u32, leased: &LeasedRanges) {
        let pushed = self.commands.push(SubmittedCommand { command, slot, leased: *leased });
        assert!(pushed.is_ok() || self.commands.is_abandoned(), "more commands than credits");
        self.in_flight += 1;
        self.is_unsent = true;
    }

    /// As [`Controller::poll`].
    pub fn poll(&mut self, ended: &mut Vec<EndedCommand>) {
        self.sleeper.disarm();
        self.send();
        self.take();
        if self.taken.is_empty() && self.is_asked.get() {
            self.sleeper.arm();
            self.take();
        }
        ended.append(&mut self.taken);
    }

    pub fn rest(&mut self) {
        self.sleeper.disarm();
    }

    /// As [`Controller::wait`].
    pub fn wait(&mut self, timeout: Option<Duration>) {
        self.send();
        self.take();
        if self.has_something() {
            return;
        }
        self.sleeper.arm();
        self.take();
        if self.has_something() {
            return;
        }
        is_readable_within(self.sleeper.fd(), timeout);
    }

    pub fn event_fd(&self) -> RawFd {
        // Whoever asks for the first time may sleep without another poll.
        if !self.is_asked.replace(true) && self.in_flight > 0 {
            self.sleeper.raise();
        }
        self.sleeper.fd()
    }

    /// Tells the thread of what was submitted.
    fn send(&mut self) {
        if std::mem::take(&mut self.is_unsent) && self.thread.wake() {
            self.counters.woke_drive();
        }
    }

    fn take(&mut self) {
        while let Ok(ended) = self.ended.pop() {
            self.taken.push(ended);
            self.in_flight -= 1;
        }
        let is_gone = self.in_flight > 0 && self.ended.is_abandoned() && self.ended.is_empty();
        assert!(!is_gone, "the drive's thread has panicked with commands in flight");
    }

    fn has_something(&self) -> bool {
        self.in_flight == 0 || !self.taken.is_empty()
    }
}

impl Drop for RemoteController {
    fn drop(&mut self) {
        self.thread.detach(self.number);
    }
}
