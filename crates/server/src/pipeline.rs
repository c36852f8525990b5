//! Gets that change nothing as a pipeline over batches (flash KVS): each stage is done for all of a batch before the next, so that they wait
//! for memory at the same time.
//!
//! ```text
//!   packets ─ parse ─ hash ──┬── tags ──┬── item ──► head, value, tail of the reply
//!                   its bucket is   its item is
//!                     fetched         fetched
//! ```
//! It takes gets from the front of the input as long as DRAM has what they ask for. The first for which that is not so, and what
//! comes after it, goes the way of all requests (`commands`). Owned by one worker.

use std::ops::Range;

use crate::connection::{ManyKeys, Protocol};
use crate::engine::Session;
use crate::protocol::reply::{self, ValueHead};
use crate::protocol::{Parsed, binary, meta, meta_reply, text};
use tapetum::KeyDigest;

/// Gets of a batch: enough to hide the memory's latency, few enough for the cache.
const BATCH: usize = 32;

/// A get of one key. Places count from the start of the input.
struct Get {
    key: Range<usize>,
    /// What it takes of the input.
    input: Range<usize>,
    form: Form,
}

enum Form {
    /// One of the keys of a line. What is left of the list of keys is behind `input`, if this is not the last.
    Text {
        stamps: bool,
        list_end: usize,
        line_end: usize,
        last: bool,
    },
    /// The words of the line from the key on, of which the reply repeats some.
    Meta {
        tail: Range<usize>,
    },
    Binary {
        origin: binary::Origin,
        with_key: bool,
    },
}

/// What a batch came to.
#[derive(Default)]
pub struct Taken {
    /// What was taken of the input. The next byte is a key of `many`, or begins a request.
    pub input_bytes: usize,
    pub gets: usize,
    /// The text get that is still to be gone on with.
    pub many: Option<ManyKeys>,
    /// The last value.
    pub value_bytes: Option<usize>,
    /// The get at which it stopped must be submitted.
    pub stopped: bool,
}

pub struct Pipeline {
    gets: Vec<Get>,
    /// Of their keys.
    digests: [KeyDigest; BATCH],
    /// So many gets are taken into a batch: what is parsed in vain is little where many are not in DRAM.
    ahead: usize,
}

impl Default for Pipeline {
    fn default() -> Pipeline {
        Pipeline { gets: Vec::with_capacity(BATCH), digests: [KeyDigest::default(); BATCH], ahead: 1 }
    }
}

impl Pipeline {
    /// Takes gets from the front of `input`, which begins in the list of keys of `many`, or with a request, and appends their
    /// replies to `out`. `now` is when they came; `may_hold` says whether so many bytes more may be held for them.
    pub fn run<S: Session>(
        &mut self,
        (protocol, now): (Protocol, u32),
        input: &[u8],
        many: Option<ManyKeys>,
        session: &mut S,
        out: &mut Vec<u8>,
        may_hold: impl Fn(usize) -> bool,
    ) -> Taken {
        self.gets.clear();
        let begun = many.is_some();
        match protocol {
            Protocol::Text => self.parse_text(input, many.as_ref()),
            Protocol::Binary => self.parse_binary(input),
            Protocol::Open => {}
        }
        self.hash(input, session);
        for digest in &self.digests[..self.gets.len()] {
            session.prefetch(*digest);
        }
        let mut taken = self.answer(input, now, session, out, may_hold);
        if taken.gets == 0 && begun {
            taken.many = many;
        }
        self.ahead = if taken.stopped { taken.gets.max(1) } else { (self.ahead * 2).min(BATCH) };
        taken
    }

    fn parse_text(&mut self, input: &[u8], many: Option<&ManyKeys>) {
        let mut at = 0;
        if let Some(&ManyKeys { list_bytes, end_bytes, stamps, .. }) = many {
            at = list_bytes + end_bytes;
            if !self.take_keys(input, 0, (list_bytes, at), stamps) {
                return;
            }
        }
        while self.gets.len() < self.ahead && text::begins_get(&input[at..]) {
            let Parsed::Command { command, consumed_bytes, .. } = text::parse(&input[at..], 0, 0) else { return };
            let line_end = at + consumed_bytes;
            let words_end = line_end - text::line_end_bytes(&input[at..line_end]);
            match command {
                text::Command::Get { keys, stamps } => {
                    self.take_keys(input, words_end - keys.len(), (words_end, line_end), stamps);
                }
                text::Command::Meta { line: meta::Line { verb: meta::Verb::Get, key, tail, flags }, .. }
                    if flags.only_show_value() && !flags.base64 =>
                {
                    let key_start = words_end - tail.len();
                    let key = key_start..key_start + key.len();
                    self.gets.push(Get { key, input: at..line_end, form: Form::Meta { tail: key_start..words_end } });
                }
                _ => return,
            }
            at = line_end;
        }
    }

    /// Takes keys of a list; whether there was one.
    fn take_keys(
        &mut self,
        input: &[u8],
        list_start: usize,
        (list_end, line_end): (usize, usize),
        stamps: bool,
    ) -> bool {
        let is_space = |byte: &u8| *byte == b' ';
        let mut start = list_start;
        while self.gets.len() < self.ahead {
            let Some(spaces) = input[start..list_end].iter().position(|byte| !is_space(byte)) else { break };
            let key_start = start + spaces;
            let key_end = input[key_start..list_end].iter().position(is_space).map_or(list_end, |at| key_start + at);
            let last = input[key_end..list_end].iter().all(is_space);
            let end = if last { line_end } else { key_end };
            self.gets.push(Get {
                key: key_start..key_end,
                input: start..end,
                form: Form::Text { stamps, list_end, line_end, last },
            });
            start = key_end;
        }
        start > list_start
    }

    fn parse_binary(&mut self, input: &[u8]) {
        let mut at = 0;
        while self.gets.len() < self.ahead
            && let Some(binary::Get { key, with_key, origin }) = binary::parse_get(&input[at..])
        {
            let key_start = at + binary::HEADER_BYTES;
            let end = key_start + key.len();
            self.gets.push(Get { key: key_start..end, input: at..end, form: Form::Binary { origin, with_key } });
            at = end;
        }
    }

    fn hash<S: Session>(&mut self, input: &[u8], session: &S) {
        let mut keys = [&[][..]; BATCH];
        keys.iter_mut().zip(&self.gets).for_each(|(key, get)| *key = &input[get.key.clone()]);
        session.digest_each(&keys[..self.gets.len()], &mut self.digests);
    }

    fn answer<S: Session>(
        &self,
        input: &[u8],
        now: u32,
        session: &mut S,
        out: &mut Vec<u8>,
        may_hold: impl Fn(usize) -> bool,
    ) -> Taken {
        let start = out.len();
        let mut taken = Taken::default();
        for (get, digest) in self.gets.iter().zip(&self.digests) {
            let key = &input[get.key.clone()];
            let found = session.get_from_dram(*digest, out, |out, item, access| {
                let value_bytes = item.value_bytes;
                if !may_hold(out.len() - start + key.len() + value_bytes) {
                    return false;
                }
                let head = ValueHead { flags: item.flags, stamp: item.stamp, value_bytes };
                match get.form {
                    Form::Text { stamps, .. } => reply::text_value_head(out, key, stamps, head),
                    Form::Meta { ref tail } => {
                        return meta_reply::value_line(out, &input[tail.clone()], now, item, access);
                    }
                    Form::Binary { origin, with_key } => {
                        reply::binary_value_head(out, origin, if with_key { key } else { b"" }, head);
                    }
                }
                true
            });
            let Some(item) = found else {
                taken.stopped = true;
                (taken.input_bytes, taken.many) = (get.input.start, get.rest_from(get.input.start));
                return taken;
            };
            if !matches!(get.form, Form::Binary { .. }) {
                out.extend_from_slice(reply::LINE_END);
            }
            if matches!(get.form, Form::Text { last: true, .. }) {
                out.extend_from_slice(reply::TEXT_GET_END);
            }
            taken.gets += 1;
            (taken.input_bytes, taken.value_bytes) = (get.input.end, Some(item.value_bytes));
            taken.many = get.rest_from(get.input.end);
        }
        taken
    }
}

impl Get {
    /// The text get of which this is a key, as it is to be gone on with at `at`.
    fn rest_from(&self, at: usize) -> Option<ManyKeys> {
        let Form::Text { stamps, list_end, line_end, .. } = self.form else { return None };
        (at < list_end).then(|| ManyKeys {
            list_bytes: list_end - at,
            end_bytes: line_end - list_end,
            touch: None,
            stamps,
        })
    }
}
