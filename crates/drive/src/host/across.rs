//! A drive across the boundary of processes, without a process: for the simulator, which has one thread.
//!
//! All that crosses is as it is beside a real one: rings, the window, claims, local memory that the host can only read. The drive's half of a
//! queue pair runs when its host polls or waits, and sleeps as a drive's thread does: then only the host's kick wakes it.

use super::far::FarController;
use crate::counters::QueueCounters;
use crate::device::far_host::{FarMemory, FarPair, FarShape};
use crate::device::program::Program;
use crate::device::threads::AttachedController;
use crate::device::{Controller, Device};
use crate::env::Env;
use crate::flash::Flash;
use crate::link::submission::PAIR_BYTES;
use crate::memory::{BLOCK_BYTES, HostRegion, LocalMemory, SharedFile};
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

/// The drive's side.
pub(super) struct DriveAcross {
    device: Arc<Device>,
    memory: Arc<FarMemory>,
}

impl DriveAcross {
    /// One with `bytes` for its host and `own_bytes` for itself, and local memory as the host sees it.
    ///
    /// # Errors
    /// The operating system's.
    pub fn new(
        flash: Arc<dyn Flash>,
        (bytes, own_bytes): (usize, usize),
        programs: Vec<Box<dyn Program>>,
        env: Env,
    ) -> io::Result<(DriveAcross, LocalMemory)> {
        let too_large = |_| io::Error::from_raw_os_error(libc::ENOMEM);
        let blocks = u32::try_from(bytes.div_ceil(BLOCK_BYTES).max(1)).map_err(too_large)?;
        let bytes = blocks as usize * BLOCK_BYTES;
        let bytes_all = bytes + own_bytes.next_multiple_of(BLOCK_BYTES);
        let window = SharedFile::new("tapetum-window", bytes)?;
        let theirs = SharedFile::of_other(window.file().try_clone_to_owned()?, bytes, false)?;
        let (memory, given) = FarMemory::new(theirs, blocks, bytes_all)?;
        let local = LocalMemory::of_other_process(Some(SharedFile::of_other(given, bytes_all, false)?), window, blocks);
        let device = Arc::new(Device::new(flash, memory.local.clone(), programs.into(), env));
        Ok((DriveAcross { device, memory }, local))
    }

    pub fn device(&self) -> &Device {
        &self.device
    }

    /// `None`: there is no room for the parts.
    ///
    /// # Errors
    /// The operating system's.
    pub fn open(
        &self,
        host: Option<&SharedFile>,
        shape: FarShape,
        counters: Arc<QueueCounters>,
    ) -> io::Result<Option<FarController>> {
        let shared = SharedFile::new("tapetum-pair", PAIR_BYTES)?;
        let theirs = SharedFile::of_other(shared.file().try_clone_to_owned()?, PAIR_BYTES, true)?;
        let region = |file: &SharedFile| -> io::Result<HostRegion> {
            let theirs = SharedFile::of_other(file.file().try_clone_to_owned()?, file.bytes(), true)?;
            Ok(HostRegion::of_other_process(theirs))
        };
        let host = host.map(region).transpose()?;
        let sockets = rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        let (pair, events) = FarPair::new(self.memory.clone(), host, theirs, Arc::new(sockets.0))?;
        let Some(attached) = pair.open(&self.device, shape, 0)? else { return Ok(None) };
        let peer = PeerAcross { attached, sleeps: false, is_lost: false, _socket: sockets.1 };
        Ok(Some(FarController::across(shared, events, Box::new(peer), counters)))
    }
}

/// The drive's half of a queue pair, as its host has it here.
pub(super) struct PeerAcross {
    attached: AttachedController,
    sleeps: bool,
    is_lost: bool,
    _socket: OwnedFd,
}

impl PeerAcross {
    /// A round of the drive's thread. While it sleeps, there is none.
    pub fn advance(&mut self) {
        if self.sleeps && !self.attached.is_woken() {
            return;
        }
        self.sleeps = false;
        if !self.attached.advance() {
            self.sleeps = self.attached.sleeps();
        }
        self.is_lost |= self.attached.is_broken();
    }

    /// As [`Controller::wait`](crate::device::Controller::wait).
    pub fn wait(&mut self, timeout: Option<Duration>) {
        self.advance();
        self.attached.wait(timeout);
    }

    pub fn controller(&self) -> &Controller {
        self.attached.controller()
    }

    pub fn is_lost(&self) -> bool {
        self.is_lost
    }

    /// The connection has ended.
    pub fn lose(&mut self) {
        self.is_lost = true;
    }
}
