//! A queue pair: commands one way, completions the other, and a limit on how many are in flight.
//!
//! 1. Every command in flight holds one of the pair's [`CREDITS`]; polling its completion returns the credit. Without one,
//!    [`QueuePair::submit`] returns [`QueueFull`] and has done nothing.
//! 2. The pair alone owns the [`Lease`] of every command in flight. The lease leaves with the completion, or is dropped after the
//!    controller, whose drop waits for the drive.
//! 3. It belongs to the process that made it. In a forked child it takes no commands, gives no completions, and waits for nothing.

use super::far::FarController;
use super::lease_table::LeaseTable;
use super::remote::RemoteController;
use super::{Drive, Lease, Returned};
use crate::counters::QueueCounters;
use crate::device::{Controller, EndedCommand};
use crate::memory::PairMemory;
use crate::process::OfProcess;
use crate::protocol::{CREDITS, Command, LeasedRanges, LocalRange, Operation};
use std::fmt;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::time::Duration;

/// All of a queue pair's credits are in use: `poll`, and submit again.
#[derive(Debug)]
pub struct QueueFull {
    /// The lease of the command, returned.
    pub lease: Lease,
}

impl fmt::Display for QueueFull {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{CREDITS} commands are in flight on this queue pair: take completions before the next command")
    }
}

impl std::error::Error for QueueFull {}

/// The thread on which the device half of a queue pair runs.
pub(super) enum PairController {
    /// On the thread that polls the queue pair.
    Here(Controller),
    OnDriveThread(RemoteController),
    InOtherProcess(FarController),
}

impl PairController {
    /// `written`: what a drive in another process is yet to have of the lease.
    ///
    /// # Safety
    /// As [`Controller::submit`] and [`RemoteController::submit`].
    unsafe fn submit(&mut self, command: Command, slot: u32, leased: &LeasedRanges, written: &[LocalRange]) {
        match self {
            // SAFETY: by our caller's word.
            PairController::Here(controller) => unsafe { controller.submit(command, slot, leased) },
            // SAFETY: by our caller's word.
            PairController::OnDriveThread(remote) => unsafe { remote.submit(command, slot, leased) },
            PairController::InOtherProcess(far) => far.submit(command, slot, leased, written),
        }
    }

    fn poll(&mut self, ended: &mut Vec<EndedCommand>) {
        match self {
            PairController::Here(controller) => controller.poll(ended),
            PairController::OnDriveThread(remote) => remote.poll(ended),
            PairController::InOtherProcess(far) => far.poll(ended),
        }
    }

    /// To be called when nothing is in flight: clears the descriptor.
    fn rest(&mut self) {
        match self {
            PairController::Here(controller) => controller.rest(),
            PairController::OnDriveThread(remote) => remote.rest(),
            PairController::InOtherProcess(far) => far.rest(),
        }
    }

    fn wait(&mut self, timeout: Option<Duration>) {
        match self {
            PairController::Here(controller) => controller.wait(timeout),
            PairController::OnDriveThread(remote) => remote.wait(timeout),
            PairController::InOtherProcess(far) => far.wait(timeout),
        }
    }

    fn steps(&self) -> u64 {
        match self {
            PairController::Here(controller) => controller.steps(),
            // The caller checks the descriptor as well.
            PairController::OnDriveThread(_) => 0,
            PairController::InOtherProcess(far) => far.controller().map_or(0, Controller::steps),
        }
    }

    /// Whether units of the drive are running its pipelines.
    fn is_computing(&self) -> bool {
        match self {
            PairController::Here(controller) => controller.is_computing(),
            // The caller checks the descriptor as well.
            PairController::OnDriveThread(_) => false,
            PairController::InOtherProcess(far) => far.controller().is_some_and(Controller::is_computing),
        }
    }

    fn is_ready(&self) -> bool {
        match self {
            PairController::Here(controller) => controller.is_ready(),
            // The drive's thread makes the progress.
            PairController::OnDriveThread(_) => false,
            PairController::InOtherProcess(far) => far.controller().is_some_and(Controller::is_ready),
        }
    }

    fn event_fd(&self) -> Option<RawFd> {
        match self {
            PairController::Here(controller) => controller.event_fd(),
            PairController::OnDriveThread(remote) => Some(remote.event_fd()),
            PairController::InOtherProcess(far) => far.event_fd(),
        }
    }
}

/// Submits commands to one drive, and takes completions. Dropping it waits for the commands in flight.
pub struct QueuePair {
    // First, so that it is dropped before anything its commands use; the drop waits for those commands.
    controller: OfProcess<PairController>,
    leases: OfProcess<LeaseTable>,
    ended: Vec<EndedCommand>,
    /// The ranges of the command that is being submitted; see [`PairController::submit`].
    written: Vec<LocalRange>,
    drive: Drive,
    memory: PairMemory,
    pub(super) counters: Arc<QueueCounters>,
}

impl QueuePair {
    pub(super) fn new(
        controller: PairController,
        drive: Drive,
        memory: PairMemory,
        counters: Arc<QueueCounters>,
    ) -> QueuePair {
        let (controller, leases) = (OfProcess::new(controller), OfProcess::new(LeaseTable::default()));
        QueuePair { controller, leases, ended: Vec::new(), written: Vec::new(), drive, memory, counters }
    }

    /// Takes a command and its lease; never blocks, but for a drive in another process that is behind by more than a ring. An invalid command
    /// ends with a completion that says so; so does one with a range that does not lie wholly inside one buffer, part or sealed range of the lease ([`Status::OutsideLease`](crate::Status::OutsideLease)).
    /// Flash commands start at the next `poll` or `wait`, and programs run in `poll`.
    ///
    /// # Errors
    /// [`QueueFull`], when [`CREDITS`] commands are in flight, and in a forked child.
    pub fn submit(&mut self, command: Command, lease: Lease) -> Result<(), QueueFull> {
        if self.credits() == 0 || !self.is_here() {
            return Err(QueueFull { lease });
        }
        let mut lease = lease;
        if self.drive.is_elsewhere() {
            self.written.clear();
            lease.take_written(&mut self.written);
        }
        let slot = self.leases.begin(lease);
        self.counters.submitted(command.purpose);
        let leased = self.leases.lease(slot).ranges_in(&self.memory);
        self.counters.depth(self.in_flight() as u64);
        // SAFETY: these ranges are of buffers of this local memory that we own, and keep until the end of the command or of the controller,
        // so nobody else can reach them. Sealed ranges are not written by anybody while we hold the lease, and the drive only reads that
        // region.
        unsafe { self.controller.submit(command, slot, &leased, &self.written) };
        Ok(())
    }

    /// Submits a `Flush`.
    ///
    /// # Errors
    /// As [`QueuePair::submit`].
    pub fn submit_flush(&mut self, tag: u64) -> Result<(), QueueFull> {
        self.submit(Command::new(tag, Operation::Flush), Lease::Nothing)
    }

    /// Starts submitted commands, runs programs whose reads have completed, and appends ended commands with their leases. Returns how many.
    /// Never blocks. The order is the drive's choice.
    pub fn poll(&mut self, returned: &mut Vec<Returned>) -> usize {
        if !self.is_here() {
            return 0;
        }
        if self.in_flight() == 0 {
            self.controller.rest();
            return 0;
        }
        self.controller.poll(&mut self.ended);
        if self.ended.is_empty() {
            return 0;
        }
        let count = self.ended.len();
        let leases = &mut *self.leases;
        returned.extend(self.ended.drain(..).map(|ended| leases.end(ended)));
        self.counters.depth(self.in_flight() as u64);
        count
    }

    /// Blocks until `poll` has something, the timeout ends, or nothing is in flight. May return early for no reason.
    pub fn wait(&mut self, timeout: Option<Duration>) {
        if self.is_here() {
            self.controller.wait(timeout);
        }
    }

    /// Waits until everything submitted has ended, and drops the completions.
    pub fn drain(&mut self) {
        self.drain_into(&mut Vec::new());
    }

    /// Like [`QueuePair::drain`], but appends the completions.
    pub fn drain_into(&mut self, returned: &mut Vec<Returned>) {
        while self.in_flight() > 0 && self.is_here() {
            self.wait(Some(Duration::from_millis(10)));
            let before = (self.in_flight(), self.controller.steps());
            self.poll(returned);
            let is_still = (self.in_flight(), self.controller.steps()) == before && !self.controller.is_computing();
            if is_still && self.event_fd().is_none() {
                // A simulated drive whose power was cut never answers, and never writes either.
                return;
            }
        }
    }

    /// Whether this process made it, rather than a process that this one was forked from.
    pub fn is_here(&self) -> bool {
        self.controller.is_here()
    }

    /// Whether another `poll` would make progress at once: the steps of a poll are bounded, and pipelines may take many. Check this before
    /// sleeping on the descriptor.
    pub fn is_ready(&self) -> bool {
        self.is_here() && self.controller.is_ready()
    }

    /// A descriptor, for `epoll`, that is readable while there are flash completions, or pipelines have ended on compute units. Before
    /// sleeping on it, `poll` until that gives nothing: it reports neither refused commands nor commands that have not started. `None` if
    /// there is no such descriptor: keep polling.
    pub fn event_fd(&self) -> Option<RawFd> {
        self.is_here().then(|| self.controller.event_fd()).flatten()
    }

    /// Commands submitted whose completions `poll` has not given yet.
    pub fn in_flight(&self) -> usize {
        self.leases.in_flight()
    }

    /// How many more commands may be submitted now.
    pub fn credits(&self) -> usize {
        CREDITS - self.in_flight()
    }

    pub fn drive(&self) -> &Drive {
        &self.drive
    }
}

impl Drop for QueuePair {
    fn drop(&mut self) {
        // Commands in flight end with the controller, and nobody polls them afterwards.
        if self.is_here() {
            self.counters.depth(0);
        }
    }
}
