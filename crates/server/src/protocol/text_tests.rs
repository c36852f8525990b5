use super::*;
use proptest::prelude::*;

const LIMIT: usize = 1 << 20;

fn command(input: &[u8]) -> Command<'_> {
    match parse(input, 0, LIMIT) {
        Parsed::Command { command, .. } => command,
        other => panic!("{other:?}"),
    }
}

fn complaint(input: &[u8]) -> Option<&'static str> {
    match command(input) {
        Command::Refused { complaint } => complaint,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_set_is_its_line_and_its_value() {
    let input = b"set key 5 -1 3 noreply\r\nabc\r\nget key\r\n";
    let Parsed::Command { command, consumed_bytes, skip_bytes } = parse(input, 0, LIMIT) else { panic!() };
    let expected =
        Command::Store { verb: Verb::Set, key: b"key", flags: 5, exptime: -1, stamp: 0, value: b"abc", noreply: true };
    assert_eq!((command, consumed_bytes, skip_bytes), (expected, 29, 0));
}

#[test]
fn a_value_may_hold_line_ends() {
    let Command::Store { value, .. } = command(b"set k 0 0 5\r\nab\r\nc\r\n") else { panic!() };
    assert_eq!(value, b"ab\r\nc");
}

#[test]
fn asks_for_exactly_what_is_missing() {
    assert_eq!(parse(b"set k 0 0 5\r\nab", 0, LIMIT), Parsed::NeedMore { total_bytes: 20, scanned_bytes: 0 });
    assert_eq!(parse(b"get k", 0, LIMIT), Parsed::NeedMore { total_bytes: 6, scanned_bytes: 5 });
}

#[test]
fn a_value_over_the_limit_is_skipped_and_never_waited_for() {
    let Parsed::Command { command, consumed_bytes, skip_bytes } = parse(b"set k 0 0 1048577\r\nab", 0, LIMIT) else {
        panic!()
    };
    assert_eq!(command, Command::TooLarge { key: b"k", delete: true, noreply: false });
    assert_eq!((consumed_bytes, skip_bytes), (19, 1_048_579));
}

#[test]
fn lengths_beyond_reason_are_refused() {
    assert_eq!(complaint(b"set k 0 0 -1\r\n"), Some(BAD_FORMAT));
    assert_eq!(complaint(b"set k 0 0 2147483646\r\n"), Some(BAD_FORMAT));
    assert_eq!(complaint(b"set k 0 0 99999999999999999999999\r\n"), Some(BAD_FORMAT));
    assert_eq!(complaint(b"set k 0 0 -1 noreply\r\n"), None);
}

#[test]
fn a_wrong_terminator_costs_the_length_that_was_announced() {
    let input = b"set k 0 0 1\r\nxyz\r\n";
    let Parsed::Command { command, consumed_bytes, .. } = parse(input, 0, LIMIT) else { panic!() };
    assert_eq!(command, Command::Refused { complaint: Some(BAD_CHUNK) });
    assert_eq!(consumed_bytes, 16);
}

#[test]
fn words_may_stand_apart() {
    let Command::Get { keys, stamps } = command(b"  gets   a  b \n") else { panic!() };
    assert!(stamps);
    assert_eq!(split(keys).collect::<Vec<_>>(), [b"a", b"b"]);
}

#[test]
fn one_bad_key_refuses_the_whole_get() {
    let long = [b'k'; 251];
    let mut input = b"get a ".to_vec();
    input.extend_from_slice(&long[..250]);
    input.extend_from_slice(b"\r\n");
    assert!(matches!(command(&input), Command::Get { .. }));
    input.splice(6..6, *b"k");
    assert_eq!(complaint(&input), Some(BAD_FORMAT));
}

#[test]
fn ten_thousand_keys_are_one_command() {
    let mut input = b"get".to_vec();
    for key in 0..10_000 {
        input.extend_from_slice(format!(" {key:0>250}").as_bytes());
    }
    assert!(matches!(parse(&input, 0, LIMIT), Parsed::NeedMore { .. }));
    input.extend_from_slice(b"\r\n");
    let Command::Get { keys, .. } = command(&input) else { panic!() };
    assert_eq!(split(keys).count(), 10_000);
}

#[test]
fn a_line_without_an_end_is_given_up() {
    assert!(matches!(parse(&[b'x'; LINE_BYTES_MAX], 0, LIMIT), Parsed::NeedMore { .. }));
    assert_eq!(parse(&[b'x'; LINE_BYTES_MAX + 1], 0, LIMIT), Parsed::Close);
    let mut keys = b"get ".to_vec();
    keys.resize(GET_LINE_BYTES_MAX + 1, b'x');
    assert_eq!(parse(&keys, 0, LIMIT), Parsed::Close);
}

#[test]
fn http_is_hung_up_on() {
    assert_eq!(parse(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n", 0, LIMIT), Parsed::Close);
    assert_eq!(complaint(b"GET a\r\n"), Some(ERROR));
}

#[test]
fn delete_takes_only_the_old_zero() {
    assert_eq!(command(b"delete k\r\n"), Command::Delete { key: b"k", noreply: false });
    assert_eq!(command(b"delete k 0\r\n"), Command::Delete { key: b"k", noreply: false });
    assert_eq!(command(b"delete k 0 noreply\r\n"), Command::Delete { key: b"k", noreply: true });
    assert_eq!(complaint(b"delete k 1\r\n"), Some(BAD_DELETE));
    assert_eq!(command(b"delete noreply\r\n"), Command::Delete { key: b"noreply", noreply: false });
}

#[test]
fn flush_all_takes_a_delay_or_none() {
    assert_eq!(command(b"flush_all\r\n"), Command::FlushAll { delay: 0, noreply: false });
    assert_eq!(command(b"flush_all noreply\r\n"), Command::FlushAll { delay: 0, noreply: true });
    assert_eq!(command(b"flush_all 10 noreply\r\n"), Command::FlushAll { delay: 10, noreply: true });
    assert_eq!(complaint(b"flush_all x\r\n"), Some(BAD_EXPTIME));
}

#[test]
fn a_nul_is_not_text() {
    assert_eq!(complaint(b"get a\0b\r\n"), Some(ERROR));
}

/// Bytes that look enough like commands to reach every branch.
fn script() -> impl Strategy<Value = Vec<u8>> {
    let names = prop::sample::select(vec![
        "get",
        "gets",
        "gat",
        "gats",
        "set",
        "add",
        "replace",
        "append",
        "prepend",
        "cas",
        "incr",
        "decr",
        "touch",
        "delete",
        "flush_all",
        "verbosity",
        "version",
        "stats",
        "quit",
        "GET",
        "",
    ]);
    let words = prop::sample::select(vec![
        "k",
        "0",
        "1",
        "-1",
        "3",
        "noreply",
        "4294967296",
        "99999999999999999999",
        "HTTP/1.1",
        "\0",
        "\t",
        " ",
        "",
    ]);
    let ends = prop::sample::select(vec!["\r\n", "\n", "\r", "\r\nabc\r\n", "\r\n\0\u{80}\r\n", ""]);
    let line = (names, prop::collection::vec(words, 0..8), ends)
        .prop_map(|(name, words, end)| format!("{name} {}{end}", words.join(" ")).into_bytes());
    prop::collection::vec(prop_oneof![4 => line, 1 => prop::collection::vec(any::<u8>(), 0..40)], 0..6)
        .prop_map(|parts| parts.concat())
}

/// All commands of a stream that arrives in pieces of the given lengths, as text, and what was left over.
fn frames(stream: &[u8], pieces: &[usize]) -> (Vec<String>, bool) {
    let (mut seen, mut arrived, mut start, mut scanned) = (Vec::new(), 0, 0, 0);
    let mut pieces = pieces.iter().copied().chain(std::iter::repeat(stream.len().max(1)));
    loop {
        match parse(&stream[start..arrived], scanned, LIMIT) {
            Parsed::NeedMore { total_bytes, scanned_bytes } => {
                assert!(total_bytes > arrived - start && total_bytes <= GET_LINE_BYTES_MAX + LIMIT);
                if arrived == stream.len() {
                    return (seen, false);
                }
                scanned = scanned_bytes;
                arrived = stream.len().min(arrived + pieces.next().unwrap_or(1).max(1));
            }
            Parsed::Command { command, consumed_bytes, skip_bytes } => {
                assert!(consumed_bytes > 0);
                seen.push(format!("{command:?}"));
                start += consumed_bytes;
                scanned = 0;
                // What is skipped may not have arrived yet.
                start = (start + skip_bytes).min(stream.len());
                arrived = arrived.max(start);
            }
            Parsed::Close => return (seen, true),
        }
    }
}

proptest! {
    #[test]
    fn any_split_gives_the_same_frames(stream in script(), pieces in prop::collection::vec(1usize..20, 0..40)) {
        prop_assert_eq!(frames(&stream, &[stream.len()]), frames(&stream, &pieces));
    }
}

#[test]
fn sizes_are_changed_by_lines_that_name_them() {
    let resize = |size, bytes, noreply| Command::Resize { size, bytes, noreply };
    assert_eq!(command(b"resize capacity 99\r\n"), resize(Size::Capacity, 99, false));
    assert_eq!(command(b"resize memory 1 noreply\r\n"), resize(Size::Memory, 1, true));
    for line in ["resize memory x", "resize speed 1", "resize memory 1 2", "resize memory noreply"] {
        let expected = (!line.ends_with("noreply")).then_some(BAD_RESIZE);
        assert_eq!(complaint(format!("{line}\r\n").as_bytes()), expected, "{line}");
    }
    assert_eq!(command(b"cache_memlimit 64\r\n"), Command::CacheMemlimit { bytes: 64 << 20, noreply: false });
    assert_eq!(complaint(b"cache_memlimit 7\r\n"), Some(MEMLIMIT_TOO_SMALL));
    assert_eq!(complaint(b"cache_memlimit 1000000001\r\n"), Some(MEMLIMIT_IN_BYTES));
    assert_eq!(complaint(b"cache_memlimit x noreply\r\n"), None);
}
