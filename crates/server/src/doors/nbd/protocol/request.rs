//! A request of the transmission, and what is wrong with it.
//!
//! ```text
//!  magic u32 · flags u16 · command u16 · cookie u64 · offset u64 · length u32 · of a write: length bytes
//! ```

use super::{NbdParsed, array, errors, u32_at};

pub const REQUEST_BYTES: usize = 28;
/// The longest read or write.
pub const PAYLOAD_BYTES_MAX: u32 = 32 << 20;
const MAGIC: u32 = 0x2560_9513;

const FLAG_FUA: u16 = 1;
const FLAG_NO_HOLE: u16 = 1 << 1;
const FLAG_DF: u16 = 1 << 2;
const FLAG_REQ_ONE: u16 = 1 << 3;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NbdCommand {
    Read,
    Write,
    Disconnect,
    Flush,
    Trim,
    WriteZeroes,
    BlockStatus,
    Unknown(u16),
}

impl NbdCommand {
    fn of(code: u16) -> NbdCommand {
        match code {
            0 => NbdCommand::Read,
            1 => NbdCommand::Write,
            2 => NbdCommand::Disconnect,
            3 => NbdCommand::Flush,
            4 => NbdCommand::Trim,
            6 => NbdCommand::WriteZeroes,
            7 => NbdCommand::BlockStatus,
            other => NbdCommand::Unknown(other),
        }
    }

    fn flags_allowed(self) -> u16 {
        match self {
            // FUA says nothing of reads, and some clients send it with every command.
            NbdCommand::Read => FLAG_DF | FLAG_FUA,
            NbdCommand::Write | NbdCommand::Trim => FLAG_FUA,
            NbdCommand::WriteZeroes => FLAG_FUA | FLAG_NO_HOLE,
            NbdCommand::BlockStatus => FLAG_REQ_ONE,
            NbdCommand::Flush => FLAG_FUA,
            NbdCommand::Disconnect | NbdCommand::Unknown(_) => u16::MAX,
        }
    }

    fn changes(self) -> bool {
        matches!(self, NbdCommand::Write | NbdCommand::Trim | NbdCommand::WriteZeroes)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NbdRequest {
    flags: u16,
    pub command: NbdCommand,
    pub cookie: u64,
    pub offset: u64,
    pub length: u32,
}

impl NbdRequest {
    pub fn parse(input: &[u8]) -> NbdParsed<NbdRequest> {
        if input.len() < REQUEST_BYTES {
            return NbdParsed::NeedMore(REQUEST_BYTES);
        }
        if u32_at(input, 0) != MAGIC {
            return NbdParsed::Broken;
        }
        let request = NbdRequest {
            flags: u16::from_be_bytes(array(input, 4)),
            command: NbdCommand::of(u16::from_be_bytes(array(input, 6))),
            cookie: u64::from_be_bytes(array(input, 8)),
            offset: u64::from_be_bytes(array(input, 16)),
            length: u32_at(input, 24),
        };
        NbdParsed::Frame(request, REQUEST_BYTES)
    }

    /// Durable before it is answered.
    pub fn is_forced(&self) -> bool {
        self.flags & FLAG_FUA != 0
    }

    /// Zeroes take the room that data would.
    pub fn is_allocated(&self) -> bool {
        self.flags & FLAG_NO_HOLE != 0
    }

    /// The reply to a read is not to be cut into pieces.
    pub fn is_whole(&self) -> bool {
        self.flags & FLAG_DF != 0
    }

    /// One extent is enough.
    pub fn is_of_one(&self) -> bool {
        self.flags & FLAG_REQ_ONE != 0
    }

    /// Bytes that follow it.
    pub fn payload_bytes(&self) -> u32 {
        if self.command == NbdCommand::Write { self.length } else { 0 }
    }

    /// The error that a request on an export comes to, whatever the export holds; 0 is none.
    pub fn refusal(&self, size_bytes: u64, is_read_only: bool, has_statuses: bool) -> u32 {
        let NbdRequest { flags, command, offset, length, .. } = *self;
        if flags & !command.flags_allowed() != 0 {
            return errors::INVAL;
        }
        let is_beyond = offset.checked_add(length.into()).is_none_or(|end| end > size_bytes);
        match command {
            NbdCommand::Flush | NbdCommand::Disconnect => 0,
            NbdCommand::Unknown(_) => errors::INVAL,
            _ if command.changes() && is_read_only => errors::PERM,
            NbdCommand::Read | NbdCommand::Write if length > PAYLOAD_BYTES_MAX => errors::INVAL,
            NbdCommand::BlockStatus if length == 0 || !has_statuses => errors::INVAL,
            NbdCommand::Write | NbdCommand::WriteZeroes if is_beyond => errors::NOSPC,
            _ if is_beyond => errors::INVAL,
            _ => 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_read_field_by_field() {
        let mut bytes = vec![0x25, 0x60, 0x95, 0x13, 0, 1, 0, 6, 0, 0, 0, 0, 0, 0, 0, 7];
        bytes.extend_from_slice(&[0, 0, 0, 1, 0, 0, 0x10, 0, 0, 0, 2, 0]);
        let (command, offset) = (NbdCommand::WriteZeroes, (1 << 32) + 4096);
        let found = NbdRequest { flags: 1, command, cookie: 7, offset, length: 512 };
        assert_eq!(NbdRequest::parse(&bytes), NbdParsed::Frame(found, 28));
        assert_eq!(NbdRequest::parse(&bytes[..27]), NbdParsed::NeedMore(28));
        bytes[0] = 0x26;
        assert_eq!(NbdRequest::parse(&bytes), NbdParsed::Broken);
    }
}
