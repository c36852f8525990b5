//! Threads of the shared engine that are units of programs.
//!
//! A unit whose program panics is dead: its thread ends, and its task's pipeline says so. Others go on.

use super::core::EngineTask;
use super::run::{TaskStep, run_task};
use super::shared::{EngineShared, ExecutionMark};
use super::{EngineOptions, TaskResult, TaskWork};
use crate::device::arbiter::UnitCount;
use crate::protocol::ProgramId;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread::JoinHandle;

/// A task that has ended, how, and the microseconds that it took, if it was timed.
pub(super) struct FinishedTask {
    pub task: EngineTask,
    pub result: TaskResult,
    pub unit_us: Option<u64>,
}

pub(super) enum RanTask {
    Finished(FinishedTask),
    /// The rest is the flash's.
    Flash(EngineTask),
    /// Its program panicked. The task's number and stage.
    Panicked(ProgramId, (u32, u8)),
}

impl EngineShared {
    /// Runs a task that was just taken from the core.
    pub(super) fn run(&self, mut task: EngineTask) -> RanTask {
        let from_us = task.is_timed.then(|| self.env.now_us());
        let (program, place) = (task.packet.program(), (task.packet.sequence, task.packet.stage));
        let ran = catch_unwind(AssertUnwindSafe(move || {
            // SAFETY: just taken from the core, which is over this local memory. What sources, sinks and programs of commands name was leased
            // with a command that has not ended; one thread alone runs sources and sinks, and a command has one program at a time.
            let step = unsafe { run_task(&mut task, &self.programs, &self.local) };
            (task, step)
        }));
        match ran {
            Err(_) => RanTask::Panicked(program, place),
            Ok((task, TaskStep::Flash)) => RanTask::Flash(task),
            Ok((task, TaskStep::Ended(result))) => {
                let unit_us = from_us.map(|from_us| self.env.now_us() - from_us);
                RanTask::Finished(FinishedTask { task, result, unit_us })
            }
        }
    }

    /// Gives back a task, if there is one, and takes another; none, when the engine stops.
    fn exchange(
        &self,
        pool: usize,
        program: ProgramId,
        finished: Option<FinishedTask>,
    ) -> Option<(EngineTask, Option<ExecutionMark<'_>>)> {
        let mut guard = self.lock();
        if let Some(FinishedTask { task, result, unit_us }) = finished {
            guard.complete(task, result, unit_us);
        }
        while !guard.is_stopping() {
            if let Some(task) = guard.take(program) {
                let is_execution = matches!(task.work, TaskWork::Execute(_));
                return Some((task, is_execution.then(|| self.begin_execution())));
            }
            guard = guard.sleep(pool);
        }
        None
    }

    /// A unit: it takes tasks until the engine stops, or it dies.
    fn serve(&self, pool: usize, program: ProgramId) {
        let mut finished = None;
        while let Some((task, mark)) = self.exchange(pool, program, finished.take()) {
            let ran = self.run(task);
            drop(mark);
            match ran {
                RanTask::Finished(task) => finished = Some(task),
                RanTask::Flash(_) => unreachable!("moves are the mover's"),
                RanTask::Panicked(program, task) => return self.lock().unit_lost(program, Some(task)),
            }
        }
    }
}

pub(super) fn start(
    shared: &Arc<EngineShared>,
    options: &EngineOptions,
    threads: &mut Vec<JoinHandle<()>>,
) -> io::Result<()> {
    let mut cores = options.pin.then(Cores::allowed).unwrap_or_default();
    for (pool, UnitCount { program, units }) in options.units.iter().copied().enumerate() {
        for _ in 0..units {
            let (unit, core) = (shared.clone(), cores.next());
            let work = move || {
                core.into_iter().for_each(Cores::stay_on);
                unit.serve(pool, program);
            };
            threads.push(shared.env.spawn_drive_thread("tapetum-unit", work)?);
        }
    }
    Ok(())
}

/// Cores that this process may run on, one after the other and round again.
#[derive(Default)]
struct Cores {
    all: Vec<usize>,
    given: usize,
}

impl Cores {
    fn allowed() -> Cores {
        let Ok(set) = rustix::thread::sched_getaffinity(None) else { return Cores::default() };
        let all = (0..rustix::thread::CpuSet::MAX_CPU).filter(|core| set.is_set(*core)).collect();
        Cores { all, given: 0 }
    }

    fn next(&mut self) -> Option<usize> {
        let core = self.all.get(self.given.checked_rem(self.all.len())?).copied();
        self.given += 1;
        core
    }

    /// Pins this thread. Where the system refuses, it runs where it is put.
    fn stay_on(core: usize) {
        let mut set = rustix::thread::CpuSet::new();
        set.set(core);
        let _ = rustix::thread::sched_setaffinity(None, &set);
    }
}
