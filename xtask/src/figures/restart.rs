//! From exec to the first right answer over TCP, on a store of many items, with the system's caches dropped: after a clean
//! stop, and after kill -9 in the middle of writes; and the memory that recovery takes.

use std::io::Write;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::embedded::{VALUE_BYTES, fill_value, store_items};
use super::{hold, mebibytes, row, seconds};
use crate::Failure;
use crate::arguments::Arguments;
use crate::load::expect_stored;
use crate::workspace::Scratch;
use tapetum::KeyspaceRef;
use tapetum_bench::client::Connection;
use tapetum_bench::embedded::{create, settle};
use tapetum_bench::process;
use tapetum_bench::random::{Random, key16, mix};
use tapetum_bench::server::{Server, ServerOptions};

const AFTER_STOP_MAX: Duration = Duration::from_secs(1);
/// Connections that write until the server is killed, and writes that each has on its way.
const WRITERS: u64 = 8;
const BATCH: u64 = 64;
const ANSWER_WITHIN: Duration = Duration::from_secs(300);

pub fn run(arguments: &Arguments) -> Result<(), Failure> {
    let items = arguments.number("items", 20_000_000)?;
    let runs = arguments.number("runs", 5)?.max(1);
    let capacity = arguments.size("capacity", 8 << 30)?;
    let memory = arguments.size("memory", 512 << 20)?;
    let after_kill_max = Duration::from_millis(arguments.number("after-kill-max-ms", 4000)?);
    let write_for = Duration::from_millis(arguments.number("write-ms", 2000)?);
    let binary = arguments.server();
    arguments.finish()?;
    let binary = arguments.measured_server(binary)?;
    let scratch = Scratch::new("restart")?;
    let data = scratch.folder().join("data");
    println!("restart: {items} items, capacity {}, memory {}", mebibytes(capacity), mebibytes(memory));
    let begun = Instant::now();
    let store = create(&data, capacity, memory, tapetum::Sync::Always)?;
    store_items((&store, KeyspaceRef::DEFAULT), 0..items, VALUE_BYTES, 2)?;
    settle(&store)?;
    store.close()?;
    drop(store);
    row("loaded in", seconds(begun.elapsed()), "");

    let options = ["--capacity", &capacity.to_string(), "--memory", &memory.to_string()];
    let options = ServerOptions::new(&binary, &data, &options)?;
    let mut random = Random::new(11);
    let (mut after_stop, mut after_kill) = (Vec::new(), Vec::new());
    for run in 1..=runs {
        let stopped = Start::measure(arguments, &options, items, &mut random)?;
        let written = write_and_kill(stopped.server, items, write_for, run)?;
        let killed = Start::measure(arguments, &options, items, &mut random)?;
        println!(
            "  run {run}: after a clean stop {}, resident at most {}; after kill -9 ({written} writes acknowledged) {}, {}",
            seconds(stopped.took),
            mebibytes(stopped.resident_max_bytes),
            seconds(killed.took),
            mebibytes(killed.resident_max_bytes),
        );
        killed.server.terminate()?;
        after_stop.push((stopped.took, stopped.resident_max_bytes));
        after_kill.push((killed.took, killed.resident_max_bytes));
    }
    let (stop, kill) = (median(&mut after_stop), median(&mut after_kill));
    let resident_max = after_stop.iter().chain(&after_kill).map(|(_, resident)| *resident).max().unwrap_or(0);
    row(
        "exec to the first right answer, kill -9 mid-write, median",
        seconds(kill),
        &format!("at most {}", seconds(after_kill_max)),
    );
    row("the same after a clean stop, median", seconds(stop), "at most 1 s");
    row(
        "resident at most until then (VmHWM), the most",
        mebibytes(resident_max),
        &format!("--memory {}", mebibytes(memory)),
    );
    hold(kill <= after_kill_max, "the first right answer soon enough after exec, after kill -9")?;
    hold(stop <= AFTER_STOP_MAX, "the first right answer 1 s after exec, after a clean stop")?;
    hold(resident_max <= memory, "resident memory while recovering inside --memory")
}

struct Start {
    server: Server,
    took: Duration,
    resident_max_bytes: u64,
}

impl Start {
    /// Starts the server with cold caches and asks it for one item until it gives it.
    fn measure(
        arguments: &Arguments,
        options: &ServerOptions,
        items: u64,
        random: &mut Random,
    ) -> Result<Start, Failure> {
        // The writers leave this half alone.
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

/// False while nobody listens; a wrong answer is a failure at once.
fn is_answered(server: &Server, key: &[u8], expected: &[u8]) -> Result<bool, Failure> {
    let Ok(mut connection) = Connection::open(server.address()) else { return Ok(false) };
    connection.queue_get([key]);
    connection.flush()?;
    let mut right = false;
    connection.read_values(|value| right = value.bytes == expected)?;
    if right { Ok(true) } else { Err("the first answer was wrong: a stored item is missing or another".into()) }
}

/// Overwrites the other half of the items over TCP, and kills the server meanwhile; writes that were acknowledged.
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
                    // That the connection breaks is what is asked for.
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

/// Everything the kernel keeps of files goes, the server's own program included. Only root may.
fn drop_caches() -> Result<(), Failure> {
    // SAFETY: no arguments, no memory.
    unsafe { libc::sync() };
    let dropped = std::fs::File::options().write(true).open("/proc/sys/vm/drop_caches");
    dropped
        .and_then(|mut file| file.write_all(b"3"))
        .map_err(|error| format!("the system's caches cannot be dropped ({error}): run this as root").into())
}

fn median(runs: &mut [(Duration, u64)]) -> Duration {
    runs.sort_unstable();
    runs[runs.len() / 2].0
}
