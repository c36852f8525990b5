//! How a unit runs a task: it runs the program, or moves the bytes.

use super::core::{EngineTask, TaskResult};
use super::job::{ByteMove, TaskWork};
use crate::device::program::{Context, Program};
use crate::memory::LocalMemory;
use crate::protocol::{LocalRange, Status};

pub(crate) enum TaskStep {
    Ended(TaskResult),
    /// The caller runs the task's flash commands. The task ends with the last of them.
    Flash,
}

/// Runs a task up to its flash commands.
///
/// # Safety
/// The task is from an [`EngineCore`](super::EngineCore) over this local memory and was not given back to it. Nobody else writes the ranges
/// that the host lent as a source, and nobody else touches those that it lent as a sink.
pub(crate) unsafe fn run_task(task: &mut EngineTask, programs: &[Box<dyn Program>], local: &LocalMemory) -> TaskStep {
    match &task.work {
        // SAFETY: by our caller's word.
        &TaskWork::Run { input, output } => unsafe { run_program(task, input, output, programs, local) },
        // SAFETY: by our caller's word.
        TaskWork::Move(moves) => unsafe { move_bytes(moves, local) },
    }
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
