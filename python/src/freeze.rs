//! `tapetum.Freeze`: a store at one moment.

use crate::byte_size::ByteSize;
use crate::errors;
use crate::handles::{Handle, StoreHandles};
use crate::key::Key;
use crate::reading::{self, KeysAsked, QueryAsked};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};
use std::sync::Arc;
use std::time::Duration;
use tapetum::FreezeOptions;

/// A store at one moment: all of its keyspaces. What is read of it is the same each time, whatever is written meanwhile.
///
/// It keeps flash that was overwritten or deleted since. It ends when it is released, when its time is over, or when writers need that flash.
#[pyclass(frozen, module = "tapetum")]
pub struct Freeze {
    freeze: Handle<tapetum::Freeze>,
}

/// A keyspace of a freeze: scans and queries of it give the same each time. They raise `Error` once the freeze has ended.
#[pyclass(frozen, module = "tapetum")]
pub struct FrozenKeyspace {
    keyspace: Handle<tapetum::FrozenKeyspace>,
}

fn lasts(seconds: f64) -> PyResult<Duration> {
    let refused = |_| PyValueError::new_err(format!("seconds is {seconds}: give how long it is to last, such as 60"));
    Duration::try_from_secs_f64(seconds).map_err(refused)
}

impl Freeze {
    pub fn take(
        py: Python<'_>,
        store: &tapetum::Store,
        all: &Arc<StoreHandles>,
        seconds: f64,
        owner: &str,
        flash: Option<ByteSize>,
    ) -> PyResult<Freeze> {
        let flash_bytes_max = flash.map(|ByteSize(bytes)| bytes);
        let options = FreezeOptions { owner: owner.into(), lasts: lasts(seconds)?, flash_bytes_max };
        let freeze = py.detach(|| store.freeze(&options)).map_err(errors::store)?;
        Ok(Freeze { freeze: all.hold(freeze)? })
    }
}

#[pymethods]
impl Freeze {
    /// The id by which others name it.
    #[getter]
    fn id(&self) -> PyResult<u64> {
        Ok(self.freeze.get()?.id())
    }

    /// The names of the keyspaces that there were.
    fn keyspaces(&self) -> PyResult<Vec<String>> {
        let keyspaces = self.freeze.get()?.keyspaces();
        Ok(keyspaces.into_iter().map(|keyspace| keyspace.entry().name.clone()).collect())
    }

    /// The keyspace that had this name, whether it still exists or not. An `Error` if there was none.
    #[pyo3(signature = (name="default"))]
    fn keyspace(&self, name: &str) -> PyResult<FrozenKeyspace> {
        let found = self.freeze.get()?.keyspace(name).map_err(errors::store)?;
        Ok(FrozenKeyspace { keyspace: self.freeze.all().hold(found)? })
    }

    /// Lets it last so many seconds from now on. An `Error` if it has ended.
    fn renew(&self, py: Python<'_>, seconds: f64) -> PyResult<()> {
        let (freeze, lasts) = (self.freeze.get()?, lasts(seconds)?);
        py.detach(|| freeze.renew(lasts)).map_err(errors::store)
    }

    /// Ends it: the flash that it kept is free. A second call does nothing.
    fn release(&self, py: Python<'_>) -> PyResult<()> {
        if let Some(freeze) = self.freeze.take()? {
            py.detach(|| freeze.release());
        }
        Ok(())
    }

    /// Its figures by name: `age_seconds`, `left_seconds` and `pause_seconds` as floats, `flash_bytes` and `memory_bytes` that it keeps,
    /// `keyspaces`, `id` and `owner`. An `Error` if it has ended.
    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let freeze = self.freeze.get()?;
        freeze.check().map_err(errors::store)?;
        let report = py.detach(|| freeze.report());
        let stats = PyDict::new(py);
        stats.set_item("id", report.id)?;
        stats.set_item("owner", report.owner)?;
        stats.set_item("age_seconds", report.age_us as f64 / 1e6)?;
        stats.set_item("left_seconds", report.left_us as f64 / 1e6)?;
        stats.set_item("pause_seconds", report.pause_us as f64 / 1e6)?;
        stats.set_item("keyspaces", report.keyspaces)?;
        stats.set_item("flash_bytes", report.flash_bytes)?;
        stats.set_item("memory_bytes", report.memory_bytes)?;
        Ok(stats)
    }

    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, py: Python<'_>, _exception: &Bound<'_, PyTuple>) -> PyResult<bool> {
        self.release(py)?;
        Ok(false)
    }
}

#[pymethods]
impl FrozenKeyspace {
    /// As `Keyspace.scan`, with its arguments, results and errors, of the moment of the freeze.
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
        let keyspace = self.keyspace.get()?.reading().clone();
        reading::scan(py, keyspace, self.keyspace.all(), keys, &asked)
    }

    /// The name of the keyspace.
    #[getter]
    fn name(&self) -> PyResult<String> {
        Ok(self.keyspace.get()?.entry().name.clone())
    }

    /// The format that the records had, if it was set.
    #[getter]
    fn fields(&self) -> PyResult<Option<String>> {
        Ok(self.keyspace.get()?.format().map_err(errors::store)?.map(|format| format.to_string()))
    }
}
