//! Stores on several files of which one may be missing.

use super::redundant_members::{Given, Opening, compose};
use super::*;
use crate::folder::Folder;
use std::fs;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use tapetum_base::keyspace_kind::KeyspaceKind;
use tapetum_drive::{Command, Completion, FlashQueue, PairMemory, Redundancy};

const ITEMS: u32 = 500;
/// Each set has a folder of its own.
static MADE: AtomicU32 = AtomicU32::new(0);

fn options(redundancy: Redundancy) -> Options {
    // Small write buffers, so that much of it is in segments.
    let options = Options::new().capacity_bytes(96 << 20).memory_bytes(48 << 20).write_buffer_bytes(1 << 20);
    options.redundancy(redundancy)
}

fn value(number: u32, round: u32) -> Vec<u8> {
    // Some are larger than an extent.
    let words = if number.is_multiple_of(300) { 60_000 } else { 1000 };
    let mut random = tapetum_drive::SplitMix64::new((u64::from(round) << 32) + u64::from(number));
    std::iter::repeat_with(|| random.next_u64().to_le_bytes()).take(words).flatten().collect()
}

fn fill(store: &Store, round: u32) {
    let ordered = match store.keyspace("ordered") {
        Ok(keyspace) => keyspace,
        Err(_) => store.create_keyspace_of("ordered", KeyspaceKind::Ordered).unwrap(),
    };
    for number in 0..ITEMS {
        store.put(&number.to_le_bytes(), &value(number, round)).unwrap();
        ordered.put(&number.to_be_bytes(), &value(number, round)[..200]).unwrap();
    }
}

fn has_all(store: &Store, round: u32) {
    let ordered = store.keyspace("ordered").unwrap();
    for number in 0..ITEMS {
        let found = store.get(&number.to_le_bytes()).unwrap().unwrap().value;
        assert!(found == value(number, round), "item {number}");
        let found = ordered.get(&number.to_be_bytes()).unwrap().unwrap().value;
        assert!(found == value(number, round)[..200], "ordered item {number}");
    }
}

struct Members {
    _folder: Folder,
    redundancy: Redundancy,
    paths: Vec<PathBuf>,
}

impl Members {
    fn new(redundancy: Redundancy, count: usize) -> Members {
        let folder = Folder::new(&format!("redundant-{}", MADE.fetch_add(1, Ordering::Relaxed)));
        let paths = (0..count).map(|number| folder.join(format!("member-{number}"))).collect();
        Members { _folder: folder, redundancy, paths }
    }

    fn open(&self) -> Result<(Store, Vec<OpenNote>), OpenError> {
        self.open_with(&options(self.redundancy))
    }

    fn open_with(&self, options: &Options) -> Result<(Store, Vec<OpenNote>), OpenError> {
        let mut notes = Vec::new();
        let store = options.open_noting(&Place::Members(self.paths.clone()), |note| notes.push(note))?;
        Ok((store, notes))
    }

    fn hide(&self, number: usize) {
        fs::rename(&self.paths[number], self.paths[number].with_extension("away")).unwrap();
    }

    fn bring_back(&self, number: usize) {
        fs::rename(self.paths[number].with_extension("away"), &self.paths[number]).unwrap();
    }

    fn copy(&self) -> Members {
        let copy = Members::new(self.redundancy, self.paths.len());
        for (from, to) in self.paths.iter().zip(&copy.paths) {
            if from.exists() {
                fs::copy(from, to).unwrap();
            }
        }
        copy
    }

    fn refusal(&self) -> String {
        match self.open() {
            Err(error) => error.to_string(),
            Ok(_) => panic!("it opens"),
        }
    }
}

fn degraded(notes: &[OpenNote]) -> Option<(u16, bool)> {
    notes.iter().find_map(|note| match note {
        OpenNote::Degraded { place, left_out } => Some((*place, left_out.is_some())),
        _ => None,
    })
}

#[test]
fn a_store_goes_on_without_any_member_and_leaves_it_out_when_it_is_back() {
    for (redundancy, count) in [(Redundancy::Raid5, 3), (Redundancy::Raid5, 4), (Redundancy::Mirror, 3)] {
        let members = Members::new(redundancy, count);
        let (store, _) = members.open().unwrap();
        fill(&store, 1);
        assert!(store.stats().flushes > 1, "much of it is in segments");
        store.close().unwrap();
        drop(store);
        let (store, notes) = members.open().unwrap();
        assert_eq!(degraded(&notes), None);
        has_all(&store, 1);
        fill(&store, 2);
        store.close().unwrap();
        drop(store);
        for absent in 0..count {
            let members = members.copy();
            members.hide(absent);
            let (store, notes) = members.open().unwrap();
            assert_eq!(degraded(&notes), Some((absent as u16, false)));
            has_all(&store, 2);
            fill(&store, 3);
            has_all(&store, 3);
            store.close().unwrap();
            drop(store);
            members.bring_back(absent);
            let (store, notes) = members.open().unwrap();
            assert_eq!(degraded(&notes), Some((absent as u16, true)));
            has_all(&store, 3);
            store.close().unwrap();
            drop(store);
            members.hide((absent + 1) % count);
            let refusal = members.refusal();
            assert!(refusal.contains("it bears one"), "{refusal}");
        }
    }
}

#[test]
fn half_a_mirror_opens_alone_when_it_was_told_or_by_force() {
    let members = Members::new(Redundancy::Mirror, 2);
    let (store, _) = members.open().unwrap();
    fill(&store, 1);
    store.close().unwrap();
    drop(store);
    let apart = members.copy();
    members.hide(0);
    let refusal = members.refusal();
    assert!(refusal.contains("member 1 of the mirror is missing") && refusal.contains("--force"), "{refusal}");
    let (store, notes) = members.open_with(&options(Redundancy::Mirror).force(true)).unwrap();
    assert_eq!(degraded(&notes), Some((0, false)));
    has_all(&store, 1);
    fill(&store, 2);
    store.close().unwrap();
    drop(store);
    // It was told now.
    let (store, _) = members.open().unwrap();
    has_all(&store, 2);
    store.close().unwrap();
    drop(store);
    members.bring_back(0);
    let (store, notes) = members.open().unwrap();
    assert_eq!(degraded(&notes), Some((0, true)), "it was there before the force");
    has_all(&store, 2);
    drop(store);

    apart.hide(1);
    drop(apart.open_with(&options(Redundancy::Mirror).force(true)).unwrap());
    apart.hide(0);
    apart.bring_back(1);
    drop(apart.open_with(&options(Redundancy::Mirror).force(true)).unwrap());
    apart.bring_back(0);
    let refusal = apart.refusal();
    assert!(refusal.contains("each gone on without the other"), "{refusal}");
}

/// A file whose commands fail from some moment on.
#[derive(Clone)]
struct Failing {
    file: Arc<FileFlash>,
    fails: Arc<AtomicBool>,
}

struct FailingQueue {
    file: Box<dyn FlashQueue>,
    fails: Arc<AtomicBool>,
    failed: Vec<Completion>,
}

impl Flash for Failing {
    fn capacity_bytes(&self) -> u64 {
        self.file.capacity_bytes()
    }

    fn grow(&self, capacity_bytes: u64) -> Result<(), FlashError> {
        self.file.grow(capacity_bytes)
    }

    fn sector_bytes(&self) -> u32 {
        self.file.sector_bytes()
    }

    fn describe(&self) -> String {
        self.file.describe()
    }

    fn open_queue(&self, memory: &PairMemory, depth: u32) -> std::io::Result<Box<dyn FlashQueue>> {
        let (file, fails) = (self.file.open_queue(memory, depth)?, self.fails.clone());
        Ok(Box::new(FailingQueue { file, fails, failed: Vec::new() }))
    }
}

impl FlashQueue for FailingQueue {
    unsafe fn submit(&mut self, command: &Command) {
        match self.fails.load(Ordering::Relaxed) {
            true => self.failed.push(Completion::failed(command.tag, 5)),
            // SAFETY: by our caller's word.
            false => unsafe { self.file.submit(command) },
        }
    }

    fn poll(&mut self, completions: &mut Vec<Completion>) {
        completions.append(&mut self.failed);
        self.file.poll(completions);
    }

    fn wait(&mut self, timeout: Option<Duration>) {
        if self.failed.is_empty() {
            self.file.wait(timeout);
        }
    }

    fn event_fd(&self) -> Option<std::os::fd::RawFd> {
        self.file.event_fd()
    }
}

#[test]
fn a_member_that_fails_under_writes_is_gone_without_and_so_after_a_crash() {
    for (redundancy, count) in [(Redundancy::Raid5, 3), (Redundancy::Mirror, 2)] {
        for failing in 0..count {
            let set = Members::new(redundancy, count);
            drop(set.open().unwrap());
            let env = Env::system();
            let fails = Arc::new(AtomicBool::new(false));
            let given = set.paths.iter().enumerate().map(|(number, path)| {
                let label = members::label_at(path, &env);
                let file = FileFlash::open(path, IoEngine::Auto, &env).unwrap();
                let fails = if number == failing { fails.clone() } else { Arc::default() };
                Given { path: path.clone(), flash: Arc::new(Failing { file: Arc::new(file), fails }), label }
            });
            let given: Vec<Given> = given.collect();
            let how = Opening { writes: true, by_force: false };
            let flash = compose(&given, how, &env, &mut |_| {}).unwrap();
            drop(given);
            let store =
                options(redundancy).open_again(&Place::Members(set.paths.clone()), flash.clone(), |_| {}).unwrap();
            fill(&store, 1);
            fails.store(true, Ordering::Relaxed);
            fill(&store, 2);
            has_all(&store, 2);
            assert!(flash.members()[failing].is_lost);
            assert_eq!(store.stats().members_lost, 1);
            assert!(store.stats().member_writes_failed > 0);
            // As a crash leaves the files.
            let copy = set.copy();
            drop((store, flash));
            copy.hide(failing);
            let (store, notes) = copy.open().unwrap();
            assert_eq!(degraded(&notes), Some((failing as u16, false)));
            has_all(&store, 2);
        }
    }
}

#[test]
fn a_redundancy_needs_members() {
    let members = Members::new(Redundancy::Raid5, 2);
    let refusal = members.refusal();
    assert!(refusal.contains("redundancy raid5 needs 3 members or more, and 2 were given"), "{refusal}");
    assert!(members.paths.iter().all(|path| !path.exists()));
}
