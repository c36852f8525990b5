use super::*;
use crate::protocol::reply::TextAnswer;
use proptest::prelude::*;
use tapetum::Expiry;
use tapetum::{Error, ValueRange};

const GET: Form = Form::TextGet { stamps: false, touch: false };

struct SlotBench {
    slots: Slots,
    out: OutQueue,
    pool: Pool,
}

impl SlotBench {
    fn new() -> SlotBench {
        SlotBench { slots: Slots::default(), out: OutQueue::default(), pool: Pool::default() }
    }

    fn end(&mut self) {
        self.slots.answer(&mut self.out, &mut self.pool, Form::TextGetEnd, |out| out.extend_from_slice(b"END\r\n"));
    }

    fn hit(&mut self, number: u32, value: &[u8]) {
        let value_range = ValueRange { start: 0, end: value.len() };
        let outcome = Outcome::Value { flags: 0, stamp: 0, expiry: Expiry::NONE, value: value_range };
        self.slots.complete(number, &outcome, value, &mut self.out, &mut self.pool);
    }

    fn outcome(&mut self, number: u32, outcome: Outcome) {
        self.slots.complete(number, &outcome, b"", &mut self.out, &mut self.pool);
    }

    fn text(&mut self) -> String {
        let mut text = String::new();
        while !self.out.is_empty() {
            text.push_str(&String::from_utf8(self.out.take_first()).unwrap());
        }
        text
    }
}

#[test]
fn replies_leave_in_the_order_of_their_requests() {
    let mut bench = SlotBench::new();
    let a = bench.slots.push(GET, b"a", 10);
    let b = bench.slots.push(GET, b"b", 10);
    bench.end();
    let c = bench.slots.push(Form::Text { answer: TextAnswer::Delete, noreply: false }, b"c", 10);
    bench.outcome(c, Outcome::Deleted);
    bench.hit(b, b"2");
    assert!(bench.out.is_empty());
    assert_eq!((bench.slots.pending(), bench.slots.charged_bytes), (1, 10));
    bench.hit(a, b"1");
    assert!(bench.slots.is_empty());
    assert_eq!(bench.text(), "VALUE a 0 1\r\n1\r\nVALUE b 0 1\r\n2\r\nEND\r\nDELETED\r\n");
    assert_eq!(bench.slots.held_bytes(), 0);
}

#[test]
fn a_failed_get_ends_with_its_failure() {
    for order in [[0, 1, 2], [2, 1, 0], [1, 0, 2]] {
        let mut bench = SlotBench::new();
        let numbers = [b"a", b"b", b"c"].map(|key| bench.slots.push(GET, key, 0));
        bench.end();
        let next = bench.slots.push(GET, b"d", 0);
        bench.end();
        for at in order {
            match at {
                1 => bench.outcome(numbers[1], Outcome::Failed(Error::Io("x".into()))),
                _ => bench.hit(numbers[at], b"v"),
            }
        }
        bench.hit(next, b"w");
        let text = bench.text();
        assert!(text.starts_with("VALUE a 0 1\r\nv\r\nSERVER_ERROR "), "{text}");
        assert!(text.ends_with("kernel's log\r\nVALUE d 0 1\r\nw\r\nEND\r\n"), "{text}");
    }
}

#[test]
fn what_may_ask_may_be_overtaken_until_it_is_answered() {
    let mut bench = SlotBench::new();
    bench.slots.first = u32::MAX;
    let [a, other, again] = [b"a", b"b", b"a"].map(|key| {
        let number = bench.slots.push(GET, key, 0);
        assert_eq!(bench.slots.may_overtake(b"a", NextOfKey::Change), number != u32::MAX);
        bench.slots.last_may_ask(key, false);
        number
    });
    bench.slots.push(GET, b"c", 0);
    assert_eq!([b"a", b"b", b"c"].map(|key| bench.slots.may_overtake(key, NextOfKey::Change)), [true, true, false]);
    bench.hit(again, b"v");
    assert!(bench.slots.may_overtake(b"a", NextOfKey::Change), "the first one");
    assert!(!bench.slots.may_overtake(b"a", NextOfKey::Get), "reads do not see each other");
    bench.hit(a, b"v");
    assert_eq!([b"a", b"b"].map(|key| bench.slots.may_overtake(key, NextOfKey::Change)), [false, true]);
    bench.outcome(other, Outcome::Failed(Error::Io("x".into())));
    assert!(!bench.slots.may_overtake(b"b", NextOfKey::Change));
    let append = bench.slots.push(Form::Silent, b"", 0);
    bench.slots.last_may_ask(b"d", true);
    assert!(bench.slots.may_ask(append) && bench.slots.may_overtake(b"d", NextOfKey::Get), "a read sees a change");
    assert!(bench.slots.may_overtake(b"d", NextOfKey::Change) && !bench.slots.may_overtake(b"d", NextOfKey::Append));
}

proptest! {
    /// Any order of outcomes gives the same stream, over many rounds, so that key space is reused and numbers wrap.
    #[test]
    fn any_order_of_outcomes_gives_one_stream(
        rounds in prop::collection::vec(prop::collection::vec((any::<u16>(), 0usize..200), 1..40), 1..30),
        lead in 0usize..20,
    ) {
        let mut bench = SlotBench::new();
        bench.slots.first = u32::MAX - 7;
        let (mut expected, mut open) = (String::new(), Vec::new());
        for round in &rounds {
            for (rank, length) in round {
                let key = "k".repeat(length + 1);
                open.push((*rank, bench.slots.push(GET, key.as_bytes(), 1)));
                expected.push_str(&format!("VALUE {key} 0 1\r\nv\r\n"));
                if rank % 4 == 0 {
                    bench.end();
                    expected.push_str("END\r\n");
                }
            }
            open.sort_by_key(|&(rank, number)| (rank, number.wrapping_add(8)));
            // Some stay open into the next round.
            let stay = lead.min(open.len());
            for (_, number) in open.drain(stay..) {
                bench.hit(number, b"v");
            }
        }
        for (_, number) in open {
            bench.hit(number, b"v");
        }
        prop_assert!(bench.slots.is_empty());
        prop_assert_eq!(bench.slots.held_bytes(), 0);
        prop_assert_eq!(bench.text(), expected);
    }
}
