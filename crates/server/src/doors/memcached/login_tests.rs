//! Logins over a store in memory: input in pieces, several at once, and a client that leaves while its password is looked at.

use std::fs::{self, Permissions};
use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use tapetum::StoreOptions;
use tapetum_access::gate::{Gate, LoginMemory};
use tapetum_access::password::{Hash, Password};
use tapetum_drive::{Drive, Env, MemoryFlash};

use super::access::Admission;
use super::door::{Memcached, MemcachedOptions};
use crate::common::{drive_of, new_on};
use crate::doors::connection::{Client, Connection, Stream};
use crate::doors::context::Alone;
use crate::doors::door::Door;
use crate::net::limits::Limits;
use crate::store::errands::Answer;
use crate::store::store_slot::StoreSlot;

const CAPACITY_BYTES: u64 = 64 << 20;
/// A hash takes a fraction of a second, and those before it as much.
const PATIENCE: Duration = Duration::from_secs(60);

struct Enough;

impl LoginMemory for Enough {
    fn take(&self, _: usize, _: usize) -> bool {
        true
    }
    fn give(&self, _: usize, _: usize) {}
    fn wait(&self, _: bool) {}
}

/// One client after the other, of a gate with the user `alice` who may write.
struct LoginBench {
    stream: Stream,
    client: UnixStream,
    alone: Alone,
    answers: Receiver<(u64, Answer)>,
    gate: Arc<Gate>,
    _drive: Drive,
}

impl LoginBench {
    fn new(name: &str) -> LoginBench {
        let path = std::env::temp_dir().join(format!("tapetum-logins-{name}-{}", std::process::id()));
        let hash = Hash::of(&Password::new(b"open sesame").unwrap()).unwrap();
        fs::write(&path, format!("alice write:default {}\n", hash.text())).unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
        let gate = Arc::new(Gate::open(&path).unwrap());
        fs::remove_file(path).unwrap();
        gate.start(Arc::new(Enough)).unwrap();
        let options = StoreOptions { segment_bytes: 1 << 20, ..StoreOptions::new(CAPACITY_BYTES, 64 << 20) };
        let drive = drive_of(Arc::new(MemoryFlash::new(CAPACITY_BYTES)), &options, Env::system());
        let store = new_on(&drive, &options);
        let mut alone = Alone::new(StoreSlot::new(store).seat().unwrap(), Limits::default(), 4096);
        let (sender, answers) = channel();
        let answered = move |_, token, answer| drop(sender.send((token, answer)));
        alone.context(1).errands.answer_by(Box::new(answered));
        let (client, stream) = connected(&gate);
        LoginBench { stream, client, alone, answers, gate, _drive: drive }
    }

    fn connect(&mut self) {
        (self.client, self.stream) = connected(&self.gate);
    }

    fn send(&mut self, bytes: &[u8]) {
        self.client.write_all(bytes).unwrap();
        self.stream.read(&mut self.alone.context(1));
        self.stream.settle(&self.alone.budget);
    }

    /// Passes verdicts and outcomes on until nothing is awaited. Returns what the client was told.
    fn finish(&mut self) -> Vec<u8> {
        loop {
            // As long as it is blocked, more of the input waits in the socket.
            self.stream.read(&mut self.alone.context(1));
            if self.stream.connection.pending() == 0 {
                break;
            }
            let mut replies = Vec::new();
            self.alone.seat.poll(&mut replies);
            for reply in &replies {
                self.stream.connection.complete(reply.token as u32, reply, &mut self.alone.context(1));
            }
            if replies.is_empty() && self.alone.seat.in_flight() == 0 {
                let (token, answer) = self.answers.recv_timeout(PATIENCE).expect("a verdict");
                self.stream.connection.complete_errand(token as u32, answer, &mut self.alone.pool);
            }
            self.stream.advance(&mut self.alone.context(1));
        }
        self.stream.send(&mut self.alone.pool, &self.alone.figures.counters[0], 1);
        self.stream.settle(&self.alone.budget);
        let mut said = Vec::new();
        // Until nothing more is there.
        let _ = self.client.read_to_end(&mut said);
        said
    }
}

fn connected(gate: &Arc<Gate>) -> (UnixStream, Stream) {
    let (client, server) = UnixStream::pair().unwrap();
    client.set_nonblocking(true).unwrap();
    server.set_nonblocking(true).unwrap();
    let admission = Admission::Users(Arc::clone(gate));
    let door = Door::Memcached(Memcached::new(MemcachedOptions { admission, ..MemcachedOptions::default() }));
    (client, Stream::new(server.into(), None, Connection { client: Client::new(0, 0), door }, 0))
}

fn frame(opcode: u8, key: &[u8], extras: &[u8], value: &[u8]) -> Vec<u8> {
    let mut frame = vec![0x80, opcode, 0, key.len() as u8, extras.len() as u8, 0, 0, 0];
    frame.extend_from_slice(&((key.len() + extras.len() + value.len()) as u32).to_be_bytes());
    frame.extend_from_slice(&[0; 12]);
    [&frame[..], extras, key, value].concat()
}

/// Opcode and status of each answer.
fn statuses(mut said: &[u8]) -> Vec<(u8, u8)> {
    let mut statuses = Vec::new();
    while let Some(head) = said.get(..24) {
        statuses.push((head[1], head[7]));
        said = &said[24 + u32::from_be_bytes([head[8], head[9], head[10], head[11]]) as usize..];
    }
    assert!(said.is_empty());
    statuses
}

#[test]
fn logins_and_requests_behind_them_are_the_same_however_they_are_cut() {
    let mut bench = LoginBench::new("cut");
    let text = b"get k\r\nset auth 0 0 17\r\nalice open sesame\r\nset k 0 0 1\r\nx\r\nget k\r\n";
    let said = b"CLIENT_ERROR unauthenticated\r\nSTORED\r\nSTORED\r\nVALUE k 0 1\r\nx\r\nEND\r\n";
    let login = frame(0x21, b"PLAIN", b"", b"\0alice\0open sesame");
    let (set, get) = (frame(0x01, b"k", &[0; 8], b"x"), frame(0x00, b"k", b"", b""));
    let binary = [&frame(0x20, b"", b"", b"")[..], &login, &set, &login, &get].concat();
    for (input, is_text) in [(&text[..], true), (&binary, false)] {
        for cut in 0..input.len() {
            bench.connect();
            bench.send(&input[..cut]);
            bench.send(&input[cut..]);
            let heard = bench.finish();
            if is_text {
                assert_eq!(heard, said, "cut at {cut}");
            } else {
                assert_eq!(statuses(&heard), [(0x20, 0), (0x21, 0), (0x01, 0), (0x21, 0), (0x00, 0)], "cut at {cut}");
            }
        }
    }
    bench.gate.stop();
}

#[test]
fn a_wrong_login_behind_a_right_one_ends_what_the_right_one_gave() {
    let mut bench = LoginBench::new("second");
    let right = frame(0x21, b"PLAIN", b"", b"\0alice\0open sesame");
    let wrong = frame(0x21, b"PLAIN", b"", b"\0alice\0guess");
    let get = frame(0x00, b"k", b"", b"");
    bench.send(&[&right[..], &get, &wrong, &get, &get].concat());
    assert_eq!(statuses(&bench.finish()), [(0x21, 0), (0x00, 1), (0x21, 0x20), (0x00, 0x20)]);
    assert!(bench.stream.is_finished(), "as memcached does");
    bench.gate.stop();
}

#[test]
fn a_client_that_leaves_while_its_password_is_looked_at_stays_until_the_verdict() {
    let mut bench = LoginBench::new("left");
    bench.send(b"set auth 0 0 17\r\nalice open sesame\r\nset k 0 0 1\r\nx\r\n");
    bench.client = UnixStream::pair().unwrap().0;
    bench.client.set_nonblocking(true).unwrap();
    bench.stream.hung_up();
    assert!(!bench.stream.is_finished() && bench.stream.connection.pending() == 1);
    bench.finish();
    bench.stream.read(&mut bench.alone.context(1));
    assert!(bench.stream.is_finished());
    assert_eq!(bench.alone.budget.used_bytes(), 0);
    bench.gate.stop();
}
