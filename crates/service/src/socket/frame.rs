//! Frames, the unit of what goes over the socket.
//!
//! ```text
//! greeting, first from the client and then from the server:
//!   0   8  "TAPETUM\n"
//!   8   2  version of the protocol, little-endian
//!  10   2  bytes of the program's version, little-endian
//!  12   …  the program's version, as text
//! frame:
//!   0   4  bytes of the body, little-endian
//!   4   1  kind
//!   5   …  body
//!
//! client:   request ─►                                   one at a time
//! server:             ◄─ reply … rows … ─ done | failed
//! ```
//! Requests, replies and failures are of postcard's format; rows are a stream of Arrow IPC, in parts. Nothing is guessed about another
//! version: both sides greet, and then the one of the server says that it is another, and ends.

use std::io;

use serde::Serialize;

/// Changes whenever a request, a reply or a frame does.
pub const PROTOCOL_VERSION: u16 = 5;
pub const MAGIC: [u8; 8] = *b"TAPETUM\n";
pub const GREETING_BYTES: usize = 12;
pub const HEAD_BYTES: usize = 5;
/// The longest body of a request: a value, its key, and a little.
pub const REQUEST_BYTES_MAX: usize = (16 << 20) + (1 << 20);
/// The longest body of an answer: a picture, its key, and a little.
pub const ANSWER_BYTES_MAX: usize = (64 << 20) + (1 << 20);
/// The longest text of a program's version.
pub const VERSION_BYTES_MAX: usize = 64;

const _: () = assert!(MAGIC.len() + 2 + 2 == GREETING_BYTES);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum FrameKind {
    Request = 1,
    Reply = 2,
    Rows = 3,
    Done = 4,
    Failed = 5,
}

impl FrameKind {
    fn of_code(code: u8) -> Option<FrameKind> {
        use FrameKind::{Done, Failed, Reply, Request, Rows};
        [Request, Reply, Rows, Done, Failed].into_iter().find(|kind| *kind as u8 == code)
    }
}

/// The beginning of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameHead {
    pub kind: FrameKind,
    pub body_bytes: usize,
}

impl FrameHead {
    /// # Errors
    /// If this is no frame, or a longer one than `bytes_max`.
    pub fn parse(head: [u8; HEAD_BYTES], bytes_max: usize) -> Result<FrameHead, String> {
        let [a, b, c, d, code] = head;
        let body_bytes = u32::from_le_bytes([a, b, c, d]) as usize;
        let kind = FrameKind::of_code(code).ok_or_else(|| format!("there are no frames of kind {code}"))?;
        if body_bytes > bytes_max {
            return Err(format!("a frame of {body_bytes} bytes is longer than the {bytes_max} that it may have"));
        }
        Ok(FrameHead { kind, body_bytes })
    }
}

/// A whole frame, whose body is plain data.
///
/// # Errors
/// If the body is longer than a frame can say.
pub fn framed_data(kind: FrameKind, data: &impl Serialize) -> io::Result<Vec<u8>> {
    framed_data_in(Vec::new(), kind, data)
}

/// As [`framed_data`], in a buffer that was used before.
///
/// # Errors
/// As [`framed_data`].
pub fn framed_data_in(buffer: Vec<u8>, kind: FrameKind, data: &impl Serialize) -> io::Result<Vec<u8>> {
    finish(kind, postcard::to_extend(data, begun(buffer)).map_err(io::Error::other)?)
}

/// Room for the head of a frame, in a buffer; its body follows.
pub fn begun(mut buffer: Vec<u8>) -> Vec<u8> {
    buffer.clear();
    buffer.resize(HEAD_BYTES, 0);
    buffer
}

/// The frame that was [`begun`], with its head.
///
/// # Errors
/// As [`framed_data`].
pub fn finish(kind: FrameKind, mut frame: Vec<u8>) -> io::Result<Vec<u8>> {
    let body_bytes = frame.len() - HEAD_BYTES;
    let body_bytes = u32::try_from(body_bytes).map_err(|_| io::Error::other("more than a frame can hold"))?;
    frame[..4].copy_from_slice(&body_bytes.to_le_bytes());
    frame[4] = kind as u8;
    Ok(frame)
}

/// What both sides say first.
pub fn greeting() -> Vec<u8> {
    let version = env!("CARGO_PKG_VERSION").as_bytes();
    let mut bytes = MAGIC.to_vec();
    bytes.extend_from_slice(&PROTOCOL_VERSION.to_le_bytes());
    bytes.extend_from_slice(&(version.len() as u16).to_le_bytes());
    bytes.extend_from_slice(version);
    bytes
}

/// A greeting, but for the program's version behind it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GreetingHead {
    pub protocol_version: u16,
    pub version_bytes: usize,
}

impl GreetingHead {
    /// `None` if this is no greeting.
    pub fn parse(head: [u8; GREETING_BYTES]) -> Option<GreetingHead> {
        let [magic @ .., a, b, c, d] = head;
        let version_bytes = usize::from(u16::from_le_bytes([c, d]));
        (magic == MAGIC && version_bytes <= VERSION_BYTES_MAX)
            .then_some(GreetingHead { protocol_version: u16::from_le_bytes([a, b]), version_bytes })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_says_its_kind_and_length() {
        let frame = finish(FrameKind::Rows, [&begun(Vec::new())[..], b"abc"].concat()).unwrap();
        assert_eq!(frame, b"\x03\0\0\0\x03abc");
        let head = frame[..HEAD_BYTES].try_into().unwrap();
        assert_eq!(FrameHead::parse(head, 3), Ok(FrameHead { kind: FrameKind::Rows, body_bytes: 3 }));
        assert!(FrameHead::parse(head, 2).unwrap_err().contains("longer"));
        assert!(FrameHead::parse([0, 0, 0, 0, 9], 2).unwrap_err().contains("kind 9"));
    }

    #[test]
    fn a_greeting_is_told_from_other_protocols() {
        let own = greeting();
        let head = GreetingHead::parse(own[..GREETING_BYTES].try_into().unwrap()).unwrap();
        assert_eq!((head.protocol_version, head.version_bytes), (PROTOCOL_VERSION, own.len() - GREETING_BYTES));
        assert_eq!(GreetingHead::parse(*b"GET / HTTP/1"), None);
    }
}
