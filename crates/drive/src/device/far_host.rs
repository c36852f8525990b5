//! The end of a queue pair whose host is another process: its commands are copied, checked and claimed before a controller sees them.
//!
//! The drive believes nothing that the host writes: a submission without meaning ends with a status, one that breaks the form of the ring
//! ends the connection, and until then the drive has done nothing with it. Of the host's local memory, each sector is with one command
//! at most ([`Claims`]), so that no program reads what flash is writing.

use super::claims::Claims;
use super::shares::Share;
use super::threads::{AttachedController, SubmittedCommand};
use super::{Controller, Device, EndedCommand};
use crate::event::Event;
use crate::link::ring::{PLACES, RingPutter, RingTaker};
use crate::link::submission::{
    DRIVE_LISTENS_AT, END_WORDS, ENDS_AT, HOST_LISTENS_AT, SUBMISSION_WORDS, SUBMISSIONS_AT, Submission,
    SubmissionError, encode_end,
};
use crate::memory::{HostRegion, LocalMemory, PairMemory, SharedFile};
use crate::protocol::{
    CREDITS, Completion, LEASED_RANGES_MAX, LeasedRanges, LocalRange, MemoryAddress, Operation, RegionId, Status,
};
use crate::wakeup::{Sleeper, Waker};
use rustix::net::Shutdown;
use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, OwnedFd, RawFd};
use std::sync::Arc;

const DEPTH_MAX: u32 = 4096;
/// Bytes that pipelines of a queue pair may take at a time.
const PART_BYTES_MAX: u32 = 16 << 20;
const NOTHING: LeasedRanges = LeasedRanges { region: RegionId::LOCAL, ranges: [LocalRange::EMPTY; LEASED_RANGES_MAX] };

/// The memory of one host's drive: all its queue pairs share it.
pub(crate) struct FarMemory {
    pub local: LocalMemory,
    /// The host writes here what is to come into local memory, at the same place.
    pub window: SharedFile,
    pub claims: Claims,
    /// The host does not see local memory: results are copied to the window.
    pub copies_results: bool,
}

impl FarMemory {
    /// New local memory of `bytes`, of which the first `host_blocks` are the host's, and the file by which that reads them.
    ///
    /// # Errors
    /// The operating system's.
    pub fn new(window: SharedFile, host_blocks: u32, bytes: usize) -> io::Result<(Arc<FarMemory>, OwnedFd)> {
        let file = Arc::new(SharedFile::read_by_others("tapetum-local", bytes)?);
        let given = file.file().try_clone_to_owned()?;
        let local = LocalMemory::shared_with_host(file, host_blocks);
        let claims = Claims::new(host_blocks);
        Ok((Arc::new(FarMemory { local, window, claims, copies_results: false }), given))
    }

    /// As [`FarMemory::new`], of memory that the host does not see. The window is mapped to be written.
    ///
    /// # Errors
    /// The operating system's.
    pub fn hidden(window: SharedFile, host_blocks: u32, bytes: usize) -> io::Result<Arc<FarMemory>> {
        let local = LocalMemory::beside_host(bytes, host_blocks)?;
        Ok(Arc::new(FarMemory { local, window, claims: Claims::new(host_blocks), copies_results: true }))
    }

    /// A command has ended that may have written these ranges, which are still claimed.
    fn copy_results(&self, results: &LeasedRanges) {
        let ranges = results.ranges.iter().filter(|range| range.length > 0 && results.region == RegionId::LOCAL);
        for range in ranges {
            let Some(from) = self.local.pointer(*range) else { unreachable!("it was claimed") };
            // SAFETY: the command has ended, and nobody else has the range. The window is as long as the host's part of local memory.
            unsafe { self.window.copy_in(range.offset, range.length, from) };
        }
    }
}

/// The memory and events of one queue pair, and the socket over which its host asked for it.
pub(crate) struct FarPair {
    pub memory: Arc<FarMemory>,
    pub host: Option<HostRegion>,
    pub shared: Arc<SharedFile>,
    /// Raised for the drive, and for the host.
    pub events: [Event; 2],
    pub socket: Arc<OwnedFd>,
    /// Its host's share in a drive that has several.
    pub share: Option<Arc<Share>>,
}

/// Options of a queue pair.
#[derive(Clone, Copy)]
pub(crate) struct FarShape {
    pub depth: u32,
    /// Bytes that its pipelines take at a time; 0: as the drive likes.
    pub part_bytes: u32,
    /// Memory for these is taken at once.
    pub parts_needed: bool,
}

impl FarPair {
    /// Those of a new queue pair, and the events for its host.
    ///
    /// # Errors
    /// The operating system's.
    pub fn new(
        memory: Arc<FarMemory>,
        host: Option<HostRegion>,
        shared: SharedFile,
        socket: Arc<OwnedFd>,
    ) -> io::Result<(FarPair, [OwnedFd; 2])> {
        let (events, shared) = ([Event::new()?, Event::new()?], Arc::new(shared));
        let [drive, host_event] = events.each_ref().map(|event| event.as_fd().try_clone_to_owned());
        let given = [drive?, host_event?];
        Ok((FarPair { memory, host, shared, events, socket, share: None }, given))
    }

    /// With a share of its host's.
    pub fn of_share(self, share: Arc<Share>) -> FarPair {
        FarPair { share: Some(share), ..self }
    }

    /// Its controller over `device`. `None`: there is no room for the parts.
    ///
    /// # Errors
    /// The operating system's.
    pub fn open(self, device: &Arc<Device>, shape: FarShape, number: usize) -> io::Result<Option<AttachedController>> {
        let FarShape { depth, part_bytes, parts_needed } = shape;
        let pair_memory = PairMemory { local: self.memory.local.clone(), host: self.host.clone() };
        let queue = device.flash.open_queue_of_one_thread(&pair_memory, depth.clamp(1, DEPTH_MAX))?;
        let mut controller = Controller::new(device.clone(), queue, self.host.clone(), device.counters.free())?;
        if part_bytes > 0 {
            controller.take_parts_of(part_bytes.min(PART_BYTES_MAX));
        }
        if parts_needed && !controller.make_engine() {
            return Ok(None);
        }
        Ok(Some(AttachedController::of_other_process(controller, number, self)))
    }
}

#[derive(Clone)]
struct Claimed {
    leased: LeasedRanges,
    /// The part that the command may write.
    results: LeasedRanges,
}

impl Claimed {
    const NOTHING: Claimed = Claimed { leased: NOTHING, results: NOTHING };

    fn of(operation: &Operation, leased: LeasedRanges) -> Claimed {
        let one =
            |range| LeasedRanges { ranges: [range, LocalRange::EMPTY, LocalRange::EMPTY, LocalRange::EMPTY], ..leased };
        let results = match *operation {
            Operation::Write { .. } | Operation::Flush | Operation::Discard { .. } | Operation::Cancel { .. } => {
                NOTHING
            }
            Operation::Read { local: offset, length, .. } => one(LocalRange { offset, length }),
            Operation::Identify { into: range } | Operation::Execute { output: range, .. } => one(range),
            Operation::Pipeline { .. } | Operation::Compute { .. } => leased,
        };
        // One that names what it was not lent will be refused.
        let is_lent =
            |range: &LocalRange| range.length == 0 || leased.hold(MemoryAddress::local(range.offset), range.length);
        let results = if results.ranges.iter().all(is_lent) { results } else { NOTHING };
        Claimed { leased, results }
    }
}

pub(crate) struct FarHost {
    submissions: RingTaker<SUBMISSION_WORDS>,
    ends: RingPutter<END_WORDS>,
    sleeper: Sleeper,
    waker: Waker,
    memory: Arc<FarMemory>,
    host: Option<HostRegion>,
    /// By slot: what the command there has claimed. `None`: no command is there.
    claimed: Vec<Option<Claimed>>,
    /// Ends for which the ring had no room.
    waiting: VecDeque<EndedCommand>,
    socket: Arc<OwnedFd>,
    share: Option<Arc<Share>>,
    /// The next submission waits until the host may start one.
    is_held_back: bool,
    /// Submissions that may still be taken in this round: others have their turn, and the thread its mail.
    round_left: u32,
    is_broken: bool,
}

impl FarHost {
    pub fn new(pair: FarPair) -> FarHost {
        let FarPair { memory, host, shared, events: [event, host_event], socket, share } = pair;
        FarHost {
            submissions: RingTaker::new(shared.clone(), SUBMISSIONS_AT),
            ends: RingPutter::new(shared.clone(), ENDS_AT),
            sleeper: Sleeper::of_peer(shared.clone(), DRIVE_LISTENS_AT, event),
            waker: Waker::of_peer(shared, HOST_LISTENS_AT, host_event),
            memory,
            host,
            claimed: Vec::new(),
            waiting: VecDeque::new(),
            socket,
            share,
            is_held_back: false,
            round_left: 0,
            is_broken: false,
        }
    }

    /// Lets [`FarHost::take`] take as many submissions as the ring holds.
    pub fn begin_round(&mut self) {
        self.round_left = PLACES;
    }

    /// The next command. Those that mean nothing end here.
    pub fn take(&mut self) -> Option<SubmittedCommand> {
        while !self.is_broken && self.round_left > 0 {
            self.round_left -= 1;
            if !self.has_work() {
                return None;
            }
            let taken = match self.submissions.take() {
                Ok(Some(entry)) => Submission::decode(&entry),
                Ok(None) => return None,
                Err(broken) => Err(broken.into()),
            };
            match taken.and_then(|submission| self.accept(&submission)) {
                Ok(Some(command)) => return Some(command),
                Ok(None) => {}
                Err(SubmissionError::Refused { slot, tag, status }) => {
                    match self.place(slot) {
                        Some(place @ None) => *place = Some(Claimed::NOTHING),
                        _ => {
                            self.break_off();
                            continue;
                        }
                    }
                    self.share.iter().for_each(|share| share.start(0));
                    self.give(EndedCommand { slot, completion: Completion::new(tag, status) });
                    self.waker.wake();
                }
                Err(SubmissionError::Broken) => self.break_off(),
            }
        }
        None
    }

    /// `None`: there is nothing to run.
    fn accept(&mut self, submission: &Submission) -> Result<Option<SubmittedCommand>, SubmissionError> {
        let Submission { command, slot, leased, .. } = *submission;
        if self.place(slot).is_none_or(|place| place.is_some()) {
            return Err(SubmissionError::Broken);
        }
        let tag = command.map_or(0, |command| command.tag);
        let refused = |status| Err(SubmissionError::Refused { slot, tag, status });
        let is_there = match leased.region {
            RegionId::LOCAL => self.memory.claims.take(&leased),
            RegionId::HOST => leased.ranges.iter().all(|range| self.is_in_host(*range)),
            _ => false,
        };
        if !is_there {
            return refused(Status::OutsideLease);
        }
        let is_leased = |range: &LocalRange| {
            leased.region == RegionId::LOCAL && leased.hold(MemoryAddress::local(range.offset), range.length)
        };
        if !submission.written().iter().all(is_leased) {
            self.give_back(&leased);
            return refused(Status::OutsideLease);
        }
        submission.written().iter().for_each(|range| self.copy_in(*range));
        let Some(command) = command else {
            self.give_back(&leased);
            return Ok(None);
        };
        if let Some(place) = self.place(slot) {
            *place = Some(Claimed::of(&command.operation, leased));
        }
        self.share
            .iter()
            .for_each(|share| share.start(leased.ranges.iter().map(|range| u64::from(range.length)).sum()));
        Ok(Some(SubmittedCommand { command, slot, leased }))
    }

    fn copy_in(&self, range: LocalRange) {
        let Some(into) = self.memory.local.pointer(range) else { unreachable!("it was claimed") };
        // SAFETY: the window is as long as the host's part of local memory, in which the range is. Its blocks were claimed, and nobody has
        // been given them yet.
        unsafe { self.memory.window.copy_out(range.offset, range.length, into) };
    }

    fn is_in_host(&self, range: LocalRange) -> bool {
        range.length == 0 || self.host.as_ref().is_some_and(|host| host.pointer(range).is_some())
    }

    fn give_back(&self, leased: &LeasedRanges) {
        if leased.region == RegionId::LOCAL {
            self.memory.claims.give_back(leased);
        }
    }

    /// `None`: there is no such slot.
    fn place(&mut self, slot: u32) -> Option<&mut Option<Claimed>> {
        let slot = slot as usize;
        if slot < CREDITS && slot >= self.claimed.len() {
            self.claimed.resize(slot + 1, None);
        }
        self.claimed.get_mut(slot)
    }

    /// A command has ended: its memory is the host's again, and then it is told.
    pub fn give(&mut self, ended: EndedCommand) {
        let Some(Claimed { leased, results }) = self.claimed[ended.slot as usize].take() else {
            unreachable!("a command ended twice")
        };
        if self.memory.copies_results {
            self.memory.copy_results(&results);
        }
        self.give_back(&leased);
        self.share.iter().for_each(|share| share.end(1));
        self.waiting.push_back(ended);
        self.send();
        // An honest host has no more commands than credits, whose ends it has not taken.
        if self.waiting.len() > CREDITS {
            self.break_off();
        }
    }

    /// Puts ends into the ring, as far as it has room. Returns whether it did.
    pub fn send(&mut self) -> bool {
        let before = self.waiting.len();
        while let Some(EndedCommand { slot, completion }) = self.waiting.front()
            && !self.is_broken
        {
            match self.ends.put(&encode_end(*slot, completion)) {
                Ok(true) => drop(self.waiting.pop_front()),
                Ok(false) => break,
                Err(_) => self.break_off(),
            }
        }
        self.waiting.len() < before
    }

    /// It must look again soon: the host does not tell when it has taken its ends, and another host may be stuck that was to go first.
    pub fn must_look_again(&self) -> bool {
        (!self.waiting.is_empty() || self.is_held_back) && !self.is_broken
    }

    fn is_empty(&mut self) -> bool {
        self.is_broken || self.submissions.is_empty().unwrap_or(false)
    }

    fn may_start(&self) -> bool {
        self.share.as_ref().is_none_or(|share| share.may_start())
    }

    /// Whether there is a submission that may be taken now.
    pub fn has_work(&mut self) -> bool {
        let is_there = !self.is_empty();
        self.is_held_back = is_there && !self.may_start();
        is_there && !self.is_held_back
    }

    /// The share, while other hosts have some.
    pub fn share(&self) -> Option<&Arc<Share>> {
        self.share.as_ref().filter(|share| share.is_shared())
    }

    pub fn is_broken(&self) -> bool {
        self.is_broken
    }

    /// Whether the host slept.
    pub fn wake(&self) -> bool {
        self.waker.wake()
    }

    pub fn sleeper(&self) -> &Sleeper {
        &self.sleeper
    }

    pub fn fd(&self) -> RawFd {
        self.sleeper.fd()
    }

    /// Ends the connection: whoever has the socket sees its end, and drops the queue pair.
    fn break_off(&mut self) {
        if !std::mem::replace(&mut self.is_broken, true) {
            tracing::warn!("a host does not keep to the form of its rings: its connection is ended");
            // If it has ended already, so much the better.
            let _ = rustix::net::shutdown(&*self.socket, Shutdown::Both);
        }
    }
}

impl Drop for FarHost {
    /// The controller is gone, and what it had on its way with it: other queue pairs may have its memory.
    fn drop(&mut self) {
        self.claimed.iter().flatten().for_each(|claimed| self.give_back(&claimed.leased));
        let left = self.claimed.iter().flatten().count();
        self.share.iter().for_each(|share| share.end(left as u32));
        if std::thread::panicking() {
            // The host would wait for ever.
            self.break_off();
        }
    }
}
