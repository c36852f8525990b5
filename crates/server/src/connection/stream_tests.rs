use super::*;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicU64, AtomicUsize};

use tapetum::{Outcome, Reply, Request, Stats, ValueRange};

use crate::errands::Errands;
use crate::gets::Gets;
use crate::stats::Figures;

/// Answers when told to: every get with `value`, all else with a stamp.
#[derive(Default)]
struct Slow {
    submitted: Vec<(u64, bool)>,
    value: Vec<u8>,
}

impl Session for Slow {
    fn submit(&mut self, token: u64, request: Request<'_>) {
        self.submitted.push((token, matches!(request, Request::Get { .. })));
    }

    fn poll(&mut self, replies: &mut Vec<Reply>) {
        let value = ValueRange { start: 0, end: self.value.len() };
        replies.extend(self.submitted.drain(..).map(|(token, is_get)| {
            let hit = Outcome::Value { flags: 0, stamp: 1, expiry: 0, value };
            Reply { token, outcome: if is_get { hit } else { Outcome::Stored { stamp: 1 } } }
        }));
    }

    fn bytes(&self, value: ValueRange) -> &[u8] {
        &self.value[value.start..value.end]
    }

    fn in_flight(&self) -> usize {
        self.submitted.len()
    }

    fn event_fds(&self) -> Vec<RawFd> {
        Vec::new()
    }
}

struct Bench {
    stream: Stream,
    client: UnixStream,
    session: Slow,
    limits: Limits,
    budget: Budget,
    figures: Figures,
    pool: Pool,
    scratch: Vec<u8>,
    gets: Gets,
    errands: Errands,
}

impl Bench {
    fn new(limits: Limits) -> Bench {
        let (client, server) = UnixStream::pair().unwrap();
        server.set_nonblocking(true).unwrap();
        let figures = Figures {
            counters: vec![Counters::default()],
            connections: AtomicUsize::new(1),
            settings: Vec::new(),
            memory_bytes: AtomicU64::new(0),
            connections_max: 1,
            started_unix_seconds: 0,
            store: Box::new(Stats::default),
            slabs: Box::new(Vec::new),
        };
        Bench {
            stream: Stream::new(server.into(), 0, 0, 0),
            client,
            session: Slow::default(),
            budget: Budget::new(limits.in_flight_bytes),
            gets: Gets::new(limits.in_flight_bytes),
            limits,
            figures,
            errands: Errands::queue().0,
            pool: Pool::default(),
            scratch: vec![0; 4096],
        }
    }

    fn with<R>(&mut self, work: impl FnOnce(&mut Stream, &mut Context<'_, Slow>) -> R) -> R {
        let mut context = Context {
            session: &mut self.session,
            limits: &self.limits,
            budget: &self.budget,
            figures: &self.figures,
            errands: &self.errands,
            worker: 0,
            counters: &self.figures.counters[0],
            pool: &mut self.pool,
            scratch: &mut self.scratch,
            now: 1,
            gets: &mut self.gets,
        };
        work(&mut self.stream, &mut context)
    }

    fn send(&mut self, bytes: &[u8]) {
        self.client.write_all(bytes).unwrap();
        self.with(|stream, cx| stream.read(cx));
        self.stream.settle(&self.budget);
    }

    /// One poll of the store, and what follows from it.
    fn poll(&mut self) {
        let mut replies = Vec::new();
        self.session.poll(&mut replies);
        for reply in replies {
            self.with(|stream, cx| stream.connection.complete(reply.token as u32, &reply.outcome, cx));
        }
        self.with(|stream, cx| stream.advance(cx));
        self.stream.send(&mut self.pool, &self.figures.counters[0], 1);
        self.stream.settle(&self.budget);
    }
}

#[test]
fn at_rest_it_holds_no_buffer() {
    let mut bench = Bench::new(Limits::default());
    for _ in 0..3 {
        bench.session.value = vec![b'v'; 40_000];
        bench.send(&b"get a b c\r\n".repeat(20));
        bench.send(b"set k 0 0 10000\r\n");
        bench.send(&[b'x'; 10_000]);
        bench.send(b"\r\n");
        while bench.session.in_flight() > 0 || !bench.stream.connection.out.is_empty() {
            bench.poll();
            let mut sink = vec![0; 1 << 20];
            let _ = bench.client.read(&mut sink).unwrap();
        }
    }
    assert_eq!(bench.stream.input.capacity(), 0);
    assert!(bench.stream.connection.slots.is_empty());
    assert_eq!((bench.stream.connection.charged_bytes, bench.budget.used_bytes()), (0, 0));
    assert!(bench.gets.is_idle());
}

#[test]
fn an_announced_value_takes_no_room_before_it_comes() {
    let mut bench = Bench::new(Limits::default());
    bench.send(b"set a 0 0 16000000\r\nabc");
    assert!(bench.stream.input.capacity() <= INPUT_BYTES_MIN);
    assert_eq!(bench.stream.connection.charged_bytes, 0);
    bench.send(&vec![b'x'; 100_000]);
    assert!(bench.stream.input.capacity() <= 256 << 10);
    assert!(bench.budget.used_bytes() > 0);
}

#[test]
fn requests_of_one_client_are_bounded_and_go_on_as_they_are_answered() {
    let limits = Limits { connection_requests: 10, ..Limits::default() };
    let mut bench = Bench::new(limits);
    bench.send(&b"delete k\r\n".repeat(100));
    assert_eq!(bench.session.in_flight(), 10);
    assert!(!bench.stream.wants_input());
    bench.poll();
    assert_eq!(bench.session.in_flight(), 10);
    for _ in 0..9 {
        bench.poll();
    }
    assert_eq!(bench.session.in_flight(), 0);
    assert!(bench.stream.wants_input());
}

#[test]
fn gets_slow_down_when_values_are_large() {
    let mut bench = Bench::new(Limits::default());
    bench.send(&b"get k\r\n".repeat(300));
    let first = bench.session.in_flight();
    assert!(first <= (2 << 20) / Gets::VALUE_BYTES_AT_FIRST);
    bench.session.value = vec![b'v'; 1 << 20];
    bench.poll();
    assert!(bench.session.in_flight() <= 2, "{} of 1 MiB each", bench.session.in_flight());
    // Unread replies stop it altogether.
    for _ in 0..5 {
        bench.poll();
    }
    assert_eq!(bench.session.in_flight(), 0);
    assert!(bench.stream.connection.blocked);
}

#[test]
fn a_barrier_holds_back_what_follows() {
    let mut bench = Bench::new(Limits::default());
    bench.send(b"delete a\r\ndelete b\r\nflush_all\r\ndelete c\r\n");
    assert_eq!(bench.session.in_flight(), 2);
    bench.poll();
    assert_eq!(bench.session.in_flight(), 1);
    bench.poll();
    assert_eq!(bench.session.in_flight(), 1);
    bench.poll();
    assert_eq!(bench.session.in_flight(), 0);
}

#[test]
fn a_client_that_left_is_finished_once_its_requests_are_answered() {
    let mut bench = Bench::new(Limits::default());
    bench.send(b"get a\r\n");
    drop(std::mem::replace(&mut bench.client, UnixStream::pair().unwrap().0));
    bench.with(|stream, cx| stream.read(cx));
    assert!(!bench.stream.is_finished(), "the store still owes an answer");
    bench.poll();
    bench.poll();
    assert!(bench.stream.is_finished());
}

/// A budget that others have spent.
fn spent() -> Bench {
    let bench = Bench::new(Limits::default());
    assert!(bench.budget.allows(7, 1 << 30), "somebody has the overdraft, too");
    bench.budget.change(0, bench.limits.in_flight_bytes);
    bench
}

#[test]
fn small_requests_are_served_while_others_hold_the_budget() {
    let mut bench = spent();
    bench.session.value = vec![b'v'; 1000];
    for _ in 0..20 {
        bench.send(b"set k 0 0 3\r\nabc\r\nget k\r\nset k 0 0 3\r\nabc\r\n");
        assert!(bench.session.in_flight() > 0);
        while bench.session.in_flight() > 0 {
            bench.poll();
        }
    }
    assert_eq!(bench.figures.counters[0].get_hits.load(std::sync::atomic::Ordering::Relaxed), 20);
}

#[test]
fn a_large_value_that_was_tried_is_dropped_and_comes_when_there_is_room() {
    let mut bench = spent();
    bench.session.value = vec![b'v'; 1 << 20];
    bench.send(b"get k\r\nget l\r\n");
    assert_eq!(bench.session.in_flight(), 1, "one is tried");
    for _ in 0..3 {
        bench.poll();
        assert_eq!((bench.session.in_flight(), bench.stream.connection.out.unsent_bytes()), (0, 0));
        assert!(bench.stream.connection.waits() && bench.gets.is_idle());
    }
    bench.budget.change(bench.limits.in_flight_bytes, 0);
    bench.poll();
    assert_eq!(bench.session.in_flight(), 1, "asked for again");
    let (mut received, mut sink) = (0, vec![0; 1 << 20]);
    bench.client.set_nonblocking(true).unwrap();
    while bench.session.in_flight() > 0 || !bench.stream.connection.out.is_empty() {
        bench.poll();
        received += bench.client.read(&mut sink).unwrap_or(0);
    }
    assert_eq!(received, 2 * ((1 << 20) + "VALUE k 0 1048576\r\n\r\nEND\r\n".len()));
    assert_eq!(bench.figures.counters[0].get_hits.load(std::sync::atomic::Ordering::Relaxed), 2);
    assert_eq!(bench.budget.used_bytes(), 0);
}

#[test]
fn a_client_that_left_while_its_value_was_dropped_is_finished() {
    let mut bench = spent();
    bench.session.value = vec![b'v'; 1 << 20];
    bench.send(b"get k\r\n");
    bench.poll();
    assert!(!bench.stream.is_finished());
    bench.stream.connection.give_up();
    assert!(bench.stream.is_finished());
}
