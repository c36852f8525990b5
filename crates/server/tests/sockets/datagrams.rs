//! Tests of the server over UDP, on a store in memory that answers late and in any order: what clients get, and what strangers do not.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::sync::Arc;
use std::time::Duration;

use crate::memory_engine::MemoryStore;
use tapetum_server::doors::memcached::udp::UdpOptions;
use tapetum_server::doors::options::Options;
use tapetum_server::net::limits::Limits;
use tapetum_server::server::Server;

struct Bench {
    server: Option<Server>,
    tcp: String,
    udp: SocketAddr,
}

impl Bench {
    /// Trusts only the networks in `allow`.
    fn new(allow: &str, limits: Limits) -> Bench {
        let udp = UdpOptions {
            address: "0".parse().unwrap(),
            allow: vec![allow.parse().unwrap()],
            rate_bytes: 1 << 20,
            datagram_bytes_max: 1400,
        };
        let mut store = MemoryStore::new();
        store.late = true;
        let options = Options { limits, udp: Some(udp), ..Options::at(vec!["127.0.0.1:0".parse().unwrap()]) };
        let server = Server::start(Arc::new(store), options).unwrap();
        let (tcp, udp) = (server.addresses()[0].to_string(), server.udp_addresses()[0]);
        Bench { server: Some(server), tcp, udp }
    }

    fn trusting() -> Bench {
        Bench::new("127.0.0.0/8", Limits::default())
    }

    /// Clients on loopback are treated as strangers.
    fn strict() -> Bench {
        Bench::new("192.0.2.0/24", Limits::default())
    }

    fn client(&self) -> Client {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        socket.connect(self.udp).unwrap();
        // Long enough for any machine; a hang becomes a failure.
        socket.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        Client { socket, next_id: 0x1000 }
    }

    fn over_tcp(&self, script: &[u8]) -> String {
        let mut stream = TcpStream::connect(&self.tcp).unwrap();
        stream.write_all(script).unwrap();
        stream.write_all(b"quit\r\n").unwrap();
        let mut reply = Vec::new();
        stream.read_to_end(&mut reply).unwrap();
        String::from_utf8(reply).unwrap()
    }

    fn figure(&self, name: &str) -> u64 {
        let stats = self.over_tcp(b"stats\r\n");
        let found = stats.lines().find_map(|line| line.strip_prefix(&format!("STAT {name} ")));
        found.unwrap_or_else(|| panic!("no {name} in {stats}")).parse().unwrap()
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        if let Some(server) = self.server.take()
            && !std::thread::panicking()
        {
            server.stop().unwrap();
        }
    }
}

struct Client {
    socket: UdpSocket,
    next_id: u16,
}

impl Client {
    fn send(&mut self, payload: &[u8]) -> u16 {
        self.next_id += 1;
        let [high, low] = self.next_id.to_be_bytes();
        self.socket.send(&[&[high, low, 0, 0, 0, 1, 0, 0], payload].concat()).unwrap();
        self.next_id
    }

    /// The next datagram: request id, number, count, payload.
    fn receive(&self) -> (u16, u16, u16, Vec<u8>) {
        let mut buffer = vec![0; 65536];
        let length = self.socket.recv(&mut buffer).unwrap();
        let field = |at: usize| u16::from_be_bytes([buffer[at], buffer[at + 1]]);
        (field(0), field(2), field(4), buffer[8..length].to_vec())
    }

    /// The whole reply to a request.
    fn ask(&mut self, payload: &[u8]) -> Vec<u8> {
        let asked = self.send(payload);
        let (mut reply, mut expected) = (Vec::new(), 0);
        loop {
            let (id, number, count, part) = self.receive();
            assert_eq!(
                (id, number),
                (asked, expected),
                "datagrams of one sender to one socket of one machine keep their order"
            );
            reply.extend(part);
            expected += 1;
            if expected == count {
                return reply;
            }
        }
    }

    /// Sends a datagram that must get no answer: the next answer is to the next request.
    #[track_caller]
    fn silent(&mut self, datagram: &[u8]) {
        self.socket.send(datagram).unwrap();
        self.hears_nothing_before(b"get absent\r\n", b"END\r\n");
    }

    #[track_caller]
    fn hears_nothing_before(&mut self, next: &[u8], answer: &[u8]) {
        assert_eq!(String::from_utf8_lossy(&self.ask(next)), String::from_utf8_lossy(answer));
    }
}

fn set(key: &str, value: &[u8]) -> Vec<u8> {
    [format!("set {key} 0 0 {}\r\n", value.len()).as_bytes(), value, b"\r\n"].concat()
}

fn hit(key: &str, value: &[u8]) -> Vec<u8> {
    [format!("VALUE {key} 0 {}\r\n", value.len()).as_bytes(), value, b"\r\nEND\r\n"].concat()
}

fn packet(opcode: u8, extras: &[u8], key: &[u8], value: &[u8]) -> Vec<u8> {
    let body = (extras.len() + key.len() + value.len()) as u32;
    let mut packet = vec![0x80, opcode, 0, key.len() as u8, extras.len() as u8, 0, 0, 0];
    packet.extend(body.to_be_bytes());
    packet.extend([0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0, 0]);
    [&packet, extras, key, value].concat()
}

#[test]
fn trusted_peers_have_every_command_in_both_protocols() {
    let bench = Bench::trusting();
    let mut client = bench.client();
    assert_eq!(client.ask(&set("a", b"abc")), b"STORED\r\n");
    assert_eq!(client.ask(b"get a\r\n"), hit("a", b"abc"));
    assert_eq!(client.ask(b"get none a none\r\n"), hit("a", b"abc"));
    assert_eq!(client.ask(b"incr a 1\r\n"), b"CLIENT_ERROR cannot increment or decrement non-numeric value\r\n");
    assert_eq!(client.ask(b"delete a\r\n"), b"DELETED\r\n");
    assert_eq!(client.ask(&packet(1, &[0; 8], b"b", b"xyz"))[..8], [0x81, 1, 0, 0, 0, 0, 0, 0]);
    assert_eq!(client.ask(&packet(0, b"", b"b", b"")).split_off(28), b"xyz");
    assert_eq!(bench.over_tcp(b"get b\r\n").as_bytes(), hit("b", b"xyz"));
    assert!(client.ask(b"version\r\n").starts_with(b"VERSION "));
    assert!(client.ask(b"stats\r\n").ends_with(b"\r\nEND\r\n"));
    // Commands that take long are allowed too.
    assert_eq!(client.ask(b"cache_memlimit 64\r\n"), b"OK\r\n");
}

#[test]
fn what_is_in_one_datagram_is_done_in_order_and_answered_by_one_message() {
    let bench = Bench::trusting();
    let mut client = bench.client();
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
    let bench = Bench::trusting();
    let mut client = bench.client();
    for length in [0, 1369, 1370, 1374, 2761, 2762, 60_000] {
        let value: Vec<u8> = (0..length).map(|at| at as u8).collect();
        assert_eq!(client.ask(&set("c", &value)), b"STORED\r\n");
        let expected = hit("c", &value);
        let asked = client.send(b"get c\r\n");
        let count = expected.len().div_ceil(1392) as u16;
        for (number, part) in expected.chunks(1392).enumerate() {
            assert_eq!(client.receive(), (asked, number as u16, count, part.to_vec()), "{length}");
        }
    }
}

#[test]
fn many_clients_each_get_their_own() {
    let bench = Bench::trusting();
    std::thread::scope(|scope| {
        for number in 0..8 {
            let bench = &bench;
            scope.spawn(move || {
                let mut client = bench.client();
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
    let bench = Bench::trusting();
    let mut client = bench.client();
    let framed = |payload: &[u8]| [&[0, 9, 0, 0, 0, 1, 0, 0], payload].concat();
    for payload in [
        &b"\r\n"[..],
        b"foo\r\n",
        b"get a",
        b"set a 0 0 9\r\nx\r\n",
        b"VALUE a 0 1\r\n1\r\nEND\r\n",
        b"ERROR\r\n",
        &[0x81; 30],
    ] {
        client.silent(&framed(payload));
    }
    client.silent(b"");
    client.silent(b"get a\r\n");
    client.silent(&framed(b""));
    assert_eq!(bench.figure("udp_dropped_no_request"), 10);
    // Half a request: nothing of the datagram runs.
    client.silent(&framed(&[&set("half", b"1")[..], b"foo\r\n"].concat()));
    client.hears_nothing_before(b"get half\r\n", b"END\r\n");
    // A datagram that is a part of a message.
    client.silent(&[0, 9, 0, 0, 0, 2, 0, 0, b'm', b'n', b'\r', b'\n']);
    assert_eq!(bench.figure("udp_dropped_fragment"), 1);
    // Quiet requests are answered with silence.
    client.silent(&framed(b"set a 0 0 1 noreply\r\nx\r\n"));
    client.hears_nothing_before(b"get a\r\n", &hit("a", b"x"));
    client.silent(&framed(&packet(9, b"", b"none", b"")));
}

#[test]
fn strangers_get_and_write_quietly_and_no_more() {
    let bench = Bench::strict();
    let mut client = bench.client();
    let framed = |payload: &[u8]| [&[0, 9, 0, 0, 0, 1, 0, 0], payload].concat();
    for payload in
        [&b"stats\r\n"[..], b"version\r\n", b"flush_all noreply\r\n", b"set a 0 0 1\r\nx\r\n", b"delete a\r\n"]
    {
        client.silent(&framed(payload));
    }
    assert_eq!(bench.figure("udp_dropped_not_allowed"), 5);
    client.silent(&framed(b"set a 0 0 3 noreply\r\nabc\r\n"));
    client.hears_nothing_before(b"get a\r\n", &hit("a", b"abc"));
    assert_eq!(client.ask(&[packet(0x11, &[0; 8], b"b", b"1"), packet(0x0a, b"", b"", b"")].concat()).len(), 24);
    // At most three times the request, and at most a datagram; the request must be long enough.
    let too_large = b"SERVER_ERROR too large for UDP\r\n";
    bench.over_tcp(&set("c", &[b'x'; 500]));
    bench.over_tcp(&set("d", &[b'x'; 1400]));
    assert_eq!(client.ask(b"get c\r\n"), too_large);
    let padded = |key: &str| format!("get {key}{}\r\n", " ".repeat(500)).into_bytes();
    assert_eq!(client.ask(&padded("c")), hit("c", &[b'x'; 500]));
    assert_eq!(client.ask(&padded("d")), too_large);
    let mut refusal = packet(0, b"", b"", b"Too large.");
    (refusal[0], refusal[7]) = (0x81, 3);
    assert_eq!(client.ask(&packet(0, b"", b"c", b"")), refusal);
    assert_eq!(bench.figure("udp_refused_size"), 3);
}

#[test]
fn more_than_a_client_may_have_on_its_way_is_refused_and_not_passed_over() {
    let limits = Limits { connection_in_flight_bytes: 64 << 10, ..Limits::default() };
    let bench = Bench::new("127.0.0.0/8", limits);
    let mut client = bench.client();
    let values = [vec![b'x'; 40_000], vec![b'y'; 40_000]];
    for (key, value) in ["a", "b"].iter().zip(&values) {
        bench.over_tcp(&set(key, value));
        // Makes the server expect large values.
        assert_eq!(client.ask(format!("get {key}\r\n").as_bytes()), hit(key, value));
    }
    assert_eq!(client.ask(b"get a b a b\r\n"), b"SERVER_ERROR too large for UDP\r\n");
    assert_eq!((bench.figure("udp_refused_size"), bench.figure("udp_dropped_busy")), (1, 0));
}

#[test]
fn what_others_brought_keeps_no_small_reply_back() {
    let bench = Bench::new("127.0.0.0/8", Limits { connection_in_flight_bytes: 64 << 10, ..Limits::default() });
    assert_eq!(bench.over_tcp(&set("large", &vec![b'v'; 1 << 20])), "STORED\r\n");
    let mut clients: Vec<Client> = (0..8).map(|_| bench.client()).collect();
    assert_eq!(clients[0].ask(&set("a", b"1")), b"STORED\r\n");
    for client in &mut clients {
        // Some of these reach each of the two workers.
        (0..4).for_each(|_| assert!(bench.over_tcp(b"get large\r\n").len() > 1 << 20));
        let value = hit("a", b"1");
        let value = value.strip_suffix(b"END\r\n").unwrap();
        assert_eq!(client.ask(b"get a a a absent\r\n"), [value, value, value, b"END\r\n"].concat());
    }
    assert_eq!(bench.figure("udp_refused_size"), 0);
}

#[test]
fn a_stranger_is_sent_no_more_than_its_rate() {
    let bench = Bench::strict();
    let mut client = bench.client();
    // Each reply is three times its request, so the rate is soon exceeded.
    let request = format!("get a{}\r\n", " ".repeat(900));
    while bench.figure("udp_dropped_rate") == 0 {
        for _ in 0..100 {
            client.send(request.as_bytes());
        }
    }
    let silences = bench.figure("udp_dropped_rate");
    assert!(silences + bench.figure("udp_answered") <= bench.figure("udp_received"));
    // Other peers are still served, and the same peer over TCP.
    assert_eq!(bench.over_tcp(b"get a\r\n"), "END\r\n");
}

#[test]
fn what_finds_no_memory_is_dropped_and_the_rest_goes_on() {
    let bench = Bench::new("127.0.0.0/8", Limits { in_flight_bytes: 1 << 20, ..Limits::default() });
    assert_eq!(bench.over_tcp(&set("large", &vec![b'v'; 900 << 10])), "STORED\r\n");
    // Each value alone takes most of the budget.
    let (mut client, mut other) = (bench.client(), bench.client());
    for _ in 0..50 {
        client.send(b"get large\r\n");
        assert_eq!(other.ask(&set("a", b"1")), b"STORED\r\n");
    }
    // The other worker may have handled some before.
    while bench.figure("udp_received") < 100 {}
}
