//! Scans and queries of a keyspace: as it is, or as a freeze has it.

use crate::errors;
use crate::handles::{Handle, StoreHandles};
use crate::key::{Key, fields_of};
use crate::rows::Rows;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use std::sync::{Arc, Mutex, PoisonError};
use tapetum::query::{QueryText, compile};
use tapetum::{Item, KeyBound, KeyRange, KeyspaceKind, QueryError, ReadKeyspace};
use tapetum_kernels::scan::query::MisfitPolicy;

fn is_ordered(keyspace: &ReadKeyspace) -> bool {
    keyspace.kind() == KeyspaceKind::Ordered
}

/// The range of keys that the arguments ask for.
fn range(keyspace: &ReadKeyspace, keys: KeysAsked) -> PyResult<KeyRange> {
    let KeysAsked { prefix, start, end, reverse } = keys;
    if !is_ordered(keyspace) && (start.is_some() || end.is_some() || reverse) {
        return Err(errors::store("the keyspace has no order of keys: make it with ordered=True"));
    }
    let mut range = KeyRange { is_reverse: reverse, ..KeyRange::default() };
    if let Some(prefix) = prefix {
        let prefix = prefix.into_bytes();
        range.to = after_prefix(&prefix).map_or(KeyBound::Unbounded, KeyBound::Excluded);
        range.from = KeyBound::Included(prefix);
    }
    range.from = start.map_or(range.from, |start| KeyBound::Included(start.into_bytes()));
    range.to = end.map_or(range.to, |end| KeyBound::Excluded(end.into_bytes()));
    Ok(range)
}

/// The first key behind all keys with a prefix; `None` if there is none.
fn after_prefix(prefix: &[u8]) -> Option<Vec<u8>> {
    let last = prefix.iter().rposition(|byte| *byte < 0xff)?;
    let mut after = prefix[..=last].to_vec();
    after[last] += 1;
    Some(after)
}

/// The keys that a scan covers.
pub struct KeysAsked {
    pub prefix: Option<Key>,
    pub start: Option<Key>,
    pub end: Option<Key>,
    pub reverse: bool,
}

/// The arguments each of which makes a scan a query.
pub struct QueryAsked<'a> {
    pub condition: Option<&'a str>,
    pub select: Option<&'a str>,
    pub group_by: Option<&'a str>,
    pub having: Option<&'a str>,
    pub order_by: Option<&'a str>,
    pub limit: Option<u64>,
    pub fields: Option<&'a str>,
    pub on_error: &'a str,
}

impl QueryAsked<'_> {
    fn is_given(&self) -> bool {
        let texts = [self.condition, self.select, self.group_by, self.having, self.order_by, self.fields];
        texts.into_iter().any(|part| part.is_some())
    }

    fn run(&self, py: Python<'_>, keyspace: ReadKeyspace, all: &Arc<StoreHandles>, range: KeyRange) -> PyResult<Rows> {
        let policy = match self.on_error {
            "raise" => MisfitPolicy::Fail,
            "skip" => MisfitPolicy::Skip,
            other => return Err(PyValueError::new_err(format!("on_error is {other:?}: say raise or skip"))),
        };
        let unknown =
            "the format of the records is not known: give fields, here or to store.keyspace(name, fields=...)";
        let format = match self.fields {
            Some(fields) => fields_of(py, fields)?,
            None => keyspace.format().map_err(errors::store)?.ok_or_else(|| errors::store(unknown))?,
        };
        let &QueryAsked { condition, group_by, having, order_by, limit, .. } = self;
        let text =
            QueryText { condition, select: self.select.unwrap_or("*"), group_by, having, order_by, limit, policy };
        let compiled = compile(&format, &text).map_err(|error| errors::query(py, &error))?;
        Rows::new(keyspace, all, compiled, range)
    }
}

/// Items, or the rows of a query.
pub fn scan<'py>(
    py: Python<'py>,
    keyspace: ReadKeyspace,
    all: &Arc<StoreHandles>,
    keys: KeysAsked,
    asked: &QueryAsked<'_>,
) -> PyResult<Bound<'py, PyAny>> {
    if asked.is_given() {
        if keys.reverse || (!is_ordered(&keyspace) && keys.prefix.is_some()) {
            return Err(errors::store(
                "a query is of all keys, or of a range of an ordered keyspace, and its rows have order_by",
            ));
        }
        let range = range(&keyspace, keys)?;
        return Ok(Bound::new(py, asked.run(py, keyspace, all, range)?)?.into_any());
    }
    let limit = asked.limit.map_or(usize::MAX, |limit| usize::try_from(limit).unwrap_or(usize::MAX));
    let items = if is_ordered(&keyspace) {
        let range = range(&keyspace, keys)?;
        py.detach(|| keyspace.scan(range))
    } else {
        let prefix = keys.prefix.as_ref().map_or(&b""[..], Key::bytes).to_vec();
        range(&keyspace, keys)?;
        py.detach(|| keyspace.items(&prefix))
    };
    let items = Items::of(all, items.map_err(errors::store)?.take(limit))?;
    Ok(Bound::new(py, items)?.into_any())
}

type ItemSource = Box<dyn Iterator<Item = Result<(Vec<u8>, Item), QueryError>> + Send>;

/// Items of a scan, as pairs of key and value, both bytes; an iterator. It reads while it is iterated, and raises `Error`, or
/// `ClosedError` once the store is closed.
#[pyclass(frozen, module = "tapetum")]
pub struct Items {
    items: Handle<Mutex<ItemSource>>,
}

impl Items {
    fn of(
        handles: &Arc<StoreHandles>,
        items: impl Iterator<Item = Result<(Vec<u8>, Item), QueryError>> + Send + 'static,
    ) -> PyResult<Items> {
        let items: ItemSource = Box::new(items);
        Ok(Items { items: handles.hold(Mutex::new(items))? })
    }
}

#[pymethods]
impl Items {
    fn __iter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    fn __next__<'py>(&self, py: Python<'py>) -> PyResult<Option<(Bound<'py, PyBytes>, Bound<'py, PyBytes>)>> {
        let items = self.items.get()?;
        let next = py.detach(|| items.lock().unwrap_or_else(PoisonError::into_inner).next());
        let next = next.transpose().map_err(errors::store)?;
        Ok(next.map(|(key, item)| (PyBytes::new(py, &key), PyBytes::new(py, &item.value))))
    }
}
