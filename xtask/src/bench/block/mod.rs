//! A block device beside a plain one: fio's random mix of 70 % reads and 30 % writes of 4 KiB, with data that compresses to a third, over
//! NBD. XDP's figure 15. The contenders are `tapetum serve --nbd`, with single blocks and with groups of 8 and 16; nbdkit over the bare
//! member, with a page cache as large as the store's memory; and qemu-nbd past the page cache. Each has its own member on the same disk,
//! with the same limits.
//!
//! Afterwards each device is read sequentially, beside the bare member.

mod fio;
pub mod member;
pub mod servers;

use self::fio::{Fio, FioTurn};
use self::member::{Limits, Member};
use self::servers::{Contender, Exporter, Rival};
use crate::arguments::Arguments;
use crate::results::outcome::{Outcome, Reach};
use crate::results::spread::Spread;
use crate::{Failure, workspace};

/// Size of a member, in percent of the device; the same for all contenders.
const MEMBER_PERCENT: u64 = 150;
/// Memory of the store, and of the rival's page cache: the device's size divided by this, but at least the minimum.
const MEMORY_SHARE: u64 = 16;
const MEMORY_BYTES_MIN: u64 = 128 << 20;
/// At this depth and above: the least operations per second ÷ nbdkit's, and the greatest P99.99 ÷ nbdkit's.
const SPEED_LEAST: f64 = 2.9;
const TAIL_MOST: f64 = 0.2;
const DEPTH_HELD: u64 = 32;
/// The least bandwidth of a sequential read ÷ the bare member's, with groups of 16.
const READ_LEAST: f64 = 0.9;

pub fn run(arguments: &Arguments) -> Result<(), Failure> {
    let device_bytes = arguments.size("device", 4 << 30)?;
    let rounds = arguments.number("rounds", 3)?;
    let seconds = arguments.number("seconds", 20)?;
    let depths = depths(arguments.text("depths").unwrap_or("4,8,16,32,64"))?;
    let limits = Limits::parse(arguments)?;
    arguments.finish()?;
    let scratch = workspace::Scratch::new("block")?;
    if let Err(why) = Fio::check().and_then(|()| Rival::check()).and_then(|()| Member::check(scratch.folder())) {
        println!("block: left out ({why})");
        return Ok(());
    }
    let binary = arguments.measured_server(None)?;
    let throttled = limits.map_or("not throttled".to_owned(), |limits| limits.to_string());
    let about = format!(
        "fio over NBD, 70 % reads, 30 % writes of 4 KiB at random in {} MiB, compressible to a third, {seconds} s a turn; members {throttled}",
        device_bytes >> 20
    );
    let memory_bytes = (device_bytes / MEMORY_SHARE).max(MEMORY_BYTES_MIN);
    let mut exporters = Vec::new();
    for contender in Contender::ALL {
        let member = Member::new(scratch.folder(), contender.label(), device_bytes * MEMBER_PERCENT / 100)?;
        let exporter = Exporter::start(contender, member, &binary, scratch.folder(), device_bytes, memory_bytes)?;
        Fio::fill(&exporter.uri(), device_bytes)?;
        println!("block: {} is filled", contender.label());
        exporters.push(exporter);
    }
    let mut outcome = Outcome::new(arguments, "block", about);
    outcome.columns(&[
        "contender, depth",
        "operations/s",
        "P99.99 µs",
        "CPU µs an operation",
        "bytes to flash ÷ written",
    ]);
    for depth in depths {
        let fio = Fio { depth, seconds, device_bytes };
        mix(&mut outcome, &exporters, &fio, rounds, limits)?;
    }
    reads(&mut outcome, &exporters, rounds, device_bytes, seconds, limits)?;
    exporters.into_iter().try_for_each(Exporter::stop)?;
    outcome.end()
}

fn depths(text: &str) -> Result<Vec<u64>, Failure> {
    let parse = |word: &str| word.parse().ok().filter(|depth| (1..=1024).contains(depth));
    let depths: Option<Vec<u64>> = text.split(',').map(parse).collect();
    depths.ok_or_else(|| format!("--depths takes numbers from 1 to 1024 with commas between, not {text}").into())
}

/// Turns of the mix at one depth.
fn mix(
    outcome: &mut Outcome,
    exporters: &[Exporter],
    fio: &Fio,
    rounds: u64,
    limits: Option<Limits>,
) -> Result<(), Failure> {
    let mut turns: Vec<Vec<FioTurn>> = exporters.iter().map(|_| Vec::new()).collect();
    for _ in 0..rounds {
        for (exporter, turns) in exporters.iter().zip(&mut turns) {
            let _throttled = exporter.member().throttle(limits)?;
            turns.push(exporter.timed(|uri| fio.mix(uri))?);
        }
    }
    let depth = fio.depth;
    let spread = |turns: &[FioTurn], figure: fn(&FioTurn) -> f64| Spread::of(turns.iter().map(figure));
    for (exporter, turns) in exporters.iter().zip(&turns) {
        let figures: [fn(&FioTurn) -> f64; 4] =
            [FioTurn::operations_per_second, |turn| turn.tail_us, FioTurn::cpu_us, FioTurn::amplification];
        let name = format!("{}, depth {depth}", exporter.contender().label());
        outcome.line(name, figures.map(|figure| spread(turns, figure)).into());
    }
    let (ours, others): (Vec<_>, Vec<_>) = exporters.iter().zip(&turns).partition(|(of, _)| of.contender().is_ours());
    for (own, turns) in &ours {
        for (other, others) in &others {
            let is_held =
                own.contender() == Contender::Blocks && other.contender() == Contender::Nbdkit && depth >= DEPTH_HELD;
            let ratio = |figure: fn(&FioTurn) -> f64| {
                Spread::of(turns.iter().zip(others.iter()).map(|(mine, theirs)| figure(mine) / figure(theirs)))
            };
            let what = format!("depth {depth}, {} ÷ {}", own.contender().label(), other.contender().label());
            let reach = |reach: Reach| if is_held { reach } else { Reach::Reported };
            let speed = ratio(FioTurn::operations_per_second);
            outcome.hold(format!("{what}: operations/s"), speed, reach(Reach::AtLeast(SPEED_LEAST)));
            outcome.hold(format!("{what}: P99.99"), ratio(|turn| turn.tail_us), reach(Reach::AtMost(TAIL_MOST)));
        }
    }
    Ok(())
}

/// Sequential reads, after all the writes.
fn reads(
    outcome: &mut Outcome,
    exporters: &[Exporter],
    rounds: u64,
    device_bytes: u64,
    seconds: u64,
    limits: Option<Limits>,
) -> Result<(), Failure> {
    let Some(bare) = exporters.iter().find(|exporter| exporter.contender() == Contender::QemuNbd) else {
        return Ok(());
    };
    let mut bandwidths: Vec<Vec<f64>> = exporters.iter().map(|_| Vec::new()).collect();
    for _ in 0..rounds {
        let raw = {
            let _throttled = bare.member().throttle(limits)?;
            Fio::read_member(bare.member().device(), device_bytes, seconds)?
        };
        for (exporter, bandwidths) in exporters.iter().zip(&mut bandwidths) {
            let _throttled = exporter.member().throttle(limits)?;
            bandwidths.push(Fio::read(&exporter.uri(), device_bytes, seconds)? / raw);
        }
    }
    for (exporter, bandwidths) in exporters.iter().zip(bandwidths) {
        let reach = match exporter.contender() {
            Contender::Groups16 => Reach::AtLeast(READ_LEAST),
            _ => Reach::Reported,
        };
        let what = format!("sequential read, {} ÷ the bare member: bytes/s", exporter.contender().label());
        outcome.hold(what, Spread::of(bandwidths), reach);
    }
    Ok(())
}
