//! Names on a drive with a volatile cache. A name that was made, changed or removed is durable when its folder has been synced; after a
//! cut of the power, of the changes before that the first few are there and the others are not, as a journal has it. A folder whose own
//! name is lost takes along what was durable in it.
//!
//! 1. The durable names are the present names with the pending changes undone.
//! 2. A change is whole or not at all: a file that is renamed has one of its two names.
//! 3. An inode is kept while anything may still name it.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};

use tapetum_bench::random::Random;

type Entries = BTreeMap<OsString, u64>;

/// Names in folders, by inode; the files behind them are somebody else's.
pub struct Names {
    root: u64,
    now: BTreeMap<u64, Entries>,
    durable: BTreeMap<u64, Entries>,
    /// Oldest first.
    pending: Vec<Vec<Step>>,
}

/// A name in a folder, and what it names from here on.
#[derive(Clone)]
struct Step {
    folder: u64,
    name: OsString,
    inode: Option<u64>,
}

impl Names {
    pub fn new(root: u64) -> Names {
        let empty = BTreeMap::from([(root, Entries::new())]);
        Names { root, now: empty.clone(), durable: empty, pending: Vec::new() }
    }

    pub fn is_folder(&self, inode: u64) -> bool {
        self.now.contains_key(&inode)
    }

    pub fn entries(&self, folder: u64) -> Option<&Entries> {
        self.now.get(&folder)
    }

    pub fn find(&self, folder: u64, name: &OsStr) -> Option<u64> {
        self.now.get(&folder)?.get(name).copied()
    }

    /// How many names an inode has.
    pub fn links(&self, inode: u64) -> u32 {
        self.now.values().flat_map(Entries::values).filter(|named| **named == inode).count() as u32
    }

    /// The folder's inode must be new.
    pub fn make_folder(&mut self, parent: u64, name: &OsStr, inode: u64) {
        self.now.insert(inode, Entries::new());
        self.durable.insert(inode, Entries::new());
        self.link(parent, name, inode);
    }

    pub fn link(&mut self, folder: u64, name: &OsStr, inode: u64) {
        self.change(vec![Step { folder, name: name.into(), inode: Some(inode) }]);
    }

    pub fn unlink(&mut self, folder: u64, name: &OsStr) {
        self.change(vec![Step { folder, name: name.into(), inode: None }]);
    }

    /// Renames, and replaces whatever has the new name.
    pub fn rename(&mut self, from: (u64, &OsStr), to: (u64, &OsStr)) {
        let Some(inode) = self.find(from.0, from.1) else { return };
        let old = Step { folder: from.0, name: from.1.into(), inode: None };
        self.change(vec![old, Step { folder: to.0, name: to.1.into(), inode: Some(inode) }]);
    }

    fn change(&mut self, steps: Vec<Step>) {
        apply(&mut self.now, &steps);
        self.pending.push(steps);
    }

    /// Makes the names in a folder durable, not the folder's own.
    pub fn sync(&mut self, folder: u64) {
        let touches = |steps: &Vec<Step>| steps.iter().any(|step| step.folder == folder);
        for steps in self.pending.extract_if(.., |steps| touches(steps)) {
            apply(&mut self.durable, &steps);
        }
    }

    /// Cuts the power; how many changes are lost.
    pub fn cut(&mut self, random: &mut Random) -> u64 {
        let changes = self.pending.len();
        let kept = match random.below(4) {
            0 => changes,
            1 => random.below(changes as u64 + 1) as usize,
            _ => 0,
        };
        for steps in self.pending.drain(..).take(kept) {
            apply(&mut self.durable, &steps);
        }
        let reached = reached(&self.durable, self.root);
        self.durable.retain(|folder, _| reached.contains(folder));
        self.now = self.durable.clone();
        (changes - kept) as u64
    }

    /// Every inode that something names, or may name after a cut.
    pub fn alive(&self) -> BTreeSet<u64> {
        let pending = self.pending.iter().flatten().filter_map(|step| step.inode);
        reached(&self.now, self.root).into_iter().chain(reached(&self.durable, self.root)).chain(pending).collect()
    }
}

fn apply(folders: &mut BTreeMap<u64, Entries>, steps: &[Step]) {
    for Step { folder, name, inode } in steps {
        let Some(entries) = folders.get_mut(folder) else { continue };
        match inode {
            Some(inode) => entries.insert(name.clone(), *inode),
            None => entries.remove(name),
        };
    }
}

fn reached(folders: &BTreeMap<u64, Entries>, root: u64) -> BTreeSet<u64> {
    let (mut reached, mut waiting) = (BTreeSet::new(), vec![root]);
    while let Some(inode) = waiting.pop() {
        if reached.insert(inode) {
            waiting.extend(folders.get(&inode).into_iter().flat_map(Entries::values));
        }
    }
    reached
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROOT: u64 = 1;

    fn name(text: &str) -> &OsStr {
        OsStr::new(text)
    }

    /// What `path` names after each of many cuts.
    fn after_cuts(names: impl Fn() -> Names, found: impl Fn(&Names) -> Option<u64>) -> BTreeSet<Option<u64>> {
        let mut random = Random::new(1);
        (0..50)
            .map(|_| {
                let mut names = names();
                names.cut(&mut random);
                found(&names)
            })
            .collect()
    }

    #[test]
    fn a_name_is_durable_when_its_folder_was_synced() {
        let made = |synced: bool| {
            let mut names = Names::new(ROOT);
            names.link(ROOT, name("a"), 2);
            if synced {
                names.sync(ROOT);
            }
            names
        };
        let find = |names: &Names| names.find(ROOT, name("a"));
        assert_eq!(after_cuts(|| made(true), find), [Some(2)].into());
        assert_eq!(after_cuts(|| made(false), find), [None, Some(2)].into());
    }

    #[test]
    fn a_folder_that_was_not_synced_into_its_own_is_lost_with_all_in_it() {
        let mut names = Names::new(ROOT);
        names.make_folder(ROOT, name("folder"), 2);
        names.link(2, name("a"), 3);
        names.sync(2);
        let (mut random, mut lost) = (Random::new(2), 0);
        while lost == 0 {
            let mut copy = Names {
                root: ROOT,
                now: names.now.clone(),
                durable: names.durable.clone(),
                pending: names.pending.clone(),
            };
            lost = copy.cut(&mut random);
            assert_eq!(copy.find(2, name("a")).is_some(), lost == 0);
            assert_eq!(copy.alive().contains(&3), lost == 0);
        }
        names.sync(ROOT);
        assert_eq!(names.cut(&mut random), 0);
        assert_eq!((names.find(ROOT, name("folder")), names.find(2, name("a"))), (Some(2), Some(3)));
    }

    #[test]
    fn a_renamed_file_has_one_of_its_names_and_what_it_replaced_stays_until_then() {
        let renamed = || {
            let mut names = Names::new(ROOT);
            names.link(ROOT, name("old"), 2);
            names.link(ROOT, name("new"), 3);
            names.sync(ROOT);
            names.rename((ROOT, name("old")), (ROOT, name("new")));
            assert!(names.alive().contains(&3) && names.links(3) == 0);
            names
        };
        let mut random = Random::new(3);
        for _ in 0..20 {
            let mut names = renamed();
            let lost = names.cut(&mut random) == 1;
            let expected = if lost { (Some(2), Some(3)) } else { (None, Some(2)) };
            assert_eq!((names.find(ROOT, name("old")), names.find(ROOT, name("new"))), expected);
            assert_eq!(names.alive().contains(&3), lost);
        }
    }

    #[test]
    fn what_was_removed_comes_back_unless_that_was_synced() {
        let removed = |synced: bool| {
            let mut names = Names::new(ROOT);
            names.link(ROOT, name("a"), 2);
            names.sync(ROOT);
            names.unlink(ROOT, name("a"));
            if synced {
                names.sync(ROOT);
                assert!(!names.alive().contains(&2));
            }
            names
        };
        let find = |names: &Names| names.find(ROOT, name("a"));
        assert_eq!(after_cuts(|| removed(true), find), [None].into());
        assert_eq!(after_cuts(|| removed(false), find), [None, Some(2)].into());
    }
}
