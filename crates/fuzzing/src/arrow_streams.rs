//! Streams of Arrow: whatever a result's rows are, a reader finds them again.

use arrow_array::cast::AsArray;
use arrow_array::types::{Float64Type, Int64Type, TimestampMicrosecondType, UInt64Type};
use arrow_array::{Array, RecordBatch};
use arrow_ipc::reader::StreamReader;
use tapetum::fuzzing::Input;
use tapetum::query::ResultColumn;
use tapetum_kernels::scan::{OwnedScalar, Scalar, ScalarType};
use tapetum_server::tools::arrow_rows::ArrowRows;
use tapetum_server::tools::query_rows::RowOut;

const COLUMNS_MAX: usize = 8;
const ROWS_MAX: usize = 64;

type Row = Vec<Option<OwnedScalar>>;

/// Rows of any values, written and read.
pub fn rows(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let count = 1 + input.below(COLUMNS_MAX);
    let types: Vec<ScalarType> = (0..count).map(|_| ScalarType::ALL[input.below(ScalarType::ALL.len())]).collect();
    let column = |(place, of): (usize, &ScalarType)| {
        let name = format!("{place} {}", of.name());
        ResultColumn { name, place, scalar_type: *of }
    };
    let columns: Vec<ResultColumn> = types.iter().enumerate().map(column).collect();
    let mut rows: Vec<Row> = Vec::new();
    while !input.is_empty() && rows.len() < ROWS_MAX {
        rows.push(types.iter().map(|of| value(*of, &mut input)).collect());
    }
    let mut out = Vec::new();
    let mut arrow = Box::new(ArrowRows::new(&columns, &mut out).expect("memory takes all"));
    for row in &rows {
        let values: Vec<Option<Scalar<'_>>> =
            row.iter().map(|value| value.as_ref().map(OwnedScalar::as_scalar)).collect();
        arrow.row(&values);
    }
    arrow.finish().expect("memory takes all");
    let reader = StreamReader::try_new(&out[..], None).expect("a stream");
    let batches: Vec<RecordBatch> = reader.collect::<Result<_, _>>().expect("batches");
    let read =
        |batch: &RecordBatch| (0..batch.num_rows()).map(|row| read_row(&types, batch, row)).collect::<Vec<Row>>();
    let read: Vec<Row> = batches.iter().flat_map(read).collect();
    // NaN is not equal to itself, and is written as it is read.
    assert_eq!(format!("{read:?}"), format!("{rows:?}"));
}

fn value(of: ScalarType, input: &mut Input<'_>) -> Option<OwnedScalar> {
    let length = match input.u8() {
        0 => return None,
        length => usize::from(length % 9),
    };
    let number = |input: &mut Input<'_>| u64::from_le_bytes(input.array());
    Some(match of {
        ScalarType::Bool => OwnedScalar::Bool(length % 2 == 1),
        ScalarType::Int => OwnedScalar::Int(number(input) as i64),
        ScalarType::Unsigned => OwnedScalar::Unsigned(number(input)),
        ScalarType::Float => OwnedScalar::Float(f64::from_bits(number(input))),
        ScalarType::Timestamp => OwnedScalar::Timestamp(number(input) as i64),
        ScalarType::Text => OwnedScalar::Text(String::from_utf8_lossy(input.bytes(length)).into()),
        ScalarType::Bytes => OwnedScalar::Bytes(input.bytes(length).into()),
    })
}

fn read_row(types: &[ScalarType], batch: &RecordBatch, row: usize) -> Row {
    let read = |(of, column): (&ScalarType, &dyn Array)| {
        if column.is_null(row) {
            return None;
        }
        Some(match of {
            ScalarType::Bool => OwnedScalar::Bool(column.as_boolean().value(row)),
            ScalarType::Int => OwnedScalar::Int(column.as_primitive::<Int64Type>().value(row)),
            ScalarType::Unsigned => OwnedScalar::Unsigned(column.as_primitive::<UInt64Type>().value(row)),
            ScalarType::Float => OwnedScalar::Float(column.as_primitive::<Float64Type>().value(row)),
            ScalarType::Timestamp => {
                OwnedScalar::Timestamp(column.as_primitive::<TimestampMicrosecondType>().value(row))
            }
            ScalarType::Text => OwnedScalar::Text(column.as_string::<i32>().value(row).into()),
            ScalarType::Bytes => OwnedScalar::Bytes(column.as_binary::<i32>().value(row).into()),
        })
    };
    types.iter().zip(batch.columns()).map(|(of, column)| read((of, column.as_ref()))).collect()
}
