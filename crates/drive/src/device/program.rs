//! Programs: what a drive can compute over its local memory.

use crate::protocol::Status;

/// What one run of a program works on. It all comes from outside: a program checks it, and answers [`Status::Program`] rather than
/// panic.
pub struct Context<'a> {
    pub parameters: &'a [u8],
    /// They may overlap each other and the parameters.
    pub inputs: &'a [&'a [u8]],
    /// Overlaps none of the others, and may be empty.
    pub output: &'a mut [u8],
}

/// One function that a drive runs when a command or a stage names it. A program keeps nothing between runs, and is called from
/// several threads at once.
pub trait Program: Send + Sync {
    /// For logs and statistics.
    fn name(&self) -> &'static str;

    /// Computes; the result goes into the completion.
    fn run(&self, context: Context<'_>) -> (Status, [u64; 2]);

    /// Brings nearer to the processor what [`Program::run`] will look at. Called for all runs of a batch, once with each round below
    /// [`PREFETCH_ROUNDS`], before the first of them runs: a round may look at what the one before it brought.
    fn prefetch(&self, _round: usize, _parameters: &[u8], _inputs: &[&[u8]]) {}
}

/// A chain of two looks hides behind those of the others; a third found nothing to bring.
pub const PREFETCH_ROUNDS: usize = 2;
