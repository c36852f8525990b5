//! A memcached client over the text protocol, made for pipelining: requests gather in one buffer, `flush` sends them,
//! replies are read in order. One thread owns a connection.
//!
//! ```text
//!   socket --receive--> received --take--> line, value
//! ```
//! Taking never waits; `read_…` receives until there is something to take.
//!
//! A caller sends a bounded batch and then reads all its replies. It must not queue large values and large answers in
//! one batch: with both socket buffers full, client and server would wait for each other.

use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsRawFd, RawFd};
use std::time::Duration;

/// A line longer than any reply means that the stream is out of step.
const LINE_BYTES_MAX: usize = 8192;
/// Room for received bytes at first. Larger values make it grow.
const RECEIVE_BYTES: usize = 128 << 10;

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Line {
    Stored,
    NotStored,
    Exists,
    Deleted,
    NotFound,
    Ok,
    Number(u64),
    /// ERROR, CLIENT_ERROR, SERVER_ERROR, or a line that no server should send: the whole line.
    Other(String),
}

pub struct Value<'a> {
    pub key: &'a [u8],
    pub flags: u32,
    pub bytes: &'a [u8],
}

pub struct Connection {
    stream: TcpStream,
    requests: Vec<u8>,
    received: Received,
}

/// Received bytes. Those between `taken` and `filled` are still to be taken.
struct Received {
    buffer: Vec<u8>,
    taken: usize,
    filled: usize,
}

impl Connection {
    pub fn open(address: SocketAddr) -> io::Result<Connection> {
        let stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        // A server that never answers fails the run instead of hanging it.
        stream.set_read_timeout(Some(Duration::from_secs(60)))?;
        stream.set_write_timeout(Some(Duration::from_secs(60)))?;
        let received = Received { buffer: vec![0; RECEIVE_BYTES], taken: 0, filled: 0 };
        Ok(Connection { stream, requests: Vec::new(), received })
    }

    pub fn queue_set(&mut self, key: &[u8], flags: u32, value: &[u8]) {
        self.requests.extend_from_slice(b"set ");
        self.requests.extend_from_slice(key);
        self.requests.extend_from_slice(format!(" {flags} 0 {}\r\n", value.len()).as_bytes());
        self.requests.extend_from_slice(value);
        self.requests.extend_from_slice(b"\r\n");
    }

    pub fn queue_delete(&mut self, key: &[u8]) {
        self.requests.extend_from_slice(b"delete ");
        self.requests.extend_from_slice(key);
        self.requests.extend_from_slice(b"\r\n");
    }

    pub fn queue_increment(&mut self, key: &[u8], delta: u64) {
        self.requests.extend_from_slice(b"incr ");
        self.requests.extend_from_slice(key);
        self.requests.extend_from_slice(format!(" {delta}\r\n").as_bytes());
    }

    pub fn queue_get<'k>(&mut self, keys: impl IntoIterator<Item = &'k [u8]>) {
        self.requests.extend_from_slice(b"get");
        for key in keys {
            self.requests.push(b' ');
            self.requests.extend_from_slice(key);
        }
        self.requests.extend_from_slice(b"\r\n");
    }

    pub fn flush(&mut self) -> io::Result<()> {
        self.stream.write_all(&self.requests)?;
        self.requests.clear();
        Ok(())
    }

    /// Waits until something comes, and takes in what is there.
    pub fn receive(&mut self) -> io::Result<()> {
        loop {
            match self.stream.read(self.received.room()) {
                Ok(0) => return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the server closed the connection")),
                Ok(bytes) => {
                    self.received.filled += bytes;
                    return Ok(());
                }
                // A process that is stopped and goes on: a read with a time limit ends, though nobody handles a signal.
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }

    pub fn take_line(&mut self) -> io::Result<Option<Line>> {
        let Some(line) = self.received.line()? else { return Ok(None) };
        let reply = match line {
            b"STORED" => Line::Stored,
            b"NOT_STORED" => Line::NotStored,
            b"EXISTS" => Line::Exists,
            b"DELETED" => Line::Deleted,
            b"NOT_FOUND" => Line::NotFound,
            b"OK" => Line::Ok,
            other => {
                let text = String::from_utf8_lossy(other);
                match text.parse() {
                    Ok(number) => Line::Number(number),
                    Err(_) => Line::Other(text.into_owned()),
                }
            }
        };
        let line_bytes = line.len();
        self.received.take(line_bytes + 2);
        Ok(Some(reply))
    }

    pub fn read_line(&mut self) -> io::Result<Line> {
        loop {
            match self.take_line()? {
                Some(line) => return Ok(line),
                None => self.receive()?,
            }
        }
    }

    /// Takes what is there of the answer to one get: each value found. Whether it came to END.
    pub fn take_values(&mut self, mut found: impl FnMut(Value<'_>)) -> io::Result<bool> {
        while let Some(line) = self.received.line()? {
            let line_bytes = line.len() + 2;
            if line == b"END" {
                self.received.take(line_bytes);
                return Ok(true);
            }
            let (key_end, flags, length) = parse_value_line(line).ok_or_else(|| unexpected(line))?;
            let Some(whole) = self.received.bytes().get(..line_bytes + length + 2) else { break };
            if !whole.ends_with(b"\r\n") {
                return Err(invalid(format!("a value of {length} bytes does not end where it should")));
            }
            found(Value { key: &whole["VALUE ".len()..key_end], flags, bytes: &whole[line_bytes..][..length] });
            self.received.take(line_bytes + length + 2);
        }
        Ok(false)
    }

    /// Reads the answer to one get: each value found, up to END.
    pub fn read_values(&mut self, mut found: impl FnMut(Value<'_>)) -> io::Result<()> {
        while !self.take_values(&mut found)? {
            self.receive()?;
        }
        Ok(())
    }

    /// `stats`, or `stats KIND`.
    pub fn stats(&mut self, kind: &str) -> io::Result<BTreeMap<String, String>> {
        assert!(self.requests.is_empty());
        let request = if kind.is_empty() { "stats\r\n".to_owned() } else { format!("stats {kind}\r\n") };
        self.stream.write_all(request.as_bytes())?;
        let mut stats = BTreeMap::new();
        loop {
            let Some(line) = self.received.line()? else {
                self.receive()?;
                continue;
            };
            let text = String::from_utf8_lossy(line).into_owned();
            let line_bytes = line.len() + 2;
            self.received.take(line_bytes);
            if text == "END" {
                return Ok(stats);
            }
            let pair = text.strip_prefix("STAT ").and_then(|rest| rest.split_once(' '));
            let (name, value) = pair.ok_or_else(|| unexpected(text.as_bytes()))?;
            stats.insert(name.to_owned(), value.to_owned());
        }
    }
}

impl AsRawFd for Connection {
    fn as_raw_fd(&self) -> RawFd {
        self.stream.as_raw_fd()
    }
}

impl Received {
    fn bytes(&self) -> &[u8] {
        &self.buffer[self.taken..self.filled]
    }

    fn take(&mut self, bytes: usize) {
        self.taken += bytes;
        assert!(self.taken <= self.filled, "what is taken has come");
    }

    /// The first line without its end, if it is there as a whole.
    fn line(&self) -> io::Result<Option<&[u8]>> {
        let bytes = self.bytes();
        let start = &bytes[..bytes.len().min(LINE_BYTES_MAX)];
        match start.iter().position(|&byte| byte == b'\n') {
            Some(end) => match start[..end].strip_suffix(b"\r") {
                Some(line) => Ok(Some(line)),
                None => Err(unexpected(&start[..end])),
            },
            None if start.len() == LINE_BYTES_MAX => Err(unexpected(start)),
            None => Ok(None),
        }
    }

    /// Room for more behind what is there.
    fn room(&mut self) -> &mut [u8] {
        if self.filled == self.buffer.len() || self.taken == self.filled {
            self.buffer.copy_within(self.taken..self.filled, 0);
            (self.taken, self.filled) = (0, self.filled - self.taken);
        }
        if self.filled == self.buffer.len() {
            self.buffer.resize(2 * self.filled, 0);
        }
        &mut self.buffer[self.filled..]
    }
}

fn unexpected(line: &[u8]) -> io::Error {
    invalid(format!("unexpected reply: {}", String::from_utf8_lossy(line)))
}

fn invalid(message: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, message)
}

/// `VALUE key flags bytes`: where the key ends in the line, the flags, the bytes.
fn parse_value_line(line: &[u8]) -> Option<(usize, u32, usize)> {
    let text = std::str::from_utf8(line).ok()?;
    let mut words = text.strip_prefix("VALUE ")?.split(' ');
    let key = words.next()?;
    let flags = words.next()?.parse().ok()?;
    let length: usize = words.next()?.parse().ok()?;
    (words.next().is_none() && length <= 64 << 20).then_some(("VALUE ".len() + key.len(), flags, length))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    #[test]
    fn value_lines_are_taken_apart_or_refused() {
        assert_eq!(parse_value_line(b"VALUE abc 7 10"), Some((9, 7, 10)));
        assert_eq!(parse_value_line(b"VALUE abc 7"), None);
        assert_eq!(parse_value_line(b"VALUE abc 7 10 1 2"), None);
        assert_eq!(parse_value_line(b"VALUE abc 7 99999999999"), None);
        assert_eq!(parse_value_line(b"SERVER_ERROR out of memory"), None);
    }

    /// A peer that says `reply` whatever it is asked, then closes.
    fn peer(reply: &'static [u8]) -> Connection {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        std::thread::spawn(move || listener.accept().unwrap().0.write_all(reply).unwrap());
        Connection::open(address).unwrap()
    }

    fn pair() -> (Connection, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let connection = Connection::open(listener.local_addr().unwrap()).unwrap();
        (connection, listener.accept().unwrap().0)
    }

    #[test]
    fn replies_are_read_in_order() {
        let mut connection = peer(b"STORED\r\nVALUE k 3 4\r\n\r\n\r\n\r\nEND\r\n18\r\nSERVER_ERROR full\r\nNOT_");
        assert_eq!(connection.read_line().unwrap(), Line::Stored);
        let mut seen = Vec::new();
        connection.read_values(|value| seen.push((value.key.to_vec(), value.flags, value.bytes.to_vec()))).unwrap();
        assert_eq!(seen, [(b"k".to_vec(), 3, b"\r\n\r\n".to_vec())]);
        assert_eq!(connection.read_line().unwrap(), Line::Number(18));
        assert_eq!(connection.read_line().unwrap(), Line::Other("SERVER_ERROR full".to_owned()));
        assert!(connection.read_line().is_err(), "half a line is no reply");
    }

    #[test]
    fn an_answer_is_taken_value_by_value_as_it_comes() {
        let (ours, mut theirs) = pair();
        let mut connection = ours;
        let mut seen = Vec::new();
        let mut take = |connection: &mut Connection| {
            connection.receive().unwrap();
            let ended = connection.take_values(|value| seen.push(value.bytes.len())).unwrap();
            (ended, seen.len())
        };
        theirs.write_all(b"VALUE a 0 1\r\nx\r\nVALUE b 0 4\r\nxy").unwrap();
        assert_eq!(take(&mut connection), (false, 1));
        theirs.write_all(b"zw\r").unwrap();
        assert_eq!(take(&mut connection), (false, 1));
        theirs.write_all(b"\nEND\r\nSTORED\r\n").unwrap();
        assert_eq!(take(&mut connection), (true, 2));
        assert_eq!(connection.take_line().unwrap(), Some(Line::Stored));
        assert_eq!(connection.take_line().unwrap(), None);
    }

    #[test]
    fn values_larger_than_the_room_for_them_are_read() {
        let (mut connection, mut theirs) = pair();
        let value = vec![7; 3 * RECEIVE_BYTES];
        let writer = std::thread::spawn({
            let value = value.clone();
            move || {
                for _ in 0..2 {
                    theirs.write_all(format!("VALUE k 0 {}\r\n", value.len()).as_bytes()).unwrap();
                    theirs.write_all(&value).unwrap();
                    theirs.write_all(b"\r\nEND\r\n").unwrap();
                }
            }
        });
        for _ in 0..2 {
            let mut found = 0;
            connection.read_values(|read| found += usize::from(read.bytes == value)).unwrap();
            assert_eq!(found, 1);
        }
        writer.join().unwrap();
    }

    #[test]
    fn a_value_that_lies_about_its_length_is_an_error() {
        assert!(peer(b"VALUE k 0 2\r\nabc\r\nEND\r\n").read_values(|_| ()).is_err());
    }
}
