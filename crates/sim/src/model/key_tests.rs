//! Tests of the states that one key allows.

use super::*;
use std::rc::Rc;
use tapetum::{Condition, Expiry};

const RULES: Rules = Rules {
    now_ms: 10_000,
    value_bytes_max: 100,
    evictions: Evictions { begun: 0, ended: 0, stamp_max: 0 },
    drive_fails: false,
};

fn put(value: &str) -> Kind {
    Kind::Put { value: Rc::from(value.as_bytes()), flags: 0, expiry: Expiry::NONE, condition: Condition::Always }
}

fn shows(value: &str, stamp: u64) -> Told {
    Told::Value(Item {
        value: Rc::from(value.as_bytes()),
        flags: 0,
        expiry: Expiry::NONE,
        stamp: Some(stamp),
        marks: None,
        writer: 0,
    })
}

/// Whether a get may be answered with this now.
fn may_show(key: &mut Key, id: OperationId, told: &Told) -> bool {
    key.submit(id, 9, Kind::Get, 0, false);
    key.reply(id, told, RULES).is_ok()
}

fn with_one_acknowledged_and_two_on_their_way() -> Key {
    let mut key = Key::new(false);
    key.submit(1, 0, put("a"), 0, false);
    key.reply(1, &Told::Stored(1), RULES).unwrap();
    key.submit(2, 0, put("b"), 0, false);
    key.submit(3, 0, put("c"), 0, false);
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
        key.submit(id, 0, put(value), 0, false);
        key.reply(id, &Told::Stored(id), RULES).unwrap();
        if id == 1 {
            key.settle(Evictions::default());
        }
    }
    key.crash(RULES);
    let mut absent = key;
    assert!(!may_show(&mut absent, 4, &Told::Missing));
}

#[test]
fn a_stamp_belongs_to_one_write() {
    let mut key = Key::new(false);
    key.submit(1, 0, put("a"), 0, false);
    key.reply(1, &Told::Stored(7), RULES).unwrap();
    assert!(may_show(&mut key, 2, &shows("a", 7)));
    assert!(!may_show(&mut key, 3, &shows("a", 8)));
}

#[test]
fn what_follows_a_refused_operation_may_be_seen_before_the_refusal_is_heard() {
    let mut key = Key::new(false);
    key.submit(1, 0, put("refused"), 0, true);
    key.submit(2, 0, put("a"), 0, false);
    assert!(may_show(&mut key, 3, &shows("a", 1)));
    key.reply(1, &Told::Refused, RULES).unwrap();
    key.reply(2, &Told::Stored(1), RULES).unwrap();
    assert!(!may_show(&mut key, 4, &shows("refused", 0)));
}

#[test]
fn a_delete_is_refused_only_where_the_drive_fails() {
    for drive_fails in [false, true] {
        let rules = Rules { drive_fails, ..RULES };
        let mut key = Key::new(false);
        key.submit(1, 0, put("a"), 0, false);
        key.reply(1, &Told::Stored(1), rules).unwrap();
        key.submit(2, 0, Kind::Delete { stamp: None }, 1, false);
        key.submit(3, 0, Kind::Get, 1, false);
        assert_eq!(key.reply(3, &shows("a", 1), rules).is_ok(), drive_fails);
    }
}

#[test]
fn what_was_evicted_stays_away_and_only_what_is_old_enough_goes() {
    let told = |key: &mut Key, id, told: &Told, evictions| {
        key.submit(id, 9, Kind::Get, 7, false);
        key.reply(id, told, Rules { evictions, ..RULES }).is_ok()
    };
    let missing = Told::Missing;
    let stored = |evictions| {
        let mut key = Key::new(false);
        key.submit(1, 0, put("a"), 6, false);
        key.reply(1, &Told::Stored(7), Rules { evictions, ..RULES }).unwrap();
        key
    };
    let none = Evictions::default();
    let under_way = |stamp_max| Evictions { begun: 1, ended: 0, stamp_max };
    assert!(!told(&mut stored(none), 2, &missing, none));
    assert!(!told(&mut stored(none), 2, &missing, under_way(6)), "it is younger than what was taken");
    let mut key = stored(none);
    assert!(told(&mut key, 2, &missing, under_way(7)));
    assert!(!told(&mut key, 3, &shows("a", 7), under_way(7)), "it does not come back");
    let over = Evictions { begun: 1, ended: 1, stamp_max: 7 };
    let mut key = stored(none);
    // The first one may have looked before the eviction, and its reply come after it.
    assert!(told(&mut key, 2, &shows("a", 7), over));
    assert!(told(&mut key, 3, &shows("a", 7), over));
    assert!(!told(&mut key, 4, &missing, over), "it was seen after the last eviction");
}

#[test]
fn what_expires_beside_an_operation_is_seen_before_or_after() {
    let until_20 = |value: &str| Kind::Put {
        value: Rc::from(value.as_bytes()),
        flags: 0,
        expiry: Expiry::from_secs(20),
        condition: Condition::Always,
    };
    let later = Rules { now_ms: 20_000, ..RULES };
    for (told, holds) in [(Told::NotStored, true), (Told::Stored(2), true), (Told::Missing, false)] {
        let mut key = Key::new(false);
        key.submit(1, 0, until_20("a"), 0, false);
        key.reply(1, &Told::Stored(1), RULES).unwrap();
        key.submit(2, 0, Kind::Append { value: Rc::from(&b"b"[..]), stamp: None }, 1, false);
        key.pass_time(RULES, 20_000);
        assert_eq!(key.reply(2, &told, later).is_ok(), holds, "{told:?}");
        if holds {
            key.submit(3, 0, Kind::Get, 2, false);
            assert!(key.reply(3, &Told::Missing, later).is_ok(), "either way it has expired");
        }
    }
}

#[test]
fn a_deletion_that_is_planned_takes_what_was_written_before_its_time() {
    for (told, holds) in [("a", false), ("b", true)] {
        let mut key = Key::new(true);
        key.submit(1, 0, put("a"), 0, false);
        key.reply(1, &Told::Stored(1), RULES).unwrap();
        key.submit(2, 0, Kind::ClearAt(20), 1, true);
        key.reply(2, &Told::Done, RULES).unwrap();
        key.settle(Evictions::default());
        key.submit(3, 0, put("b"), 1, false);
        key.pass_time(RULES, 20_000);
        key.crash(Rules { now_ms: 20_000, ..RULES });
        assert_eq!(may_show(&mut key, 4, &shows(told, if holds { 2 } else { 1 })), holds, "{told}");
    }
}

#[test]
fn an_undone_eviction_brings_back_the_item_and_undoes_nothing_else() {
    let evictions = Evictions { begun: 1, ended: 0, stamp_max: 7 };
    let rules = Rules { evictions, ..RULES };
    let evicted = || {
        let mut key = Key::new(true);
        key.submit(1, 0, put("a"), 6, false);
        key.reply(1, &Told::Stored(7), RULES).unwrap();
        key.settle(Evictions::default());
        key.submit(2, 0, Kind::Get, 7, false);
        key.reply(2, &Told::Missing, rules).unwrap();
        key
    };
    let mut key = evicted();
    key.submit(3, 0, Kind::ClearAt(20), 7, true);
    key.reply(3, &Told::Done, rules).unwrap();
    key.crash(rules);
    key.undo_evictions();
    assert!(may_show(&mut key, 4, &shows("a", 7)));
    assert_eq!(key.group_fate(3), (false, false), "the deletion of everything may be there, and still to come");
    let expired =
        Kind::Put { value: Rc::from(&b"b"[..]), flags: 0, expiry: Expiry::from_secs(1), condition: Condition::Always };
    for (kind, grouped, told) in
        [(put("b"), false, Told::Stored(8)), (expired, false, Told::Stored(8)), (Kind::Drop, true, Told::Done)]
    {
        let mut key = evicted();
        key.forget_nothing();
        key.submit(3, 0, kind, 7, grouped);
        key.reply(3, &told, rules).unwrap();
        key.crash(rules);
        key.undo_evictions();
        assert!(!may_show(&mut key, 4, &shows("a", 7)), "the log has a later word: {told:?}");
    }
}

#[test]
fn a_group_that_was_on_its_way_did_or_did_not() {
    let mut key = Key::new(false);
    key.submit(5, 0, put("a"), 0, true);
    key.crash(RULES);
    assert_eq!(key.group_fate(5), (false, false));
    assert!(may_show(&mut key, 6, &shows("a", 1)));
    assert_eq!(key.group_fate(5), (true, false));
}
