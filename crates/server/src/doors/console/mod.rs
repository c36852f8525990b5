//! The console: a page in a browser that shows what a server does, and asks its store.
//!
//! ```text
//!   GET  /           ─► page: files in the binary
//!   POST /api/login  ─► guard ─► gate ─► a token
//!   POST /api/NAME   ─► guard ─► token ─► asker ─┬─► figures, once a second for all who look
//!                                                └─► a thread ─► memory ─► the store ─► JSON
//! ```
//! 1. Nothing is told without a token, and none is given to another page (`guard.rs`). The page itself holds nothing of the store.
//! 2. A request may do what its user's rights allow, as at every door, and the page asks for nothing that changes the store.
//! 3. At most [`THREADS`] requests are worked on, and one of them is a graph. Each takes the memory of its answer from the server's before, and
//!    gives it back when the answer has gone.
//! 4. A browser that goes away ends its work.
//!
//! Threads: one answers, and some work. While nobody looks, none wakes.

mod api;
mod guard;
pub mod live;
mod page;
mod rows;

use std::cell::RefCell;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use http_body_util::{BodyExt, LengthLimitError, Limited};
use hyper::body::{Body, Bytes, Incoming};
use hyper::header::{CACHE_CONTROL, HeaderValue};
use hyper::{Method, Request, StatusCode};
use rustix::rand::{GetRandomFlags, getrandom};
use serde::Deserialize;
use serde_json::{Value, json};
use tapetum_access::asker::{Asker, Peer};
use tapetum_access::credentials::Credentials;
use tapetum_access::gate::{Gate, LoginError};
use tapetum_access::password::Password;
use tapetum_access::served::{Charge, Served};
use tapetum_service::failure::{Failure, FailureKind};
use tapetum_service::request::{Role, Scope};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task;
use tokio::time::{self, Instant};

use self::api::{Asking, BETWEENNESS, read};
use self::rows::Waiting;
use super::http::login::log_in;
use super::http::{Answer, HttpHost, Site, response};
use super::options::Access;
use crate::net::listen::{Address, Listener};
use crate::protocol::VERSION;

/// The default address of `--console`.
pub const ADDRESS_DEFAULT: &str = "127.0.0.1:9180";
/// As the audit names this door.
const DOOR: &str = "the console";
/// Tells this door's clients from those of other doors, which share the memory.
pub const CLIENTS: u64 = 1 << 60;

/// Requests that are worked on at once.
const THREADS: usize = 4;
/// How long a request waits for a thread.
const THREAD_PATIENCE: Duration = Duration::from_secs(10);
/// How long an answer may take.
const ANSWER_PATIENCE: Duration = Duration::from_secs(600);
/// The longest bodies of a login, which anybody may send, and of another request, and the time in which they come.
const LOGIN_BYTES_MAX: usize = 4 << 10;
const BODY_BYTES_MAX: usize = 64 << 10;
const BODY_PATIENCE: Duration = Duration::from_secs(10);
/// Memory for an answer: its rows, as values and as text.
const ANSWER_BYTES: usize = 4 << 20;
/// Figures are as old as this at most.
const FIGURES_AGE: Duration = Duration::from_millis(950);

const JSON: &str = "application/json";
const TEXT: &str = "text/plain; charset=utf-8";

/// The figures of the server.
pub trait LiveFigures: Send {
    fn figures(&self) -> Value;
    fn slow(&self) -> Value;
}

/// A console that is served, or none.
pub struct ConsoleServer {
    host: Option<(HttpHost, Arc<Served>)>,
}

impl ConsoleServer {
    /// Serves at `listeners`, which are bound; nothing at none.
    ///
    /// # Errors
    /// If the system refuses a thread, a descriptor or random bytes.
    pub fn start(
        listeners: Vec<Listener>,
        backlog: u32,
        served: Served,
        live: Box<dyn LiveFigures>,
        access: &Access,
    ) -> io::Result<ConsoleServer> {
        if listeners.is_empty() {
            return Ok(ConsoleServer { host: None });
        }
        listeners.iter().try_for_each(|listener| listener.listen(backlog))?;
        let served = Arc::new(served);
        let console = Console::new(Arc::clone(&served), access.gate.clone(), live)?;
        let host = HttpHost::start(listeners, access.tls.clone(), console)?;
        Ok(ConsoleServer { host: Some((host, served)) })
    }

    /// The addresses in use; port 0 has become a real one.
    pub fn addresses(&self) -> impl Iterator<Item = &Address> {
        self.host.iter().flat_map(|(host, _)| host.addresses())
    }

    pub fn stop(self) {
        if let Some((host, served)) = self.host {
            served.stop();
            host.stop();
        }
    }
}

/// See the [module](self).
struct Console {
    served: Arc<Served>,
    gate: Option<Arc<Gate>>,
    live: Box<dyn LiveFigures>,
    /// The figures that were told last, and when they were taken.
    told: RefCell<Option<(Instant, Bytes)>>,
    /// The token of everybody, where there are no users. No other page reads it.
    everybody: String,
    threads: Arc<Semaphore>,
    /// Graphs take memory beside the store's.
    graphs: Arc<Semaphore>,
}

/// An answer on its way, and the memory that was taken for it.
struct Charged {
    text: String,
    _charge: Option<Charge>,
}

impl AsRef<[u8]> for Charged {
    fn as_ref(&self) -> &[u8] {
        self.text.as_bytes()
    }
}

/// Why a request is not answered.
#[derive(Debug, PartialEq, Eq)]
struct Refusal {
    status: StatusCode,
    told: String,
    /// Whether the page has to ask for a name and a password.
    asks_login: bool,
}

impl Refusal {
    fn new(status: StatusCode, told: impl Into<String>) -> Refusal {
        Refusal { status, told: told.into(), asks_login: false }
    }

    fn log_in(told: impl Into<String>) -> Refusal {
        Refusal { asks_login: true, ..Refusal::new(StatusCode::UNAUTHORIZED, told) }
    }

    fn answer(self) -> Answer {
        let told = json!({ "error": self.told, "log_in": self.asks_login });
        json_answer(self.status, told.to_string())
    }
}

impl From<Failure> for Refusal {
    fn from(failure: Failure) -> Refusal {
        let status = match failure.kind {
            FailureKind::BadRequest => StatusCode::BAD_REQUEST,
            FailureKind::UnknownKeyspace => StatusCode::NOT_FOUND,
            FailureKind::Forbidden => StatusCode::FORBIDDEN,
            FailureKind::Unavailable | FailureKind::Cancelled | FailureKind::TooOld => StatusCode::SERVICE_UNAVAILABLE,
            FailureKind::Full | FailureKind::Damaged | FailureKind::OtherVersion | FailureKind::Store => {
                StatusCode::INTERNAL_SERVER_ERROR
            }
        };
        Refusal::new(status, failure.message)
    }
}

fn json_answer(status: StatusCode, body: impl Into<Bytes>) -> Answer {
    let mut answer = response(status, JSON, body);
    answer.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    answer.headers_mut().insert("x-content-type-options", HeaderValue::from_static("nosniff"));
    answer
}

#[derive(Deserialize)]
struct LoginAsked {
    user: Option<String>,
    password: Option<String>,
}

/// Ends the work of a request when nobody waits for it any more.
struct Leaving(Arc<AtomicBool>);

impl Drop for Leaving {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

impl Site for Console {
    const NAME: &'static str = "console";
    /// A browser has up to six.
    const PEERS_MAX: usize = 256;
    const KEEPS_CONNECTIONS: bool = true;

    fn patience(&self) -> Duration {
        ANSWER_PATIENCE
    }

    async fn answer(&self, request: Request<Incoming>, from: SocketAddr, has_tls: bool) -> Answer {
        let path = request.uri().path().to_owned();
        if let Some(name) = path.strip_prefix("/api/") {
            let answered = self.asked(name, request, from, has_tls).await;
            return answered.map_or_else(Refusal::answer, |body| json_answer(StatusCode::OK, body));
        }
        if let Err(refusal) = guard::check_host(request.headers(), self.gate.is_some()) {
            return response(refusal.status, TEXT, refusal.told + "\n");
        }
        match (page::file(&path), request.method()) {
            (Some(file), &Method::GET | &Method::HEAD) => file,
            (Some(_), _) => response(StatusCode::METHOD_NOT_ALLOWED, TEXT, "use GET\n"),
            (None, _) => response(StatusCode::NOT_FOUND, TEXT, "the console is at /\n"),
        }
    }
}

impl Console {
    /// # Errors
    /// If the system gives no random bytes.
    fn new(served: Arc<Served>, gate: Option<Arc<Gate>>, live: Box<dyn LiveFigures>) -> io::Result<Console> {
        let mut random = [0; 32];
        getrandom(&mut random, GetRandomFlags::empty())?;
        let everybody = random.iter().map(|byte| format!("{byte:02x}")).collect();
        let (threads, graphs) = (Arc::new(Semaphore::new(THREADS)), Arc::new(Semaphore::new(1)));
        Ok(Console { served, gate, live, told: RefCell::default(), everybody, threads, graphs })
    }

    async fn asked(
        &self,
        name: &str,
        request: Request<Incoming>,
        from: SocketAddr,
        has_tls: bool,
    ) -> Result<Bytes, Refusal> {
        let headers = request.headers();
        guard::check_host(headers, self.gate.is_some())?;
        guard::check_request(request.method(), headers, has_tls)?;
        if name == "login" {
            let asked = read(&body(request.into_body(), LOGIN_BYTES_MAX).await?)?;
            return self.log_in(asked, from).await;
        }
        let asker = self.asker(guard::token(headers), from)?;
        let body = body(request.into_body(), BODY_BYTES_MAX).await?;
        match name {
            "figures" | "slow" if !asker.may(Role::Read, Scope::Store) => Err(Refusal::new(
                StatusCode::FORBIDDEN,
                "the figures are of the whole store: the user needs read:* (tapetum user add --read '*')",
            )),
            "figures" => Ok(self.figures()),
            "slow" => Ok(self.live.slow().to_string().into()),
            name => self.work(asker, name.to_owned(), body).await,
        }
    }

    /// The asker whose token it is.
    fn asker(&self, token: Option<&str>, from: SocketAddr) -> Result<Asker, Refusal> {
        let peer = Peer::Tcp { address: from, certificate: None };
        let told = "the token has ended, or the user has another password or is gone, or the server was started again: log in again";
        let token = token.ok_or_else(|| Refusal::log_in("log in first: /api/login gives a token"))?;
        match &self.gate {
            Some(gate) => {
                let identity = gate.of_token(token.as_bytes()).ok_or_else(|| Refusal::log_in(told))?;
                Ok(Asker::user(identity, peer, DOOR))
            }
            None if is_same(token, &self.everybody) => Ok(Asker::everybody(peer, DOOR)),
            None => Err(Refusal::log_in(told)),
        }
    }

    async fn log_in(&self, LoginAsked { user, password }: LoginAsked, from: SocketAddr) -> Result<Bytes, Refusal> {
        let Some(gate) = &self.gate else { return Ok(greeting(&self.everybody, None, true)) };
        let (Some(name), Some(password)) = (user, password) else {
            return Err(Refusal::log_in("log in with the name and the password of a user"));
        };
        let password = Password::new(password.as_bytes());
        let credentials = password.map(|password| Credentials { name, password }).map_err(Into::into);
        let mut identity = log_in(gate, credentials, from.ip()).await.map_err(|error| match error {
            LoginError::Wrong => Refusal::log_in("the name or the password is wrong"),
            LoginError::Busy => Refusal::new(StatusCode::SERVICE_UNAVAILABLE, "too many log in: try again in a while"),
        })?;
        let may_read_store = identity.may(Role::Read, Scope::Store);
        Ok(greeting(&gate.token(&identity), Some(identity.name()), may_read_store))
    }

    /// The figures of now, or of less than a second ago.
    fn figures(&self) -> Bytes {
        let mut told = self.told.borrow_mut();
        if let Some((taken, bytes)) = &*told
            && taken.elapsed() < FIGURES_AGE
        {
            return bytes.clone();
        }
        let bytes = Bytes::from(self.live.figures().to_string());
        *told = Some((Instant::now(), bytes.clone()));
        bytes
    }

    /// Has a thread ask the store.
    async fn work(&self, asker: Asker, name: String, body: Bytes) -> Result<Bytes, Refusal> {
        let graph = match name == BETWEENNESS {
            true => Some(place_of(&self.graphs).await?),
            false => None,
        };
        let thread = place_of(&self.threads).await?;
        let leaving = Leaving(Arc::default());
        let waiting = Waiting { served: Arc::clone(&self.served), has_left: Arc::clone(&leaving.0) };
        let done = task::spawn_blocking(move || {
            let _places = (thread, graph);
            let served = Arc::clone(&waiting.served);
            let Ok(charge) = served.charge(ANSWER_BYTES, || !waiting.is_over()) else {
                let told = "the server has no memory for the answer: try again in a while";
                return Some(Err(Failure::new(FailureKind::Unavailable, told)));
            };
            let answered = Asking { asker, waiting }.answer(&name, &body)?;
            Some(answered.map(|text| Bytes::from_owner(Charged { text, _charge: charge })))
        });
        match done.await {
            Ok(Some(answered)) => Ok(answered?),
            Ok(None) => Err(Refusal::new(StatusCode::NOT_FOUND, "nothing is asked by this name")),
            // The runtime ends.
            Err(_) => Err(busy("the server stops: ask again when it serves again")),
        }
    }
}

fn busy(told: &str) -> Refusal {
    Refusal::new(StatusCode::SERVICE_UNAVAILABLE, told)
}

/// A place among those who work, as soon as there is one.
async fn place_of(places: &Arc<Semaphore>) -> Result<OwnedSemaphorePermit, Refusal> {
    let place = time::timeout(THREAD_PATIENCE, Arc::clone(places).acquire_owned()).await;
    let told = "the server answers as many such questions as it may: try again in a while";
    place.ok().and_then(Result::ok).ok_or_else(|| busy(told))
}

fn greeting(token: &str, user: Option<&str>, may_read_store: bool) -> Bytes {
    json!({ "token": token, "user": user, "version": VERSION, "may_read_store": may_read_store }).to_string().into()
}

/// Whether two texts are the same, found out in the same time wherever they differ.
fn is_same(one: &str, other: &str) -> bool {
    let differences = one.bytes().zip(other.bytes()).fold(0, |seen, (one, other)| seen | (one ^ other));
    one.len() == other.len() && differences == 0
}

async fn body(body: Incoming, bytes_max: usize) -> Result<Bytes, Refusal> {
    let long = || Refusal::new(StatusCode::PAYLOAD_TOO_LARGE, format!("this request has at most {bytes_max} bytes"));
    // Nothing of a body that says how long it is has to come before it is refused.
    if body.size_hint().lower() > bytes_max as u64 {
        return Err(long());
    }
    let gathered = time::timeout(BODY_PATIENCE, Limited::new(body, bytes_max).collect()).await;
    let gathered = gathered.map_err(|_| Refusal::new(StatusCode::REQUEST_TIMEOUT, "the request came too slowly"))?;
    let whole = gathered.map_err(|error| match error.is::<LengthLimitError>() {
        true => long(),
        false => Refusal::new(StatusCode::BAD_REQUEST, "the request did not come whole"),
    })?;
    Ok(whole.to_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_right_as_a_whole() {
        for (token, is_right) in [("abc", true), ("abd", false), ("ab", false), ("abcd", false), ("", false)] {
            assert_eq!(is_same(token, "abc"), is_right, "{token}");
        }
    }
}
