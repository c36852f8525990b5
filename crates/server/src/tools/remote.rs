//! A running server that the command line names: its figures, commands to it, and figures as JSON. It speaks the protocol like any client.
//! Errors name the option that named the server. No state.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use crate::net::listen::Address;
use crate::tools::load::{Existing, WireSink};
use tapetum_service::escapes;

const TIMEOUT: Duration = Duration::from_secs(30);
/// The longest time for a slow command, such as a resize.
const PATIENCE: Duration = Duration::from_secs(3600);

/// A connection of either kind.
pub trait RemoteStream: Read + Write {}

/// A connection whose reads and writes time out with an error in words.
struct PatientStream<S> {
    stream: S,
    patience: Duration,
}

impl<S> PatientStream<S> {
    /// The error, in words if the system says "try again".
    fn told(&self, error: io::Error) -> io::Error {
        match error.kind() {
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
                let seconds = self.patience.as_secs();
                io::Error::new(io::ErrorKind::TimedOut, format!("it did not answer within {seconds} s"))
            }
            _ => error,
        }
    }
}

impl<S: Read> Read for PatientStream<S> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.stream.read(buffer).map_err(|error| self.told(error))
    }
}

impl<S: Write> Write for PatientStream<S> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.stream.write(bytes).map_err(|error| self.told(error))
    }

    fn flush(&mut self) -> io::Result<()> {
        self.stream.flush().map_err(|error| self.told(error))
    }
}

impl<S: Read + Write> RemoteStream for PatientStream<S> {}
/// Tests use this as a connection.
#[cfg(test)]
impl RemoteStream for UnixStream {}

/// A server, and the option that named it.
#[derive(Clone, Copy, Debug)]
pub struct Remote<'a> {
    address: &'a Address,
    option: &'static str,
}

/// Why a server gave no usable answer.
enum NoAnswer {
    Lost(io::Error),
    /// It refused, in its own words.
    Refused(String),
    /// It does not speak memcached's protocol.
    Strange,
}

impl From<io::Error> for NoAnswer {
    fn from(error: io::Error) -> NoAnswer {
        NoAnswer::Lost(error)
    }
}

impl<'a> Remote<'a> {
    /// Named by `--memcached`.
    pub fn memcached(address: &'a Address) -> Remote<'a> {
        Remote { address, option: "--memcached" }
    }

    /// Named by `--from`.
    pub fn from(address: &'a Address) -> Remote<'a> {
        Remote { address, option: "--from" }
    }

    /// Connects, with timeouts for a silent server.
    pub fn connect(self) -> Result<Box<dyn RemoteStream>, String> {
        open(self.address, TIMEOUT).map_err(|error| self.lost(&error))
    }

    /// A sink that loads items into this server.
    pub fn sink(self, existing: Existing) -> Result<WireSink, String> {
        WireSink::new(self.connect()?, existing).map_err(|error| self.lost(&error))
    }

    /// The names and values of `stats` with `argument`.
    pub fn stats(self, argument: &[u8]) -> Result<Vec<(String, String)>, String> {
        let figures = open(self.address, TIMEOUT).map_err(NoAnswer::from).and_then(|stream| ask(stream, argument));
        figures.map_err(|why| self.told(why, &format!("stats {}", escapes::escaped(argument))))
    }

    /// One figure of `stats`. Every memcached server has it.
    pub fn figure(self, name: &str) -> Result<u64, String> {
        let figures = self.stats(b"")?;
        let figure = figures.iter().find(|(found, _)| found == name).and_then(|(_, value)| value.parse().ok());
        figure.ok_or_else(|| self.told(NoAnswer::Strange, "stats"))
    }

    /// Whether it is a Tapetum, and not a memcached.
    pub fn is_tapetum(self) -> Result<bool, String> {
        let figures = self.stats(b"")?;
        Ok(figures.iter().any(|(name, value)| name == "version" && value.contains("-tapetum-")))
    }

    /// Sends one line and returns the answer, however long it takes.
    pub fn command(self, line: &str) -> Result<String, String> {
        let exchange = || -> io::Result<String> {
            let mut stream = BufReader::new(open(self.address, PATIENCE)?);
            stream.get_mut().write_all(format!("{line}\r\n").as_bytes())?;
            let mut answer = String::new();
            match stream.read_line(&mut answer)? {
                0 => Err(io::ErrorKind::UnexpectedEof.into()),
                _ => Ok(answer.trim_end().to_string()),
            }
        };
        match exchange() {
            // memcached's answer to an unknown command.
            Ok(answer) if answer == "ERROR" => Err(self.told(NoAnswer::Refused(answer), line)),
            answer => answer.map_err(|error| self.lost(&error)),
        }
    }

    fn told(self, why: NoAnswer, asked: &str) -> String {
        let Remote { address, option } = self;
        let asked = asked.trim_end();
        match why {
            NoAnswer::Lost(error) => self.lost(&error),
            NoAnswer::Refused(words) if words == "ERROR" => format!(
                "the server at {address} does not know {asked:?}, as `tapetum serve` does; name one with {option} ADDR, of this version"
            ),
            NoAnswer::Refused(words) => format!("the server at {address} answers {asked:?} with {words:?}"),
            NoAnswer::Strange => {
                format!("the server at {address} does not answer like memcached; give another {option} ADDR")
            }
        }
    }

    fn lost(self, error: &io::Error) -> String {
        let Remote { address, option } = self;
        format!("no answer from {address}: {error}; check that the server runs there, or give another {option} ADDR")
    }
}

fn open(address: &Address, patience: Duration) -> io::Result<Box<dyn RemoteStream>> {
    match address {
        Address::Tcp(text) | Address::Plain(text) => {
            let stream = TcpStream::connect(text)?;
            stream.set_nodelay(true)?;
            stream.set_read_timeout(Some(patience))?;
            stream.set_write_timeout(Some(patience))?;
            Ok(Box::new(PatientStream { stream, patience }))
        }
        Address::Unix(path) => {
            let stream = UnixStream::connect(path)?;
            stream.set_read_timeout(Some(patience))?;
            stream.set_write_timeout(Some(patience))?;
            Ok(Box::new(PatientStream { stream, patience }))
        }
    }
}

fn ask<S: Read + Write>(mut stream: S, argument: &[u8]) -> Result<Vec<(String, String)>, NoAnswer> {
    stream.write_all(&[b"stats ", argument, b"\r\n"].concat())?;
    let mut lines = Vec::new();
    for line in BufReader::new(stream).lines() {
        let line = line.map_err(|error| match error.kind() {
            io::ErrorKind::InvalidData => NoAnswer::Strange,
            _ => NoAnswer::Lost(error),
        })?;
        let mut words = line.splitn(3, ' ');
        match (words.next(), words.next(), words.next()) {
            (Some("STAT"), Some(name), value) => lines.push((name.into(), value.unwrap_or_default().into())),
            (Some("END"), None, _) => return Ok(lines),
            (Some("SERVER_ERROR" | "CLIENT_ERROR" | "ERROR"), ..) => return Err(NoAnswer::Refused(line)),
            _ => return Err(NoAnswer::Strange),
        }
    }
    Err(NoAnswer::Lost(io::ErrorKind::UnexpectedEof.into()))
}

/// One JSON object. Numbers stay numbers.
pub fn json(lines: &[(String, String)]) -> String {
    let fields: Vec<String> =
        lines.iter().map(|(name, value)| format!("{}: {}", quoted(name), scalar(value))).collect();
    format!("{{\n  {}\n}}", fields.join(",\n  "))
}

/// A whole number or a decimal fraction in JSON's form, or a string.
fn scalar(value: &str) -> String {
    let (whole, fraction) = value.split_once('.').unwrap_or((value, "0"));
    let digits = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
    let leading_zero = whole.len() > 1 && whole.starts_with('0');
    if digits(whole) && digits(fraction) && !leading_zero { value.into() } else { quoted(value) }
}

fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_keeps_numbers_and_quotes_the_rest() {
        let lines =
            [("a", "1"), ("b", "0.125"), ("c", "1.6.18"), ("d", "x\"\\\n"), ("e", "007"), ("f", ""), ("g", "1.")];
        let lines = lines.map(|(name, value)| (name.to_string(), value.to_string()));
        let expected = "{\n  \"a\": 1,\n  \"b\": 0.125,\n  \"c\": \"1.6.18\",\n  \"d\": \"x\\\"\\\\\\n\",\n  \
                        \"e\": \"007\",\n  \"f\": \"\",\n  \"g\": \"1.\"\n}";
        assert_eq!(json(&lines), expected);
    }

    #[test]
    fn figures_are_read_to_their_end() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        theirs.write_all(b"STAT pid 7\r\nSTAT drive a b\r\nSTAT empty \r\nEND\r\n").unwrap();
        let lines = ask(ours, b"").ok().unwrap();
        let expected = [("pid", "7"), ("drive", "a b"), ("empty", "")].map(|(name, value)| (name.into(), value.into()));
        assert_eq!(lines, expected);
    }

    #[test]
    fn a_server_that_stays_silent_is_told_of_with_how_long_it_was_waited_for() {
        let (ours, _theirs) = UnixStream::pair().unwrap();
        ours.set_read_timeout(Some(Duration::from_millis(1))).unwrap();
        let silent = ask(PatientStream { stream: ours, patience: TIMEOUT }, b"").err().unwrap();
        let told = Remote::memcached(&"unix:/x".parse().unwrap()).told(silent, "stats");
        assert!(told.contains("no answer from") && told.contains("it did not answer within 30 s"), "{told}");
    }

    #[test]
    fn what_goes_wrong_is_told_with_the_option_that_named_the_server() {
        let address = "unix:/absent/socket".parse().unwrap();
        let lost = Remote::from(&address).figure("curr_items").unwrap_err();
        assert!(lost.contains("/absent/socket") && lost.contains("--from ADDR"), "{lost}");
        let answered = |answer: &[u8]| {
            let (ours, mut theirs) = UnixStream::pair().unwrap();
            theirs.write_all(answer).unwrap();
            drop(theirs.shutdown(std::net::Shutdown::Write));
            let why = ask(ours, b"inspect").err().unwrap();
            Remote::memcached(&address).told(why, "stats inspect")
        };
        let strange = answered(b"HTTP/1.1 400 Bad Request\r\n");
        assert!(strange.contains("like memcached") && strange.contains("--memcached ADDR"), "{strange}");
        assert!(answered(b"\xff\xfe\n").contains("like memcached"));
        let unknown = answered(b"ERROR\r\n");
        assert!(unknown.contains("does not know \"stats inspect\"") && unknown.contains("tapetum serve"), "{unknown}");
        let refused = answered(b"SERVER_ERROR no\r\n");
        assert!(refused.contains("SERVER_ERROR no") && !refused.contains("check that"), "{refused}");
        assert!(answered(b"STAT pid 7\r\n").contains("no answer"));
    }
}
