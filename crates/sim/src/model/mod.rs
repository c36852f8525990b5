//! The answers that a correct store may give.
//!
//! Each key is judged by itself ([`key::Key`]): its replies must be explained by one order of its operations in which
//! each takes effect between its submission and its reply, also across crashes. Beyond that: a batch and a deletion of
//! everything survive a crash whole or not at all, and no stamp is given twice.

mod freezes;
pub mod key;
mod moments;
pub mod operation;
pub mod prefix;
mod scans;

use key::{Key, OperationId, Rules};
use operation::{Expected, Kind, Told};
use prefix::Prefix;
use std::collections::{BTreeMap, BTreeSet};

#[derive(Clone)]
pub struct Model {
    keys: Vec<Key>,
    rules: Rules,
    /// Keys of the pending operations.
    on_their_way: BTreeMap<OperationId, Vec<usize>>,
    /// Pending parts of scans, and the keys that they may show.
    scans: BTreeMap<OperationId, Vec<usize>>,
    /// Freezes, and the answers that each may give for its keys.
    freezes: BTreeMap<OperationId, BTreeMap<usize, Vec<Expected>>>,
    /// Pending barriers, with the stamp that each covers.
    syncs: BTreeMap<OperationId, u64>,
    /// By key: whether its writes are in pages of their own and not in the log.
    in_pages: Vec<bool>,
    /// By key: whether its newest image may be lost.
    pages_adrift: Option<Vec<bool>>,
    /// Groups that were pending at a crash since all keys were read, and their keys.
    caught: Vec<(OperationId, Vec<usize>)>,
    /// If acknowledged writes may be lost: groups that were acknowledged since everything was last durable.
    acknowledged: BTreeMap<OperationId, Vec<usize>>,
    /// Stamps that replies to writes gave.
    stamps: BTreeSet<u64>,
    /// The highest stamp shown, and its value at the last crash.
    stamp_max: u64,
    stamp_max_at_crash: u64,
    /// The allowed losses, if acknowledged writes may be lost.
    prefix: Option<Prefix>,
    events: Option<Events>,
}

/// Recent events of each key, for a report.
#[derive(Clone)]
struct Events {
    by_key: Vec<Vec<String>>,
}

impl Model {
    pub fn new(keys: usize, forgetful: bool, now_ms: u64) -> Model {
        Model {
            keys: (0..keys).map(|_| Key::new(forgetful)).collect(),
            rules: Rules { now_ms, ..Rules::default() },
            on_their_way: BTreeMap::new(),
            scans: BTreeMap::new(),
            freezes: BTreeMap::new(),
            syncs: BTreeMap::new(),
            in_pages: vec![false; keys],
            pages_adrift: None,
            caught: Vec::new(),
            acknowledged: BTreeMap::new(),
            stamps: BTreeSet::new(),
            stamp_max: 0,
            stamp_max_at_crash: 0,
            prefix: forgetful.then(|| Prefix::new(keys)),
            events: None,
        }
    }

    /// Declares keys of ordered keyspaces. Their writes are not in the log, so if acknowledged writes may be lost, each key loses its own.
    pub fn put_in_pages(&mut self, keys: impl Iterator<Item = usize>) {
        keys.for_each(|key| self.in_pages[key] = true);
    }

    /// Sets the largest value that the store accepts, as it reports it.
    pub fn set_value_bytes_max(&mut self, value_bytes_max: usize) {
        self.rules.value_bytes_max = value_bytes_max;
    }

    /// Records the events of each key, for reports.
    pub fn record_events(&mut self) {
        self.events = Some(Events { by_key: vec![Vec::new(); self.keys.len()] });
    }

    fn note(&mut self, key: usize, event: impl FnOnce() -> String) {
        if let Some(events) = &mut self.events {
            events.by_key[key].push(event());
        }
    }

    pub fn note_everywhere(&mut self, event: &str) {
        (0..self.keys.len()).for_each(|key| self.note(key, || event.to_owned()));
    }

    pub fn pending(&self, key: usize) -> usize {
        self.keys[key].pending()
    }

    pub fn submit(&mut self, id: OperationId, session: usize, key: usize, kind: Kind) {
        self.note(key, || format!("session {session} submits {id}: {kind:?}"));
        self.note_removal(key, &kind);
        self.keys[key].submit(id, session, kind, self.stamp_max, false);
        self.on_their_way.insert(id, vec![key]);
    }

    /// Submits a batch, or a deletion of everything, which is an operation on each of its keys.
    pub fn submit_group(&mut self, id: OperationId, session: usize, parts: Vec<(usize, Kind)>) {
        self.on_their_way.insert(id, parts.iter().map(|part| part.0).collect());
        for (key, kind) in parts {
            self.note(key, || format!("session {session} submits {id} as one of a group: {kind:?}"));
            self.note_removal(key, &kind);
            self.keys[key].submit(id, session, kind, self.stamp_max, true);
        }
    }

    /// Submits a barrier for everything acknowledged.
    pub fn submit_sync(&mut self, id: OperationId) {
        self.on_their_way.insert(id, Vec::new());
        self.syncs.insert(id, self.stamp_max);
    }

    fn note_removal(&mut self, key: usize, kind: &Kind) {
        let removes = match kind {
            Kind::Get
            | Kind::Append { .. }
            | Kind::Prepend { .. }
            | Kind::Invalidate { .. }
            | Kind::Patch { .. }
            | Kind::Zero { .. } => false,
            Kind::Lease { vivify, .. } => vivify.is_some_and(|expiry| !expiry.is_none()),
            Kind::Put { expiry, .. } | Kind::Touch { expiry } | Kind::GetAndTouch { expiry } => !expiry.is_none(),
            Kind::Increment { initial, .. } => initial.is_some_and(|(_, expiry)| !expiry.is_none()),
            Kind::Delete { .. } | Kind::Clear | Kind::ClearAt(_) | Kind::Drop => true,
        };
        if let Some(prefix) = self.prefix.as_mut().filter(|_| removes) {
            prefix.may_go(key);
        }
    }

    /// Takes a reply. An error says which key, what was possible, and what was answered.
    pub fn reply(&mut self, id: OperationId, told: &Told) -> Result<(), String> {
        let keys = self.on_their_way.remove(&id).ok_or_else(|| format!("a second reply to {id}: {told:?}"))?;
        for &key in &keys {
            self.note(key, || format!("reply to {id}: {told:?}"));
            self.judge(key, id, told)?;
        }
        if let (Some(stamp), Told::Done, Some(prefix)) = (self.syncs.remove(&id), told, &mut self.prefix) {
            prefix.synced(stamp);
        }
        if let Some(stamp) = told.written_stamp() {
            if !self.stamps.insert(stamp) || stamp <= self.stamp_max_at_crash {
                let why = format!("stamp {stamp} was given a second time, or one above it before a crash ({told:?})");
                return Err(self.report(keys[0], &why));
            }
            self.stamp_max = self.stamp_max.max(stamp);
            if let (Some(prefix), [key]) = (&mut self.prefix, &keys[..])
                && !self.in_pages[*key]
            {
                prefix.wrote(*key, stamp);
            }
        }
        if self.prefix.is_some() && keys.len() > 1 && *told != Told::Refused {
            self.acknowledged.insert(id, keys);
        }
        if let Some(item) = told.item() {
            self.stamp_max = self.stamp_max.max(item.stamp.unwrap_or(0));
        }
        Ok(())
    }

    fn judge(&mut self, key: usize, id: OperationId, told: &Told) -> Result<(), String> {
        match self.keys[key].reply(id, told, self.rules) {
            Err(_) if self.pages_adrift.as_ref().is_some_and(|adrift| adrift[key]) => {
                self.keys[key].adopt(told);
                Ok(())
            }
            judged => judged.map_err(|why| self.report(key, &why)),
        }
    }

    /// Damage may have taken the newest images of ordered keyspaces. From the next reads on, any value of their keys is accepted, except
    /// for attested keys.
    pub fn set_pages_adrift(&mut self, is_attested: impl Fn(usize) -> bool) {
        let is_adrift = |key: usize| self.in_pages[key] && !is_attested(key);
        self.pages_adrift = Some((0..self.keys.len()).map(is_adrift).collect());
    }

    /// The client was told that the store failed. The operation may take effect until the next crash, or not.
    pub fn doubt(&mut self, id: OperationId) {
        for key in self.on_their_way.get(&id).cloned().unwrap_or_default() {
            self.note(key, || format!("{id} is in doubt"));
            self.keys[key].doubt(id);
        }
    }

    /// An eviction has begun.
    pub fn eviction_begins(&mut self) {
        self.rules.evictions.begun += 1;
        self.note_everywhere("an eviction begins");
        self.prefix.iter_mut().for_each(Prefix::may_all_go);
    }

    /// No evicted record had a higher stamp so far.
    pub fn evicted_through(&mut self, stamp: u64) {
        self.rules.evictions.stamp_max = self.rules.evictions.stamp_max.max(stamp);
    }

    /// No eviction is in progress.
    pub fn evictions_end(&mut self) {
        self.rules.evictions.ended = self.rules.evictions.begun;
    }

    pub fn crash(&mut self) {
        self.note_everywhere("crash");
        self.keys.iter_mut().for_each(|key| key.crash(self.rules));
        self.scans.clear();
        self.freezes.clear();
        self.syncs.clear();
        let on_their_way = std::mem::take(&mut self.on_their_way).into_iter().filter(|(_, keys)| keys.len() > 1);
        self.caught.extend(on_their_way);
        self.caught.extend(std::mem::take(&mut self.acknowledged));
        self.stamp_max_at_crash = self.stamp_max;
    }

    /// Evicted items may be back: damage may hide the eviction.
    pub fn undo_evictions(&mut self) {
        self.keys.iter_mut().for_each(Key::undo_evictions);
    }

    /// Stamps may be given again: damage may hide that the store was opened since they were first given.
    pub fn forget_stamps(&mut self) {
        self.stamps.clear();
        self.stamp_max_at_crash = 0;
    }

    /// Takes the result of a key's first read after a crash.
    pub fn read_after_crash(&mut self, key: usize, told: &Told) {
        let Some(prefix) = self.prefix.as_mut().filter(|_| !self.in_pages[key]) else { return };
        match told {
            Told::Value(item) => prefix.read(key, item.stamp),
            Told::Missing => prefix.read(key, None),
            // The read failed.
            _ => {}
        }
    }

    /// Every key was read since the crash: groups must be whole or absent.
    pub fn all_read(&mut self) -> Result<(), String> {
        if let Some(prefix) = &self.prefix {
            prefix.check().map_err(|(key, why)| self.report(key, &why))?;
        }
        for (group, keys) in std::mem::take(&mut self.caught) {
            if self.pages_adrift.is_some() && keys.iter().any(|key| self.in_pages[*key]) {
                continue;
            }
            let fates: Vec<_> = keys.iter().map(|key| (*key, self.keys[*key].group_fate(group))).collect();
            let did = fates.iter().find(|(_, (did, _))| *did);
            let did_not = fates.iter().find(|(_, (_, did_not))| *did_not);
            if let (Some((there, _)), Some((gone, _))) = (did, did_not) {
                let why = format!("group {group} took effect on key {there} and not on key {gone}");
                return Err(format!("{}\n{}", self.report(*there, &why), self.report(*gone, &why)));
            }
        }
        Ok(())
    }

    /// The items of these keys are gone with their keyspace, for good. No operation on these keys is pending.
    pub fn empty(&mut self, keys: impl Iterator<Item = usize>) {
        for key in keys {
            self.note(key, || "its keyspace is gone, or new".into());
            self.keys[key].empty();
            self.prefix.iter_mut().for_each(|prefix| prefix.forget(key));
            let caught = self.caught.iter_mut().map(|(_, keys)| keys);
            caught.chain(self.acknowledged.values_mut()).for_each(|keys| keys.retain(|other| *other != key));
        }
    }

    /// Whether a key shows that an acknowledged write was lost.
    pub fn has_lost(&self) -> bool {
        self.keys.iter().any(Key::has_lost)
    }

    /// From here on, a crash may lose acknowledged writes, the latest first. No operation is pending.
    pub fn begin_to_forget(&mut self) {
        self.keys.iter_mut().for_each(Key::begin_to_forget);
        self.prefix = Some(Prefix::new(self.keys.len()));
    }

    /// From here on, no acknowledged write may be lost.
    pub fn forget_nothing(&mut self) {
        self.keys.iter_mut().for_each(Key::forget_nothing);
        self.prefix = None;
        self.acknowledged.clear();
    }

    /// The drive has damaged the log.
    pub fn doubt_barriers(&mut self) {
        self.syncs.clear();
        self.prefix.iter_mut().for_each(Prefix::doubt_barriers);
    }

    /// Everything acknowledged is durable from here on.
    pub fn settle(&mut self) {
        self.keys.iter_mut().for_each(|key| key.settle(self.rules.evictions));
        self.acknowledged.clear();
        self.prefix.iter_mut().for_each(Prefix::settle);
    }

    /// Sets whether the drive fails sometimes.
    pub fn set_drive_fails(&mut self, drive_fails: bool) {
        self.rules.drive_fails = drive_fails;
    }

    pub fn pass_time(&mut self, now_ms: u64) {
        let before = self.rules;
        self.rules.now_ms = now_ms;
        self.note_everywhere(&format!("it is {now_ms} ms"));
        self.keys.iter_mut().for_each(|key| key.pass_time(before, now_ms));
        self.prefix.iter_mut().for_each(Prefix::may_all_go);
    }

    /// A text of a key's recent events and its possible states.
    pub fn report(&self, key: usize, why: &str) -> String {
        const SHOWN: usize = 60;
        let mut report = format!("key {key}: {why}");
        if let Some(events) = &self.events {
            let events = &events.by_key[key];
            report += "\n  lately:";
            for event in &events[events.len().saturating_sub(SHOWN)..] {
                report += "\n    ";
                report += event;
            }
            report += &format!("\n  possible now: {}", self.keys[key].describe());
        }
        report
    }
}
