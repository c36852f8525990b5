//! The rows of a query as a stream of Arrow IPC: a schema, then batches of records.

use std::io::{self, Write};

use arrow_ipc::writer::StreamWriter;
use arrow_schema::ArrowError;
use tapetum::query::ResultColumn;
use tapetum_arrow::ArrowBatches;
use tapetum_kernels::scan::Scalar;

use super::query_rows::RowOut;

pub struct ArrowRows<W: Write> {
    writer: StreamWriter<W>,
    batches: ArrowBatches,
    failed: Option<io::Error>,
}

impl<W: Write> ArrowRows<W> {
    /// Writes the schema.
    ///
    /// # Errors
    /// Of `out`.
    pub fn new(columns: &[ResultColumn], out: W) -> io::Result<ArrowRows<W>> {
        let batches = ArrowBatches::new(columns);
        let writer = StreamWriter::try_new(out, batches.schema()).map_err(io_error)?;
        Ok(ArrowRows { writer, batches, failed: None })
    }
}

impl<W: Write> RowOut for ArrowRows<W> {
    fn row(&mut self, values: &[Option<Scalar<'_>>]) {
        if self.failed.is_some() {
            return;
        }
        let written = match self.batches.push(values) {
            Ok(Some(batch)) => self.writer.write(&batch),
            other => other.map(|_| ()),
        };
        self.failed = written.map_err(io_error).err();
    }

    fn has_failed(&self) -> bool {
        self.failed.is_some()
    }

    fn finish(mut self: Box<Self>) -> io::Result<()> {
        if let Some(failed) = self.failed {
            return Err(failed);
        }
        if let Some(batch) = self.batches.take().map_err(io_error)? {
            self.writer.write(&batch).map_err(io_error)?;
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
    use arrow_array::{Array, RecordBatch};
    use arrow_ipc::reader::StreamReader;
    use tapetum_kernels::scan::ScalarType;

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
