//! Rows of a query on their way through the socket: a stream of Arrow IPC in parts, each a batch or the schema.

use arrow_buffer::Buffer;
use arrow_ipc::reader::StreamDecoder;
use arrow_ipc::writer::StreamWriter;
use arrow_schema::ArrowError;
use tapetum::query::ResultColumn;
use tapetum_arrow::{ArrowBatches, each_row};
use tapetum_kernels::scan::Scalar;

use super::frame;
use crate::reply::Column;

/// Rows and bytes of strings of a part: it fits a cache and the socket's buffer, so that both sides work at the same time.
const PART_ROWS: usize = 1024;
const PART_BYTES: usize = 128 << 10;

/// Makes parts of rows.
pub struct RowWriter {
    writer: StreamWriter<Vec<u8>>,
    batches: ArrowBatches,
}

impl RowWriter {
    pub fn new(columns: &[Column]) -> Result<RowWriter, ArrowError> {
        let columns: Vec<ResultColumn> = columns.iter().map(ResultColumn::from).collect();
        let batches = ArrowBatches::new(&columns).in_batches_of(PART_ROWS, PART_BYTES);
        Ok(RowWriter { writer: StreamWriter::try_new(frame::begun(Vec::new()), batches.schema())?, batches })
    }

    /// Takes a row; a part, when one is full: the frame that [`frame::finish`] ends.
    pub fn push(&mut self, values: &[Option<Scalar<'_>>]) -> Result<Option<Vec<u8>>, ArrowError> {
        match self.batches.push(values)? {
            Some(batch) => {
                self.writer.write(&batch)?;
                Ok(Some(std::mem::replace(self.writer.get_mut(), frame::begun(Vec::new()))))
            }
            None => Ok(None),
        }
    }

    /// The last part.
    pub fn finish(mut self) -> Result<Vec<u8>, ArrowError> {
        if let Some(batch) = self.batches.take()? {
            self.writer.write(&batch)?;
        }
        self.writer.into_inner()
    }
}

/// Reads parts of rows.
#[derive(Default)]
pub struct RowReader {
    decoder: StreamDecoder,
}

impl RowReader {
    /// Shows the rows of a part, the columns in their order.
    pub fn read(&mut self, part: Vec<u8>, show: &mut dyn FnMut(&[Option<Scalar<'_>>])) -> Result<(), ArrowError> {
        let mut rest = Buffer::from_vec(part);
        while let Some(batch) = self.decoder.decode(&mut rest)? {
            each_row(&batch, show)?;
        }
        Ok(())
    }
}

impl From<&Column> for ResultColumn {
    fn from(column: &Column) -> ResultColumn {
        ResultColumn { name: column.name.clone(), place: column.place, scalar_type: column.scalar_type }
    }
}
