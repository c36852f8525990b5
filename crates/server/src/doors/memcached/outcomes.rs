//! The outcomes of requests, counted as memcached counts them.

use tapetum::{Error, Outcome, Reply};

use crate::protocol::meta_reply::MetaAnswer;
use crate::protocol::reply::{BinaryAnswer, Form, TextAnswer};
use crate::stats::latencies::TimedRequest;
use crate::stats::{Counters, count};

/// Counts a request's outcome.
pub fn count_outcome(counters: &Counters, form: Form, outcome: &Outcome) {
    let found = !matches!(outcome, Outcome::Missing);
    let pick = |hit, miss| if found { hit } else { miss };
    match outcome {
        Outcome::Failed(Error::ValueTooLarge { .. }) => return count(&counters.store_too_large, 1),
        Outcome::Failed(error) if error.is_full() => return count(&counters.store_no_memory, 1),
        Outcome::Failed(_) | Outcome::NotNumber => return,
        Outcome::Stored { .. } => count(&counters.total_items, 1),
        _ => {}
    }
    match form {
        Form::TextGet { touch, .. } | Form::Binary { answer: BinaryAnswer::Get { touch, .. }, .. } => match touch {
            false => count(pick(&counters.get_hits, &counters.get_misses), 1),
            true => count(pick(&counters.touch_hits, &counters.touch_misses), 1),
        },
        Form::Text { answer: TextAnswer::Touch, .. } | Form::Binary { answer: BinaryAnswer::Touch, .. } => {
            count(pick(&counters.touch_hits, &counters.touch_misses), 1);
        }
        Form::Text { answer: TextAnswer::Delete, .. } | Form::Binary { answer: BinaryAnswer::Delete, .. } => {
            count(pick(&counters.delete_hits, &counters.delete_misses), 1);
        }
        Form::Text { answer: TextAnswer::Increment { decrement }, .. }
        | Form::Binary { answer: BinaryAnswer::Increment { decrement }, .. } => match decrement {
            false => count(pick(&counters.incr_hits, &counters.incr_misses), 1),
            true => count(pick(&counters.decr_hits, &counters.decr_misses), 1),
        },
        Form::Text { answer: TextAnswer::Store { stamped: true }, .. }
        | Form::Binary { answer: BinaryAnswer::Store { stamped: true, .. }, .. } => match outcome {
            Outcome::Exists => count(&counters.cas_badval, 1),
            _ => count(pick(&counters.cas_hits, &counters.cas_misses), 1),
        },
        Form::Meta { answer, .. } => count_meta_outcome(counters, answer, outcome),
        _ => {}
    }
}

/// The histogram of a request's latency, if it has one.
pub fn timed(form: Form, reply: &Reply) -> Option<TimedRequest> {
    match (form, &reply.outcome) {
        (_, Outcome::Value { .. } | Outcome::Leased { .. }) if form.is_get() => Some(match reply.read_flash {
            true => TimedRequest::GetFromFlash,
            false => TimedRequest::GetFromMemory,
        }),
        (
            Form::Text { answer: TextAnswer::Store { .. }, .. }
            | Form::Binary { answer: BinaryAnswer::Store { .. }, .. }
            | Form::Meta { answer: MetaAnswer::Set { .. }, .. },
            Outcome::Stored { .. },
        ) => Some(TimedRequest::Set),
        _ => None,
    }
}

/// As memcached counts meta commands: a get only when it is answered.
fn count_meta_outcome(counters: &Counters, answer: MetaAnswer, outcome: &Outcome) {
    match (answer, outcome) {
        (MetaAnswer::Get { touch: true }, Outcome::Leased { .. }) => {
            count(&counters.cmd_touch, 1);
            count(&counters.touch_hits, 1);
        }
        (MetaAnswer::Get { .. }, _) => {
            count(&counters.cmd_get, 1);
            count(if *outcome == Outcome::Missing { &counters.get_misses } else { &counters.get_hits }, 1);
        }
        (MetaAnswer::Set { stamped: true }, Outcome::Exists) => count(&counters.cas_badval, 1),
        (MetaAnswer::Set { stamped: true }, Outcome::Missing) => count(&counters.cas_misses, 1),
        (MetaAnswer::Set { stamped: true }, _) => count(&counters.cas_hits, 1),
        (MetaAnswer::Delete { .. }, Outcome::Missing | Outcome::Exists) => count(&counters.delete_misses, 1),
        (MetaAnswer::Delete { invalidate: false }, _) => count(&counters.delete_hits, 1),
        (MetaAnswer::Arithmetic { decrement: false }, Outcome::Missing) => count(&counters.incr_misses, 1),
        (MetaAnswer::Arithmetic { decrement: true }, Outcome::Missing) => count(&counters.decr_misses, 1),
        (MetaAnswer::Arithmetic { decrement }, Outcome::Number { expiry_before: Some(_), .. }) => {
            count(if decrement { &counters.decr_hits } else { &counters.incr_hits }, 1);
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::Ordering;

    #[test]
    fn a_stamp_that_differs_is_counted_apart() {
        let counters = Counters::default();
        let form = Form::Text { answer: TextAnswer::Store { stamped: true }, noreply: false };
        count_outcome(&counters, form, &Outcome::Exists);
        count_outcome(&counters, form, &Outcome::Missing);
        count_outcome(&counters, form, &Outcome::Stored { stamp: 1 });
        let values = [&counters.cas_badval, &counters.cas_misses, &counters.cas_hits, &counters.total_items];
        assert_eq!(values.map(|value| value.load(Ordering::Relaxed)), [1; 4]);
    }
}
