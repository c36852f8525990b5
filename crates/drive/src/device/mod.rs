//! The device half of the drive: it checks commands, moves bytes, and computes beside them.
//!
//! ```text
//! commands ─► controller ─► flash queue ─► completions of flash
//!                 ▲  │                            │
//!                 │  └── stages' reads ──► all there ──► programs ──► one completion
//!                 └───────────────────────────────┘
//! ```
//! 1. Bytes that the host may still change are not trusted: a command is passed by value, and a list of stages is copied, each byte once,
//!    before it is read.
//! 2. Every range is checked before anything is started. A refused command has done nothing.
//! 3. Nothing here waits: the thread that polls a controller advances it.
//!
//! The polling thread owns the queue pair, or is one of the drive's own threads (`threads`). A controller belongs to
//! one thread at a time. The pipelines of `Compute` run on that thread too (`compute`), unless the drive has compute
//! units. Then all queue pairs share one engine with its own threads (`engine::shared`).

pub mod arbiter;
pub(crate) mod claims;
mod compute;
mod controller;
pub mod engine;
pub(crate) mod far_host;
mod flash_share;
pub mod program;
pub mod programs;
mod ranges;
pub(crate) mod shares;
pub mod threads;
pub(crate) mod turns;

pub(crate) use controller::{Controller, EndedCommand};

use crate::counters::DriveCounters;
use crate::env::Env;
use crate::flash::Flash;
use crate::locks::whole;
use crate::memory::{BLOCK_BYTES, LocalMemory};
use crate::protocol::{INPUTS_MAX, Identity, LEASED_RANGES_MAX, ProgramId, ProgramIdentity, STAGES_MAX};
use engine::shared::{EngineGround, SharedEngine};
use engine::{EngineCounters, EngineOptions};
use program::{Program, ProgramDescriptor};
use std::io;
use std::sync::{Arc, Mutex};
use threads::DriveThreads;
use turns::Turns;

/// Two ids are reserved for a pipeline's source and sink.
const PROGRAMS_OF_A_DRIVE_MAX: usize = u16::MAX as usize - 1;

/// State that all controllers of a drive share.
pub(crate) struct Device {
    pub flash: Arc<dyn Flash>,
    pub local: LocalMemory,
    /// A program's id is its index.
    pub programs: Arc<[Box<dyn Program>]>,
    pub env: Env,
    /// Counters of programs as stages of pipelines.
    pub stages: Arc<EngineCounters>,
    /// Options of each queue pair's own engine, if the queue pairs share none.
    pub engine: EngineOptions,
    /// Turns of these engines, if they are limited.
    pub turns: Option<Arc<Turns>>,
    /// Options of the shared engine.
    pub units: Option<EngineOptions>,
    shared: Mutex<Option<Arc<SharedEngine>>>,
    /// The threads that poll the controllers. `None` if the hosts poll.
    pub threads: Option<Arc<DriveThreads>>,
    pub counters: Arc<DriveCounters>,
}

impl Device {
    pub fn new(flash: Arc<dyn Flash>, local: LocalMemory, programs: Arc<[Box<dyn Program>]>, env: Env) -> Device {
        assert!(programs.len() <= PROGRAMS_OF_A_DRIVE_MAX, "{} programs do not fit their ids", programs.len());
        let engine = EngineOptions::of_a_queue_pair();
        let stages = Arc::new(EngineCounters::new(&programs, &engine));
        Device {
            flash,
            local,
            programs,
            env,
            stages,
            engine,
            turns: None,
            units: None,
            shared: Mutex::new(None),
            threads: None,
            counters: Arc::default(),
        }
    }

    /// The engine that all queue pairs share, if the drive has compute units. The first queue pair starts it.
    ///
    /// # Errors
    /// As [`SharedEngine::start`].
    pub fn shared_engine(&self) -> io::Result<Option<Arc<SharedEngine>>> {
        let Some(options) = &self.units else { return Ok(None) };
        let mut shared = whole(self.shared.lock());
        if shared.is_none() {
            let ground = EngineGround {
                flash: &*self.flash,
                local: &self.local,
                programs: &self.programs,
                env: &self.env,
                stages: &self.stages,
                counters: &self.counters,
            };
            *shared = Some(Arc::new(SharedEngine::start(ground, options)?));
        }
        Ok(shared.clone())
    }

    pub fn identity(&self) -> Identity {
        let program = |(id, descriptor): (u16, ProgramDescriptor)| {
            let ProgramDescriptor { name, version, is_stream } = descriptor;
            // All of them are in the drive's own code: there is no command to load one.
            ProgramIdentity { id: ProgramId(id), version, is_stream, is_built_in: true, name: name.to_owned() }
        };
        Identity {
            flash_bytes: self.flash.capacity_bytes(),
            local_bytes: self.local.bytes_total() as u64,
            sector_bytes: self.flash.sector_bytes(),
            local_unit_bytes: BLOCK_BYTES as u32,
            stages_max: STAGES_MAX as u16,
            inputs_max: INPUTS_MAX as u16,
            buffers_max: LEASED_RANGES_MAX as u16,
            programs: (0..).zip(self.programs.iter().map(|program| program.descriptor())).map(program).collect(),
        }
    }
}
