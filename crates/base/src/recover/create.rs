//! Creating a store: superblock, an empty manifest, and zeros where manifest and log come.

use super::no_memory;
use crate::error::Error;
use crate::installer::{Clients, EngineClients};
use crate::manifest::Manifest;
use crate::media::features::Features;
use crate::media::geometry::{BUFFERS, Geometry};
use crate::media::io::Io;
use crate::media::superblock::Superblock;
use crate::options::StoreOptions;
use tapetum_drive::Drive;

/// An area of a large drive is not needed whole for a long time, if ever.
const MANIFEST_ZEROED_BYTES_MAX: u64 = 64 << 20;

/// Makes an empty store on the drive. What was there is lost.
pub async fn create(drive: &Drive, io: &Io, options: &StoreOptions, of_engines: EngineClients) -> Result<(), Error> {
    let geometry =
        Geometry::new(drive.capacity_bytes(), options.segment_bytes, options.partition_bits, drive.sector_bytes())?;
    let mut secret = [0; 16];
    drive.env().random_bytes(&mut secret);
    let made = Superblock::new(drive.env().random_u64(), secret, geometry);
    let features = Features::of_new(options.cluster_slots);
    let superblock = Superblock { grows: options.grows, features, ..made };
    for area in 0..2 {
        zero(drive, io, geometry.manifest_offset(area), geometry.manifest_bytes.min(MANIFEST_ZEROED_BYTES_MAX)).await?;
    }
    zero(drive, io, geometry.zone_offset(0), BUFFERS * geometry.segment_bytes).await?;
    io.flush().await?;
    Manifest::create(io, &geometry, superblock.store_id, &Clients::empty(of_engines)).await?;
    superblock.write(io, &[0, 1]).await
}

/// Manifest and log are zero-written once, so that their later writes allocate nothing.
async fn zero(drive: &Drive, io: &Io, from: u64, length: u64) -> Result<(), Error> {
    let chunk = length.min(1 << 20);
    let mut buffer = drive.local().allocate(chunk as usize).ok_or_else(|| no_memory("a write"))?;
    io.fill(&mut buffer, 0..chunk as usize).fill(0);
    let mut at = 0;
    while at < length {
        let bytes = chunk.min(length - at) as usize;
        io.write(from + at, &mut buffer, bytes).await?;
        at += bytes as u64;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::media::io::run;
    use crate::recover::tests::{SMALL_BYTES, drive, small_options};
    use std::ops::Range;
    use tapetum_drive::MemoryFlash;

    #[test]
    fn what_was_on_a_drive_is_written_over_where_manifest_and_log_come() {
        let options = small_options();
        let (drive, io) = drive(MemoryFlash::new(SMALL_BYTES));
        let mut buffer = drive.local().allocate(1 << 20).unwrap();
        buffer.bytes_mut().fill(7);
        for at in 0..8 {
            run(&io, io.write_durably(at << 20, &mut buffer, 1 << 20), || false).unwrap().unwrap();
        }
        run(&io, create(&drive, &io, &options, Vec::new), || false).unwrap().unwrap();
        let mut has_old = |range: Range<u64>| {
            range.step_by(4096).any(|at| {
                run(&io, io.read(at, &mut buffer, 0, 4096), || false).unwrap().unwrap();
                buffer.bytes()[..4096].contains(&7)
            })
        };
        let geometry = Geometry::new(SMALL_BYTES, 64 << 10, 2, 512).unwrap();
        // A new manifest is a few sectors of the first area.
        assert!(!has_old(geometry.manifest_offset(0) + 4096..geometry.manifest_offset(2)));
        assert!(!has_old(geometry.zone_offset(0)..geometry.zone_offset(BUFFERS - 1) + (64 << 10)));
        assert!(has_old(geometry.extents_offset()..geometry.extents_offset() + 4096), "items come there");
    }
}
