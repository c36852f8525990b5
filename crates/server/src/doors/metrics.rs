//! Figures for Prometheus over HTTP, off by default.
//!
//! One thread serves up to 64 peers at once: a peer that neither sends nor reads costs the others nothing, and is closed at its deadline. A
//! connection carries one request. The thread shares only the figures, and needs nothing from the workers.

// The server is above the simulator: this is a system thread.
#![allow(clippy::disallowed_methods)]

use std::cell::{Cell, RefCell};
use std::convert::Infallible;
use std::future::ready;
use std::io;
use std::pin::pin;
use std::rc::Rc;
use std::thread::JoinHandle;
use std::time::Duration;

use hyper::body::Incoming;
use hyper::header::{ALLOW, CONTENT_TYPE, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime;
use tokio::sync::oneshot;
use tokio::task::{self, LocalSet};
use tokio::time::{self, Instant};

use crate::net::listen::{Address, Listener};
use crate::os;

/// The default address of `--metrics`.
pub const ADDRESS_DEFAULT: &str = "127.0.0.1:9150";
/// The most peers at once. One more replaces the oldest that has sent no request. A few scrape, and port scanners connect too.
const PEERS_MAX: usize = 64;
/// The time in which a peer must send its request, and again take the answer: Prometheus waits as long by default.
const PATIENCE: Duration = Duration::from_secs(10);
/// Pause after accepting failed, most likely because descriptors ran out.
const PAUSE: Duration = Duration::from_millis(100);
/// The longest request, without a body.
const REQUEST_BYTES_MAX: usize = 8 << 10;

const TEXT: &str = "text/plain; charset=utf-8";
const EXPOSITION: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Gives the page as it is now.
pub type PageSource = Box<dyn Fn() -> String + Send>;

pub struct MetricsServer {
    addresses: Vec<Address>,
    stop: oneshot::Sender<()>,
    thread: JoinHandle<()>,
}

impl MetricsServer {
    /// Serves at `listeners`, which are already listening.
    pub fn start(listeners: Vec<Listener>, source: PageSource) -> io::Result<MetricsServer> {
        let addresses = listeners.iter().map(Listener::address).collect();
        let runtime = runtime::Builder::new_current_thread().enable_io().enable_time().build()?;
        let entered = runtime.enter();
        let listeners = listeners.into_iter().map(register).collect::<io::Result<Vec<_>>>()?;
        drop(entered);
        let (stop, stopped) = oneshot::channel();
        let life = move || {
            let tasks = LocalSet::new();
            let reception = Rc::new(Reception { source, peers: RefCell::default() });
            for listener in listeners {
                tasks.spawn_local(Rc::clone(&reception).accept(listener));
            }
            // An error says that `stop` was dropped, which ends the thread as well.
            let _ = tasks.block_on(&runtime, stopped);
        };
        let thread = std::thread::Builder::new().name("metrics".into()).spawn(life)?;
        Ok(MetricsServer { addresses, stop, thread })
    }

    /// The addresses in use; port 0 has become a real one.
    pub fn addresses(&self) -> &[Address] {
        &self.addresses
    }

    pub fn stop(self) {
        // Neither fails unless the thread panicked. It has reported that, and the server's stop must not fail.
        let _ = self.stop.send(());
        let _ = self.thread.join();
    }
}

/// Registers a listener with the entered runtime.
fn register(listener: Listener) -> io::Result<TcpListener> {
    match listener {
        Listener::Tcp(socket, _) | Listener::Plain(socket, _) => TcpListener::from_std(socket.into()),
        Listener::Unix(..) => Err(io::Error::new(io::ErrorKind::Unsupported, "Prometheus reads over TCP only")),
    }
}

/// All peers.
struct Reception {
    source: PageSource,
    peers: RefCell<Vec<Peer>>,
}

struct Peer {
    serving: task::JoinHandle<()>,
    patience: Rc<Cell<Patience>>,
}

/// Ordered by who makes room first: peers that have sent no request, the oldest of them first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Patience {
    has_sent: bool,
    /// The peer is closed at this time, whatever it does.
    deadline: Instant,
}

impl Patience {
    fn from_now(has_sent: bool) -> Patience {
        Patience { has_sent, deadline: Instant::now() + PATIENCE }
    }
}

impl Reception {
    async fn accept(self: Rc<Reception>, listener: TcpListener) {
        loop {
            match listener.accept().await {
                Ok((socket, _)) => self.welcome(socket),
                Err(_) => time::sleep(PAUSE).await,
            }
            // Lets the runtime read requests that have come, so that a crowd of new peers does not replace their senders.
            task::yield_now().await;
        }
    }

    fn welcome(self: &Rc<Reception>, socket: TcpStream) {
        let mut peers = self.peers.borrow_mut();
        peers.retain(|peer| !peer.serving.is_finished());
        if peers.len() >= PEERS_MAX
            && let Some(place) = (0..peers.len()).min_by_key(|&place| peers[place].patience.get())
        {
            peers.swap_remove(place).serving.abort();
        }
        let patience = Rc::new(Cell::new(Patience::from_now(false)));
        let serving = task::spawn_local(Rc::clone(self).serve(socket, Rc::clone(&patience)));
        peers.push(Peer { serving, patience });
    }

    async fn serve(self: Rc<Reception>, mut socket: TcpStream, patience: Rc<Cell<Patience>>) {
        self.answer_one(&mut socket, &patience).await;
        // Unread bytes would destroy the answer. Bounded: a peer that keeps sending is cut off.
        let _ = os::read(&socket, &mut [0; 2 * REQUEST_BYTES_MAX]);
    }

    async fn answer_one(&self, socket: &mut TcpStream, patience: &Cell<Patience>) {
        let service = service_fn(|request: Request<Incoming>| {
            patience.set(Patience::from_now(true));
            ready(Ok::<_, Infallible>(answer(request.method(), request.uri().path(), &self.source)))
        });
        let mut http = http1::Builder::new();
        // Half closed: a peer may end its side once the request is sent.
        http.keep_alive(false).half_close(true).max_header_size(REQUEST_BYTES_MAX);
        let mut connection = pin!(http.serve_connection(TokioIo::new(socket), service));
        let mut deadline = patience.get().deadline;
        // The request sets a new deadline, for the answer.
        while time::timeout_at(deadline, connection.as_mut()).await.is_err() && deadline < patience.get().deadline {
            deadline = patience.get().deadline;
        }
    }
}

/// Every path of the server has its arms here.
fn answer(method: &Method, path: &str, source: &PageSource) -> Response<String> {
    match (path, method) {
        ("/metrics", &Method::GET | &Method::HEAD) => response(StatusCode::OK, EXPOSITION, source()),
        ("/metrics", _) => {
            let mut refusal = response(StatusCode::METHOD_NOT_ALLOWED, TEXT, "use GET\n".into());
            refusal.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
            refusal
        }
        _ => response(StatusCode::NOT_FOUND, TEXT, "the figures are at /metrics\n".into()),
    }
}

fn response(status: StatusCode, content_type: &'static str, body: String) -> Response<String> {
    let mut response = Response::new(body);
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_told_apart() {
        let source: PageSource = Box::new(|| "page".into());
        let answer = |method, path| answer(&method, path, &source);
        assert_eq!(answer(Method::GET, "/metrics").body(), "page");
        assert_eq!(answer(Method::HEAD, "/metrics").status(), StatusCode::OK);
        assert_eq!(answer(Method::GET, "/").status(), StatusCode::NOT_FOUND);
        let refusal = answer(Method::POST, "/metrics");
        assert_eq!(refusal.status(), StatusCode::METHOD_NOT_ALLOWED);
        assert_eq!(refusal.headers()[ALLOW], "GET, HEAD");
    }
}
