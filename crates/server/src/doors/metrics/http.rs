//! One peer of the HTTP server, and its one request.

use std::io::{self, IoSlice};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::time::Instant;

use super::PageSource;
use crate::os;

/// The longest request, and the most headers.
const REQUEST_BYTES_MAX: usize = 8 << 10;
const HEADERS_MAX: usize = 64;

/// The state of a peer after an event of its socket.
pub enum PeerProgress {
    Waits,
    /// It has its answer, or has left.
    Done,
}

pub struct Peer {
    socket: OwnedFd,
    request: Vec<u8>,
    /// Empty until the request is whole.
    answer: Vec<u8>,
    sent_bytes: usize,
    /// It is closed at this time, whatever it does.
    pub deadline: Instant,
}

impl Peer {
    pub fn new(socket: OwnedFd, deadline: Instant) -> Peer {
        Peer { socket, request: Vec::new(), answer: Vec::new(), sent_bytes: 0, deadline }
    }

    pub fn fd(&self) -> RawFd {
        self.socket.as_raw_fd()
    }

    /// Whether its request is complete.
    pub fn is_answered(&self) -> bool {
        !self.answer.is_empty()
    }

    /// Reads more of the request, or sends more of the answer.
    pub fn go_on(&mut self, source: &PageSource) -> PeerProgress {
        if !self.is_answered() {
            match self.read() {
                Ok(Some(request)) => self.answer = answer(request, source),
                Ok(None) => return PeerProgress::Waits,
                Err(_) => return PeerProgress::Done,
            }
        }
        match self.send() {
            Ok(true) | Err(_) => PeerProgress::Done,
            Ok(false) => PeerProgress::Waits,
        }
    }

    /// The request, when it is complete.
    fn read(&mut self) -> io::Result<Option<HttpRequest>> {
        let mut chunk = [0; 1024];
        loop {
            match os::read(&self.socket, &mut chunk) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(bytes) => self.request.extend_from_slice(&chunk[..bytes]),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(error),
            }
            if self.request.len() > REQUEST_BYTES_MAX {
                return Ok(Some(HttpRequest::TooLong));
            }
            if let Some(request) = parse(&self.request) {
                return Ok(Some(request));
            }
        }
    }

    /// Whether everything is sent.
    fn send(&mut self) -> io::Result<bool> {
        while self.sent_bytes < self.answer.len() {
            match os::send(&self.socket, &[IoSlice::new(&self.answer[self.sent_bytes..])]) {
                Ok(bytes) => self.sent_bytes += bytes,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }

    /// Closes the connection so that unread bytes do not destroy the answer. A peer that `is_late` with its request is told so.
    pub fn close(mut self, is_late: bool) {
        if is_late && !self.is_answered() && !self.request.is_empty() {
            self.answer = head_and_body("408 Request Timeout", TEXT, "", "the rest of the request did not come\n");
            // A peer that does not take it is closed anyway.
            let _ = self.send();
        }
        os::shut_down_write(&self.socket);
        // Bounded: a peer that keeps sending is cut off.
        let _ = os::read(&self.socket, &mut [0; 2 * REQUEST_BYTES_MAX]);
    }
}

const TEXT: &str = "text/plain; charset=utf-8";
const EXPOSITION: &str = "text/plain; version=0.0.4; charset=utf-8";

fn answer(request: HttpRequest, source: &PageSource) -> Vec<u8> {
    match request {
        HttpRequest::Metrics => head_and_body("200 OK", EXPOSITION, "", &source()),
        HttpRequest::OtherPath => head_and_body("404 Not Found", TEXT, "", "the figures are at /metrics\n"),
        HttpRequest::OtherMethod => head_and_body("405 Method Not Allowed", TEXT, "Allow: GET\r\n", "use GET\n"),
        HttpRequest::Malformed => head_and_body("400 Bad Request", TEXT, "", "that is no HTTP request\n"),
        HttpRequest::TooLong => {
            let body = format!("send at most {REQUEST_BYTES_MAX} bytes\n");
            head_and_body("431 Request Header Fields Too Large", TEXT, "", &body)
        }
    }
}

fn head_and_body(status: &str, kind: &str, more: &str, body: &str) -> Vec<u8> {
    let length = body.len();
    format!(
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\n{more}Connection: close\r\n\r\n{body}"
    )
    .into_bytes()
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HttpRequest {
    Metrics,
    OtherPath,
    OtherMethod,
    Malformed,
    TooLong,
}

/// The request in a complete head. `None` while the head is incomplete.
fn parse(bytes: &[u8]) -> Option<HttpRequest> {
    let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
    let mut request = httparse::Request::new(&mut headers);
    match request.parse(bytes) {
        Err(httparse::Error::TooManyHeaders) => Some(HttpRequest::TooLong),
        Err(_) => Some(HttpRequest::Malformed),
        Ok(httparse::Status::Partial) => None,
        Ok(httparse::Status::Complete(_)) => {
            let path = request.path.unwrap_or_default();
            let path = path.split_once('?').map_or(path, |(path, _)| path);
            Some(match (request.method, path) {
                (Some("GET"), "/metrics") => HttpRequest::Metrics,
                (Some("GET"), _) => HttpRequest::OtherPath,
                _ => HttpRequest::OtherMethod,
            })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_told_apart() {
        assert_eq!(parse(b"GET /metrics HTTP/1.1\r\nHost: x\r\n"), None);
        assert_eq!(parse(b"GET /metrics?a=b HTTP/1.1\r\nHost: x\r\n\r\n"), Some(HttpRequest::Metrics));
        assert_eq!(parse(b"GET / HTTP/1.0\r\n\r\n"), Some(HttpRequest::OtherPath));
        assert_eq!(parse(b"POST /metrics HTTP/1.1\r\n\r\n"), Some(HttpRequest::OtherMethod));
        assert_eq!(parse(b"set k 0 0 1\r\n"), Some(HttpRequest::Malformed));
        let many = [&b"GET /metrics HTTP/1.1\r\n"[..], &b"a: b\r\n".repeat(HEADERS_MAX + 1), b"\r\n"].concat();
        assert_eq!(parse(&many), Some(HttpRequest::TooLong));
    }
}
