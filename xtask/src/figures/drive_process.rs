//! A drive in a process of its own, without a store: round trips, results read in place and copied, and two hosts of unequal weight.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tapetum_bench::drive_process::DriveProcess;
use tapetum_bench::process::Usage;
use tapetum_drive::{Command, Drive, Env, Flash, LocalBuffer, Operation, Purpose, QueuePair, Returned};

use crate::Failure;
use crate::arguments::Arguments;
use crate::results::outcome::{Outcome, Reach};
use crate::results::spread::Spread;
use crate::workspace::Scratch;

const PARTITION_BYTES: u64 = 64 << 20;
const LOCAL_BYTES: usize = 8 << 20;
const FILE_BYTES: u64 = 512 << 20;
const POLLS: &str = "100000";
/// Weights of the two hosts, and how many reads each has on its way: more together than the drive takes at once.
const WEIGHTS: [(&str, u32); 2] = [("light", 1), ("heavy", 3)];
const DEPTH_BESIDE: usize = 128;

pub fn run(arguments: &Arguments) -> Result<(), Failure> {
    let rounds = arguments.number("rounds", 9)?.max(1);
    let turn = Duration::from_millis(arguments.number("milliseconds", 1000)?);
    let binary = arguments.server();
    arguments.finish()?;
    let binary = arguments.measured_server(binary)?;
    let scratch = Scratch::new("drive-process")?;
    let start =
        |name: &str, options: &[&str]| DriveProcess::start(&binary, &scratch.folder().join(name), FILE_BYTES, options);
    let [polls, sleeps] = [start("polls", &["--polls", POLLS])?, start("sleeps", &[])?];
    let copies = start("copies", &["--polls", POLLS, "--copy-results"])?;
    let weights = WEIGHTS.map(|(name, weight)| format!("{name}={weight}")).join(",");
    let shared = start("shared", &["--weight", &weights])?;
    let mut measured = Measured::default();
    let hosts = [Host::new(&polls, "a")?, Host::new(&sleeps, "a")?, Host::new(&copies, "a")?];
    let both = WEIGHTS.map(|(name, _)| Host::new(&shared, name));
    let [light, heavy] = both;
    let both = [light?, heavy?];
    for _ in 0..rounds {
        measured.round(&hosts, &both, turn)?;
    }
    let about = format!(
        "{rounds} rounds of {} ms a figure; reads of blocks that were never written, so the disk takes no part",
        turn.as_millis()
    );
    let mut outcome = Outcome::new(arguments, "drive-process-link", about);
    measured.tell(&mut outcome);
    outcome.end()
}

/// A host with a partition of a drive.
struct Host {
    drive: Drive,
    process: u32,
}

impl Host {
    fn new(process: &DriveProcess, name: &str) -> Result<Host, Failure> {
        let flash: Arc<dyn Flash> = process.attach(name, PARTITION_BYTES)?;
        let drive = Drive::over(flash, LOCAL_BYTES, Vec::new(), Env::system())?;
        Ok(Host { drive, process: process.process() })
    }
}

#[derive(Default)]
struct Measured {
    polling_us: Vec<f64>,
    sleeping_us: Vec<f64>,
    /// By the bytes of a read: rate, and µs of CPU, in place and copied.
    reads: [[[Vec<f64>; 2]; 2]; SIZES.len()],
    shares: Vec<f64>,
}

/// Bytes of a read, and how many are on their way.
const SIZES: [(usize, usize); 2] = [(4096, 64), (64 << 10, 16)];

impl Measured {
    fn round(&mut self, [polls, sleeps, copies]: &[Host; 3], both: &[Host; 2], turn: Duration) -> Result<(), Failure> {
        self.polling_us.push(round_trip_us(&polls.drive, turn, |_| std::hint::spin_loop())?);
        self.sleeping_us.push(round_trip_us(&sleeps.drive, turn, |pair| pair.wait(None))?);
        for ((bytes, depth), figures) in SIZES.into_iter().zip(&mut self.reads) {
            for (host, [rate, cpu]) in [polls, copies].into_iter().zip(figures) {
                let before = Usage::with_drive(&[std::process::id()], Some(host.process))?;
                let (count, begun) = (AtomicU64::new(0), Instant::now());
                read_while(&host.drive, (bytes, depth), &count, || begun.elapsed() < turn)?;
                let used = Usage::with_drive(&[std::process::id()], Some(host.process))?.since(&before);
                let count = count.load(Ordering::Relaxed) as f64;
                rate.push(count / begun.elapsed().as_secs_f64());
                cpu.push(used.cpu_us as f64 / count);
            }
        }
        self.shares.push(share(both, turn)?);
        Ok(())
    }

    fn tell(self, outcome: &mut Outcome) {
        let Measured { polling_us, sleeping_us, reads, shares } = self;
        outcome.columns(&[
            "reads of a drive's process",
            "reads a second",
            "CPU µs a read, both sides",
            "rate ÷ in place",
            "CPU ÷ in place",
        ]);
        for ((bytes, depth), [[rate, cpu], [rate_copied, cpu_copied]]) in SIZES.into_iter().zip(reads) {
            let over =
                |above: &[f64], below: &[f64]| Spread::of(above.iter().zip(below).map(|(above, below)| above / below));
            let ratios = [over(&rate_copied, &rate), over(&cpu_copied, &cpu)];
            let name = |how: &str| format!("{} KiB, {depth} on their way, {how}", bytes >> 10);
            outcome.line(
                name("in place"),
                [Spread::of(rate), Spread::of(cpu), Spread::once(1.0), Spread::once(1.0)].into(),
            );
            let [rate_ratio, cpu_ratio] = ratios;
            outcome.line(name("copied"), vec![Spread::of(rate_copied), Spread::of(cpu_copied), rate_ratio, cpu_ratio]);
        }
        outcome.hold(
            "round trip of a no-op, both polling, µs (median of each round)",
            Spread::of(polling_us),
            Reach::AtMost(1.5),
        );
        outcome.hold(
            "round trip of a no-op, both sleeping, µs (median of each round)",
            Spread::of(sleeping_us),
            Reach::Reported,
        );
        outcome.hold(
            "reads of the host with weight 3 ÷ those of the one with 1, loaded",
            Spread::of(shares),
            Reach::AtLeast(2.7),
        );
    }
}

/// The median of commands that cancel nothing, one after the other; `rest` is what the host does between two looks.
fn round_trip_us(drive: &Drive, turn: Duration, rest: impl Fn(&mut QueuePair)) -> Result<f64, Failure> {
    let (mut pair, mut returned, mut took) = (drive.queue_pair(1)?, Vec::new(), Vec::new());
    let begun = Instant::now();
    while begun.elapsed() < turn {
        let from = Instant::now();
        let command = Command::new(1, Operation::Cancel { tag: u64::MAX, pipeline: None });
        pair.submit(command, tapetum_drive::Lease::Nothing).map_err(|full| full.to_string())?;
        while pair.poll(&mut returned) == 0 {
            rest(&mut pair);
        }
        took.push(from.elapsed().as_nanos() as f64 / 1000.0);
        returned.clear();
    }
    Ok(Spread::of(took).median)
}

/// Reads at random places, so many bytes at a time and so many on their way, and looks at what came.
fn read_while(
    drive: &Drive,
    (bytes, depth): (usize, usize),
    count: &AtomicU64,
    go_on: impl Fn() -> bool,
) -> Result<(), Failure> {
    let mut pair = drive.queue_pair(depth as u32)?;
    let buffers: Option<Vec<LocalBuffer>> = (0..depth).map(|_| drive.local().allocate(bytes)).collect();
    let mut free = buffers.ok_or("the drive gave less local memory than was asked for")?;
    let (mut returned, mut copy, mut place) = (Vec::new(), Vec::new(), 1_u64);
    while go_on() || pair.in_flight() > 0 {
        while go_on()
            && let Some(buffer) = free.pop()
        {
            place = place.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let flash = (place >> 20) % (PARTITION_BYTES / bytes as u64) * bytes as u64;
            let read = Operation::Read { flash, local: buffer.offset(), length: bytes as u32 };
            pair.submit(Command::new(1, read), buffer.into()).map_err(|full| full.to_string())?;
        }
        pair.wait(None);
        pair.poll(&mut returned);
        for Returned { completion, lease } in returned.drain(..) {
            if !completion.is_success() {
                return Err(format!("a read failed: {completion:?}").into());
            }
            let buffer = lease.into_buffer();
            copy.clear();
            pair.copy_to_host(Purpose::Other, &buffer, 0..bytes, &mut copy);
            free.push(buffer);
            count.fetch_add(1, Ordering::Relaxed);
        }
    }
    Ok(())
}

/// Both hosts load one drive: the reads of the second, divided by those of the first.
fn share(both: &[Host; 2], turn: Duration) -> Result<f64, Failure> {
    let (counts, is_over) = ([AtomicU64::new(0), AtomicU64::new(0)], AtomicBool::new(false));
    let reading = |place: usize| {
        read_while(&both[place].drive, (4096, DEPTH_BESIDE), &counts[place], || !is_over.load(Ordering::Relaxed))
    };
    std::thread::scope(|scope| {
        let readers = [0, 1].map(|place| scope.spawn(move || reading(place)));
        let now = || counts.each_ref().map(|count| count.load(Ordering::Relaxed));
        // Until both are at work.
        std::thread::sleep(turn / 10);
        let before = now();
        std::thread::sleep(turn);
        let after = now();
        is_over.store(true, Ordering::Relaxed);
        for reader in readers {
            reader.join().map_err(|_| "a reader panicked")??;
        }
        let [light, heavy] = [0, 1].map(|place| (after[place] - before[place]) as f64);
        Ok(heavy / light)
    })
}
