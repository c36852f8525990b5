//! The most memory the process ever holds, at `--memory 256MiB` with 64 connections that write and read values from one
//! byte to one mebibyte, over more data than fits, so that it flushes and collects meanwhile.

use super::{Bench, mebibytes};
use crate::Failure;
use crate::arguments::Arguments;
use crate::load::{expect_stored, in_parallel, stats};
use crate::results::outcome::{Outcome, Reach};
use tapetum_bench::process;
use tapetum_bench::random::{Random, key16, mix};

const CONNECTIONS: u64 = 64;
const LIMIT_MIB: f64 = 320.0;
/// A connection's own keys. Sizes are log-uniform, so a value has 75 KiB in the mean: 1.2 GiB live in all.
const KEYS: u64 = 256;

pub fn run(arguments: &Arguments) -> Result<(), Failure> {
    let written_target = arguments.size("write", 12 << 30)?;
    let bench = Bench::start(
        "memory-peak",
        arguments,
        &["--capacity", arguments.sized("4GiB", "512MiB"), "--memory", "256MiB"],
    )?;
    let about = format!("--memory 256MiB, {CONNECTIONS} connections, values of 1 B to 1 MiB");
    let mut outcome = Outcome::new(arguments, "memory-peak", about);
    let (address, process) = (bench.server().address(), bench.server().process());
    let idle = process::read(process)?.resident_bytes;
    in_parallel(address, CONNECTIONS, |connection_index, connection| {
        let mut random = Random::new(mix(connection_index));
        let mut value = Vec::new();
        let mut sequences = vec![0_u64; KEYS as usize];
        let mut written = 0;
        while written < written_target / CONNECTIONS {
            let key = random.below(KEYS);
            let sequence = &mut sequences[key as usize];
            let name = key16(connection_index << 32 | key);
            if *sequence > 0 && random.one_in(3) {
                fill_value(&name, *sequence, &mut value);
                connection.queue_get([name.as_slice()]);
                connection.flush()?;
                let mut right = false;
                connection.read_values(|found| right = found.bytes == value)?;
                if !right {
                    return Err("a value came back wrong or not at all".into());
                }
            } else {
                *sequence += 1;
                fill_value(&name, *sequence, &mut value);
                connection.queue_set(&name, 0, &value);
                connection.flush()?;
                expect_stored(connection)?;
                written += value.len() as u64;
            }
        }
        Ok(())
    })?;
    let memory = process::read(process)?;
    let after = stats(address)?;
    outcome.hold_once("MiB resident at most (VmHWM)", mebibytes(memory.resident_max_bytes), Reach::AtMost(LIMIT_MIB));
    outcome.report("MiB resident when started", mebibytes(idle));
    for (what, name) in [
        ("MiB written by the clients", "user_write_bytes"),
        ("MiB written to the drive", "flash_write_bytes"),
        ("memory_used_bytes of stats at the end, MiB", "memory_used_bytes"),
    ] {
        outcome.report(what, mebibytes(after.get(name)?));
    }
    bench.end()?;
    outcome.end()
}

/// One byte to one mebibyte, each power of two as likely; made from key and sequence alone.
fn fill_value(key: &[u8; 16], sequence: u64, value: &mut Vec<u8>) {
    let seed =
        key.chunks(8).fold(sequence, |seed, half| mix(seed ^ half.iter().fold(0, |a, b| a << 8 | u64::from(*b))));
    let mut random = Random::new(seed);
    let octave = 1 << random.below(21);
    let length = (octave + random.below(octave)).min(1 << 20);
    value.resize(length as usize, 0);
    random.fill(value);
}

#[cfg(test)]
mod tests {
    #[test]
    fn values_go_from_one_byte_to_one_mebibyte() {
        let mut value = Vec::new();
        let lengths: Vec<usize> = (0..500)
            .map(|sequence| {
                super::fill_value(b"0123456789abcdef", sequence, &mut value);
                value.len()
            })
            .collect();
        assert_eq!(lengths.iter().min(), Some(&1));
        assert_eq!(lengths.iter().max(), Some(&(1 << 20)));
    }
}
