//! The states that one key may be in.
//!
//! Pending operations have taken effect or not; a [`Possibility`] is one way in which it may have gone. A reply keeps the possibilities
//! that explain it, after letting pending operations take effect before it in any order; those of one session on the key only in the order
//! of submission. If no possibility is left, the store is wrong. A crash ends all operations: each took effect or never will.

mod closed;

use super::operation::{Expected, Item, Kind, Told, apply};

pub type OperationId = u64;

#[derive(Clone)]
struct Pending {
    id: OperationId,
    session: usize,
    kind: Kind,
    /// Its write gets a stamp above this one.
    stamp_above: u64,
    /// It belongs to a batch or to a deletion of everything, which a crash must not tear apart.
    grouped: bool,
}

#[derive(Clone, PartialEq, Eq, Debug)]
struct Possibility {
    item: Option<Item>,
    /// An evicted item, until another one replaces it. It returns if the manifest loses the eviction.
    evicted: Option<Item>,
    /// Time at which everything will be deleted; 0 is never.
    clear_at: u32,
    /// Pending operations that took effect, and the answers that their clients must get.
    done: Vec<(OperationId, Expected)>,
    /// Pending operations that were refused, though their clients have no reply yet: later ones of their session may have taken effect.
    refused: Vec<OperationId>,
    /// Groups that took effect on this key, ascending: those without a reply that a crash ended since all keys were read; and all groups,
    /// if acknowledged writes may be lost.
    groups: Vec<OperationId>,
    /// A crash undid an acknowledged write.
    lost: bool,
}

/// The conditions that all operations share.
#[derive(Clone, Copy, Default)]
pub struct Rules {
    pub now_ms: u64,
    pub value_bytes_max: usize,
    pub evictions: Evictions,
    /// The drive fails sometimes, and then a failed store refuses deletes too.
    pub drive_fails: bool,
}

/// The evictions of a store, which may have taken items.
#[derive(Clone, Copy, Default)]
pub struct Evictions {
    pub begun: u64,
    pub ended: u64,
    /// The highest stamp that any eviction took.
    pub stamp_max: u64,
}

#[derive(Clone)]
pub struct Key {
    pending: Vec<Pending>,
    possible: Vec<Possibility>,
    /// Evictions that had ended when the possibilities were last narrowed. They take no more items.
    evictions_ended: u64,
    /// Evictions that had ended when everything was last durable. A later one may have taken an item in `past`, hidden by writes that a
    /// crash loses.
    evictions_settled: u64,
    /// If acknowledged writes may be lost: the states since everything was last durable.
    past: Option<Vec<Possibility>>,
}

impl Possibility {
    fn has_done(&self, id: OperationId) -> bool {
        self.done.iter().any(|done| done.0 == id)
    }

    fn after(mut self, pending: &Pending, rules: Rules) -> Possibility {
        let (item, expected) = apply(&pending.kind, self.item.as_ref(), rules.now_ms, rules.value_bytes_max);
        self.item = item;
        let wrote = matches!(expected, Expected::Stored | Expected::Number(_) | Expected::Leased { .. });
        if wrote || matches!(pending.kind, Kind::Clear | Kind::Drop) {
            // The log has a later record of the key.
            self.evicted = None;
        }
        if let Some(written) = self.item.as_mut().filter(|item| item.writer == 0) {
            written.writer = pending.id;
        }
        match pending.kind {
            Kind::Clear => self.clear_at = 0,
            Kind::ClearAt(at) => self.clear_at = at,
            _ => {}
        }
        self.pass_time(rules.now_ms);
        let expected = if pending.grouped { Expected::Done } else { expected };
        let place = self.done.partition_point(|done| done.0 < pending.id);
        self.done.insert(place, (pending.id, expected));
        self
    }

    /// The state when all pending operations are forgotten. Groups among `done` count as having taken effect.
    fn at_rest(mut self, is_group: impl Fn(OperationId) -> bool) -> Possibility {
        let groups = std::mem::take(&mut self.done).into_iter().map(|done| done.0).filter(|id| is_group(*id));
        self.groups.extend(groups);
        self.groups.sort_unstable();
        self.refused.clear();
        self
    }

    fn pass_time(&mut self, now_ms: u64) {
        if self.clear_at != 0 && u64::from(self.clear_at) * 1000 <= now_ms {
            (self.item, self.evicted, self.clear_at) = (None, None, 0);
        }
        self.item = self.item.take().and_then(|item| item.unless_expired(now_ms));
        self.evicted = self.evicted.take().and_then(|item| item.unless_expired(now_ms));
    }

    /// The state after an eviction has taken the item.
    fn with_item_evicted(&self) -> Possibility {
        let mut evicted = self.clone();
        evicted.evicted = evicted.item.take();
        evicted
    }
}

impl Key {
    /// A key without an item. `forgetful`: a crash may lose acknowledged writes, the latest first.
    pub fn new(forgetful: bool) -> Key {
        let absent = Possibility {
            item: None,
            evicted: None,
            clear_at: 0,
            done: Vec::new(),
            refused: Vec::new(),
            groups: Vec::new(),
            lost: false,
        };
        let past = forgetful.then(|| vec![absent.clone()]);
        Key { pending: Vec::new(), possible: vec![absent], evictions_ended: 0, evictions_settled: 0, past }
    }

    /// `stamp_above`: the operation's write gets a stamp above this one.
    pub fn submit(&mut self, id: OperationId, session: usize, kind: Kind, stamp_above: u64, grouped: bool) {
        self.pending.push(Pending { id, session, kind, stamp_above, grouped });
    }

    /// The client was told that the outcome of the operation is unknown. Until a crash ends it, it counts as pending, in no order with
    /// others.
    pub fn doubt(&mut self, id: OperationId) {
        let doubted = self.pending.iter_mut().filter(|pending| pending.id == id);
        doubted.for_each(|pending| pending.session = usize::MAX - id as usize);
    }

    /// Takes over the state that a read showed, whatever was possible. Nothing may be pending.
    pub fn adopt(&mut self, told: &Told) {
        let Key { possible, .. } = Key::new(false);
        self.possible =
            possible.into_iter().map(|absent| Possibility { item: told.item().cloned(), ..absent }).collect();
    }

    /// Removes a read that its client got no answer to.
    pub fn withdraw(&mut self, id: OperationId) {
        self.pending.retain(|pending| pending.id != id);
        for mut possibility in std::mem::take(&mut self.possible) {
            possibility.done.retain(|done| done.0 != id);
            if !self.possible.contains(&possibility) {
                self.possible.push(possibility);
            }
        }
    }

    /// Number of clients' pending operations on this key alone.
    pub fn pending(&self) -> usize {
        self.pending.len()
    }

    /// `possibility` before operation `next` takes effect, if it may now: all earlier operations of its session have taken effect or were
    /// refused.
    fn before(&self, possibility: &Possibility, next: usize, rules: Rules) -> Option<Possibility> {
        let whole_store = |kind: &Kind| matches!(kind, Kind::Clear | Kind::ClearAt(_));
        let pending = &self.pending[next];
        if possibility.has_done(pending.id) || possibility.refused.contains(&pending.id) {
            return None;
        }
        let mut before = possibility.clone();
        for earlier in self.pending[..next].iter().filter(|_| !whole_store(&pending.kind)) {
            let in_order = earlier.session != pending.session
                || whole_store(&earlier.kind)
                || possibility.has_done(earlier.id)
                || possibility.refused.contains(&earlier.id);
            match earlier.kind {
                _ if in_order => {}
                Kind::Get => return None,
                Kind::Delete { .. } if !rules.drive_fails => return None,
                _ => before.refused.push(earlier.id),
            }
        }
        Some(before)
    }

    /// Whether the item may have been evicted since the possibilities were last narrowed: an eviction was in progress, and one has taken
    /// items as young as this one.
    fn may_be_evicted(&self, item: &Item, since: u64, evictions: Evictions) -> bool {
        let above = match item.stamp {
            Some(stamp) => stamp - 1,
            None => {
                self.pending.iter().find(|pending| pending.id == item.writer).map_or(0, |pending| pending.stamp_above)
            }
        };
        evictions.begun > since && evictions.stamp_max > above
    }

    /// Every possibility that follows from `from` by pending operations and by eviction.
    fn reachable(&self, from: Vec<Possibility>, rules: Rules, stop: impl Fn(&Possibility) -> bool) -> Vec<Possibility> {
        let mut open = from;
        let mut reached: Vec<Possibility> = Vec::new();
        while let Some(possibility) = open.pop() {
            if reached.contains(&possibility) {
                continue;
            }
            if possibility
                .item
                .as_ref()
                .is_some_and(|item| self.may_be_evicted(item, self.evictions_ended, rules.evictions))
            {
                open.push(possibility.with_item_evicted());
            }
            if !stop(&possibility) {
                for next in 0..self.pending.len() {
                    if let Some(before) = self.before(&possibility, next, rules) {
                        open.push(before.after(&self.pending[next], rules));
                    }
                }
            }
            reached.push(possibility);
        }
        reached
    }

    /// Takes a reply. An error says which replies would have been right.
    pub fn reply(&mut self, id: OperationId, told: &Told, rules: Rules) -> Result<(), String> {
        let Some(place) = self.pending.iter().position(|pending| pending.id == id) else {
            return Err(format!("a reply to an operation that was not on its way: {told:?}"));
        };
        if self.is_plain_read(place, rules) && *told != Told::Refused {
            return self.reply_to_plain_read(told);
        }
        let before = std::mem::take(&mut self.possible);
        if *told == Told::Refused {
            for mut possibility in before.into_iter().filter(|possibility| !possibility.has_done(id)) {
                possibility.refused.retain(|refused| *refused != id);
                if !self.possible.contains(&possibility) {
                    self.possible.push(possibility);
                }
            }
            self.pending.remove(place);
            return if self.possible.is_empty() { Err("refused, but its effect was seen".into()) } else { Ok(()) };
        }
        let reached = self.reachable(before, rules, |possibility| possibility.has_done(id));
        self.remember(&reached);
        for possibility in &reached {
            let Some(at) = possibility.done.iter().position(|done| done.0 == id) else { continue };
            let expected = &possibility.done[at].1;
            if !expected.admits(told) {
                continue;
            }
            let mut possibility = possibility.clone();
            possibility.done.remove(at);
            if self.past.is_some() && self.pending[place].grouped {
                possibility.groups.push(id);
                possibility.groups.sort_unstable();
            }
            if learn_stamp(&mut possibility, id, expected, told) && !self.possible.contains(&possibility) {
                self.possible.push(possibility);
            }
        }
        let pending = self.pending.remove(place);
        self.evictions_ended = rules.evictions.ended;
        if self.possible.is_empty() {
            let waiting: Vec<&Kind> = self.pending.iter().map(|pending| &pending.kind).collect();
            return Err(format!(
                "{:?} was told {told:?}; possible was {reached:?}, with {waiting:?} on the way",
                pending.kind
            ));
        }
        Ok(())
    }

    /// Whether a read is the only pending operation, and neither evictions nor memory of past states matter. In this by far most common
    /// case no possibility changes.
    fn is_plain_read(&self, place: usize, rules: Rules) -> bool {
        let alone = self.pending.len() == 1 && matches!(self.pending[place].kind, Kind::Get);
        let undone =
            self.possible.iter().all(|possibility| possibility.done.is_empty() && possibility.refused.is_empty());
        alone && undone && self.past.is_none() && rules.evictions.begun == self.evictions_ended
    }

    fn reply_to_plain_read(&mut self, told: &Told) -> Result<(), String> {
        self.pending.clear();
        let before = std::mem::take(&mut self.possible);
        for possibility in &before {
            let expected = possibility.item.clone().map_or(Expected::Missing, Expected::Value);
            if expected.admits(told) {
                let mut possibility = possibility.clone();
                if let (Some(item), Told::Value(told)) = (&mut possibility.item, told) {
                    item.stamp = told.stamp;
                }
                if !self.possible.contains(&possibility) {
                    self.possible.push(possibility);
                }
            }
        }
        match self.possible.is_empty() {
            true => Err(format!("a read was told {told:?}; before, possible was {before:?}")),
            false => Ok(()),
        }
    }

    fn is_group(&self, id: OperationId) -> bool {
        self.pending.iter().any(|pending| pending.id == id && pending.grouped)
    }

    /// Remembers states to which a forgetful store may return.
    fn remember(&mut self, reached: &[Possibility]) {
        let Some(mut past) = self.past.take() else { return };
        for possibility in reached {
            let state = possibility.clone().at_rest(|id| self.is_group(id));
            if !past.contains(&state) {
                past.push(state);
            }
        }
        self.past = Some(past);
    }

    /// The power failed.
    pub fn crash(&mut self, rules: Rules) {
        let before = std::mem::take(&mut self.possible);
        let mut reached = self.reachable(before, rules, |_| false);
        for state in self.past.iter().flatten() {
            let state = Possibility { lost: true, ..state.clone() };
            if state
                .item
                .as_ref()
                .is_some_and(|item| self.may_be_evicted(item, self.evictions_settled, rules.evictions))
            {
                reached.push(state.with_item_evicted());
            }
            reached.push(state);
        }
        for possibility in reached {
            let mut possibility = possibility.at_rest(|id| self.is_group(id));
            possibility.pass_time(rules.now_ms);
            // A state that is possible without a loss does not count as lost.
            let kept = Possibility { lost: false, ..possibility.clone() };
            if !self.possible.contains(&kept) && !self.possible.contains(&possibility) {
                self.possible.push(possibility);
            }
        }
        self.pending.clear();
    }

    /// A crash may have undone evictions, because only the manifest records them.
    pub fn undo_evictions(&mut self) {
        for possibility in self.possible.clone().into_iter().filter(|possibility| possibility.evicted.is_some()) {
            let item = possibility.evicted.clone();
            let undone = Possibility { item, evicted: None, ..possibility };
            if !self.possible.contains(&undone) {
                self.possible.push(undone);
            }
        }
    }

    /// The item is gone, and no earlier one returns.
    pub fn empty(&mut self) {
        assert!(self.pending.is_empty(), "operations are on their way");
        let Key { possible, past, .. } = Key::new(self.past.is_some());
        (self.possible, self.past) = (possible, past);
    }

    /// Whether only the loss of an acknowledged write explains the key's state.
    pub fn has_lost(&self) -> bool {
        self.possible.iter().all(|possibility| possibility.lost)
    }

    /// From here on, a crash may lose acknowledged writes, the latest first.
    pub fn begin_to_forget(&mut self) {
        assert!(self.pending.is_empty(), "operations are on their way");
        self.past = Some(self.possible.clone());
    }

    /// From here on, no acknowledged write may be lost.
    pub fn forget_nothing(&mut self) {
        self.past = None;
    }

    /// Everything acknowledged is durable from here on, and groups are whole.
    pub fn settle(&mut self, evictions: Evictions) {
        self.evictions_settled = evictions.ended;
        for possibility in std::mem::take(&mut self.possible) {
            let settled = Possibility { lost: false, groups: Vec::new(), ..possibility };
            if !self.possible.contains(&settled) {
                self.possible.push(settled);
            }
        }
        if let Some(past) = &mut self.past {
            *past = self.possible.clone();
            past.iter_mut().for_each(|state| {
                state.done.clear();
                state.refused.clear();
            });
        }
    }

    /// It is `now_ms` from here on; operations on their way took effect before, by the rules of then, or will after.
    pub fn pass_time(&mut self, before: Rules, now_ms: u64) {
        if !self.pending.is_empty() {
            let from = std::mem::take(&mut self.possible);
            self.possible = self.reachable(from, before, |_| false);
            let reached = self.possible.clone();
            self.remember(&reached);
        }
        self.possible.iter_mut().for_each(|possibility| possibility.pass_time(now_ms));
    }

    /// Whether a group (certainly took, certainly did not take) effect here.
    pub fn group_fate(&self, group: OperationId) -> (bool, bool) {
        let did = |possibility: &Possibility| possibility.groups.contains(&group);
        (self.possible.iter().all(did), !self.possible.iter().any(did))
    }

    /// For a report.
    pub fn describe(&self) -> String {
        format!("{:?}", self.possible)
    }
}

/// Keeps the stamp that a reply shows, if its record is still there. False if the record has another stamp.
fn learn_stamp(possibility: &mut Possibility, id: OperationId, expected: &Expected, told: &Told) -> bool {
    let (writer, stamp) = match (expected.item(), told.item()) {
        (Some(item), Some(told)) if item.writer != 0 => (item.writer, told.stamp),
        (_, Some(told)) => (id, told.stamp),
        _ => (id, told.written_stamp()),
    };
    match (possibility.item.as_mut().or(possibility.evicted.as_mut()), stamp) {
        (Some(item), Some(stamp)) if item.writer == writer => *item.stamp.get_or_insert(stamp) == stamp,
        _ => true,
    }
}

#[cfg(test)]
#[path = "key_tests.rs"]
mod tests;
