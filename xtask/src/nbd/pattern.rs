//! kill -9, or a power cut, under writers of patterns: no forced or flushed write may be lost, and no block torn.
//!
//! Each block contains its version number, and is filled from it. After a restart it must hold the last version known to be durable, or a
//! later one that was sent.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::Disk;
use crate::Failure;
use crate::kill::Fault;
use tapetum_bench::nbd_client::{FLUSH, FUA, NbdClient, READ};
use tapetum_bench::random::{Random, mix};

const BLOCK: usize = 4096;
/// Few, so that many versions of each are in flight.
const BLOCKS: u64 = 600;
const WRITERS: u64 = 2;
const DEPTH: usize = 16;
const BLOCKS_A_WRITE_MAX: u64 = 4;

/// Strikes `cycles` times. Returns the number of block writes that were known to be durable.
pub fn run(disk: &Disk, cycles: u64, seed: u64, fault: &mut impl Fault) -> Result<u64, Failure> {
    let mut random = Random::new(seed);
    let mut writers: Vec<Writer> = (0..WRITERS).map(|number| Writer::new(number, seed)).collect();
    let mut server = disk.start()?;
    for _ in 0..cycles {
        let killing = AtomicBool::new(false);
        let longest_ms = 20 << random.below(7);
        let load = Duration::from_millis(20 + random.below(longest_ms));
        std::thread::scope(|scope| -> Result<(), Failure> {
            let write = |writer| scope.spawn(|| Writer::load(writer, disk, &killing));
            let threads: Vec<_> = writers.iter_mut().map(write).collect();
            std::thread::sleep(load);
            killing.store(true, Ordering::SeqCst);
            let killed = fault.strike(server, &mut random);
            let ended = threads.into_iter().try_for_each(|thread| thread.join().expect("a writer panicked"));
            ended.and(killed)
        })?;
        server = disk.start()?;
        for writer in &mut writers {
            writer.verify(&mut disk.client()?)?;
        }
    }
    server.terminate()?;
    Ok(writers.iter().map(|writer| writer.promised).sum())
}

#[derive(Clone, Copy, Default)]
struct Version {
    /// The last version that a reply reported as durable.
    durable: u64,
    /// The last version answered.
    answered: u64,
    sent: u64,
}

struct Writer {
    first: u64,
    random: Random,
    blocks: Vec<Version>,
    version_next: u64,
    /// Number of block writes that became known to be durable.
    promised: u64,
}

/// A request in flight: a write's blocks and version, or the writes that a flush will make durable.
enum Flight {
    Write { first: u64, count: u64, version: u64, is_forced: bool },
    Flush { answered: Vec<u64> },
}

fn fill(block: u64, version: u64) -> Vec<u8> {
    let mut bytes = vec![0; BLOCK];
    bytes[..8].copy_from_slice(&version.to_be_bytes());
    Random::new(mix(block ^ mix(version))).fill(&mut bytes[8..]);
    bytes
}

impl Writer {
    fn new(number: u64, seed: u64) -> Writer {
        let blocks = vec![Version::default(); BLOCKS as usize];
        let random = Random::new(mix(seed ^ mix(number)));
        Writer { first: number * BLOCKS, random, blocks, version_next: 1, promised: 0 }
    }

    /// Writes until the connection breaks, which is allowed once the server is being killed.
    fn load(&mut self, disk: &Disk, killing: &AtomicBool) -> Result<(), Failure> {
        let mut flights = std::collections::HashMap::new();
        let mut work = || -> std::io::Result<Result<(), Failure>> {
            let mut client = NbdClient::open(&disk.address.to_string(), super::DISK, false)?;
            loop {
                while flights.len() >= DEPTH {
                    let (cookie, reply) = client.receive()?;
                    if reply.error != 0 {
                        return Ok(Err(format!("a write came to error {}", reply.error).into()));
                    }
                    let flight = flights.remove(&cookie).expect("the client knows its cookies");
                    self.answered(flight);
                }
                let (cookie, flight) = self.send(&mut client, &flights)?;
                flights.insert(cookie, flight);
            }
        };
        match work() {
            Ok(result) => result,
            Err(_) if killing.load(Ordering::SeqCst) => Ok(()),
            Err(error) => Err(format!("a connection failed while the server ran: {error}").into()),
        }
    }

    fn send(
        &mut self,
        client: &mut NbdClient,
        flights: &std::collections::HashMap<u64, Flight>,
    ) -> std::io::Result<(u64, Flight)> {
        if self.random.one_in(12) {
            let cookie = client.send(FLUSH, 0, 0, 0, b"")?;
            return Ok((cookie, Flight::Flush { answered: self.blocks.iter().map(|block| block.answered).collect() }));
        }
        // Two simultaneous writes of a block would have no defined order.
        let (first, count) = loop {
            let count = 1 + self.random.below(BLOCKS_A_WRITE_MAX);
            let first = self.random.below(BLOCKS - count);
            let meets = |flight: &Flight| match flight {
                Flight::Write { first: at, count: other, .. } => *at < first + count && first < at + other,
                Flight::Flush { .. } => false,
            };
            if !flights.values().any(meets) {
                break (first, count);
            }
        };
        let (version, is_forced) = (self.version_next, self.random.one_in(8));
        self.version_next += 1;
        let mut data = Vec::new();
        for block in first..first + count {
            self.blocks[block as usize].sent = version;
            data.extend_from_slice(&fill(self.first + block, version));
        }
        let flags = if is_forced { FUA } else { 0 };
        let cookie = client.write(flags, (self.first + first) * BLOCK as u64, &data)?;
        Ok((cookie, Flight::Write { first, count, version, is_forced }))
    }

    fn answered(&mut self, flight: Flight) {
        match flight {
            Flight::Write { first, count, version, is_forced } => {
                for block in &mut self.blocks[first as usize..(first + count) as usize] {
                    block.answered = version;
                    block.durable = if is_forced { version } else { block.durable };
                }
                self.promised += if is_forced { count } else { 0 };
            }
            Flight::Flush { answered } => {
                for (block, version) in self.blocks.iter_mut().zip(answered) {
                    self.promised += u64::from(version > block.durable);
                    block.durable = block.durable.max(version);
                }
            }
        }
    }

    fn verify(&mut self, client: &mut NbdClient) -> Result<(), Failure> {
        for number in 0..BLOCKS {
            let block = self.first + number;
            let bytes = client.call(READ, 0, block * BLOCK as u64, BLOCK as u32, b"")?.bytes;
            let Some(Ok(version)) = bytes.get(..8).map(<[u8; 8]>::try_from) else {
                return Err(format!("block {block} cannot be read").into());
            };
            let (version, known) = (u64::from_be_bytes(version), &mut self.blocks[number as usize]);
            let expected = if version == 0 { vec![0; BLOCK] } else { fill(block, version) };
            if bytes != expected {
                return Err(format!("block {block} is torn: it begins as version {version}").into());
            }
            if !(known.durable..=known.sent).contains(&version) {
                let Version { durable, sent, .. } = known;
                return Err(format!("block {block} has version {version}: {durable} was durable, {sent} sent").into());
            }
            // A version that a restarted server shows is durable.
            *known = Version { durable: version, answered: version, sent: version };
        }
        Ok(())
    }
}
