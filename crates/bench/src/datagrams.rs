//! A client over UDP as one thread with several sockets, each with as many GETs on their way as the turn's depth: a GET a datagram,
//! as many datagrams a system call as there are. A turn's threads are its sockets. Between two processes of one machine nothing is
//! lost while less is on its way than the kernel's queues hold; if something is, the turn fails.

use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::AsRawFd;
use std::time::Instant;

use crate::Failure;
use crate::latencies::Latencies;
use crate::readiness::Readiness;
use crate::turn::Turn;
use crate::udp_client::{FRAME_BYTES, framed};
use crate::workload::{Operation, Operations, Population, Values, key};

/// Datagrams of one system call, and the most that one socket has on their way.
const BATCH: usize = 64;
/// More than a reply has that is one datagram.
const ROOM_BYTES: usize = 2048;
/// A server that is silent for so long has stopped, or lost the requests.
const SILENCE_MAX_MS: i32 = 5000;

/// Runs a turn over sockets of its own, on this thread.
pub fn run(address: SocketAddr, population: &Population, turn: &Turn) -> Result<Latencies, Failure> {
    if turn.rate.is_some() || turn.mix != "c" || turn.depth as usize > BATCH {
        return Err(format!("over UDP there are reads only, as fast as they are answered, up to {BATCH} deep").into());
    }
    let mut operations = Operations::new(population, turn.mix()?, turn.distribution()?, turn.seed);
    let mut draw = || match operations.draw() {
        Operation::Read(index) => index,
        other => unreachable!("{other:?} in a mix of reads"),
    };
    let mut readiness = Readiness::new()?;
    let mut lines = Vec::new();
    let begun = Instant::now();
    for number in 0..turn.threads as usize {
        let mut line = DatagramLine::open(address)?;
        readiness.watch(&line.socket, number)?;
        (0..turn.depth).for_each(|_| line.ask(draw()));
        line.send()?;
        lines.push(line);
    }
    let mut latencies = Latencies::default();
    let mut pending = turn.threads * turn.depth;
    while pending > 0 {
        let mut silent = true;
        for number in readiness.wait(SILENCE_MAX_MS)? {
            silent = false;
            let line = &mut lines[number];
            let answered = line.receive(population.values(), &mut latencies)?;
            if begun.elapsed() < turn.time_max() && latencies.operations() < turn.operations_max() {
                (0..answered).for_each(|_| line.ask(draw()));
                line.send()?;
            } else {
                pending -= answered as u64;
            }
        }
        if silent {
            return Err(format!("{pending} GETs over UDP were not answered within {SILENCE_MAX_MS} ms").into());
        }
    }
    Ok(latencies)
}

struct AskedDatagram {
    index: u64,
    since: Instant,
}

/// A socket and its requests. A request's id is its place in `asked`.
struct DatagramLine {
    socket: UdpSocket,
    asked: Vec<Option<AskedDatagram>>,
    requests: Vec<Vec<u8>>,
    rooms: Vec<[u8; ROOM_BYTES]>,
}

impl DatagramLine {
    fn open(address: SocketAddr) -> io::Result<DatagramLine> {
        let socket = UdpSocket::bind((address.ip(), 0))?;
        socket.connect(address)?;
        let asked = (0..BATCH).map(|_| None).collect();
        Ok(DatagramLine { socket, asked, requests: Vec::new(), rooms: vec![[0; ROOM_BYTES]; BATCH] })
    }

    /// Prepares a GET, which `send` sends.
    fn ask(&mut self, index: u64) {
        let id = self.asked.iter().position(Option::is_none).expect("no more are asked than there are places");
        self.asked[id] = Some(AskedDatagram { index, since: Instant::now() });
        self.requests.push(framed(id as u16, &[&b"get "[..], &key(index), b"\r\n"].concat()));
    }

    fn send(&mut self) -> Result<(), Failure> {
        let lengths: Vec<usize> = self.requests.iter().map(Vec::len).collect();
        let sent = many(&self.socket, self.requests.iter_mut().map(Vec::as_mut_slice), &lengths, Call::Send)?;
        if sent.len() < self.requests.len() {
            return Err("the system sent a part of a batch of datagrams".into());
        }
        self.requests.clear();
        Ok(())
    }

    /// Takes the answers that have come; how many those are.
    fn receive(&mut self, values: &Values, latencies: &mut Latencies) -> Result<usize, Failure> {
        let rooms = self.rooms.iter_mut().map(|room| &mut room[..]);
        let lengths = many(&self.socket, rooms, &[ROOM_BYTES; BATCH], Call::Receive)?;
        for (room, length) in self.rooms.iter().zip(&lengths) {
            let reply = &room[..*length];
            let &[0, id, 0, 0, 0, 1, 0, 0] = reply.get(..FRAME_BYTES).ok_or("a reply without a frame")? else {
                return Err("a reply of several datagrams, or to nothing that was asked".into());
            };
            let place = self.asked.get_mut(usize::from(id)).and_then(Option::take);
            let AskedDatagram { index, since } = place.ok_or("a reply to nothing that was asked")?;
            check(&reply[FRAME_BYTES..], index, values)?;
            latencies.read(since.elapsed());
        }
        Ok(lengths.len())
    }
}

/// An error if it is not `VALUE KEY FLAGS LENGTH`, the item's value and `END`, each with its line end.
fn check(reply: &[u8], index: u64, values: &Values) -> Result<(), Failure> {
    let wrong = || format!("a get over UDP was answered with {:?}", String::from_utf8_lossy(reply));
    let head_bytes = reply.iter().position(|&byte| byte == b'\n').ok_or_else(wrong)? + 1;
    let key = key(index);
    if !reply.starts_with(b"VALUE ") || reply.get(6..6 + key.len()) != Some(&key) || !reply.ends_with(b"\r\nEND\r\n") {
        return Err(wrong().into());
    }
    values.check(index, &reply[head_bytes..reply.len() - b"\r\nEND\r\n".len()])
}

#[derive(Clone, Copy)]
enum Call {
    Send,
    Receive,
}

/// Sends or receives a datagram each in `rooms`, which have these lengths, with one system call; the lengths of those that went or came.
fn many<'r>(
    socket: &UdpSocket,
    rooms: impl Iterator<Item = &'r mut [u8]>,
    lengths: &[usize],
    call: Call,
) -> io::Result<Vec<usize>> {
    let mut pieces: Vec<libc::iovec> = rooms
        .zip(lengths)
        .map(|(room, &length)| libc::iovec { iov_base: room[..length].as_mut_ptr().cast(), iov_len: length })
        .collect();
    // SAFETY: all-zero headers are valid: they name nothing.
    let mut headers: Vec<libc::mmsghdr> = pieces.iter().map(|_| unsafe { std::mem::zeroed() }).collect();
    for (header, piece) in headers.iter_mut().zip(&mut pieces) {
        header.msg_hdr.msg_iov = piece;
        header.msg_hdr.msg_iovlen = 1;
    }
    let (fd, count) = (socket.as_raw_fd(), headers.len() as libc::c_uint);
    // SAFETY: each header names a piece, which is a room of that length; all live through the call, and each room is borrowed
    // once and for writing.
    let moved = unsafe {
        match call {
            Call::Send => libc::sendmmsg(fd, headers.as_mut_ptr(), count, 0),
            Call::Receive => libc::recvmmsg(fd, headers.as_mut_ptr(), count, libc::MSG_DONTWAIT, std::ptr::null_mut()),
        }
    };
    let moved = usize::try_from(moved).map_err(|_| io::Error::last_os_error())?;
    Ok(headers[..moved].iter().map(|header| header.msg_len as usize).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_turn_asks_until_its_end_and_knows_a_wrong_answer() {
        let server = UdpSocket::bind("127.0.0.1:0").unwrap();
        let address = server.local_addr().unwrap();
        let length = crate::turn::Length::Operations;
        let turn = |operations| Turn::uniform("c", "udp", 3, 8, length(operations), 1);
        let population = Population::new(100, Values::new(100, 100));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let (mut buffer, mut random, mut value) = ([0; 100], crate::random::Random::new(1), Vec::new());
                for number in 0.. {
                    let (length, peer) = server.recv_from(&mut buffer).unwrap();
                    let asked = &buffer[FRAME_BYTES + 4..length - 2];
                    let index = (0..100).find(|index| key(*index) == asked).unwrap();
                    population.values().fill(index, &mut random, &mut value);
                    let wrong = number == 2000;
                    let item = if wrong { index ^ 1 } else { index };
                    value[..8].copy_from_slice(&item.to_le_bytes());
                    let head = [b"VALUE ", asked, b" 0 100\r\n"].concat();
                    server.send_to(&[&buffer[..8], &head, &value, b"\r\nEND\r\n"].concat(), peer).unwrap();
                    if wrong {
                        break;
                    }
                }
            });
            let done = run(address, &population, &turn(500)).unwrap().operations();
            assert!((500..524).contains(&done), "{done}");
            assert!(run(address, &population, &turn(100_000)).is_err());
        });
    }
}
