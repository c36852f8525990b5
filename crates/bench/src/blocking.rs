//! Contenders that are asked by blocking calls: as many threads as a turn says, each with a client of its own that makes one
//! operation after the other, or gathers reads and asks for them together.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

use crate::Failure;
use crate::latencies::Latencies;
use crate::pace::{Pace, wake_promptly};
use crate::random::{Random, mix};
use crate::turn::Turn;
use crate::workload::{Key, Operation, Operations, Population, Values, key};

pub trait Client {
    /// Reads these keys, at once if there is a way; gives each value that is there, by the key's place, to `found`.
    fn get(&mut self, keys: &[Key], found: &mut dyn FnMut(usize, &[u8])) -> Result<(), Failure>;

    fn put(&mut self, key: &Key, value: &[u8]) -> Result<(), Failure>;

    /// Reads so many items from a key on; how many there were.
    fn scan(&mut self, _from: &Key, _items: u64) -> Result<u64, Failure> {
        Err("this contender has no order of keys to scan in".into())
    }
}

/// Runs a turn; `client` is called on each thread.
pub fn run<C: Client>(
    turn: &Turn,
    population: &Population,
    client: impl Fn() -> Result<C, Failure> + Sync,
) -> Result<Latencies, Failure> {
    let (mix_of, distribution) = (turn.mix()?, turn.distribution()?);
    let left = AtomicU64::new(turn.operations_max());
    let failed = AtomicBool::new(false);
    let begun = Instant::now();
    let thread = |number: u64| -> Result<Latencies, Failure> {
        wake_promptly();
        let operations = Operations::new(population, mix_of, distribution, mix(turn.seed) ^ number);
        let mut worker = Worker {
            client: client()?,
            operations,
            values: population.values(),
            latencies: Latencies::default(),
            value: Vec::new(),
            reads: Vec::new(),
            reads_max: turn.depth as usize,
        };
        let mut pace = Pace::new(turn.rate, turn.threads, number);
        let mut now = Instant::now();
        while now - begun < turn.time_max() && !failed.load(Ordering::Relaxed) && take_one(&left) {
            let since = loop {
                if let Some(since) = pace.take(now) {
                    break since;
                }
                std::thread::sleep(pace.until(now));
                now = Instant::now();
            };
            now = worker.operate(since)?;
        }
        worker.read_gathered()?;
        Ok(worker.latencies)
    };
    let thread = &thread;
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..turn.threads)
            .map(|number| {
                let failed = &failed;
                scope.spawn(move || thread(number).inspect_err(|_| failed.store(true, Ordering::Relaxed)))
            })
            .collect();
        let mut latencies = Latencies::default();
        for thread in threads {
            latencies.add(&thread.join().expect("a client's thread panicked")?);
        }
        Ok(latencies)
    })
}

fn take_one(left: &AtomicU64) -> bool {
    left.load(Ordering::Relaxed) == u64::MAX
        || left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1)).is_ok()
}

struct Worker<'a, C> {
    client: C,
    operations: Operations<'a>,
    values: &'a Values,
    latencies: Latencies,
    value: Vec<u8>,
    /// Reads that wait to be asked for together, and since when.
    reads: Vec<(u64, Instant)>,
    reads_max: usize,
}

impl<C: Client> Worker<'_, C> {
    /// Makes the next operation; when it was done.
    fn operate(&mut self, since: Instant) -> Result<Instant, Failure> {
        match self.operations.draw() {
            Operation::Read(index) => {
                self.reads.push((index, since));
                if self.reads.len() < self.reads_max {
                    return Ok(Instant::now());
                }
                return self.read_gathered();
            }
            Operation::Update(index) | Operation::Insert(index) => self.write(index, since)?,
            Operation::ReadModifyWrite(index) => {
                let mut found = false;
                self.client.get(&[key(index)], &mut |_, _| found = true)?;
                self.latencies.missing += u64::from(!found);
                self.write(index, since)?;
            }
            Operation::Scan(index, items) => {
                self.client.scan(&key(index), items)?;
                self.latencies.read(since.elapsed());
            }
        }
        Ok(Instant::now())
    }

    fn write(&mut self, index: u64, since: Instant) -> Result<(), Failure> {
        self.values.fill(index, self.operations.random(), &mut self.value);
        self.client.put(&key(index), &self.value)?;
        self.latencies.write(since.elapsed());
        Ok(())
    }

    fn read_gathered(&mut self) -> Result<Instant, Failure> {
        let mut keys: [Key; 1] = [[0; 16]];
        let many: Vec<Key>;
        let keys: &[Key] = match &self.reads[..] {
            [(index, _)] => {
                keys[0] = key(*index);
                &keys
            }
            reads => {
                many = reads.iter().map(|(index, _)| key(*index)).collect();
                &many
            }
        };
        if keys.is_empty() {
            return Ok(Instant::now());
        }
        let (mut found, mut wrong) = (0, Ok(()));
        self.client.get(keys, &mut |place, value| {
            found += 1;
            if let Err(error) = self.values.check(self.reads[place].0, value) {
                wrong = Err(error);
            }
        })?;
        wrong?;
        self.latencies.missing += keys.len() as u64 - found;
        let now = Instant::now();
        for (_, since) in self.reads.drain(..) {
            self.latencies.read(now - since);
        }
        Ok(now)
    }
}

/// Stores these items by so many threads, in no order of their keys.
pub fn load<C: Client>(
    indexes: Range<u64>,
    threads: u64,
    values: &Values,
    client: impl Fn() -> Result<C, Failure> + Sync,
) -> Result<(), Failure> {
    let thread = |number: u64| -> Result<(), Failure> {
        let mut client = client()?;
        let mut random = Random::new(mix(indexes.start ^ number));
        let mut value = Vec::new();
        for index in (indexes.start + number..indexes.end).step_by(threads as usize) {
            values.fill(index, &mut random, &mut value);
            client.put(&key(index), &value)?;
        }
        Ok(())
    };
    let thread = &thread;
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..threads).map(|number| scope.spawn(move || thread(number))).collect();
        threads.into_iter().try_for_each(|thread| thread.join().expect("a loading thread panicked"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::turn::Length;
    use std::collections::HashMap;
    use std::sync::Mutex;

    #[derive(Default)]
    struct Memory(Mutex<HashMap<Key, Vec<u8>>>);

    impl Client for &Memory {
        fn get(&mut self, keys: &[Key], found: &mut dyn FnMut(usize, &[u8])) -> Result<(), Failure> {
            let map = self.0.lock().unwrap();
            keys.iter().enumerate().for_each(|(place, key)| {
                if let Some(value) = map.get(key) {
                    found(place, value);
                }
            });
            Ok(())
        }

        fn put(&mut self, key: &Key, value: &[u8]) -> Result<(), Failure> {
            self.0.lock().unwrap().insert(*key, value.to_vec());
            Ok(())
        }
    }

    fn turn(mix: &str, depth: u64) -> Turn {
        Turn::uniform(mix, "", 3, depth, Length::Operations(5000), 1)
    }

    #[test]
    fn a_turn_makes_as_many_operations_as_it_says_and_checks_what_it_reads() {
        let memory = Memory::default();
        let population = Population::new(100, Values::new(40, 100));
        load(0..100, 2, population.values(), || Ok(&memory)).unwrap();
        for (mix, depth) in [("a", 1), ("c", 16), ("f", 1), ("d", 7)] {
            let latencies = run(&turn(mix, depth), &population, || Ok(&memory)).unwrap();
            assert_eq!(latencies.operations(), 5000, "{mix}");
            if mix != "d" {
                assert_eq!(latencies.missing, 0, "{mix}");
            }
        }
        memory.0.lock().unwrap().insert(key(5), b"another's".to_vec());
        assert!(run(&turn("c", 1), &population, || Ok(&memory)).is_err());
        assert!(run(&turn("e", 1), &population, || Ok(&memory)).is_err(), "nobody scans a hash map");
    }
}
