//! The rows of docs/BENCHMARKS.md, as `cargo x bench`, `cargo x figures` and `cargo x demo` run them; and `cargo x test-rows`, which
//! runs each of them once, small and on the debug build, to see that it ends.

use std::fs::File;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use crate::arguments::Arguments;
use crate::row::Row;
use crate::workspace::{self, Scratch};
use crate::{Failure, bench, demo, figures};

/// How many rows run at once: most of their time goes into waiting for a server to come to rest.
const AT_ONCE: usize = 3;
/// A row that has not ended by then never will.
const ROW_TIME_MAX: Duration = Duration::from_secs(120);
/// Lines of a failed row's output that are shown.
const LINES_SHOWN: usize = 40;

/// `cargo x test-rows`: all of them, or those whose command has one of the names in it that `--only` lists, with commas.
pub fn test(arguments: &Arguments) -> Result<(), Failure> {
    let server = arguments.server();
    let only = arguments.text("only").unwrap_or_default().to_owned();
    arguments.finish()?;
    let binaries = match server {
        Some(server) => std::path::absolute(server)?.parent().ok_or("--server names no file")?.to_owned(),
        None => workspace::build_all()?,
    };
    let mut left = commands();
    if let Some(name) = only.split(',').find(|name| !left.iter().any(|command| command.contains(name))) {
        return Err(format!("no row has {name} in it").into());
    }
    left.retain(|command| only.split(',').any(|name| command.contains(name)));
    let (begun, count) = (Instant::now(), left.len());
    // Taken from the end.
    left.reverse();
    let (left, scratch) = (Mutex::new(left), Scratch::new("rows")?);
    let next = || left.lock().expect("nobody panics while taking a row").pop();
    std::thread::scope(|scope| {
        let work = || std::iter::from_fn(next).try_for_each(|command| test_row(&command, &binaries, scratch.folder()));
        let threads: Vec<_> = (0..AT_ONCE).map(|_| scope.spawn(work)).collect();
        let done = threads.into_iter().map(|thread| thread.join().expect("a row's thread panicked"));
        // All of them are waited for.
        done.collect::<Vec<_>>().into_iter().collect::<Result<(), Failure>>()
    })?;
    println!("test-rows: {count} rows end well, in {:.0} s", begun.elapsed().as_secs_f64());
    Ok(())
}

/// The words after `cargo x`, of each row.
fn commands() -> Vec<String> {
    let named = |command: &str, rows: &[Row]| -> Vec<String> {
        rows.iter().map(|row| format!("{command} {}", row.name)).collect()
    };
    let mut commands = vec![demo::ROW.name.to_owned()];
    commands.extend(named("figures", &figures::SHORT));
    commands.extend(named("figures", &figures::LONG));
    commands.extend(named("bench", &bench::ROWS));
    commands
}

/// Runs one of them in a process of its own, whose output is shown if it fails.
fn test_row(command: &str, binaries: &Path, scratch: &Path) -> Result<(), Failure> {
    let log = scratch.join(format!("{}.log", command.replace(' ', "-")));
    let output = File::create(&log)?;
    let begun = Instant::now();
    let mut process = Command::new(std::env::current_exe()?)
        .args(command.split(' '))
        .arg("--smoke")
        .arg(binaries)
        .stdin(Stdio::null())
        .stdout(output.try_clone()?)
        .stderr(output)
        .spawn()?;
    let status = loop {
        if let Some(status) = process.try_wait()? {
            break Ok(status);
        }
        if begun.elapsed() > ROW_TIME_MAX {
            process.kill()?;
            process.wait()?;
            break Err(format!("it has not ended within {ROW_TIME_MAX:?}"));
        }
        std::thread::sleep(Duration::from_millis(20));
    };
    let why = match status {
        Ok(status) if status.success() => {
            println!("  {command}: {:.1} s", begun.elapsed().as_secs_f64());
            return Ok(());
        }
        Ok(status) => format!("it ended with {status}"),
        Err(why) => why,
    };
    let text = String::from_utf8_lossy(&std::fs::read(&log)?).into_owned();
    let lines: Vec<&str> = text.lines().collect();
    let shown = lines[lines.len().saturating_sub(LINES_SHOWN)..].join("\n");
    Err(format!("cargo x {command} --smoke {}: {why}\n{shown}", binaries.display()).into())
}
