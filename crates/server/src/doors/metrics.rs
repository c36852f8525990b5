//! Figures for Prometheus over HTTP, off by default.
//!
//! One thread serves up to 64 peers at once: a peer that neither sends nor reads costs the others nothing, and is closed at its deadline. A
//! connection carries one request. The thread shares only the figures, and needs nothing from the workers.
//!
//! ```text
//!   peer ─► a place among 64 ─► TLS, if the listener has it ─► request ─► Basic, if there are users ─► page
//! ```
//! 1. Limits come first: a peer in its handshake, or whose password waits at the desk, has a place and a deadline like any other.
//! 2. The thread never blocks: passwords are hashed at the [gate](tapetum_access::gate)'s desk, on other threads.
//! 3. With users, each request needs the name and password of one who may read the whole store.

// The server is above the simulator: this is a system thread.
#![allow(clippy::disallowed_methods)]

use std::cell::{Cell, RefCell};
use std::convert::Infallible;
use std::io;
use std::net::IpAddr;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use hyper::body::Incoming;
use hyper::header::{ALLOW, AUTHORIZATION, CONTENT_TYPE, HeaderValue, WWW_AUTHENTICATE};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use tapetum_access::credentials::Credentials;
use tapetum_access::gate::{Gate, LoginError, Verdict};
use tapetum_access::tls::{Follows, HANDSHAKE_PATIENCE};
use tapetum_service::request::{Role, Scope};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime;
use tokio::sync::oneshot;
use tokio::task::{self, LocalSet};
use tokio::time::{self, Instant};
use tokio_rustls::TlsAcceptor;

use crate::doors::options::Access;
use crate::net::listen::{Address, Listener};
use crate::os;

/// The default address of `--metrics`.
pub const ADDRESS_DEFAULT: &str = "127.0.0.1:9150";
/// The most peers at once. One more replaces the oldest that has sent no request. A few scrape, and port scanners connect too.
const PEERS_MAX: usize = 64;
/// The time in which a peer must send its request, and again take the answer: Prometheus waits as long by default.
const PATIENCE: Duration = Duration::from_secs(10);
/// The longest wait for a verdict about a password: 10 s for an address that failed often, and as long again for its turn at the desk.
const LOGIN_PATIENCE: Duration = Duration::from_secs(20);
/// Pause after accepting failed, most likely because descriptors ran out.
const PAUSE: Duration = Duration::from_millis(100);
/// The longest request, without a body.
const REQUEST_BYTES_MAX: usize = 8 << 10;

const TEXT: &str = "text/plain; charset=utf-8";
const EXPOSITION: &str = "text/plain; version=0.0.4; charset=utf-8";
const CHALLENGE: &str = "Basic realm=\"tapetum\"";

/// Gives the page as it is now.
pub type PageSource = Box<dyn Fn() -> String + Send>;

pub struct MetricsServer {
    addresses: Vec<Address>,
    stop: oneshot::Sender<()>,
    thread: JoinHandle<()>,
}

impl MetricsServer {
    /// Serves at `listeners`, which are already listening.
    pub fn start(listeners: Vec<Listener>, access: Access, source: PageSource) -> io::Result<MetricsServer> {
        let addresses = listeners.iter().map(Listener::address).collect();
        let runtime = runtime::Builder::new_current_thread().enable_io().enable_time().build()?;
        let entered = runtime.enter();
        let has_certificate = access.tls.is_some();
        let register = |listener: Listener| {
            let has_tls = has_certificate && listener.may_have_tls();
            Ok((register(listener)?, has_tls))
        };
        let listeners = listeners.into_iter().map(register).collect::<io::Result<Vec<_>>>()?;
        drop(entered);
        let (stop, stopped) = oneshot::channel();
        let life = move || {
            let tasks = LocalSet::new();
            let reception = Rc::new(Reception { source, access, peers: RefCell::default() });
            for (listener, has_tls) in listeners {
                tasks.spawn_local(Rc::clone(&reception).accept(listener, has_tls));
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
    access: Access,
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
    fn from_now(has_sent: bool, lasts: Duration) -> Patience {
        Patience { has_sent, deadline: Instant::now() + lasts }
    }
}

impl Reception {
    async fn accept(self: Rc<Reception>, listener: TcpListener, has_tls: bool) {
        loop {
            match listener.accept().await {
                Ok((socket, peer)) => self.welcome(socket, peer.ip(), has_tls),
                Err(_) => time::sleep(PAUSE).await,
            }
            // Lets the runtime read requests that have come, so that a crowd of new peers does not replace their senders.
            task::yield_now().await;
        }
    }

    fn welcome(self: &Rc<Reception>, socket: TcpStream, address: IpAddr, has_tls: bool) {
        let mut peers = self.peers.borrow_mut();
        peers.retain(|peer| !peer.serving.is_finished());
        if peers.len() >= PEERS_MAX
            && let Some(place) = (0..peers.len()).min_by_key(|&place| peers[place].patience.get())
        {
            peers.swap_remove(place).serving.abort();
        }
        let patience = Rc::new(Cell::new(Patience::from_now(false, PATIENCE)));
        let serving = task::spawn_local(Rc::clone(self).serve(socket, address, has_tls, Rc::clone(&patience)));
        peers.push(Peer { serving, patience });
    }

    async fn serve(
        self: Rc<Reception>,
        mut socket: TcpStream,
        address: IpAddr,
        has_tls: bool,
        patience: Rc<Cell<Patience>>,
    ) {
        // Read for each connection: files that were read again count from the next one on.
        let socket = match self.access.tls.as_ref().filter(|_| has_tls).map(|tls| tls.config(Follows::Http1)) {
            None => {
                self.answer_one(&mut socket, address, &patience).await;
                socket
            }
            Some(config) => {
                let handshake = TlsAcceptor::from(config).accept(socket);
                let mut stream = match time::timeout(HANDSHAKE_PATIENCE, handshake).await {
                    Ok(Ok(stream)) => stream,
                    Ok(Err(error)) => return tracing::debug!("no TLS with {address} at --metrics: {error}"),
                    Err(_) => {
                        return tracing::debug!("no TLS with {address} at --metrics: its handshake took too long");
                    }
                };
                patience.set(Patience::from_now(false, PATIENCE));
                self.answer_one(&mut stream, address, &patience).await;
                stream.into_inner().0
            }
        };
        // Unread bytes would destroy the answer. Bounded: a peer that keeps sending is cut off.
        let _ = os::read(&socket, &mut [0; 2 * REQUEST_BYTES_MAX]);
    }

    async fn answer_one(
        &self,
        stream: &mut (impl AsyncRead + AsyncWrite + Unpin),
        address: IpAddr,
        patience: &Cell<Patience>,
    ) {
        let service = service_fn(move |request: Request<Incoming>| async move {
            let (gate, mut lasts) = (self.access.gate.as_ref(), PATIENCE);
            if gate.is_some() {
                lasts += LOGIN_PATIENCE;
            }
            patience.set(Patience::from_now(true, lasts));
            let admitted = match gate {
                Some(gate) => admit(gate, request.headers().get(AUTHORIZATION), address).await,
                None => Ok(()),
            };
            let answered = admitted.map(|()| answer(request.method(), request.uri().path(), &self.source));
            Ok::<_, Infallible>(answered.unwrap_or_else(Refusal::response))
        });
        let mut http = http1::Builder::new();
        // Half closed: a peer may end its side once the request is sent.
        http.keep_alive(false).half_close(true).max_header_size(REQUEST_BYTES_MAX);
        let mut connection = pin!(http.serve_connection(TokioIo::new(stream), service));
        let mut deadline = patience.get().deadline;
        // The request sets a new deadline, for the answer.
        while time::timeout_at(deadline, connection.as_mut()).await.is_err() && deadline < patience.get().deadline {
            deadline = patience.get().deadline;
        }
    }
}

/// Lets a request in whose user may read the whole store.
async fn admit(gate: &Arc<Gate>, authorization: Option<&HeaderValue>, address: IpAddr) -> Result<(), Refusal> {
    // A client may send its password only once it was asked for: that is no failure.
    let verdict = log_in(gate, authorization.ok_or(Refusal::Unknown)?, address).await;
    let mut identity = verdict.map_err(|error| match error {
        LoginError::Wrong => Refusal::Unknown,
        LoginError::Busy => Refusal::Busy,
    })?;
    if identity.may(Role::Read, Scope::Store) { Ok(()) } else { Err(Refusal::NoRight) }
}

/// Waits for the verdict about an `authorization`, for a bounded time.
async fn log_in(gate: &Arc<Gate>, authorization: &HeaderValue, address: IpAddr) -> Verdict {
    let (sender, verdict) = oneshot::channel();
    let credentials = Credentials::of_basic(authorization.as_bytes());
    let at_once = gate.log_in(credentials, Some(address), |verdict| {
        // The peer may be gone.
        let _ = sender.send(verdict);
    });
    match at_once {
        Some(verdict) => verdict,
        // The desk drops the sender when the server stops.
        None => time::timeout(LOGIN_PATIENCE, verdict)
            .await
            .map_or(Err(LoginError::Busy), |sent| sent.unwrap_or(Err(LoginError::Busy))),
    }
}

/// Why a request is not answered with the page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Refusal {
    /// Nobody logged in, or not rightly.
    Unknown,
    /// The user may not read the whole store.
    NoRight,
    /// The password was not looked at.
    Busy,
}

impl Refusal {
    fn response(self) -> Response<String> {
        let (status, told) = match self {
            Refusal::Unknown => {
                (StatusCode::UNAUTHORIZED, "give the name and password of a user who may read the store\n")
            }
            Refusal::NoRight => (
                StatusCode::FORBIDDEN,
                "the figures are of the whole store: the user needs read:* (tapetum user add --read '*')\n",
            ),
            Refusal::Busy => (StatusCode::SERVICE_UNAVAILABLE, "too many log in: try again in a while\n"),
        };
        let mut response = response(status, TEXT, told.into());
        if status == StatusCode::UNAUTHORIZED {
            response.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static(CHALLENGE));
        }
        response
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
    use base64::Engine;
    use base64::engine::general_purpose::STANDARD;
    use std::fs;
    use std::net::Ipv4Addr;
    use std::os::unix::fs::OpenOptionsExt;
    use tapetum_access::gate::LoginMemory;
    use tapetum_access::password::{Hash, Password};

    struct Enough;

    impl LoginMemory for Enough {
        fn take(&self, _: usize, _: usize) -> bool {
            true
        }
        fn give(&self, _: usize, _: usize) {}
        fn wait(&self, _: bool) {}
    }

    /// A gate whose users have the password "x", and whose desk is closed yet.
    fn gate(name: &str, users: &[&str]) -> Arc<Gate> {
        let path = std::env::temp_dir().join(format!("tapetum-metrics-{name}-{}", std::process::id()));
        let hash = Hash::of(&Password::new(b"x").unwrap()).unwrap();
        let text: String = users.iter().map(|user| format!("{user} {}\n", hash.text())).collect();
        let mut file = fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&path).unwrap();
        io::Write::write_all(&mut file, text.as_bytes()).unwrap();
        let gate = Arc::new(Gate::open(&path).unwrap());
        fs::remove_file(path).unwrap();
        gate
    }

    fn basic(user: &str) -> HeaderValue {
        HeaderValue::from_str(&format!("Basic {}", STANDARD.encode(user))).unwrap()
    }

    fn runtime() -> runtime::Runtime {
        runtime::Builder::new_current_thread().enable_time().build().unwrap()
    }

    #[test]
    fn a_request_is_let_in_by_the_right_to_read_the_store() {
        let gate = gate("table", &["reader read:*", "root admin:*", "other write:default,read:more"]);
        gate.start(Arc::new(Enough)).unwrap();
        let (wrong, none) = (Err(Refusal::Unknown), HeaderValue::from_static("Bearer x"));
        for (authorization, admitted) in [
            (None, wrong),
            (Some(none), wrong),
            (Some(basic("reader")), wrong),
            (Some(basic("reader:y")), wrong),
            (Some(basic("nobody:x")), wrong),
            (Some(basic("reader:x")), Ok(())),
            (Some(basic("reader:x")), Ok(())),
            (Some(basic("root:x")), Ok(())),
            (Some(basic("other:x")), Err(Refusal::NoRight)),
            (Some(basic("other:y")), wrong),
        ] {
            let asked = admit(&gate, authorization.as_ref(), Ipv4Addr::LOCALHOST.into());
            assert_eq!(runtime().block_on(asked), admitted, "{authorization:?}");
        }
        gate.stop();
    }

    #[test]
    fn a_request_whose_password_is_not_looked_at_is_told_so() {
        let gate = gate("busy", &["reader read:*"]);
        let tasks = LocalSet::new();
        tasks.block_on(&runtime(), async {
            // The desk has no threads, so that all wait.
            for _ in 0..40 {
                let gate = Arc::clone(&gate);
                task::spawn_local(async move {
                    let _ = admit(&gate, Some(&basic("reader:x")), Ipv4Addr::LOCALHOST.into()).await;
                });
            }
            task::yield_now().await;
            let authorization = basic("reader:x");
            let asked = admit(&gate, Some(&authorization), Ipv4Addr::LOCALHOST.into());
            assert_eq!(asked.await, Err(Refusal::Busy));
        });
    }

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

    #[test]
    fn only_an_unknown_user_is_asked_for_a_password() {
        for (refusal, status, is_asked) in
            [(Refusal::Unknown, 401, true), (Refusal::NoRight, 403, false), (Refusal::Busy, 503, false)]
        {
            let response = refusal.response();
            assert_eq!(response.status(), status);
            assert_eq!(response.headers().contains_key(WWW_AUTHENTICATE), is_asked);
            assert!(!response.body().is_empty());
        }
        assert_eq!(Refusal::Unknown.response().headers()[WWW_AUTHENTICATE], "Basic realm=\"tapetum\"");
    }
}
