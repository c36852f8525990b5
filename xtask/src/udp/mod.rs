//! A flood of hostile datagrams against a server to which the sender is a stranger. Malformed requests, and those that strangers may not
//! make, must get no answer; every other must be answered by at most one datagram, and at most three times its bytes. At
//! the end the server must still serve, and have counted every datagram.
//!
//! After every burst a request that will be answered is sent from the same socket, so that the kernel's queue holds all that is on
//! its way and nothing is lost.

mod hostile;

use std::collections::BTreeMap;
use std::net::{SocketAddr, UdpSocket};
use std::time::Duration;

use self::hostile::{Kind, datagram, is_request};
use crate::Failure;
use crate::arguments::Arguments;
use crate::workspace::Scratch;
use tapetum_bench::client::{Connection, Line};
use tapetum_bench::random::Random;
use tapetum_bench::server::ServerOptions;
use tapetum_bench::udp_client::{UdpClient, framed};

const BURST: u64 = 64;
/// The id of the request that ends a burst.
const FENCE: u16 = u16::MAX;
const REPLY_BYTES_MAX: usize = 1400;
const SMALL_KEY: &str = "small";
const LARGE_KEYS: u64 = 16;
const AMPLIFICATION_MAX: usize = 3;
const ANSWER_WAIT_MAX: Duration = Duration::from_secs(30);
/// For replies that are read from flash.
const LATE_WAIT: Duration = Duration::from_millis(500);

fn key(number: u64) -> String {
    format!("large{number}")
}

/// The results of one kind of datagrams.
#[derive(Default)]
struct Tally {
    sent: u64,
    sent_bytes: u64,
    answered: u64,
    answered_bytes: u64,
    amplification_max: f64,
}

pub fn run(arguments: &Arguments) -> Result<(), Failure> {
    let datagrams = arguments.number("datagrams", 1_000_000)?;
    let seed = arguments.number("seed", u64::from(std::process::id()))?;
    let binary = arguments.tested_server()?;
    let scratch = Scratch::new("udp")?;
    // Nobody here has an address of this network. The limit of bytes a second is not tested here.
    let words =
        ["--capacity", "256MiB", "--memory", "64MiB", "--udp-allow", "192.0.2.0/24", "--udp-rate", "4294967295"];
    let options = ServerOptions::new(&binary, &scratch.folder().join("data"), &words)?;
    let options = ServerOptions { udp: true, ..options };
    let server = options.start()?;
    let mut witness = Connection::open(server.address())?;
    store(&mut witness)?;
    let mut flood = Flood::new(server.address())?;
    flood.run(datagrams, seed).map_err(|failure| format!("{failure}\nseed {seed}"))?;
    let tallies = flood.tallies;
    report(&tallies, seed);
    let received: u64 = tallies.values().map(|tally| tally.sent).sum::<u64>() + datagrams.div_ceil(BURST);
    let counted = witness.stats("")?["udp_received"].clone();
    if counted != received.to_string() {
        return Err(format!("{received} datagrams were sent, and the server counts {counted}").into());
    }
    expect_service(&mut witness)?;
    let mut stranger = UdpClient::open(server.address())?;
    stranger.send(b"set datagram 0 0 3 noreply\r\nabc\r\n")?;
    expect_in_both_doors(&mut stranger, &mut witness)?;
    server.terminate()?;
    let server = options.start()?;
    expect_in_both_doors(&mut UdpClient::open(server.address())?, &mut Connection::open(server.address())?)?;
    server.terminate()
}

/// Both doors show the item that came in a datagram.
fn expect_in_both_doors(stranger: &mut UdpClient, witness: &mut Connection) -> Result<(), Failure> {
    let (over_udp, mut over_tcp) = (stranger.ask(b"get datagram\r\n")?, Vec::new());
    witness.queue_get([&b"datagram"[..]]);
    witness.flush()?;
    witness.read_values(|value| over_tcp.extend_from_slice(value.bytes))?;
    if over_udp != b"VALUE datagram 0 3\r\nabc\r\nEND\r\n" || over_tcp != b"abc" {
        let (over_udp, over_tcp) = (over_udp.escape_ascii(), over_tcp.escape_ascii());
        return Err(format!("an item that came in a datagram is {over_udp} over UDP, {over_tcp} over TCP").into());
    }
    Ok(())
}

fn large(number: u64) -> Vec<u8> {
    vec![b'a' + number as u8; 200 << number.min(7)]
}

fn store(witness: &mut Connection) -> Result<(), Failure> {
    witness.queue_set(SMALL_KEY.as_bytes(), 0, b"17");
    (0..LARGE_KEYS).for_each(|number| witness.queue_set(key(number).as_bytes(), 0, &large(number)));
    witness.flush()?;
    for _ in 0..=LARGE_KEYS {
        match witness.read_line()? {
            Line::Stored => {}
            other => return Err(format!("a set was answered with {other:?}").into()),
        }
    }
    Ok(())
}

/// The server still answers a client over TCP.
fn expect_service(witness: &mut Connection) -> Result<(), Failure> {
    let mut found = Vec::new();
    witness.queue_set(b"after", 0, b"the flood");
    witness.queue_get([&b"after"[..]]);
    witness.flush()?;
    let stored = witness.read_line()?;
    witness.read_values(|value| found.extend_from_slice(value.bytes))?;
    match (stored, &found[..]) {
        (Line::Stored, b"the flood") => Ok(()),
        (stored, found) => {
            Err(format!("after the flood a set is answered with {stored:?}, a get with {found:?}").into())
        }
    }
}

/// The sender, and its latest datagrams by id.
struct Flood {
    socket: UdpSocket,
    sent: Vec<Option<(Kind, Vec<u8>)>>,
    tallies: BTreeMap<Kind, Tally>,
}

impl Flood {
    fn new(server: SocketAddr) -> Result<Flood, Failure> {
        let socket = UdpSocket::bind("127.0.0.1:0")?;
        socket.connect(server)?;
        let tallies = Kind::ALL.map(|kind| (kind, Tally::default())).into();
        Ok(Flood { socket, sent: vec![None; usize::from(FENCE)], tallies })
    }

    fn run(&mut self, datagrams: u64, seed: u64) -> Result<(), Failure> {
        let mut random = Random::new(seed);
        self.socket.set_read_timeout(Some(ANSWER_WAIT_MAX))?;
        for number in 0..datagrams {
            let id = (number % u64::from(FENCE)) as u16;
            let kind = Kind::ALL[random.below(Kind::ALL.len() as u64) as usize];
            let bytes = datagram(kind, id, &mut random);
            self.socket.send(&bytes)?;
            let tally = self.tallies.entry(kind).or_default();
            tally.sent += 1;
            tally.sent_bytes += bytes.len() as u64;
            self.sent[usize::from(id)] = Some((kind, bytes));
            if (number + 1) % BURST == 0 || number + 1 == datagrams {
                self.socket.send(&framed(FENCE, b"get absent\r\n"))?;
                let mut buffer = [0; 65536];
                let mut ended = false;
                while !ended {
                    let silent = |error| format!("the server has gone silent: {error}");
                    let length = self.socket.recv(&mut buffer).map_err(silent)?;
                    ended = self.judge(&buffer[..length])?;
                }
            }
        }
        // Answers that took longer than the last of them.
        self.socket.set_read_timeout(Some(LATE_WAIT))?;
        let mut buffer = [0; 65536];
        while let Ok(length) = self.socket.recv(&mut buffer) {
            self.judge(&buffer[..length])?;
        }
        Ok(())
    }

    /// Judges a reply; whether it is to the request that ends a burst.
    fn judge(&mut self, reply: &[u8]) -> Result<bool, Failure> {
        let length = reply.len();
        let &[high, low, 0, 0, 0, 1, 0, 0, ..] = reply else {
            return Err(format!("a reply that is not one datagram of one: {}", reply.escape_ascii()).into());
        };
        let id = u16::from_be_bytes([high, low]);
        if id == FENCE {
            return Ok(true);
        }
        // Taken out: a second reply is one too many.
        let Some((kind, request)) = self.sent[usize::from(id)].take() else {
            return Err(format!("a reply to {id}, which asked for none: {}", reply.escape_ascii()).into());
        };
        let is_request = !kind.is_met_with_silence() && is_request(&request);
        if !is_request || length > REPLY_BYTES_MAX || length > AMPLIFICATION_MAX * request.len() {
            let (asked, told) = (request.escape_ascii(), reply.escape_ascii());
            return Err(
                format!("{kind:?} of {} bytes: {asked}\nwas answered with {length}: {told}", request.len()).into()
            );
        }
        let tally = self.tallies.entry(kind).or_default();
        tally.answered += 1;
        tally.answered_bytes += length as u64;
        tally.amplification_max = tally.amplification_max.max(length as f64 / request.len() as f64);
        Ok(false)
    }
}

fn report(tallies: &BTreeMap<Kind, Tally>, seed: u64) {
    println!(
        "| datagrams | sent | bytes in | answered | bytes out | most out ÷ in of one |\n|---|---|---|---|---|---|"
    );
    for (kind, tally) in tallies {
        let Tally { sent, sent_bytes, answered, answered_bytes, amplification_max } = tally;
        println!("| {kind:?} | {sent} | {sent_bytes} | {answered} | {answered_bytes} | {amplification_max:.2} |");
    }
    let sum = |figure: fn(&Tally) -> u64| tallies.values().map(figure).sum::<u64>();
    let (sent_bytes, answered_bytes) = (sum(|tally| tally.sent_bytes), sum(|tally| tally.answered_bytes));
    println!(
        "test-udp: {} hostile datagrams; bytes out ÷ bytes in {:.2}; no malformed one answered; seed {seed}",
        sum(|tally| tally.sent),
        answered_bytes as f64 / sent_bytes as f64
    );
}
