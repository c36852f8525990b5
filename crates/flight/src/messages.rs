//! Messages of rows that strangers send, before the library takes them apart: it trusts the places of buffers, and the numbers of rows.
//!
//! 1. Each buffer of a batch lies within the body of its message.
//! 2. A batch has [`ROWS_MAX`] rows at most, also of columns that carry no bytes.
//! 3. Columns are flat. Texts and bytes lie one behind the other: those that refer to others would become many times as long as the message.
//!
//! Pure.

use arrow_flight::FlightData;
use arrow_ipc::{Field, MessageHeader, RecordBatch, Schema, Type, root_as_message};

/// The most rows of a batch.
pub const ROWS_MAX: i64 = 1 << 20;
/// The most columns.
const COLUMNS_MAX: usize = 1024;
/// The most bytes of a value of a column of one width.
const WIDTH_MAX: i32 = 64 << 10;

/// An error if the library could not read a message, or a batch is larger than it looks.
pub fn check(message: &FlightData) -> Result<(), String> {
    if message.data_header.is_empty() {
        return Ok(());
    }
    let broken = || "what was put is no stream of Arrow".to_owned();
    let head = root_as_message(&message.data_header).map_err(|error| format!("{}: {error}", broken()))?;
    match head.header_type() {
        MessageHeader::NONE => Ok(()),
        MessageHeader::Schema => check_schema(head.header_as_schema().ok_or_else(broken)?),
        MessageHeader::RecordBatch => {
            check_batch(head.header_as_record_batch().ok_or_else(broken)?, message.data_body.len())
        }
        MessageHeader::DictionaryBatch => {
            let batch = head.header_as_dictionary_batch().and_then(|dictionary| dictionary.data());
            check_batch(batch.ok_or_else(broken)?, message.data_body.len())
        }
        _ => Err(broken()),
    }
}

fn check_schema(schema: Schema<'_>) -> Result<(), String> {
    if schema.fields().is_some_and(|fields| fields.len() > COLUMNS_MAX) {
        return Err(format!("rows have at most {COLUMNS_MAX} columns"));
    }
    schema.fields().into_iter().flatten().try_for_each(check_field)
}

fn check_field(field: Field<'_>) -> Result<(), String> {
    let name = field.name().unwrap_or_default();
    let is_flat = field.children().is_none_or(|children| children.is_empty());
    let has_right_width = match field.type_type() {
        Type::Null | Type::Bool | Type::Int | Type::FloatingPoint | Type::Decimal | Type::Date | Type::Timestamp => {
            true
        }
        Type::Binary | Type::LargeBinary | Type::Utf8 | Type::LargeUtf8 => true,
        Type::FixedSizeBinary => {
            field.type_as_fixed_size_binary().is_some_and(|of| (1..=WIDTH_MAX).contains(&of.byteWidth()))
        }
        _ => false,
    };
    match is_flat && has_right_width {
        true => Ok(()),
        false => Err(format!(
            "the column {name:?} is of a type that no field has: give it an integer, a float, a text, bytes, a bool or a time (a view of \
             texts is cast to texts)"
        )),
    }
}

fn check_batch(batch: RecordBatch<'_>, body_bytes: usize) -> Result<(), String> {
    let broken = || "a batch that was put says of itself what is not so".to_owned();
    if batch.compression().is_some() {
        return Err("batches are not compressed here: put them as they are".into());
    }
    if batch.length() > ROWS_MAX {
        return Err(format!("a batch has at most {ROWS_MAX} rows, and this one {}: put smaller ones", batch.length()));
    }
    let is_count = |count: i64| (0..=ROWS_MAX).contains(&count);
    let nodes_are_right =
        batch.nodes().into_iter().flatten().all(|node| is_count(node.length()) && is_count(node.null_count()));
    let lies_within = |offset: i64, length: i64| {
        let end =
            u64::try_from(offset).ok().zip(u64::try_from(length).ok()).and_then(|(at, bytes)| at.checked_add(bytes));
        end.is_some_and(|end| end <= body_bytes as u64)
    };
    let buffers_are_right =
        batch.buffers().into_iter().flatten().all(|buffer| lies_within(buffer.offset(), buffer.length()));
    if is_count(batch.length()) && nodes_are_right && buffers_are_right { Ok(()) } else { Err(broken()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    use arrow_array::{ArrayRef, Int64Array, NullArray, StringArray, StringViewArray};
    use arrow_flight::utils::batches_to_flight_data;

    fn messages(column: ArrayRef) -> Vec<FlightData> {
        let batch = arrow_array::RecordBatch::try_from_iter_with_nullable([("a", column, true)]).unwrap();
        batches_to_flight_data(&batch.schema(), std::slice::from_ref(&batch)).unwrap()
    }

    #[test]
    fn a_batch_whose_bytes_are_cut_is_refused() {
        let [schema, batch] = &messages(Arc::new(StringArray::from(vec!["some", "texts"])))[..] else {
            panic!("a schema and a batch")
        };
        assert_eq!((check(schema), check(batch)), (Ok(()), Ok(())));
        for bytes in 0..batch.data_body.len() {
            let cut = FlightData { data_body: batch.data_body.slice(..bytes), ..batch.clone() };
            // The last bytes may fill up a line.
            assert!(check(&cut).is_err() || bytes + 64 > batch.data_body.len(), "{bytes}");
        }
        let nonsense = FlightData { data_header: vec![7; 40].into(), ..batch.clone() };
        assert!(check(&nonsense).is_err());
    }

    #[test]
    fn rows_that_carry_nothing_are_counted_and_types_of_no_field_are_refused() {
        let many = messages(Arc::new(NullArray::new(ROWS_MAX as usize + 1)));
        assert!(check(&many[1]).unwrap_err().contains("put smaller ones"));
        let views = messages(Arc::new(StringViewArray::from(vec!["a"])));
        assert!(check(&views[0]).unwrap_err().contains("a view of texts"));
        assert_eq!(check(&messages(Arc::new(Int64Array::from(vec![1])))[0]), Ok(()));
    }
}
