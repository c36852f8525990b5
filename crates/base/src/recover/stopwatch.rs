//! How long the parts of a recovery took.

use std::fmt;
use tapetum_drive::Env;

/// How long the parts of a recovery took, for the log.
pub struct Stopwatch {
    env: Env,
    lap_us: u64,
    laps: Vec<(&'static str, u64)>,
}

impl Stopwatch {
    pub fn new(env: &Env) -> Stopwatch {
        Stopwatch { env: env.clone(), lap_us: env.now_us(), laps: Vec::new() }
    }

    pub fn lap(&mut self, what: &'static str) {
        let now_us = self.env.now_us();
        self.laps.push((what, now_us - self.lap_us));
        self.lap_us = now_us;
    }
}

impl fmt::Display for Stopwatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sum: u64 = self.laps.iter().map(|(_, us)| us).sum();
        write!(f, "{:.3} s (", sum as f64 / 1e6)?;
        for (place, (what, us)) in self.laps.iter().enumerate() {
            let comma = if place == 0 { "" } else { ", " };
            write!(f, "{comma}{what} {:.3}", *us as f64 / 1e6)?;
        }
        f.write_str(")")
    }
}
