//! Streams of memcached clients over a session that answers when told to: order, limits, room for values.

use std::collections::HashMap;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use tapetum::Expiry;

use tapetum::{Access, Ask, Condition, DramItem, KeyDigest, KeyspaceRef, Marks, Outcome, Reply, Request, ValueRange};

use super::door::Memcached;
use super::pipeline::Pipeline;
use crate::net::arrivals::Arrivals;
use crate::net::connection::{Client, Connection, Stream};
use crate::net::context::{Alone, Context};
use crate::net::gets::Gets;
use crate::net::limits::{FREE_BYTES, Limits};
use crate::protocol::many_keys::GET_PIECE_BYTES;
use crate::store::engine::Session;
use std::os::fd::RawFd;
use tapetum::PlainPut;

/// A session that answers when told to: gets with the stored value, or else with `value`; all others with a stamp. It can answer gets and
/// puts of keys in `dram` at once.
#[derive(Default)]
struct Slow {
    submitted: Vec<Submitted>,
    /// Gets that asked for room and have no answer yet.
    asking: Vec<Submitted>,
    asks: Vec<Ask>,
    value: Vec<u8>,
    dram: Vec<&'static [u8]>,
    /// Gets are not answered at once, as in a store without a DRAM tier.
    gets_wait: bool,
    /// The session has room for so many requests in flight.
    in_flight_max: Option<usize>,
    /// By key: value, flags, and the number of puts before it, for values put unconditionally.
    items: HashMap<Vec<u8>, (Vec<u8>, u32, u64)>,
    puts: u64,
    /// Values of the current replies.
    values: Vec<u8>,
}

struct Submitted {
    reply: Reply,
    /// A get of a key that was not put. It gives `value` as it is when the reply comes.
    shows_value: bool,
    is_change: bool,
    value_bytes_allowed: usize,
}

impl Slow {
    /// Value, flags and stamp.
    fn item(&self, key: &[u8]) -> (&[u8], u32, u64) {
        self.items.get(key).map_or((&self.value, 0, 1), |(value, flags, stamp)| (value, *flags, *stamp))
    }

    fn put(&mut self, key: &[u8], value: &[u8], flags: u32) -> u64 {
        self.puts += 1;
        self.items.insert(key.to_vec(), (value.to_vec(), flags, 1 + self.puts));
        1 + self.puts
    }
}

impl Session for Slow {
    fn submit(&mut self, keyspace: KeyspaceRef, token: u64, request: Request<'_>) {
        self.submit_within(keyspace, token, request, usize::MAX);
    }

    fn submit_within(&mut self, _: KeyspaceRef, token: u64, request: Request<'_>, value_bytes_allowed: usize) {
        let (value, flags, stamp) = self.item(request.key());
        let (start, value) = (self.values.len(), value.to_vec());
        let (marks, won, access) = (Marks::NONE, false, Access::default());
        let outcome = match request {
            Request::Get { .. } | Request::GetAndLease { .. } => {
                self.values.extend_from_slice(&value);
                let value = ValueRange { start, end: self.values.len() };
                match request {
                    Request::Get { .. } => Outcome::Value { flags, stamp, expiry: Expiry::NONE, value },
                    _ => Outcome::Leased { flags, stamp, expiry_before: Some(Expiry::NONE), marks, won, access, value },
                }
            }
            Request::Put { key, value, flags, condition: Condition::Always, .. } => {
                Outcome::Stored { stamp: self.put(key, value, flags) }
            }
            _ => Outcome::Stored { stamp: 1 },
        };
        let shows_value = !self.items.contains_key(request.key());
        let (reply, is_change) = (Reply { token, outcome, read_flash: false }, !request.reads());
        self.submitted.push(Submitted { reply, shows_value, is_change, value_bytes_allowed });
    }

    fn poll(&mut self, replies: &mut Vec<Reply>) {
        for mut submitted in self.submitted.drain(..) {
            let Submitted { reply, shows_value, value_bytes_allowed, .. } = &mut submitted;
            if let Outcome::Value { value, .. } | Outcome::Leased { value, .. } = &mut reply.outcome
                && *shows_value
            {
                if self.value.len() > *value_bytes_allowed {
                    self.asks.push(Ask { token: reply.token, value_bytes: self.value.len() });
                    self.asking.push(submitted);
                    continue;
                }
                value.start = self.values.len();
                self.values.extend_from_slice(&self.value);
                value.end = self.values.len();
            }
            replies.push(submitted.reply);
        }
    }

    fn take_asks(&mut self, asks: &mut Vec<Ask>) {
        asks.append(&mut self.asks);
    }

    fn allow_value(&mut self, token: u64, value_bytes: usize) {
        let at = self.asking.iter().position(|asking| asking.reply.token == token).unwrap();
        self.submitted.push(Submitted { value_bytes_allowed: value_bytes, ..self.asking.remove(at) });
    }

    fn give_up_value(&mut self, token: u64) {
        self.allow_value(token, usize::MAX);
        self.submitted.last_mut().unwrap().reply.outcome = Outcome::Missing;
    }

    fn bytes(&self, value: ValueRange) -> &[u8] {
        &self.values[value.start..value.end]
    }

    fn in_flight(&self) -> usize {
        self.submitted.len() + self.asking.len()
    }

    fn has_room(&self) -> bool {
        self.in_flight_max.is_none_or(|max| self.in_flight() < max)
    }

    fn event_fds(&self) -> Vec<RawFd> {
        Vec::new()
    }

    fn answers_from_dram(&self) -> bool {
        !self.gets_wait
    }

    fn digest_each(&self, _: KeyspaceRef, keys: &[&[u8]], digests: &mut [KeyDigest]) {
        for (key, digest) in keys.iter().zip(digests) {
            *digest = KeyDigest(self.dram.iter().position(|other| other == key).map_or(0, |at| 1 + at as u128));
        }
    }

    fn get_from_dram(
        &mut self,
        _: KeyspaceRef,
        KeyDigest(digest): KeyDigest,
        out: &mut Vec<u8>,
        mut head: impl FnMut(&mut Vec<u8>, &DramItem, &dyn Fn() -> Access) -> bool,
    ) -> Option<DramItem> {
        let key = self.dram.get((digest as usize).checked_sub(1)?)?;
        let (value, flags, stamp) = self.item(key);
        let item = DramItem { flags, expiry: Expiry::NONE, stamp, value_bytes: value.len(), marks: Marks::default() };
        head(out, &item, &Access::default).then(|| {
            out.extend_from_slice(value);
            item
        })
    }

    fn puts_at_once(&self) -> bool {
        true
    }

    fn put_at_once(&mut self, _: KeyspaceRef, KeyDigest(digest): KeyDigest, put: PlainPut<'_>) -> Option<u64> {
        (digest > 0).then(|| self.put(put.key, put.value, put.flags))
    }
}

struct StreamBench {
    stream: Stream<Memcached>,
    client: UnixStream,
    alone: Alone<Slow, Pipeline>,
    /// Input comes in pieces through [`crate::net::arrivals`], while the stream brings little.
    arrives: bool,
}

impl StreamBench {
    fn new(limits: Limits) -> StreamBench {
        let (client, server) = UnixStream::pair().unwrap();
        server.set_nonblocking(true).unwrap();
        let connection = Connection { client: Client::new(0, 0), door: Memcached::default() };
        let (stream, alone) =
            (Stream::new(server.into(), None, connection, 0), Alone::new(Slow::default(), limits, 4096));
        StreamBench { stream, client, alone, arrives: true }
    }

    fn with<R>(&mut self, work: impl FnOnce(&mut Stream<Memcached>, &mut Context<'_, Slow, Pipeline>) -> R) -> R {
        work(&mut self.stream, &mut self.alone.context(1))
    }

    fn send(&mut self, bytes: &[u8]) {
        self.client.write_all(bytes).unwrap();
        self.read();
        self.stream.settle(&self.alone.budget);
    }

    fn read(&mut self) {
        let mut arrivals = Arrivals::new();
        if self.arrives && self.stream.brings_little() && arrivals.read(0, self.stream.socket()) {
            for (_, piece) in arrivals.iter() {
                self.with(|stream, cx| stream.take_arrived(piece, cx));
            }
            return;
        }
        self.with(|stream, cx| stream.read(cx));
    }

    /// Polls the store once, and handles the results.
    fn poll(&mut self) {
        let mut replies = Vec::new();
        self.alone.session.poll(&mut replies);
        for reply in replies {
            self.with(|stream, cx| stream.connection.complete(reply.token as u32, &reply, cx));
        }
        let mut asks = Vec::new();
        self.alone.session.take_asks(&mut asks);
        for Ask { token, value_bytes } in asks {
            self.with(|stream, cx| stream.connection.ask(token as u32, value_bytes, cx));
        }
        self.with(|stream, cx| stream.advance(cx));
        self.stream.send(&mut self.alone.pool, &self.alone.figures.counters[0], 1);
        self.stream.settle(&self.alone.budget);
    }
}

#[test]
fn at_rest_it_holds_no_buffer() {
    let mut bench = StreamBench::new(Limits::default());
    for _ in 0..3 {
        bench.alone.session.value = vec![b'v'; 40_000];
        bench.send(&b"get a b c\r\n".repeat(20));
        bench.send(b"set k 0 0 10000\r\n");
        bench.send(&[b'x'; 10_000]);
        bench.send(b"\r\n");
        while bench.alone.session.in_flight() > 0 || !bench.stream.connection.client.out.is_empty() {
            bench.poll();
            let mut sink = vec![0; 1 << 20];
            let _ = bench.client.read(&mut sink).unwrap();
        }
    }
    assert_eq!(bench.stream.input.capacity(), 0);
    assert!(bench.stream.connection.door.slots.is_empty());
    assert_eq!((bench.stream.connection.client.charged_bytes, bench.alone.budget.used_bytes()), (0, 0));
    assert!(bench.alone.gets.is_idle());
}

/// The replies to a client that sends `input` in pieces of `step` bytes, to a store that is polled after each `poll_every`th piece; and
/// counts of hits, sets and items.
fn answers(
    input: &[u8],
    dram: &[&'static [u8]],
    gets_wait: bool,
    arrives: bool,
    step: usize,
    poll_every: usize,
) -> (Vec<u8>, [u64; 3]) {
    let mut bench = StreamBench::new(Limits { item_bytes_max: 100, ..Limits::default() });
    (bench.alone.session.value, bench.alone.session.dram) = (b"a value".to_vec(), dram.to_vec());
    (bench.alone.session.gets_wait, bench.arrives) = (gets_wait, arrives);
    for (number, piece) in input.chunks(step).enumerate() {
        bench.send(piece);
        if number % poll_every == 0 {
            bench.poll();
        }
    }
    loop {
        bench.poll();
        // Read input that was left unread while the client was blocked.
        bench.read();
        let (slots, out) = (&bench.stream.connection.door.slots, &bench.stream.connection.client.out);
        if bench.alone.session.in_flight() == 0 && slots.is_empty() && out.is_empty() {
            break;
        }
    }
    assert_eq!((bench.alone.budget.used_bytes(), bench.alone.gets.is_idle()), (0, true));
    let counters = &bench.alone.figures.counters[0];
    let counts = [&counters.get_hits, &counters.cmd_set, &counters.total_items]
        .map(|counter| counter.load(std::sync::atomic::Ordering::Relaxed));
    drop(bench.stream);
    let mut received = Vec::new();
    bench.client.read_to_end(&mut received).unwrap();
    (received, counts)
}

#[test]
fn what_dram_has_changes_no_reply() {
    let many = [b"get".to_vec(), b" a".repeat(70), b"  x b  \r\n".to_vec()].concat();
    let text = [
        b"get a\r\nget a b x\r\ngets  x  a \r\nset k 0 0 3\r\nabc\r\nget a\n".as_slice(),
        &many,
        b"get x\r\ngets b\r\nget \r\nget a\r\ngat 10 a\r\ngat 0 x a\r\nget a\r\nversion\r\nget b b x b\r\n",
        &b"set a 7 100 5\r\nfirst\r\nget a b\r\nset b 0 -1 0\r\n\r\nset x 0 0 1 noreply\r\nx\r\nget x\r\n".repeat(20),
        b"set a 0 0 3\r\nabcd\r\nset  a 0 0 1\r\n1\r\nset a 0 0 1\n2\r\nset a 0 0\r\nset a 0 0 101\r\n",
        &[b'v'; 101],
        b"\r\nadd a 0 0 1\r\n3\r\nset a 1 2 1\r\n4\r\n",
    ]
    .concat();
    let set = |opcode: u8, stamp: u8, key: &[u8]| {
        let mut frame = vec![0x80, opcode, 0, key.len() as u8, 8, 0, 0, 0, 0, 0, 0, 8 + key.len() as u8 + 3];
        frame.extend([7; 4].into_iter().chain([0; 7]).chain([stamp, 0, 0, 0, 5, 0, 0, 0, 60]));
        [&frame, key, b"abc"].concat()
    };
    let get = |opcode: u8, key: &[u8]| {
        let mut frame = vec![0x80, opcode, 0, key.len() as u8, 0, 0, 0, 0, 0, 0, 0, key.len() as u8];
        frame.extend([7; 4].into_iter().chain([0; 8]).chain(key.iter().copied()));
        frame
    };
    let [plain, quiet, noop, with_key, with_key_quiet] = [0x00, 0x09, 0x0a, 0x0c, 0x0d];
    let keys: [&[u8]; 3] = [b"a", b"x", b"b"];
    let each = |opcode| keys.iter().flat_map(|key| get(opcode, key)).collect::<Vec<_>>();
    let binary = [
        each(plain).repeat(20),
        each(quiet),
        each(with_key),
        each(with_key_quiet),
        get(noop, b""),
        keys.iter().flat_map(|key| [set(0x01, 0, key), get(plain, key), set(0x11, 0, key)].concat()).collect(),
        set(0x01, 2, b"a"),
        set(0x02, 0, b"a"),
        get(plain, b"a"),
        get(plain, b""),
    ]
    .concat();
    let meta = [
        b"mg a v\r\nmg  x  v t s c f k h l q Oopaque\r\nmg b\r\nmg a s k\r\nmg YQ== b v k\r\nmg a v T30\r\nmg a v q\nmn\r\n".as_slice(),
        &b"mg a v f c k O1\r\nget b\r\nmg b v\r\n".repeat(30),
        b"mg a v N10 R20\r\nmg a u v\r\nmg b v v\r\nmg a v z\r\nmg \r\nmg\r\nms a 1 T0\r\nx\r\nmg a v P L\r\n",
    ]
    .concat();
    for input in [text, meta, binary] {
        let alone = answers(&input, &[], true, false, usize::MAX, 1);
        assert!(alone.1[0] > 60, "{:?}", alone.1);
        for dram in [vec![], vec![b"a".as_slice()], vec![b"b"], vec![b"a", b"b", b"x"]] {
            for (step, poll_every) in [(usize::MAX, 1), (1, 1), (7, 1), (7, 3), (64, 2), (500, 1)] {
                for (gets_wait, arrives) in [(false, false), (false, true), (true, false), (true, true)] {
                    let seen = answers(&input, &dram, gets_wait, arrives, step, poll_every);
                    assert!(seen == alone, "{dram:?} in DRAM, by {step} bytes: {:?} for {:?}", seen.1, alone.1);
                }
            }
        }
    }
}

#[test]
fn values_from_dram_are_charged_before_others_ask_for_memory() {
    let mut bench = StreamBench::new(Limits::default());
    (bench.alone.session.value, bench.alone.session.dram) = (vec![b'v'; 100_000], vec![b"k".as_slice()]);
    bench.client.write_all(&b"get k\r\n".repeat(10)).unwrap();
    bench.with(|stream, cx| stream.read(cx));
    assert!(bench.stream.connection.client.out.unsent_bytes() >= 1_000_000);
    assert!(bench.alone.budget.used_bytes() >= bench.stream.connection.client.out.unsent_bytes());
}

#[test]
fn values_from_dram_that_nobody_reads_stop_at_the_limit() {
    let mut bench = StreamBench::new(Limits::default());
    (bench.alone.session.value, bench.alone.session.dram) = (vec![b'v'; 100_000], vec![b"k".as_slice()]);
    bench.send(&b"get k\r\n".repeat(300));
    assert!(bench.stream.connection.client.out.unsent_bytes() <= bench.alone.limits.connection_in_flight_bytes);
    assert!(bench.stream.connection.client.out.unsent_bytes() > bench.alone.limits.connection_in_flight_bytes / 2);
    assert!(bench.stream.connection.client.blocked);
}

#[test]
fn who_sends_much_that_is_answered_at_once_gives_way_to_others() {
    let mut bench = StreamBench::new(Limits::default());
    bench.alone.session.dram = vec![b"k".as_slice()];
    let yields =
        |bench: &StreamBench| bench.alone.figures.counters[0].conn_yields.load(std::sync::atomic::Ordering::Relaxed);
    // 32 bytes each, so that a read ends at the end of a set.
    let sets = b"set k 0 0 9 noreply\r\n123456789\r\n".repeat(3000);
    bench.send(&sets);
    let puts = bench.alone.session.puts;
    assert!((1000..2500).contains(&puts) && yields(&bench) == 1, "{puts} in a turn");
    bench.with(|stream, cx| stream.read(cx));
    assert_eq!((bench.alone.session.puts, yields(&bench)), (3000, 1));
}

#[test]
fn an_announced_value_takes_no_room_before_it_comes() {
    let mut bench = StreamBench::new(Limits::default());
    bench.send(b"set a 0 0 16000000\r\nabc");
    assert!(bench.stream.input.capacity() <= 4096);
    assert_eq!(bench.stream.connection.client.charged_bytes, 0);
    bench.send(&vec![b'x'; 100_000]);
    assert!(bench.stream.input.capacity() <= 256 << 10);
    assert!(bench.alone.budget.used_bytes() > 0);
}

#[test]
fn requests_of_one_client_are_bounded_and_go_on_as_they_are_answered() {
    let limits = Limits { connection_requests: 10, ..Limits::default() };
    let mut bench = StreamBench::new(limits);
    bench.send(&b"delete k\r\n".repeat(100));
    assert_eq!(bench.alone.session.in_flight(), 10);
    assert!(!bench.stream.wants_input());
    bench.poll();
    assert_eq!(bench.alone.session.in_flight(), 10);
    for _ in 0..9 {
        bench.poll();
    }
    assert_eq!(bench.alone.session.in_flight(), 0);
    assert!(bench.stream.wants_input());
}

#[test]
fn requests_wait_for_a_session_that_has_no_room() {
    let mut bench = StreamBench::new(Limits::default());
    bench.alone.session.in_flight_max = Some(3);
    bench.send(&[b"get a b\r\n".repeat(3), b"append k 0 0 1\r\nv\r\n".repeat(3)].concat());
    let mut answered = 0;
    while answered < 9 {
        let submitted = bench.alone.session.in_flight();
        assert_eq!((submitted, bench.stream.connection.client.capped()), (3.min(9 - answered), answered < 6));
        answered += submitted;
        bench.poll();
    }
    assert!(bench.stream.connection.door.slots.is_empty());
}

#[test]
fn gets_slow_down_when_values_are_large() {
    let mut bench = StreamBench::new(Limits::default());
    bench.send(&b"get k\r\n".repeat(300));
    let first = bench.alone.session.in_flight();
    assert!(first <= (2 << 20) / Gets::VALUE_BYTES_AT_FIRST);
    bench.alone.session.value = vec![b'v'; 1 << 20];
    bench.poll();
    let coming = bench.alone.session.submitted.len();
    assert!(coming <= 2, "{coming} of 1 MiB each");
    // Unread replies stop it completely.
    for _ in 0..5 {
        bench.poll();
    }
    assert_eq!(bench.alone.session.submitted.len(), 0);
    assert!(bench.stream.connection.client.blocked);
}

#[test]
fn a_barrier_holds_back_what_follows() {
    let mut bench = StreamBench::new(Limits::default());
    bench.send(b"delete a\r\ndelete b\r\nflush_all\r\ndelete c\r\n");
    assert_eq!(bench.alone.session.in_flight(), 2);
    bench.poll();
    assert_eq!(bench.alone.session.in_flight(), 1);
    bench.poll();
    assert_eq!(bench.alone.session.in_flight(), 1);
    bench.poll();
    assert_eq!(bench.alone.session.in_flight(), 0);
}

#[test]
fn a_client_that_left_is_finished_once_its_requests_are_answered() {
    let mut bench = StreamBench::new(Limits::default());
    bench.send(b"get a\r\n");
    drop(std::mem::replace(&mut bench.client, UnixStream::pair().unwrap().0));
    bench.with(|stream, cx| stream.read(cx));
    assert!(!bench.stream.is_finished(), "the store still owes an answer");
    bench.poll();
    bench.poll();
    assert!(bench.stream.is_finished());
}

/// A bench whose budget other clients have used up.
fn spent() -> StreamBench {
    let bench = StreamBench::new(Limits::default());
    assert!(bench.alone.budget.allows(7, 1 << 30), "somebody has the overdraft, too");
    bench.alone.budget.change(0, bench.alone.limits.in_flight_bytes);
    bench
}

#[test]
fn small_requests_are_served_while_others_hold_the_budget() {
    let mut bench = spent();
    bench.alone.session.value = vec![b'v'; 1000];
    for _ in 0..20 {
        bench.send(b"set k 0 0 3\r\nabc\r\nget k\r\nset k 0 0 3\r\nabc\r\n");
        assert!(bench.alone.session.in_flight() > 0);
        while bench.alone.session.in_flight() > 0 {
            bench.poll();
        }
    }
    assert_eq!(bench.alone.figures.counters[0].get_hits.load(std::sync::atomic::Ordering::Relaxed), 20);
}

#[test]
fn a_client_that_pipelines_small_requests_waits_for_nobody() {
    for request in [&b"set k 0 0 3\r\nabc\r\n"[..], b"get k\r\n"] {
        let mut bench = spent();
        bench.alone.session.value = vec![b'v'; 500];
        bench.send(&request.repeat(100));
        bench.client.set_nonblocking(true).unwrap();
        let (mut polls, mut sink) = (0, vec![0; 1 << 20]);
        while bench.alone.session.in_flight() > 0
            || !bench.stream.input.is_empty()
            || bench.stream.connection.client.waits()
        {
            bench.poll();
            let _ = bench.client.read(&mut sink);
            polls += 1;
            assert!(polls < 1000, "{request:?} is stuck");
        }
    }
}

#[test]
fn a_large_value_that_was_tried_comes_when_there_is_room() {
    let requests: [&[u8]; 2] = [b"get k\r\nget l\r\n", b"mg k v f\r\nmg l v f\r\n"];
    let replies = ["VALUE k 0 1048576\r\n\r\nEND\r\n", "VA 1048576 f0\r\n\r\n"];
    for (request, reply) in requests.into_iter().zip(replies) {
        let mut bench = spent();
        bench.alone.session.value = vec![b'v'; 1 << 20];
        bench.send(request);
        assert_eq!(bench.alone.session.in_flight(), 1, "one is tried");
        for _ in 0..3 {
            bench.poll();
            assert_eq!((bench.alone.session.asking.len(), bench.stream.connection.client.out.unsent_bytes()), (1, 0));
            assert!(bench.stream.connection.client.waits());
        }
        bench.alone.budget.change(bench.alone.limits.in_flight_bytes, 0);
        let (mut received, mut sink) = (0, vec![0; 1 << 20]);
        bench.client.set_nonblocking(true).unwrap();
        while bench.alone.session.in_flight() > 0 || !bench.stream.connection.client.out.is_empty() {
            bench.poll();
            received += bench.client.read(&mut sink).unwrap_or(0);
        }
        assert_eq!(received, 2 * ((1 << 20) + reply.len()));
        assert_eq!(bench.alone.figures.counters[0].get_hits.load(std::sync::atomic::Ordering::Relaxed), 2);
        assert_eq!(bench.alone.budget.used_bytes(), 0);
        assert!(bench.alone.gets.is_idle());
    }
}

#[test]
fn values_larger_than_the_last_ones_come_as_there_is_room() {
    let mut bench = StreamBench::new(Limits::default());
    bench.alone.session.value = vec![b'v'; 10];
    let mut sink = vec![0; 4 << 20];
    for _ in 0..40 {
        bench.send(b"get k\r\n");
        bench.poll();
        let _ = bench.client.read(&mut sink).unwrap();
    }
    const LARGE_BYTES: usize = 1 << 20;
    bench.alone.session.value = vec![b'v'; LARGE_BYTES];
    bench.send(&b"get k\r\n".repeat(100));
    assert!(bench.alone.session.in_flight() > 50, "nobody knows yet");
    bench.client.set_nonblocking(true).unwrap();
    let (mut received, mut polls) = (0, 0);
    while bench.alone.session.in_flight() > 0 || bench.stream.connection.client.blocked {
        bench.poll();
        let (slots, out) = (&bench.stream.connection.door.slots, &bench.stream.connection.client.out);
        let held_bytes = slots.held_bytes() + out.unsent_bytes();
        let asking = bench.alone.session.asking.len();
        assert!(
            held_bytes <= bench.alone.limits.connection_in_flight_bytes + LARGE_BYTES,
            "{held_bytes}, {asking} ask"
        );
        // The client reads slowly.
        if polls % 4 == 0 {
            received += bench.client.read(&mut sink[..LARGE_BYTES / 4]).unwrap_or(0);
        }
        polls += 1;
        assert!(polls < 10_000, "{received} bytes received, {asking} ask");
    }
    while !bench.stream.connection.client.out.is_empty() {
        bench.poll();
        received += bench.client.read(&mut sink).unwrap_or(0);
    }
    assert_eq!(received, 100 * (LARGE_BYTES + "VALUE k 0 1048576\r\n\r\nEND\r\n".len()));
    assert_eq!(bench.alone.budget.used_bytes(), 0);
    assert!(bench.alone.gets.is_idle());
}

#[test]
fn the_overdraft_goes_back_when_nobody_is_over() {
    let mut bench = StreamBench::new(Limits::default());
    let limit = bench.alone.limits.in_flight_bytes;
    bench.alone.budget.change(0, limit);
    bench.send(b"set k 0 0 1000000\r\n");
    bench.send(&[b'v'; 100_000]);
    assert!(bench.stream.connection.client.charged_bytes > 0 && !bench.alone.budget.allows(99, 1));
    bench.alone.budget.change(limit, 0);
    bench.send(&[b'v'; 1000]);
    assert!(bench.alone.budget.allows(99, limit), "the value is not whole yet");
}

#[test]
fn a_long_line_is_taken_while_others_hold_the_budget() {
    let mut bench = spent();
    bench.alone.session.value = vec![b'v'; 10];
    bench.send(&[&b"get"[..], &b" key-of-ten".repeat(550), b"\r\n"].concat());
    let mut polls = 0;
    while bench.alone.session.in_flight() > 0 || bench.stream.connection.door.many.is_some() {
        bench.poll();
        polls += 1;
        assert!(polls < 10_000);
    }
    assert_eq!(bench.alone.figures.counters[0].get_hits.load(std::sync::atomic::Ordering::Relaxed), 550);
}

#[test]
fn a_get_of_any_length_is_answered_piece_by_piece() {
    const KEY: [u8; 200] = [b'k'; 200];
    let (value, keys) = ("a value", 6_000);
    let line = [&b"get"[..], &[b" ", &KEY[..]].concat().repeat(keys), b" other\r\nget other\r\n"].concat();
    let key = String::from_utf8_lossy(&KEY);
    let other = format!("VALUE other 0 7\r\n{value}\r\nEND\r\n");
    let expected = format!("VALUE {key} 0 7\r\n{value}\r\n").repeat(keys) + &other + &other;
    for dram in [&[][..], &[&KEY[..]]] {
        let mut bench = StreamBench::new(Limits::default());
        (bench.alone.session.value, bench.alone.session.dram) = (value.into(), dram.to_vec());
        let (mut received, mut held_bytes) = (Vec::new(), 0);
        bench.client.set_nonblocking(true).unwrap();
        for piece in line.chunks(5000) {
            bench.send(piece);
            held_bytes = held_bytes.max(bench.stream.input.capacity());
            let mut is_quiet = false;
            while !is_quiet {
                bench.poll();
                bench.read();
                let (slots, out) = (&bench.stream.connection.door.slots, &bench.stream.connection.client.out);
                is_quiet = slots.is_empty() && out.is_empty();
                // Read until nothing more is there.
                let _ = bench.client.read_to_end(&mut received);
            }
        }
        assert!(received == expected.as_bytes(), "{} of {} bytes", received.len(), expected.len());
        assert!((GET_PIECE_BYTES..line.len() / 2).contains(&held_bytes), "{held_bytes}");
        assert_eq!((bench.alone.budget.used_bytes(), bench.alone.gets.is_idle()), (0, true));
    }
}

#[test]
fn a_client_that_leaves_in_the_middle_of_a_long_get_is_finished() {
    let mut bench = StreamBench::new(Limits::default());
    for piece in [&b"get "[..], &b"k ".repeat(GET_PIECE_BYTES)].concat().chunks(5000) {
        bench.send(piece);
        while bench.alone.session.in_flight() > 0 || bench.stream.connection.client.blocked {
            bench.poll();
            let _ = bench.client.read(&mut vec![0; 1 << 20]).unwrap();
        }
    }
    bench.client.shutdown(std::net::Shutdown::Write).unwrap();
    bench.read();
    let mut polls = 0;
    while !bench.stream.is_finished() {
        bench.poll();
        bench.read();
        bench.client.set_nonblocking(true).unwrap();
        let _ = bench.client.read(&mut vec![0; 1 << 20]);
        polls += 1;
        assert!(polls < 100_000);
    }
}

#[test]
fn who_asks_for_nothing_is_idle_and_who_sends_or_takes_something_is_not() {
    let limits = Limits { idle_seconds: 10, ..Limits::default() };
    let mut bench = StreamBench::new(limits.clone());
    let is_idle = |bench: &StreamBench, now| bench.stream.is_idle(now, &limits);
    assert!(!is_idle(&bench, 10) && is_idle(&bench, 11), "it has never said anything");
    bench.send(b"get a\r\n");
    assert!(!is_idle(&bench, 100), "the store owes it an answer");
    bench.poll();
    assert!(!is_idle(&bench, 11) && is_idle(&bench, 12));
    // Half a command is not a command. Half a value is a value that takes its time.
    bench.send(b"get ");
    bench.stream.asked_at = 0;
    assert!(is_idle(&bench, 11));
    bench.send(b"b\r\nset k 0 0 10\r\nab");
    bench.poll();
    bench.stream.asked_at = 0;
    assert!(!is_idle(&bench, 11) && is_idle(&bench, 12), "since bytes came last");
    bench.stream.kick();
    assert!(bench.stream.is_finished());
}

#[test]
fn who_brings_much_at_once_is_read_so_until_he_brings_little() {
    let mut bench = StreamBench::new(Limits::default());
    let much = [&b"set k 0 0 6000\r\n"[..], &[b'v'; 6000], b"\r\n"].concat();
    for (bytes, little) in [(&b"get k\r\n"[..], true), (&much, false), (&much, false), (b"get k\r\n", true)] {
        bench.send(bytes);
        assert_eq!(bench.stream.brings_little(), little, "{} bytes", bytes.len());
        bench.poll();
    }
}

#[test]
fn values_that_nobody_expected_take_little_where_others_have_spent_the_budget() {
    let mut bench = StreamBench::new(Limits::default());
    bench.alone.session.value = vec![b'v'; 10];
    for _ in 0..40 {
        bench.send(b"get k\r\n");
        bench.poll();
    }
    bench.alone.session.value = vec![b'v'; 8000];
    assert!(bench.alone.budget.allows(7, 1 << 30));
    bench.alone.budget.change(0, bench.alone.limits.in_flight_bytes);
    bench.send(&b"get k\r\n".repeat(100));
    for _ in 0..5 {
        bench.poll();
        let (slots, out) = (&bench.stream.connection.door.slots, &bench.stream.connection.client.out);
        // Bytes that the socket has taken are not held.
        assert!(slots.held_bytes() + out.unsent_bytes() <= FREE_BYTES);
    }
    assert!(bench.alone.session.asking.len() > 10);
}

#[test]
fn a_client_that_left_while_its_value_waited_for_room_is_finished() {
    let mut bench = spent();
    bench.alone.session.value = vec![b'v'; 1 << 20];
    bench.send(b"get k\r\n");
    bench.poll();
    assert!(!bench.stream.is_finished());
    bench.stream.connection.client.give_up();
    assert!(!bench.stream.is_finished(), "the store has it still");
    // The first poll gives up the asking get. The second one brings its end.
    (0..2).for_each(|_| bench.poll());
    assert!(bench.stream.is_finished());
}

#[test]
fn nothing_is_done_that_comes_after_a_get_which_waits_for_room() {
    let mut bench = spent();
    bench.alone.session.value = vec![b'v'; 1 << 20];
    bench.send(b"get k\r\n");
    bench.poll();
    bench.send(b"set k 0 0 3\r\nabc\r\n");
    bench.poll();
    assert_eq!((bench.alone.session.in_flight(), bench.stream.connection.client.waits()), (1, true), "the get alone");
    bench.alone.budget.change(bench.alone.limits.in_flight_bytes, 0);
    bench.poll();
    assert!(matches!(bench.alone.session.submitted[0].reply.outcome, Outcome::Value { .. }), "before the set");
}

#[test]
fn what_changes_an_item_waits_for_gets_of_it_that_may_ask() {
    let changes: [&[u8]; 5] =
        [b"set k 0 0 3\r\nabc\r\n", b"delete k\r\n", b"gat 9 k\r\n", b"md k\r\n", b"incr k 1\r\n"];
    for change in changes {
        for get in [&b"get k\r\n"[..], b"mg k v\r\n"] {
            let mut bench = StreamBench::new(Limits::default());
            bench.alone.session.value = vec![b'v'; 1 << 20];
            bench.send(&[get, b"set l 0 0 3\r\nabc\r\n", get, change].concat());
            let what = String::from_utf8([get, change].concat()).unwrap();
            assert_eq!(bench.alone.session.submitted.len(), 3, "all but the change: {what}");
            bench.client.set_nonblocking(true).unwrap();
            let (mut received, mut sink, mut changed) = (0, vec![0; 1 << 20], false);
            while bench.alone.session.in_flight() > 0 || !bench.stream.connection.client.out.is_empty() {
                bench.poll();
                received += bench.client.read(&mut sink).unwrap_or(0);
                let asks = !bench.alone.session.asking.is_empty();
                let changes = bench.alone.session.submitted.iter().any(|submitted| submitted.is_change);
                assert!(!asks || !changes, "{what}");
                changed |= changes;
            }
            assert!(received > 2 << 20 && changed, "{what}");
        }
    }
}

#[test]
fn answers_that_need_no_store_and_that_nobody_reads_stop_at_the_limit() {
    // The request before all of them is nothing, or a get without an answer yet.
    for first in [&b""[..], b"get k\r\n"] {
        let mut bench = StreamBench::new(Limits::default());
        bench.send(first);
        let mut sent = 0;
        while !bench.stream.connection.client.blocked {
            bench.send(&b"version\r\n".repeat(1000));
            sent += 1;
            assert!(sent < 1000, "{} bytes unsent", bench.stream.connection.client.out.unsent_bytes());
        }
        let held_bytes =
            bench.stream.connection.door.slots.held_bytes() + bench.stream.connection.client.out.unsent_bytes();
        assert!(held_bytes < bench.alone.limits.connection_in_flight_bytes + 4096, "{held_bytes}");
        assert!(bench.alone.budget.used_bytes() >= held_bytes - FREE_BYTES);
        bench.client.set_nonblocking(true).unwrap();
        let mut sink = vec![0; 1 << 20];
        while bench.stream.connection.client.blocked || !bench.stream.connection.client.out.is_empty() {
            bench.poll();
            let _ = bench.client.read(&mut sink);
        }
        assert_eq!(bench.alone.budget.used_bytes(), 0);
    }
}

#[test]
fn a_client_that_hung_up_while_nothing_was_read_is_finished() {
    let mut bench = StreamBench::new(Limits::default());
    bench.send(b"flush_all noreply\r\nge");
    bench.client.write_all(b"t").unwrap();
    drop(std::mem::replace(&mut bench.client, UnixStream::pair().unwrap().0));
    assert!(bench.stream.hung_up(), "it is blocked, so nobody looks for more");
    bench.poll();
    assert!(bench.stream.is_finished());
}
