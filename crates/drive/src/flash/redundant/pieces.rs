//! Commands cut at chunks, and what else each piece has to do with.

use super::Set;
use super::rows::Form;
use super::shape::Cell;

/// The part of a command's range that lies in one chunk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Piece {
    /// From the beginning of the command's range.
    pub from: u64,
    pub length: u32,
    pub cell: Cell,
    /// From the beginning of the chunk.
    pub within: u64,
    pub source: Source,
    /// It lies before the first extent.
    pub is_own: bool,
}

/// What has a piece beside its cell.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Source {
    Copy(Cell),
    /// The rest of its row, of which it is the data chunk of this number.
    Row {
        row: u64,
        chunk: usize,
    },
}

/// The pieces of a range, in its order.
pub fn pieces(set: &Set, flash: u64, length: u64) -> impl Iterator<Item = Piece> + use<> {
    let (mut pieces, mut from) = (Vec::with_capacity(1), 0);
    while from < length {
        let piece = piece(set, flash, from, length);
        from += u64::from(piece.length);
        pieces.push(piece);
    }
    pieces.into_iter()
}

fn piece(set: &Set, flash: u64, from: u64, length: u64) -> Piece {
    let (shape, at) = (&set.shape, flash + from);
    if at < shape.own_bytes {
        let [cell, copy] = [0, 1].map(|member| Cell { member, at: 0 });
        let length = (length - from).min(shape.own_bytes - at) as u32;
        return Piece { from, length, cell, within: at, source: Source::Copy(copy), is_own: true };
    }
    let (extent, at) = shape.extent_of(at);
    let (cell, within, source) = match set.rows.form(extent) {
        Form::Stripe => {
            let (row, chunk, within) = shape.row_of(extent, at);
            (shape.data_cell(row, chunk), within, Source::Row { row, chunk })
        }
        Form::Copies { first } => {
            let at = u64::from(extent - first) * shape.extent_bytes + at;
            let ([cell, copy], within) = shape.copy_cells(first, at);
            (cell, within, Source::Copy(copy))
        }
    };
    let length = (length - from).min(shape.chunk_bytes() - within) as u32;
    Piece { from, length, cell, within, source, is_own: false }
}

impl Set {
    /// The blocks that make up a piece of a stripe: the row's parity, and its other chunks.
    pub fn row_blocks(&self, piece: &Piece) -> Vec<Cell> {
        let Source::Row { row, chunk } = piece.source else { return Vec::new() };
        let others = (0..self.shape.chunks_of(row)).filter(|other| *other != chunk);
        let data = others.map(|other| self.shape.data_cell(row, other));
        std::iter::once(self.shape.parity_cell(row)).chain(data).collect()
    }
}
