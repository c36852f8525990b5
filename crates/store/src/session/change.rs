//! What a request does to an item, as a pure function of the item: no I/O, no locks, no clock of its own.

use crate::request::{Condition, Outcome, Request};

/// The item as it is now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Current<'a> {
    pub flags: u32,
    pub expiry: u32,
    pub stamp: u64,
    pub value: &'a [u8],
}

/// What becomes of it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Decision {
    /// Nothing is written; this is the answer.
    Answer(Outcome),
    /// The value itself is the answer.
    Show,
    /// The item is written anew.
    Store { flags: u32, expiry: u32, value: NewValue, answer: Answer },
    /// The item goes.
    Delete,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum NewValue {
    /// The request's own value.
    Given,
    /// The value as it is.
    Same,
    Made(Vec<u8>),
}

/// The answer to a write, once its stamp is known.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Answer {
    Stored,
    Touched,
    Number(u64),
    /// The value as it was, under the new stamp.
    Value,
}

/// Whether the item must be known to decide.
pub fn needs_current(request: &Request<'_>) -> bool {
    !matches!(request, Request::Put { condition: Condition::Always, .. } | Request::DeleteAll { .. })
}

/// Whether the item's value, too, must be known: a large one is not read otherwise.
pub fn needs_value(request: &Request<'_>) -> bool {
    !matches!(request, Request::Put { .. } | Request::Touch { .. } | Request::Delete { .. } | Request::DeleteAll { .. })
}

pub fn decide(request: &Request<'_>, current: Option<Current<'_>>) -> Decision {
    match (request, current) {
        (Request::Get { .. }, Some(_)) => Decision::Show,
        (Request::Put { flags, expiry, condition, .. }, current) => match refusal(*condition, current) {
            Some(outcome) => Decision::Answer(outcome),
            None => Decision::Store { flags: *flags, expiry: *expiry, value: NewValue::Given, answer: Answer::Stored },
        },
        (Request::Append { .. } | Request::Prepend { .. }, None) => Decision::Answer(Outcome::NotStored),
        (Request::Append { value, stamp, .. }, Some(current)) => joined(current, *stamp, &[current.value, value]),
        (Request::Prepend { value, stamp, .. }, Some(current)) => joined(current, *stamp, &[value, current.value]),
        (Request::Increment { initial: Some(initial), .. }, None) => Decision::Store {
            flags: 0,
            expiry: initial.expiry,
            value: NewValue::Made(initial.value.to_string().into_bytes()),
            answer: Answer::Number(initial.value),
        },
        (Request::Increment { delta, decrement, stamp, .. }, Some(current)) => {
            increment(current, *delta, *decrement, *stamp)
        }
        (Request::Touch { expiry, .. }, Some(current)) => {
            Decision::Store { flags: current.flags, expiry: *expiry, value: NewValue::Same, answer: Answer::Touched }
        }
        (Request::GetAndTouch { expiry, .. }, Some(current)) => {
            Decision::Store { flags: current.flags, expiry: *expiry, value: NewValue::Same, answer: Answer::Value }
        }
        (Request::Delete { stamp, .. }, Some(current)) => {
            if stamp.is_some_and(|stamp| stamp != current.stamp) {
                Decision::Answer(Outcome::Exists)
            } else {
                Decision::Delete
            }
        }
        (Request::DeleteAll { .. }, _) => Decision::Answer(Outcome::Done),
        (_, None) => Decision::Answer(Outcome::Missing),
    }
}

fn refusal(condition: Condition, current: Option<Current<'_>>) -> Option<Outcome> {
    match (condition, current) {
        (Condition::Absent, Some(_)) | (Condition::Present, None) => Some(Outcome::NotStored),
        (Condition::Stamp(_), None) => Some(Outcome::Missing),
        (Condition::Stamp(stamp), Some(current)) if stamp != current.stamp => Some(Outcome::Exists),
        _ => None,
    }
}

fn joined(current: Current<'_>, stamp: Option<u64>, parts: &[&[u8]]) -> Decision {
    if stamp.is_some_and(|stamp| stamp != current.stamp) {
        return Decision::Answer(Outcome::Exists);
    }
    let value = NewValue::Made(parts.concat());
    Decision::Store { flags: current.flags, expiry: current.expiry, value, answer: Answer::Stored }
}

fn increment(current: Current<'_>, delta: u64, decrement: bool, stamp: Option<u64>) -> Decision {
    if stamp.is_some_and(|stamp| stamp != current.stamp) {
        return Decision::Answer(Outcome::Exists);
    }
    let Some(number) = parse_number(current.value) else { return Decision::Answer(Outcome::NotNumber) };
    let number = if decrement { number.saturating_sub(delta) } else { number.wrapping_add(delta) };
    let mut value = number.to_string().into_bytes();
    // A shorter number keeps the value's length, as memcached does it.
    value.resize(value.len().max(current.value.len()), b' ');
    let (flags, expiry) = (current.flags, current.expiry);
    Decision::Store { flags, expiry, value: NewValue::Made(value), answer: Answer::Number(number) }
}

/// A decimal number of 64 bits as C's `strtoull` takes it: white space and a sign before it, white space or a zero byte
/// behind it. A minus wraps, and what it wraps to beyond 63 bits is refused, as memcached has it.
fn parse_number(value: &[u8]) -> Option<u64> {
    let text = value.trim_ascii_start();
    let (negative, text) = match text {
        [b'-', rest @ ..] => (true, rest),
        [b'+', rest @ ..] => (false, rest),
        _ => (false, text),
    };
    let digits = text.iter().take_while(|byte| byte.is_ascii_digit()).count();
    let ends = text.get(digits).is_none_or(|byte| byte.is_ascii_whitespace() || *byte == 0);
    if !ends {
        return None;
    }
    let number: u64 = std::str::from_utf8(&text[..digits]).ok()?.parse().ok()?;
    match negative {
        false => Some(number),
        true => Some(number.wrapping_neg()).filter(|number| *number <= i64::MAX as u64),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::Initial;

    const KEY: &[u8] = b"k";

    fn current(value: &[u8]) -> Option<Current<'_>> {
        Some(Current { flags: 3, expiry: 4, stamp: 5, value })
    }

    fn put(condition: Condition) -> Request<'static> {
        Request::Put { key: KEY, value: b"new", flags: 1, expiry: 2, condition }
    }

    #[test]
    fn conditions_of_a_put() {
        let stored = Decision::Store { flags: 1, expiry: 2, value: NewValue::Given, answer: Answer::Stored };
        for (condition, absent, present) in [
            (Condition::Always, stored.clone(), stored.clone()),
            (Condition::Absent, stored.clone(), Decision::Answer(Outcome::NotStored)),
            (Condition::Present, Decision::Answer(Outcome::NotStored), stored.clone()),
            (Condition::Stamp(5), Decision::Answer(Outcome::Missing), stored.clone()),
            (Condition::Stamp(6), Decision::Answer(Outcome::Missing), Decision::Answer(Outcome::Exists)),
        ] {
            assert_eq!(decide(&put(condition), None), absent, "{condition:?}");
            assert_eq!(decide(&put(condition), current(b"old")), present, "{condition:?}");
        }
    }

    fn increment_of(value: &[u8], delta: u64, decrement: bool) -> Result<Vec<u8>, Outcome> {
        let request = Request::Increment { key: KEY, delta, decrement, initial: None, stamp: None };
        match decide(&request, current(value)) {
            Decision::Store { value: NewValue::Made(value), flags: 3, expiry: 4, .. } => Ok(value),
            Decision::Answer(outcome) => Err(outcome),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn numbers_wrap_up_stop_at_zero_and_keep_their_length() {
        assert_eq!(increment_of(b"99", 1, false), Ok(b"100".to_vec()));
        assert_eq!(increment_of(b"18446744073709551615", 2, false), Ok(b"1                   ".to_vec()));
        assert_eq!(increment_of(b"10", 1, true), Ok(b"9 ".to_vec()));
        assert_eq!(increment_of(b"9 ", 10, true), Ok(b"0 ".to_vec()));
        assert_eq!(increment_of(b"-0", 1, false), Ok(b"1 ".to_vec()));
        assert_eq!(increment_of(b"12\0", 1, false), Ok(b"13 ".to_vec()));
        for bad in [&b"x"[..], b"", b"1x", b"-1", b"99999999999999999999"] {
            assert_eq!(increment_of(bad, 1, false), Err(Outcome::NotNumber), "{bad:?}");
        }
    }

    #[test]
    fn an_absent_number_starts_at_its_initial_value() {
        let initial = Some(Initial { value: 7, expiry: 9 });
        let request = Request::Increment { key: KEY, delta: 1, decrement: false, initial, stamp: None };
        let value = NewValue::Made(b"7".to_vec());
        assert_eq!(decide(&request, None), Decision::Store { flags: 0, expiry: 9, value, answer: Answer::Number(7) });
    }

    #[test]
    fn joining_and_deleting_mind_the_stamp() {
        let append = |stamp| Request::Append { key: KEY, value: b"b", stamp };
        assert_eq!(decide(&append(None), None), Decision::Answer(Outcome::NotStored));
        assert_eq!(decide(&append(Some(1)), current(b"a")), Decision::Answer(Outcome::Exists));
        let value = NewValue::Made(b"ab".to_vec());
        assert_eq!(
            decide(&append(Some(5)), current(b"a")),
            Decision::Store { flags: 3, expiry: 4, value, answer: Answer::Stored }
        );
        let delete = |stamp| Request::Delete { key: KEY, stamp };
        assert_eq!(decide(&delete(None), current(b"a")), Decision::Delete);
        assert_eq!(decide(&delete(Some(1)), current(b"a")), Decision::Answer(Outcome::Exists));
        assert_eq!(decide(&delete(None), None), Decision::Answer(Outcome::Missing));
    }
}
