//! Work over many connections at once, a thread each, and the waits around it.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use crate::Failure;
use tapetum_bench::client::{Connection, Line};

/// Runs `work` on `connections` threads, each with a connection of its own; the first failure is the result.
pub fn in_parallel(
    address: SocketAddr,
    connections: u64,
    work: impl Fn(u64, &mut Connection) -> Result<(), Failure> + Sync,
) -> Result<(), Failure> {
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..connections)
            .map(|index| {
                let work = &work;
                scope.spawn(move || work(index, &mut Connection::open(address)?))
            })
            .collect();
        threads.into_iter().try_for_each(|thread| thread.join().expect("a load thread panicked"))
    })
}

/// Stores one value for each index of `0..count`, shared out over the connections in pipelined batches.
pub fn store_all(
    address: SocketAddr,
    connections: u64,
    count: u64,
    item: impl Fn(u64, &mut Vec<u8>) -> [u8; 16] + Sync,
) -> Result<(), Failure> {
    in_parallel(address, connections, |connection_index, connection| {
        let mut value = Vec::new();
        let mut indexes = (connection_index..count).step_by(connections as usize);
        loop {
            let mut queued_bytes = 0;
            let mut queued = 0;
            while queued_bytes < 64 << 10 && queued < 64 {
                let Some(index) = indexes.next() else { break };
                let key = item(index, &mut value);
                connection.queue_set(&key, 0, &value);
                queued_bytes += value.len();
                queued += 1;
            }
            if queued == 0 {
                return Ok(());
            }
            connection.flush()?;
            for _ in 0..queued {
                expect_stored(connection)?;
            }
        }
    })
}

pub fn expect_stored(connection: &mut Connection) -> Result<(), Failure> {
    match connection.read_line()? {
        Line::Stored => Ok(()),
        other => Err(format!("a set was answered with {other:?}").into()),
    }
}

/// The general statistics, as numbers; text is left out.
pub fn stats(address: SocketAddr) -> Result<Stats, Failure> {
    let text = Connection::open(address)?.stats("")?;
    Ok(Stats(text.into_iter().filter_map(|(name, value)| Some((name, value.parse().ok()?))).collect()))
}

pub struct Stats(BTreeMap<String, u64>);

impl Stats {
    pub fn get(&self, name: &str) -> Result<u64, Failure> {
        self.0.get(name).copied().ok_or_else(|| format!("the server's stats have no number {name}").into())
    }

    /// How much a counter rose since `earlier`.
    pub fn since(&self, earlier: &Stats, name: &str) -> Result<u64, Failure> {
        let (now, then) = (self.get(name)?, earlier.get(name)?);
        now.checked_sub(then).ok_or_else(|| format!("the counter {name} fell from {then} to {now}").into())
    }
}

/// Waits until flushing and collecting have come to rest: nothing written for two seconds.
pub fn quiesce(address: SocketAddr) -> Result<(), Failure> {
    let begun = Instant::now();
    let written = || -> Result<(u64, u64), Failure> {
        let stats = stats(address)?;
        Ok((stats.get("flash_write_bytes")?, stats.get("log_write_bytes")?))
    };
    let (mut last, mut since) = (written()?, Instant::now());
    while since.elapsed() < Duration::from_secs(2) {
        if begun.elapsed() > Duration::from_secs(300) {
            return Err("the server still writes, five minutes after the load ended".into());
        }
        std::thread::sleep(Duration::from_millis(100));
        let now = written()?;
        if now != last {
            (last, since) = (now, Instant::now());
        }
    }
    Ok(())
}
