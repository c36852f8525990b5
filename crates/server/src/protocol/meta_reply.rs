//! Replies to meta commands. Pure; appends to a buffer.
//!
//! A reply shows what the command's flags ask for, in their order. So the command's own words are kept until its outcome comes: [`encode`]
//! gets them as `tail`, from the key on.

use tapetum::{Access, DramItem, Expiry, Marks, Outcome, ValueRange};

use super::number::push_decimal;
use super::reply::LINE_END;
use super::text::split;
use super::{base64, expiry_from_client, number};

/// The state of a meta command that its reply needs, besides its words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetaAnswer {
    Get { touch: bool },
    Set { stamped: bool },
    Delete { invalidate: bool },
    Arithmetic { decrement: bool },
    Debug,
}

/// The words of a command. The reply repeats some of them.
struct Words<'a> {
    key: &'a [u8],
    /// The flags. For a set also its length, which is not a letter.
    flags: &'a [u8],
}

impl<'a> Words<'a> {
    fn of(tail: &'a [u8]) -> Words<'a> {
        let end = tail.iter().position(|&byte| byte == b' ').unwrap_or(tail.len());
        Words { key: &tail[..end], flags: &tail[end..] }
    }

    fn flags(&self) -> impl Iterator<Item = &'a [u8]> {
        split(self.flags)
    }

    fn has(&self, letter: u8) -> bool {
        self.flags().any(|word| word[0] == letter)
    }

    /// Repeats a flag that every reply repeats if asked to.
    fn push(&self, out: &mut Vec<u8>, word: &[u8]) {
        match word[0] {
            b'O' => {
                out.push(b' ');
                out.extend_from_slice(word);
            }
            b'k' => {
                out.extend_from_slice(b" k");
                self.push_key(out);
                if self.has(b'b') {
                    out.extend_from_slice(b" b");
                }
            }
            _ => {}
        }
    }

    /// The key's own bytes, if it was sent in base64.
    fn decoded<'b>(&self, room: &'b mut [u8; base64::DECODED_BYTES_MAX]) -> Option<&'b [u8]> {
        base64::decode(self.key, room).filter(|_| self.has(b'b'))
    }

    /// Appends the key. A key sent in base64 is encoded again from its bytes.
    fn push_key(&self, out: &mut Vec<u8>) {
        match self.decoded(&mut [0; base64::DECODED_BYTES_MAX]) {
            Some(key) => base64::push(out, key),
            None => out.extend_from_slice(self.key),
        }
    }
}

fn push_number(out: &mut Vec<u8>, letter: u8, number: u64) {
    out.extend_from_slice(&[b' ', letter]);
    push_decimal(out, number);
}

fn push_seconds_left(out: &mut Vec<u8>, expiry: Expiry, now: u32) {
    match expiry {
        Expiry::NONE => out.extend_from_slice(b" t-1"),
        _ => push_number(out, b't', expiry.secs().saturating_sub(now).into()),
    }
}

/// Follows an item's expiry through the flags of its command: a flag shows it as those before have left it.
struct ShownExpiry {
    at: Expiry,
    was_made: bool,
    now: u32,
}

impl ShownExpiry {
    fn of(expiry_before: Option<Expiry>, now: u32) -> ShownExpiry {
        ShownExpiry { at: expiry_before.unwrap_or_default(), was_made: expiry_before.is_none(), now }
    }

    fn pass(&mut self, word: &[u8]) {
        if word[0] == b'T' || (word[0] == b'N' && self.was_made) {
            self.at = number::seconds(&word[1..]).map_or(self.at, |seconds| expiry_from_client(seconds, self.now));
        }
    }
}

/// Appends the reply for `outcome`, whose value, if any, is `value`; `now` is the command's arrival. Returns false, and appends nothing,
/// for an outcome that such a command cannot have; the caller handles it.
pub fn encode(out: &mut Vec<u8>, answer: MetaAnswer, now: u32, tail: &[u8], outcome: &Outcome, value: &[u8]) -> bool {
    let words = Words::of(tail);
    match (answer, outcome) {
        (MetaAnswer::Get { .. }, Outcome::Leased { .. }) => item(out, &words, now, outcome, value),
        (MetaAnswer::Get { .. }, Outcome::Missing) if words.has(b'q') => {}
        (MetaAnswer::Get { .. }, Outcome::Missing) => status(out, &words, b"EN", None),
        (MetaAnswer::Set { .. }, Outcome::Stored { .. }) if words.has(b'q') => {}
        (MetaAnswer::Set { .. }, Outcome::Stored { stamp }) => status(out, &words, b"HD", Some(*stamp)),
        (MetaAnswer::Set { stamped: false }, Outcome::NotStored | Outcome::Missing) => {
            status(out, &words, b"NS", Some(0));
        }
        (MetaAnswer::Set { .. }, Outcome::Exists) => status(out, &words, b"EX", Some(0)),
        (MetaAnswer::Set { .. }, Outcome::Missing) => status(out, &words, b"NF", Some(0)),
        (MetaAnswer::Delete { .. }, Outcome::Deleted | Outcome::Stored { .. }) if words.has(b'q') => {}
        (MetaAnswer::Delete { .. }, Outcome::Deleted | Outcome::Stored { .. }) => status(out, &words, b"HD", None),
        // A number of an item that existed. q does not hide the making of a new one.
        (MetaAnswer::Arithmetic { .. }, Outcome::Number { expiry_before: Some(_), .. }) if words.has(b'q') => {}
        (MetaAnswer::Arithmetic { .. }, Outcome::Number { .. }) => number_line(out, &words, now, outcome),
        (MetaAnswer::Delete { .. } | MetaAnswer::Arithmetic { .. }, Outcome::Missing) => {
            status(out, &words, b"NF", None);
        }
        (MetaAnswer::Delete { .. } | MetaAnswer::Arithmetic { .. }, Outcome::Exists) => {
            status(out, &words, b"EX", None);
        }
        (MetaAnswer::Debug, Outcome::Leased { .. }) => debug(out, &words, now, outcome, value),
        (MetaAnswer::Debug, Outcome::Missing) => out.extend_from_slice(b"EN\r\n"),
        _ => return false,
    }
    true
}

/// Appends a line without an item. `stamp` is the value of the flag c, if it is shown.
fn status(out: &mut Vec<u8>, words: &Words<'_>, code: &[u8], stamp: Option<u64>) {
    out.extend_from_slice(code);
    for word in words.flags() {
        match (word[0], stamp) {
            (b'c', Some(stamp)) => push_number(out, b'c', stamp),
            _ => words.push(out, word),
        }
    }
    out.extend_from_slice(LINE_END);
}

/// Begins a line. Returns whether the value follows it.
fn begin(out: &mut Vec<u8>, words: &Words<'_>, value_bytes: usize) -> bool {
    let shows_value = words.has(b'v');
    if shows_value {
        out.reserve(value_bytes + words.key.len() + 64);
        out.extend_from_slice(b"VA ");
        push_decimal(out, value_bytes as u64);
    } else {
        out.extend_from_slice(b"HD");
    }
    shows_value
}

fn item(out: &mut Vec<u8>, words: &Words<'_>, now: u32, outcome: &Outcome, value: &[u8]) {
    if item_line(out, words, now, outcome, value.len()) {
        out.extend_from_slice(value);
        out.extend_from_slice(LINE_END);
    }
}

/// Appends the line before an item's value. Returns whether the value follows.
fn item_line(out: &mut Vec<u8>, words: &Words<'_>, now: u32, outcome: &Outcome, value_bytes: usize) -> bool {
    let &Outcome::Leased { flags, stamp, expiry_before, marks, won, access, .. } = outcome else { return false };
    let shows_value = begin(out, words, value_bytes);
    let mut expiry = ShownExpiry::of(expiry_before, now);
    for word in words.flags() {
        match word[0] {
            b's' => push_number(out, b's', value_bytes as u64),
            b't' => push_seconds_left(out, expiry.at, now),
            b'c' => push_number(out, b'c', stamp),
            b'f' => push_number(out, b'f', flags.into()),
            b'h' => push_number(out, b'h', access.was_read.into()),
            b'l' => push_number(out, b'l', access.idle_seconds.into()),
            b'T' | b'N' => expiry.pass(word),
            _ => words.push(out, word),
        }
    }
    let marked = [(marks.leased && !won, b'Z'), (marks.stale, b'X'), (won, b'W')];
    marked.into_iter().filter(|(shown, _)| *shown).for_each(|(_, letter)| out.extend_from_slice(&[b' ', letter]));
    out.extend_from_slice(LINE_END);
    shows_value
}

/// Appends the line before the value of an item in DRAM, for a get that only shows the value ([`super::meta::Flags::only_show_value`]).
/// Returns false, and appends nothing, if the get may win a lease.
pub fn value_line(out: &mut Vec<u8>, tail: &[u8], now: u32, item: &DramItem, access: Access) -> bool {
    let &DramItem { flags, expiry, stamp, value_bytes, marks } = item;
    if marks != Marks::NONE {
        return false;
    }
    let (expiry_before, value) = (Some(expiry), ValueRange { start: 0, end: value_bytes });
    let outcome = Outcome::Leased { flags, stamp, expiry_before, marks, won: false, access, value };
    let shows_value = item_line(out, &Words::of(tail), now, &outcome, value_bytes);
    assert!(shows_value, "only such gets are asked about");
    true
}

fn number_line(out: &mut Vec<u8>, words: &Words<'_>, now: u32, outcome: &Outcome) {
    let &Outcome::Number { number, stamp, expiry_before } = outcome else { return };
    let mut value = Vec::with_capacity(20);
    push_decimal(&mut value, number);
    let shows_value = begin(out, words, value.len());
    let mut expiry = ShownExpiry::of(expiry_before, now);
    for word in words.flags() {
        match word[0] {
            b't' => push_seconds_left(out, expiry.at, now),
            b'c' => push_number(out, b'c', stamp),
            b'T' | b'N' => expiry.pass(word),
            _ => words.push(out, word),
        }
    }
    out.extend_from_slice(LINE_END);
    if shows_value {
        out.extend_from_slice(&value);
        out.extend_from_slice(LINE_END);
    }
}

/// `size` is that of key and value; items on flash have no slab class.
fn debug(out: &mut Vec<u8>, words: &Words<'_>, now: u32, outcome: &Outcome, value: &[u8]) {
    let &Outcome::Leased { stamp, expiry_before, access, .. } = outcome else { return };
    // As memcached has it: the seconds left with a minus, and -1 for never.
    let left = expiry_before.filter(|expiry| !expiry.is_none()).map_or(1, |expiry| expiry.secs().saturating_sub(now));
    let fetch = if access.was_read { "yes" } else { "no" };
    out.extend_from_slice(b"ME ");
    words.push_key(out);
    let size = words.decoded(&mut [0; base64::DECODED_BYTES_MAX]).unwrap_or(words.key).len() + value.len();
    let idle = access.idle_seconds;
    let facts = format!(" exp=-{left} la={idle} cas={stamp} fetch={fetch} cls=0 size={size}\r\n");
    out.extend_from_slice(facts.as_bytes());
}

#[cfg(test)]
#[path = "meta_reply_tests.rs"]
mod tests;
