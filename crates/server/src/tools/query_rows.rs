//! The rows of a query, as a table, CSV, JSON lines, or a stream of Arrow ([`super::arrow_rows`]).
//!
//! A table's columns are as wide as its first rows need.

use std::error::Error;
use std::io::{self, IsTerminal, Write};

use serde_json::Value;
use tapetum::query::{ResultColumn, timestamp_text};
use tapetum_kernels::scan::{Format, Scalar};
use tapetum_service::caller::{Caller, CallerLeft};
use tapetum_service::escapes;
use tapetum_service::reply::{Costs, Misfits, Queried, Reply};

use super::papers;

/// Rows from which the widths of a table are taken.
const TABLE_ROWS: usize = 1000;
/// The most characters of a column's width. Longer cells are still printed whole.
const TABLE_COLUMN_MAX: usize = 60;
/// Bytes of text to gather before a write.
const BATCH_BYTES: usize = 1 << 16;

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum RowFormat {
    Table,
    Csv,
    Jsonl,
    /// A stream of Arrow IPC, for a file or another program
    Arrow,
}

/// Takes the rows of a result. An error is kept, and returned at the end.
pub trait RowOut {
    fn row(&mut self, values: &[Option<Scalar<'_>>]);
    /// Whether an error is kept, so that more rows are of no use.
    fn has_failed(&self) -> bool;
    fn finish(self: Box<Self>) -> io::Result<()>;
}

fn row_out<'a>(
    columns: Vec<ResultColumn>,
    format: RowFormat,
    out: &'a mut dyn Write,
) -> io::Result<Box<dyn RowOut + 'a>> {
    match format {
        RowFormat::Arrow if io::stdout().is_terminal() => {
            Err(io::Error::other("a stream of Arrow is not text: send standard output to a file or a program"))
        }
        RowFormat::Arrow => Ok(Box::new(super::arrow_rows::ArrowRows::new(&columns, out)?)),
        _ => Ok(Box::new(RowPrinter::new(columns, format, out))),
    }
}

/// The format in `--fields`: its text, or its name.
///
/// # Errors
/// Names the wrong word.
pub fn format(fields: &str) -> Result<Format, String> {
    format_of("--fields", fields)
}

/// Like [`format()`], for an argument with another name.
///
/// # Errors
/// Names the wrong word.
pub fn format_of(argument: &str, fields: &str) -> Result<Format, String> {
    if fields.trim().is_empty() {
        return Err(format!(
            "{argument} is empty: say what keys and values are made of, such as 'key: id u64be; value: title string'"
        ));
    }
    Format::parse(papers::format_text(fields).unwrap_or(fields)).map_err(|error| format!("{argument}, {error}"))
}

/// Takes the columns and rows of a query, and prints them.
pub struct RowsCaller<'a> {
    format: RowFormat,
    out: Option<&'a mut dyn Write>,
    printer: Option<Box<dyn RowOut + 'a>>,
    pub queried: Option<Queried>,
    failed: Option<io::Error>,
}

impl<'a> RowsCaller<'a> {
    pub fn new(format: RowFormat, out: &'a mut dyn Write) -> RowsCaller<'a> {
        RowsCaller { format, out: Some(out), printer: None, queried: None, failed: None }
    }

    /// Begins with rows of these columns.
    pub fn begin(&mut self, columns: Vec<ResultColumn>) -> io::Result<()> {
        let Some(out) = self.out.take() else { unreachable!("columns come once") };
        self.printer = Some(row_out(columns, self.format, out)?);
        Ok(())
    }

    /// Prints what is left, if all rows came: `asked` says so.
    pub fn finish(self, asked: Result<(), Box<dyn Error>>) -> Result<Option<Queried>, Box<dyn Error>> {
        if let Some(failed) = self.failed {
            return Err(failed.into());
        }
        asked?;
        if let (Some(printer), true) = (self.printer, self.queried.is_some()) {
            printer.finish()?;
        }
        Ok(self.queried)
    }
}

impl Caller for RowsCaller<'_> {
    fn take(&mut self, reply: Reply) -> Result<(), CallerLeft> {
        match reply {
            Reply::Columns(columns) => {
                let columns = columns.iter().map(ResultColumn::from).collect();
                self.failed = self.begin(columns).err();
            }
            Reply::Queried(queried) => self.queried = Some(queried),
            _ => {}
        }
        if self.failed.is_some() { Err(CallerLeft) } else { Ok(()) }
    }

    fn row(&mut self, values: &[Option<Scalar<'_>>]) {
        if let Some(printer) = &mut self.printer {
            printer.row(values);
        }
    }

    fn has_left(&mut self) -> bool {
        self.printer.as_ref().is_some_and(|printer| printer.has_failed())
    }
}

/// A text of what a query read, sent and returned.
pub fn explanation(queried: &Queried) -> String {
    let by = queried.units.map_or("this thread".to_owned(), |units| format!("{units} units of the drive"));
    let records = format!("{} of {} records kept", queried.kept, queried.records);
    if queried.is_on_host {
        return format!("on the host, as --run asked: all records crossed to it; {records}");
    }
    format!(
        "at the drive by {by}, {}: {} commands and {} wake-ups, {} bytes read from flash, {} sent to the drive, {} returned; {} records in write \
         buffers, {} read by a scan; {records}",
        if queried.is_row_by_row { "row by row" } else { "rows in bulk" },
        queried.commands,
        queried.wake_ups,
        queried.flash_bytes,
        queried.sent_bytes,
        queried.returned_bytes,
        queried.buffered,
        queried.scanned
    )
}

/// The host's work on groups, to be appended to an explanation.
pub fn host_work(queried: &Queried) -> &'static str {
    match (queried.are_groups_chosen, queried.are_groups_ordered) {
        (true, true) => "; groups chosen and put in order on the host",
        (true, false) => "; groups chosen on the host",
        (false, true) => "; groups put in order on the host",
        (false, false) => "",
    }
}

/// A text of what a request cost.
pub fn costs(costs: &Costs) -> String {
    format!(
        "{:.3} s, {:.3} s of CPU; {} bytes from flash, {} to the drive, {} to the host; {} commands; {:.3} s of the CPU was the drive's own, \
         which was woken {} times, and the host {} times",
        costs.elapsed_us as f64 / 1e6,
        costs.cpu_us as f64 / 1e6,
        costs.flash_bytes,
        costs.to_drive_bytes,
        costs.to_host_bytes,
        costs.commands,
        costs.drive_cpu_us as f64 / 1e6,
        costs.drive_wakes,
        costs.host_wakes,
    )
}

/// A text with the number of records that did not fit, if there were any.
pub fn misfits(queried: &Queried) -> Option<String> {
    let Misfits { count, first_key, first_why } = queried.misfits.as_ref()?;
    let key = escapes::escaped(first_key);
    Some(format!("{count} records do not fit and were left out, such as that of the key \"{key}\": {first_why}"))
}

struct RowPrinter<'a> {
    columns: Vec<ResultColumn>,
    format: RowFormat,
    out: &'a mut dyn Write,
    text: Vec<u8>,
    /// Rows of a table whose widths are not known yet.
    waiting: Vec<Vec<String>>,
    widths: Option<Vec<usize>>,
    begun: bool,
    failed: Option<io::Error>,
}

impl<'a> RowPrinter<'a> {
    fn new(columns: Vec<ResultColumn>, format: RowFormat, out: &'a mut dyn Write) -> RowPrinter<'a> {
        let (text, waiting) = (Vec::new(), Vec::new());
        RowPrinter { columns, format, out, text, waiting, widths: None, begun: false, failed: None }
    }

    fn print(&mut self, values: &[Option<Scalar<'_>>]) {
        if self.failed.is_some() {
            return;
        }
        if self.format == RowFormat::Csv {
            self.head();
        }
        let columns = &self.columns;
        match self.format {
            RowFormat::Jsonl => {
                let members = columns.iter().map(|column| {
                    let name = Value::from(&column.name[..]);
                    format!("{name}:{}", json(values[column.place]))
                });
                let line = members.collect::<Vec<String>>().join(",");
                self.text.extend_from_slice(format!("{{{line}}}\n").as_bytes());
            }
            RowFormat::Csv => {
                let cells = columns.iter().map(|column| values[column.place].map_or(String::new(), csv_cell));
                self.text.extend_from_slice(cells.collect::<Vec<String>>().join(",").as_bytes());
                self.text.push(b'\n');
            }
            RowFormat::Table => {
                let cells = columns.iter().map(|column| values[column.place].map_or("NULL".into(), cell)).collect();
                self.waiting.push(cells);
                if self.widths.is_some() || self.waiting.len() == TABLE_ROWS {
                    self.table();
                }
            }
            RowFormat::Arrow => {}
        }
        if self.text.len() >= BATCH_BYTES {
            self.write();
        }
    }

    /// Prints the names of the columns, once.
    fn head(&mut self) {
        if std::mem::replace(&mut self.begun, true) {
            return;
        }
        let names = self.columns.iter().map(|column| csv_text(&column.name)).collect::<Vec<String>>();
        self.text.extend_from_slice(names.join(",").as_bytes());
        self.text.push(b'\n');
    }

    fn table(&mut self) {
        if self.widths.is_none() {
            let names: Vec<String> =
                self.columns.iter().map(|column| escapes::escaped(column.name.as_bytes())).collect();
            let width = |place: usize| {
                let cells = self.waiting.iter().map(|row| row[place].chars().count());
                cells.chain([names[place].chars().count()]).max().unwrap_or(0).min(TABLE_COLUMN_MAX)
            };
            let widths: Vec<usize> = (0..names.len()).map(width).collect();
            let rule = widths.iter().map(|width| "-".repeat(*width)).collect();
            self.waiting.splice(0..0, [names, rule]);
            self.widths = Some(widths);
        }
        let Some(widths) = &self.widths else { return };
        for row in self.waiting.drain(..) {
            let padded = row.iter().zip(widths).map(|(cell, width)| format!("{cell:<width$}"));
            let line = padded.collect::<Vec<String>>().join("  ");
            self.text.extend_from_slice(line.trim_end().as_bytes());
            self.text.push(b'\n');
        }
    }

    fn write(&mut self) {
        if let Err(error) = self.out.write_all(&self.text) {
            self.failed = Some(error);
        }
        self.text.clear();
    }
}

impl RowOut for RowPrinter<'_> {
    fn row(&mut self, values: &[Option<Scalar<'_>>]) {
        self.print(values);
    }

    fn has_failed(&self) -> bool {
        self.failed.is_some()
    }

    fn finish(mut self: Box<Self>) -> io::Result<()> {
        match self.format {
            RowFormat::Table => self.table(),
            RowFormat::Csv => self.head(),
            _ => {}
        }
        self.write();
        self.failed.map_or_else(|| self.out.flush(), Err)
    }
}

/// A value in a table, for a terminal. Control characters, and bytes that are not text, are escaped.
fn cell(value: Scalar<'_>) -> String {
    match value {
        Scalar::Bool(value) => value.to_string(),
        Scalar::Int(value) => value.to_string(),
        Scalar::Unsigned(value) => value.to_string(),
        Scalar::Float(value) => value.to_string(),
        Scalar::Timestamp(micros) => timestamp_text(micros),
        Scalar::Text(_) | Scalar::Bytes(_) => escapes::escaped(value.bytes().unwrap_or_default()),
    }
}

/// A value in CSV, from which a reader can restore it: text unchanged, bytes with the escapes of `list`.
fn csv_cell(value: Scalar<'_>) -> String {
    match value {
        Scalar::Text(text) => csv_text(text),
        value => csv_text(&cell(value)),
    }
}

/// Quoted as in RFC 4180. An empty text is quoted, because an empty cell is NULL.
fn csv_text(text: &str) -> String {
    match text.is_empty() || text.contains([',', '"', '\n', '\r']) {
        true => format!("\"{}\"", text.replace('"', "\"\"")),
        false => text.into(),
    }
}

/// A value as JSON has it.
pub fn json(value: Option<Scalar<'_>>) -> Value {
    match value {
        None => Value::Null,
        Some(Scalar::Bool(value)) => value.into(),
        Some(Scalar::Int(value)) => value.into(),
        Some(Scalar::Unsigned(value)) => value.into(),
        Some(Scalar::Float(value)) if value.is_finite() => value.into(),
        Some(Scalar::Text(text)) => text.into(),
        // Bytes with the escapes of `list`. NaN and infinities, which JSON has no numbers for, by name.
        Some(value) => cell(value).into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tapetum_kernels::scan::ScalarType;

    fn printed(format: RowFormat, row: &[Option<Scalar<'_>>]) -> String {
        let column = |place: usize| ResultColumn { name: format!("c{place}"), place, scalar_type: ScalarType::Text };
        let columns: Vec<ResultColumn> = (0..row.len()).map(column).collect();
        let mut out = Vec::new();
        let mut rows = row_out(columns, format, &mut out).unwrap();
        rows.row(row);
        rows.finish().unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn csv_has_every_text_as_it_is_and_null_beside_the_empty_one() {
        let row =
            ["a\nb", "C:\\temp", "x\ty", "say \"hi\"", "a,b", "a\r\nb", " a ", ""].map(|text| Some(Scalar::Text(text)));
        let expected = "\"a\nb\",C:\\temp,x\ty,\"say \"\"hi\"\"\",\"a,b\",\"a\r\nb\", a ,\"\",\n";
        let lines = printed(RowFormat::Csv, &[&row[..], &[None]].concat());
        assert_eq!(lines.split_once('\n').unwrap().1, expected);
        let table = printed(RowFormat::Table, &row);
        assert!(table.contains("a\\nb  C:\\\\temp  x\\ty"), "{table}");
    }

    #[test]
    fn bytes_are_escaped_alike_in_csv_and_json() {
        let row = [Some(Scalar::Bytes(b"\xff\\n,\n")), Some(Scalar::Bytes(b""))];
        assert_eq!(printed(RowFormat::Csv, &row), "c0,c1\n\"\\xff\\\\n,\\n\",\"\"\n");
        assert_eq!(printed(RowFormat::Jsonl, &row), "{\"c0\":\"\\\\xff\\\\\\\\n,\\\\n\",\"c1\":\"\"}\n");
    }

    #[test]
    fn floats_that_json_has_no_numbers_for_are_strings() {
        let row = [1.5, f64::NAN, f64::INFINITY, f64::NEG_INFINITY].map(|value| Some(Scalar::Float(value)));
        let lines = printed(RowFormat::Jsonl, &[&row[..], &[None]].concat());
        assert_eq!(lines, "{\"c0\":1.5,\"c1\":\"NaN\",\"c2\":\"inf\",\"c3\":\"-inf\",\"c4\":null}\n");
        assert_eq!(printed(RowFormat::Csv, &row), "c0,c1,c2,c3\n1.5,NaN,inf,-inf\n");
    }
}
