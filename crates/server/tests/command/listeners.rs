//! Keyspaces that are dropped, made and renamed by commands while clients of a listener stay connected.

use std::io::{BufRead, BufReader, Write};
use std::net::UdpSocket;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use crate::keyspaces::{exchange, new_scratch, serve};
use crate::outside::stop;

/// A connection that stays open, and datagrams to the same server.
struct Clients {
    stream: BufReader<UnixStream>,
    udp: UdpSocket,
}

impl Clients {
    fn connect(socket: &Path, port: &str) -> Clients {
        let stream = UnixStream::connect(socket).unwrap();
        let udp = UdpSocket::bind("127.0.0.1:0").unwrap();
        udp.connect(format!("127.0.0.1:{port}")).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        udp.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        Clients { stream: BufReader::new(stream), udp }
    }

    /// The answer to a request of one line and maybe a value, which ends with this line on the stream.
    fn told(&mut self, request: &str, last: &str) -> String {
        self.stream.get_mut().write_all(request.as_bytes()).unwrap();
        let mut told = String::new();
        while told.lines().last().is_none_or(|line| !line.starts_with(last)) {
            assert!(self.stream.read_line(&mut told).unwrap() > 0, "{told}");
        }
        told
    }

    /// Asks for `key` over the stream and by a datagram; gives the answer, which is the same.
    #[track_caller]
    fn get(&mut self, last: &str) -> String {
        let told = self.told("get key\r\n", last);
        let mut datagram = [0; 1024];
        self.udp.send(b"\0\x07\0\0\0\x01\0\0get key\r\n").unwrap();
        let bytes = self.udp.recv(&mut datagram).unwrap();
        assert_eq!(String::from_utf8_lossy(&datagram[8..bytes]), told);
        told
    }
}

#[test]
fn a_listener_serves_whichever_keyspace_has_its_name() {
    let port = UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port().to_string();
    for options in [&["--sync", "always"][..], &["--sync", "everysec", "--tier", "4MiB"]] {
        let scratch = new_scratch("followed");
        scratch.succeeds(&["keyspace", "create", "a"]);
        let words = ["--memcached", &scratch.socket(), "--keyspace", "a", "--udp", &port];
        let mut server = serve(&scratch, &[&words, options].concat());
        let mut clients = Clients::connect(&scratch.join("socket"), &port);
        let change = |words: &[&str]| scratch.succeeds(&[&["keyspace"], words].concat());
        let value_of = |keyspace: &str| scratch.succeeds(&["get", "key", "--keyspace", keyspace]);
        let (gone, stored) = ("SERVER_ERROR the keyspace was dropped", "STORED\r\n");
        assert_eq!(clients.told("set key 0 0 5\r\nfirst\r\n", ""), stored);
        assert_eq!(clients.get("END"), "VALUE key 0 5\r\nfirst\r\nEND\r\n");
        change(&["drop", "a", "--yes"]);
        assert!(clients.get("").starts_with(gone));
        assert!(clients.told("set key 0 0 1\r\n-\r\n", "").starts_with(gone));
        change(&["create", "a"]);
        assert_eq!(clients.get("END"), "END\r\n");
        assert_eq!(clients.told("set key 0 0 6\r\nsecond\r\n", ""), stored);
        assert_eq!((clients.get("END"), value_of("a")), ("VALUE key 0 6\r\nsecond\r\nEND\r\n".into(), "second".into()));
        change(&["rename", "a", "b"]);
        assert!(clients.get("").starts_with(gone), "a keyspace of another name is not served");
        change(&["create", "a", "--index", "ordered"]);
        assert_eq!(clients.get("END"), "END\r\n");
        assert_eq!(clients.told("set key 0 0 5\r\nthird\r\n", ""), stored);
        assert_eq!((value_of("a"), value_of("b")), ("third".into(), "second".into()));
        change(&["drop", "a", "--yes"]);
        change(&["create", "a", "--block-device", "1MiB"]);
        assert!(clients.get("").starts_with(gone), "a block device is not for memcached's clients");
        change(&["drop", "a", "--yes"]);
        change(&["rename", "b", "a"]);
        assert_eq!(clients.get("END"), "VALUE key 0 6\r\nsecond\r\nEND\r\n");
        assert!(clients.told("stats\r\n", "END").contains("STAT curr_items 1\r\n"));
        assert_eq!(exchange(&scratch, "socket", "get key\r\n"), "VALUE key 0 6\r\nsecond\r\nEND\r\n");
        stop(&mut server);
    }
}
