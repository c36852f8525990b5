//! The options of a keyspace that is a block device: its size, and the mapping of its blocks to keys.
//!
//! ```text
//!  0  kind u8 = 1, a block device · 1  version u8 = 1 · 2  group bits u8, at most 4 · 3  0 · 4  size u64
//! ```
//! Each block of 4 KiB is the value of one item. Without group bits the item's key is the block's number, eight bytes, the most significant first.
//! Group bits are the number of low bits in which the block numbers of one group differ. With them the key is the number of the group's first block,
//! followed by one byte: the block's place in the group. On flash a group is one record ([`tapetum_kernels::block_group`]). A block without an item
//! reads as zeros.

use super::catalogue::Keyspace;
use crate::error::KeyspaceError;
use crate::media::wire::{Reader, Short, Writer};
use tapetum_kernels::block_group::{BLOCK_KEY_BYTES, GROUP_BLOCKS_MAX, GROUP_KEY_BYTES, frame_bytes_max};
use tapetum_kernels::record::HEADER_BYTES_MAX;

pub const BLOCK_BYTES: usize = 4 << 10;
/// The largest size of a device, which is the most that a store may have.
pub const DEVICE_BYTES_MAX: u64 = 8 << 50;

const KIND: u8 = 1;
const VERSION: u8 = 1;
const OPTIONS_BYTES: usize = 12;
const GROUP_BITS_MAX: u8 = GROUP_BLOCKS_MAX.trailing_zeros() as u8;
const _: () = assert!(OPTIONS_BYTES <= super::catalogue::OPTIONS_BYTES_MAX);
const _: () = assert!(BLOCK_BYTES.is_power_of_two() && DEVICE_BYTES_MAX.is_multiple_of(BLOCK_BYTES as u64));

/// A keyspace as a block device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BlockDevice {
    size_bytes: u64,
    group_bits: u8,
}

/// The key of a block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BlockKey {
    bytes: [u8; BLOCK_KEY_BYTES],
    length: usize,
}

impl std::ops::Deref for BlockKey {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes[..self.length]
    }
}

/// The approximate maximum of a group's record on flash.
pub fn group_bytes_max(blocks: usize) -> usize {
    HEADER_BYTES_MAX + GROUP_KEY_BYTES + frame_bytes_max(blocks, BLOCK_BYTES)
}

impl BlockDevice {
    /// A device of `size_bytes`.
    ///
    /// # Errors
    /// [`KeyspaceError::DeviceSize`] unless that is a whole number of blocks, one at least.
    pub fn new(size_bytes: u64) -> Result<BlockDevice, KeyspaceError> {
        let fits = (1..=DEVICE_BYTES_MAX).contains(&size_bytes) && size_bytes.is_multiple_of(BLOCK_BYTES as u64);
        let refused = KeyspaceError::DeviceSize { size_bytes, limit_bytes: DEVICE_BYTES_MAX };
        if fits { Ok(BlockDevice { size_bytes, group_bits: 0 }) } else { Err(refused) }
    }

    /// The device with groups of `blocks` blocks; 1: without groups.
    ///
    /// # Errors
    /// [`KeyspaceError::GroupBlocks`] unless that is a power of two up to 16.
    pub fn in_groups_of(self, blocks: u64) -> Result<BlockDevice, KeyspaceError> {
        let fits = blocks.is_power_of_two() && blocks <= GROUP_BLOCKS_MAX as u64;
        let group_bits = blocks.trailing_zeros() as u8;
        if fits { Ok(BlockDevice { group_bits, ..self }) } else { Err(KeyspaceError::GroupBlocks { blocks }) }
    }

    /// How many neighbouring blocks share a record on flash; 1 without groups.
    pub fn group_blocks(self) -> u64 {
        1 << self.group_bits
    }

    /// Whether a block is the first of its group.
    pub fn is_first_of_group(self, block: u64) -> bool {
        block.is_multiple_of(self.group_blocks())
    }

    pub fn group_bits(self) -> u8 {
        self.group_bits
    }

    /// The same device with another size.
    pub fn resized(self, size_bytes: u64) -> BlockDevice {
        BlockDevice { size_bytes, ..self }
    }

    pub fn size_bytes(self) -> u64 {
        self.size_bytes
    }

    /// The key of a block.
    pub fn key(self, block: u64) -> BlockKey {
        let place = block & (self.group_blocks() - 1);
        let mut bytes = [0; BLOCK_KEY_BYTES];
        bytes[..GROUP_KEY_BYTES].copy_from_slice(&(block - place).to_be_bytes());
        bytes[GROUP_KEY_BYTES] = place as u8;
        BlockKey { bytes, length: if self.group_bits == 0 { GROUP_KEY_BYTES } else { BLOCK_KEY_BYTES } }
    }

    /// The options that the keyspace keeps for this device.
    pub fn options(self) -> Vec<u8> {
        let mut writer = Writer::default();
        writer.raw(&[KIND, VERSION, self.group_bits, 0]);
        writer.u64(self.size_bytes);
        writer.into_bytes()
    }

    pub fn parse(options: &[u8]) -> Result<BlockDevice, Short> {
        let mut reader = Reader::new(options);
        let ([kind, version, group_bits, reserved], size_bytes) = (reader.array()?, reader.u64()?);
        let is_known = (kind, version, reserved) == (KIND, VERSION, 0) && group_bits <= GROUP_BITS_MAX;
        if !is_known || !reader.is_empty() {
            return Err(Short);
        }
        let device = BlockDevice::new(size_bytes).map_err(|_| Short)?;
        Ok(BlockDevice { group_bits, ..device })
    }
}

impl Keyspace {
    /// The block device, if the keyspace is one.
    ///
    /// # Errors
    /// [`KeyspaceError::Options`] if another version made it with options that this one does not know.
    pub fn block_device(&self) -> Result<Option<BlockDevice>, KeyspaceError> {
        if self.options.is_empty() {
            return Ok(None);
        }
        BlockDevice::parse(&self.options).map(Some).map_err(|Short| KeyspaceError::Options { name: self.name.clone() })
    }
}

/// The absent blocks at the front of a range of a block device, found without a lookup of each block.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct AbsentBlocks {
    /// The number of leading blocks that are certainly absent. The next block may be absent or present.
    pub blocks: u64,
    /// The cost of this answer, in lookups of the index and pieces.
    pub looks: usize,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keyspace::KeyspaceId;
    use crate::keyspace::catalogue::KeyspaceState;
    use crate::keyspace_kind::KeyspaceKind;

    fn of(options: Vec<u8>) -> Result<Option<BlockDevice>, KeyspaceError> {
        let (id, kind, state) = (KeyspaceId(1), KeyspaceKind::Hashed, KeyspaceState::Live);
        Keyspace { id, name: "disk0".into(), kind, options, state, format: Vec::new() }.block_device()
    }

    #[test]
    fn a_device_reads_back_and_what_this_version_does_not_know_is_refused() {
        let device = BlockDevice::new(3 << 30).unwrap();
        let options = device.options();
        assert_eq!(options.len(), OPTIONS_BYTES);
        assert_eq!(of(options.clone()), Ok(Some(device)));
        assert_eq!(of(Vec::new()), Ok(None));
        for bits in 0..=4 {
            let grouped = device.in_groups_of(1 << bits).unwrap();
            assert_eq!(of(grouped.options()), Ok(Some(grouped)));
        }
        for (place, value) in [(0, 2), (1, 2), (2, 5), (3, 1), (4, 1)] {
            let mut other = options.clone();
            other[place] = value;
            assert_eq!(of(other), Err(KeyspaceError::Options { name: "disk0".into() }), "byte {place}");
        }
        assert!(of(options[..11].to_vec()).is_err() && of([options, vec![0]].concat()).is_err());
    }

    #[test]
    fn a_block_of_a_group_has_the_groups_key_and_its_place() {
        let device = BlockDevice::new(1 << 30).unwrap();
        assert_eq!(device.key(0x1234)[..], 0x1234u64.to_be_bytes());
        let grouped = device.in_groups_of(8).unwrap();
        assert_eq!(grouped.key(0x1234)[..], [0, 0, 0, 0, 0, 0, 0x12, 0x30, 4]);
        for blocks in [0, 3, 32] {
            assert_eq!(device.in_groups_of(blocks), Err(KeyspaceError::GroupBlocks { blocks }));
        }
    }

    #[test]
    fn a_size_is_a_whole_number_of_blocks() {
        for size_bytes in [0, 1, 4095, 4097, DEVICE_BYTES_MAX + 4096, u64::MAX] {
            assert_eq!(
                BlockDevice::new(size_bytes),
                Err(KeyspaceError::DeviceSize { size_bytes, limit_bytes: DEVICE_BYTES_MAX })
            );
        }
        assert!(BlockDevice::new(4096).is_ok() && BlockDevice::new(DEVICE_BYTES_MAX).is_ok());
    }
}
