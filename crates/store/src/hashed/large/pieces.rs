//! How a large value lies in its extents.

use std::collections::VecDeque;
use tapetum_base::media::geometry::Geometry;
use tapetum_base::media::piece_transfer::{Piece, cut};
use tapetum_kernels::reference::Run;

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

#[cfg(test)]
mod tests {
    use super::*;

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
    }
}
