//! A client of a block device for tests: the handshake, and requests of which many may be on their way. Blocking, one thread.
//!
//! Replies are taken as they come; [`NbdClient::call`] waits for one.

use std::collections::HashMap;
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

pub const READ: u16 = 0;
pub const WRITE: u16 = 1;
pub const DISCONNECT: u16 = 2;
pub const FLUSH: u16 = 3;
pub const TRIM: u16 = 4;
pub const WRITE_ZEROES: u16 = 6;
pub const BLOCK_STATUS: u16 = 7;

pub const FUA: u16 = 1;
pub const NO_HOLE: u16 = 2;
pub const WHOLE: u16 = 4;

/// How long an answer is waited for: long, as machines are busy.
const PATIENCE: Duration = Duration::from_secs(120);

/// The outcome of a request: its error, 0 if none; the bytes read; the extents told, each with its status.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NbdReply {
    pub error: u32,
    pub bytes: Vec<u8>,
    pub extents: Vec<(u32, u32)>,
}

pub struct NbdClient {
    stream: TcpStream,
    pub size_bytes: u64,
    pub flags: u16,
    /// It may ask for block statuses.
    pub structured: bool,
    cookie_next: u64,
    /// Requests on their way: where a read began, and the bytes received so far.
    pending: HashMap<u64, (u64, NbdReply)>,
}

fn refused(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what.to_owned())
}

/// An option as a client writes it.
pub fn option(code: u32, data: &[u8]) -> Vec<u8> {
    [&b"IHAVEOPT"[..], &code.to_be_bytes(), &(data.len() as u32).to_be_bytes(), data].concat()
}

/// A request as a client writes it, without the data of a write.
pub fn request((command, flags): (u16, u16), cookie: u64, offset: u64, length: u32) -> Vec<u8> {
    let magic = 0x2560_9513_u32.to_be_bytes();
    let what = [flags.to_be_bytes(), command.to_be_bytes()];
    let place = [cookie.to_be_bytes(), offset.to_be_bytes()];
    [&magic[..], what.as_flattened(), place.as_flattened(), &length.to_be_bytes()].concat()
}

/// The data of `GO` and `INFO`.
pub fn about(name: &str) -> Vec<u8> {
    [&(name.len() as u32).to_be_bytes()[..], name.as_bytes(), &[0, 1, 0, 3]].concat()
}

/// Reads the answer to an option: its kind, and its data.
pub fn read_option_reply(stream: &mut impl Read) -> io::Result<(u32, Vec<u8>)> {
    let mut head = [0; 20];
    stream.read_exact(&mut head)?;
    let word = |at: usize| u32::from_be_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
    if head[..8] != 0x0003_e889_0455_65a9_u64.to_be_bytes() || word(16) > 1 << 20 {
        return Err(refused("no answer to an option"));
    }
    let mut data = vec![0; word(16) as usize];
    stream.read_exact(&mut data)?;
    Ok((word(12), data))
}

/// A connection that has seen the greeting and answered it.
pub fn greet(address: &str) -> io::Result<TcpStream> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let mut greeting = [0; 18];
    stream.read_exact(&mut greeting)?;
    if &greeting != b"NBDMAGICIHAVEOPT\0\x03" {
        return Err(refused("no greeting of fixed newstyle"));
    }
    stream.write_all(&[0, 0, 0, 3])?;
    Ok(stream)
}

impl NbdClient {
    /// Connects to an export; `structured`: with structured replies and block statuses.
    pub fn open(address: &str, name: &str, structured: bool) -> io::Result<NbdClient> {
        let mut stream = greet(address)?;
        if structured {
            let contexts = [
                &(name.len() as u32).to_be_bytes()[..],
                name.as_bytes(),
                &[0, 0, 0, 1, 0, 0, 0, 15],
                b"base:allocation",
            ]
            .concat();
            stream.write_all(&[option(8, b""), option(10, &contexts)].concat())?;
            let kinds = [(); 3].map(|()| read_option_reply(&mut stream).map(|(kind, _)| kind).unwrap_or(0));
            if kinds != [1, 4, 1] {
                return Err(refused(&format!("structured replies were answered with {kinds:?}")));
            }
        }
        stream.write_all(&option(7, &about(name)))?;
        let (mut size_bytes, mut flags) = (0, 0);
        loop {
            match read_option_reply(&mut stream)? {
                (3, data) if data.len() == 12 && data[..2] == [0, 0] => {
                    size_bytes = data[2..10].iter().fold(0, |sum, byte| sum << 8 | u64::from(*byte));
                    flags = u16::from_be_bytes([data[10], data[11]]);
                }
                (3, _) => {}
                (1, _) => break,
                (kind, _) => return Err(refused(&format!("the export was refused: {kind:#x}"))),
            }
        }
        Ok(NbdClient { stream, size_bytes, flags, structured, cookie_next: 1, pending: HashMap::new() })
    }

    /// Sends a request; its cookie. Nothing is read meanwhile, so there must not be too much on its way.
    pub fn send(&mut self, command: u16, flags: u16, offset: u64, length: u32, data: &[u8]) -> io::Result<u64> {
        let cookie = self.cookie_next;
        self.cookie_next += 1;
        let mut request = request((command, flags), cookie, offset, length);
        request.extend_from_slice(data);
        let bytes = if command == READ { vec![0xee; length as usize] } else { Vec::new() };
        self.pending.insert(cookie, (offset, NbdReply { bytes, ..NbdReply::default() }));
        self.stream.write_all(&request)?;
        Ok(cookie)
    }

    pub fn write(&mut self, flags: u16, offset: u64, data: &[u8]) -> io::Result<u64> {
        self.send(WRITE, flags, offset, data.len() as u32, data)
    }

    /// Sends a request and waits for its reply, when nothing else is on its way.
    pub fn call(&mut self, command: u16, flags: u16, offset: u64, length: u32, data: &[u8]) -> io::Result<NbdReply> {
        let sent = self.send(command, flags, offset, length, data)?;
        loop {
            let (cookie, reply) = self.receive()?;
            if cookie == sent {
                return Ok(reply);
            }
        }
    }

    pub fn in_flight(&self) -> usize {
        self.pending.len()
    }

    pub fn stream(&mut self) -> &mut TcpStream {
        &mut self.stream
    }

    fn u32(&mut self) -> io::Result<u32> {
        let mut bytes = [0; 4];
        self.stream.read_exact(&mut bytes)?;
        Ok(u32::from_be_bytes(bytes))
    }

    fn u64(&mut self) -> io::Result<u64> {
        Ok(u64::from(self.u32()?) << 32 | u64::from(self.u32()?))
    }

    /// The next complete reply: the request's cookie, and its outcome.
    pub fn receive(&mut self) -> io::Result<(u64, NbdReply)> {
        loop {
            let (cookie, is_last) = match self.u32()? {
                0x6744_6698 => (self.simple()?, true),
                0x668e_33ef => self.chunk()?,
                other => return Err(refused(&format!("no reply: {other:#x}"))),
            };
            if is_last {
                let (_, reply) = self.pending.remove(&cookie).ok_or_else(|| refused("a reply to nothing"))?;
                return Ok((cookie, reply));
            }
        }
    }

    fn simple(&mut self) -> io::Result<u64> {
        let (error, cookie) = (self.u32()?, self.u64()?);
        let (_, reply) = self.pending.get_mut(&cookie).ok_or_else(|| refused("a reply to nothing"))?;
        reply.error = error;
        match error {
            0 => self.stream.read_exact(&mut reply.bytes)?,
            _ => reply.bytes.clear(),
        }
        Ok(cookie)
    }

    fn chunk(&mut self) -> io::Result<(u64, bool)> {
        let (head, cookie, length) = (self.u32()?, self.u64()?, self.u32()? as usize);
        let (is_last, kind) = (head >> 16 & 1 == 1, head as u16);
        if length > 64 << 20 {
            return Err(refused("a chunk that is too long"));
        }
        let mut data = vec![0; length];
        self.stream.read_exact(&mut data)?;
        let (begin, reply) = self.pending.get_mut(&cookie).ok_or_else(|| refused("a chunk of nothing"))?;
        let word = |at: usize| data[at..at + 4].iter().fold(0u32, |sum, byte| sum << 8 | u32::from(*byte));
        let place = |at: u64| (at - *begin) as usize;
        match kind {
            0 => {}
            1 => {
                let at = place(u64::from(word(0)) << 32 | u64::from(word(4)));
                reply.bytes[at..at + length - 8].copy_from_slice(&data[8..]);
            }
            2 => {
                let at = place(u64::from(word(0)) << 32 | u64::from(word(4)));
                reply.bytes[at..at + word(8) as usize].fill(0);
            }
            5 => reply.extents = (4..length).step_by(8).map(|at| (word(at), word(at + 4))).collect(),
            _ if kind & 1 << 15 != 0 => {
                reply.error = word(0);
                reply.bytes.clear();
            }
            other => return Err(refused(&format!("a chunk of kind {other}"))),
        }
        Ok((cookie, is_last))
    }
}
