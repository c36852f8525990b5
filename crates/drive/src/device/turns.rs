//! Turns of the threads that compute for themselves: on a drive without compute units each queue pair has an engine of its own, and its host's
//! thread runs the programs. There are so many turns at once; while more want one, applications get them by their weights.
//!
//! 1. An application's virtual time is what its turns took, divided by its weight. One that waits is not overtaken by one whose virtual time is
//!    later.
//! 2. One that has not asked for a while waits no more, and begins again at the time of those that stayed: nobody saves up, and nobody is waited
//!    for who does not come.
//! 3. A turn is a poll's tasks: a millisecond or so.
//!
//! Threads: any.

use std::sync::{Condvar, Mutex};
use std::time::Duration;

use super::engine::EngineOptions;
use crate::locks::whole;

/// A thread that waits asks again within this time.
const RECENT_US: u64 = 5000;
/// The longest wait for the end of somebody's turn: he may not come back.
const REST: Duration = Duration::from_millis(1);
/// Virtual time that an application with weight 1 pays for a microsecond.
const VIRTUAL_PER_US: u64 = 1 << 10;

pub struct Turns {
    at_once: usize,
    state: Mutex<TurnsState>,
    ended: Condvar,
}

struct TurnsState {
    running: usize,
    applications: Vec<ApplicationTurns>,
}

#[derive(Clone, Default)]
struct ApplicationTurns {
    weight: u64,
    virtual_time: u64,
    /// When it last had or wanted a turn.
    seen_us: Option<u64>,
    /// When it last wanted one and got none.
    waited_us: Option<u64>,
}

fn is_recent(at_us: Option<u64>, now_us: u64) -> bool {
    at_us.is_some_and(|at_us| now_us.saturating_sub(at_us) < RECENT_US)
}

impl Turns {
    /// For the applications of these options, so many at once.
    pub fn new(options: &EngineOptions, at_once: usize) -> Turns {
        let of = |weight: &u32| ApplicationTurns { weight: u64::from(*weight).max(1), ..ApplicationTurns::default() };
        let applications = options.weights.iter().map(of).collect();
        Turns { at_once, state: Mutex::new(TurnsState { running: 0, applications }), ended: Condvar::new() }
    }

    /// Whether it is an application's turn. If so, [`Turns::end`] follows; if not, it waits a moment, or until a turn ends.
    pub fn begin_or_rest(&self, application: u16, now_us: u64) -> bool {
        let mut state = whole(self.state.lock());
        let has_turn = state.begin(application, now_us, self.at_once);
        if !has_turn {
            drop(whole(self.ended.wait_timeout(state, REST)));
        }
        has_turn
    }

    /// A turn is over.
    pub fn end(&self, application: u16, took_us: u64, now_us: u64) {
        let mut state = whole(self.state.lock());
        assert!(state.running > 0, "it began");
        state.running -= 1;
        let own = &mut state.applications[usize::from(application)];
        own.virtual_time += took_us * VIRTUAL_PER_US / own.weight;
        own.seen_us = Some(now_us);
        drop(state);
        self.ended.notify_all();
    }
}

impl TurnsState {
    fn begin(&mut self, application: u16, now_us: u64, at_once: usize) -> bool {
        let number = usize::from(application);
        let TurnsState { running, applications } = self;
        let others = || applications.iter().enumerate().filter(|(other, _)| *other != number).map(|(_, other)| other);
        let stayed = others().filter(|other| is_recent(other.seen_us, now_us)).map(|other| other.virtual_time).min();
        let first = others().filter(|other| is_recent(other.waited_us, now_us)).map(|other| other.virtual_time).min();
        let own = &mut applications[number];
        if !is_recent(own.seen_us, now_us) {
            own.virtual_time = own.virtual_time.max(stayed.unwrap_or(0));
        }
        own.seen_us = Some(now_us);
        let has_turn = *running < at_once && first.is_none_or(|first| own.virtual_time <= first);
        own.waited_us = if has_turn { None } else { Some(now_us) };
        *running += usize::from(has_turn);
        has_turn
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn turns(weights: &[u32], at_once: usize) -> Turns {
        let options = EngineOptions { weights: weights.to_vec(), ..EngineOptions::of_a_queue_pair() };
        Turns::new(&options, at_once)
    }

    fn begin(turns: &Turns, application: u16, now_us: u64) -> bool {
        whole(turns.state.lock()).begin(application, now_us, turns.at_once)
    }

    /// Counts the turns of a millisecond that each of these has, while they ask one after the other.
    fn had(turns: &Turns, who: &[u16], count: u32, now_us: &mut u64) -> Vec<u32> {
        let mut had = vec![0; who.len()];
        let mut asks = who.iter().copied().enumerate().cycle();
        while had.iter().sum::<u32>() < count {
            let (place, application) = asks.next().unwrap();
            *now_us += 10;
            if begin(turns, application, *now_us) {
                // Meanwhile the others ask, and wait.
                who.iter().for_each(|other| assert!(!begin(turns, *other, *now_us)));
                *now_us += 1000;
                turns.end(application, 1000, *now_us);
                had[place] += 1;
            }
        }
        had
    }

    #[test]
    fn turns_are_divided_by_weight_however_many_ask() {
        let turns = turns(&[1, 4], 1);
        let mut now_us = 1_000_000;
        let had = had(&turns, &[0, 1, 0, 0], 100, &mut now_us);
        assert!((19..=21).contains(&(had[0] + had[2] + had[3])), "{had:?}");
    }

    #[test]
    fn nobody_is_waited_for_who_does_not_come_and_nobody_saves_up() {
        let turns = turns(&[1, 8], 1);
        let mut now_us = 1_000_000;
        had(&turns, &[0, 1], 9, &mut now_us);
        // The second one has gone.
        now_us += RECENT_US;
        assert_eq!(had(&turns, &[0], 50, &mut now_us), [50]);
        let both = had(&turns, &[0, 1], 90, &mut now_us);
        assert!((9..=11).contains(&both[0]), "{both:?}");
    }

    #[test]
    fn while_there_are_turns_for_all_nobody_waits() {
        let turns = turns(&[1, 100], 2);
        for now_us in (1_000_000..2_000_000).step_by(1000) {
            assert!(begin(&turns, 0, now_us) && begin(&turns, 1, now_us));
            assert!(!begin(&turns, 1, now_us), "there is no third one");
            turns.end(1, 1000, now_us);
            turns.end(0, 1000, now_us);
            assert!(begin(&turns, 1, now_us));
            turns.end(1, 10, now_us);
        }
    }
}
