//! Which datagrams are let in. Pure but for the guard's tokens.

use crate::doors::memcached::udp::frame::{self, BadFrame};
use crate::doors::memcached::udp::guard::{Guard, Terms};
use crate::doors::memcached::udp::screen::{Audience, Dialect, screen};
use crate::doors::memcached::udp::socket::Name;

/// A request that is let in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request<'a> {
    pub id: u16,
    pub payload: &'a [u8],
    pub dialect: Dialect,
    pub terms: Terms,
}

/// Why a datagram gets no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Silence {
    /// It comes from a well-known service's port: that service has asked for nothing.
    Port,
    /// It is malformed, or not all of it is requests.
    NoRequest,
    /// It is a part of a request.
    Fragment,
    /// Strangers may not ask for it.
    NotAllowed,
    /// The peer has been sent enough.
    Rate,
}

/// Judges what a peer sent, the cheapest first.
pub fn admit<'a>(
    guard: &Guard,
    peer: &Name,
    datagram: &'a [u8],
    item_bytes_max: usize,
    now_seconds: u32,
) -> Result<Request<'a>, Silence> {
    if !guard.may_ask(peer.port()) {
        return Err(Silence::Port);
    }
    let (id, payload) = frame::request(datagram).map_err(|bad| match bad {
        BadFrame::Malformed => Silence::NoRequest,
        BadFrame::Fragment => Silence::Fragment,
    })?;
    let (dialect, audience) = screen(payload, item_bytes_max).ok_or(Silence::NoRequest)?;
    let terms = guard.terms(peer.ip(), datagram.len());
    if let Terms::Stranger { reply_bytes_max } = terms {
        if audience != Audience::Everybody {
            return Err(Silence::NotAllowed);
        }
        // The longest reply that is possible, as its length is not known yet; and long requests cost work.
        if !guard.take(peer.ip(), reply_bytes_max.max(datagram.len()), now_seconds) {
            return Err(Silence::Rate);
        }
    }
    Ok(Request { id, payload, dialect, terms })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::SocketAddr;

    fn judge(guard: &Guard, peer: &str, datagram: &[u8]) -> Result<Terms, Silence> {
        let peer = Name::from(peer.parse::<SocketAddr>().unwrap());
        admit(guard, &peer, datagram, 1000, 1).map(|request| request.terms)
    }

    fn framed(payload: &[u8]) -> Vec<u8> {
        [&frame::reply(1, 0, 1), payload].concat()
    }

    #[test]
    fn what_is_asked_and_who_asks_decide() {
        let guard = Guard::new(vec!["127.0.0.0/8".parse().unwrap()], 100, 1400, 11300);
        let (friend, stranger) = ("127.0.0.1:5000", "192.0.2.1:5000");
        assert_eq!(judge(&guard, friend, &framed(b"stats\r\n")), Ok(Terms::Trusted));
        assert_eq!(judge(&guard, stranger, &framed(b"stats\r\n")), Err(Silence::NotAllowed));
        assert_eq!(judge(&guard, stranger, &framed(b"get abcde\r\n")), Ok(Terms::Stranger { reply_bytes_max: 57 }));
        assert_eq!(judge(&guard, stranger, &framed(b"get abcde\r\n")), Err(Silence::Rate));
        assert_eq!(judge(&guard, "192.0.2.2:5000", &framed(b"get a\r\n")), Ok(Terms::Stranger { reply_bytes_max: 45 }));
        assert_eq!(judge(&guard, friend, &framed(b"STORED\r\n")), Err(Silence::NoRequest));
        assert_eq!(judge(&guard, friend, b"get a\r\n"), Err(Silence::NoRequest));
        assert_eq!(
            judge(&guard, friend, &[&frame::reply(1, 0, 2), &b"get a\r\n"[..]].concat()),
            Err(Silence::Fragment)
        );
        for port in [0, 53, 11211, 11300] {
            assert_eq!(judge(&guard, &format!("127.0.0.1:{port}"), &framed(b"get a\r\n")), Err(Silence::Port));
        }
    }
}
