//! Checks a datagram before any of its requests runs: it is taken whole or not at all. Pure; it uses the parsers that will take the
//! requests.
//!
//! Malformed requests get no answer, even from trusted peers: they may be replies of another server, which would answer in turn.

use crate::protocol::binary::{self, Origin};
use crate::protocol::{BINARY_MAGIC, Parsed, text};

/// The dialect of a request and its reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dialect {
    Text,
    /// With the origin of the first request.
    Binary(Origin),
}

/// The peers that may send a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Audience {
    Everybody,
    Trusted,
}

/// The dialect of a payload, and the peers that may send all of its requests. `None` unless it consists of whole requests.
pub fn screen(payload: &[u8], item_bytes_max: usize) -> Option<(Dialect, Audience)> {
    if payload.first() != Some(&BINARY_MAGIC) {
        let audience = walk(payload, |rest| text::parse(rest, 0, item_bytes_max), text_audience)?;
        return Some((Dialect::Text, audience));
    }
    let mut first = None;
    let audience = walk(
        payload,
        |rest| binary::parse(rest, item_bytes_max),
        |(origin, command)| {
            first = first.or(Some(origin));
            binary_audience(command)
        },
    )?;
    Some((Dialect::Binary(first?), audience))
}

fn walk<'a, C>(
    payload: &'a [u8],
    parse: impl Fn(&'a [u8]) -> Parsed<C>,
    mut audience: impl FnMut(C) -> Option<Audience>,
) -> Option<Audience> {
    let (mut rest, mut all) = (payload, Audience::Everybody);
    while !rest.is_empty() {
        let Parsed::Command { command, consumed_bytes, skip_bytes } = parse(rest) else { return None };
        all = all.max(audience(command)?);
        rest = rest.get(consumed_bytes.checked_add(skip_bytes)?..)?;
    }
    Some(all)
}

/// Strangers may get, and may change single items quietly.
fn text_audience(command: text::TextCommand<'_>) -> Option<Audience> {
    use text::TextCommand;
    match command {
        TextCommand::Refused { complaint: Some(text::ERROR) } | TextCommand::RefusedLine { .. } => None,
        TextCommand::Get { .. }
        | TextCommand::Store { noreply: true, .. }
        | TextCommand::Increment { noreply: true, .. }
        | TextCommand::Touch { noreply: true, .. }
        | TextCommand::Delete { noreply: true, .. } => Some(Audience::Everybody),
        _ => Some(Audience::Trusted),
    }
}

/// The same for binary requests, and for the noop that ends a series of quiet ones.
fn binary_audience(command: binary::BinaryCommand<'_>) -> Option<Audience> {
    use binary::BinaryCommand;
    match command {
        BinaryCommand::Refused { .. } => None,
        BinaryCommand::Get { .. }
        | BinaryCommand::GetAndTouch { quiet: true, .. }
        | BinaryCommand::Store { quiet: true, .. }
        | BinaryCommand::Increment { quiet: true, .. }
        | BinaryCommand::Delete { quiet: true, .. }
        | BinaryCommand::NoOp => Some(Audience::Everybody),
        _ => Some(Audience::Trusted),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EVERYBODY: Option<Audience> = Some(Audience::Everybody);
    const TRUSTED: Option<Audience> = Some(Audience::Trusted);

    fn audience(payload: &[u8]) -> Option<Audience> {
        screen(payload, 1000).map(|(_, audience)| audience)
    }

    fn packet(opcode: u8, extras: &[u8], key: &[u8], value: &[u8]) -> Vec<u8> {
        let mut packet = vec![0x80, opcode, 0, key.len() as u8, extras.len() as u8, 0, 0, 0, 0, 0, 0];
        packet.push((extras.len() + key.len() + value.len()) as u8);
        packet.extend([0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0, 0]);
        [&packet, extras, key, value].concat()
    }

    #[test]
    fn strangers_get_and_are_quiet() {
        for line in ["get a", "gets a b", "bget a", "delete a noreply", "incr a 1 noreply", "touch a 5 noreply"] {
            assert_eq!(audience(format!("{line}\r\n").as_bytes()), EVERYBODY, "{line}");
        }
        for line in
            ["delete a", "gat 5 a", "stats", "version", "flush_all noreply", "verbosity 1 noreply", "quit", "incr a 1"]
        {
            assert_eq!(audience(format!("{line}\r\n").as_bytes()), TRUSTED, "{line}");
        }
        assert_eq!(audience(b"set a 0 0 1 noreply\r\nx\r\nget a\r\n"), EVERYBODY);
        assert_eq!(audience(b"get a\r\nset a 0 0 1\r\nx\r\n"), TRUSTED);
        // Quiet or not, because a meta command's flags decide that.
        for line in ["mg a v", "mg a v q", "md a q", "mn"] {
            assert_eq!(audience(format!("{line}\r\n").as_bytes()), TRUSTED, "{line}");
        }
    }

    #[test]
    fn strangers_get_and_are_quiet_in_binary_too() {
        for opcode in [0x00, 0x09, 0x0c, 0x0d, 0x14] {
            assert_eq!(audience(&packet(opcode, b"", b"k", b"")), EVERYBODY, "{opcode:#x}");
        }
        let row = [packet(0x11, &[0; 8], b"k", b"v"), packet(0x09, b"", b"k", b""), packet(0x0a, b"", b"", b"")];
        assert_eq!(audience(&row.concat()), EVERYBODY);
        let origin = Origin { opcode: 0x11, opaque: 7 };
        assert_eq!(screen(&row.concat(), 1000), Some((Dialect::Binary(origin), Audience::Everybody)));
        // delete, stat, version, flush, quiet flush, quit
        for (opcode, key) in [(0x04, &b"k"[..]), (0x10, b""), (0x0b, b""), (0x08, b""), (0x18, b""), (0x07, b"")] {
            assert_eq!(audience(&packet(opcode, b"", key, b"")), TRUSTED, "{opcode:#x}");
        }
    }

    #[test]
    fn what_is_not_wholly_requests_is_none() {
        for payload in [
            &b"get a"[..],
            b"\r\n",
            b"foo\r\n",
            b"get\r\n",
            b"get a\r\nfoo\r\n",
            b"get a\r\nget b",
            b"set a 0 0 5\r\nabc\r\n",
            b"set a 0 0 2000\r\nabc\r\n",
            b"GET / HTTP/1.1\r\n",
            b"\0\0\0\0",
            // Replies of servers.
            b"ERROR\r\n",
            b"END\r\n",
            b"STORED\r\n",
            b"VALUE a 0 3\r\nabc\r\nEND\r\n",
            b"SERVER_ERROR out of memory\r\n",
            b"STAT pid 1\r\nEND\r\n",
        ] {
            assert_eq!(audience(payload), None, "{}", String::from_utf8_lossy(payload));
        }
        let get = packet(0, b"", b"k", b"");
        let mut reply = get.clone();
        reply[0] = 0x81;
        let mixed = [&get[..], b"get a\r\n"].concat();
        let (cut, unknown, extras) = (&get[..20], packet(0x55, b"", b"", b""), packet(0, b"abcd", b"k", b""));
        for payload in [&reply[..], cut, &get[..24], &unknown, &extras, &mixed] {
            assert_eq!(audience(payload), None, "{payload:?}");
        }
        // Only trusted peers are told a complaint.
        assert_eq!(audience(&[&b"get "[..], &[b'k'; 251], b"\r\n"].concat()), TRUSTED);
    }
}
