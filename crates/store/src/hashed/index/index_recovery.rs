//! The index after a restart: every partition built from its slice of every key table, on as many threads as there are
//! cores.
//!
//! Each thread takes the next partition that nobody has begun, has a queue pair of its own, and holds one cut of one
//! partition in memory at a time. A simulation has one thread, the caller's.

use crate::hashed::HashedEngine;
use crate::hashed::catalog::Catalog;
use crate::hashed::index::partition_load::rebuild;
use crate::hashed::key_tables::key_reader::DEPTH;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use tapetum_base::error::Error;
use tapetum_base::media::io::{Io, lock, run};
use tapetum_drive::{Purpose, fail_point};

/// Memory of a thread beside the partition that it builds: a cut with its list, and key-table pages in flight.
const THREAD_BYTES: u64 = 4 << 20;
const PROGRESS_INTERVAL_US: u64 = 1_000_000;

struct Work {
    engine: Arc<HashedEngine>,
    catalog: Catalog,
    /// The next partition to build.
    next: AtomicUsize,
    done: AtomicUsize,
    failed: AtomicBool,
    /// When progress was last reported.
    told_us: Mutex<u64>,
}

/// Builds every partition; gives the catalog back.
pub async fn build(engine: &Arc<HashedEngine>, io: &Io, catalog: Catalog) -> Result<Catalog, Error> {
    let env = engine.drive.env();
    let work = Arc::new(Work {
        engine: engine.clone(),
        catalog,
        next: AtomicUsize::new(usize::from(fail_point!(SkipPartition))),
        done: AtomicUsize::new(0),
        failed: AtomicBool::new(false),
        told_us: Mutex::new(env.now_us()),
    });
    let mut helpers = Vec::new();
    // Many cores must not take more memory than there is: all threads together a sixteenth of it.
    let affordable = (engine.options.memory_bytes / 16 / THREAD_BYTES).max(1) as usize;
    for number in 1..env.parallelism().min(engine.geometry.partitions()).min(affordable) {
        let work = work.clone();
        // Without a thread, or without a queue pair, there is one less: the others do its part.
        let Ok(queue) = engine.drive.queue_pair(64) else { break };
        let io = Io::new(queue).of(Purpose::Recover);
        let help = move || run(&io, work.build_next(&io), || false).unwrap_or(Ok(()));
        let Ok(thread) = env.spawn(&format!("tapetum-recovery-{number}"), help) else { break };
        helpers.push(thread);
    }
    let mut result = work.build_next(io).await;
    for helper in helpers {
        let helped = helper.join().unwrap_or_else(|_| Err(Error::Io("a recovery thread panicked".into())));
        result = result.and(helped);
    }
    result?;
    match Arc::into_inner(work) {
        Some(work) => Ok(work.catalog),
        None => unreachable!("every helper has ended"),
    }
}

impl Work {
    /// Builds partitions until none is left.
    async fn build_next(&self, io: &Io) -> Result<(), Error> {
        let partitions = self.engine.geometry.partitions();
        while !self.failed.load(Ordering::Relaxed) {
            let partition = self.next.fetch_add(1, Ordering::Relaxed);
            if partition >= partitions {
                break;
            }
            match rebuild(&self.engine, io, &self.catalog, partition, DEPTH).await {
                Ok(tally) => self.engine.item_count.by_keyspace.note(&tally),
                Err(error) => {
                    self.failed.store(true, Ordering::Relaxed);
                    return Err(error);
                }
            }
            let done = self.done.fetch_add(1, Ordering::Relaxed) + 1;
            self.tell(done, partitions);
        }
        Ok(())
    }

    fn tell(&self, done: usize, partitions: usize) {
        let now_us = self.engine.drive.env().now_us();
        let mut told_us = lock(&self.told_us);
        if now_us >= *told_us + PROGRESS_INTERVAL_US {
            *told_us = now_us;
            tracing::info!("recovering: {done} of {partitions} index partitions are built");
        }
    }
}
