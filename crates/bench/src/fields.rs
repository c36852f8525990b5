//! Two fields of a large value: how fast keys are answered with them, whoever takes the value apart.

use std::time::Instant;

use crate::Failure;
use crate::latencies::Latencies;
use crate::pace::wake_promptly;
use crate::random::mix;
use crate::turn::Turn;
use crate::workload::{Distribution, Key, Mix, Operation, Operations, Population, key};

/// The first two words of a value; the first is the item's number.
pub type Pair = (u64, u64);

pub trait PairReader {
    /// The fields of the value of this key, if it is there.
    fn read(&mut self, key: &Key) -> Result<Option<Pair>, Failure>;
}

/// Takes a value apart on the host.
pub fn pair_of(value: &[u8]) -> Option<Pair> {
    let (first, rest) = value.split_first_chunk()?;
    Some((u64::from_le_bytes(*first), u64::from_le_bytes(*rest.first_chunk()?)))
}

/// Runs a turn of uniform reads, each thread with a reader of its own.
pub fn run<R: PairReader>(
    turn: &Turn,
    population: &Population,
    reader: impl Fn() -> Result<R, Failure> + Sync,
) -> Result<Latencies, Failure> {
    let begun = Instant::now();
    let thread = |number: u64| -> Result<Latencies, Failure> {
        wake_promptly();
        let seed = mix(turn.seed) ^ number;
        let mut operations = Operations::new(population, Mix::named("c")?, Distribution::Uniform, seed);
        let (mut reader, mut latencies) = (reader()?, Latencies::default());
        while begun.elapsed() < turn.time_max() && latencies.operations() < turn.operations_max() / turn.threads {
            let Operation::Read(index) = operations.draw() else { continue };
            let asked = Instant::now();
            match reader.read(&key(index))? {
                Some((first, second)) if first == index => {
                    std::hint::black_box(second);
                }
                other => return Err(format!("item {index} was answered with {other:?}").into()),
            }
            latencies.read(asked.elapsed());
        }
        Ok(latencies)
    };
    let thread = &thread;
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..turn.threads).map(|number| scope.spawn(move || thread(number))).collect();
        let mut latencies = Latencies::default();
        for thread in threads {
            latencies.add(&thread.join().expect("a reader's thread panicked")?);
        }
        Ok(latencies)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_has_two_fields_or_is_too_short() {
        let value: Vec<u8> = [7_u64, 9].iter().flat_map(|word| word.to_le_bytes()).chain([1, 2]).collect();
        assert_eq!(pair_of(&value), Some((7, 9)));
        assert_eq!((pair_of(&value[..15]), pair_of(b"")), (None, None));
    }
}
