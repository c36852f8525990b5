//! The options of a server: addresses, threads, limits, memory.

use std::collections::BTreeSet;
use std::sync::Arc;

use tapetum::Keyspace;

use super::memcached::udp::UdpOptions;
use crate::logging::LogLosses;
use crate::net::limits::Limits;
use crate::net::listen::Address;
use crate::store::hot_keys::WarmProgress;
use tapetum_access::gate::Gate;
use tapetum_access::tls::Tls;

pub struct Options {
    pub addresses: Vec<Address>,
    /// The addresses at which block devices are served.
    pub nbd: Vec<Address>,
    pub threads: usize,
    pub limits: Limits,
    /// Settings for `stats settings` that the server does not know itself.
    pub settings: Vec<(&'static str, String)>,
    /// The whole memory budget, including the front doors' part.
    pub memory_bytes: u64,
    /// The address of Prometheus' figures, if they are served.
    pub metrics: Option<Address>,
    /// The address of Flight's clients, if they are served.
    pub flight: Option<Address>,
    /// The address of the console, if it is served.
    pub console: Option<Address>,
    /// The address for requests in datagrams, if they are allowed.
    pub udp: Option<UdpOptions>,
    /// Progress of warming DRAM, for the figures.
    pub hot_keys: Arc<WarmProgress>,
    /// Losses of the log, for the figures.
    pub log: LogLosses,
    pub access: Access,
}

/// The users and the certificate of a server, and what it may do without them.
#[derive(Clone, Default)]
pub struct Access {
    /// The users who may log in; without, everybody may do everything.
    pub gate: Option<Arc<Gate>>,
    pub tls: Option<Arc<Tls>>,
    /// Whether other machines may be served without users or TLS.
    pub is_insecure: bool,
    /// The keyspace that everybody may read over UDP.
    pub udp_anonymous: Option<String>,
}

impl Access {
    /// Reads users and certificates again. What cannot be used is told, and stays as it was.
    pub fn reload(&self) {
        if self.gate.is_none() && self.tls.is_none() {
            tracing::info!(
                "there are no users and no certificate to read again; options are read at the start alone: restart the server to give it some"
            );
        }
        if let Some(gate) = &self.gate {
            match gate.reload() {
                Ok(1) => tracing::info!("read {} again: 1 user", gate.path().display()),
                Ok(count) => tracing::info!("read {} again: {count} users", gate.path().display()),
                Err(error) => tracing::error!("the users stay as they were: {error}"),
            }
        }
        if let Some(tls) = &self.tls {
            match tls.reload() {
                Ok(()) => tracing::info!("read {} again", tls.files().chain.display()),
                Err(error) => tracing::error!("the certificate stays as it was: {error}"),
            }
        }
    }

    /// Warns of rights over keyspaces that are not there: perhaps a name is mistyped.
    pub fn warn_of_unknown_keyspaces(&self, known: &[Keyspace]) {
        let Some(gate) = &self.gate else { return };
        let is_unknown = |name: &&str| !known.iter().any(|keyspace| keyspace.name == **name);
        let users = gate.users();
        let named = users.iter().flat_map(|user| user.rights.iter().filter_map(|(_, keyspace)| keyspace));
        let unknown: BTreeSet<&str> = named.filter(is_unknown).collect();
        if let Some(first) = unknown.first() {
            let more = if unknown.len() > 1 { format!(", and over {} more", unknown.len() - 1) } else { String::new() };
            tracing::warn!(
                "{} has rights over the keyspace {first:?}, which is not there{more}: they hold once it is made",
                gate.path().display()
            );
        }
    }
}

impl Options {
    /// Only memcached at `addresses`, with two threads.
    pub fn at(addresses: Vec<Address>) -> Options {
        Options {
            addresses,
            nbd: Vec::new(),
            threads: 2,
            limits: Limits::default(),
            settings: Vec::new(),
            memory_bytes: 0,
            metrics: None,
            flight: None,
            console: None,
            udp: None,
            hot_keys: Arc::default(),
            log: LogLosses::default(),
            access: Access::default(),
        }
    }
}
