//! How a large value lies in its extents.

use std::collections::VecDeque;
use tapetum_base::media::geometry::Geometry;
use tapetum_base::media::piece_transfer::{Piece, cut};
use tapetum_base::media::row_end::rest_of_row;
use tapetum_kernels::reference::{Reference, Run};

/// Cuts `stored_bytes` bytes in `runs` into pieces of at most `piece_bytes_max`.
pub fn pieces(geometry: &Geometry, runs: &[Run], stored_bytes: u32, piece_bytes_max: u64) -> VecDeque<Piece> {
    let (mut pieces, mut left) = (VecDeque::new(), u64::from(stored_bytes));
    for run in runs {
        let bytes = left.min(u64::from(run.count) * geometry.extent_bytes);
        pieces.extend(cut(geometry.extent_offset(run.first), bytes, piece_bytes_max, geometry.sector_bytes.into()));
        left -= bytes;
    }
    pieces
}

/// As [`pieces`], to write: with zeros behind the value, where its last row must be written whole.
pub fn pieces_to_write(
    geometry: &Geometry,
    row_bytes: u64,
    reference: &Reference,
    piece_bytes_max: u64,
) -> VecDeque<Piece> {
    let mut pieces = pieces(geometry, &reference.runs, reference.stored_bytes, piece_bytes_max);
    let Some(last) = pieces.back() else { return pieces };
    let mut end = last.flash + u64::from(last.length);
    let filled = (end - 1 - geometry.extents_offset()) % geometry.extent_bytes + 1;
    let mut left = rest_of_row(geometry, row_bytes, filled);
    while left > 0 {
        let length = left.min(piece_bytes_max);
        pieces.push_back(Piece { flash: end, bytes: 0, length: length as u32 });
        (end, left) = (end + length, left - length);
    }
    pieces
}

#[cfg(test)]
mod tests {
    use super::*;
    use tapetum_kernels::mib_sums::MibSums;
    use tapetum_kernels::record::Codec;

    #[test]
    fn pieces_cover_the_value_within_runs_in_whole_sectors() {
        let geometry = Geometry::new(4 << 20, 64 << 10, 2, 512).unwrap();
        let runs = [Run { first: 3, count: 2 }, Run { first: 9, count: 1 }];
        let of = |first: u32, at: u64| geometry.extent_offset(first) + at;
        let cut: Vec<Piece> = pieces(&geometry, &runs, 8192 + 700, 5120).into();
        assert_eq!(
            cut,
            [
                Piece { flash: of(3, 0), bytes: 5120, length: 5120 },
                Piece { flash: of(3, 5120), bytes: 3072, length: 3072 },
                Piece { flash: of(9, 0), bytes: 700, length: 1024 },
            ]
        );
        assert_eq!(pieces(&geometry, &runs, 12288, 256 << 10).len(), 2);
        let stored_bytes = 8192 + 700;
        let sums = MibSums::of(0, b"");
        let reference = Reference { version: 1, sums, stored_bytes, codec: Codec::Raw, runs: runs.to_vec() };
        let written = pieces_to_write(&geometry, 3072, &reference, 1536);
        assert_eq!(pieces_to_write(&geometry, 1, &reference, 1536), pieces(&geometry, &runs, stored_bytes, 1536));
        let zeros: Vec<Piece> = written.into_iter().filter(|piece| piece.bytes == 0).collect();
        let zero = |at, length| Piece { flash: of(9, at), bytes: 0, length };
        assert_eq!(zeros, [zero(1024, 1536), zero(2560, 512)]);
    }
}
