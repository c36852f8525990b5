//! The doorkeeper: finds out who asks before a call begins, and lets nobody else in.
//!
//! ```text
//!   connection ─► limits of HTTP/2 ─► doorkeeper: `authorization` ─► gate ─► call, with its asker
//! ```
//! It looks at the headers alone: the body of a call that is refused is not read.
//!
//! Threads: the door's; passwords are looked at by the gate's.

use std::convert::Infallible;
use std::sync::Arc;
use std::task::{Context, Poll};

use futures::FutureExt;
use futures::future::BoxFuture;
use tapetum_access::asker::{Asker, Peer};
use tapetum_access::credentials::Credentials;
use tapetum_access::gate::{Gate, LoginError};
use tapetum_access::identity::Identity;
use tokio::sync::oneshot;
use tonic::Status;
use tonic::body::Body;
use tonic::codegen::{Service, http};
use tonic::server::NamedService;

use crate::answering::DoorShared;

/// As the audit names this door.
pub const DOOR: &str = "Flight";
const BEARER: &[u8] = b"bearer ";
const LOG_IN: &str = "log in with the name and the password of a user: pyarrow by authenticate_basic_token, ADBC by username and password, \
                      tapetum by --user, tapetum.connect by user and password";
const LOG_IN_AGAIN: &str =
    "the token has ended, or the user has another password or is gone, or the server was started again: log in again";

/// See the [module](self).
#[derive(Clone)]
pub struct Doorkeeper<S> {
    pub calls: S,
    pub shared: Arc<DoorShared>,
}

impl<S: NamedService> NamedService for Doorkeeper<S> {
    const NAME: &'static str = S::NAME;
}

impl<S> Service<http::Request<Body>> for Doorkeeper<S>
where
    S: Service<http::Request<Body>, Response = http::Response<Body>, Error = Infallible> + Clone + Send + 'static,
    S::Future: Send,
{
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<http::Response<Body>, Infallible>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.calls.poll_ready(cx)
    }

    fn call(&mut self, mut request: http::Request<Body>) -> Self::Future {
        // The one that was made ready answers; its clone is for the next call.
        let ready = self.calls.clone();
        let mut calls = std::mem::replace(&mut self.calls, ready);
        let shared = Arc::clone(&self.shared);
        async move {
            let peer = request.extensions().get::<Peer>().cloned().unwrap_or(Peer::Unix { uid: None });
            let authorization =
                request.headers().get(http::header::AUTHORIZATION).map(|value| value.as_bytes().to_vec());
            match asker(shared.gate.as_ref(), authorization.as_deref(), peer).await {
                Ok(asker) => {
                    request.extensions_mut().insert(asker);
                    calls.call(request).await
                }
                Err(status) => Ok(status.into_http()),
            }
        }
        .boxed()
    }
}

/// Whether the value of `authorization` is a token.
pub fn is_bearer(value: &[u8]) -> bool {
    value.len() > BEARER.len() && value[..BEARER.len()].eq_ignore_ascii_case(BEARER)
}

async fn asker(gate: Option<&Arc<Gate>>, authorization: Option<&[u8]>, peer: Peer) -> Result<Asker, Status> {
    let Some(gate) = gate else { return Ok(Asker::everybody(peer, DOOR)) };
    let identity = match authorization {
        Some(value) if is_bearer(value) => {
            let token = value[BEARER.len()..].trim_ascii();
            gate.of_token(token).ok_or_else(|| Status::unauthenticated(LOG_IN_AGAIN))?
        }
        Some(value) => logged_in(gate, value, &peer).await?,
        None => match peer.certificate() {
            Some(name) => gate.of_certificate(name).ok_or_else(|| {
                Status::unauthenticated(format!("the certificate names {name:?}, and there is no such user: {LOG_IN}"))
            })?,
            None => return Err(Status::unauthenticated(LOG_IN)),
        },
    };
    Ok(Asker::user(identity, peer, DOOR))
}

async fn logged_in(gate: &Arc<Gate>, basic: &[u8], peer: &Peer) -> Result<Identity, Status> {
    let (sender, verdict) = oneshot::channel();
    let done = move |verdict| {
        // A client that has left does not hear it.
        let _ = sender.send(verdict);
    };
    let verdict = match gate.log_in(Credentials::of_basic(basic), peer.ip(), done) {
        Some(verdict) => verdict,
        None => verdict.await.map_err(|_| Status::unavailable("the server stops: log in when it serves again"))?,
    };
    verdict.map_err(|error| match error {
        LoginError::Wrong => Status::unauthenticated(error.to_string()),
        LoginError::Busy => Status::unavailable(error.to_string()),
    })
}
