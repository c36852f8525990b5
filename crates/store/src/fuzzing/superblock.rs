//! The superblock: two copies, one of which may be damaged.

use super::Input;
use tapetum_base::media::features::{CLUSTER_SLOTS, Features};
use tapetum_base::media::geometry::{Geometry, SUPERBLOCK_BYTES};
use tapetum_base::media::superblock::{FoundSuperblock, SetPlace, Superblock};

/// Any superblock is refused or read back as it was; with a damaged copy the other one holds.
pub fn superblock(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let (damage_at, damage) = (usize::from(input.u16()), input.u8());
    let older = from_input(&mut input);
    let newer = if input.u8() & 1 == 0 { older } else { from_input(&mut input) };
    let drive_bytes = if input.u8() & 1 == 0 { older.capacity_bytes } else { input.u64() };
    let mut both = [older.encode(), newer.encode()].concat();
    let damage_at = damage_at % both.len();
    both[damage_at] ^= damage;
    let Ok(FoundSuperblock { superblock, behind }) = Superblock::read(&both, drive_bytes) else { return };
    assert!(superblock.capacity_bytes <= drive_bytes);
    let damaged_copy = (damage != 0).then_some(damage_at / SUPERBLOCK_BYTES as usize);
    match damaged_copy {
        Some(copy) => {
            assert_eq!(superblock, [newer, older][copy], "the copy that is whole");
            assert_eq!(behind, Some(copy as u64));
        }
        None => assert!((superblock == older || superblock == newer) && (behind.is_none() == (older == newer))),
    }
    assert!(
        superblock.features.incompatible & !CLUSTER_SLOTS == 0
            && superblock.set == SetPlace::alone(superblock.store_id)
    );
    // An accepted superblock can be worked with.
    let geometry = superblock.geometry;
    let extents = geometry.extents(superblock.capacity_bytes);
    assert!(geometry.extent_offset(extents) <= superblock.capacity_bytes);
    assert!(geometry.segments(geometry.capacity_max_bytes()) > 0);
}

/// A layout that this version makes, or anything.
fn from_input(input: &mut Input<'_>) -> Superblock {
    let shape = input.u8();
    let (segment_shift, partition_bits, sector_shift) =
        (u32::from(input.u8() % 20), input.u8().into(), u32::from(input.u8() % 5));
    let (segment_bytes, sector_bytes) = (4096 << segment_shift, 512 << sector_shift);
    let created_bytes = input.u64() >> (shape % 64);
    let made = Geometry::new(created_bytes, segment_bytes, partition_bits, sector_bytes);
    let geometry = made.unwrap_or_else(|_| Geometry {
        created_bytes: input.u64(),
        segment_bytes: input.u64(),
        extent_bytes: input.u64(),
        manifest_bytes: input.u64(),
        sector_bytes: input.u32(),
        partition_bits: input.u32(),
    });
    let grown = if shape & 64 == 0 { 0 } else { input.u64() };
    let store_id = input.u8().into();
    let (is_plain, bits) = (shape & 3 != 3, u64::from(shape));
    let features = match is_plain {
        true => Features::default(),
        false => Features { incompatible: bits & 5, read_only_compatible: bits & 8 },
    };
    let set = SetPlace { place: if is_plain { 0 } else { bits as u16 >> 4 }, ..SetPlace::alone(store_id) };
    Superblock {
        features,
        store_id,
        generation: input.u8().into(),
        secret: input.array(),
        capacity_bytes: geometry.created_bytes.wrapping_add(grown),
        set,
        grows: shape & 4 != 0,
        geometry,
    }
}
