//! The options of a server: addresses, threads, limits, memory.

use std::sync::Arc;

use super::memcached::udp::UdpOptions;
use crate::logging::LogLosses;
use crate::net::limits::Limits;
use crate::net::listen::{Address, LoopbackAddress};
use crate::store::hot_keys::WarmProgress;

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
    pub metrics: Option<LoopbackAddress>,
    /// The address of Flight's clients, if they are served.
    pub flight: Option<Address>,
    /// The address for requests in datagrams, if they are allowed.
    pub udp: Option<UdpOptions>,
    /// Progress of warming DRAM, for the figures.
    pub hot_keys: Arc<WarmProgress>,
    /// Losses of the log, for the figures.
    pub log: LogLosses,
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
            udp: None,
            hot_keys: Arc::default(),
            log: LogLosses::default(),
        }
    }
}
