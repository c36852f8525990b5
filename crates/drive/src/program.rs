//! Programs: what a drive can compute over its local memory.

use crate::command::Status;

/// One function that a drive runs when an `Execute` command names it. A program keeps nothing between runs: it sees
/// its parameters, its input and its output, and is called from whichever thread owns the queue pair, several at once.
pub trait Program: Send + Sync {
    /// Computes. `parameters` and `input` may overlap each other; `output` overlaps neither and may be empty. What
    /// they hold comes from outside: a program checks it and answers [`Status::Program`] rather than panic.
    fn run(&self, parameters: &[u8], input: &[u8], output: &mut [u8]) -> (Status, [u64; 2]);

    /// For logs and statistics.
    fn name(&self) -> &'static str;
}
