//! Hostile datagrams: malformed requests, requests that strangers may not make, and requests whose replies
//! are as large as can be had for their size. All of it from a seed.

use tapetum_bench::random::Random;
use tapetum_bench::udp_client::{frame, framed, packet};

use super::{LARGE_KEYS, SMALL_KEY, key};

/// The longest payload that fits a datagram of Ethernet.
const PAYLOAD_BYTES_MAX: usize = 1464;

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Kind {
    Noise,
    Cut,
    Reply,
    Fragment,
    Unknown,
    NotAllowed,
    /// All of the above must be met with silence; those below may be answered, within bounds.
    LargeGet,
    ManyKeys,
    Padded,
    BinaryGets,
    QuietWrites,
    Mutated,
}

impl Kind {
    pub const ALL: [Kind; 12] = [
        Kind::Noise,
        Kind::Cut,
        Kind::Reply,
        Kind::Fragment,
        Kind::Unknown,
        Kind::NotAllowed,
        Kind::LargeGet,
        Kind::ManyKeys,
        Kind::Padded,
        Kind::BinaryGets,
        Kind::QuietWrites,
        Kind::Mutated,
    ];

    /// Whether no reply at all is right.
    pub fn is_met_with_silence(self) -> bool {
        self < Kind::LargeGet
    }
}

/// Gets, quiet changes of one item, and the noop that ends a row of them.
const BINARY_OPCODES: [u8; 15] =
    [0x00, 0x09, 0x0a, 0x0c, 0x0d, 0x11, 0x12, 0x13, 0x14, 0x15, 0x16, 0x19, 0x1a, 0x1e, 0x24];

/// Whether a datagram is in the form of requests that strangers are answered: packets of the binary protocol from its beginning to its
/// end, or whole lines that get.
pub fn is_request(datagram: &[u8]) -> bool {
    let Some((_, mut payload)) = datagram.split_first_chunk::<8>() else { return false };
    if payload.first() != Some(&0x80) {
        let gets = |line: &[u8]| {
            let word = line.split(|byte| *byte == b' ').find(|word| !word.is_empty());
            word.is_some_and(|word| [&b"get"[..], b"gets", b"bget"].contains(&word.trim_ascii_end()))
        };
        return payload.ends_with(b"\n") && payload.split_inclusive(|byte| *byte == b'\n').all(gets);
    }
    while let Some((header, rest)) = payload.split_first_chunk::<24>() {
        let key_bytes = usize::from(u16::from_be_bytes([header[2], header[3]]));
        let body_bytes = u32::from_be_bytes([header[8], header[9], header[10], header[11]]) as usize;
        let is_meant = header[0] == 0x80 && BINARY_OPCODES.contains(&header[1]);
        if !is_meant || key_bytes + usize::from(header[4]) > body_bytes || body_bytes > rest.len() {
            return false;
        }
        payload = &rest[body_bytes..];
    }
    payload.is_empty()
}

/// The next datagram of a kind, with this request id.
pub fn datagram(kind: Kind, id: u16, random: &mut Random) -> Vec<u8> {
    let whole = |payload: Vec<u8>| framed(id, &payload);
    match kind {
        Kind::Noise => noise(id, random),
        Kind::Cut => whole(cut(random)),
        Kind::Reply => whole(reply(random)),
        Kind::Fragment => {
            let count = 2 + random.below(65534) as u16;
            let number = random.below(u64::from(count)) as u16;
            [&frame(id, number, count)[..], &request(random)].concat()
        }
        Kind::Unknown => whole(unknown(random)),
        Kind::NotAllowed => whole(not_allowed(random)),
        Kind::LargeGet => whole(large_get(random)),
        Kind::ManyKeys => whole(many_keys(random)),
        Kind::Padded => whole(padded(random)),
        Kind::BinaryGets => whole(binary_gets(random)),
        Kind::QuietWrites => whole(quiet_writes(random)),
        Kind::Mutated => whole(mutated(random)),
    }
}

fn below(random: &mut Random, bound: usize) -> usize {
    random.below(bound as u64) as usize
}

fn one_of<T: Copy>(random: &mut Random, choice: &[T]) -> T {
    choice[below(random, choice.len())]
}

/// Bytes without sense, some of them behind a frame that has some. No request of either protocol begins with a byte over 0x80.
fn noise(id: u16, random: &mut Random) -> Vec<u8> {
    let mut bytes = vec![0; below(random, PAYLOAD_BYTES_MAX)];
    random.fill(&mut bytes);
    if let Some(first) = bytes.first_mut() {
        *first |= 0x81;
    }
    match random.below(3) {
        0 => framed(id, &bytes),
        1 => bytes[..bytes.len().min(8)].to_vec(),
        // A frame of no message.
        _ => [&frame(id, 1, 1)[..], &request(random)].concat(),
    }
}

/// A good request without its end.
fn cut(random: &mut Random) -> Vec<u8> {
    let mut request = match random.below(3) {
        0 => return b"set a 0 0 100 noreply\r\nabc\r\n".to_vec(),
        1 => {
            let mut line = large_get(random);
            // A line feed alone would end it too.
            line.truncate(line.len() - 1);
            line
        }
        _ => packet(0x11, &[0; 8], SMALL_KEY.as_bytes(), b"stolen"),
    };
    request.truncate(1 + below(random, request.len() - 1));
    request
}

/// The answers of a server, in either protocol.
fn reply(random: &mut Random) -> Vec<u8> {
    let mut values = vec![b'v'; below(random, 900)];
    random.fill(&mut values);
    match random.below(4) {
        0 => [format!("VALUE {} 0 {}\r\n", SMALL_KEY, values.len()).as_bytes(), &values, b"\r\nEND\r\n"].concat(),
        1 => one_of(random, &[&b"STORED\r\n"[..], b"END\r\n", b"ERROR\r\n", b"DELETED\r\n", b"17\r\n", b"OK\r\n"])
            .to_vec(),
        2 => b"SERVER_ERROR too large for UDP\r\n".to_vec(),
        _ => {
            let mut packet = packet(random.below(0x30) as u8, &[0; 4], b"", &values);
            packet[0] = 0x81;
            packet
        }
    }
}

fn unknown(random: &mut Random) -> Vec<u8> {
    match random.below(3) {
        0 => b"GET / HTTP/1.1\r\nHost: x\r\n\r\n".to_vec(),
        1 => packet(0x40 + random.below(0xc0) as u8, b"", SMALL_KEY.as_bytes(), b""),
        _ => {
            format!("{} {SMALL_KEY}\r\n", one_of(random, &["gett", "help", "EHLO", "\u{0}", "GET", "set"])).into_bytes()
        }
    }
}

fn not_allowed(random: &mut Random) -> Vec<u8> {
    if random.one_in(2) {
        let (opcode, extras, key): (u8, usize, &str) = one_of(
            random,
            &[(1, 8, SMALL_KEY), (4, 0, SMALL_KEY), (8, 0, ""), (0x18, 0, ""), (0x10, 0, ""), (0x0b, 0, "")],
        );
        return packet(opcode, &vec![0; extras], key.as_bytes(), b"");
    }
    let lines = [
        "stats",
        "stats settings",
        "stats slabs",
        "stats inspect",
        "version",
        "flush_all",
        "flush_all noreply",
        "set stolen 0 0 0\r\n",
        "delete small",
        "incr number 1",
        "gat 0 large0 large1",
        "resize memory 1",
        "quit",
        "verbosity 1",
    ];
    format!("{}\r\n", one_of(random, &lines)).into_bytes()
}

fn large_get(random: &mut Random) -> Vec<u8> {
    let verb = one_of(random, &["get", "gets", "bget"]);
    format!("{verb} {}\r\n", key(random.below(LARGE_KEYS))).into_bytes()
}

/// Few bytes a value: the same key again and again.
fn many_keys(random: &mut Random) -> Vec<u8> {
    let key = if random.one_in(2) { SMALL_KEY.to_owned() } else { key(random.below(LARGE_KEYS)) };
    let keys = vec![key; 1 + below(random, 150)].join(" ");
    format!("get {keys}\r\n").into_bytes()
}

/// As much as a reply of one datagram takes, and more.
fn padded(random: &mut Random) -> Vec<u8> {
    let spaces = " ".repeat(below(random, 1400));
    format!("get{spaces} {}\r\n", key(random.below(LARGE_KEYS))).into_bytes()
}

fn binary_gets(random: &mut Random) -> Vec<u8> {
    let mut gets = Vec::new();
    for _ in 0..=random.below(20) {
        let key = if random.one_in(2) { SMALL_KEY.to_owned() } else { key(random.below(LARGE_KEYS)) };
        let opcode = one_of(random, &[0x00, 0x09, 0x0c, 0x0d]);
        gets.extend(packet(opcode, b"", key.as_bytes(), b""));
    }
    gets.extend(packet(0x0a, b"", b"", b""));
    gets
}

/// Writes that say something only when they fail, which these do.
fn quiet_writes(random: &mut Random) -> Vec<u8> {
    let small = SMALL_KEY.as_bytes();
    let mut writes = Vec::new();
    for _ in 0..=random.below(10) {
        writes.extend(match random.below(4) {
            0 => packet(0x12, &[0; 8], small, b"x"),
            1 => packet(0x13, &[0; 8], b"absent", b"x"),
            2 => packet(0x14, b"", b"absent", b""),
            _ => packet(0x15, &[[0; 16].as_slice(), &[0xff; 4]].concat(), small, b""),
        });
    }
    writes
}

/// A request of any kind with some of its bits changed: it may be one still.
fn mutated(random: &mut Random) -> Vec<u8> {
    let mut request = request(random);
    for _ in 0..=random.below(4) {
        let at = below(random, request.len());
        request[at] ^= 1 << random.below(8);
    }
    request
}

/// Something that strangers may ask.
fn request(random: &mut Random) -> Vec<u8> {
    match random.below(5) {
        0 => large_get(random),
        1 => many_keys(random),
        2 => padded(random),
        3 => binary_gets(random),
        _ => quiet_writes(random),
    }
}
