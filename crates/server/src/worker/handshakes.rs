//! Places for handshakes of TLS: so many at once, and so few steps a round that other clients hardly wait for them.
//!
//! A step computes for up to a millisecond. Who has sent nothing has no place. Owned by one worker.

use std::collections::VecDeque;

use tapetum_access::tls::HANDSHAKES_MAX;

/// Steps of handshakes between two polls of the store.
const STEPS_MAX: usize = 4;

#[derive(Default)]
pub struct Handshakes {
    going: usize,
    /// Connections that wait for a place, perhaps some that have gone.
    waiting: VecDeque<u32>,
    steps: usize,
}

impl Handshakes {
    /// A place for a connection; if there is none, it waits for one.
    pub fn take_place(&mut self, id: u32) -> bool {
        if self.going < HANDSHAKES_MAX {
            self.going += 1;
            return true;
        }
        if !self.waiting.contains(&id) {
            self.waiting.push_back(id);
        }
        false
    }

    /// A handshake is over. Returns the connection that has its place now, of those that still wait.
    pub fn give_place(&mut self, waits: impl Fn(u32) -> bool) -> Option<u32> {
        while let Some(id) = self.waiting.pop_front() {
            if waits(id) {
                return Some(id);
            }
        }
        self.going -= 1;
        None
    }

    pub fn someone_waits(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Whether another step may be made in this round.
    pub fn may_step(&mut self) -> bool {
        let may = self.steps > 0;
        self.steps = self.steps.saturating_sub(1);
        may
    }

    pub fn renew_steps(&mut self) {
        self.steps = STEPS_MAX;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_goes_to_who_still_waits() {
        let mut handshakes = Handshakes::default();
        let taken = (0..HANDSHAKES_MAX as u32 + 3).filter(|id| handshakes.take_place(*id)).count();
        assert_eq!(taken, HANDSHAKES_MAX);
        let first = HANDSHAKES_MAX as u32;
        assert_eq!(handshakes.give_place(|id| id != first), Some(first + 1));
        assert_eq!(handshakes.give_place(|_| true), Some(first + 2));
        assert_eq!(handshakes.give_place(|_| true), None);
        assert!(handshakes.take_place(7), "the place is free");
    }

    #[test]
    fn a_round_has_few_steps() {
        let mut handshakes = Handshakes::default();
        handshakes.renew_steps();
        assert_eq!((0..10).filter(|_| handshakes.may_step()).count(), STEPS_MAX);
        handshakes.renew_steps();
        assert!(handshakes.may_step());
    }
}
