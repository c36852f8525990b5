//! Bytes that scans of a hashed keyspace read, beside other keyspaces.

use crate::hashed::collect::victim::tests::{store_at_rest, store_in_memory, wait_for_flush};
use crate::scan::query_scan::{QueryReport, QuerySide};
use crate::scan::tests::{Rows, count, into, options, query, rows, run};
use crate::tools::check::check;
use crate::{KeyspaceHandle, Request, Store};
use tapetum_drive::{Drive, Env, Purpose, SplitMix64};
use tapetum_kernels::data_page::PageSize;
use tapetum_kernels::expiry::Expiry;

/// Values of about a KiB that are not compressed, in the year 2001.
fn put_all(keyspace: &KeyspaceHandle, numbers: std::ops::Range<u32>) {
    let mut random = SplitMix64::new(numbers.start.into());
    for number in numbers {
        keyspace.put(&number.to_be_bytes(), &paper(&mut random)).unwrap();
    }
}

fn paper(random: &mut SplitMix64) -> Vec<u8> {
    let mut value = random.bytes(1000);
    value[..2].copy_from_slice(&2001u16.to_le_bytes());
    value
}

fn flush(store: &Store) {
    wait_for_flush(store.hashed());
    assert!(store.hashed().rotate());
    wait_for_flush(store.hashed());
}

/// The same of a store that nobody else maintains.
fn flush_at_rest(store: &Store) {
    assert!(store.hashed().rotate());
    while store.hashed().buffers.sealed().is_some() {
        store.maintain();
    }
}

/// Bytes that scans have read from flash.
fn read_bytes(drive: &Drive) -> u64 {
    [Purpose::Scan, Purpose::Pipeline].map(|purpose| drive.counters().purpose(purpose).flash_to_local).iter().sum()
}

/// Lets each way of scanning look at a keyspace of this many items, and returns the most bytes that any of them reads.
fn scanned_bytes(drive: &Drive, keyspace: &KeyspaceHandle, items: usize) -> u64 {
    let mut most = 0;
    let mut scan = |items_of: &dyn Fn() -> usize| {
        let before = read_bytes(drive);
        assert_eq!(items_of(), items);
        most = most.max(read_bytes(drive) - before);
    };
    let rows_of = |side| run(keyspace, &query(0, rows(None)), side).unwrap().0.len();
    scan(&|| rows_of(QuerySide::Drive));
    scan(&|| rows_of(QuerySide::Host));
    scan(&|| keyspace.items().map(Result::unwrap).count());
    scan(&|| keyspace.snapshot_items(b"").unwrap().map(Result::unwrap).count());
    most
}

fn report(keyspace: &KeyspaceHandle) -> (Rows, QueryReport) {
    run(keyspace, &query(0, count()), QuerySide::Drive).unwrap()
}

#[test]
fn segments_without_items_of_a_keyspace_are_not_read() {
    let (capacity, options) = options();
    let (drive, store) = store_in_memory(capacity, &options);
    let (many, few) = (store.create_keyspace("many").unwrap(), store.create_keyspace("few").unwrap());
    put_all(&many, 0..8000);
    flush(&store);
    put_all(&few, 0..40);
    flush(&store);
    let all_bytes = scanned_bytes(&drive, &many, 8000);
    assert!(all_bytes > 8_000_000, "{all_bytes} bytes");
    let few_bytes = scanned_bytes(&drive, &few, 40);
    assert!((40_000..48_000 + 4096).contains(&few_bytes), "{few_bytes} bytes");
    assert_eq!(report(&few).1.segments, 1);
    assert_eq!(scanned_bytes(&drive, &store.create_keyspace("none").unwrap(), 0), 0);

    // Segments say so when they are opened, too.
    store.close().unwrap();
    drop((many, few, store));
    let store = Store::open_on(&drive, &options).unwrap();
    let few = store.keyspace("few").unwrap();
    assert_eq!(scanned_bytes(&drive, &few, 40), few_bytes);
    check(&store).unwrap();
}

#[test]
fn keyspaces_that_fill_buffers_together_are_read_apart() {
    let (capacity, options) = options();
    let (drive, store) = store_in_memory(capacity, &options);
    let (many, some) = (store.create_keyspace("many").unwrap(), store.create_keyspace("some").unwrap());
    for part in 0..1000 {
        put_all(&many, part * 5..part * 5 + 5);
        put_all(&some, part * 3..part * 3 + 3);
    }
    flush(&store);
    for (keyspace, items) in [(&many, 5000), (&some, 3000)] {
        let bytes = scanned_bytes(&drive, keyspace, items);
        assert!(bytes <= items as u64 * 1020 * 6 / 5, "{bytes} bytes of {items} items");
    }
}

#[test]
fn of_shared_segments_a_page_an_item_is_read() {
    let (capacity, options) = options();
    let (drive, store) = store_in_memory(capacity, &options);
    let (many, few) = (store.create_keyspace("many").unwrap(), store.create_keyspace("few").unwrap());
    // A small keyspace of which each buffer has a few items.
    for part in 0..40 {
        put_all(&few, part * 5..part * 5 + 5);
        put_all(&many, part * 200..part * 200 + 200);
    }
    flush(&store);
    let page = PageSize::Small.bytes() as u64;
    let bytes = scanned_bytes(&drive, &few, 200);
    assert!(bytes <= 200 * 3 * page, "{bytes} bytes");
    let (_, report) = report(&few);
    assert!(report.flash_bytes <= 200 * 2 * page, "{report:?}");
    let bytes = scanned_bytes(&drive, &many, 8000);
    assert!(bytes <= 8000 * 1020 * 6 / 5, "{bytes} bytes");

    // Rows come in parts, each of which goes on where the last one stopped.
    let mut rows = Rows::new();
    few.query_within(&query(0, crate::scan::tests::rows(None)), 2048, &mut into(&mut rows)).unwrap();
    assert_eq!(rows.len(), 200);
}

#[test]
fn segments_of_expired_or_deleted_items_are_not_read() {
    let (capacity, options) = options();
    let (env, clock) = Env::simulated(1);
    let (drive, store) = store_at_rest(capacity, &options, env);
    let brief = store.create_keyspace("brief").unwrap();
    let (mut random, now) = (SplitMix64::new(1), store.hashed().now());
    for number in 0..200u32 {
        brief.put_until(&number.to_be_bytes(), &paper(&mut random), Expiry::from_secs(now + 10)).unwrap();
    }
    flush_at_rest(&store);
    assert!(scanned_bytes(&drive, &brief, 200) > 200_000);
    clock.advance_us(11_000_000);
    assert_eq!(scanned_bytes(&drive, &brief, 0), 0);

    put_all(&brief, 0..200);
    flush_at_rest(&store);
    assert!(scanned_bytes(&drive, &brief, 200) > 200_000);
    brief.run(Request::DeleteAll { at: 0 }).unwrap();
    assert_eq!(scanned_bytes(&drive, &brief, 0), 0);
}
