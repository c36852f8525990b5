//! The server's request path over packets in memory: binary GETs of 64 bytes, and a mix of as many SETs, with every item in DRAM, on one
//! thread. Beside it, in turns: memcached's own path from key to reply (`crates/bench/peers/memcached`), if its source can be built, and a
//! dependent random read of DRAM.

use std::io::{BufRead, BufReader, Write};
use std::ops::Range;
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use tapetum::Expiry;

use tapetum::{Condition, Request, Store, StoreOptions, Sync};
use tapetum_bench::embedded;
use tapetum_bench::random::{Random, mix};
use tapetum_server::doors::memcached::packets::Packets;

use super::{dram, peers};
use crate::Failure;
use crate::arguments::Arguments;
use crate::results::outcome::{Outcome, Reach};
use crate::results::spread::Spread;
use crate::workspace::Scratch;

/// A binary header.
const HEADER_BYTES: usize = 24;
/// With the header, a GET has 64 bytes.
const KEY_BYTES: usize = 40;
const VALUE_BYTES: usize = 64;
/// Bytes of the flags before a value.
const FLAGS_BYTES: usize = 4;
/// Packets passed to the server at once.
const BURST: usize = 32;
/// Bursts in memory at once, like in the ring of a network card.
const RING_BURSTS: usize = 128;
const RING_PACKETS: usize = RING_BURSTS * BURST;
/// Rings in a turn. With SETs a turn fills several write buffers, whose flushes also run between turns.
const GET_RINGS: usize = 256;
const MIXED_RINGS: usize = 8192;
const CAPACITY_BYTES_LEAST: u64 = 4 << 30;
/// Capacity, and memory besides the tier, as multiples of a write buffer.
const CAPACITY_BUFFERS: u64 = 16;
const BESIDE_BUFFERS: u64 = 5;
const BESIDE_BYTES_LEAST: u64 = 512 << 20;
/// Items written last and never read: they fill the write buffers of 64 MiB, so that the tier holds the items to be read.
const FILLERS: u64 = 1 << 20;
const GET: u8 = 0x00;
const SET: u8 = 0x01;
/// memcached's memory for a million items, which take 192 MiB of it.
const MEMCACHED_MIB: u64 = 512;
const QUERIES_PER_SECOND_LEAST: f64 = 10e6;

pub fn run(arguments: &Arguments) -> Result<(), Failure> {
    let items = arguments.number("items", 1_000_000)?;
    let rounds = arguments.number("rounds", 9)? as usize;
    let tier_bytes = arguments.size("tier", 512 << 20)?;
    let buffer_bytes = arguments.size("write-buffer", 64 << 20)?;
    arguments.finish()?;
    let about = format!(
        "binary GETs of 64 bytes, {items} items of {VALUE_BYTES} bytes, all in DRAM, write buffers of {} MiB, one thread",
        buffer_bytes >> 20
    );
    let mut outcome = Outcome::new(arguments, "packets", about);
    let scratch = Scratch::new("bench-packets")?;
    let capacity_bytes =
        arguments.sized(CAPACITY_BYTES_LEAST, CAPACITY_BYTES_LEAST >> 4).max(CAPACITY_BUFFERS * buffer_bytes);
    let beside_bytes = BESIDE_BYTES_LEAST.max(BESIDE_BUFFERS * buffer_bytes);
    let options = StoreOptions::new(capacity_bytes, tier_bytes + beside_bytes).with_tier(tier_bytes);
    let options = StoreOptions { sync: Sync::EverySecond, ..options.with_write_buffers_of(buffer_bytes) };
    let store = embedded::create_as(scratch.folder(), capacity_bytes, &options)?;
    let rival = match arguments.smoke_binaries() {
        // It needs a build of memcached's source.
        Some(_) => None,
        None => peers::memcached_core()
            .and_then(|binary| MemcachedCore::start(&binary, items, scratch.folder()))
            .inspect_err(|error| println!("without memcached's own path: {error}"))
            .ok(),
    };
    measure(arguments, &store, rival, items, rounds, &mut outcome)?;
    store.close()?;
    outcome.end()
}

/// memcached's own path, in a process that runs its turns on command.
struct MemcachedCore {
    process: Child,
    asks: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl MemcachedCore {
    /// Starts the process, and waits until all items are loaded.
    fn start(binary: &Path, items: u64, folder: &Path) -> Result<MemcachedCore, Failure> {
        let memory_mib = MEMCACHED_MIB * items.div_ceil(1_000_000);
        let mut process = Command::new(binary)
            .args([items.to_string(), VALUE_BYTES.to_string(), memory_mib.to_string()])
            .arg(folder)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let (Some(asks), Some(answers)) = (process.stdin.take(), process.stdout.take()) else {
            unreachable!("both are piped");
        };
        let mut core = MemcachedCore { process, asks, answers: BufReader::new(answers) };
        match core.answer()?.as_str() {
            "ready" => Ok(core),
            other => Err(format!("memcached-core says {other:?} where it should be ready").into()),
        }
    }

    fn answer(&mut self) -> Result<String, Failure> {
        let mut line = String::new();
        self.answers.read_line(&mut line)?;
        Ok(line.trim_end().to_owned())
    }

    /// Nanoseconds per packet of one turn, `gets` or `mixed`.
    fn turn(&mut self, what: &str) -> Result<f64, Failure> {
        writeln!(self.asks, "{what}")?;
        let answer = self.answer()?;
        answer
            .parse()
            .map_err(|_| format!("memcached-core ended or says {answer:?} where it should say how long").into())
    }
}

impl Drop for MemcachedCore {
    fn drop(&mut self) {
        // It has no data to lose.
        drop(self.process.kill());
        drop(self.process.wait());
    }
}

fn measure(
    arguments: &Arguments,
    store: &Store,
    mut rival: Option<MemcachedCore>,
    items: u64,
    rounds: usize,
    outcome: &mut Outcome,
) -> Result<(), Failure> {
    load(store, 0..items)?;
    load(store, items..items + arguments.sized(FILLERS, FILLERS >> 8))?;
    let mut packets = Packets::new(store)?;
    let mut random = Random::new(mix(items));
    // Read all items several times, so that each gets into the tier.
    for _ in 0..4 {
        (0..items).step_by(BURST).for_each(|first| {
            let mut burst = Vec::new();
            (first..items.min(first + BURST as u64)).for_each(|index| get(&mut burst, index));
            packets.take(&burst, |_| ());
        });
    }
    let words = dram::words(arguments);
    let (get_rings, mixed_rings) = (arguments.sized(GET_RINGS, 2), arguments.sized(MIXED_RINGS, 2));
    let (mut gets_ns, mut mixed_ns, mut dram_ns, mut hits) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    let (mut rival_gets_ns, mut rival_mixed_ns) = (Vec::new(), Vec::new());
    for round in 0..rounds {
        let from_tier = store.stats().get_from_tier;
        let (ns, sent_bytes) = turn(&mut packets, get_rings, |burst| {
            (0..2).for_each(|_| get(burst, random.below(items)));
        });
        let gets = get_rings * RING_PACKETS;
        if sent_bytes != gets * (HEADER_BYTES + FLAGS_BYTES + VALUE_BYTES) {
            return Err(format!("{sent_bytes} bytes of replies to {gets} gets").into());
        }
        gets_ns.push(ns);
        hits.push((store.stats().get_from_tier - from_tier) as f64 / gets as f64);
        dram_ns.push(dram::read_ns(&words, gets, round));
        if let Some(rival) = &mut rival {
            rival_gets_ns.push(rival.turn("gets")?);
        }
    }
    for _ in 0..rounds {
        if let Some(rival) = &mut rival {
            rival_mixed_ns.push(rival.turn("mixed")?);
        }
        let (ns, _) = turn(&mut packets, mixed_rings, |burst| {
            get(burst, random.below(items));
            set(burst, random.below(items));
        });
        mixed_ns.push(ns);
    }
    let per_second = |ns: &[f64]| Spread::of(ns.iter().map(|ns| 1e9 / ns));
    outcome.hold("GETs a second", per_second(&gets_ns), Reach::AtLeast(QUERIES_PER_SECOND_LEAST));
    let ratio = gets_ns.iter().zip(&dram_ns).map(|(get, dram)| get / dram);
    outcome.hold("a GET ÷ one dependent random read of 4 GiB of DRAM", Spread::of(ratio), Reach::Reported);
    outcome.hold("that read, ns", Spread::of(dram_ns.iter().copied()), Reach::Reported);
    outcome.hold("GETs answered by the tier", Spread::of(hits), Reach::Reported);
    let multiple = |own: &[f64], rival: &[f64]| Spread::of(rival.iter().zip(own).map(|(rival, own)| rival / own));
    if rival.is_some() {
        let gets = multiple(&gets_ns, &rival_gets_ns);
        outcome.hold("GETs a second ÷ memcached's own path", gets, Reach::Reported);
    }
    let mixed = per_second(&mixed_ns);
    outcome.hold("half GETs, half SETs, a second", mixed, Reach::AtLeast(QUERIES_PER_SECOND_LEAST));
    if rival.is_some() {
        let mixed = multiple(&mixed_ns, &rival_mixed_ns);
        outcome.hold("half GETs, half SETs, a second ÷ memcached's own path", mixed, Reach::Reported);
    }
    Ok(())
}

/// Digits, made quickly, because the store's flush continues, uncounted, while packets are made.
fn key(mut index: u64) -> [u8; KEY_BYTES] {
    let mut key = [b'k'; KEY_BYTES];
    for digit in key[KEY_BYTES - 20..].iter_mut().rev() {
        *digit = b'0' + (index % 10) as u8;
        index /= 10;
    }
    key
}

fn value(index: u64) -> [u8; VALUE_BYTES] {
    let mut random = Random::new(mix(index));
    let mut value = [0; VALUE_BYTES];
    value.as_chunks_mut::<8>().0.iter_mut().for_each(|word| *word = random.next_u64().to_le_bytes());
    value
}

fn header(opcode: u8, extra_bytes: usize, value_bytes: usize) -> [u8; HEADER_BYTES] {
    let mut header = [0; HEADER_BYTES];
    (header[0], header[1], header[3], header[4]) = (0x80, opcode, KEY_BYTES as u8, extra_bytes as u8);
    header[8..12].copy_from_slice(&((extra_bytes + KEY_BYTES + value_bytes) as u32).to_be_bytes());
    header
}

fn get(burst: &mut Vec<u8>, index: u64) {
    burst.extend_from_slice(&header(GET, 0, 0));
    burst.extend_from_slice(&key(index));
}

fn set(burst: &mut Vec<u8>, index: u64) {
    burst.extend_from_slice(&header(SET, 8, VALUE_BYTES));
    burst.extend_from_slice(&[0; 8]);
    burst.extend_from_slice(&key(index));
    burst.extend_from_slice(&value(index));
}

/// Nanoseconds per packet, and bytes of replies, of one turn of so many rings. `pair` adds two packets to a burst. Making packets is not
/// timed.
fn turn(packets: &mut Packets, rings: usize, mut pair: impl FnMut(&mut Vec<u8>)) -> (f64, usize) {
    let mut ring = vec![Vec::new(); RING_BURSTS];
    let (mut ns, mut sent_bytes) = (0.0, 0);
    for _ in 0..rings {
        for burst in &mut ring {
            burst.clear();
            (0..BURST / 2).for_each(|_| pair(burst));
        }
        ns += dram::each(rings * RING_PACKETS, || {
            ring.iter().for_each(|burst| packets.take(burst, |replies| sent_bytes += replies.len()));
        });
    }
    (ns, sent_bytes)
}

fn load(store: &Store, indexes: Range<u64>) -> Result<(), Failure> {
    let mut session = store.session()?;
    let mut replies = Vec::new();
    for index in indexes {
        let (key, value) = (key(index), value(index));
        let condition = Condition::Always;
        session
            .submit(index, Request::Put { key: &key, value: &value, flags: 0, expiry: Expiry::NONE, condition })
            .unwrap();
        while session.in_flight() > 256 {
            session.poll(&mut replies);
        }
    }
    while session.in_flight() > 0 {
        session.poll(&mut replies);
    }
    embedded::settle(store).map(drop)
}
