//! The superblock: the identity and layout of a drive's store. It is written at creation and whenever the store grows, twice.
//!
//! ```text
//!  fixed head, the same in every format from 6 on:
//!   0  magic "TAPETUM\0"              12  crc u32 (zero while summed)
//!   8  version u32                    16  features: incompatible u64, read-only-compatible u64
//!  of format 7:
//!  32  store id u64, generation u64   88  manifest bytes u64   104  set id u128
//!  48  hash secret 16 bytes           96  sector bytes u32     120  place in the set u16, members u16
//!  64  capacity u64                  100  partition bits u32   124  1 if it grows by itself, else 0 u32
//!  72  segment bytes u64                                       128  capacity at creation u64
//!  80  extent bytes u64                                        136  set generation u64, member generation u64
//!                                                              152  zero to 4096
//! ```
//! A store with unknown *incompatible* features is not opened; one with unknown *read-only-compatible* features is opened read-only. So an addition
//! to the format takes a feature bit, and no new version.
//!
//! The set fields name the set of members to which a drive belongs, and its place there. A drive on its own is member 0 of 1 of a set with the
//! store's id; any other place is refused. The set generation counts the changes of a set. The member generation is the set's generation when this
//! member was last whole: it exposes a member that was absent while the others went on. For a drive on its own both are 1, and anything else is
//! refused.
//!
//! If both copies are whole, the one with the higher generation counts. They are written one after the other, each durable before the next, so one
//! of them is whole at any moment. The store uses the capacity that a new superblock allows only when both are durable. If the copies differ (the
//! power failed between them), opening makes them equal before it builds anything on the newer one: the next change may tear that one.

use crate::error::Error;
use crate::media::features::Features;
use crate::media::geometry::{Geometry, SUPERBLOCK_BYTES};
use crate::media::io::Io;
use crate::media::wire::{Reader, Short, Writer};
use tapetum_kernels::checksum::{Salt, checksum};

const MAGIC: [u8; 8] = *b"TAPETUM\0";
const VERSION: u32 = 7;
const CRC_AT: usize = 12;
const FEATURES_AT: usize = 16;
/// End of the fields: the fixed head, and then the fields in the order in which they are drawn.
const FIELDS_END: usize = 32 + (8 + 8 + 16 + 8 + 8 + 8) + (8 + 4 + 4) + (16 + 2 + 2 + 4 + 8) + (8 + 8);
const _: () = assert!(FIELDS_END == 152 && FIELDS_END <= SUPERBLOCK_BYTES as usize);

/// The place of a drive in a set, and the generations of both.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SetPlace {
    pub set_id: u128,
    pub place: u16,
    pub members: u16,
    /// Counts the changes of the set.
    pub generation: u64,
    /// The set's generation when this member was last whole.
    pub member_generation: u64,
}

impl SetPlace {
    /// The place of a drive on its own.
    pub fn alone(store_id: u64) -> SetPlace {
        SetPlace { set_id: store_id.into(), place: 0, members: 1, generation: 1, member_generation: 1 }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Superblock {
    pub features: Features,
    /// Salts every checksum of the store.
    pub store_id: u64,
    /// Counts the changes of the superblock.
    pub generation: u64,
    /// The key of the hash that hash keys are made with.
    pub secret: [u8; 16],
    /// Bytes of the drive that the store may use now.
    pub capacity_bytes: u64,
    pub set: SetPlace,
    /// The store takes more of its drive by itself ([`crate::maintenance`]), unless it is opened with an explicit capacity.
    pub grows: bool,
    pub geometry: Geometry,
}

/// The superblock found on a drive.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FoundSuperblock {
    pub superblock: Superblock,
    /// The copy that is torn or older. It must be rewritten before anything is built on the other.
    pub behind: Option<u64>,
}

impl Superblock {
    /// The superblock of a new store.
    pub fn new(store_id: u64, secret: [u8; 16], geometry: Geometry) -> Superblock {
        Superblock {
            features: Features::default(),
            store_id,
            generation: 1,
            secret,
            capacity_bytes: geometry.created_bytes,
            set: SetPlace::alone(store_id),
            grows: false,
            geometry,
        }
    }

    pub fn encode(&self) -> Vec<u8> {
        let mut writer = Writer::default();
        writer.raw(&MAGIC);
        writer.u32(VERSION);
        writer.u32(0);
        writer.u64(self.features.incompatible);
        writer.u64(self.features.read_only_compatible);
        writer.u64(self.store_id);
        writer.u64(self.generation);
        writer.raw(&self.secret);
        writer.u64(self.capacity_bytes);
        writer.u64(self.geometry.segment_bytes);
        writer.u64(self.geometry.extent_bytes);
        writer.u64(self.geometry.manifest_bytes);
        writer.u32(self.geometry.sector_bytes);
        writer.u32(self.geometry.partition_bits);
        writer.raw(&self.set.set_id.to_le_bytes());
        writer.u16(self.set.place);
        writer.u16(self.set.members);
        writer.u32(self.grows.into());
        writer.u64(self.geometry.created_bytes);
        writer.u64(self.set.generation);
        writer.u64(self.set.member_generation);
        assert_eq!(writer.len(), FIELDS_END);
        writer.pad(SUPERBLOCK_BYTES as usize);
        let crc = Self::crc(&writer);
        writer.set_u32(CRC_AT, crc);
        writer.into_bytes()
    }

    fn crc(bytes: &[u8]) -> u32 {
        let salt = Salt { store: 0, address: 0, version: u64::from(VERSION) };
        checksum(salt, &[&bytes[..CRC_AT], &[0; 4], &bytes[CRC_AT + 4..]])
    }

    /// Whether a copy is whole and has this version.
    pub fn holds(copy: &[u8]) -> bool {
        matches!(Self::parse(copy), Ok(Some(_)))
    }

    /// Reads one copy. `Ok(None)`: this copy is torn or damaged; the other one may be whole.
    fn parse(bytes: &[u8]) -> Result<Option<Superblock>, Error> {
        if bytes[..8] != MAGIC {
            return Ok(None);
        }
        let version = u32::from_le_bytes([bytes[8], bytes[9], bytes[10], bytes[11]]);
        if version < VERSION {
            return Err(Error::OtherFormat(format!(
                "the store has format {version}, and this tapetum opens format {VERSION}: print its items with `tapetum dump` of the \
                 tapetum that made it, and store them in a new store with `tapetum load` of this one; nothing was written"
            )));
        }
        if version > VERSION {
            return Err(Error::OtherFormat(format!(
                "the store has format {version}, newer than {VERSION}: use the newer tapetum that made it; nothing was written"
            )));
        }
        if bytes[CRC_AT..CRC_AT + 4] != Self::crc(bytes).to_le_bytes() {
            return Ok(None);
        }
        Self::fields(&bytes[FEATURES_AT..]).map_or(Ok(None), |superblock| Ok(Some(superblock)))
    }

    fn fields(bytes: &[u8]) -> Result<Superblock, Short> {
        let mut reader = Reader::new(bytes);
        let features = Features { incompatible: reader.u64()?, read_only_compatible: reader.u64()? };
        let (store_id, generation) = (reader.u64()?, reader.u64()?);
        let secret = reader.array()?;
        let capacity_bytes = reader.u64()?;
        let (segment_bytes, extent_bytes, manifest_bytes) = (reader.u64()?, reader.u64()?, reader.u64()?);
        let (sector_bytes, partition_bits) = (reader.u32()?, reader.u32()?);
        let set_id = u128::from_le_bytes(reader.array()?);
        let (place, members) = (reader.u16()?, reader.u16()?);
        let grows = reader.u32()? == 1;
        let created_bytes = reader.u64()?;
        let (set_generation, member_generation) = (reader.u64()?, reader.u64()?);
        let set = SetPlace { set_id, place, members, generation: set_generation, member_generation };
        let geometry =
            Geometry { created_bytes, segment_bytes, extent_bytes, manifest_bytes, sector_bytes, partition_bits };
        Ok(Superblock { features, store_id, generation, secret, capacity_bytes, set, grows, geometry })
    }

    /// Reads the first 8 KiB of a drive of `drive_bytes`.
    pub fn read(both: &[u8], drive_bytes: u64) -> Result<FoundSuperblock, Error> {
        let (first, second) = both.split_at(SUPERBLOCK_BYTES as usize);
        // A copy with another version may be a damaged one of ours, as long as the other copy is whole.
        let (first, second) = match (Self::parse(first), Self::parse(second)) {
            (Err(_), Ok(Some(second))) => (None, Some(second)),
            (Ok(Some(first)), Err(_)) => (Some(first), None),
            (first, second) => (first?, second?),
        };
        let (superblock, behind) = match (first, second) {
            (Some(first), Some(second)) if first == second => (first, None),
            (Some(first), Some(second)) if first.store_id != second.store_id => {
                return Err(Error::Unusable(
                    "the two superblocks are of different stores: something wrote over one of them; restore the drive \
                     from a copy; nothing was written"
                        .into(),
                ));
            }
            (Some(first), Some(second)) if first.generation > second.generation => (first, Some(1)),
            (Some(first), None) => (first, Some(1)),
            (_, Some(second)) => (second, Some(0)),
            (None, None) => {
                return Err(no_store_there());
            }
        };
        superblock.check(drive_bytes)?;
        Ok(FoundSuperblock { superblock, behind })
    }

    fn check(&self, drive_bytes: u64) -> Result<(), Error> {
        self.features.check_read()?;
        if self.set != SetPlace::alone(self.store_id) {
            let SetPlace { place, members, generation, member_generation, .. } = self.set;
            return Err(Error::OtherFormat(format!(
                "the drive is member {place} of a set of {members} (generation {member_generation} of {generation}), and this tapetum opens \
                 drives on their own: use the tapetum that made the set; nothing was written"
            )));
        }
        if self.capacity_bytes > drive_bytes {
            return Err(Error::Unusable(format!(
                "the store has {} bytes and the drive {drive_bytes}: it was cut short; restore it whole; nothing was \
                 written",
                self.capacity_bytes
            )));
        }
        let geometry = self.geometry;
        let again = Geometry::new(
            geometry.created_bytes,
            geometry.segment_bytes,
            geometry.partition_bits,
            geometry.sector_bytes,
        )?;
        let sizes = geometry.created_bytes..=geometry.capacity_max_bytes();
        if again != geometry || !sizes.contains(&self.capacity_bytes) {
            return Err(Error::Unusable(
                "the superblock's layout is not one this version makes: use the version that made it".into(),
            ));
        }
        Ok(())
    }

    /// Writes copies, each durable before the next.
    pub async fn write(&self, io: &Io, copies: &[u64]) -> Result<(), Error> {
        let mut buffer = io.allocate(SUPERBLOCK_BYTES as usize).await?;
        io.fill(&mut buffer, 0..SUPERBLOCK_BYTES as usize).copy_from_slice(&self.encode());
        for copy in copies {
            io.write_durably(copy * SUPERBLOCK_BYTES, &mut buffer, SUPERBLOCK_BYTES as usize).await?;
        }
        Ok(())
    }
}

/// The error for a drive without a superblock.
pub fn no_store_there() -> Error {
    Error::Unusable(
        "there is no tapetum store here (no valid superblock): give the path of one, or for a new store a path that is not there yet; \
         nothing was written"
            .into(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::media::io::run;
    use crate::recover::tests::drive;
    use tapetum_drive::MemoryFlash;

    fn superblock() -> Superblock {
        let geometry = Geometry::new(10 << 30, 32 << 20, 6, 512).unwrap();
        Superblock::new(77, [3; 16], geometry)
    }

    fn read(first: &[u8], second: &[u8], drive_bytes: u64) -> Result<FoundSuperblock, Error> {
        Superblock::read(&[first, second].concat(), drive_bytes)
    }

    #[test]
    fn either_copy_will_do_and_a_foreign_drive_is_refused() {
        let one = superblock().encode();
        let torn = vec![0xff; one.len()];
        let found = |behind| Ok(FoundSuperblock { superblock: superblock(), behind });
        assert_eq!(read(&one, &one, 10 << 30), found(None));
        assert_eq!(read(&one, &torn, 10 << 30), found(Some(1)));
        assert_eq!(read(&torn, &one, 10 << 30), found(Some(0)));
        assert!(read(&torn, &torn, 10 << 30).is_err());
        assert!(read(&one, &one, 5 << 30).unwrap_err().to_string().contains("cut short"));
        let other = Superblock { store_id: 78, set: SetPlace::alone(78), ..superblock() }.encode();
        assert!(read(&one, &other, 10 << 30).unwrap_err().to_string().contains("different stores"));
    }

    #[test]
    fn no_byte_of_a_copy_changes_unseen() {
        let whole = superblock().encode();
        for at in 0..whole.len() {
            let mut damaged = whole.clone();
            damaged[at] ^= 1;
            assert!(!matches!(Superblock::parse(&damaged), Ok(Some(_))), "byte {at}");
        }
    }

    #[test]
    fn each_copy_is_written_to_its_place() {
        let (drive, io) = drive(MemoryFlash::new(2 * SUPERBLOCK_BYTES));
        let copy = |number: u64| {
            let mut buffer = drive.local().allocate(SUPERBLOCK_BYTES as usize).unwrap();
            let reading = io.read(number * SUPERBLOCK_BYTES, &mut buffer, 0, SUPERBLOCK_BYTES as usize);
            run(&io, reading, || false).unwrap().unwrap();
            Superblock::parse(buffer.bytes()).unwrap()
        };
        run(&io, superblock().write(&io, &[1]), || false).unwrap().unwrap();
        assert_eq!((copy(0), copy(1)), (None, Some(superblock())));
        run(&io, superblock().write(&io, &[0]), || false).unwrap().unwrap();
        assert_eq!((copy(0), copy(1)), (Some(superblock()), Some(superblock())));
    }

    #[test]
    fn the_newer_copy_holds() {
        let grown = Superblock { generation: 2, capacity_bytes: 20 << 30, ..superblock() };
        let (old, new) = (superblock().encode(), grown.encode());
        assert_eq!(read(&new, &old, 20 << 30), Ok(FoundSuperblock { superblock: grown, behind: Some(1) }));
        assert_eq!(read(&old, &new, 20 << 30), Ok(FoundSuperblock { superblock: grown, behind: Some(0) }));
        let absurd = Superblock { capacity_bytes: 41 << 30, ..grown }.encode();
        assert!(read(&absurd, &absurd, 50 << 30).is_err(), "larger than it can grow");
    }

    #[test]
    fn another_version_is_named() {
        for (version, what) in [(9, "newer"), (6, "tapetum dump"), (5, "tapetum dump")] {
            let mut other = superblock().encode();
            other[8] = version;
            assert!(read(&other, &other, 10 << 30).unwrap_err().to_string().contains(what));
            // After one flipped bit of the version the other copy counts.
            assert!(read(&other, &superblock().encode(), 10 << 30).is_ok());
            assert!(read(&superblock().encode(), &other, 10 << 30).is_ok());
        }
    }

    #[test]
    fn a_feature_that_is_not_known_is_named() {
        let with = |incompatible, read_only_compatible| {
            let features = Features { incompatible, read_only_compatible };
            Superblock { features, generation: 2, ..superblock() }.encode()
        };
        let incompatible = with(1 << 3 | 1 << 63, 0);
        let refusal = read(&incompatible, &incompatible, 10 << 30).unwrap_err().to_string();
        assert!(refusal.contains("3 and 63") && refusal.contains("newer tapetum"), "{refusal}");
        // A crash between the copies may leave the bit in one of them.
        assert!(read(&incompatible, &superblock().encode(), 10 << 30).is_err());
        let found = read(&with(0, 1 << 5), &superblock().encode(), 10 << 30).unwrap();
        let refusal = found.superblock.features.check_write().unwrap_err().to_string();
        assert!(refusal.contains("bit 5") && refusal.contains("open it to read"), "{refusal}");
        assert_eq!(superblock().features.check_write(), Ok(()));
    }

    #[test]
    fn any_place_in_a_set_but_that_of_a_drive_on_its_own_is_refused() {
        let alone = superblock().set;
        let others = [
            SetPlace { place: 1, ..alone },
            SetPlace { members: 2, ..alone },
            SetPlace { members: 0, ..alone },
            SetPlace { set_id: alone.set_id + 1, ..alone },
            SetPlace { generation: 2, ..alone },
            SetPlace { generation: 2, member_generation: 2, ..alone },
            SetPlace { member_generation: 0, ..alone },
        ];
        for set in others {
            let other = Superblock { set, ..superblock() }.encode();
            let refusal = read(&other, &other, 10 << 30).unwrap_err().to_string();
            assert!(refusal.contains("of a set of"), "{refusal}");
        }
    }
}
