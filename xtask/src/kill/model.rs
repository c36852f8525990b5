//! The values that a key may hold after the server was killed.
//!
//! One connection owns a key and writes it in order. So after a crash, the key holds the last acknowledged write, or a later one that was
//! sent and not answered. The one that is found first is the key's value from then on, and must not change any more.

use std::collections::VecDeque;

use tapetum_bench::random::{Random, mix};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Content {
    Missing,
    /// The value that `fill_value` makes from the key and the write's sequence number.
    Value,
    Number(u64),
}

/// The state that a write leaves. Sequence numbers count a key's writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct State {
    pub sequence: u64,
    pub content: Content,
}

pub struct KeyModel {
    acknowledged: State,
    in_doubt: VecDeque<State>,
}

impl KeyModel {
    pub fn new() -> KeyModel {
        KeyModel { acknowledged: State { sequence: 0, content: Content::Missing }, in_doubt: VecDeque::new() }
    }

    /// The state that the next write will find.
    pub fn latest(&self) -> State {
        self.in_doubt.back().copied().unwrap_or(self.acknowledged)
    }

    /// A write is about to be sent.
    pub fn issue(&mut self, content: Content) -> State {
        let state = State { sequence: self.latest().sequence + 1, content };
        self.in_doubt.push_back(state);
        state
    }

    /// The oldest write in doubt was answered.
    pub fn acknowledge(&mut self) {
        self.acknowledged = self.in_doubt.pop_front().expect("only what was issued is acknowledged");
    }

    pub fn in_doubt(&self) -> usize {
        self.in_doubt.len()
    }

    /// Settles the key on the value found after a restart. `seen` is the highest sequence number that any reader was shown before the
    /// crash: a value that was shown must not be undone.
    pub fn settle(&mut self, seen: u64, found: Found) -> Result<(), String> {
        let mut candidates = std::iter::once(self.acknowledged).chain(self.in_doubt.iter().copied());
        // If several deletes are in doubt, the newest one explains the most.
        let matching = candidates.rfind(|state| found.is(*state));
        match matching {
            Some(state) if state.sequence >= seen => {
                self.acknowledged = state;
                self.in_doubt.clear();
                Ok(())
            }
            Some(state) => Err(format!("holds write {}, yet a reader had been shown write {seen}", state.sequence)),
            None => {
                Err(format!("holds {found:?}; acknowledged was {:?}, in doubt {:?}", self.acknowledged, self.in_doubt))
            }
        }
    }
}

/// The answer to a get.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Found {
    Missing,
    Value { sequence: u64 },
    Number(u64),
}

impl Found {
    fn is(self, state: State) -> bool {
        match (self, state.content) {
            (Found::Missing, Content::Missing) => true,
            (Found::Value { sequence }, Content::Value) => sequence == state.sequence,
            (Found::Number(found), Content::Number(number)) => found == number,
            _ => false,
        }
    }
}

/// The value of write `sequence` to `key`. Its first line names both, and it can be checked to its last byte by making it again. Most are
/// small, some large; half of them compress well.
pub fn fill_value(key: &[u8], sequence: u64, value: &mut Vec<u8>) {
    let seed = key.iter().fold(mix(sequence), |seed, byte| mix(seed ^ u64::from(*byte)));
    let mut random = Random::new(seed);
    let bound = match random.below(256) {
        0 => 1 << 20,
        1..16 => 64 << 10,
        16..128 => 4 << 10,
        _ => 200,
    };
    let filler = random.below(bound) as usize;
    value.clear();
    value.extend_from_slice(key);
    value.extend_from_slice(format!(" {sequence}\n").as_bytes());
    let start = value.len();
    if random.one_in(2) {
        value.resize(start + filler, b'a' + (sequence % 26) as u8);
    } else {
        value.resize(start + filler, 0);
        random.fill(&mut value[start..]);
    }
}

/// Parses a value of `fill_value`, or says why it is wrong.
pub fn parse_value(key: &[u8], flags: u32, bytes: &[u8], again: &mut Vec<u8>) -> Result<Found, String> {
    if let Some(number) = std::str::from_utf8(bytes).ok().and_then(|text| text.trim_end().parse().ok()) {
        return Ok(Found::Number(number));
    }
    let sequence = bytes
        .strip_prefix(key)
        .and_then(|rest| rest.strip_prefix(b" "))
        .and_then(|rest| std::str::from_utf8(&rest[..rest.iter().position(|byte| *byte == b'\n')?]).ok())
        .and_then(|digits| digits.parse::<u64>().ok())
        .ok_or_else(|| format!("holds {} bytes that were never written to it", bytes.len()))?;
    fill_value(key, sequence, again);
    if again != bytes {
        return Err(format!("holds write {sequence} with other bytes than were written"));
    }
    if flags != sequence as u32 {
        return Err(format!("holds write {sequence} with flags {flags}"));
    }
    Ok(Found::Value { sequence })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn model(acknowledged: &[Content], in_doubt: &[Content]) -> KeyModel {
        let mut model = KeyModel::new();
        for content in acknowledged {
            model.issue(*content);
            model.acknowledge();
        }
        for content in in_doubt {
            model.issue(*content);
        }
        model
    }

    #[test]
    fn a_lost_acknowledged_write_is_seen() {
        let two_values = [Content::Value, Content::Value];
        assert!(model(&two_values, &[]).settle(0, Found::Value { sequence: 1 }).is_err());
        assert!(model(&two_values, &[]).settle(0, Found::Missing).is_err());
        assert!(model(&two_values, &[]).settle(0, Found::Value { sequence: 2 }).is_ok());
    }

    #[test]
    fn a_deleted_key_may_not_come_back() {
        let deleted = [Content::Value, Content::Missing];
        assert!(model(&deleted, &[]).settle(0, Found::Value { sequence: 1 }).is_err());
        assert!(model(&deleted, &[Content::Value]).settle(0, Found::Value { sequence: 3 }).is_ok());
    }

    #[test]
    fn what_was_in_doubt_may_be_there_or_not_but_stays() {
        let mut model = model(&[Content::Value], &[Content::Value, Content::Value]);
        assert!(model.settle(0, Found::Value { sequence: 2 }).is_ok());
        assert!(model.settle(0, Found::Value { sequence: 3 }).is_err());
        assert!(model.settle(0, Found::Value { sequence: 2 }).is_ok());
    }

    #[test]
    fn what_was_never_issued_is_invented() {
        assert!(model(&[Content::Value], &[]).settle(0, Found::Value { sequence: 2 }).is_err());
        assert!(model(&[Content::Number(7)], &[Content::Number(8)]).settle(0, Found::Number(9)).is_err());
    }

    #[test]
    fn what_a_reader_was_shown_may_not_be_taken_back() {
        assert!(model(&[Content::Value], &[Content::Value]).settle(2, Found::Value { sequence: 1 }).is_err());
    }

    #[test]
    fn one_wrong_byte_or_flag_is_seen() {
        let (mut value, mut again) = (Vec::new(), Vec::new());
        for sequence in 1..300 {
            fill_value(b"k1", sequence, &mut value);
            assert_eq!(parse_value(b"k1", sequence as u32, &value, &mut again), Ok(Found::Value { sequence }));
            assert!(parse_value(b"k1", 0, &value, &mut again).is_err());
            assert!(parse_value(b"k2", sequence as u32, &value, &mut again).is_err());
            let last = value.len() - 1;
            value[last] ^= 1;
            assert!(parse_value(b"k1", sequence as u32, &value, &mut again).is_err());
        }
    }
}
