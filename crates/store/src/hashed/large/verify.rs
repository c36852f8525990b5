//! Reads a large value and checks it, whole: for the offline check.

use super::pieces::pieces;
use crate::hashed::HashedEngine;
use tapetum_base::error::Error;
use tapetum_base::media::geometry::Geometry;
use tapetum_base::media::io::Io;
use tapetum_kernels::codec::Decompressor;
use tapetum_kernels::record::Codec;
use tapetum_kernels::reference::{Reference, crc_append};

const PIECE_BYTES: u64 = 256 << 10;

/// An error if the stored bytes are not those that `reference` names, or do not give a value of `raw_bytes`.
pub async fn verify(engine: &HashedEngine, io: &Io, reference: &Reference, raw_bytes: u32) -> Result<(), Error> {
    read_value(io, &engine.geometry, engine.store_id, reference, raw_bytes).await.map(drop)
}

/// The value that `reference` names, checked.
pub async fn read_value(
    io: &Io,
    geometry: &Geometry,
    store_id: u64,
    reference: &Reference,
    raw_bytes: u32,
) -> Result<Vec<u8>, Error> {
    let mut buffer = io.allocate(PIECE_BYTES as usize).await?;
    let mut crc = reference.crc_of_none(store_id);
    let mut stored = Vec::with_capacity(reference.stored_bytes as usize);
    for piece in pieces(geometry, &reference.runs, reference.stored_bytes, PIECE_BYTES) {
        io.read(piece.flash, &mut buffer, 0, piece.length as usize).await?;
        let bytes = io.look(&buffer, 0..piece.bytes as usize);
        crc = crc_append(crc, bytes);
        stored.extend_from_slice(bytes);
    }
    if stored.len() != reference.stored_bytes as usize || crc != reference.crc {
        return Err(corrupt(reference));
    }
    if reference.codec != Codec::Zstd {
        return if reference.stored_bytes == raw_bytes { Ok(stored) } else { Err(corrupt(reference)) };
    }
    let mut value = vec![0; raw_bytes as usize];
    let inflates = Decompressor::new().is_ok_and(|mut context| context.decompress(&stored, &mut value).is_ok());
    if inflates { Ok(value) } else { Err(corrupt(reference)) }
}

/// The error that names a large value's place.
pub fn corrupt(reference: &Reference) -> Error {
    let run = reference.runs[0];
    Error::Corrupt(format!("the large value of {} bytes from extent {} on", reference.stored_bytes, run.first))
}
