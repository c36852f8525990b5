//! The gets that a worker has submitted. The length of a value is unknown before it is read, so a get is charged with the length of its
//! connection's recent values. A new connection starts with a cautious guess, which falls within a few gets. Owned by one worker.

use crate::net::limits::Budget;

#[derive(Debug)]
pub struct Gets {
    in_flight: usize,
    /// The sum of the charges.
    in_flight_bytes: usize,
    bytes_max: usize,
    /// The most gets that all workers have in flight together.
    all_max: usize,
    /// The length of recent values. Large ones are remembered for a while.
    value_bytes_recent: usize,
}

impl Gets {
    /// More gets gain nothing, and values longer than expected would cost more.
    const IN_FLIGHT_MAX: usize = 512;
    pub const VALUE_BYTES_AT_FIRST: usize = 128 << 10;

    /// Gets may hold a third of a worker's part of the limit. The rest is for the copies in the store and in replies.
    pub fn new(all_bytes_max: usize, workers: usize) -> Gets {
        let (bytes_max, all_max) = (all_bytes_max / workers / 3, Gets::IN_FLIGHT_MAX * workers);
        Gets { in_flight: 0, in_flight_bytes: 0, bytes_max, all_max, value_bytes_recent: 0 }
    }

    /// The longest value that a get may bring without asking: half of the free room, divided by the most gets in flight.
    pub fn value_bytes_unasked(&self, budget: &Budget) -> usize {
        budget.room_bytes() / 2 / self.all_max
    }

    #[cfg(test)]
    pub fn is_idle(&self) -> bool {
        (self.in_flight, self.in_flight_bytes) == (0, 0)
    }

    pub fn value_bytes_at_first(&self) -> usize {
        self.value_bytes_recent.max(Gets::VALUE_BYTES_AT_FIRST)
    }

    /// The length of recent values.
    pub fn value_bytes_recent(&self) -> usize {
        self.value_bytes_recent
    }

    pub fn may_submit(&self, bytes: usize) -> bool {
        let room = self.in_flight < Gets::IN_FLIGHT_MAX && self.in_flight_bytes + bytes <= self.bytes_max;
        self.in_flight == 0 || room
    }

    pub fn submitted(&mut self, charge_bytes: usize) {
        self.in_flight += 1;
        self.in_flight_bytes += charge_bytes;
    }

    /// A get waits for room, and must not keep others from being submitted. It is submitted again when it has room.
    pub fn put_aside(&mut self, charge_bytes: usize) {
        self.in_flight -= 1;
        self.in_flight_bytes -= charge_bytes;
    }

    /// To be called with the outcome of a get that read a value for an append or the like.
    pub fn ended(&mut self, charge_bytes: usize) {
        self.put_aside(charge_bytes);
    }

    pub fn completed(&mut self, charge_bytes: usize, value_bytes: usize) {
        self.put_aside(charge_bytes);
        self.value_bytes_recent = value_bytes.max(self.value_bytes_recent - self.value_bytes_recent.div_ceil(64));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_connection_learns_from_the_others() {
        let mut gets = Gets::new(48 << 20, 1);
        assert_eq!(gets.value_bytes_at_first(), Gets::VALUE_BYTES_AT_FIRST);
        gets.submitted(500);
        gets.completed(500, 4 << 20);
        assert_eq!(gets.value_bytes_at_first(), 4 << 20);
        for _ in 0..1000 {
            gets.submitted(500);
            gets.completed(500, 10);
        }
        assert_eq!(gets.value_bytes_at_first(), Gets::VALUE_BYTES_AT_FIRST);
        assert!(gets.is_idle());
    }

    #[test]
    fn one_may_always_go() {
        let mut gets = Gets::new(48 << 20, 1);
        assert!(gets.may_submit(1 << 40));
        gets.submitted(1 << 40);
        assert!(!gets.may_submit(1));
    }
}
