//! The mover of the shared engine: one thread for sources, sinks and the programs without units, with a flash queue of its own.
//!
//! ```text
//!  ┌─► poll the flash ─► give back what has ended, take a task ─► copy, or run ─► flash command, if any ─┐
//!  │                              └─ none: sleep until the flash, a submitter, a unit or a deadline       │
//!  └──────────────────────────────────────────────────────────────────────────────────────────────────────┘
//! ```
//! It also keeps the engine's deadlines: it never sleeps beyond the next one.

use super::core::EngineTask;
use super::job::is_move;
use super::outcomes::TaskResult;
use super::shared::EngineShared;
use super::units::{FinishedTask, RanTask};
use crate::counters::{DriveCounters, QueueCounters};
use crate::device::flash_share::{FlashShare, length};
use crate::event::{readable, sleep_on};
use crate::flash::FlashQueue;
use crate::protocol::{Command, Completion, Opcode, Operation, Purpose, Status};
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::time::Duration;

/// Tasks between two polls of the flash.
const TASKS_OF_A_ROUND: usize = 16;

/// A task whose flash commands are running.
struct MovingTask {
    task: EngineTask,
    opcode: Opcode,
    /// Total bytes of the task's commands.
    bytes: u64,
    left: usize,
    failure: Option<TaskResult>,
    submitted_us: u64,
}

/// The next step of a mover that has no task.
enum MoverRest {
    /// Sleep until this time, or until woken.
    Sleep {
        until_us: u64,
    },
    /// Poll the flash first, so that its commands start.
    Poll,
    Stop,
}

pub(super) struct Mover {
    // First, so that it is dropped, and its commands have ended, before `_loss` reports that the mover is gone.
    queue: Box<dyn FlashQueue>,
    shared: Arc<EngineShared>,
    drive_counters: Arc<DriveCounters>,
    /// Counters of the bytes that it moves.
    counters: Arc<QueueCounters>,
    share: FlashShare,
    /// Indexed by the upper half of a command's tag; the lower half is the number of the command within the task.
    moving: Vec<Option<MovingTask>>,
    /// Tasks whose flash commands are running.
    in_flash: usize,
    /// The flash queue has commands that have not started.
    has_unstarted: bool,
    flash_done: Vec<Completion>,
    finished: Vec<FinishedTask>,
    _loss: MoverLoss,
}

/// The tag of one flash command of a task.
fn tag(place: usize, number: usize) -> u64 {
    (place as u64) << 32 | number as u64
}

/// Reports to the queue pairs when the mover panics.
struct MoverLoss(Arc<EngineShared>);

impl Drop for MoverLoss {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.lose();
        }
    }
}

impl Mover {
    /// Flash commands in flight; more wait in the queue.
    pub const FLASH_DEPTH: u32 = 64;

    pub fn new(queue: Box<dyn FlashQueue>, shared: Arc<EngineShared>, drive_counters: Arc<DriveCounters>) -> Mover {
        Mover {
            queue,
            shared: shared.clone(),
            counters: drive_counters.free(),
            drive_counters,
            share: FlashShare::default(),
            moving: Vec::new(),
            in_flash: 0,
            has_unstarted: false,
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
                    Err(MoverRest::Poll) => break,
                    Err(MoverRest::Sleep { until_us }) => {
                        self.sleep(until_us);
                        break;
                    }
                    Err(MoverRest::Stop) => return,
                }
            }
        }
    }

    /// Returns finished tasks to the core, and takes the next task.
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
        let has_unstarted = self.has_unstarted;
        let may = |program| if has_unstarted { is_move(program) } else { !self.shared.has_units(program) };
        if let Some(task) = guard.take_any(may) {
            return Ok(task);
        }
        if has_unstarted {
            return Err(MoverRest::Poll);
        }
        let until_us = guard.deadline_next_us().unwrap_or(u64::MAX);
        guard.state_mut().mover_sleeps_until_us = Some(until_us);
        Err(MoverRest::Sleep { until_us })
    }

    fn work(&mut self, task: EngineTask) {
        match self.shared.run(task) {
            RanTask::Finished(task) => self.finished.push(task),
            RanTask::Flash(task) => self.submit(task),
            // The program loses a unit: this thread counts as one for each program without threads of its own.
            RanTask::Panicked(program, task) => self.shared.lock().unit_lost(program, Some(task)),
        }
    }

    fn submit(&mut self, task: EngineTask) {
        let free = self.moving.iter().position(Option::is_none);
        let place = free.unwrap_or(self.moving.len());
        if place == self.moving.len() {
            self.moving.push(None);
        }
        let flash = task.work.flash();
        for (number, operation) in flash.iter().enumerate() {
            self.share.put(tag(place, number), *operation);
        }
        let opcode = flash.last().map_or(Opcode::Read, Operation::opcode);
        let (bytes, left) = (flash.iter().map(|operation| u64::from(length(operation))).sum(), flash.len());
        let submitted_us = self.shared.env.now_us();
        self.moving[place] = Some(MovingTask { task, opcode, bytes, left, failure: None, submitted_us });
        self.in_flash += 1;
        self.release();
    }

    /// Submits the flash commands that may go now.
    fn release(&mut self) {
        self.share.release(&self.drive_counters, &self.shared.env, |tag, operation| {
            let command = Command::new(tag, operation).of(Purpose::Pipeline);
            // SAFETY: the ranges are in the engine's sub-buffers, and a task's sub-buffers are its own; flash was checked. The engine's
            // memory is freed after this queue.
            unsafe { self.queue.submit(&command) };
            self.has_unstarted = true;
        });
    }

    fn poll_flash(&mut self) {
        if self.in_flash == 0 {
            return;
        }
        self.queue.poll(&mut self.flash_done);
        self.has_unstarted = false;
        if self.flash_done.is_empty() {
            return;
        }
        let now_us = self.shared.env.now_us();
        for completion in self.flash_done.drain(..) {
            let place = &mut self.moving[(completion.tag >> 32) as usize];
            let Some(moving) = place else { unreachable!("a flash command of the mover's is a task's") };
            self.share.ended(length(&moving.task.work.flash()[completion.tag as u32 as usize]));
            self.counters.completed(moving.opcode, completion.status);
            self.counters.latency(moving.opcode, now_us.saturating_sub(moving.submitted_us));
            moving.left -= 1;
            if completion.status != Status::Success {
                moving.failure = Some(TaskResult::FlashFailed { errno: completion.errno });
            }
            if moving.left > 0 {
                continue;
            }
            let Some(MovingTask { task, opcode, bytes, failure, .. }) = place.take() else { unreachable!("as above") };
            self.in_flash -= 1;
            match (failure, opcode) {
                (Some(_), _) => {}
                (None, Opcode::Read) => self.counters.moved_flash_to_local(Purpose::Pipeline, bytes),
                (None, _) => self.counters.moved_local_to_flash(Purpose::Pipeline, bytes),
            }
            let result = failure.unwrap_or(TaskResult::Moved);
            self.finished.push(FinishedTask { task, result, unit_us: None });
        }
        self.release();
    }

    fn sleep(&mut self, until_us: u64) {
        let event = self.shared.mover_event.as_raw_fd();
        let now_us = if until_us == u64::MAX { 0 } else { self.shared.env.now_us() };
        let timeout = (until_us < u64::MAX).then(|| Duration::from_micros(until_us.saturating_sub(now_us)));
        let mut entries = vec![readable(event)];
        if self.in_flash > 0 {
            // A flash without a descriptor must be polled.
            let Some(flash) = self.queue.event_fd() else { return std::thread::yield_now() };
            // The descriptor is raised only after a poll that gave nothing.
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
