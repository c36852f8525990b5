//! What a keyspace that is a block device keeps among its options: its size, and how its blocks become keys.
//!
//! ```text
//!  0  kind u8 = 1, a block device · 1  version u8 = 1 · 2  group bits u8 = 0 · 3  0 · 4  size u64
//! ```
//! A block of 4 KiB is an item: its key is the block's number, eight bytes, the most significant first, and its value the block. A
//! block without an item reads as zeros. Group bits are the low bits of a block's number whose blocks would lie in one item; this
//! version knows none.

use super::catalogue::Keyspace;
use super::keyspace_error::KeyspaceError;
use crate::media::wire::{Reader, Short, Writer};

pub const BLOCK_BYTES: usize = 4 << 10;
/// As much as a store may have.
pub const DEVICE_BYTES_MAX: u64 = 8 << 50;

const KIND: u8 = 1;
const VERSION: u8 = 1;
const OPTIONS_BYTES: usize = 12;
const _: () = assert!(OPTIONS_BYTES <= super::catalogue::OPTIONS_BYTES_MAX);
const _: () = assert!(BLOCK_BYTES.is_power_of_two() && DEVICE_BYTES_MAX.is_multiple_of(BLOCK_BYTES as u64));

/// A keyspace as a block device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BlockDevice {
    size_bytes: u64,
}

impl BlockDevice {
    /// A device of `size_bytes`.
    ///
    /// # Errors
    /// [`KeyspaceError::DeviceSize`] unless that is a whole number of blocks, one at least.
    pub fn new(size_bytes: u64) -> Result<BlockDevice, KeyspaceError> {
        let fits = (1..=DEVICE_BYTES_MAX).contains(&size_bytes) && size_bytes.is_multiple_of(BLOCK_BYTES as u64);
        if fits { Ok(BlockDevice { size_bytes }) } else { Err(KeyspaceError::DeviceSize { size_bytes }) }
    }

    pub fn size_bytes(self) -> u64 {
        self.size_bytes
    }

    /// The key of a block.
    pub fn key(block: u64) -> [u8; 8] {
        block.to_be_bytes()
    }

    /// What a keyspace keeps of it.
    pub fn options(self) -> Vec<u8> {
        let mut writer = Writer::default();
        writer.bytes.extend_from_slice(&[KIND, VERSION, 0, 0]);
        writer.u64(self.size_bytes);
        writer.bytes
    }

    fn parse(options: &[u8]) -> Result<BlockDevice, Short> {
        let mut reader = Reader::new(options);
        let ([kind, version, group_bits, reserved], size_bytes) = (reader.array()?, reader.u64()?);
        if (kind, version, group_bits, reserved) != (KIND, VERSION, 0, 0) || !reader.is_empty() {
            return Err(Short);
        }
        BlockDevice::new(size_bytes).map_err(|_| Short)
    }
}

impl Keyspace {
    /// The block device that it is, if it is one.
    ///
    /// # Errors
    /// [`KeyspaceError::Options`] where another version made it, as something that this one does not know.
    pub fn block_device(&self) -> Result<Option<BlockDevice>, KeyspaceError> {
        if self.options.is_empty() {
            return Ok(None);
        }
        BlockDevice::parse(&self.options).map(Some).map_err(|Short| KeyspaceError::Options { name: self.name.clone() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keyspace::KeyspaceId;
    use crate::keyspace::catalogue::{KeyspaceKind, KeyspaceState};

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
        for (place, value) in [(0, 2), (1, 2), (2, 3), (3, 1), (4, 1)] {
            let mut other = options.clone();
            other[place] = value;
            assert_eq!(of(other), Err(KeyspaceError::Options { name: "disk0".into() }), "byte {place}");
        }
        assert!(of(options[..11].to_vec()).is_err() && of([options, vec![0]].concat()).is_err());
    }

    #[test]
    fn a_size_is_a_whole_number_of_blocks() {
        for size_bytes in [0, 1, 4095, 4097, DEVICE_BYTES_MAX + 4096, u64::MAX] {
            assert_eq!(BlockDevice::new(size_bytes), Err(KeyspaceError::DeviceSize { size_bytes }));
        }
        assert!(BlockDevice::new(4096).is_ok() && BlockDevice::new(DEVICE_BYTES_MAX).is_ok());
    }
}
