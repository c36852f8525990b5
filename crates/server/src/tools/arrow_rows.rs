//! The rows of a query as a stream of Arrow IPC: a schema, then batches of records, each column of the type that its values have.
//!
//! A timestamp is microseconds in UTC. Every column may have NULLs.

use std::io::{self, Write};
use std::sync::Arc;

use arrow_array::builder::{
    ArrayBuilder, BinaryBuilder, BooleanBuilder, Float64Builder, Int64Builder, StringBuilder,
    TimestampMicrosecondBuilder, UInt64Builder,
};
use arrow_array::{ArrayRef, RecordBatch};
use arrow_ipc::writer::StreamWriter;
use arrow_schema::{ArrowError, DataType, Field, Schema, TimeUnit};
use tapetum::query::ResultColumn;
use tapetum_kernels::scan::{Scalar, ScalarType};

use super::query_rows::RowOut;

/// A batch is written when it has so many rows, or bytes of strings.
const BATCH_ROWS: usize = 8192;
const BATCH_BYTES: usize = 4 << 20; // far from the 2 GiB that the offsets of a column reach

pub struct ArrowRows<W: Write> {
    writer: StreamWriter<W>,
    schema: Arc<Schema>,
    columns: Vec<ArrowColumn>,
    rows: usize,
    bytes: usize,
    failed: Option<io::Error>,
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

fn data_type(of: ScalarType) -> DataType {
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

impl<W: Write> ArrowRows<W> {
    /// Writes the schema.
    ///
    /// # Errors
    /// Of `out`.
    pub fn new(columns: &[ResultColumn], out: W) -> io::Result<ArrowRows<W>> {
        let fields = columns.iter().map(|column| Field::new(&column.name, data_type(column.scalar_type), true));
        let schema = Arc::new(Schema::new(fields.collect::<Vec<Field>>()));
        let writer = StreamWriter::try_new(out, &schema).map_err(io_error)?;
        let column =
            |column: &ResultColumn| ArrowColumn { place: column.place, values: ArrowValues::new(column.scalar_type) };
        let columns = columns.iter().map(column).collect();
        Ok(ArrowRows { writer, schema, columns, rows: 0, bytes: 0, failed: None })
    }

    fn write_batch(&mut self) -> io::Result<()> {
        let arrays = self.columns.iter_mut().map(|column| column.values.finish()).collect();
        (self.rows, self.bytes) = (0, 0);
        let batch = RecordBatch::try_new(self.schema.clone(), arrays).map_err(io_error)?;
        self.writer.write(&batch).map_err(io_error)
    }
}

impl<W: Write> RowOut for ArrowRows<W> {
    fn row(&mut self, values: &[Option<Scalar<'_>>]) {
        if self.failed.is_some() {
            return;
        }
        for ArrowColumn { place, values: column } in &mut self.columns {
            let value = values[*place];
            self.bytes += value.and_then(Scalar::bytes).map_or(0, <[u8]>::len);
            column.push(value);
        }
        self.rows += 1;
        if self.rows >= BATCH_ROWS || self.bytes >= BATCH_BYTES {
            self.failed = self.write_batch().err();
        }
    }

    fn finish(mut self: Box<Self>) -> io::Result<()> {
        if let Some(failed) = self.failed {
            return Err(failed);
        }
        if self.rows > 0 {
            self.write_batch()?;
        }
        self.writer.finish().map_err(io_error)?;
        self.writer.get_mut().flush()
    }
}

fn io_error(error: ArrowError) -> io::Error {
    match error {
        ArrowError::IoError(_, error) => error,
        error => io::Error::other(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use arrow_array::cast::AsArray;
    use arrow_array::types::{Float64Type, Int64Type, TimestampMicrosecondType, UInt64Type};
    use arrow_ipc::reader::StreamReader;

    fn column(name: &str, place: usize, scalar_type: ScalarType) -> ResultColumn {
        ResultColumn { name: name.into(), place, scalar_type }
    }

    fn batches(columns: &[ResultColumn], rows: &[Vec<Option<Scalar<'_>>>]) -> Vec<RecordBatch> {
        let mut out = Vec::new();
        let mut arrow = Box::new(ArrowRows::new(columns, &mut out).unwrap());
        rows.iter().for_each(|row| arrow.row(row));
        arrow.finish().unwrap();
        StreamReader::try_new(&out[..], None).unwrap().collect::<Result<_, _>>().unwrap()
    }

    #[test]
    fn a_reader_finds_every_value_in_its_column() {
        // Columns may stand in another order than in the result.
        let types = ScalarType::ALL;
        let columns: Vec<ResultColumn> =
            types.iter().enumerate().rev().map(|(place, of)| column(of.name(), place, *of)).collect();
        let row = vec![
            Some(Scalar::Bool(true)),
            Some(Scalar::Int(-7)),
            Some(Scalar::Unsigned(u64::MAX)),
            Some(Scalar::Float(1.5)),
            Some(Scalar::Timestamp(-3)),
            Some(Scalar::Text("text")),
            Some(Scalar::Bytes(&[0xff, 0])),
        ];
        let batches = batches(&columns, &[row, vec![None; 7]]);
        let [batch] = &batches[..] else { panic!("{} batches", batches.len()) };
        let names: Vec<&str> = batch.schema_ref().fields().iter().map(|field| &field.name()[..]).collect();
        assert_eq!(names, ["bytes", "string", "timestamp", "float", "unsigned integer", "integer", "bool"]);
        assert_eq!(batch.column(0).as_binary::<i32>().value(0), [0xff, 0]);
        assert_eq!(batch.column(1).as_string::<i32>().value(0), "text");
        let time = batch.column(2).as_primitive::<TimestampMicrosecondType>();
        assert_eq!((time.value(0), time.timezone()), (-3, Some("UTC")));
        assert_eq!(batch.column(3).as_primitive::<Float64Type>().value(0), 1.5);
        assert_eq!(batch.column(4).as_primitive::<UInt64Type>().value(0), u64::MAX);
        assert_eq!(batch.column(5).as_primitive::<Int64Type>().value(0), -7);
        assert!(batch.column(6).as_boolean().value(0));
        assert!((0..7).all(|place| batch.column(place).is_null(1) && !batch.column(place).is_null(0)));
    }

    #[test]
    fn many_rows_come_in_batches_and_none_are_a_stream_too() {
        let columns = [column("n", 0, ScalarType::Int), column("s", 1, ScalarType::Text)];
        assert!(batches(&columns, &[]).is_empty());
        let long = "x".repeat(100 << 10);
        let rows: Vec<_> = (0..10_000)
            .map(|number| vec![Some(Scalar::Int(number)), (number < 100).then_some(Scalar::Text(&long))])
            .collect();
        let batches = batches(&columns, &rows);
        assert!(batches.len() >= 4, "{} batches", batches.len());
        let read = batches.iter().flat_map(|batch| batch.column(0).as_primitive::<Int64Type>().values().to_vec());
        assert!(read.eq(0..10_000));
    }

    #[test]
    fn a_reader_that_goes_away_is_told_as_what_it_is() {
        struct Gone(usize);
        impl Write for Gone {
            fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
                self.0 = self.0.checked_sub(1).ok_or(io::ErrorKind::BrokenPipe)?;
                Ok(bytes.len())
            }
            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        let columns = [column("n", 0, ScalarType::Int)];
        let mut arrow = Box::new(ArrowRows::new(&columns, Gone(20)).unwrap());
        (0..100_000).for_each(|number| arrow.row(&[Some(Scalar::Int(number))]));
        assert_eq!(arrow.finish().unwrap_err().kind(), io::ErrorKind::BrokenPipe);
    }
}
