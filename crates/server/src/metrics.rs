//! The figures for Prometheus: a small HTTP server of its own, off unless asked for.
//!
//! One thread serves one request at a time, each within a bounded time, so that a client that does not send or does not
//! read keeps others waiting for no longer. It shares only the figures, and needs nothing of the workers.

// The server is above the simulator: this is a thread of the system, and looks at the clock.
#![allow(clippy::disallowed_methods)]

use std::fmt::Write as _;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::listen::LoopbackAddress;
use crate::stats::{Figure, Kind};

/// Where `--metrics` listens when it is not told.
pub const ADDRESS_DEFAULT: &str = "127.0.0.1:9150";
/// What a client may take to send its request, and again to take the answer.
const PATIENCE: Duration = Duration::from_secs(2);
/// The longest request, and the most of its headers.
const REQUEST_BYTES_MAX: usize = 8 << 10;
const HEADERS_MAX: usize = 64;

/// Gives the page as it is now.
pub type Source = Box<dyn Fn() -> String + Send>;

pub struct MetricsServer {
    address: SocketAddr,
    stopping: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

impl MetricsServer {
    pub fn start(address: &LoopbackAddress, source: Source) -> io::Result<MetricsServer> {
        let addresses: Vec<_> = address.0.to_socket_addrs()?.collect();
        let listener = TcpListener::bind(addresses.as_slice())?;
        let address = listener.local_addr()?;
        let stopping = Arc::new(AtomicBool::new(false));
        let seen = Arc::clone(&stopping);
        let life = move || {
            for client in listener.incoming() {
                if seen.load(Ordering::Acquire) {
                    return;
                }
                match client {
                    // Whoever asked has gone, or did not ask for anything that makes sense.
                    Ok(client) => drop(serve(client, &source)),
                    // Out of descriptors, most likely: they come back.
                    Err(_) => std::thread::sleep(Duration::from_millis(100)),
                }
            }
        };
        let thread = std::thread::Builder::new().name("metrics".into()).spawn(life)?;
        Ok(MetricsServer { address, stopping, thread })
    }

    /// Where it listens in fact.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    pub fn stop(self) {
        self.stopping.store(true, Ordering::Release);
        // A client like any other wakes it. One that listens on every address is at loopback too.
        let mut wake = self.address;
        if wake.ip().is_unspecified() {
            wake.set_ip(if wake.is_ipv4() { [127, 0, 0, 1].into() } else { std::net::Ipv6Addr::LOCALHOST.into() });
        }
        if TcpStream::connect_timeout(&wake, PATIENCE).is_ok() {
            // A panic there has been reported, and figures are no reason to fail.
            let _ = self.thread.join();
        }
    }
}

fn serve(mut client: TcpStream, source: &Source) -> io::Result<()> {
    let Some(request) = read_request(&mut client)? else { return Ok(()) };
    let body = match request {
        Request::Metrics => source(),
        _ => String::new(),
    };
    let (status, kind, body) = match request {
        Request::Metrics => ("200 OK", "text/plain; version=0.0.4; charset=utf-8", body.as_str()),
        Request::OtherPath => ("404 Not Found", "text/plain; charset=utf-8", "the figures are at /metrics\n"),
        Request::OtherMethod => ("405 Method Not Allowed", "text/plain; charset=utf-8", "use GET\n"),
        Request::Malformed => ("400 Bad Request", "text/plain; charset=utf-8", "that is no HTTP request\n"),
    };
    let allow = if matches!(request, Request::OtherMethod) { "Allow: GET\r\n" } else { "" };
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {}\r\n{allow}Connection: close\r\n\r\n",
        body.len()
    );
    client.set_write_timeout(Some(PATIENCE))?;
    client.write_all(head.as_bytes())?;
    client.write_all(body.as_bytes())
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Request {
    Metrics,
    OtherPath,
    OtherMethod,
    Malformed,
}

/// `None` if the client left or took too long.
fn read_request(client: &mut TcpStream) -> io::Result<Option<Request>> {
    let deadline = Instant::now() + PATIENCE;
    let mut bytes = Vec::new();
    let mut chunk = [0; 1024];
    while bytes.len() <= REQUEST_BYTES_MAX {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(None);
        }
        client.set_read_timeout(Some(left))?;
        match client.read(&mut chunk) {
            Ok(0) => return Ok(None),
            Ok(count) => bytes.extend_from_slice(&chunk[..count]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        }
        if let Some(request) = parse(&bytes) {
            return Ok(Some(request));
        }
    }
    Ok(Some(Request::Malformed))
}

/// What the head of a request asks for; `None` while it is not whole.
fn parse(bytes: &[u8]) -> Option<Request> {
    let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
    let mut request = httparse::Request::new(&mut headers);
    match request.parse(bytes) {
        Err(_) => Some(Request::Malformed),
        Ok(httparse::Status::Partial) => None,
        Ok(httparse::Status::Complete(_)) => {
            let path = request.path.unwrap_or_default();
            let path = path.split_once('?').map_or(path, |(path, _)| path);
            Some(match (request.method, path) {
                (Some("GET"), "/metrics") => Request::Metrics,
                (Some("GET"), _) => Request::OtherPath,
                _ => Request::OtherMethod,
            })
        }
    }
}

/// The figures in Prometheus' text format. A counter's name ends in `_total`, as is the custom there; a figure that is
/// no number becomes a label of a gauge that is 1.
pub fn exposition(figures: &[Figure]) -> String {
    let mut out = String::new();
    for Figure { name, kind, help, value } in figures {
        let (name, word, sample) = match kind {
            Kind::Counter => {
                (format!("{}_total", name.strip_prefix("total_").unwrap_or(name)), "counter", value.clone())
            }
            Kind::Gauge => (name.to_string(), "gauge", value.clone()),
            Kind::Text => (format!("{name}_info"), "gauge", String::new()),
        };
        family(&mut out, &format!("tapetum_{name}"), word, help);
        // Writing to a string cannot fail.
        let _ = match kind {
            Kind::Text => writeln!(out, "tapetum_{name}{{{}={}}} 1", name.trim_end_matches("_info"), label(value)),
            _ => writeln!(out, "tapetum_{name} {sample}"),
        };
    }
    out
}

/// Begins a family of samples.
pub fn family(out: &mut String, name: &str, kind: &str, help: &str) {
    let _ = write!(out, "# HELP {name} {help}.\n# TYPE {name} {kind}\n");
}

pub fn label(value: &str) -> String {
    format!("\"{}\"", value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_has_its_form() {
        let figure = |name, kind, value: &str| Figure { name, kind, help: "What it is", value: value.into() };
        let figures = [
            figure("total_items", Kind::Counter, "7"),
            figure("threads", Kind::Gauge, "2"),
            figure("version", Kind::Text, "a\"b\\"),
        ];
        let expected = "# HELP tapetum_items_total What it is.\n# TYPE tapetum_items_total counter\n\
                        tapetum_items_total 7\n\
                        # HELP tapetum_threads What it is.\n# TYPE tapetum_threads gauge\ntapetum_threads 2\n\
                        # HELP tapetum_version_info What it is.\n# TYPE tapetum_version_info gauge\n\
                        tapetum_version_info{version=\"a\\\"b\\\\\"} 1\n";
        assert_eq!(exposition(&figures), expected);
    }

    #[test]
    fn requests_are_told_apart() {
        assert_eq!(parse(b"GET /metrics HTTP/1.1\r\nHost: x\r\n"), None);
        assert_eq!(parse(b"GET /metrics?a=b HTTP/1.1\r\nHost: x\r\n\r\n"), Some(Request::Metrics));
        assert_eq!(parse(b"GET / HTTP/1.0\r\n\r\n"), Some(Request::OtherPath));
        assert_eq!(parse(b"POST /metrics HTTP/1.1\r\n\r\n"), Some(Request::OtherMethod));
        assert_eq!(parse(b"set k 0 0 1\r\n"), Some(Request::Malformed));
    }
}
