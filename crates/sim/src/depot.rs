//! A depot in memory: its objects outlive the store that put them, and its operations fail by chance.
//!
//! An operation that fails may have succeeded: a put that reports an error may have put its object. After a cut, the power of whoever uses the
//! depot is off, and every operation fails.
//!
//! Threads: any.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard};
use tapetum::backup::{Depot, DepotError, ObjectEntry};
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

#[derive(Clone)]
struct DepotState {
    objects: BTreeMap<String, Vec<u8>>,
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
        change: impl FnOnce(&mut BTreeMap<String, Vec<u8>>) -> T,
    ) -> Result<T, DepotError> {
        match self.fate(doing, name) {
            Fate::Done => Ok(change(&mut self.objects)),
            Fate::Fails(error) => Err(error),
            Fate::DoneAndFails(error) => {
                change(&mut self.objects);
                Err(error)
            }
        }
    }

    fn refuse_cut(&self, doing: &str, name: &str) -> Result<(), DepotError> {
        if self.is_cut { Err(failed(doing, name, "the power is off")) } else { Ok(()) }
    }
}

impl SimDepot {
    pub fn new(seed: u64) -> SimDepot {
        let (objects, random) = (BTreeMap::new(), SplitMix64::new(seed));
        let state = DepotState { objects, random, faults: DepotFaults::default(), is_cut: false, failures: 0 };
        SimDepot { state: Mutex::new(state) }
    }

    fn lock(&self) -> MutexGuard<'_, DepotState> {
        self.state.lock().expect("no operation of the depot panics")
    }

    pub fn set_faults(&self, faults: DepotFaults) {
        let mut state = self.lock();
        (state.faults, state.is_cut) = (faults, false);
    }

    pub fn has(&self, name: &str) -> bool {
        self.lock().objects.contains_key(name)
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
        let names: Vec<String> = state.objects.keys().filter(is_of_backup).cloned().collect();
        let name = names.get(random.below(names.len().max(1) as u64) as usize)?.clone();
        let bytes = state.objects.get_mut(&name)?;
        let place = random.below(bytes.len() as u64) as usize;
        match random.below(3) {
            0 => bytes[place] ^= 1 << random.below(8),
            1 => bytes.truncate(place),
            _ => drop(state.objects.remove(&name)),
        }
        Some((SimDepot { state: Mutex::new(state) }, name))
    }
}

impl Depot for SimDepot {
    fn put_new(&self, name: &str, bytes: &[u8]) -> Result<bool, DepotError> {
        self.lock().change("put", name, |objects| {
            let is_new = !objects.contains_key(name);
            objects.entry(name.into()).or_insert_with(|| bytes.to_vec());
            is_new
        })
    }

    fn get(&self, name: &str) -> Result<Option<Vec<u8>>, DepotError> {
        let state = self.lock();
        state.refuse_cut("get", name)?;
        Ok(state.objects.get(name).cloned())
    }

    fn list(&self, folder: &str) -> Result<Vec<ObjectEntry>, DepotError> {
        let state = self.lock();
        state.refuse_cut("list", folder)?;
        let prefix = format!("{folder}/");
        let entry = |(name, bytes): (&String, &Vec<u8>)| ObjectEntry { name: name.clone(), bytes: bytes.len() as u64 };
        Ok(state.objects.iter().filter(|(name, _)| name.starts_with(&prefix)).map(entry).collect())
    }

    fn delete(&self, name: &str) -> Result<(), DepotError> {
        self.lock().change("delete", name, |objects| drop(objects.remove(name)))
    }

    fn clean(&self) -> Result<(), DepotError> {
        self.lock().refuse_cut("clean", "")
    }

    fn place(&self) -> String {
        "the simulated depot".into()
    }
}
