//! Streams of memcached clients over a store in memory, whose session answers when it is polled: order, limits, room for values.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use tapetum::{Ask, Condition, Expiry, KeyspaceRef, Request, Store, StoreOptions, Sync};
use tapetum_drive::{Drive, Env, FaultyFlash, Flash, MemoryFlash};

use super::door::{Memcached, MemcachedOptions};
use crate::common::{drive_of, flush, new_on};
use crate::doors::connection::{Client, Connection, Stream};
use crate::doors::context::{Alone, Context, unix_seconds};
use crate::doors::door::Door;
use crate::net::arrivals::Arrivals;
use crate::net::gets::Gets;
use crate::net::limits::{FREE_BYTES, Limits};
use crate::os;
use crate::protocol::many_keys::GET_PIECE_BYTES;
use crate::store::store_slot::StoreSlot;

const CAPACITY_BYTES: u64 = 64 << 20;
const TIER_BYTES: u64 = 16 << 20;

fn options() -> StoreOptions {
    StoreOptions { segment_bytes: 1 << 20, sync: Sync::EverySecond, ..StoreOptions::new(CAPACITY_BYTES, 64 << 20) }
}

struct StreamBench {
    stream: Stream,
    client: UnixStream,
    alone: Alone,
    store: Store,
    _drive: Drive,
    /// Input comes in pieces through [`crate::net::arrivals`], while the stream brings little.
    arrives: bool,
    /// Unix seconds.
    now: u32,
}

impl StreamBench {
    /// Over a store that answers no get before it is polled.
    fn new(limits: Limits) -> StreamBench {
        let drive = drive_of(Arc::new(MemoryFlash::new(CAPACITY_BYTES)), &options(), Env::system());
        StreamBench::over(new_on(&drive, &options()), drive, limits)
    }

    /// Over a store that answers gets from DRAM at once.
    fn with_tier(limits: Limits) -> StreamBench {
        let options = options().with_tier(TIER_BYTES);
        let drive = drive_of(Arc::new(MemoryFlash::new(CAPACITY_BYTES)), &options, Env::system());
        StreamBench::over(new_on(&drive, &options), drive, limits)
    }

    fn over(store: Store, drive: Drive, limits: Limits) -> StreamBench {
        let (client, server) = UnixStream::pair().unwrap();
        client.set_nonblocking(true).unwrap();
        server.set_nonblocking(true).unwrap();
        let door = Door::Memcached(Memcached::new(MemcachedOptions::default()));
        let stream = Stream::new(server.into(), None, Connection { client: Client::new(0, 0), door }, 0);
        let alone = Alone::new(StoreSlot::new(store.clone()).seat().unwrap(), limits, 4096);
        StreamBench { stream, client, alone, store, _drive: drive, arrives: true, now: 1 }
    }

    fn with<R>(&mut self, work: impl FnOnce(&mut Stream, &mut Context<'_>) -> R) -> R {
        work(&mut self.stream, &mut self.alone.context(self.now))
    }

    fn put(&self, key: &str, value: &[u8]) {
        self.store.put(key.as_bytes(), value).unwrap();
    }

    fn send(&mut self, bytes: &[u8]) {
        let mut rest = bytes;
        while !rest.is_empty() {
            match self.client.write(rest) {
                Ok(written) => rest = &rest[written..],
                // A slow machine's store holds the server up, which reads nothing meanwhile.
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.poll(),
                Err(error) => panic!("{error}"),
            }
            self.read();
            self.stream.settle(&self.alone.budget);
        }
    }

    fn read(&mut self) {
        let mut arrivals = Arrivals::new();
        if self.arrives
            && self.stream.brings_little()
            && arrivals.read(0, |piece| os::read(self.stream.socket(), piece))
        {
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
        self.alone.seat.poll(&mut replies);
        for reply in replies {
            self.with(|stream, cx| stream.connection.complete(reply.token as u32, &reply, cx));
        }
        let mut asks = Vec::new();
        self.alone.seat.take_asks(&mut asks);
        for Ask { token, value_bytes } in asks {
            self.with(|stream, cx| stream.connection.ask(token as u32, value_bytes, cx));
        }
        self.with(|stream, cx| stream.advance(cx));
        self.stream.send(&mut self.alone.pool, &self.alone.figures.counters[0], self.now);
        self.stream.settle(&self.alone.budget);
    }

    /// Polls until this holds.
    fn poll_until(&mut self, holds: impl Fn(&StreamBench) -> bool) {
        for _ in 0..POLLS_MAX {
            if holds(self) {
                return;
            }
            self.poll();
        }
        panic!("it goes no further");
    }

    /// Takes what the client has not received yet, as far as the socket has it.
    fn received(&mut self) -> Vec<u8> {
        let mut received = Vec::new();
        // Read until nothing more is there.
        let _ = self.client.read_to_end(&mut received);
        received
    }

    fn door(&self) -> &Memcached {
        match &self.stream.connection.door {
            Door::Memcached(door) => door,
            Door::Nbd(_) => unreachable!("it speaks memcached's protocol"),
        }
    }

    fn in_flight(&self) -> usize {
        self.alone.seat.in_flight()
    }

    /// Gets that asked for room and have no answer yet.
    fn asking(&self) -> usize {
        self.stream.connection.client.asked.len()
    }

    fn unsent_bytes(&self) -> usize {
        self.stream.connection.client.out.unsent_bytes()
    }

    fn held_bytes(&self) -> usize {
        self.door().slots.held_bytes() + self.unsent_bytes()
    }

    /// Nothing is asked of the store, and nothing is to be sent.
    fn is_quiet(&self) -> bool {
        self.in_flight() == 0 && self.stream.connection.client.out.is_empty()
    }

    fn hits(&self) -> u64 {
        self.alone.figures.counters[0].get_hits.load(Ordering::Relaxed)
    }

    #[track_caller]
    fn assert_at_rest(&self) {
        assert_eq!((self.alone.budget.used_bytes(), self.alone.gets.is_idle()), (0, true));
    }
}

/// Far more polls than any test needs.
const POLLS_MAX: usize = 100_000;

#[test]
fn at_rest_it_holds_no_buffer() {
    let mut bench = StreamBench::new(Limits::default());
    ["a", "b", "c"].iter().for_each(|key| bench.put(key, &[b'v'; 40_000]));
    for _ in 0..3 {
        bench.send(&b"get a b c\r\n".repeat(20));
        bench.send(b"set k 0 0 10000\r\n");
        bench.send(&[b'x'; 10_000]);
        bench.send(b"\r\n");
        for _ in 0..POLLS_MAX {
            if bench.is_quiet() {
                break;
            }
            bench.poll();
            bench.received();
        }
    }
    assert_eq!((bench.stream.input.capacity(), bench.hits()), (0, 180));
    assert!(bench.is_quiet() && bench.door().slots.is_empty());
    assert_eq!(bench.stream.connection.client.charged_bytes, 0);
    bench.assert_at_rest();
}

/// Where a store has its items when clients ask for them.
#[derive(Clone, Copy)]
enum Dram<'a> {
    /// On flash. There is no DRAM tier, and puts wait to be durable: nothing is answered at once.
    None,
    /// On flash, without a DRAM tier. Puts are answered at once.
    Buffers,
    /// These in the tier, the others on flash. Puts are answered at once.
    Tier(&'a [&'a [u8]]),
}

/// Items `a`, `b` and `x` on flash, which completes reads late and in any order.
struct ItemsOnFlash(FaultyFlash);

impl ItemsOnFlash {
    const BYTES: u64 = 16 << 20;

    fn options(dram: Dram<'_>) -> StoreOptions {
        let options = StoreOptions::new(ItemsOnFlash::BYTES, 16 << 20);
        let at_once = StoreOptions { sync: Sync::EverySecond, ..options };
        match dram {
            Dram::None => options,
            Dram::Buffers => at_once,
            Dram::Tier(_) => at_once.with_tier(4 << 20),
        }
    }

    fn new() -> ItemsOnFlash {
        let (flash, options) = (FaultyFlash::new(ItemsOnFlash::BYTES, 1), ItemsOnFlash::options(Dram::None));
        let store = new_on(&drive_of(Arc::new(flash.clone()), &options, Env::system()), &options);
        for key in [b"a", b"b", b"x"] {
            store.put(key, b"a value").unwrap();
        }
        flush(&store);
        store.close().unwrap();
        ItemsOnFlash(flash)
    }

    /// A client of a store that has these items. The store of each client is its own.
    fn bench(&self, dram: Dram<'_>, limits: Limits) -> StreamBench {
        let options = ItemsOnFlash::options(dram);
        let flash: Arc<dyn Flash> = Arc::new(self.0.fork(1));
        let drive = drive_of(flash, &options, Env::system());
        let store = Store::open_on(&drive, &options).unwrap();
        let bench = StreamBench::over(store, drive, limits);
        if let Dram::Tier(keys) = dram {
            let session = bench.alone.seat.session().unwrap();
            let digests = keys.iter().map(|key| session.digest(KeyspaceRef::DEFAULT, key));
            let mut warming = bench.store.warm(digests.collect()).unwrap();
            while !warming.step() {
                warming.wait();
            }
            assert_eq!(warming.warmed().put, keys.len() as u64);
        }
        bench
    }

    /// The replies to a client that sends `input` in pieces of `step` bytes, to a store that is polled after each `poll_every`th piece; and
    /// counts of hits, sets and items.
    fn answers(
        &self,
        input: &[u8],
        dram: Dram<'_>,
        arrives: bool,
        step: usize,
        poll_every: usize,
    ) -> (Vec<u8>, [u64; 3]) {
        let mut bench = self.bench(dram, Limits { item_bytes_max: 100, ..Limits::default() });
        (bench.arrives, bench.now) = (arrives, unix_seconds());
        for (number, piece) in input.chunks(step).enumerate() {
            bench.send(piece);
            if number % poll_every == 0 {
                bench.poll();
            }
        }
        for polls in 0.. {
            bench.poll();
            // Read input that was left unread while the client was blocked.
            bench.read();
            if bench.is_quiet() && bench.door().slots.is_empty() {
                break;
            }
            assert!(polls < POLLS_MAX);
        }
        bench.assert_at_rest();
        let counters = &bench.alone.figures.counters[0];
        let counts = [&counters.get_hits, &counters.cmd_set, &counters.total_items]
            .map(|counter| counter.load(Ordering::Relaxed));
        (bench.received(), counts)
    }
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
    let items = ItemsOnFlash::new();
    for input in [text, meta, binary] {
        let alone = items.answers(&input, Dram::None, false, usize::MAX, 1);
        assert!(alone.1[0] > 60, "{:?}", alone.1);
        let tiers: [&[&[u8]]; 4] = [&[], &[b"a"], &[b"b"], &[b"a", b"b", b"x"]];
        for dram in [Dram::None, Dram::Buffers].into_iter().chain(tiers.map(Dram::Tier)) {
            for (step, poll_every) in [(usize::MAX, 1), (1, 1), (7, 1), (7, 3), (64, 2), (500, 1)] {
                for arrives in [false, true] {
                    let seen = items.answers(&input, dram, arrives, step, poll_every);
                    let at = seen.0.iter().zip(&alone.0).take_while(|(one, other)| one == other).count();
                    let [here, there] = [&seen.0, &alone.0].map(|replies| {
                        let near = at.saturating_sub(40).min(replies.len())..(at + 20).min(replies.len());
                        replies[near].escape_ascii().to_string()
                    });
                    assert!(seen == alone, "by {step} bytes: {here} {:?} for {there} {:?}", seen.1, alone.1);
                }
            }
        }
    }
}

#[test]
fn values_from_dram_are_charged_before_others_ask_for_memory() {
    let mut bench = StreamBench::with_tier(Limits::default());
    bench.put("k", &[b'v'; 100_000]);
    bench.client.write_all(&b"get k\r\n".repeat(10)).unwrap();
    bench.with(|stream, cx| stream.read(cx));
    assert!(bench.unsent_bytes() >= 1_000_000);
    assert!(bench.alone.budget.used_bytes() >= bench.unsent_bytes());
}

#[test]
fn values_from_dram_that_nobody_reads_stop_at_the_limit() {
    let mut bench = StreamBench::with_tier(Limits::default());
    bench.put("k", &[b'v'; 100_000]);
    bench.send(&b"get k\r\n".repeat(300));
    assert!(bench.unsent_bytes() <= bench.alone.limits.connection_in_flight_bytes);
    assert!(bench.unsent_bytes() > bench.alone.limits.connection_in_flight_bytes / 2);
    assert!(bench.stream.connection.client.blocked);
}

#[test]
fn who_sends_much_that_is_answered_at_once_gives_way_to_others() {
    let mut bench = StreamBench::new(Limits::default());
    let turn = |bench: &StreamBench| {
        let counters = &bench.alone.figures.counters[0];
        assert_eq!(bench.in_flight(), 0, "all are done at once");
        (counters.cmd_set.load(Ordering::Relaxed), counters.conn_yields.load(Ordering::Relaxed))
    };
    bench.put("k", b"v");
    // 32 bytes each, so that a read ends at the end of a set.
    bench.send(&b"set k 0 0 9 noreply\r\n123456789\r\n".repeat(3000));
    let (puts, yields) = turn(&bench);
    assert!((1000..2500).contains(&puts) && yields == 1, "{puts} in a turn");
    bench.with(|stream, cx| stream.read(cx));
    assert_eq!(turn(&bench), (3000, 1));
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
    assert_eq!(bench.in_flight(), 10);
    assert!(!bench.stream.wants_input());
    bench.poll();
    assert_eq!(bench.in_flight(), 10);
    for _ in 0..9 {
        bench.poll();
    }
    assert_eq!(bench.in_flight(), 0);
    assert!(bench.stream.wants_input());
}

#[test]
fn requests_wait_for_a_session_that_has_no_room() {
    let mut bench = StreamBench::new(Limits::default());
    ["a", "b"].iter().for_each(|key| bench.put(key, b"v"));
    bench.put("k", b"v");
    // Another client's values fill the session.
    let value = vec![b'v'; 1 << 20];
    let other = |number: u64| 1 << 32 | number;
    let mut others = 0;
    while bench.alone.seat.has_room() {
        let (key, expiry, condition) = (format!("other{others}"), Expiry::NONE, Condition::Always);
        let put = Request::Put { key: key.as_bytes(), value: &value, flags: 0, expiry, condition };
        bench.alone.seat.submit(KeyspaceRef::DEFAULT, other(others), put);
        others += 1;
        assert!(others < 1000);
    }
    bench.send(&[b"get a b\r\n".repeat(3), b"append k 0 0 1\r\nv\r\n".repeat(3)].concat());
    assert_eq!((bench.in_flight() as u64, bench.stream.connection.client.capped()), (others, true));
    let mut replies = Vec::new();
    while replies.len() < others as usize {
        bench.alone.seat.poll(&mut replies);
    }
    assert!(replies.iter().all(|reply| reply.token >= other(0)));
    bench.poll();
    assert!(bench.in_flight() > 0 && !bench.stream.connection.client.capped());
    bench.poll_until(StreamBench::is_quiet);
    let found = "VALUE a 0 1\r\nv\r\nVALUE b 0 1\r\nv\r\nEND\r\n".repeat(3) + &"STORED\r\n".repeat(3);
    assert_eq!(String::from_utf8(bench.received()).unwrap(), found);
    assert!(bench.door().slots.is_empty());
}

#[test]
fn gets_slow_down_when_values_are_large() {
    let mut bench = StreamBench::new(Limits::default());
    bench.put("k", &vec![b'v'; 1 << 20]);
    bench.send(&b"get k\r\n".repeat(300));
    let first = bench.in_flight();
    assert!(first > 2 && first <= (2 << 20) / Gets::VALUE_BYTES_AT_FIRST);
    // The first ask for room, and few get it. Unread replies stop it completely.
    bench.poll_until(|bench| bench.stream.connection.client.blocked);
    for _ in 0..100 {
        bench.poll();
        let coming = bench.in_flight() - bench.asking();
        assert!(coming <= 2, "{coming} of 1 MiB each");
    }
    assert_eq!(bench.in_flight(), bench.asking());
    assert!(bench.stream.connection.client.blocked);
}

#[test]
fn a_barrier_holds_back_what_follows() {
    let mut bench = StreamBench::new(Limits::default());
    bench.send(b"delete a\r\ndelete b\r\nflush_all\r\ndelete c\r\n");
    assert_eq!(bench.in_flight(), 2);
    bench.poll();
    assert_eq!(bench.in_flight(), 1);
    bench.poll();
    assert_eq!(bench.in_flight(), 1);
    bench.poll();
    assert_eq!(bench.in_flight(), 0);
}

#[test]
fn a_client_that_left_is_finished_once_its_requests_are_answered() {
    let mut bench = StreamBench::new(Limits::default());
    bench.put("a", b"v");
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
    let script = [b"set k 0 0 1000\r\n", &[b'v'; 1000][..], b"\r\nget k\r\nset k 0 0 3\r\nabc\r\n"].concat();
    for _ in 0..20 {
        bench.send(&script);
        assert!(bench.in_flight() > 0);
        bench.poll_until(|bench| bench.in_flight() == 0);
    }
    assert_eq!(bench.hits(), 20);
}

#[test]
fn a_client_that_pipelines_small_requests_waits_for_nobody() {
    for request in [&b"set k 0 0 3\r\nabc\r\n"[..], b"get k\r\n"] {
        let mut bench = spent();
        bench.put("k", &[b'v'; 500]);
        bench.send(&request.repeat(100));
        let mut polls = 0;
        while bench.in_flight() > 0 || !bench.stream.input.is_empty() || bench.stream.connection.client.waits() {
            bench.poll();
            bench.received();
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
        ["k", "l"].iter().for_each(|key| bench.put(key, &vec![b'v'; 1 << 20]));
        bench.send(request);
        assert_eq!(bench.in_flight(), 1, "one is tried");
        for _ in 0..3 {
            bench.poll();
            assert_eq!((bench.in_flight(), bench.asking(), bench.unsent_bytes()), (1, 1, 0));
            assert!(bench.stream.connection.client.waits());
        }
        bench.alone.budget.change(bench.alone.limits.in_flight_bytes, 0);
        let mut received = 0;
        for _ in 0..POLLS_MAX {
            if bench.is_quiet() {
                break;
            }
            bench.poll();
            received += bench.received().len();
        }
        assert_eq!(received, 2 * ((1 << 20) + reply.len()));
        assert_eq!(bench.hits(), 2);
        bench.assert_at_rest();
    }
}

#[test]
fn values_larger_than_the_last_ones_come_as_there_is_room() {
    let mut bench = StreamBench::new(Limits::default());
    bench.put("k", &[b'v'; 10]);
    for _ in 0..40 {
        bench.send(b"get k\r\n");
        bench.poll();
        assert!(!bench.received().is_empty());
    }
    const LARGE_BYTES: usize = 1 << 20;
    bench.put("k", &vec![b'v'; LARGE_BYTES]);
    bench.send(&b"get k\r\n".repeat(100));
    assert!(bench.in_flight() > 50, "nobody knows yet");
    let (mut received, mut polls, mut sink) = (0, 0, vec![0; LARGE_BYTES / 4]);
    while bench.in_flight() > 0 || bench.stream.connection.client.blocked {
        bench.poll();
        let (held_bytes, asking) = (bench.held_bytes(), bench.asking());
        assert!(
            held_bytes <= bench.alone.limits.connection_in_flight_bytes + LARGE_BYTES,
            "{held_bytes}, {asking} ask"
        );
        // The client reads slowly.
        if polls % 4 == 0 {
            received += bench.client.read(&mut sink).unwrap_or(0);
        }
        polls += 1;
        assert!(polls < POLLS_MAX, "{received} bytes received, {asking} ask");
    }
    while !bench.stream.connection.client.out.is_empty() {
        bench.poll();
        received += bench.received().len();
    }
    assert_eq!(received + bench.received().len(), 100 * (LARGE_BYTES + "VALUE k 0 1048576\r\n\r\nEND\r\n".len()));
    bench.assert_at_rest();
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
    bench.put("key-of-ten", &[b'v'; 10]);
    bench.send(&[&b"get"[..], &b" key-of-ten".repeat(550), b"\r\n"].concat());
    bench.poll_until(|bench| bench.in_flight() == 0 && bench.door().many.is_none());
    assert_eq!(bench.hits(), 550);
}

#[test]
fn a_get_of_any_length_is_answered_piece_by_piece() {
    const KEY: [u8; 200] = [b'k'; 200];
    let (value, keys) = ("a value", 6_000);
    let line = [&b"get"[..], &[b" ", &KEY[..]].concat().repeat(keys), b" other\r\nget other\r\n"].concat();
    let key = String::from_utf8_lossy(&KEY);
    let other = format!("VALUE other 0 7\r\n{value}\r\nEND\r\n");
    let expected = format!("VALUE {key} 0 7\r\n{value}\r\n").repeat(keys) + &other + &other;
    for mut bench in [StreamBench::new(Limits::default()), StreamBench::with_tier(Limits::default())] {
        [&key, "other"].iter().for_each(|key| bench.put(key, value.as_bytes()));
        let (mut received, mut held_bytes) = (Vec::new(), 0);
        for piece in line.chunks(5000) {
            bench.send(piece);
            held_bytes = held_bytes.max(bench.stream.input.capacity());
            for polls in 0.. {
                bench.poll();
                bench.read();
                received.extend(bench.received());
                if bench.door().slots.is_empty() && bench.stream.connection.client.out.is_empty() {
                    break;
                }
                assert!(polls < POLLS_MAX);
            }
        }
        received.extend(bench.received());
        assert!(received == expected.as_bytes(), "{} of {} bytes", received.len(), expected.len());
        assert!((GET_PIECE_BYTES..line.len() / 2).contains(&held_bytes), "{held_bytes}");
        bench.assert_at_rest();
    }
}

#[test]
fn a_client_that_leaves_in_the_middle_of_a_long_get_is_finished() {
    let mut bench = StreamBench::new(Limits::default());
    bench.put("k", b"");
    for piece in [&b"get "[..], &b"k ".repeat(GET_PIECE_BYTES)].concat().chunks(5000) {
        bench.send(piece);
        while bench.in_flight() > 0 || bench.stream.connection.client.blocked {
            bench.poll();
            bench.received();
        }
    }
    bench.client.shutdown(std::net::Shutdown::Write).unwrap();
    bench.read();
    let mut polls = 0;
    while !bench.stream.is_finished() {
        bench.poll();
        bench.read();
        bench.received();
        polls += 1;
        assert!(polls < POLLS_MAX);
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
    bench.put("k", &[b'v'; 10]);
    for _ in 0..40 {
        bench.send(b"get k\r\n");
        bench.poll();
    }
    bench.put("k", &[b'v'; 8000]);
    assert!(bench.alone.budget.allows(7, 1 << 30));
    bench.alone.budget.change(0, bench.alone.limits.in_flight_bytes);
    bench.send(&b"get k\r\n".repeat(100));
    for _ in 0..5 {
        bench.poll();
        // Bytes that the socket has taken are not held.
        assert!(bench.held_bytes() <= FREE_BYTES);
    }
    assert!(bench.asking() > 10);
}

#[test]
fn a_client_that_left_while_its_value_waited_for_room_is_finished() {
    let mut bench = spent();
    bench.put("k", &vec![b'v'; 1 << 20]);
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
    bench.put("k", &vec![b'v'; 1 << 20]);
    bench.send(b"get k\r\n");
    bench.poll();
    bench.send(b"set k 0 0 3\r\nabc\r\n");
    bench.poll();
    assert_eq!((bench.in_flight(), bench.stream.connection.client.waits()), (1, true), "the get alone");
    bench.alone.budget.change(bench.alone.limits.in_flight_bytes, 0);
    let mut received = Vec::new();
    for _ in 0..POLLS_MAX {
        bench.poll();
        bench.read();
        received.extend(bench.received());
        if received.ends_with(b"STORED\r\n") {
            break;
        }
    }
    let expected = [b"VALUE k 0 1048576\r\n", &[b'v'; 1 << 20][..], b"\r\nEND\r\nSTORED\r\n"].concat();
    assert!(received == expected, "{} bytes: the value from before the set", received.len());
}

#[test]
fn what_changes_an_item_waits_for_gets_of_it_that_may_ask() {
    let changes: [(&[u8], &str); 5] = [
        (b"set k 0 0 3\r\nabc\r\n", "STORED\r\n"),
        (b"delete k\r\n", "DELETED\r\n"),
        (b"gat 9 k\r\n", "VALUE k 0 1048576\r\n"),
        (b"md k\r\n", "HD\r\n"),
        (b"incr k 1\r\n", "CLIENT_ERROR cannot increment or decrement non-numeric value\r\n"),
    ];
    let value = vec![b'v'; 1 << 20];
    for (change, reply) in changes {
        for (get, head, end) in
            [(&b"get k\r\n"[..], "VALUE k 0 1048576\r\n", "\r\nEND\r\n"), (b"mg k v\r\n", "VA 1048576\r\n", "\r\n")]
        {
            let mut bench = StreamBench::new(Limits::default());
            bench.put("k", &value);
            bench.send(&[get, b"set l 0 0 3\r\nabc\r\n", get, change].concat());
            let what = String::from_utf8([get, change].concat()).unwrap();
            assert_eq!(bench.in_flight(), 3, "all but the change: {what}");
            let (mut received, mut asked) = (Vec::new(), false);
            for _ in 0..POLLS_MAX {
                if bench.is_quiet() {
                    break;
                }
                for get in &bench.stream.connection.client.asked {
                    // The change is not submitted yet, or it is the one that asks.
                    assert!(!bench.stream.input.is_empty() || get.number == 3, "{what}");
                    asked = true;
                }
                bench.poll();
                received.extend(bench.received());
            }
            received.extend(bench.received());
            let shown = [head.as_bytes(), &value, end.as_bytes()].concat();
            let expected = [&shown, &b"STORED\r\n"[..], &shown, reply.as_bytes()].concat();
            assert!(asked && received.starts_with(&expected), "{what}");
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
            assert!(sent < 1000, "{} bytes unsent", bench.unsent_bytes());
        }
        let held_bytes = bench.held_bytes();
        assert!(held_bytes < bench.alone.limits.connection_in_flight_bytes + 4096, "{held_bytes}");
        assert!(bench.alone.budget.used_bytes() >= held_bytes - FREE_BYTES);
        while bench.stream.connection.client.blocked || !bench.stream.connection.client.out.is_empty() {
            bench.poll();
            bench.received();
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
    bench.poll_until(|bench| bench.in_flight() == 0);
    assert!(bench.stream.is_finished());
}
