//! What a host asks of a drive beside its queue pairs: all of it, so that a drive in another process has one list to answer.
//!
//! Threads: any. Each question is answered at once, but for [`Drive::grow`], which may wait for the operating system.

use super::Drive;
use crate::counters::CountersSnapshot;
use crate::device::engine::{ApplicationSnapshot, StageSnapshot};
use crate::flash::{FlashError, Health};
use crate::protocol::Identity;

impl Drive {
    /// What the drive is and has. [`Operation::Identify`](crate::Operation::Identify) says the same through a queue pair.
    pub fn identity(&self) -> Identity {
        self.device.identity()
    }

    /// Bytes that can be addressed; a multiple of the sector. Never fewer than before.
    pub fn capacity_bytes(&self) -> u64 {
        self.device.flash.capacity_bytes()
    }

    /// The unit of addresses and lengths of flash commands.
    pub fn sector_bytes(&self) -> u32 {
        self.device.flash.sector_bytes()
    }

    /// A write of so many bytes, at a multiple of so many, is there whole or not at all after a power failure. 0 promises nothing.
    pub fn atomic_write_bytes(&self) -> u32 {
        self.device.flash.atomic_write_bytes()
    }

    /// Where it is, as an error names it: the path of a file.
    pub fn place(&self) -> String {
        self.device.flash.place()
    }

    /// Makes at least `capacity_bytes` addressable, durably, while queue pairs are at work.
    ///
    /// # Errors
    /// Where there is no room, or it cannot grow.
    pub fn grow(&self, capacity_bytes: u64) -> Result<(), FlashError> {
        self.device.flash.grow(capacity_bytes)
    }

    /// Whether it is still there for whoever opens it next.
    pub fn health(&self) -> Health {
        self.device.flash.health()
    }

    /// What its commands did and moved.
    pub fn counters(&self) -> CountersSnapshot {
        self.device.counters.snapshot()
    }

    /// What its programs did as stages of pipelines.
    pub fn stage_counters(&self) -> Vec<StageSnapshot> {
        self.device.stages.snapshot()
    }

    /// What was done for each application, by its number. A drive without compute units has one alone.
    pub fn applications(&self) -> Vec<ApplicationSnapshot> {
        self.device.stages.applications()
    }
}
