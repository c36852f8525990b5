//! The index against a map, with hash keys that are alike, and readers beside a writer.

use super::model::{Model, uniform};
use super::*;
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::sync::atomic::AtomicBool;

fn hash_key() -> impl Strategy<Value = HashKey> {
    // A few stems, with 40 and more leading bits in common with others, or none.
    let alike = (0u64..6, 40u32..127, 0u64..12).prop_map(|(stem, engine, rest)| {
        HashKey(uniform(stem).0 & !(u128::MAX >> engine) | uniform(1000 + rest).0 & (u128::MAX >> engine))
    });
    prop_oneof![1 => alike, 8 => (0u64..3000).prop_map(uniform)]
}

#[test]
fn an_index_comes_back_from_its_image() {
    let geometry = IndexGeometry { partition_bits: 2, fingerprint_bits: 6, payload_bits: 17 };
    let mut model = Model::new(geometry);
    for round in 0..8 {
        // Some go again, so that extensions are given back.
        let batch = (0..5000u64).map(|n| (uniform(round / 2 * 5000 + n), round % 2 == 0 || n % 3 > 0)).collect();
        model.merge(&batch);
    }
    let image = IndexImage::of(&model.index);
    let bytes: Vec<u8> = image.words().flat_map(u64::to_le_bytes).chain([0; 64]).collect();
    assert_eq!(image.bytes() as usize + 64, bytes.len());
    let restored = GlobalIndex::new(geometry).expect("memory");
    let mut restorer = IndexRestorer::new(&restored, &image.shapes(), image.bytes()).expect("it fits");
    assert_eq!(restorer.entries(), model.map.len() as u64);
    bytes.chunks(4096).for_each(|chunk| restorer.push(chunk));
    restorer.install().expect("it is whole");
    drop(image);
    model.index = restored;
    for (&hash, &payload) in &model.map {
        assert_eq!(model.index.lookup(hash), Some(payload));
    }
    // And it goes on from there.
    for round in 8..12 {
        model.merge(&(0..2000u64).map(|n| (uniform(round * 5000 + n), true)).collect());
    }
    model.merge(&(0..5000u64).map(|n| (uniform(n), false)).collect());
    for (&hash, &payload) in &model.map {
        assert_eq!(model.index.lookup(hash), Some(payload));
    }
}

#[test]
fn an_image_that_does_not_fit_is_refused() {
    let geometry = IndexGeometry { partition_bits: 1, fingerprint_bits: 6, payload_bits: 17 };
    let index = GlobalIndex::new(geometry).expect("memory");
    let image = IndexImage::of(&index);
    let (shapes, bytes) = (image.shapes(), image.bytes());
    assert!(IndexRestorer::new(&index, &shapes, bytes).is_some());
    assert!(IndexRestorer::new(&index, &shapes[1..], bytes).is_none());
    assert!(IndexRestorer::new(&index, &shapes, bytes - 1).is_none());
    for spoil in [
        |shape: &mut PartitionShape| shape.buckets = 0,
        |shape: &mut PartitionShape| shape.payload_bits = 16,
        |shape: &mut PartitionShape| shape.extensions_fresh = 1000,
        |shape: &mut PartitionShape| shape.extensions_free = 0,
    ] {
        let mut shapes = shapes.clone();
        spoil(&mut shapes[1]);
        assert!(IndexRestorer::new(&index, &shapes, u64::MAX).is_none(), "{shapes:?}");
    }
    let mut restorer = IndexRestorer::new(&index, &shapes, bytes).expect("it fits");
    restorer.push(&[0; 64]);
    assert!(restorer.install().is_err(), "it is not whole");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]
    #[test]
    fn behaves_as_a_map(
        batches in prop::collection::vec(prop::collection::btree_map(hash_key(), prop::bool::weighted(0.7), 1..250), 1..15),
        fingerprint_bits in prop::sample::select(vec![0u32, 1, 4, 6, 12]),
        partition_bits in 0u32..3,
        rebuilt in any::<prop::sample::Index>(),
    ) {
        let geometry = IndexGeometry { partition_bits, fingerprint_bits, payload_bits: 18 };
        let mut model = Model::new(geometry);
        for batch in &batches {
            model.merge(batch);
            model.check();
        }
        // Less room than comfort asks for: chains of extensions. And longer payloads than its neighbours'.
        model.index.widen(21);
        model.rebuild(rebuilt.index(geometry.partitions()), 0.8);
        model.check();
        prop_assert!(model.index.is_wide(rebuilt.index(geometry.partitions())));
        for batch in &batches {
            model.merge(batch);
            model.check();
        }
        // And away with everything: all extensions come back.
        let all = model.map.keys().map(|&hash| (hash, false)).collect();
        model.merge(&all);
        model.check();
        prop_assert_eq!(model.index.extension_buckets_used(), 0);
    }
}

#[test]
fn strange_keys_rarely_get_a_candidate() {
    let geometry = IndexGeometry { partition_bits: 0, fingerprint_bits: 6, payload_bits: 18 };
    let mut entries: Vec<_> = (0..50_000).map(|i| (uniform(i), i as u32)).collect();
    entries.sort_unstable();
    let index = GlobalIndex::new(geometry).unwrap();
    index.rebuild(0, entries, 50_000).unwrap();
    let false_candidates = (100_000..200_000).filter(|&i| index.lookup(uniform(i)).is_some()).count();
    assert!(false_candidates < 3000, "{false_candidates} of 100000");
}

#[test]
fn bits_an_entry_stay_within_the_target() {
    let geometry = IndexGeometry { partition_bits: 0, fingerprint_bits: 6, payload_bits: 10 };
    let index = GlobalIndex::new(geometry).unwrap();
    let fill = |room_for: usize, entries: usize| {
        let mut entries: Vec<_> = (0..entries as u64).map(|i| (uniform(i), i as u32 % 1024)).collect();
        entries.sort_unstable();
        index.rebuild(0, entries, room_for).unwrap();
        assert_eq!(index.bytes(), index.bytes_for(room_for));
        index.bytes() as f64 * 8.0 / index.entries() as f64
    };
    let full = fill(200_000, 200_000);
    assert!(full <= 19.5, "{full} bits an entry at capacity");
    let grown = fill(225_000, 200_000);
    assert!(grown <= 22.0, "{grown} bits an entry after growth by an eighth");
}

#[test]
fn an_index_of_so_many_bytes_takes_no_more_though_its_partitions_have_room() {
    let geometry = IndexGeometry { partition_bits: 6, fingerprint_bits: 5, payload_bits: 20 };
    let mut model = Model::new(geometry);
    assert!(model.index.room_within(0) > 0, "what it was made with it may use");
    for round in 0..100 {
        model.merge(&(0..2000).map(|n| (uniform(round * 2000 + n), true)).collect());
    }
    let (index, entries) = (&model.index, model.map.len());
    let room = |bytes| index.room_within(bytes);
    // As large as it is, it is nearly full; half as large, it is far too full already.
    assert!(room(index.bytes()) < entries / 8, "{}", room(index.bytes()));
    assert_eq!(room(index.bytes() / 2), 0);
    let twice = room(2 * index.bytes());
    assert!((9 * entries / 10..5 * entries / 4).contains(&twice), "{twice}");
}

#[test]
fn a_partition_at_its_capacity_has_room() {
    for fingerprint_bits in [0, 6] {
        let geometry = IndexGeometry { partition_bits: 0, fingerprint_bits, payload_bits: 10 };
        let index = GlobalIndex::new(geometry).unwrap();
        for (round, room_for) in [1usize, 320, 1000, 5000, 40_000].into_iter().enumerate() {
            index.rebuild(0, [], room_for).unwrap();
            let capacity = index.partition_capacity(0);
            assert!(capacity + 1 >= room_for);
            let mut entries: Vec<_> =
                (0..capacity as u64).map(|i| (uniform(i + ((round as u64) << 32)), i as u32 % 1024)).collect();
            entries.sort_unstable();
            index.rebuild(0, entries, room_for).expect("a partition holds its capacity");
        }
    }
}

#[test]
#[expect(clippy::disallowed_methods, reason = "the point is real threads")]
fn readers_beside_a_writer_never_miss_a_key() {
    const STABLE: u64 = 5000;
    const ROUND: u64 = 1500;
    /// A stable key's payload changes to and fro by this bit.
    const REPLACED: u32 = 1 << 18;
    let geometry = IndexGeometry { partition_bits: 2, fingerprint_bits: 4, payload_bits: 19 };
    let mut model = Model::new(geometry);
    model.merge(&(0..STABLE).map(|i| (uniform(i), true)).collect());
    (0..geometry.partitions()).for_each(|partition| model.rebuild(partition, 1.8));
    let (owners, first) = (model.owners, model.map);
    let second: BTreeMap<HashKey, u32> = first.iter().map(|(&hash, &payload)| (hash, payload | REPLACED)).collect();
    // The keys of a round come and go; their payloads tell them too.
    let coming_payload = |round: u64, i: u64| (STABLE + round * ROUND + i) as u32;
    let owner = |payload: u32| match owners.get((payload & !REPLACED) as usize) {
        Some(&stable) => stable,
        None => uniform(1_000_000 + u64::from(payload)),
    };
    let index = Arc::new(model.index);
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _stop_the_readers = SetOnDrop(&done);
        for reader in 0..2 {
            let (index, done, first) = (&index, &done, &first);
            scope.spawn(move || {
                let hashes: Vec<_> = first.keys().copied().collect();
                let mut found = vec![None; hashes.len()];
                while !done.load(Ordering::Relaxed) {
                    if reader == 0 {
                        index.lookup_batch(&hashes, &mut found);
                    } else {
                        hashes.iter().zip(&mut found).for_each(|(&hash, found)| *found = index.lookup(hash));
                    }
                    for (payload, found) in first.values().zip(&found) {
                        assert_eq!(found.map(|found| found & !REPLACED), Some(*payload));
                    }
                }
            });
        }
        let mut others: BTreeMap<HashKey, u32> = BTreeMap::new();
        for round in 0..60u64 {
            let now = if round % 2 == 0 { &second } else { &first };
            let coming = (0..ROUND).map(|i| coming_payload(round, i));
            let coming: BTreeMap<HashKey, u32> = coming.map(|payload| (owner(payload), payload)).collect();
            for partition in 0..geometry.partitions() {
                let of_partition = |hash: &HashKey| hash.partition(geometry.partition_bits) == partition;
                if round % 5 == 4 {
                    let mut all = now.clone();
                    all.extend(&others);
                    let all: Vec<_> = all.into_iter().filter(|(hash, _)| of_partition(hash)).collect();
                    let room_for = all.len() + all.len() / 3;
                    index.rebuild(partition, all, room_for).expect("room");
                    continue;
                }
                let mut changes = BTreeMap::new();
                for (&hash, &payload) in now.iter().filter(|(hash, _)| of_partition(hash)) {
                    changes.insert(hash, IndexChange::Replace { hash, payload });
                }
                for &hash in others.keys().filter(|hash| of_partition(hash)) {
                    changes.insert(hash, IndexChange::Remove { hash });
                }
                for (&hash, &payload) in coming.iter().filter(|(hash, _)| of_partition(hash)) {
                    let neighbor = index.lookup(hash).map(owner);
                    changes.insert(hash, IndexChange::Insert { hash, payload, neighbor });
                }
                index.merge(partition, changes.into_values()).expect("room");
            }
            if round % 5 != 4 {
                others = coming;
            }
        }
    });
}

/// Also when the writer panics.
struct SetOnDrop<'a>(&'a AtomicBool);

impl Drop for SetOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn a_partition_built_for_its_entries_fits_them_and_shrinks_only_when_many_go() {
    let geometry = IndexGeometry { partition_bits: 2, fingerprint_bits: 6, payload_bits: 10 };
    let index = GlobalIndex::new(geometry).unwrap();
    for entries in (0..5000).step_by(7).chain([100_000]) {
        index.rebuild(1, [], index.room_for(1, entries)).unwrap();
        assert!(index.fits(1, entries) && index.fits(1, entries * 15 / 16), "{entries}");
        assert!(entries < 1000 || !index.fits(1, entries / 2), "{entries}");
        assert!(!index.fits(1, index.partition_capacity(1) + 1));
    }
}
