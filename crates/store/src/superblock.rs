//! The superblock: what a drive is, written at creation, twice.
//!
//! ```text
//!   0  magic "TAPETUM\0"        48  capacity u64        80  sector bytes u32
//!   8  version u32              56  segment bytes u64   84  partition bits u32
//!  12  crc u32 (zero while summed) 64 extent bytes u64  88  set id u128
//!  16  store id u64, zero u64   72  manifest bytes u64 104  place in the set u16, members u16
//!  32  hash secret 16 bytes                            108  zero to 4096
//! ```
//! The place in a set is for stripes over several drives; a drive on its own is member 0 of 1.

use crate::error::Error;
use crate::geometry::{Geometry, SUPERBLOCK_BYTES};
use crate::wire::{Reader, Short, Writer};
use tapetum_kernels::checksum::{Salt, checksum};

const MAGIC: [u8; 8] = *b"TAPETUM\0";
const VERSION: u32 = 1;
const CRC_AT: usize = 12;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Superblock {
    /// Salts every checksum of the store.
    pub store_id: u64,
    /// The key of the hash that hash keys are made with.
    pub secret: [u8; 16],
    pub geometry: Geometry,
}

impl Superblock {
    pub fn encode(&self) -> Vec<u8> {
        let mut writer = Writer::default();
        writer.bytes.extend_from_slice(&MAGIC);
        writer.u32(VERSION);
        writer.u32(0);
        writer.u64(self.store_id);
        writer.u64(0);
        writer.bytes.extend_from_slice(&self.secret);
        writer.u64(self.geometry.capacity_bytes);
        writer.u64(self.geometry.segment_bytes);
        writer.u64(self.geometry.extent_bytes);
        writer.u64(self.geometry.manifest_bytes);
        writer.u32(self.geometry.sector_bytes);
        writer.u32(self.geometry.partition_bits);
        writer.u64(self.store_id);
        writer.u64(0);
        writer.u16(0);
        writer.u16(1);
        writer.bytes.resize(SUPERBLOCK_BYTES as usize, 0);
        let crc = Self::crc(&writer.bytes);
        writer.bytes[CRC_AT..CRC_AT + 4].copy_from_slice(&crc.to_le_bytes());
        writer.bytes
    }

    fn crc(bytes: &[u8]) -> u32 {
        let salt = Salt { store: 0, address: 0, version: u64::from(VERSION) };
        checksum(salt, &[&bytes[..CRC_AT], &[0; 4], &bytes[CRC_AT + 4..]])
    }

    /// Reads one copy. `Ok(None)`: this copy is torn or damaged; the other may do.
    fn parse(bytes: &[u8]) -> Result<Option<Superblock>, Error> {
        if bytes[..8] != MAGIC {
            return Ok(None);
        }
        let version = u32::from_le_bytes([bytes[8], bytes[9], bytes[10], bytes[11]]);
        if version > VERSION {
            return Err(Error::Unusable(format!(
                "the store has format version {version}, newer than {VERSION}: use a newer tapetum; nothing was written"
            )));
        }
        if bytes[CRC_AT..CRC_AT + 4] != Self::crc(bytes).to_le_bytes() {
            return Ok(None);
        }
        Self::fields(&bytes[16..]).map_or(Ok(None), |superblock| Ok(Some(superblock)))
    }

    fn fields(bytes: &[u8]) -> Result<Superblock, Short> {
        let mut reader = Reader::new(bytes);
        let store_id = reader.u64()?;
        reader.u64()?;
        let secret = reader.array()?;
        let geometry = Geometry {
            capacity_bytes: reader.u64()?,
            segment_bytes: reader.u64()?,
            extent_bytes: reader.u64()?,
            manifest_bytes: reader.u64()?,
            sector_bytes: reader.u32()?,
            partition_bits: reader.u32()?,
        };
        Ok(Superblock { store_id, secret, geometry })
    }

    /// Reads the first 8 KiB of a drive of `drive_bytes`.
    pub fn read(both: &[u8], drive_bytes: u64) -> Result<Superblock, Error> {
        let (first, second) = both.split_at(SUPERBLOCK_BYTES as usize);
        let Some(superblock) = Self::parse(first)?.map_or_else(|| Self::parse(second), |found| Ok(Some(found)))? else {
            return Err(Error::Unusable(
                "there is no tapetum store here (no valid superblock): give another --data or --drive, or an empty one; \
                 nothing was written"
                    .to_string(),
            ));
        };
        let geometry = superblock.geometry;
        if geometry.capacity_bytes > drive_bytes {
            return Err(Error::Unusable(format!(
                "the store was made for {} bytes and the drive has {drive_bytes}: it was cut short; restore it whole; \
                 nothing was written",
                geometry.capacity_bytes
            )));
        }
        let again = Geometry::new(
            geometry.capacity_bytes,
            geometry.segment_bytes,
            geometry.partition_bits,
            geometry.sector_bytes,
        )?;
        if again != geometry {
            return Err(Error::Unusable(
                "the superblock's layout is not one this version makes: use the version that made it".into(),
            ));
        }
        Ok(superblock)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn superblock() -> Superblock {
        Superblock { store_id: 77, secret: [3; 16], geometry: Geometry::new(10 << 30, 32 << 20, 6, 512).unwrap() }
    }

    #[test]
    fn either_copy_will_do_and_a_foreign_drive_is_refused() {
        let one = superblock().encode();
        let torn = vec![0xff; one.len()];
        for both in [[one.clone(), torn.clone()].concat(), [torn.clone(), one.clone()].concat()] {
            assert_eq!(Superblock::read(&both, 10 << 30).unwrap(), superblock());
        }
        assert!(Superblock::read(&[torn.clone(), torn].concat(), 10 << 30).is_err());
        let error = Superblock::read(&[one.clone(), one].concat(), 5 << 30).unwrap_err();
        assert!(error.to_string().contains("cut short"));
    }

    #[test]
    fn a_newer_version_is_named() {
        let mut newer = superblock().encode();
        newer[8] = 9;
        let error = Superblock::read(&[newer.clone(), newer].concat(), 10 << 30).unwrap_err();
        assert!(error.to_string().contains("newer"));
    }
}
