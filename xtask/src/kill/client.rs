//! One client of the kill test. It owns its keys, writes them in pipelined batches, checks every answer against the model, and after a
//! restart checks that no acknowledged write is lost.

use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use super::model::{Content, Found, KeyModel, fill_value, parse_value};
use crate::Failure;
use tapetum_bench::client::{Connection, Line};
use tapetum_bench::random::{Random, mix};

const KEYS: usize = 400;
/// The first keys are counters, which are incremented; the rest hold values.
const COUNTERS: usize = 20;
const BATCH_MAX: u64 = 32;

/// The state that all threads of a run share.
pub struct Shared {
    /// The addresses of the two keyspaces, which may be the same. Every other client writes to the second one.
    pub addresses: [SocketAddr; 2],
    /// The server is about to be killed: from here on, a broken connection is expected.
    pub killing: AtomicBool,
    /// While it is, a server may answer that it cannot do it: that is as good as no answer.
    may_refuse: bool,
    pub acknowledged: AtomicU64,
    /// By client and key: the highest write that a reader was shown.
    pub seen: Vec<Vec<AtomicU64>>,
}

impl Shared {
    pub fn new(addresses: [SocketAddr; 2], clients: usize, may_refuse: bool) -> Shared {
        let seen = (0..clients).map(|_| (0..KEYS).map(|_| AtomicU64::new(0)).collect()).collect();
        Shared { addresses, killing: AtomicBool::new(false), may_refuse, acknowledged: AtomicU64::new(0), seen }
    }

    fn address_of(&self, client: usize) -> SocketAddr {
        self.addresses[client % 2]
    }

    /// Whether this is the answer of a server that lost its drive.
    fn is_refusal(&self, answer: &str) -> bool {
        self.may_refuse && answer.contains("SERVER_ERROR") && self.killing.load(Ordering::SeqCst)
    }

    /// Handles a broken connection, which ends a thread. Before the kill it is the server's fault.
    fn ended(&self, error: io::Error) -> Result<(), Failure> {
        let broken =
            !matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut | io::ErrorKind::InvalidData);
        if broken && self.killing.load(Ordering::SeqCst) {
            return Ok(());
        }
        // A malformed reply is the server's fault even during the kill, except for a truncated last line.
        if error.kind() == io::ErrorKind::InvalidData && self.killing.load(Ordering::SeqCst) {
            let text = error.to_string();
            let is_expected = text.contains("broke off") || self.is_refusal(&text);
            return if is_expected { Ok(()) } else { Err(text.into()) };
        }
        Err(format!("a connection failed while the server ran: {error}").into())
    }
}

pub struct Client {
    index: usize,
    random: Random,
    keys: Vec<KeyModel>,
    value: Vec<u8>,
}

fn name(client: usize, key: usize) -> Vec<u8> {
    format!("client{client}-key{key}").into_bytes()
}

impl Client {
    pub fn new(index: usize, seed: u64) -> Client {
        let keys = (0..KEYS).map(|_| KeyModel::new()).collect();
        Client { index, random: Random::new(mix(seed ^ mix(index as u64))), keys, value: Vec::new() }
    }

    pub fn in_doubt(&self) -> usize {
        self.keys.iter().map(KeyModel::in_doubt).sum()
    }

    /// Writes and reads until the connection breaks.
    pub fn load(&mut self, shared: &Shared) -> Result<(), Failure> {
        let mut connection = match Connection::open(shared.address_of(self.index)) {
            Ok(connection) => connection,
            Err(error) => return shared.ended(error),
        };
        loop {
            let done = if self.random.one_in(6) {
                self.read_batch(&mut connection, shared)
            } else {
                self.write_batch(&mut connection, shared)
            };
            match done {
                Ok(Ok(())) => {}
                Ok(Err(wrong)) => return Err(wrong),
                Err(error) => return shared.ended(error),
            }
        }
    }

    /// The outer error is the connection's, the inner one the server's.
    fn write_batch(&mut self, connection: &mut Connection, shared: &Shared) -> io::Result<Result<(), Failure>> {
        let mut expected = Vec::new();
        for _ in 0..=self.random.below(BATCH_MAX) {
            let key = self.random.below(KEYS as u64) as usize;
            expected.push((key, self.queue_write(connection, key)));
        }
        connection.flush()?;
        for (key, reply) in expected {
            let line = connection.read_line()?;
            if let Line::Other(answer) = &line
                && shared.is_refusal(answer)
            {
                return Err(io::Error::new(io::ErrorKind::ConnectionAborted, "the drive is away"));
            }
            if line != reply {
                let key = String::from_utf8_lossy(&name(self.index, key)).into_owned();
                return Ok(Err(format!("a write to {key} was answered {line:?}, expected {reply:?}").into()));
            }
            self.keys[key].acknowledge();
            shared.acknowledged.fetch_add(1, Ordering::Relaxed);
        }
        Ok(Ok(()))
    }

    /// Queues one write. Returns the expected answer.
    fn queue_write(&mut self, connection: &mut Connection, key: usize) -> Line {
        let name = name(self.index, key);
        let model = &mut self.keys[key];
        let found = model.latest().content;
        if key < COUNTERS {
            return match found {
                Content::Number(number) => {
                    let next = number + 1 + self.random.below(3);
                    model.issue(Content::Number(next));
                    connection.queue_increment(&name, next - number);
                    Line::Number(next)
                }
                _ => {
                    model.issue(Content::Number(1000));
                    connection.queue_set(&name, 0, b"1000");
                    Line::Stored
                }
            };
        }
        if self.random.one_in(5) {
            model.issue(Content::Missing);
            connection.queue_delete(&name);
            return if found == Content::Missing { Line::NotFound } else { Line::Deleted };
        }
        let state = model.issue(Content::Value);
        fill_value(&name, state.sequence, &mut self.value);
        connection.queue_set(&name, state.sequence as u32, &self.value);
        Line::Stored
    }

    /// Reads keys of its own, which must hold exactly the last write, and keys of another client, for which it records the write that it
    /// was shown.
    fn read_batch(&mut self, connection: &mut Connection, shared: &Shared) -> io::Result<Result<(), Failure>> {
        let owner = match self.random.one_in(2) {
            true => self.index,
            // Another client of the same keyspace.
            false => {
                let of_keyspace = (shared.seen.len() - self.index % 2).div_ceil(2) as u64;
                2 * self.random.below(of_keyspace) as usize + self.index % 2
            }
        };
        let mut keys: Vec<usize> = (0..8).map(|_| self.random.below(KEYS as u64) as usize).collect();
        keys.sort_unstable();
        keys.dedup();
        let found = match get(connection, owner, &keys)? {
            Ok(found) => found,
            Err(wrong) => return Ok(Err(wrong.into())),
        };
        for (key, found) in keys.into_iter().zip(found) {
            if owner == self.index {
                // None of its own writes is in doubt here, so settling checks that the key holds the last one.
                if let Err(wrong) = self.keys[key].settle(0, found) {
                    return Ok(Err(format!("client{owner}-key{key} {wrong}").into()));
                }
            } else if let Found::Value { sequence } = found {
                shared.seen[owner][key].fetch_max(sequence, Ordering::SeqCst);
            }
        }
        Ok(Ok(()))
    }

    /// After a restart: every key holds its last acknowledged write or a later one.
    pub fn verify(&mut self, shared: &Shared) -> Result<(), Failure> {
        let mut connection = Connection::open(shared.address_of(self.index))?;
        let keys: Vec<usize> = (0..KEYS).collect();
        for chunk in keys.chunks(50) {
            let found = get(&mut connection, self.index, chunk)??;
            for (key, found) in chunk.iter().zip(found) {
                let seen = shared.seen[self.index][*key].load(Ordering::SeqCst);
                self.keys[*key]
                    .settle(seen, found)
                    .map_err(|wrong| format!("client{}-key{key} {wrong}", self.index))?;
            }
        }
        Ok(())
    }
}

/// A single get of several keys of one client, in order.
fn get(connection: &mut Connection, client: usize, keys: &[usize]) -> io::Result<Result<Vec<Found>, String>> {
    let names: Vec<Vec<u8>> = keys.iter().map(|key| name(client, *key)).collect();
    connection.queue_get(names.iter().map(Vec::as_slice));
    connection.flush()?;
    let mut found = vec![Found::Missing; keys.len()];
    let mut wrong = None;
    let mut again = Vec::new();
    connection.read_values(|value| {
        let Some(position) = names.iter().position(|name| name == value.key) else {
            wrong = Some(format!("a get answered {}, which it was not asked for", String::from_utf8_lossy(value.key)));
            return;
        };
        match parse_value(value.key, value.flags, value.bytes, &mut again) {
            Ok(state) => found[position] = state,
            Err(error) => wrong = Some(format!("{} {error}", String::from_utf8_lossy(value.key))),
        }
    })?;
    Ok(wrong.map_or(Ok(found), Err))
}
