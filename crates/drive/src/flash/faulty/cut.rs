//! A moment at which the power may fail, kept to try every way in which it may.

use super::image::{Image, SECTOR_BYTES, Sector};
use super::{Faults, FaultyFlash};
use crate::SplitMix64;
use crate::protocol::Operation;

/// What is durable at one moment, and the sectors that may survive or not.
#[derive(Clone)]
pub struct Cut {
    capacity_bytes: u64,
    durable: Image,
    /// In the order of writing: a sector that was written twice is there twice.
    doubtful: Vec<(u64, Sector)>,
}

impl Cut {
    pub(super) fn of(state: &super::State) -> Cut {
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

    /// Sectors that may survive or not.
    pub fn doubtful(&self) -> usize {
        self.doubtful.len()
    }

    /// The flash of which those survive that `kept` says, by their place in the order of writing.
    pub fn flash(&self, seed: u64, kept: impl Fn(usize) -> bool) -> FaultyFlash {
        let mut image = self.durable.clone();
        for (place, (sector, bytes)) in self.doubtful.iter().enumerate() {
            if kept(place) {
                image.write_durable(*sector, bytes);
            }
        }
        FaultyFlash::with_image(self.capacity_bytes, image, SplitMix64::new(seed), Faults::default(), 0)
    }

    /// Whether the same bytes are durable and the same in doubt: then it is tried once.
    pub fn is_like(&self, other: &Cut) -> bool {
        self.doubtful == other.doubtful && self.durable.has_same_bytes(&other.durable)
    }
}
