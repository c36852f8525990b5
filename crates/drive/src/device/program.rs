//! Programs: what a drive can compute over its local memory.

use crate::protocol::Status;
use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Name and version by which a host finds a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProgramDescriptor {
    pub name: &'static str,
    /// Version of the meaning of its parameters, inputs and output.
    pub version: u16,
    /// The program takes input and gives output in parts. The first word of its result is the number of output bytes it filled.
    pub is_stream: bool,
}

/// How a run ended: status and result of its completion.
pub type ProgramResult = (Status, [u64; 2]);

/// The operands of one run of a program. All of them come from outside, so a program checks them and returns [`Status::Program`] rather
/// than panic.
pub struct Context<'a> {
    pub parameters: &'a [u8],
    /// They may overlap each other and the parameters.
    pub inputs: &'a [&'a [u8]],
    /// Overlaps no other operand; may be empty.
    pub output: &'a mut [u8],
    pub task: &'a mut TaskState,
}

/// State that lasts from run to run of one task: from the first part of the input to the last of the output. A task runs again with the
/// same inputs after [`Status::More`], and with those of the next part, if there is one, after success.
#[derive(Default)]
pub struct TaskState {
    /// Bytes of the inputs, counted over all of them, that earlier runs have used up.
    pub consumed: usize,
    /// Another part of the input follows.
    pub more_input: bool,
    /// The pipeline's attachment, which all of its programs see. Empty if there is none.
    pub attachment: Arc<[u8]>,
    /// The program sets this if it wants no further part of the input. The input then ends with the success of this run.
    pub is_enough: bool,
    /// The program's own.
    pub kept: Option<Box<dyn Any + Send>>,
    /// `None` for a task that nobody can cancel, because it is short.
    cancel: Option<CancelFlag>,
}

/// Tells a running task that its result is no longer wanted. Clones share the flag.
#[derive(Clone, Default)]
pub struct CancelFlag(Arc<AtomicBool>);

impl CancelFlag {
    pub fn raise(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    pub fn is_raised(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

impl TaskState {
    /// A task that this flag cancels, in a pipeline with this attachment.
    pub fn with_flag(flag: CancelFlag, attachment: Arc<[u8]>) -> TaskState {
        TaskState { cancel: Some(flag), attachment, ..TaskState::default() }
    }

    /// The flag that cancels this task, for code that checks it while the program holds this state.
    pub fn cancel_flag(&self) -> CancelFlag {
        self.cancel.clone().unwrap_or_default()
    }

    /// The result is no longer wanted. A long-running program checks this now and then, and may end with any status.
    pub fn is_cancelled(&self) -> bool {
        self.cancel.as_ref().is_some_and(CancelFlag::is_raised)
    }
}

/// A function that a drive runs when a command or a stage names it. A program keeps nothing between tasks, and several threads call it at
/// once.
pub trait Program: Send + Sync {
    fn descriptor(&self) -> ProgramDescriptor;

    fn run(&self, context: Context<'_>) -> ProgramResult;

    /// Prefetches into the processor's cache what [`Program::run`] will read. It is called for all runs of a batch, once for each round
    /// below [`PREFETCH_ROUNDS`], before the first of them runs. A round may read what the round before it fetched.
    fn prefetch(&self, _round: usize, _parameters: &[u8], _inputs: &[&[u8]]) {}
}

/// Two dependent reads of a run overlap with those of the other runs. A third round found nothing to fetch.
pub const PREFETCH_ROUNDS: usize = 2;
