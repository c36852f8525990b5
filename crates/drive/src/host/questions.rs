//! Questions of a host to its drive beside queue pairs. All of them are here, so that a drive in another process has one list to answer.
//!
//! Threads: any. Each question is answered at once, except [`Drive::grow`], which may wait for the operating system; counters of a drive in
//! another process are asked for over its socket.

use super::Drive;
use super::drive::Elsewhere;
use crate::counters::CountersSnapshot;
use crate::device::engine::{ApplicationSnapshot, StageSnapshot};
use crate::flash::{FlashError, Health};
use crate::protocol::Identity;

impl Drive {
    /// The drive's sizes, limits and programs. [`Operation::Identify`](crate::Operation::Identify) gives the same through a queue pair.
    pub fn identity(&self) -> Identity {
        match &self.elsewhere {
            Some(elsewhere) => match &***elsewhere {
                Elsewhere::Process(memory) => memory.identity.clone(),
                Elsewhere::Across(across) => across.device().identity(),
            },
            None => self.device.identity(),
        }
    }

    /// Addressable bytes; a multiple of the sector. Never shrinks.
    pub fn capacity_bytes(&self) -> u64 {
        self.device.flash.capacity_bytes()
    }

    /// The unit of addresses and lengths of flash commands.
    pub fn sector_bytes(&self) -> u32 {
        self.device.flash.sector_bytes()
    }

    /// Size of an atomic write: a write of so many bytes, at a multiple of that, survives a power failure whole or not at all. 0 promises
    /// nothing.
    pub fn atomic_write_bytes(&self) -> u32 {
        self.device.flash.atomic_write_bytes()
    }

    /// Its name for error messages: the path of a file.
    pub fn place(&self) -> String {
        self.device.flash.place()
    }

    /// Makes at least `capacity_bytes` addressable, durably, while queue pairs are working.
    ///
    /// # Errors
    /// If there is no room, or the drive cannot grow.
    pub fn grow(&self, capacity_bytes: u64) -> Result<(), FlashError> {
        self.device.flash.grow(capacity_bytes)
    }

    /// Whether it can still be opened at its path.
    pub fn health(&self) -> Health {
        self.device.flash.health()
    }

    /// Counters of its commands and bytes moved.
    pub fn counters(&self) -> CountersSnapshot {
        let mut counters = self.device.counters.snapshot();
        match self.elsewhere.as_deref().map(|elsewhere| &**elsewhere) {
            None => {}
            Some(Elsewhere::Process(memory)) => {
                if let Some((usage, encoded)) = memory.counters() {
                    counters.add_encoded(&encoded);
                    counters.process = Some(usage);
                }
            }
            Some(Elsewhere::Across(across)) => {
                counters.add_encoded(&across.device().counters.snapshot().encode());
            }
        }
        counters
    }

    /// Counters of its programs as stages of pipelines.
    pub fn stage_counters(&self) -> Vec<StageSnapshot> {
        self.device.stages.snapshot()
    }

    /// Counters of each application, indexed by its number. A drive without compute units has only one.
    pub fn applications(&self) -> Vec<ApplicationSnapshot> {
        self.device.stages.applications()
    }
}
