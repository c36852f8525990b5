//! A chain of four commands that depend on each other (read, compute, write, read back) over a file: by events, and one after the
//! other from the host; with the device half on the host's thread, and on one of its own.

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use tapetum_bench::kernels::{self, NoWork};
use tapetum_bench::process::{thread_cpu_ns, thread_switches};
use tapetum_drive::{
    Command, Drive, Env, EventId, FileFlash, IoEngine, Lease, LocalBuffer, LocalRange, MemoryAddress, Operation,
    ProgramId, QueuePair, Returned, drive_cpu_us,
};

use super::outcome::{Outcome, Reach};
use super::series::Spread;
use crate::Failure;
use crate::arguments::Arguments;
use crate::workspace::Scratch;

const COMMANDS: usize = 4;
const BLOCK: u32 = 4096;
const FLASH_BYTES: u64 = 64 << 20;
const LOCAL_BYTES: usize = 1 << 20;

/// What a chain took in each round.
#[derive(Default)]
struct Chains {
    /// How often the host had something to do: it took completions.
    turns: Vec<f64>,
    /// How often the kernel put the host's thread to sleep.
    sleeps: Vec<f64>,
    us: Vec<f64>,
    host_cpu_us: Vec<f64>,
    drive_cpu_us: Vec<f64>,
}

pub fn run(arguments: &Arguments) -> Result<(), Failure> {
    let chains = arguments.number("chains", 20_000)? as usize;
    let rounds = arguments.number("rounds", 9)?;
    arguments.finish()?;
    let about = format!("{chains} chains a round of a read, a program, a write and a read, of {BLOCK} bytes");
    println!("events: {about}");
    let scratch = Scratch::new("bench-events")?;
    let inline = drive(scratch.folder())?;
    let threaded = inline.with_threads(1)?;
    let ways = [("the host's thread", &inline), ("a drive thread", &threaded)];
    let mut found = ways.map(|_| [Chains::default(), Chains::default()]);
    for _ in 0..rounds {
        for ((_, drive), found) in ways.iter().zip(&mut found) {
            for (by_events, found) in [true, false].into_iter().zip(found) {
                measure(drive, chains, by_events, found)?;
            }
        }
    }
    let mut outcome = Outcome::new(arguments, "events", about);
    outcome.columns(&["device half on", "host turns", "host sleeps", "µs", "host CPU µs", "drive CPU µs"]);
    for ((place, _), [by_events, one_by_one]) in ways.iter().zip(found) {
        let turns = [Spread::of(by_events.turns.clone()), Spread::of(one_by_one.turns.clone())];
        outcome.hold(format!("{place}: host turns a chain by events"), turns[0], Reach::AtMost(1.0));
        outcome.hold(format!("{place}: host turns a chain without"), turns[1], Reach::Reported);
        let ratio = by_events.us.iter().zip(&one_by_one.us).map(|(with, without)| with / without);
        outcome.hold(format!("{place}: time by events ÷ without"), Spread::of(ratio), Reach::Reported);
        for (way, chains) in [("by events", by_events), ("one by one", one_by_one)] {
            let Chains { turns, sleeps, us, host_cpu_us, drive_cpu_us } = chains;
            let figures = [turns, sleeps, us, host_cpu_us, drive_cpu_us].map(Spread::of).into();
            outcome.line(format!("{place}, {way}"), figures);
        }
    }
    outcome.end()
}

fn drive(folder: &Path) -> Result<Drive, Failure> {
    let flash = FileFlash::create(&folder.join("drive"), FLASH_BYTES, IoEngine::Auto, &Env::system())?;
    kernels::drive(Arc::new(flash), LOCAL_BYTES, vec![Box::new(NoWork)])
}

fn measure(drive: &Drive, chains: usize, by_events: bool, found: &mut Chains) -> Result<(), Failure> {
    let mut pair = drive.queue_pair_of_one_thread(COMMANDS as u32)?;
    let mut buffer = drive.local().allocate(2 * BLOCK as usize).ok_or("local memory is used up")?;
    let mut turns = 0;
    let begun = (Instant::now(), thread_cpu_ns(), thread_switches(), drive_cpu_us());
    for chain in 0..chains as u64 {
        let operations = operations(chain * u64::from(BLOCK) % FLASH_BYTES, &buffer);
        (buffer, turns) = if by_events {
            let (buffer, more) = run_chain(&mut pair, operations, buffer)?;
            (buffer, turns + more)
        } else {
            operations.into_iter().try_fold((buffer, turns), |(buffer, turns), operation| {
                pair.submit(Command::new(0, operation), buffer.into())?;
                finish(&mut pair).map(|(buffer, more)| (buffer, turns + more))
            })?
        };
    }
    let each = |amount: f64| amount / chains as f64;
    found.turns.push(each(turns as f64));
    found.us.push(each(begun.0.elapsed().as_nanos() as f64 / 1000.0));
    found.host_cpu_us.push(each((thread_cpu_ns() - begun.1) as f64 / 1000.0));
    found.sleeps.push(each((thread_switches() - begun.2) as f64));
    found.drive_cpu_us.push(each((drive_cpu_us() - begun.3) as f64));
    Ok(())
}

fn operations(flash: u64, buffer: &LocalBuffer) -> [Operation; COMMANDS] {
    let local = buffer.offset();
    let (input, output) =
        (LocalRange { offset: local, length: BLOCK }, LocalRange { offset: local + u64::from(BLOCK), length: BLOCK });
    [
        Operation::Read { flash, local, length: BLOCK },
        Operation::Execute { program: ProgramId(0), parameters: LocalRange::EMPTY, input, output },
        Operation::Write { flash, from: MemoryAddress::local(output.offset), length: BLOCK, fua: false },
        Operation::Read { flash, local, length: BLOCK },
    ]
}

/// All at once: each waits for the one before it, and only the last has a completion.
fn run_chain(
    pair: &mut QueuePair,
    operations: [Operation; COMMANDS],
    buffer: LocalBuffer,
) -> Result<(LocalBuffer, usize), Failure> {
    let mut lease = Lease::Buffer(buffer);
    for (number, operation) in (1..).zip(operations) {
        let mut command = Command::new(u64::from(number), operation);
        if let Some(before) = EventId::new(number - 1) {
            command = command.after(before);
        }
        if let Some(own) = EventId::new(number).filter(|_| usize::from(number) < COMMANDS) {
            command = command.signals(own).quiet();
        }
        pair.submit(command, std::mem::replace(&mut lease, Lease::Inherited))?;
    }
    finish(pair)
}

/// What was lent, and how often the host took completions until nothing was in flight.
fn finish(pair: &mut QueuePair) -> Result<(LocalBuffer, usize), Failure> {
    let (mut returned, mut turns): (Vec<Returned>, _) = (Vec::new(), 0);
    while pair.in_flight() > 0 {
        match pair.poll(&mut returned) {
            0 => pair.wait(None),
            _ => turns += 1,
        }
    }
    let last = returned.pop().ok_or("a chain ended without a completion")?;
    if !last.completion.is_success() {
        return Err(format!("a command of the chain failed: {:?}", last.completion).into());
    }
    Ok((last.lease.into_buffer(), turns))
}
