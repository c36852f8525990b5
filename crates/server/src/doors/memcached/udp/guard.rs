//! Access control over UDP: who may ask for what, and how much they are sent. A datagram's sender address can be forged, so a reply may go
//! to somebody who asked for nothing. Replies to strangers must therefore be useless for amplification attacks.
//!
//! Peers on the allow list are *trusted*. All others are sent at most one datagram for each of theirs, at most [`AMPLIFICATION_MAX`] times
//! as long, out of a bucket of tokens. The number of buckets is fixed, and a secret hash of the peer's address chooses the bucket: forged
//! addresses take no memory and cannot be aimed at somebody's bucket. Shared by all workers.

// The server is above the simulator: its secrets come from the system.
#![allow(clippy::disallowed_methods)]

use std::hash::{BuildHasher, RandomState};
use std::net::IpAddr;
use std::str::FromStr;
use std::sync::atomic::{AtomicU64, Ordering};

/// The factor of QUIC (RFC 9000, section 8.1).
pub const AMPLIFICATION_MAX: usize = 3;
const BUCKETS: usize = 8192;
/// Ports of well-known services. No client sends from them, and some services answer anything.
const SERVICE_PORT_MAX: u16 = 1023;
/// Services above those: SSDP, mDNS, memcached.
const SERVICE_PORTS: [u16; 3] = [1900, 5353, 11211];

/// An address prefix: `10.0.0.0/8`, or one address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Network {
    first: IpAddr,
    bits: u32,
}

impl Network {
    pub fn contains(&self, address: IpAddr) -> bool {
        let (ours, theirs, width) = match (self.first, address) {
            (IpAddr::V4(ours), IpAddr::V4(theirs)) => (u128::from(ours.to_bits()), u128::from(theirs.to_bits()), 32),
            (IpAddr::V6(ours), IpAddr::V6(theirs)) => (ours.to_bits(), theirs.to_bits(), 128),
            _ => return false,
        };
        // `checked_shr` refuses a shift by all bits; such a network holds every address.
        (ours ^ theirs).checked_shr(width - self.bits).unwrap_or(0) == 0
    }
}

impl FromStr for Network {
    type Err = String;

    fn from_str(text: &str) -> Result<Network, String> {
        let wrong = || format!("{text:?} is not a network: give an address, or one with its bits, such as 10.0.0.0/8");
        let (address, bits) = text.split_once('/').map_or((text, None), |(address, bits)| (address, Some(bits)));
        let first: IpAddr = address.parse().map_err(|_| wrong())?;
        let width = if first.is_ipv4() { 32 } else { 128 };
        let bits = bits.map_or(Ok(width), |bits| bits.parse().map_err(|_| wrong()))?;
        if bits > width { Err(wrong()) } else { Ok(Network { first, bits }) }
    }
}

/// The limits on replies to a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Terms {
    /// No limit.
    Trusted,
    /// One datagram of at most so many bytes.
    Stranger { reply_bytes_max: usize },
}

/// How far the workers' clocks may differ: each reads the time once a round.
const CLOCKS_APART_MAX_SECONDS: u32 = 10;

pub struct Guard {
    allow: Vec<Network>,
    rate_bytes: u32,
    datagram_bytes_max: usize,
    /// Our own port, which a server like this one answers from.
    port: u16,
    secret: RandomState,
    /// In each bucket: tokens, and the second in which they were counted.
    buckets: Vec<AtomicU64>,
}

impl Guard {
    /// Strangers are sent at most `rate_bytes` a second each, in datagrams of at most `datagram_bytes_max`.
    pub fn new(allow: Vec<Network>, rate_bytes: u32, datagram_bytes_max: usize, port: u16) -> Guard {
        let buckets = (0..BUCKETS).map(|_| AtomicU64::new(u64::from(rate_bytes) << 32)).collect();
        Guard { allow, rate_bytes, datagram_bytes_max, port, secret: RandomState::new(), buckets }
    }

    /// Whether a client may use this port.
    pub fn may_ask(&self, port: u16) -> bool {
        port > SERVICE_PORT_MAX && port != self.port && !SERVICE_PORTS.contains(&port)
    }

    pub fn terms(&self, peer: IpAddr, request_bytes: usize) -> Terms {
        let peer = peer.to_canonical();
        if self.allow.iter().any(|network| network.contains(peer)) {
            return Terms::Trusted;
        }
        let reply_bytes_max = (AMPLIFICATION_MAX * request_bytes).min(self.datagram_bytes_max);
        Terms::Stranger { reply_bytes_max }
    }

    /// Takes tokens for a reply of `bytes`. Returns whether the peer had enough.
    pub fn take(&self, peer: IpAddr, bytes: usize, now_seconds: u32) -> bool {
        let bucket = &self.buckets[self.secret.hash_one(origin(peer)) as usize % BUCKETS];
        let spent = bucket.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |bucket| {
            let (tokens, since) = ((bucket >> 32) as u32, bucket as u32);
            let seconds = now_seconds.saturating_sub(since);
            let tokens = tokens.saturating_add(self.rate_bytes.saturating_mul(seconds)).min(self.rate_bytes);
            let left = tokens.checked_sub(u32::try_from(bytes).ok()?)?;
            // Another worker's clock may be a loop ahead. A clock that was set back starts again.
            let is_ahead = since > now_seconds && since - now_seconds <= CLOCKS_APART_MAX_SECONDS;
            let counted_at = if is_ahead { since } else { now_seconds };
            Some(u64::from(left) << 32 | u64::from(counted_at))
        });
        spent.is_ok()
    }
}

/// The smallest range of addresses with one owner: an IPv4 address, or a /64 of IPv6.
fn origin(peer: IpAddr) -> u128 {
    match peer.to_canonical() {
        IpAddr::V4(address) => u128::from(address.to_bits()),
        IpAddr::V6(address) => address.to_bits() >> 64 << 64,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    fn guard(rate_bytes: u32) -> Guard {
        Guard::new(vec!["127.0.0.0/8".parse().unwrap(), "::1".parse().unwrap()], rate_bytes, 1400, 11300)
    }

    #[test]
    fn networks_hold_what_begins_as_they_do() {
        for (network, inside, outside) in [
            ("127.0.0.0/8", "127.255.0.9", "128.0.0.0"),
            ("10.1.2.3", "10.1.2.3", "10.1.2.2"),
            ("10.1.2.128/25", "10.1.2.200", "10.1.2.127"),
            ("::1", "::1", "::2"),
            ("fd00:1::/32", "fd00:1:ffff::9", "fd00:2::"),
            ("0.0.0.0/0", "203.0.113.9", "::1"),
            ("::/0", "2001:db8::1", "10.0.0.1"),
        ] {
            let network: Network = network.parse().unwrap();
            assert!(network.contains(address(inside)) && !network.contains(address(outside)), "{network:?}");
        }
        for text in ["", "10.0.0.0/33", "::1/129", "10.0.0/8", "10.0.0.0/", "localhost", "10.0.0.0/-1"] {
            assert!(text.parse::<Network>().is_err(), "{text}");
        }
    }

    #[test]
    fn strangers_get_little_for_little() {
        let guard = guard(1000);
        for trusted in ["127.0.0.1", "::1", "::ffff:127.3.2.1"] {
            assert_eq!(guard.terms(address(trusted), 10), Terms::Trusted, "{trusted}");
        }
        let terms = |bytes| guard.terms(address("10.0.0.1"), bytes);
        assert_eq!(terms(15), Terms::Stranger { reply_bytes_max: 45 });
        assert_eq!(terms(1400), Terms::Stranger { reply_bytes_max: 1400 });
    }

    #[test]
    fn services_do_not_ask() {
        let guard = guard(1000);
        assert!([1024, 11300 + 1, 65535].iter().all(|&port| guard.may_ask(port)));
        assert!([0, 7, 19, 53, 123, 1023, 1900, 5353, 11211, 11300].iter().all(|&port| !guard.may_ask(port)));
    }

    #[test]
    fn a_bucket_is_emptied_and_fills_again_up_to_its_brim() {
        let (guard, peer) = (guard(1000), address("10.0.0.1"));
        assert!(guard.take(peer, 600, 100));
        assert!(!guard.take(peer, 600, 100) && guard.take(peer, 400, 100));
        assert!(!guard.take(peer, 1, 100));
        assert!(guard.take(peer, 1000, 101) && !guard.take(peer, 1, 101));
        assert!(guard.take(peer, 1000, 4_000_000_000) && !guard.take(peer, 1, 4_000_000_000));
        // A clock that is set back gives no tokens.
        assert!(!guard.take(peer, 1, 50));
    }

    #[test]
    fn a_neighbour_within_a_64_shares_the_bucket_and_a_flood_of_others_takes_no_memory() {
        let guard = guard(1000);
        assert!(guard.take(address("2001:db8::1"), 1000, 5));
        assert!(!guard.take(address("2001:db8::ffff:2"), 1, 5));
        let before = guard.buckets.len();
        let served = (0..100_000u32).filter(|&number| guard.take(IpAddr::from(number.to_be_bytes()), 1000, 5)).count();
        assert_eq!(guard.buckets.len(), before);
        assert!(served <= BUCKETS, "{served}");
    }

    #[test]
    fn workers_whose_clocks_differ_do_not_fill_a_bucket_twice() {
        let (guard, peer) = (guard(100), address("192.0.2.1"));
        assert!(guard.take(peer, 100, 50) && guard.take(peer, 100, 51));
        for now in [50, 51, 50, 51] {
            assert!(!guard.take(peer, 1, now));
        }
        assert!(guard.take(peer, 0, 1), "a clock that was set back far");
        assert!(guard.take(peer, 100, 2));
    }
}
