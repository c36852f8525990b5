//! Tests of block devices over sockets, on a store in memory: what a client may send at any time, what is answered, and that no other
//! client is disturbed.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use crate::common::{drive_of, store_in_memory};
use crate::nbd_client::{
    BLOCK_STATUS, DISCONNECT, FLUSH, FUA, NO_HOLE, NbdClient, READ, TRIM, WHOLE, WRITE, WRITE_ZEROES, about, greet,
    option, read_option_reply, request,
};
use crate::nbd_model::DeviceModel;
use tapetum::{BlockDevice, Error, Store, StoreOptions, Sync};
use tapetum_drive::{Env, Flash, SplitMix64};
use tapetum_server::doors::Doors;
use tapetum_server::doors::nbd::NbdOptions;
use tapetum_server::doors::nbd::exports::Exports;
use tapetum_server::doors::options::Options;
use tapetum_server::net::limits::Limits;
use tapetum_server::server::Server;
use tapetum_server::store::store_slot::StoreSlot;

const DEVICE_BYTES: u64 = 8 << 20;
const BLOCK: u64 = 4096;
/// The longest read or write that the server takes.
const REQUEST_BYTES_MAX: u32 = 32 << 20;
/// The flag of a block status that asks for one extent.
const ONE_EXTENT: u16 = 8;
/// The flag of zeroes that must not be slower than a trim. The server does not offer it.
const FAST_ZERO: u16 = 16;
/// The status of written blocks, and of holes.
const DATA: u32 = 0;
const HOLE: u32 = 3;
/// The device whose blocks lie in groups.
const GROUPED: &str = "grouped";

fn store_options(capacity_bytes: u64, sync: Sync) -> StoreOptions {
    StoreOptions { segment_bytes: 1 << 20, sync, ..StoreOptions::new(capacity_bytes, 32 << 20) }
}

struct Bench {
    slot: Arc<StoreSlot>,
    options: StoreOptions,
    server: Server,
    address: String,
}

impl Bench {
    fn new(capacity_bytes: u64, sync: Sync) -> Bench {
        Bench::of_devices(DEVICE_BYTES, capacity_bytes, sync)
    }

    fn of_devices(device_bytes: u64, capacity_bytes: u64, sync: Sync) -> Bench {
        let options = store_options(capacity_bytes, sync);
        let (_, store) = store_in_memory(capacity_bytes, &options);
        for (name, group_blocks) in [("disk0", 1), ("disk1", 1), ("frozen", 1), (GROUPED, 8)] {
            let device = BlockDevice::new(device_bytes).unwrap().in_groups_of(group_blocks).unwrap();
            store.create_block_device(name, device).unwrap();
        }
        let exports = Exports::new(&store, vec!["frozen".into()], 2).unwrap();
        let slot = Arc::new(StoreSlot::new(store));
        let server_options = Options {
            nbd: vec!["127.0.0.1:0".parse().unwrap()],
            limits: Limits { in_flight_bytes: 4 << 20, ..Limits::default() },
            ..Options::at(Vec::new())
        };
        let mut doors = Doors::bind(&server_options).unwrap();
        doors.nbd_options = Some(NbdOptions::new(exports, sync == Sync::Always));
        let server = Server::start_behind(doors, Arc::clone(&slot), server_options).unwrap();
        let address = server.addresses()[0].to_string();
        Bench { slot, options, server, address }
    }

    fn small() -> Bench {
        Bench::new(64 << 20, Sync::EverySecond)
    }

    fn client(&self) -> NbdClient {
        NbdClient::open(&self.address, "disk0", true).unwrap()
    }

    /// Sends these bytes as a client. Returns what comes after the greeting until the server closes.
    fn last_words(&self, words: &[u8]) -> Vec<u8> {
        let mut stream = greet(&self.address).unwrap();
        stream.write_all(words).unwrap();
        let mut said = Vec::new();
        stream.read_to_end(&mut said).unwrap();
        said
    }

    /// Crashes the store, and puts the recovered one in its place.
    fn crash(&self) {
        let flash = self.withdraw();
        self.put(flash);
    }

    fn withdraw(&self) -> Arc<dyn Flash> {
        self.slot.withdraw(&Error::Unusable("away".into())).unwrap().abandon().unwrap()
    }

    fn put(&self, flash: Arc<dyn Flash>) {
        let drive = drive_of(flash, &self.options, Env::system());
        self.slot.put(Store::open_on(&drive, &self.options).unwrap()).unwrap();
    }
}

fn pattern(seed: u64, bytes: usize) -> Vec<u8> {
    SplitMix64::new(seed).bytes(bytes)
}

#[track_caller]
fn read(client: &mut NbdClient, offset: u64, length: usize) -> Vec<u8> {
    let reply = client.call(READ, 0, offset, length as u32, b"").unwrap();
    assert_eq!(reply.error, 0);
    reply.bytes
}

#[track_caller]
fn write(client: &mut NbdClient, flags: u16, offset: u64, data: &[u8]) {
    assert_eq!(client.call(WRITE, flags, offset, data.len() as u32, data).unwrap().error, 0);
}

/// Waits until the client's worker has a session of the exchanged store.
fn wait_for_store(client: &mut NbdClient) {
    let begun = std::time::Instant::now();
    while client.call(READ, 0, 0, 1, b"").unwrap().error != 0 {
        assert!(begun.elapsed() < Duration::from_secs(60), "no store is put there");
    }
}

#[test]
fn random_requests_come_to_what_a_model_says() {
    for (sync, name, seed) in
        [(Sync::Always, "disk0", 1), (Sync::EverySecond, "disk0", 2), (Sync::EverySecond, GROUPED, 3)]
    {
        let bench = Bench::new(64 << 20, sync);
        let mut model = DeviceModel::new(DEVICE_BYTES);
        let mut random = SplitMix64::new(seed);
        for structured in [true, false] {
            let mut client = NbdClient::open(&bench.address, name, structured).unwrap();
            model.exercise(&mut client, &mut random, 3000, 24).unwrap();
        }
        let mut client = NbdClient::open(&bench.address, name, false).unwrap();
        // Without structured replies there are no block statuses.
        assert_eq!(client.call(BLOCK_STATUS, 0, 0, 4096, b"").unwrap().error, 22);
        assert!(read(&mut client, 0, DEVICE_BYTES as usize) == model.bytes);
        bench.crash();
        wait_for_store(&mut client);
        if sync == Sync::Always {
            assert!(read(&mut client, 0, DEVICE_BYTES as usize) == model.bytes, "{name} after a crash");
        }
        bench.server.stop().unwrap();
    }
}

#[test]
fn exports_are_apart_and_a_read_only_one_is_not_written_to() {
    let bench = Bench::small();
    let mut disk0 = bench.client();
    write(&mut disk0, 0, 0, b"one");
    let mut disk1 = NbdClient::open(&bench.address, "disk1", false).unwrap();
    assert_eq!(read(&mut disk1, 0, 3), [0; 3]);
    for structured in [true, false] {
        let mut frozen = NbdClient::open(&bench.address, "frozen", structured).unwrap();
        assert_eq!((disk0.size_bytes, frozen.size_bytes), (DEVICE_BYTES, DEVICE_BYTES));
        assert_eq!((disk0.flags & 2, frozen.flags & 2), (0, 2));
        for (command, offset, length) in [(WRITE, 3, 1_000_000), (TRIM, 0, 4096), (WRITE_ZEROES, 0, 4096)] {
            let data = vec![7; if command == WRITE { length as usize } else { 0 }];
            assert_eq!(frozen.call(command, 0, offset, length, &data).unwrap().error, 1);
        }
        assert_eq!(frozen.call(FLUSH, 0, 0, 0, b"").unwrap().error, 0);
        assert_eq!(read(&mut frozen, 3, 100_000), [0; 100_000]);
    }
    let mut stream = greet(&bench.address).unwrap();
    stream
        .write_all(&[option(3, b""), option(6, &about("disk1")), option(6, &about("")), option(2, b"")].concat())
        .unwrap();
    let mut names = Vec::new();
    let kinds: Vec<u32> = std::iter::from_fn(|| {
        let (kind, data) = read_option_reply(&mut stream).ok()?;
        if kind == 2 {
            names.push(String::from_utf8_lossy(&data[4..]).into_owned());
        }
        Some(kind)
    })
    .collect();
    assert_eq!(names, ["disk0", "disk1", "frozen", GROUPED]);
    // The list, the information about one export, the error for no name (there are four exports), and the answer to a disconnect.
    assert_eq!(kinds, [2, 2, 2, 2, 1, 3, 3, 1, 0x8000_0006, 1]);
    bench.server.stop().unwrap();
}

#[test]
fn a_hole_of_gibibytes_is_told_and_trimmed_without_a_look_at_each_block() {
    const GIB: u64 = 1 << 30;
    let bench = Bench::of_devices(1024 * GIB, 64 << 20, Sync::EverySecond);
    for name in ["disk0", GROUPED] {
        let mut client = NbdClient::open(&bench.address, name, true).unwrap();
        write(&mut client, 0, 700 * GIB, &pattern(1, 4096));
        let mut told = 0;
        // A map begins unknown, so the first answer may end early.
        while told < 2 * GIB {
            let extents = client.call(BLOCK_STATUS, 0, told, (2 * GIB - told) as u32, b"").unwrap().extents;
            assert!(matches!(extents[..], [(_, 3)]), "{extents:?}");
            told += u64::from(extents[0].0);
        }
        assert_eq!(client.call(BLOCK_STATUS, 0, 0, 2 << 30, b"").unwrap().extents, [(2 << 30, 3)]);
        assert_eq!(client.call(BLOCK_STATUS, 8, 700 * GIB, 4096, b"").unwrap().extents, [(4096, 0)]);
        assert_eq!(read(&mut client, 700 * GIB, 4096), pattern(1, 4096));
        if name == "disk0" {
            let around = extents(&mut client, 699 * GIB..703 * GIB);
            assert_eq!(around, [(GIB, HOLE), (BLOCK, DATA), (3 * GIB - BLOCK, HOLE)]);
            // Within what was asked for, of blocks in part too.
            for (flags, offset, length, expected) in [
                (ONE_EXTENT, 700 * GIB - BLOCK, 3 * 4096, &[(4096, HOLE)][..]),
                (0, 700 * GIB + 50, 100, &[(100, DATA)]),
                (0, 700 * GIB + 50, 2 * 4096, &[(4046, DATA), (4146, HOLE)]),
            ] {
                assert_eq!(client.call(BLOCK_STATUS, flags, offset, length, b"").unwrap().extents, expected);
            }
        }
        assert_eq!(client.call(TRIM, FUA, 699 * GIB, 2 << 30, b"").unwrap().error, 0);
        assert_eq!(read(&mut client, 700 * GIB, 4096), [0; 4096]);
        // Rewritten blocks exist again, also where the map had them empty.
        write(&mut client, 0, GIB + 1, &pattern(2, 100));
        assert_eq!(client.call(BLOCK_STATUS, 8, GIB, 4096, b"").unwrap().extents, [(4096, 0)]);
        assert_eq!(read(&mut client, GIB + 1, 100), pattern(2, 100));
    }
    bench.server.stop().unwrap();
}

/// The extents of a range, adjacent ones of one status put together. Each question asks for all that is left.
fn extents(client: &mut NbdClient, range: Range<u64>) -> Vec<(u64, u32)> {
    let (mut found, mut at) = (Vec::<(u64, u32)>::new(), range.start);
    while at < range.end {
        let length = (range.end - at).min(0xffff_f000) as u32;
        for (bytes, status) in client.call(BLOCK_STATUS, 0, at, length, b"").unwrap().extents {
            at += u64::from(bytes);
            match found.last_mut() {
                Some((sum, same)) if *same == status => *sum += u64::from(bytes),
                _ => found.push((u64::from(bytes), status)),
            }
        }
    }
    assert_eq!(at, range.end);
    found
}

/// A device, and the bytes at its beginning.
struct Trimmed {
    client: NbdClient,
    bytes: Vec<u8>,
}

impl Trimmed {
    fn write(&mut self, seed: u64) {
        self.bytes = pattern(seed, self.bytes.len());
        write(&mut self.client, 0, 0, &self.bytes);
    }

    /// Sends a command that makes a range zeroes.
    #[track_caller]
    fn zero(&mut self, command: (u16, u16), offset: u64, length: u64) {
        assert_eq!(self.client.call(command.0, command.1, offset, length as u32, b"").unwrap().error, 0);
        self.bytes[offset as usize..][..length as usize].fill(0);
        self.expect();
    }

    #[track_caller]
    fn expect(&mut self) {
        assert!(read(&mut self.client, 0, self.bytes.len()) == self.bytes);
    }
}

#[test]
fn trims_and_zeroes_give_their_room_back_unless_it_is_to_be_kept() {
    let bench = Bench::small();
    // A group of blocks is a hole as a whole.
    for (name, run) in [("disk0", BLOCK), (GROUPED, 8 * BLOCK)] {
        let client = NbdClient::open(&bench.address, name, true).unwrap();
        let mut device = Trimmed { client, bytes: vec![0; 8 * run as usize] };
        device.write(1);
        assert_eq!(extents(&mut device.client, 0..9 * run), [(8 * run, DATA), (run, HOLE)]);
        device.zero((TRIM, FUA), run, run);
        device.zero((WRITE_ZEROES, 0), 3 * run, run);
        device.zero((WRITE_ZEROES, FUA), 4 * run, run);
        device.zero((WRITE_ZEROES, NO_HOLE), 6 * run, run);
        // Zeroing a part of a hole leaves the hole, and a trim does not touch parts of blocks.
        device.zero((WRITE_ZEROES, 0), run + 7, 100);
        for length in [4095, 4096] {
            assert_eq!(device.client.call(TRIM, 0, 1, length, b"").unwrap().error, 0);
        }
        device.expect();
        let expected = [(run, DATA), (run, HOLE), (run, DATA), (2 * run, HOLE), (3 * run, DATA), (run, HOLE)];
        assert_eq!(extents(&mut device.client, 0..9 * run), expected);
        // One extent, and no longer than asked for.
        let one = device.client.call(BLOCK_STATUS, ONE_EXTENT, run + 1, 4096, b"").unwrap();
        assert_eq!(one.extents, [((run as u32 - 1).min(4096), HOLE)]);
        for (seed, flags) in [(2, 0), (3, NO_HOLE), (4, FUA)] {
            device.write(seed);
            device.zero((WRITE_ZEROES, flags), run / 2 + 1, run + run / 3);
        }
        // A hole that is zeroed so takes room.
        assert_eq!(device.client.call(WRITE_ZEROES, NO_HOLE, 4 << 20, run as u32, b"").unwrap().error, 0);
        assert_eq!(extents(&mut device.client, 4 << 20..(4 << 20) + 2 * run), [(run, DATA), (run, HOLE)]);
        // A whole device is trimmed at once, as when a file system is made.
        for command in [(WRITE_ZEROES, 0), (TRIM, FUA)] {
            assert_eq!(device.client.call(command.0, command.1, 0, DEVICE_BYTES as u32, b"").unwrap().error, 0);
        }
        assert_eq!(extents(&mut device.client, 0..9 * run), [(9 * run, HOLE)]);
        assert!(read(&mut device.client, 0, DEVICE_BYTES as usize) == vec![0; DEVICE_BYTES as usize]);
    }
    bench.server.stop().unwrap();
}

#[test]
fn writes_to_parts_of_one_block_by_many_clients_are_all_there() {
    let bench = Bench::small();
    let parts = 64;
    std::thread::scope(|scope| {
        for number in 0..8u64 {
            let bench = &bench;
            scope.spawn(move || {
                let mut client = bench.client();
                for part in (number..parts).step_by(8) {
                    client.write(0, BLOCK / 2 + part * 64, &[part as u8 + 1; 64]).unwrap();
                }
                while client.in_flight() > 0 {
                    assert_eq!(client.receive().unwrap().1.error, 0);
                }
            });
        }
    });
    let expected: Vec<u8> = (1..=parts as u8).flat_map(|part| [part; 64]).collect();
    assert_eq!(read(&mut bench.client(), BLOCK / 2, 4096), expected);
    // Each client sees what the others were answered.
    let (mut one, mut other) = (bench.client(), NbdClient::open(&bench.address, "disk0", false).unwrap());
    for number in 0..20 {
        write(&mut one, 0, 0, &pattern(number, 700));
        assert_eq!(read(&mut other, 0, 700), pattern(number, 700));
        assert_eq!(other.call(FLUSH, 0, 0, 0, b"").unwrap().error, 0);
    }
    bench.server.stop().unwrap();
}

#[test]
fn what_was_flushed_or_forced_outlives_a_crash_and_a_flush_after_a_loss_says_so() {
    for name in ["disk0", GROUPED] {
        let bench = Bench::new(64 << 20, Sync::No);
        let mut client = NbdClient::open(&bench.address, name, true).unwrap();
        for round in 0..5 {
            write(&mut client, 0, round * 65536, &pattern(round, 40_000));
            assert_eq!(client.call(FLUSH, 0, 0, 0, b"").unwrap().error, 0);
            write(&mut client, FUA, round * 65536 + 50_000, b"forced");
            bench.crash();
            wait_for_store(&mut client);
            assert!(read(&mut client, round * 65536, 40_000) == pattern(round, 40_000), "round {round}");
            assert_eq!(read(&mut client, round * 65536 + 50_000, 6), b"forced");
            // Unflushed writes may be lost: the next flush reports that once.
            assert_eq!(client.call(FLUSH, 0, 0, 0, b"").unwrap().error, 5);
            assert_eq!(client.call(FLUSH, 0, 0, 0, b"").unwrap().error, 0);
        }
        bench.server.stop().unwrap();
    }
}

#[test]
fn a_flush_while_there_is_no_store_has_told_of_the_loss() {
    let bench = Bench::new(64 << 20, Sync::No);
    let mut client = bench.client();
    write(&mut client, 0, 0, b"may be lost");
    let flash = bench.withdraw();
    while client.call(READ, 0, 0, 1, b"").unwrap().error == 0 {}
    assert_eq!(client.call(FLUSH, 0, 0, 0, b"").unwrap().error, 5);
    bench.put(flash);
    wait_for_store(&mut client);
    assert_eq!(client.call(FLUSH, 0, 0, 0, b"").unwrap().error, 0);
    bench.server.stop().unwrap();
}

#[test]
fn a_full_flash_is_no_space_and_what_is_there_can_be_read_and_trimmed() {
    const PIECE: u32 = 8 << 20;
    const PIECES: u64 = 12;
    let bench = Bench::of_devices(128 << 20, 64 << 20, Sync::Always);
    let mut client = bench.client();
    let piece = |number: u64| (number * u64::from(PIECE), pattern(number, PIECE as usize));
    // The first is overwritten.
    let errors = [0].into_iter().chain(0..PIECES).map(|number| {
        let (at, data) = piece(number);
        client.call(WRITE, 0, at, PIECE, &data).unwrap().error
    });
    let errors: Vec<u32> = errors.collect();
    assert!(errors.iter().all(|error| [0, 28].contains(error)), "{errors:?}");
    assert!(errors.iter().filter(|error| **error == 28).count() > 2, "64 MiB took 96 MiB: {errors:?}");
    assert!(read(&mut client, 0, PIECE as usize) == piece(0).1);
    assert_eq!(client.call(TRIM, 0, 0, PIECES as u32 * PIECE, b"").unwrap().error, 0);
    for number in 0..PIECES {
        assert!(
            read(&mut client, number * u64::from(PIECE), PIECE as usize) == vec![0; PIECE as usize],
            "piece {number}"
        );
    }
    write(&mut client, 0, 0, b"room");
    bench.server.stop().unwrap();
}

#[test]
fn handshakes_that_are_none_get_the_protocols_own_error_or_are_closed() {
    let bench = Bench::small();
    let mut witness = bench.client();
    write(&mut witness, 0, 0, b"here");
    let tell = |code: u32, name: &[u8]| {
        let data = [&(name.len() as u32).to_be_bytes()[..], name, &[0, 0]].concat();
        option(code, &data)
    };
    let go = |name: &[u8]| tell(7, name);
    // A wrong name is refused to those who ask and to those who go, and another may follow.
    let wrong = ["absent", "", "disk", "disk00", "Disk0", "d\u{ef}sk", &"n".repeat(4096)];
    let wrong: Vec<u8> =
        wrong.iter().flat_map(|name| [tell(6, name.as_bytes()), go(name.as_bytes())].concat()).collect();
    let disconnect = request((DISCONNECT, 0), 1, 0, 0);
    let head = |code: u32, length: u32| [&b"IHAVEOPT"[..], &code.to_be_bytes(), &length.to_be_bytes()].concat();
    let abort = option(2, b"");
    // Each with the kinds of its answers. All end with a disconnect, or are closed by the server.
    for (words, kinds) in [
        (b"GET / HTTP/1.1\r\n\r\n".to_vec(), vec![]),
        (vec![0xff; 64], vec![]),
        ([option(5, b""), abort.clone()].concat(), vec![0x8000_0001, 1]),
        ([option(7, b""), abort.clone()].concat(), vec![0x8000_0003, 1]),
        ([go(b"absent"), abort.clone()].concat(), vec![0x8000_0006, 1]),
        ([go(&[b'n'; 257]), abort.clone()].concat(), vec![0x8000_0006, 1]),
        ([go(&[b'n'; 4097]), abort.clone()].concat(), vec![0x8000_0003, 1]),
        ([option(7, &[1; 4097]), abort.clone()].concat(), vec![0x8000_0003, 1]),
        ([option(77, &[0; 9000]), abort.clone()].concat(), vec![0x8000_0009, 1]),
        ([head(7, u32::MAX), abort.clone()].concat(), vec![0x8000_0009]),
        ([option(10, b"\0\0\0\x05disk0\0\0\0\0"), abort.clone()].concat(), vec![0x8000_0003, 1]),
        (option(1, b"absent"), vec![]),
        ([wrong, go(GROUPED.as_bytes()), disconnect].concat(), [vec![0x8000_0006; 14], vec![3, 1]].concat()),
        (option(3, b"").repeat(70), [2, 2, 2, 2, 1].repeat(64)),
    ] {
        let said = bench.last_words(&words);
        let mut rest = &said[..];
        let answers: Vec<u32> = std::iter::from_fn(|| Some(read_option_reply(&mut rest).ok()?.0)).collect();
        assert_eq!(answers, kinds, "{words:?}");
        assert!(rest.is_empty());
    }
    assert_eq!(read(&mut witness, 0, 4), b"here");
    bench.server.stop().unwrap();
}

/// Contexts hold until others are set. Reads in one piece are offered only to clients that can ask for them.
#[test]
fn contexts_that_are_listed_do_not_end_those_that_are_set() {
    let bench = Bench::small();
    let contexts = |code| option(code, b"\0\0\0\x05disk0\0\0\0\x01\0\0\0\x0fbase:allocation");
    let mut stream = greet(&bench.address).unwrap();
    stream.write_all(&[option(8, b""), contexts(10), contexts(9), option(7, &about("disk0"))].concat()).unwrap();
    let answers: Vec<u32> = (0..8).map(|_| read_option_reply(&mut stream).unwrap().0).collect();
    assert_eq!(answers, [1, 4, 1, 4, 1, 3, 3, 1]);
    stream.write_all(&request((BLOCK_STATUS, 0), 0, 0, 4096)).unwrap();
    let mut head = [0; 20];
    stream.read_exact(&mut head).unwrap();
    assert_eq!(head[6..8], [0, 5], "a block status");
    let one_piece = |structured| NbdClient::open(&bench.address, "disk0", structured).unwrap().flags & 1 << 7 != 0;
    assert_eq!([true, false].map(one_piece), [true, false]);
    bench.server.stop().unwrap();
}

#[test]
fn who_only_names_an_export_is_served_too() {
    let bench = Bench::small();
    let mut stream = greet(&bench.address).unwrap();
    stream.write_all(&option(1, b"disk1")).unwrap();
    let mut answer = [0; 10];
    stream.read_exact(&mut answer).unwrap();
    assert_eq!(answer[..8], DEVICE_BYTES.to_be_bytes());
    stream.write_all(&request((READ, 0), 7, 0, 5)).unwrap();
    let mut reply = [1; 21];
    stream.read_exact(&mut reply).unwrap();
    assert_eq!((&reply[4..8], &reply[8..16], &reply[16..]), (&[0; 4][..], &7u64.to_be_bytes()[..], &[0; 5][..]));
    bench.server.stop().unwrap();
}

/// Requests on an export of `size` bytes: a command with its flags, an offset and a length, and the error.
fn judged_requests(size: u64) -> Vec<((u16, u16), u64, u32, u32)> {
    const INVALID: u32 = 22;
    const NO_SPACE: u32 = 28;
    let longest = REQUEST_BYTES_MAX;
    let mut requests = vec![
        ((READ, FUA), size - BLOCK, 4096, 0),
        ((READ, 0), 0, longest + 1, INVALID),
        ((READ, 0), 0, 2 * longest, INVALID),
        ((WRITE, 0), size - u64::from(longest) + 1, longest, NO_SPACE),
        ((TRIM, 0), 0, u32::MAX, INVALID),
        ((BLOCK_STATUS, 0), 0, u32::MAX, INVALID),
        // Commands that are not offered: CACHE, and none at all.
        ((5, 0), 0, 4096, INVALID),
        ((99, 0), 0, 0, INVALID),
        // Flags of other commands, flags that are not offered, and flags that mean nothing.
        ((READ, 1 << 9), 0, 4, INVALID),
        ((READ, ONE_EXTENT), 0, 4096, INVALID),
        ((WRITE, 1 << 9), 0, 4, INVALID),
        ((WRITE, NO_HOLE), 0, 3, INVALID),
        ((WRITE, ONE_EXTENT), 0, 16 << 20, INVALID),
        ((TRIM, NO_HOLE), 0, 4096, INVALID),
        ((TRIM, 1 << 14), 0, 4096, INVALID),
        ((WRITE_ZEROES, WHOLE), 0, 4096, INVALID),
        ((WRITE_ZEROES, FAST_ZERO), 0, 4096, INVALID),
        ((WRITE_ZEROES, FAST_ZERO | NO_HOLE), 0, 4096, INVALID),
        ((FLUSH, WHOLE), 0, 0, INVALID),
        ((FLUSH, 0), u64::MAX, 0, 0),
        // These requests have no length.
        ((READ, 0), 5, 0, 0),
        ((READ, 0), size, 0, 0),
        ((WRITE, 0), 5, 0, 0),
        ((WRITE_ZEROES, 0), 5, 0, 0),
        ((TRIM, FUA), 5, 0, 0),
        ((BLOCK_STATUS, 0), 5, 0, INVALID),
    ];
    let past = [(size, 1), (size - 1, 2), (size - BLOCK, 8192), (1 << 62, 4096), (u64::MAX >> 1, 9), (u64::MAX, 4096)];
    let commands =
        [(READ, INVALID), (WRITE, NO_SPACE), (WRITE_ZEROES, NO_SPACE), (TRIM, INVALID), (BLOCK_STATUS, INVALID)];
    for (offset, length) in past {
        requests.extend(commands.map(|(command, error)| ((command, 0), offset, length, error)));
    }
    requests
}

#[test]
fn requests_that_cannot_be_are_refused_and_the_next_one_is_served() {
    let size = 128 << 20;
    let bench = Bench::of_devices(size, 64 << 20, Sync::EverySecond);
    for structured in [true, false] {
        let mut client = NbdClient::open(&bench.address, "disk0", structured).unwrap();
        write(&mut client, 0, 0, b"kept");
        for (command, offset, length, error) in judged_requests(size) {
            let data = vec![7; if command.0 == WRITE { length as usize } else { 0 }];
            let reply = client.call(command.0, command.1, offset, length, &data).unwrap();
            assert_eq!(reply.error, error, "{command:?} of {length} at {offset}, structured: {structured}");
            assert_eq!(read(&mut client, 0, 4), b"kept");
        }
        assert_eq!(read(&mut client, size - 1, 1), [0]);
        // A refused write is answered after its data: clients take an earlier answer for one to another request.
        let sent = client.send(WRITE, 0, size - 1, 8192, &[7; 5000]).unwrap();
        client.stream().set_read_timeout(Some(Duration::from_millis(50))).unwrap();
        assert_eq!(client.receive().unwrap_err().kind(), std::io::ErrorKind::WouldBlock);
        client.stream().set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        client.stream().write_all(&[7; 3192]).unwrap();
        let (cookie, reply) = client.receive().unwrap();
        assert_eq!((cookie, reply.error), (sent, 28));
        // A client that announces more than allowed gets an error, and is disconnected.
        let sent = client.send(WRITE, 0, 0, REQUEST_BYTES_MAX + 1, b"begins").unwrap();
        let (cookie, reply) = client.receive().unwrap();
        assert_eq!((cookie, reply.error), (sent, 22));
        assert!(client.receive().is_err());
    }
    // A client that sends something else than a request is disconnected without a reply.
    let mut garbled = bench.client();
    garbled.stream().write_all(&[0xab; 100]).unwrap();
    assert!(garbled.receive().is_err());
    assert_eq!(read(&mut bench.client(), 0, 4), b"kept");
    bench.server.stop().unwrap();
}

#[test]
fn what_was_asked_before_a_farewell_is_answered() {
    let bench = Bench::small();
    let mut client = bench.client();
    for number in 0..40u64 {
        client.write(FUA, number * 1000, &[number as u8; 1000]).unwrap();
    }
    client.send(READ, WHOLE, 0, 1 << 20, b"").unwrap();
    client.send(DISCONNECT, 0, 0, 0, b"").unwrap();
    let answered = std::iter::from_fn(|| client.receive().ok()).inspect(|(_, reply)| assert_eq!(reply.error, 0));
    assert_eq!(answered.count(), 41);
    // A client that shuts down its side is answered too, and one that leaves in the middle of a write is forgotten.
    let mut half = bench.client();
    half.write(0, 100, b"half").unwrap();
    half.stream().shutdown(Shutdown::Write).unwrap();
    assert_eq!(half.receive().unwrap().1.error, 0);
    assert!(half.receive().is_err());
    let mut amid = bench.client();
    amid.send(WRITE, 0, 0, 1 << 20, &[1; 5000]).unwrap();
    amid.stream().shutdown(Shutdown::Write).unwrap();
    assert!(amid.receive().is_err());
    let expected: Vec<u8> = (5..40).flat_map(|number| [number; 1000]).collect();
    assert_eq!(read(&mut bench.client(), 8192, 31_808), expected[3192..]);
    bench.server.stop().unwrap();
}

#[test]
fn replies_that_nobody_reads_cost_others_nothing() {
    let bench = Bench::small();
    let mut hoarder = bench.client();
    hoarder.stream().set_write_timeout(Some(Duration::from_millis(200))).unwrap();
    let requests = request((READ, 0), 0, 0, 1 << 20).repeat(1000);
    // Until the server stops reading.
    while hoarder.stream().write_all(&requests).is_ok() {}
    let mut client = bench.client();
    let mut model = DeviceModel::new(DEVICE_BYTES);
    model.exercise(&mut client, &mut SplitMix64::new(3), 500, 8).unwrap();
    drop(hoarder);
    bench.server.stop().unwrap();
}

#[test]
fn clients_come_and_go_and_there_are_so_many_at_a_time() {
    let bench = Bench::small();
    for number in 0..1000 {
        let stream = TcpStream::connect(&bench.address).unwrap();
        if number % 10 == 0 {
            write(&mut bench.client(), 0, number, b"!");
        }
        drop(stream);
    }
    // Clients that left may still be counted for a moment.
    let begun = std::time::Instant::now();
    let all = loop {
        let all: Vec<NbdClient> =
            (0..128).map_while(|_| NbdClient::open(&bench.address, "disk0", false).ok()).collect();
        if all.len() == 128 {
            break all;
        }
        assert!(begun.elapsed() < Duration::from_secs(60), "{} clients at a time", all.len());
    };
    let mut one_more = TcpStream::connect(&bench.address).unwrap();
    one_more.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    assert_eq!(one_more.read(&mut [0; 8]).unwrap(), 0, "one too many is closed without a greeting");
    drop(all);
    bench.server.stop().unwrap();
}

#[test]
fn who_does_not_come_to_the_point_is_closed() {
    let bench = Bench::small();
    let mut witness = bench.client();
    let begun = std::time::Instant::now();
    let mut slow = greet(&bench.address).unwrap();
    slow.set_read_timeout(Some(Duration::from_millis(500))).unwrap();
    let words = option(7, &about("disk0"));
    // A byte now and then, which would not finish within the time allowed.
    let closed = words.iter().cycle().take(400).any(|byte| {
        let _ = slow.write_all(&[*byte]);
        matches!(slow.read(&mut [0; 64]), Ok(0))
            || slow.read(&mut [0; 64]).is_err_and(|error| {
                !matches!(error.kind(), std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut)
            })
    });
    assert!(closed, "still there after {:?}", begun.elapsed());
    // A client that was served before stays connected.
    assert_eq!(read(&mut witness, 0, 4), [0; 4]);
    bench.server.stop().unwrap();
}

/// The names of the devices that the server offers.
fn offered(bench: &Bench) -> Vec<String> {
    let mut stream = greet(&bench.address).unwrap();
    stream.write_all(&option(3, b"")).unwrap();
    let names = std::iter::from_fn(|| match read_option_reply(&mut stream).unwrap() {
        (2, data) => Some(String::from_utf8_lossy(&data[4..]).into_owned()),
        _ => None,
    });
    names.collect()
}

/// The errors of a read and of a write.
fn errors(client: &mut NbdClient) -> [u32; 2] {
    [(READ, &b""[..]), (WRITE, &[7; 4096])].map(|(command, data)| client.call(command, 0, 0, 4096, data).unwrap().error)
}

#[test]
fn devices_that_change_while_they_are_served_are_offered_as_they_are() {
    let bench = Bench::small();
    let store = || bench.slot.store().unwrap();
    let device = |size_bytes| BlockDevice::new(size_bytes).unwrap();
    let open = |name: &str| NbdClient::open(&bench.address, name, true);
    let mut early = bench.client();
    write(&mut early, 0, 0, b"early");
    store().create_block_device("made", device(1 << 20)).unwrap();
    assert_eq!(offered(&bench), ["disk0", "disk1", "frozen", GROUPED, "made"]);
    let mut made = open("made").unwrap();
    write(&mut made, 0, 0, b"made");
    assert_eq!((made.size_bytes, read(&mut made, 0, 5)), (1 << 20, b"made\0".to_vec()));

    store().resize_block_device("disk0", device(2 * DEVICE_BYTES)).unwrap();
    let mut late = bench.client();
    assert_eq!((late.size_bytes, read(&mut late, 0, 5)), (2 * DEVICE_BYTES, b"early".to_vec()));
    write(&mut late, 0, DEVICE_BYTES, b"late");
    assert_eq!(read(&mut early, 0, 5), b"early");
    assert_ne!(early.call(READ, 0, DEVICE_BYTES, 4, b"").unwrap().error, 0, "it was told the size before");

    store().rename_keyspace("disk0", "moved").unwrap();
    assert_eq!(offered(&bench), ["disk1", "frozen", GROUPED, "made", "moved"]);
    assert!(open("disk0").is_err());
    assert_eq!(read(&mut open("moved").unwrap(), DEVICE_BYTES, 4), b"late");
    assert_eq!(errors(&mut early), [0, 0], "who has it open keeps it");

    store().drop_keyspace("moved").unwrap();
    assert_eq!(offered(&bench), ["disk1", "frozen", GROUPED, "made"]);
    assert!(open("moved").is_err());
    store().create_block_device("moved", device(1 << 20)).unwrap();
    assert_eq!((errors(&mut early), errors(&mut late)), ([5; 2], [5; 2]));
    assert_eq!(read(&mut open("moved").unwrap(), 0, 4), [0; 4]);
    assert_eq!(errors(&mut made), [0, 0]);
    bench.server.stop().unwrap();
}

#[test]
fn who_had_a_device_open_that_is_gone_never_gets_the_next_one_with_its_id() {
    let bench = Bench::small();
    let device = BlockDevice::new(DEVICE_BYTES).unwrap();
    let id = |store: &Store| store.keyspace("disk1").unwrap().id();
    let mut old = NbdClient::open(&bench.address, "disk1", true).unwrap();
    let mut other = bench.client();
    assert_eq!((errors(&mut old), errors(&mut other)), ([0; 2], [0; 2]));
    let store = bench.slot.store().unwrap();
    let first = id(&store);
    store.drop_keyspace("disk1").unwrap();
    let begun = std::time::Instant::now();
    while store.keyspaces().iter().any(|keyspace| keyspace.id == first) {
        assert!(begun.elapsed() < Duration::from_secs(60), "the id is not free");
        std::thread::sleep(Duration::from_millis(5));
    }
    store.create_block_device("disk1", device).unwrap();
    assert_eq!(id(&store), first);
    drop(store);
    let mut new = NbdClient::open(&bench.address, "disk1", true).unwrap();
    write(&mut new, FUA, 0, b"new");
    // In the store that comes next the id has its first life again.
    bench.crash();
    wait_for_store(&mut other);
    assert_eq!(errors(&mut old), [5; 2]);
    assert_eq!(read(&mut new, 0, 3), b"new");
    bench.server.stop().unwrap();
}
