//! Prepared statements. A handle is the statement itself, with the values of its parameters: the server keeps nothing, however many a client
//! prepares, and any server of the store answers it.
//!
//! Pure.

use arrow_array::cast::AsArray;
use arrow_array::types::{
    Date32Type, Float32Type, Float64Type, Int8Type, Int16Type, Int32Type, Int64Type, TimestampMicrosecondType,
    TimestampMillisecondType, TimestampNanosecondType, TimestampSecondType, UInt8Type, UInt16Type, UInt32Type,
    UInt64Type,
};
use arrow_array::{Array, ArrayRef, RecordBatch};
use arrow_schema::{DataType, TimeUnit};
use serde::{Deserialize, Serialize};
use tapetum::OwnedScalar;
use tapetum_service::failure::Failure;

const VERSION: u8 = 1;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Prepared {
    pub sql: String,
    values: Vec<Option<Value>>,
}

/// As [`OwnedScalar`], on its way through a handle.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
enum Value {
    Bool(bool),
    Int(i64),
    Unsigned(u64),
    Float(f64),
    Timestamp(i64),
    Text(String),
    Bytes(Vec<u8>),
}

impl Prepared {
    pub fn new(sql: String) -> Prepared {
        Prepared { sql, values: Vec::new() }
    }

    pub fn to_handle(&self) -> Vec<u8> {
        postcard::to_extend(self, vec![VERSION]).expect("plain data has a form as bytes")
    }

    /// # Errors
    /// If this is no handle.
    pub fn of_handle(handle: &[u8]) -> Result<Prepared, Failure> {
        let prepared = handle.strip_prefix(&[VERSION]).and_then(|handle| postcard::from_bytes(handle).ok());
        prepared.ok_or_else(|| Failure::bad("there is no such prepared statement: prepare it again"))
    }

    /// The values of the parameters.
    pub fn values(&self) -> Vec<Option<OwnedScalar>> {
        let scalar = |value: &Value| match value.clone() {
            Value::Bool(value) => OwnedScalar::Bool(value),
            Value::Int(value) => OwnedScalar::Int(value),
            Value::Unsigned(value) => OwnedScalar::Unsigned(value),
            Value::Float(value) => OwnedScalar::Float(value),
            Value::Timestamp(value) => OwnedScalar::Timestamp(value),
            Value::Text(value) => OwnedScalar::Text(value.into()),
            Value::Bytes(value) => OwnedScalar::Bytes(value.into()),
        };
        self.values.iter().map(|value| value.as_ref().map(scalar)).collect()
    }

    /// The same with the values of a row.
    ///
    /// # Errors
    /// If there is not one row, or a value has a type that no field has.
    pub fn bound(self, batches: &[RecordBatch]) -> Result<Prepared, Failure> {
        let rows: usize = batches.iter().map(RecordBatch::num_rows).sum();
        let Some(batch) = batches.iter().find(|batch| batch.num_rows() > 0) else {
            return Ok(Prepared { values: Vec::new(), ..self });
        };
        if rows > 1 {
            return Err(Failure::bad(format!(
                "{rows} rows of parameters were given: a statement takes one; ask once for each, or use in (…)"
            )));
        }
        let values = batch.columns().iter().map(value_of).collect::<Result<_, _>>()?;
        Ok(Prepared { values, ..self })
    }
}

fn value_of(column: &ArrayRef) -> Result<Option<Value>, Failure> {
    if column.is_null(0) || *column.data_type() == DataType::Null {
        return Ok(None);
    }
    let too_large = || Failure::bad("the time of a parameter is none that a field has: give whole microseconds");
    Ok(Some(match column.data_type() {
        DataType::Boolean => Value::Bool(column.as_boolean().value(0)),
        DataType::Int8 => Value::Int(column.as_primitive::<Int8Type>().value(0).into()),
        DataType::Int16 => Value::Int(column.as_primitive::<Int16Type>().value(0).into()),
        DataType::Int32 => Value::Int(column.as_primitive::<Int32Type>().value(0).into()),
        DataType::Int64 => Value::Int(column.as_primitive::<Int64Type>().value(0)),
        DataType::UInt8 => Value::Int(column.as_primitive::<UInt8Type>().value(0).into()),
        DataType::UInt16 => Value::Int(column.as_primitive::<UInt16Type>().value(0).into()),
        DataType::UInt32 => Value::Int(column.as_primitive::<UInt32Type>().value(0).into()),
        DataType::UInt64 => Value::Unsigned(column.as_primitive::<UInt64Type>().value(0)),
        DataType::Float32 => Value::Float(column.as_primitive::<Float32Type>().value(0).into()),
        DataType::Float64 => Value::Float(column.as_primitive::<Float64Type>().value(0)),
        DataType::Utf8 => Value::Text(column.as_string::<i32>().value(0).into()),
        DataType::LargeUtf8 => Value::Text(column.as_string::<i64>().value(0).into()),
        DataType::Utf8View => Value::Text(column.as_string_view().value(0).into()),
        DataType::Binary => Value::Bytes(column.as_binary::<i32>().value(0).into()),
        DataType::LargeBinary => Value::Bytes(column.as_binary::<i64>().value(0).into()),
        DataType::BinaryView => Value::Bytes(column.as_binary_view().value(0).into()),
        DataType::Date32 => {
            let days = i64::from(column.as_primitive::<Date32Type>().value(0));
            Value::Timestamp(days * 86_400_000_000)
        }
        DataType::Timestamp(unit, _) => {
            let micros = match unit {
                TimeUnit::Second => column.as_primitive::<TimestampSecondType>().value(0).checked_mul(1_000_000),
                TimeUnit::Millisecond => column.as_primitive::<TimestampMillisecondType>().value(0).checked_mul(1_000),
                TimeUnit::Microsecond => Some(column.as_primitive::<TimestampMicrosecondType>().value(0)),
                TimeUnit::Nanosecond => {
                    let nanos = column.as_primitive::<TimestampNanosecondType>().value(0);
                    // A time that no field has equals none, and cutting it would make it equal one.
                    (nanos % 1_000 == 0).then_some(nanos / 1_000)
                }
            };
            Value::Timestamp(micros.ok_or_else(too_large)?)
        }
        other => {
            return Err(Failure::bad(format!(
                "a parameter of the type {other} is compared with no field: give an integer, a float, a text, bytes, a bool or a time; \
                 exact amounts are kept as integers, such as cents"
            )));
        }
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use arrow_array::{Decimal128Array, Int32Array, StringArray};
    use std::sync::Arc;

    #[test]
    fn a_handle_is_the_statement_and_its_values() {
        let columns: Vec<(&str, ArrayRef)> = vec![
            ("1", Arc::new(Int32Array::from(vec![Some(-7)]))),
            ("2", Arc::new(StringArray::from(vec![Some("it's")]))),
            ("3", Arc::new(StringArray::from(vec![None::<&str>]))),
        ];
        let batch =
            RecordBatch::try_from_iter_with_nullable(columns.into_iter().map(|(name, array)| (name, array, true)));
        let prepared = Prepared::new("select 1".into()).bound(&[batch.unwrap()]).unwrap();
        let again = Prepared::of_handle(&prepared.to_handle()).unwrap();
        assert_eq!(again, prepared);
        assert_eq!(again.values(), [Some(OwnedScalar::Int(-7)), Some(OwnedScalar::Text("it's".into())), None]);
        assert!(Prepared::of_handle(b"\x02nonsense").is_err());
        assert!(Prepared::of_handle(b"").is_err());
    }

    #[test]
    fn decimals_and_several_rows_are_refused_in_words() {
        let batch = |array: ArrayRef| RecordBatch::try_from_iter([("1", array)]).unwrap();
        let decimal = batch(Arc::new(Decimal128Array::from(vec![1])));
        let failure = Prepared::new(String::new()).bound(&[decimal]).unwrap_err();
        assert!(failure.message.contains("cents"), "{failure}");
        let two = batch(Arc::new(Int32Array::from(vec![1, 2])));
        let failure = Prepared::new(String::new()).bound(&[two]).unwrap_err();
        assert!(failure.message.contains("2 rows"), "{failure}");
    }
}
