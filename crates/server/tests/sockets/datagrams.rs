//! Tests of the server over UDP, on a store that answers late and in any order: what clients get, and what strangers do not.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::time::Duration;

use crate::common::store_in_memory;
use crate::late_store::late_store;
use crate::test_server::{TestServer, hit, set};
use crate::udp_client::{ReplyDatagram, UdpClient, framed, packet};
use tapetum::{Store, StoreOptions};
use tapetum_server::doors::memcached::udp::UdpOptions;
use tapetum_server::doors::options::Options;
use tapetum_server::net::limits::Limits;

const LOOPBACK: &str = "127.0.0.0/8";
/// A network in which no client is: all are strangers.
const NOBODY: &str = "192.0.2.0/24";

/// A server that trusts only the networks in `allow`.
fn server_over(store: Store, allow: &str, limits: Limits) -> TestServer {
    let udp = UdpOptions {
        address: "0".parse().unwrap(),
        allow: vec![allow.parse().unwrap()],
        rate_bytes: 1 << 20,
        datagram_bytes_max: 1400,
    };
    let options = Options { limits, udp: Some(udp), ..Options::at(vec!["127.0.0.1:0".parse().unwrap()]) };
    TestServer::start(store, options)
}

fn server(allow: &str, limits: Limits) -> TestServer {
    server_over(late_store(), allow, limits)
}

fn trusting() -> TestServer {
    server(LOOPBACK, Limits::default())
}

struct Client(UdpClient);

impl Client {
    fn of(server: &TestServer) -> Client {
        Client(UdpClient::open(server.udp()).unwrap())
    }

    #[track_caller]
    fn ask(&mut self, payload: &[u8]) -> Vec<u8> {
        self.0.ask(payload).unwrap()
    }

    /// Sends a datagram that must get no answer: the next answer is to the next request.
    #[track_caller]
    fn silent(&mut self, datagram: &[u8]) {
        self.0.socket.send(datagram).unwrap();
        self.hears_nothing_before(b"get absent\r\n", b"END\r\n");
    }

    #[track_caller]
    fn hears_nothing_before(&mut self, next: &[u8], answer: &[u8]) {
        assert_eq!(String::from_utf8_lossy(&self.ask(next)), String::from_utf8_lossy(answer));
    }
}

#[test]
fn trusted_peers_have_every_command_in_both_protocols() {
    let bench = trusting();
    let mut client = Client::of(&bench);
    assert_eq!(client.ask(&set("a", b"abc")), b"STORED\r\n");
    assert_eq!(client.ask(b"get a\r\n"), hit("a", b"abc"));
    assert_eq!(client.ask(b"get none a none\r\n"), hit("a", b"abc"));
    assert_eq!(client.ask(b"incr a 1\r\n"), b"CLIENT_ERROR cannot increment or decrement non-numeric value\r\n");
    assert_eq!(client.ask(b"delete a\r\n"), b"DELETED\r\n");
    assert_eq!(client.ask(&packet(1, &[0; 8], b"b", b"xyz"))[..8], [0x81, 1, 0, 0, 0, 0, 0, 0]);
    assert_eq!(client.ask(&packet(0, b"", b"b", b"")).split_off(28), b"xyz");
    assert_eq!(bench.exchange(b"get b\r\n"), hit("b", b"xyz"));
    assert!(client.ask(b"version\r\n").starts_with(b"VERSION "));
    assert!(client.ask(b"stats\r\n").ends_with(b"\r\nEND\r\n"));
    // Commands that take long are allowed too.
    assert_eq!(client.ask(b"cache_memlimit 128\r\n"), b"OK\r\n");
}

#[test]
fn what_is_in_one_datagram_is_done_in_order_and_answered_by_one_message() {
    let bench = trusting();
    let mut client = Client::of(&bench);
    let script = [set("a", b"1"), b"get a\r\nflush_all\r\nget a\r\n".to_vec(), set("a", b"2"), b"get a\r\n".to_vec()];
    let expected = [b"STORED\r\n".to_vec(), hit("a", b"1"), b"OK\r\nEND\r\nSTORED\r\n".to_vec(), hit("a", b"2")];
    assert_eq!(client.ask(&script.concat()), expected.concat());
    // Far more keys than one client may have in flight.
    let keys: Vec<String> = (0..2000).map(|number| format!("k{number}")).collect();
    for some in keys.chunks(200) {
        let script: Vec<u8> = some.iter().flat_map(|key| set(key, key.as_bytes())).collect();
        assert_eq!(client.ask(&script), b"STORED\r\n".repeat(200));
    }
    let values: Vec<u8> =
        keys.iter().flat_map(|key| format!("VALUE {key} 0 {}\r\n{key}\r\n", key.len()).into_bytes()).collect();
    assert_eq!(client.ask(format!("get {}\r\n", keys.join(" ")).as_bytes()), [&values[..], b"END\r\n"].concat());
}

#[test]
fn large_values_come_in_many_datagrams_that_are_full() {
    let bench = trusting();
    let mut client = Client::of(&bench);
    for length in [0, 1369, 1370, 1374, 2761, 2762, 60_000] {
        let value: Vec<u8> = (0..length).map(|at| at as u8).collect();
        assert_eq!(client.ask(&set("c", &value)), b"STORED\r\n");
        let expected = hit("c", &value);
        assert_eq!(bench.exchange(b"get c\r\n"), expected);
        let id = client.0.send(b"get c\r\n").unwrap();
        let count = expected.len().div_ceil(1392) as u16;
        for (number, part) in (0..).zip(expected.chunks(1392)) {
            let datagram = ReplyDatagram { id, number, count, payload: part.to_vec() };
            assert_eq!(client.0.receive().unwrap(), datagram, "{length}");
        }
    }
}

#[test]
fn many_clients_each_get_their_own() {
    let bench = trusting();
    std::thread::scope(|scope| {
        for number in 0..8 {
            let bench = &bench;
            scope.spawn(move || {
                let mut client = Client::of(bench);
                for round in 0..200 {
                    let (key, value) = (format!("c{number}"), format!("{number}-{round}"));
                    assert_eq!(client.ask(&set(&key, value.as_bytes())), b"STORED\r\n");
                    assert_eq!(client.ask(format!("get {key}\r\n").as_bytes()), hit(&key, value.as_bytes()));
                }
            });
        }
    });
}

#[test]
fn what_is_no_request_is_met_with_silence_even_from_friends() {
    let bench = trusting();
    let mut client = Client::of(&bench);
    for payload in [
        &b"\r\n"[..],
        b"foo\r\n",
        b"get a",
        b"set a 0 0 9\r\nx\r\n",
        b"VALUE a 0 1\r\n1\r\nEND\r\n",
        b"ERROR\r\n",
        &[0x81; 30],
    ] {
        client.silent(&framed(9, payload));
    }
    client.silent(b"");
    client.silent(b"get a\r\n");
    client.silent(&framed(9, b""));
    assert_eq!(bench.figure("udp_dropped_no_request"), 10);
    // Half a request: nothing of the datagram runs.
    client.silent(&framed(9, &[&set("half", b"1")[..], b"foo\r\n"].concat()));
    client.hears_nothing_before(b"get half\r\n", b"END\r\n");
    // A datagram that is a part of a message.
    client.silent(&[0, 9, 0, 0, 0, 2, 0, 0, b'm', b'n', b'\r', b'\n']);
    assert_eq!(bench.figure("udp_dropped_fragment"), 1);
    // Quiet requests are answered with silence.
    client.silent(&framed(9, b"set a 0 0 1 noreply\r\nx\r\n"));
    client.hears_nothing_before(b"get a\r\n", &hit("a", b"x"));
    client.silent(&framed(9, &packet(9, b"", b"none", b"")));
}

#[test]
fn strangers_get_and_write_quietly_and_no_more() {
    let bench = server(NOBODY, Limits::default());
    let mut client = Client::of(&bench);
    for payload in
        [&b"stats\r\n"[..], b"version\r\n", b"flush_all noreply\r\n", b"set a 0 0 1\r\nx\r\n", b"delete a\r\n"]
    {
        client.silent(&framed(9, payload));
    }
    assert_eq!(bench.figure("udp_dropped_not_allowed"), 5);
    client.silent(&framed(9, b"set a 0 0 3 noreply\r\nabc\r\n"));
    client.hears_nothing_before(b"get a\r\n", &hit("a", b"abc"));
    assert_eq!(client.ask(&[packet(0x11, &[0; 8], b"b", b"1"), packet(0x0a, b"", b"", b"")].concat()).len(), 24);
    // At most three times the request, and at most a datagram; the request must be long enough.
    let too_large = b"SERVER_ERROR too large for UDP\r\n";
    bench.exchange(&set("c", &[b'x'; 500]));
    bench.exchange(&set("d", &[b'x'; 1400]));
    assert_eq!(client.ask(b"get c\r\n"), too_large);
    let padded = |key: &str| format!("get {key}{}\r\n", " ".repeat(500)).into_bytes();
    assert_eq!(client.ask(&padded("c")), hit("c", &[b'x'; 500]));
    assert_eq!(client.ask(&padded("d")), too_large);
    let mut refusal = packet(0, b"", b"", b"Too large.");
    (refusal[0], refusal[7]) = (0x81, 3);
    assert_eq!(client.ask(&packet(0, b"", b"c", b"")), refusal);
    assert_eq!(bench.figure("udp_refused_size"), 3);
    client.silent(&framed(9, b"nonsense\r\n"));
    assert_eq!(bench.figure("udp_dropped_no_request"), 1);
    assert_eq!((bench.figure("udp_received"), bench.figure("udp_answered")), (20, 13));
    // Counted when the system has taken them.
    while bench.figure("udp_sent") < 13 {}
    assert_eq!(bench.figure("udp_sent"), 13);
}

#[test]
fn more_than_a_client_may_have_on_its_way_is_refused_and_not_passed_over() {
    let limits = Limits { connection_in_flight_bytes: 64 << 10, ..Limits::default() };
    let bench = server(LOOPBACK, limits);
    let mut client = Client::of(&bench);
    let values = [vec![b'x'; 40_000], vec![b'y'; 40_000]];
    for (key, value) in ["a", "b"].iter().zip(&values) {
        bench.exchange(&set(key, value));
        // Makes the server expect large values.
        assert_eq!(client.ask(format!("get {key}\r\n").as_bytes()), hit(key, value));
    }
    assert_eq!(client.ask(b"get a b a b\r\n"), b"SERVER_ERROR too large for UDP\r\n");
    assert_eq!((bench.figure("udp_refused_size"), bench.figure("udp_dropped_busy")), (1, 0));
}

#[test]
fn what_others_brought_keeps_no_small_reply_back() {
    let bench = server(LOOPBACK, Limits { connection_in_flight_bytes: 64 << 10, ..Limits::default() });
    assert_eq!(bench.exchange(&set("large", &vec![b'v'; 1 << 20])), b"STORED\r\n");
    let mut clients: Vec<Client> = (0..8).map(|_| Client::of(&bench)).collect();
    assert_eq!(clients[0].ask(&set("a", b"1")), b"STORED\r\n");
    for client in &mut clients {
        // Some of these reach each of the two workers.
        (0..4).for_each(|_| assert!(bench.exchange(b"get large\r\n").len() > 1 << 20));
        let value = hit("a", b"1");
        let value = value.strip_suffix(b"END\r\n").unwrap();
        assert_eq!(client.ask(b"get a a a absent\r\n"), [value, value, value, b"END\r\n"].concat());
    }
    assert_eq!(bench.figure("udp_refused_size"), 0);
}

#[test]
fn a_stranger_is_sent_no_more_than_its_rate() {
    let bench = server(NOBODY, Limits::default());
    let mut client = Client::of(&bench);
    // Each reply is three times its request, so the rate is soon exceeded.
    let request = format!("get a{}\r\n", " ".repeat(900));
    while bench.figure("udp_dropped_rate") == 0 {
        for _ in 0..100 {
            client.0.send(request.as_bytes()).unwrap();
        }
    }
    let silences = bench.figure("udp_dropped_rate");
    assert!(silences + bench.figure("udp_answered") <= bench.figure("udp_received"));
    // Other peers are still served, and the same peer over TCP.
    assert_eq!(bench.exchange(b"get a\r\n"), b"END\r\n");
}

/// The store asks for room before it reads a large value.
#[test]
fn what_finds_no_memory_is_dropped_and_the_rest_goes_on() {
    const DROPPED: usize = 50;
    const HELD_BYTES: usize = 100_000;
    let options = StoreOptions { segment_bytes: 1 << 20, ..StoreOptions::new(64 << 20, 32 << 20) };
    let (_drive, store) = store_in_memory(64 << 20, &options);
    let bench = server_over(store, LOOPBACK, Limits { in_flight_bytes: 150 << 10, ..Limits::default() });
    let large = vec![b'v'; 100_000];
    assert_eq!(bench.exchange(&[set("large", &large), set("small", b"v")].concat()), b"STORED\r\n".repeat(2));
    // Values that are not whole yet take all that clients may hold, and more.
    let (whole, begun_bytes) = (set("held", &[b'v'; HELD_BYTES]), HELD_BYTES - 1000);
    let mut holders: Vec<TcpStream> = (0..2).map(|_| bench.client()).collect();
    holders.iter_mut().for_each(|holder| holder.write_all(&whole[..begun_bytes]).unwrap());
    while bench.figure("bytes_read") < 2 * begun_bytes as u64 {}
    let mut client = Client::of(&bench);
    let answers_large = |client: &mut Client| {
        let outcomes = || (bench.figure("udp_answered"), bench.figure("udp_dropped_busy"));
        let before = outcomes();
        let asked = client.0.send(b"get large\r\n").unwrap();
        while outcomes() == before {}
        let is_answered = outcomes() == (before.0 + 1, before.1);
        if is_answered {
            assert_eq!(client.0.reply_to(asked).unwrap(), hit("large", &large));
        }
        is_answered
    };
    // The server charges what it has read a little later, and not while these come one after the other.
    while answers_large(&mut client) {
        std::thread::sleep(Duration::from_millis(5));
    }
    // The server expects small values.
    (0..50).for_each(|_| client.hears_nothing_before(b"get small\r\n", &hit("small", b"v")));
    for _ in 0..DROPPED {
        assert!(!answers_large(&mut client));
        client.hears_nothing_before(b"get small\r\n", &hit("small", b"v"));
    }
    holders.iter_mut().for_each(|holder| holder.write_all(&whole[begun_bytes..]).unwrap());
    for holder in holders {
        let mut reply = String::new();
        BufReader::new(holder).read_line(&mut reply).unwrap();
        assert_eq!(reply, "STORED\r\n");
    }
    // The server gives back what the holders held after their replies have left.
    while !answers_large(&mut client) {}
}
