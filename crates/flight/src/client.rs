//! The other side, for commands: asks a server of another machine through its Flight door.
//!
//! Threads: one, which waits.

use std::path::PathBuf;
use std::time::Duration;

use arrow_flight::Action;
use arrow_flight::flight_service_client::FlightServiceClient;
use tapetum_service::asked::Asked;
use tapetum_service::caller::{Caller, CallerLeft};
use tapetum_service::failure::{Failure, FailureKind};
use tapetum_service::request::{Request, Role};
use tapetum_service::socket::frame::{ANSWER_BYTES_MAX, FrameHead, HEAD_BYTES, PROTOCOL_VERSION};
use tapetum_service::socket::framing::{AnswerReader, FrameError, Told};
use tokio::runtime::Runtime;
use tonic::transport::{Channel, Endpoint};

use crate::actions::REQUEST;
use crate::status::failure_of;

/// How often it looks whether its caller has left.
const LOOK: Duration = Duration::from_millis(50);
/// HTTP/2 allows frames of 16 KiB, unless a client takes longer ones.
const FRAME_BYTES: u32 = 1 << 20;
const WINDOW_BYTES: u32 = 4 << 20;
const CONNECT_PATIENCE: Duration = Duration::from_secs(10);

/// `grpc://HOST:PORT`, or `grpc+unix:PATH`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ServerAddress {
    Tcp(String),
    Unix(PathBuf),
}

impl std::str::FromStr for ServerAddress {
    type Err = String;

    fn from_str(text: &str) -> Result<ServerAddress, String> {
        let unix = text.strip_prefix("grpc+unix://").or_else(|| text.strip_prefix("unix:"));
        if let Some(path) = unix.filter(|path| !path.is_empty()) {
            return Ok(ServerAddress::Unix(path.into()));
        }
        match text.strip_prefix("grpc://").or_else(|| text.strip_prefix("grpc+tcp://")) {
            Some(host)
                if host
                    .rsplit_once(':')
                    .is_some_and(|(host, port)| !host.is_empty() && port.parse::<u16>().is_ok()) =>
            {
                Ok(ServerAddress::Tcp(host.into()))
            }
            _ => Err("give grpc://HOST:PORT, as the server says at its start, or grpc+unix://PATH; a memcached server is named by --memcached".into()),
        }
    }
}

impl std::fmt::Display for ServerAddress {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            ServerAddress::Tcp(host) => write!(f, "grpc://{host}"),
            ServerAddress::Unix(path) => write!(f, "grpc+unix://{}", path.display()),
        }
    }
}

/// A connection with the Flight door of a server.
pub struct FlightConnection {
    runtime: Runtime,
    client: FlightServiceClient<Channel>,
    address: ServerAddress,
}

impl FlightConnection {
    /// # Errors
    /// If nobody answers there.
    pub fn open(address: &ServerAddress) -> Result<FlightConnection, Failure> {
        let unreached = |error: &dyn std::fmt::Display| {
            let told = format!("no server answers at {address}: {error}; start it there with --flight");
            Failure::new(FailureKind::Unavailable, told)
        };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().enable_time().build();
        let runtime = runtime.map_err(|error| unreached(&error))?;
        let text = match address {
            ServerAddress::Tcp(host) => format!("http://{host}"),
            ServerAddress::Unix(path) => format!("unix://{}", path.display()),
        };
        let endpoint = Endpoint::from_shared(text).map_err(|error| unreached(&error))?;
        let endpoint = for_much(endpoint).connect_timeout(CONNECT_PATIENCE).tcp_nodelay(true);
        let channel = runtime.block_on(endpoint.connect());
        let channel = channel.map_err(|error| unreached(&with_reasons(&error)))?;
        let client = FlightServiceClient::new(channel)
            .max_decoding_message_size(usize::MAX)
            .max_encoding_message_size(usize::MAX);
        Ok(FlightConnection { runtime, client, address: address.clone() })
    }

    fn nonsense(&self, why: &str) -> Failure {
        Failure::new(
            FailureKind::Unavailable,
            format!("the server at {} answered with what makes no sense: {why}", self.address),
        )
    }

    /// The connection broke before the answer was whole, or the server refused the call.
    fn broken(&self, status: &tonic::Status, role: Role) -> Failure {
        let doubt = match role {
            Role::Read => "ask again when it serves again",
            Role::Write | Role::Admin => "it may or may not have been done: look when it serves again",
        };
        let Failure { kind, message } = failure_of(status);
        match kind {
            FailureKind::Unavailable => Failure::new(
                kind,
                format!("the server at {} did not answer to the end ({message}): {doubt}", self.address),
            ),
            kind => Failure::new(kind, message),
        }
    }
}

/// An endpoint for answers of many megabytes: few large frames, and room for a batch on its way.
pub fn for_much(endpoint: Endpoint) -> Endpoint {
    endpoint
        .max_frame_size(FRAME_BYTES)
        .initial_stream_window_size(WINDOW_BYTES)
        .initial_connection_window_size(2 * WINDOW_BYTES)
}

/// An error, and what it comes from.
fn with_reasons(error: &dyn std::error::Error) -> String {
    let mut told = error.to_string();
    let mut reason = error.source();
    while let Some(error) = reason {
        told = format!("{told}: {error}");
        reason = error.source();
    }
    told
}

impl Asked for FlightConnection {
    fn call(&mut self, request: &Request, caller: &mut dyn Caller) -> Result<(), Failure> {
        let (role, _) = request.needs();
        let version = PROTOCOL_VERSION.to_le_bytes().to_vec();
        let body = postcard::to_extend(request, version).map_err(|error| self.nonsense(&error.to_string()))?;
        let action = Action { r#type: REQUEST.into(), body: body.into() };
        let mut client = self.client.clone();
        let answer = self.runtime.block_on(client.do_action(action));
        let mut frames = answer.map_err(|status| self.broken(&status, role))?.into_inner();
        let mut reader = AnswerReader::default();
        loop {
            let waiting = async { tokio::time::timeout(LOOK, frames.message()).await };
            let frame = match self.runtime.block_on(waiting) {
                Err(_) if caller.has_left() => return Err(CallerLeft.into()),
                Err(_) => continue,
                Ok(Err(status)) => return Err(self.broken(&status, role)),
                Ok(Ok(None)) => {
                    return Err(self.broken(&tonic::Status::unavailable("it ended before it had answered"), role));
                }
                Ok(Ok(Some(result))) => result.body,
            };
            let head = frame.first_chunk::<HEAD_BYTES>().ok_or_else(|| self.nonsense("a frame without a head"))?;
            let head = FrameHead::parse(*head, ANSWER_BYTES_MAX).map_err(|why| self.nonsense(&why))?;
            match reader.take(head.kind, &mut frame[HEAD_BYTES..].to_vec(), caller) {
                Ok(Told::More) => {}
                Ok(Told::Done) => return Ok(()),
                Err(FrameError::Failed(failure)) => return Err(failure),
                Err(FrameError::Nonsense(why)) => return Err(self.nonsense(&why)),
            }
        }
    }
}
