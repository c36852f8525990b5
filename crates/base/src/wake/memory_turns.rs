//! The queue for much local memory. A session that found too little waits in line, so that two requests never take memory from each other for ever.
//!
//! No session waits for another one to poll: a session that has not tried for [`PATIENCE_US`] is skipped.
//!
//! Threads: any.

use crate::media::io::lock;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

/// A session that waits for memory retries every ten milliseconds.
const PATIENCE_US: u64 = 100_000;

#[derive(Default)]
struct Line {
    given: u64,
    /// The numbers of the sessions in line, and the time of each one's last try.
    waiting: VecDeque<(u64, u64)>,
}

impl Line {
    fn first(&self, now_us: u64) -> Option<u64> {
        let tries = |(_, tried_us): &&(u64, u64)| tried_us + PATIENCE_US >= now_us;
        self.waiting.iter().find(tries).map(|(number, _)| *number)
    }
}

/// See the [module](self).
#[derive(Default)]
pub struct MemoryTurns {
    line: Mutex<Line>,
}

impl MemoryTurns {
    /// Takes a place at the end of the line.
    pub fn join(self: &Arc<Self>, now_us: u64) -> MemoryTurn {
        let mut line = lock(&self.line);
        line.given += 1;
        let number = line.given;
        line.waiting.push_back((number, now_us));
        MemoryTurn { turns: self.clone(), number }
    }

    /// Whether no session in line is still trying.
    pub fn are_none(&self, now_us: u64) -> bool {
        lock(&self.line).first(now_us).is_none()
    }
}

/// A place in line, given up when dropped.
pub struct MemoryTurn {
    turns: Arc<MemoryTurns>,
    number: u64,
}

impl MemoryTurn {
    /// Tries: whether it is this session's turn.
    pub fn is_next(&self, now_us: u64) -> bool {
        let mut line = lock(&self.turns.line);
        if let Some((_, tried_us)) = line.waiting.iter_mut().find(|(number, _)| *number == self.number) {
            *tried_us = now_us;
        }
        line.first(now_us) == Some(self.number)
    }
}

impl Drop for MemoryTurn {
    fn drop(&mut self) {
        lock(&self.turns.line).waiting.retain(|(number, _)| *number != self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn turns_come_in_order_and_who_does_not_try_is_passed_by() {
        let turns = Arc::new(MemoryTurns::default());
        assert!(turns.are_none(0));
        let [first, second] = [turns.join(0), turns.join(0)];
        assert_eq!([&first, &second].map(|turn| turn.is_next(10)), [true, false]);
        assert!(second.is_next(11 + PATIENCE_US), "the first has not tried since");
        assert!(first.is_next(12 + PATIENCE_US), "and has its place when it does");
        drop(first);
        assert!(second.is_next(13 + PATIENCE_US) && !turns.are_none(14));
        drop(second);
        assert!(turns.are_none(14));
    }
}
