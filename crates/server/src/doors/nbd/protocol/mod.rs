//! The NBD protocol: parsers and replies, pure functions over bytes. All numbers are big-endian.
//!
//! Constants have the specification's names, without their prefix.

pub mod handshake;
pub mod reply;
pub mod request;

/// The result of parsing the front of the input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NbdParsed<T> {
    /// A frame, and its length.
    Frame(T, usize),
    /// The input must hold at least so many bytes.
    NeedMore(usize),
    /// Not this protocol: the bytes that follow cannot be parsed.
    Broken,
}

/// The abilities of an export, as transmission flags.
pub mod export_flags {
    pub const HAS_FLAGS: u16 = 1;
    pub const READ_ONLY: u16 = 1 << 1;
    pub const SEND_FLUSH: u16 = 1 << 2;
    pub const SEND_FUA: u16 = 1 << 3;
    pub const SEND_TRIM: u16 = 1 << 5;
    pub const SEND_WRITE_ZEROES: u16 = 1 << 6;
    pub const SEND_DF: u16 = 1 << 7;
    pub const CAN_MULTI_CONN: u16 = 1 << 8;
}

/// Error numbers of the protocol.
pub mod errors {
    pub const PERM: u32 = 1;
    pub const IO: u32 = 5;
    pub const INVAL: u32 = 22;
    pub const NOSPC: u32 = 28;
}

/// The bytes at an offset, which must be there.
fn array<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    let mut array = [0; N];
    array.copy_from_slice(&bytes[at..at + N]);
    array
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes(array(bytes, at))
}
