//! Reads a large value and checks it, whole: for the offline check.

use super::pieces::pieces;
use crate::hashed::HashedEngine;
use tapetum_base::error::Error;
use tapetum_base::media::geometry::Geometry;
use tapetum_base::media::io::Io;
use tapetum_kernels::codec::Decompressor;
use tapetum_kernels::mib_sums::{MIB, MibCheck};
use tapetum_kernels::record::Codec;
use tapetum_kernels::reference::Reference;

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
    let mut check = MibCheck::new(reference.crc_of_none(store_id));
    let mut stored = Vec::with_capacity(reference.stored_bytes as usize);
    for piece in pieces(geometry, &reference.runs, reference.stored_bytes, PIECE_BYTES) {
        io.read(piece.flash, &mut buffer, 0, piece.length as usize).await?;
        let bytes = io.look(&buffer, 0..piece.bytes as usize);
        check.take(&reference.sums, bytes);
        stored.extend_from_slice(bytes);
    }
    let damaged = check.damaged(&reference.sums);
    if stored.len() != reference.stored_bytes as usize || damaged.is_some() {
        return Err(corrupt(reference, damaged));
    }
    if reference.codec != Codec::Zstd {
        return if reference.stored_bytes == raw_bytes { Ok(stored) } else { Err(corrupt(reference, None)) };
    }
    let mut value = vec![0; raw_bytes as usize];
    let inflates = Decompressor::new().is_ok_and(|mut context| context.decompress(&stored, &mut value).is_ok());
    if inflates { Ok(value) } else { Err(corrupt(reference, None)) }
}

/// The error that names a large value's place, and the first of its MiBs that is damaged, if it is known and there are several.
pub fn corrupt(reference: &Reference, damaged_mib: Option<u32>) -> Error {
    let (bytes, run) = (reference.stored_bytes, reference.runs[0]);
    let part = match damaged_mib.filter(|_| bytes as usize > MIB) {
        Some(mib) => format!("MiB {mib} of "),
        None => String::new(),
    };
    Error::Corrupt(format!("{part}the large value of {bytes} bytes from extent {} on", run.first))
}
