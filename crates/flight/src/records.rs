//! Rows of Arrow as items: keys and values as they are, or by the format of their keyspace.
//!
//! A column becomes a field's type only where nothing is lost by it. Pure.

use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::{TimestampMillisecondType, TimestampNanosecondType, UInt32Type};
use arrow_array::{Array, ArrayRef, RecordBatch, new_null_array};
use arrow_cast::{CastOptions, cast_with_options};
use arrow_schema::{DataType, Field, Schema, TimeUnit};
use tapetum::Expiry;
use tapetum_arrow::{data_type, each_row};
use tapetum_kernels::scan::Format;
use tapetum_kernels::scan::record_writer::RecordWriter;
use tapetum_service::failure::Failure;
use tapetum_service::reply::ItemRow;

const KEY: &str = "key";
const VALUE: &str = "value";
const FLAGS: &str = "flags";
const EXPIRES: &str = "expires";

/// The rows of a dictionary have so many bytes at most, as a batch.
const EXPANDED_BYTES_MAX: u64 = 64 << 20;

/// A row that is no item, and why.
pub type BadRow = (usize, String);

/// The items of a batch.
///
/// # Errors
/// If the columns are neither those of items nor of the format: without a row. Else names the first row that is wrong.
pub fn items(
    batch: &RecordBatch,
    format: Option<&Format>,
    keyspace: &str,
) -> Result<Result<Vec<ItemRow>, BadRow>, Failure> {
    let is_plain = |name: &str| [KEY, VALUE, FLAGS, EXPIRES].contains(&name);
    let names: Vec<&str> = batch.schema_ref().fields().iter().map(|field| &field.name()[..]).collect();
    let has_items = names.contains(&KEY) && names.contains(&VALUE) && names.iter().all(|name| is_plain(name));
    match format.filter(|format| !has_items || format.find(KEY).is_some() || format.find(VALUE).is_some()) {
        Some(format) => records(batch, format, keyspace),
        None if has_items => Ok(plain_items(batch)?),
        None => Err(Failure::bad(format!(
            "{keyspace} has no format, so its rows have the columns key and value, and perhaps flags and expires; these are {}",
            names.join(", ")
        ))),
    }
}

/// Items as they are.
fn plain_items(batch: &RecordBatch) -> Result<Result<Vec<ItemRow>, BadRow>, Failure> {
    let column =
        |name: &str, of: DataType| batch.column_by_name(name).map(|column| converted(name, column, &of)).transpose();
    let (Some(keys), Some(values)) = (column(KEY, DataType::Binary)?, column(VALUE, DataType::Binary)?) else {
        return Err(Failure::bad("items have the columns key and value"));
    };
    let (keys, values) = (keys.as_binary::<i32>(), values.as_binary::<i32>());
    let flags = column(FLAGS, DataType::UInt32)?;
    let expires = column(EXPIRES, DataType::Timestamp(TimeUnit::Millisecond, Some("UTC".into())))?;
    let item = |row: usize| {
        if keys.is_null(row) || values.is_null(row) {
            return Err((row, "a key and a value are never NULL".to_owned()));
        }
        let flags = flags.as_ref().filter(|flags| flags.is_valid(row));
        let expires = expires.as_ref().filter(|expires| expires.is_valid(row));
        let millis = expires.map_or(0, |expires| expires.as_primitive::<TimestampMillisecondType>().value(row));
        let millis = u64::try_from(millis).map_err(|_| (row, "it expires before 1970".to_owned()))?;
        Ok(ItemRow {
            key: keys.value(row).to_vec(),
            value: values.value(row).to_vec(),
            flags: flags.map_or(0, |flags| flags.as_primitive::<UInt32Type>().value(row)),
            expiry: Expiry::from_millis(millis),
        })
    };
    Ok((0..batch.num_rows()).map(item).collect())
}

/// Items made of the fields of a format.
fn records(batch: &RecordBatch, format: &Format, keyspace: &str) -> Result<Result<Vec<ItemRow>, BadRow>, Failure> {
    let names: Vec<&str> = format.fields().iter().map(|field| &*field.name).collect();
    for field in batch.schema_ref().fields() {
        if !names.contains(&&field.name()[..]) {
            return Err(Failure::bad(format!(
                "{keyspace} has no field {:?}: its rows have the columns {}, or key and value",
                field.name(),
                names.join(", ")
            )));
        }
    }
    let (mut columns, mut fields) = (Vec::new(), Vec::new());
    for field in format.fields() {
        let of = data_type(field.kind.scalar_type());
        columns.push(match batch.column_by_name(&field.name) {
            Some(column) => converted(&field.name, column, &of)?,
            // If the field must be there, the first row is refused.
            None => new_null_array(&of, batch.num_rows()),
        });
        fields.push(Field::new(&*field.name, of, true));
    }
    let broken = |error: arrow_schema::ArrowError| Failure::bad(error.to_string());
    let batch = RecordBatch::try_new(Arc::new(Schema::new(fields)), columns).map_err(broken)?;
    let (writer, mut items, mut bad) = (RecordWriter::new(format), Vec::with_capacity(batch.num_rows()), None);
    each_row(&batch, &mut |values| {
        if bad.is_some() {
            return;
        }
        let mut item = ItemRow::default();
        match writer.write(values, &mut item.key, &mut item.value) {
            Ok(()) => items.push(item),
            Err((field, why)) => bad = Some((items.len(), format!("{} {}", names[field], why.explain()))),
        }
    })
    .map_err(broken)?;
    Ok(bad.map_or(Ok(items), Err))
}

/// A column as another type.
///
/// # Errors
/// If a value would become another one.
fn converted(name: &str, column: &ArrayRef, to: &DataType) -> Result<ArrayRef, Failure> {
    let from = column.data_type();
    let refused = |why: &str| Failure::bad(format!("the column {name:?} is {from}, and the field {to}{why}"));
    if !keeps(from, to) {
        return Err(refused(": give it that type; exact amounts are kept as integers, such as cents"));
    }
    if let Some(bytes) = expanded_bytes(column).filter(|bytes| *bytes > EXPANDED_BYTES_MAX) {
        return Err(refused(&format!(", and its rows would have {bytes} bytes: put fewer at once, or no dictionary")));
    }
    if has_fraction(column, to) {
        return Err(refused(": there are parts of a microsecond, which the field does not hold; round them first"));
    }
    let options = CastOptions { safe: false, ..CastOptions::default() };
    cast_with_options(column, to, &options).map_err(|error| refused(&format!(": {error}")))
}

/// The bytes that the rows of a dictionary have at most, each with a value of its own.
fn expanded_bytes(column: &ArrayRef) -> Option<u64> {
    let dictionary = column.as_any_dictionary_opt()?;
    let values = dictionary.values();
    let longest = match values.data_type() {
        DataType::Utf8 => values.as_string::<i32>().iter().flatten().map(str::len).max(),
        DataType::LargeUtf8 => values.as_string::<i64>().iter().flatten().map(str::len).max(),
        DataType::Binary => values.as_binary::<i32>().iter().flatten().map(<[u8]>::len).max(),
        DataType::LargeBinary => values.as_binary::<i64>().iter().flatten().map(<[u8]>::len).max(),
        DataType::FixedSizeBinary(width) => usize::try_from(*width).ok(),
        _ => Some(size_of::<i64>()),
    };
    Some(longest.unwrap_or(0) as u64 * column.len() as u64)
}

/// Whether a time is between two that the field holds.
fn has_fraction(column: &ArrayRef, to: &DataType) -> bool {
    match (column.data_type(), to) {
        (DataType::Timestamp(TimeUnit::Nanosecond, _), DataType::Timestamp(TimeUnit::Microsecond, _)) => {
            column.as_primitive::<TimestampNanosecondType>().iter().flatten().any(|time| time % 1000 != 0)
        }
        _ => false,
    }
}

/// Whether values of one type become another one's as what they are, or not at all.
fn keeps(from: &DataType, to: &DataType) -> bool {
    let is_text = |of: &DataType| matches!(of, DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View);
    let is_bytes = |of: &DataType| {
        matches!(of, DataType::Binary | DataType::LargeBinary | DataType::BinaryView | DataType::FixedSizeBinary(_))
    };
    let is_small = |of: &DataType| of.is_integer() && !matches!(of, DataType::Int64 | DataType::UInt64);
    match (from, to) {
        (from, to) if from == to => true,
        (DataType::Null, _) => true,
        (DataType::Dictionary(_, from), to) => keeps(from, to),
        (from, to) if from.is_integer() && to.is_integer() => true,
        (from, DataType::Float64) => is_small(from) || from.is_floating(),
        (from, DataType::Utf8) => is_text(from),
        (from, DataType::Binary) => is_bytes(from) || is_text(from),
        (DataType::Timestamp(unit, _), DataType::Timestamp(to, _)) => {
            let finest = |unit: &TimeUnit| match unit {
                TimeUnit::Second => 0,
                TimeUnit::Millisecond => 1,
                TimeUnit::Microsecond => 2,
                TimeUnit::Nanosecond => 3,
            };
            // pandas has nanoseconds by habit: most are whole microseconds.
            finest(unit) <= finest(to) || *unit == TimeUnit::Nanosecond && *to == TimeUnit::Microsecond
        }
        (DataType::Date32 | DataType::Date64, DataType::Timestamp(..)) => true,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use arrow_array::{BinaryArray, Decimal128Array, Float64Array, Int64Array, StringArray, UInt32Array};

    fn batch(columns: Vec<(&str, ArrayRef)>) -> RecordBatch {
        RecordBatch::try_from_iter_with_nullable(columns.into_iter().map(|(name, column)| (name, column, true)))
            .unwrap()
    }

    #[test]
    fn rows_become_records_and_the_first_wrong_one_is_named() {
        let format = Format::parse("key: id u32be; value: total f64le, city string8").unwrap();
        let rows = |ids: Vec<i64>| {
            batch(vec![
                ("city", Arc::new(StringArray::from(vec!["Lyon"; ids.len()])) as ArrayRef),
                ("total", Arc::new(UInt32Array::from(vec![3; ids.len()]))),
                ("id", Arc::new(Int64Array::from(ids))),
            ])
        };
        let made = items(&rows(vec![1, 2]), Some(&format), "orders").unwrap().unwrap();
        assert_eq!(made[1].key, [0, 0, 0, 2]);
        assert_eq!(made[1].value, [&3f64.to_le_bytes()[..], b"\x04Lyon"].concat());
        let bad = items(&rows(vec![1, -2, -3]), Some(&format), "orders").unwrap().unwrap_err();
        assert_eq!(bad, (1, "id is not from 0 to 4294967295".to_owned()));
    }

    #[test]
    fn items_are_stored_as_they_are() {
        let rows = batch(vec![
            ("key", Arc::new(StringArray::from(vec!["a"])) as ArrayRef),
            ("value", Arc::new(BinaryArray::from(vec![&b"\xff"[..]]))),
            ("flags", Arc::new(Int64Array::from(vec![7]))),
        ]);
        let made = items(&rows, None, "k").unwrap().unwrap();
        assert_eq!((&made[0].key[..], &made[0].value[..], made[0].flags), (&b"a"[..], &b"\xff"[..], 7));
        assert!(made[0].expiry.is_none());
    }

    #[test]
    fn what_would_change_a_value_is_refused() {
        let format = Format::parse("key: id u32be; value: n i64le").unwrap();
        for (column, told) in [
            (Arc::new(Decimal128Array::from(vec![1])) as ArrayRef, "cents"),
            (Arc::new(Float64Array::from(vec![1.5])), "give it that type"),
            (Arc::new(StringArray::from(vec!["1"])), "give it that type"),
        ] {
            let rows = batch(vec![("id", Arc::new(Int64Array::from(vec![1]))), ("n", column)]);
            let failure = items(&rows, Some(&format), "k").unwrap_err();
            assert!(failure.message.contains(told), "{failure}");
        }
        let unknown = batch(vec![("idd", Arc::new(Int64Array::from(vec![1])) as ArrayRef)]);
        let failure = items(&unknown, Some(&format), "k").unwrap_err();
        assert!(failure.message.contains("no field \"idd\""), "{failure}");
        let missing = batch(vec![("id", Arc::new(Int64Array::from(vec![1])) as ArrayRef)]);
        let (row, why) = items(&missing, Some(&format), "k").unwrap().unwrap_err();
        assert!(row == 0 && why.starts_with("n is NULL"), "{why}");
    }
}
