//! Whole statements: any text is taken apart or refused, with any values.

use super::query::{FORMAT, run};
use crate::query::{CompiledQuery, Statement, StatementWords, compile};
use tapetum_kernels::scan::query::MisfitPolicy;
use tapetum_kernels::scan::{Format, OwnedScalar};

/// A statement behind the first line, whose bytes say what is bound.
pub fn statement(bytes: &[u8]) {
    let (bound, sql) = match bytes.iter().position(|byte| *byte == b'\n') {
        Some(end) => (&bytes[..end], &bytes[end + 1..]),
        None => (&[][..], bytes),
    };
    let sql = String::from_utf8_lossy(sql);
    let statement = match Statement::parse(&sql) {
        Ok(Statement::Select(statement)) => statement,
        Ok(Statement::Constants(columns)) => return assert!(!columns.is_empty()),
        Err(error) => {
            assert!(error.column <= sql.chars().count() + 1 && !error.to_string().is_empty(), "{error}");
            return;
        }
    };
    let values: Vec<Option<OwnedScalar>> = (0..statement.parameters).map(|number| value(bound, number)).collect();
    let unbound = compiled(&statement.unbound_words());
    let Ok(words) = statement.bind(&values) else { return };
    let Some(compiled) = compiled(&words) else { return };
    if let Some(unbound) = unbound {
        let names = |query: &CompiledQuery| query.columns.iter().map(|column| column.name.clone()).collect::<Vec<_>>();
        assert_eq!(names(&unbound), names(&compiled), "{sql}");
    }
    run(compiled, bytes);
}

fn value(bound: &[u8], number: usize) -> Option<OwnedScalar> {
    let (kind, rest) = bound.get(number..)?.split_first()?;
    let mut bits = [0; 8];
    bits.iter_mut().zip(rest).for_each(|(bits, rest)| *bits = *rest);
    let bits = u64::from_le_bytes(bits);
    Some(match kind % 8 {
        0 => return None,
        1 => OwnedScalar::Int(i64::from(*kind) - 128),
        2 => OwnedScalar::Int(bits as i64),
        3 => OwnedScalar::Unsigned(bits),
        4 => OwnedScalar::Float(f64::from_bits(bits)),
        5 => OwnedScalar::Timestamp(bits as i64),
        6 => OwnedScalar::Bytes(rest.into()),
        _ => OwnedScalar::Text(String::from_utf8_lossy(rest).into()),
    })
}

fn compiled(words: &StatementWords) -> Option<CompiledQuery> {
    let Ok(format) = Format::parse(FORMAT) else { unreachable!("it is a format") };
    compile(&format, &words.text(MisfitPolicy::Skip)).ok()
}
