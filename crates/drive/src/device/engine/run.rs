//! How a unit runs a task: it runs the program, or moves the bytes.

use super::core::EngineTask;
use super::job::{ByteMove, TaskWork};
use super::outcomes::TaskResult;
use crate::device::program::{Context, Program, ProgramResult, TaskState};
use crate::memory::LocalMemory;
use crate::protocol::{Execution, INPUTS_MAX, LocalRange, Status};

pub(crate) enum TaskStep {
    Ended(TaskResult),
    /// The caller runs the task's flash commands. The task ends with the last of them.
    Flash,
}

/// Runs a task up to its flash commands.
///
/// # Safety
/// The task is from an [`EngineCore`](super::EngineCore) over this local memory and was not given back to it. Nobody else writes the ranges
/// that the host lent as a source, and nobody else touches those that it lent as a sink; a program of a command is as for [`execute`].
pub(crate) unsafe fn run_task(task: &mut EngineTask, programs: &[Box<dyn Program>], local: &LocalMemory) -> TaskStep {
    match &task.work {
        // SAFETY: by our caller's word.
        &TaskWork::Run { input, output } => unsafe { run_program(task, input, output, programs, local) },
        // SAFETY: by our caller's word.
        TaskWork::Move(moves) => unsafe { move_bytes(moves, local) },
        TaskWork::Execute(execution) => {
            // SAFETY: by our caller's word.
            let (status, result) = unsafe { execute(execution, programs, local) };
            TaskStep::Ended(TaskResult::Executed { status, result })
        }
    }
}

/// Runs a program of a command.
///
/// # Safety
/// The execution was checked: its ranges are inside local memory, and its output overlaps nothing that it reads. Until this returns nobody else
/// touches the output or writes what is read.
pub(crate) unsafe fn execute(
    execution: &Execution,
    programs: &[Box<dyn Program>],
    local: &LocalMemory,
) -> ProgramResult {
    let program = &programs[usize::from(execution.program.0)];
    let (mut task, mut inputs) = (TaskState::default(), [&[][..]; INPUTS_MAX]);
    // SAFETY: by our caller's word.
    let (status, result) = unsafe {
        let (parameters, inputs) = operands(execution, local, &mut inputs);
        let output = std::slice::from_raw_parts_mut(pointer(local, execution.output), execution.output.length as usize);
        program.run(Context { parameters, inputs, output, task: &mut task })
    };
    assert_ne!(status, Status::Program(0), "program {} gave zero, which is success", program.descriptor().name);
    (status, result)
}

/// The parameters and inputs of a program of a command.
///
/// # Safety
/// The execution was checked. Nobody writes these ranges for as long as the slices live.
pub(crate) unsafe fn operands<'a>(
    execution: &Execution,
    local: &LocalMemory,
    inputs: &'a mut [&'a [u8]; INPUTS_MAX],
) -> (&'a [u8], &'a [&'a [u8]]) {
    let slice = |range: LocalRange| {
        // SAFETY: inside local memory, which lives as long as the drive; our caller says that nobody writes there.
        unsafe { std::slice::from_raw_parts(pointer(local, range).cast_const(), range.length as usize) }
    };
    let ranges = execution.inputs();
    for (input, range) in inputs.iter_mut().zip(ranges) {
        *input = slice(*range);
    }
    (slice(execution.parameters), &inputs[..ranges.len()])
}

/// # Safety
/// As [`run_task`].
unsafe fn run_program(
    task: &mut EngineTask,
    input: LocalRange,
    output: LocalRange,
    programs: &[Box<dyn Program>],
    local: &LocalMemory,
) -> TaskStep {
    let program = &programs[usize::from(task.packet.program().0)];
    // SAFETY: sub-buffers are inside local memory. The stage before filled the input, and nobody writes it before this task has ended. Only
    // this task uses the output.
    let (input, output) = unsafe {
        let from = pointer(local, input).cast_const();
        let input = std::slice::from_raw_parts(from, input.length as usize);
        (input, std::slice::from_raw_parts_mut(pointer(local, output), output.length as usize))
    };
    let room = output.len();
    let arguments = task.packet.arguments;
    let parameters = &arguments[1..=usize::from(arguments[0])];
    let inputs: &[&[u8]] = &[input];
    let (status, [filled, _]) = program.run(Context { parameters, inputs, output, task: &mut task.state });
    let is_filled = matches!(status, Status::Success | Status::More);
    assert!(!is_filled || filled <= room as u64, "{} filled more than there was", program.descriptor().name);
    TaskStep::Ended(TaskResult::Ran { status, filled: if is_filled { filled as u32 } else { 0 } })
}

/// # Safety
/// As [`run_task`].
unsafe fn move_bytes(moves: &ByteMove, local: &LocalMemory) -> TaskStep {
    for (from, to) in &moves.copies {
        assert_eq!(from.length, to.length, "a copy is of one length");
        // SAFETY: both ranges are inside local memory. One is a sub-buffer or a kept result, so they do not overlap; our caller says that
        // nobody else uses them.
        unsafe { std::ptr::copy_nonoverlapping(pointer(local, *from), pointer(local, *to), to.length as usize) };
    }
    // SAFETY: as above; an empty range writes nothing.
    unsafe { pointer(local, moves.zeros).write_bytes(0, moves.zeros.length as usize) };
    if moves.flash.is_empty() { TaskStep::Ended(TaskResult::Moved) } else { TaskStep::Flash }
}

fn pointer(local: &LocalMemory, range: LocalRange) -> *mut u8 {
    let Some(pointer) = local.pointer(range) else {
        unreachable!("{range:?} was checked, and local memory never shrinks");
    };
    pointer.as_ptr()
}
