//! Runs a condition program over a batch of records, one instruction at a time over all of them.
//!
//! 1. After a `keep`, and after a record that does not fit, instructions process only the records that are left.
//! 2. A register's values are valid for the records that were left when it was defined.
//! 3. Between batches only the allocations are kept. A batch allocates only if it is the largest so far, or its strings have escapes.
//!
//! A machine belongs to one thread.

mod columns;
mod loads;

use self::columns::{Column, ColumnData, ColumnView, ColumnViewMut, Selection, map, map_two, map_two_total};
use super::batch::{BATCH_ROWS, RowBatch, Rows};
use super::fields::{FieldReader, Misfit};
use super::format::Format;
use super::like::LikePattern;
use super::program::{Arithmetic, Comparison, Constant, Instruction, Program, Register};
use super::value::{OwnedScalar, Scalar, ScalarType, compare_floats};
use std::cmp::Ordering;

/// The first record of a batch that did not fit, and the number of such records.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct BatchMisfits {
    pub count: usize,
    pub first: Option<RowMisfit>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RowMisfit {
    pub row: usize,
    /// The field's place in the format.
    pub field: usize,
    pub misfit: Misfit,
}

pub struct Machine {
    program: Program,
    reader: FieldReader,
    columns: Vec<Column>,
    /// Records that the columns have room for.
    room: usize,
    selection: Selection,
    /// The pattern of each instruction that has one.
    patterns: Vec<Option<LikePattern>>,
    /// The bytes of constants.
    constant_bytes: Vec<u8>,
    /// The batch's strings whose escapes were replaced.
    unescaped: Vec<u8>,
    misfits: BatchMisfits,
}

/// The place of a value's bytes.
#[derive(Clone, Copy, Default)]
struct Span {
    source: SpanSource,
    at: u32,
    bytes: u32,
}

#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum SpanSource {
    #[default]
    Batch,
    Constants,
    Unescaped,
}

/// The buffers that spans point into.
#[derive(Clone, Copy)]
struct SpanBytes<'a> {
    batch: &'a [u8],
    constants: &'a [u8],
    unescaped: &'a [u8],
}

impl<'a> SpanBytes<'a> {
    #[inline]
    fn of(self, span: Span) -> &'a [u8] {
        let bytes = match span.source {
            SpanSource::Batch => self.batch,
            SpanSource::Constants => self.constants,
            SpanSource::Unescaped => self.unescaped,
        };
        &bytes[span.at as usize..][..span.bytes as usize]
    }
}

impl Machine {
    /// The program was checked for the types of this format's fields.
    pub fn new(format: &Format, program: Program) -> Machine {
        let mut machine = Machine {
            reader: FieldReader::new(format),
            columns: Vec::with_capacity(program.instructions().len()),
            room: 0,
            selection: Selection::default(),
            patterns: patterns(&program),
            constant_bytes: Vec::new(),
            unescaped: Vec::new(),
            misfits: BatchMisfits::default(),
            program,
        };
        // Many see a single record.
        machine.make_room(1);
        machine
    }

    /// Makes columns for so many records, unless there are such.
    fn make_room(&mut self, rows: usize) {
        if rows <= self.room {
            return;
        }
        self.room = rows.next_power_of_two();
        self.columns.clear();
        self.constant_bytes.clear();
        for place in 0..self.program.instructions().len() {
            let of = self.program.register_type(place as Register);
            let mut column = Column::new(of, self.room);
            if let Instruction::Constant(number) = self.program.instructions()[place] {
                self.fill_constant(number, &mut column);
            }
            self.columns.push(column);
        }
    }

    /// A machine for [`Machine::keeps`], whose rows lie in no batch. The program was checked for the rows' types.
    pub fn of_rows(program: Program) -> Machine {
        Machine::new(&Format::plain(), program)
    }

    fn fill_constant(&mut self, number: u16, column: &mut Column) {
        let Some(value) = &self.program.constants()[usize::from(number)].value else { return };
        column.there.fill(true);
        match (value, &mut column.data) {
            (OwnedScalar::Bool(value), ColumnData::Bool(data)) => data.fill(*value),
            (OwnedScalar::Int(value) | OwnedScalar::Timestamp(value), ColumnData::Int(data)) => data.fill(*value),
            (OwnedScalar::Unsigned(value), ColumnData::Unsigned(data)) => data.fill(*value),
            (OwnedScalar::Float(value), ColumnData::Float(data)) => data.fill(*value),
            (value, ColumnData::Span(data)) => {
                let bytes = value.as_scalar().bytes().unwrap_or_default();
                let at = self.constant_bytes.len() as u32;
                self.constant_bytes.extend_from_slice(bytes);
                data.fill(Span { source: SpanSource::Constants, at, bytes: bytes.len() as u32 });
            }
            _ => unreachable!("a constant has the type that it says"),
        }
    }

    /// Runs the program. Returns the records of the batch that are left, ascending.
    pub fn run<'a>(&mut self, rows: impl Into<Rows<'a>>) -> &[u16] {
        let rows = rows.into();
        assert!(rows.len() <= BATCH_ROWS, "a batch of {} rows", rows.len());
        self.make_room(rows.len());
        self.selection.all(rows.len());
        self.unescaped.clear();
        self.misfits = BatchMisfits::default();
        for place in 0..self.program.instructions().len() {
            if self.selection.is_empty() {
                break;
            }
            self.step(place, rows);
        }
        self.selection.rows()
    }

    /// Whether the program keeps a row. The row's values are the program's fields.
    pub fn keeps(&mut self, row: &[Option<Scalar<'_>>]) -> bool {
        self.selection.all(1);
        self.unescaped.clear();
        let batch = RowBatch::new();
        for place in 0..self.program.instructions().len() {
            match self.program.instructions()[place] {
                _ if self.selection.is_empty() => return false,
                Instruction::Field(field) => self.load_value(row[usize::from(field)], place),
                _ => self.step(place, (&batch).into()),
            }
        }
        !self.selection.is_empty()
    }

    /// The records that the last [`Machine::run`] left.
    pub fn kept(&self) -> &[u16] {
        self.selection.rows()
    }

    /// The misfits of the last batch.
    pub fn misfits(&self) -> BatchMisfits {
        self.misfits
    }

    /// The value of a register for a record that the last [`Machine::run`] left; `None` for NULL.
    ///
    /// # Panics
    /// When the register is not defined, or the batch is another one.
    #[inline]
    pub fn value<'a>(&'a self, rows: impl Into<Rows<'a>>, register: Register, row: usize) -> Option<Scalar<'a>> {
        let column = &self.columns[usize::from(register)];
        if !column.there[row] {
            return None;
        }
        let of = self.program.register_type(register);
        let batch = rows.into().bytes();
        let bytes = SpanBytes { batch, constants: &self.constant_bytes, unescaped: &self.unescaped };
        Some(match &column.data {
            ColumnData::Bool(data) => Scalar::Bool(data[row]),
            ColumnData::Int(data) if of == Some(ScalarType::Timestamp) => Scalar::Timestamp(data[row]),
            ColumnData::Int(data) => Scalar::Int(data[row]),
            ColumnData::Unsigned(data) => Scalar::Unsigned(data[row]),
            ColumnData::Float(data) => Scalar::Float(data[row]),
            ColumnData::Span(data) if of == Some(ScalarType::Bytes) => Scalar::Bytes(bytes.of(data[row])),
            // The text was checked when it was read.
            ColumnData::Span(data) => Scalar::Text(std::str::from_utf8(bytes.of(data[row])).unwrap_or_default()),
            ColumnData::Nothing => panic!("register {register} is not defined"),
        })
    }

    fn step(&mut self, place: usize, rows: Rows<'_>) {
        let instruction = self.program.instructions()[place];
        if let Instruction::Field(field) = instruction {
            return self.load(usize::from(field), place, rows);
        }
        let (before, rest) = self.columns.split_at_mut(place);
        let (out, selection) = (&mut rest[0], &mut self.selection);
        let bytes = SpanBytes { batch: rows.bytes(), constants: &self.constant_bytes, unescaped: &self.unescaped };
        let of = |register: Register| &before[usize::from(register)];
        match instruction {
            Instruction::Field(_) | Instruction::Constant(_) => {}
            Instruction::ToFloat(a) => to_float(selection, of(a), out),
            Instruction::Compare(comparison, a, b) => compare(comparison, selection, of(a), of(b), out, bytes),
            Instruction::Arithmetic(operation, a, b) => arithmetic(operation, selection, of(a), of(b), out),
            Instruction::Negate(a) => negate(selection, of(a), out),
            Instruction::Not(a) => map(selection, of(a).bools(), out.bools_mut(), |value| Some(!value)),
            Instruction::And(a, b) => connect(selection, of(a), of(b), out, false),
            Instruction::Or(a, b) => connect(selection, of(a), of(b), out, true),
            Instruction::IsNull(a) => {
                let (a, ColumnViewMut { there, data }) = (of(a), out.bools_mut());
                selection.each(|row| (there[row], data[row]) = (true, !a.there[row]));
            }
            Instruction::StartsWith(a, prefix) => {
                let prefix = constant_bytes(&self.program, prefix);
                let starts = |span| Some(bytes.of(span).starts_with(prefix));
                map(selection, of(a).spans(), out.bools_mut(), starts);
            }
            Instruction::Like(a, _) => {
                let Some(pattern) = &self.patterns[place] else { unreachable!("each has its pattern") };
                map(selection, of(a).spans(), out.bools_mut(), |span| Some(pattern.matches(bytes.of(span))));
            }
            Instruction::In { value, first, count } => {
                let list = &self.program.constants()[usize::from(first)..][..usize::from(count)];
                let (a, ColumnViewMut { there, data }) = (of(value), out.bools_mut());
                let is_timestamp = self.program.register_type(value) == Some(ScalarType::Timestamp);
                selection.each(|row| {
                    there[row] = a.there[row];
                    if there[row] {
                        data[row] = is_listed(a, row, is_timestamp, list, bytes);
                    }
                });
            }
            Instruction::Keep(a) => {
                let ColumnView { there, data } = of(a).bools();
                selection.retain(|row| there[row] && data[row]);
            }
        }
    }
}

fn patterns(program: &Program) -> Vec<Option<LikePattern>> {
    let pattern = |instruction: &Instruction| match *instruction {
        Instruction::Like(a, pattern) => {
            let is_text = program.register_type(a) == Some(ScalarType::Text);
            Some(LikePattern::new(constant_bytes(program, pattern), is_text))
        }
        _ => None,
    };
    program.instructions().iter().map(pattern).collect()
}

fn constant_bytes(program: &Program, number: u16) -> &[u8] {
    let value = program.constants()[usize::from(number)].value.as_ref();
    value.and_then(|value| value.as_scalar().bytes()).unwrap_or_default()
}

/// Whether a value that is not NULL is in an ascending list.
fn is_listed(column: &Column, row: usize, is_timestamp: bool, list: &[Constant], bytes: SpanBytes<'_>) -> bool {
    let found = |ordering: &dyn Fn(Scalar<'_>) -> Option<Ordering>| {
        let order = |constant: &Constant| {
            let value = constant.value.as_ref().map(OwnedScalar::as_scalar);
            value.and_then(ordering).unwrap_or(Ordering::Less)
        };
        list.binary_search_by(order).is_ok()
    };
    let scalar = match &column.data {
        ColumnData::Span(data) => {
            let wanted = bytes.of(data[row]);
            return found(&|listed| listed.bytes().map(|listed| listed.cmp(wanted)));
        }
        ColumnData::Bool(data) => Scalar::Bool(data[row]),
        ColumnData::Int(data) if is_timestamp => Scalar::Timestamp(data[row]),
        ColumnData::Int(data) => Scalar::Int(data[row]),
        ColumnData::Unsigned(data) => Scalar::Unsigned(data[row]),
        ColumnData::Float(data) => Scalar::Float(data[row]),
        ColumnData::Nothing => return false,
    };
    found(&|listed| listed.compare(scalar))
}

fn to_float(selection: &Selection, a: &Column, out: &mut Column) {
    match &a.data {
        ColumnData::Int(data) => map(selection, a.view(data), out.floats_mut(), |value| Some(value as f64)),
        ColumnData::Unsigned(data) => map(selection, a.view(data), out.floats_mut(), |value| Some(value as f64)),
        ColumnData::Float(data) => map(selection, a.view(data), out.floats_mut(), Some),
        _ => unreachable!("a checked program converts numbers"),
    }
}

fn negate(selection: &Selection, a: &Column, out: &mut Column) {
    match &a.data {
        ColumnData::Int(data) => map(selection, a.view(data), out.ints_mut(), i64::checked_neg),
        ColumnData::Unsigned(data) => {
            map(selection, a.view(data), out.ints_mut(), |value: u64| i64::try_from(-i128::from(value)).ok());
        }
        ColumnData::Float(data) => map(selection, a.view(data), out.floats_mut(), |value: f64| Some(-value)),
        _ => unreachable!("a checked program negates numbers"),
    }
}

/// Computes `and`, which a false decides, and `or`, which a true decides.
fn connect(selection: &Selection, a: &Column, b: &Column, out: &mut Column, decides: bool) {
    let (a, b) = (a.bools(), b.bools());
    let ColumnViewMut { there, data } = out.bools_mut();
    selection.each(|row| {
        let is_decided = a.there[row] && a.data[row] == decides || b.there[row] && b.data[row] == decides;
        there[row] = is_decided || a.there[row] && b.there[row];
        data[row] = is_decided == decides;
    });
}

fn compare(
    comparison: Comparison,
    selection: &Selection,
    a: &Column,
    b: &Column,
    out: &mut Column,
    bytes: SpanBytes<'_>,
) {
    let out = out.bools_mut();
    match (&a.data, &b.data) {
        (ColumnData::Int(a_data), ColumnData::Int(b_data)) => {
            compare_plain(comparison, selection, a.view(a_data), b.view(b_data), out);
        }
        (ColumnData::Unsigned(a_data), ColumnData::Unsigned(b_data)) => {
            compare_plain(comparison, selection, a.view(a_data), b.view(b_data), out);
        }
        (ColumnData::Bool(a_data), ColumnData::Bool(b_data)) => {
            compare_plain(comparison, selection, a.view(a_data), b.view(b_data), out);
        }
        (ColumnData::Float(a_data), ColumnData::Float(b_data)) => {
            let holds = |a: f64, b: f64| comparison.holds(compare_floats(a, b));
            map_two_total(selection, a.view(a_data), b.view(b_data), out, holds);
        }
        (ColumnData::Int(a_data), ColumnData::Unsigned(b_data)) => {
            let holds = |a: i64, b: u64| comparison.holds(i128::from(a).cmp(&i128::from(b)));
            map_two_total(selection, a.view(a_data), b.view(b_data), out, holds);
        }
        (ColumnData::Unsigned(a_data), ColumnData::Int(b_data)) => {
            let holds = |a: u64, b: i64| comparison.holds(i128::from(a).cmp(&i128::from(b)));
            map_two_total(selection, a.view(a_data), b.view(b_data), out, holds);
        }
        // Spans of NULLs point anywhere, so they are not read.
        (ColumnData::Span(a_data), ColumnData::Span(b_data)) if comparison == Comparison::Equal => {
            map_two(selection, a.view(a_data), b.view(b_data), out, |a, b| Some(bytes.of(a) == bytes.of(b)));
        }
        (ColumnData::Span(a_data), ColumnData::Span(b_data)) => {
            let holds = |a, b| Some(comparison.holds(bytes.of(a).cmp(bytes.of(b))));
            map_two(selection, a.view(a_data), b.view(b_data), out, holds);
        }
        _ => unreachable!("a checked program compares like with like"),
    }
}

/// Each comparison has a loop of its own.
fn compare_plain<T: Copy + Ord>(
    comparison: Comparison,
    selection: &Selection,
    a: ColumnView<'_, T>,
    b: ColumnView<'_, T>,
    out: ColumnViewMut<'_, bool>,
) {
    match comparison {
        Comparison::Equal => map_two_total(selection, a, b, out, |a, b| a == b),
        Comparison::NotEqual => map_two_total(selection, a, b, out, |a, b| a != b),
        Comparison::Less => map_two_total(selection, a, b, out, |a, b| a < b),
        Comparison::LessOrEqual => map_two_total(selection, a, b, out, |a, b| a <= b),
        Comparison::Greater => map_two_total(selection, a, b, out, |a, b| a > b),
        Comparison::GreaterOrEqual => map_two_total(selection, a, b, out, |a, b| a >= b),
    }
}

fn arithmetic(operation: Arithmetic, selection: &Selection, a: &Column, b: &Column, out: &mut Column) {
    let exact = |a: i128, b: i128| i64::try_from(exact_integer(operation, a, b)?).ok();
    match (&a.data, &b.data) {
        (ColumnData::Int(a_data), ColumnData::Int(b_data)) => {
            let compute = |a: i64, b: i64| match operation {
                Arithmetic::Add => a.checked_add(b),
                Arithmetic::Subtract => a.checked_sub(b),
                Arithmetic::Multiply => a.checked_mul(b),
                Arithmetic::Divide => a.checked_div(b),
                // The only remainder that overflows is 0.
                Arithmetic::Remainder if b == -1 => Some(0),
                Arithmetic::Remainder => a.checked_rem(b),
            };
            map_two(selection, a.view(a_data), b.view(b_data), out.ints_mut(), compute);
        }
        (ColumnData::Int(a_data), ColumnData::Unsigned(b_data)) => {
            map_two(selection, a.view(a_data), b.view(b_data), out.ints_mut(), |a, b| exact(a.into(), b.into()));
        }
        (ColumnData::Unsigned(a_data), ColumnData::Int(b_data)) => {
            map_two(selection, a.view(a_data), b.view(b_data), out.ints_mut(), |a, b| exact(a.into(), b.into()));
        }
        (ColumnData::Unsigned(a_data), ColumnData::Unsigned(b_data)) => {
            map_two(selection, a.view(a_data), b.view(b_data), out.ints_mut(), |a, b| exact(a.into(), b.into()));
        }
        (ColumnData::Float(a_data), ColumnData::Float(b_data)) => {
            let compute = |a: f64, b: f64| match operation {
                Arithmetic::Add => Some(a + b),
                Arithmetic::Subtract => Some(a - b),
                Arithmetic::Multiply => Some(a * b),
                Arithmetic::Divide => (b != 0.0).then_some(a / b),
                Arithmetic::Remainder => (b != 0.0).then_some(a % b),
            };
            map_two(selection, a.view(a_data), b.view(b_data), out.floats_mut(), compute);
        }
        _ => unreachable!("a checked program computes with numbers of one kind"),
    }
}

fn exact_integer(operation: Arithmetic, a: i128, b: i128) -> Option<i128> {
    match operation {
        Arithmetic::Add => a.checked_add(b),
        Arithmetic::Subtract => a.checked_sub(b),
        Arithmetic::Multiply => a.checked_mul(b),
        Arithmetic::Divide => a.checked_div(b),
        Arithmetic::Remainder => a.checked_rem(b),
    }
}
