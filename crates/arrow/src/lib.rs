//! The rows of a query as batches of Arrow: each column of the type that its values have, and every one may have NULLs.
//!
//! A timestamp is microseconds in UTC. Pure.
//!
//! It is a crate of its own, so that the store is built without Arrow, whose crates give `[u8]` more comparisons than one: what the compiler
//! finds out by itself in the store would be ambiguous there.

use arrow_array::builder::{
    ArrayBuilder, BinaryBuilder, BooleanBuilder, Float64Builder, Int64Builder, StringBuilder,
    TimestampMicrosecondBuilder, UInt64Builder,
};
use arrow_array::cast::AsArray;
use arrow_array::types::{Float64Type, Int64Type, TimestampMicrosecondType, UInt64Type};
use arrow_array::{Array, ArrayRef, BinaryArray, BooleanArray, Float64Array, Int64Array, RecordBatch, StringArray};
use arrow_array::{TimestampMicrosecondArray, UInt64Array};
use arrow_schema::{ArrowError, DataType, Field, Schema, TimeUnit};
use std::sync::Arc;
use tapetum::query::ResultColumn;
use tapetum_kernels::scan::{Scalar, ScalarType};

/// A batch has so many rows, or bytes of strings, but for the last.
const BATCH_ROWS: usize = 8192;
const BATCH_BYTES: usize = 4 << 20; // far from the 2 GiB that the offsets of a column reach

/// Rows that become batches.
pub struct ArrowBatches {
    schema: Arc<Schema>,
    columns: Vec<ArrowColumn>,
    rows: usize,
    bytes: usize,
    rows_max: usize,
    bytes_max: usize,
}

struct ArrowColumn {
    place: usize,
    values: ArrowValues,
}

enum ArrowValues {
    Bool(BooleanBuilder),
    Int(Int64Builder),
    Unsigned(UInt64Builder),
    Float(Float64Builder),
    Timestamp(TimestampMicrosecondBuilder),
    Text(StringBuilder),
    Bytes(BinaryBuilder),
}

fn utc() -> Arc<str> {
    "UTC".into()
}

/// The type of a column of such values.
pub fn data_type(of: ScalarType) -> DataType {
    match of {
        ScalarType::Bool => DataType::Boolean,
        ScalarType::Int => DataType::Int64,
        ScalarType::Unsigned => DataType::UInt64,
        ScalarType::Float => DataType::Float64,
        ScalarType::Timestamp => DataType::Timestamp(TimeUnit::Microsecond, Some(utc())),
        ScalarType::Text => DataType::Utf8,
        ScalarType::Bytes => DataType::Binary,
    }
}

impl ArrowValues {
    fn new(of: ScalarType) -> ArrowValues {
        match of {
            ScalarType::Bool => ArrowValues::Bool(BooleanBuilder::new()),
            ScalarType::Int => ArrowValues::Int(Int64Builder::new()),
            ScalarType::Unsigned => ArrowValues::Unsigned(UInt64Builder::new()),
            ScalarType::Float => ArrowValues::Float(Float64Builder::new()),
            ScalarType::Timestamp => ArrowValues::Timestamp(TimestampMicrosecondBuilder::new().with_timezone(utc())),
            ScalarType::Text => ArrowValues::Text(StringBuilder::new()),
            ScalarType::Bytes => ArrowValues::Bytes(BinaryBuilder::new()),
        }
    }

    /// A value of another type than the column's is a NULL: a result has none.
    fn push(&mut self, value: Option<Scalar<'_>>) {
        match (self, value) {
            (ArrowValues::Bool(values), Some(Scalar::Bool(value))) => values.append_value(value),
            (ArrowValues::Bool(values), _) => values.append_null(),
            (ArrowValues::Int(values), Some(Scalar::Int(value))) => values.append_value(value),
            (ArrowValues::Int(values), _) => values.append_null(),
            (ArrowValues::Unsigned(values), Some(Scalar::Unsigned(value))) => values.append_value(value),
            (ArrowValues::Unsigned(values), _) => values.append_null(),
            (ArrowValues::Float(values), Some(Scalar::Float(value))) => values.append_value(value),
            (ArrowValues::Float(values), _) => values.append_null(),
            (ArrowValues::Timestamp(values), Some(Scalar::Timestamp(value))) => values.append_value(value),
            (ArrowValues::Timestamp(values), _) => values.append_null(),
            (ArrowValues::Text(values), Some(Scalar::Text(value))) => values.append_value(value),
            (ArrowValues::Text(values), _) => values.append_null(),
            (ArrowValues::Bytes(values), Some(Scalar::Bytes(value))) => values.append_value(value),
            (ArrowValues::Bytes(values), _) => values.append_null(),
        }
    }

    fn finish(&mut self) -> ArrayRef {
        let builder: &mut dyn ArrayBuilder = match self {
            ArrowValues::Bool(values) => values,
            ArrowValues::Int(values) => values,
            ArrowValues::Unsigned(values) => values,
            ArrowValues::Float(values) => values,
            ArrowValues::Timestamp(values) => values,
            ArrowValues::Text(values) => values,
            ArrowValues::Bytes(values) => values,
        };
        builder.finish()
    }
}

impl ArrowBatches {
    pub fn new(columns: &[ResultColumn]) -> ArrowBatches {
        let fields = columns.iter().map(|column| Field::new(&column.name, data_type(column.scalar_type), true));
        let schema = Arc::new(Schema::new(fields.collect::<Vec<Field>>()));
        let column =
            |column: &ResultColumn| ArrowColumn { place: column.place, values: ArrowValues::new(column.scalar_type) };
        ArrowBatches {
            schema,
            columns: columns.iter().map(column).collect(),
            rows: 0,
            bytes: 0,
            rows_max: BATCH_ROWS,
            bytes_max: BATCH_BYTES,
        }
    }

    /// In batches of so many rows or bytes of strings.
    pub fn in_batches_of(self, rows_max: usize, bytes_max: usize) -> ArrowBatches {
        ArrowBatches { rows_max, bytes_max, ..self }
    }

    pub fn schema(&self) -> &Arc<Schema> {
        &self.schema
    }

    /// Takes a row of the query's result; a batch, when it is full.
    ///
    /// # Errors
    /// As Arrow says.
    pub fn push(&mut self, values: &[Option<Scalar<'_>>]) -> Result<Option<RecordBatch>, ArrowError> {
        for ArrowColumn { place, values: column } in &mut self.columns {
            let value = values[*place];
            self.bytes += value.and_then(Scalar::bytes).map_or(0, <[u8]>::len);
            column.push(value);
        }
        self.rows += 1;
        if self.rows >= self.rows_max || self.bytes >= self.bytes_max { self.take() } else { Ok(None) }
    }

    /// The rows that are left.
    ///
    /// # Errors
    /// As Arrow says.
    pub fn take(&mut self) -> Result<Option<RecordBatch>, ArrowError> {
        if self.rows == 0 {
            return Ok(None);
        }
        let arrays = self.columns.iter_mut().map(|column| column.values.finish()).collect();
        (self.rows, self.bytes) = (0, 0);
        RecordBatch::try_new(self.schema.clone(), arrays).map(Some)
    }
}

/// A column of a batch, by what its values are.
enum ColumnValues<'a> {
    Bool(&'a BooleanArray),
    Int(&'a Int64Array),
    Unsigned(&'a UInt64Array),
    Float(&'a Float64Array),
    Timestamp(&'a TimestampMicrosecondArray),
    Text(&'a StringArray),
    Bytes(&'a BinaryArray),
}

impl<'a> ColumnValues<'a> {
    fn of(array: &'a dyn Array) -> Result<ColumnValues<'a>, ArrowError> {
        Ok(match array.data_type() {
            DataType::Boolean => ColumnValues::Bool(array.as_boolean()),
            DataType::Int64 => ColumnValues::Int(array.as_primitive::<Int64Type>()),
            DataType::UInt64 => ColumnValues::Unsigned(array.as_primitive::<UInt64Type>()),
            DataType::Float64 => ColumnValues::Float(array.as_primitive::<Float64Type>()),
            DataType::Timestamp(TimeUnit::Microsecond, _) => {
                ColumnValues::Timestamp(array.as_primitive::<TimestampMicrosecondType>())
            }
            DataType::Utf8 => ColumnValues::Text(array.as_string()),
            DataType::Binary => ColumnValues::Bytes(array.as_binary()),
            other => return Err(ArrowError::NotYetImplemented(format!("a column of {other} in a query's rows"))),
        })
    }

    fn value(&self, row: usize) -> Option<Scalar<'a>> {
        match *self {
            ColumnValues::Bool(values) => values.is_valid(row).then(|| Scalar::Bool(values.value(row))),
            ColumnValues::Int(values) => values.is_valid(row).then(|| Scalar::Int(values.value(row))),
            ColumnValues::Unsigned(values) => values.is_valid(row).then(|| Scalar::Unsigned(values.value(row))),
            ColumnValues::Float(values) => values.is_valid(row).then(|| Scalar::Float(values.value(row))),
            ColumnValues::Timestamp(values) => values.is_valid(row).then(|| Scalar::Timestamp(values.value(row))),
            ColumnValues::Text(values) => values.is_valid(row).then(|| Scalar::Text(values.value(row))),
            ColumnValues::Bytes(values) => values.is_valid(row).then(|| Scalar::Bytes(values.value(row))),
        }
    }
}

/// Shows the rows of a batch that [`ArrowBatches`] made, its columns in their order.
///
/// # Errors
/// If a column is of another type than those.
pub fn each_row(batch: &RecordBatch, show: &mut dyn FnMut(&[Option<Scalar<'_>>])) -> Result<(), ArrowError> {
    let columns: Vec<ColumnValues<'_>> =
        batch.columns().iter().map(|array| ColumnValues::of(array)).collect::<Result<_, _>>()?;
    let mut values = Vec::with_capacity(columns.len());
    for row in 0..batch.num_rows() {
        values.clear();
        values.extend(columns.iter().map(|column| column.value(row)));
        show(&values);
    }
    Ok(())
}
