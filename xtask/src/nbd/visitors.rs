//! Clients by the thousand, one after the other: most come, read and leave; some break off, or speak something else. None costs the next one
//! anything, and the server holds no more at the end than at the beginning.

use std::io::Write;
use std::net::TcpStream;
use std::time::Duration;

use super::{DISK, Disk};
use crate::Failure;
use tapetum_bench::nbd_client::{DISCONNECT, NbdClient, READ, greet};
use tapetum_bench::process;

/// The most that the server may have grown by: its pools take memory at first use.
const GROWTH_BYTES_MAX: u64 = 16 << 20;
/// Before its memory is looked at for the first time.
const FIRST: u64 = 50;
const BLOCK_BYTES: u32 = 4096;

/// So many, with a pause between two.
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

fn visit(disk: &Disk, number: u64) -> std::io::Result<()> {
    let address = disk.address.to_string();
    match number % 10 {
        // Breaks off in the middle of a word.
        3 => greet(&address)?.write_all(b"IHAVEO"),
        // Speaks another language.
        6 => TcpStream::connect(&address)?.write_all(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"),
        // Leaves with an answer on its way.
        8 => NbdClient::open(&address, DISK, false)?.send((READ, 0), 0, 1 << 20, b"").map(drop),
        _ => {
            let mut client = NbdClient::open(&address, DISK, true)?;
            client.call((READ, 0), 0, BLOCK_BYTES, b"")?;
            client.send((DISCONNECT, 0), 0, 0, b"").map(drop)
        }
    }
}
