//! The state at a moment when the power may fail, kept to try every outcome.

use super::image::{Image, SECTOR_BYTES, Sector};
use super::{Faults, FaultyFlash};
use crate::SplitMix64;
use crate::protocol::Operation;

/// The durable bytes at one moment, and the sectors that may or may not survive.
#[derive(Clone)]
pub struct Cut {
    capacity_bytes: u64,
    durable: Image,
    /// In the order of writing. A sector that was written twice is listed twice.
    doubtful: Vec<(u64, Sector)>,
}

impl Cut {
    pub(super) fn of(state: &super::FaultyState) -> Cut {
        let mut doubtful = state.image.unsynced();
        for flying in &state.in_flight {
            if let Operation::Write { flash, .. } = flying.command.operation {
                let sectors = flying.bytes.as_chunks::<SECTOR_BYTES>().0;
                let first = flash / SECTOR_BYTES as u64;
                doubtful.extend((first..).zip(sectors.iter().copied()).skip(flying.moved));
            }
        }
        Cut { capacity_bytes: state.capacity_bytes, durable: state.image.without_cache(), doubtful }
    }

    /// Number of sectors that may or may not survive.
    pub fn doubtful(&self) -> usize {
        self.doubtful.len()
    }

    /// The flash after the power failed. `kept` says which sectors survive, by their index in the order of writing.
    pub fn flash(&self, seed: u64, kept: impl Fn(usize) -> bool) -> FaultyFlash {
        let mut image = self.durable.clone();
        for (place, (sector, bytes)) in self.doubtful.iter().enumerate() {
            if kept(place) {
                image.write_durable(*sector, bytes);
            }
        }
        FaultyFlash::with_image(self.capacity_bytes, image, SplitMix64::new(seed), Faults::default(), 0)
    }

    /// Whether both have the same durable bytes and the same sectors in doubt: then only one of them needs to be tried.
    pub fn is_like(&self, other: &Cut) -> bool {
        self.doubtful == other.doubtful && self.durable.has_same_bytes(&other.durable)
    }
}
