//! Memcached and block devices in one server: two protocols share sockets, workers, sessions and the store.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use crate::late_store::late_store;
use crate::nbd_client::{NbdClient, READ, WRITE};
use tapetum::{BlockDevice, Store};
use tapetum_server::doors::Doors;
use tapetum_server::doors::memcached::MemcachedOptions;
use tapetum_server::doors::nbd::NbdOptions;
use tapetum_server::doors::nbd::exports::Exports;
use tapetum_server::doors::options::Options;
use tapetum_server::net::limits::Limits;
use tapetum_server::server::Server;
use tapetum_server::store::store_slot::StoreSlot;

const BLOCK: usize = 4096;
const BLOCKS: usize = 400;

/// A server of one worker with two listeners for memcached, each with a keyspace of its own, then one for block devices.
struct Bench {
    store: Store,
    server: Server,
}

impl Bench {
    fn new(limits: Limits) -> Bench {
        let store = late_store();
        store.create_block_device("disk", BlockDevice::new((BLOCKS * BLOCK) as u64).unwrap()).unwrap();
        let apart = store.create_keyspace("apart").unwrap().keyspace();
        let address = || "127.0.0.1:0".parse().unwrap();
        let options = Options { nbd: vec![address()], threads: 1, limits, ..Options::at(vec![address(), address()]) };
        let mut doors = Doors::bind(&options).unwrap();
        let of_apart =
            MemcachedOptions { keyspace: apart, keyspace_name: "apart".into(), ..MemcachedOptions::default() };
        doors.give(&[MemcachedOptions::default(), of_apart]);
        doors.nbd_options = Some(NbdOptions::new(Exports::new(&store, Vec::new(), options.threads).unwrap(), true));
        let slot = Arc::new(StoreSlot::new(store.clone()));
        Bench { store, server: Server::start_behind(doors, slot, options).unwrap() }
    }

    fn address(&self, listener: usize) -> String {
        self.server.addresses()[listener].to_string()
    }

    fn connect(&self, listener: usize) -> TcpStream {
        let client = TcpStream::connect(self.address(listener)).unwrap();
        client.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        client
    }

    fn disk(&self) -> NbdClient {
        NbdClient::open(&self.address(2), "disk", false).unwrap()
    }

    /// Everything that the server sends for `script`.
    fn exchange(&self, listener: usize, script: &str) -> String {
        let mut client = self.connect(listener);
        client.write_all(script.as_bytes()).unwrap();
        client.shutdown(Shutdown::Write).unwrap();
        let mut replies = String::new();
        client.read_to_string(&mut replies).unwrap();
        replies
    }
}

#[test]
fn two_protocols_share_workers_and_the_store() {
    let bench = Bench::new(Limits::default());
    let mut disk = bench.disk();
    let mut client = BufReader::new(bench.connect(0));
    for round in 0..20 {
        // Both are on their way at once.
        let block = vec![round as u8 + 1; BLOCK];
        disk.write(0, (round * BLOCK) as u64, &block).unwrap();
        client.get_mut().write_all(format!("set a 0 0 2\r\n{round:02}\r\n").as_bytes()).unwrap();
        assert_eq!(disk.receive().unwrap().1.error, 0);
        let mut line = String::new();
        client.read_line(&mut line).unwrap();
        assert_eq!(line, "STORED\r\n");
        assert_eq!(disk.call(READ, 0, (round * BLOCK) as u64, BLOCK as u32, b"").unwrap().bytes, block);
    }
    assert_eq!(bench.exchange(0, "get a\r\n"), "VALUE a 0 2\r\n19\r\nEND\r\n");
    assert_eq!(bench.store.get(b"a").unwrap().unwrap().value, b"19");
    assert_eq!(bench.store.keyspace("disk").unwrap().item_count().unwrap(), 20);
    bench.server.stop().unwrap();
}

#[test]
fn each_listener_has_its_options() {
    let bench = Bench::new(Limits::default());
    assert_eq!(bench.exchange(1, "set a 0 0 1\r\nx\r\n"), "STORED\r\n");
    assert_eq!(bench.exchange(0, "get a\r\n"), "END\r\n");
    assert_eq!(bench.exchange(1, "get a\r\n"), "VALUE a 0 1\r\nx\r\nEND\r\n");
    assert_eq!(bench.store.keyspace("apart").unwrap().get(b"a").unwrap().unwrap().value, b"x");
    bench.server.stop().unwrap();
}

#[test]
fn a_device_that_is_made_while_it_serves_has_figures_of_its_own() {
    let bench = Bench::new(Limits::default());
    bench.store.create_block_device("late", BlockDevice::new(1 << 20).unwrap()).unwrap();
    let mut late = NbdClient::open(&bench.address(2), "late", false).unwrap();
    assert_eq!(late.call(WRITE, 0, 0, 4, b"late").unwrap().error, 0);
    let figures = bench.exchange(0, "stats\r\n");
    assert!(figures.contains("STAT device:late:writes 1\r\n"), "{figures}");
    bench.store.rename_keyspace("late", "later").unwrap();
    let figures = bench.exchange(0, "stats\r\n");
    assert!(figures.contains("STAT device:later:writes 1\r\n") && !figures.contains("device:late:"), "{figures}");
    bench.store.drop_keyspace("later").unwrap();
    assert!(!bench.exchange(0, "stats\r\n").contains("device:later:"));
    bench.server.stop().unwrap();
}

#[test]
fn replies_come_in_any_order_and_all_of_them() {
    let bench = Bench::new(Limits::default());
    let mut disk = bench.disk();
    let block = |number: usize| crate::common::noise(number as u64, BLOCK);
    let all: Vec<u8> = (0..BLOCKS).flat_map(block).collect();
    disk.write(0, 0, &all).unwrap();
    assert_eq!(disk.receive().unwrap().1.error, 0);
    crate::common::flush(&bench.store);
    let mut asked = Vec::new();
    for number in 0..BLOCKS {
        asked.push(disk.send(READ, 0, (number * BLOCK) as u64, BLOCK as u32, b"").unwrap());
    }
    let mut cookies = Vec::new();
    while disk.in_flight() > 0 {
        let (cookie, reply) = disk.receive().unwrap();
        let number = asked.iter().position(|asked| *asked == cookie).unwrap();
        assert!((reply.error, reply.bytes) == (0, block(number)), "block {number}");
        cookies.push(cookie);
    }
    assert!(!cookies.is_sorted(), "the store answers late and in any order");
    cookies.sort_unstable();
    assert_eq!(cookies, asked);
    bench.server.stop().unwrap();
}

#[test]
fn each_door_has_its_own_words_for_a_client_too_many() {
    let bench = Bench::new(Limits { connections: 1, ..Limits::default() });
    let mut first = bench.connect(2);
    let mut greeting = [0; 18];
    first.read_exact(&mut greeting).unwrap();
    assert!(greeting.starts_with(b"NBDMAGICIHAVEOPT"));
    for (listener, words) in [(0, "ERROR Too many open connections\r\n"), (2, "")] {
        let mut refused = String::new();
        bench.connect(listener).read_to_string(&mut refused).unwrap();
        assert_eq!(refused, words);
    }
    drop(first);
    bench.server.stop().unwrap();
}
