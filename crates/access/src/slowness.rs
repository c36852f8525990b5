//! Failed logins by address: who fails often waits, longer each time.
//!
//! Threads: one at a time.

#![allow(clippy::disallowed_methods)] // In tests, whose clocks nothing depends on.

use std::collections::HashMap;
use std::fmt;
use std::net::{IpAddr, Ipv6Addr};
use std::time::{Duration, Instant};

/// The wait after a first failure; it doubles with each other.
const FIRST: Duration = Duration::from_millis(100);
const LONGEST: Duration = Duration::from_secs(10);
/// The longest of those who share one entry.
const SHARED_LONGEST: Duration = Duration::from_secs(1);
/// Without a failure for so long, the earlier ones are forgotten.
const FORGOTTEN: Duration = Duration::from_secs(120);
/// Addresses that are remembered; of more, all share one entry.
const ADDRESSES_MAX: usize = 10_000;

/// An address as it is counted: of IPv6, a whole network, since a machine has that many.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Origin {
    /// A Unix socket.
    Here,
    Address(IpAddr),
    /// Too many others are remembered.
    Elsewhere,
}

impl Origin {
    pub fn of(address: Option<IpAddr>) -> Origin {
        match address.map(|address| address.to_canonical()) {
            None => Origin::Here,
            Some(IpAddr::V6(address)) => {
                let [a, b, c, d, ..] = address.segments();
                Origin::Address(Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0).into())
            }
            Some(address) => Origin::Address(address),
        }
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Origin::Here => f.write_str("through a Unix socket"),
            Origin::Address(address) if address.is_ipv6() => write!(f, "from {address}/64"),
            Origin::Address(address) => write!(f, "from {address}"),
            Origin::Elsewhere => f.write_str("from elsewhere"),
        }
    }
}

/// See the [module](self).
#[derive(Default)]
pub struct Slowness {
    failures: HashMap<Origin, (u32, Instant)>,
}

impl Slowness {
    /// Whether somebody from there has failed lately.
    pub fn has_failed(&self, origin: Origin, now: Instant) -> bool {
        self.failures.get(&self.place(origin)).is_some_and(|(_, last)| now < *last + FORGOTTEN)
    }

    /// How long a login from there waits before it is looked at.
    pub fn wait(&self, origin: Origin, now: Instant) -> Duration {
        match self.failures.get(&self.place(origin)) {
            Some(&(count, last)) if now < last + FORGOTTEN => {
                let doubled = FIRST.saturating_mul(1 << count.saturating_sub(1).min(20));
                // Whoever comes first from where nobody has failed must not wait long for others.
                let longest = if self.place(origin) == Origin::Elsewhere { SHARED_LONGEST } else { LONGEST };
                (last + doubled.min(longest)).saturating_duration_since(now)
            }
            _ => Duration::ZERO,
        }
    }

    pub fn failed(&mut self, origin: Origin, now: Instant) {
        if self.failures.len() >= ADDRESSES_MAX {
            self.failures.retain(|_, (_, last)| now < *last + FORGOTTEN);
        }
        let (count, last) = self.failures.entry(self.place(origin)).or_insert((0, now));
        *count = if now < *last + FORGOTTEN { count.saturating_add(1) } else { 1 };
        *last = now;
    }

    fn place(&self, origin: Origin) -> Origin {
        let is_full = self.failures.len() >= ADDRESSES_MAX && !self.failures.contains_key(&origin);
        if is_full { Origin::Elsewhere } else { origin }
    }
}

#[cfg(test)]
#[allow(clippy::disallowed_methods)] // A time to count from.
mod tests {
    use super::*;

    fn origin(address: &str) -> Origin {
        Origin::of(Some(address.parse().unwrap()))
    }

    #[test]
    fn who_fails_waits_longer_each_time_and_nobody_else_does() {
        let (mut slowness, now, here) = (Slowness::default(), Instant::now(), origin("192.0.2.1"));
        assert_eq!(slowness.wait(here, now), Duration::ZERO);
        for expected in [100, 200, 400, 800, 1600, 3200, 6400, 10_000, 10_000] {
            slowness.failed(here, now);
            assert_eq!(slowness.wait(here, now), Duration::from_millis(expected));
        }
        assert_eq!(slowness.wait(here, now + LONGEST), Duration::ZERO, "it has waited");
        assert_eq!(slowness.wait(origin("192.0.2.2"), now), Duration::ZERO);
        slowness.failed(here, now + FORGOTTEN);
        assert_eq!(slowness.wait(here, now + FORGOTTEN), FIRST, "the earlier ones are forgotten");
    }

    #[test]
    fn a_network_of_ipv6_is_one_origin_and_a_mapped_address_is_itself() {
        assert_eq!(origin("2001:db8:1:2::1"), origin("2001:db8:1:2:ffff::7"));
        assert_ne!(origin("2001:db8:1:2::1"), origin("2001:db8:1:3::1"));
        assert_eq!(origin("::ffff:192.0.2.1"), origin("192.0.2.1"));
    }

    #[test]
    fn so_many_addresses_are_remembered_and_the_rest_share_their_slowness() {
        let (mut slowness, now) = (Slowness::default(), Instant::now());
        for at in 0..ADDRESSES_MAX as u32 + 10 {
            slowness.failed(Origin::Address(IpAddr::V4(at.into())), now);
        }
        assert!(slowness.failures.len() <= ADDRESSES_MAX + 1);
        assert!(slowness.wait(origin("255.0.0.1"), now) > FIRST, "one of the rest");
    }
}
