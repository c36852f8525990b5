//! The effect of a request on an item, as a pure function of the item: no I/O, no locks, no clock of its own.

use crate::request::item::{Access, ItemHead};
use crate::request::{Condition, Outcome, Request, Terms, ValueRange};
use tapetum_kernels::expiry::Expiry;
use tapetum_kernels::record::Marks;

/// The item as it is now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Current<'a> {
    pub flags: u32,
    pub expiry: Expiry,
    pub stamp: u64,
    pub marks: Marks,
    pub access: Access,
    pub value: &'a [u8],
}

impl<'a> Current<'a> {
    pub fn new(item: ItemHead, access: Access, value: &'a [u8]) -> Current<'a> {
        let ItemHead { flags, expiry, stamp, marks, .. } = item;
        Current { flags, expiry, stamp, marks, access, value }
    }
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Decision {
    /// Nothing is written. This is the answer.
    Answer(Outcome),
    /// The value itself is the answer.
    Show,
    /// The item is rewritten.
    Store { flags: u32, expiry: Expiry, marks: Marks, value: NewValue, answer: Answer },
    /// The item is deleted.
    Delete,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum NewValue {
    /// The request's own value.
    Given,
    /// The value stays as it is.
    Same,
    Made(Vec<u8>),
}

/// The answer to a write, once its stamp is known.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Answer {
    Stored,
    Touched,
    Number {
        number: u64,
        expiry_before: Option<Expiry>,
    },
    /// The value as it was, under the new stamp.
    Value,
    Leased {
        expiry_before: Option<Expiry>,
        won: bool,
        access: Access,
    },
}

impl Answer {
    /// Whether the answer holds the item's value as it was.
    pub fn shows_value(self) -> bool {
        matches!(self, Answer::Value | Answer::Leased { expiry_before: Some(_), .. })
    }

    /// The answer about an item whose new head is `item`. `value` is the place of its value, if the answer shows it.
    pub fn outcome(self, item: ItemHead, value: ValueRange) -> Outcome {
        let ItemHead { flags, expiry, stamp, marks, .. } = item;
        match self {
            Answer::Stored => Outcome::Stored { stamp },
            Answer::Touched => Outcome::Touched { stamp },
            Answer::Number { number, expiry_before } => Outcome::Number { number, stamp, expiry_before },
            Answer::Value => Outcome::Value { flags, stamp, expiry, value },
            Answer::Leased { expiry_before, won, access } => {
                Outcome::Leased { flags, stamp, expiry_before, marks, won, access, value }
            }
        }
    }
}

/// Whether the request counts as a get in statistics, whatever else it does.
pub fn is_counted_as_get(request: &Request<'_>) -> bool {
    use Request::{Get, GetAndLease, GetAndTouch, Touch};
    matches!(request, Get { .. } | GetAndLease { .. } | GetAndTouch { .. } | Touch { .. })
}

/// Whether the decision needs the current item.
pub fn needs_current(request: &Request<'_>) -> bool {
    !matches!(request, Request::Put { condition: Condition::Always, .. } | Request::DeleteAll { .. })
}

/// Whether the decision also needs the item's value. If not, a large value is not read.
pub fn needs_value(request: &Request<'_>) -> bool {
    !matches!(
        request,
        Request::Put { .. }
            | Request::Touch { .. }
            | Request::Invalidate { .. }
            | Request::Delete { .. }
            | Request::DeleteAll { .. }
    )
}

/// Whether the request inspects the value or stores it again, if it is at hand.
pub fn uses_value(request: &Request<'_>) -> bool {
    !matches!(request, Request::Put { .. } | Request::Delete { .. } | Request::DeleteAll { .. })
}

/// Whether the item counts as read after the request.
pub fn counts_as_read(request: &Request<'_>) -> bool {
    match request {
        Request::GetAndLease { terms, .. } => !terms.unnoticed,
        _ => matches!(request, Request::Touch { .. } | Request::GetAndTouch { .. }),
    }
}

/// Whether an item that counted as read before the request still does after it, although the request writes the item.
pub fn keeps_reads(request: &Request<'_>) -> bool {
    matches!(request, Request::GetAndLease { .. } | Request::Invalidate { .. })
}

/// The answer to a [`Request::GetAndLease`] that leaves the item as it is.
pub fn unchanged(item: ItemHead, access: Access, value: ValueRange) -> Outcome {
    Answer::Leased { expiry_before: Some(item.expiry), won: false, access }.outcome(item, value)
}

/// Whether a get may be answered with the item as it is.
pub fn leaves_as_is(request: &Request<'_>, item: ItemHead) -> bool {
    decide(request, Some(Current::new(item, Access::default(), &[]))) == Decision::Show
}

pub fn decide(request: &Request<'_>, current: Option<Current<'_>>) -> Decision {
    match (request, current) {
        (Request::Get { .. }, Some(_)) => Decision::Show,
        (Request::GetAndLease { terms, .. }, Some(current)) => lease(*terms, current),
        (Request::GetAndLease { terms: Terms { vivify: Some(expiry), .. }, .. }, None) => Decision::Store {
            flags: 0,
            expiry: *expiry,
            marks: Marks { leased: true, ..Marks::NONE },
            value: NewValue::Made(Vec::new()),
            answer: Answer::Leased { expiry_before: None, won: true, access: Access::default() },
        },
        (Request::Put { flags, expiry, condition, .. }, current) => match refusal(*condition, current) {
            Some(outcome) => Decision::Answer(outcome),
            None => {
                let (expiry, marks) = match (condition, current) {
                    (Condition::StampOrOlder(stamp), Some(current)) if *stamp < current.stamp => {
                        (current.expiry, Marks { stale: true, ..current.marks })
                    }
                    _ => (*expiry, Marks::NONE),
                };
                Decision::Store { flags: *flags, expiry, marks, value: NewValue::Given, answer: Answer::Stored }
            }
        },
        (Request::Append { .. } | Request::Prepend { .. }, None) => Decision::Answer(Outcome::NotStored),
        (Request::Append { value, stamp, .. }, Some(current)) => joined(current, *stamp, &[current.value, value]),
        (Request::Prepend { value, stamp, .. }, Some(current)) => joined(current, *stamp, &[value, current.value]),
        (Request::Increment { initial: Some(initial), .. }, None) => Decision::Store {
            flags: 0,
            expiry: initial.expiry,
            marks: Marks::NONE,
            value: NewValue::Made(initial.value.to_string().into_bytes()),
            answer: Answer::Number { number: initial.value, expiry_before: None },
        },
        (Request::Increment { delta, decrement, stamp, touch, .. }, Some(current)) => {
            increment(current, *delta, *decrement, *stamp, *touch)
        }
        (Request::Touch { expiry, .. }, Some(current)) => current.kept(*expiry, current.marks, Answer::Touched),
        (Request::GetAndTouch { expiry, .. }, Some(current)) => current.kept(*expiry, current.marks, Answer::Value),
        (Request::Invalidate { stamp, expiry, .. }, Some(current)) => {
            if stamp.is_some_and(|stamp| stamp != current.stamp) {
                Decision::Answer(Outcome::Exists)
            } else {
                let marks = Marks { stale: true, leased: false };
                current.kept(expiry.unwrap_or(current.expiry), marks, Answer::Stored)
            }
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
        (Condition::Stamp(_) | Condition::StampOrOlder(_), None) => Some(Outcome::Missing),
        (Condition::Stamp(stamp), Some(current)) if stamp != current.stamp => Some(Outcome::Exists),
        (Condition::StampOrOlder(stamp), Some(current)) if stamp > current.stamp => Some(Outcome::Exists),
        _ => None,
    }
}

impl Current<'_> {
    /// Stores the item under a new stamp with its value unchanged.
    fn kept(&self, expiry: Expiry, marks: Marks, answer: Answer) -> Decision {
        Decision::Store { flags: self.flags, expiry, marks, value: NewValue::Same, answer }
    }
}

fn lease(terms: Terms, current: Current<'_>) -> Decision {
    let judged = terms.touch.filter(|_| terms.touch_first).unwrap_or(current.expiry);
    let expires_soon = terms.recache_before.is_some_and(|before| !judged.is_none() && judged < before);
    let won = !current.marks.leased && (expires_soon || (terms.stale && current.marks.stale));
    if !won && terms.touch.is_none() {
        return Decision::Show;
    }
    let marks = Marks { leased: current.marks.leased || won, ..current.marks };
    let answer = Answer::Leased { expiry_before: Some(current.expiry), won, access: current.access };
    current.kept(terms.touch.unwrap_or(current.expiry), marks, answer)
}

fn joined(current: Current<'_>, stamp: Option<u64>, parts: &[&[u8]]) -> Decision {
    if stamp.is_some_and(|stamp| stamp != current.stamp) {
        return Decision::Answer(Outcome::Exists);
    }
    let value = NewValue::Made(parts.concat());
    let Current { flags, expiry, .. } = current;
    Decision::Store { flags, expiry, marks: Marks::NONE, value, answer: Answer::Stored }
}

fn increment(current: Current<'_>, delta: u64, decrement: bool, stamp: Option<u64>, touch: Option<Expiry>) -> Decision {
    if stamp.is_some_and(|stamp| stamp != current.stamp) {
        return Decision::Answer(Outcome::Exists);
    }
    let Some(number) = parse_number(current.value) else { return Decision::Answer(Outcome::NotNumber) };
    let number = if decrement { number.saturating_sub(delta) } else { number.wrapping_add(delta) };
    let mut value = number.to_string().into_bytes();
    // A shorter number keeps the value's length, as in memcached.
    value.resize(value.len().max(current.value.len()), b' ');
    let (flags, expiry) = (current.flags, touch.unwrap_or(current.expiry));
    let answer = Answer::Number { number, expiry_before: Some(current.expiry) };
    Decision::Store { flags, expiry, marks: Marks::NONE, value: NewValue::Made(value), answer }
}

/// Parses a decimal number of 64 bits as C's `strtoull` does: white space and a sign may precede it, white space or a zero byte must follow it if
/// anything does. A minus wraps; a wrapped result of more than 63 bits is refused, as in memcached.
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

    const fn at(millis: u64) -> Expiry {
        Expiry::from_millis(millis)
    }

    fn current(value: &[u8]) -> Option<Current<'_>> {
        marked(value, Marks::NONE)
    }

    fn marked(value: &[u8], marks: Marks) -> Option<Current<'_>> {
        Some(Current { flags: 3, expiry: at(4), stamp: 5, marks, access: READ, value })
    }

    const READ: Access = Access { was_read: true, idle_seconds: 7 };
    const STALE: Marks = Marks { stale: true, leased: false };
    const LEASED: Marks = Marks { stale: false, leased: true };

    fn put(condition: Condition) -> Request<'static> {
        Request::Put { key: KEY, value: b"new", flags: 1, expiry: at(2), condition }
    }

    #[test]
    fn conditions_of_a_put() {
        let stored = Decision::Store {
            flags: 1,
            expiry: at(2),
            marks: Marks::NONE,
            value: NewValue::Given,
            answer: Answer::Stored,
        };
        for (condition, absent, present) in [
            (Condition::Always, stored.clone(), stored.clone()),
            (Condition::Absent, stored.clone(), Decision::Answer(Outcome::NotStored)),
            (Condition::Present, Decision::Answer(Outcome::NotStored), stored.clone()),
            (Condition::Stamp(5), Decision::Answer(Outcome::Missing), stored.clone()),
            (Condition::Stamp(6), Decision::Answer(Outcome::Missing), Decision::Answer(Outcome::Exists)),
            (Condition::StampOrOlder(5), Decision::Answer(Outcome::Missing), stored.clone()),
            (Condition::StampOrOlder(6), Decision::Answer(Outcome::Missing), Decision::Answer(Outcome::Exists)),
        ] {
            assert_eq!(decide(&put(condition), None), absent, "{condition:?}");
            assert_eq!(decide(&put(condition), current(b"old")), present, "{condition:?}");
        }
    }

    fn increment_of(value: &[u8], delta: u64, decrement: bool) -> Result<Vec<u8>, Outcome> {
        let request = Request::Increment { key: KEY, delta, decrement, initial: None, stamp: None, touch: None };
        match decide(&request, current(value)) {
            Decision::Store { value: NewValue::Made(value), flags: 3, expiry, .. } if expiry == at(4) => Ok(value),
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
        let initial = Some(Initial { value: 7, expiry: at(9) });
        let request =
            Request::Increment { key: KEY, delta: 1, decrement: false, initial, stamp: None, touch: Some(at(1)) };
        let value = NewValue::Made(b"7".to_vec());
        let answer = Answer::Number { number: 7, expiry_before: None };
        assert_eq!(
            decide(&request, None),
            Decision::Store { flags: 0, expiry: at(9), marks: Marks::NONE, value, answer }
        );
    }

    #[test]
    fn joining_and_deleting_mind_the_stamp() {
        let append = |stamp| Request::Append { key: KEY, value: b"b", stamp };
        assert_eq!(decide(&append(None), None), Decision::Answer(Outcome::NotStored));
        assert_eq!(decide(&append(Some(1)), current(b"a")), Decision::Answer(Outcome::Exists));
        let value = NewValue::Made(b"ab".to_vec());
        assert_eq!(
            decide(&append(Some(5)), current(b"a")),
            Decision::Store { flags: 3, expiry: at(4), marks: Marks::NONE, value, answer: Answer::Stored }
        );
        let delete = |stamp| Request::Delete { key: KEY, stamp };
        assert_eq!(decide(&delete(None), current(b"a")), Decision::Delete);
        assert_eq!(decide(&delete(Some(1)), current(b"a")), Decision::Answer(Outcome::Exists));
        assert_eq!(decide(&delete(None), None), Decision::Answer(Outcome::Missing));
    }

    fn leased(terms: Terms, current: Option<Current<'_>>) -> Result<(Expiry, Marks, bool), Decision> {
        match decide(&Request::GetAndLease { key: KEY, terms }, current) {
            Decision::Store { expiry, marks, answer: Answer::Leased { won, .. }, .. } => Ok((expiry, marks, won)),
            other => Err(other),
        }
    }

    #[test]
    fn one_get_takes_the_lease_on_what_is_absent_stale_or_soon_expired() {
        let none = Terms::default();
        let (stale, vivify) = (Terms { stale: true, ..none }, Terms { vivify: Some(at(9)), ..none });
        let recache = |before| Terms { recache_before: Some(at(before)), ..none };
        assert_eq!(leased(none, None), Err(Decision::Answer(Outcome::Missing)));
        assert_eq!(leased(vivify, None), Ok((at(9), LEASED, true)));
        assert_eq!(leased(vivify, current(b"v")), Err(Decision::Show));
        assert_eq!(leased(stale, current(b"v")), Err(Decision::Show));
        assert_eq!(leased(none, marked(b"v", STALE)), Err(Decision::Show));
        let both = Marks { stale: true, leased: true };
        assert_eq!(leased(stale, marked(b"v", STALE)), Ok((at(4), both, true)));
        assert_eq!(leased(stale, marked(b"v", both)), Err(Decision::Show));
        assert_eq!(leased(recache(4), current(b"v")), Err(Decision::Show));
        assert_eq!(leased(recache(5), current(b"v")), Ok((at(4), LEASED, true)));
        assert_eq!(leased(recache(5), marked(b"v", LEASED)), Err(Decision::Show));
    }

    #[test]
    fn a_touch_goes_before_or_after_the_look_at_the_expiry() {
        let terms = Terms { touch: Some(at(100)), recache_before: Some(at(50)), ..Terms::default() };
        assert_eq!(leased(terms, current(b"v")), Ok((at(100), LEASED, true)));
        assert_eq!(leased(Terms { touch_first: true, ..terms }, current(b"v")), Ok((at(100), Marks::NONE, false)));
        assert_eq!(leased(Terms { touch: Some(at(0)), ..terms }, marked(b"v", LEASED)), Ok((at(0), LEASED, false)));
    }

    #[test]
    fn an_older_stamp_stores_what_is_stale_and_leaves_lease_and_expiry() {
        let request = put(Condition::StampOrOlder(4));
        let marks = Marks { stale: true, leased: true };
        let (value, answer) = (NewValue::Given, Answer::Stored);
        assert_eq!(
            decide(&request, marked(b"old", LEASED)),
            Decision::Store { flags: 1, expiry: at(4), marks, value, answer }
        );
    }

    #[test]
    fn invalidating_takes_the_lease_back_and_any_new_value_ends_both() {
        let invalidate = |stamp, expiry| Request::Invalidate { key: KEY, stamp, expiry };
        let (value, answer) = (NewValue::Same, Answer::Stored);
        let stale = |expiry| Decision::Store { flags: 3, expiry, marks: STALE, value: value.clone(), answer };
        assert_eq!(decide(&invalidate(None, None), marked(b"v", LEASED)), stale(at(4)));
        assert_eq!(decide(&invalidate(Some(5), Some(at(8))), current(b"v")), stale(at(8)));
        assert_eq!(decide(&invalidate(Some(6), None), current(b"v")), Decision::Answer(Outcome::Exists));
        assert_eq!(decide(&invalidate(None, None), None), Decision::Answer(Outcome::Missing));
        for request in [
            put(Condition::Always),
            Request::Append { key: KEY, value: b"1", stamp: None },
            Request::Increment { key: KEY, delta: 1, decrement: false, initial: None, stamp: None, touch: None },
        ] {
            let Decision::Store { marks, .. } = decide(&request, marked(b"1", STALE)) else { panic!("{request:?}") };
            assert_eq!(marks, Marks::NONE, "{request:?}");
        }
    }
}
