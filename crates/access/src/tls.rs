//! TLS: the server's certificate and key, and the certificates of its clients.
//!
//! 1. TLS 1.3, and 1.2 unless it is refused; sessions are resumed by tickets, and nothing is sent before a handshake is over (no 0-RTT).
//! 2. Files are read again when asked for ([`Tls::reload`]); one that cannot be used leaves those before it in use. Connections that there are
//!    keep what they began with.
//! 3. Tickets from before a reload are worth nothing: another authority may have to be asked about their clients.
//!
//! Threads: all of a server's.

use std::fmt;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::ServerCertVerifier;
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::danger::ClientCertVerifier;
use rustls::server::{NoClientAuth, VerifierBuilderError, WebPkiClientVerifier};
use rustls::{CertificateError, InconsistentKeys, RootCertStore, ServerConfig, SupportedProtocolVersion};

use crate::secret_file;

/// A handshake takes no longer.
pub const HANDSHAKE_PATIENCE: Duration = Duration::from_secs(10);
/// The most handshakes at once of each worker, and of each other door; others wait for a place.
pub const HANDSHAKES_MAX: usize = 64;

/// Whether clients show certificates.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ClientCertificates {
    #[default]
    None,
    /// They may.
    Asked,
    /// They have to.
    Needed,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum VersionMin {
    #[default]
    Tls12,
    Tls13,
}

/// The files of a server's TLS, and what it asks of clients.
#[derive(Clone, Debug)]
pub struct TlsFiles {
    /// The server's certificate, and those between it and its authority.
    pub chain: PathBuf,
    pub key: PathBuf,
    /// The authorities of clients' certificates.
    pub authorities: Option<PathBuf>,
    pub client_certificates: ClientCertificates,
    pub version_min: VersionMin,
}

/// The protocol that follows, for clients that ask.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Follows {
    /// They do not ask.
    Unnamed,
    Http1,
    Http2,
}

/// See the [module](self).
pub struct Tls {
    files: TlsFiles,
    now: ArcSwap<Configs>,
}

struct Configs {
    unnamed: Arc<ServerConfig>,
    http1: Arc<ServerConfig>,
    http2: Arc<ServerConfig>,
}

/// Files that cannot be used. Says what to do.
#[derive(Debug)]
pub struct TlsError {
    path: PathBuf,
    why: String,
}

impl fmt::Display for TlsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.path.display(), self.why)
    }
}

impl std::error::Error for TlsError {}

impl TlsError {
    fn new(path: &Path, why: impl fmt::Display) -> TlsError {
        TlsError { path: path.into(), why: why.to_string() }
    }
}

impl Tls {
    /// Reads the files.
    ///
    /// # Errors
    /// If they cannot be used.
    pub fn open(files: TlsFiles) -> Result<Tls, TlsError> {
        Ok(Tls { now: ArcSwap::from_pointee(Configs::read(&files)?), files })
    }

    /// Reads the files again: clients that connect from now on see that.
    ///
    /// # Errors
    /// Those before stay in use then.
    pub fn reload(&self) -> Result<(), TlsError> {
        self.now.store(Arc::new(Configs::read(&self.files)?));
        Ok(())
    }

    /// The configuration for a client that connects now.
    pub fn config(&self, follows: Follows) -> Arc<ServerConfig> {
        let now = self.now.load();
        Arc::clone(match follows {
            Follows::Unnamed => &now.unnamed,
            Follows::Http1 => &now.http1,
            Follows::Http2 => &now.http2,
        })
    }

    /// Whether clients may show certificates.
    pub fn asks_for_certificates(&self) -> bool {
        self.files.client_certificates != ClientCertificates::None
    }

    pub fn files(&self) -> &TlsFiles {
        &self.files
    }
}

impl Configs {
    fn read(files: &TlsFiles) -> Result<Configs, TlsError> {
        let provider = Arc::new(ring::default_provider());
        let versions: &[&SupportedProtocolVersion] = match files.version_min {
            VersionMin::Tls12 => &[&rustls::version::TLS13, &rustls::version::TLS12],
            VersionMin::Tls13 => &[&rustls::version::TLS13],
        };
        let (chain, key) = (certificates(&files.chain)?, private_key(&files.key)?);
        if let Some(why) = why_untimely(&chain, &provider) {
            return Err(TlsError::new(&files.chain, why));
        }
        let builder = ServerConfig::builder_with_provider(Arc::clone(&provider)).with_protocol_versions(versions);
        let builder = builder.map_err(|error| TlsError::new(&files.chain, error))?;
        let builder = builder.with_client_cert_verifier(verifier(files, &provider)?);
        let mut unnamed = builder.with_single_cert(chain, key).map_err(|error| match error {
            rustls::Error::InconsistentKeys(InconsistentKeys::KeyMismatch) => TlsError::new(
                &files.key,
                format!("the key is another certificate's than that of {}: give its own", files.chain.display()),
            ),
            error => TlsError::new(&files.chain, format!("the certificate is not usable ({error}): make another")),
        })?;
        unnamed.ticketer = ring::Ticketer::new().map_err(|error| TlsError::new(&files.chain, error))?;
        unnamed.max_early_data_size = 0;
        let following = |name: &[u8]| {
            let mut config = unnamed.clone();
            config.alpn_protocols = vec![name.to_vec()];
            Arc::new(config)
        };
        let (http1, http2) = (following(b"http/1.1"), following(b"h2"));
        Ok(Configs { unnamed: Arc::new(unnamed), http1, http2 })
    }
}

fn verifier(files: &TlsFiles, provider: &Arc<CryptoProvider>) -> Result<Arc<dyn ClientCertVerifier>, TlsError> {
    let Some(path) = files.authorities.as_ref().filter(|_| files.client_certificates != ClientCertificates::None)
    else {
        return Ok(Arc::new(NoClientAuth));
    };
    let mut roots = RootCertStore::empty();
    for certificate in certificates(path)? {
        let added = roots.add(certificate);
        added.map_err(|error| TlsError::new(path, format!("a certificate is no authority's ({error})")))?;
    }
    let builder = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::clone(provider));
    let built = match files.client_certificates {
        ClientCertificates::Needed => builder.build(),
        ClientCertificates::None | ClientCertificates::Asked => builder.allow_unauthenticated().build(),
    };
    built.map_err(|error: VerifierBuilderError| TlsError::new(path, error))
}

/// The certificates of a file in PEM.
fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let file = File::open(path).map_err(|error| unread(path, &error))?;
    let read: Result<Vec<_>, pem::Error> = CertificateDer::pem_reader_iter(io::BufReader::new(file)).collect();
    match read {
        Ok(certificates) if certificates.is_empty() => Err(TlsError::new(
            path,
            "there is no certificate in it: give one in PEM, which begins with -----BEGIN CERTIFICATE-----",
        )),
        Ok(certificates) => Ok(certificates),
        Err(error) => Err(broken(path, &error)),
    }
}

fn private_key(path: &Path) -> Result<PrivateKeyDer<'static>, TlsError> {
    let text = secret_file::read(path).map_err(|error| unread(path, &error))?;
    let is_locked = |words: &[u8]| text.windows(words.len()).any(|window| window == words);
    if is_locked(b"ENCRYPTED") {
        return Err(TlsError::new(
            path,
            format!("the key has a password: take it off by `openssl pkey -in {0} -out {0}.open`", path.display()),
        ));
    }
    PrivateKeyDer::from_pem_slice(&text).map_err(|error| match error {
        pem::Error::NoItemsFound => {
            TlsError::new(path, "there is no key in it: give one in PEM, which begins with -----BEGIN PRIVATE KEY-----")
        }
        error => broken(path, &error),
    })
}

fn unread(path: &Path, error: &io::Error) -> TlsError {
    match error.raw_os_error() {
        // A file of secrets that others may read: the error says what to do.
        None => TlsError::new(path, error),
        Some(_) if error.kind() == io::ErrorKind::NotFound => {
            TlsError::new(path, "there is no such file: give the path of one that is there")
        }
        Some(_) => TlsError::new(path, format!("it cannot be read ({error}): give a file that this user may read")),
    }
}

fn broken(path: &Path, error: &pem::Error) -> TlsError {
    match error {
        pem::Error::Io(error) => unread(path, error),
        pem::Error::MissingSectionEnd { .. } => {
            TlsError::new(path, "it is cut, or its -----END line is damaged: give a whole one in PEM")
        }
        error => TlsError::new(path, format!("it is damaged ({error}): give a whole one in PEM")),
    }
}

/// Why clients would say that the time of the certificate is over, or has not begun.
fn why_untimely(chain: &[CertificateDer<'static>], provider: &Arc<CryptoProvider>) -> Option<&'static str> {
    use CertificateError::{Expired, ExpiredContext, NotValidYet, NotValidYetContext};
    // Others between it and its authority may be over: clients find another way.
    let end = chain.first()?;
    let mut roots = RootCertStore::empty();
    // Clients look at its time before they look for its authority, which nobody knows here.
    roots.add(end.clone()).ok()?;
    let verifier = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), Arc::clone(provider)).build().ok()?;
    let name = ServerName::try_from("localhost").ok()?;
    match verifier.verify_server_cert(end, &[], &name, &[], UnixTime::now()) {
        Err(rustls::Error::InvalidCertificate(Expired | ExpiredContext { .. })) => {
            Some("the certificate has expired: give a new one, or set this machine's clock if it is wrong")
        }
        Err(rustls::Error::InvalidCertificate(NotValidYet | NotValidYetContext { .. })) => {
            Some("the certificate is not valid yet: give another one, or set this machine's clock if it is wrong")
        }
        _ => None,
    }
}

/// The user whom a verified certificate names: the first DNS name among its alternative ones.
pub fn name_of(certificate: &CertificateDer<'_>) -> Option<String> {
    let parsed = webpki::EndEntityCert::try_from(certificate).ok()?;
    parsed.valid_dns_names().next().map(str::to_owned)
}
