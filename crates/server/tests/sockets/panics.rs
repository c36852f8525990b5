//! A panic in a worker ends the process at once, says so in its log, and loses nothing that was acknowledged. The server is this test
//! run again by itself, over a real store whose sessions panic at one key.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::fd::RawFd;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use tapetum::{Error, Inspection, KeyspaceRef, Location, Reply, Request, SlabClass, Stats, ValueRange};
use tapetum_server::doors::options::Options;
use tapetum_server::logging::Log;
use tapetum_server::server::Server;
use tapetum_server::store::engine::{Session, Store};

const FOLDER: &str = "TAPETUM_TEST_PANICS_IN";
const KEY: &[u8] = b"panic";

struct PanickingSession(tapetum::Session);

impl Session for PanickingSession {
    fn submit(&mut self, keyspace: KeyspaceRef, token: u64, request: Request<'_>) {
        assert_ne!(request.key(), KEY, "planted");
        self.0.submit_to(keyspace, token, request).expect("one client sends one at a time");
    }

    fn poll(&mut self, replies: &mut Vec<Reply>) {
        self.0.poll(replies);
    }

    fn bytes(&self, value: ValueRange) -> &[u8] {
        self.0.bytes(value)
    }

    fn in_flight(&self) -> usize {
        self.0.in_flight()
    }

    fn event_fds(&self) -> Vec<RawFd> {
        self.0.event_fds()
    }
}

struct PanickingStore(tapetum::Store);

impl Store for PanickingStore {
    type Session = PanickingSession;

    fn session(&self) -> Result<PanickingSession, Error> {
        self.0.session().map(PanickingSession)
    }

    fn stats(&self) -> Stats {
        self.0.stats()
    }

    fn slabs(&self) -> Vec<SlabClass> {
        self.0.slabs()
    }

    fn inspect(&self) -> Result<Inspection, Error> {
        tapetum::inspect(&self.0)
    }

    fn locate(&self, keyspace: KeyspaceRef, key: &[u8]) -> Result<Location, Error> {
        tapetum::locate(&self.0, keyspace, key)
    }

    fn resize_capacity(&self, bytes: u64) -> Result<(), Error> {
        self.0.resize_capacity(bytes)
    }

    fn resize_memory(&self, bytes: u64) -> Result<(), Error> {
        self.0.resize_memory(bytes)
    }
}

fn open(folder: &Path) -> tapetum::Store {
    let options = tapetum::Options::new().capacity_bytes(64 << 20).memory_bytes(64 << 20);
    options.open(folder.join("data")).unwrap()
}

/// The server, if this process was started to be one.
#[test]
#[ignore = "started by the test below"]
fn serves_until_it_panics() {
    let Some(folder) = std::env::var_os(FOLDER).map(PathBuf::from) else { return };
    let log = Log::of_server(tracing::Level::INFO).unwrap();
    let options = Options { log: log.losses(), ..Options::at(vec!["127.0.0.1:0".parse().unwrap()]) };
    let server = Server::start(Arc::new(PanickingStore(open(&folder))), options).unwrap();
    tracing::info!("listening at {}", server.addresses()[0]);
    std::thread::sleep(Duration::from_secs(60));
    panic!("it should have ended by then");
}

#[test]
fn a_panic_in_a_worker_ends_the_process_and_loses_nothing() {
    let folder = std::env::temp_dir().join(format!("tapetum-panics-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "panics::serves_until_it_panics", "--ignored", "--nocapture"])
        .env(FOLDER, &folder)
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut log = BufReader::new(child.stderr.take().unwrap());
    let mut line = String::new();
    while !line.contains("listening at") {
        line.clear();
        assert_ne!(log.read_line(&mut line).unwrap(), 0, "it did not start");
    }
    let address = line.trim_end().rsplit_once(' ').unwrap().1;
    let mut client = TcpStream::connect(address).unwrap();
    client.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let mut replies = BufReader::new(client.try_clone().unwrap());
    for number in 0..100 {
        client.write_all(format!("set key{number} 0 0 5\r\nvalue\r\n").as_bytes()).unwrap();
        let mut reply = String::new();
        replies.read_line(&mut reply).unwrap();
        assert_eq!(reply, "STORED\r\n");
    }
    client.write_all(b"set panic 0 0 1\r\nx\r\n").unwrap();
    let (mut said, mut rest) = (String::new(), Vec::new());
    log.read_to_string(&mut said).unwrap();
    assert_eq!(child.wait().unwrap().signal(), Some(6), "SIGABRT: {said}");
    assert!(said.contains("planted") && said.contains("the server ends here"), "{said}");
    // It may end with an error: the process is gone.
    let _ = replies.read_to_end(&mut rest);
    assert!(rest.is_empty(), "an answer came from a server that panicked");
    let store = open(&folder);
    for number in 0..100 {
        assert_eq!(store.get(format!("key{number}").as_bytes()).unwrap().unwrap().value, b"value");
    }
    store.close().unwrap();
    std::fs::remove_dir_all(&folder).unwrap();
}
