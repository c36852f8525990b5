//! The states that one key may be in.
//!
//! Operations on their way have taken effect or not; a [`Possibility`] is one way it may have gone. A reply keeps those
//! that explain it, after letting operations that were on their way take effect before it in any order; of one session's
//! operations on the key, only in the order of submission. No possibility left: the store is wrong. A crash ends all
//! operations: each took effect or never will.

use super::operation::{Expected, Item, Kind, Told, apply};

pub type OperationId = u64;

struct Pending {
    id: OperationId,
    session: usize,
    kind: Kind,
    /// Belongs to a batch or to a deletion of everything, which a crash must not tear apart.
    grouped: bool,
}

#[derive(Clone, PartialEq, Eq, Debug)]
struct Possibility {
    item: Option<Item>,
    /// When everything is to be deleted; 0 is never.
    clear_at: u32,
    /// Pending operations that took effect, and what their clients must be told.
    done: Vec<(OperationId, Expected)>,
    /// Pending operations that were refused, although their clients have not heard of it: later ones of their session
    /// may have taken effect.
    refused: Vec<OperationId>,
    /// Groups that took effect on this key without a reply, of crashes since all keys were read.
    groups: Vec<OperationId>,
}

/// What every operation sees alike.
#[derive(Clone, Copy)]
pub struct Rules {
    pub now: u32,
    pub value_bytes_max: usize,
}

pub struct Key {
    pending: Vec<Pending>,
    possible: Vec<Possibility>,
    /// Where acknowledged writes may be lost: the states since everything was last durable.
    past: Option<Vec<Possibility>>,
}

impl Possibility {
    fn has_done(&self, id: OperationId) -> bool {
        self.done.iter().any(|done| done.0 == id)
    }

    fn after(&self, pending: &Pending, rules: Rules) -> Possibility {
        let mut next = self.clone();
        let (item, expected) = apply(&pending.kind, self.item.as_ref(), rules.now, rules.value_bytes_max);
        next.item = item;
        if let Some(written) = next.item.as_mut().filter(|item| item.writer == 0) {
            written.writer = pending.id;
        }
        match pending.kind {
            Kind::Clear => next.clear_at = 0,
            Kind::ClearAt(at) => next.clear_at = at,
            _ => {}
        }
        next.pass_time(rules.now);
        let expected = if pending.grouped { Expected::Done } else { expected };
        let place = next.done.partition_point(|done| done.0 < pending.id);
        next.done.insert(place, (pending.id, expected));
        next
    }

    fn pass_time(&mut self, now: u32) {
        if self.clear_at != 0 && self.clear_at <= now {
            (self.item, self.clear_at) = (None, 0);
        }
        self.item = self.item.take().and_then(|item| item.unless_expired(now));
    }
}

impl Key {
    /// A key that is not there. `forgetful`: acknowledged writes may be lost in a crash, the latest first.
    pub fn new(forgetful: bool) -> Key {
        let absent = Possibility { item: None, clear_at: 0, done: Vec::new(), refused: Vec::new(), groups: Vec::new() };
        let past = forgetful.then(|| vec![absent.clone()]);
        Key { pending: Vec::new(), possible: vec![absent], past }
    }

    pub fn submit(&mut self, id: OperationId, session: usize, kind: Kind, grouped: bool) {
        self.pending.push(Pending { id, session, kind, grouped });
    }

    /// The client was told that nobody knows whether the operation took effect, or will. It counts as on its way, in no
    /// order with others, until a crash ends it.
    pub fn doubt(&mut self, id: OperationId) {
        let doubted = self.pending.iter_mut().filter(|pending| pending.id == id);
        doubted.for_each(|pending| pending.session = usize::MAX - id as usize);
    }

    /// Operations of clients on their way to this key alone.
    pub fn pending(&self) -> usize {
        self.pending.len()
    }

    /// `possibility` before operation `next` takes effect, if it may now: nothing is left that its session submitted
    /// before, or what is left was refused.
    fn before(&self, possibility: &Possibility, next: usize) -> Option<Possibility> {
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
                Kind::Get | Kind::Delete { .. } => return None,
                _ => before.refused.push(earlier.id),
            }
        }
        Some(before)
    }

    /// Every possibility that follows from `from` by operations that are on their way.
    fn reachable(&self, from: Vec<Possibility>, rules: Rules, stop: impl Fn(&Possibility) -> bool) -> Vec<Possibility> {
        let mut open = from;
        let mut reached: Vec<Possibility> = Vec::new();
        while let Some(possibility) = open.pop() {
            if reached.contains(&possibility) {
                continue;
            }
            if !stop(&possibility) {
                for next in 0..self.pending.len() {
                    if let Some(before) = self.before(&possibility, next) {
                        open.push(before.after(&self.pending[next], rules));
                    }
                }
            }
            reached.push(possibility);
        }
        reached
    }

    /// Takes a reply; an error says what would have been right.
    pub fn reply(&mut self, id: OperationId, told: &Told, rules: Rules) -> Result<(), String> {
        let Some(place) = self.pending.iter().position(|pending| pending.id == id) else {
            return Err(format!("a reply to an operation that was not on its way: {told:?}"));
        };
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
        let reached = self.reachable(before.clone(), rules, |possibility| possibility.has_done(id));
        self.remember(&reached);
        for mut possibility in reached {
            let Some(at) = possibility.done.iter().position(|done| done.0 == id) else { continue };
            let (_, expected) = possibility.done.remove(at);
            if expected.admits(told)
                && learn_stamp(&mut possibility, id, &expected, told)
                && !self.possible.contains(&possibility)
            {
                self.possible.push(possibility);
            }
        }
        let pending = self.pending.remove(place);
        if self.possible.is_empty() {
            let waiting: Vec<&Kind> = self.pending.iter().map(|pending| &pending.kind).collect();
            return Err(format!(
                "{:?} was told {told:?}; before, possible was {before:?}, with {waiting:?} on the way",
                pending.kind
            ));
        }
        Ok(())
    }

    /// Remembers states that a forgetful store may return to.
    fn remember(&mut self, reached: &[Possibility]) {
        let Some(past) = &mut self.past else { return };
        for possibility in reached {
            let state =
                Possibility { done: Vec::new(), refused: Vec::new(), groups: Vec::new(), ..possibility.clone() };
            if !past.contains(&state) {
                past.push(state);
            }
        }
    }

    /// The power failed.
    pub fn crash(&mut self, rules: Rules) {
        let before = std::mem::take(&mut self.possible);
        let mut reached = self.reachable(before, rules, |_| false);
        reached.extend(self.past.iter().flatten().cloned());
        for mut possibility in reached {
            let grouped = |id: OperationId| self.pending.iter().any(|pending| pending.id == id && pending.grouped);
            let done = std::mem::take(&mut possibility.done);
            possibility.refused.clear();
            possibility.groups.extend(done.into_iter().map(|done| done.0).filter(|id| grouped(*id)));
            possibility.pass_time(rules.now);
            if !self.possible.contains(&possibility) {
                self.possible.push(possibility);
            }
        }
        self.pending.clear();
    }

    /// Everything that was acknowledged is durable from here on.
    pub fn settle(&mut self) {
        if let Some(past) = &mut self.past {
            *past = self.possible.clone();
            past.iter_mut().for_each(|state| {
                state.done.clear();
                state.refused.clear();
            });
        }
    }

    pub fn pass_time(&mut self, now: u32) {
        assert!(self.pending.is_empty(), "time stands while operations are on their way");
        self.possible.iter_mut().for_each(|possibility| possibility.pass_time(now));
    }

    /// Whether a group (certainly did, certainly did not) take effect here.
    pub fn group_fate(&self, group: OperationId) -> (bool, bool) {
        let did = |possibility: &Possibility| possibility.groups.contains(&group);
        (self.possible.iter().all(did), !self.possible.iter().any(did))
    }

    pub fn forget_groups(&mut self) {
        for mut possibility in std::mem::take(&mut self.possible) {
            possibility.groups.clear();
            if !self.possible.contains(&possibility) {
                self.possible.push(possibility);
            }
        }
    }

    /// For a report.
    pub fn describe(&self) -> String {
        format!("{:?}", self.possible)
    }
}

/// Keeps the stamp that a reply shows, if its record is still there; false when it has another one.
fn learn_stamp(possibility: &mut Possibility, id: OperationId, expected: &Expected, told: &Told) -> bool {
    let (writer, stamp) = match (expected, told) {
        (Expected::Value(item), Told::Value(told)) if item.writer != 0 => (item.writer, told.stamp),
        (_, Told::Value(told)) => (id, told.stamp),
        _ => (id, told.written_stamp()),
    };
    match (&mut possibility.item, stamp) {
        (Some(item), Some(stamp)) if item.writer == writer => *item.stamp.get_or_insert(stamp) == stamp,
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::rc::Rc;
    use tapetum::Condition;

    const RULES: Rules = Rules { now: 10, value_bytes_max: 100 };

    fn put(value: &str) -> Kind {
        Kind::Put { value: Rc::from(value.as_bytes()), flags: 0, expiry: 0, condition: Condition::Always }
    }

    fn shows(value: &str, stamp: u64) -> Told {
        Told::Value(Item { value: Rc::from(value.as_bytes()), flags: 0, expiry: 0, stamp: Some(stamp), writer: 0 })
    }

    /// What a get may be told now.
    fn may_show(key: &mut Key, id: OperationId, told: &Told) -> bool {
        key.submit(id, 9, Kind::Get, false);
        key.reply(id, told, RULES).is_ok()
    }

    fn with_one_acknowledged_and_two_on_their_way() -> Key {
        let mut key = Key::new(false);
        key.submit(1, 0, put("a"), false);
        key.reply(1, &Told::Stored(1), RULES).unwrap();
        key.submit(2, 0, put("b"), false);
        key.submit(3, 0, put("c"), false);
        key
    }

    #[test]
    fn a_crash_leaves_the_acknowledged_write_or_one_on_its_way() {
        for (told, holds) in [("a", true), ("b", true), ("c", true), ("d", false)] {
            let mut key = with_one_acknowledged_and_two_on_their_way();
            key.crash(RULES);
            assert_eq!(may_show(&mut key, 4, &shows(told, 1)), holds, "{told}");
        }
    }

    #[test]
    fn what_was_seen_stays_seen_through_a_crash() {
        let mut key = with_one_acknowledged_and_two_on_their_way();
        assert!(may_show(&mut key, 4, &shows("b", 2)));
        key.crash(RULES);
        assert!(!may_show(&mut key, 5, &shows("a", 1)));
    }

    #[test]
    fn a_forgetful_store_may_go_back_but_not_behind_what_is_settled() {
        let mut key = Key::new(true);
        for (id, value) in [(1, "a"), (2, "b"), (3, "c")] {
            key.submit(id, 0, put(value), false);
            key.reply(id, &Told::Stored(id), RULES).unwrap();
            if id == 1 {
                key.settle();
            }
        }
        key.crash(RULES);
        let mut absent = key;
        assert!(!may_show(&mut absent, 4, &Told::Missing));
    }

    #[test]
    fn a_stamp_belongs_to_one_write() {
        let mut key = Key::new(false);
        key.submit(1, 0, put("a"), false);
        key.reply(1, &Told::Stored(7), RULES).unwrap();
        assert!(may_show(&mut key, 2, &shows("a", 7)));
        assert!(!may_show(&mut key, 3, &shows("a", 8)));
    }

    #[test]
    fn what_follows_a_refused_operation_may_be_seen_before_the_refusal_is_heard() {
        let mut key = Key::new(false);
        key.submit(1, 0, put("refused"), true);
        key.submit(2, 0, put("a"), false);
        assert!(may_show(&mut key, 3, &shows("a", 1)));
        key.reply(1, &Told::Refused, RULES).unwrap();
        key.reply(2, &Told::Stored(1), RULES).unwrap();
        assert!(!may_show(&mut key, 4, &shows("refused", 0)));
    }

    #[test]
    fn a_group_that_was_on_its_way_did_or_did_not() {
        let mut key = Key::new(false);
        key.submit(5, 0, put("a"), true);
        key.crash(RULES);
        assert_eq!(key.group_fate(5), (false, false));
        assert!(may_show(&mut key, 6, &shows("a", 1)));
        assert_eq!(key.group_fate(5), (true, false));
    }
}
