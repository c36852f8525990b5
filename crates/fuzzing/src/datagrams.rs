//! Datagrams from anybody: what the door over UDP lets in.

use std::net::SocketAddr;
use std::sync::LazyLock;

use tapetum::fuzzing::Input;
use tapetum_server::doors::memcached::udp::admission::{Silence, admit};
use tapetum_server::doors::memcached::udp::guard::{AMPLIFICATION_MAX, Guard, Terms};
use tapetum_server::doors::memcached::udp::{Name, frame};

const ITEM_BYTES_MAX: usize = 1000;
const DATAGRAM_BYTES_MAX: usize = 1400;
const OUR_PORT: u16 = 11300;

/// Nobody has been sent enough: that is not what is looked at here.
static GUARD: LazyLock<Guard> = LazyLock::new(|| {
    let loopback = "127.0.0.0/8".parse().expect("a network");
    Guard::new(vec![loopback], u32::MAX, DATAGRAM_BYTES_MAX, OUR_PORT)
});

/// A stranger is let in with no more than a friend; what is let in is whole, and its answer bounded; and a server's answer never is.
pub fn datagram(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let [high, low, second, ..] = input.array::<4>();
    let (port, datagram) = (u16::from_be_bytes([high, low]), input.rest());
    let judge = |host: [u8; 4]| {
        let peer = Name::from(SocketAddr::from((host, port)));
        // Tokens are spent by the second, and there are more than any datagram takes.
        admit(&GUARD, &peer, datagram, ITEM_BYTES_MAX, u32::from(second))
    };
    let (friend, stranger) = (judge([127, 0, 0, 1]), judge([192, 0, 2, 1]));
    match (friend, stranger) {
        (Err(one), other) => assert_eq!(other, Err(one)),
        (Ok(friend), stranger) => {
            assert!(port > 1023 && port != OUR_PORT && friend.terms == Terms::Trusted);
            assert_eq!(datagram[2..6], [0, 0, 0, 1]);
            assert_eq!(datagram[8..], *friend.payload);
            match stranger {
                Err(silence) => assert!(matches!(silence, Silence::NotAllowed | Silence::Rate), "{silence:?}"),
                Ok(stranger) => {
                    let Terms::Stranger { reply_bytes_max } = stranger.terms else { panic!("a stranger is trusted") };
                    assert!(reply_bytes_max <= DATAGRAM_BYTES_MAX);
                    assert!(reply_bytes_max <= AMPLIFICATION_MAX * datagram.len());
                    assert_eq!((stranger.id, stranger.payload), (friend.id, friend.payload));
                }
            }
        }
    }
    // The same bytes as an answer: of memcached they begin so, and of a binary server with its magic.
    for word in
        [&b"VALUE "[..], b"END\r\n", b"ERROR\r\n", b"SERVER_ERROR ", b"CLIENT_ERROR ", b"STORED\r\n", b"STAT ", &[0x81]]
    {
        let answer = [&frame::reply(1, 0, 1)[..], word, datagram].concat();
        let peer = Name::from(SocketAddr::from(([127, 0, 0, 1], 5000)));
        assert!(admit(&GUARD, &peer, &answer, ITEM_BYTES_MAX, 0).is_err());
    }
}
