//! A host for doors over HTTP: one thread, listeners, and peers that are closed at their deadlines. Its [`Site`] decides what it answers.
//!
//! ```text
//!   peer ─► a place, of a limited number ─► TLS, if the listener has it ─► request ─► Site::answer
//! ```
//! 1. Limits come first: a peer in its handshake, or whose answer takes long, has a place and a deadline like any other.
//! 2. The thread waits for nothing but peers: passwords are hashed at the [gate](tapetum_access::gate)'s desk, and a site has other threads for
//!    work that waits for the store.
//! 3. A peer that neither sends nor reads costs the others nothing.

// The server is above the simulator: this is a system thread.
#![allow(clippy::disallowed_methods)]

pub mod login;

use std::cell::{Cell, RefCell};
use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use tapetum_access::tls::{Follows, HANDSHAKE_PATIENCE, Tls};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime;
use tokio::sync::oneshot;
use tokio::task::{self, LocalSet};
use tokio::time::{self, Instant};
use tokio_rustls::TlsAcceptor;

use crate::net::listen::{Address, Listener};
use crate::os;

/// The time in which a peer must send a request, and again take its answer: Prometheus waits as long by default.
pub const PATIENCE: Duration = Duration::from_secs(10);
/// Pause after accepting failed, most likely because descriptors ran out.
const PAUSE: Duration = Duration::from_millis(100);
/// A deadline that has come nearer is seen within this time.
const LOOK: Duration = Duration::from_secs(10);
/// The longest head of a request.
const HEAD_BYTES_MAX: usize = 8 << 10;
/// How long work of a site may take to end when the door closes.
const STOP_PATIENCE: Duration = Duration::from_secs(5);

pub type Answer = Response<Full<Bytes>>;

/// The answers of a door over HTTP. Everything it does is on the host's thread, unless it says otherwise.
pub trait Site: Send + 'static {
    /// The name of the thread, and of the door in the log.
    const NAME: &'static str;
    /// The most peers at once. One more replaces the oldest without a request under way, and is closed if all have one.
    const PEERS_MAX: usize;
    /// Whether a connection carries more than one request.
    const KEEPS_CONNECTIONS: bool;

    /// How long an answer may take, with the time in which it is taken.
    fn patience(&self) -> Duration;

    /// The answer to a request of the peer at `from`.
    fn answer(&self, request: Request<Incoming>, from: SocketAddr, has_tls: bool) -> impl Future<Output = Answer>;
}

pub struct HttpHost {
    addresses: Vec<Address>,
    stop: oneshot::Sender<()>,
    thread: JoinHandle<()>,
}

impl HttpHost {
    /// Serves at `listeners`, which are already listening.
    ///
    /// # Errors
    /// If the system refuses a thread or a descriptor.
    pub fn start<S: Site>(listeners: Vec<Listener>, tls: Option<Arc<Tls>>, site: S) -> io::Result<HttpHost> {
        let addresses = listeners.iter().map(Listener::address).collect();
        let runtime = runtime::Builder::new_current_thread().enable_io().enable_time().build()?;
        let entered = runtime.enter();
        let register = |listener: Listener| {
            let tls = tls.clone().filter(|_| listener.may_have_tls());
            Ok((register(listener)?, tls))
        };
        let listeners = listeners.into_iter().map(register).collect::<io::Result<Vec<_>>>()?;
        drop(entered);
        let (stop, stopped) = oneshot::channel();
        let life = move || {
            let tasks = LocalSet::new();
            let reception = Rc::new(Reception { site, peers: RefCell::default() });
            for (listener, tls) in listeners {
                tasks.spawn_local(Rc::clone(&reception).accept(listener, tls));
            }
            // An error says that `stop` was dropped, which ends the thread as well.
            let _ = tasks.block_on(&runtime, stopped);
            drop((tasks, reception));
            runtime.shutdown_timeout(STOP_PATIENCE);
        };
        let thread = std::thread::Builder::new().name(S::NAME.into()).spawn(life)?;
        Ok(HttpHost { addresses, stop, thread })
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
        Listener::Unix(..) => Err(io::Error::new(io::ErrorKind::Unsupported, "HTTP is served over TCP only")),
    }
}

/// All peers.
struct Reception<S> {
    site: S,
    peers: RefCell<Vec<Peer>>,
}

struct Peer {
    serving: task::JoinHandle<()>,
    patience: Rc<Cell<Patience>>,
}

/// Ordered by who makes room first: peers without a request that is being answered, the oldest of them first.
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

impl<S: Site> Reception<S> {
    async fn accept(self: Rc<Self>, listener: TcpListener, tls: Option<Arc<Tls>>) {
        loop {
            match listener.accept().await {
                Ok((socket, from)) => self.welcome(socket, from, tls.clone()),
                Err(_) => time::sleep(PAUSE).await,
            }
            // Lets the runtime read requests that have come, so that a crowd of new peers does not replace their senders.
            task::yield_now().await;
        }
    }

    fn welcome(self: &Rc<Self>, socket: TcpStream, from: SocketAddr, tls: Option<Arc<Tls>>) {
        let mut peers = self.peers.borrow_mut();
        peers.retain(|peer| !peer.serving.is_finished());
        if peers.len() >= S::PEERS_MAX
            && let Some(place) = (0..peers.len()).min_by_key(|&place| peers[place].patience.get())
        {
            if peers[place].patience.get().has_sent {
                return;
            }
            peers.swap_remove(place).serving.abort();
        }
        let patience = Rc::new(Cell::new(Patience::from_now(false, PATIENCE)));
        let serving = task::spawn_local(Rc::clone(self).serve(socket, from, tls, Rc::clone(&patience)));
        peers.push(Peer { serving, patience });
    }

    async fn serve(
        self: Rc<Self>,
        mut socket: TcpStream,
        from: SocketAddr,
        tls: Option<Arc<Tls>>,
        patience: Rc<Cell<Patience>>,
    ) {
        // Read for each connection: files that were read again count from the next one on.
        let socket = match tls.map(|tls| tls.config(Follows::Http1)) {
            None => {
                self.answer(&mut socket, from, false, &patience).await;
                socket
            }
            Some(config) => {
                let handshake = TlsAcceptor::from(config).accept(socket);
                let mut stream = match time::timeout(HANDSHAKE_PATIENCE, handshake).await {
                    Ok(Ok(stream)) => stream,
                    Ok(Err(error)) => return tracing::debug!("no TLS with {} at {}: {error}", from.ip(), S::NAME),
                    Err(_) => {
                        return tracing::debug!(
                            "no TLS with {} at {}: its handshake took too long",
                            from.ip(),
                            S::NAME
                        );
                    }
                };
                patience.set(Patience::from_now(false, PATIENCE));
                self.answer(&mut stream, from, true, &patience).await;
                stream.into_inner().0
            }
        };
        // Unread bytes would destroy the answer. Bounded: a peer that keeps sending is cut off.
        let _ = os::read(&socket, &mut [0; 2 * HEAD_BYTES_MAX]);
    }

    /// Answers one peer, until it goes or its time is over.
    async fn answer(
        &self,
        stream: &mut (impl AsyncRead + AsyncWrite + Unpin),
        from: SocketAddr,
        has_tls: bool,
        patience: &Cell<Patience>,
    ) {
        let service = service_fn(move |request: Request<Incoming>| async move {
            patience.set(Patience::from_now(true, self.site.patience()));
            let answer = self.site.answer(request, from, has_tls).await;
            // Now the answer has to be taken, and the next request to come.
            patience.set(Patience::from_now(!S::KEEPS_CONNECTIONS, PATIENCE));
            Ok::<_, Infallible>(answer)
        });
        let mut http = http1::Builder::new();
        // Half closed: a peer may end its side once the request is sent, where it sends only one.
        http.keep_alive(S::KEEPS_CONNECTIONS).half_close(!S::KEEPS_CONNECTIONS).max_header_size(HEAD_BYTES_MAX);
        let mut connection = pin!(http.serve_connection(TokioIo::new(stream), service));
        loop {
            let until = patience.get().deadline.min(Instant::now() + LOOK);
            let is_over = || Instant::now() >= patience.get().deadline;
            if time::timeout_at(until, connection.as_mut()).await.is_ok() || is_over() {
                return;
            }
        }
    }
}

/// An answer of this type and these bytes.
pub fn response(status: StatusCode, content_type: &'static str, body: impl Into<Bytes>) -> Answer {
    let mut response = Response::new(Full::new(body.into()));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    response
}
