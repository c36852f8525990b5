//! The end of what is written once: in a set with redundancy rows of an extent are written whole, zeros behind what there is, because their
//! parity goes with their last bytes ([`Extents::row_bytes`](super::extents::Extents::row_bytes)).

use crate::error::Error;
use crate::media::geometry::Geometry;
use crate::media::io::Io;

/// The most bytes that are written at once.
const ZERO_BYTES_MAX: u64 = 256 << 10;

/// How many bytes are missing behind the first `filled_bytes` of an extent.
pub fn rest_of_row(geometry: &Geometry, row_bytes: u64, filled_bytes: u64) -> u64 {
    filled_bytes.next_multiple_of(row_bytes).min(geometry.extent_bytes) - filled_bytes
}

/// Writes zeros behind what was written of an extent, whose last byte is before `end`. A flush makes them durable.
pub async fn end_row(io: &Io, geometry: &Geometry, row_bytes: u64, end: u64) -> Result<(), Error> {
    let filled = (end - 1 - geometry.extents_offset()) % geometry.extent_bytes + 1;
    let mut left = rest_of_row(geometry, row_bytes, filled);
    if left == 0 {
        return Ok(());
    }
    let bytes = left.min(ZERO_BYTES_MAX) as usize;
    let mut buffer = io.allocate(bytes).await?;
    io.fill(&mut buffer, 0..bytes).fill(0);
    let mut at = end;
    while left > 0 {
        let length = left.min(bytes as u64);
        io.write(at, &mut buffer, length as usize).await?;
        (at, left) = (at + length, left - length);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_ends_where_the_next_begins_or_with_its_extent() {
        let geometry = Geometry::new(1 << 30, 2 << 20, 2, 512).unwrap();
        assert_eq!(geometry.extent_bytes, 16 << 10);
        let rest = |filled| rest_of_row(&geometry, 12 << 10, filled);
        assert_eq!([512, 12 << 10, (12 << 10) + 512, 16 << 10].map(rest), [(12 << 10) - 512, 0, 3584, 0]);
        assert_eq!(rest_of_row(&geometry, 1, 700), 0, "where nothing is written whole");
    }
}
