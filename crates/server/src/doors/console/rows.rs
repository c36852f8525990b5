//! Answers of the store as JSON, of bounded length.
//!
//! Threads: that which does the work.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::{Value, json};
use tapetum_access::served::Served;
use tapetum_kernels::scan::{Scalar, ScalarType};
use tapetum_service::caller::{Caller, CallerLeft};
use tapetum_service::escapes;
use tapetum_service::reply::{Column, Graph, ItemRow, Queried, Reply};

use crate::tools::query_rows;

/// A table shows no more rows, and no more bytes of JSON.
pub const ROWS_MAX: u64 = 1000;
const ROWS_BYTES_MAX: usize = 1 << 20;
/// A sample of a keyspace shows no more items, and no more bytes of a value.
const SAMPLE_ITEMS: usize = 20;
const SAMPLE_VALUE_BYTES: usize = 256;
/// Integers beyond this are no numbers in a browser.
const EXACT_MAX: u64 = 1 << 53;

/// Whether anybody waits for an answer.
#[derive(Clone)]
pub struct Waiting {
    pub served: Arc<Served>,
    pub has_left: Arc<AtomicBool>,
}

impl Waiting {
    pub fn is_over(&self) -> bool {
        self.has_left.load(Ordering::Acquire) || self.served.is_ending()
    }
}

/// Takes the rows of a query, or a graph.
pub struct Rows {
    waiting: Waiting,
    columns: Vec<Value>,
    /// The place of each column in a row.
    places: Vec<usize>,
    /// The rows as JSON, with commas between them.
    rows: String,
    count: u64,
    is_cut: bool,
    queried: Option<Queried>,
    graph: Option<Graph>,
}

impl Rows {
    pub fn new(waiting: Waiting) -> Rows {
        let (columns, places, rows) = (Vec::new(), Vec::new(), String::new());
        Rows { waiting, columns, places, rows, count: 0, is_cut: false, queried: None, graph: None }
    }

    /// The rows, and how they were found; without a report, there was no such record.
    pub fn table(self) -> String {
        let Rows { columns, rows, is_cut, queried, .. } = self;
        let (columns, report) = (Value::from(columns), Value::from(queried.as_ref().map(report)));
        format!("{{\"columns\":{columns},\"rows\":[{rows}],\"is_cut\":{is_cut},\"report\":{report}}}")
    }

    /// The graph that was answered.
    pub fn graph(self) -> Option<String> {
        let graph = self.graph?;
        let node = |node: u64| match graph.node_type {
            ScalarType::Int => (node as i64).to_string(),
            _ => node.to_string(),
        };
        let top: Vec<Value> = graph.top.iter().map(|(id, centrality)| json!([node(*id), centrality])).collect();
        let told = json!({
            "nodes": graph.nodes, "edges": graph.edges, "sources": graph.sources, "top": top, "report": report(&graph.queried),
        });
        Some(told.to_string())
    }
}

impl Caller for Rows {
    fn take(&mut self, reply: Reply) -> Result<(), CallerLeft> {
        match reply {
            Reply::Columns(columns) => {
                self.columns = columns.iter().map(column).collect();
                self.places = columns.iter().map(|column| column.place).collect();
            }
            Reply::Queried(queried) => self.queried = Some(queried),
            Reply::Graph(graph) => self.graph = Some(graph),
            _ => {}
        }
        Ok(())
    }

    fn row(&mut self, values: &[Option<Scalar<'_>>]) {
        let bytes: usize = values.iter().flatten().filter_map(|value| value.bytes()).map(<[u8]>::len).sum();
        self.is_cut |= self.count >= ROWS_MAX || self.rows.len() + bytes > ROWS_BYTES_MAX;
        if self.is_cut {
            return;
        }
        let row = Value::from_iter(self.places.iter().map(|place| cell(values[*place]))).to_string();
        // Escapes make a text longer.
        if self.rows.len() + row.len() > ROWS_BYTES_MAX {
            self.is_cut = true;
            return;
        }
        if self.count > 0 {
            self.rows.push(',');
        }
        self.rows.push_str(&row);
        self.count += 1;
    }

    fn has_left(&mut self) -> bool {
        self.waiting.is_over()
    }
}

/// Takes the first items of a keyspace.
pub struct Sample {
    waiting: Waiting,
    items: Vec<Value>,
    pub is_cut: bool,
}

impl Sample {
    pub fn new(waiting: Waiting) -> Sample {
        Sample { waiting, items: Vec::new(), is_cut: false }
    }

    pub fn items(self) -> String {
        json!({ "items": self.items, "is_cut": self.is_cut }).to_string()
    }
}

impl Caller for Sample {
    fn take(&mut self, reply: Reply) -> Result<(), CallerLeft> {
        let Reply::Items(items) = reply else { return Ok(()) };
        for found in &items {
            if self.items.len() == SAMPLE_ITEMS {
                self.is_cut = true;
                return Err(CallerLeft);
            }
            self.items.push(item(found));
        }
        Ok(())
    }

    fn row(&mut self, _values: &[Option<Scalar<'_>>]) {}

    fn has_left(&mut self) -> bool {
        self.waiting.is_over()
    }
}

fn item(item: &ItemRow) -> Value {
    let shown = &item.value[..item.value.len().min(SAMPLE_VALUE_BYTES)];
    json!({
        "key": escapes::escaped(&item.key),
        "value": escapes::escaped(shown),
        "value_bytes": item.value.len(),
        "flags": item.flags,
        "expires_unix_ms": (!item.expiry.is_none()).then(|| item.expiry.millis()),
    })
}

fn column(column: &Column) -> Value {
    let name = match column.scalar_type {
        ScalarType::Bool => "bool",
        ScalarType::Int | ScalarType::Unsigned => "int",
        ScalarType::Float => "float",
        ScalarType::Timestamp => "time",
        ScalarType::Text => "text",
        ScalarType::Bytes => "bytes",
    };
    json!({ "name": column.name, "type": name })
}

/// A value as JSON; integers that a browser does not know exactly are texts.
fn cell(value: Option<Scalar<'_>>) -> Value {
    match value {
        Some(Scalar::Int(value)) if value.unsigned_abs() > EXACT_MAX => value.to_string().into(),
        Some(Scalar::Unsigned(value)) if value > EXACT_MAX => value.to_string().into(),
        value => query_rows::json(value),
    }
}

fn report(queried: &Queried) -> Value {
    let costs = &queried.costs;
    json!({
        "elapsed_us": costs.elapsed_us,
        "cpu_us": costs.cpu_us,
        "drive_cpu_us": costs.drive_cpu_us,
        "flash_bytes": costs.flash_bytes,
        "to_drive_bytes": costs.to_drive_bytes,
        "to_host_bytes": costs.to_host_bytes,
        "records": queried.records,
        "kept": queried.kept,
        "side": if queried.is_on_host { "host" } else { "drive" },
        "units": queried.units,
        "misfits": queried.misfits.as_ref().map_or(0, |misfits| misfits.count),
    })
}
