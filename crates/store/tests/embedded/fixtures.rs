//! The contents of the stores among the fixtures, from format 6 on, and how one is made:
//!
//! ```text
//! cargo test -p tapetum --test embedded -- --ignored fixtures_of_this_format
//! ```
//! writes `format-N.zst`, of a store that was closed, and `format-N-killed.zst`, of one that was not and has a log to replay, into
//! `crates/store/tests/fixtures`. A change of the format takes a new N; the files of the others stay as they are.

use super::common::{flush_with, noise};
use std::fs;
use std::io::{self, Read, Write};
use std::path::Path;
use tapetum::{BlockDevice, Expiry, KeyspaceHandle, KeyspaceKind, Options, Request, Store};
use tapetum_kernels::scan::Format;

/// The version that the superblock of new stores says.
const FORMAT: u32 = 7;
const LATE: Expiry = Expiry::from_millis(253_402_300_799_999);
const KEYS: u64 = 40;
const BLOCKS: u64 = 8;
const FORMAT_TEXT: &str = "key: id string; value: total json $.total float";

fn options() -> Options {
    Options::new().capacity_bytes(32 << 20).memory_bytes(32 << 20).write_buffer_bytes(128 << 10)
}

fn key(number: u64) -> Vec<u8> {
    format!("key{number:03}").into_bytes()
}

fn value(number: u64) -> Vec<u8> {
    noise(number, 20 + 7 * number as usize)
}

/// More than a MiB as it is stored, since nothing compresses it. A fixture is compressed against it.
fn large() -> Vec<u8> {
    noise(77, (1 << 20) + 70_000)
}

fn block(number: u64) -> Vec<u8> {
    noise(number, 64).repeat(64)
}

fn fill_keyspace(keyspace: &KeyspaceHandle) {
    for number in 0..KEYS {
        keyspace.put(&key(number), b"written over").unwrap();
        keyspace.put(&key(number), &value(number)).unwrap();
    }
    assert!(keyspace.delete(&key(3)).unwrap());
    keyspace.put_until(b"expires", b"late", LATE).unwrap();
    keyspace.put_until(b"expired", b"early", Expiry::from_secs(1)).unwrap();
    // In an extension, where the keyspace has these.
    keyspace.put(b"longer", &noise(5, 5000)).unwrap();
    keyspace.put(b"large", &large()).unwrap();
}

fn fill(store: &Store) {
    let words = store.create_keyspace("words").unwrap();
    words.put(b"gone", b"deleted with everything else").unwrap();
    words.run(Request::DeleteAll { at: 0 }).unwrap();
    store.set_keyspace_format("words", Some(&Format::parse(FORMAT_TEXT).unwrap())).unwrap();
    fill_keyspace(&words);
    fill_keyspace(&store.create_keyspace_of("orders", KeyspaceKind::Ordered).unwrap());
    let device = BlockDevice::new(1 << 20).unwrap().in_groups_of(4).unwrap();
    let disk = store.create_block_device("disk", device).unwrap();
    for number in 0..BLOCKS {
        disk.put(&device.key(number), &block(number)).unwrap();
    }
    assert!(disk.delete(&device.key(5)).unwrap());
    flush_with(store, |number| noise(number % 4, 50));
}

/// Adds writes that only the log of a killed store has.
fn fill_log(store: &Store) {
    for keyspace in ["words", "orders"].map(|name| store.keyspace(name).unwrap()) {
        keyspace.put(b"in the log", b"replayed").unwrap();
        assert!(keyspace.delete(&key(4)).unwrap());
    }
}

fn assert_is_whole(keyspace: &KeyspaceHandle, is_killed: bool) {
    for number in 0..KEYS {
        let is_there = number != 3 && (number != 4 || !is_killed);
        let found = keyspace.get(&key(number)).unwrap().map(|item| item.value);
        assert_eq!(found, is_there.then(|| value(number)), "{number}");
    }
    let expires = keyspace.get(b"expires").unwrap().unwrap();
    assert_eq!((&expires.value[..], expires.expiry), (&b"late"[..], LATE));
    assert_eq!(keyspace.get(b"expired").unwrap(), None);
    assert_eq!(keyspace.get(b"gone").unwrap(), None);
    assert!(keyspace.get(b"longer").unwrap().unwrap().value == noise(5, 5000));
    assert!(keyspace.get(b"large").unwrap().unwrap().value == large());
    assert_eq!(keyspace.get(b"in the log").unwrap().map(|item| item.value), is_killed.then(|| b"replayed".to_vec()));
}

/// All that [`fill`] put there, and nothing else.
pub fn assert_store_is_whole(store: &Store, is_killed: bool) {
    let words = store.keyspace("words").unwrap();
    assert_is_whole(&words, is_killed);
    assert_eq!(words.format().unwrap(), Some(Format::parse(FORMAT_TEXT).unwrap()));
    assert_is_whole(&store.keyspace("orders").unwrap(), is_killed);
    let device = BlockDevice::new(1 << 20).unwrap().in_groups_of(4).unwrap();
    let disk = store.keyspace("disk").unwrap();
    for number in 0..=BLOCKS {
        let found = disk.get(&device.key(number)).unwrap().map(|item| item.value);
        assert!(found == (number != 5 && number < BLOCKS).then(|| block(number)), "block {number}");
    }
    assert_eq!(tapetum::check(store).unwrap().problems, Vec::<String>::new());
}

/// The drive of a fixture.
pub fn unpacked(packed: &[u8]) -> Vec<u8> {
    let mut drive = Vec::new();
    zstd::stream::read::Decoder::with_ref_prefix(packed, &large()).unwrap().read_to_end(&mut drive).unwrap();
    drive
}

fn packed(drive: &[u8]) -> io::Result<Vec<u8>> {
    let large = large();
    let mut encoder = zstd::stream::write::Encoder::with_ref_prefix(Vec::new(), 19, &large)?;
    encoder.window_log(26)?;
    encoder.long_distance_matching(true)?;
    encoder.write_all(drive)?;
    encoder.finish()
}

#[test]
#[ignore = "it writes into the sources"]
fn fixtures_of_this_format() {
    for is_killed in [false, true] {
        let folder = crate::common::folder::Folder::new(&format!("fixture-{is_killed}"));
        let store = options().open(&*folder).unwrap();
        fill(&store);
        if is_killed {
            fill_log(&store);
        } else {
            store.close().unwrap();
        }
        drop(store);
        let drive = fs::read(folder.join("drive")).unwrap();
        let store = options().open(&*folder).unwrap();
        assert_store_is_whole(&store, is_killed);
        let packed = packed(&drive).unwrap();
        assert!(unpacked(&packed) == drive);
        let name = format!("format-{FORMAT}{}.zst", if is_killed { "-killed" } else { "" });
        println!("{name}: {} bytes", packed.len());
        assert!(packed.len() < 64 << 10, "a fixture is small");
        fs::write(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name), packed).unwrap();
    }
}
