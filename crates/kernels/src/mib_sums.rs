//! Checksums of the MiBs of a large value, so that a part can be read and checked alone.
//!
//! They are stations of one running CRC-32C: its values at the end of each MiB of the stored bytes but the last. Its
//! value at the end of all bytes is the checksum that the value has anyway. So MiB `n` is right if the sum goes from
//! the station before it to the one behind it. A value of up to 1 MiB has no station. The sum begins with the value's
//! salt, which all stations inherit.

use crate::checksum::crc32c_append;
use crate::record::VALUE_BYTES_MAX;

pub const MIB: usize = 1 << 20;
const STATIONS_MAX: usize = VALUE_BYTES_MAX / MIB - 1;
pub const STATION_BYTES: usize = 4;
/// The most bytes that the stations of a value take.
pub const STATIONS_BYTES_MAX: usize = STATIONS_MAX * STATION_BYTES;

/// The number of stations of a value with `stored_bytes` stored bytes.
pub const fn station_count(stored_bytes: usize) -> usize {
    stored_bytes.div_ceil(MIB).saturating_sub(1)
}

/// Bytes of the stations of a value with `stored_bytes` stored bytes.
pub const fn stations_bytes(stored_bytes: usize) -> usize {
    station_count(stored_bytes) * STATION_BYTES
}

/// The stations of one value, and the sum at its end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MibSums {
    stations: [u32; STATIONS_MAX],
    count: u8,
    pub whole: u32,
}

impl MibSums {
    /// Sums `stored`. The sum of no bytes is `begin`.
    ///
    /// # Panics
    /// When `stored` is longer than the longest value.
    pub fn of(begin: u32, stored: &[u8]) -> MibSums {
        let mut sums = MibSums { stations: [0; STATIONS_MAX], count: station_count(stored.len()) as u8, whole: begin };
        for (number, mib) in stored.chunks(MIB).enumerate() {
            sums.whole = crc32c_append(sums.whole, mib);
            if number < usize::from(sums.count) {
                sums.stations[number] = sums.whole;
            }
        }
        sums
    }

    /// Reads stations as they are on flash. `whole` is the sum at the end.
    pub fn from_flash(stations: &[u8], whole: u32) -> Option<MibSums> {
        let (words, rest) = stations.as_chunks::<STATION_BYTES>();
        let mut sums = MibSums { stations: [0; STATIONS_MAX], count: words.len() as u8, whole };
        let to = sums.stations.get_mut(..words.len()).filter(|_| rest.is_empty())?;
        to.iter_mut().zip(words).for_each(|(station, word)| *station = u32::from_le_bytes(*word));
        Some(sums)
    }

    /// The stations as they are on flash.
    pub fn stations(&self) -> impl Iterator<Item = [u8; STATION_BYTES]> + '_ {
        self.stations[..usize::from(self.count)].iter().map(|station| station.to_le_bytes())
    }

    /// The sum behind MiB `number`.
    fn behind(&self, number: usize) -> u32 {
        if number < usize::from(self.count) { self.stations[number] } else { self.whole }
    }

    /// The sum before MiB `number`, of a value whose sum of no bytes is `begin`.
    fn before(&self, number: usize, begin: u32) -> u32 {
        if number == 0 { begin } else { self.behind(number - 1) }
    }

    /// Whether these bytes are MiB `number`, the last one included, of a value whose sum of no bytes is `begin`.
    pub fn has(&self, begin: u32, number: usize, mib: &[u8]) -> bool {
        crc32c_append(self.before(number, begin), mib) == self.behind(number)
    }
}

/// Sums bytes as they come, and compares the sum at the end of each MiB.
#[derive(Clone, Copy, Debug)]
pub struct MibCheck {
    crc: u32,
    bytes: usize,
    damaged: Option<u32>,
}

impl MibCheck {
    /// Begins the check of a value whose sum of no bytes is `begin`.
    pub fn new(begin: u32) -> MibCheck {
        MibCheck { crc: begin, bytes: 0, damaged: None }
    }

    /// Takes the next bytes of the value.
    pub fn take(&mut self, sums: &MibSums, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let left = MIB - self.bytes % MIB;
            let (part, rest) = bytes.split_at(left.min(bytes.len()));
            self.crc = crc32c_append(self.crc, part);
            self.bytes += part.len();
            bytes = rest;
            let number = self.bytes / MIB;
            if part.len() == left && number <= usize::from(sums.count) {
                self.note(number - 1, sums.behind(number - 1));
            }
        }
    }

    fn note(&mut self, number: usize, expected: u32) {
        if self.crc != expected {
            self.damaged.get_or_insert(number as u32);
            // The MiBs behind it are judged by themselves.
            self.crc = expected;
        }
    }

    /// The first damaged MiB, once all bytes were taken; `None` if all are right.
    pub fn damaged(mut self, sums: &MibSums) -> Option<u32> {
        self.note(usize::from(sums.count), sums.whole);
        self.damaged
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::SplitMix64;

    fn sizes() -> impl Iterator<Item = usize> {
        [0, 1, MIB - 1, MIB, MIB + 1, 2 * MIB, 3 * MIB + 77, VALUE_BYTES_MAX].into_iter()
    }

    #[test]
    fn the_sum_at_the_end_is_that_of_all_and_stations_come_back() {
        for size in sizes() {
            let stored = SplitMix64::new(size as u64).bytes(size);
            let sums = MibSums::of(77, &stored);
            assert_eq!(sums.whole, crc32c_append(77, &stored));
            let flash = sums.stations().collect::<Vec<_>>().concat();
            assert_eq!(flash.len(), stations_bytes(size));
            assert_eq!(MibSums::from_flash(&flash, sums.whole), Some(sums));
            assert!(stored.chunks(MIB).enumerate().all(|(number, mib)| sums.has(77, number, mib)), "{size}");
        }
        assert_eq!((stations_bytes(MIB), stations_bytes(MIB + 1)), (0, 4));
        assert_eq!(MibSums::from_flash(&[0; STATIONS_BYTES_MAX + 4], 0), None);
        assert_eq!(MibSums::from_flash(&[0; 5], 0), None);
    }

    #[test]
    fn a_mib_elsewhere_and_every_damaged_one_is_seen() {
        let stored = SplitMix64::new(1).bytes(3 * MIB + 9);
        let sums = MibSums::of(5, &stored);
        assert!(
            !sums.has(5, 1, &stored[..MIB]) && !sums.has(6, 0, &stored[..MIB]) && sums.has(6, 1, &stored[MIB..2 * MIB])
        );
        let damaged = |bytes: &[u8], piece: usize| {
            let mut check = MibCheck::new(5);
            bytes.chunks(piece).for_each(|piece| check.take(&sums, piece));
            check.damaged(&sums)
        };
        for piece in [100_000, MIB, 5 * MIB] {
            assert_eq!(damaged(&stored, piece), None);
            for (at, mib) in [(0, 0), (MIB - 1, 0), (MIB, 1), (3 * MIB - 1, 2), (3 * MIB + 8, 3)] {
                let mut bytes = stored.clone();
                bytes[at] ^= 1;
                assert_eq!(damaged(&bytes, piece), Some(mib), "{at}");
            }
            assert!(damaged(&stored[..stored.len() - 1], piece).is_some());
            assert!(damaged(&stored[..2 * MIB], piece).is_some());
        }
    }
}
