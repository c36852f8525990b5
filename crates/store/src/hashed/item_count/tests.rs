//! Tests the count against what was written, and that it leaves the rest alone.

use super::count;
use crate::hashed::collect::victim::tests::{SMALL_BYTES, small_options, store_at_rest};
use crate::{Store, StoreOptions, Sync, Write};
use tapetum_base::media::io::{Io, Task, poll_once, run};
use tapetum_drive::{Drive, Env, SimClock};
use tapetum_kernels::expiry::Expiry;

struct Bench {
    drive: Drive,
    store: Store,
    clock: SimClock,
}

fn options() -> StoreOptions {
    StoreOptions { sync: Sync::No, ..small_options() }
}

impl Bench {
    fn new() -> Bench {
        let (env, clock) = Env::simulated(1);
        let (drive, store) = store_at_rest(SMALL_BYTES, &options(), env);
        Bench { drive, store, clock }
    }

    fn reopen(mut self) -> Bench {
        drop(self.store);
        self.store = Store::open_with(&self.drive, &options(), || false).unwrap();
        self
    }

    /// Keys `from..to` of a kind; `ttl` of 0 is for ever.
    fn put(&self, kind: &str, numbers: std::ops::Range<u32>, ttl: u32) {
        let expiry = if ttl == 0 { Expiry::NONE } else { Expiry::from_secs(self.store.hashed().now() + ttl) };
        for number in numbers {
            let key = format!("{kind}{number}");
            let put = Write::Put {
                keyspace: crate::KeyspaceRef::DEFAULT,
                key: key.as_bytes(),
                value: &[7; 100],
                flags: 0,
                expiry,
            };
            self.store.batch(&[put]).unwrap();
        }
    }

    fn delete(&self, kind: &str, numbers: std::ops::Range<u32>) {
        let keys = numbers.map(|number| format!("{kind}{number}"));
        keys.for_each(|key| assert!(self.store.delete(key.as_bytes()).unwrap()));
    }

    fn flush(&self) {
        assert!(self.store.hashed().rotate());
        while self.store.hashed().buffers.sealed().is_some() {
            self.store.maintain();
        }
    }

    /// Lets so many seconds pass, with maintenance as often as its thread has it.
    fn pass(&self, seconds: u64) {
        for _ in 0..seconds * 20 {
            while self.store.maintain() != crate::Step::Idle {}
            self.clock.advance_us(50_000);
        }
    }

    fn items(&self) -> u64 {
        self.store.stats().items
    }
}

#[test]
fn what_is_written_over_or_deleted_in_the_buffer_is_counted_once_or_not() {
    let bench = Bench::new();
    bench.put("flash", 0..100, 0);
    bench.flush();
    bench.put("flash", 0..30, 0);
    bench.delete("flash", 30..50);
    bench.put("new", 0..40, 0);
    bench.delete("new", 0..5);
    assert_eq!(bench.items(), 100 + 30 + 35, "an upper bound before it is counted");
    bench.pass(60);
    assert_eq!(bench.items(), 80 + 35);
    // Each write since may have made an item.
    bench.put("new", 5..7, 0);
    assert_eq!(bench.items(), 80 + 35 + 2);
    bench.pass(60);
    assert_eq!(bench.items(), 80 + 35);
    bench.flush();
    assert_eq!(bench.items(), 80 + 35);
}

#[test]
fn what_has_expired_is_counted_wherever_it_lies() {
    let mut bench = Bench::new();
    bench.put("flash-soon", 0..50, 100);
    bench.put("flash-late", 0..20, 1000);
    bench.put("flash", 0..10, 0);
    bench.flush();
    bench.put("all-soon", 0..7, 100);
    bench.flush();
    bench.put("soon", 0..5, 100);
    // One that expires on flash and lives in the buffer, and the other way round.
    bench.put("flash-soon", 0..1, 0);
    bench.put("flash", 0..1, 100);
    bench.pass(60);
    assert_eq!(bench.items(), 50 + 20 + 10 + 7 + 5);
    bench.pass(100);
    assert_eq!(bench.items(), 1 + 20 + 9);
    bench = bench.reopen();
    assert!(bench.items() >= 30);
    bench.pass(60);
    assert_eq!(bench.items(), 1 + 20 + 9, "expiries are read from flash");
    bench.pass(1000);
    assert_eq!(bench.items(), 1 + 9);
    bench.flush();
    bench.pass(60);
    assert_eq!(bench.items(), 1 + 9);
}

#[test]
fn a_deletion_of_everything_leaves_nothing_to_count() {
    let bench = Bench::new();
    bench.put("flash", 0..100, 0);
    bench.flush();
    bench.put("buffer", 0..10, 0);
    assert!(bench.store.hashed().mark_deletion(crate::KeyspaceRef::DEFAULT, 0).unwrap().is_some());
    bench.put("after", 0..3, 0);
    bench.put("flash", 0..2, 0);
    bench.pass(60);
    assert_eq!(bench.items(), 5);
}

#[test]
fn what_has_gone_is_told_from_what_never_was_while_its_record_is_there() {
    let bench = Bench::new();
    let counted = || {
        let stats = bench.store.stats();
        (stats.get_expired, stats.get_flushed, stats.reclaimed)
    };
    let get = |key: &str| assert_eq!(bench.store.get(key.as_bytes()).unwrap(), None);
    bench.put("flash", 0..4, 10);
    bench.flush();
    bench.put("buffer", 0..3, 10);
    bench.put("stays", 0..2, 0);
    bench.clock.advance_us(20_000_000);
    ["flash0", "buffer0", "buffer1", "never"].into_iter().for_each(get);
    assert_eq!(counted(), (3, 0, 0));
    bench.store.delete(b"stays1").unwrap();
    assert!(bench.store.hashed().mark_deletion(crate::KeyspaceRef::DEFAULT, 0).unwrap().is_some());
    ["stays0", "stays1", "flash0"].into_iter().for_each(get);
    assert_eq!(counted(), (3, 2, 0), "those on flash are deleted too by then");
    bench.flush();
    ["buffer0", "stays0"].into_iter().for_each(get);
    assert_eq!(counted(), (3, 2, 4), "the flush left three behind that had expired and one that was deleted");
}

#[test]
fn a_segment_is_read_once_until_its_next_record_expires() {
    let mut bench = Bench::new();
    bench.put("late", 0..200, 5000);
    bench.put("stays", 0..200, 0);
    bench.flush();
    bench.put("stays-alone", 0..200, 0);
    bench.flush();
    let reads = |bench: &Bench| bench.store.stats().flash_read_commands;
    let before = reads(&bench);
    bench.pass(300);
    assert_eq!(reads(&bench), before, "their expiries were known when they were written");
    bench = bench.reopen();
    let opened = reads(&bench);
    bench.pass(300);
    let counted = reads(&bench);
    assert!(counted > opened, "one of them may have expired");
    bench.put("buffer", 0..10, 0);
    bench.pass(300);
    assert_eq!((reads(&bench), bench.items()), (counted, 610));
    bench.pass(5000);
    assert!(reads(&bench) > counted && bench.items() == 410);
}

#[test]
fn a_count_that_is_overtaken_says_nothing() {
    let bench = Bench::new();
    for hundred in 0..30 {
        bench.put("soon", hundred * 100..hundred * 100 + 50, 30);
        bench.put("stays", hundred * 100..hundred * 100 + 50, 0);
        bench.flush();
    }
    bench.clock.advance_us(60_000_000);
    let (engine, io) = (bench.store.hashed(), Io::new(bench.drive.queue_pair(16).unwrap()));
    let keys = bench.items();
    let mut counting: Task<()> = Box::pin(count(engine.clone(), io.clone()));
    assert!(poll_once(&mut counting).is_none(), "it reads");
    bench.put("new", 0..1, 0);
    run(&io, counting, || false).unwrap();
    assert_eq!(bench.items(), keys + 1);
    bench.pass(60);
    assert_eq!(bench.items(), 30 * 50 + 1);
}
