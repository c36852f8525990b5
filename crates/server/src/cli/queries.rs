//! `tapetum scan`: the items of an ordered keyspace, or a query over the fields of any; and `tapetum get --select`: fields of one record.

use std::error::Error;
use std::io::Write;

use tapetum::query::{CompiledQuery, QueryText};
use tapetum::{KeyRange, KeyspaceHandle, KeyspaceKind, Options, QuerySide};
use tapetum_kernels::scan::Format;
use tapetum_kernels::scan::query::MisfitPolicy;

use super::commands::{KeyspaceTarget, Outcome, not_found, offline_options, print, read_keyspace, read_store_with};
use crate::cli::fields_arguments::GetArguments;
use crate::cli::keyspace_arguments::KeyspaceArguments;
use crate::cli::scan_arguments::{OnError, QueryArguments, RunSide, ScanArguments, Transfer};
use crate::output;
use crate::tools::key_text::KeyText;
use crate::tools::measure::Measure;
use crate::tools::query_rows::{self, RowFormat, RowShape};
use crate::tools::scan as scan_items;

pub fn scan(arguments: &ScanArguments) -> Outcome {
    let keyspace = KeyspaceArguments { keyspace: arguments.keyspace().into() };
    let units = arguments.query.units.map(|units| vec![("scan".to_owned(), u16::from(units))]);
    if units.is_some() && arguments.query.run == RunSide::Host {
        return Err("--units is about threads of the drive: leave out --run host".into());
    }
    let options = Options { compute_units: units.unwrap_or_default(), ..offline_options(&arguments.store) };
    let read = |work: &mut dyn FnMut(&KeyspaceHandle) -> Outcome| {
        read_store_with(&arguments.store, &options, |store| work(&store.keyspace(&keyspace.keyspace)?))
    };
    let limit = arguments.limit;
    if arguments.is_query() {
        // Report errors before the store is opened, if the command line has the whole format.
        arguments.select()?;
        let (rows, fields) = (arguments.row_format()?, arguments.query.fields.as_deref());
        let format = fields.map(query_rows::format).transpose()?;
        let ready = |format: &Format| -> Result<(CompiledQuery, KeyRange), String> {
            Ok((compile(format, arguments)?, arguments.range(&KeyText::new(Some(format)))?))
        };
        let said = format.as_ref().map(ready).transpose()?;
        return read(&mut |opened| match &said {
            Some((compiled, range)) => query(opened, range, compiled, &arguments.query, rows),
            None => {
                let (compiled, range) = ready(&kept_format(opened, arguments.keyspace())?)?;
                query(opened, &range, &compiled, &arguments.query, rows)
            }
        });
    }
    read(&mut |opened| {
        let range = arguments.range(&KeyText::of(opened)?)?;
        let is_unordered = opened.keyspace().kind() == KeyspaceKind::Hashed;
        if is_unordered
            && !arguments.is_of_items()
            && let Some(format) = opened.format()?
        {
            let (compiled, rows) = (compile(&format, arguments)?, arguments.row_format()?);
            return query(opened, &range, &compiled, &arguments.query, rows);
        }
        if arguments.count {
            return print(format!("{}\n", scan_items::count(opened, range.clone(), limit)?).as_bytes());
        }
        scan_items::print(opened, range.clone(), limit, arguments.item_format()?, &mut output::stdout())?;
        Ok(())
    })
}

pub(super) fn kept_format(keyspace: &KeyspaceHandle, name: &str) -> Result<Format, Box<dyn Error>> {
    let none = || {
        format!(
            "the format of the records of {name} is not known: give --fields, or keep it with \
             `tapetum keyspace format {name} FIELDS`"
        )
    };
    Ok(keyspace.format()?.ok_or_else(none)?)
}

fn compile(format: &Format, arguments: &ScanArguments) -> Result<CompiledQuery, String> {
    let asked = &arguments.query;
    let text = QueryText {
        condition: asked.condition.as_deref(),
        select: arguments.select()?,
        group_by: asked.group_by.as_deref(),
        having: asked.having.as_deref(),
        order_by: asked.order_by.as_deref(),
        limit: arguments.limit,
        policy: if asked.on_error == OnError::Fail { MisfitPolicy::Fail } else { MisfitPolicy::Skip },
    };
    query_rows::compile(format, &text)
}

fn query(
    keyspace: &KeyspaceHandle,
    range: &KeyRange,
    compiled: &CompiledQuery,
    asked: &QueryArguments,
    rows: RowFormat,
) -> Outcome {
    let side = match (asked.run, asked.transfer) {
        (run, Transfer::Bulk) => side(run),
        (RunSide::Drive, Transfer::Records) => QuerySide::DriveByRecord,
        (RunSide::Host, Transfer::Records) => {
            return Err("--transfer records is about rows that come from the drive: leave out --run host".into());
        }
    };
    let measure = Measure::begin(keyspace.store());
    let report = query_rows::print(RowShape::of(compiled, rows), &mut output::stdout(), |sink| {
        keyspace.query_range(&compiled.query, side, range, sink).map(Some)
    })?;
    let Some(report) = report else { return Ok(()) };
    let mut told = std::io::stderr();
    // An error of standard error is ignored: the result on standard output matters.
    if asked.explain {
        let took = measure.told(keyspace.store());
        let explained = query_rows::explanation(&report, asked.units);
        let on_host = query_rows::host_work(&compiled.group_order);
        let _ = writeln!(told, "{explained}{on_host}; {took}");
    }
    if let Some(misfits) = query_rows::misfits(&report) {
        let _ = writeln!(told, "{misfits}");
    }
    Ok(())
}

/// Prints fields of one record.
pub fn get_fields(arguments: &GetArguments) -> Outcome {
    let GetArguments { key, keyspace, store, .. } = arguments;
    let format = arguments.fields.as_deref().map(query_rows::format).transpose()?;
    let text = QueryText { select: arguments.select.as_deref().unwrap_or("*"), ..QueryText::default() };
    read_keyspace(KeyspaceTarget::new(store, &keyspace.keyspace), |opened| {
        let format = match format {
            Some(format) => format,
            None => kept_format(opened, &keyspace.keyspace)?,
        };
        let (compiled, bytes) = (query_rows::compile(&format, &text)?, KeyText::new(Some(&format)).key(key)?);
        let measure = Measure::begin(opened.store());
        let shape = RowShape::of(&compiled, arguments.format);
        let report = query_rows::print(shape, &mut output::stdout(), |sink| {
            opened.get_fields(&bytes, &compiled.query, side(arguments.run), sink)
        })?;
        let Some(report) = report else { return Err(not_found(key).into()) };
        if arguments.explain {
            let took = measure.told(opened.store());
            // An error of standard error is ignored: the result on standard output matters.
            let _ = match report.side {
                QuerySide::Drive | QuerySide::DriveByRecord => {
                    writeln!(std::io::stderr(), "at the drive, only the fields crossed; {took}")
                }
                QuerySide::Host => writeln!(std::io::stderr(), "on the host, the whole value crossed; {took}"),
            };
        }
        Ok(())
    })
}

pub(super) fn side(run: RunSide) -> QuerySide {
    match run {
        RunSide::Drive => QuerySide::Drive,
        RunSide::Host => QuerySide::Host,
    }
}
