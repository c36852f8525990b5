//! The meta commands of the text protocol: two letters, a key, flags. A flag is a letter and the rest of its word.
//!
//! ```text
//! mg <key> <flags>*\r\n                 get               md <key> <flags>*\r\n    delete
//! ms <key> <bytes> <flags>*\r\n         set               ma <key> <flags>*\r\n    arithmetic
//! <bytes of value>\r\n                                    me <key> [b]\r\n         debug
//! mn\r\n                                no-op
//! ```
//! Pure functions of their input, like all of [`super::text`]. Which complaint wins, and which flags a command accepts and ignores, follows
//! memcached 1.6.18; the differential test compares the two.

use super::text::{BAD_FORMAT, ERROR, split};
use super::{KEY_BYTES_MAX, base64, number};

/// The most words of a line, including name and key.
const WORDS_MAX: usize = 19;
/// The longest opaque, including its letter.
const OPAQUE_BYTES_MAX: usize = 32;

const TOO_MANY_FOR_GET: &str = "CLIENT_ERROR options flags are too long\r\n";
const TOO_MANY: &str = "CLIENT_ERROR options flags too long\r\n";
const DUPLICATE: &str = "CLIENT_ERROR duplicate flag\r\n";
const INVALID: &str = "CLIENT_ERROR invalid flag\r\n";
const BAD_KEY: &str = "CLIENT_ERROR error decoding key\r\n";
const BAD_TOKEN: &str = "CLIENT_ERROR bad token in command line format\r\n";
const BAD_MODE_LENGTH: &str = "CLIENT_ERROR incorrect length for M token\r\n";
const BAD_INITIAL: &str = "CLIENT_ERROR invalid numeric initial value\r\n";
const BAD_DELTA: &str = "CLIENT_ERROR invalid numeric delta value\r\n";
const BAD_OPAQUE: &str = "CLIENT_ERROR opaque token too long\r\n";
const BAD_SET_MODE: &str = "CLIENT_ERROR invalid mode for ms M token\r\n";
const BAD_ARITHMETIC_MODE: &str = "CLIENT_ERROR invalid mode for ma M token\r\n";
/// The complaint of delete and arithmetic about any flag.
const BAD_FLAG: &str = "CLIENT_ERROR invalid or duplicate flag\r\n";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetaVerb {
    Get,
    Set,
    Delete,
    Arithmetic,
    Debug,
    NoOp,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetMode {
    Set,
    Add,
    Append,
    Prepend,
    Replace,
}

/// A checked command without its value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Line<'a> {
    pub verb: MetaVerb,
    /// The key as received: see [`Flags::base64`].
    pub key: &'a [u8],
    /// The line from its key on. The reply repeats parts of it.
    pub tail: &'a [u8],
    pub flags: Flags,
}

/// The requests of the flags other than those that only shape the reply. Times are the client's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flags {
    /// b: the key came in base64.
    pub base64: bool,
    /// v
    pub shows_value: bool,
    /// I
    pub stale: bool,
    /// u
    pub unnoticed: bool,
    /// N
    pub vivify: Option<i64>,
    /// R
    pub recache: Option<i64>,
    /// T
    pub touch: Option<i64>,
    /// T came before R.
    pub touch_before_recache: bool,
    /// T came after N, so it decides the expiry of an item that N makes.
    pub touch_after_vivify: bool,
    /// C
    pub stamp: Option<u64>,
    /// F
    pub client_flags: u32,
    /// M
    mode: Option<u8>,
    /// J
    pub initial: u64,
    /// D; 1 if it is not there.
    delta: Option<u64>,
}

impl Flags {
    /// Whether the get only shows the value: no flag changes the item, or hides the access.
    pub fn only_show_value(&self) -> bool {
        let changes = self.vivify.or(self.recache).or(self.touch).is_some();
        self.shows_value && !changes && !self.unnoticed
    }

    pub fn delta(&self) -> u64 {
        self.delta.unwrap_or(1)
    }

    pub fn set_mode(&self) -> Option<SetMode> {
        Some(match self.mode {
            None | Some(b'S') => SetMode::Set,
            Some(b'E') => SetMode::Add,
            Some(b'A') => SetMode::Append,
            Some(b'P') => SetMode::Prepend,
            Some(b'R') => SetMode::Replace,
            Some(_) => return None,
        })
    }

    /// Whether arithmetic subtracts.
    pub fn decrements(&self) -> Option<bool> {
        Some(match self.mode {
            None | Some(b'I' | b'+') => false,
            Some(b'D' | b'-') => true,
            Some(_) => return None,
        })
    }

    /// Parses the flags in `words`, or returns the complaint.
    fn parse<'a>(key: &[u8], words: impl Iterator<Item = &'a [u8]>) -> Result<Flags, &'static str> {
        let (mut flags, mut seen, mut complaint) = (Flags::default(), 0u128, None);
        for word in words {
            let (letter, argument) = (word[0], &word[1..]);
            // A letter beyond ASCII, or DEL, counts as a duplicate.
            if letter >= 127 || seen & 1 << letter != 0 {
                return Err(DUPLICATE);
            }
            let has_seen = |other: u8| seen & 1 << other != 0;
            match letter {
                b'b' => {
                    flags.base64 = true;
                    let decoded = base64::decode(key, &mut [0; base64::DECODED_BYTES_MAX]).is_some();
                    complaint = if decoded { complaint } else { Some(BAD_KEY) };
                }
                b'N' | b'R' | b'T' => {
                    let seconds = number::seconds(argument);
                    complaint = if seconds.is_some() { complaint } else { Some(BAD_TOKEN) };
                    match letter {
                        b'N' => flags.vivify = seconds,
                        b'R' => (flags.recache, flags.touch_before_recache) = (seconds, has_seen(b'T')),
                        _ => (flags.touch, flags.touch_after_vivify) = (seconds, has_seen(b'N')),
                    }
                }
                b'C' => {
                    flags.stamp = number::unsigned(argument);
                    complaint = if flags.stamp.is_some() { complaint } else { Some(BAD_TOKEN) };
                }
                b'F' => match number::flags(argument) {
                    Some(client_flags) => flags.client_flags = client_flags,
                    // The general complaint.
                    None => complaint = complaint.or(Some(BAD_FORMAT)),
                },
                b'M' => match argument {
                    &[mode] => flags.mode = Some(mode),
                    _ => complaint = Some(BAD_MODE_LENGTH),
                },
                b'J' => match number::unsigned(argument) {
                    Some(initial) => flags.initial = initial,
                    None => complaint = Some(BAD_INITIAL),
                },
                b'D' => {
                    flags.delta = number::unsigned(argument);
                    complaint = if flags.delta.is_some() { complaint } else { Some(BAD_DELTA) };
                }
                b'v' => flags.shows_value = true,
                b'I' => flags.stale = true,
                b'u' => flags.unnoticed = true,
                // Flags for the reply, or for a proxy on the way.
                b'O' | b'P' | b'L' | b'k' | b's' | b't' | b'c' | b'f' | b'h' | b'l' | b'q' => {}
                _ => return Err(INVALID),
            }
            seen |= 1 << letter;
        }
        complaint.map_or(Ok(flags), Err)
    }
}

/// The result of checking a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Judged<'a> {
    Command(Line<'a>),
    /// A value follows.
    Set {
        line: Line<'a>,
        length_bytes: usize,
    },
    Refused(&'static str),
    /// Refused; the value that follows is discarded.
    RefusedSet {
        complaint: &'static str,
        length_bytes: usize,
    },
}

/// The meta command that begins `line`, if there is one.
pub fn verb(line: &[u8]) -> Option<MetaVerb> {
    let (name, rest) = after_spaces(line).split_at_checked(2)?;
    if rest.first().is_some_and(|&byte| byte != b' ') {
        return None;
    }
    Some(match name {
        b"mg" => MetaVerb::Get,
        b"ms" => MetaVerb::Set,
        b"md" => MetaVerb::Delete,
        b"ma" => MetaVerb::Arithmetic,
        b"me" => MetaVerb::Debug,
        b"mn" => MetaVerb::NoOp,
        _ => return None,
    })
}

fn after_spaces(line: &[u8]) -> &[u8] {
    &line[line.iter().take_while(|&&byte| byte == b' ').count()..]
}

pub fn judge(verb: MetaVerb, line: &[u8]) -> Judged<'_> {
    let mut words = split(line);
    words.next();
    let key = words.next().unwrap_or_default();
    // Skip the two letters of the name.
    let tail = after_spaces(&after_spaces(line)[2..]);
    let command = |flags| Judged::Command(Line { verb, key, tail, flags });
    match verb {
        MetaVerb::NoOp => return command(Flags::default()),
        MetaVerb::Debug => return debug(line, command),
        _ if key.is_empty() => return Judged::Refused(ERROR),
        _ if key.len() > KEY_BYTES_MAX => return Judged::Refused(BAD_FORMAT),
        _ => {}
    }
    if verb == MetaVerb::Set {
        return set(key, tail, words);
    }
    if words.clone().count() + 2 > WORDS_MAX {
        return Judged::Refused(if verb == MetaVerb::Get { TOO_MANY_FOR_GET } else { TOO_MANY });
    }
    let flags = match Flags::parse(key, words.clone()) {
        Ok(flags) => flags,
        Err(complaint) => return Judged::Refused(if verb == MetaVerb::Get { complaint } else { BAD_FLAG }),
    };
    if verb == MetaVerb::Arithmetic && flags.decrements().is_none() {
        return Judged::Refused(BAD_ARITHMETIC_MODE);
    }
    match opaque_fits(words) {
        true => command(flags),
        false => Judged::Refused(BAD_OPAQUE),
    }
}

fn set<'a>(key: &'a [u8], tail: &'a [u8], mut words: impl Iterator<Item = &'a [u8]> + Clone) -> Judged<'a> {
    if words.clone().count() + 2 > WORDS_MAX {
        return Judged::Refused(TOO_MANY);
    }
    let length = words.next().and_then(number::length_bytes);
    let Some(length_bytes) = length else { return Judged::Refused(BAD_FORMAT) };
    let complaint = match Flags::parse(key, words.clone()) {
        Err(complaint) => complaint,
        Ok(flags) if flags.set_mode().is_none() => BAD_SET_MODE,
        Ok(_) if !opaque_fits(words) => BAD_OPAQUE,
        Ok(flags) => return Judged::Set { line: Line { verb: MetaVerb::Set, key, tail, flags }, length_bytes },
    };
    Judged::RefusedSet { complaint, length_bytes }
}

/// `me` ignores all flags but a b in the first place.
fn debug<'a>(line: &'a [u8], command: impl Fn(Flags) -> Judged<'a>) -> Judged<'a> {
    let mut words = split(line).skip(1);
    let Some(key) = words.next().filter(|key| key.len() <= KEY_BYTES_MAX) else { return Judged::Refused(BAD_FORMAT) };
    let base64 = words.next() == Some(b"b");
    if base64 && base64::decode(key, &mut [0; base64::DECODED_BYTES_MAX]).is_none() {
        return Judged::Refused(BAD_FORMAT);
    }
    command(Flags { base64, ..Flags::default() })
}

fn opaque_fits<'a>(mut words: impl Iterator<Item = &'a [u8]>) -> bool {
    words.find(|word| word[0] == b'O').is_none_or(|word| word.len() <= OPAQUE_BYTES_MAX)
}

#[cfg(test)]
#[path = "meta_tests.rs"]
mod tests;
