//! The log, which goes to standard error. A server's log never blocks the server, whatever its reader does.
//!
//! Lines go through a bounded queue to a thread of their own. While nobody reads (a pager, a terminal that is stopped, a log driver that
//! hangs) the queue fills, and lines that do not fit are dropped and counted. At the end the queue is given a bounded time to empty.
//!
//! A panic in any thread ends the process before a lock is released, since the data under the lock may be half-changed. A store loses
//! nothing that it acknowledged by that.

// The server is above the simulator: this is a thread of the system.
#![allow(clippy::disallowed_methods)]

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::time::Duration;

use tracing::Level;
use tracing_appender::non_blocking::{ErrorCounter, NonBlocking, NonBlockingBuilder, WorkerGuard};

/// Lines that wait to be written: more than a healthy server logs from start to end.
const LINES_MAX: usize = 1024;
/// How long the waiting lines may take at the end.
const FLUSH_TIME: Duration = Duration::from_secs(2);

/// A log that lines are written to until [`Log::end`].
pub struct Log {
    writer: NonBlocking,
    /// Dropped, it writes what waits. A panic may take it first.
    guard: Arc<Mutex<Option<WorkerGuard>>>,
    losses: LogLosses,
}

/// How many lines of a log were lost. Any thread may ask.
#[derive(Clone, Debug, Default)]
pub struct LogLosses {
    /// For want of room in the queue.
    dropped: Option<ErrorCounter>,
    /// As they could not be written.
    failed: Arc<AtomicU64>,
}

impl LogLosses {
    pub fn lines(&self) -> u64 {
        let dropped = self.dropped.as_ref().map_or(0, |counter| counter.dropped_lines() as u64);
        dropped + self.failed.load(Ordering::Relaxed)
    }
}

/// Writes whole lines, and counts those that fail.
struct LineWriter<W> {
    out: W,
    failed: Arc<AtomicU64>,
}

impl<W: Write> Write for LineWriter<W> {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        if self.out.write_all(line).is_err() {
            self.failed.fetch_add(1, Ordering::Relaxed);
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Log {
    /// Takes what this process says, and the messages of its panics, to standard error. Signals that are to be blocked must be before.
    pub fn of_server(level: Level) -> io::Result<Log> {
        // A descriptor of its own: behind the standard library's lock on standard error one would wait for its reader.
        let log = Log::to(File::from(io::stderr().as_fd().try_clone_to_owned()?));
        let writer = log.writer.clone();
        tracing_subscriber::fmt()
            .with_ansi(false)
            .with_writer(move || writer.clone())
            .with_max_level(level)
            .with_target(false)
            .init();
        let guard = Arc::clone(&log.guard);
        std::panic::set_hook(Box::new(move |panic| {
            let thread = std::thread::current();
            let name = thread.name().unwrap_or("without a name");
            tracing::error!("thread {name}: {panic}\n{}", std::backtrace::Backtrace::capture());
            tracing::error!(
                "the server ends here, as it cannot be trusted any more: start it again; all that it acknowledged as durable is on the \
                 drive; please report this"
            );
            flush(&guard);
            std::process::abort();
        }));
        Ok(log)
    }

    fn to(out: impl Write + Send + 'static) -> Log {
        let failed = Arc::new(AtomicU64::new(0));
        let lines = LineWriter { out, failed: Arc::clone(&failed) };
        let builder = NonBlockingBuilder::default().buffered_lines_limit(LINES_MAX).lossy(true).thread_name("log");
        let (writer, guard) = builder.finish(lines);
        let dropped = Some(writer.error_counter());
        let guard = Arc::new(Mutex::new(Some(guard)));
        Log { writer, guard, losses: LogLosses { dropped, failed } }
    }

    pub fn losses(&self) -> LogLosses {
        self.losses.clone()
    }

    /// Says something as it is, without a time.
    pub fn say(&mut self, line: &str) {
        // A queue that takes no more counts it.
        let _ = self.writer.write_all(line.as_bytes());
    }

    /// Waits until what was said is written, for a bounded time.
    pub fn end(self) {
        flush(&self.guard);
    }
}

/// Writes what waits, for a bounded time. Whoever comes second waits as long.
fn flush(guard: &Mutex<Option<WorkerGuard>>) {
    let guard = guard.lock().unwrap_or_else(PoisonError::into_inner).take();
    let (done, ended) = mpsc::channel::<()>();
    let Some(guard) = guard else { return std::thread::sleep(FLUSH_TIME) };
    let flush = move || {
        // It waits for a second at most, and complains to standard output then, which may be as full.
        drop(guard);
        drop(done);
    };
    if std::thread::Builder::new().name("log-end".into()).spawn(flush).is_ok() {
        let _ = ended.recv_timeout(FLUSH_TIME);
    }
}

/// The log of a command that runs once.
pub fn of_command(level: Level) {
    let log =
        tracing_subscriber::fmt().with_ansi(false).with_writer(io::stderr).with_max_level(level).with_target(false);
    // A log whose reader has gone must not stop the command.
    log.log_internal_errors(false).init();
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;
    use std::os::unix::net::UnixStream;

    #[test]
    fn nobody_waits_for_a_reader_that_does_not_read_and_losses_are_counted() {
        let (mut reader, writer) = UnixStream::pair().unwrap();
        let mut log = Log::to(writer);
        let losses = log.losses();
        assert_eq!(losses.lines(), 0);
        let line = "x".repeat(1023) + "\n";
        // As much as the socket takes and the queue, and more.
        let mut said = 0;
        while losses.lines() < 10 {
            log.say(&line);
            said += 1;
        }
        log.end();
        reader.set_nonblocking(true).unwrap();
        let mut written = Vec::new();
        // The thread that was not waited for writes on; what it does not get to is with those that are lost here.
        let _ = reader.read_to_end(&mut written);
        assert!(written.len().div_ceil(line.len()) + 10 <= said);
    }

    #[test]
    fn what_was_said_is_written_at_the_end_and_failures_are_counted() {
        let (mut reader, writer) = UnixStream::pair().unwrap();
        let mut log = Log::to(writer);
        (0..LINES_MAX).for_each(|_| log.say("a line\n"));
        log.end();
        let mut written = String::new();
        reader.read_to_string(&mut written).unwrap();
        assert_eq!(written, "a line\n".repeat(LINES_MAX));
        let (reader, writer) = UnixStream::pair().unwrap();
        drop(reader);
        let mut log = Log::to(writer);
        let losses = log.losses();
        log.say("nobody there\n");
        log.end();
        assert_eq!(losses.lines(), 1);
    }
}
