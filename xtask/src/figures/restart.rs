//! From exec to the first right answer over TCP, on a store of many items, with the system's caches dropped: after a clean stop, and after
//! kill -9 in the middle of writes; and the memory of recovery.

use std::io::Write;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::embedded::{VALUE_BYTES, fill_value, store_items};
use super::mebibytes;
use crate::Failure;
use crate::arguments::Arguments;
use crate::load::expect_stored;
use crate::results::outcome::{Outcome, Reach};
use crate::results::spread::Spread;
use crate::workspace::Scratch;
use tapetum::KeyspaceRef;
use tapetum_bench::client::Connection;
use tapetum_bench::embedded::{create, settle};
use tapetum_bench::process;
use tapetum_bench::random::{Random, key16, mix};
use tapetum_bench::server::{Server, ServerOptions};

const AFTER_STOP_MAX_S: f64 = 1.0;
/// Connections that write until the server is killed, and the writes in flight on each.
const WRITERS: u64 = 8;
const BATCH: u64 = 64;
const ANSWER_WITHIN: Duration = Duration::from_secs(300);

pub fn run(arguments: &Arguments) -> Result<(), Failure> {
    let items = arguments.number("items", 20_000_000)?;
    let runs = arguments.number("runs", 5)?.max(1);
    let capacity = arguments.size("capacity", 8 << 30)?;
    let memory = arguments.size("memory", 512 << 20)?;
    let after_kill_max_s = arguments.number("after-kill-max-ms", 4000)? as f64 / 1e3;
    let write_for = Duration::from_millis(arguments.number("write-ms", 2000)?);
    let binary = arguments.server();
    arguments.finish()?;
    let binary = arguments.measured_server(binary)?;
    let scratch = Scratch::new("restart")?;
    let data = scratch.folder().join("data");
    let (capacity_mib, memory_mib) = (mebibytes(capacity), mebibytes(memory));
    let about = format!("{items} items, capacity {capacity_mib} MiB, memory {memory_mib} MiB, caches dropped");
    let mut outcome = Outcome::new(arguments, "restart", about);
    let begun = Instant::now();
    let store = create(&data, capacity, memory, tapetum::Sync::Always)?;
    store_items(&store, KeyspaceRef::DEFAULT, 0..items, VALUE_BYTES, 2)?;
    settle(&store)?;
    store.close()?;
    drop(store);
    outcome.report("loaded in, s", begun.elapsed().as_secs_f64());

    let options = ["--capacity", &capacity.to_string(), "--memory", &memory.to_string()];
    let options = ServerOptions::new(&binary, &data, &options)?;
    let mut random = Random::new(11);
    let [mut after_stop, mut after_kill, mut resident, mut acknowledged] = [const { Vec::new() }; 4];
    for run in 1..=runs {
        let stopped = Start::measure(arguments, &options, items, &mut random)?;
        let written = write_and_kill(stopped.server, items, write_for, run)?;
        let killed = Start::measure(arguments, &options, items, &mut random)?;
        println!("  run {run}: {:?} after a clean stop, {:?} after kill -9", stopped.took, killed.took);
        killed.server.terminate()?;
        after_stop.push(stopped.took.as_secs_f64());
        after_kill.push(killed.took.as_secs_f64());
        resident.extend([stopped.resident_max_bytes, killed.resident_max_bytes].map(mebibytes));
        acknowledged.push(written as f64);
    }
    let after_kill = Spread::of(after_kill);
    outcome.hold("exec to the first right answer, s: after kill -9", after_kill, Reach::AtMost(after_kill_max_s));
    let after_stop = Spread::of(after_stop);
    outcome.hold("exec to the first right answer, s: after a clean stop", after_stop, Reach::AtMost(AFTER_STOP_MAX_S));
    let resident_max = resident.into_iter().fold(0.0, f64::max);
    outcome.hold_once("MiB resident at most until then (VmHWM)", resident_max, Reach::AtMost(memory_mib));
    outcome.hold("writes acknowledged before kill -9", Spread::of(acknowledged), Reach::Reported);
    outcome.end()
}

struct Start {
    server: Server,
    took: Duration,
    resident_max_bytes: u64,
}

impl Start {
    /// Starts the server with cold caches, and asks for one item until it is answered.
    fn measure(
        arguments: &Arguments,
        options: &ServerOptions,
        items: u64,
        random: &mut Random,
    ) -> Result<Start, Failure> {
        // Writers do not touch this half.
        let index = random.below(items / 2);
        let mut expected = Vec::new();
        fill_value(index, 0, VALUE_BYTES, &mut expected);
        if arguments.smoke_binaries().is_none() {
            drop_caches()?;
        }
        let begun = Instant::now();
        let mut server = options.spawn()?;
        while !is_answered(&server, &key16(index), &expected)? {
            server.expect_alive()?;
            if begun.elapsed() > ANSWER_WITHIN {
                return Err(format!("no answer within {ANSWER_WITHIN:?}\n{}", server.log_tail()).into());
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        let took = begun.elapsed();
        let resident_max_bytes = process::read(server.process())?.resident_max_bytes;
        Ok(Start { server, took, resident_max_bytes })
    }
}

/// False until the server listens. A wrong answer is a failure at once.
fn is_answered(server: &Server, key: &[u8], expected: &[u8]) -> Result<bool, Failure> {
    let Ok(mut connection) = Connection::open(server.address()) else { return Ok(false) };
    connection.queue_get([key]);
    connection.flush()?;
    let mut right = false;
    connection.read_values(|value| right = value.bytes == expected)?;
    if right { Ok(true) } else { Err("the first answer was wrong: a stored item is missing or another".into()) }
}

/// Overwrites the other half of the items over TCP, and kills the server meanwhile. Returns the number of acknowledged writes.
fn write_and_kill(server: Server, items: u64, write_for: Duration, run: u64) -> Result<u64, Failure> {
    let address = server.address();
    let killed = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let writers: Vec<_> = (0..WRITERS)
            .map(|writer| {
                let killed = &killed;
                scope.spawn(move || -> Result<u64, Failure> {
                    let mut acknowledged = 0;
                    let done = write(address, items, mix(run << 8 | writer), &mut acknowledged);
                    // After the kill, a broken connection is expected.
                    if killed.load(Ordering::SeqCst) { Ok(acknowledged) } else { done.map(|()| acknowledged) }
                })
            })
            .collect();
        std::thread::sleep(write_for);
        killed.store(true, Ordering::SeqCst);
        server.kill()?;
        writers.into_iter().map(|writer| writer.join().expect("a writer panicked")).sum()
    })
}

fn write(address: std::net::SocketAddr, items: u64, seed: u64, acknowledged: &mut u64) -> Result<(), Failure> {
    let mut connection = Connection::open(address)?;
    let mut random = Random::new(seed);
    let mut value = Vec::new();
    loop {
        for _ in 0..BATCH {
            let index = items / 2 + random.below(items / 2);
            fill_value(index, seed, VALUE_BYTES, &mut value);
            connection.queue_set(&key16(index), 0, &value);
        }
        connection.flush()?;
        for _ in 0..BATCH {
            expect_stored(&mut connection)?;
            *acknowledged += 1;
        }
    }
}

/// Drops all cached files of the kernel, including the server's program. Requires root.
fn drop_caches() -> Result<(), Failure> {
    // SAFETY: the call takes no arguments and touches no memory.
    unsafe { libc::sync() };
    let dropped = std::fs::File::options().write(true).open("/proc/sys/vm/drop_caches");
    dropped
        .and_then(|mut file| file.write_all(b"3"))
        .map_err(|error| format!("the system's caches cannot be dropped ({error}): run this as root").into())
}
