//! A drive as the host sees it.

use super::QueuePair;
use crate::counters::CountersSnapshot;
use crate::device::engine::{EngineOptions, PipelineEngine, StageSnapshot};
use crate::device::program::Program;
use crate::device::{Controller, Device};
use crate::env::Env;
use crate::flash::{Flash, FlashQueue};
use crate::memory::LocalMemory;
use crate::protocol::Identity;
use std::io;
use std::sync::Arc;

/// A computational storage drive: flash, local memory, programs. Clones share it.
#[derive(Clone)]
pub struct Drive {
    device: Arc<Device>,
}

impl Drive {
    /// A program's id is its place in `programs`.
    pub fn new(flash: Arc<dyn Flash>, local: LocalMemory, programs: Vec<Box<dyn Program>>, env: Env) -> Drive {
        Drive { device: Arc::new(Device::new(flash, local, programs.into(), env)) }
    }

    /// Another drive over `flash` with the local memory, programs and clock of this one. Its counters begin at zero.
    pub fn with_flash(&self, flash: Arc<dyn Flash>) -> Drive {
        let Device { local, programs, env, .. } = &*self.device;
        Drive { device: Arc::new(Device::new(flash, local.clone(), programs.clone(), env.clone())) }
    }

    /// Opens a queue pair that runs about `depth` flash commands at once. More may be submitted; they wait inside.
    ///
    /// # Errors
    /// The operating system's, when it has no more rings, threads or descriptors to give.
    pub fn queue_pair(&self, depth: u32) -> io::Result<QueuePair> {
        Ok(self.pair(self.device.flash.open_queue(&self.device.local, depth.max(1))?))
    }

    /// As [`Drive::queue_pair`], for one thread alone: the first that polls it or waits on it must be the one that does so
    /// from then on, and drops it. Completions cost less that way.
    ///
    /// # Errors
    /// As [`Drive::queue_pair`].
    pub fn queue_pair_of_one_thread(&self, depth: u32) -> io::Result<QueuePair> {
        Ok(self.pair(self.device.flash.open_queue_of_one_thread(&self.device.local, depth.max(1))?))
    }

    fn pair(&self, queue: Box<dyn FlashQueue>) -> QueuePair {
        let counters = self.device.free_counters();
        let controller = Controller::new(self.device.clone(), queue, counters.clone());
        QueuePair::new(controller, self.clone(), counters)
    }

    /// What the drive is and has. [`Operation::Identify`](crate::Operation::Identify) says the same through a queue pair.
    pub fn identity(&self) -> Identity {
        self.device.identity()
    }

    /// Runs pipelines of programs over its local memory, with threads for some of them if asked for.
    ///
    /// # Errors
    /// When local memory has no room for the sub-buffers, or the operating system no more threads.
    pub fn pipelines(&self, options: &EngineOptions) -> io::Result<PipelineEngine> {
        PipelineEngine::new(self.device.clone(), options)
    }

    /// What its programs did as stages of pipelines.
    pub fn stage_counters(&self) -> Vec<StageSnapshot> {
        self.device.stages.snapshot()
    }

    pub fn local(&self) -> &LocalMemory {
        &self.device.local
    }

    pub fn flash(&self) -> &Arc<dyn Flash> {
        &self.device.flash
    }

    pub fn env(&self) -> &Env {
        &self.device.env
    }

    pub fn counters(&self) -> CountersSnapshot {
        self.device.counters()
    }
}
