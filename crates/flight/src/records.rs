//! Rows of Arrow as items: keys and values as they are, or by a format.
//!
//! Pure.

use arrow_array::cast::AsArray;
use arrow_array::types::{TimestampMillisecondType, UInt32Type};
use arrow_array::{Array, ArrayRef, RecordBatch};
use arrow_cast::cast;
use arrow_schema::{DataType, TimeUnit};
use tapetum::Expiry;
use tapetum_kernels::scan::Format;
use tapetum_service::failure::Failure;
use tapetum_service::reply::ItemRow;

/// See the [module](self).
pub struct Records {
    key: ArrayRef,
    value: ArrayRef,
    flags: Option<ArrayRef>,
    expires: Option<ArrayRef>,
}

impl Records {
    /// # Errors
    /// If the columns are not those of items, nor of the format.
    pub fn of(batch: &RecordBatch, _format: Option<&Format>, keyspace: &str) -> Result<Records, Failure> {
        let column = |name: &str, of: DataType| -> Result<Option<ArrayRef>, Failure> {
            let Some(column) = batch.column_by_name(name) else { return Ok(None) };
            let cast = cast(column, &of);
            cast.map(Some).map_err(|error| Failure::bad(format!("the column {name:?} is no {of}: {error}")))
        };
        let (key, value) = (column("key", DataType::Binary)?, column("value", DataType::Binary)?);
        let (Some(key), Some(value)) = (key, value) else {
            let has: Vec<&str> = batch.schema_ref().fields().iter().map(|field| &field.name()[..]).collect();
            return Err(Failure::bad(format!(
                "items of {keyspace} have the columns key and value; these are {}",
                has.join(", ")
            )));
        };
        let expires = DataType::Timestamp(TimeUnit::Millisecond, Some("UTC".into()));
        Ok(Records { key, value, flags: column("flags", DataType::UInt32)?, expires: column("expires", expires)? })
    }

    /// The items; else the row that is wrong, and why.
    pub fn items(&self) -> Result<Vec<ItemRow>, (usize, String)> {
        let (keys, values) = (self.key.as_binary::<i32>(), self.value.as_binary::<i32>());
        let item = |row: usize| {
            if keys.is_null(row) || values.is_null(row) {
                return Err((row, "a key and a value are never NULL".into()));
            }
            let flags = self.flags.as_ref().filter(|flags| flags.is_valid(row));
            let expires = self.expires.as_ref().filter(|expires| expires.is_valid(row));
            let expiry = expires.map_or(Ok(Expiry::NONE), |expires| {
                let millis = expires.as_primitive::<TimestampMillisecondType>().value(row);
                let millis = u64::try_from(millis).map_err(|_| (row, "it expires before 1970".to_owned()))?;
                Ok(Expiry::from_millis(millis))
            })?;
            Ok(ItemRow {
                key: keys.value(row).to_vec(),
                value: values.value(row).to_vec(),
                flags: flags.map_or(0, |flags| flags.as_primitive::<UInt32Type>().value(row)),
                expiry,
            })
        };
        (0..keys.len()).map(item).collect()
    }
}
