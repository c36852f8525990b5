//! The store is exchanged under a server whose clients stay: each request is answered once, by a store or with the reason why there is
//! none, and what one store acknowledged the next one has.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use crate::common::{drive_of, new_on};
use tapetum::{Error, Store, StoreOptions};
use tapetum_drive::{Drive, Env, Flash, MemoryFlash};
use tapetum_server::doors::options::Options;
use tapetum_server::net::limits::Limits;
use tapetum_server::server::Server;
use tapetum_server::store::store_slot::StoreSlot;

const CAPACITY: u64 = 64 << 20;
/// So long that a get of one asks for room, when several are on their way.
const LONG_BYTES: usize = 60_000;
const AWAY: &str = "the store is away";

fn options() -> StoreOptions {
    StoreOptions { segment_bytes: 1 << 20, ..StoreOptions::new(CAPACITY, 32 << 20) }
}

fn drive_on(flash: Arc<dyn Flash>) -> Drive {
    drive_of(flash, &options(), Env::system())
}

fn away() -> Error {
    Error::Unusable(AWAY.into())
}

struct Bench {
    slot: Arc<StoreSlot>,
    server: Server,
    address: String,
}

impl Bench {
    fn new() -> Bench {
        let drive = drive_on(Arc::new(MemoryFlash::new(CAPACITY)));
        let slot = Arc::new(StoreSlot::new(new_on(&drive, &options())));
        let options = Options {
            limits: Limits { in_flight_bytes: 1 << 20, ..Limits::default() },
            ..Options::at(vec!["127.0.0.1:0".parse().unwrap()])
        };
        let server = Server::start(Arc::clone(&slot), options).unwrap();
        let address = server.addresses()[0].to_string();
        Bench { slot, server, address }
    }

    fn client(&self) -> Client {
        let stream = TcpStream::connect(&self.address).unwrap();
        // Long enough for any machine; a hang becomes a failure.
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        Client { replies: BufReader::new(stream.try_clone().unwrap()), stream }
    }

    /// Ends the store as a crash would; what it lay on.
    fn take_store(&self) -> Arc<dyn Flash> {
        self.slot.withdraw(&away()).unwrap().abandon().unwrap()
    }

    fn put_store(&self, flash: Arc<dyn Flash>) {
        self.slot.put(Store::open_on(&drive_on(flash), &options()).unwrap()).unwrap();
    }
}

struct Client {
    stream: TcpStream,
    replies: BufReader<TcpStream>,
}

impl Client {
    fn send(&mut self, script: &[u8]) {
        self.stream.write_all(script).unwrap();
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.replies.read_line(&mut line).unwrap();
        line.trim_end().into()
    }

    fn ask(&mut self, script: &str) -> String {
        self.send(script.as_bytes());
        self.line()
    }

    /// The reply to a get: the value, if there is one, or an error.
    fn value(&mut self) -> Result<Option<Vec<u8>>, String> {
        let head = self.line();
        let mut words = head.split(' ');
        match words.next() {
            Some("END") => return Ok(None),
            Some("VALUE") => {}
            _ => return Err(head),
        }
        let mut value = vec![0; words.nth(2).unwrap().parse::<usize>().unwrap() + 2];
        self.replies.read_exact(&mut value).unwrap();
        value.truncate(value.len() - 2);
        assert_eq!(self.line(), "END");
        Ok(Some(value))
    }
}

/// How often a client asks, at most, until its worker has the new store's session.
const ASKS_MAX: usize = 100_000;

fn long_value(number: u64) -> Vec<u8> {
    tapetum_drive::SplitMix64::new(number).bytes(LONG_BYTES)
}

#[test]
fn a_connection_stays_while_there_is_no_store() {
    let bench = Bench::new();
    let mut client = bench.client();
    assert_eq!(client.ask("set a 0 0 1\r\nx\r\n"), "STORED");
    let flash = bench.take_store();
    let refusal = format!("SERVER_ERROR {AWAY}");
    assert_eq!(client.ask("set b 0 0 1\r\nx\r\n"), refusal);
    assert_eq!(client.ask("get a\r\n"), refusal);
    assert_eq!(client.ask("stats inspect\r\n"), refusal);
    assert_eq!(client.ask("resize memory 33554432\r\n"), refusal);
    assert!(bench.client().ask("version\r\n").starts_with("VERSION"), "others may come");
    client.send(b"stats\r\n");
    let figures: Vec<String> = std::iter::from_fn(|| Some(client.line()).filter(|line| line != "END")).collect();
    assert!(figures.contains(&"STAT curr_items 1".into()), "{figures:?}");
    bench.slot.refuse(&Error::Unusable("still away".into()));
    assert_eq!(client.ask("get a\r\n"), "SERVER_ERROR still away");
    bench.put_store(flash);
    // The worker may read the client's bytes before it takes its new session.
    let mut replies = std::iter::from_fn(|| Some(client.ask("set b 0 0 1\r\ny\r\n"))).take(ASKS_MAX);
    let reply = replies.find(|reply| reply != "SERVER_ERROR still away");
    assert_eq!(reply.as_deref(), Some("STORED"));
    client.send(b"get a\r\n");
    assert_eq!(client.value(), Ok(Some(b"x".to_vec())));
    bench.server.stop().unwrap();
}

#[test]
fn what_is_on_its_way_when_the_store_goes_is_answered_once() {
    const LONG_KEYS: u64 = 24;
    let bench = Bench::new();
    let mut client = bench.client();
    for number in 0..LONG_KEYS {
        client.send(format!("set long{number} 0 0 {LONG_BYTES}\r\n").as_bytes());
        client.send(&long_value(number));
        assert_eq!(client.ask("\r\n"), "STORED");
    }
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        let clients: Vec<_> = (0..4)
            .map(|number| {
                let (mut client, done) = (bench.client(), &done);
                scope.spawn(move || ask_on(&mut client, number, done))
            })
            .collect();
        for _ in 0..20 {
            thread::sleep(Duration::from_millis(15));
            let flash = bench.take_store();
            thread::sleep(Duration::from_millis(2));
            bench.put_store(flash);
        }
        done.store(true, Ordering::Relaxed);
        for acknowledged in clients {
            for (key, value) in acknowledged.join().unwrap() {
                client.send(format!("get {key}\r\n").as_bytes());
                assert_eq!(client.value(), Ok(Some(value.to_string().into_bytes())), "{key}");
            }
        }
    });
    bench.server.stop().unwrap();
}

/// Sends sets and gets of long values, many at a time, until it is `done`; the last value of each key that was acknowledged.
fn ask_on(client: &mut Client, who: u64, done: &AtomicBool) -> BTreeMap<String, u64> {
    const AT_ONCE: u64 = 16;
    let (mut acknowledged, mut round) = (BTreeMap::new(), 0);
    while !done.load(Ordering::Relaxed) {
        let mut script = String::new();
        for at in 0..AT_ONCE {
            let value = format!("{}", round * AT_ONCE + at);
            script +=
                &format!("get long{}\r\nset c{who}k{at} 0 0 {}\r\n{value}\r\n", (who + round + at) % 24, value.len());
        }
        client.send(script.as_bytes());
        for at in 0..AT_ONCE {
            match client.value() {
                Ok(value) => assert!(value == Some(long_value((who + round + at) % 24)), "a get lost its value"),
                Err(error) => assert_eq!(error, format!("SERVER_ERROR {AWAY}")),
            }
            let (key, said) = (format!("c{who}k{at}"), client.line());
            match said.as_str() {
                "STORED" => drop(acknowledged.insert(key, round * AT_ONCE + at)),
                // It may be there or not: only a write that is acknowledged decides it again.
                _ => {
                    assert_eq!(said, format!("SERVER_ERROR {AWAY}"));
                    acknowledged.remove(&key);
                }
            }
        }
        round += 1;
    }
    acknowledged
}

/// Puts keys that are long enough for a list of them to fill any socket; their names.
fn put_many(client: &mut Client, count: usize) -> Vec<String> {
    let keys: Vec<String> = (0..count).map(|number| format!("{number:0>80}")).collect();
    for some in keys.chunks(1000) {
        let sets = some.iter().map(|key| format!("set {key} 0 0 1 noreply\r\nv\r\n"));
        client.send((sets.collect::<String>() + "mn\r\n").as_bytes());
        assert_eq!(client.line(), "MN");
    }
    keys
}

/// The lines of a list up to its end.
fn lines(client: &mut Client, end: &str) -> Vec<String> {
    let mut next = || {
        let line = client.line();
        assert!(!line.is_empty(), "the list did not end");
        (line != end).then_some(line)
    };
    std::iter::from_fn(&mut next).collect()
}

#[test]
fn lists_of_keys_come_whole_and_in_their_turn() {
    let bench = Bench::new();
    let mut client = bench.client();
    let keys = put_many(&mut client, 20_000);
    client
        .send(b"lru_crawler metadump all\r\nlru_crawler mgdump hash\r\nstats cachedump 1 5\r\nget nobody\r\nquit\r\n");
    client.stream.shutdown(std::net::Shutdown::Write).unwrap();
    let told = |lines: Vec<String>, before: &str, behind: &str| {
        let key = |line: &String| line.strip_prefix(before).unwrap().split(behind).next().unwrap().to_string();
        let mut keys: Vec<String> = lines.iter().map(key).collect();
        keys.sort_unstable();
        keys
    };
    assert!(told(lines(&mut client, "END"), "key=", " ") == keys);
    assert!(told(lines(&mut client, "EN"), "mg ", " ") == keys);
    let items = lines(&mut client, "END");
    assert!(items.len() == 5 && items.iter().all(|line| line.ends_with(" [1 b; 0 s]")), "{items:?}");
    assert_eq!((client.line(), client.line()), ("END".into(), String::new()));
    bench.server.stop().unwrap();
}

#[test]
fn who_asks_for_lists_and_does_not_read_them_disturbs_nobody_and_has_them_later() {
    let bench = Bench::new();
    let (mut client, mut silent, gone) = (bench.client(), bench.client(), bench.client());
    let keys = put_many(&mut client, 60_000);
    let lists = "lru_crawler metadump all\r\n".repeat(4);
    silent.send(lists.as_bytes());
    { gone }.send(lists.as_bytes());
    for key in keys.iter().step_by(100) {
        client.send(format!("get {key}\r\n").as_bytes());
        assert_eq!(client.value(), Ok(Some(b"v".to_vec())));
    }
    for _ in 0..4 {
        assert_eq!(lines(&mut silent, "END").len(), keys.len());
    }
    assert!(silent.ask("version\r\n").starts_with("VERSION"));
    bench.server.stop().unwrap();
}
