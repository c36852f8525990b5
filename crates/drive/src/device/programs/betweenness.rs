//! `betweenness`: computes the betweenness of the edges that a scan gives.
//!
//! Its parameters are a plan ([`GraphPlan`]). The attachment, if there is one, is read before the input. Input and output are frames
//! ([`tapetum_kernels::graph`]). Between slices of its work it gives a frame, so that other tasks get their turn and the host sees its
//! progress.
//!
//! Its statuses: [`CORRUPT`] if the input is not frames of a scan or a partial result; [`TOO_LARGE`] if the graph needs more memory than
//! the plan allows; [`ELSEWHERE`] if the scan could not reach an edge. A cancelled task ends with [`CORRUPT`], which nobody sees.

use super::{CORRUPT, TOO_LARGE};
use crate::device::program::{Context, Program, ProgramDescriptor, ProgramResult, TaskState};
use crate::protocol::Status;
use tapetum_kernels::graph::{GraphFailure, GraphPlan, GraphWork};

/// Its name, and the version of its parameters.
pub const BETWEENNESS: (&str, u16) = ("betweenness", 1);
/// An edge's value lies outside the input.
pub const ELSEWHERE: Status = Status::Program(5);

pub struct BetweennessProgram;

/// State of one task, kept from part to part.
struct BetweennessTask {
    work: GraphWork,
    pending: Vec<u8>,
    given: usize,
    has_slices: bool,
}

impl BetweennessTask {
    fn begin(parameters: &[u8], attachment: &[u8]) -> Option<Result<BetweennessTask, Status>> {
        let mut work = GraphWork::new(GraphPlan::decode(parameters).ok()?);
        let taken = work.take(attachment).map_err(status);
        Some(taken.map(|()| BetweennessTask { work, pending: Vec::new(), given: 0, has_slices: false }))
    }

    /// Copies pending bytes into `output`. Returns how many.
    fn give(&mut self, output: &mut [u8]) -> usize {
        let pending = &self.pending[self.given..];
        let bytes = pending.len().min(output.len());
        output[..bytes].copy_from_slice(&pending[..bytes]);
        self.given += bytes;
        if self.given == self.pending.len() {
            self.pending.clear();
            self.given = 0;
        }
        bytes
    }

    /// One run, over inputs that are new or were taken before.
    fn run(
        &mut self,
        inputs: &[&[u8]],
        is_new: bool,
        more_input: bool,
        is_cancelled: &mut dyn FnMut() -> bool,
    ) -> Result<(), Status> {
        if is_new {
            inputs.iter().try_for_each(|input| self.work.take(input)).map_err(status)?;
            if !more_input {
                self.work.begin(&mut self.pending).map_err(status)?;
                self.has_slices = true;
            }
        }
        if self.has_slices && (is_new || self.pending.is_empty()) {
            self.has_slices = self.work.slice(&mut self.pending, is_cancelled).map_err(status)?;
        }
        Ok(())
    }
}

fn status(failure: GraphFailure) -> Status {
    match failure {
        GraphFailure::Malformed | GraphFailure::Cancelled => CORRUPT,
        GraphFailure::TooLarge => TOO_LARGE,
        GraphFailure::Elsewhere => ELSEWHERE,
    }
}

impl Program for BetweennessProgram {
    fn descriptor(&self) -> ProgramDescriptor {
        ProgramDescriptor { name: BETWEENNESS.0, version: BETWEENNESS.1, is_stream: true }
    }

    fn run(&self, Context { parameters, inputs, output, task, .. }: Context<'_>) -> ProgramResult {
        let (consumed, more_input) = (task.consumed, task.more_input);
        // Taken out during the run, so that `task` itself can be asked whether it is cancelled.
        let kept = task.kept.take().and_then(|kept| kept.downcast::<BetweennessTask>().ok());
        let begun = match kept {
            Some(kept) => Some(Ok(*kept)),
            None => BetweennessTask::begin(parameters, &task.attachment),
        };
        let mut begun = match begun {
            Some(Ok(begun)) => begun,
            Some(Err(status)) => return (status, [0; 2]),
            None => return (Status::InvalidField, [0; 2]),
        };
        let state: &TaskState = task;
        if let Err(status) = begun.run(inputs, consumed == 0, more_input, &mut || state.is_cancelled()) {
            return (status, [0; 2]);
        }
        let filled = begun.give(output) as u64;
        let is_more = !begun.pending.is_empty() || begun.has_slices;
        let total: usize = inputs.iter().map(|input| input.len()).sum();
        task.kept = Some(Box::new(begun));
        // `consumed` is at least 1 while output is left, so that an input of no bytes is not taken twice.
        task.consumed = if is_more { total.max(1) } else { 0 };
        (if is_more { Status::More } else { Status::Success }, [filled, 0])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tapetum_kernels::graph::{Direction, GraphResult, GraphStep, Normalization, Sampling};
    use tapetum_kernels::scan::run::FrameKind;
    use tapetum_kernels::scan::{Scalar, rows::write_row};

    fn plan(memory_mib: u32) -> [u8; 25] {
        let plan = GraphPlan {
            step: GraphStep::Compute,
            direction: Direction::Directed,
            normalization: Normalization::None,
            is_strict: false,
            part: 0,
            parts: 1,
            sampling: Sampling::Exact,
            seed: 1,
            top: 2,
            memory_mib,
        };
        plan.encode()
    }

    /// A ring of this many nodes, as a scan's rows.
    fn ring(nodes: u64) -> Vec<u8> {
        let mut body = Vec::new();
        for node in 0..nodes {
            write_row(2, [node, (node + 1) % nodes].map(|end| Some(Scalar::Unsigned(end))).into_iter(), &mut body);
        }
        let mut frame = vec![FrameKind::Rows as u8, 0, 0, 0];
        frame.extend_from_slice(&(body.len() as u32).to_le_bytes());
        [frame, body].concat()
    }

    /// Runs the program with inputs and outputs of this many bytes.
    fn run(parameters: &[u8], input: &[u8], bytes: usize) -> Result<Vec<u8>, Status> {
        let (mut task, mut out, mut output) = (TaskState::default(), Vec::new(), vec![0; bytes]);
        let parts: Vec<&[u8]> = input.chunks(bytes).collect();
        for (number, part) in parts.iter().enumerate() {
            task.more_input = number + 1 < parts.len();
            loop {
                let context = Context { parameters, inputs: &[part], output: &mut output, task: &mut task };
                let (status, [filled, _]) = BetweennessProgram.run(context);
                out.extend_from_slice(&output[..filled as usize]);
                match status {
                    Status::More => assert!(filled > 0, "an empty part is an error"),
                    Status::Success => break,
                    status => return Err(status),
                }
            }
        }
        Ok(out)
    }

    #[test]
    fn a_ring_is_computed_in_parts_of_any_length() {
        for bytes in [7, 100, 1 << 16] {
            let result = GraphResult::decode(&run(&plan(16), &ring(150), bytes).unwrap()).unwrap();
            // From each other node all paths lead on around the ring.
            let expected = (149 * 148 / 2) as f64;
            assert_eq!(result.top, [(0, expected), (1, expected)], "{bytes}");
            assert_eq!((result.summary.nodes, result.summary.sources), (150, 150));
        }
    }

    #[test]
    fn what_does_not_fit_has_its_status() {
        assert_eq!(run(&plan(0), &ring(50), 1 << 16), Err(TOO_LARGE));
        assert_eq!(run(&plan(16), b"no frames", 1 << 16), Err(CORRUPT));
        assert_eq!(run(&plan(16)[1..], &ring(50), 1 << 16), Err(Status::InvalidField));
        let mut deferred = Vec::new();
        tapetum_kernels::scan::run::write_deferred(b"k", 0, b"", &mut deferred);
        assert_eq!(run(&plan(16), &deferred, 1 << 16), Err(ELSEWHERE));
    }
}
