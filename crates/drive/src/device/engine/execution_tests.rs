//! Programs of commands in the core, on units that end them in any order, or die.

use super::core::{EngineCore, EngineTask};
use super::{EngineOptions, ExecutionResult, JobEnd, JobResult, TaskResult};
use crate::SplitMix64;
use crate::device::arbiter::UnitCount;
use crate::device::program::Program;
use crate::device::programs::Sha256Program;
use crate::memory::LocalMemory;
use crate::protocol::{Execution, LocalRange, ProgramId, Status};
use proptest::prelude::*;
use std::collections::BTreeMap;

const OWNER: u64 = 3;
const PROGRAM: ProgramId = ProgramId(0);

#[derive(Default)]
struct Commands {
    /// By token. `None`: no unit took it yet.
    expected: BTreeMap<u64, Option<ExecutionResult>>,
    running: Vec<EngineTask>,
}

impl Commands {
    fn take_ends(&mut self, core: &mut EngineCore) {
        while let Some(JobEnd { owner, token, result: JobResult::Execution(result) }) = core.ended() {
            let expected = self.expected.remove(&token).expect("each ends once");
            assert_eq!((owner, result), (OWNER, expected.unwrap_or(ExecutionResult::NotBegun)));
        }
    }

    /// A unit ends a task, or dies of it.
    fn end(&mut self, core: &mut EngineCore, (number, token): (usize, u64), dies: bool) {
        let task = self.running.swap_remove(number);
        let result = match dies {
            true => ExecutionResult::UnitLost,
            false => ExecutionResult::Ran { status: Status::Success, result: [token, 5] },
        };
        self.expected.insert(token, Some(result));
        match dies {
            true => core.unit_lost(PROGRAM, Some((task.packet.sequence, task.packet.stage))),
            false => core.complete(task, TaskResult::Executed { status: Status::Success, result: [token, 5] }, None),
        }
        self.take_ends(core);
    }
}

/// The parameters' offset is the token.
fn execution(token: u64) -> Execution {
    Execution::new(PROGRAM, LocalRange { offset: token, length: 1 }, &[LocalRange::EMPTY], LocalRange::EMPTY)
}

fn token_of(task: &EngineTask) -> u64 {
    let super::TaskWork::Execute(execution) = &task.work else { panic!("it is of a command") };
    execution.parameters.offset
}

fn any_order(seed: u64) {
    let mut random = SplitMix64::new(seed);
    let local = LocalMemory::new(1 << 20).unwrap();
    let programs: Vec<Box<dyn Program>> = vec![Box::new(Sha256Program)];
    let units = vec![UnitCount { program: PROGRAM, units: 1 + random.below(3) as u16 }];
    let options =
        EngineOptions { sub_buffers: 2, sub_buffer_bytes: 4096, pipelines_max: 8, ..EngineOptions::with_units(units) };
    let mut core = EngineCore::alone(&local, 512, &programs, &options).unwrap();
    let free = core.sub_buffers_free();
    let mut commands = Commands::default();
    for token in 0..300 {
        match random.below(4) {
            0..2 => {
                let is_taken = core.submit_execution(OWNER, token, execution(token));
                let may_be = usize::from(core.units(PROGRAM)) > commands.expected.len() && commands.expected.len() < 2;
                assert_eq!(is_taken, may_be);
                commands.expected.extend(is_taken.then_some((token, None)));
            }
            2 => commands.running.extend(core.take(PROGRAM)),
            _ if commands.running.is_empty() => {}
            _ => {
                let number = random.below(commands.running.len() as u64) as usize;
                let dies = random.one_in(12);
                let token = token_of(&commands.running[number]);
                commands.end(&mut core, (number, token), dies);
            }
        }
        commands.take_ends(&mut core);
    }
    while core.in_flight() > 0 {
        commands.running.extend(core.take(PROGRAM));
        let token = token_of(&commands.running[0]);
        commands.end(&mut core, (0, token), false);
    }
    assert!(commands.expected.is_empty() && commands.running.is_empty());
    assert_eq!((core.reserved(), core.sub_buffers_free(), core.quarantined()), (0, free, 0));
}

proptest! {
    #[test]
    fn each_ends_once_with_what_its_unit_says_or_was_not_begun(seed: u64) {
        any_order(seed);
    }
}
