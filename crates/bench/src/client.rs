//! A memcached client over the text protocol, made for pipelining: requests gather in one buffer, `flush` sends them,
//! replies are read in order. One thread owns a connection.
//!
//! A caller sends a bounded batch and then reads all its replies. It must not queue large values and large answers in
//! one batch: with both socket buffers full, client and server would wait for each other.

use std::collections::BTreeMap;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// A reply of one line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Line {
    Stored,
    NotStored,
    Exists,
    Deleted,
    NotFound,
    Ok,
    Number(u64),
    /// ERROR, CLIENT_ERROR, SERVER_ERROR, or what no server should say: the whole line.
    Other(String),
}

pub struct Value<'a> {
    pub key: &'a [u8],
    pub flags: u32,
    pub bytes: &'a [u8],
}

pub struct Connection {
    stream: TcpStream,
    reader: BufReader<TcpStream>,
    requests: Vec<u8>,
    line: Vec<u8>,
    value: Vec<u8>,
}

impl Connection {
    pub fn open(address: SocketAddr) -> io::Result<Connection> {
        let stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        // A server that never answers fails the run instead of hanging it.
        stream.set_read_timeout(Some(Duration::from_secs(60)))?;
        stream.set_write_timeout(Some(Duration::from_secs(60)))?;
        let reader = BufReader::with_capacity(1 << 18, stream.try_clone()?);
        Ok(Connection { stream, reader, requests: Vec::new(), line: Vec::new(), value: Vec::new() })
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

    pub fn read_line(&mut self) -> io::Result<Line> {
        self.fill_line()?;
        Ok(match self.line.as_slice() {
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
        })
    }

    /// Reads the answer to one get: each value found, up to END.
    pub fn read_values(&mut self, mut found: impl FnMut(Value<'_>)) -> io::Result<()> {
        loop {
            self.fill_line()?;
            if self.line == b"END" {
                return Ok(());
            }
            let (key_end, flags, length) = parse_value_line(&self.line).ok_or_else(|| self.unexpected())?;
            self.value.resize(length + 2, 0);
            self.reader.read_exact(&mut self.value)?;
            if !self.value.ends_with(b"\r\n") {
                return Err(invalid(format!("a value of {length} bytes does not end where it should")));
            }
            found(Value { key: &self.line["VALUE ".len()..key_end], flags, bytes: &self.value[..length] });
        }
    }

    /// `stats`, or `stats KIND`.
    pub fn stats(&mut self, kind: &str) -> io::Result<BTreeMap<String, String>> {
        assert!(self.requests.is_empty());
        let request = if kind.is_empty() { "stats\r\n".to_owned() } else { format!("stats {kind}\r\n") };
        self.stream.write_all(request.as_bytes())?;
        let mut stats = BTreeMap::new();
        loop {
            self.fill_line()?;
            if self.line == b"END" {
                return Ok(stats);
            }
            let text = String::from_utf8_lossy(&self.line).into_owned();
            let (name, value) =
                text.strip_prefix("STAT ").and_then(|rest| rest.split_once(' ')).ok_or_else(|| self.unexpected())?;
            stats.insert(name.to_owned(), value.to_owned());
        }
    }

    fn fill_line(&mut self) -> io::Result<()> {
        self.line.clear();
        // A line longer than any reply means that the stream is out of step.
        let read = (&mut self.reader).take(8192).read_until(b'\n', &mut self.line)?;
        if read == 0 {
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the server closed the connection"));
        }
        if !self.line.ends_with(b"\r\n") {
            return Err(invalid(format!("a reply line broke off: {}", String::from_utf8_lossy(&self.line))));
        }
        self.line.truncate(self.line.len() - 2);
        Ok(())
    }

    fn unexpected(&self) -> io::Error {
        invalid(format!("unexpected reply: {}", String::from_utf8_lossy(&self.line)))
    }
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
    fn a_value_that_lies_about_its_length_is_an_error() {
        assert!(peer(b"VALUE k 0 2\r\nabc\r\nEND\r\n").read_values(|_| ()).is_err());
    }
}
