//! Slots of a cluster in key tables.

use super::*;
use crate::hashed::collect::victim::tests::{SMALL_BYTES, drive_in_memory, small_options};
use crate::hashed::key_tables::key_mend::mend;
use crate::{Store, StoreOptions};
use tapetum_base::keyspace::hasher::KeyHasher;
use tapetum_base::media::io::run;
use tapetum_drive::{Drive, Env, SplitMix64};
use tapetum_kernels::data_page::PAGE_BYTES;
use tapetum_kernels::key_table::Routes;

/// A store in which records were flushed and collected, opened a second time with options that say nothing of slots.
fn worked_in(cluster_slots: bool) -> (Drive, Store) {
    let options = StoreOptions { cluster_slots, ..small_options() };
    let drive = drive_in_memory(SMALL_BYTES, &options, Env::system());
    Store::create_on(&drive, &options).unwrap();
    let store = Store::open_on(&drive, &small_options()).unwrap();
    let mut random = SplitMix64::new(7);
    let mut turns = 0;
    while store.stats().collections < 3 {
        let number = random.below(2000);
        store.put(format!("{{tag{}}}{number}", number % 50).as_bytes(), &random.bytes(400)).unwrap();
        turns += 1;
        assert!(turns < 100_000, "{:?}", store.stats());
    }
    store.close().unwrap();
    drop(store);
    let store = Store::open_with(&drive, &small_options(), || false).unwrap();
    (drive, store)
}

fn slots_of(drive: &Drive, store: &Store) -> Vec<u16> {
    let (engine, io) = (store.hashed(), Io::new(drive.queue_pair(16).unwrap()));
    let entries = engine.segments.iter().map(|segment| run(&io, key_table(engine, &io, &segment), || false).unwrap());
    entries.flat_map(Result::unwrap).map(|entry| entry.slot()).collect()
}

#[test]
fn a_store_that_was_made_for_a_cluster_keeps_slots_and_another_has_zeros() {
    for has_slots in [true, false] {
        let (drive, store) = worked_in(has_slots);
        assert_eq!(crate::check(&store).unwrap().problems, Vec::<String>::new());
        let slots = slots_of(&drive, &store);
        // There are fifty tags, each in a slot of its own, and none in slot 0.
        let different: std::collections::BTreeSet<u16> = slots.iter().copied().collect();
        assert_eq!(different.len(), if has_slots { 50 } else { 1 }, "{different:?}");
        assert_eq!(different.contains(&0), !has_slots);
    }
}

#[test]
fn a_key_table_that_is_made_anew_has_its_slots_and_one_with_others_is_found() {
    let (drive, store) = worked_in(true);
    let (engine, io) = (store.hashed(), Io::new(drive.queue_pair(16).unwrap()));
    let segment = engine.segments.iter().next().unwrap();
    let before = slots_of(&drive, &store);
    let page = segment.key_runs(0..1).next().unwrap().flash;
    let made_anew = |hasher: KeyHasher| {
        let mend = async {
            let mut zeros = io.allocate(PAGE_BYTES).await.unwrap();
            zeros.bytes_mut().fill(0);
            io.write_durably(page, &mut zeros, PAGE_BYTES).await.unwrap();
            mend(&segment, &io, hasher).await
        };
        run(&io, mend, || false).unwrap().unwrap();
    };
    made_anew(engine.hasher.clone());
    assert!(crate::check(&store).unwrap().problems.is_empty() && slots_of(&drive, &store) == before);
    made_anew(engine.hasher.clone().with_routes(Routes::Keyspaces));
    let problems = crate::check(&store).map_or_else(|error| error.to_string(), |report| report.problems.concat());
    assert!(problems.contains("not the one that the key table names"), "{problems}");
}
