//! The other side, for commands: asks a server of another machine through its Flight door.
//!
//! Threads: one, which waits.

use std::path::PathBuf;
use std::time::Duration;

use arrow_flight::Action;
use arrow_flight::flight_service_client::FlightServiceClient;
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use tapetum_access::password::Password;
use tapetum_service::asked::Asked;
use tapetum_service::caller::{Caller, CallerLeft};
use tapetum_service::failure::{Failure, FailureKind};
use tapetum_service::request::{Request, Role};
use tapetum_service::socket::frame::{ANSWER_BYTES_MAX, FrameHead, HEAD_BYTES, PROTOCOL_VERSION};
use tapetum_service::socket::framing::{AnswerReader, FrameError, Told};
use tokio::runtime::Runtime;
use tokio_rustls::rustls::{self, CertificateError};
use tonic::metadata::{Ascii, MetadataValue};
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint};
use zeroize::Zeroizing;

use crate::actions::REQUEST;
use crate::status::failure_of;

/// How often it looks whether its caller has left.
const LOOK: Duration = Duration::from_millis(50);
/// HTTP/2 allows frames of 16 KiB, unless a client takes longer ones.
const FRAME_BYTES: u32 = 1 << 20;
const WINDOW_BYTES: u32 = 4 << 20;
const CONNECT_PATIENCE: Duration = Duration::from_secs(10);

/// `grpc://HOST:PORT`, `grpc+tls://HOST:PORT`, or `grpc+unix:PATH`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ServerAddress {
    Tcp(String),
    Tls(String),
    Unix(PathBuf),
}

impl std::str::FromStr for ServerAddress {
    type Err = String;

    fn from_str(text: &str) -> Result<ServerAddress, String> {
        let unix = text.strip_prefix("grpc+unix://").or_else(|| text.strip_prefix("unix:"));
        if let Some(path) = unix.filter(|path| !path.is_empty()) {
            return Ok(ServerAddress::Unix(path.into()));
        }
        let is_place = |host: &&str| {
            host.rsplit_once(':').is_some_and(|(host, port)| !host.is_empty() && port.parse::<u16>().is_ok())
        };
        let plain = text.strip_prefix("grpc://").or_else(|| text.strip_prefix("grpc+tcp://"));
        match (plain.filter(is_place), text.strip_prefix("grpc+tls://").filter(is_place)) {
            (Some(host), _) => Ok(ServerAddress::Tcp(host.into())),
            (_, Some(host)) => Ok(ServerAddress::Tls(host.into())),
            _ => Err("give grpc://HOST:PORT or grpc+tls://HOST:PORT, as the server says at its start, or grpc+unix://PATH; a memcached \
                      server is named by --memcached"
                .into()),
        }
    }
}

impl std::fmt::Display for ServerAddress {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            ServerAddress::Tcp(host) => write!(f, "grpc://{host}"),
            ServerAddress::Tls(host) => write!(f, "grpc+tls://{host}"),
            ServerAddress::Unix(path) => write!(f, "grpc+unix://{}", path.display()),
        }
    }
}

/// The proofs that a client shows a server, and those that it wants of it.
#[derive(Clone, Debug, Default)]
pub struct Login {
    pub user: Option<(String, Password)>,
    /// The authority of the server's certificate, in PEM.
    pub authority: Option<Vec<u8>>,
}

impl Login {
    /// The value of `authorization`, which goes with each call: the server remembers passwords that were right.
    fn authorization(&self) -> Result<Option<MetadataValue<Ascii>>, Failure> {
        let Some((name, password)) = &self.user else { return Ok(None) };
        let pair = Zeroizing::new([name.as_bytes(), b":", password.bytes()].concat());
        let text = Zeroizing::new(format!("Basic {}", BASE64_STANDARD.encode(&*pair)));
        let mut value: MetadataValue<Ascii> =
            text.parse().map_err(|_| Failure::bad(format!("{name:?} is no name for a user")))?;
        value.set_sensitive(true);
        Ok(Some(value))
    }
}

/// A connection with the Flight door of a server.
pub struct FlightConnection {
    runtime: Runtime,
    client: FlightServiceClient<Channel>,
    address: ServerAddress,
    authorization: Option<MetadataValue<Ascii>>,
}

impl FlightConnection {
    /// # Errors
    /// If nobody answers there, or the server's certificate is not the one that is wanted.
    pub fn open(address: &ServerAddress, login: &Login) -> Result<FlightConnection, Failure> {
        let hint = hint(address);
        let unreached = |error: &dyn std::fmt::Display| {
            let told = format!("no server answers at {address}: {error}; start it there with --flight{hint}");
            Failure::new(FailureKind::Unavailable, told)
        };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().enable_time().build();
        let runtime = runtime.map_err(|error| unreached(&error))?;
        let text = match address {
            ServerAddress::Tcp(host) => format!("http://{host}"),
            ServerAddress::Tls(host) => format!("https://{host}"),
            ServerAddress::Unix(path) => format!("unix://{}", path.display()),
        };
        let endpoint = Endpoint::from_shared(text).map_err(|error| unreached(&error))?;
        let endpoint = for_much(endpoint).connect_timeout(CONNECT_PATIENCE).tcp_nodelay(true);
        let endpoint = match address {
            ServerAddress::Tls(host) => {
                let endpoint = endpoint.tls_config(tls_config(host, login)?);
                endpoint.map_err(|error| Failure::bad(format!("--server-ca: {}", with_reasons(&error))))?
            }
            ServerAddress::Tcp(_) | ServerAddress::Unix(_) => endpoint,
        };
        let channel = runtime.block_on(endpoint.connect());
        let channel = channel.map_err(|error| match why_no_tls(&error) {
            Some(why) => Failure::new(FailureKind::Unavailable, format!("{address}: {why}")),
            None => unreached(&with_reasons(&error)),
        })?;
        let client = FlightServiceClient::new(channel)
            .max_decoding_message_size(usize::MAX)
            .max_encoding_message_size(usize::MAX);
        Ok(FlightConnection { runtime, client, address: address.clone(), authorization: login.authorization()? })
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
        // A status that has a source is the connection's, and not the server's.
        let kind = if std::error::Error::source(status).is_some() { FailureKind::Unavailable } else { kind };
        match kind {
            FailureKind::Unavailable => Failure::new(
                kind,
                format!(
                    "the server at {} did not answer to the end ({message}): {doubt}{}",
                    self.address,
                    hint(&self.address)
                ),
            ),
            kind => Failure::new(kind, message),
        }
    }
}

/// A server with TLS breaks off a connection without.
fn hint(address: &ServerAddress) -> &'static str {
    match address {
        ServerAddress::Tcp(_) => ", or give grpc+tls:// if it has a certificate",
        ServerAddress::Tls(_) | ServerAddress::Unix(_) => "",
    }
}

/// The certificates that are trusted, and the name that the server's must have.
fn tls_config(host: &str, login: &Login) -> Result<ClientTlsConfig, Failure> {
    let Some(authority) = &login.authority else {
        return Err(Failure::bad(
            "grpc+tls needs the authority of the server's certificate: give it in PEM by --server-ca FILE (the certificate itself, if it has \
             signed itself)",
        ));
    };
    let begin = b"-----BEGIN CERTIFICATE-----";
    if !authority.windows(begin.len()).any(|window| window == begin) {
        return Err(Failure::bad(
            "--server-ca: there is no certificate in it: give one in PEM, which begins with -----BEGIN CERTIFICATE-----",
        ));
    }
    let name = host.rsplit_once(':').map_or(host, |(name, _)| name);
    let name = name.trim_start_matches('[').trim_end_matches(']');
    Ok(ClientTlsConfig::new().ca_certificate(Certificate::from_pem(authority)).domain_name(name))
}

/// Why a handshake failed, and what to do, if that was it.
fn why_no_tls(error: &(dyn std::error::Error + 'static)) -> Option<String> {
    let mut reasons = std::iter::successors(Some(error), |error| error.source());
    let found = reasons.find_map(|reason| {
        let within = reason.downcast_ref::<std::io::Error>().and_then(std::io::Error::get_ref);
        reason.downcast_ref::<rustls::Error>().or_else(|| within?.downcast_ref())
    })?;
    Some(match found {
        rustls::Error::InvalidCertificate(CertificateError::UnknownIssuer) => {
            "another authority has signed the server's certificate: give that one by --server-ca FILE".into()
        }
        rustls::Error::InvalidCertificate(
            CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
        ) => "the server's certificate is for another name: give --server the name or address that is in it, or the server a \
              certificate with this one as a subjectAltName"
            .into(),
        rustls::Error::InvalidCertificate(CertificateError::Expired | CertificateError::ExpiredContext { .. }) => {
            "the server's certificate has expired: give the server a new one".into()
        }
        rustls::Error::InvalidMessage(_) => "the server does not answer by TLS there: give grpc:// in place of grpc+tls://".into(),
        other => format!("there is no trusted connection: {other}"),
    })
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
        let mut action = tonic::Request::new(Action { r#type: REQUEST.into(), body: body.into() });
        if let Some(value) = &self.authorization {
            action.metadata_mut().insert("authorization", value.clone());
        }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_read_as_they_print() {
        for text in ["grpc://127.0.0.1:8815", "grpc+tls://[::1]:8815", "grpc+tls://example.org:1", "grpc+unix:///x/y"] {
            assert_eq!(text.parse::<ServerAddress>().unwrap().to_string(), text);
        }
        for text in
            ["grpc+tls://", "grpc+tls://host", "grpc+tls://host:70000", "http://host:1", "host:1", "grpc+unix://"]
        {
            assert!(text.parse::<ServerAddress>().is_err(), "{text}");
        }
    }

    #[test]
    fn a_password_is_shown_to_the_server_alone() {
        let password = Password::new(b"open:sesame").unwrap();
        let login = Login { user: Some(("alice".into(), password)), authority: None };
        let value = login.authorization().unwrap().unwrap();
        assert_eq!(value.to_str().unwrap(), "Basic YWxpY2U6b3BlbjpzZXNhbWU=");
        assert!(!format!("{login:?} {value:?}").contains("sesame") && !format!("{value:?}").contains("YWxp"));
        assert_eq!(Login::default().authorization().unwrap(), None);
    }

    #[test]
    fn tls_without_an_authority_says_what_to_give() {
        let told = |authority: Option<&[u8]>| {
            let login = Login { user: None, authority: authority.map(<[u8]>::to_vec) };
            tls_config("127.0.0.1:1", &login).err().unwrap().message
        };
        assert!(told(None).contains("--server-ca FILE"));
        assert!(told(Some(b"nothing")).contains("BEGIN CERTIFICATE"));
    }
}
