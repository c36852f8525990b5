//! Connections that come in: accepted, and over their handshakes if they have TLS.
//!
//! ```text
//!   accept ─► place among HANDSHAKES_MAX ─► handshake, which ends in time ─► channel ─► HTTP/2
//! ```
//! 1. A handshake has a place, of which there are [`HANDSHAKES_MAX`]; one connection waits for the next place, and others wait unaccepted.
//! 2. A handshake ends within [`HANDSHAKE_PATIENCE`], and within [`HURRIED`] while others wait for its place: stalled ones keep clients out for
//!    the shorter time.
//! 3. The library holds at most 64 KiB of a handshake's messages. So all handshakes of a listener hold a few MiB.
//!
//! Threads: the door's.

use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use futures::StreamExt;
use futures::future::{Either, select};
use futures::stream::{self, BoxStream};
use tapetum_access::tls::{Follows, HANDSHAKE_PATIENCE, HANDSHAKES_MAX, Tls, name_of};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::sync::mpsc::{self, Receiver, Sender};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tonic::transport::server::Connected;

use tapetum_access::asker::Peer;

/// A handshake takes no longer while others wait for its place.
const HURRIED: Duration = Duration::from_secs(2);
/// How often a handshake looks whether others wait.
const LOOK: Duration = Duration::from_millis(100);
/// Connections over their handshakes that nobody has taken yet.
const TAKEN_MAX: usize = 16;
/// After an error, most likely of too many open files, it accepts again so much later.
const ACCEPT_AGAIN: Duration = Duration::from_millis(200);

/// A connection, and who is at its other end.
pub struct DoorStream {
    transport: Transport,
    peer: Peer,
}

enum Transport {
    Tcp(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
    Unix(UnixStream),
}

pub type Incoming = BoxStream<'static, io::Result<DoorStream>>;

/// A socket that listens.
pub enum Listening {
    /// Clients speak TLS, if there is one.
    Tcp(std::net::TcpListener, Option<Arc<Tls>>),
    Unix(std::os::unix::net::UnixListener),
}

/// The connections of a listener. Called within the runtime.
///
/// # Errors
/// If the system refuses the socket.
pub fn incoming(listening: Listening) -> io::Result<Incoming> {
    Ok(match listening {
        Listening::Tcp(listener, tls) => {
            listener.set_nonblocking(true)?;
            let listener = TcpListener::from_std(listener)?;
            match tls {
                None => stream::unfold(listener, |listener| async {
                    let (socket, address) = accept(&listener).await;
                    let peer = Peer::Tcp { address, certificate: None };
                    Some((Ok(DoorStream { transport: Transport::Tcp(socket), peer }), listener))
                })
                .boxed(),
                Some(tls) => {
                    let (out, taken) = mpsc::channel(TAKEN_MAX);
                    tokio::spawn(shake_hands(listener, tls, out));
                    let next = |mut taken: Receiver<DoorStream>| async { Some((Ok(taken.recv().await?), taken)) };
                    stream::unfold(taken, next).boxed()
                }
            }
        }
        Listening::Unix(listener) => {
            listener.set_nonblocking(true)?;
            let listener = UnixListener::from_std(listener)?;
            stream::unfold(listener, |listener| async {
                let accepted = listener.accept().await;
                let stream = accepted.map(|(stream, _)| {
                    let uid = stream.peer_cred().ok().map(|peer| peer.uid());
                    DoorStream { transport: Transport::Unix(stream), peer: Peer::Unix { uid } }
                });
                if stream.is_err() {
                    sleep(ACCEPT_AGAIN).await;
                }
                Some((stream, listener))
            })
            .boxed()
        }
    })
}

/// The next connection.
async fn accept(listener: &TcpListener) -> (TcpStream, SocketAddr) {
    loop {
        match listener.accept().await.and_then(|(socket, address)| socket.set_nodelay(true).map(|()| (socket, address)))
        {
            Ok(accepted) => return accepted,
            Err(error) => {
                tracing::debug!("a Flight client was not accepted: {error}");
                sleep(ACCEPT_AGAIN).await;
            }
        }
    }
}

/// Accepts connections, and gives those on whose handshakes succeed, until nobody takes them any more.
async fn shake_hands(listener: TcpListener, tls: Arc<Tls>, out: Sender<DoorStream>) {
    let places = Arc::new(Places { free: Arc::new(Semaphore::new(HANDSHAKES_MAX)), is_wanted: AtomicBool::new(false) });
    loop {
        let (accepting, closed) = (pin!(accept(&listener)), pin!(out.closed()));
        let Either::Left(((socket, address), _)) = select(accepting, closed).await else { return };
        let place = places.take().await;
        let (places, tls, out) = (Arc::clone(&places), Arc::clone(&tls), out.clone());
        tokio::spawn(async move {
            match handshake(socket, address, &tls, &places).await {
                Ok(stream) => {
                    // It is closed where the door is.
                    let _ = out.send(stream).await;
                }
                Err(error) => tracing::debug!("a handshake with a Flight client at {address} failed: {error}"),
            }
            drop(place);
        });
    }
}

/// Places of handshakes.
struct Places {
    free: Arc<Semaphore>,
    /// Whether a connection waits for one.
    is_wanted: AtomicBool,
}

impl Places {
    async fn take(&self) -> OwnedSemaphorePermit {
        if let Ok(place) = Arc::clone(&self.free).try_acquire_owned() {
            return place;
        }
        self.is_wanted.store(true, Ordering::Relaxed);
        let place = Arc::clone(&self.free).acquire_owned().await.expect("nobody closes it");
        self.is_wanted.store(false, Ordering::Relaxed);
        place
    }

    fn patience(&self) -> Duration {
        if self.is_wanted.load(Ordering::Relaxed) { HURRIED } else { HANDSHAKE_PATIENCE }
    }
}

async fn handshake(socket: TcpStream, address: SocketAddr, tls: &Tls, places: &Places) -> io::Result<DoorStream> {
    // The files may have been read again since the last connection.
    let mut shaking = pin!(TlsAcceptor::from(tls.config(Follows::Http2)).accept(socket));
    let began = Instant::now();
    let stream = loop {
        match timeout(LOOK, &mut shaking).await {
            Ok(done) => break done?,
            Err(_) if began.elapsed() >= places.patience() => return Err(io::ErrorKind::TimedOut.into()),
            Err(_) => {}
        }
    };
    let certificates = stream.get_ref().1.peer_certificates();
    let certificate = certificates.and_then(|chain| chain.first()).and_then(name_of).map(Arc::from);
    Ok(DoorStream { transport: Transport::Tls(Box::new(stream)), peer: Peer::Tcp { address, certificate } })
}

impl Connected for DoorStream {
    type ConnectInfo = Peer;

    fn connect_info(&self) -> Peer {
        self.peer.clone()
    }
}

/// Calls a method of whichever transport it is.
macro_rules! each {
    ($stream:expr, $inner:ident => $call:expr) => {
        match &mut $stream.get_mut().transport {
            Transport::Tcp($inner) => {
                let $inner = Pin::new($inner);
                $call
            }
            Transport::Tls($inner) => {
                let $inner = Pin::new(&mut **$inner);
                $call
            }
            Transport::Unix($inner) => {
                let $inner = Pin::new($inner);
                $call
            }
        }
    };
}

impl AsyncRead for DoorStream {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        each!(self, inner => inner.poll_read(cx, buf))
    }
}

impl AsyncWrite for DoorStream {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        each!(self, inner => inner.poll_write(cx, buf))
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        each!(self, inner => inner.poll_flush(cx))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        each!(self, inner => inner.poll_shutdown(cx))
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        each!(self, inner => inner.poll_write_vectored(cx, bufs))
    }

    fn is_write_vectored(&self) -> bool {
        match &self.transport {
            Transport::Tcp(stream) => stream.is_write_vectored(),
            Transport::Tls(stream) => stream.is_write_vectored(),
            Transport::Unix(stream) => stream.is_write_vectored(),
        }
    }
}
