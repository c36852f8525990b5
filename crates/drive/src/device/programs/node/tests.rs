//! The programs over a queue pair.

use super::testing::*;
use super::*;
use tapetum_kernels::codec::Compressor;
use tapetum_kernels::ordered::NodePage;
use tapetum_kernels::ordered::extension::REFERENCE_BYTES;
use tapetum_kernels::record::{Header, Marks, Record};

#[test]
fn what_is_put_is_got_whatever_its_form() {
    let text = b"mirror ".repeat(100);
    let mut compressor = Compressor::new().unwrap();
    let (codec, stored) = compressor.compress(&text);
    let mut packed = Header::value(31, 3, stored.len());
    (packed.codec, packed.raw_bytes, packed.flags, packed.expiry) = (codec, text.len() as u32, 5, Expiry::from_secs(2));
    packed.marks = Marks { stale: true, leased: false };
    let bytes = reference().encode();
    let mut bench = Bench::new(&node(&[]));
    let requests = [
        (PutCondition::Always, raw(30, b"key", b"value")),
        (PutCondition::Absent, Record { header: packed, key: b"kex", stored }),
        (PutCondition::Always, outside(b"kez", &bytes)),
    ];
    let before = bench.page().to_vec();
    assert_eq!(bench.put(&arguments(NodeFlags::CHECK.with(NodeFlags::SEAL)), &requests), [PutResult::Stored; 3]);
    assert_eq!(bench.page(), before);
    bench.take_page();
    let sealed = NodeRef::check(bench.page(), salt()).unwrap();
    assert_eq!((sealed.stamp(), sealed.durable(), sealed.count(), sealed.keyspace()), (99, 88, 3, 3));
    let keys: [&[u8]; 5] = [b"kez", b"key", b"kex", b"kew", b"a"];
    for flags in [NodeFlags::NONE, NodeFlags::CHECK] {
        let completion = bench.get(&arguments(flags), &keys);
        assert_eq!((completion.status, completion.result[1]), (Status::Success, 5));
        let items = bench.items(&completion);
        let places = items.iter().map(|item| item.place).collect::<Vec<_>>();
        let expected = [
            ItemPlace::Extension(reference()),
            ItemPlace::Here(b"value"),
            ItemPlace::Here(&text),
            ItemPlace::Missing,
            ItemPlace::OutsideFences,
        ];
        assert_eq!(places, expected);
        let item = items[2];
        assert_eq!((item.stamp, item.flags, item.expiry, item.marks), (31, 5, Expiry::from_secs(2), packed.marks));
        assert_eq!((item.raw_bytes, items[0].raw_bytes), (text.len() as u32, 5000));
    }
    let completion = bench.get(&arguments(NodeFlags::RAW_IN_PAGE), &[b"key", b"kex"]);
    let items = bench.items(&completion);
    let ItemPlace::Page(at) = items[0].place else { panic!("{:?}", items[0]) };
    assert_eq!(bench.page()[at..at + items[0].raw_bytes as usize], *b"value");
    assert_eq!(items[1].place, ItemPlace::Here(&text));
}

#[test]
fn conditions_hold_for_live_records_alone() {
    let expired = |key| {
        let mut record = raw(30, key, b"old");
        record.header.expiry = Expiry::from_millis(1000);
        record
    };
    let records = [raw(30, b"live", b"old"), expired(b"expired"), raw(10, b"flushed", b"old")];
    let mut bench = Bench::new(&node(&records));
    let conditions = [
        PutCondition::Absent,
        PutCondition::Present,
        PutCondition::Stamp(30),
        PutCondition::Stamp(31),
        PutCondition::Always,
    ];
    use PutResult::{Refused, Removed, Replaced, Stored};
    let cases: [(&[u8], [PutResult; 5]); 4] = [
        (b"live", [Refused, Replaced, Replaced, Refused, Replaced]),
        (b"expired", [Replaced, Refused, Refused, Refused, Replaced]),
        (b"flushed", [Replaced, Refused, Refused, Refused, Replaced]),
        (b"new", [Stored, Refused, Refused, Refused, Stored]),
    ];
    for (key, expected) in cases {
        for (condition, expected) in conditions.into_iter().zip(expected) {
            let results = bench.put(&arguments(NodeFlags::NONE), &[(condition, raw(40, key, b"new"))]);
            assert_eq!(results, [expected], "{condition:?} of {}", key.escape_ascii());
        }
    }
    let stamp = |bench: &Bench| bench.outcomes(1)[0].stamp;
    bench.put(&arguments(NodeFlags::NONE), &[(PutCondition::Absent, raw(40, b"live", b"new"))]);
    assert_eq!(stamp(&bench), 30, "who is refused is told what is there");
    // Each request sees what the one before it stored.
    let requests = [
        (PutCondition::Absent, raw(40, b"new", b"1")),
        (PutCondition::Absent, raw(41, b"new", b"2")),
        (PutCondition::Stamp(40), raw(42, b"new", b"3")),
        (PutCondition::Stamp(42), tombstone(b"new")),
        (PutCondition::Always, tombstone(b"new")),
    ];
    let results = bench.put(&arguments(NodeFlags::NONE), &requests);
    assert_eq!(results, [Stored, Refused, Replaced, Removed, PutResult::Missing]);
}

#[test]
fn what_goes_names_its_extension() {
    let bytes = reference().encode();
    let mut bench = Bench::new(&node(&[outside(b"one", &bytes), outside(b"two", &bytes)]));
    let requests = [(PutCondition::Always, raw(30, b"one", b"small")), (PutCondition::Always, tombstone(b"two"))];
    assert_eq!(bench.put(&arguments(NodeFlags::NONE), &requests), [PutResult::Replaced, PutResult::Removed]);
    let dead = PutOutcome { result: PutResult::Replaced, stamp: 20, extension: Some(reference()) };
    assert_eq!(bench.outcomes(2), [dead, PutOutcome { result: PutResult::Removed, ..dead }]);
}

#[test]
fn behind_a_request_without_room_none_is_tried() {
    let mut bench = Bench::new(&numbered(39, &[7; 80]));
    let requests = [
        (PutCondition::Always, raw(30, b"k01", &[8; 80])),
        (PutCondition::Always, raw(31, b"k02", &[8; 1500])),
        (PutCondition::Always, raw(32, b"k02", b"later")),
    ];
    use PutResult::{NoRoom, NotTried, OutsideFences, Replaced, Unfit};
    assert_eq!(bench.put(&arguments(NodeFlags::NONE), &requests), [Replaced, NoRoom, NotTried]);
    let of_keyspace = Header { keyspace: 1, ..Header::value(30, 3, 0) };
    let others = [
        (PutCondition::Always, raw(30, b"a", b"")),
        (PutCondition::Always, Record { header: of_keyspace, key: b"k03", stored: b"" }),
        (PutCondition::Always, raw(30, b"k04", b"")),
    ];
    assert_eq!(bench.put(&arguments(NodeFlags::NONE), &others), [OutsideFences, Unfit, Replaced]);
    let parameters = put_parameters(&arguments(NodeFlags::ALL), &others);
    let completion = bench.run(NODE_PUT, &parameters, OUTPUT_BYTES);
    assert_eq!((completion.status, completion.result[1]), (NOT_ALL, 1));
    assert_eq!(
        bench.outcomes(3).iter().map(|outcome| outcome.result).collect::<Vec<_>>(),
        [OutsideFences, Unfit, Replaced]
    );
    let parameters = put_parameters(&arguments(NodeFlags::ALL), &others[2..]);
    assert_eq!(bench.run(NODE_PUT, &parameters, OUTPUT_BYTES).status, Status::Success);
}

#[test]
fn a_page_is_changed_in_place() {
    let mut bench = Bench::new(&numbered(5, b"value"));
    let flags = NodeFlags::IN_PLACE.with(NodeFlags::SEAL).with(NodeFlags::CHECK);
    let parameters = put_parameters(&arguments(flags), &[(PutCondition::Always, raw(30, b"k03", b"other"))]);
    let output = bench.range(PAGE_AT, put_output_bytes(1));
    assert_eq!(bench.run_in(NODE_PUT, &parameters, output).status, Status::Success);
    let node = NodeRef::check(bench.page(), salt()).unwrap();
    assert_eq!((node.get(b"k03").unwrap().unwrap().stored, node.stamp()), (&b"other"[..], 99));
    let parameters = put_parameters(&arguments(flags.with(NodeFlags::ALL)), &[(PutCondition::Always, tombstone(b"k"))]);
    assert_eq!(bench.run_in(NODE_PUT, &parameters, output).status, Status::InvalidField, "all or none, in place");
    let parameters = put_parameters(&arguments(NodeFlags::IN_PLACE), &[(PutCondition::Always, tombstone(b"k"))]);
    assert_eq!(bench.run(NODE_PUT, &parameters, OUTPUT_BYTES).status, Status::InvalidField, "an input, in place");
}

#[test]
fn a_page_with_no_room_behind_it_is_changed_in_place_and_the_result_says_how() {
    let bytes = reference().encode();
    let mut bench = Bench::new(&node(&[raw(30, b"k", b"value"), outside(b"large", &bytes)]));
    let place = bench.range(PAGE_AT, NODE_BYTES);
    let arguments = NodeArguments { id: ANY_NODE, ..arguments(NodeFlags::IN_PLACE) };
    let known = NodeArguments { flags: NodeFlags::IN_PLACE.with(NodeFlags::EXTENSION_KNOWN), ..arguments };
    let mut run = |arguments: &NodeArguments, request| {
        let completion = bench.run_in(NODE_PUT, &put_parameters(arguments, &[request]), place);
        let page: NodePage = bench.page().try_into().unwrap();
        let used_bytes = NodeRef::look(&page).unwrap().used_bytes();
        (completion, used_bytes, page)
    };
    let always = |record| (PutCondition::Always, record);
    let expected = |result, stamp, used| Some((PutOutcome { result, stamp, extension: None }, used));
    for (request, result, stamp) in [
        (always(raw(31, b"k", b"other")), PutResult::Replaced, 30),
        (always(raw(32, b"kk", b"new")), PutResult::Stored, 0),
        ((PutCondition::Absent, raw(33, b"kk", b"newer")), PutResult::Refused, 32),
        (always(tombstone(b"k")), PutResult::Removed, 31),
        (always(tombstone(b"k")), PutResult::Missing, 0),
        (always(raw(34, b"a", b"value")), PutResult::OutsideFences, 0),
    ] {
        let (completion, used_bytes, _) = run(&arguments, request);
        assert_eq!(completion.status, Status::Success);
        assert_eq!(PutOutcome::of_result(completion.result), expected(result, stamp, used_bytes));
    }
    let before = run(&arguments, always(tombstone(b"k"))).2;
    for record in [raw(35, b"large", b"small"), tombstone(b"large")] {
        let (completion, _, page) = run(&arguments, always(record));
        assert_eq!((completion.status, completion.result[0]), (OUTPUT_SHORT, put_output_bytes(1) as u64));
        assert_eq!(page, before);
    }
    let (completion, used_bytes, _) = run(&known, always(tombstone(b"large")));
    assert_eq!(PutOutcome::of_result(completion.result), expected(PutResult::Removed, 20, used_bytes));
    assert_eq!(PutOutcome::of_result([0, 9]), None);
}

#[test]
fn several_requests_change_a_page_with_no_room_behind_it() {
    let bytes = reference().encode();
    let mut bench = Bench::new(&node(&[raw(30, b"k", &[1; 1500]), outside(b"large", &bytes)]));
    let place = bench.range(PAGE_AT, NODE_BYTES);
    let arguments = NodeArguments { id: ANY_NODE, ..arguments(NodeFlags::IN_PLACE) };
    let mut run = |requests: &[(PutCondition, Record<'_>)]| {
        let completion = bench.run_in(NODE_PUT, &put_parameters(&arguments, requests), place);
        let page: NodePage = bench.page().try_into().unwrap();
        (completion, page)
    };
    let always = |record| (PutCondition::Always, record);
    let (many, value) = (vec![always(tombstone(b"none")); NODE_BARE_REQUESTS_MAX + 1], [2; 1500]);
    let before = run(&many[1..]).1;
    assert_eq!(run(&many).0.status, OUTPUT_SHORT, "one more than have outcomes in the result");
    // The replaced record names an extension, or the new one does.
    for (requests, place) in [
        ([always(raw(31, b"k", b"new")), always(raw(32, b"large", b"small"))], 1),
        ([always(outside(b"m", &bytes)), always(raw(32, b"k", b"new"))], 0),
    ] {
        let (completion, page) = run(&requests);
        assert_eq!((completion.status, completion.result), (OUTPUT_SHORT, [put_output_bytes(2) as u64, place]));
        assert_eq!(page, before);
    }
    use PutResult::{Missing, NoRoom, NotTried, OutsideFences, Refused, Removed, Replaced, Stored};
    let (completion, page) = run(&[
        always(raw(31, b"k", b"first")),
        always(raw(32, b"k", b"second")),
        always(raw(33, b"a", b"outside")),
        (PutCondition::Absent, raw(34, b"k", b"third")),
        always(tombstone(b"none")),
        always(raw(35, b"m", &value)),
        always(tombstone(b"k")),
        always(raw(36, b"n", &value)),
        always(raw(37, b"o", &value)),
        always(raw(38, b"o", b"")),
    ]);
    assert_eq!((completion.status, completion.result[1] & 0xff), (Status::Success, 6));
    let (results, used_bytes) = PutOutcome::of_results(completion.result, 10).unwrap();
    let expected =
        [Replaced, Replaced, OutsideFences, Refused, Missing, Stored, Removed, Stored, NoRoom, NotTried].iter();
    assert!(results.iter().take(10).eq(expected), "{results:?}");
    let node = NodeRef::look(&page).unwrap();
    assert_eq!(used_bytes, node.used_bytes());
    assert!(node.get(b"k").unwrap().is_none() && node.get(b"o").unwrap().is_none());
    assert_eq!(node.get(b"n").unwrap().unwrap().header.stamp, 36);
    assert_eq!(PutOutcome::of_results([0x9, 0], 1), None);
}

#[test]
fn a_scan_gives_what_lies_between_its_bounds_in_either_order() {
    let mut bench = Bench::new(&numbered(20, b"value"));
    let forwards = arguments(NodeFlags::NONE);
    let backwards = arguments(NodeFlags::REVERSE);
    let keys = |range: std::ops::Range<usize>| range.map(|n| format!("k{n:02}")).collect::<Vec<_>>();
    use ScanBound::{Excluded, Included, Unbounded};
    let cases = [
        (Unbounded, Unbounded, 0..20),
        (Included(b"k05"), Excluded(b"k10"), 5..10),
        (Excluded(b"k05"), Included(b"k10"), 6..11),
        (Included(b"k05x"), Included(b"k1"), 6..10),
        (Included(b"k07"), Included(b"k07"), 7..8),
        (Excluded(b"k07"), Excluded(b"k07"), 0..0),
        (Included(b"k15"), Excluded(b"k10"), 0..0),
        (Excluded(b"k19"), Unbounded, 0..0),
        (Unbounded, Excluded(b"a"), 0..0),
    ];
    for (from, to, expected) in cases {
        let expected = keys(expected);
        assert_eq!(bench.scan(&forwards, from, to), expected, "{from:?} {to:?}");
        let reversed: Vec<_> = expected.into_iter().rev().collect();
        assert_eq!(bench.scan(&backwards, from, to), reversed, "{from:?} {to:?}");
    }
}

#[test]
fn a_scan_goes_on_behind_its_last_key() {
    let mut bench = Bench::new(&numbered(20, b"value"));
    for flags in [NodeFlags::NONE, NodeFlags::REVERSE, NodeFlags::KEYS_ONLY] {
        for (limit, output_bytes) in [(3, OUTPUT_BYTES), (1000, 150), (0, OUTPUT_BYTES)] {
            let mut last: Option<Vec<u8>> = None;
            let mut keys = Vec::new();
            loop {
                let bound = last.as_deref().map_or(ScanBound::Unbounded, ScanBound::Excluded);
                let is_reverse = flags.has(NodeFlags::REVERSE);
                let (from, to) = if is_reverse { (ScanBound::Unbounded, bound) } else { (bound, ScanBound::Unbounded) };
                let mut parameters = Vec::new();
                NodeScanRequest { from, to, limit }.encode(&arguments(flags), &mut parameters);
                let completion = bench.run(NODE_SCAN, &parameters, output_bytes);
                assert_eq!(completion.status, Status::Success);
                let items = bench.items(&completion);
                let wants_value = !flags.has(NodeFlags::KEYS_ONLY);
                let place = if wants_value { ItemPlace::Here(b"value") } else { ItemPlace::NotWanted };
                assert!(items.iter().all(|item| item.place == place && item.raw_bytes == 5));
                keys.extend(items.iter().map(|item| item.key.to_vec()));
                let (count, has_more) = scan_has_more(completion.result[1]);
                assert!(count as usize == items.len() && count <= u32::from(limit));
                last = keys.last().cloned();
                if !has_more || limit == 0 {
                    assert_eq!((has_more, keys.len()), if limit == 0 { (true, 0) } else { (false, 20) });
                    break;
                }
            }
            let is_sorted = keys.iter().is_sorted_by(|one, other| (one < other) != flags.has(NodeFlags::REVERSE));
            assert!(is_sorted, "{keys:?}");
        }
    }
}

#[test]
fn a_scan_passes_over_the_dead_and_a_realignment_removes_them() {
    let bytes = reference().encode();
    let mut expired = outside(b"d", &bytes);
    expired.header.expiry = Expiry::from_millis(999);
    let mut later = raw(30, b"e", b"value");
    later.header.expiry = Expiry::from_millis(1001);
    let flushed = raw(10, b"f", b"value");
    let mut bench = Bench::new(&node(&[raw(30, b"c", b"value"), expired, later, flushed]));
    let arguments = arguments(NodeFlags::SEAL);
    let scan = NodeArguments { flags: NodeFlags::NONE, ..arguments };
    assert_eq!(bench.scan(&scan, ScanBound::Unbounded, ScanBound::Unbounded), ["c", "e"]);
    let mut parameters = Vec::new();
    arguments.encode(&mut parameters);
    let needed = (NODE_BYTES + 2 + REFERENCE_BYTES) as u64;
    let completion = bench.run(NODE_REALIGN, &parameters, needed as usize - 1);
    assert_eq!((completion.status, completion.result), (OUTPUT_SHORT, [needed, 0]));
    let completion = bench.run(NODE_REALIGN, &parameters, needed as usize);
    assert_eq!(completion.status, Status::Success);
    let removed: Vec<_> = removed_extensions(&bench.output()[NODE_BYTES..needed as usize]).collect();
    assert_eq!(removed, [Some((reference(), 1))]);
    let mut known = Vec::new();
    NodeArguments { flags: NodeFlags::SEAL.with(NodeFlags::EXTENSION_KNOWN), ..arguments }.encode(&mut known);
    let of_page = bench.run(NODE_REALIGN, &known, NODE_BYTES);
    assert_eq!((of_page.status, of_page.result), (Status::Success, [NODE_BYTES as u64, completion.result[1]]));
    bench.take_page();
    let node = NodeRef::check(bench.page(), salt()).unwrap();
    assert_eq!((node.count(), node.stamp(), node.free_bytes()), (2, 99, NODE_BYTES - node.used_bytes()));
    let expected = Realigned {
        output_bytes: needed as usize,
        removed: 2,
        used_bytes: node.used_bytes(),
        room: RecordRoom::NotAsked,
    };
    assert_eq!(Realigned::of_result(completion.result), expected);
    let (free, used) = (node.free_bytes(), node.get(b"c").unwrap().unwrap().bytes());
    for (key, record_bytes, room) in [
        (&b"c"[..], free + used, RecordRoom::Yes),
        (b"c", free + used + 1, RecordRoom::No),
        (b"n", free, RecordRoom::Yes),
        (b"n", free + 1, RecordRoom::No),
        (b"y", 1, RecordRoom::Elsewhere),
    ] {
        let mut asked = parameters.clone();
        encode_record_question(tapetum_kernels::ordered::Arrival { key, record_bytes }, &mut asked);
        let completion = bench.run(NODE_REALIGN, &asked, OUTPUT_BYTES);
        assert_eq!(
            (completion.status, Realigned::of_result(completion.result).room),
            (Status::Success, room),
            "{key:?}"
        );
    }
    for length in 1..=4 {
        let cut = [&parameters[..], &[1; 4][..length]].concat();
        assert_eq!(bench.run(NODE_REALIGN, &cut, OUTPUT_BYTES).status, Status::InvalidField);
    }
}

#[test]
fn an_output_that_is_short_says_how_much_it_takes() {
    let mut bench = Bench::new(&numbered(3, b"value"));
    let arguments = arguments(NodeFlags::NONE);
    let keys: [&[u8]; 3] = [b"k00", b"k01", b"k02"];
    let parameters = get_parameters(&arguments, &keys);
    let item_bytes = NODE_ITEM_HEAD_BYTES + 5;
    let completion = bench.run(NODE_GET, &parameters, item_bytes - 1);
    assert_eq!((completion.status, completion.result), (OUTPUT_SHORT, [item_bytes as u64, 0]));
    let completion = bench.run(NODE_GET, &parameters, 3 * item_bytes - 1);
    assert_eq!((completion.status, completion.result), (Status::Success, [2 * item_bytes as u64, 2]));
    let parameters = put_parameters(&arguments, &[(PutCondition::Always, tombstone(b"k01"))]);
    let completion = bench.run(NODE_PUT, &parameters, put_output_bytes(1) - 1);
    assert_eq!((completion.status, completion.result), (OUTPUT_SHORT, [put_output_bytes(1) as u64, 0]));
    let completion = bench.run(NODE_PUT, &parameters, put_output_bytes(1));
    assert_eq!(completion.status, Status::Success);
}

#[test]
fn parameters_have_their_lengths_to_the_byte() {
    let mut bench = Bench::new(&numbered(3, b"value"));
    let arguments = arguments(NodeFlags::NONE);
    let put = put_parameters(&arguments, &[(PutCondition::Stamp(3), raw(30, b"k01", b"other"))]);
    let of = |name| (name, parameters_of(name, &arguments));
    let lists = [(NODE_PUT, put), of(NODE_GET), of(NODE_SCAN), of(NODE_REALIGN), of(NODE_SPLIT)];
    for (name, parameters) in lists {
        assert_eq!(bench.run(name, &parameters, OUTPUT_BYTES).status, Status::Success);
        for length in 0..parameters.len() {
            assert_eq!(bench.run(name, &parameters[..length], OUTPUT_BYTES).status, Status::InvalidField, "{length}");
        }
        let longer = [&parameters[..], &[0]].concat();
        assert_eq!(bench.run(name, &longer, OUTPUT_BYTES).status, Status::InvalidField);
        for bit in 0..16 {
            let mut flagged = parameters.clone();
            flagged[ARGUMENTS_BYTES - 2 + bit / 8] |= 1 << (bit % 8);
            let status = bench.run(name, &flagged, OUTPUT_BYTES).status;
            let is_known = match name {
                NODE_GET => [0, 6].contains(&bit),
                NODE_SCAN => [0, 4, 5, 6].contains(&bit),
                // In place without an input is right, with one it is not.
                NODE_REALIGN => [0, 1, 7].contains(&bit),
                NODE_SPLIT => bit == 0,
                _ => [0, 1, 3, 7].contains(&bit),
            };
            // A condition that does not hold fails a request, so not all took effect.
            let expected = if bit == 3 && name == NODE_PUT { NOT_ALL } else { Status::Success };
            assert_eq!(status, if is_known { expected } else { Status::InvalidField }, "{name:?} {bit}");
        }
    }
    let many = vec![&b"k"[..]; NODE_REQUESTS_MAX];
    let parameters = get_parameters(&arguments, &many);
    assert_eq!(bench.run(NODE_GET, &parameters, OUTPUT_BYTES).result[1], NODE_REQUESTS_MAX as u64);
    let longer = [&parameters[..], &parameters[ARGUMENTS_BYTES..ARGUMENTS_BYTES + 3]].concat();
    assert_eq!(bench.run(NODE_GET, &longer, OUTPUT_BYTES).status, Status::InvalidField);
}

#[test]
fn another_node_and_damage_are_told_apart() {
    let page = numbered(3, b"value");
    let mut bench = Bench::new(&page);
    let checked = arguments(NodeFlags::CHECK);
    let keys: [&[u8]; 1] = [b"k01"];
    assert_eq!(bench.get(&NodeArguments { stamp: 60, ..checked }, &keys).status, Status::Success);
    let others = [NodeArguments { id: 18, ..checked }, NodeArguments { stamp: 61, ..checked }];
    for other in others {
        let completion = bench.get(&other, &keys);
        assert_eq!((completion.status, completion.result), (ANOTHER_NODE, [17, 60]));
    }
    let reason = |bench: &mut Bench, arguments: &NodeArguments| {
        let reasons = [NODE_GET, NODE_PUT, NODE_SCAN, NODE_REALIGN, NODE_SPLIT].map(|name| {
            let completion = bench.run(name, &parameters_of(name, arguments), OUTPUT_BYTES);
            assert_eq!(completion.status, CORRUPT, "{name:?}");
            corrupt_reason(completion.result[0])
        });
        assert_eq!(reasons, [reasons[0]; 5]);
        reasons[0]
    };
    let other_salt = SlotSalt { version: 12, ..salt() };
    assert_eq!(reason(&mut bench, &NodeArguments { salt: other_salt, ..checked }), NodeError::Checksum);
    let plain = arguments(NodeFlags::NONE);
    // The last record of the page is the first one that was put.
    for (at, byte, expected) in
        [(4, 9, NodeError::Version(9)), (35, 0xff, NodeError::Damaged), (64, 0, NodeError::Damaged)]
    {
        let mut damaged = page.clone();
        damaged[at] = byte;
        if at == 64 {
            // All three offsets are invalid.
            damaged[64..70].fill(0);
        }
        let mut bench = Bench::new(&damaged);
        assert_eq!(reason(&mut bench, &plain), expected, "byte {at}");
        assert_eq!(reason(&mut bench, &checked), NodeError::Checksum);
    }
    let mut blank = Bench::new(&[0; NODE_BYTES]);
    assert_eq!(reason(&mut blank, &checked), NodeError::Blank);
}
