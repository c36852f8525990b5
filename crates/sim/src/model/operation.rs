//! The effect of one operation on one key. Written from the description of the protocol, not from the store.

use std::ops::Range;
use std::rc::Rc;
use tapetum::{BLOCK_BYTES, Condition, Expiry, Marks};

/// A record as a client sees it.
#[derive(Clone, PartialEq, Eq)]
pub struct Item {
    pub value: Rc<[u8]>,
    pub flags: u32,
    pub expiry: Expiry,
    /// `None` until a reply shows it.
    pub stamp: Option<u64>,
    /// `None` in a reply that does not show them.
    pub marks: Option<Marks>,
    /// The operation that wrote it, by which the model tells equal items apart; 0 in replies and new items.
    pub writer: u64,
}

#[derive(Clone)]
pub enum Kind {
    Get,
    Put {
        value: Rc<[u8]>,
        flags: u32,
        expiry: Expiry,
        condition: Condition,
    },
    Append {
        value: Rc<[u8]>,
        stamp: Option<u64>,
    },
    Prepend {
        value: Rc<[u8]>,
        stamp: Option<u64>,
    },
    Increment {
        delta: u64,
        decrement: bool,
        initial: Option<(u64, Expiry)>,
        stamp: Option<u64>,
    },
    Touch {
        expiry: Expiry,
    },
    GetAndTouch {
        expiry: Expiry,
    },
    /// A get that takes the lease on an item that is stale or expires before the given time. `vivify` is the expiry of an item that it
    /// makes.
    Lease {
        recache_before: Option<Expiry>,
        vivify: Option<Expiry>,
    },
    Invalidate {
        stamp: Option<u64>,
    },
    Delete {
        stamp: Option<u64>,
    },
    /// Replaces a part of a block. An absent block counts as zeros.
    Patch {
        within: Range<usize>,
        bytes: Rc<[u8]>,
    },
    /// Zeros a part of a block. An absent block stays absent.
    Zero {
        within: Range<usize>,
    },
    /// Deletes everything now.
    Clear,
    /// Deletes, at that time, everything written before.
    ClearAt(u32),
    /// A batch's delete, which does not report whether there was an item.
    Drop,
}

/// The answer that a client must get.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Expected {
    Value(Item),
    Leased { item: Item, won: bool },
    Missing,
    Stored,
    NotStored,
    Exists,
    Deleted,
    Touched,
    Number(u64),
    NotNumber,
    Done,
    TooLarge,
}

/// The items that a filtered scan shows: those with values below this one, or all.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Filter {
    pub below: Option<Rc<[u8]>>,
}

impl Filter {
    pub fn keeps(&self, value: &[u8]) -> bool {
        self.below.as_ref().is_none_or(|below| *value < **below)
    }
}

/// The answer that a client got.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Told {
    Value(Item),
    /// A filtered scan showed the value, and nothing else of the item.
    Shown(Rc<[u8]>),
    /// A filtered scan did not show the key: there is no item, or the filter rejects it.
    Hidden(Filter),
    /// The expiry of an item that was just made is not told.
    Leased {
        item: Item,
        won: bool,
        made: bool,
    },
    Missing,
    Stored(u64),
    NotStored,
    Exists,
    Deleted,
    Touched(u64),
    Number(u64, u64),
    NotNumber,
    Done,
    TooLarge,
    /// Refused for lack of room: nothing happened.
    Refused,
}

impl Told {
    pub fn item(&self) -> Option<&Item> {
        match self {
            Told::Value(item) | Told::Leased { item, .. } => Some(item),
            _ => None,
        }
    }

    /// The stamp of the record that the operation wrote.
    pub fn written_stamp(&self) -> Option<u64> {
        match *self {
            Told::Stored(stamp) | Told::Touched(stamp) | Told::Number(_, stamp) => Some(stamp),
            _ => None,
        }
    }
}

impl Expected {
    pub fn item(&self) -> Option<&Item> {
        match self {
            Expected::Value(item) | Expected::Leased { item, .. } => Some(item),
            _ => None,
        }
    }

    pub fn admits(&self, told: &Told) -> bool {
        match (self, told) {
            (Expected::Value(expected), Told::Value(told)) => expected.admits(told),
            (Expected::Value(expected), Told::Shown(value)) => expected.value == *value,
            (Expected::Value(expected), Told::Hidden(filter)) => !filter.keeps(&expected.value),
            (Expected::Leased { item, won }, Told::Leased { item: told, won: told_won, made }) => {
                let expiry = if *made { item.expiry } else { told.expiry };
                won == told_won && item.admits(&Item { expiry, ..told.clone() })
            }
            (Expected::Number(expected), Told::Number(told, _)) => expected == told,
            (Expected::Missing, Told::Missing | Told::Hidden(_))
            | (Expected::Stored, Told::Stored(_))
            | (Expected::NotStored, Told::NotStored)
            | (Expected::Exists, Told::Exists)
            | (Expected::Deleted, Told::Deleted)
            | (Expected::Touched, Told::Touched(_))
            | (Expected::NotNumber, Told::NotNumber)
            | (Expected::Done, Told::Done)
            | (Expected::TooLarge, Told::TooLarge) => true,
            _ => false,
        }
    }
}

impl Item {
    pub fn admits(&self, told: &Item) -> bool {
        (Rc::ptr_eq(&self.value, &told.value) || self.value == told.value)
            && (self.flags, self.expiry) == (told.flags, told.expiry)
            && (told.marks.is_none() || self.marks == told.marks)
            && (self.stamp.is_none() || self.stamp == told.stamp)
    }

    /// `None` when it has expired.
    pub fn unless_expired(self, now_ms: u64) -> Option<Item> {
        (!self.expiry.has_passed(now_ms)).then_some(self)
    }
}

impl std::fmt::Debug for Item {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let head = head(&self.value);
        write!(f, "{head} flags {} expiry {} stamp {:?}", self.flags, self.expiry, self.stamp)
    }
}

impl std::fmt::Debug for Kind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Kind::Get => write!(f, "get"),
            Kind::Put { value, flags, expiry, condition } => {
                write!(f, "put {} flags {flags} expiry {expiry} {condition:?}", head(value))
            }
            Kind::Append { value, stamp } => write!(f, "append {} stamp {stamp:?}", head(value)),
            Kind::Prepend { value, stamp } => write!(f, "prepend {} stamp {stamp:?}", head(value)),
            Kind::Increment { delta, decrement, initial, stamp } => {
                write!(
                    f,
                    "{} {delta} initial {initial:?} stamp {stamp:?}",
                    if *decrement { "decrement" } else { "increment" }
                )
            }
            Kind::Touch { expiry } => write!(f, "touch expiry {expiry}"),
            Kind::GetAndTouch { expiry } => write!(f, "get and touch expiry {expiry}"),
            Kind::Lease { recache_before, vivify } => write!(f, "lease before {recache_before:?} vivify {vivify:?}"),
            Kind::Invalidate { stamp } => write!(f, "invalidate stamp {stamp:?}"),
            Kind::Delete { stamp } => write!(f, "delete stamp {stamp:?}"),
            Kind::Patch { within, bytes } => write!(f, "patch {within:?} {}", head(bytes)),
            Kind::Zero { within } => write!(f, "zero {within:?}"),
            Kind::Clear => write!(f, "delete all"),
            Kind::ClearAt(at) => write!(f, "delete all at {at}"),
            Kind::Drop => write!(f, "delete in a batch"),
        }
    }
}

fn head(value: &[u8]) -> String {
    format!("\"{}\"[{}]", value[..value.len().min(16)].escape_ascii(), value.len())
}

/// The item after an operation, and the reply that the client must get.
pub fn apply(kind: &Kind, item: Option<&Item>, now_ms: u64, value_bytes_max: usize) -> (Option<Item>, Expected) {
    let unchanged = |expected| (item.cloned(), expected);
    let wrong = |stamp: &Option<u64>, item: &Item| stamp.is_some() && *stamp != item.stamp;
    match (kind, item) {
        (Kind::Get, None) => (None, Expected::Missing),
        (Kind::Get, Some(found)) => unchanged(Expected::Value(found.clone())),
        (Kind::Put { value, flags, expiry, condition }, item) => {
            let refusal = match (condition, item) {
                (Condition::Absent, Some(_)) | (Condition::Present, None) => Some(Expected::NotStored),
                (Condition::Stamp(_), None) => Some(Expected::Missing),
                (Condition::Stamp(stamp), Some(item)) if item.stamp != Some(*stamp) => Some(Expected::Exists),
                _ => None,
            };
            match refusal {
                Some(refusal) => unchanged(refusal),
                None => (fresh(value.clone(), *flags, *expiry).unless_expired(now_ms), Expected::Stored),
            }
        }
        (Kind::Lease { vivify: None, .. }, None) => (None, Expected::Missing),
        (Kind::Lease { vivify: Some(expiry), .. }, None) => {
            let made = fresh(Rc::from(&b""[..]), 0, *expiry);
            let item = Item { marks: Some(Marks { leased: true, ..Marks::NONE }), ..made };
            (item.clone().unless_expired(now_ms), Expected::Leased { item, won: true })
        }
        (Kind::Lease { recache_before, .. }, Some(item)) => lease(item, *recache_before),
        (Kind::Invalidate { stamp }, Some(item)) if wrong(stamp, item) => unchanged(Expected::Exists),
        (Kind::Invalidate { .. }, Some(item)) => {
            let marks = Some(Marks { stale: true, leased: false });
            (Some(Item { marks, ..retimed(item, item.expiry) }), Expected::Stored)
        }
        (Kind::Append { .. } | Kind::Prepend { .. }, None) => (None, Expected::NotStored),
        (Kind::Append { stamp, .. } | Kind::Prepend { stamp, .. }, Some(item)) if wrong(stamp, item) => {
            unchanged(Expected::Exists)
        }
        (Kind::Append { value, .. }, Some(item)) => join(item, &item.value, value, value_bytes_max),
        (Kind::Prepend { value, .. }, Some(item)) => join(item, value, &item.value, value_bytes_max),
        (Kind::Increment { initial: Some((value, expiry)), .. }, None) => {
            let item = fresh(value.to_string().into_bytes().into(), 0, *expiry);
            (item.unless_expired(now_ms), Expected::Number(*value))
        }
        (Kind::Increment { stamp, .. }, Some(item)) if wrong(stamp, item) => unchanged(Expected::Exists),
        (Kind::Increment { delta, decrement, .. }, Some(item)) => add(item, *delta, *decrement),
        (Kind::Patch { within, bytes }, item) => (Some(patched(item, within, bytes)), Expected::Stored),
        (Kind::Zero { within }, Some(item)) => {
            (Some(patched(Some(item), within, &vec![0; within.len()])), Expected::Stored)
        }
        (Kind::Touch { expiry }, Some(item)) => (retimed(item, *expiry).unless_expired(now_ms), Expected::Touched),
        (Kind::GetAndTouch { expiry }, Some(item)) => {
            let item = retimed(item, *expiry);
            (item.clone().unless_expired(now_ms), Expected::Value(item))
        }
        (Kind::Delete { stamp }, Some(item)) if wrong(stamp, item) => unchanged(Expected::Exists),
        (Kind::Delete { .. }, Some(_)) => (None, Expected::Deleted),
        (
            Kind::Increment { .. }
            | Kind::Touch { .. }
            | Kind::GetAndTouch { .. }
            | Kind::Invalidate { .. }
            | Kind::Zero { .. }
            | Kind::Delete { .. },
            None,
        ) => (None, Expected::Missing),
        (Kind::Clear | Kind::Drop, _) => (None, Expected::Done),
        (Kind::ClearAt(_), _) => unchanged(Expected::Done),
    }
}

fn fresh(value: Rc<[u8]>, flags: u32, expiry: Expiry) -> Item {
    Item { value, flags, expiry, stamp: None, marks: Some(Marks::NONE), writer: 0 }
}

/// A block with a part of it replaced.
fn patched(item: Option<&Item>, within: &Range<usize>, bytes: &[u8]) -> Item {
    let mut block = item.map_or_else(|| vec![0; BLOCK_BYTES], |item| item.value.to_vec());
    block[within.clone()].copy_from_slice(bytes);
    fresh(block.into(), 0, Expiry::NONE)
}

fn lease(item: &Item, recache_before: Option<Expiry>) -> (Option<Item>, Expected) {
    let marks = item.marks.unwrap_or_default();
    let expires_soon = recache_before.is_some_and(|before| !item.expiry.is_none() && item.expiry < before);
    let won = !marks.leased && (marks.stale || expires_soon);
    let marks = Some(Marks { leased: marks.leased || won, ..marks });
    let item = if won { Item { marks, ..retimed(item, item.expiry) } } else { item.clone() };
    (Some(item.clone()), Expected::Leased { item, won })
}

fn retimed(item: &Item, expiry: Expiry) -> Item {
    Item { expiry, stamp: None, writer: 0, ..item.clone() }
}

fn join(item: &Item, left: &[u8], right: &[u8], value_bytes_max: usize) -> (Option<Item>, Expected) {
    if left.len() + right.len() > value_bytes_max {
        return (Some(item.clone()), Expected::TooLarge);
    }
    (Some(fresh([left, right].concat().into(), item.flags, item.expiry)), Expected::Stored)
}

fn add(item: &Item, delta: u64, decrement: bool) -> (Option<Item>, Expected) {
    let Some(number) = number(&item.value) else { return (Some(item.clone()), Expected::NotNumber) };
    let number = if decrement { number.saturating_sub(delta) } else { number.wrapping_add(delta) };
    let text = format!("{number:<width$}", width = item.value.len());
    (Some(fresh(text.into_bytes().into(), item.flags, item.expiry)), Expected::Number(number))
}

/// A number as C's `strtoull` reads it: white space, a sign, digits; then the end, white space or a zero byte, and anything. A minus wraps
/// around, and the result must fit into 63 bits.
fn number(value: &[u8]) -> Option<u64> {
    let ends = |byte: &u8| byte.is_ascii_whitespace() || *byte == 0;
    let word = value.trim_ascii_start().split(ends).next()?;
    let (negative, digits) = match word.strip_prefix(b"-") {
        Some(digits) => (true, digits),
        None => (false, word.strip_prefix(b"+").unwrap_or(word)),
    };
    if !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let number: u64 = std::str::from_utf8(digits).ok()?.parse().ok()?;
    if negative { Some(number.wrapping_neg()).filter(|wrapped| *wrapped < 1 << 63) } else { Some(number) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_read_as_the_protocol_reads_them() {
        assert_eq!(number(b"  12 x"), Some(12));
        assert_eq!(number(b"+7"), Some(7));
        assert_eq!(number(b"5\0\xff"), Some(5));
        assert_eq!(number(b"-0"), Some(0));
        assert_eq!(number(b"-18446744073709551615"), Some(1));
        for bad in [&b""[..], b" ", b"v1", b"1v", b"\x001", b"+-1", b"-1", b"99999999999999999999"] {
            assert_eq!(number(bad), None);
        }
    }

    #[test]
    fn a_put_that_has_expired_leaves_nothing() {
        let put = Kind::Put {
            value: Rc::from(&b"x"[..]),
            flags: 0,
            expiry: Expiry::from_millis(5),
            condition: Condition::Always,
        };
        assert_eq!(apply(&put, None, 5, 100), (None, Expected::Stored));
        assert!(apply(&put, None, 4, 100).0.is_some());
    }
}
