//! Runs gets that change nothing, and sets, as a pipeline over batches (flash KVS): each stage runs for the whole batch before the next
//! one, so that the cache misses of a stage overlap.
//!
//! ```text
//!   packets ─ parse ─ hash ──┬── tags ──┬── item ──► head, value, tail of the reply
//!                   its bucket is   its item is
//!                     fetched         fetched
//! ```
//! It takes requests from the front of the input, while DRAM has the items of the gets and room for the sets. The first other request, and
//! all behind it, are submitted as usual (`commands`). Owned by one worker.

use std::ops::Range;
use tapetum::Expiry;

use super::door::{ManyKeys, Protocol};
use crate::os;
use crate::protocol::reply::{self, BinaryAnswer, TextAnswer, ValueHead};
use crate::protocol::{KEY_BYTES_MAX, Parsed, binary, expiry_from_client, meta, meta_reply, text};
use tapetum::PlainPut;
use tapetum::{KeyDigest, KeyspaceRef, Outcome, Session};

/// Requests of a batch: enough to hide memory latency, few enough for the cache.
const BATCH: usize = 32;
const _: () = assert!(os::EVENTS_MAX <= BATCH, "what one report brings is fetched at once, and has bits in a word");

/// A get or set of one key. Ranges count from the start of the input.
struct TakenRequest {
    key: Range<usize>,
    /// The part of the input that the request takes.
    input: Range<usize>,
    kind: TakenKind,
}

enum TakenKind {
    /// One key of a line. The rest of the list of keys follows `input`, unless this is the last key.
    TextGet {
        stamps: bool,
        list_end: usize,
        /// Bytes of the line end, or as `list_end` if the line goes on.
        line_end: usize,
        goes_on: bool,
        /// The get ends with it.
        last: bool,
    },
    /// The words of the line from the key on. The reply repeats some of them.
    MetaGet {
        tail: Range<usize>,
    },
    BinaryGet {
        origin: binary::Origin,
        with_key: bool,
    },
    Set {
        value: Range<usize>,
        flags: u32,
        expiry: Expiry,
        form: reply::Form,
    },
}

/// The context of a batch's requests.
#[derive(Clone, Copy)]
pub struct Came {
    pub protocol: Protocol,
    pub keyspace: KeyspaceRef,
    /// The rights of the client's user.
    pub may_get: bool,
    pub may_set: bool,
    /// Arrival time, in unix seconds.
    pub now: u32,
    /// The longest value that is accepted.
    pub item_bytes_max: usize,
}

/// The kinds of requests that a session can answer at once.
#[derive(Clone, Copy)]
struct Takes {
    gets: bool,
    sets: bool,
}

/// The result of a run over the input.
#[derive(Default)]
pub struct Taken {
    /// Bytes of input that were taken. The next byte is a key of `many`, or begins a request.
    pub input_bytes: usize,
    pub gets: usize,
    pub sets: usize,
    /// The text get whose keys are not all taken yet.
    pub many: Option<ManyKeys>,
    /// The length of the last value that a get found.
    pub value_bytes: Option<usize>,
    /// The next request must be submitted the slow way.
    pub stopped: bool,
}

impl Taken {
    pub fn requests(&self) -> usize {
        self.gets + self.sets
    }
}

pub struct Pipeline {
    batch: Vec<TakenRequest>,
    /// Digests of the batch's keys.
    digests: [KeyDigest; BATCH],
    /// Batch size. Small, because requests parsed here but not answered are parsed again by the slow path.
    ahead: usize,
}

impl Default for Pipeline {
    fn default() -> Pipeline {
        Pipeline { batch: Vec::with_capacity(BATCH), digests: [KeyDigest::default(); BATCH], ahead: 1 }
    }
}

impl Pipeline {
    /// Takes gets and sets from the front of `input`, which begins in the list of keys of `many`, or with a request, and appends their
    /// replies to `out`. `may_hold` says whether so many more bytes may be held for replies.
    pub fn run(
        &mut self,
        came: Came,
        input: &[u8],
        many: Option<ManyKeys>,
        session: &mut Session,
        out: &mut Vec<u8>,
        may_hold: impl Fn(usize) -> bool,
    ) -> Taken {
        self.batch.clear();
        let begun = many.is_some();
        let takes =
            Takes { gets: came.may_get && session.answers_from_dram(), sets: came.may_set && session.puts_at_once() };
        match came.protocol {
            Protocol::Text => self.parse_text(came, takes, input, many.as_ref()),
            Protocol::Binary => self.parse_binary(came, takes, input),
            Protocol::Open => {}
        }
        self.hash(came.keyspace, input, session);
        let is_put = |asked: &TakenRequest| u32::from(matches!(asked.kind, TakenKind::Set { .. }));
        let puts = self.batch.iter().enumerate().map(|(number, asked)| is_put(asked) << number).sum();
        session.fetch_each(&self.digests[..self.batch.len()], puts);
        let mut taken = self.answer(input, came, session, out, may_hold);
        if taken.requests() == 0 && begun {
            taken.many = many;
        }
        self.ahead = if taken.stopped { taken.requests().max(1) } else { (self.ahead * 2).min(BATCH) };
        taken
    }

    /// Prefetches the items of the first requests of several inputs, at most a batch. A hint: nothing depends on it.
    pub fn fetch_ahead<'a>(&mut self, inputs: impl Iterator<Item = (KeyspaceRef, &'a [u8])>, session: &Session) {
        if !answers_at_once(session) {
            return;
        }
        let (mut keys, mut count, mut puts) = ([&[][..]; BATCH], 0, 0);
        let mut keyspaces = [KeyspaceRef::DEFAULT; BATCH];
        for (keyspace, (key, is_put)) in inputs.filter_map(|(keyspace, input)| Some((keyspace, first_key(input)?))) {
            (keyspaces[count], keys[count]) = (keyspace, key);
            puts |= u32::from(is_put) << count;
            count += 1;
        }
        // A single request gains nothing: its own run fetches it as soon.
        if count < 2 {
            return;
        }
        let mut start = 0;
        for run in keyspaces[..count].chunk_by(PartialEq::eq) {
            let end = start + run.len();
            session.digest_each(run[0], &keys[start..end], &mut self.digests[start..end]);
            start = end;
        }
        session.fetch_each(&self.digests[..count], puts);
    }

    fn parse_text(&mut self, came: Came, takes: Takes, input: &[u8], many: Option<&ManyKeys>) {
        let mut at = 0;
        if let Some(&ManyKeys { list_bytes, end_bytes, stamps, goes_on, .. }) = many {
            at = list_bytes + end_bytes;
            // No other command follows a list that goes on.
            if !takes.gets || !self.take_keys(input, 0, list_bytes, at, stamps, goes_on) || goes_on {
                return;
            }
        }
        while self.batch.len() < self.ahead
            && (takes.gets && text::begins_get(&input[at..]) || takes.sets && text::begins_set(&input[at..]))
        {
            let Parsed::Command { command, consumed_bytes, skip_bytes: 0 } =
                text::parse(&input[at..], 0, came.item_bytes_max)
            else {
                return;
            };
            let end = at + consumed_bytes;
            match command {
                text::TextCommand::Get { keys, stamps, goes_on } => {
                    let list = place_in(input, keys);
                    self.take_keys(input, list.start, list.end, end, stamps, goes_on);
                    if goes_on {
                        return;
                    }
                }
                text::TextCommand::Meta {
                    line: meta::Line { verb: meta::MetaVerb::Get, key, tail, flags }, ..
                } if flags.only_show_value() && !flags.base64 => {
                    let (key, tail) = (place_in(input, key), place_in(input, tail));
                    self.batch.push(TakenRequest { key, input: at..end, kind: TakenKind::MetaGet { tail } });
                }
                text::TextCommand::Store { verb: text::TextVerb::Set, key, flags, exptime, value, noreply, .. } => {
                    let form = reply::Form::Text { answer: TextAnswer::Store { stamped: false }, noreply };
                    self.batch.push(TakenRequest {
                        key: place_in(input, key),
                        input: at..end,
                        kind: TakenKind::Set {
                            value: place_in(input, value),
                            flags,
                            expiry: expiry_from_client(exptime, came.now),
                            form,
                        },
                    });
                }
                _ => return,
            }
            at = end;
        }
    }

    /// Takes keys of a list. Returns whether there was one.
    fn take_keys(
        &mut self,
        input: &[u8],
        list_start: usize,
        list_end: usize,
        line_end: usize,
        stamps: bool,
        goes_on: bool,
    ) -> bool {
        let is_space = |byte: &u8| *byte == b' ';
        let mut start = list_start;
        while self.batch.len() < self.ahead {
            let Some(spaces) = input[start..list_end].iter().position(|byte| !is_space(byte)) else { break };
            let key_start = start + spaces;
            let key_end = input[key_start..list_end].iter().position(is_space).map_or(list_end, |at| key_start + at);
            let last = !goes_on && input[key_end..list_end].iter().all(is_space);
            let end = if last { line_end } else { key_end };
            self.batch.push(TakenRequest {
                key: key_start..key_end,
                input: start..end,
                kind: TakenKind::TextGet { stamps, list_end, line_end, goes_on, last },
            });
            start = key_end;
        }
        start > list_start
    }

    fn parse_binary(&mut self, came: Came, takes: Takes, input: &[u8]) {
        let mut at = 0;
        while self.batch.len() < self.ahead {
            if takes.gets
                && let Some(get) = binary::parse_get(&input[at..])
            {
                let binary::Get { key, with_key, origin } = get;
                let key = place_in(input, key);
                let (input, kind) = (at..key.end, TakenKind::BinaryGet { origin, with_key });
                at = key.end;
                self.batch.push(TakenRequest { key, input, kind });
            } else if takes.sets
                && let Some(set) = binary::parse_set(&input[at..], came.item_bytes_max)
            {
                let binary::Set { key, value, flags, exptime, quiet, origin } = set;
                let (key, value) = (place_in(input, key), place_in(input, value));
                let answer = BinaryAnswer::Store { verb: binary::BinaryVerb::Set, stamped: false };
                let (input, expiry) = (at..value.end, expiry_from_client(i64::from(exptime), came.now));
                at = value.end;
                let form = reply::Form::Binary { answer, origin, quiet };
                self.batch.push(TakenRequest { key, input, kind: TakenKind::Set { value, flags, expiry, form } });
            } else {
                return;
            }
        }
    }

    fn hash(&mut self, keyspace: KeyspaceRef, input: &[u8], session: &Session) {
        let mut keys = [&[][..]; BATCH];
        keys.iter_mut().zip(&self.batch).for_each(|(key, asked)| *key = &input[asked.key.clone()]);
        session.digest_each(keyspace, &keys[..self.batch.len()], &mut self.digests);
    }

    fn answer(
        &self,
        input: &[u8],
        came: Came,
        session: &mut Session,
        out: &mut Vec<u8>,
        may_hold: impl Fn(usize) -> bool,
    ) -> Taken {
        let (keyspace, start) = (came.keyspace, out.len());
        let mut taken = Taken::default();
        for (asked, digest) in self.batch.iter().zip(&self.digests) {
            let key = &input[asked.key.clone()];
            let held = |out: &[u8], bytes: usize| may_hold(out.len() - start + key.len() + bytes);
            let answered = match asked.kind {
                TakenKind::Set { ref value, flags, expiry, form } => {
                    let put = PlainPut { key, value: &input[value.clone()], flags, expiry };
                    held(out, 0) && set(session, keyspace, *digest, put, form, out)
                }
                _ => match get(session, came, *digest, asked, input, out, held) {
                    Some(value_bytes) => {
                        taken.value_bytes = Some(value_bytes);
                        true
                    }
                    None => false,
                },
            };
            if !answered {
                taken.stopped = true;
                (taken.input_bytes, taken.many) = (asked.input.start, asked.rest_from(asked.input.start));
                return taken;
            }
            match asked.kind {
                TakenKind::Set { .. } => taken.sets += 1,
                _ => taken.gets += 1,
            }
            (taken.input_bytes, taken.many) = (asked.input.end, asked.rest_from(asked.input.end));
        }
        taken
    }
}

/// Whether DRAM answers gets or sets at once, in stages: see [`Session::digest_each`].
pub fn answers_at_once(session: &Session) -> bool {
    session.answers_from_dram() || session.puts_at_once()
}

/// The key of the get or set that the input begins with, and whether it is a set. For other input it may return a key too.
fn first_key(input: &[u8]) -> Option<(&[u8], bool)> {
    if let Some(found) = binary::key_of(input) {
        return Some(found);
    }
    if !text::begins_get(input) && !text::begins_set(input) {
        return None;
    }
    let mut words = input.split(|byte| matches!(byte, b' ' | b'\r' | b'\n')).filter(|word| !word.is_empty());
    let (verb, key) = (words.next()?, words.next()?);
    (key.len() <= KEY_BYTES_MAX).then_some((key, verb == b"set"))
}

/// Answers a get. Returns the length of its value; `None` if it must be submitted.
fn get(
    session: &mut Session,
    came: Came,
    digest: KeyDigest,
    asked: &TakenRequest,
    input: &[u8],
    out: &mut Vec<u8>,
    may_hold: impl Fn(&[u8], usize) -> bool,
) -> Option<usize> {
    let Came { keyspace, now, .. } = came;
    let (key, kind) = (&input[asked.key.clone()], &asked.kind);
    let item = session.get_from_dram(keyspace, digest, out, |out, item, access| {
        let value_bytes = item.value_bytes;
        if !may_hold(out, value_bytes) {
            return false;
        }
        let head = ValueHead { flags: item.flags, stamp: item.stamp, value_bytes };
        match *kind {
            TakenKind::TextGet { stamps, .. } => reply::text_value_head(out, key, stamps, head),
            TakenKind::MetaGet { ref tail } => {
                return meta_reply::value_line(out, &input[tail.clone()], now, item, access());
            }
            TakenKind::BinaryGet { origin, with_key } => {
                reply::binary_value_head(out, origin, if with_key { key } else { b"" }, head);
            }
            TakenKind::Set { .. } => unreachable!("a set is no get"),
        }
        true
    })?;
    if !matches!(kind, TakenKind::BinaryGet { .. }) {
        out.extend_from_slice(reply::LINE_END);
    }
    if matches!(kind, TakenKind::TextGet { last: true, .. }) {
        out.extend_from_slice(reply::TEXT_GET_END);
    }
    Some(item.value_bytes)
}

/// Does a set. Returns `false` if it must be submitted.
fn set(
    session: &mut Session,
    keyspace: KeyspaceRef,
    digest: KeyDigest,
    put: PlainPut<'_>,
    form: reply::Form,
    out: &mut Vec<u8>,
) -> bool {
    let Some(stamp) = session.put_at_once(keyspace, digest, put) else { return false };
    reply::encode(out, form, put.key, &Outcome::Stored { stamp }, b"");
    true
}

/// The range of `part` within `input`.
fn place_in(input: &[u8], part: &[u8]) -> Range<usize> {
    let start = part.as_ptr() as usize - input.as_ptr() as usize;
    start..start + part.len()
}

impl TakenRequest {
    /// The text get that this key belongs to, to be continued at `at`.
    fn rest_from(&self, at: usize) -> Option<ManyKeys> {
        let TakenKind::TextGet { stamps, list_end, line_end, goes_on, .. } = self.kind else { return None };
        (at < list_end || goes_on).then(|| ManyKeys {
            list_bytes: list_end - at,
            end_bytes: line_end - list_end,
            goes_on,
            touch: None,
            stamps,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_key_of_an_input_is_found() {
        let long = [b"get ", &[b'k'; KEY_BYTES_MAX + 1][..], b"\r\n"].concat();
        let binary = [&[0x80, 0, 0, 2][..], &[0; 7], &[2], &[0; 12], b"ab"].concat();
        let gets: [(&[u8], &str); 4] =
            [(b"get a b\r\n", "a"), (b"gets  ab\nget c\n", "ab"), (b"mg ab v\r\n", "ab"), (&binary, "ab")];
        for (input, key) in gets {
            assert_eq!(first_key(input), Some((key.as_bytes(), false)), "{}", input.escape_ascii());
        }
        let binary = [&[0x80, 1, 0, 2, 8][..], &[0; 6], &[11], &[0; 12], &[0; 8], b"abx"].concat();
        for set in [&b"set ab 0 0 1\r\nx"[..], &binary] {
            assert_eq!(first_key(set), Some((&b"ab"[..], true)), "{}", set.escape_ascii());
        }
        for input in [&b"delete ab\r\n"[..], b"get ", b"", &long] {
            assert_eq!(first_key(input), None, "{}", input.escape_ascii());
        }
    }
}
