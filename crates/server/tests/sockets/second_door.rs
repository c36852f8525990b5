//! A second protocol over the same sockets, workers and sessions, beside memcached in one server. It shows that a door needs nothing else.
//! A request is a line with a tag; replies carry the tag and come in the order of the outcomes.
//!
//! ```text
//! 7 get key\n        ─►  7 =value\n  or  7 -\n
//! 8 put key value\n  ─►  8 ok\n
//! ```

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::Arc;
use std::time::Duration;
use tapetum::Expiry;

use crate::memory_engine::MemoryStore;
use tapetum::{Condition, KeyspaceRef, Outcome, Reply, Request};
use tapetum_server::doors::memcached::{Memcached, MemcachedOptions};
use tapetum_server::doors::options::Options;
use tapetum_server::net::connection::Client;
use tapetum_server::net::context::Context;
use tapetum_server::net::datagrams::NoDatagrams;
use tapetum_server::net::door::{Door, Load, Step};
use tapetum_server::net::either::Either;
use tapetum_server::net::limits::Limits;
use tapetum_server::net::listen::{Address, Listener};
use tapetum_server::net::out::Pool;
use tapetum_server::server::{Entrances, Server};
use tapetum_server::store::engine::Session;
use tapetum_server::store::errands::Answer;

const LINE_BYTES_MAX: usize = 200_000;

/// A listener's greeting to each client, and its prefix for each key.
#[derive(Clone)]
struct LineOptions {
    greeting: &'static str,
    prefix: &'static str,
}

struct Pending {
    tag: String,
    charge_bytes: usize,
    is_get: bool,
}

/// A request's number is its index in `requests`.
struct LineDoor {
    options: LineOptions,
    requests: Vec<Option<Pending>>,
}

impl LineDoor {
    fn pending(&self) -> impl Iterator<Item = &Pending> {
        self.requests.iter().flatten()
    }

    /// Submits the request of a line. `false` if it must wait.
    fn request<S: Session>(&mut self, line: &str, client: &mut Client, cx: &mut Context<'_, S, ()>) -> bool {
        let mut words = line.splitn(4, ' ');
        let (tag, verb) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
        let key = format!("{}{}", self.options.prefix, words.next().unwrap_or_default());
        let (key, value) = (key.as_bytes(), words.next().unwrap_or_default().as_bytes());
        let is_get = verb == "get";
        let bytes = if is_get { client.value_bytes_expected(cx.gets) } else { value.len() };
        let Some(admission) = client.admit(self.load(), is_get, bytes, cx) else { return false };
        let number = self.requests.iter().position(Option::is_none).unwrap_or_else(|| {
            self.requests.push(None);
            self.requests.len() - 1
        });
        self.requests[number] = Some(Pending { tag: tag.into(), charge_bytes: admission.charge_bytes, is_get });
        let put = Request::Put { key, value, flags: 0, expiry: Expiry::NONE, condition: Condition::Always };
        let request = if is_get { Request::Get { key } } else { put };
        client.submit(number as u32, KeyspaceRef::DEFAULT, request, admission, cx);
        true
    }
}

impl Door for LineDoor {
    type Options = LineOptions;
    type PerWorker = ();
    type Datagrams = NoDatagrams;

    fn open(options: &LineOptions, client: &mut Client, pool: &mut Pool) -> LineDoor {
        client.out.append(pool, |out| out.extend_from_slice(options.greeting.as_bytes()));
        LineDoor { options: options.clone(), requests: Vec::new() }
    }

    fn refusal(_options: &LineOptions) -> &'static [u8] {
        b"full\n"
    }

    fn step<S: Session>(&mut self, input: &[u8], client: &mut Client, cx: &mut Context<'_, S, ()>) -> Step {
        let Some(end) = input.iter().position(|&byte| byte == b'\n') else {
            match input.len() {
                ..LINE_BYTES_MAX => client.need(input.len() + 1),
                _ => client.close(),
            }
            return Step::Stop(0);
        };
        if client.is_full(self.load(), cx.limits, cx.budget) {
            return Step::Stop(0);
        }
        let line = String::from_utf8_lossy(&input[..end]);
        if !self.request(&line, client, cx) {
            return Step::Stop(0);
        }
        client.frame_done(0);
        Step::Took(end + 1)
    }

    fn complete<S: Session>(&mut self, number: u32, reply: &Reply, client: &mut Client, cx: &mut Context<'_, S, ()>) {
        let Some(Pending { tag, charge_bytes, is_get }) = self.requests[number as usize].take() else {
            unreachable!("one outcome a request")
        };
        let value = reply.outcome.value().map(|value| cx.session.bytes(value));
        if is_get {
            client.got(charge_bytes, value.map(<[u8]>::len), cx.gets);
        }
        client.out.append(cx.pool, |out| {
            out.extend_from_slice(tag.as_bytes());
            match (value, &reply.outcome) {
                (Some(value), _) => out.extend_from_slice(&[b" =", value, b"\n"].concat()),
                (None, Outcome::Stored { .. }) => out.extend_from_slice(b" ok\n"),
                (None, _) => out.extend_from_slice(b" -\n"),
            }
        });
    }

    fn complete_errand(&mut self, _number: u32, _answer: Answer, _client: &mut Client, _pool: &mut Pool) {
        unreachable!("it sends no errands")
    }

    fn load(&self) -> Load {
        let held_bytes = self.pending().map(|pending| pending.charge_bytes).sum();
        Load { pending: self.pending().count(), held_bytes }
    }

    /// No order: a request that asks gets room at once, or waits for those before it in the list.
    fn place_of(&self, number: u32) -> usize {
        self.requests[..number as usize].iter().flatten().count()
    }

    fn charge_bytes(&self, number: u32) -> usize {
        self.requests[number as usize].as_ref().map_or(0, |pending| pending.charge_bytes)
    }

    fn recharge(&mut self, number: u32, bytes: usize) {
        if let Some(pending) = &mut self.requests[number as usize] {
            pending.charge_bytes = bytes;
        }
    }

    fn needs_input(&self) -> bool {
        true
    }

    fn stalled(&self) -> &'static [u8] {
        b"stalled\n"
    }
}

type Both = Either<Memcached, LineDoor>;

/// A server with a listener for memcached, then two for lines.
fn start(limits: Limits) -> Server {
    let address: Address = "127.0.0.1:0".parse().unwrap();
    let listener = || {
        let listener = Listener::bind(&address).unwrap().remove(0);
        listener.listen(16).unwrap();
        listener
    };
    let line = |greeting, prefix| Either::Second(LineOptions { greeting, prefix });
    let entrances = Entrances::<Both> {
        listeners: vec![
            (listener(), Either::First(MemcachedOptions::default())),
            (listener(), line("lines\n", "")),
            (listener(), line("apart\n", "apart-")),
        ],
        datagrams: Vec::new(),
        metrics: Vec::new(),
        devices: Vec::new(),
        udp: None,
    };
    let options = Options { limits, ..Options::at(Vec::new()) };
    let mut store = MemoryStore::new();
    store.late = true;
    Server::start_doors(entrances, Arc::new(store), options).unwrap()
}

fn connect(server: &Server, listener: usize) -> TcpStream {
    let client = TcpStream::connect(server.addresses()[listener].to_string()).unwrap();
    client.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    client
}

/// Everything that the server sends for `script`.
fn exchange(mut client: TcpStream, script: &str) -> String {
    client.write_all(script.as_bytes()).unwrap();
    client.shutdown(Shutdown::Write).unwrap();
    let mut replies = String::new();
    client.read_to_string(&mut replies).unwrap();
    replies
}

#[test]
fn two_protocols_share_workers_and_the_store() {
    let server = start(Limits::default());
    assert_eq!(exchange(connect(&server, 0), "set a 0 0 3\r\none\r\n"), "STORED\r\n");
    assert_eq!(exchange(connect(&server, 1), "1 get a\n"), "lines\n1 =one\n");
    assert_eq!(exchange(connect(&server, 1), "1 put b two\n"), "lines\n1 ok\n");
    assert_eq!(exchange(connect(&server, 0), "get a b\r\n"), "VALUE a 0 3\r\none\r\nVALUE b 0 3\r\ntwo\r\nEND\r\n");
    server.stop().unwrap();
}

#[test]
fn each_listener_has_its_options() {
    let server = start(Limits::default());
    assert_eq!(exchange(connect(&server, 2), "1 put a x\n"), "apart\n1 ok\n");
    assert_eq!(exchange(connect(&server, 1), "1 get a\n"), "lines\n1 -\n");
    assert_eq!(exchange(connect(&server, 1), "1 get apart-a\n"), "lines\n1 =x\n");
    server.stop().unwrap();
}

#[test]
fn replies_come_in_any_order_and_all_of_them() {
    let server = start(Limits::default());
    let value = "v".repeat(100_000);
    let puts: String = (0..20).map(|tag| format!("{tag} put k{tag} {value}{tag}\n")).collect();
    assert_eq!(exchange(connect(&server, 1), &puts).lines().count(), 21);
    let gets: String = (0..400).map(|tag| format!("{tag} get k{}\n", tag % 20)).collect();
    let replies = exchange(connect(&server, 1), &gets);
    let replies: Vec<&str> = replies.lines().skip(1).collect();
    let mut sorted: Vec<(u32, u32)> = Vec::new();
    for reply in &replies {
        let (tag, found) = reply.split_once(" =").unwrap();
        sorted.push((tag.parse().unwrap(), found.trim_start_matches('v').parse().unwrap()));
    }
    assert!(!sorted.is_sorted(), "the store answers late and in any order");
    sorted.sort_unstable();
    let expected: Vec<(u32, u32)> = (0..400).map(|tag| (tag, tag % 20)).collect();
    assert_eq!(sorted, expected);
    server.stop().unwrap();
}

#[test]
fn each_door_has_its_own_words_for_a_client_too_many() {
    let server = start(Limits { connections: 1, ..Limits::default() });
    let mut first = BufReader::new(connect(&server, 1));
    let mut line = String::new();
    first.read_line(&mut line).unwrap();
    assert_eq!(line, "lines\n");
    for (listener, words) in [(0, "ERROR Too many open connections\r\n"), (1, "full\n")] {
        let mut refused = String::new();
        connect(&server, listener).read_to_string(&mut refused).unwrap();
        assert_eq!(refused, words);
    }
    drop(first);
    server.stop().unwrap();
}
