use super::super::many_keys::{MoreKeys, more_keys};
use super::*;
use proptest::prelude::*;

const LIMIT: usize = 1 << 20;

fn command(input: &[u8]) -> TextCommand<'_> {
    match parse(input, 0, LIMIT) {
        Parsed::Command { command, .. } => command,
        other => panic!("{other:?}"),
    }
}

fn complaint(input: &[u8]) -> Option<&'static str> {
    match command(input) {
        TextCommand::Refused { complaint } => complaint,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_set_is_its_line_and_its_value() {
    let input = b"set key 5 -1 3 noreply\r\nabc\r\nget key\r\n";
    let Parsed::Command { command, consumed_bytes, skip_bytes } = parse(input, 0, LIMIT) else { panic!() };
    let expected = TextCommand::Store {
        verb: TextVerb::Set,
        key: b"key",
        flags: 5,
        exptime: -1,
        stamp: 0,
        value: b"abc",
        noreply: true,
    };
    assert_eq!((command, consumed_bytes, skip_bytes), (expected, 29, 0));
}

#[test]
fn a_value_may_hold_line_ends() {
    let TextCommand::Store { value, .. } = command(b"set k 0 0 5\r\nab\r\nc\r\n") else { panic!() };
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
    assert_eq!(command, TextCommand::TooLarge { key: b"k", delete: true, noreply: false });
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
    assert_eq!(command, TextCommand::Refused { complaint: Some(BAD_CHUNK) });
    assert_eq!(consumed_bytes, 16);
}

#[test]
fn words_may_stand_apart() {
    let TextCommand::Get { keys, stamps, goes_on: false } = command(b"  gets   a  b \n") else { panic!() };
    assert!(stamps);
    assert_eq!(split(keys).collect::<Vec<_>>(), [b"a", b"b"]);
}

#[test]
fn one_bad_key_refuses_the_whole_get() {
    let long = [b'k'; 251];
    let mut input = b"get a ".to_vec();
    input.extend_from_slice(&long[..250]);
    input.extend_from_slice(b"\r\n");
    assert!(matches!(command(&input), TextCommand::Get { .. }));
    input.splice(6..6, *b"k");
    assert_eq!(complaint(&input), Some(BAD_FORMAT));
}

/// The keys of a line, in the order in which a connection finds them, and the complaint that ended it, if any.
fn keys_of(line: &[u8]) -> (Vec<&[u8]>, Option<&'static str>) {
    let (mut at, mut found) = (0, Vec::new());
    match parse(line, 0, LIMIT) {
        Parsed::Command { command: TextCommand::Get { keys, goes_on, .. }, consumed_bytes, .. } => {
            found.extend(split(keys));
            at += consumed_bytes;
            if !goes_on {
                return (found, None);
            }
        }
        Parsed::Command { command: TextCommand::RefusedLine { complaint, close: false }, .. } => {
            return (found, Some(complaint));
        }
        other => panic!("{other:?}"),
    }
    loop {
        match more_keys(&line[at..], 0) {
            MoreKeys::List { list_bytes, end_bytes } => {
                assert!(list_bytes <= GET_PIECE_BYTES);
                found.extend(split(&line[at..at + list_bytes]));
                at += list_bytes + end_bytes;
                if end_bytes > 0 {
                    assert_eq!(at, line.len());
                    return (found, None);
                }
            }
            MoreKeys::Refused { complaint, consumed_bytes } => {
                assert!(consumed_bytes <= GET_PIECE_BYTES);
                return (found, Some(complaint));
            }
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn a_line_of_many_keys_is_taken_in_pieces_however_long_it_is() {
    for (count, end) in [(10_000, "\r\n"), (30_001, "\n"), (1, "\r\n")] {
        let keys: Vec<_> = (0..count).map(|key| format!("{key:0>250}")).collect();
        let line = format!("get {}{end}", keys.join("  "));
        let (found, complaint) = keys_of(line.as_bytes());
        assert_eq!(complaint, None);
        assert!(found == keys.iter().map(String::as_bytes).collect::<Vec<_>>(), "{count}");
    }
    // Only spaces follow the key, more than a piece of them.
    let line = [b"gets a ".to_vec(), vec![b' '; 3 * GET_PIECE_BYTES], b"\r\n".to_vec()].concat();
    assert_eq!(keys_of(&line), (vec![&b"a"[..]], None));
    let line = [b"gat 7 ".to_vec(), b"k ".repeat(GET_PIECE_BYTES)].concat();
    let command = command(&line);
    assert!(matches!(command, TextCommand::GetAndTouch { exptime: 7, goes_on: true, .. }));
}

#[test]
fn a_bad_key_ends_a_line_of_many_keys_where_it_stands() {
    let good = b"k ".repeat(GET_PIECE_BYTES);
    let long = [b'k'; 251];
    for (line, keys, expected) in [
        ([b"get ", &long[..], b" ", &good, b"\r\n"].concat(), 0, BAD_FORMAT),
        ([b"get ", &good[..], &long, b"\r\n"].concat(), 200_000, BAD_FORMAT),
        ([b"get ", &good[..], b"a\0b\r\n"].concat(), 200_000, ERROR),
        ([b"get ", &b"k".repeat(GET_PIECE_BYTES)[..], b"\r\n"].concat(), 0, BAD_FORMAT),
        ([b"get ", &b" ".repeat(GET_PIECE_BYTES)[..], b"k\r\n"].concat(), 0, ERROR),
        ([b"gat x ", &good[..], b"\r\n"].concat(), 0, BAD_EXPTIME),
    ] {
        let (found, complaint) = keys_of(&line);
        assert_eq!(complaint, Some(expected));
        assert!(found.len() >= keys, "{} of {keys}", found.len());
    }
}

#[test]
fn a_line_without_an_end_is_refused_and_so_is_all_behind_it() {
    assert!(matches!(parse(&[b'x'; LINE_BYTES_MAX], 0, LIMIT), Parsed::NeedMore { .. }));
    let refused = Parsed::Command {
        command: TextCommand::RefusedLine { complaint: LINE_TOO_LONG, close: true },
        consumed_bytes: LINE_BYTES_MAX,
        skip_bytes: 0,
    };
    assert_eq!(parse(&[b'x'; LINE_BYTES_MAX + 1], 0, LIMIT), refused);
    let set = [b"set ", &[b'k'; LINE_BYTES_MAX][..], b" 0 0 11\r\nflush_all\r\n\r\n"].concat();
    assert_eq!(parse(&set, 0, LIMIT), refused);
}

#[test]
fn a_client_of_redis_is_told_what_it_has_met() {
    for input in ["*1\r\n$4\r\nPING\r\n", "*3\r\n$3\r\nSET\r\n"] {
        let Parsed::Command { command: TextCommand::RefusedLine { complaint, close }, .. } =
            parse(input.as_bytes(), 0, 1 << 20)
        else {
            panic!("{input:?}")
        };
        assert!(complaint.starts_with("-ERR ") && complaint.contains("memcached client") && close);
    }
    assert!(matches!(parse(b"*a\r\n", 0, 1 << 20), Parsed::Command { command: TextCommand::Refused { .. }, .. }));
}

#[test]
fn http_is_hung_up_on() {
    for line in [
        "GET / HTTP/1.1",
        "DELETE HTTP/1.1",
        "GET /a b HTTP/1.1",
        "post / HTTP/1.1",
        "POST / HTTP/1.1 ",
        "GET\t/\tHTTP/1.0",
        "PRI * HTTP/2.0",
        "x HTTP/1.1",
        "HTTP/1.1",
        "PUT  /  http/1.1",
        "GET /\0 HTTP/1.1",
        "delete / HTTP/1.1",
        "set / HTTP/1.1",
        "ms / HTTP/1.1",
        "Host: localhost",
        "hOST:localhost",
    ] {
        for end in ["\r\n", "\n"] {
            assert_eq!(parse(format!("{line}{end}flush_all\r\n").as_bytes(), 0, LIMIT), Parsed::Close, "{line}");
        }
    }
    // Valid commands stay commands.
    let key = b"HTTP/1.1";
    assert!(matches!(command(b"get HTTP/1.1\r\n"), TextCommand::Get { .. }));
    assert!(matches!(command(b"get / HTTP/1.1\r\n"), TextCommand::Get { .. }));
    assert!(matches!(command(b"mg HTTP/1.1\r\n"), TextCommand::Meta { .. }));
    assert_eq!(command(b"delete HTTP/1.1\r\n"), TextCommand::Delete { key, noreply: false });
    assert_eq!(command(b"delete host:\r\n"), TextCommand::Delete { key: b"host:", noreply: false });
    assert!(matches!(command(b"set HTTP/1.1 0 0 1\r\nx\r\n"), TextCommand::Store { .. }));
    for line in ["GET a", "GET / HTTP", "GET / HTTP/1.1 x", "foo"] {
        assert_eq!(complaint(format!("{line}\r\n").as_bytes()), Some(ERROR), "{line}");
    }
}

#[test]
fn delete_takes_only_the_old_zero() {
    assert_eq!(command(b"delete k\r\n"), TextCommand::Delete { key: b"k", noreply: false });
    assert_eq!(command(b"delete k 0\r\n"), TextCommand::Delete { key: b"k", noreply: false });
    assert_eq!(command(b"delete k 0 noreply\r\n"), TextCommand::Delete { key: b"k", noreply: true });
    assert_eq!(complaint(b"delete k 1\r\n"), Some(BAD_DELETE));
    assert_eq!(command(b"delete noreply\r\n"), TextCommand::Delete { key: b"noreply", noreply: false });
}

#[test]
fn flush_all_takes_a_delay_or_none() {
    assert_eq!(command(b"flush_all\r\n"), TextCommand::FlushAll { delay: 0, noreply: false });
    assert_eq!(command(b"flush_all noreply\r\n"), TextCommand::FlushAll { delay: 0, noreply: true });
    assert_eq!(command(b"flush_all 10 noreply\r\n"), TextCommand::FlushAll { delay: 10, noreply: true });
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
        "Host:",
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

/// All commands, as text, of a stream that arrives in pieces of the given lengths, and whether it was closed.
fn frames(stream: &[u8], pieces: &[usize]) -> (Vec<String>, bool) {
    let (mut seen, mut arrived, mut start, mut scanned) = (Vec::new(), 0, 0, 0);
    let mut pieces = pieces.iter().copied().chain(std::iter::repeat(stream.len().max(1)));
    loop {
        match parse(&stream[start..arrived], scanned, LIMIT) {
            Parsed::NeedMore { total_bytes, scanned_bytes } => {
                assert!(total_bytes > arrived - start && total_bytes <= GET_PIECE_BYTES + LIMIT);
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
                // The skipped bytes may not have arrived yet.
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
    let resize = |size, bytes, noreply| TextCommand::Resize { size, bytes, noreply };
    assert_eq!(command(b"resize capacity 99\r\n"), resize(Size::Capacity, 99, false));
    assert_eq!(command(b"resize memory 1 noreply\r\n"), resize(Size::Memory, 1, true));
    for line in ["resize memory x", "resize speed 1", "resize memory 1 2", "resize memory noreply"] {
        let expected = (!line.ends_with("noreply")).then_some(BAD_RESIZE);
        assert_eq!(complaint(format!("{line}\r\n").as_bytes()), expected, "{line}");
    }
    assert_eq!(command(b"cache_memlimit 64\r\n"), TextCommand::CacheMemlimit { bytes: 64 << 20, noreply: false });
    assert_eq!(complaint(b"cache_memlimit 7\r\n"), Some(MEMLIMIT_TOO_SMALL));
    assert_eq!(complaint(b"cache_memlimit 1000000001\r\n"), Some(MEMLIMIT_IN_BYTES));
    assert_eq!(complaint(b"cache_memlimit x noreply\r\n"), None);
}
