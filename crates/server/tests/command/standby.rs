//! Standbys from outside: a server that follows the backups of another, and refuses writes.

use std::fs;
use std::io::{Read, Write};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::sleep;
use std::time::Duration;

use crate::depots::{Client, Scratch, device_byte, nbd_address, number, wait_until, write_device};
use crate::nbd_client::{NbdClient, READ, WRITE};
use crate::outside::Served;
use crate::promotions::promotes;

/// The options of all servers here.
const OFTEN: [&str; 8] = ["--every", "1", "--lease", "1", "--keep", "1000", "--threads", "1"];

/// A server that does not outlive its test.
pub struct Server(Option<Served>);

impl Drop for Server {
    fn drop(&mut self) {
        if let Some(mut served) = self.0.take() {
            let _ = served.child.kill();
            let _ = served.child.wait();
        }
    }
}

impl Server {
    /// Serves the store in the folder of this name to memcached clients at `NAME.socket`.
    pub fn start(scratch: &Scratch, name: &str, more: &[&str]) -> Server {
        let socket = format!("unix:{name}.socket");
        let mut command = scratch.on(name, &["serve", "--memcached", &socket]);
        let said = if more.contains(&"--nbd") { "to NBD clients at" } else { "to memcached clients at" };
        Server(Some(Served::start_when(command.args(OFTEN).args(more), said)))
    }

    pub fn served(&mut self) -> &mut Served {
        self.0.as_mut().unwrap()
    }

    /// Returns its log.
    pub fn stop(mut self) -> String {
        self.0.take().unwrap().stop()
    }

    pub fn kill(self) {
        drop(self);
    }

    pub fn signal(&mut self, signal: &str) {
        send_signal(signal, self.served().child.id());
    }
}

pub fn send_signal(signal: &str, process: u32) {
    assert!(Command::new("kill").args([signal, &process.to_string()]).status().unwrap().success());
}

pub fn serve_primary(scratch: &Scratch, more: &[&str]) -> Server {
    let options = ["--backup-to", "depot", "--capacity", "128MiB"];
    let server = Server::start(scratch, "data", &[&options, more].concat());
    scratch.waits_for_backups("depot", 1);
    server
}

pub fn serve_standby(scratch: &Scratch, more: &[&str]) -> Server {
    Server::start(scratch, "standby", &[&["--follow", "depot"], more].concat())
}

pub fn client(scratch: &Scratch, name: &str) -> Client {
    Client::open(&scratch.join(format!("{name}.socket")))
}

#[test]
fn a_standby_is_read_at_all_doors_refuses_writes_and_keeps_its_clients() {
    let scratch = Scratch::new("read");
    scratch.fill("data");
    let mut primary = serve_primary(&scratch, &["--nbd", "127.0.0.1:0"]);
    let device = nbd_address(&primary.served().log);
    write_device(&device, 0, 5);
    // The first store of a standby has the devices that are served.
    let mut standby = serve_standby(&scratch, &["--nbd", "127.0.0.1:0"]);
    assert!(standby.served().log.contains("a standby of depot, at its backup "), "{}", standby.served().log);
    let read = nbd_address(&standby.served().log);
    wait_until("the device", || device_byte(&read, 0) == 5);
    let mut blocks = NbdClient::open(&read, "disk", false).unwrap();
    write_device(&device, 4096, 6);
    wait_until("the device's change", || {
        let reply = blocks.call(READ, 0, 4096, 1, &[]).unwrap();
        assert_eq!(reply.error, 0);
        reply.bytes == [6]
    });
    let (mut writing, mut reading) = (client(&scratch, "data"), client(&scratch, "standby"));
    assert_eq!(writing.sets("key", "value"), "STORED");
    wait_until("the item", || reading.gets("key").as_deref() == Some("value"));
    scratch.succeeds_on("data", &["put", "another", "one", "--keyspace", "ordered"]);
    let scan = ["scan", "ordered", "--prefix", "anoth"];
    wait_until("the item", || scratch.succeeds_on("standby", &scan) == "another\tone\n");
    assert_eq!(scratch.succeeds_on("standby", &["get", "another", "--keyspace", "ordered"]), "one");
    assert_eq!(scratch.succeeds_on("standby", &["scan", "ordered", "--count"]), "2003\n");
    assert_eq!(scratch.shown("standby"), scratch.shown("data"));

    for request in
        ["set key 0 0 1\r\nx\r\n", "delete key\r\n", "touch key 1\r\n", "append key 0 0 1\r\nx\r\n", "flush_all\r\n"]
    {
        let answer = reading.asks(request);
        assert!(answer.starts_with("SERVER_ERROR "), "{request}: {answer}");
    }
    assert!(blocks.call(WRITE, 0, 0, 4096, &[1; 4096]).unwrap().error != 0);
    let commands: [&[&str]; 6] = [
        &["put", "key", "x"],
        &["delete", "key"],
        &["keyspace", "create", "more"],
        &["keyspace", "drop", "ordered", "--yes"],
        &["keyspace", "resize", "disk", "2MiB"],
        &["backup", "create", "others"],
    ];
    for words in commands {
        let told = scratch.fails_on("standby", words);
        assert!(told.starts_with("error: ") && told.contains("read"), "{words:?}: {told}");
    }
    assert_eq!(reading.gets("key").as_deref(), Some("value"));
    assert_eq!(scratch.shown("standby"), scratch.shown("data"));

    // No get fails while the standby goes over to later backups.
    assert_eq!(writing.sets("turn", "0000000"), "STORED");
    wait_until("the item", || reading.gets("turn").is_some());
    let is_over = Arc::<AtomicBool>::default();
    let (over, turns) = (Arc::clone(&is_over), AtomicU64::new(0));
    let turning = std::thread::spawn(move || {
        while !over.load(Ordering::Relaxed) {
            let turn = turns.fetch_add(1, Ordering::Relaxed);
            assert_eq!(writing.sets("turn", &format!("{turn:07}")), "STORED");
            sleep(Duration::from_millis(5));
        }
    });
    let (mut seen, mut changes) = (String::new(), 0);
    wait_until("the fourth refresh", || {
        reading.stream.write_all("get turn\r\n".repeat(50).as_bytes()).unwrap();
        for _ in 0..50 {
            assert_eq!(reading.line(), "VALUE turn 0 7");
            let value = reading.line();
            assert_eq!(reading.line(), "END");
            assert!(value >= seen, "{value} was shown after {seen}");
            changes += u32::from(value > seen);
            seen = value;
        }
        changes > 3
    });
    is_over.store(true, Ordering::Relaxed);
    turning.join().unwrap();

    let told = scratch.fails_on("standby", &["promote", "depot"]);
    assert!(told.starts_with("error: tapetum serve (process "), "{told}");
    assert!(told.contains(" makes backups at depot now: wait until it has ended"), "{told}");
    for words in [&["backup", "create", "depot"][..], &["backup", "create", "depot", "--anew"]] {
        assert!(scratch.fails_on("data", words).contains("error: tapetum serve (process "));
    }
    assert!(scratch.fails(&["prune", "depot", "--keep", "1"]).contains(" makes backups at depot now"));
    assert!(reading.gets("turn").is_some());
    primary.stop();
    standby.stop();
}

#[test]
fn a_folder_that_is_gone_for_a_while_stops_writes_and_nothing_else() {
    let scratch = Scratch::new("away");
    let primary = serve_primary(&scratch, &[]);
    let mut writing = client(&scratch, "data");
    assert_eq!(writing.sets("key", "before"), "STORED");
    fs::rename(scratch.join("depot"), scratch.join("away")).unwrap();
    wait_until("the end of the lease", || writing.sets("key", "meanwhile") != "STORED");
    let answer = writing.sets("key", "meanwhile");
    assert!(answer.starts_with("SERVER_ERROR this server has lost its lease of the backups"), "{answer}");
    assert!(writing.gets("key").is_some());
    assert!(!scratch.is_there("depot"), "the folder is not made anew");
    let made = scratch.backups("away");
    fs::rename(scratch.join("away"), scratch.join("depot")).unwrap();
    wait_until("the lease", || writing.sets("key", "after") == "STORED");
    scratch.waits_for_backups("depot", made + 1);
    let log = primary.stop();
    assert!(log.contains("the lease of the backups was not renewed: cannot read depot: "), "{log}");
    assert!(log.contains("the lease of the backups is renewed again"), "{log}");
    let last = number(&scratch.listed("depot").pop().unwrap(), "number");
    scratch.restores("depot", last, "restored");
    assert_eq!(scratch.succeeds_on("restored", &["get", "key"]), "after");
}

/// A scan that has begun to print, and reads no further.
struct Stalled(std::process::Child);

impl Drop for Stalled {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_command_that_reads_nothing_keeps_no_standby_from_its_work() {
    let scratch = Scratch::new("stalled");
    scratch.succeeds_on("data", &["keyspace", "create", "much", "--index", "ordered"]);
    let lines: String = (0..20_000).map(|item| format!("{item:08}\t{}\n", "x".repeat(500))).collect();
    scratch.loads("data", "much", &lines);
    let primary = serve_primary(&scratch, &[]);
    let standby = serve_standby(&scratch, &[]);
    let third = Server::start(&scratch, "third", &["--follow", "depot"]);
    let stall = |name: &str| {
        let mut scan =
            scratch.on(name, &["scan", "much"]).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        scan.stdout.as_mut().unwrap().read_exact(&mut [0; 100]).unwrap();
        send_signal("-STOP", scan.id());
        Stalled(scan)
    };
    let mut reading = client(&scratch, "standby");
    let (first, _never) = (stall("standby"), stall("third"));
    // The backup after the next one may be the first that is not gone over to.
    let made = scratch.backups("depot");
    scratch.waits_for_backups("depot", made + 2);
    assert_eq!(client(&scratch, "data").sets("key", "value"), "STORED");
    assert!(third.stop().contains("closed"));
    drop(first);
    wait_until("the item", || reading.gets("key").is_some());
    let _stalled = stall("standby");
    assert_eq!(client(&scratch, "data").sets("key", "later"), "STORED");
    primary.stop();
    let _later = stall("standby");
    // Neither the store before nor the one that is served is waited for.
    let (_, told) = promotes(&scratch, &[]);
    assert!(told.contains("nothing is lost"), "{told}");
    assert_eq!(reading.gets("key").as_deref(), Some("later"));
    assert_eq!(reading.sets("key", "written"), "STORED");
    assert!(standby.stop().contains("closed"));
}
