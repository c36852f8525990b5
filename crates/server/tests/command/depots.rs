//! Helpers for tests of backups and standbys: folders with stores and depots, what a store shows, and clients.

use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::ops::Deref;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{JoinHandle, sleep};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::nbd_client::{FLUSH, NbdClient, READ, WRITE};
use crate::outside::{Folder, failed, succeeded, tapetum};

/// How long a condition is waited for: long, as machines are busy.
const PATIENCE: Duration = Duration::from_secs(60);
/// Bytes of the values that are stored outside of pages.
pub const LARGE_BYTES: usize = 300_000;

/// A folder with stores and depots.
pub struct Scratch(Folder);

impl Deref for Scratch {
    type Target = Path;

    fn deref(&self) -> &Path {
        &self.0
    }
}

impl Scratch {
    pub fn new(name: &str) -> Scratch {
        Scratch(Folder::new(&format!("backups-{name}")))
    }

    /// A command on the store in a folder.
    pub fn on(&self, data: &str, words: &[&str]) -> Command {
        let mut command = tapetum(words);
        command.current_dir(&*self.0).args(["--memory", "64MiB", "--data", data]);
        if let ["put" | "load", ..] | ["keyspace", "create", ..] = words {
            command.args(["--create", "--capacity", "64MiB"]);
        }
        command
    }

    #[track_caller]
    pub fn succeeds_on(&self, data: &str, words: &[&str]) -> String {
        succeeded(self.on(data, words).output().unwrap())
    }

    #[track_caller]
    pub fn fails_on(&self, data: &str, words: &[&str]) -> String {
        failed(self.on(data, words).output().unwrap())
    }

    /// `tapetum backup`, of a depot alone.
    pub fn backup(&self, words: &[&str]) -> Output {
        tapetum(&["backup"]).args(words).current_dir(&*self.0).output().unwrap()
    }

    #[track_caller]
    pub fn succeeds(&self, words: &[&str]) -> String {
        succeeded(self.backup(words))
    }

    #[track_caller]
    pub fn fails(&self, words: &[&str]) -> String {
        failed(self.backup(words))
    }

    #[track_caller]
    pub fn loads(&self, data: &str, keyspace: &str, lines: &str) {
        let mut loading = self.on(data, &["load", "--keyspace", keyspace]);
        let mut child = loading.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        child.stdin.take().unwrap().write_all(lines.as_bytes()).unwrap();
        succeeded(child.wait_with_output().unwrap());
    }

    /// Makes a hashed and an ordered keyspace, with a format, and a block device; items in the first two, some of them large.
    pub fn fill(&self, data: &str) {
        self.succeeds_on(data, &["keyspace", "create", "hashed"]);
        self.succeeds_on(data, &["keyspace", "create", "ordered", "--index", "ordered"]);
        self.succeeds_on(data, &["keyspace", "format", "ordered", "key: id string; value: name string"]);
        self.succeeds_on(data, &["keyspace", "create", "disk", "--block-device", "1MiB"]);
        for keyspace in ["hashed", "ordered"] {
            let small: String = (0..2000).map(|item| format!("key{item:05}\tof {keyspace} {item}\n")).collect();
            self.loads(data, keyspace, &(small + &large_items(2)));
        }
    }

    /// Prints all that a store shows: its keyspaces, the format, and all items.
    #[track_caller]
    pub fn shown(&self, data: &str) -> Vec<String> {
        let kinds = self.succeeds_on(data, &["keyspace", "list"]);
        // The number of items, behind the name and the kind, is an estimate.
        let kind = |line: &str| line.split('\t').take(2).collect::<Vec<_>>().join(" ");
        let mut shown: Vec<String> = kinds.lines().map(kind).collect();
        shown.push(self.succeeds_on(data, &["keyspace", "format", "ordered"]));
        for keyspace in ["hashed", "ordered", "disk"] {
            shown.extend(self.dumped(data, keyspace));
        }
        shown
    }

    /// The items of a keyspace, in the order of keys.
    #[track_caller]
    pub fn dumped(&self, data: &str, keyspace: &str) -> Vec<String> {
        let dump = succeeded(self.on(data, &["dump", "--format", "tsv", "--keyspace", keyspace]).output().unwrap());
        let mut lines: Vec<String> = dump.lines().map(str::to_owned).collect();
        lines.sort_unstable();
        lines
    }

    /// Restores a backup, and looks at the new store as far as that is possible.
    #[track_caller]
    pub fn restores(&self, depot: &str, number: u64, data: &str) {
        let told = self.succeeds(&["restore", depot, "--into", data, "--number", &number.to_string()]);
        assert!(told.starts_with(&format!("{data}/drive is the store as of ")), "{told}");
        assert!(told.ends_with(&format!("of backup {number}\n")), "{told}");
        assert!(self.succeeds_on(data, &["check"]).contains("no damage found"));
    }

    #[track_caller]
    pub fn listed(&self, depot: &str) -> Vec<Value> {
        let text = self.succeeds(&["list", depot, "--json"]);
        serde_json::from_str::<Value>(&text).unwrap().as_array().unwrap().clone()
    }

    /// Files of a folder in a depot, in the order of names.
    pub fn objects(&self, folder: &str) -> Vec<PathBuf> {
        let Ok(entries) = fs::read_dir(self.join(folder)) else { return Vec::new() };
        let mut paths: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
        paths.sort();
        paths
    }

    /// Waits until there are so many backups; one that is being put is none.
    #[track_caller]
    pub fn waits_for_backups(&self, depot: &str, count: usize) {
        wait_until("a backup", || self.backups(depot) >= count);
    }

    pub fn backups(&self, depot: &str) -> usize {
        let names = self.objects(&format!("{depot}/backups"));
        names.iter().filter(|path| !path.to_str().unwrap().contains(".unfinished-")).count()
    }

    pub fn copy(&self, from: &str, to: &str) {
        let copied = Command::new("cp").arg("-r").arg(self.join(from)).arg(self.join(to)).status().unwrap();
        assert!(copied.success());
    }

    pub fn is_there(&self, name: &str) -> bool {
        self.join(name).exists()
    }
}

/// Lines of items with large values that hardly compress.
pub fn large_items(count: u64) -> String {
    let value = |seed: u64| -> String {
        let mut random = tapetum_drive::SplitMix64::new(seed);
        (0..LARGE_BYTES / 16).map(|_| format!("{:016x}", random.next_u64())).collect()
    };
    (0..count).map(|item| format!("large{item}\t{}\n", value(item))).collect()
}

pub fn number(value: &Value, name: &str) -> u64 {
    value[name].as_u64().unwrap_or_else(|| panic!("no {name} in {value}"))
}

/// Waits until a condition holds.
#[track_caller]
pub fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < PATIENCE, "{what} did not come");
        sleep(Duration::from_millis(20));
    }
}

/// A memcached client.
pub struct Client {
    pub answers: BufReader<UnixStream>,
    pub stream: UnixStream,
}

impl Client {
    pub fn open(socket: &Path) -> Client {
        let stream = UnixStream::connect(socket).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        Client { answers: BufReader::new(stream.try_clone().unwrap()), stream }
    }

    pub fn line(&mut self) -> String {
        let mut line = String::new();
        assert!(self.answers.read_line(&mut line).unwrap() > 0, "the server closed the connection");
        line.trim_end().to_owned()
    }

    /// The first line of the answer.
    pub fn asks(&mut self, request: &str) -> String {
        self.stream.write_all(request.as_bytes()).unwrap();
        self.line()
    }

    pub fn sets(&mut self, key: &str, value: &str) -> String {
        self.asks(&format!("set {key} 0 0 {}\r\n{value}\r\n", value.len()))
    }

    pub fn gets(&mut self, key: &str) -> Option<String> {
        let head = self.asks(&format!("get {key}\r\n"));
        if head == "END" {
            return None;
        }
        assert!(head.starts_with(&format!("VALUE {key} ")), "{head}");
        let value = self.line();
        assert_eq!(self.line(), "END");
        Some(value)
    }
}

/// A client that sets one key after the other, and counts those that were acknowledged.
pub struct Writer {
    pub acknowledged: Arc<AtomicU64>,
    is_over: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

impl Writer {
    pub fn start(socket: &Path) -> Writer {
        let (acknowledged, is_over) = (Arc::<AtomicU64>::default(), Arc::<AtomicBool>::default());
        let (counted, over, mut client) = (Arc::clone(&acknowledged), Arc::clone(&is_over), Client::open(socket));
        let thread = std::thread::spawn(move || {
            for item in 0.. {
                if over.load(Ordering::Relaxed) {
                    return;
                }
                assert_eq!(client.sets(&counted_key(item), &format!("value {item}")), "STORED");
                counted.store(item + 1, Ordering::Relaxed);
            }
        });
        Writer { acknowledged, is_over, thread }
    }

    pub fn count(&self) -> u64 {
        self.acknowledged.load(Ordering::Relaxed)
    }

    /// Returns how many sets were acknowledged.
    pub fn stop(self) -> u64 {
        self.is_over.store(true, Ordering::Relaxed);
        self.thread.join().unwrap();
        self.acknowledged.load(Ordering::Relaxed)
    }
}

pub fn counted_key(item: u64) -> String {
    format!("counted{item:07}")
}

/// How many of a writer's sets a dump has: all up to some one, and none behind it.
#[track_caller]
pub fn counted(lines: &[String]) -> u64 {
    let counted: BTreeSet<&String> = lines.iter().filter(|line| line.starts_with("counted")).collect();
    for (item, line) in counted.iter().enumerate() {
        assert_eq!(**line, format!("{}\tvalue {item}", counted_key(item as u64)), "a set is missing");
    }
    counted.len() as u64
}

/// The address of the block devices of a server.
pub fn nbd_address(log: &str) -> String {
    log.rsplit_once("to NBD clients at ").unwrap().1.trim().to_owned()
}

pub fn write_device(address: &str, offset: u64, byte: u8) {
    let mut client = NbdClient::open(address, "disk", false).unwrap();
    assert_eq!(client.call(WRITE, 0, offset, 8192, &[byte; 8192]).unwrap().error, 0);
    assert_eq!(client.call(FLUSH, 0, 0, 0, &[]).unwrap().error, 0);
}

pub fn device_byte(address: &str, offset: u64) -> u8 {
    let mut client = NbdClient::open(address, "disk", false).unwrap();
    let read = client.call(READ, 0, offset, 8192, &[]).unwrap();
    assert!(read.error == 0 && read.bytes.iter().all(|byte| *byte == read.bytes[0]));
    read.bytes[0]
}
