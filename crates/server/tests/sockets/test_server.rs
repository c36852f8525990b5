//! A server in this process, asked over TCP.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use crate::late_store::late_store;
use tapetum::Store;
use tapetum_server::doors::options::Options;
use tapetum_server::net::limits::Limits;
use tapetum_server::server::Server;
use tapetum_server::store::store_slot::StoreSlot;

pub struct TestServer {
    server: Option<Server>,
    pub address: String,
}

impl TestServer {
    /// Over a store that answers late and in any order.
    pub fn new(limits: Limits) -> TestServer {
        TestServer::over(late_store(), limits)
    }

    pub fn over(store: Store, limits: Limits) -> TestServer {
        TestServer::start(store, Options { limits, ..Options::at(vec!["127.0.0.1:0".parse().unwrap()]) })
    }

    pub fn start(store: Store, options: Options) -> TestServer {
        let server = Server::start(Arc::new(StoreSlot::new(store)), options).unwrap();
        let address = server.addresses()[0].to_string();
        TestServer { server: Some(server), address }
    }

    pub fn udp(&self) -> SocketAddr {
        self.server.as_ref().unwrap().udp_addresses()[0]
    }

    pub fn client(&self) -> TcpStream {
        let client = TcpStream::connect(&self.address).unwrap();
        client.set_nodelay(true).unwrap();
        // Long enough for any machine; a hang becomes a failure.
        client.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        client
    }

    /// Sends `script`, says that no more comes, and returns everything that came back.
    pub fn exchange(&self, script: &[u8]) -> Vec<u8> {
        let mut client = self.client();
        client.write_all(script).unwrap();
        client.shutdown(Shutdown::Write).unwrap();
        let mut reply = Vec::new();
        client.read_to_end(&mut reply).unwrap();
        reply
    }

    /// A figure of `stats`.
    pub fn figure(&self, name: &str) -> u64 {
        let stats = String::from_utf8(self.exchange(b"stats\r\n")).unwrap();
        let found = stats.lines().find_map(|line| line.strip_prefix(&format!("STAT {name} ")));
        found.unwrap_or_else(|| panic!("no {name} in {stats}")).parse().unwrap()
    }

    pub fn stop(mut self) {
        self.server.take().unwrap().stop().unwrap();
    }
}

impl Drop for TestServer {
    fn drop(&mut self) {
        if let Some(server) = self.server.take()
            && !thread::panicking()
        {
            server.stop().unwrap();
        }
    }
}

pub fn set(key: &str, value: &[u8]) -> Vec<u8> {
    [format!("set {key} 0 0 {}\r\n", value.len()).as_bytes(), value, b"\r\n"].concat()
}

/// The reply to a get of one key that is there.
pub fn hit(key: &str, value: &[u8]) -> Vec<u8> {
    [format!("VALUE {key} 0 {}\r\n", value.len()).as_bytes(), value, b"\r\nEND\r\n"].concat()
}
