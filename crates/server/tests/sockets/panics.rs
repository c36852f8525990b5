//! A panic in a worker ends the process at once, says so in its log, and loses nothing that was acknowledged. The server is this test
//! run again by itself, over a store whose flash panics when a worker reads it.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::fd::RawFd;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{self, Stdio};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use crate::common::{drive_of, flush, new_on};
use crate::wrapped_flash::WrappedFlash;
use tapetum::{Store, StoreOptions};
use tapetum_drive::{Command, Completion, Env, FileFlash, Flash, FlashQueue, IoEngine, Operation};
use tapetum_server::doors::options::Options;
use tapetum_server::logging::Log;
use tapetum_server::server::Server;
use tapetum_server::store::store_slot::StoreSlot;

const FOLDER: &str = "TAPETUM_TEST_PANICS_IN";
const CAPACITY_BYTES: u64 = 64 << 20;
/// A key that only flash has.
const KEY: &str = "panic";

/// Panics when a worker reads.
struct PanickingQueue(Box<dyn FlashQueue>);

impl FlashQueue for PanickingQueue {
    unsafe fn submit(&mut self, command: &Command) {
        let is_of_worker = thread::current().name().is_some_and(|name| name.starts_with("worker"));
        assert!(!is_of_worker || !matches!(command.operation, Operation::Read { .. }), "planted");
        // SAFETY: by our caller's word.
        unsafe { self.0.submit(command) };
    }

    fn poll(&mut self, completions: &mut Vec<Completion>) {
        self.0.poll(completions);
    }

    fn wait(&mut self, timeout: Option<Duration>) {
        self.0.wait(timeout);
    }

    fn event_fd(&self) -> Option<RawFd> {
        self.0.event_fd()
    }
}

fn options() -> StoreOptions {
    StoreOptions::new(CAPACITY_BYTES, 32 << 20).with_write_buffers_of(128 << 10)
}

fn open(flash: Arc<dyn Flash>) -> Store {
    Store::open_on(&drive_of(flash, &options(), Env::system()), &options()).unwrap()
}

fn data(folder: &Path) -> FileFlash {
    FileFlash::open(&folder.join("data"), IoEngine::Blocking, &Env::system()).unwrap()
}

/// The server, if this process was started to be one.
#[test]
#[ignore = "started by the test below"]
fn serves_until_it_panics() {
    let Some(folder) = std::env::var_os(FOLDER).map(PathBuf::from) else { return };
    let log = Log::of_server(tracing::Level::INFO).unwrap();
    let options = Options { log: log.losses(), ..Options::at(vec!["127.0.0.1:0".parse().unwrap()]) };
    let wrap = |queue| Ok(Box::new(PanickingQueue(queue)) as Box<dyn FlashQueue>);
    let slot = StoreSlot::new(open(Arc::new(WrappedFlash(data(&folder), wrap))));
    let server = Server::start(Arc::new(slot), options).unwrap();
    tracing::info!("listening at {}", server.addresses()[0]);
    std::thread::sleep(Duration::from_secs(60));
    panic!("it should have ended by then");
}

#[test]
fn a_panic_in_a_worker_ends_the_process_and_loses_nothing() {
    let folder = std::env::temp_dir().join(format!("tapetum-panics-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let flash = FileFlash::create(&folder.join("data"), CAPACITY_BYTES, IoEngine::Blocking, &Env::system()).unwrap();
    let drive = drive_of(Arc::new(flash), &options(), Env::system());
    let store = new_on(&drive, &options());
    store.put(KEY.as_bytes(), b"value").unwrap();
    flush(&store);
    store.close().unwrap();
    drop((store, drive));
    let mut child = process::Command::new(std::env::current_exe().unwrap())
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
    client.write_all(format!("get {KEY}\r\n").as_bytes()).unwrap();
    let (mut said, mut rest) = (String::new(), Vec::new());
    log.read_to_string(&mut said).unwrap();
    assert_eq!(child.wait().unwrap().signal(), Some(6), "SIGABRT: {said}");
    assert!(said.contains("planted") && said.contains("the server ends here"), "{said}");
    // It may end with an error: the process is gone.
    let _ = replies.read_to_end(&mut rest);
    assert!(rest.is_empty(), "an answer came from a server that panicked");
    let store = open(Arc::new(data(&folder)));
    for number in 0..100 {
        assert_eq!(store.get(format!("key{number}").as_bytes()).unwrap().unwrap().value, b"value");
    }
    store.close().unwrap();
    std::fs::remove_dir_all(&folder).unwrap();
}
