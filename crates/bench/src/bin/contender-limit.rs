//! The limit: a raw io_uring loop of random reads over the data file that the store wrote. It uses O_DIRECT, registered file and buffers,
//! and the cheapest ring flags; it looks up, checks and copies nothing.
//!
//! `sequential`: several threads read the whole file, in order, in large pieces.
//!
//! It reads only written blocks: for blocks that are only reserved, a file system answers without asking the disk.

#![allow(clippy::disallowed_methods)] // It measures real time.

use std::fs::{File, OpenOptions};
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use io_uring::{IoUring, opcode, types};
use tapetum_bench::Failure;
use tapetum_bench::contend::{Contender, contend};
use tapetum_bench::filter::FLASH_BYTES;
use tapetum_bench::latencies::Latencies;
use tapetum_bench::random::{Random, mix};
use tapetum_bench::turn::{Setup, Turn};

/// The length and alignment of a read: RocksDB's block, and the store's page, have this length.
const READ_BYTES: u64 = 4096;
const BUFFER_ALIGN: usize = 4096;

struct Limit {
    file: File,
    /// The written ranges of the file, in order.
    extents: Vec<Extent>,
}

struct Extent {
    start: u64,
    /// Number of reads that begin in this extent or an earlier one.
    reads_until: u64,
}

impl Limit {
    fn open(setup: &Setup) -> Result<Limit, Failure> {
        let path = setup.data.join("drive");
        let file = OpenOptions::new()
            .read(true)
            .custom_flags(libc::O_DIRECT)
            .open(&path)
            .map_err(|error| format!("{}, which the store has to load first: {error}", path.display()))?;
        let mut extents = Vec::new();
        let mut reads_until = 0;
        for range in written(&file)? {
            reads_until += (range.end - range.start) / READ_BYTES;
            extents.push(Extent { start: range.start, reads_until });
        }
        if reads_until == 0 {
            return Err("nothing is written in the store's file".into());
        }
        Ok(Limit { file, extents })
    }
}

impl Contender for Limit {
    fn load(&mut self, _indexes: Range<u64>) -> Result<(), Failure> {
        Err("the limit has no data of its own: it reads what the store wrote".into())
    }

    fn settle(&mut self) -> Result<(), Failure> {
        Ok(())
    }

    fn turn(&self, turn: &Turn) -> Result<Latencies, Failure> {
        if turn.api == "sequential" {
            return self.sequential_reads(turn);
        }
        if turn.mix()?.read != 100 || turn.threads != 1 || turn.rate.is_some() {
            return Err("the limit reads only, on one thread, as fast as it can".into());
        }
        let mut reader = Reader::new(self, turn.depth as usize, turn.seed)?;
        let begun = Instant::now();
        let mut now = begun;
        for slot in 0..turn.depth as usize {
            reader.push(slot, now);
        }
        while now - begun < turn.time_max() && reader.latencies.operations() < turn.operations_max() {
            reader.wait()?;
            now = Instant::now();
            reader.take(now)?;
            while let Some(slot) = reader.free.pop() {
                reader.push(slot, now);
            }
        }
        reader.drain()?;
        Ok(std::mem::take(&mut reader.latencies))
    }

    fn close(self) -> Result<(), Failure> {
        Ok(())
    }
}

/// One operation: bytes to read at once.
const PIECE_BYTES: u64 = 1 << 20;

/// A buffer for direct I/O.
struct PieceBuffer {
    bytes: Vec<u8>,
    aligned: usize,
}

impl PieceBuffer {
    fn new() -> PieceBuffer {
        let bytes = vec![0; PIECE_BYTES as usize + BUFFER_ALIGN];
        let aligned = bytes.as_ptr().align_offset(BUFFER_ALIGN);
        PieceBuffer { bytes, aligned }
    }

    fn first(&mut self, length: u64) -> &mut [u8] {
        &mut self.bytes[self.aligned..self.aligned + length as usize]
    }
}

impl Limit {
    /// Reads the pieces of the file in order, shared among the threads, and starts again at the end.
    fn sequential_reads(&self, turn: &Turn) -> Result<Latencies, Failure> {
        let pieces: Vec<Range<u64>> = self.ranges().flat_map(pieces_of).collect();
        let (next, begun) = (AtomicU64::new(0), Instant::now());
        let read = || -> Result<Latencies, Failure> {
            let (mut latencies, mut buffer) = (Latencies::default(), PieceBuffer::new());
            loop {
                let number = next.fetch_add(1, Ordering::Relaxed);
                if number >= turn.operations_max() || begun.elapsed() >= turn.time_max() {
                    return Ok(latencies);
                }
                let Range { start, end } = pieces[(number % pieces.len() as u64) as usize].clone();
                let asked = Instant::now();
                self.file.read_exact_at(buffer.first(end - start), start)?;
                latencies.read(asked.elapsed());
                latencies.count(FLASH_BYTES, end - start);
            }
        };
        std::thread::scope(|scope| {
            let threads: Vec<_> = (0..turn.threads).map(|_| scope.spawn(read)).collect();
            let mut latencies = Latencies::default();
            for thread in threads {
                latencies.add(&thread.join().expect("a reading thread panicked")?);
            }
            Ok(latencies)
        })
    }

    /// The written ranges of the file.
    fn ranges(&self) -> impl Iterator<Item = Range<u64>> + '_ {
        let before = [0].into_iter().chain(self.extents.iter().map(|extent| extent.reads_until));
        self.extents
            .iter()
            .zip(before)
            .map(|(extent, before)| extent.start..extent.start + (extent.reads_until - before) * READ_BYTES)
    }

    fn place(&self, random: &mut Random) -> u64 {
        let reads = self.extents.last().map_or(0, |last| last.reads_until);
        let read = random.below(reads);
        let number = self.extents.partition_point(|extent| extent.reads_until <= read);
        let before = if number == 0 { 0 } else { self.extents[number - 1].reads_until };
        self.extents[number].start + (read - before) * READ_BYTES
    }
}

struct Reader<'a> {
    limit: &'a Limit,
    ring: IoUring,
    /// The kernel writes into it until every read is complete; [`Reader::drain`] and `drop` wait for that.
    buffers: Vec<u8>,
    aligned: usize,
    begun: Vec<Instant>,
    free: Vec<usize>,
    in_flight: usize,
    random: Random,
    latencies: Latencies,
}

impl<'a> Reader<'a> {
    fn new(limit: &'a Limit, depth: usize, seed: u64) -> Result<Reader<'a>, Failure> {
        let ring: IoUring =
            IoUring::builder().setup_single_issuer().setup_coop_taskrun().setup_defer_taskrun().build(depth as u32)?;
        ring.submitter().register_files(&[limit.file.as_raw_fd()])?;
        let mut buffers = vec![0; depth * READ_BYTES as usize + BUFFER_ALIGN];
        let aligned = buffers.as_ptr().align_offset(BUFFER_ALIGN);
        let memory = &mut buffers[aligned..aligned + depth * READ_BYTES as usize];
        let memory = libc::iovec { iov_base: memory.as_mut_ptr().cast(), iov_len: memory.len() };
        // SAFETY: the vector is neither moved nor freed before the ring is dropped.
        unsafe { ring.submitter().register_buffers(&[memory])? };
        Ok(Reader {
            limit,
            ring,
            buffers,
            aligned,
            begun: vec![Instant::now(); depth],
            free: Vec::with_capacity(depth),
            in_flight: 0,
            random: Random::new(mix(seed)),
            latencies: Latencies::default(),
        })
    }

    fn push(&mut self, slot: usize, now: Instant) {
        let place = self.limit.place(&mut self.random);
        let start = self.aligned + slot * READ_BYTES as usize;
        let buffer = self.buffers[start..start + READ_BYTES as usize].as_mut_ptr();
        let read = opcode::ReadFixed::new(types::Fixed(0), buffer, READ_BYTES as u32, 0).offset(place).build();
        self.begun[slot] = now;
        // SAFETY: the buffer belongs to this slot, which is not reused before its read is complete.
        let pushed = unsafe { self.ring.submission().push(&read.user_data(slot as u64)) };
        assert!(pushed.is_ok(), "the ring has an entry for each slot");
        self.in_flight += 1;
    }

    /// Submits the pushed reads and waits until one is complete.
    fn wait(&self) -> Result<(), Failure> {
        match self.ring.submit_and_wait(1) {
            Err(error) if error.kind() != std::io::ErrorKind::Interrupted => Err(error.into()),
            _ => Ok(()),
        }
    }

    fn take(&mut self, now: Instant) -> Result<(), Failure> {
        for entry in self.ring.completion() {
            if entry.result() != READ_BYTES as i32 {
                return Err(format!("a read of {READ_BYTES} bytes was answered with {}", entry.result()).into());
            }
            let slot = entry.user_data() as usize;
            self.latencies.read(now - self.begun[slot]);
            self.free.push(slot);
            self.in_flight -= 1;
        }
        Ok(())
    }

    fn drain(&mut self) -> Result<(), Failure> {
        while self.in_flight > 0 {
            self.wait()?;
            self.take(Instant::now())?;
        }
        Ok(())
    }
}

impl Drop for Reader<'_> {
    fn drop(&mut self) {
        // After an error, reads may still be in flight. The process ends, and must not free the memory that they write into.
        if self.in_flight > 0 {
            std::mem::forget(std::mem::take(&mut self.buffers));
        }
    }
}

/// The ranges of a file that hold data, and are neither holes nor only reserved. Each is a multiple of a read.
fn written(file: &File) -> Result<Vec<Range<u64>>, Failure> {
    let seek = |from: u64, whence: libc::c_int| {
        // SAFETY: the call takes only numbers.
        let found = unsafe { libc::lseek(file.as_raw_fd(), from as libc::off_t, whence) };
        u64::try_from(found).ok()
    };
    let mut ranges = Vec::new();
    let mut at = 0;
    while let Some(start) = seek(at, libc::SEEK_DATA) {
        let end = seek(start, libc::SEEK_HOLE).ok_or("the file system does not say where data ends")?;
        let (first, last) = (start.next_multiple_of(READ_BYTES), end / READ_BYTES * READ_BYTES);
        if first < last {
            ranges.push(first..last);
        }
        at = end;
    }
    Ok(ranges)
}

fn pieces_of(range: Range<u64>) -> impl Iterator<Item = Range<u64>> {
    let end = range.end;
    range.step_by(PIECE_BYTES as usize).map(move |start| start..(start + PIECE_BYTES).min(end))
}

fn main() -> ExitCode {
    contend(Limit::open)
}
