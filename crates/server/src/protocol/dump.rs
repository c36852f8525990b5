//! Memcached's lists of keys: the arguments and the lines of `lru_crawler metadump`, `lru_crawler mgdump` and `stats cachedump`. Pure.
//!
//! ```text
//! key=<percent-encoded> exp=<unix seconds, or -1> la=0 cas=<stamp> fetch=no cls=<class> size=<bytes of key and value>\n   …   END\r\n
//! mg <key>\r\n, or mg <key in base64> b\r\n                                                                               …   EN\r\n
//! ITEM <key> [<bytes of the value> b; <unix seconds, or 0> s]\r\n                                                         …   END\r\n
//! ```
//! For items on flash the last access is not recorded, so `la` and `fetch` are constant. The class is that of the DRAM tier's slots which
//! fit the item, and 1 if there is no tier.

use std::fmt::Write as _;
use tapetum::{ListedKey, SlabClass};

use super::base64;
use super::text::{self, ERROR};

pub const BAD_CLASS: &str = "BADCLASS invalid class id\r\n";
pub const CRAWLER_BUSY: &str = "BUSY currently processing crawler request\r\n";
pub const BAD_CACHEDUMP: &str = "CLIENT_ERROR bad command line\r\n";
pub const BAD_CACHEDUMP_NUMBER: &str = "CLIENT_ERROR bad command line format\r\n";
pub const BAD_SLAB: &str = "CLIENT_ERROR Illegal slab id\r\n";

/// Memcached's classes: 1 to 63.
const CLASS_MAX: u8 = 63;
/// The most that one `stats cachedump` shows.
const CACHEDUMP_BYTES_MAX: usize = 2 << 20;

/// A set of classes, one bit each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClassSet(u64);

impl ClassSet {
    pub const ALL: ClassSet = ClassSet(u64::MAX);

    /// Parses `all`, `hash` (which is all in another order), or numbers with commas between.
    fn parse(word: &[u8]) -> Option<ClassSet> {
        if word == b"all" || word == b"hash" {
            return Some(ClassSet::ALL);
        }
        word.split(|byte| *byte == b',').try_fold(ClassSet(0), |ClassSet(bits), number| {
            let class = std::str::from_utf8(number).ok()?.parse::<u8>().ok()?;
            (1..=CLASS_MAX).contains(&class).then(|| ClassSet(bits | 1 << class))
        })
    }

    fn has(self, class: u8) -> bool {
        self.0 >> class & 1 == 1
    }
}

/// A list in progress.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyDump {
    Meta {
        classes: ClassSet,
    },
    Mg {
        classes: ClassSet,
    },
    /// Ends after so many items, or bytes.
    Cache {
        class: u8,
        items_left: u64,
        bytes_left: usize,
    },
}

impl KeyDump {
    /// The list that the words behind `lru_crawler` ask for, or the complaint.
    pub fn of_crawler<'a>(mut words: impl Iterator<Item = &'a [u8]>) -> Result<KeyDump, &'static str> {
        let (verb, classes, more) = (words.next().unwrap_or_default(), words.next(), words.next());
        let (Some(classes), None, b"metadump" | b"mgdump") = (classes, more, verb) else { return Err(ERROR) };
        let classes = ClassSet::parse(classes).ok_or(BAD_CLASS)?;
        Ok(if verb == b"mgdump" { KeyDump::Mg { classes } } else { KeyDump::Meta { classes } })
    }

    /// The list that the words behind `stats cachedump` ask for, or the complaint. Without a limit, as many as fit.
    pub fn of_cachedump<'a>(mut words: impl Iterator<Item = &'a [u8]>) -> Result<KeyDump, &'static str> {
        let (Some(class), Some(limit)) = (words.next(), words.next()) else { return Err(BAD_CACHEDUMP) };
        let number = |word: &[u8]| std::str::from_utf8(word).ok()?.parse::<u32>().ok();
        let (Some(class), Some(limit)) = (number(class), number(limit)) else { return Err(BAD_CACHEDUMP_NUMBER) };
        let class = u8::try_from(class).ok().filter(|class| *class <= CLASS_MAX).ok_or(BAD_SLAB)?;
        let items_left = if limit == 0 { u64::MAX } else { limit.into() };
        Ok(KeyDump::Cache { class, items_left, bytes_left: CACHEDUMP_BYTES_MAX })
    }

    /// Appends the line of a key, if it is wanted. Returns whether the list goes on.
    pub fn push(&mut self, out: &mut Vec<u8>, key: &ListedKey, classes: &[SlabClass]) -> bool {
        let class = class_of(key, classes);
        match self {
            KeyDump::Meta { classes } if classes.has(class) => push_meta(out, key, class),
            KeyDump::Mg { classes } if classes.has(class) => push_mg(out, &key.key),
            KeyDump::Cache { class: wanted, items_left, bytes_left } if *wanted == class => {
                let before = out.len();
                push_item(out, key);
                let bytes = out.len() - before;
                if bytes > *bytes_left || *items_left == 0 {
                    out.truncate(before);
                    return false;
                }
                (*items_left, *bytes_left) = (*items_left - 1, *bytes_left - bytes);
                return *items_left > 0;
            }
            _ => {}
        }
        true
    }

    /// The last line.
    pub fn end(self) -> &'static [u8] {
        match self {
            KeyDump::Mg { .. } => b"EN\r\n",
            KeyDump::Meta { .. } | KeyDump::Cache { .. } => b"END\r\n",
        }
    }
}

/// The class of an item. One that fits no class counts as the largest.
fn class_of(key: &ListedKey, classes: &[SlabClass]) -> u8 {
    let place = SlabClass::holding(classes, key.value_bytes).unwrap_or(classes.len().saturating_sub(1));
    (place + 1).min(CLASS_MAX.into()) as u8
}

fn push_meta(out: &mut Vec<u8>, listed: &ListedKey, class: u8) {
    out.extend_from_slice(b"key=");
    for &byte in &listed.key {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => out.push(byte),
            _ => out.extend_from_slice(format!("%{byte:02X}").as_bytes()),
        }
    }
    let mut rest = String::with_capacity(80);
    let expiry = if listed.expiry.is_none() { -1 } else { i64::from(listed.expiry.secs()) };
    let bytes = listed.key.len() as u64 + listed.value_bytes;
    // Writing to a string cannot fail.
    let _ = writeln!(rest, " exp={expiry} la=0 cas={} fetch=no cls={class} size={bytes}", listed.stamp);
    out.extend_from_slice(rest.as_bytes());
}

/// Whether a text command may name the key as it is.
fn is_text(key: &[u8]) -> bool {
    key.iter().all(|byte| *byte > b' ' && *byte != 0x7f)
}

fn push_key(out: &mut Vec<u8>, key: &[u8]) {
    match is_text(key) {
        true => out.extend_from_slice(key),
        false => base64::push(out, key),
    }
}

fn push_mg(out: &mut Vec<u8>, key: &[u8]) {
    out.extend_from_slice(b"mg ");
    push_key(out, key);
    out.extend_from_slice(if is_text(key) { b"\r\n" } else { b" b\r\n" });
}

fn push_item(out: &mut Vec<u8>, listed: &ListedKey) {
    out.extend_from_slice(b"ITEM ");
    push_key(out, &listed.key);
    out.extend_from_slice(format!(" [{} b; {} s]\r\n", listed.value_bytes, listed.expiry.secs()).as_bytes());
}

/// The words of a line.
pub fn words(list: &[u8]) -> impl Iterator<Item = &[u8]> + Clone {
    text::split(list)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(key: &[u8], value_bytes: u64, expiry: u32) -> ListedKey {
        let expiry = tapetum::Expiry::from_secs(expiry);
        ListedKey { key: key.into(), value_bytes, flags: 5, expiry, stamp: 9 }
    }

    fn crawler(line: &str) -> Result<KeyDump, &'static str> {
        KeyDump::of_crawler(words(line.as_bytes()))
    }

    fn shown(mut dump: KeyDump, keys: &[ListedKey]) -> String {
        let mut out = Vec::new();
        let _ = keys.iter().all(|key| dump.push(&mut out, key, &[]));
        out.extend_from_slice(dump.end());
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn lines_are_memcacheds() {
        let keys = [key(b"a", 3, 0), key(b"b%c:d", 1, 1_795_737_877), key(b"hello world", 1, 0)];
        let meta = "key=a exp=-1 la=0 cas=9 fetch=no cls=1 size=4\n\
                    key=b%25c%3Ad exp=1795737877 la=0 cas=9 fetch=no cls=1 size=6\n\
                    key=hello%20world exp=-1 la=0 cas=9 fetch=no cls=1 size=12\nEND\r\n";
        for line in ["metadump all", "metadump hash", "metadump 3,1"] {
            assert_eq!(shown(crawler(line).unwrap(), &keys), meta, "{line}");
        }
        assert_eq!(shown(crawler("metadump 2").unwrap(), &keys), "END\r\n");
        let mg = "mg a\r\nmg b%c:d\r\nmg aGVsbG8gd29ybGQ= b\r\nEN\r\n";
        assert_eq!(shown(crawler("mgdump all").unwrap(), &keys), mg);
        let items = "ITEM a [3 b; 0 s]\r\nITEM b%c:d [1 b; 1795737877 s]\r\nEND\r\n";
        assert_eq!(shown(KeyDump::of_cachedump(words(b"1 2")).unwrap(), &keys), items);
        assert_eq!(shown(KeyDump::of_cachedump(words(b"0 0")).unwrap(), &keys), "END\r\n");
    }

    #[test]
    fn complaints_are_memcacheds() {
        for line in ["metadump 99", "metadump foo", "metadump 1,,2", "mgdump 0"] {
            assert_eq!(crawler(line), Err(BAD_CLASS), "{line}");
        }
        for line in ["", "metadump", "mgdump", "mgdump all more", "foo", "foo all"] {
            assert_eq!(crawler(line), Err(ERROR), "{line}");
        }
        let cachedump = |line: &str| KeyDump::of_cachedump(words(line.as_bytes())).unwrap_err();
        assert_eq!(["1", "a b", "64 1"].map(cachedump), [BAD_CACHEDUMP, BAD_CACHEDUMP_NUMBER, BAD_SLAB]);
    }

    #[test]
    fn a_cachedump_ends_before_it_is_too_long() {
        let keys = vec![key(&[b'k'; 240], 1, 0); 20_000];
        let text = shown(KeyDump::of_cachedump(words(b"1 0")).unwrap(), &keys);
        assert!(
            text.len() <= CACHEDUMP_BYTES_MAX + 5
                && text.len() > CACHEDUMP_BYTES_MAX - 300
                && text.ends_with("\r\nEND\r\n")
        );
    }
}
