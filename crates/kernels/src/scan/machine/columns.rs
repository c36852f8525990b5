//! Columns: the values of a register for each record of a batch, and the loops over them.

use super::Span;
use crate::scan::batch::BATCH_ROWS;
use crate::scan::value::ScalarType;

/// The values of a register. Each record has one, or NULL.
pub(super) struct Column {
    pub there: Box<[bool]>,
    pub data: ColumnData,
}

pub(super) enum ColumnData {
    Bool(Box<[bool]>),
    /// Holds timestamps too.
    Int(Box<[i64]>),
    Unsigned(Box<[u64]>),
    Float(Box<[f64]>),
    Span(Box<[Span]>),
    /// The instruction defines no register.
    Nothing,
}

/// The values of a register of one type.
#[derive(Clone, Copy)]
pub(super) struct ColumnView<'a, T> {
    pub there: &'a [bool],
    pub data: &'a [T],
}

/// A mutable [`ColumnView`].
pub(super) struct ColumnViewMut<'a, T> {
    pub there: &'a mut [bool],
    pub data: &'a mut [T],
}

fn filled<T: Clone + Default>(rows: usize) -> Box<[T]> {
    vec![T::default(); rows].into()
}

impl Column {
    /// Room for so many records.
    pub fn new(of: Option<ScalarType>, rows: usize) -> Column {
        let Some(of) = of else { return Column { there: Box::default(), data: ColumnData::Nothing } };
        let data = match of {
            ScalarType::Bool => ColumnData::Bool(filled(rows)),
            ScalarType::Int | ScalarType::Timestamp => ColumnData::Int(filled(rows)),
            ScalarType::Unsigned => ColumnData::Unsigned(filled(rows)),
            ScalarType::Float => ColumnData::Float(filled(rows)),
            ScalarType::Text | ScalarType::Bytes => ColumnData::Span(filled(rows)),
        };
        Column { there: filled(rows), data }
    }

    /// A view of `data`, which is this column's own.
    pub fn view<'a, T>(&'a self, data: &'a [T]) -> ColumnView<'a, T> {
        ColumnView { there: &self.there, data }
    }

    pub fn bools(&self) -> ColumnView<'_, bool> {
        match &self.data {
            ColumnData::Bool(data) => self.view(data),
            _ => unreachable!("a checked program has a bool here"),
        }
    }

    pub fn spans(&self) -> ColumnView<'_, Span> {
        match &self.data {
            ColumnData::Span(data) => self.view(data),
            _ => unreachable!("a checked program has bytes here"),
        }
    }

    pub fn bools_mut(&mut self) -> ColumnViewMut<'_, bool> {
        match &mut self.data {
            ColumnData::Bool(data) => ColumnViewMut { there: &mut self.there, data },
            _ => unreachable!("a checked program has a bool here"),
        }
    }

    pub fn ints_mut(&mut self) -> ColumnViewMut<'_, i64> {
        match &mut self.data {
            ColumnData::Int(data) => ColumnViewMut { there: &mut self.there, data },
            _ => unreachable!("a checked program has an integer here"),
        }
    }

    pub fn floats_mut(&mut self) -> ColumnViewMut<'_, f64> {
        match &mut self.data {
            ColumnData::Float(data) => ColumnViewMut { there: &mut self.there, data },
            _ => unreachable!("a checked program has a float here"),
        }
    }
}

/// The records that instructions process.
#[derive(Default)]
pub(super) struct Selection {
    rows: Vec<u16>,
    /// Whether they are all records of the batch, from the first on.
    is_all: bool,
}

impl Selection {
    pub fn all(&mut self, rows: usize) {
        self.rows.clear();
        self.rows.extend(0..rows as u16);
        self.is_all = true;
    }

    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    pub fn rows(&self) -> &[u16] {
        &self.rows
    }

    pub fn retain(&mut self, mut is_kept: impl FnMut(usize) -> bool) {
        let before = self.rows.len();
        self.rows.retain(|row| is_kept(usize::from(*row)));
        self.is_all &= self.rows.len() == before;
    }

    #[inline(always)]
    pub fn each(&self, mut visit: impl FnMut(usize)) {
        if self.is_all {
            (0..self.rows.len().min(BATCH_ROWS)).for_each(visit);
        } else {
            self.rows.iter().for_each(|row| visit(usize::from(*row)));
        }
    }
}

/// Computes a value or NULL from each value that is not NULL.
#[inline(always)]
pub(super) fn map<A: Copy, R>(
    selection: &Selection,
    a: ColumnView<'_, A>,
    out: ColumnViewMut<'_, R>,
    compute: impl Fn(A) -> Option<R>,
) {
    selection.each(|row| {
        let value = if a.there[row] { compute(a.data[row]) } else { None };
        out.there[row] = value.is_some();
        if let Some(value) = value {
            out.data[row] = value;
        }
    });
}

/// Computes a value or NULL from each pair of values that are both not NULL.
#[inline(always)]
pub(super) fn map_two<A: Copy, B: Copy, R>(
    selection: &Selection,
    a: ColumnView<'_, A>,
    b: ColumnView<'_, B>,
    out: ColumnViewMut<'_, R>,
    compute: impl Fn(A, B) -> Option<R>,
) {
    selection.each(|row| {
        let value = if a.there[row] && b.there[row] { compute(a.data[row], b.data[row]) } else { None };
        out.there[row] = value.is_some();
        if let Some(value) = value {
            out.data[row] = value;
        }
    });
}

/// Computes a value from each pair, also where one is NULL and the result is not used: a loop without branches.
#[inline(always)]
pub(super) fn map_two_total<A: Copy, B: Copy>(
    selection: &Selection,
    a: ColumnView<'_, A>,
    b: ColumnView<'_, B>,
    out: ColumnViewMut<'_, bool>,
    compute: impl Fn(A, B) -> bool,
) {
    selection.each(|row| {
        out.there[row] = a.there[row] & b.there[row];
        out.data[row] = compute(a.data[row], b.data[row]);
    });
}
