//! Hostile clients: connections that send nothing, that send a byte a second, that never read their answers, at once or after a small
//! request. The server must stay within its memory, and well-behaved clients keep their throughput, measured with and without the flood in
//! turns.

use std::io::{self, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use tapetum_bench::client::Connection;
use tapetum_bench::server::ServerOptions;
use tapetum_bench::turn::{Length, Report, Turn};
use tapetum_bench::workload::{Population, Values};
use tapetum_bench::{process, sockets};

use crate::arguments::Arguments;
use crate::results::outcome::{Outcome, Reach};
use crate::results::series::Series;
use crate::{Failure, workspace};

const IDLE: usize = 10_000;
const SLOW: usize = 1000;
const DEAF: usize = 200;
/// Requests of a deaf client: so many gets of a value of this size.
const DEAF_GETS: usize = 64;
const LARGE_BYTES: usize = 1 << 20;
const LARGE_KEYS: u64 = 16;
/// First requests of a sly client: so many small gets, so that the server expects small values.
const SMALL_GETS: usize = 64;
const SMALL_GET: &[u8] = b"get small\r\n";
const LOOK: Duration = Duration::from_millis(100);
const REST_WAIT_MAX: Duration = Duration::from_secs(30);
const MEMORY: &str = "256MiB";
const MEMORY_BYTES: u64 = 256 << 20;

pub fn run(arguments: &Arguments) -> Result<(), Failure> {
    let items = arguments.number("items", 100_000)?;
    let rounds = arguments.number("rounds", 9)?;
    arguments.finish()?;
    let crowds =
        Crowds { idle: arguments.sized(IDLE, 100), slow: arguments.sized(SLOW, 100), deaf: arguments.sized(DEAF, 10) };
    raise_descriptor_limit(crowds.idle)?;
    let binary = arguments.measured_server(None)?;
    let scratch = workspace::Scratch::new("floods")?;
    let options = [
        "--memory",
        MEMORY,
        "--capacity",
        arguments.sized("2GiB", "512MiB"),
        "--connections",
        &(crowds.idle + 2000).to_string(),
        "--sync",
        "no",
    ];
    let server = ServerOptions::new(&binary, &scratch.folder().join("data"), &options)?.start()?;
    let address = server.address();
    println!("floods: tapetum serve {}", options.join(" "));
    let population = Population::new(items, Values::new(1008, 100));
    sockets::load(address, &population, 0..items)?;
    store_large(address)?;

    let about = format!("YCSB B by 32 connections, {items} items of 1008 bytes, with and without each flood");
    let mut outcome = Outcome::new(arguments, "floods", about);
    for (name, flood) in [
        ("10,000 idle connections", idle as Flood),
        ("1000 connections of a byte a second", slow),
        ("200 connections that ask for 64 MiB each and read nothing", deaf),
        ("as many that ask for something small before", sly),
    ] {
        let (mut without, mut with) = (Series::new(&format!("without {name}")), Series::new(&format!("with {name}")));
        for round in 0..rounds {
            let behave = || behave(address, &population, &turn(arguments, round), server.process());
            without.reports.push(behave()?);
            let beside = flooded(|flowing, stop| flood(address, crowds, flowing, stop), behave);
            with.reports.push(beside.map_err(|error| format!("those who behave, beside {name}: {error}"))?);
        }
        let kept = with.ratio(&without, Report::operations_per_second);
        println!("  {name}: throughput kept {}", kept.shown());
        outcome.hold(format!("throughput kept beside {name}"), kept, Reach::AtLeast(0.95));
        let resident = process::read(server.process())?.resident_max_bytes;
        let share = resident as f64 / MEMORY_BYTES as f64;
        outcome.hold_once(
            format!("the most resident (VmHWM) by then ÷ --memory {MEMORY}, with {name}"),
            share,
            Reach::AtMost(1.0),
        );
        outcome.series([without, with]);
    }
    server.terminate()?;
    outcome.end()
}

/// Number of clients of each kind.
#[derive(Clone, Copy)]
struct Crowds {
    idle: usize,
    slow: usize,
    deaf: usize,
}

/// Floods the address until told to stop. Reports when the flood is complete.
type Flood = fn(SocketAddr, Crowds, &AtomicBool, &AtomicBool) -> Result<(), Failure>;

fn flooded(
    flood: impl FnOnce(&AtomicBool, &AtomicBool) -> Result<(), Failure> + Send,
    work: impl FnOnce() -> Result<Report, Failure>,
) -> Result<Report, Failure> {
    let (flowing, stop) = (AtomicBool::new(false), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let flood = scope.spawn(|| flood(&flowing, &stop));
        while !flowing.load(Ordering::SeqCst) && !flood.is_finished() {
            std::thread::sleep(Duration::from_millis(5));
        }
        let done = work();
        stop.store(true, Ordering::SeqCst);
        flood.join().expect("the flood panicked")?;
        done
    })
}

/// Waits until the server is idle, so that a steady flood is measured and not its beginning: until then the server accepts or refuses
/// clients, and sends what their sockets take.
fn wait_for_rest(server: u32) -> Result<(), Failure> {
    let begun = Instant::now();
    let mut before = process::Usage::of(&[server])?;
    while begun.elapsed() < REST_WAIT_MAX {
        std::thread::sleep(LOOK);
        let now = process::Usage::of(&[server])?;
        if u128::from(now.since(&before).cpu_us) < LOOK.as_micros() / 5 {
            return Ok(());
        }
        before = now;
    }
    Err(format!("the server is still busy after {REST_WAIT_MAX:?} without those who behave").into())
}

/// The work of well-behaved clients.
fn turn(arguments: &Arguments, round: u64) -> Turn {
    Turn::uniform("b", "get", 32, 4, Length::Time(arguments.time(Duration::from_secs(1))), round)
}

fn behave(address: SocketAddr, population: &Population, turn: &Turn, server: u32) -> Result<Report, Failure> {
    wait_for_rest(server)?;
    let before = process::Usage::of(&[server])?;
    let begun = Instant::now();
    let latencies = sockets::run(address, population, turn)?;
    let seconds = begun.elapsed().as_secs_f64();
    Ok(Report { latencies, seconds, usage: process::Usage::of(&[server])?.since(&before) })
}

fn connect_many(address: SocketAddr, count: usize) -> Result<Vec<TcpStream>, Failure> {
    let mut streams = Vec::new();
    for number in 0..count {
        let stream = TcpStream::connect(address).map_err(|error| format!("connection {number} of {count}: {error}"))?;
        stream.set_nonblocking(true)?;
        reset_when_closed(&stream);
        streams.push(stream);
    }
    Ok(streams)
}

/// Without this, ten thousand ports would stay in TIME_WAIT for a minute after each round.
fn reset_when_closed(stream: &TcpStream) {
    let linger = libc::linger { l_onoff: 1, l_linger: 0 };
    // SAFETY: the call only reads this structure. A failure costs ports, not correctness.
    unsafe {
        let (pointer, size) = (std::ptr::from_ref(&linger).cast(), size_of::<libc::linger>() as libc::socklen_t);
        libc::setsockopt(stream.as_raw_fd(), libc::SOL_SOCKET, libc::SO_LINGER, pointer, size);
    }
}

fn wait_for(stop: &AtomicBool) {
    while !stop.load(Ordering::SeqCst) {
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn idle(address: SocketAddr, crowds: Crowds, flowing: &AtomicBool, stop: &AtomicBool) -> Result<(), Failure> {
    let _streams = connect_many(address, crowds.idle)?;
    flowing.store(true, Ordering::SeqCst);
    wait_for(stop);
    Ok(())
}

fn slow(address: SocketAddr, crowds: Crowds, flowing: &AtomicBool, stop: &AtomicBool) -> Result<(), Failure> {
    let streams = connect_many(address, crowds.slow)?;
    flowing.store(true, Ordering::SeqCst);
    // A request that never ends, with its bytes spread over each second.
    for byte in b"set slow 0 0 1000000\r\n".iter().chain(std::iter::repeat(&b'x')) {
        for some in streams.chunks(crowds.slow / 50) {
            for mut stream in some {
                expect_open(stream.write(&[*byte]))?;
            }
            std::thread::sleep(Duration::from_millis(20));
            if stop.load(Ordering::SeqCst) {
                return Ok(());
            }
        }
    }
    Ok(())
}

fn deaf(address: SocketAddr, crowds: Crowds, flowing: &AtomicBool, stop: &AtomicBool) -> Result<(), Failure> {
    ask_and_read_nothing(address, crowds.deaf, Vec::new(), flowing, stop)
}

fn sly(address: SocketAddr, crowds: Crowds, flowing: &AtomicBool, stop: &AtomicBool) -> Result<(), Failure> {
    ask_and_read_nothing(address, crowds.deaf, SMALL_GET.repeat(SMALL_GETS), flowing, stop)
}

/// Asks for large values, after sending `asks`.
fn ask_and_read_nothing(
    address: SocketAddr,
    deaf: usize,
    mut asks: Vec<u8>,
    flowing: &AtomicBool,
    stop: &AtomicBool,
) -> Result<(), Failure> {
    let mut streams = connect_many(address, deaf)?;
    for number in 0..DEAF_GETS as u64 {
        asks.extend_from_slice(format!("get large{}\r\n", number % LARGE_KEYS).as_bytes());
    }
    for mut stream in &streams {
        expect_open(stream.write(&asks))?;
    }
    flowing.store(true, Ordering::SeqCst);
    while !stop.load(Ordering::SeqCst) {
        for stream in &mut streams {
            // A client that was disconnected connects again.
            if is_closed(stream) {
                *stream = connect_many(address, 1)?.remove(0);
                expect_open(stream.write(&asks))?;
            }
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}

/// Whether the server has closed the connection, as far as that is visible without reading.
fn is_closed(stream: &TcpStream) -> bool {
    let mut poll = libc::pollfd { fd: stream.as_raw_fd(), events: libc::POLLRDHUP, revents: 0 };
    // SAFETY: one structure, which lives through the call.
    unsafe { libc::poll(&mut poll, 1, 0) > 0 }
}

/// The server may stop reading, or disconnect the client; both are fine.
fn expect_open(written: io::Result<usize>) -> Result<(), Failure> {
    match written {
        Ok(_) => Ok(()),
        Err(error) => match error.kind() {
            io::ErrorKind::WouldBlock | io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset => Ok(()),
            _ => Err(error.into()),
        },
    }
}

fn store_large(address: SocketAddr) -> Result<(), Failure> {
    let mut connection = Connection::open(address)?;
    connection.queue_set(b"small", 0, b"value");
    connection.flush()?;
    crate::load::expect_stored(&mut connection)?;
    for number in 0..LARGE_KEYS {
        let value = tapetum_bench::random::Random::new(number).bytes(LARGE_BYTES);
        connection.queue_set(format!("large{number}").as_bytes(), 0, &value);
        connection.flush()?;
        crate::load::expect_stored(&mut connection)?;
    }
    Ok(())
}

/// Raises the limit on descriptors: this process holds the clients' ends.
fn raise_descriptor_limit(idle: usize) -> Result<(), Failure> {
    let needed = (idle + 1000) as libc::rlim_t;
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: both calls read or write only the structure.
    let raised = unsafe {
        libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) == 0 && {
            limit.rlim_cur = limit.rlim_max;
            limit.rlim_max >= needed && libc::setrlimit(libc::RLIMIT_NOFILE, &limit) == 0
        }
    };
    if raised {
        Ok(())
    } else {
        Err(format!("{needed} open files are needed: raise the hard limit, ulimit -Hn").into())
    }
}
