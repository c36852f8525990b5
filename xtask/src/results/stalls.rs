//! How long the machine stood still while a row was measured. A hypervisor gives a machine a share of its processors; the emulation of the
//! disk may count towards it. At the end of the share it stops the whole machine, for some milliseconds of each tenth of a second. That
//! time is part of the latencies, and costs a contender that needs more CPU for an operation more. The machine cannot prevent it.
//!
//! One thread sleeps for a moment, again and again, and counts how much too late it wakes. Busy processors delay it too, but for less.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

const MOMENT: Duration = Duration::from_millis(2);
/// Longer than a thread's slice of a busy processor.
const STALL_MIN: Duration = Duration::from_millis(8);

pub struct Watch {
    over: Arc<AtomicBool>,
    thread: JoinHandle<Stalls>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Stalls {
    count: u64,
    longest: Duration,
    total: Duration,
    /// How long the machine was watched.
    watched: Duration,
}

impl Watch {
    pub fn begin() -> Watch {
        let (over, begun) = (Arc::new(AtomicBool::new(false)), Instant::now());
        let thread = thread::spawn({
            let over = over.clone();
            move || watch(begun, &over)
        });
        Watch { over, thread }
    }

    pub fn end(self) -> Stalls {
        self.over.store(true, Ordering::Relaxed);
        self.thread.join().expect("a thread that only sleeps does not panic")
    }
}

fn watch(begun: Instant, over: &AtomicBool) -> Stalls {
    let mut stalls = Stalls::default();
    while !over.load(Ordering::Relaxed) {
        let asleep = Instant::now();
        thread::sleep(MOMENT);
        stalls.note(asleep.elapsed().saturating_sub(MOMENT));
    }
    Stalls { watched: begun.elapsed(), ..stalls }
}

impl Stalls {
    fn note(&mut self, late: Duration) {
        if late >= STALL_MIN {
            self.count += 1;
            self.total += late;
            self.longest = self.longest.max(late);
        }
    }

    pub fn to_json(self) -> Value {
        json!({
            "count": self.count, "longest_ms": self.longest.as_secs_f64() * 1e3, "total_s": self.total.as_secs_f64(),
            "watched_s": self.watched.as_secs_f64(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_as_late_as_no_busy_processor_makes_it_is_a_stall() {
        let mut stalls = Stalls { watched: Duration::from_secs(4), ..Stalls::default() };
        [0, 7, 8, 20, 1].map(Duration::from_millis).iter().for_each(|late| stalls.note(*late));
        let told = stalls.to_json();
        assert_eq!((told["count"].as_u64(), told["longest_ms"].as_f64()), (Some(2), Some(20.0)));
        let watch = Watch::begin();
        thread::sleep(MOMENT);
        assert!(watch.end().watched >= MOMENT);
    }
}
