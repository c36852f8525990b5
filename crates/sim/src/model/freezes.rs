//! The answers that a freeze may give: for each key, an answer that a get of it could give at some moment while the freeze was made; and the
//! same one each time.

use super::Model;
use super::key::OperationId;
use super::operation::{Expected, Told};
use std::collections::BTreeMap;

impl Model {
    /// Begins a freeze that is to show these keys. As with a scan, their reads are in no order with other operations.
    pub fn submit_freeze(&mut self, id: OperationId, keys: Vec<usize>) {
        self.submit_scan(id, keys);
    }

    /// The freeze is made.
    pub fn freeze_taken(&mut self, id: OperationId) {
        let mut answers = BTreeMap::new();
        for key in self.scans.remove(&id).unwrap_or_default() {
            self.note(key, || format!("the freeze {id} is made"));
            answers.insert(key, self.keys[key].close_read(id, self.rules));
        }
        self.freezes.insert(id, answers);
    }

    /// Takes what a read of a freeze told of keys. An error says which key, what was possible, and what was told.
    pub fn reply_freeze(&mut self, id: OperationId, told: &BTreeMap<usize, Told>) -> Result<(), String> {
        let Some(mut answers) = self.freezes.remove(&id) else { return Err(format!("there is no freeze {id}")) };
        for (&key, told) in told {
            self.note(key, || format!("the freeze {id} shows {told:?}"));
            let possible = answers.entry(key).or_default();
            let before = possible.clone();
            possible.retain(|answer| answer.admits(told));
            if possible.is_empty() || !self.keys[key].reply_closed(id, told) {
                return Err(self.report(key, &format!("a freeze told {told:?}; possible was {before:?}")));
            }
            match told {
                Told::Value(item) => *possible = vec![Expected::Value(item.clone())],
                Told::Missing => *possible = vec![Expected::Missing],
                _ => {}
            }
            let stamp = told.item().and_then(|item| item.stamp).unwrap_or(0);
            self.stamp_max = self.stamp_max.max(stamp);
        }
        self.freezes.insert(id, answers);
        Ok(())
    }

    /// A freeze has ended, or is not made.
    pub fn release_freeze(&mut self, id: OperationId) {
        let pending = self.scans.remove(&id).unwrap_or_default();
        let frozen = self.freezes.remove(&id).unwrap_or_default();
        pending.into_iter().chain(frozen.into_keys()).for_each(|key| self.keys[key].withdraw(id));
    }

    /// The store was closed: no freeze outlives it.
    pub fn release_freezes(&mut self) {
        let ids: Vec<OperationId> = self.freezes.keys().copied().collect();
        ids.into_iter().for_each(|id| self.release_freeze(id));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::operation::{Item, Kind};
    use std::rc::Rc;
    use tapetum::{Condition, Expiry};

    fn put(value: &str) -> Kind {
        let value = Rc::from(value.as_bytes());
        Kind::Put { value, flags: 0, expiry: Expiry::NONE, condition: Condition::Always }
    }

    fn item(value: &str, stamp: u64) -> BTreeMap<usize, Told> {
        let value = Rc::from(value.as_bytes());
        let item = Item { value, flags: 0, expiry: Expiry::NONE, stamp: Some(stamp), marks: None, writer: 0 };
        BTreeMap::from([(0, Told::Value(item))])
    }

    /// A model with a freeze of key 0, which had one value before, one on its way when the freeze was made, and one later.
    fn frozen() -> Model {
        let mut model = Model::new(1, false, 1);
        model.submit(1, 0, 0, put("a"));
        model.reply(1, &Told::Stored(1)).unwrap();
        model.submit_freeze(2, vec![0]);
        model.submit(3, 0, 0, put("b"));
        model.freeze_taken(2);
        model.reply(3, &Told::Stored(2)).unwrap();
        model.submit(4, 0, 0, put("c"));
        model.reply(4, &Told::Stored(3)).unwrap();
        model
    }

    #[test]
    fn a_freeze_shows_what_was_there_may_show_what_was_on_its_way_and_nothing_later() {
        for (told, holds) in [(item("a", 1), true), (item("b", 2), true), (item("c", 3), false)] {
            assert_eq!(frozen().reply_freeze(2, &told).is_ok(), holds, "{told:?}");
        }
        assert!(frozen().reply_freeze(2, &BTreeMap::from([(0, Told::Missing)])).is_err());
    }

    #[test]
    fn a_freeze_shows_the_same_each_time_also_of_a_dropped_keyspace() {
        for (first, second, holds) in [("a", "a", true), ("b", "b", true), ("a", "b", false), ("b", "a", false)] {
            let stamp = |value: &str| if value == "a" { 1 } else { 2 };
            let mut model = frozen();
            model.reply_freeze(2, &item(first, stamp(first))).unwrap();
            model.empty([0].into_iter());
            assert_eq!(model.reply_freeze(2, &item(second, stamp(second))).is_ok(), holds, "{first} {second}");
        }
    }

    #[test]
    fn what_a_freeze_showed_was_done() {
        for (seen, holds) in [("a", true), ("b", false)] {
            let mut model = Model::new(1, false, 1);
            model.submit(1, 0, 0, put("a"));
            model.reply(1, &Told::Stored(1)).unwrap();
            model.submit(3, 0, 0, put("b"));
            model.submit_freeze(2, vec![0]);
            model.freeze_taken(2);
            model.reply_freeze(2, &item(seen, if seen == "a" { 1 } else { 2 })).unwrap();
            model.crash();
            model.submit(4, 0, 0, Kind::Get);
            let told = item("a", 1).remove(&0).unwrap();
            assert_eq!(model.reply(4, &told).is_ok(), holds, "{seen}");
        }
    }
}
