//! The answers that a part of a scan may give: for each key, an answer that a get of it could give at some moment while the part was
//! pending.
//!
//! So a key that exists throughout is shown, one that never exists is not shown, and a value that is shown was the key's at some moment.
//! Order, bounds and repetition of keys are checked where the answer is read. For a key that a filtered scan does not show, there is no
//! item, or one that the filter rejects.

use super::Model;
use super::key::OperationId;
use super::operation::{Kind, Told};
use std::collections::BTreeMap;

impl Model {
    /// Submits a part of a scan that may show these keys. It is in no order with other operations.
    pub fn submit_scan(&mut self, id: OperationId, keys: Vec<usize>) {
        for &key in &keys {
            self.note(key, || format!("the scan {id} is submitted"));
            self.keys[key].submit(id, usize::MAX - id as usize, Kind::Get, self.stamp_max, false);
        }
        self.scans.insert(id, keys);
    }

    /// Takes the answer to a part of a scan: what it told of each key that it got to. An error says which key, what was possible, and what
    /// was told.
    pub fn reply_scan(&mut self, id: OperationId, told: &BTreeMap<usize, Told>) -> Result<(), String> {
        let keys = self.scans.remove(&id).ok_or_else(|| format!("a second answer to the scan {id}"))?;
        for key in keys {
            let Some(told) = told.get(&key) else {
                self.keys[key].withdraw(id);
                continue;
            };
            self.note(key, || format!("the scan {id} shows {told:?}"));
            self.judge(key, id, told)?;
            let stamp = told.item().and_then(|item| item.stamp).unwrap_or(0);
            self.stamp_max = self.stamp_max.max(stamp);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::operation::{Filter, Item};
    use std::rc::Rc;
    use tapetum::Condition;

    fn item(value: &str, stamp: u64) -> Told {
        let value = Rc::from(value.as_bytes());
        Told::Value(Item { value, flags: 0, expiry: tapetum::Expiry::NONE, stamp: Some(stamp), marks: None, writer: 0 })
    }

    fn put(value: &str) -> Kind {
        Kind::Put {
            value: Rc::from(value.as_bytes()),
            flags: 0,
            expiry: tapetum::Expiry::NONE,
            condition: Condition::Always,
        }
    }

    /// A model in which key 0 exists throughout a scan, key 1 is stored while it is pending, and key 2 never exists.
    fn scanned() -> Model {
        let mut model = Model::new(3, false, 1);
        model.submit(1, 0, 0, put("a"));
        model.reply(1, &Told::Stored(1)).unwrap();
        model.submit_scan(2, vec![0, 1, 2]);
        model.submit(3, 0, 1, put("b"));
        model.reply(3, &Told::Stored(2)).unwrap();
        model
    }

    #[test]
    fn a_scan_shows_what_stays_may_show_what_comes_and_nothing_else() {
        let missing = || Told::Missing;
        for (told, holds) in [
            ([item("a", 1), missing(), missing()], true),
            ([item("a", 1), item("b", 2), missing()], true),
            ([missing(), item("b", 2), missing()], false),
            ([item("x", 1), missing(), missing()], false),
            ([item("a", 1), missing(), item("c", 3)], false),
        ] {
            let told: BTreeMap<usize, Told> = told.into_iter().enumerate().collect();
            assert_eq!(scanned().reply_scan(2, &told).is_ok(), holds, "{told:?}");
        }
    }

    #[test]
    fn a_filtered_scan_hides_what_is_not_kept_and_what_is_not_there() {
        let shown = |value: &str| Told::Shown(Rc::from(value.as_bytes()));
        let hidden = |below: &str| Told::Hidden(Filter { below: Some(Rc::from(below.as_bytes())) });
        let all = || Told::Hidden(Filter { below: None });
        for (told, holds) in [
            ([shown("a"), shown("b"), all()], true),
            ([shown("a"), all(), all()], true),
            ([hidden("a"), hidden("a"), hidden("a")], true),
            ([hidden("b"), shown("b"), all()], false),
            ([all(), all(), all()], false),
            ([shown("x"), all(), all()], false),
            ([shown("a"), all(), shown("c")], false),
        ] {
            let told: BTreeMap<usize, Told> = told.into_iter().enumerate().collect();
            assert_eq!(scanned().reply_scan(2, &told).is_ok(), holds, "{told:?}");
        }
    }

    #[test]
    fn what_a_scan_did_not_get_to_says_nothing() {
        let mut model = scanned();
        model.reply_scan(2, &BTreeMap::from([(0, item("a", 1))])).unwrap();
        assert_eq!(model.pending(1), 0);
        assert!(model.reply_scan(2, &BTreeMap::new()).is_err(), "it was answered");
    }

    #[test]
    fn what_a_scan_showed_is_there_after_a_crash() {
        for (seen, holds) in [(true, false), (false, true)] {
            let mut model = Model::new(1, false, 1);
            model.submit(1, 0, 0, put("a"));
            model.submit_scan(2, vec![0]);
            if seen {
                model.reply_scan(2, &BTreeMap::from([(0, item("a", 1))])).unwrap();
            }
            model.crash();
            model.submit(3, 0, 0, Kind::Get);
            assert_eq!(model.reply(3, &Told::Missing).is_ok(), holds);
        }
    }
}
