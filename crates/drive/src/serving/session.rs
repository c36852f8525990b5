//! One host's connection: what it asks is answered in order, and when it ends, what it had on its way is drained before anything of it is
//! anybody else's.
//!
//! Threads: one for its questions, one for its commands; a host that stops the second stops nobody but itself.

use super::partition_flash::PartitionFlash;
use super::partitions::{Partition, PartitionError};
use super::{Holder, Service};
use crate::cpu::DriveUsage;
use crate::device::far_host::{FarMemory, FarPair, FarShape};
use crate::device::shares::Share;
use crate::device::threads::{DriveThread, DriveThreads};
use crate::device::{Device, programs};
use crate::fail_point;
use crate::flash::{Flash, Size};
use crate::link::VERSION;
use crate::link::frame::{AGAIN, CREATE, Frame, Kind, Refusal, TAKE_OVER};
use crate::link::submission::PAIR_BYTES;
use crate::locks::whole;
use crate::memory::{BLOCK_BYTES, HostRegion, SharedFile};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::net::Shutdown;
use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

/// Memories and queue pairs of one host.
const MEMORIES_MAX: usize = 16;
const PAIRS_MAX: usize = 1024;
/// How long a host waits until another one's commands have ended.
const DRAIN_MAX: Duration = Duration::from_secs(60);

pub(super) struct Session {
    service: Arc<Service>,
    socket: Arc<OwnedFd>,
    user: u32,
    process: i32,
    partition: Option<Arc<PartitionFlash>>,
    name: String,
    pairs: BTreeMap<u64, (DriveThread, usize)>,
    memories: BTreeMap<u64, SessionMemory>,
    numbers: u64,
    threads: Option<DriveThreads>,
    share: Option<Arc<Share>>,
}

struct SessionMemory {
    device: Arc<Device>,
    memory: Arc<FarMemory>,
    /// Bytes that it has of its service's budget.
    bytes: u64,
}

/// An answer, and the files that go with it; or why not.
type Answer = Result<(Frame, Vec<OwnedFd>), Frame>;

fn done<const N: usize>(numbers: [u64; N]) -> Answer {
    Ok((Frame::new(Kind::Done, numbers), Vec::new()))
}

fn refused(why: impl Into<Vec<u8>>) -> Frame {
    Frame::refused(Refusal::Other, 0, why)
}

fn failed(error: io::Error) -> Frame {
    refused(error.to_string())
}

impl Session {
    pub fn new(service: Arc<Service>, socket: OwnedFd) -> io::Result<Session> {
        let peer = rustix::net::sockopt::socket_peercred(&socket)?;
        Ok(Session {
            service,
            socket: Arc::new(socket),
            user: peer.uid.as_raw(),
            process: peer.pid.as_raw_nonzero().get(),
            partition: None,
            name: String::new(),
            pairs: BTreeMap::new(),
            memories: BTreeMap::new(),
            numbers: 0,
            threads: None,
            share: None,
        })
    }

    /// Ends it, from another thread.
    pub fn socket(&self) -> &Arc<OwnedFd> {
        &self.socket
    }

    /// Answers until the host ends.
    pub fn run(mut self) {
        loop {
            let frame = match Frame::receive(&*self.socket) {
                Ok(Some(frame)) => frame,
                Ok(None) => return,
                Err(error) => {
                    tracing::warn!("the connection of process {} is ended: {error}", self.process);
                    return;
                }
            };
            let sent = match self.answer(frame) {
                Ok((answer, files)) => {
                    let files: Vec<BorrowedFd<'_>> = files.iter().map(AsFd::as_fd).collect();
                    answer.send(&*self.socket, &files)
                }
                Err(refusal) => refusal.send(&*self.socket, &[]),
            };
            if sent.is_err() {
                return;
            }
        }
    }

    fn answer(&mut self, frame: Frame) -> Answer {
        match frame.kind {
            Kind::Attach => self.attach(&frame),
            Kind::Memory => self.take_memory(frame),
            Kind::Pair => self.open_pair(frame),
            Kind::Unpair => self.close_pair(frame.numbers[0]),
            Kind::Grow => self.grow(frame.numbers[0]),
            Kind::Made => self.say_made(),
            Kind::Counters => {
                let counters = self.memory(frame.numbers[0])?.device.counters.snapshot().encode();
                let DriveUsage { cpu_us, resident_bytes } = DriveUsage::of_this_process();
                Ok((Frame::new(Kind::Done, [cpu_us, resident_bytes]).with_text(counters), Vec::new()))
            }
            Kind::Forget => {
                if Arc::strong_count(&self.memory(frame.numbers[0])?.memory) > 1 {
                    return Err(refused("the local memory has queue pairs: close them first"));
                }
                if let Some(memory) = self.memories.remove(&frame.numbers[0]) {
                    self.service.give_memory(memory.bytes);
                }
                done([])
            }
            Kind::Refused | Kind::Done => Err(refused("an answer was sent where a question was expected")),
        }
    }

    fn attach(&mut self, frame: &Frame) -> Answer {
        let [version, flags, bytes, host, ..] = frame.numbers;
        if version != VERSION {
            let why = format!("the drive speaks version {VERSION} and its host {version}: run the same one on both");
            return Err(Frame::refused(Refusal::Version, VERSION, why));
        }
        if self.partition.is_some() {
            return Err(refused("this connection has a partition: open another one"));
        }
        let name = frame.shown_text();
        let mut state = whole(self.service.state.lock());
        if state.find(&name).is_none() {
            if flags & CREATE == 0 {
                let why = format!("the drive has no partition {name}");
                return Err(Frame::refused(Refusal::NotFound, 0, why));
            }
            state.make(&name, bytes, self.user).map_err(|error| partition_error(&name, error))?;
        }
        let found = state.find(&name).ok_or_else(|| partition_error(&name, PartitionError::NotFound))?;
        let (namespace, Partition { owner, .. }) = found;
        if owner != self.user && self.user != 0 {
            return Err(refused(format!("partition {name} is of user {owner}, and this is user {}", self.user)));
        }
        while let Some(holder) = state.holders.get(&name) {
            if flags & TAKE_OVER != 0 {
                // It may have ended already.
                let _ = rustix::net::shutdown(&*holder.socket, Shutdown::Both);
            } else if !has_ended(&holder.socket) {
                let why = format!(
                    "partition {name} is in use by process {}: stop that, or take it over (--take-over)",
                    holder.process
                );
                return Err(Frame::refused(Refusal::InUse, 0, why));
            }
            let (waited, timeout) = self.service.wait_freed(state, DRAIN_MAX);
            state = waited;
            if timeout && state.holders.contains_key(&name) {
                let why = format!("the commands of the host that had partition {name} have not ended: try again later");
                return Err(Frame::refused(Refusal::InUse, 0, why));
            }
        }
        // Looked at now: the host before may have grown it, and another one may have had it meanwhile.
        let is_its_own = state.find(&name).is_some_and(|(_, partition)| partition.host == host);
        if flags & AGAIN != 0 && !is_its_own && !fail_point!(EpochUnchecked) {
            return Err(refused(format!("another host has had partition {name} since: start anew to attach it again")));
        }
        let next = |partition: &mut Partition| (partition.epoch, partition.host) = (partition.epoch + 1, host);
        let changed = state.table(&name).and_then(|table| table.change(&name, next));
        let changed = changed.map_err(|error| partition_error(&name, error))?;
        let Partition { epoch, is_made, start, length, .. } = changed;
        let holder = Holder { socket: self.socket.clone(), process: self.process };
        state.holders.insert(name.clone(), holder);
        drop(state);
        tracing::info!("process {} has partition {name} ({}), in its epoch {epoch}", self.process, Size(length));
        let flash = PartitionFlash::new(&self.service.namespaces[namespace], &name, start, length);
        let (sector, atomic) = (u64::from(flash.sector_bytes()), u64::from(flash.atomic_write_bytes()));
        let answer = Frame::new(Kind::Done, [length, sector, atomic, epoch, u64::from(is_made)]);
        let answer = answer.with_text(flash.describe());
        (self.partition, self.name) = (Some(Arc::new(flash)), name);
        Ok((answer, Vec::new()))
    }

    fn take_memory(&mut self, frame: Frame) -> Answer {
        let flash = self.partition.clone().ok_or_else(|| refused("attach a partition first"))?;
        let host_bytes = frame.numbers[0];
        let blocks = u32::try_from(host_bytes / BLOCK_BYTES as u64).unwrap_or(0);
        if blocks == 0 || !host_bytes.is_multiple_of(BLOCK_BYTES as u64) {
            return Err(refused(format!("{host_bytes} bytes of local memory: ask for whole blocks of {BLOCK_BYTES}")));
        }
        if self.memories.len() == MEMORIES_MAX {
            return Err(refused(format!("a host has {MEMORIES_MAX} local memories at most: give some back")));
        }
        // For what its pipelines keep: in one process, that is a part of what the store reckons for itself.
        let own_bytes = (host_bytes / 4).next_multiple_of(BLOCK_BYTES as u64).max(super::PIPELINES_BYTES_MIN);
        let bytes = host_bytes.saturating_add(own_bytes);
        // The drive fills the window too, of one to which it copies.
        let budget_bytes = bytes.saturating_add(if self.copies_results() { host_bytes } else { 0 });
        self.service.take_memory(budget_bytes).map_err(refused)?;
        let made = self.make_memory(flash, frame, blocks, (bytes, budget_bytes));
        if made.is_err() {
            self.service.give_memory(budget_bytes);
        }
        made
    }

    fn make_memory(
        &mut self,
        flash: Arc<PartitionFlash>,
        frame: Frame,
        blocks: u32,
        (bytes, budget_bytes): (u64, u64),
    ) -> Answer {
        let host_bytes = frame.numbers[0] as usize;
        let window = frame.files.into_iter().next().ok_or_else(|| refused("the window is missing"))?;
        let is_hidden = self.copies_results();
        let window = SharedFile::of_other(window, host_bytes, is_hidden).map_err(failed)?;
        let (memory, given) = if is_hidden {
            (FarMemory::hidden(window, blocks, bytes as usize).map_err(failed)?, None)
        } else {
            let (memory, file) = FarMemory::new(window, blocks, bytes as usize).map_err(failed)?;
            (memory, Some(file))
        };
        let (local, env) = (memory.local.clone(), self.service.env.clone());
        let device = Arc::new(Device::new(flash, local, programs::built_in().into(), env));
        let number = self.number();
        let answer = Frame::new(Kind::Done, [number, bytes]).with_text(device.identity().encode());
        self.memories.insert(number, SessionMemory { device, memory, bytes: budget_bytes });
        Ok((answer, given.into_iter().collect()))
    }

    /// Whether the host sees nothing of local memory. One of the drive's own user, or root's, may: its pipelines' bytes lie there too.
    fn copies_results(&self) -> bool {
        self.service.copies_results || ![0, rustix::process::geteuid().as_raw()].contains(&self.user)
    }

    fn memory(&self, number: u64) -> Result<&SessionMemory, Frame> {
        self.memories.get(&number).ok_or_else(|| refused(format!("there is no local memory {number}")))
    }

    fn number(&mut self) -> u64 {
        self.numbers += 1;
        self.numbers
    }

    fn open_pair(&mut self, frame: Frame) -> Answer {
        let [memory, depth, part_bytes, is_needed, host_bytes, ..] = frame.numbers;
        if self.pairs.len() == PAIRS_MAX {
            return Err(refused(format!("a host has {PAIRS_MAX} queue pairs at most: close some")));
        }
        if host_bytes > self.service.memory_bytes {
            let most = Size(self.service.memory_bytes);
            return Err(refused(format!("a region of {}: the drive reads {most} of a host at most", Size(host_bytes))));
        }
        let mut files = frame.files.into_iter();
        let mut file = || files.next().ok_or_else(|| refused("the memory of the queue pair is missing"));
        let shared = SharedFile::of_other(file()?, PAIR_BYTES, true).map_err(failed)?;
        let host = match usize::try_from(host_bytes).unwrap_or(usize::MAX) {
            0 => None,
            // Flash may register it, which needs the right to write.
            bytes => Some(HostRegion::of_other_process(SharedFile::of_other(file()?, bytes, true).map_err(failed)?)),
        };
        let SessionMemory { device, memory, .. } = self.memory(memory)?;
        let (device, memory) = (device.clone(), memory.clone());
        let depth = u32::try_from(depth).unwrap_or(u32::MAX);
        let part_bytes = u32::try_from(part_bytes).unwrap_or(u32::MAX);
        let shape = FarShape { depth, part_bytes, parts_needed: is_needed != 0 };
        let (pair, given) = FarPair::new(memory, host, shared, self.socket.clone()).map_err(failed)?;
        let (number, thread) = self.threads()?.next();
        let share =
            self.share.get_or_insert_with(|| Arc::new(self.service.shares.join(self.service.weight(&self.name))));
        share.wake_by(thread.waker());
        let pair = pair.of_share(share.clone());
        let Some(controller) = pair.open(&device, shape, number).map_err(failed)? else { return done([0]) };
        thread.attach(controller);
        let pair = self.number();
        self.pairs.insert(pair, (thread, number));
        Ok((Frame::new(Kind::Done, [pair]), given.into()))
    }

    fn threads(&mut self) -> Result<&DriveThreads, Frame> {
        if self.threads.is_none() {
            let Service { polls, env, .. } = &*self.service;
            self.threads = Some(DriveThreads::start(1, *polls, env).map_err(failed)?);
        }
        self.threads.as_ref().ok_or_else(|| refused("there is no thread"))
    }

    fn close_pair(&mut self, number: u64) -> Answer {
        if let Some((thread, number)) = self.pairs.remove(&number) {
            thread.detach(number);
        }
        done([])
    }

    fn grow(&mut self, bytes: u64) -> Answer {
        let flash = self.partition.clone().ok_or_else(|| refused("attach a partition first"))?;
        let mut state = whole(self.service.state.lock());
        let grown = state.table(&self.name).and_then(|table| table.grow(&self.name, bytes));
        let length = grown.map_err(|error| partition_error(&self.name, error))?;
        flash.set_length(length);
        done([length])
    }

    fn say_made(&mut self) -> Answer {
        let mut state = whole(self.service.state.lock());
        let name = &self.name;
        let changed = state.table(name).and_then(|table| table.change(name, |partition| partition.is_made = true));
        changed.map_err(|error| partition_error(&self.name, error))?;
        done([])
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        if fail_point!(FreeBeforeDrained) {
            self.service.free(&self.name);
        }
        for (_, (thread, number)) in std::mem::take(&mut self.pairs) {
            thread.detach(number);
        }
        (self.threads, self.share) = (None, None);
        for (_, memory) in std::mem::take(&mut self.memories) {
            self.service.give_memory(memory.bytes);
        }
        if self.partition.is_some() {
            tracing::info!("process {} has left partition {}", self.process, self.name);
            self.service.free(&self.name);
        }
        // Others may have the descriptor still, and the host is to hear of it.
        let _ = rustix::net::shutdown(&*self.socket, Shutdown::Both);
    }
}

/// Whether the other side of a connection is gone.
fn has_ended(socket: &OwnedFd) -> bool {
    let mut polled = [PollFd::new(socket, PollFlags::RDHUP)];
    let nothing = rustix::time::Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut polled, Some(&nothing)).is_ok()
        && polled[0].revents().intersects(PollFlags::HUP | PollFlags::RDHUP | PollFlags::ERR)
}

fn partition_error(name: &str, error: PartitionError) -> Frame {
    match error {
        PartitionError::NotFound => Frame::refused(Refusal::NotFound, 0, format!("the drive has no partition {name}")),
        PartitionError::BadName => {
            let most = super::partitions::NAME_BYTES_MAX;
            refused(format!("{name:?} names no partition: give 1 to {most} bytes without a slash"))
        }
        PartitionError::TooMany => {
            let most = super::partitions::PARTITIONS_MAX;
            refused(format!("the drive has {most} partitions, and takes no more"))
        }
        PartitionError::NoSpace { needed_bytes, free_bytes } => {
            let (needed, free) = (Size(needed_bytes), Size(free_bytes));
            let why = format!("partition {name} needs {needed} in one piece, and the drive has {free}: give it less");
            Frame::refused(Refusal::NoSpace, needed_bytes, why)
        }
        PartitionError::Io(error) => refused(format!("the table of partitions was not written: {error}")),
    }
}
