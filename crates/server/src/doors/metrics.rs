//! Figures for Prometheus over HTTP, off by default. A connection carries one request.
//!
//! ```text
//!   request ─► Basic, if there are users ─► page
//! ```
//! With users, each request needs the name and password of one who may read the whole store. The thread shares only the figures with the
//! workers, and needs nothing from them.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use hyper::body::Incoming;
use hyper::header::{ALLOW, AUTHORIZATION, HeaderValue, WWW_AUTHENTICATE};
use hyper::{Method, Request, StatusCode};
use tapetum_access::credentials::Credentials;
use tapetum_access::gate::{Gate, LoginError};
use tapetum_service::request::{Role, Scope};

use super::http::login::{LOGIN_PATIENCE, log_in};
use super::http::{self, Answer, Site, response};

/// The default address of `--metrics`.
pub const ADDRESS_DEFAULT: &str = "127.0.0.1:9150";

const TEXT: &str = "text/plain; charset=utf-8";
const EXPOSITION: &str = "text/plain; version=0.0.4; charset=utf-8";
const CHALLENGE: &str = "Basic realm=\"tapetum\"";

/// Gives the page as it is now.
pub type PageSource = Box<dyn Fn() -> String + Send>;

/// See the [module](self).
pub struct Metrics {
    pub source: PageSource,
    pub gate: Option<Arc<Gate>>,
}

impl Site for Metrics {
    const NAME: &'static str = "metrics";
    /// A few scrape, and port scanners connect too.
    const PEERS_MAX: usize = 64;
    const KEEPS_CONNECTIONS: bool = false;

    fn patience(&self) -> Duration {
        http::PATIENCE + if self.gate.is_some() { LOGIN_PATIENCE } else { Duration::ZERO }
    }

    async fn answer(&self, request: Request<Incoming>, from: SocketAddr, _has_tls: bool) -> Answer {
        let admitted = match &self.gate {
            Some(gate) => admit(gate, request.headers().get(AUTHORIZATION), from.ip()).await,
            None => Ok(()),
        };
        let answered = admitted.map(|()| answer(request.method(), request.uri().path(), &self.source));
        answered.unwrap_or_else(Refusal::response)
    }
}

/// Lets a request in whose user may read the whole store.
async fn admit(gate: &Arc<Gate>, authorization: Option<&HeaderValue>, address: IpAddr) -> Result<(), Refusal> {
    // A client may send its password only once it was asked for: that is no failure.
    let credentials = Credentials::of_basic(authorization.ok_or(Refusal::Unknown)?.as_bytes());
    let verdict = log_in(gate, credentials, address).await;
    let mut identity = verdict.map_err(|error| match error {
        LoginError::Wrong => Refusal::Unknown,
        LoginError::Busy => Refusal::Busy,
    })?;
    if identity.may(Role::Read, Scope::Store) { Ok(()) } else { Err(Refusal::NoRight) }
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
    fn response(self) -> Answer {
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
        let mut response = response(status, TEXT, told);
        if status == StatusCode::UNAUTHORIZED {
            response.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static(CHALLENGE));
        }
        response
    }
}

/// Every path of the server has its arms here.
fn answer(method: &Method, path: &str, source: &PageSource) -> Answer {
    match (path, method) {
        ("/metrics", &Method::GET | &Method::HEAD) => response(StatusCode::OK, EXPOSITION, source()),
        ("/metrics", _) => {
            let mut refusal = response(StatusCode::METHOD_NOT_ALLOWED, TEXT, "use GET\n");
            refusal.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
            refusal
        }
        _ => response(StatusCode::NOT_FOUND, TEXT, "the figures are at /metrics\n"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use base64::Engine;
    use base64::engine::general_purpose::STANDARD;
    use hyper::body::Body;
    use std::fs;
    use std::io;
    use std::net::Ipv4Addr;
    use std::os::unix::fs::OpenOptionsExt;
    use tapetum_access::gate::LoginMemory;
    use tapetum_access::password::{Hash, Password};
    use tokio::runtime;
    use tokio::task::{self, LocalSet};

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
        assert_eq!(answer(Method::GET, "/metrics").body().size_hint().exact(), Some(4));
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
            assert!(!response.body().is_end_stream());
        }
        assert_eq!(Refusal::Unknown.response().headers()[WWW_AUTHENTICATE], "Basic realm=\"tapetum\"");
    }
}
