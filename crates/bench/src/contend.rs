//! The contender's end of the protocol: reads commands until its standard input ends, measures each, answers each.

use std::io::{BufRead, Write};
use std::ops::Range;
use std::process::ExitCode;
use std::time::Instant;

use serde::Serialize;
use serde_json::json;

use crate::Failure;
use crate::latencies::Latencies;
use crate::process::Usage;
use crate::turn::{Command, Report, Setup, Turn};

pub trait Contender: Sized + Sync {
    /// Stores these items, each for the first time.
    fn load(&mut self, indexes: Range<u64>) -> Result<(), Failure>;

    /// Deletes these items.
    fn remove(&mut self, _indexes: Range<u64>) -> Result<(), Failure> {
        Err("this contender has no way to delete items".into())
    }

    /// Waits until all work that writes left behind is done.
    fn settle(&mut self) -> Result<(), Failure>;

    fn turn(&self, turn: &Turn) -> Result<Latencies, Failure>;

    /// The processes whose work is this contender's.
    fn processes(&self) -> Vec<u32> {
        vec![std::process::id()]
    }

    /// Its drive, if that is a process of its own.
    fn drive_process(&self) -> Option<u32> {
        None
    }

    /// Leaves its data so that it can be started on them again.
    fn close(self) -> Result<(), Failure>;
}

/// A contender's `main`; `start` opens its data, or makes them.
pub fn contend<C: Contender>(start: impl FnOnce(&Setup) -> Result<C, Failure>) -> ExitCode {
    match serve(start) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            println!("{}", json!({ "error": failure.to_string() }));
            ExitCode::FAILURE
        }
    }
}

fn serve<C: Contender>(start: impl FnOnce(&Setup) -> Result<C, Failure>) -> Result<(), Failure> {
    let argument =
        std::env::args().nth(1).ok_or("a contender is started by `cargo x bench`, with its setup as JSON")?;
    let setup: Setup = serde_json::from_str(&argument)?;
    let mut contender = start(&setup)?;
    answer(&json!({ "ready": true }))?;
    for line in std::io::stdin().lock().lines() {
        let command: Command = serde_json::from_str(&line?)?;
        answer(&run(&mut contender, &command)?)?;
    }
    contender.close()
}

fn answer(answer: &impl Serialize) -> Result<(), Failure> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{}", serde_json::to_string(answer)?)?;
    Ok(out.flush()?)
}

fn run<C: Contender>(contender: &mut C, command: &Command) -> Result<Report, Failure> {
    let (processes, drive) = (contender.processes(), contender.drive_process());
    let before = Usage::with_drive(&processes, drive)?;
    let begun = Instant::now();
    let latencies = match command {
        Command::Load { from, to } => contender.load(*from..*to).map(|()| Latencies::default()),
        Command::Remove { from, to } => contender.remove(*from..*to).map(|()| Latencies::default()),
        Command::Settle => contender.settle().map(|()| Latencies::default()),
        Command::Turn(turn) => match turn.overwrites_beside() {
            Some(writes) => turn_beside(contender, turn, &writes),
            None => contender.turn(turn),
        },
    }?;
    let seconds = begun.elapsed().as_secs_f64();
    Ok(Report { latencies, seconds, usage: Usage::with_drive(&processes, drive)?.since(&before) })
}

/// Two turns at once, by threads of their own.
fn turn_beside<C: Contender>(contender: &C, turn: &Turn, writes: &Turn) -> Result<Latencies, Failure> {
    std::thread::scope(|scope| {
        let writes = scope.spawn(|| contender.turn(writes));
        let mut latencies = contender.turn(turn)?;
        latencies.add(&writes.join().expect("the writers panicked")?);
        Ok(latencies)
    })
}
