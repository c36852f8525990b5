//! `tapetum.Keyspace`: the keys of one keyspace.

use crate::errors;
use crate::handles::{Handle, StoreHandles};
use crate::key::{Key, fields_of};
use crate::reading::{self, KeysAsked, QueryAsked};
use pyo3::exceptions::{PyKeyError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyString};
use std::sync::Arc;
use tapetum::Expiry;
use tapetum::{
    Condition, Error, Initial, Keyspace as KeyspaceEntry, KeyspaceError, KeyspaceHandle, KeyspaceRef, KeyspaceState,
    Limits, Outcome, Request, Write,
};

/// When an item goes, in unix seconds, to the millisecond; 0 is never.
struct UnixTime(f64);

impl<'py> FromPyObject<'_, 'py> for UnixTime {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, 'py, PyAny>) -> PyResult<UnixTime> {
        let seconds = object.extract::<f64>();
        seconds.map(UnixTime).map_err(|_| PyTypeError::new_err("expiry is a unix time, such as time.time() + 60"))
    }
}

impl UnixTime {
    /// As the store has it; a ValueError if it is not to come.
    fn expiry(self, handle: &KeyspaceHandle) -> PyResult<Expiry> {
        let UnixTime(seconds) = self;
        if seconds == 0.0 {
            return Ok(Expiry::NONE);
        }
        let refused = |why| {
            let told = format!(
                "expiry={seconds} is {why}: it is the unix time when the item goes, so give time.time() + seconds"
            );
            Err(PyValueError::new_err(told))
        };
        match (seconds * 1000.0).ceil() {
            at if at >= Expiry::NEVER.millis() as f64 => refused("after the year 10889"),
            at if at > handle.store().drive().env().unix_millis() as f64 => Ok(Expiry::from_millis(at as u64)),
            _ => refused("past"),
        }
    }
}

/// The elements of any iterable except text and bytes, whose elements would be taken for keys.
struct Listed<T>(Vec<T>);

impl<'py, T> FromPyObject<'_, 'py> for Listed<T>
where
    T: for<'a> FromPyObject<'a, 'py, Error = PyErr>,
{
    type Error = PyErr;

    fn extract(object: Borrowed<'_, 'py, PyAny>) -> PyResult<Listed<T>> {
        if object.is_instance_of::<PyString>() || object.is_instance_of::<PyBytes>() {
            return Err(PyTypeError::new_err("one key is given where several are taken: give a list of them"));
        }
        let listed = object.try_iter()?.map(|one| one?.extract::<T>());
        Ok(Listed(listed.collect::<PyResult<_>>()?))
    }
}

/// Keys and values of their own, beside other keyspaces of the store; also a mapping: `keyspace[key]`, `key in keyspace`, `len(keyspace)`.
///
/// Keys and values are bytes, buffers of bytes, or text, which is kept as UTF-8; what comes back is bytes. Any other type is a TypeError. All
/// methods raise `ClosedError` once the store is closed, and `Error`, whose text says what to do, when the store cannot do it: a key or value
/// beyond `limits`, no room, a store opened to read. Threads may share it; no call holds the interpreter while it waits.
#[pyclass(frozen, subclass, module = "tapetum")]
pub struct Keyspace {
    handle: Handle<KeyspaceHandle>,
}

impl Keyspace {
    /// # Errors
    /// [`errors::ClosedError`].
    pub fn of(handle: KeyspaceHandle, handles: &Arc<StoreHandles>) -> PyResult<Keyspace> {
        Ok(Keyspace { handle: handles.hold(handle)? })
    }

    /// # Errors
    /// [`errors::ClosedError`].
    pub fn handle(&self) -> PyResult<KeyspaceHandle> {
        Ok((*self.handle.get()?).clone())
    }

    pub fn held(&self) -> &Handle<KeyspaceHandle> {
        &self.handle
    }

    /// Stores the value if the condition holds. Returns whether it was stored.
    fn put_if(&self, py: Python<'_>, key: &Key, value: &Key, expiry: UnixTime, condition: Condition) -> PyResult<bool> {
        let handle = self.handle()?;
        let expiry = expiry.expiry(&handle)?;
        let put = Request::Put { key: key.bytes(), value: value.bytes(), flags: 0, expiry, condition };
        let (outcome, _) = py.detach(|| handle.run(put)).map_err(errors::store)?;
        Ok(matches!(outcome, Outcome::Stored { .. }))
    }

    fn count(&self, py: Python<'_>, key: &Key, delta: Delta, initial: Option<u64>) -> PyResult<u64> {
        let handle = self.handle()?;
        let initial = initial.map(|value| Initial { value, expiry: Expiry::NONE });
        let Delta { by, is_down } = delta;
        let request =
            Request::Increment { key: key.bytes(), delta: by, decrement: is_down, initial, stamp: None, touch: None };
        match py.detach(|| handle.run(request)).map_err(errors::store)?.0 {
            Outcome::Number { number, .. } => Ok(number),
            Outcome::NotNumber => Err(PyValueError::new_err(format!(
                "the value of {:?} is no decimal number of 0 to 2^64 - 1 as text: put one there first",
                key.text()
            ))),
            _ => Err(PyKeyError::new_err(key.text())),
        }
    }
}

/// A number that is added, or subtracted.
struct Delta {
    by: u64,
    is_down: bool,
}

impl Delta {
    fn of(by: i128, is_down: bool) -> PyResult<Delta> {
        let refused = |_| PyValueError::new_err(format!("by is {by}: give -(2^64 - 1) to 2^64 - 1"));
        Ok(Delta { by: u64::try_from(by.unsigned_abs()).map_err(refused)?, is_down })
    }
}

#[pymethods]
impl Keyspace {
    /// The value of a key; None if the key does not exist.
    pub fn get<'py>(&self, py: Python<'py>, key: Key) -> PyResult<Option<Bound<'py, PyBytes>>> {
        let handle = self.handle()?;
        let item = py.detach(|| handle.get(key.bytes())).map_err(errors::store)?;
        Ok(item.map(|item| PyBytes::new(py, &item.value)))
    }

    /// The value of a key, and a token for `cas` that changes with each write of the key. None and None if the key does not exist.
    fn gets<'py>(&self, py: Python<'py>, key: Key) -> PyResult<(Option<Bound<'py, PyBytes>>, Option<u64>)> {
        let handle = self.handle()?;
        let item = py.detach(|| handle.get(key.bytes())).map_err(errors::store)?;
        Ok(item.map_or((None, None), |item| (Some(PyBytes::new(py, &item.value)), Some(item.stamp))))
    }

    /// Stores a value, in place of one that is there. `expiry` is when it goes, in unix seconds, such as `time.time() + 60`; 0 is never. A
    /// time that is past is a ValueError.
    #[pyo3(signature = (key, value, *, expiry=UnixTime(0.0)), text_signature = "($self, key, value, *, expiry=0)")]
    fn put(&self, py: Python<'_>, key: Key, value: Key, expiry: UnixTime) -> PyResult<()> {
        let is_stored = self.put_if(py, &key, &value, expiry, Condition::Always)?;
        debug_assert!(is_stored);
        Ok(())
    }

    /// Compares and sets, in one step: stores a value if nobody wrote the key since `gets` gave this token; with None, if there is no such
    /// key. Returns whether it was stored: if not, call `gets` again. `expiry` is as in `put`.
    #[pyo3(signature = (key, value, token, *, expiry=UnixTime(0.0)), text_signature = "($self, key, value, token, *, expiry=0)")]
    fn cas(&self, py: Python<'_>, key: Key, value: Key, token: Option<u64>, expiry: UnixTime) -> PyResult<bool> {
        self.put_if(py, &key, &value, expiry, token.map_or(Condition::Absent, Condition::Stamp))
    }

    /// Adds to a value that is a decimal number as text, and returns the sum, in one step. As in memcached, a sum below 0 becomes 0, and a
    /// sum of 2^64 or more wraps. If the key does not exist, `initial` is stored and returned; without it that is a KeyError. A value that
    /// is no such number is a ValueError.
    #[pyo3(signature = (key, by=1, initial=None))]
    fn increment(&self, py: Python<'_>, key: Key, by: i128, initial: Option<u64>) -> PyResult<u64> {
        self.count(py, &key, Delta::of(by, by < 0)?, initial)
    }

    /// As `increment`, but subtracts. A difference below 0 becomes 0.
    #[pyo3(signature = (key, by=1, initial=None))]
    fn decrement(&self, py: Python<'_>, key: Key, by: i128, initial: Option<u64>) -> PyResult<u64> {
        self.count(py, &key, Delta::of(by, by >= 0)?, initial)
    }

    /// Deletes a key. Returns whether it existed.
    pub fn delete(&self, py: Python<'_>, key: Key) -> PyResult<bool> {
        let handle = self.handle()?;
        py.detach(|| handle.delete(key.bytes())).map_err(errors::store)
    }

    /// Reads several keys at once: a list of values in the order of the keys, with None where there is no such key.
    fn multi_get<'py>(&self, py: Python<'py>, keys: Listed<Key>) -> PyResult<Vec<Option<Bound<'py, PyBytes>>>> {
        let handle = self.handle()?;
        let keys: Vec<&[u8]> = keys.0.iter().map(Key::bytes).collect();
        let items = py.detach(|| handle.multi_get(&keys)).map_err(errors::store)?;
        Ok(items.into_iter().map(|item| item.map(|item| PyBytes::new(py, &item.value))).collect())
    }

    /// Writes pairs of key and value, all or none, also across a crash. A value of None deletes. `limits` says how many it takes: more are an
    /// `Error`, and nothing is written.
    fn batch(&self, py: Python<'_>, writes: Listed<(Key, Option<Key>)>) -> PyResult<()> {
        let handle = self.handle()?;
        let keyspace = handle.keyspace();
        let writes: Vec<Write<'_>> = writes.0.iter().map(|(key, value)| write(keyspace, key, value.as_ref())).collect();
        py.detach(|| handle.store().batch(&writes)).map_err(errors::store)
    }

    /// The limits of this keyspace: `key_bytes`, `value_bytes`, `batch_writes`, and `batch_bytes`, which those take together.
    fn limits<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let Limits { key_bytes, value_bytes, batch_writes, batch_bytes } = self.handle()?.limits();
        let limits = PyDict::new(py);
        limits.set_item("key_bytes", key_bytes)?;
        limits.set_item("value_bytes", value_bytes)?;
        limits.set_item("batch_writes", batch_writes)?;
        limits.set_item("batch_bytes", batch_bytes)?;
        Ok(limits)
    }

    /// Items as pairs of key and value: those whose keys have a prefix or, in an ordered keyspace and in the order of their keys, those
    /// from `start` up to but without `end`, or backwards with `reverse`. They come as `Items`, `limit` at the most. With `where`, `select`, `group_by`, `having`, `order_by` or `fields` it is a query over their
    /// fields, which runs at the drive and gives `Rows`, a table for libraries that read Arrow.
    ///
    /// `fields` is the format of the records, unless the keyspace has one. `on_error="skip"` leaves records out that do not fit it, `"raise"`
    /// makes them an `Error`. An error in the text of a query is a `QueryError`, with `clause`, `column` and `word`.
    #[pyo3(signature = (prefix=None, *, start=None, end=None, reverse=false, r#where=None, select=None, group_by=None, having=None,
        order_by=None, limit=None, fields=None, on_error="raise"))]
    #[expect(clippy::too_many_arguments, reason = "by keyword in Python")]
    fn scan<'py>(
        &self,
        py: Python<'py>,
        prefix: Option<Key>,
        start: Option<Key>,
        end: Option<Key>,
        reverse: bool,
        r#where: Option<&str>,
        select: Option<&str>,
        group_by: Option<&str>,
        having: Option<&str>,
        order_by: Option<&str>,
        limit: Option<u64>,
        fields: Option<&str>,
        on_error: &str,
    ) -> PyResult<Bound<'py, PyAny>> {
        let asked = QueryAsked { condition: r#where, select, group_by, having, order_by, limit, fields, on_error };
        let keys = KeysAsked { prefix, start, end, reverse };
        reading::scan(py, self.handle()?.into(), self.handle.all(), keys, &asked)
    }

    /// The format of the records as text, or None. Setting it keeps it with the keyspace; None removes it. Records are not checked.
    #[getter]
    fn fields(&self) -> PyResult<Option<String>> {
        Ok(self.handle()?.format().map_err(errors::store)?.map(|format| format.to_string()))
    }

    /// Sets the format, or removes it with None. Existing items are not checked.
    #[setter]
    fn set_fields(&self, py: Python<'_>, fields: Option<&str>) -> PyResult<()> {
        let (handle, format) = (self.handle()?, fields.map(|fields| fields_of(py, fields)).transpose()?);
        let entry = handle.store().keyspaces().into_iter().find(|entry| is_live(entry, &handle));
        let name = entry.ok_or_else(|| errors::store(Error::Keyspace(KeyspaceError::Gone)))?.name;
        py.detach(|| handle.store().set_keyspace_format(&name, format.as_ref())).map_err(errors::store)
    }

    fn __getitem__<'py>(&self, py: Python<'py>, key: Key) -> PyResult<Bound<'py, PyBytes>> {
        let missing = PyKeyError::new_err(key.text());
        self.get(py, key)?.ok_or(missing)
    }

    fn __setitem__(&self, py: Python<'_>, key: Key, value: Key) -> PyResult<()> {
        self.put(py, key, value, UnixTime(0.0))
    }

    fn __delitem__(&self, py: Python<'_>, key: Key) -> PyResult<()> {
        let missing = PyKeyError::new_err(key.text());
        if self.delete(py, key)? { Ok(()) } else { Err(missing) }
    }

    fn __contains__(&self, py: Python<'_>, key: Key) -> PyResult<bool> {
        Ok(self.get(py, key)?.is_some())
    }

    /// The number of items. Items that are not flushed are looked up on flash, so that none counts twice.
    fn __len__(&self, py: Python<'_>) -> PyResult<usize> {
        let handle = self.handle()?;
        let counts = py.detach(|| handle.store().count_items()).map_err(errors::store)?;
        let own = counts.into_iter().find(|(entry, _)| is_live(entry, &handle));
        own.map(|(_, items)| items as usize).ok_or_else(|| errors::store(Error::Keyspace(KeyspaceError::Gone)))
    }
}

/// Whether the entry belongs to the handle, and was not dropped.
fn is_live(entry: &KeyspaceEntry, handle: &KeyspaceHandle) -> bool {
    entry.id == handle.id() && entry.state == KeyspaceState::Live
}

fn write<'a>(keyspace: KeyspaceRef, key: &'a Key, value: Option<&'a Key>) -> Write<'a> {
    let key = key.bytes();
    match value {
        Some(value) => Write::Put { keyspace, key, value: value.bytes(), flags: 0, expiry: Expiry::NONE },
        None => Write::Delete { keyspace, key },
    }
}
