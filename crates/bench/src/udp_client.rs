//! A client over UDP for tests: memcached's frame, packets of the binary protocol, and replies of several datagrams. Blocking, one thread.

use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::time::Duration;

/// The frame of a datagram: request id, number of the datagram, datagrams of the message, reserved; each two bytes.
pub const FRAME_BYTES: usize = 8;

/// How long a reply is waited for: long, as machines are busy.
const PATIENCE: Duration = Duration::from_secs(60);

pub fn frame(id: u16, number: u16, count: u16) -> [u8; FRAME_BYTES] {
    let ([a, b], [c, d], [e, f]) = (id.to_be_bytes(), number.to_be_bytes(), count.to_be_bytes());
    [a, b, c, d, e, f, 0, 0]
}

/// A request that is one datagram.
pub fn framed(id: u16, payload: &[u8]) -> Vec<u8> {
    [&frame(id, 0, 1)[..], payload].concat()
}

/// A request of the binary protocol. Its opaque bytes are 7.
pub fn packet(opcode: u8, extras: &[u8], key: &[u8], value: &[u8]) -> Vec<u8> {
    let mut packet = vec![0x80, opcode];
    packet.extend((key.len() as u16).to_be_bytes());
    packet.extend([extras.len() as u8, 0, 0, 0]);
    packet.extend(((extras.len() + key.len() + value.len()) as u32).to_be_bytes());
    packet.extend([0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0, 0]);
    [&packet[..], extras, key, value].concat()
}

/// One datagram of a reply.
#[derive(Debug, PartialEq, Eq)]
pub struct ReplyDatagram {
    pub id: u16,
    pub number: u16,
    pub count: u16,
    pub payload: Vec<u8>,
}

pub struct UdpClient {
    pub socket: UdpSocket,
    id: u16,
}

impl UdpClient {
    pub fn open(address: SocketAddr) -> io::Result<UdpClient> {
        let socket = UdpSocket::bind((address.ip(), 0))?;
        socket.connect(address)?;
        socket.set_read_timeout(Some(PATIENCE))?;
        Ok(UdpClient { socket, id: 0x1000 })
    }

    /// Sends a request; its id.
    pub fn send(&mut self, payload: &[u8]) -> io::Result<u16> {
        self.id += 1;
        self.socket.send(&framed(self.id, payload))?;
        Ok(self.id)
    }

    pub fn receive(&self) -> io::Result<ReplyDatagram> {
        let mut buffer = vec![0; 65536];
        let length = self.socket.recv(&mut buffer)?;
        let refused = || io::Error::new(io::ErrorKind::InvalidData, "a datagram without a frame");
        let (frame, payload) = buffer[..length].split_first_chunk::<FRAME_BYTES>().ok_or_else(refused)?;
        let field = |at: usize| u16::from_be_bytes([frame[at], frame[at + 1]]);
        Ok(ReplyDatagram { id: field(0), number: field(2), count: field(4), payload: payload.to_vec() })
    }

    /// Sends a request; its whole reply.
    pub fn ask(&mut self, payload: &[u8]) -> io::Result<Vec<u8>> {
        let asked = self.send(payload)?;
        self.reply_to(asked)
    }

    /// The whole reply to the request `asked`. Datagrams between two sockets of one machine keep their order.
    pub fn reply_to(&self, asked: u16) -> io::Result<Vec<u8>> {
        let (mut reply, mut expected) = (Vec::new(), 0);
        loop {
            let ReplyDatagram { id, number, count, payload } = self.receive()?;
            if (id, number) != (asked, expected) {
                let told = format!("datagram {number} of the reply to {id}, not {expected} of that to {asked}");
                return Err(io::Error::new(io::ErrorKind::InvalidData, told));
            }
            reply.extend(payload);
            expected += 1;
            if expected == count {
                return Ok(reply);
            }
        }
    }
}
