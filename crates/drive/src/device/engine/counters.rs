//! Counters by program (as stages of pipelines) and by application, over all engines of a drive.

use super::EngineOptions;
use super::job::{SINK, SOURCE};
use crate::device::program::Program;
use crate::protocol::ProgramId;
use std::sync::atomic::{AtomicU64, Ordering};

/// One in this many tasks of a program is timed. The time of the others is estimated from their bytes.
pub(super) const TASKS_TIMED_EVERY: u64 = 16;
/// If the timed tasks of a program took this long on average, all its tasks are timed: the clock is cheap beside them, and the cost of a
/// byte may differ between applications.
const LONG_TASK_US: u64 = 50;
/// Beyond this many timed microseconds, older measurements are halved.
const TIMED_US_MAX: u64 = 1 << 20;

#[derive(Default)]
struct StageCounters {
    tasks: AtomicU64,
    bytes_in: AtomicU64,
    bytes_out: AtomicU64,
    unit_us: AtomicU64,
    failures: AtomicU64,
    waits: AtomicU64,
}

#[derive(Default)]
struct ApplicationCounters {
    pipelines: AtomicU64,
    tasks: AtomicU64,
    unit_us: AtomicU64,
}

/// Counters by program, with those of sources and of sinks behind the drive's programs; and counters by application.
pub(crate) struct EngineCounters {
    all: Vec<(String, StageCounters)>,
    applications: Vec<(ApplicationSnapshot, ApplicationCounters)>,
}

#[derive(Clone, Copy, Default)]
pub(super) struct TaskCount {
    pub bytes_in: u64,
    pub bytes_out: u64,
    pub unit_us: u64,
    pub failed: bool,
}

/// Counters of a program as a stage of pipelines, since the drive was built.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StageSnapshot {
    /// The program's name; `source` and `sink` are the device's own moves of bytes.
    pub name: String,
    pub tasks: u64,
    pub bytes_in: u64,
    pub bytes_out: u64,
    /// Estimated from the timed tasks. For sources and sinks it includes the time that flash took.
    pub unit_us: u64,
    pub failures: u64,
    /// Tasks that could not start at once because no unit or sub-buffer was free.
    pub waits: u64,
}

/// Counters of an application, since the drive was built.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ApplicationSnapshot {
    pub name: String,
    pub weight: u32,
    /// Pipelines that have ended, successfully or not.
    pub pipelines: u64,
    pub tasks: u64,
    /// Like that of a [`StageSnapshot`]. This time is what the weights divide.
    pub unit_us: u64,
}

impl EngineCounters {
    pub fn new(programs: &[Box<dyn Program>], options: &EngineOptions) -> EngineCounters {
        let names = programs.iter().map(|program| program.descriptor().name).chain(["source", "sink"]);
        let mut application_names = options.application_names.iter();
        let application = |weight: &u32| {
            let name = application_names.next().cloned().unwrap_or_default();
            let none = ApplicationSnapshot { name, weight: *weight, ..ApplicationSnapshot::default() };
            (none, ApplicationCounters::default())
        };
        EngineCounters {
            all: names.map(|name| (name.to_owned(), StageCounters::default())).collect(),
            applications: options.weights.iter().map(application).collect(),
        }
    }

    fn of(&self, program: ProgramId) -> &StageCounters {
        let programs = self.all.len() - 2;
        let place = match program {
            SOURCE => programs,
            SINK => programs + 1,
            ProgramId(place) => usize::from(place),
        };
        &self.all[place].1
    }

    pub(super) fn ended(&self, program: ProgramId, count: TaskCount) {
        let counters = self.of(program);
        counters.tasks.fetch_add(1, Ordering::Relaxed);
        counters.bytes_in.fetch_add(count.bytes_in, Ordering::Relaxed);
        counters.bytes_out.fetch_add(count.bytes_out, Ordering::Relaxed);
        counters.unit_us.fetch_add(count.unit_us, Ordering::Relaxed);
        if count.failed {
            counters.failures.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// A task has ended for an application that the arbiter knows.
    pub(super) fn worked_for(&self, application: u16, unit_us: u64) {
        let (_, counters) = &self.applications[usize::from(application)];
        counters.tasks.fetch_add(1, Ordering::Relaxed);
        counters.unit_us.fetch_add(unit_us, Ordering::Relaxed);
    }

    pub(super) fn pipeline_ended(&self, application: u16) {
        self.applications[usize::from(application)].1.pipelines.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn waited(&self, program: ProgramId, tasks: u64) {
        if tasks > 0 {
            self.of(program).waits.fetch_add(tasks, Ordering::Relaxed);
        }
    }

    pub fn snapshot(&self) -> Vec<StageSnapshot> {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let snapshot = |(name, counters): &(String, StageCounters)| StageSnapshot {
            name: name.clone(),
            tasks: get(&counters.tasks),
            bytes_in: get(&counters.bytes_in),
            bytes_out: get(&counters.bytes_out),
            unit_us: get(&counters.unit_us),
            failures: get(&counters.failures),
            waits: get(&counters.waits),
        };
        self.all.iter().map(snapshot).collect()
    }

    pub fn applications(&self) -> Vec<ApplicationSnapshot> {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let snapshot = |(none, counters): &(ApplicationSnapshot, ApplicationCounters)| ApplicationSnapshot {
            pipelines: get(&counters.pipelines),
            tasks: get(&counters.tasks),
            unit_us: get(&counters.unit_us),
            ..none.clone()
        };
        self.applications.iter().map(snapshot).collect()
    }
}

/// The time a program takes for a byte, from its timed tasks.
#[derive(Default)]
pub(super) struct TaskRate {
    begun: u64,
    timed: u64,
    timed_us: u64,
    timed_bytes: u64,
    /// Rounding remainder, in byte-microseconds.
    rest: u64,
}

impl TaskRate {
    /// Whether to time the task that begins.
    pub fn begin(&mut self) -> bool {
        self.begun += 1;
        let is_long = self.timed > 0 && self.timed_us >= self.timed * LONG_TASK_US;
        is_long || self.begun % TASKS_TIMED_EVERY == 1
    }

    /// Time of a task of `bytes` bytes: as measured, or estimated from the measured ones.
    pub fn took_us(&mut self, bytes: u64, timed_us: Option<u64>) -> u64 {
        // A task of no bytes takes time too.
        let bytes = bytes + 64;
        if let Some(timed_us) = timed_us {
            self.timed += 1;
            self.timed_us += timed_us;
            self.timed_bytes += bytes;
            if self.timed_us > TIMED_US_MAX {
                (self.timed, self.timed_us, self.timed_bytes) =
                    (self.timed / 2, self.timed_us / 2, self.timed_bytes / 2);
            }
            return timed_us;
        }
        let scaled = self.rest + bytes * self.timed_us;
        let took_us = scaled / self.timed_bytes.max(1);
        self.rest = scaled - took_us * self.timed_bytes.max(1);
        took_us
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tasks_that_are_not_timed_take_what_the_timed_ones_took_by_the_byte() {
        let mut rate = TaskRate::default();
        assert!(rate.begin() && !rate.begin());
        assert_eq!(rate.took_us(936, Some(10)), 10);
        assert_eq!(rate.took_us(1936, None), 20);
        // Rounding loses nothing.
        assert_eq!((0..10).map(|_| rate.took_us(86, None)).sum::<u64>(), 15);
        assert_eq!((3..=17).filter(|_| rate.begin()).count(), 1);
    }

    #[test]
    fn each_of_long_tasks_is_timed() {
        let mut rate = TaskRate::default();
        assert!(rate.begin());
        rate.took_us(1000, Some(LONG_TASK_US));
        assert!((0..20).all(|_| rate.begin()));
        // Some tasks are short, and count with their true time.
        rate.took_us(1000, Some(2 * LONG_TASK_US));
        assert_eq!(rate.took_us(1000, Some(0)), 0);
        assert!(rate.begin());
        rate.took_us(1000, Some(LONG_TASK_US / 2));
        assert!(!rate.begin());
    }
}
