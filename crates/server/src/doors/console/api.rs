//! Questions of the page as requests to the store, and their answers as JSON.
//!
//! Threads: one of the console's, for each request.

use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tapetum::query::Statement;
use tapetum_access::asker::Asker;
use tapetum_kernels::scan::Format;
use tapetum_service::failure::{Failure, FailureKind};
use tapetum_service::reply::{FormatRow, KeyspaceRow, Reply};
use tapetum_service::request::{Betweenness, GetFields, ListWanted, Query, QueryWords, Request, Side, Sources};
use tapetum_service::statements::{PLAIN_FORMAT, check_qualifier, parse, query_of};
use tapetum_service::{escapes, inspect_lines};

use super::rows::{ROWS_MAX, Rows, Sample, Waiting};
use crate::tools::drive_map::{self, Cells};
use crate::tools::graph_text::EdgesText;
use crate::tools::key_text::KeyText;

/// The most cells of the drive map.
const CELLS_MAX: usize = 4096;
/// The name of requests for graphs, of which one is computed at a time.
pub const BETWEENNESS: &str = "betweenness";
/// Memory of a graph, beside the store's: as much as `tapetum graph bc` takes.
const GRAPH_BYTES: u64 = 256 << 20;
/// The most nodes of a graph that are told.
const TOP_MAX: u32 = 1000;

/// One asker and one request of the page.
pub struct Asking {
    pub asker: Asker,
    pub waiting: Waiting,
}

#[derive(Clone, Copy, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
enum SideName {
    #[default]
    Drive,
    Host,
}

impl From<SideName> for Side {
    fn from(side: SideName) -> Side {
        match side {
            SideName::Drive => Side::Drive,
            SideName::Host => Side::Host,
        }
    }
}

#[derive(Deserialize)]
struct SampleAsked {
    keyspace: String,
    #[serde(default)]
    prefix: String,
}

#[derive(Deserialize)]
struct QueryAsked {
    sql: String,
    #[serde(default)]
    side: SideName,
}

#[derive(Deserialize)]
struct GetAsked {
    keyspace: String,
    key: String,
    select: Option<String>,
    #[serde(default)]
    side: SideName,
}

#[derive(Deserialize)]
struct GraphAsked {
    keyspace: String,
    #[serde(rename = "where")]
    condition: Option<String>,
    top: Option<u32>,
    #[serde(default)]
    side: SideName,
}

impl Asking {
    /// Answers what is asked by this name; `None` if there is no such name.
    pub fn answer(&self, name: &str, body: &[u8]) -> Option<Result<String, Failure>> {
        Some(match name {
            "keyspaces" => self.keyspaces(),
            "sample" => read(body).and_then(|asked| self.sample(asked)),
            "map" => self.map(),
            "query" => read(body).and_then(|asked| self.query(asked)),
            "get" => read(body).and_then(|asked| self.get(asked)),
            BETWEENNESS => read(body).and_then(|asked| self.betweenness(asked)),
            _ => return None,
        })
    }

    fn gather(&self, request: Request) -> Result<Option<Reply>, Failure> {
        Ok(self.waiting.served.gather(&self.asker, request)?.pop())
    }

    fn keyspaces(&self) -> Result<String, Failure> {
        let told = self.gather(Request::Keyspaces { name: None, freeze: None })?;
        let rows = if let Some(Reply::Keyspaces(rows)) = told { rows } else { Vec::new() };
        let shown = rows.iter().filter(|row| !row.is_dropping).map(keyspace);
        Ok(json!({ "keyspaces": shown.collect::<Vec<_>>() }).to_string())
    }

    fn sample(&self, SampleAsked { keyspace, prefix }: SampleAsked) -> Result<String, Failure> {
        let prefix = escapes::unescape(prefix.as_bytes()).map_err(Failure::bad)?;
        let request = Request::List { keyspace, freeze: None, prefix, wanted: ListWanted::Items };
        let mut sample = Sample::new(self.waiting.clone());
        match self.waiting.served.execute(&self.asker, request, &mut sample) {
            // It has enough.
            Err(Failure { kind: FailureKind::Cancelled, .. }) if sample.is_cut => {}
            done => done?,
        }
        Ok(sample.items())
    }

    fn map(&self) -> Result<String, Failure> {
        let told = self.gather(Request::Inspect)?.and_then(Reply::into_figures).unwrap_or_default();
        let inspection = inspect_lines::from_lines(&told).map_err(|why| Failure::new(FailureKind::Store, why))?;
        let Cells { total_bytes, cell_bytes, cells, whole } = drive_map::cells(&inspection, CELLS_MAX);
        let kind = inspect_lines::kind_name;
        let freeze = |freeze: &tapetum::inspect::FreezeInspection| {
            json!({
                "id": freeze.id, "age_us": freeze.age_us, "left_us": freeze.left_us,
                "flash_bytes": freeze.flash_bytes, "memory_bytes": freeze.memory_bytes,
            })
        };
        Ok(json!({
            "total_bytes": total_bytes,
            "cell_bytes": cell_bytes,
            "cells": cells.iter().map(|cell| json!([kind(cell.kind()), cell.valid_percent()])).collect::<Vec<_>>(),
            "kinds": whole.bytes().map(|(of, bytes)| json!({ "kind": kind(of), "bytes": bytes })).collect::<Vec<_>>(),
            "freezes": inspection.freezes.iter().map(freeze).collect::<Vec<_>>(),
        })
        .to_string())
    }

    fn query(&self, QueryAsked { sql, side }: QueryAsked) -> Result<String, Failure> {
        let Statement::Select(select) = parse(&sql)? else {
            return Err(Failure::bad("the statement has no FROM: name the keyspace whose records it reads"));
        };
        check_qualifier(&select)?;
        let words = select.bind(&[]).map_err(|error| Failure::bad(error.to_string()))?;
        let fields = self.format(&select.keyspace)?.unwrap_or_else(|| PLAIN_FORMAT.into());
        let mut query: Query = query_of(&select.keyspace, words, fields, side.into());
        // One more, so that it is known whether there are more.
        query.words.limit = Some(query.words.limit.unwrap_or(u64::MAX).min(ROWS_MAX + 1));
        self.rows(Request::Query(query)).map(Rows::table)
    }

    fn get(&self, GetAsked { keyspace, key, select, side }: GetAsked) -> Result<String, Failure> {
        let fields = self.format(&keyspace)?;
        let format = fields.as_deref().map(format_of).transpose()?;
        let key = KeyText::new(format.as_ref()).key(&key).map_err(Failure::bad)?;
        let words = QueryWords {
            fields: fields.unwrap_or_else(|| PLAIN_FORMAT.into()),
            select: select.unwrap_or_else(|| "*".into()),
            ..QueryWords::default()
        };
        let request = GetFields { keyspace, key, words, side: side.into(), application: None };
        self.rows(Request::GetFields(request)).map(Rows::table)
    }

    fn betweenness(&self, GraphAsked { keyspace, condition, top, side }: GraphAsked) -> Result<String, Failure> {
        let Some(fields) = self.format(&keyspace)? else {
            return Err(Failure::bad(format!(
                "the format of the records of {keyspace} is not known: keep it with `tapetum keyspace format {keyspace} FIELDS`"
            )));
        };
        let edges = EdgesText { columns: None, keyspace, condition };
        let select = edges.columns(&format_of(&fields)?).map_err(Failure::bad)?;
        let EdgesText { keyspace, condition, .. } = edges;
        let words = QueryWords { fields, condition, select, ..QueryWords::default() };
        let request = Betweenness {
            keyspace,
            freeze: None,
            words,
            side: side.into(),
            application: None,
            is_undirected: false,
            is_normalized: false,
            sources: Sources::Automatic,
            seed: 0,
            top: top.unwrap_or(10).min(TOP_MAX),
            memory_bytes: GRAPH_BYTES,
            parts: 1,
        };
        let graph = self.rows(Request::Betweenness(request))?.graph();
        graph.ok_or_else(|| Failure::new(FailureKind::Store, "the graph was not answered"))
    }

    fn rows(&self, request: Request) -> Result<Rows, Failure> {
        let mut rows = Rows::new(self.waiting.clone());
        self.waiting.served.execute(&self.asker, request, &mut rows)?;
        Ok(rows)
    }

    /// The format of a keyspace's records, if it is known.
    fn format(&self, keyspace: &str) -> Result<Option<String>, Failure> {
        match self.gather(Request::Format { keyspace: keyspace.into(), freeze: None })? {
            Some(Reply::Format(FormatRow { fields, .. })) => Ok(fields),
            _ => Ok(None),
        }
    }
}

fn format_of(fields: &str) -> Result<Format, Failure> {
    Format::parse(fields).map_err(|error| Failure::bad(error.to_string()))
}

/// Reads what was asked.
pub fn read<T: DeserializeOwned>(body: &[u8]) -> Result<T, Failure> {
    serde_json::from_slice(body)
        .map_err(|error| Failure::bad(format!("the request is not what is asked for here: {error}")))
}

fn keyspace(row: &KeyspaceRow) -> Value {
    json!({
        "id": row.id,
        "name": row.name,
        "kind": row.kind,
        "is_ordered": row.is_ordered,
        "items": row.items,
        "format": row.format,
        "block_device_bytes": row.block_device.map(|device| device.size_bytes),
    })
}
