//! A controller in a drive's process, as its queue pair sees it: two rings in memory that both have.
//!
//! The host checks what the drive says: an end is of a command that is on its way, and of each once. When the connection ends, the commands
//! on their way end with ENODEV; what the drive had put into the ring before counts ([`OnTheirWay`]).

use super::across::PeerAcross;
use super::attached::{AttachedMemory, Attachment};
use super::on_their_way::OnTheirWay;
use crate::counters::QueueCounters;
use crate::device::far_host::FarShape;
use crate::device::{Controller, EndedCommand};
use crate::event::{Event, is_readable_within};
use crate::link::frame::{Frame, Kind};
use crate::link::ring::{RingPutter, RingTaker};
use crate::link::submission::{
    DRIVE_LISTENS_AT, END_WORDS, ENDS_AT, HOST_LISTENS_AT, PAIR_BYTES, SUBMISSION_WORDS, SUBMISSIONS_AT, Submission,
    WRITTEN_MAX,
};
use crate::memory::SharedFile;
use crate::protocol::{Command, LeasedRanges, LocalRange};
use crate::wakeup::{Sleeper, Waker};
use std::cell::Cell;
use std::io;
use std::os::fd::{OwnedFd, RawFd};
use std::sync::Arc;
use std::time::Duration;

/// Looks for an end before a wait sleeps: a drive that polls too answers within them.
const POLLS: u32 = 1000;

/// What is at the other end of the rings.
enum Peer {
    Process {
        attachment: Arc<Attachment>,
        /// The drive's number of the queue pair.
        pair: u64,
    },
    /// The simulator's, on this thread.
    Across(Box<PeerAcross>),
}

impl Peer {
    fn is_lost(&self) -> bool {
        match self {
            Peer::Process { attachment, .. } => attachment.is_lost(),
            Peer::Across(peer) => peer.is_lost(),
        }
    }

    /// It does not keep to the form: nothing more that it says counts.
    fn break_off(&mut self, how: &str) {
        match self {
            Peer::Process { attachment, .. } => attachment.break_off(how),
            Peer::Across(peer) => peer.lose(),
        }
    }

    /// Gives one on this thread a round.
    fn advance(&mut self) {
        if let Peer::Across(peer) = self {
            peer.advance();
        }
    }
}

pub(super) struct FarController {
    peer: Peer,
    submissions: RingPutter<SUBMISSION_WORDS>,
    ends: RingTaker<END_WORDS>,
    sleeper: Sleeper,
    drive: Waker,
    commands: OnTheirWay,
    counters: Arc<QueueCounters>,
    /// Somebody may sleep on the descriptor.
    is_asked: Cell<bool>,
    /// Commands were submitted that the drive was not told of.
    is_unsent: bool,
    /// The drive did not keep to the form: what the ring has counts no more.
    is_broken: bool,
}

impl FarController {
    /// `None`: the drive has no room for the parts.
    pub fn open(
        memory: &AttachedMemory,
        region: Option<&SharedFile>,
        shape: FarShape,
        counters: Arc<QueueCounters>,
    ) -> io::Result<Option<FarController>> {
        let shared = SharedFile::new("tapetum-pair", PAIR_BYTES)?;
        let region_bytes = region.map_or(0, SharedFile::bytes) as u64;
        let FarShape { depth, part_bytes, parts_needed } = shape;
        let numbers = [memory.number, depth.into(), part_bytes.into(), parts_needed.into(), region_bytes];
        let files: Vec<_> = [shared.file()].into_iter().chain(region.map(SharedFile::file)).collect();
        let attachment = memory.attachment.clone();
        let answer = attachment.ask(Frame::new(Kind::Pair, numbers), &files)?;
        let pair = answer.numbers[0];
        if pair == 0 {
            return Ok(None);
        }
        let Ok(events) = <[_; 2]>::try_from(answer.files) else {
            return Err(io::Error::other("the drive sent no events"));
        };
        let made = FarController::new(shared, events, Peer::Process { attachment: attachment.clone(), pair }, counters);
        attachment.wake_at_end(pair, made.sleeper.waker());
        Ok(Some(made))
    }

    /// One whose other end is on this thread.
    pub fn across(
        shared: SharedFile,
        events: [OwnedFd; 2],
        peer: Box<PeerAcross>,
        counters: Arc<QueueCounters>,
    ) -> FarController {
        FarController::new(shared, events, Peer::Across(peer), counters)
    }

    /// `events`: raised for the drive, and for this host.
    fn new(
        shared: SharedFile,
        [drive_event, host_event]: [OwnedFd; 2],
        peer: Peer,
        counters: Arc<QueueCounters>,
    ) -> FarController {
        let shared = Arc::new(shared);
        FarController {
            peer,
            submissions: RingPutter::new(shared.clone(), SUBMISSIONS_AT),
            ends: RingTaker::new(shared.clone(), ENDS_AT),
            sleeper: Sleeper::of_peer(shared.clone(), HOST_LISTENS_AT, Event::of_other(host_event)),
            drive: Waker::of_peer(shared, DRIVE_LISTENS_AT, Event::of_other(drive_event)),
            commands: OnTheirWay::default(),
            counters,
            is_asked: Cell::new(false),
            is_unsent: false,
            is_broken: false,
        }
    }

    /// Takes a command, and what of its lease the host has written since a command had it. It is copied by the drive, which checks
    /// everything: so this is safe, other than the submission to a controller in this process.
    pub fn submit(&mut self, command: Command, slot: u32, leased: &LeasedRanges, written: &[LocalRange]) {
        self.commands.begin(slot, command.tag);
        self.is_unsent = true;
        let (before, last) = written.split_at((written.len().saturating_sub(1)) / WRITTEN_MAX * WRITTEN_MAX);
        let submission = |command, ranges: &[LocalRange]| {
            let mut written = [LocalRange::EMPTY; WRITTEN_MAX];
            written[..ranges.len()].copy_from_slice(ranges);
            Submission { command, slot, leased: *leased, written, written_count: ranges.len() }
        };
        for ranges in before.chunks(WRITTEN_MAX) {
            self.put(&submission(None, ranges));
        }
        self.put(&submission(Some(command), last));
    }

    /// Waits for a place in the ring, which the drive empties at once.
    fn put(&mut self, submission: &Submission) {
        let entry = submission.encode();
        while !self.peer.is_lost() {
            match self.submissions.put(&entry) {
                Ok(true) => return,
                Ok(false) => {
                    self.drive.wake();
                    self.peer.advance();
                    std::thread::yield_now();
                }
                Err(_) => self.peer.break_off("its ring of commands has a count that cannot be"),
            }
        }
    }

    /// As [`Controller::poll`](crate::device::Controller::poll).
    pub fn poll(&mut self, ended: &mut Vec<EndedCommand>) {
        self.sleeper.disarm();
        self.send();
        self.take();
        if self.commands.ended().is_empty() && self.is_asked.get() {
            self.sleeper.arm();
            self.take();
        }
        ended.append(self.commands.ended());
    }

    pub fn rest(&mut self) {
        self.sleeper.disarm();
        self.peer.advance();
        if self.peer.is_lost() {
            self.sleeper.clear();
        }
    }

    /// As [`Controller::wait`](crate::device::Controller::wait).
    pub fn wait(&mut self, timeout: Option<Duration>) {
        self.send();
        if let Peer::Across(peer) = &mut self.peer {
            peer.wait(timeout);
            return self.take();
        }
        for _ in 0..POLLS {
            self.take();
            if self.has_something() {
                return;
            }
            std::hint::spin_loop();
        }
        self.sleeper.arm();
        self.take();
        if self.has_something() {
            return;
        }
        is_readable_within(self.sleeper.fd(), timeout);
    }

    /// The controller, if it is on this thread.
    pub fn controller(&self) -> Option<&Controller> {
        match &self.peer {
            Peer::Process { .. } => None,
            Peer::Across(peer) => Some(peer.controller()),
        }
    }

    /// `None`: the caller must keep polling.
    pub fn event_fd(&self) -> Option<RawFd> {
        if let Peer::Across(_) = self.peer {
            return None;
        }
        // Whoever asks for the first time may sleep without another poll.
        if !self.is_asked.replace(true) && self.commands.count() > 0 {
            self.sleeper.raise();
        }
        Some(self.sleeper.fd())
    }

    /// Tells the drive of what was submitted.
    fn send(&mut self) {
        if std::mem::take(&mut self.is_unsent) && self.drive.wake() {
            self.counters.woke_drive();
        }
    }

    fn take(&mut self) {
        self.peer.advance();
        // Looked at first: then what the ring has is all that there will be.
        let is_lost = self.peer.is_lost();
        if !self.is_broken
            && let Err(how) = self.commands.take_from(&mut self.ends)
        {
            self.is_broken = true;
            self.peer.break_off(&how);
        }
        if is_lost {
            self.commands.end_all(libc::ENODEV);
        }
    }

    fn has_something(&mut self) -> bool {
        self.commands.count() == 0 || !self.commands.ended().is_empty()
    }
}

impl Drop for FarController {
    fn drop(&mut self) {
        // One on this thread ends with its controller.
        if let Peer::Process { attachment, pair } = &self.peer {
            attachment.close_pair(*pair);
        }
    }
}
