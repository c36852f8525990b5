//! A client of memcached's text protocol over TLS, for GETs of items of one size. One thread owns a connection.

use std::fs::File;
use std::io::{self, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};

use crate::Failure;

/// The configuration of clients that believe the authority in a file.
pub fn config(authority: &Path) -> Result<Arc<ClientConfig>, Failure> {
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_reader_iter(BufReader::new(File::open(authority)?)) {
        roots.add(certificate.map_err(|error| format!("{}: {error:?}", authority.display()))?)?;
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions()?;
    Ok(Arc::new(config.with_root_certificates(roots).with_no_client_auth()))
}

pub struct TlsConnection {
    stream: StreamOwned<ClientConnection, TcpStream>,
    requests: Vec<u8>,
    replies: Vec<u8>,
}

impl TlsConnection {
    pub fn open(address: SocketAddr, config: &Arc<ClientConfig>) -> Result<TlsConnection, Failure> {
        let socket = TcpStream::connect(address)?;
        socket.set_nodelay(true)?;
        socket.set_read_timeout(Some(Duration::from_secs(60)))?;
        let session = ClientConnection::new(Arc::clone(config), ServerName::try_from("localhost")?)?;
        Ok(TlsConnection { stream: StreamOwned::new(session, socket), requests: Vec::new(), replies: Vec::new() })
    }

    /// Sends words, and waits for a reply of as many bytes as `expected`, which it has to be.
    pub fn exchange(&mut self, words: &[u8], expected: &[u8]) -> Result<(), Failure> {
        self.stream.write_all(words)?;
        self.stream.flush()?;
        self.replies.resize(expected.len(), 0);
        self.stream.read_exact(&mut self.replies)?;
        match self.replies == expected {
            true => Ok(()),
            false => Err(format!("the answer is {}", self.replies.escape_ascii()).into()),
        }
    }

    /// Sends GETs of these keys.
    pub fn ask(&mut self, keys: impl Iterator<Item = u64>) -> io::Result<()> {
        self.requests.clear();
        keys.for_each(|key| self.requests.extend_from_slice(format!("get {}\r\n", name(key)).as_bytes()));
        self.stream.write_all(&self.requests)?;
        self.stream.flush()
    }

    /// Waits for `count` values of so many bytes.
    pub fn take(&mut self, count: usize, value_bytes: usize) -> Result<(), Failure> {
        self.replies.resize(count * reply_bytes(value_bytes), 0);
        self.stream.read_exact(&mut self.replies)?;
        match self.replies.ends_with(b"\r\nEND\r\n") {
            true => Ok(()),
            false => Err("a key is not there, or its value is of another size".into()),
        }
    }
}

/// The key of an item: all are of one length.
pub fn name(key: u64) -> String {
    format!("key{key:010}")
}

fn reply_bytes(value_bytes: usize) -> usize {
    format!("VALUE {} 0 {value_bytes}\r\n", name(0)).len() + value_bytes + b"\r\nEND\r\n".len()
}
