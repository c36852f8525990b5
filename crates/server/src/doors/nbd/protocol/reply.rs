//! Replies of the transmission: simple ones, and structured ones, which come in chunks.
//!
//! ```text
//!  simple: magic u32 · error u32 · cookie u64 · of a read that succeeded: its bytes
//!  chunk:  magic u32 · flags u16 · kind u16 · cookie u64 · length u32 · length bytes
//! ```

use super::handshake::CONTEXT_ID;

const SIMPLE_MAGIC: u32 = 0x6744_6698;
const CHUNK_MAGIC: u32 = 0x668e_33ef;
const FLAG_DONE: u16 = 1;

const CHUNK_NONE: u16 = 0;
const CHUNK_DATA: u16 = 1;
const CHUNK_HOLE: u16 = 2;
const CHUNK_STATUS: u16 = 5;
const CHUNK_ERROR: u16 = 1 << 15 | 1;

/// Both bits of a status: no room is taken, and it reads as zeros.
pub const STATUS_HOLE: u32 = 3;

pub fn push_simple(out: &mut Vec<u8>, cookie: u64, error: u32) {
    out.extend_from_slice(&SIMPLE_MAGIC.to_be_bytes());
    out.extend_from_slice(&error.to_be_bytes());
    out.extend_from_slice(&cookie.to_be_bytes());
}

fn push_chunk(out: &mut Vec<u8>, cookie: u64, kind: u16, is_last: bool, length: usize) {
    out.extend_from_slice(&CHUNK_MAGIC.to_be_bytes());
    out.extend_from_slice(&(if is_last { FLAG_DONE } else { 0 }).to_be_bytes());
    out.extend_from_slice(&kind.to_be_bytes());
    out.extend_from_slice(&cookie.to_be_bytes());
    out.extend_from_slice(&(length as u32).to_be_bytes());
}

/// The head of a chunk of `bytes` data, which follow.
pub fn push_data_head(out: &mut Vec<u8>, cookie: u64, is_last: bool, offset: u64, bytes: usize) {
    push_chunk(out, cookie, CHUNK_DATA, is_last, 8 + bytes);
    out.extend_from_slice(&offset.to_be_bytes());
}

pub fn push_hole(out: &mut Vec<u8>, cookie: u64, is_last: bool, offset: u64, bytes: u32) {
    push_chunk(out, cookie, CHUNK_HOLE, is_last, 12);
    out.extend_from_slice(&offset.to_be_bytes());
    out.extend_from_slice(&bytes.to_be_bytes());
}

/// The end of a reply that has nothing to say.
pub fn push_end(out: &mut Vec<u8>, cookie: u64) {
    push_chunk(out, cookie, CHUNK_NONE, true, 0);
}

pub fn push_error(out: &mut Vec<u8>, cookie: u64, error: u32) {
    push_chunk(out, cookie, CHUNK_ERROR, true, 6);
    out.extend_from_slice(&error.to_be_bytes());
    out.extend_from_slice(&0u16.to_be_bytes());
}

/// Extents, each with its length and its status.
pub fn push_statuses(out: &mut Vec<u8>, cookie: u64, extents: &[(u32, u32)]) {
    push_chunk(out, cookie, CHUNK_STATUS, true, 4 + 8 * extents.len());
    out.extend_from_slice(&CONTEXT_ID.to_be_bytes());
    for (bytes, status) in extents {
        out.extend_from_slice(&bytes.to_be_bytes());
        out.extend_from_slice(&status.to_be_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_say_how_long_they_are() {
        let mut out = Vec::new();
        push_data_head(&mut out, 7, false, 4096, 0);
        push_hole(&mut out, 7, false, 8192, 4096);
        push_statuses(&mut out, 8, &[(4096, 0), (8192, STATUS_HOLE)]);
        push_error(&mut out, 9, 28);
        push_end(&mut out, 7);
        let mut at = 0;
        let mut chunks = Vec::new();
        while at < out.len() {
            let length = u32::from_be_bytes(out[at + 16..at + 20].try_into().unwrap());
            chunks.push((out[at + 5], u16::from_be_bytes([out[at + 6], out[at + 7]]), out[at + 15], length));
            at += 20 + length as usize;
        }
        let expected = [(0, 1, 7, 8), (0, 2, 7, 12), (1, 5, 8, 20), (1, 32769, 9, 6), (1, 0, 7, 0)];
        assert_eq!((at, chunks), (out.len(), expected.to_vec()));
    }
}
