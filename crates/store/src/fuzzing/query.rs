//! Queries as text: any text compiles or is refused, and the drive takes every compiled query.

use crate::query::{CompiledQuery, QueryText, compile};
use tapetum_kernels::scan::query::MisfitPolicy;
use tapetum_kernels::scan::wire::ScanReader;
use tapetum_kernels::scan::{Format, Machine, Query, QueryRun, RowBatch, Scalar};

pub(super) const FORMAT: &str = "key: id u32be; value: year u16le, score f64, hash u64, open bool, at seconds32, venue string8, raw bytes8?, \
                      title json $.t string";

/// Clauses, a line each: where, select, group by, order by, having. The bytes are a record's value too.
pub fn query_text(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let mut lines = text.split('\n');
    let mut clause = || lines.next().filter(|line| !line.is_empty());
    let (condition, select) = (clause(), clause().unwrap_or("*"));
    let (group_by, order_by, having) = (clause(), clause(), clause());
    let text = QueryText { condition, select, group_by, having, order_by, limit: Some(7), policy: MisfitPolicy::Skip };
    let Ok(format) = Format::parse(FORMAT) else { unreachable!("it is a format") };
    match compile(&format, &text) {
        Ok(compiled) => run(compiled, bytes),
        Err(error) => {
            let clauses = [condition, Some(select), group_by, order_by, having];
            let longest = clauses.into_iter().flatten().map(|clause| clause.chars().count()).max().unwrap_or(0);
            assert!((1..=longest + 1).contains(&error.column), "{error}");
            assert!(!error.to_string().is_empty());
        }
    }
}

/// The drive takes a compiled query, and runs it over records of any bytes.
pub(super) fn run(compiled: CompiledQuery, bytes: &[u8]) {
    let mut encoded = Vec::new();
    compiled.query.encode(&mut encoded);
    let decoded = Query::decode(&mut ScanReader::new(&encoded)).expect("what was compiled passes the drive's check");
    assert!(compiled.columns.iter().all(|column| column.place < decoded.result_types().len()));
    let (mut run, mut batch, mut out) = (QueryRun::new(&decoded), RowBatch::new(), Vec::new());
    batch.push(&[0, 0, 0, 1], bytes);
    batch.push(&[0, 0, 0, 2], &[0; 64]);
    // Or its groups are too many.
    let _ = run.run(&batch, &mut out);
    if let Some(having) = compiled.group_order.having {
        let nulls: Vec<Option<Scalar<'_>>> = vec![None; decoded.result_types().len()];
        Machine::of_rows(having).keeps(&nulls);
    }
}
