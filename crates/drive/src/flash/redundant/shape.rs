//! Where the bytes of a set with redundancy lie on its members. Plain numbers.
//!
//! ```text
//!              member 0      member 1      member 2
//!              │ head      │ │ head      │ │ head │
//!              │ own bytes │ │ own bytes │ │ rows │    own bytes: each on members 0 and 1 (superblocks, manifest, log)
//!              │ rows      │ │ rows      │
//!
//!  rows        cell 0        cell 1        cell 2      a cell is a *chunk* of bytes; a row is one chunk of each member
//!              cell 3        cell 4        cell 5
//! ```
//! An extent has some rows of its own, whole. It has one of two forms:
//! - *Stripe* (RAID5): each row has the extent's next chunks, and on one member, another from row to row, their parity. It is written once. The
//!   last row may have fewer chunks, and their parity.
//! - *Copies*: chunk `n` of a run of extents is in the run's cells `2n` and `2n + 1`, which are never on one member. Such a run has more rows than its
//!   extents: [`Shape::run_extents`] says how many extents it takes.
//!
//! In a mirrored set all extents are one run of copies.

/// How a set keeps what a member has, in case it is lost. One member may be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Redundancy {
    /// Everything twice.
    Mirror,
    /// What is written once has a parity, what is written in place is there twice.
    Raid5,
}

/// The most bytes of a chunk, and the fewest.
const CHUNK_BYTES_MAX: u64 = 64 << 10;
pub const CHUNK_BYTES_MIN: u64 = 4096;
/// Of an extent's room, the most that its last row may leave unused is one part in so many, where chunks can be so small.
const UNUSED_PART: u64 = 32;

/// A place on a member.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Cell {
    pub member: usize,
    /// From the beginning of the member's rows, or of its own bytes.
    pub at: u64,
}

/// See the [module](self).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Shape {
    pub redundancy: Redundancy,
    pub members: usize,
    /// Bytes before the first extent.
    pub own_bytes: u64,
    /// A power of two of at least [`CHUNK_BYTES_MIN`].
    pub extent_bytes: u64,
    pub extents: u32,
}

impl Shape {
    /// The shape whose members have `rows_bytes` for rows each.
    pub fn within(redundancy: Redundancy, members: usize, own_bytes: u64, extent_bytes: u64, rows_bytes: u64) -> Shape {
        let mut shape = Shape { redundancy, members, own_bytes, extent_bytes, extents: 0 };
        let rows = rows_bytes / shape.chunk_bytes();
        shape.extents = match redundancy {
            Redundancy::Mirror => rows * members as u64 / 2 / shape.chunks_per_extent(),
            Redundancy::Raid5 => rows / shape.rows_per_extent(),
        } as u32;
        shape
    }

    pub fn capacity_bytes(&self) -> u64 {
        self.own_bytes + u64::from(self.extents) * self.extent_bytes
    }

    /// What each member has of all rows.
    pub fn rows_bytes(&self) -> u64 {
        let rows = match self.redundancy {
            Redundancy::Mirror => {
                (2 * u64::from(self.extents) * self.chunks_per_extent()).div_ceil(self.members as u64)
            }
            Redundancy::Raid5 => u64::from(self.extents) * self.rows_per_extent(),
        };
        rows * self.chunk_bytes()
    }

    /// The largest chunk with which little is left unused.
    pub fn chunk_bytes(&self) -> u64 {
        let mut chunk = CHUNK_BYTES_MAX.min(self.extent_bytes);
        while self.redundancy == Redundancy::Raid5 && chunk > CHUNK_BYTES_MIN {
            let row = chunk * (self.members as u64 - 1);
            let unused = self.extent_bytes.next_multiple_of(row) - self.extent_bytes;
            if unused * UNUSED_PART <= self.extent_bytes {
                break;
            }
            chunk /= 2;
        }
        chunk
    }

    fn chunks_per_extent(&self) -> u64 {
        self.extent_bytes / self.chunk_bytes()
    }

    /// Chunks of data in a whole row of a stripe.
    fn chunks_per_row(&self) -> u64 {
        self.members as u64 - 1
    }

    pub fn rows_per_extent(&self) -> u64 {
        self.chunks_per_extent().div_ceil(self.chunks_per_row())
    }

    /// Bytes of data in a whole row of a stripe.
    pub fn row_bytes(&self) -> u64 {
        self.chunks_per_row() * self.chunk_bytes()
    }

    /// The extents that a run of `count` takes as copies, the first ones of which have its addresses.
    pub fn run_extents(&self, count: u32) -> u32 {
        match self.redundancy {
            Redundancy::Mirror => count,
            Redundancy::Raid5 => {
                let cells = 2 * u64::from(count) * self.chunks_per_extent();
                cells.div_ceil(self.rows_per_extent() * self.members as u64) as u32
            }
        }
    }

    /// The extent, and the place in it, of an address behind the own bytes.
    pub fn extent_of(&self, flash: u64) -> (u32, u64) {
        let at = flash - self.own_bytes;
        ((at / self.extent_bytes) as u32, at % self.extent_bytes)
    }

    /// The row of a stripe, the number of the chunk there, and the place in the chunk.
    pub fn row_of(&self, extent: u32, at: u64) -> (u64, usize, u64) {
        let (row, within) = (at / self.row_bytes(), at % self.row_bytes());
        let chunk = within / self.chunk_bytes();
        (u64::from(extent) * self.rows_per_extent() + row, chunk as usize, within % self.chunk_bytes())
    }

    /// Chunks of data in a row: fewer in the last of an extent.
    pub fn chunks_of(&self, row: u64) -> usize {
        let before = row % self.rows_per_extent() * self.chunks_per_row();
        (self.chunks_per_extent() - before).min(self.chunks_per_row()) as usize
    }

    /// The extent that a row belongs to.
    pub fn extent_of_row(&self, row: u64) -> u32 {
        (row / self.rows_per_extent()) as u32
    }

    pub fn parity_cell(&self, row: u64) -> Cell {
        self.cell_in_row(row, row)
    }

    pub fn data_cell(&self, row: u64, chunk: usize) -> Cell {
        self.cell_in_row(row, row + 1 + chunk as u64)
    }

    fn cell_in_row(&self, row: u64, number: u64) -> Cell {
        Cell { member: (number % self.members as u64) as usize, at: row * self.chunk_bytes() }
    }

    /// Both cells, the first of which counts, of the chunk with `at`, a place in the run of copies that begins with extent `first`; and the place in the chunk.
    pub fn copy_cells(&self, first: u32, at: u64) -> ([Cell; 2], u64) {
        let cell = 2 * (at / self.chunk_bytes());
        let row = match self.redundancy {
            Redundancy::Mirror => 0,
            Redundancy::Raid5 => u64::from(first) * self.rows_per_extent(),
        };
        let members = self.members as u64;
        let mut cells = [cell, cell + 1].map(|cell| self.cell_in_row(row + cell / members, cell % members));
        // Reads go to the first one: each member is that for some.
        if cell / members % 2 == 1 {
            cells.reverse();
        }
        (cells, at % self.chunk_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    fn shape(redundancy: Redundancy, members: usize, extent_bytes: u64) -> Shape {
        Shape::within(redundancy, members, 1 << 20, extent_bytes, 64 << 20)
    }

    #[test]
    fn each_chunk_of_stripes_has_its_own_cell_and_a_row_one_of_each_member() {
        for (members, extent_bytes) in
            [(3, 8 << 10), (3, 2 << 20), (4, 2 << 20), (4, 8 << 10), (6, 64 << 10), (2, 8192)]
        {
            let shape = shape(Redundancy::Raid5, members, extent_bytes);
            let mut cells = BTreeSet::new();
            for extent in 0..20 {
                for at in (0..extent_bytes).step_by(shape.chunk_bytes() as usize) {
                    let (row, chunk, within) = shape.row_of(extent, at);
                    assert!(within == 0 && chunk < shape.chunks_of(row) && shape.extent_of_row(row) == extent);
                    let Cell { member, at } = shape.data_cell(row, chunk);
                    assert!(member != shape.parity_cell(row).member && at + shape.chunk_bytes() <= shape.rows_bytes());
                    assert!(cells.insert((member, at)), "a cell given twice");
                }
            }
            let unused = shape.rows_per_extent() * shape.row_bytes() - extent_bytes;
            assert!(unused * UNUSED_PART <= extent_bytes || shape.chunk_bytes() == CHUNK_BYTES_MIN);
            assert!(shape.rows_bytes() <= 64 << 20);
        }
    }

    #[test]
    fn copies_are_on_two_members_within_the_rows_of_their_run() {
        for (redundancy, members, extent_bytes) in [
            (Redundancy::Raid5, 3, 8 << 10),
            (Redundancy::Raid5, 4, 2 << 20),
            (Redundancy::Raid5, 5, 64 << 10),
            (Redundancy::Mirror, 2, 8 << 10),
            (Redundancy::Mirror, 3, 2 << 20),
        ] {
            let shape = shape(redundancy, members, extent_bytes);
            for (first, count) in [(0, 1), (5, 3), (7, 8)] {
                let taken = shape.run_extents(count);
                let rows =
                    u64::from(first) * shape.rows_per_extent()..u64::from(first + taken) * shape.rows_per_extent();
                let mut cells = BTreeSet::new();
                for at in (0..u64::from(count) * extent_bytes).step_by(shape.chunk_bytes() as usize) {
                    let ([one, other], _) = shape.copy_cells(first, at);
                    assert_ne!(one.member, other.member);
                    for Cell { member, at } in [one, other] {
                        assert!(cells.insert((member, at)));
                        let row = at / shape.chunk_bytes();
                        assert!(redundancy == Redundancy::Mirror || rows.contains(&row));
                    }
                }
            }
        }
    }

    #[test]
    fn what_a_set_has_for_its_members() {
        let of = |redundancy, members| {
            let shape = shape(redundancy, members, 2 << 20);
            (shape.chunk_bytes() >> 10, shape.extents, shape.run_extents(12))
        };
        assert_eq!(of(Redundancy::Mirror, 2), (64, 32, 12));
        assert_eq!(of(Redundancy::Mirror, 3), (64, 48, 12));
        assert_eq!(of(Redundancy::Raid5, 3), (64, 64, 16));
        assert_eq!(of(Redundancy::Raid5, 4), (64, 93, 18));
        assert_eq!(of(Redundancy::Raid5, 5), (64, 128, 20));
    }
}
