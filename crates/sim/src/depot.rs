//! A depot in memory: its objects outlive the store that put them, and its operations fail by chance.
//!
//! An operation that fails may have succeeded: a put that reports an error may have put its object. After a cut, the power of whoever uses the
//! depot is off, and every operation fails.
//!
//! Objects are put as into a folder, step by step. When the power is back, the folder has lost what was not synced by then.
//!
//! Threads: any.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard};
use tapetum::backup::{Depot, DepotError, LinkedFiles, ObjectEntry, put_linked};
use tapetum_drive::SplitMix64;

/// One put or deletion in so many fails in this way; 0: none does.
#[derive(Clone, Copy, Default)]
pub struct DepotFaults {
    /// There is no room: puts alone.
    pub full_one_in: u64,
    pub fails_one_in: u64,
    pub cut_one_in: u64,
}

pub struct SimDepot {
    state: Mutex<DepotState>,
}

/// A file whose bytes are durable, or not yet.
#[derive(Clone)]
struct SimFile {
    bytes: Vec<u8>,
    is_synced: bool,
}

/// The files of the depot. No step fails: an operation does as a whole.
#[derive(Clone, Default)]
struct SimFolder {
    files: BTreeMap<String, SimFile>,
    /// Names that are not durable yet.
    names_unsynced: BTreeSet<String>,
}

impl LinkedFiles for SimFolder {
    type File = ();

    fn write(&mut self, name: &str, bytes: &[u8]) -> Result<(), DepotError> {
        self.files.insert(name.into(), SimFile { bytes: bytes.to_vec(), is_synced: false });
        Ok(())
    }

    fn sync(&mut self, name: &str, (): &()) -> Result<(), DepotError> {
        self.files.get_mut(name).into_iter().for_each(|file| file.is_synced = true);
        Ok(())
    }

    fn link(&mut self, name: &str, other: &str) -> Result<bool, DepotError> {
        let is_free = !self.files.contains_key(other);
        if is_free && let Some(file) = self.files.get(name).cloned() {
            self.files.insert(other.into(), file);
            self.names_unsynced.insert(other.into());
        }
        Ok(is_free)
    }

    fn remove(&mut self, name: &str) -> Result<(), DepotError> {
        self.files.remove(name);
        Ok(())
    }

    fn sync_names(&mut self, name: &str) -> Result<(), DepotError> {
        let folder = name.rsplit_once('/').map(|(folder, _)| folder);
        self.names_unsynced.retain(|other| other.rsplit_once('/').map(|(folder, _)| folder) != folder);
        Ok(())
    }
}

impl SimFolder {
    /// The power was off.
    fn forget_unsynced(&mut self) {
        for name in std::mem::take(&mut self.names_unsynced) {
            self.files.remove(&name);
        }
        self.files.values_mut().filter(|file| !file.is_synced).for_each(|file| file.bytes.clear());
    }
}

#[derive(Clone)]
struct DepotState {
    folder: SimFolder,
    random: SplitMix64,
    faults: DepotFaults,
    is_cut: bool,
    failures: u64,
}

/// What becomes of an operation.
enum Fate {
    Done,
    Fails(DepotError),
    /// It is done, and reports an error.
    DoneAndFails(DepotError),
}

fn failed(doing: &str, name: &str, why: &str) -> DepotError {
    DepotError { doing: format!("{doing} {name}"), why: why.into(), is_full: why == "no room" }
}

impl DepotState {
    fn strikes(&mut self, one_in: u64) -> bool {
        one_in > 0 && self.random.one_in(one_in)
    }

    fn fate(&mut self, doing: &str, name: &str) -> Fate {
        let DepotFaults { full_one_in, fails_one_in, cut_one_in } = self.faults;
        let why = match () {
            () if self.is_cut => "the power is off",
            () if doing == "put" && self.strikes(full_one_in) => "no room",
            () if self.strikes(fails_one_in) => "it fails",
            () if self.strikes(cut_one_in) => "the power fails",
            () => return Fate::Done,
        };
        self.failures += 1;
        let was_cut = self.is_cut;
        self.is_cut |= why == "the power fails";
        let error = failed(doing, name, why);
        let may_be_done = !was_cut && !error.is_full;
        if may_be_done && self.random.one_in(2) { Fate::DoneAndFails(error) } else { Fate::Fails(error) }
    }

    /// Does what changes the objects, or fails.
    fn change<T>(
        &mut self,
        doing: &str,
        name: &str,
        change: impl FnOnce(&mut SimFolder) -> Result<T, DepotError>,
    ) -> Result<T, DepotError> {
        match self.fate(doing, name) {
            Fate::Done => change(&mut self.folder),
            Fate::Fails(error) => Err(error),
            Fate::DoneAndFails(error) => change(&mut self.folder).and(Err(error)),
        }
    }

    fn refuse_cut(&self, doing: &str, name: &str) -> Result<(), DepotError> {
        if self.is_cut { Err(failed(doing, name, "the power is off")) } else { Ok(()) }
    }
}

impl SimDepot {
    pub fn new(seed: u64) -> SimDepot {
        let (folder, random) = (SimFolder::default(), SplitMix64::new(seed));
        let state = DepotState { folder, random, faults: DepotFaults::default(), is_cut: false, failures: 0 };
        SimDepot { state: Mutex::new(state) }
    }

    fn lock(&self) -> MutexGuard<'_, DepotState> {
        self.state.lock().expect("no operation of the depot panics")
    }

    pub fn set_faults(&self, faults: DepotFaults) {
        let mut state = self.lock();
        if state.is_cut {
            state.folder.forget_unsynced();
        }
        (state.faults, state.is_cut) = (faults, false);
    }

    pub fn has(&self, name: &str) -> bool {
        self.lock().folder.files.contains_key(name)
    }

    pub fn is_cut(&self) -> bool {
        self.lock().is_cut
    }

    /// Operations that have failed.
    pub fn failures(&self) -> u64 {
        self.lock().failures
    }

    /// A copy in which one object has rotted, is cut short or is gone; and the name of that.
    pub fn damaged(&self, random: &mut SplitMix64) -> Option<(SimDepot, String)> {
        let mut state = self.lock().clone();
        let is_of_backup = |name: &&String| name.starts_with("packs/") || name.starts_with("backups/");
        let names: Vec<String> = state.folder.files.keys().filter(is_of_backup).cloned().collect();
        let name = names.get(random.below(names.len().max(1) as u64) as usize)?.clone();
        let bytes = &mut state.folder.files.get_mut(&name)?.bytes;
        let place = random.below(bytes.len() as u64) as usize;
        match random.below(3) {
            0 => bytes[place] ^= 1 << random.below(8),
            1 => bytes.truncate(place),
            _ => drop(state.folder.files.remove(&name)),
        }
        Some((SimDepot { state: Mutex::new(state) }, name))
    }
}

impl Depot for SimDepot {
    fn put_new(&self, name: &str, bytes: &[u8]) -> Result<bool, DepotError> {
        let other = format!("{name}.unfinished");
        self.lock().change("put", name, |folder| put_linked(folder, name, &other, bytes))
    }

    fn get(&self, name: &str) -> Result<Option<Vec<u8>>, DepotError> {
        let state = self.lock();
        state.refuse_cut("get", name)?;
        Ok(state.folder.files.get(name).map(|file| file.bytes.clone()))
    }

    fn list(&self, folder: &str) -> Result<Vec<ObjectEntry>, DepotError> {
        let state = self.lock();
        state.refuse_cut("list", folder)?;
        let prefix = format!("{folder}/");
        let entry =
            |(name, file): (&String, &SimFile)| ObjectEntry { name: name.clone(), bytes: file.bytes.len() as u64 };
        Ok(state.folder.files.iter().filter(|(name, _)| name.starts_with(&prefix)).map(entry).collect())
    }

    fn delete(&self, name: &str) -> Result<(), DepotError> {
        self.lock().change("delete", name, |folder| folder.remove(name))
    }

    fn clean(&self) -> Result<(), DepotError> {
        self.lock().refuse_cut("clean", "")
    }

    fn place(&self) -> String {
        "the simulated depot".into()
    }
}
