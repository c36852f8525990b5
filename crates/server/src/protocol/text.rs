//! The text protocol. A command is a line; a storage command is a line, a value and a line end:
//!
//! ```text
//! set <key> <flags> <exptime> <bytes> [noreply]\r\n
//! <bytes of value>\r\n
//! ```
//! The meta commands are lines too: see [`super::meta`].
//!
//! Pure functions of their input, see the module above. If several complaints apply, memcached's choice wins; the differential test
//! compares the two.

use crate::protocol::kinds;

use super::dump::{self, KeyDump};
use super::many_keys::{GET_PIECE_BYTES, first_keys};
use super::meta::{self, Judged};
use super::{KEY_BYTES_MAX, Parsed, number};

/// The longest line, as in memcached, except for those of many keys: room for two keys and all flags of a meta command. A longer line is
/// refused, and the connection closed at its end, because the sender may send a value behind it that must not be parsed as commands.
pub const LINE_BYTES_MAX: usize = 2048;

/// Spaces that may stand before the name of a line of many keys.
const SPACES_MAX: usize = 100;

pub const ERROR: &str = "ERROR\r\n";
/// An error in the form that Redis' clients show.
const NOT_REDIS: &str = "-ERR this server speaks memcached's protocol, not Redis': connect with a memcached client\r\n";
pub const BAD_FORMAT: &str = "CLIENT_ERROR bad command line format\r\n";
pub const BAD_CHUNK: &str = "CLIENT_ERROR bad data chunk\r\n";
pub const BAD_DELTA: &str = "CLIENT_ERROR invalid numeric delta argument\r\n";
pub const BAD_EXPTIME: &str = "CLIENT_ERROR invalid exptime argument\r\n";
pub const BAD_DELETE: &str = "CLIENT_ERROR bad command line format.  Usage: delete <key> [noreply]\r\n";
pub const BAD_RESIZE: &str =
    "CLIENT_ERROR bad command line format.  Usage: resize capacity|memory <bytes> [noreply]\r\n";
pub const MEMLIMIT_TOO_SMALL: &str = "MEMLIMIT_TOO_SMALL cannot set maxbytes to less than 8m\r\n";
pub const MEMLIMIT_IN_BYTES: &str = "MEMLIMIT_ADJUST_FAILED input value is megabytes not bytes\r\n";
pub const TOO_MANY_WATCHERS: &str = "WATCHER_TOO_MANY log watcher limit reached\r\n";
pub const BUSY: &str = "SERVER_ERROR too many of these at once: try again\r\n";
pub const FULL: &str = "SERVER_ERROR out of memory storing object\r\n";
pub const BAD_DETAIL: &str = "CLIENT_ERROR usage: stats detail on|off|dump\r\n";
pub const LINE_TOO_LONG: &str = "CLIENT_ERROR line too long\r\n";
pub const NOT_OVER_UDP: &str = "SERVER_ERROR too large for UDP\r\n";
pub const TOO_LARGE: &str = "SERVER_ERROR object too large for cache\r\n";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TextVerb {
    Set,
    Add,
    Replace,
    Append,
    Prepend,
    Cas,
}

/// The size that `resize` changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Size {
    Capacity,
    Memory,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TextCommand<'a> {
    /// `keys` holds the keys as received, with spaces between; all of them were checked. If the line `goes_on`,
    /// [`super::many_keys::more_keys`] finds the next ones.
    Get {
        keys: &'a [u8],
        stamps: bool,
        goes_on: bool,
    },
    GetAndTouch {
        keys: &'a [u8],
        exptime: i64,
        stamps: bool,
        goes_on: bool,
    },
    Store {
        verb: TextVerb,
        key: &'a [u8],
        flags: u32,
        exptime: i64,
        stamp: u64,
        value: &'a [u8],
        noreply: bool,
    },
    Meta {
        line: meta::Line<'a>,
        /// Empty except for a set; `None` if it is over the limit.
        value: Option<&'a [u8]>,
    },
    /// The value is over the limit. For a `set`, the old value is deleted, so that no reader takes it for current.
    TooLarge {
        key: &'a [u8],
        delete: bool,
        noreply: bool,
    },
    Increment {
        key: &'a [u8],
        delta: u64,
        decrement: bool,
        noreply: bool,
    },
    Touch {
        key: &'a [u8],
        exptime: i64,
        noreply: bool,
    },
    Delete {
        key: &'a [u8],
        noreply: bool,
    },
    FlushAll {
        delay: i64,
        noreply: bool,
    },
    Verbosity {
        noreply: bool,
    },
    Stats {
        argument: &'a [u8],
    },
    /// The kinds of events to watch, as bits of [`kinds`].
    Watch {
        kinds: u8,
    },
    /// `lru_crawler metadump` and `mgdump`.
    List {
        dump: KeyDump,
    },
    /// Tapetum's own command: `resize capacity|memory <bytes> [noreply]`.
    Resize {
        size: Size,
        bytes: u64,
        noreply: bool,
    },
    CacheMemlimit {
        bytes: u64,
        noreply: bool,
    },
    Version,
    Quit,
    /// Refused: the complaint, or `None` if the client asked for no reply.
    Refused {
        complaint: Option<&'static str>,
    },
    /// Refused before the end of its line. The rest of the line is discarded; then the connection is closed if the bytes behind it cannot
    /// be understood.
    RefusedLine {
        complaint: &'static str,
        close: bool,
    },
}

/// Parses the command at the start of `input`. Its first `scanned_bytes` hold no line end.
pub fn parse(input: &[u8], scanned_bytes: usize, item_bytes_max: usize) -> Parsed<TextCommand<'_>> {
    let line_bytes_max = line_bytes_max(input);
    let from = scanned_bytes.min(input.len());
    let end = input[from..].iter().position(|&byte| byte == b'\n').map(|at| from + at);
    let end = match end {
        Some(end) if end <= line_bytes_max => end,
        None if input.len() <= line_bytes_max => {
            return Parsed::NeedMore { total_bytes: input.len() + 1, scanned_bytes: input.len() };
        }
        _ if line_bytes_max == GET_PIECE_BYTES => return first_keys(&input[..GET_PIECE_BYTES]),
        _ => {
            let command = TextCommand::RefusedLine { complaint: LINE_TOO_LONG, close: true };
            return Parsed::Command { command, consumed_bytes: LINE_BYTES_MAX, skip_bytes: 0 };
        }
    };
    let line = input[..end].strip_suffix(b"\r").unwrap_or(&input[..end]);
    if is_redis(line) {
        let command = TextCommand::RefusedLine { complaint: NOT_REDIS, close: true };
        return Parsed::Command { command, consumed_bytes: line.len(), skip_bytes: 0 };
    }
    match parse_whole(input, line, end + 1, item_bytes_max) {
        // Close the connection rather than run the lines behind it, which somebody else may have written.
        Parsed::Command { command: TextCommand::Refused { .. }, .. } if is_http(line) => Parsed::Close,
        parsed => parsed,
    }
}

/// Parses the command whose line is complete and ends before `after`.
fn parse_whole<'a>(input: &'a [u8], line: &'a [u8], after: usize, item_bytes_max: usize) -> Parsed<TextCommand<'a>> {
    let whole = |command| Parsed::Command { command, consumed_bytes: after, skip_bytes: 0 };
    // A key cannot hold a NUL, and a line that does is not text.
    if line.contains(&0) {
        return whole(TextCommand::Refused { complaint: Some(ERROR) });
    }
    if let Some(verb) = meta::verb(line) {
        return match meta::judge(verb, line) {
            Judged::Command(line) => whole(TextCommand::Meta { line, value: Some(b"") }),
            Judged::Refused(complaint) => whole(refused(complaint, false)),
            Judged::RefusedSet { complaint, length_bytes } => Parsed::Command {
                command: refused(complaint, false),
                consumed_bytes: after,
                skip_bytes: length_bytes + 2,
            },
            Judged::Set { line, length_bytes } => {
                let bad = refused(BAD_CHUNK, false);
                let command = |value| TextCommand::Meta { line, value };
                with_value(length_bytes, input, after, item_bytes_max, bad, command)
            }
        };
    }
    let tokens = Tokens::of(line);
    let verb = match tokens.get(0) {
        b"set" => TextVerb::Set,
        b"add" => TextVerb::Add,
        b"replace" => TextVerb::Replace,
        b"append" => TextVerb::Append,
        b"prepend" => TextVerb::Prepend,
        b"cas" => TextVerb::Cas,
        b"" => return whole(TextCommand::Refused { complaint: Some(ERROR) }),
        _ => return whole(parse_line(&tokens, line)),
    };
    match storage_line(verb, &tokens) {
        Err(complaint) => whole(TextCommand::Refused { complaint }),
        Ok(line) => {
            let StorageLine { verb, key, flags, exptime, length_bytes, stamp, noreply } = line;
            let command = |value| match value {
                Some(value) => TextCommand::Store { verb, key, flags, exptime, stamp, value, noreply },
                None => TextCommand::TooLarge { key, delete: verb == TextVerb::Set, noreply },
            };
            with_value(length_bytes, input, after, item_bytes_max, refused(BAD_CHUNK, noreply), command)
        }
    }
}

/// How long the line at the start of `input` may grow before it is refused. The name of a get must stand near its beginning, so that
/// wherever the input is cut, the name is visible.
fn line_bytes_max(input: &[u8]) -> usize {
    let start = input.iter().take(SPACES_MAX + 1).position(|&byte| byte != b' ').unwrap_or(0);
    let rest = &input[start..];
    let many = [&b"get "[..], b"gets ", b"gat ", b"gats "].iter().any(|name| rest.starts_with(name));
    if many { GET_PIECE_BYTES } else { LINE_BYTES_MAX }
}

/// Whether `input` begins with a get that changes nothing, or may do so.
pub fn begins_get(input: &[u8]) -> bool {
    input.starts_with(b"get ") || input.starts_with(b"gets ") || input.starts_with(b"mg ")
}

/// Whether the input begins with a set, if it is complete and valid.
pub fn begins_set(input: &[u8]) -> bool {
    input.starts_with(b"set ")
}

/// The length of the line end of a complete line: one byte or two.
pub fn line_end_bytes(line: &[u8]) -> usize {
    if line.ends_with(b"\r\n") { 2 } else { 1 }
}

/// Whether the line is the head of an array of Redis' protocol, with which its clients begin each request: `*1`.
fn is_redis(line: &[u8]) -> bool {
    line.split_first()
        .is_some_and(|(first, rest)| *first == b'*' && !rest.is_empty() && rest.iter().all(u8::is_ascii_digit))
}

/// Whether the line is `GET / HTTP/1.1` and the like, or a header that every such request has: sent by a scanner, or by a browser that
/// somebody tricked.
fn is_http(line: &[u8]) -> bool {
    let begins =
        |word: &[u8], with: &[u8]| word.get(..with.len()).is_some_and(|start| start.eq_ignore_ascii_case(with));
    let mut words = line.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty());
    let first = words.next().unwrap_or_default();
    let last = words.next_back().unwrap_or(first);
    begins(last, b"HTTP/") || begins(first, b"Host:")
}

struct StorageLine<'a> {
    verb: TextVerb,
    key: &'a [u8],
    flags: u32,
    exptime: i64,
    length_bytes: usize,
    stamp: u64,
    noreply: bool,
}

/// The parts of a storage line, or the complaint.
fn storage_line<'a>(verb: TextVerb, tokens: &Tokens<'a>) -> Result<StorageLine<'a>, Option<&'static str>> {
    let words = if verb == TextVerb::Cas { 6 } else { 5 };
    if tokens.count != words && tokens.count != words + 1 {
        return Err(Some(ERROR));
    }
    let noreply = tokens.noreply();
    let bad = Err((!noreply).then_some(BAD_FORMAT));
    let key = tokens.get(1);
    if key.len() > KEY_BYTES_MAX {
        return bad;
    }
    let fields = (number::flags(tokens.get(2)), number::seconds(tokens.get(3)), number::length_bytes(tokens.get(4)));
    let (Some(flags), Some(exptime), Some(length_bytes)) = fields else { return bad };
    let stamp = if verb == TextVerb::Cas { number::unsigned(tokens.get(5)) } else { Some(0) };
    let Some(stamp) = stamp else { return bad };
    Ok(StorageLine { verb, key, flags, exptime, length_bytes, stamp, noreply })
}

/// The `command` whose line ends at `after` and whose value follows it. It gets no value if that is over the limit, and is `bad` if the
/// value does not end where it should.
fn with_value<'a>(
    length_bytes: usize,
    input: &'a [u8],
    after: usize,
    item_bytes_max: usize,
    bad: TextCommand<'a>,
    command: impl Fn(Option<&'a [u8]>) -> TextCommand<'a>,
) -> Parsed<TextCommand<'a>> {
    if length_bytes > item_bytes_max {
        return Parsed::Command { command: command(None), consumed_bytes: after, skip_bytes: length_bytes + 2 };
    }
    let total_bytes = after + length_bytes + 2;
    if input.len() < total_bytes {
        return Parsed::NeedMore { total_bytes, scanned_bytes: 0 };
    }
    let value = &input[after..after + length_bytes];
    let command = match &input[after + length_bytes..total_bytes] {
        b"\r\n" => command(Some(value)),
        _ => bad,
    };
    Parsed::Command { command, consumed_bytes: total_bytes, skip_bytes: 0 }
}

/// Commands that are one line.
pub(super) fn parse_line<'a>(tokens: &Tokens<'a>, line: &'a [u8]) -> TextCommand<'a> {
    let noreply = tokens.noreply();
    let count = tokens.count;
    match (tokens.get(0), count) {
        (b"get" | b"bget", 2..) => get(tokens.rest(line, 1), false),
        (b"gets", 2..) => get(tokens.rest(line, 1), true),
        (b"gat", 2..) => get_and_touch(tokens, line, false),
        (b"gats", 2..) => get_and_touch(tokens, line, true),
        (b"incr", 3 | 4) => increment(tokens, false),
        (b"decr", 3 | 4) => increment(tokens, true),
        (b"touch", 3 | 4) => match (key_fits(tokens.get(1)), number::seconds(tokens.get(2))) {
            (false, _) => refused(BAD_FORMAT, noreply),
            (_, None) => refused(BAD_EXPTIME, noreply),
            (_, Some(exptime)) => TextCommand::Touch { key: tokens.get(1), exptime, noreply },
        },
        (b"delete", 2..=4) => delete(tokens),
        (b"flush_all", 1..=3) => match (count == 1 + usize::from(noreply), number::seconds(tokens.get(1))) {
            (true, _) => TextCommand::FlushAll { delay: 0, noreply },
            (_, Some(delay)) => TextCommand::FlushAll { delay, noreply },
            (_, None) => refused(BAD_EXPTIME, noreply),
        },
        (b"verbosity", 2 | 3) => match number::flags(tokens.get(1)) {
            Some(_) => TextCommand::Verbosity { noreply },
            None => refused(BAD_FORMAT, noreply),
        },
        (b"stats", _) => TextCommand::Stats { argument: tokens.rest(line, 1) },
        (b"watch", _) => match watched(tokens.rest(line, 1)) {
            Some(kinds) => TextCommand::Watch { kinds },
            None => TextCommand::Refused { complaint: Some(ERROR) },
        },
        (b"lru_crawler", 2..) => match KeyDump::of_crawler(dump::words(tokens.rest(line, 1))) {
            Ok(dump) => TextCommand::List { dump },
            Err(complaint) => refused(complaint, false),
        },
        (b"resize", 3 | 4) => resize(tokens),
        (b"cache_memlimit", 2 | 3) => cache_memlimit(tokens),
        (b"version", _) => TextCommand::Version,
        (b"quit", _) => TextCommand::Quit,
        _ => TextCommand::Refused { complaint: Some(ERROR) },
    }
}

fn get(keys: &[u8], stamps: bool) -> TextCommand<'_> {
    match split(keys).all(key_fits) {
        true => TextCommand::Get { keys, stamps, goes_on: false },
        false => TextCommand::Refused { complaint: Some(BAD_FORMAT) },
    }
}

fn get_and_touch<'a>(tokens: &Tokens<'a>, line: &'a [u8], stamps: bool) -> TextCommand<'a> {
    let Some(exptime) = number::seconds(tokens.get(1)) else {
        return TextCommand::Refused { complaint: Some(BAD_EXPTIME) };
    };
    let keys = tokens.rest(line, 2);
    match split(keys).all(key_fits) {
        true => TextCommand::GetAndTouch { keys, exptime, stamps, goes_on: false },
        false => TextCommand::Refused { complaint: Some(BAD_FORMAT) },
    }
}

fn increment<'a>(tokens: &Tokens<'a>, decrement: bool) -> TextCommand<'a> {
    let (key, noreply) = (tokens.get(1), tokens.noreply());
    match (key_fits(key), number::unsigned(tokens.get(2))) {
        (false, _) => refused(BAD_FORMAT, noreply),
        (_, None) => refused(BAD_DELTA, noreply),
        (_, Some(delta)) => TextCommand::Increment { key, delta, decrement, noreply },
    }
}

/// The kinds of events that the words behind `watch` ask for. Without words: gets.
fn watched(list: &[u8]) -> Option<u8> {
    let kind = |word: &[u8]| match word {
        b"fetchers" => Some(kinds::FETCHERS),
        b"mutations" => Some(kinds::MUTATIONS),
        b"evictions" => Some(kinds::EVICTIONS),
        b"connevents" => Some(kinds::CONNECTIONS),
        _ => None,
    };
    let all = split(list).try_fold(0, |all, word| Some(all | kind(word)?))?;
    Some(if all == 0 { kinds::FETCHERS } else { all })
}

fn resize<'a>(tokens: &Tokens<'a>) -> TextCommand<'a> {
    let noreply = tokens.noreply();
    let size = match tokens.get(1) {
        b"capacity" => Some(Size::Capacity),
        b"memory" => Some(Size::Memory),
        _ => None,
    };
    match (size, number::unsigned(tokens.get(2)), tokens.count == 3 + usize::from(noreply)) {
        (Some(size), Some(bytes), true) => TextCommand::Resize { size, bytes, noreply },
        _ => refused(BAD_RESIZE, noreply),
    }
}

fn cache_memlimit<'a>(tokens: &Tokens<'a>) -> TextCommand<'a> {
    let noreply = tokens.noreply();
    match number::unsigned(tokens.get(1)) {
        None => refused(ERROR, noreply),
        Some(0..8) => refused(MEMLIMIT_TOO_SMALL, noreply),
        Some(mebibytes @ 8..=1_000_000_000) => TextCommand::CacheMemlimit { bytes: mebibytes << 20, noreply },
        Some(_) => refused(MEMLIMIT_IN_BYTES, noreply),
    }
}

/// Old clients send a hold time of 0, which is accepted and has no effect; any other is refused.
fn delete<'a>(tokens: &Tokens<'a>) -> TextCommand<'a> {
    // `noreply` alone is a key.
    let (key, noreply) = (tokens.get(1), tokens.count > 2 && tokens.noreply());
    let zero = tokens.get(2) == b"0";
    let valid = match tokens.count {
        2 => true,
        3 => zero || noreply,
        _ => zero && noreply,
    };
    match (valid, key_fits(key)) {
        (false, _) => refused(BAD_DELETE, noreply),
        (_, false) => refused(BAD_FORMAT, noreply),
        _ => TextCommand::Delete { key, noreply },
    }
}

fn refused(complaint: &'static str, noreply: bool) -> TextCommand<'static> {
    TextCommand::Refused { complaint: (!noreply).then_some(complaint) }
}

pub(super) fn key_fits(key: &[u8]) -> bool {
    key.len() <= KEY_BYTES_MAX
}

/// The words of `list`, separated by spaces.
pub fn split(list: &[u8]) -> impl Iterator<Item = &[u8]> + Clone {
    list.split(|&byte| byte == b' ').filter(|word| !word.is_empty())
}

/// The first words of a line. A command that takes more words takes the rest as a list.
pub(super) struct Tokens<'a> {
    words: [&'a [u8]; Tokens::KEPT],
    /// The end of each word in the line.
    ends: [usize; Tokens::KEPT],
    count: usize,
    last: &'a [u8],
}

impl<'a> Tokens<'a> {
    const KEPT: usize = 8;

    pub(super) fn of(line: &'a [u8]) -> Tokens<'a> {
        let mut tokens = Tokens { words: [b""; Tokens::KEPT], ends: [0; Tokens::KEPT], count: 0, last: b"" };
        let mut end = 0;
        while let Some(start) = line[end..].iter().position(|&byte| byte != b' ').map(|at| end + at) {
            end = line[start..].iter().position(|&byte| byte == b' ').map_or(line.len(), |at| start + at);
            tokens.last = &line[start..end];
            if tokens.count < Tokens::KEPT {
                tokens.words[tokens.count] = tokens.last;
                tokens.ends[tokens.count] = end;
            }
            tokens.count += 1;
        }
        tokens
    }

    /// Word number `at`; empty if the line has fewer.
    fn get(&self, at: usize) -> &'a [u8] {
        self.words[at]
    }

    fn noreply(&self) -> bool {
        self.last == b"noreply"
    }

    /// The rest of `line` behind its first `words`. The line must have as many.
    fn rest(&self, line: &'a [u8], words: usize) -> &'a [u8] {
        &line[self.ends[words - 1]..]
    }
}

#[cfg(test)]
#[path = "text_tests.rs"]
mod tests;
