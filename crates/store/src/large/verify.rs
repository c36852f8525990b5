//! Reads a large value and checks it, whole: for the offline check.

use super::transfer::pieces;
use crate::error::Error;
use crate::io::Io;
use crate::shared::Shared;
use tapetum_kernels::codec::Decompressor;
use tapetum_kernels::record::Codec;
use tapetum_kernels::reference::{Reference, crc_append};

const PIECE_BYTES: u64 = 256 << 10;

/// An error if the stored bytes are not those that `reference` names, or do not give a value of `raw_bytes`.
pub async fn verify(shared: &Shared, io: &Io, reference: &Reference, raw_bytes: u32) -> Result<(), Error> {
    let room = shared.drive.local().allocate(PIECE_BYTES as usize);
    let mut buffer = room.ok_or_else(|| Error::Options("--memory is too small to check: raise it".into()))?;
    let mut crc = reference.crc_of_none(shared.store_id);
    let mut stored = Vec::with_capacity(reference.stored_bytes as usize);
    for piece in pieces(&shared.geometry, &reference.runs, reference.stored_bytes, PIECE_BYTES) {
        io.read(piece.flash, &mut buffer, 0, piece.length as usize).await?;
        let bytes = &buffer.bytes()[..piece.bytes as usize];
        crc = crc_append(crc, bytes);
        stored.extend_from_slice(bytes);
    }
    let mut value = vec![0; raw_bytes as usize];
    let inflates = match reference.codec {
        Codec::Zstd => Decompressor::new().is_ok_and(|mut context| context.decompress(&stored, &mut value).is_ok()),
        _ => reference.stored_bytes == raw_bytes,
    };
    let whole = stored.len() == reference.stored_bytes as usize;
    if whole && crc == reference.crc && inflates { Ok(()) } else { Err(corrupt(reference)) }
}

/// The error that names a large value's place.
pub fn corrupt(reference: &Reference) -> Error {
    let run = reference.runs[0];
    Error::Corrupt(format!("the large value of {} bytes from extent {} on", reference.stored_bytes, run.first))
}
