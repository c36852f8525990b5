//! Operations of one node that go to the drive with one command.

use super::bench::{Bench, Client, new_flash};
use super::model_tests::put;
use std::collections::BTreeMap;
use std::sync::Arc;
use tapetum_base::log::Sync;
use tapetum_base::request::key_range::KeyRange;
use tapetum_base::request::{Condition, Outcome, Request};
use tapetum_base::session::engine_session::EngineSession;
use tapetum_drive::Opcode;
use tapetum_kernels::expiry::Expiry;

fn bench() -> Bench {
    Bench::new(Arc::new(new_flash(41)), 16, Sync::Always)
}

fn keys(count: usize) -> Vec<Vec<u8>> {
    (0..count).map(|number| format!("key{number:02}").into_bytes()).collect()
}

fn store(client: &mut Client, items: &[(Vec<u8>, Vec<u8>)]) {
    let tokens: Vec<u64> = items.iter().map(|(key, value)| client.start(put(key, value))).collect();
    tokens.into_iter().for_each(|token| assert!(matches!(client.answer(token).0, Outcome::Stored { .. })));
}

/// The number of programs that ran during `work`, each by a command of its own or by one that read a page for it.
fn programs(bench: &Bench, work: impl FnOnce()) -> u64 {
    let count = || bench.base.drive.counters().opcode(Opcode::Execute).completed;
    let before = count();
    work();
    count() - before
}

fn settle(client: &mut Client, bench: &Bench) {
    while bench.state.write_back.has_work() {
        client.step();
    }
}

#[test]
fn gets_of_one_node_are_one_command_from_the_cache_and_from_flash() {
    let bench = bench();
    let mut client = bench.client();
    let mut items: Vec<_> = keys(20).into_iter().map(|key| (key.clone(), key)).collect();
    items[7].1 = vec![7; 5000];
    store(&mut client, &items);
    settle(&mut client, &bench);
    for is_cached in [true, false] {
        let node = client.session.cx.node_of(0, b"key00");
        if !is_cached {
            let others: Vec<_> = (0..200).map(|n| (format!("z{n:03}").into_bytes(), vec![1; 900])).collect();
            store(&mut client, &others);
            settle(&mut client, &bench);
        }
        assert_eq!(bench.state.cache.absent_home(node).is_none(), is_cached);
        // An absent key, and a key that comes twice.
        let mut wanted: Vec<&[u8]> = items.iter().map(|(key, _)| &key[..]).filter(|key| *key != b"key07").collect();
        wanted.extend([&b"key00x"[..], b"key03", b"key03"]);
        let mut answers = Vec::new();
        let run = programs(&bench, || {
            let tokens: Vec<u64> = wanted.iter().map(|key| client.start(Request::Get { key })).collect();
            answers = tokens.into_iter().map(|token| client.answer(token)).collect();
        });
        assert_eq!(run, 1, "for {} gets, cached: {is_cached}", wanted.len());
        for (key, (outcome, value)) in wanted.iter().zip(answers) {
            match *key {
                b"key00x" => assert_eq!(outcome, Outcome::Missing),
                key => assert!(matches!(outcome, Outcome::Value { .. }) && value == key),
            }
        }
    }
    // The same with a value in an extension.
    let tokens: Vec<u64> = items.iter().map(|(key, _)| client.start(Request::Get { key })).collect();
    for (token, (_, value)) in tokens.into_iter().zip(&items) {
        assert_eq!(client.answer(token).1, *value);
    }
}

#[test]
fn puts_of_one_node_are_one_command() {
    let bench = bench();
    let mut client = bench.client();
    let keys = keys(16);
    store(&mut client, &[(keys[3].clone(), b"old".to_vec())]);
    settle(&mut client, &bench);
    let items: Vec<_> = keys.iter().map(|key| (key.clone(), [&key[..], &[5; 100]].concat())).collect();
    let mut tokens = Vec::new();
    let run = programs(&bench, || {
        tokens = items.iter().map(|(key, value)| client.start(put(key, value))).collect();
        client.session.poll(&mut client.core);
    });
    // The second program seals the page.
    assert_eq!(run, 2, "for 16 puts");
    tokens.into_iter().for_each(|token| assert!(matches!(client.answer(token).0, Outcome::Stored { .. })));
    assert_eq!((client.scan(KeyRange::default(), 100), bench.tree.items()), (items, 16));
}

#[test]
fn removals_of_one_node_are_one_command() {
    let bench = bench();
    let mut client = bench.client();
    let keys = keys(20);
    store(&mut client, &keys[..18].iter().map(|key| (key.clone(), vec![5; 100])).collect::<Vec<_>>());
    settle(&mut client, &bench);
    let mut tokens = Vec::new();
    let run = programs(&bench, || {
        // Present keys, one of them twice, and an absent one.
        let removed = keys[..14].iter().chain([&keys[3], &keys[19]]);
        tokens = removed.map(|key| client.start(Request::Delete { key, stamp: None })).collect();
        client.session.poll(&mut client.core);
    });
    // The second program seals the page.
    assert_eq!(run, 2, "for 16 removals");
    let outcomes: Vec<_> = tokens.into_iter().map(|token| client.answer(token).0).collect();
    assert!(outcomes[..14].iter().all(|outcome| *outcome == Outcome::Deleted), "{outcomes:?}");
    assert_eq!(outcomes[14..], [Outcome::Missing, Outcome::Missing]);
    let left: Vec<_> = client.scan(KeyRange::default(), 100).into_iter().map(|(key, _)| key).collect();
    assert_eq!((left, bench.tree.items()), (keys[14..18].to_vec(), 4));
}

/// The drive decides each change on the state that earlier ones left.
#[test]
fn changes_of_one_node_with_conditions_are_one_command() {
    let bench = bench();
    let mut client = bench.client();
    store(&mut client, &[(b"there".to_vec(), b"old".to_vec())]);
    settle(&mut client, &bench);
    let put = |key, value, condition| Request::Put { key, value, flags: 0, expiry: Expiry::NONE, condition };
    let requests: [Request<'_>; 8] = [
        put(b"there", b"add", Condition::Absent),
        put(b"new", b"replace", Condition::Present),
        put(b"new", b"add", Condition::Absent),
        put(b"new", b"add again", Condition::Absent),
        put(b"there", b"replace", Condition::Present),
        Request::Delete { key: b"there", stamp: None },
        put(b"there", b"replace again", Condition::Present),
        put(b"gone", b"set", Condition::Always),
    ];
    let mut tokens = Vec::new();
    let run = programs(&bench, || {
        tokens = requests.iter().map(|request| client.start(*request)).collect();
        client.session.poll(&mut client.core);
    });
    assert_eq!(run, 2, "for {} changes and a seal", requests.len());
    let outcomes: Vec<_> = tokens.into_iter().map(|token| client.answer(token).0).collect();
    let is_stored = |place: usize| matches!(outcomes[place], Outcome::Stored { .. });
    assert!([2, 4, 7].into_iter().all(is_stored) && outcomes[5] == Outcome::Deleted, "{outcomes:?}");
    assert!([0, 1, 3, 6].into_iter().all(|place| outcomes[place] == Outcome::NotStored), "{outcomes:?}");
    let items = client.scan(KeyRange::default(), 100);
    assert_eq!(items, [(b"gone".to_vec(), b"set".to_vec()), (b"new".to_vec(), b"add".to_vec())]);
}

#[test]
fn those_of_one_key_are_answered_in_their_order() {
    let bench = bench();
    let mut client = bench.client();
    store(&mut client, &[(b"other".to_vec(), vec![1; 5000])]);
    let mut expected = Vec::new();
    let mut stamps = Vec::new();
    let mut started = Vec::new();
    for round in 0..30_u8 {
        for number in 0..3 {
            let value = vec![round, number];
            started.push((client.start(put(b"key", &value)), None));
            started.push((client.start(put(b"other", &value)), None));
            expected = value;
        }
        if round % 2 == 0 {
            for _ in 0..3 {
                started.push((client.start(Request::Get { key: b"key" }), Some(expected.clone())));
            }
        }
        if round % 5 == 0 {
            started.push((client.start(Request::Delete { key: b"key", stamp: None }), None));
            started.push((client.start(Request::Get { key: b"key" }), Some(Vec::new())));
        }
    }
    for (token, expected) in started {
        match (client.answer(token), expected) {
            ((Outcome::Stored { stamp }, _), None) => stamps.push(stamp),
            ((Outcome::Deleted, _), None) => {}
            ((Outcome::Missing, _), Some(expected)) => assert!(expected.is_empty()),
            ((Outcome::Value { .. }, value), Some(expected)) => assert_eq!(value, expected),
            (answer, expected) => panic!("{answer:?}, not {expected:?}"),
        }
    }
    for key in 0..2 {
        assert!(stamps.iter().skip(key).step_by(2).is_sorted_by(|one, other| one < other), "{stamps:?}");
    }
}

/// The first puts of a group find room, one does not, and the rest go to either half.
#[test]
fn a_split_in_the_middle_of_a_group_loses_nothing() {
    for (value_bytes, seed) in [(300, 1_usize), (700, 3), (1200, 5), (1900, 7)] {
        let bench = bench();
        let mut client = bench.client();
        let mut model = BTreeMap::new();
        for round in 0..6_u8 {
            let items: Vec<_> = keys(30)
                .into_iter()
                .enumerate()
                .map(|(at, key)| (key, vec![round; (value_bytes + at * seed * 17) % 1900]))
                .cycle()
                .step_by(seed)
                .take(30)
                .collect();
            store(&mut client, &items);
            model.extend(items);
            assert!(client.scan(KeyRange::default(), 100).into_iter().eq(model.clone()), "{value_bytes}, {round}");
        }
        assert!(bench.state.cache.table.count() > 1);
        assert_eq!(bench.tree.items(), model.len() as u64);
    }
}

#[test]
fn a_group_in_which_a_record_names_an_extension_gives_its_slot_back() {
    let bench = bench();
    let mut client = bench.client();
    let mut items: Vec<_> = keys(12).into_iter().map(|key| (key, vec![3; 50])).collect();
    for at in [0, 5, 11] {
        items[at].1 = vec![4; 5000];
    }
    store(&mut client, &items);
    let removed: Vec<u64> =
        items[..6].iter().map(|(key, _)| client.start(Request::Delete { key, stamp: None })).collect();
    removed.into_iter().for_each(|token| assert_eq!(client.answer(token).0, Outcome::Deleted));
    items.iter_mut().for_each(|(_, value)| *value = b"short".to_vec());
    store(&mut client, &items);
    assert_eq!(client.scan(KeyRange::default(), 100), items);
    settle(&mut client, &bench);
    for space in bench.slots.spaces().skip(1) {
        assert_eq!(space.counts().slots, space.counts().slots_free);
    }
}
