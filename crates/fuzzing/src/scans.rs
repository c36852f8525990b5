//! Scans: formats, programs and queries as the drive reads them, the fields of records, and results as the host does.

use tapetum::fuzzing::Input;
use tapetum_kernels::scan::wire::ScanReader;
use tapetum_kernels::scan::{FieldReader, Format, Query, QueryResult, QueryRun, RowBatch, Scalar};

/// A format that reads is written in one way, as bytes and as text; a record of anything has values or does not fit.
pub fn format(bytes: &[u8]) {
    let mut reader = ScanReader::new(bytes);
    let Ok(format) = Format::decode(&mut reader) else { return };
    let mut encoded = Vec::new();
    format.encode(&mut encoded);
    assert!(bytes.starts_with(&encoded));
    let text = format.to_string();
    let again = Format::parse(&text).unwrap_or_else(|error| panic!("{text}: {error}"));
    // A part without fields is given one.
    assert!(again.fields().starts_with(format.fields()) || again.fields().len() > format.fields().len(), "{text}");
    read_fields(&format, reader.rest());
}

fn read_fields(format: &Format, record: &[u8]) {
    let fields = FieldReader::new(format);
    let mut input = Input::new(record);
    let key_bytes = input.u8().into();
    let (key, value) = (input.bytes(key_bytes), input.rest());
    let reads = (0..format.fields().len()).map(|field| fields.read(field, key, value));
    let all = reads.collect::<Result<Vec<_>, _>>();
    assert!(fields.check(key, value).is_err() || all.is_ok());
}

/// A text is a format that is written and read again, or its error points into it.
pub fn format_text(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    match Format::parse(&text) {
        Ok(format) => {
            assert_eq!(Format::parse(&format.to_string()).as_ref(), Ok(&format));
            read_fields(&format, bytes);
        }
        Err(error) => assert!((1..=text.chars().count() + 1).contains(&error.column), "{error}"),
    }
}

/// A query that reads is written in one way, and runs over whatever follows it.
pub fn query(bytes: &[u8]) {
    let mut reader = ScanReader::new(bytes);
    let Ok(query) = Query::decode(&mut reader) else { return };
    let mut encoded = Vec::new();
    query.encode(&mut encoded);
    assert!(bytes.starts_with(&encoded));
    let mut input = Input::new(reader.rest());
    let (mut run, mut batch) = (QueryRun::new(&query), RowBatch::new());
    while !input.is_empty() && batch.len() < 20 {
        let (key_bytes, value_bytes) = (input.u8() % 16, input.u8());
        batch.push(input.bytes(key_bytes.into()), input.bytes(value_bytes.into()));
    }
    let mut frames = Vec::new();
    if run.run(&batch, &mut frames).is_ok() {
        run.finish(&mut frames);
        let mut result = QueryResult::new(&query);
        result.merge(&frames, &mut |_: &[Option<Scalar<'_>>]| ()).expect("what a run gives is merged");
        result.finish(&mut |_: &[Option<Scalar<'_>>]| ());
    }
}

/// Frames behind a query are merged or refused.
pub fn result(bytes: &[u8]) {
    let mut reader = ScanReader::new(bytes);
    let Ok(query) = Query::decode(&mut reader) else { return };
    let mut result = QueryResult::new(&query);
    // Or refused.
    let _ = result.merge(reader.rest(), &mut |_: &[Option<Scalar<'_>>]| ());
    result.finish(&mut |_: &[Option<Scalar<'_>>]| ());
}
