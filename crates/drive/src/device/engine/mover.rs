//! The mover of the shared engine: one thread for sources, sinks and the programs without units, with a flash queue of its own.
//!
//! ```text
//!  ┌─► poll the flash ─► give back what has ended, take a task ─► copy, or run ─► flash command, if any ─┐
//!  │                              └─ none: sleep until the flash, a submitter, a unit or a deadline       │
//!  └──────────────────────────────────────────────────────────────────────────────────────────────────────┘
//! ```
//! It keeps the engine's deadlines too: it sleeps until the next one at most.

use super::core::{EngineTask, TaskResult};
use super::shared::EngineShared;
use super::units::{FinishedTask, RanTask};
use crate::counters::QueueCounters;
use crate::event::{readable, sleep_on};
use crate::flash::FlashQueue;
use crate::protocol::{Command, Completion, Opcode, Operation, Purpose, Status};
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::time::Duration;

/// Tasks between two looks at the flash.
const TASKS_OF_A_ROUND: usize = 16;

/// A task whose flash command is on its way.
struct MovingTask {
    task: EngineTask,
    opcode: Opcode,
    bytes: u64,
    submitted_us: u64,
}

/// What the mover is to do where it has no task.
enum MoverRest {
    /// Until then, unless it is woken.
    Sleep {
        until_us: u64,
    },
    Stop,
}

pub(super) struct Mover {
    // First, so that it is dropped, and its commands are over, before anybody hears that the mover is gone.
    queue: Box<dyn FlashQueue>,
    shared: Arc<EngineShared>,
    counters: Arc<QueueCounters>,
    /// By tag of their commands.
    moving: Vec<Option<MovingTask>>,
    in_flash: usize,
    flash_done: Vec<Completion>,
    finished: Vec<FinishedTask>,
    _loss: MoverLoss,
}

/// Tells the queue pairs when the mover has panicked.
struct MoverLoss(Arc<EngineShared>);

impl Drop for MoverLoss {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.lose();
        }
    }
}

impl Mover {
    /// Flash commands at once; more wait in the queue.
    pub const FLASH_DEPTH: u32 = 64;

    pub fn new(queue: Box<dyn FlashQueue>, shared: Arc<EngineShared>, counters: Arc<QueueCounters>) -> Mover {
        Mover {
            queue,
            shared: shared.clone(),
            counters,
            moving: Vec::new(),
            in_flash: 0,
            flash_done: Vec::new(),
            finished: Vec::new(),
            _loss: MoverLoss(shared),
        }
    }

    pub fn run(mut self) {
        loop {
            self.poll_flash();
            for _ in 0..TASKS_OF_A_ROUND {
                match self.turn() {
                    Ok(task) => self.work(task),
                    Err(MoverRest::Sleep { until_us }) => {
                        self.sleep(until_us);
                        break;
                    }
                    Err(MoverRest::Stop) => return,
                }
            }
        }
    }

    /// Gives back what has ended, and takes a task.
    fn turn(&mut self) -> Result<EngineTask, MoverRest> {
        let mut guard = self.shared.lock();
        if guard.is_stopping() {
            return Err(MoverRest::Stop);
        }
        for FinishedTask { task, result, unit_us } in self.finished.drain(..) {
            guard.complete(task, result, unit_us);
        }
        if guard.deadline_next_us().is_some() {
            guard.expire(self.shared.env.now_us());
        }
        if let Some(task) = guard.take_any(|program| !self.shared.has_units(program)) {
            return Ok(task);
        }
        let until_us = guard.deadline_next_us().unwrap_or(u64::MAX);
        guard.state_mut().mover_sleeps_until_us = Some(until_us);
        Err(MoverRest::Sleep { until_us })
    }

    fn work(&mut self, task: EngineTask) {
        match self.shared.run(task) {
            RanTask::Finished(task) => self.finished.push(task),
            RanTask::Flash(task, operation) => self.submit(task, operation),
            // The program has fewer units; this thread is one of the others, too.
            RanTask::Panicked(program, task) => self.shared.lock().unit_lost(program, Some(task)),
        }
    }

    fn submit(&mut self, task: EngineTask, operation: Operation) {
        let free = self.moving.iter().position(Option::is_none);
        let place = free.unwrap_or(self.moving.len());
        if place == self.moving.len() {
            self.moving.push(None);
        }
        let bytes = match operation {
            Operation::Read { length, .. } | Operation::Write { length, .. } => u64::from(length),
            _ => 0,
        };
        let submitted_us = self.shared.env.now_us();
        self.moving[place] = Some(MovingTask { task, opcode: operation.opcode(), bytes, submitted_us });
        self.in_flash += 1;
        // SAFETY: the engine's sub-buffers, of which a task's are nobody else's; flash was checked. The engine's memory is freed after
        // this queue.
        unsafe { self.queue.submit(&Command::new(place as u64, operation).of(Purpose::Pipeline)) };
    }

    fn poll_flash(&mut self) {
        if self.in_flash == 0 {
            return;
        }
        self.queue.poll(&mut self.flash_done);
        if self.flash_done.is_empty() {
            return;
        }
        let now_us = self.shared.env.now_us();
        for completion in self.flash_done.drain(..) {
            let moving = self.moving[completion.tag as usize].take();
            let Some(MovingTask { task, opcode, bytes, submitted_us }) = moving else {
                unreachable!("a flash command of the mover's is a task's")
            };
            self.in_flash -= 1;
            self.counters.completed(opcode, completion.status);
            self.counters.latency(opcode, now_us.saturating_sub(submitted_us));
            let result = match (completion.status, opcode) {
                (Status::Success, Opcode::Read) => {
                    self.counters.moved_flash_to_local(Purpose::Pipeline, bytes);
                    TaskResult::Moved
                }
                (Status::Success, _) => {
                    self.counters.moved_local_to_flash(Purpose::Pipeline, bytes);
                    TaskResult::Moved
                }
                _ => TaskResult::FlashFailed { errno: completion.errno },
            };
            self.finished.push(FinishedTask { task, result, unit_us: None });
        }
    }

    fn sleep(&mut self, until_us: u64) {
        let event = self.shared.mover_event.as_raw_fd();
        let now_us = if until_us == u64::MAX { 0 } else { self.shared.env.now_us() };
        let timeout = (until_us < u64::MAX).then(|| Duration::from_micros(until_us.saturating_sub(now_us)));
        let mut entries = vec![readable(event)];
        if self.in_flash > 0 {
            // Where the flash has no descriptor it is to be polled again.
            let Some(flash) = self.queue.event_fd() else { return std::thread::yield_now() };
            // The descriptor speaks from a poll on that gave nothing.
            self.queue.poll(&mut self.flash_done);
            if !self.flash_done.is_empty() {
                return;
            }
            entries.push(readable(flash));
        }
        sleep_on(&mut entries, timeout);
        if entries[0].revents != 0 {
            self.shared.mover_event.clear();
        }
    }
}
