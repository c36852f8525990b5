//! Programs: what a drive can compute over its local memory.

use crate::protocol::Status;
use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// What a program is known by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProgramDescriptor {
    pub name: &'static str,
    /// Of what its parameters, inputs and output mean.
    pub version: u16,
    /// It takes input and gives output in parts, and its result's first word is how many bytes of the output it filled.
    pub is_stream: bool,
}

/// How a run ended, and what goes into its completion.
pub type ProgramResult = (Status, [u64; 2]);

/// What one run of a program works on. It all comes from outside: a program checks it, and answers [`Status::Program`] rather than
/// panic.
pub struct Context<'a> {
    pub parameters: &'a [u8],
    /// They may overlap each other and the parameters.
    pub inputs: &'a [&'a [u8]],
    /// Overlaps none of the others, and may be empty.
    pub output: &'a mut [u8],
    pub task: &'a mut TaskState,
}

/// What lasts from run to run of one task: from the first part of the input to the last of the output. A task is run again with the
/// same inputs after [`Status::More`], and with those of the next part after success, if there is one.
#[derive(Default)]
pub struct TaskState {
    /// Bytes of the inputs, counted through, that runs before this one have used up.
    pub consumed: usize,
    /// Another part of the input follows.
    pub more_input: bool,
    /// What the pipeline has for all of its programs. Nothing, where it has none.
    pub attachment: Arc<[u8]>,
    /// The program sets it where it wants no further part of the input: with the success of this run its input ends.
    pub is_enough: bool,
    /// The program's own.
    pub kept: Option<Box<dyn Any + Send>>,
    /// A task that nobody can cancel has none: it is short.
    cancel: Option<CancelFlag>,
}

/// Says to a task that runs that nobody wants its result any more. Clones share it.
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
    /// A task that this flag cancels, of a pipeline with this attachment.
    pub fn with_flag(flag: CancelFlag, attachment: Arc<[u8]>) -> TaskState {
        TaskState { cancel: Some(flag), attachment, ..TaskState::default() }
    }

    /// What is raised when nobody wants the result any more, for who looks while the program has this state.
    pub fn cancel_flag(&self) -> CancelFlag {
        self.cancel.clone().unwrap_or_default()
    }

    /// Nobody wants the result any more. A program that takes long looks now and then, and ends with any status.
    pub fn is_cancelled(&self) -> bool {
        self.cancel.as_ref().is_some_and(CancelFlag::is_raised)
    }
}

/// One function that a drive runs when a command or a stage names it. Between tasks a program keeps nothing, and it is called from
/// several threads at once.
pub trait Program: Send + Sync {
    fn descriptor(&self) -> ProgramDescriptor;

    fn run(&self, context: Context<'_>) -> ProgramResult;

    /// Brings nearer to the processor what [`Program::run`] will look at. Called for all runs of a batch, once with each round below
    /// [`PREFETCH_ROUNDS`], before the first of them runs: a round may look at what the one before it brought.
    fn prefetch(&self, _round: usize, _parameters: &[u8], _inputs: &[&[u8]]) {}
}

/// A chain of two looks hides behind those of the others; a third found nothing to bring.
pub const PREFETCH_ROUNDS: usize = 2;
