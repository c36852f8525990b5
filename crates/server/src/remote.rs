//! The figures of a running server, asked for as any client does, and figures as JSON. No state.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use crate::listen::Address;

const TIMEOUT: Duration = Duration::from_secs(30);
/// For what may take long, such as a resize.
const PATIENCE: Duration = Duration::from_secs(3600);

/// A connection of either kind.
pub trait Stream: Read + Write {}

impl Stream for TcpStream {}
impl Stream for UnixStream {}

/// A connection to the server at `address`, which gives up on one that stays silent.
pub fn connect(address: &Address) -> Result<Box<dyn Stream>, String> {
    open(address, TIMEOUT).map_err(|error| failed(address, error))
}

fn open(address: &Address, timeout: Duration) -> io::Result<Box<dyn Stream>> {
    match address {
        Address::Tcp(text) => {
            let stream = TcpStream::connect(text)?;
            stream.set_nodelay(true)?;
            stream.set_read_timeout(Some(timeout))?;
            Ok(Box::new(stream))
        }
        Address::Unix(path) => {
            let stream = UnixStream::connect(path)?;
            stream.set_read_timeout(Some(timeout))?;
            Ok(Box::new(stream))
        }
    }
}

fn failed(address: &Address, error: io::Error) -> String {
    format!("no answer from {address}: {error}; check that the server runs there, or give another --memcached ADDR")
}

/// Names and values, as the server at `address` gives them for `stats` and `argument`.
pub fn stats(address: &Address, argument: &str) -> Result<Vec<(String, String)>, String> {
    let figures = open(address, TIMEOUT).and_then(|stream| ask(stream, argument));
    figures.map_err(|error| failed(address, error))
}

/// Sends one line and returns the answer, however long it takes.
pub fn command(address: &Address, line: &str) -> Result<String, String> {
    let exchange = || -> io::Result<String> {
        let mut stream = BufReader::new(open(address, PATIENCE)?);
        stream.get_mut().write_all(format!("{line}\r\n").as_bytes())?;
        let mut answer = String::new();
        match stream.read_line(&mut answer)? {
            0 => Err(io::ErrorKind::UnexpectedEof.into()),
            _ => Ok(answer.trim_end().to_string()),
        }
    };
    exchange().map_err(|error| failed(address, error))
}

fn ask<S: Read + Write>(mut stream: S, argument: &str) -> io::Result<Vec<(String, String)>> {
    stream.write_all(format!("stats {argument}\r\n").as_bytes())?;
    let mut lines = Vec::new();
    for line in BufReader::new(stream).lines() {
        let line = line?;
        let mut words = line.splitn(3, ' ');
        match (words.next(), words.next(), words.next()) {
            (Some("STAT"), Some(name), value) => lines.push((name.into(), value.unwrap_or_default().into())),
            (Some("END"), None, _) => return Ok(lines),
            (Some("SERVER_ERROR" | "CLIENT_ERROR" | "ERROR"), ..) => {
                return Err(io::Error::other(format!("it says {line:?}")));
            }
            _ => return Err(io::Error::new(io::ErrorKind::InvalidData, "that is no memcached server")),
        }
    }
    Err(io::ErrorKind::UnexpectedEof.into())
}

/// One JSON object; what is a number stays one.
pub fn json(lines: &[(String, String)]) -> String {
    let fields: Vec<String> =
        lines.iter().map(|(name, value)| format!("{}: {}", quoted(name), scalar(value))).collect();
    format!("{{\n  {}\n}}", fields.join(",\n  "))
}

/// A whole number or a decimal fraction, as JSON writes them, or a string.
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
        let lines = ask(ours, "").unwrap();
        let expected = [("pid", "7"), ("drive", "a b"), ("empty", "")].map(|(name, value)| (name.into(), value.into()));
        assert_eq!(lines, expected);
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        theirs.write_all(b"HTTP/1.1 400 Bad Request\r\n").unwrap();
        assert!(ask(ours, "").is_err());
    }
}
