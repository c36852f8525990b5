//! The writes to the store, in order, and so the values that each key may hold.
//!
//! A write's time is its place in the history. Every value says which key and which write it is and is checked to its last
//! byte by making it again, so an older value is recognised.

use std::collections::BTreeMap;

use tapetum_bench::random::{Random, mix};
use tapetum_kernels::record::HEADER_BYTES_MAX;

pub const KEYS: u32 = 1000;
/// Behind the keys that are written come some that never are: a miss must stay one.
pub const KEYS_ABSENT: u32 = 60;

/// The value of a key: the write of that time, or nothing.
pub type Content = Option<u32>;

#[derive(Clone, Default)]
pub struct History {
    /// For each time the key that was written, and whether it was stored rather than deleted.
    writes: Vec<(u32, bool)>,
    now: BTreeMap<u32, Content>,
    /// Writes that were not answered with success: the key holds one of them or what it held.
    in_doubt: BTreeMap<u32, Vec<Content>>,
}

impl History {
    /// The time of the next write.
    pub fn time(&self) -> u32 {
        self.writes.len() as u32
    }

    pub fn acknowledged(&mut self, key: u32, stored: bool) {
        let content = stored.then_some(self.time());
        self.writes.push((key, stored));
        self.now.insert(key, content);
        self.in_doubt.remove(&key);
    }

    pub fn doubtful(&mut self, key: u32, stored: bool) {
        let content = stored.then_some(self.time());
        self.writes.push((key, stored));
        self.in_doubt.entry(key).or_default().push(content);
    }

    pub fn content(&self, key: u32) -> Content {
        self.now.get(&key).copied().flatten()
    }

    pub fn may_hold(&self, key: u32, content: Content) -> bool {
        self.content(key) == content || self.in_doubt.get(&key).is_some_and(|contents| contents.contains(&content))
    }

    /// The most that the log's record of a write takes.
    pub fn record_bytes_max(&self, time: u32) -> u64 {
        let (key, stored) = self.writes[time as usize];
        let value_bytes = if stored { value(key, time).len() } else { 0 };
        (HEADER_BYTES_MAX + name(key).len() + value_bytes) as u64
    }

    /// A read showed what the key holds: no other of its writes in doubt can come back.
    pub fn settle(&mut self, key: u32, content: Content) {
        self.now.insert(key, content);
        self.in_doubt.remove(&key);
    }

    /// Whether a key had this some time.
    pub fn had(&self, key: u32, content: Content) -> bool {
        content.is_none_or(|time| self.writes.get(time as usize) == Some(&(key, true)))
    }

    /// The value of a key before the write of `time`.
    pub fn content_before(&self, key: u32, time: u32) -> Content {
        let writes = self.writes[..time as usize].iter().enumerate();
        let last = writes.rev().find(|(_, (written, _))| *written == key);
        last.and_then(|(time, (_, stored))| stored.then_some(time as u32))
    }
}

pub fn name(key: u32) -> Vec<u8> {
    format!("key-{key}").into_bytes()
}

/// The value that the write of `time` gives a key: mostly small, now and then some pages or a large value; half compress.
pub fn value(key: u32, time: u32) -> Vec<u8> {
    let mut random = Random::new(mix(u64::from(key) << 32 | u64::from(time)));
    let filler = match random.below(64) {
        0 => 10_000 + random.below(20_000),
        1..4 => random.below(8_000),
        4..16 => random.below(1_500),
        _ => random.below(150),
    };
    let mut value = format!("{key} {time}\n").into_bytes();
    let start = value.len();
    value.resize(start + filler as usize, b'a' + (time % 26) as u8);
    if random.one_in(2) {
        random.fill(&mut value[start..]);
    }
    value
}

/// The write that made a value; an error if its key never had it.
pub fn read_value(key: u32, bytes: &[u8]) -> Result<u32, String> {
    let line = bytes.split(|byte| *byte == b'\n').next().unwrap_or_default();
    let time = std::str::from_utf8(line).ok().and_then(|line| line.split_once(' ')).and_then(|(owner, time)| {
        (owner.parse() == Ok(key)).then_some(())?;
        time.parse().ok()
    });
    match time {
        Some(time) if value(key, time) == bytes => Ok(time),
        Some(time) => Err(format!("the value of write {time} with other bytes than were written")),
        None => Err(format!("{} bytes that were never written to it", bytes.len())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_tells_its_write_and_one_wrong_byte_is_seen() {
        for time in 0..200 {
            let mut bytes = value(7, time);
            assert_eq!(read_value(7, &bytes), Ok(time));
            assert!(read_value(8, &bytes).is_err());
            let last = bytes.len() - 1;
            bytes[last] ^= 1;
            assert!(read_value(7, &bytes).is_err());
        }
    }

    #[test]
    fn a_key_holds_its_last_write_or_one_in_doubt_and_had_others_before() {
        let mut history = History::default();
        history.acknowledged(1, true);
        history.acknowledged(2, true);
        history.acknowledged(1, false);
        assert_eq!((history.content(1), history.content(2), history.content(3)), (None, Some(1), None));
        assert_eq!((history.content_before(1, 2), history.content_before(1, 0)), (Some(0), None));
        history.doubtful(2, true);
        assert!(history.may_hold(2, Some(1)) && history.may_hold(2, Some(3)) && !history.may_hold(2, None));
        history.acknowledged(2, true);
        assert!(!history.may_hold(2, Some(3)));
    }
}
