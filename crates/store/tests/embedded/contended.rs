//! Several threads change one value that is long enough to be inflated and compressed with no lock held.

use crate::common::store_in_memory;
use tapetum::{Expiry, Outcome, Request, Store, StoreOptions, Sync};
use tapetum_drive::Drive;

const CAPACITY: u64 = 256 << 20;
const SEGMENT: u64 = 4 << 20;

fn store() -> (Drive, Store) {
    let options = StoreOptions { sync: Sync::No, ..StoreOptions::new(CAPACITY, 64 << 20) };
    let options = StoreOptions { segment_bytes: SEGMENT, partition_bits: 2, ..options };
    store_in_memory(CAPACITY, &options)
}

#[test]
fn each_of_many_appends_to_a_long_value_takes_effect_once_whatever_comes_between() {
    const THREADS: u8 = 3;
    const ROUNDS: usize = 100;
    let (drive, store) = store();
    let key = b"long".as_slice();
    let start = vec![b'.'; 100_000];
    store.put(key, &start).unwrap();
    let work = |thread: u8| {
        let store = store.clone();
        move || {
            for _ in 0..ROUNDS {
                let (done, _) = store.run(Request::Append { key, value: &[b'a' + thread], stamp: None }).unwrap();
                assert!(matches!(done, Outcome::Stored { .. }), "{done:?}");
                let (touched, _) = store.run(Request::Touch { key, expiry: Expiry::NONE }).unwrap();
                assert!(matches!(touched, Outcome::Touched { .. }), "{touched:?}");
            }
        }
    };
    let threads: Vec<_> = (0..THREADS).map(|thread| drive.env().spawn("appender", work(thread)).unwrap()).collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    let value = store.get(key).unwrap().unwrap().value;
    assert_eq!((value.len(), &value[..start.len()]), (start.len() + ROUNDS * usize::from(THREADS), &start[..]));
    for thread in 0..THREADS {
        assert_eq!(value.iter().filter(|byte| **byte == b'a' + thread).count(), ROUNDS);
    }
}
