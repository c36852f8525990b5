//! An allocation that fails is a crash: the process aborts, or says so with a typed error, and what was acknowledged is
//! there when the store is opened again.
//!
//! This test executes itself: the child opens a store on a file, writes, and notes every acknowledgement in another file;
//! its allocator fails once, at a given allocation of any thread. Child after child goes on with the same store.

use std::alloc::{GlobalAlloc, Layout, System};
use std::fs::File;
use std::io::{ErrorKind, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tapetum::{Error, Store, StoreOptions};
use tapetum_drive::{Drive, Env, FileFlash, FlashError, IoEngine, LocalMemory, SplitMix64, programs};

/// The allocations that still succeed; one fails when this comes to zero.
static LEFT: AtomicU64 = AtomicU64::new(u64::MAX);

struct FailingAllocator;

impl FailingAllocator {
    fn fails() -> bool {
        LEFT.fetch_sub(1, Ordering::Relaxed) == 0
    }
}

// SAFETY: hands everything to the system's allocator as it came, or answers null, which an allocator may.
unsafe impl GlobalAlloc for FailingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if FailingAllocator::fails() {
            return std::ptr::null_mut();
        }
        // SAFETY: as the caller has it.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: as the caller has it.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        if FailingAllocator::fails() {
            return std::ptr::null_mut();
        }
        // SAFETY: as the caller has it.
        unsafe { System.realloc(pointer, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: FailingAllocator = FailingAllocator;

const CAPACITY_BYTES: u64 = 8 << 20;
const KEYS: u32 = 300;
const WRITES: u32 = 600;
const CHILDREN: u32 = 30;
const FOLDER: &str = "TAPETUM_ALLOCATION_FOLDER";
const FAILS_AT: &str = "TAPETUM_ALLOCATION_FAILS_AT";
const FIRST: &str = "TAPETUM_ALLOCATION_FIRST";

fn options() -> StoreOptions {
    StoreOptions { segment_bytes: 64 << 10, partition_bits: 2, ..StoreOptions::new(CAPACITY_BYTES, 16 << 20) }
}

fn drive(flash: FileFlash) -> Result<Drive, Error> {
    let local = LocalMemory::new(options().local_memory_bytes() as usize);
    let local = local.map_err(|error| Error::Io(error.to_string()))?;
    Ok(Drive::new(Arc::new(flash), local, programs::built_in(), Env::system()))
}

fn open(folder: &Path) -> Result<Store, Error> {
    // A process that died releases the lock when its last I/O has ended.
    const TRIES: u32 = 1 << 20;
    let open = || FileFlash::open(&folder.join("drive"), IoEngine::Auto, &Env::system());
    let locked = |flash: &Result<FileFlash, FlashError>| matches!(flash, Err(FlashError::Locked { .. }));
    let mut flash = open();
    for _ in 0..TRIES {
        if !locked(&flash) {
            break;
        }
        std::thread::yield_now();
        flash = open();
    }
    let flash = flash.map_err(|error| Error::Io(error.to_string()))?;
    Store::open_on(&drive(flash)?, &options())
}

fn key(sequence: u32) -> [u8; 4] {
    (SplitMix64::new(u64::from(sequence)).below(u64::from(KEYS)) as u32).to_be_bytes()
}

/// The value of write `sequence`, or `None` where it deletes: small, a page, or out of line.
fn fill_value(sequence: u32, value: &mut Vec<u8>) -> Option<()> {
    let mut random = SplitMix64::new(u64::from(sequence) << 1 | 1);
    let length = match random.below(32) {
        0..3 => return None,
        3 => 12_000 + random.below(8_000),
        4..8 => 2_000 + random.below(4_000),
        _ => 4 + random.below(400),
    };
    value.resize(length as usize, 0);
    random.fill(value);
    value[..4].copy_from_slice(&sequence.to_le_bytes());
    Some(())
}

/// The child: writes until an allocation fails, and notes what was acknowledged. All it needs itself is allocated before.
fn write_until_it_fails(folder: &Path, fails_at: u64, first: u32) {
    let mut notes = File::options().append(true).create(true).open(folder.join("notes")).unwrap();
    let mut value = Vec::with_capacity(32 << 10);
    LEFT.store(fails_at, Ordering::Relaxed);
    // A typed error is as good an end as an abort.
    let Ok(store) = open(folder) else { return };
    for sequence in first..first + WRITES {
        let done = match fill_value(sequence, &mut value) {
            Some(()) => store.put(&key(sequence), &value).map(drop),
            None => store.delete(&key(sequence)).map(drop),
        };
        if done.is_err() {
            break;
        }
        notes.write_all(&sequence.to_le_bytes()).unwrap();
    }
    let used = fails_at - LEFT.load(Ordering::Relaxed).min(fails_at);
    LEFT.store(u64::MAX, Ordering::Relaxed);
    std::fs::write(folder.join("allocations"), used.to_string()).unwrap();
}

#[test]
fn the_child() {
    let variable = |name| std::env::var(name).ok();
    let (Some(folder), Some(fails_at), Some(first)) = (variable(FOLDER), variable(FAILS_AT), variable(FIRST)) else {
        return;
    };
    write_until_it_fails(&PathBuf::from(folder), fails_at.parse().unwrap(), first.parse().unwrap());
}

fn run_child(folder: &Path, fails_at: u64, first: u32) -> ExitStatus {
    let mut child = Command::new(std::env::current_exe().unwrap());
    child.args(["--exact", "the_child", "--quiet"]);
    child.env(FOLDER, folder).env(FAILS_AT, fails_at.to_string()).env(FIRST, first.to_string());
    child.output().unwrap().status
}

/// The contents of the keys, by the last write of each that counts.
struct Model {
    last: Vec<Option<u32>>,
    next: u32,
}

impl Model {
    /// Takes a child's notes, and the store's answer about the one write that it did not come to note.
    fn settle(&mut self, folder: &Path, store: &Store) {
        let notes = match std::fs::read(folder.join("notes")) {
            Ok(notes) => notes,
            Err(error) if error.kind() == ErrorKind::NotFound => Vec::new(),
            Err(error) => panic!("{error}"),
        };
        let noted = notes.chunks_exact(4).map(|note| u32::from_le_bytes([note[0], note[1], note[2], note[3]]));
        for sequence in noted {
            assert_eq!(sequence, self.next);
            self.write(sequence);
        }
        let in_doubt = self.next;
        if holds(store, in_doubt) {
            self.write(in_doubt);
        }
        // Whatever became of it, the next child does not write it again.
        self.next = in_doubt + 1;
        for (number, last) in self.last.iter().enumerate() {
            match last {
                Some(sequence) => assert!(holds(store, *sequence), "key {number} does not hold write {sequence}"),
                None => assert_eq!(store.get(&(number as u32).to_be_bytes()), Ok(None), "key {number}"),
            }
        }
    }

    fn write(&mut self, sequence: u32) {
        self.last[u32::from_be_bytes(key(sequence)) as usize] = Some(sequence);
        self.next = sequence + 1;
    }
}

fn holds(store: &Store, sequence: u32) -> bool {
    let mut value = Vec::new();
    let expected = fill_value(sequence, &mut value).map(|()| value);
    store.get(&key(sequence)).unwrap().map(|item| item.value) == expected
}

#[test]
fn an_allocation_that_fails_loses_nothing_that_was_acknowledged() {
    let folder = std::env::temp_dir().join(format!("tapetum-allocation-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let flash = FileFlash::create(&folder.join("drive"), CAPACITY_BYTES, IoEngine::Auto, &Env::system()).unwrap();
    Store::create_on(&drive(flash).unwrap(), &options()).unwrap();
    let mut model = Model { last: vec![None; KEYS as usize], next: 0 };
    // One that does not fail, to know how many allocations there are.
    assert!(run_child(&folder, u64::MAX - 1, model.next).success());
    model.settle(&folder, &open(&folder).unwrap());
    let allocations: u64 = std::fs::read_to_string(folder.join("allocations")).unwrap().parse().unwrap();
    let mut random = SplitMix64::new(7);
    let mut aborted = 0;
    for _ in 0..CHILDREN {
        let _ = std::fs::remove_file(folder.join("notes"));
        // Early ones too: they strike while the store is opened.
        let below = [allocations / 50, allocations][random.below(2) as usize].max(1);
        let fails_at = random.below(below);
        let status = run_child(&folder, fails_at, model.next);
        let ended_well = status.success() || status.signal() == Some(libc::SIGABRT);
        assert!(ended_well, "allocation {fails_at} failed and the process ended with {status}");
        aborted += u32::from(!status.success());
        model.settle(&folder, &open(&folder).unwrap());
    }
    assert!(aborted > CHILDREN / 2, "only {aborted} of {CHILDREN} children met their end");
    std::fs::remove_dir_all(folder).unwrap();
}
