//! Caches that are nothing but an order in which items go, exact and without classes: what the DRAM tier's hit rate is held
//! against. An item that is asked for and not there comes in, and others go until it fits.

use std::collections::{HashMap, VecDeque};

/// What is asked for items, and takes in those that it has not.
pub trait Cache {
    /// Whether the item was there. It is afterwards, if the cache takes items of its size.
    fn ask(&mut self, item: u64, value_bytes: usize) -> bool;
}

/// What an item takes of the budget, by the bytes of its value.
pub type Cost = Box<dyn Fn(usize) -> u64>;

/// The first that came is the first to go.
pub struct Fifo(Line);

/// The one that was not asked for the longest is the first to go.
pub struct Lru(Line);

impl Fifo {
    pub fn new(budget: u64, cost: Cost) -> Fifo {
        Fifo(Line::new(budget, cost))
    }
}

impl Lru {
    pub fn new(budget: u64, cost: Cost) -> Lru {
        Lru(Line::new(budget, cost))
    }
}

impl Cache for Fifo {
    fn ask(&mut self, item: u64, value_bytes: usize) -> bool {
        let there = self.0.has(item);
        if !there {
            self.0.enter(item, value_bytes);
        }
        there
    }
}

impl Cache for Lru {
    fn ask(&mut self, item: u64, value_bytes: usize) -> bool {
        let there = self.0.has(item);
        match there {
            true => self.0.go_to_end(item),
            false => self.0.enter(item, value_bytes),
        }
        there
    }
}

/// Items in the order in which they go.
struct Line {
    budget: u64,
    cost: Cost,
    used: u64,
    /// Who stood where, the next to go first. Only an item's last place counts.
    places: VecDeque<(u64, u64)>,
    items: HashMap<u64, Held>,
    next_place: u64,
}

struct Held {
    place: u64,
    cost: u64,
}

impl Line {
    fn new(budget: u64, cost: Cost) -> Line {
        Line { budget, cost, used: 0, places: VecDeque::new(), items: HashMap::new(), next_place: 0 }
    }

    fn has(&self, item: u64) -> bool {
        self.items.contains_key(&item)
    }

    fn new_place(&mut self, item: u64) -> u64 {
        let place = self.next_place;
        self.next_place += 1;
        self.places.push_back((item, place));
        place
    }

    fn go_to_end(&mut self, item: u64) {
        let place = self.new_place(item);
        self.items.get_mut(&item).expect("it is in line").place = place;
    }

    fn enter(&mut self, item: u64, value_bytes: usize) {
        let cost = (self.cost)(value_bytes);
        if cost > self.budget {
            return;
        }
        self.used += cost;
        while self.used > self.budget {
            let (first, place) = self.places.pop_front().expect("what is used is used by someone");
            if self.items.get(&first).is_some_and(|held| held.place == place) {
                self.used -= self.items.remove(&first).expect("just seen").cost;
            }
        }
        let place = self.new_place(item);
        self.items.insert(item, Held { place, cost });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn by_value() -> Cost {
        Box::new(|value_bytes| value_bytes as u64)
    }

    /// What was not there.
    fn misses(cache: &mut impl Cache, asked: &[u64]) -> Vec<u64> {
        asked.iter().copied().filter(|item| !cache.ask(*item, 10)).collect()
    }

    #[test]
    fn the_first_that_came_goes_first_however_often_it_is_asked_for() {
        let mut cache = Fifo::new(30, by_value());
        assert_eq!(misses(&mut cache, &[1, 2, 3, 1, 1, 4, 2, 3, 1]), [1, 2, 3, 4, 1]);
    }

    #[test]
    fn the_one_not_asked_for_the_longest_goes_first() {
        let mut cache = Lru::new(30, by_value());
        assert_eq!(misses(&mut cache, &[1, 2, 3, 1, 1, 4, 3, 1, 2, 4]), [1, 2, 3, 4, 2, 4]);
    }

    #[test]
    fn as_many_go_as_the_next_one_needs_room() {
        let mut cache = Lru::new(30, by_value());
        assert_eq!(misses(&mut cache, &[1, 2, 3]), [1, 2, 3]);
        assert!(!cache.ask(9, 31) && !cache.ask(9, 31), "what is larger than all is left out");
        assert!(!cache.ask(5, 20) && cache.ask(5, 20));
        assert_eq!(misses(&mut cache, &[3, 2]), [2]);
    }
}
