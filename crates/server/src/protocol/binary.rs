//! The binary protocol. Every request is a header and a body; all integers are big endian:
//!
//! ```text
//!  0      1       2          4           5          6         8          12      16     24
//!  0x80 | opcode | key bytes | extra bytes | data type | vbucket | body bytes | opaque | stamp | extras | key | value
//! ```
//! Pure functions of their input, see the module above. A header whose lengths disagree is answered, and the connection closed, because the
//! start of the next frame is unknown.

use super::{BINARY_MAGIC, KEY_BYTES_MAX, Parsed};

pub const HEADER_BYTES: usize = 24;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    NotFound = 0x01,
    Exists = 0x02,
    TooLarge = 0x03,
    InvalidArguments = 0x04,
    NotStored = 0x05,
    NotNumber = 0x06,
    NotAllowed = 0x20,
    UnknownCommand = 0x81,
    OutOfMemory = 0x82,
    InternalError = 0x84,
}

impl Status {
    /// The body of a reply with this status.
    pub fn text(self) -> &'static str {
        match self {
            Status::NotFound => "Not found",
            Status::Exists => "Data exists for key.",
            Status::TooLarge => "Too large.",
            Status::InvalidArguments => "Invalid arguments",
            Status::NotStored => "Not stored.",
            Status::NotNumber => "Non-numeric server-side value for incr or decr",
            Status::NotAllowed => "Auth failure.",
            Status::UnknownCommand => "Unknown command",
            Status::OutOfMemory => "Out of memory",
            Status::InternalError => "Internal error",
        }
    }
}

/// The fields of a request that its reply repeats.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Origin {
    pub opcode: u8,
    pub opaque: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BinaryVerb {
    Set,
    Add,
    Replace,
    Append,
    Prepend,
}

/// A `quiet` request is answered only for a hit (reads) or a failure (writes).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BinaryCommand<'a> {
    Get {
        key: &'a [u8],
        with_key: bool,
        quiet: bool,
    },
    GetAndTouch {
        key: &'a [u8],
        exptime: u32,
        with_key: bool,
        quiet: bool,
    },
    Touch {
        key: &'a [u8],
        exptime: u32,
    },
    Store {
        verb: BinaryVerb,
        key: &'a [u8],
        flags: u32,
        exptime: u32,
        stamp: u64,
        value: &'a [u8],
        quiet: bool,
    },
    /// The value is over the limit. For a set, the old value is deleted, so that no reader takes it for current.
    TooLarge {
        key: &'a [u8],
        delete: bool,
    },
    /// `initial` is a value and its expiry, for an absent key.
    Increment {
        key: &'a [u8],
        delta: u64,
        decrement: bool,
        initial: Option<(u64, u32)>,
        stamp: u64,
        quiet: bool,
    },
    Delete {
        key: &'a [u8],
        stamp: u64,
        quiet: bool,
    },
    Flush {
        delay: u32,
        quiet: bool,
    },
    NoOp,
    Version,
    Stat {
        argument: &'a [u8],
    },
    Quit {
        quiet: bool,
    },
    /// The mechanisms of logging in.
    SaslList,
    SaslAuth {
        mechanism: &'a [u8],
        message: &'a [u8],
    },
    /// The mechanism that there is needs none.
    SaslStep,
    Refused {
        status: Status,
        close: bool,
    },
}

struct Header {
    opcode: u8,
    key_bytes: usize,
    extra_bytes: usize,
    body_bytes: usize,
    opaque: u32,
    stamp: u64,
}

fn be16(bytes: &[u8]) -> u16 {
    u16::from_be_bytes([bytes[0], bytes[1]])
}

fn be32(bytes: &[u8]) -> u32 {
    u32::from_be_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])
}

fn be64(bytes: &[u8]) -> u64 {
    u64::from(be32(bytes)) << 32 | u64::from(be32(&bytes[4..]))
}

impl Header {
    fn decode(bytes: &[u8]) -> Header {
        Header {
            opcode: bytes[1],
            key_bytes: usize::from(be16(&bytes[2..])),
            extra_bytes: usize::from(bytes[4]),
            body_bytes: be32(&bytes[8..]) as usize,
            opaque: be32(&bytes[12..]),
            stamp: be64(&bytes[16..]),
        }
    }

    /// Whether the lengths fit a request of this kind. Checked before its body has arrived.
    fn lengths_fit(&self, kind: FrameKind) -> bool {
        let &Header { key_bytes: key, extra_bytes: extras, body_bytes: body, .. } = self;
        match kind {
            FrameKind::Get => extras == 0 && key > 0 && body == key,
            FrameKind::Touch | FrameKind::GetAndTouch => extras == 4 && key > 0 && body == key + 4,
            FrameKind::Store(BinaryVerb::Append | BinaryVerb::Prepend) => extras == 0 && key > 0,
            FrameKind::Store(_) => extras == 8 && key > 0,
            FrameKind::Delete => extras == 0 && key > 0 && body == key,
            FrameKind::Increment => extras == 20 && key > 0 && body == key + 20,
            FrameKind::Flush => key == 0 && body == extras && (extras == 0 || extras == 4),
            FrameKind::Bare => body == 0,
            FrameKind::Stat => extras == 0 && body == key,
            FrameKind::Sasl => extras == 0 && key > 0,
            FrameKind::Unknown => true,
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum FrameKind {
    Get,
    GetAndTouch,
    Touch,
    Store(BinaryVerb),
    Delete,
    Increment,
    Flush,
    /// No extras, key or value.
    Bare,
    Stat,
    Sasl,
    Unknown,
}

mod opcode {
    pub const GET: u8 = 0x00;
    pub const SET: u8 = 0x01;
    pub const ADD: u8 = 0x02;
    pub const REPLACE: u8 = 0x03;
    pub const DELETE: u8 = 0x04;
    pub const INCREMENT: u8 = 0x05;
    pub const DECREMENT: u8 = 0x06;
    pub const QUIT: u8 = 0x07;
    pub const FLUSH: u8 = 0x08;
    pub const GETQ: u8 = 0x09;
    pub const NOOP: u8 = 0x0a;
    pub const VERSION: u8 = 0x0b;
    pub const GETK: u8 = 0x0c;
    pub const GETKQ: u8 = 0x0d;
    pub const APPEND: u8 = 0x0e;
    pub const PREPEND: u8 = 0x0f;
    pub const STAT: u8 = 0x10;
    pub const SETQ: u8 = 0x11;
    pub const ADDQ: u8 = 0x12;
    pub const REPLACEQ: u8 = 0x13;
    pub const DELETEQ: u8 = 0x14;
    pub const INCREMENTQ: u8 = 0x15;
    pub const DECREMENTQ: u8 = 0x16;
    pub const QUITQ: u8 = 0x17;
    pub const FLUSHQ: u8 = 0x18;
    pub const APPENDQ: u8 = 0x19;
    pub const PREPENDQ: u8 = 0x1a;
    pub const TOUCH: u8 = 0x1c;
    pub const GAT: u8 = 0x1d;
    pub const GATQ: u8 = 0x1e;
    pub const SASL_LIST: u8 = 0x20;
    pub const SASL_AUTH: u8 = 0x21;
    pub const SASL_STEP: u8 = 0x22;
    pub const GATK: u8 = 0x23;
    pub const GATKQ: u8 = 0x24;
}

fn kind(code: u8) -> FrameKind {
    use opcode::*;
    match code {
        GET | GETQ | GETK | GETKQ => FrameKind::Get,
        GAT | GATQ | GATK | GATKQ => FrameKind::GetAndTouch,
        TOUCH => FrameKind::Touch,
        SET | SETQ => FrameKind::Store(BinaryVerb::Set),
        ADD | ADDQ => FrameKind::Store(BinaryVerb::Add),
        REPLACE | REPLACEQ => FrameKind::Store(BinaryVerb::Replace),
        APPEND | APPENDQ => FrameKind::Store(BinaryVerb::Append),
        PREPEND | PREPENDQ => FrameKind::Store(BinaryVerb::Prepend),
        DELETE | DELETEQ => FrameKind::Delete,
        INCREMENT | INCREMENTQ | DECREMENT | DECREMENTQ => FrameKind::Increment,
        FLUSH | FLUSHQ => FrameKind::Flush,
        QUIT | QUITQ | NOOP | VERSION | SASL_LIST => FrameKind::Bare,
        STAT => FrameKind::Stat,
        SASL_AUTH | SASL_STEP => FrameKind::Sasl,
        _ => FrameKind::Unknown,
    }
}

fn is_quiet(code: u8) -> bool {
    use opcode::*;
    matches!(code, GETQ | GETKQ | SETQ..=PREPENDQ | GATQ | GATKQ)
}

/// A get without touch.
pub struct Get<'a> {
    pub key: &'a [u8],
    pub with_key: bool,
    pub origin: Origin,
}

/// The get at the start of `input`, if there is a whole one. The same as [`parse`], but faster.
#[inline]
pub fn parse_get(input: &[u8]) -> Option<Get<'_>> {
    use opcode::{GET, GETK, GETKQ, GETQ};
    let [BINARY_MAGIC, opcode @ (GET | GETQ | GETK | GETKQ), ..] = *input else { return None };
    let header = Header::decode(input.get(..HEADER_BYTES)?);
    if header.key_bytes > KEY_BYTES_MAX || !header.lengths_fit(FrameKind::Get) {
        return None;
    }
    let key = input.get(HEADER_BYTES..HEADER_BYTES + header.key_bytes)?;
    let with_key = matches!(opcode, GETK | GETKQ);
    Some(Get { key, with_key, origin: Origin { opcode, opaque: header.opaque } })
}

/// The key of the frame at the start of the input, as far as it has arrived, and whether the frame is a set.
pub fn key_of(input: &[u8]) -> Option<(&[u8], bool)> {
    let [BINARY_MAGIC, opcode, ..] = *input else { return None };
    let header = Header::decode(input.get(..HEADER_BYTES)?);
    let start = HEADER_BYTES + header.extra_bytes;
    let key = input.get(start..start + header.key_bytes)?;
    (key.len() <= KEY_BYTES_MAX).then_some((key, matches!(opcode, opcode::SET | opcode::SETQ)))
}

/// An unconditional set.
pub struct Set<'a> {
    pub key: &'a [u8],
    pub value: &'a [u8],
    pub flags: u32,
    pub exptime: u32,
    pub quiet: bool,
    pub origin: Origin,
}

/// Like [`parse_get`], for a set.
#[inline]
pub fn parse_set(input: &[u8], item_bytes_max: usize) -> Option<Set<'_>> {
    use opcode::{SET, SETQ};
    let [BINARY_MAGIC, opcode @ (SET | SETQ), ..] = *input else { return None };
    let header = Header::decode(input.get(..HEADER_BYTES)?);
    let fields_bytes = header.extra_bytes + header.key_bytes;
    let value_bytes = header.body_bytes.checked_sub(fields_bytes)?;
    let is_right = header.key_bytes <= KEY_BYTES_MAX && header.lengths_fit(FrameKind::Store(BinaryVerb::Set));
    if !is_right || value_bytes > item_bytes_max || header.stamp != 0 {
        return None;
    }
    let body = input.get(HEADER_BYTES..HEADER_BYTES + header.body_bytes)?;
    let (extras, rest) = body.split_at(header.extra_bytes);
    let (key, value) = rest.split_at(header.key_bytes);
    let origin = Origin { opcode, opaque: header.opaque };
    Some(Set { key, value, flags: be32(extras), exptime: be32(&extras[4..]), quiet: opcode == SETQ, origin })
}

/// Parses the request at the start of `input`.
pub fn parse(input: &[u8], item_bytes_max: usize) -> Parsed<(Origin, BinaryCommand<'_>)> {
    if input.first().is_some_and(|&magic| magic != BINARY_MAGIC) {
        return Parsed::Close;
    }
    if input.len() < HEADER_BYTES {
        return Parsed::NeedMore { total_bytes: HEADER_BYTES, scanned_bytes: 0 };
    }
    let header = Header::decode(input);
    let kind = kind(header.opcode);
    let origin = Origin { opcode: header.opcode, opaque: header.opaque };
    let refused = |status, close, skip_bytes| Parsed::Command {
        command: (origin, BinaryCommand::Refused { status, close }),
        consumed_bytes: HEADER_BYTES,
        skip_bytes,
    };
    let Some(value_bytes) = header.body_bytes.checked_sub(header.key_bytes + header.extra_bytes) else {
        return refused(Status::UnknownCommand, true, 0);
    };
    if header.key_bytes > KEY_BYTES_MAX || !header.lengths_fit(kind) {
        return refused(Status::InvalidArguments, true, 0);
    }
    if kind == FrameKind::Unknown {
        return refused(Status::UnknownCommand, false, header.body_bytes);
    }
    let fields_bytes = HEADER_BYTES + header.extra_bytes + header.key_bytes;
    let too_large = value_bytes > item_bytes_max;
    let total_bytes = if too_large { fields_bytes } else { fields_bytes + value_bytes };
    if input.len() < total_bytes {
        return Parsed::NeedMore { total_bytes, scanned_bytes: 0 };
    }
    let extras = &input[HEADER_BYTES..HEADER_BYTES + header.extra_bytes];
    let key = &input[HEADER_BYTES + header.extra_bytes..fields_bytes];
    let command = match (kind, too_large) {
        (FrameKind::Sasl, true) => BinaryCommand::Refused { status: Status::NotAllowed, close: false },
        (FrameKind::Store(verb), true) => BinaryCommand::TooLarge { key, delete: verb == BinaryVerb::Set },
        _ => request(&header, kind, extras, key, &input[fields_bytes..total_bytes]),
    };
    let skip_bytes = if too_large { value_bytes } else { 0 };
    Parsed::Command { command: (origin, command), consumed_bytes: total_bytes, skip_bytes }
}

fn request<'a>(header: &Header, kind: FrameKind, extras: &[u8], key: &'a [u8], value: &'a [u8]) -> BinaryCommand<'a> {
    use opcode::*;
    let quiet = is_quiet(header.opcode);
    let stamp = header.stamp;
    match kind {
        FrameKind::Get => BinaryCommand::Get { key, with_key: matches!(header.opcode, GETK | GETKQ), quiet },
        FrameKind::GetAndTouch => {
            let with_key = matches!(header.opcode, GATK | GATKQ);
            BinaryCommand::GetAndTouch { key, exptime: be32(extras), with_key, quiet }
        }
        FrameKind::Touch => BinaryCommand::Touch { key, exptime: be32(extras) },
        FrameKind::Store(verb @ (BinaryVerb::Append | BinaryVerb::Prepend)) => {
            BinaryCommand::Store { verb, key, flags: 0, exptime: 0, stamp, value, quiet }
        }
        FrameKind::Store(verb) => {
            BinaryCommand::Store { verb, key, flags: be32(extras), exptime: be32(&extras[4..]), stamp, value, quiet }
        }
        FrameKind::Delete => BinaryCommand::Delete { key, stamp, quiet },
        FrameKind::Increment => {
            let exptime = be32(&extras[16..]);
            // All ones means: do not create.
            let initial = (exptime != u32::MAX).then(|| (be64(&extras[8..]), exptime));
            let decrement = matches!(header.opcode, DECREMENT | DECREMENTQ);
            BinaryCommand::Increment { key, delta: be64(extras), decrement, initial, stamp, quiet }
        }
        FrameKind::Flush => BinaryCommand::Flush { delay: if extras.is_empty() { 0 } else { be32(extras) }, quiet },
        FrameKind::Stat => BinaryCommand::Stat { argument: key },
        FrameKind::Bare => match header.opcode {
            NOOP => BinaryCommand::NoOp,
            VERSION => BinaryCommand::Version,
            SASL_LIST => BinaryCommand::SaslList,
            _ => BinaryCommand::Quit { quiet },
        },
        FrameKind::Sasl if header.opcode == SASL_AUTH => BinaryCommand::SaslAuth { mechanism: key, message: value },
        FrameKind::Sasl => BinaryCommand::SaslStep,
        FrameKind::Unknown => BinaryCommand::Refused { status: Status::UnknownCommand, close: false },
    }
}

#[cfg(test)]
#[path = "binary_tests.rs"]
mod tests;
