//! Thousands of clients, one after the other: most connect, read and leave; some break off, or speak something else. None may affect the
//! next one, and the server must hold no more memory at the end than at the beginning. Then a client asks for gigabytes at once.

use std::io::Write;
use std::net::TcpStream;
use std::time::{Duration, Instant};

use super::{DISK, Disk};
use crate::Failure;
use tapetum_bench::nbd_client::{BLOCK_STATUS, DISCONNECT, NbdClient, READ, WRITE, greet, request};
use tapetum_bench::process;

/// The most that the server's memory may grow: its pools allocate at first use.
const GROWTH_BYTES_MAX: u64 = 16 << 20;
/// Clients before the memory is first measured.
const FIRST: u64 = 50;
const BLOCK_BYTES: u32 = 4096;
/// Requests of a client that reads no answers, the length of each, and the most that the server may hold for it: its budget and one
/// request.
const HOARD_REQUESTS: u32 = 60;
const HOARD_BYTES: u32 = 32 << 20;
const HELD_BYTES_MAX: u64 = 160 << 20;
const HOARD_TIME: Duration = Duration::from_secs(3);

/// Runs so many clients, with a pause between two.
pub fn run(disk: &Disk, count: u64, pause: Duration) -> Result<(), Failure> {
    let server = disk.start()?;
    let mut before_bytes = 0;
    for number in 0..count.max(FIRST) {
        if number == FIRST {
            before_bytes = process::read(server.process())?.resident_bytes;
        }
        visit(disk, number).map_err(|error| format!("client {number} was let down: {error}"))?;
        std::thread::sleep(pause);
    }
    let grown_bytes = process::read(server.process())?.resident_bytes.saturating_sub(before_bytes);
    if count > FIRST && grown_bytes > GROWTH_BYTES_MAX {
        return Err(
            format!("after {count} clients the server holds {grown_bytes} bytes more than after {FIRST}").into()
        );
    }
    server.terminate()?;
    println!("test-nbd: {count} clients, one after the other");
    Ok(())
}

/// A client asks for gigabytes and reads none, while the server serves others: it may hold what its budget allows, and serves the next
/// client.
pub fn hoard(disk: &Disk) -> Result<(), Failure> {
    let server = disk.start()?;
    let address = disk.address.to_string();
    let connect = || NbdClient::open(&address, DISK, true);
    let mut writer = connect()?;
    for number in 0..u64::from(HOARD_BYTES >> 20) {
        writer.call(WRITE, 0, number << 20, 1 << 20, &vec![number as u8 + 1; 1 << 20])?;
    }
    let mut busy = [connect()?, connect()?];
    let mut others: Vec<_> = (0..10).map(|_| connect()).collect::<Result<_, _>>()?;
    let mut hoarder = connect()?;
    let before_bytes = process::read(server.process())?.resident_bytes;
    for client in &mut busy {
        (0..HOARD_REQUESTS).try_for_each(|_| client.send(BLOCK_STATUS, 0, 0, HOARD_BYTES, b"").map(drop))?;
    }
    others.iter_mut().try_for_each(|client| client.send(READ, 0, 0, 640 << 10, b"").map(drop))?;
    let read = request((READ, 0), 0, 0, HOARD_BYTES);
    hoarder.stream().write_all(&read.repeat(HOARD_REQUESTS as usize))?;
    let (begun, mut held_bytes) = (Instant::now(), 0);
    while begun.elapsed() < HOARD_TIME {
        held_bytes = held_bytes.max(process::read(server.process())?.resident_bytes.saturating_sub(before_bytes));
        std::thread::sleep(Duration::from_millis(20));
    }
    if held_bytes > HELD_BYTES_MAX {
        return Err(format!("a client that reads nothing had the server hold {held_bytes} bytes").into());
    }
    connect()?.call(READ, 0, 0, BLOCK_BYTES, b"")?;
    server.terminate()?;
    println!("test-nbd: {} MiB were held for a client that reads nothing", held_bytes >> 20);
    Ok(())
}

fn visit(disk: &Disk, number: u64) -> std::io::Result<()> {
    let address = disk.address.to_string();
    match number % 10 {
        // Breaks off in the middle of a word.
        3 => greet(&address)?.write_all(b"IHAVEO"),
        // Speaks another protocol.
        6 => TcpStream::connect(&address)?.write_all(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"),
        // Leaves with an answer in flight.
        8 => NbdClient::open(&address, DISK, false)?.send(READ, 0, 0, 1 << 20, b"").map(drop),
        _ => {
            let mut client = NbdClient::open(&address, DISK, true)?;
            client.call(READ, 0, 0, BLOCK_BYTES, b"")?;
            client.send(DISCONNECT, 0, 0, 0, b"").map(drop)
        }
    }
}
