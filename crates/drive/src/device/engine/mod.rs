//! Pipelines over compute units.
//!
//! ```text
//!            ┌──────────────── core ────────────────┐
//! submit ─►  │ jobs ─► arbiter ─► queue of a program │ ─ take ─► a unit: `run_task` ─► complete ─► … ─► ended
//!            └──────────────────────────────────────┘
//! ```
//! The [`core`] knows what is to be done and nothing of threads. A unit is whoever takes a task and runs it: the thread that polls a
//! queue pair, of an engine of its own; or, on a drive with compute units, threads of the one engine that all queue pairs share
//! ([`shared`]): [`units`] for the programs that were given some, and the [`mover`] for all else.

mod core;
#[cfg(test)]
mod core_tests;
mod counters;
#[cfg(test)]
mod execution_tests;
mod job;
mod kept;
mod mailbox;
mod mover;
mod outcomes;
pub(crate) mod run;
pub(crate) mod shared;
mod units;

pub use self::core::{EngineCore, EngineTask, JobRequest, SinkRequest, SourceRequest};
pub(crate) use counters::EngineCounters;
pub use counters::{ApplicationSnapshot, StageSnapshot};
pub(crate) use job::is_move;
pub use job::{ByteMove, SINK, SOURCE, TaskWork};
pub use kept::KEPT_RESULTS_MAX;
pub use outcomes::{ExecutionResult, JobEnd, JobResult, TaskResult};

use super::arbiter::{PIPELINE_STAGES_MAX, UnitCount};
use crate::protocol::PIPELINES_MAX;

/// The name of application 0, to which pipelines that name no application belong.
pub const DEFAULT_APPLICATION_NAME: &str = "default";

#[derive(Clone, Debug)]
pub struct EngineOptions {
    /// Programs that get threads of their own.
    pub units: Vec<UnitCount>,
    /// Each of these threads stays on its own core, while there are enough cores.
    pub pin: bool,
    /// By application.
    pub weights: Vec<u32>,
    /// Names of applications, for counters. An application without a name is known by its number.
    pub application_names: Vec<String>,
    pub sub_buffers: u16,
    pub sub_buffer_bytes: u32,
    /// The most running pipelines of one application.
    pub pipelines_max: usize,
    /// Cost of a byte read from flash, in 1/1024 microseconds of unit time.
    pub flash_byte_cost: u64,
}

impl EngineOptions {
    /// For the pipelines of one queue pair: room for one of the greatest length, or a few short ones.
    pub fn of_a_queue_pair() -> EngineOptions {
        EngineOptions {
            sub_buffers: PIPELINE_STAGES_MAX as u16 + 2,
            sub_buffer_bytes: 32 << 10,
            pipelines_max: 2 * PIPELINES_MAX,
            ..EngineOptions::default()
        }
    }

    /// For all queue pairs of a drive, with threads for these programs. A few queue pairs may have full batches running, and there is room
    /// for a pipeline of the greatest length for each thread, and one more.
    pub fn with_units(units: Vec<UnitCount>) -> EngineOptions {
        let at_once = 1 + units.iter().map(|of| of.units).max().unwrap_or(1);
        EngineOptions {
            units,
            sub_buffers: at_once * PIPELINE_STAGES_MAX as u16,
            pipelines_max: 8 * PIPELINES_MAX,
            ..EngineOptions::default()
        }
    }

    /// Local memory that the sub-buffers take, if a sector is not larger than a sub-buffer.
    pub fn sub_buffer_bytes_total(&self) -> u64 {
        u64::from(self.sub_buffers) * u64::from(self.sub_buffer_bytes)
    }
}

impl Default for EngineOptions {
    /// No threads, one application, and 64 KiB a stage: room for two pipelines of the greatest length.
    fn default() -> EngineOptions {
        let sub_buffers = 2 * PIPELINE_STAGES_MAX as u16;
        EngineOptions {
            units: Vec::new(),
            pin: false,
            weights: vec![1],
            application_names: vec![DEFAULT_APPLICATION_NAME.into()],
            sub_buffers,
            sub_buffer_bytes: 64 << 10,
            pipelines_max: 64,
            flash_byte_cost: 1,
        }
    }
}
