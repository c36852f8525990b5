//! How long the machine stood still while a row was measured. A hypervisor that holds it to a share of its processors, in which what
//! emulates its disk may count, stops all of it at once, some milliseconds of every tenth of a second. Latencies have that in them,
//! and so has whoever works the more for an operation; nothing in the machine can help it.
//!
//! One thread sleeps for moments and notes when it woke much later than it was to. Busy processors let it wait too, but not for as long.

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
    /// As long as was watched.
    watched: Duration,
}

impl Watch {
    pub fn begin() -> Watch {
        let over = Arc::new(AtomicBool::new(false));
        let thread = thread::spawn({
            let over = over.clone();
            move || watch(&over)
        });
        Watch { over, thread }
    }

    pub fn end(self) -> Stalls {
        self.over.store(true, Ordering::Relaxed);
        self.thread.join().expect("who only sleeps does not panic")
    }
}

fn watch(over: &AtomicBool) -> Stalls {
    let (begun, mut stalls) = (Instant::now(), Stalls::default());
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
