//! The memcached protocols and their numbers.

use tapetum::fuzzing::Input;
use tapetum_server::protocol::{Parsed, binary, meta, number, text};
use tapetum_service::size;

/// Low, so that a short input exceeds it.
const ITEM_BYTES_MAX: usize = 1000;

/// A connection's results from its input: commands with the bytes they took and those they skip, and how it ended.
#[derive(Debug, PartialEq)]
pub struct Taken<C> {
    commands: Vec<(C, usize, usize)>,
    /// Offset at which the next frame would begin.
    end: usize,
    closed: bool,
}

/// Reads `input` as it arrives: `arrivals` are the ascending lengths available.
pub fn take<'a, C>(
    input: &'a [u8],
    arrivals: impl Iterator<Item = usize>,
    parse: impl Fn(&'a [u8], usize) -> Parsed<C>,
) -> Taken<C> {
    let mut taken = Taken { commands: Vec::new(), end: 0, closed: false };
    let (mut scanned, mut needed) = (0, 0);
    for arrived in arrivals {
        while taken.end < arrived && !taken.closed {
            let rest = &input[taken.end..arrived];
            match parse(rest, scanned) {
                Parsed::Command { command, consumed_bytes, skip_bytes } => {
                    assert!((1..=rest.len()).contains(&consumed_bytes), "{consumed_bytes} of {}", rest.len());
                    assert!(rest.len() >= needed, "a frame before the {needed} bytes that it was said to need");
                    taken.commands.push((command, consumed_bytes, skip_bytes));
                    taken.end = taken.end.saturating_add(consumed_bytes).saturating_add(skip_bytes);
                    (scanned, needed) = (0, 0);
                }
                Parsed::NeedMore { total_bytes, scanned_bytes } => {
                    assert!(total_bytes > rest.len() && scanned_bytes <= rest.len());
                    (scanned, needed) = (scanned_bytes, total_bytes);
                    break;
                }
                Parsed::Close => taken.closed = true,
            }
        }
    }
    taken
}

/// The length after each piece of an input that is cut at `cuts`.
pub fn arrivals(cuts: [u8; 4], length: usize) -> impl Iterator<Item = usize> {
    let mut at = 0;
    let mut pieces = cuts.into_iter().cycle();
    std::iter::from_fn(move || {
        let piece = usize::from(pieces.next()?) + 1;
        (at < length).then(|| {
            at = length.min(at + piece * piece.div_ceil(16));
            at
        })
    })
}

/// Text frames are the same however the input is cut, and a command written out reads back.
pub fn text(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let cuts = input.array();
    let input = input.rest();
    let parse = |rest, scanned| text::parse(rest, scanned, ITEM_BYTES_MAX);
    let whole = take(input, [input.len()].into_iter(), parse);
    assert_eq!(take(input, arrivals(cuts, input.len()), parse), whole);
    for (command, ..) in &whole.commands {
        let Some(line) = text_line(command) else { continue };
        match text::parse(&line, 0, ITEM_BYTES_MAX) {
            Parsed::Command { command: again, consumed_bytes, skip_bytes: 0 } => {
                assert_eq!((&again, consumed_bytes), (command, line.len()));
            }
            other => panic!("{command:?} reads back as {other:?}"),
        }
    }
}

/// The command as a client writes it, for commands that the parser keeps whole.
fn text_line(command: &text::TextCommand<'_>) -> Option<Vec<u8>> {
    use text::TextCommand;
    let mut line = Vec::new();
    let mut words = |words: &[&[u8]], noreply: bool| {
        line.extend_from_slice(&words.join(&b' '));
        line.extend_from_slice(if noreply { b" noreply\r\n" } else { b"\r\n" });
    };
    match *command {
        // A list of keys includes its spaces.
        TextCommand::Get { keys, stamps, goes_on: false } => {
            let name: &[u8] = if stamps { b"gets" } else { b"get" };
            words(&[&[name, keys].concat()], false);
        }
        TextCommand::GetAndTouch { keys, exptime, stamps, goes_on: false } => {
            let name = if stamps { "gats" } else { "gat" };
            words(&[&[format!("{name} {exptime}").as_bytes(), keys].concat()], false);
        }
        TextCommand::Increment { key, delta, decrement, noreply } => {
            let name: &[u8] = if decrement { b"decr" } else { b"incr" };
            words(&[name, key, delta.to_string().as_bytes()], noreply);
        }
        TextCommand::Touch { key, exptime, noreply } => {
            words(&[b"touch", key, exptime.to_string().as_bytes()], noreply);
        }
        TextCommand::Delete { key, noreply } => words(&[b"delete", key], noreply),
        TextCommand::Store { verb, key, flags, exptime, stamp, value, noreply } => {
            let name = format!("{verb:?}").to_lowercase();
            let numbers = format!("{flags} {exptime} {}", value.len());
            let stamp = format!("{stamp}");
            match verb {
                text::TextVerb::Cas => words(&[name.as_bytes(), key, numbers.as_bytes(), stamp.as_bytes()], noreply),
                _ => words(&[name.as_bytes(), key, numbers.as_bytes()], noreply),
            }
            line.extend_from_slice(value);
            line.extend_from_slice(b"\r\n");
        }
        TextCommand::Meta { line: ref meta, value: Some(value) } => {
            let name: &[u8] = match meta.verb {
                meta::MetaVerb::Get => b"mg",
                meta::MetaVerb::Set => b"ms",
                meta::MetaVerb::Delete => b"md",
                meta::MetaVerb::Arithmetic => b"ma",
                meta::MetaVerb::Debug => b"me",
                meta::MetaVerb::NoOp => b"mn",
            };
            words(&[name, meta.tail], false);
            if meta.verb == meta::MetaVerb::Set {
                line.extend_from_slice(value);
                line.extend_from_slice(b"\r\n");
            }
        }
        _ => return None,
    }
    Some(line)
}

/// Binary frames are the same however the input is cut, and a request written out reads back.
pub fn binary(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let cuts = input.array();
    let input = input.rest();
    let parse = |rest, _| binary::parse(rest, ITEM_BYTES_MAX);
    let whole = take(input, [input.len()].into_iter(), parse);
    assert_eq!(take(input, arrivals(cuts, input.len()), parse), whole);
    for ((origin, command), ..) in &whole.commands {
        let Some(packet) = binary_packet(*origin, command) else { continue };
        match binary::parse(&packet, ITEM_BYTES_MAX) {
            Parsed::Command { command: again, consumed_bytes, skip_bytes: 0 } => {
                assert_eq!((again, consumed_bytes), ((*origin, *command), packet.len()));
            }
            other => panic!("{command:?} reads back as {other:?}"),
        }
    }
}

/// The request as a client writes it, for requests with a body.
fn binary_packet(origin: binary::Origin, command: &binary::BinaryCommand<'_>) -> Option<Vec<u8>> {
    use binary::{BinaryCommand, BinaryVerb};
    let mut extras = Vec::new();
    let mut extra = |bytes: &[u8]| extras.extend_from_slice(bytes);
    let (key, value, stamp): (&[u8], &[u8], u64) = match *command {
        BinaryCommand::Get { key, .. } => (key, b"", 0),
        BinaryCommand::GetAndTouch { key, exptime, .. } | BinaryCommand::Touch { key, exptime } => {
            extra(&exptime.to_be_bytes());
            (key, b"", 0)
        }
        BinaryCommand::Store { verb, key, flags, exptime, stamp, value, .. } => {
            if !matches!(verb, BinaryVerb::Append | BinaryVerb::Prepend) {
                extra(&flags.to_be_bytes());
                extra(&exptime.to_be_bytes());
            }
            (key, value, stamp)
        }
        BinaryCommand::Increment { key, delta, initial, stamp, .. } => {
            let (value, exptime) = initial.unwrap_or((0, u32::MAX));
            extra(&delta.to_be_bytes());
            extra(&value.to_be_bytes());
            extra(&exptime.to_be_bytes());
            (key, b"", stamp)
        }
        BinaryCommand::Delete { key, stamp, .. } => (key, b"", stamp),
        BinaryCommand::Stat { argument } => (argument, b"", 0),
        BinaryCommand::SaslAuth { mechanism, message } => (mechanism, message, 0),
        _ => return None,
    };
    let mut packet = vec![0x80, origin.opcode];
    packet.extend_from_slice(&(key.len() as u16).to_be_bytes());
    packet.extend_from_slice(&[extras.len() as u8, 0, 0, 0]);
    packet.extend_from_slice(&((extras.len() + key.len() + value.len()) as u32).to_be_bytes());
    packet.extend_from_slice(&origin.opaque.to_be_bytes());
    packet.extend_from_slice(&stamp.to_be_bytes());
    Some([&packet[..], &extras, key, value].concat())
}

/// Numbers of the text protocol, and sizes of the command line: all parsers agree about one token.
pub fn numbers(token: &[u8]) {
    let (unsigned, signed) = (number::unsigned(token), number::signed(token));
    if let Some(value) = unsigned {
        let mut decimal = Vec::new();
        number::push_decimal(&mut decimal, value);
        assert_eq!(decimal, value.to_string().into_bytes());
        assert_eq!(number::unsigned(&decimal), Some(value));
        assert_eq!(signed, i64::try_from(value).ok());
    }
    if let Some(value) = signed {
        assert_eq!(number::signed(value.to_string().as_bytes()), Some(value));
        assert_eq!(unsigned, u64::try_from(value).ok());
    }
    assert_eq!(number::flags(token), unsigned.and_then(|value| u32::try_from(value).ok()));
    assert!(
        number::seconds(token)
            .is_none_or(|value| signed == Some(value) || value == -1 && signed == Some(u32::MAX.into()))
    );

    let Ok(text) = std::str::from_utf8(token) else { return };
    let size = size::parse(text);
    assert_eq!(size.is_ok(), size::parse(&text.to_ascii_uppercase()).is_ok());
    if let Ok(bytes) = size {
        assert_eq!(size::parse(&bytes.to_string()), Ok(bytes));
        assert_eq!(size::parse(&format!("{bytes}B")), Ok(bytes));
        assert!(!size::shown(bytes).is_empty());
    }
}
