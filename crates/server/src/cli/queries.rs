//! `tapetum scan`: the items of an ordered keyspace, or a query over the fields of any; and `tapetum get --select`: fields of one record.

use std::io::Write;

use tapetum::Options;
use tapetum_kernels::scan::Format;
use tapetum_service::reply::Queried;
use tapetum_service::request::{GetFields, Query, QueryWords, Request, ScanWanted, Side};
use tapetum_service::service::Access;

use super::commands::{Outcome, not_found, offline_options, print};
use super::reach::{KeyspaceShape, Reached};
use crate::cli::fields_arguments::GetArguments;
use crate::cli::scan_arguments::{OnError, RunSide, ScanArguments, Transfer};
use crate::output;
use crate::tools::key_text::KeyText;
use crate::tools::list::{LineShape, LinesCaller};
use crate::tools::query_rows::{self, RowFormat, RowsCaller};

pub fn scan(arguments: &ScanArguments) -> Outcome {
    let units = arguments.query.units.map(|units| vec![("scan".to_owned(), u16::from(units))]);
    if units.is_some() && arguments.query.run == RunSide::Host {
        return Err("--units is about threads of the drive: leave out --run host".into());
    }
    let format = arguments.query.fields.as_deref().map(query_rows::format).transpose()?;
    if arguments.is_query() {
        // Report errors before a store is reached, if the command line has the whole format.
        arguments.select()?;
        arguments.row_format()?;
        side(arguments)?;
        if let Some(format) = &format {
            words(format, arguments)?.compile()?;
            arguments.range(&KeyText::new(Some(format)))?;
        }
    }
    let options = Options { compute_units: units.unwrap_or_default(), ..offline_options(&arguments.store) };
    let freeze = arguments.freeze.freeze;
    let mut reached = Reached::new(&arguments.store, &options, Access::Read)?.at(freeze);
    if arguments.is_query() {
        let format = match format {
            Some(format) => format,
            None => reached.kept_format(arguments.keyspace())?,
        };
        return query(&mut reached, &format, arguments);
    }
    let name = arguments.keyspace();
    let KeyspaceShape { format, is_ordered } = reached.shape(name)?;
    if !is_ordered
        && !arguments.is_of_items()
        && let Some(format) = &format
    {
        return query(&mut reached, format, arguments);
    }
    let range = arguments.range(&KeyText::new(format.as_ref()))?.into();
    let wanted = if arguments.count { ScanWanted::Count } else { ScanWanted::Items };
    let request = Request::Scan { keyspace: name.into(), freeze, range, limit: arguments.limit, wanted };
    let mut out = output::stdout();
    let mut lines = LinesCaller::new(LineShape::Items(arguments.item_format()?), &mut out);
    let asked = reached.ask(request, &mut lines);
    let counted = lines.counted;
    lines.finish(asked)?;
    if arguments.count { print(format!("{counted}\n").as_bytes()) } else { Ok(()) }
}

fn words(format: &Format, arguments: &ScanArguments) -> Result<QueryWords, String> {
    let asked = &arguments.query;
    Ok(QueryWords {
        fields: format.to_string(),
        condition: asked.condition.clone(),
        select: arguments.select()?.into(),
        group_by: asked.group_by.clone(),
        having: asked.having.clone(),
        order_by: asked.order_by.clone(),
        limit: arguments.limit,
        skips_misfits: asked.on_error == OnError::Skip,
    })
}

fn side(arguments: &ScanArguments) -> Result<Side, String> {
    match (arguments.query.run, arguments.query.transfer) {
        (run, Transfer::Bulk) => Ok(run.into()),
        (RunSide::Drive, Transfer::Records) => Ok(Side::DriveByRecord),
        (RunSide::Host, Transfer::Records) => {
            Err("--transfer records is about rows that come from the drive: leave out --run host".into())
        }
    }
}

impl From<RunSide> for Side {
    fn from(side: RunSide) -> Side {
        match side {
            RunSide::Drive => Side::Drive,
            RunSide::Host => Side::Host,
        }
    }
}

fn query(reached: &mut Reached, format: &Format, arguments: &ScanArguments) -> Outcome {
    let request = Request::Query(Query {
        keyspace: arguments.keyspace().into(),
        freeze: arguments.freeze.freeze,
        words: words(format, arguments)?,
        range: arguments.range(&KeyText::new(Some(format)))?.into(),
        side: side(arguments)?,
        application: arguments.query.application.clone(),
    });
    let Some(queried) = rows_of(reached, request, arguments.row_format()?)? else { return Ok(()) };
    let mut told = std::io::stderr();
    // An error of standard error is ignored: the result on standard output matters.
    if arguments.query.explain {
        let (explained, on_host) = (query_rows::explanation(&queried), query_rows::host_work(&queried));
        let _ = writeln!(told, "{explained}{on_host}; {}", query_rows::costs(&queried.costs));
    }
    if let Some(misfits) = query_rows::misfits(&queried) {
        let _ = writeln!(told, "{misfits}");
    }
    Ok(())
}

/// Prints the rows that are answered.
fn rows_of(
    reached: &mut Reached,
    request: Request,
    format: RowFormat,
) -> Result<Option<Queried>, Box<dyn std::error::Error>> {
    let mut out = output::stdout();
    let mut rows = RowsCaller::new(format, &mut out);
    let asked = reached.ask(request, &mut rows);
    rows.finish(asked)
}

/// Prints fields of one record.
pub fn get_fields(arguments: &GetArguments) -> Outcome {
    let GetArguments { key, keyspace, store, .. } = arguments;
    let keyspace = &keyspace.keyspace;
    let format = arguments.fields.as_deref().map(query_rows::format).transpose()?;
    let mut reached = Reached::for_reading(store)?;
    let format = match format {
        Some(format) => format,
        None => reached.kept_format(keyspace)?,
    };
    let select = arguments.select.as_deref().unwrap_or("*").into();
    let request = Request::GetFields(GetFields {
        keyspace: keyspace.clone(),
        key: KeyText::new(Some(&format)).key(key)?,
        words: QueryWords { fields: format.to_string(), select, ..QueryWords::default() },
        side: arguments.run.into(),
        application: None,
    });
    let Some(queried) = rows_of(&mut reached, request, arguments.format)? else { return Err(not_found(key).into()) };
    if arguments.explain {
        let took = query_rows::costs(&queried.costs);
        let side = match queried.is_on_host {
            false => "at the drive, only the fields crossed",
            true => "on the host, the whole value crossed",
        };
        // An error of standard error is ignored: the result on standard output matters.
        let _ = writeln!(std::io::stderr(), "{side}; {took}");
    }
    Ok(())
}
