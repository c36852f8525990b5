//! Units of the device's simulation. They run their tasks so that using a byte of a sub-buffer that is not theirs, or no longer theirs,
//! changes the output of a pipeline.

use tapetum_drive::engine::{ByteMove, EngineTask, TaskResult, TaskWork};
use tapetum_drive::program::{Context, Program};
use tapetum_drive::{LocalMemory, LocalRange, Operation, ProgramId, Status};

/// A unit may have written this anywhere in its output before its task is done.
const GARBAGE: u8 = 0xa5;

/// A task that a unit is running.
pub struct UnitTask {
    pub task: EngineTask,
    pub begun_us: u64,
    pub ends_us: u64,
    /// The unit dies at that time.
    pub dies: bool,
}

pub struct SimUnit {
    /// `None` for a unit that runs moves and all programs without their own units.
    pub program: Option<ProgramId>,
    pub task: Option<UnitTask>,
    pub is_dead: bool,
}

impl SimUnit {
    pub fn new(program: Option<ProgramId>) -> SimUnit {
        SimUnit { program, task: None, is_dead: false }
    }

    pub fn is_idle(&self) -> bool {
        !self.is_dead && self.task.is_none()
    }
}

/// Memory, flash and programs, as units access them.
pub struct DeviceBytes {
    pub local: LocalMemory,
    pub flash: Vec<u8>,
    pub programs: Vec<Box<dyn Program>>,
}

impl DeviceBytes {
    /// The bytes of a range that a task names.
    fn bytes(&mut self, range: LocalRange) -> &mut [u8] {
        let Some(at) = self.local.pointer(range) else { panic!("{range:?} of a task lies outside local memory") };
        // SAFETY: inside local memory. Only one thread runs here. It holds no other slice of these bytes while this one lives, because the
        // slice borrows all of the device's bytes.
        unsafe { std::slice::from_raw_parts_mut(at.as_ptr(), range.length as usize) }
    }

    /// A unit that has begun may write to its output at any time.
    pub fn begin(&mut self, task: &EngineTask) {
        if let TaskWork::Run { output, .. } = task.work {
            self.bytes(output).fill(GARBAGE);
        }
    }

    /// Runs a task whose pipeline has ended.
    pub fn run_late(&mut self, task: &EngineTask) -> TaskResult {
        self.begin(task);
        TaskResult::Ran { status: Status::Success, filled: 1 }
    }

    /// Runs the task, with the input as it is now.
    pub fn run(&mut self, task: &mut EngineTask, flash_fails: bool) -> TaskResult {
        match &task.work {
            TaskWork::Move(moves) => self.move_bytes(moves, flash_fails),
            TaskWork::Execute(_) => unreachable!("this world has pipelines alone"),
            &TaskWork::Run { input, output } => {
                let input = self.bytes(input).to_vec();
                let mut filled_output = vec![GARBAGE; output.length as usize];
                let arguments = task.packet.arguments;
                let context = Context {
                    parameters: &arguments[1..=usize::from(arguments[0])],
                    inputs: &[&input],
                    output: &mut filled_output,
                    task: &mut task.state,
                };
                let (status, [filled, _]) = self.programs[usize::from(task.packet.program().0)].run(context);
                self.bytes(output).copy_from_slice(&filled_output);
                let has_filled = matches!(status, Status::Success | Status::More);
                TaskResult::Ran { status, filled: if has_filled { filled as u32 } else { 0 } }
            }
        }
    }

    fn move_bytes(&mut self, moves: &ByteMove, flash_fails: bool) -> TaskResult {
        for (from, to) in &moves.copies {
            let bytes = self.bytes(*from).to_vec();
            self.bytes(*to).copy_from_slice(&bytes);
        }
        self.bytes(moves.zeros).fill(0);
        if flash_fails {
            return TaskResult::FlashFailed { errno: EIO };
        }
        for operation in &moves.flash {
            match *operation {
                Operation::Read { flash, local, length } => {
                    let at = flash as usize;
                    let bytes = self.flash[at..at + length as usize].to_vec();
                    self.bytes(LocalRange { offset: local, length }).copy_from_slice(&bytes);
                }
                Operation::Write { flash, from, length, .. } => {
                    let bytes = self.bytes(LocalRange { offset: from.offset, length }).to_vec();
                    self.flash[flash as usize..][..bytes.len()].copy_from_slice(&bytes);
                }
                other => panic!("{other:?} is no move"),
            }
        }
        TaskResult::Moved
    }
}

const EIO: i32 = 5;
