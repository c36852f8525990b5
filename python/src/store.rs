//! `tapetum.Store`.

use crate::byte_size::ByteSize;
use crate::errors;
use crate::freeze::Freeze;
use crate::handles::StoreHandles;
use crate::key::fields_of;
use crate::keyspace::Keyspace;
use crate::loader::{ImageSet, import};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple, PyType};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use tapetum::images::SetError;
use tapetum::{Error, KeyspaceError, KeyspaceHandle, KeyspaceKind, Options, Sync as SyncMode};

/// The options as given, for opening the store again in another process.
#[derive(Clone)]
struct Opened {
    path: PathBuf,
    memory: Option<u64>,
    units: u16,
    weights: BTreeMap<String, u32>,
    read_only: bool,
}

/// An embedded key-value store. It is also its own default keyspace, with all methods of one.
///
/// `tapetum.open(path)` opens it, and closes it at the end of the interpreter; `Store.open(path)` is for a `with`. One process has it open for
/// writing, or several to read. It does not survive a fork.
#[pyclass(frozen, weakref, extends = Keyspace, module = "tapetum")]
pub struct Store {
    opened: Opened,
}

/// The store of an open object.
pub fn store_of(slf: &Bound<'_, Store>) -> PyResult<tapetum::Store> {
    Ok(slf.as_super().get().handle()?.store().clone())
}

fn sync_mode(text: &str) -> PyResult<SyncMode> {
    match text {
        "always" => Ok(SyncMode::Always),
        "everysec" => Ok(SyncMode::EverySecond),
        "no" => Ok(SyncMode::No),
        other => Err(PyValueError::new_err(format!("sync is {other:?}: say always, everysec or no"))),
    }
}

/// Units for a drive: `count` threads for the slow programs, and a few for the rest.
fn units(count: u16) -> Vec<(String, u16)> {
    let some = |name: &str, units| (name.to_owned(), units);
    match count {
        0 => Vec::new(),
        count => vec![some("jpeg_decode", count), some("resize", count.div_ceil(4))],
    }
}

/// The keyspace of a name; of this kind, if one is asked for.
fn keyspace_of(
    store: &tapetum::Store,
    name: &str,
    create: bool,
    ordered: Option<bool>,
) -> Result<KeyspaceHandle, Error> {
    let kind = if ordered == Some(true) { KeyspaceKind::Ordered } else { KeyspaceKind::Hashed };
    let found = match store.keyspace(name) {
        Err(Error::Keyspace(KeyspaceError::Unknown { .. })) if create => store.keyspace_or_create_of(name, kind)?,
        found => found?,
    };
    match found.keyspace().kind() {
        has if has == kind || ordered.is_none() => Ok(found),
        has => Err(Error::Keyspace(KeyspaceError::IsOfKind { name: name.into(), kind: has })),
    }
}

/// The handles of an open object.
pub fn handles_of<'a>(slf: &'a Bound<'_, Store>) -> &'a Arc<StoreHandles> {
    slf.as_super().get().held().all()
}

#[pymethods]
impl Store {
    /// Opens the store at a directory, file or block device, and creates it if there is none and `create` is true.
    ///
    /// `capacity` and `memory` are bytes, or text such as "1GiB". `sync` says when an acknowledged write is durable: "always", "everysec" or
    /// "no". `units` are threads of the drive that decode; `weights` are the shares of applications in them, by name. Raises `Error` if there
    /// is no store to open, if another process has it open, or if a size does not fit, and ValueError for a wrong argument.
    #[classmethod]
    #[pyo3(signature = (path, *, capacity=None, memory=None, sync="always", create=true, read_only=false, units=0, weights=None))]
    #[expect(clippy::too_many_arguments, reason = "by keyword in Python")]
    fn open(
        _class: &Bound<'_, PyType>,
        py: Python<'_>,
        path: PathBuf,
        capacity: Option<ByteSize>,
        memory: Option<ByteSize>,
        sync: &str,
        create: bool,
        read_only: bool,
        units: u16,
        weights: Option<BTreeMap<String, u32>>,
    ) -> PyResult<Py<Store>> {
        let weights = weights.unwrap_or_default();
        if units == 0 && !weights.is_empty() {
            return Err(PyValueError::new_err(
                "weights divide the time of the drive's units, and there are none: give units too, such as units=2",
            ));
        }
        let (capacity, memory) = (capacity.map(|size| size.0), memory.map(|size| size.0));
        let mut options = Options::new().sync(sync_mode(sync)?).create(create && !read_only);
        options = options.compute_units(self::units(units)).weights(weights.clone().into_iter().collect());
        options.capacity_bytes = capacity;
        options.memory_bytes = memory;
        let open = || if read_only { options.open_read_only(&path) } else { options.open(&path) };
        let store = py.detach(open).map_err(errors::store)?;
        let own = store.keyspace(tapetum::DEFAULT_KEYSPACE_NAME).map_err(errors::store)?;
        let store = Store { opened: Opened { path, memory, units, weights, read_only } };
        let own = Keyspace::of(own, &Arc::default())?;
        Py::new(py, PyClassInitializer::from(own).add_subclass(store))
    }

    /// Makes acknowledged writes durable, and writes a checkpoint, so that the store opens fast. From then on its keyspaces, iterators and
    /// loaders raise `ClosedError`.
    fn close(slf: &Bound<'_, Self>) -> PyResult<()> {
        let held = slf.as_super().get().held();
        let Some(own) = held.take()? else { return Ok(()) };
        let close = || {
            held.all().close();
            own.store().close()
        };
        slf.py().detach(close).map_err(errors::store)
    }

    /// Whether it was closed.
    #[getter]
    fn closed(slf: &Bound<'_, Self>) -> bool {
        slf.as_super().get().handle().is_err()
    }

    /// The path that it was opened with.
    #[getter]
    fn path(&self) -> PathBuf {
        self.opened.path.clone()
    }

    /// Whether it was opened with `read_only=True`: writes raise `Error`.
    #[getter]
    fn read_only(&self) -> bool {
        self.opened.read_only
    }

    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(slf: &Bound<'_, Self>, _exception: &Bound<'_, PyTuple>) -> PyResult<bool> {
        Store::close(slf)?;
        Ok(false)
    }

    fn __repr__(slf: &Bound<'_, Self>) -> String {
        let opened = &slf.get().opened;
        let state = match store_of(slf) {
            Ok(_) if opened.read_only => "read only",
            Ok(_) => "open",
            Err(_) => "closed",
        };
        format!("<tapetum.Store {:?}, {state}>", opened.path)
    }

    /// For spawned processes, which open a read-only store again.
    fn __reduce__<'py>(slf: &Bound<'py, Self>) -> PyResult<(Bound<'py, PyAny>, Bound<'py, PyTuple>)> {
        let Opened { path, memory, units, weights, read_only } = &slf.get().opened;
        if !read_only {
            return Err(errors::store(
                "a store that is open for writing belongs to one process: open it with read_only=True to share it with workers",
            ));
        }
        let py = slf.py();
        let reopen = py.import("tapetum")?.getattr("_reopen")?;
        Ok((reopen, (path.clone(), *memory, *units, weights.clone()).into_pyobject(py)?))
    }

    /// The names of the keyspaces.
    fn keyspaces(slf: &Bound<'_, Self>) -> PyResult<Vec<String>> {
        let listed = store_of(slf)?.keyspaces();
        let live = listed.into_iter().filter(|keyspace| keyspace.state == tapetum::KeyspaceState::Live);
        Ok(live.map(|keyspace| keyspace.name).collect())
    }

    /// The keyspace of a name. `create` creates it if it does not exist. With `ordered=True` it must be an ordered one, with False it must
    /// not. `fields` is the format of its records, which is stored; `Keyspace.fields = ...` changes it.
    #[pyo3(signature = (name, *, create=false, ordered=None, fields=None))]
    fn keyspace(
        slf: &Bound<'_, Self>,
        name: &str,
        create: bool,
        ordered: Option<bool>,
        fields: Option<&str>,
    ) -> PyResult<Keyspace> {
        let (store, py) = (store_of(slf)?, slf.py());
        let format = fields.map(|fields| fields_of(py, fields)).transpose()?;
        let found = py.detach(|| keyspace_of(&store, name, create, ordered)).map_err(errors::store)?;
        if let Some(format) = format {
            let stored = py.detach(|| found.format()).map_err(errors::store)?;
            match stored {
                Some(stored) if stored == format => {}
                Some(stored) => {
                    let told = format!(
                        "records of the keyspace {name:?} are {stored}: leave fields out; store.keyspace({name:?}).fields = \"...\" \
                         changes them, and scan(fields=...) reads them otherwise once"
                    );
                    return Err(errors::store(told));
                }
                None => py.detach(|| store.set_keyspace_format(name, Some(&format))).map_err(errors::store)?,
            }
        }
        Keyspace::of(found, handles_of(slf))
    }

    /// Freezes the store: all keyspaces as they are now, for so many seconds unless it is renewed or released. It may keep `flash` bytes of
    /// flash from writers, a quarter of the store's capacity if that is not given.
    #[pyo3(signature = (seconds=60.0, *, owner="python", flash=None), text_signature = "($self, seconds=60, *, owner='python', flash=None)")]
    fn freeze(slf: &Bound<'_, Self>, seconds: f64, owner: &str, flash: Option<ByteSize>) -> PyResult<Freeze> {
        Freeze::take(slf.py(), &store_of(slf)?, handles_of(slf), seconds, owner, flash)
    }

    /// Drops a keyspace with all its items. An `Error` if there is none of this name.
    fn drop_keyspace(slf: &Bound<'_, Self>, name: &str) -> PyResult<()> {
        let store = store_of(slf)?;
        slf.py().detach(|| store.drop_keyspace(name)).map_err(errors::store)
    }

    /// Imports a folder of JPEG, PNG and WebP files into a keyspace, with one folder for each class, and returns their `ImageSet`. Other files
    /// are left out, with a UserWarning. `progress(files, of_files, bytes)` is called now and then; what it raises ends the import. Raises
    /// `Error` if the folder has no pictures, or one of a class has none.
    #[pyo3(signature = (folder, *, keyspace="images", progress=None))]
    fn import_images(
        slf: &Bound<'_, Self>,
        folder: PathBuf,
        keyspace: &str,
        progress: Option<Py<PyAny>>,
    ) -> PyResult<ImageSet> {
        let (store, py) = (store_of(slf)?, slf.py());
        let is_new = matches!(store.keyspace(keyspace), Err(Error::Keyspace(KeyspaceError::Unknown { .. })));
        let handle = Store::keyspace(slf, keyspace, true, None, None)?.handle()?;
        let imported = import(py, &handle, &folder, progress.as_ref());
        let loaded = imported.and_then(|()| ImageSet::load(py, &handle, handles_of(slf), keyspace));
        if is_new && loaded.is_err() {
            // The import's own error is more informative than one of the drop.
            let _ = py.detach(|| store.drop_keyspace(keyspace));
        }
        loaded
    }

    /// The set of pictures imported into a keyspace. An `Error` if there is none.
    #[pyo3(signature = (keyspace="images"))]
    fn images(slf: &Bound<'_, Self>, keyspace: &str) -> PyResult<ImageSet> {
        if !Store::keyspaces(slf)?.iter().any(|name| name == keyspace) {
            return Err(errors::store(SetError::None { keyspace: keyspace.into() }));
        }
        let handle = Store::keyspace(slf, keyspace, false, None, None)?.handle()?;
        ImageSet::load(slf.py(), &handle, handles_of(slf), keyspace)
    }

    /// The store's figures by name, as numbers; names are those of `tapetum stats`, such as `curr_items`, which is an estimate, and end in their
    /// unit, such as `_bytes` or `_us`. `keyspace_items:NAME` are those of keyspaces. Since the store was opened, unless they are a state.
    fn stats<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyDict>> {
        let (store, py) = (store_of(slf)?, slf.py());
        let (figures, keyspaces) = py.detach(|| (store.stats().figures(), store.keyspace_items()));
        let stats = PyDict::new(py);
        figures.iter().try_for_each(|figure| stats.set_item(figure.name, figure.value))?;
        for (keyspace, items) in keyspaces {
            stats.set_item(format!("keyspace_items:{}", keyspace.name), items)?;
        }
        Ok(stats)
    }

    /// Counters of the drive's programs as stages of pipelines, by name: `tasks`, `bytes_in`, `bytes_out`, `unit_us`, which are microseconds of
    /// work, and `failures`.
    fn stages<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyDict>> {
        let stages = PyDict::new(slf.py());
        for stage in store_of(slf)?.stage_counters() {
            let of_one = PyDict::new(slf.py());
            of_one.set_item("tasks", stage.tasks)?;
            of_one.set_item("bytes_in", stage.bytes_in)?;
            of_one.set_item("bytes_out", stage.bytes_out)?;
            of_one.set_item("unit_us", stage.unit_us)?;
            of_one.set_item("failures", stage.failures)?;
            stages.set_item(stage.name, of_one)?;
        }
        Ok(stages)
    }

    /// Counters of applications on the drive's units, by name: `weight`, `pipelines` that ended, such as those of pictures, and `unit_us`, which
    /// are microseconds of work.
    fn applications<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyDict>> {
        let applications = PyDict::new(slf.py());
        for application in store_of(slf)?.applications() {
            let of_one = PyDict::new(slf.py());
            of_one.set_item("weight", application.weight)?;
            of_one.set_item("pipelines", application.pipelines)?;
            of_one.set_item("unit_us", application.unit_us)?;
            applications.set_item(application.name, of_one)?;
        }
        Ok(applications)
    }
}
