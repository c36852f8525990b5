use super::*;
use crate::hashed::collect::victim::tests::{store_in_memory, wait_for_flush};
use crate::{Condition, KeyspaceHandle, Request, Store, StoreOptions, Sync, Write};
use std::collections::HashMap;
use tapetum_base::error::KeyspaceError;
use tapetum_base::keyspace::block_device::{BLOCK_BYTES, BlockDevice};
use tapetum_drive::{Drive, SplitMix64};
use tapetum_kernels::expiry::Expiry;

const CAPACITY_BYTES: u64 = 8 << 20;
const BLOCKS: u64 = 256;

fn options() -> StoreOptions {
    let options = StoreOptions::new(CAPACITY_BYTES, 16 << 20);
    StoreOptions { segment_bytes: 256 << 10, partition_bits: 2, sync: Sync::No, ..options }
}

fn device() -> BlockDevice {
    BlockDevice::new(BLOCKS * BLOCK_BYTES as u64).unwrap().in_groups_of(8).unwrap()
}

fn disk() -> (Drive, Store, KeyspaceHandle) {
    let (drive, store) = store_in_memory(CAPACITY_BYTES, &options());
    let disk = store.create_block_device("disk", device()).unwrap();
    (drive, store, disk)
}

/// A block of which most compresses, or nothing does.
fn block(random: &mut SplitMix64) -> Vec<u8> {
    let mut block = vec![7; BLOCK_BYTES];
    let random_bytes = if random.one_in(2) { 1000 } else { BLOCK_BYTES };
    random.fill(&mut block[..random_bytes]);
    block
}

fn flush(store: &Store) {
    wait_for_flush(store.hashed());
    assert!(store.hashed().rotate());
    wait_for_flush(store.hashed());
}

fn check(disk: &KeyspaceHandle, expected: &HashMap<u64, (Vec<u8>, u64)>) {
    for number in 0..BLOCKS {
        let found = disk.get(&device().key(number)).unwrap().map(|item| (item.value, item.stamp));
        assert!(found.as_ref() == expected.get(&number), "block {number}");
    }
}

#[test]
fn over_many_flushes_each_block_is_what_was_written_last_under_its_own_stamp() {
    let (drive, store, disk) = disk();
    let (mut expected, mut random) = (HashMap::new(), SplitMix64::new(1));
    for round in 0..2 {
        for _ in 0..350 {
            let number = random.below(BLOCKS);
            let key = device().key(number);
            if random.one_in(4) {
                assert_eq!(disk.delete(&key).unwrap(), expected.remove(&number).is_some());
                continue;
            }
            let value = block(&mut random);
            let stamp = disk.put(&key, &value).unwrap();
            expected.insert(number, (value, stamp));
        }
        check(&disk, &expected);
        if round == 0 {
            flush(&store);
            check(&disk, &expected);
        }
    }
    let stats = store.stats();
    assert!(stats.flushes > 20 && stats.collections > 0, "{stats:?}");
    store.close().unwrap();
    drop((disk, store));
    let store = Store::open_on(&drive, &options()).unwrap();
    check(&store.keyspace("disk").unwrap(), &expected);
}

#[test]
fn a_group_has_one_entry_and_what_is_wholly_trimmed_none() {
    let (_drive, store, disk) = disk();
    let mut random = SplitMix64::new(1);
    let keys: Vec<_> = (8..16).map(|number| device().key(number)).collect();
    for key in &keys {
        disk.put(key, &block(&mut random)).unwrap();
    }
    flush(&store);
    assert_eq!(store.stats().index_entries, 1);
    keys[1..].iter().for_each(|key| assert!(disk.delete(key).unwrap()));
    flush(&store);
    assert_eq!(store.stats().index_entries, 1);
    assert!(disk.get(&keys[0]).unwrap().is_some() && disk.get(&keys[1]).unwrap().is_none());
    assert!(disk.delete(&keys[0]).unwrap() && !disk.delete(&keys[1]).unwrap());
    flush(&store);
    assert_eq!(store.stats().index_entries, 0);
    assert!(disk.get(&keys[0]).unwrap().is_none());
}

#[test]
fn gets_of_one_group_share_a_read() {
    let (_drive, store, disk) = disk();
    let mut random = SplitMix64::new(1);
    let blocks: Vec<Vec<u8>> = (0..16).map(|_| block(&mut random)).collect();
    for (number, block) in blocks.iter().enumerate().filter(|(number, _)| *number != 3) {
        disk.put(&device().key(number as u64), block).unwrap();
    }
    flush(&store);
    let reads_before = store.stats().get_flash_reads;
    let (mut session, mut replies) = (store.session().unwrap(), Vec::new());
    for number in 0..16 {
        session.submit_to(disk.keyspace(), number, Request::Get { key: &device().key(number) }).unwrap();
    }
    let mut seen = 0;
    while seen < 16 {
        session.wait(None);
        session.poll(&mut replies);
        for reply in replies.drain(..) {
            seen += 1;
            let value = reply.outcome.value().map(|value| session.bytes(value).to_vec());
            assert_eq!(value, Some(blocks[reply.token as usize].clone()).filter(|_| reply.token != 3));
        }
    }
    assert_eq!(store.stats().get_flash_reads - reads_before, 2);
}

#[test]
fn a_block_is_replaced_under_its_own_stamp_though_its_group_was_written_anew() {
    let (_drive, store, disk) = disk();
    let (one, other) = (device().key(0), device().key(1));
    let stamp = disk.put(&one, &[1; BLOCK_BYTES]).unwrap();
    flush(&store);
    disk.put(&other, &[2; BLOCK_BYTES]).unwrap();
    flush(&store);
    assert!(disk.compare_and_swap(&one, &[3; BLOCK_BYTES], stamp).unwrap().is_some());
    assert!(disk.compare_and_swap(&one, &[4; BLOCK_BYTES], stamp).unwrap().is_none());
    assert_eq!(disk.get(&one).unwrap().unwrap().value, [3; BLOCK_BYTES]);
}

#[test]
fn what_a_device_with_groups_does_not_take_is_refused() {
    let (_drive, store, disk) = disk();
    let key = device().key(9);
    let put = |key, value, flags, expiry| Request::Put { key, value, flags, expiry, condition: Condition::Always };
    let too_long = vec![0; BLOCK_BYTES + 1];
    for request in [
        put(&key[..8], b"x", 0, Expiry::NONE),
        put(&[0, 0, 0, 0, 0, 0, 0, 8, 8], b"x", 0, Expiry::NONE),
        // No first block of a group.
        put(&[0, 0, 0, 0, 0, 0, 0, 9, 0], &too_long[1..], 0, Expiry::NONE),
        put(&key, &too_long, 0, Expiry::NONE),
        put(&key, b"short", 0, Expiry::NONE),
        put(&key, b"x", 1, Expiry::NONE),
        put(&key, b"x", 0, Expiry::from_secs(1)),
        Request::Touch { key: &key, expiry: Expiry::from_secs(1) },
        Request::Append { key: &key, value: b"x", stamp: None },
        Request::DeleteAll { at: 0 },
    ] {
        let refused = Err(Error::Keyspace(KeyspaceError::IsGrouped));
        assert_eq!(disk.run(request).map(|(outcome, _)| outcome), refused, "{request:?}");
    }
    let write = Write::Delete { keyspace: disk.keyspace(), key: &key };
    assert_eq!(store.batch(&[write]), Err(Error::Keyspace(KeyspaceError::IsGrouped)));
    let last = |blocks: u64| disk.put(&device().key(blocks - 1), &too_long[1..]).map(drop);
    assert_eq!(last(BLOCKS), Ok(()));
    let past_end = KeyspaceError::NoBlock { block: BLOCKS, blocks: BLOCKS };
    assert_eq!(last(BLOCKS + 1), Err(Error::Keyspace(past_end)));
    let larger = device().resized((BLOCKS + 8) * BLOCK_BYTES as u64);
    store.resize_block_device("disk", larger).unwrap();
    assert_eq!((last(BLOCKS + 1), last(BLOCKS + 9).is_err()), (Ok(()), true));
    let large = BlockDevice::new(1 << 20).unwrap().in_groups_of(16).unwrap();
    let refused = store.create_block_device("large", large).map(drop);
    let too_large = KeyspaceError::GroupsTooLarge { blocks: 16, segment_bytes: 256 << 10 };
    assert_eq!(refused, Err(Error::Keyspace(too_large)));
}

#[test]
fn a_damaged_group_loses_its_blocks_and_never_shows_them_as_holes() {
    let options = options();
    let (drive, store) = store_in_memory(CAPACITY_BYTES, &options);
    let disk = store.create_block_device("disk", device()).unwrap();
    let mut random = SplitMix64::new(1);
    let keys: Vec<_> = (0..8).map(|number| device().key(number)).collect();
    for key in &keys {
        disk.put(key, &block(&mut random)).unwrap();
    }
    flush(&store);
    let engine = store.hashed();
    let hash = group_hash(engine.hasher.hash_in(disk.keyspace(), &keys[0]));
    let segment = engine.candidate(hash).unwrap();
    let io = Io::new(drive.queue_pair(16).unwrap());
    let damage = async {
        let place = segment.data_runs(1, 512).next().unwrap().flash;
        let mut sector = io.allocate(512).await.unwrap();
        io.read(place, &mut sector, 0, 512).await.unwrap();
        sector.bytes_mut()[100] ^= 1;
        io.write(place, &mut sector, 512).await.unwrap();
    };
    tapetum_base::media::io::run(&io, damage, || false).unwrap();
    drop(segment);
    disk.put(&keys[2], &[9; BLOCK_BYTES]).unwrap();
    flush(&store);
    for (number, key) in keys.iter().enumerate() {
        match disk.get(key) {
            Ok(Some(item)) => assert!(number == 2 && item.value == [9; BLOCK_BYTES]),
            Ok(None) => panic!("block {number} is a hole"),
            Err(error) => assert!(number != 2 && matches!(error, Error::Corrupt(_)), "{error}"),
        }
    }
    disk.put(&keys[0], &[5; BLOCK_BYTES]).unwrap();
    flush(&store);
    assert_eq!(disk.get(&keys[0]).unwrap().unwrap().value, [5; BLOCK_BYTES]);
    assert!(disk.get(&keys[1]).is_err());
}
