//! `tapetum.Store`.

use crate::errors;
use crate::keyspace::{Batch, Items, Key, Keyspace};
use crate::loader::{ImageSet, import};
use crate::owned::Owned;
use pyo3::exceptions::{PyKeyError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyTuple, PyType};
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};
use tapetum::{KeyspaceHandle, KeyspaceKind, Options, Sync as SyncMode};

/// Options as they were given, to open the store again in another process.
#[derive(Clone)]
struct Opened {
    path: PathBuf,
    memory: Option<u64>,
    units: u16,
    read_only: bool,
}

/// An embedded key-value store.
#[pyclass(frozen, weakref, module = "tapetum")]
pub struct Store {
    /// `None` when it was closed.
    store: Owned<Mutex<Option<tapetum::Store>>>,
    opened: Opened,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Store {
    pub fn store(&self) -> PyResult<tapetum::Store> {
        let closed = || errors::ClosedError::new_err("the store was closed: open it again");
        lock(self.store.get()?).clone().ok_or_else(closed)
    }

    fn default_keyspace(&self) -> PyResult<KeyspaceHandle> {
        self.store()?.keyspace(tapetum::DEFAULT_KEYSPACE_NAME).map_err(errors::store)
    }
}

fn sync_mode(text: &str) -> PyResult<SyncMode> {
    match text {
        "always" => Ok(SyncMode::Always),
        "everysec" => Ok(SyncMode::EverySecond),
        "no" => Ok(SyncMode::No),
        other => Err(PyValueError::new_err(format!("sync is {other:?}: say always, everysec or no"))),
    }
}

/// Threads for the programs that take long, and a few for the rest.
fn units(count: u16) -> Vec<(String, u16)> {
    let some = |name: &str, units| (name.to_owned(), units);
    match count {
        0 => Vec::new(),
        count => vec![some("jpeg_decode", count), some("resize", count.div_ceil(4))],
    }
}

#[pymethods]
impl Store {
    /// Opens the store at a directory, file or block device; makes one where there is none.
    #[classmethod]
    #[pyo3(signature = (path, *, capacity=None, memory=None, sync="always", create=true, read_only=false, units=0))]
    #[expect(clippy::too_many_arguments, reason = "by keyword in Python")]
    fn open(
        _class: &Bound<'_, PyType>,
        py: Python<'_>,
        path: PathBuf,
        capacity: Option<u64>,
        memory: Option<u64>,
        sync: &str,
        create: bool,
        read_only: bool,
        units: u16,
    ) -> PyResult<Store> {
        let mut options =
            Options::new().sync(sync_mode(sync)?).create(create && !read_only).compute_units(self::units(units));
        options.capacity_bytes = capacity;
        options.memory_bytes = memory.unwrap_or(options.memory_bytes);
        let open = || if read_only { options.open_read_only(&path) } else { options.open(&path) };
        let store = py.detach(open).map_err(errors::store)?;
        let store = Owned::new(Mutex::new(Some(store)));
        Ok(Store { store, opened: Opened { path, memory, units, read_only } })
    }

    /// Makes what was acknowledged durable, and leaves a checkpoint, so that the store opens at once. Whatever uses it ends with an error.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        let store = lock(self.store.get()?).take();
        let Some(store) = store else { return Ok(()) };
        py.detach(|| store.close()).map_err(errors::store)
    }

    #[getter]
    fn closed(&self) -> PyResult<bool> {
        Ok(lock(self.store.get()?).is_none())
    }

    #[getter]
    fn path(&self) -> PathBuf {
        self.opened.path.clone()
    }

    #[getter]
    fn read_only(&self) -> bool {
        self.opened.read_only
    }

    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, py: Python<'_>, _exception: &Bound<'_, PyTuple>) -> PyResult<bool> {
        self.close(py)?;
        Ok(false)
    }

    fn __repr__(&self) -> String {
        let state = match self.store() {
            Ok(_) if self.opened.read_only => "read only",
            Ok(_) => "open",
            Err(_) => "closed",
        };
        format!("<tapetum.Store {:?}, {state}>", self.opened.path)
    }

    /// Processes that are spawned open a store that is read anew.
    fn __reduce__<'py>(slf: &Bound<'py, Self>) -> PyResult<(Bound<'py, PyAny>, Bound<'py, PyTuple>)> {
        let Opened { path, memory, units, read_only } = &slf.get().opened;
        if !read_only {
            return Err(errors::store(
                "a store that is open for writing belongs to one process: open it with read_only=True to share it with workers",
            ));
        }
        let py = slf.py();
        let reopen = py.import("tapetum")?.getattr("_reopen")?;
        Ok((reopen, (path.clone(), *memory, *units).into_pyobject(py)?))
    }

    /// The value of a key; None when there is no such key.
    fn get<'py>(&self, py: Python<'py>, key: Key) -> PyResult<Option<Bound<'py, PyBytes>>> {
        Keyspace::of(self.default_keyspace()?).get(py, key)
    }

    /// Stores a value. `expiry` is when it goes, in unix seconds; 0 is never.
    #[pyo3(signature = (key, value, *, expiry=0))]
    fn put(&self, py: Python<'_>, key: Key, value: Key, expiry: u32) -> PyResult<()> {
        Keyspace::of(self.default_keyspace()?).put(py, key, value, expiry)
    }

    /// Deletes a key; whether it was there.
    fn delete(&self, py: Python<'_>, key: Key) -> PyResult<bool> {
        Keyspace::of(self.default_keyspace()?).delete(py, key)
    }

    /// Reads several keys at once, in their order.
    fn multi_get<'py>(&self, py: Python<'py>, keys: Vec<Key>) -> PyResult<Vec<Option<Bound<'py, PyBytes>>>> {
        Keyspace::of(self.default_keyspace()?).multi_get(py, keys)
    }

    /// Writes pairs of key and value, all or none, also across a crash; a value of None deletes.
    fn batch(&self, py: Python<'_>, writes: Batch) -> PyResult<()> {
        Keyspace::of(self.default_keyspace()?).batch(py, writes)
    }

    /// The items whose keys have a prefix, as pairs of key and value.
    #[pyo3(signature = (prefix=None))]
    fn scan(&self, prefix: Option<Key>) -> PyResult<Items> {
        Keyspace::of(self.default_keyspace()?).scan(prefix, None, None, false)
    }

    fn __getitem__<'py>(&self, py: Python<'py>, key: Key) -> PyResult<Bound<'py, PyBytes>> {
        let missing = PyKeyError::new_err(key.text());
        self.get(py, key)?.ok_or(missing)
    }

    fn __setitem__(&self, py: Python<'_>, key: Key, value: Key) -> PyResult<()> {
        self.put(py, key, value, 0)
    }

    fn __delitem__(&self, py: Python<'_>, key: Key) -> PyResult<()> {
        let missing = PyKeyError::new_err(key.text());
        if self.delete(py, key)? { Ok(()) } else { Err(missing) }
    }

    fn __contains__(&self, py: Python<'_>, key: Key) -> PyResult<bool> {
        Ok(self.get(py, key)?.is_some())
    }

    /// The names of the keyspaces.
    fn keyspaces(&self) -> PyResult<Vec<String>> {
        let listed = self.store()?.keyspaces();
        let live = listed.into_iter().filter(|keyspace| keyspace.state == tapetum::KeyspaceState::Live);
        Ok(live.map(|keyspace| keyspace.name).collect())
    }

    /// The keyspace of a name. `create` makes it where there is none; `ordered` keeps its keys in order.
    #[pyo3(signature = (name, *, create=false, ordered=false))]
    fn keyspace(&self, py: Python<'_>, name: &str, create: bool, ordered: bool) -> PyResult<Keyspace> {
        let store = self.store()?;
        let kind = if ordered { KeyspaceKind::Ordered } else { KeyspaceKind::Hashed };
        let found = py.detach(|| match store.keyspace(name) {
            Err(_) if create => store.create_keyspace_of(name, kind),
            found => found,
        });
        Ok(Keyspace::of(found.map_err(errors::store)?))
    }

    /// Drops a keyspace with all that is in it.
    fn drop_keyspace(&self, py: Python<'_>, name: &str) -> PyResult<()> {
        let store = self.store()?;
        py.detach(|| store.drop_keyspace(name)).map_err(errors::store)
    }

    /// Imports a folder of JPEG files into a keyspace, a folder a class. `progress(files, of_files, bytes)` is called now and then.
    #[pyo3(signature = (folder, *, keyspace="images", progress=None))]
    fn import_images(
        &self,
        py: Python<'_>,
        folder: PathBuf,
        keyspace: &str,
        progress: Option<Py<PyAny>>,
    ) -> PyResult<ImageSet> {
        let handle = self.keyspace(py, keyspace, true, false)?;
        import(py, handle.handle()?, &folder, progress.as_ref())?;
        self.images(py, keyspace)
    }

    /// The set of pictures that was imported into a keyspace.
    #[pyo3(signature = (keyspace="images"))]
    fn images(&self, py: Python<'_>, keyspace: &str) -> PyResult<ImageSet> {
        let handle = self.keyspace(py, keyspace, false, false)?;
        ImageSet::load(py, handle.handle()?, keyspace)
    }

    /// What the drive's programs did as stages of pipelines: tasks, bytes in and out, microseconds, failures, by name.
    fn stages<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let stages = PyDict::new(py);
        for stage in self.store()?.stage_counters() {
            let of_one = PyDict::new(py);
            of_one.set_item("tasks", stage.tasks)?;
            of_one.set_item("bytes_in", stage.bytes_in)?;
            of_one.set_item("bytes_out", stage.bytes_out)?;
            of_one.set_item("unit_us", stage.unit_us)?;
            of_one.set_item("failures", stage.failures)?;
            stages.set_item(stage.name, of_one)?;
        }
        Ok(stages)
    }
}
