//! The label of a member: of which set it is, which place it has there, and what of it the set uses.
//!
//! ```text
//!  a member   │ label │ label │ not used │ what the set uses of it …             │ not used │
//!             0      4 KiB   8 KiB     head                              head + used
//!
//!  a label, little endian
//!   0  magic "TAPETSET"       16  set id u128              40  generation u64          64  used bytes u64
//!   8  version u32            32  place u16, members u16   48  member generation u64
//!  12  crc u32 (zero while    36  redundancy u32           56  head bytes u64
//!      summed)               72  own bytes u64            88  extents u32, absent u32
//!                            80  extent bytes u64         96  zero to 4096
//! ```
//! The set is one range of bytes, its members one behind the other, and a store lies in it as on a drive by itself. So the superblock is that of a
//! store alone, and addresses know of no members.
//!
//! In a set without redundancy (0) the members lie one behind the other. In a mirrored one (1) and in RAID5 (2) they lie as
//! [`Shape`] says, whose numbers stand at 72: zeros without redundancy. `absent` has a bit for each member that the set goes on without: when one is
//! lost, all others are told in a new generation before anything else is acknowledged. So what the newest label says is absent, is; and a member
//! that is two generations behind was away ([`standing`]).
//!
//! The generation counts the changes of a set: 0 while it is being made, and 1 on all members once it is made, the first last. The member generation
//! is the set's when this member was last whole. The label is there twice, written one after the other, each durable before the next; of two
//! whole ones that with the higher generation counts.

use crate::error::Error;
use crate::media::geometry::EXTENT_BYTES_MAX;
use crate::media::io::Io;
use crate::media::wire::{Reader, Short, Writer};
use tapetum_drive::{Redundancy, Shape, member_bytes};
use tapetum_kernels::checksum::{Salt, checksum};

const MAGIC: [u8; 8] = *b"TAPETSET";
const VERSION: u32 = 1;
const CRC_AT: usize = 12;
const FIELDS_END: usize = 96;
pub const LABEL_BYTES: u64 = 4096;
/// What a member has before its part of the set: room for what later formats note of it.
pub const HEAD_BYTES: u64 = 1 << 20;
/// Members of a set.
pub const MEMBERS_MAX: usize = 16;
/// No store has more before its extents: a label that says so is none.
const OWN_BYTES_MAX: u64 = 1 << 50;
const _: () = assert!(FIELDS_END <= LABEL_BYTES as usize && 2 * LABEL_BYTES <= HEAD_BYTES);

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MemberLabel {
    pub set_id: u128,
    pub place: u16,
    pub members: u16,
    /// Counts the changes of the set; 0 while it is being made.
    pub generation: u64,
    /// The set's generation when this member was last whole.
    pub member_generation: u64,
    pub head_bytes: u64,
    pub used_bytes: u64,
    /// `None`: the set has no redundancy.
    pub redundant: Option<RedundantPart>,
}

/// What the label of a set with redundancy has beside.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RedundantPart {
    pub redundancy: Redundancy,
    pub own_bytes: u64,
    pub extent_bytes: u64,
    pub extents: u32,
    /// Bits of the members that the set goes on without.
    pub absent: u32,
}

/// What the beginning of a drive says of its set.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FoundLabel {
    Label(MemberLabel),
    /// It is no member.
    None,
    /// It has the label of a newer version.
    Newer(u32),
}

impl MemberLabel {
    pub fn encode(&self) -> Vec<u8> {
        let mut writer = Writer::default();
        writer.raw(&MAGIC);
        writer.u32(VERSION);
        writer.u32(0);
        writer.raw(&self.set_id.to_le_bytes());
        writer.u16(self.place);
        writer.u16(self.members);
        writer.u32(self.redundant.map_or(0, |part| code_of(part.redundancy)));
        writer.u64(self.generation);
        writer.u64(self.member_generation);
        writer.u64(self.head_bytes);
        writer.u64(self.used_bytes);
        let part = self.redundant.as_ref();
        writer.u64(part.map_or(0, |part| part.own_bytes));
        writer.u64(part.map_or(0, |part| part.extent_bytes));
        writer.u32(part.map_or(0, |part| part.extents));
        writer.u32(part.map_or(0, |part| part.absent));
        assert_eq!(writer.len(), FIELDS_END);
        writer.pad(LABEL_BYTES as usize);
        let crc = crc(&writer);
        writer.set_u32(CRC_AT, crc);
        writer.into_bytes()
    }

    /// Where bytes lie in a set with redundancy.
    pub fn shape(&self) -> Option<Shape> {
        self.redundant.map(|part| Shape {
            redundancy: part.redundancy,
            members: self.members.into(),
            own_bytes: part.own_bytes,
            extent_bytes: part.extent_bytes,
            extents: part.extents,
        })
    }

    /// Bits of the members that the set goes on without.
    pub fn absent(&self) -> u32 {
        self.redundant.map_or(0, |part| part.absent)
    }

    /// The label of the same member in another generation, in which these are absent.
    pub fn in_generation(&self, generation: u64, absent: u32) -> MemberLabel {
        let redundant = self.redundant.map(|part| RedundantPart { absent, ..part });
        MemberLabel { generation, member_generation: generation, redundant, ..*self }
    }

    /// Reads the two copies at the beginning of a drive.
    pub fn read(both: &[u8]) -> FoundLabel {
        let (first, second) = both.split_at(LABEL_BYTES as usize);
        let copies = [first, second].map(parse);
        let labels = copies.iter().filter_map(|copy| match copy {
            FoundLabel::Label(label) => Some(*label),
            FoundLabel::None | FoundLabel::Newer(_) => None,
        });
        match labels.max_by_key(|label| label.generation) {
            Some(label) => FoundLabel::Label(label),
            None => copies.into_iter().find(|copy| *copy != FoundLabel::None).unwrap_or(FoundLabel::None),
        }
    }

    /// Writes both copies, each durable before the next.
    ///
    /// # Errors
    /// The drive's.
    pub async fn write(&self, io: &Io) -> Result<(), Error> {
        let bytes = LABEL_BYTES as usize;
        let mut buffer = io.allocate(bytes).await?;
        io.fill(&mut buffer, 0..bytes).copy_from_slice(&self.encode());
        for copy in 0..2 {
            io.write_durably(copy * LABEL_BYTES, &mut buffer, bytes).await?;
        }
        Ok(())
    }
}

/// Which members of a set with redundancy can be relied on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Standing {
    pub generation: u64,
    /// Bits of members that are whole, and of those that were away.
    pub whole: u32,
    pub stale: u32,
    /// The whole ones all say that exactly the others are absent.
    pub is_recorded: bool,
    /// Two members were each told that the other is absent.
    pub is_apart: bool,
}

/// What the labels of members say, which are of one set and different places.
pub fn standing(labels: &[MemberLabel]) -> Standing {
    let newest = labels.iter().max_by_key(|label| label.generation);
    let (generation, absent) = newest.map_or((0, 0), |label| (label.generation, label.absent()));
    let bits = |labels: &mut dyn Iterator<Item = &MemberLabel>| labels.fold(0, |bits, label| bits | 1 << label.place);
    let is_stale = |label: &&MemberLabel| absent >> label.place & 1 == 1 || label.generation + 1 < generation;
    let stale = bits(&mut labels.iter().filter(is_stale));
    let whole = bits(&mut labels.iter().filter(|label| !is_stale(label)));
    let members = newest.map_or(0, |label| label.members);
    let others = !whole & ((1 << members) - 1);
    let mut whole_ones = labels.iter().filter(|label| !is_stale(label));
    let is_recorded = whole_ones.all(|label| label.generation == generation && label.absent() == others);
    let is_apart = labels.iter().any(|label| label.generation == generation && absent >> label.place & 1 == 1);
    Standing { generation, whole, stale, is_recorded, is_apart }
}

/// Reads the label of the drive that `io` reaches.
///
/// # Errors
/// The drive's.
pub async fn read_label(io: &Io) -> Result<FoundLabel, Error> {
    let both = 2 * LABEL_BYTES as usize;
    let mut buffer = io.allocate(both).await?;
    io.read(0, &mut buffer, 0, both).await?;
    Ok(MemberLabel::read(io.look(&buffer, 0..both)))
}

fn parse(bytes: &[u8]) -> FoundLabel {
    if bytes[..8] != MAGIC {
        return FoundLabel::None;
    }
    match u32::from_le_bytes([bytes[8], bytes[9], bytes[10], bytes[11]]) {
        VERSION if bytes[CRC_AT..CRC_AT + 4] == crc(bytes).to_le_bytes() => {
            fields(&bytes[16..]).map_or(FoundLabel::None, FoundLabel::Label)
        }
        newer @ 2.. => FoundLabel::Newer(newer),
        _ => FoundLabel::None,
    }
}

fn fields(bytes: &[u8]) -> Result<MemberLabel, Short> {
    let mut reader = Reader::new(bytes);
    let set_id = u128::from_le_bytes(reader.array()?);
    let (place, members, redundancy) = (reader.u16()?, reader.u16()?, reader.u32()?);
    let (generation, member_generation) = (reader.u64()?, reader.u64()?);
    let (head_bytes, used_bytes) = (reader.u64()?, reader.u64()?);
    let (own_bytes, extent_bytes, extents, absent) = (reader.u64()?, reader.u64()?, reader.u32()?, reader.u32()?);
    let is_right = place < members && usize::from(members) <= MEMBERS_MAX && used_bytes > 0;
    let is_whole = [head_bytes, used_bytes].iter().all(|bytes| bytes % LABEL_BYTES == 0);
    if !is_right || !is_whole || head_bytes < 2 * LABEL_BYTES || head_bytes.checked_add(used_bytes).is_none() {
        return Err(Short);
    }
    let redundant = match redundancy {
        0 => None,
        code => {
            let redundancy = of_code(code).ok_or(Short)?;
            Some(RedundantPart { redundancy, own_bytes, extent_bytes, extents, absent })
        }
    };
    let label =
        MemberLabel { set_id, place, members, generation, member_generation, head_bytes, used_bytes, redundant };
    // Its members have what the shape needs, in numbers that can be added.
    let fits = label.shape().is_none_or(|shape| {
        shape.extent_bytes.is_power_of_two()
            && (LABEL_BYTES..=EXTENT_BYTES_MAX).contains(&shape.extent_bytes)
            && shape.members >= 2
            && shape.own_bytes <= OWN_BYTES_MAX
            && member_bytes(&shape, place.into()) <= used_bytes
    });
    if fits { Ok(label) } else { Err(Short) }
}

fn code_of(redundancy: Redundancy) -> u32 {
    match redundancy {
        Redundancy::Mirror => 1,
        Redundancy::Raid5 => 2,
    }
}

fn of_code(code: u32) -> Option<Redundancy> {
    [Redundancy::Mirror, Redundancy::Raid5].into_iter().find(|redundancy| code_of(*redundancy) == code)
}

fn crc(bytes: &[u8]) -> u32 {
    let salt = Salt { store: 0, address: 0, version: u64::from(VERSION) };
    checksum(salt, &[&bytes[..CRC_AT], &[0; 4], &bytes[CRC_AT + 4..]])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn label() -> MemberLabel {
        let (head_bytes, used_bytes) = (HEAD_BYTES, 64 << 20);
        MemberLabel {
            set_id: 7 << 80,
            place: 1,
            members: 3,
            generation: 1,
            member_generation: 1,
            head_bytes,
            used_bytes,
            redundant: None,
        }
    }

    fn redundant() -> MemberLabel {
        let (redundancy, own_bytes, extent_bytes) = (Redundancy::Raid5, 8 << 20, 64 << 10);
        let extents = Shape::within(redundancy, 3, own_bytes, extent_bytes, 56 << 20).extents;
        let part = RedundantPart { redundancy, own_bytes, extent_bytes, extents, absent: 1 << 2 };
        MemberLabel { redundant: Some(part), ..label() }
    }

    fn of_place(place: u16, generation: u64, absent: u32) -> MemberLabel {
        MemberLabel { place, ..redundant().in_generation(generation, absent) }
    }

    #[test]
    fn the_newest_labels_say_who_is_whole() {
        let of = |labels: &[(u16, u64, u32)]| {
            let labels: Vec<_> =
                labels.iter().map(|(place, generation, absent)| of_place(*place, *generation, *absent)).collect();
            let Standing { whole, stale, is_recorded, is_apart, .. } = standing(&labels);
            (whole, stale, is_recorded, is_apart)
        };
        assert_eq!(of(&[(0, 1, 0), (1, 1, 0), (2, 1, 0)]), (0b111, 0, true, false));
        assert_eq!(of(&[(0, 1, 0), (2, 1, 0)]), (0b101, 0, false, false), "nobody was told that one is absent");
        assert_eq!(of(&[(0, 2, 2), (2, 2, 2)]), (0b101, 0, true, false));
        assert_eq!(of(&[(0, 2, 2), (1, 1, 0), (2, 2, 2)]), (0b101, 0b010, true, false), "it is back");
        assert_eq!(of(&[(0, 2, 2), (2, 1, 0)]), (0b101, 0, false, false), "the last was not told before a crash");
        assert_eq!(of(&[(0, 3, 0), (1, 1, 0), (2, 3, 0)]), (0b101, 0b010, false, false), "an old one");
        assert!(of(&[(0, 2, 2), (1, 2, 1)]).3, "each went on without the other");
    }

    fn read(first: &[u8], second: &[u8]) -> FoundLabel {
        MemberLabel::read(&[first, second].concat())
    }

    #[test]
    fn either_copy_will_do_and_the_newer_one_counts() {
        let (old, torn) = (label().encode(), vec![0xff; LABEL_BYTES as usize]);
        let new = MemberLabel { generation: 2, ..label() };
        for (first, second) in [(&old, &old), (&old, &torn), (&torn, &old)] {
            assert_eq!(read(first, second), FoundLabel::Label(label()));
        }
        for (first, second) in [(&old, &new.encode()), (&new.encode(), &old)] {
            assert_eq!(read(first, second), FoundLabel::Label(new));
        }
        assert_eq!(read(&torn, &torn), FoundLabel::None);
    }

    #[test]
    fn no_byte_changes_unseen_and_a_newer_version_is_named() {
        assert_eq!(parse(&redundant().encode()), FoundLabel::Label(redundant()));
        let whole = redundant().encode();
        for at in 0..whole.len() {
            let mut damaged = whole.clone();
            damaged[at] ^= 1;
            assert!(!matches!(parse(&damaged), FoundLabel::Label(_)), "byte {at}");
        }
        let mut newer = whole.clone();
        newer[8] = 9;
        assert_eq!(read(&newer, &newer), FoundLabel::Newer(9));
        assert_eq!(read(&whole, &newer), FoundLabel::Label(redundant()), "one copy is damaged, as it seems");
    }

    #[test]
    fn what_no_set_has_is_no_label() {
        let wrong = [
            MemberLabel { place: 3, ..label() },
            MemberLabel { members: 17, ..label() },
            MemberLabel { used_bytes: 0, ..label() },
            MemberLabel { used_bytes: 4095, ..label() },
            MemberLabel { head_bytes: 4096, ..label() },
            MemberLabel { used_bytes: u64::MAX - 4095, ..label() },
            MemberLabel { used_bytes: 56 << 20, ..redundant() },
            MemberLabel { members: 1, place: 0, ..redundant() },
        ];
        for wrong in wrong {
            assert_eq!(parse(&wrong.encode()), FoundLabel::None, "{wrong:?}");
        }
    }
}
