//! The keys of a get whose line is longer than a piece of the input: they are taken piece by piece. Pure functions, like the parsers.

use super::text::{BAD_FORMAT, ERROR, TextCommand, Tokens, key_fits, parse_line, split};
use super::{KEY_BYTES_MAX, Parsed};

/// A longer line of many keys is taken in pieces of at most this size, and each piece is answered before the next is kept. A line of ten
/// thousand common keys is still one piece, and so is any datagram: such a line is refused whole for one bad key.
pub const GET_PIECE_BYTES: usize = 256 << 10;

/// The next part of a get whose line goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MoreKeys {
    /// Like [`Parsed::NeedMore`].
    NeedMore { total_bytes: usize, scanned_bytes: usize },
    /// A list of keys, which were checked, and the length of the line end; zero if the line goes on once more.
    List { list_bytes: usize, end_bytes: usize },
    /// Refused, after so many bytes; the rest of the line is discarded.
    Refused { complaint: &'static str, consumed_bytes: usize },
}

/// The first keys of a line that is longer than `piece`.
pub(super) fn first_keys(piece: &[u8]) -> Parsed<TextCommand<'_>> {
    let list = &piece[..whole_words_bytes(piece)];
    let tokens = Tokens::of(list);
    let command = match parse_line(&tokens, list) {
        _ if list.contains(&0) => TextCommand::RefusedLine { complaint: ERROR, close: false },
        _ if piece.len() - list.len() > KEY_BYTES_MAX => {
            TextCommand::RefusedLine { complaint: BAD_FORMAT, close: false }
        }
        TextCommand::Get { keys, stamps, .. } => TextCommand::Get { keys, stamps, goes_on: true },
        TextCommand::GetAndTouch { keys, exptime, stamps, .. } => {
            TextCommand::GetAndTouch { keys, exptime, stamps, goes_on: true }
        }
        TextCommand::Refused { complaint: Some(complaint) } => TextCommand::RefusedLine { complaint, close: false },
        _ => TextCommand::RefusedLine { complaint: ERROR, close: false },
    };
    Parsed::Command { command, consumed_bytes: list.len(), skip_bytes: 0 }
}

/// The next keys of a line that goes on. The first `scanned_bytes` of `input` hold no line end.
pub fn more_keys(input: &[u8], scanned_bytes: usize) -> MoreKeys {
    let piece = &input[..input.len().min(GET_PIECE_BYTES)];
    let from = scanned_bytes.min(piece.len());
    let end = piece[from..].iter().position(|&byte| byte == b'\n').map(|at| from + at);
    let (list, end_bytes, rest) = match end {
        Some(end) => {
            let list = piece[..end].strip_suffix(b"\r").unwrap_or(&piece[..end]);
            (list, end + 1 - list.len(), &b""[..])
        }
        None if input.len() < GET_PIECE_BYTES => {
            return MoreKeys::NeedMore { total_bytes: input.len() + 1, scanned_bytes: input.len() };
        }
        None => {
            let (list, rest) = piece.split_at(whole_words_bytes(piece));
            (list, 0, rest)
        }
    };
    let consumed_bytes = list.len();
    if list.contains(&0) {
        return MoreKeys::Refused { complaint: ERROR, consumed_bytes };
    }
    match split(list).all(key_fits) && key_fits(rest) {
        true => MoreKeys::List { list_bytes: list.len(), end_bytes },
        false => MoreKeys::Refused { complaint: BAD_FORMAT, consumed_bytes },
    }
}

/// Bytes of `piece` before its last word, which may be incomplete.
fn whole_words_bytes(piece: &[u8]) -> usize {
    piece.iter().rposition(|&byte| byte == b' ').map_or(0, |at| at + 1)
}
