//! Space and recovery time of an ordered keyspace: DRAM per item; flash after a load in random order, and after half of the items were
//! deleted and as many others stored; and the time of an opening that reads all nodes, beside one sequential read of as many bytes.

use std::fs::OpenOptions;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::time::{Duration, Instant};

use tapetum::{KeyspaceKind, KeyspaceRef, Store, Sync};
use tapetum_bench::embedded::{DriveShape, Pipe, create_as, keep_full, open_as, ordered_options, settle, usable};
use tapetum_bench::random::key16;

use super::embedded::{KEY_BYTES, fill_value, store_items};
use super::mebibytes;
use crate::Failure;
use crate::arguments::Arguments;
use crate::results::outcome::{Outcome, Reach};
use crate::results::spread::Spread;
use crate::workspace::Scratch;

/// Values of at most so many bytes are held to the aims for small ones.
const SMALL_BYTES: u64 = 256;
const READ_BYTES: usize = 1 << 20;
const NAME: &str = "ordered";
/// An item that is not deleted.
const KEPT: u64 = 1;
const RECOVERY_MOST: f64 = 1.3;

/// The aims, for values of 100 bytes and of 1 KiB.
struct Aims {
    dram_bytes: f64,
    space: f64,
}

pub fn run(arguments: &Arguments) -> Result<(), Failure> {
    let items = arguments.number("items", 5_000_000)?;
    let value_bytes = arguments.size("value", 1008)?;
    let data_bytes = items * (KEY_BYTES + value_bytes);
    let capacity = arguments.size("capacity", data_bytes / 2 * 5 + (512 << 20))?;
    let memory = arguments.size("memory", (data_bytes / 8).max(64 << 20))?;
    arguments.finish()?;
    let is_small = value_bytes <= SMALL_BYTES;
    let aims = if is_small { Aims { dram_bytes: 4.0, space: 1.8 } } else { Aims { dram_bytes: 20.0, space: 2.0 } };
    let scratch = Scratch::new("ordered-space")?;
    let folder = scratch.folder().join("data");
    let about = format!("{items} items of {value_bytes} bytes, memory {:.0} MiB", mebibytes(memory));
    let mut outcome = Outcome::new(arguments, "ordered-space", about);
    let capacity = usable(capacity);
    let store = create_as(&folder, capacity, &ordered_options(capacity, memory, memory, Sync::No))?;
    let keyspace = store.create_keyspace_of(NAME, KeyspaceKind::Ordered)?.keyspace();
    let before = store.stats();
    let begun = Instant::now();
    store_items(&store, keyspace, 0..items, value_bytes, 1)?;
    settle(&store)?;
    outcome.report("stored in, s", begun.elapsed().as_secs_f64());
    let amplification = || (store.stats().flash_used_bytes - before.flash_used_bytes) as f64 / data_bytes as f64;
    let loaded = amplification();
    let dram = (store.stats().index_bytes - before.index_bytes) as f64 / items as f64;
    outcome.hold_once("DRAM of an item, B", dram, Reach::AtMost(aims.dram_bytes));
    outcome.hold_once("flash ÷ keys and values", loaded, Reach::AtMost(aims.space));
    delete_half(&store, keyspace, items)?;
    settle(&store)?;
    outcome.report("the same with half deleted, ÷ what is left", amplification() * 2.0);
    store_items(&store, keyspace, items..items + items / 2, value_bytes, 1)?;
    settle(&store)?;
    outcome.hold_once("the same with as many others stored", amplification(), Reach::AtMost(aims.space));
    let used_bytes = store.stats().flash_used_bytes - before.flash_used_bytes;
    drop(store.abandon()?);
    recovery(&mut outcome, folder.as_path(), memory, used_bytes, value_bytes)?;
    outcome.end()
}

/// Deletes every other item.
fn delete_half(store: &Store, keyspace: KeyspaceRef, items: u64) -> Result<(), Failure> {
    let mut indexes = (0..items).step_by(2);
    let next = |pipe: &mut Pipe, now: Instant| {
        let Some(index) = indexes.next() else { return false };
        pipe.delete(now, &key16(index));
        true
    };
    keep_full(store, keyspace, next, |_| Ok(())).map(drop)
}

/// Opens the store in the state that a crash left, and reads as many bytes as it uses, in turns.
fn recovery(
    outcome: &mut Outcome,
    folder: &Path,
    memory: u64,
    used_bytes: u64,
    value_bytes: u64,
) -> Result<(), Failure> {
    let (mut openings, mut reads, mut expected) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..3 {
        reads.push(sequential_read(&folder.join("drive"), used_bytes)?.as_secs_f64());
        let begun = Instant::now();
        let store =
            open_as(folder, |capacity| ordered_options(capacity, memory, memory, Sync::No), DriveShape::default())?;
        let found = store.keyspace(NAME)?.get(&key16(KEPT))?;
        openings.push(begun.elapsed().as_secs_f64());
        fill_value(KEPT, 0, value_bytes, &mut expected);
        if found.is_none_or(|item| item.value != expected) {
            return Err("an item that was stored is missing or another after the opening".into());
        }
        drop(store.abandon()?);
    }
    let ratios = openings.iter().zip(&reads).map(|(opening, read)| opening / read);
    let what = "an opening after a crash ÷ one sequential read of the bytes in use";
    outcome.hold(what, Spread::of(ratios), Reach::AtMost(RECOVERY_MOST));
    outcome.hold("the opening, one item read, s", Spread::of(openings), Reach::Reported);
    outcome.hold("the sequential read, s", Spread::of(reads), Reach::Reported);
    Ok(())
}

/// Reads past the page cache, in pieces of 1 MiB, one after the other.
fn sequential_read(path: &Path, bytes: u64) -> Result<Duration, Failure> {
    let file = OpenOptions::new().read(true).custom_flags(libc::O_DIRECT).open(path)?;
    let mut memory = vec![0; READ_BYTES + 4096];
    let start = memory.as_ptr().align_offset(4096);
    let begun = Instant::now();
    for offset in (0..bytes).step_by(READ_BYTES) {
        file.read_at(&mut memory[start..start + READ_BYTES], offset)?;
    }
    Ok(begun.elapsed())
}
