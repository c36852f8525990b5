//! The fixed newstyle handshake: the server's greeting, and the client's options.
//!
//! ```text
//!  server: "NBDMAGIC" "IHAVEOPT" flags u16
//!  client: flags u32, then options: "IHAVEOPT" option u32 length u32 data
//!  server, to each option: magic u64 option u32 kind u32 length u32 data
//! ```

use super::{NbdParsed, array, u32_at};

const OPTION_MAGIC: &[u8; 8] = b"IHAVEOPT";
const REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;
/// Fixed newstyle, and no zeroes behind the answer to `EXPORT_NAME`.
pub const GREETING: &[u8; 18] = b"NBDMAGICIHAVEOPT\x00\x03";

const FLAG_FIXED_NEWSTYLE: u32 = 1;
const FLAG_NO_ZEROES: u32 = 2;

pub const OPTION_EXPORT_NAME: u32 = 1;
const OPTION_ABORT: u32 = 2;
const OPTION_LIST: u32 = 3;
const OPTION_START_TLS: u32 = 5;
const OPTION_INFO: u32 = 6;
const OPTION_GO: u32 = 7;
const OPTION_STRUCTURED_REPLY: u32 = 8;
const OPTION_LIST_META_CONTEXT: u32 = 9;
const OPTION_SET_META_CONTEXT: u32 = 10;

/// The specification's limit on any string.
pub const NAME_BYTES_MAX: usize = 4096;
/// The longest data of an option that is parsed: a name, and a few words.
const OPTION_BYTES_MAX: usize = 2 * NAME_BYTES_MAX;
/// Longer data is not even discarded: the client is disconnected.
const SKIPPED_BYTES_MAX: usize = 1 << 20;
const HEAD_BYTES: usize = 16;

pub const INFO_EXPORT: u16 = 0;
pub const INFO_NAME: u16 = 1;
pub const INFO_BLOCK_SIZE: u16 = 3;

/// The only context of block statuses.
pub const CONTEXT_NAME: &[u8] = b"base:allocation";
pub const CONTEXT_ID: u32 = 1;

/// The kind of an option's answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum OptionReply {
    Ack = 1,
    Server = 2,
    Info = 3,
    MetaContext = 4,
    Unsupported = 0x8000_0001,
    Invalid = 0x8000_0003,
    TlsRequired = 0x8000_0005,
    Unknown = 0x8000_0006,
    TooBig = 0x8000_0009,
}

/// The client's flags, its first message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClientFlags {
    pub no_zeroes: bool,
}

pub fn client_flags(input: &[u8]) -> NbdParsed<ClientFlags> {
    if input.len() < 4 {
        return NbdParsed::NeedMore(4);
    }
    let flags = u32_at(input, 0);
    // Without fixed newstyle a client cannot be told that an option is unknown.
    if flags & FLAG_FIXED_NEWSTYLE == 0 || flags & !(FLAG_FIXED_NEWSTYLE | FLAG_NO_ZEROES) != 0 {
        return NbdParsed::Broken;
    }
    NbdParsed::Frame(ClientFlags { no_zeroes: flags & FLAG_NO_ZEROES != 0 }, 4)
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OptionKind<'a> {
    ExportName(&'a [u8]),
    Abort,
    List,
    /// Asks for these kinds of information about this export, two bytes each. With `goes`, the client then uses the export.
    About {
        name: &'a [u8],
        wanted: &'a [u8],
        goes: bool,
    },
    StartTls,
    StructuredReply,
    Contexts {
        name: &'a [u8],
        queries: Vec<&'a [u8]>,
        sets: bool,
    },
    Unknown,
    /// The data does not fit the option.
    Malformed,
    /// The data is too long. So many bytes follow that are discarded; `None` if they are too many even for that.
    TooLong {
        skip_bytes: Option<usize>,
    },
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientOption<'a> {
    pub code: u32,
    pub kind: OptionKind<'a>,
}

/// The next option of a client.
pub fn option(input: &[u8]) -> NbdParsed<ClientOption<'_>> {
    if input.len() < HEAD_BYTES {
        return NbdParsed::NeedMore(HEAD_BYTES);
    }
    if &array::<8>(input, 0) != OPTION_MAGIC {
        return NbdParsed::Broken;
    }
    let (code, length) = (u32_at(input, 8), u32_at(input, 12) as usize);
    if length > OPTION_BYTES_MAX {
        let skip_bytes = (length <= SKIPPED_BYTES_MAX).then_some(length);
        return NbdParsed::Frame(ClientOption { code, kind: OptionKind::TooLong { skip_bytes } }, HEAD_BYTES);
    }
    let end = HEAD_BYTES + length;
    match input.get(HEAD_BYTES..end) {
        Some(data) => NbdParsed::Frame(ClientOption { code, kind: kind_of(code, data) }, end),
        None => NbdParsed::NeedMore(end),
    }
}

fn kind_of(code: u32, data: &[u8]) -> OptionKind<'_> {
    let bare = |kind| if data.is_empty() { kind } else { OptionKind::Malformed };
    let parsed = match code {
        OPTION_EXPORT_NAME if data.len() <= NAME_BYTES_MAX => Some(OptionKind::ExportName(data)),
        OPTION_ABORT => Some(OptionKind::Abort),
        OPTION_LIST => Some(bare(OptionKind::List)),
        OPTION_START_TLS => Some(bare(OptionKind::StartTls)),
        OPTION_STRUCTURED_REPLY => Some(bare(OptionKind::StructuredReply)),
        OPTION_INFO | OPTION_GO => about(data, code == OPTION_GO),
        OPTION_LIST_META_CONTEXT | OPTION_SET_META_CONTEXT => contexts(data, code == OPTION_SET_META_CONTEXT),
        OPTION_EXPORT_NAME => None,
        _ => Some(OptionKind::Unknown),
    };
    parsed.unwrap_or(OptionKind::Malformed)
}

/// Takes a string behind its length.
fn take_string<'a>(data: &mut &'a [u8]) -> Option<&'a [u8]> {
    let (length, rest) = data.split_at_checked(4)?;
    let length = u32_at(length, 0) as usize;
    let (string, rest) = rest.split_at_checked(length)?;
    *data = rest;
    (length <= NAME_BYTES_MAX).then_some(string)
}

fn about(mut data: &[u8], goes: bool) -> Option<OptionKind<'_>> {
    let name = take_string(&mut data)?;
    let (count, wanted) = data.split_at_checked(2)?;
    let count = u16::from_be_bytes(array(count, 0));
    (wanted.len() == 2 * usize::from(count)).then_some(OptionKind::About { name, wanted, goes })
}

fn contexts(mut data: &[u8], sets: bool) -> Option<OptionKind<'_>> {
    let name = take_string(&mut data)?;
    let (count, rest) = data.split_at_checked(4)?;
    data = rest;
    let mut queries = Vec::new();
    for _ in 0..u32_at(count, 0) {
        queries.push(take_string(&mut data)?);
    }
    data.is_empty().then_some(OptionKind::Contexts { name, queries, sets })
}

pub fn push_reply(out: &mut Vec<u8>, code: u32, kind: OptionReply, data: &[&[u8]]) {
    let length: usize = data.iter().map(|piece| piece.len()).sum();
    out.extend_from_slice(&REPLY_MAGIC.to_be_bytes());
    for word in [code, kind as u32, length as u32] {
        out.extend_from_slice(&word.to_be_bytes());
    }
    data.iter().for_each(|piece| out.extend_from_slice(piece));
}

/// Answers `EXPORT_NAME`, the only answer without a head.
pub fn push_export(out: &mut Vec<u8>, size_bytes: u64, flags: u16, ClientFlags { no_zeroes }: ClientFlags) {
    out.extend_from_slice(&size_bytes.to_be_bytes());
    out.extend_from_slice(&flags.to_be_bytes());
    if !no_zeroes {
        out.extend_from_slice(&[0; 124]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(code: u32, data: &[u8]) -> Vec<u8> {
        [&OPTION_MAGIC[..], &code.to_be_bytes(), &(data.len() as u32).to_be_bytes(), data].concat()
    }

    fn string(text: &[u8]) -> Vec<u8> {
        [&(text.len() as u32).to_be_bytes()[..], text].concat()
    }

    #[track_caller]
    fn parsed(code: u32, data: &[u8]) -> OptionKind<'_> {
        let NbdParsed::Frame(ClientOption { code: found, kind }, bytes) = option(written(code, data).leak()) else {
            panic!("no frame")
        };
        assert_eq!((found, bytes), (code, 16 + data.len()));
        kind
    }

    #[test]
    fn options_are_taken_whole_and_not_before() {
        let go = written(OPTION_GO, &[&string(b"disk0")[..], &[0, 1, 0, 3]].concat());
        for length in 0..go.len() {
            let needed = if length < 16 { 16 } else { go.len() };
            assert_eq!(option(&go[..length]), NbdParsed::NeedMore(needed));
        }
        let kind = OptionKind::About { name: b"disk0", wanted: &[0, 3], goes: true };
        assert_eq!(option(&go), NbdParsed::Frame(ClientOption { code: OPTION_GO, kind }, go.len()));
        assert_eq!(option(b"IHAVEOPS\0\0\0\x07\0\0\0\0"), NbdParsed::Broken);
    }

    #[test]
    fn strings_and_counts_that_do_not_fit_are_malformed() {
        let long = string(&[b'n'; 4097]);
        for data in [
            &b""[..],
            b"\0\0\0",
            b"\0\0\0\x09disk0\0\0",
            b"\xff\xff\xff\xffdisk0\0\0",
            b"\0\0\0\x05disk0",
            b"\0\0\0\x05disk0\0\x01",
            b"\0\0\0\x05disk0\0\0more",
            &[&long[..], &[0, 0]].concat(),
        ] {
            assert_eq!(parsed(OPTION_GO, data), OptionKind::Malformed, "{data:?}");
        }
        for data in [&b"\0\0\0\0\0\0\0\x01"[..], b"\0\0\0\0\xff\xff\xff\xff", b"\0\0\0\0\0\0\0\0x"] {
            assert_eq!(parsed(OPTION_SET_META_CONTEXT, data), OptionKind::Malformed, "{data:?}");
        }
        assert_eq!(parsed(OPTION_LIST, b"x"), OptionKind::Malformed);
        assert_eq!(parsed(OPTION_EXPORT_NAME, &[b'n'; 4097]), OptionKind::Malformed);
        assert_eq!(parsed(OPTION_EXPORT_NAME, &[b'n'; 257]), OptionKind::ExportName(&[b'n'; 257]));
        assert_eq!(parsed(OPTION_START_TLS, b""), OptionKind::StartTls);
        assert_eq!(parsed(OPTION_START_TLS, b"x"), OptionKind::Malformed);
        assert_eq!(parsed(4, b""), OptionKind::Unknown);
    }

    #[test]
    fn data_that_nobody_waits_for_are_thrown_away_or_too_many_for_that() {
        for (length, skip_bytes) in [(8193u32, Some(8193)), (1 << 20, Some(1 << 20)), (u32::MAX, None)] {
            let head = [&OPTION_MAGIC[..], &7u32.to_be_bytes(), &length.to_be_bytes()].concat();
            let kind = OptionKind::TooLong { skip_bytes };
            assert_eq!(option(&head), NbdParsed::Frame(ClientOption { code: 7, kind }, 16));
        }
    }

    #[test]
    fn flags_that_mean_nothing_here_end_it() {
        assert_eq!(client_flags(&[0, 0, 0]), NbdParsed::NeedMore(4));
        assert_eq!(client_flags(&[0, 0, 0, 3, 9]), NbdParsed::Frame(ClientFlags { no_zeroes: true }, 4));
        assert_eq!(client_flags(&[0, 0, 0, 1]), NbdParsed::Frame(ClientFlags { no_zeroes: false }, 4));
        for flags in [[0, 0, 0, 0], [0, 0, 0, 2], [0, 0, 0, 5], *b"GET "] {
            assert_eq!(client_flags(&flags), NbdParsed::Broken);
        }
    }
}
