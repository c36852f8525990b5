//! Sets of pictures, and the threads that make batches of them.

use crate::byte_size::ByteSize;
use crate::errors;
use crate::handles::{Handle, StoreHandles};
use crate::keyspace::Keyspace;
use crate::pipeline::{Pipeline, shape_of};
use crate::samples::Samples;
use crate::words::PythonWords;
use pyo3::exceptions::PyUserWarning;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};
use std::ffi::CString;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tapetum::KeyspaceHandle;
use tapetum::images::{
    BatchRequest, BoundPlan, ENDINGS_NAMED, ImageError, LeftOut, LoaderOptions, PictureBatch, PictureLoader,
    epoch_order as order_of,
};

/// How often `progress` is called: each so many files.
const PROGRESS_FILES: u64 = 64;

/// Imports a folder, and warns of files that it does not take.
pub fn import(py: Python<'_>, keyspace: &KeyspaceHandle, folder: &Path, progress: Option<&Py<PyAny>>) -> PyResult<()> {
    let mut raised = None;
    let imported = py.detach(|| {
        tapetum::images::import_folder(keyspace, folder, |report, total| {
            if report.files % PROGRESS_FILES != 0 && report.files != total {
                return true;
            }
            Python::attach(|py| {
                let called = progress.map(|progress| progress.call1(py, (report.files, total, report.bytes)));
                let checked = called.transpose().and_then(|_| py.check_signals());
                checked.map_err(|error| raised = Some(error)).is_ok()
            })
        })
    });
    raised.map_or(Ok(()), Err)?;
    let left_out = imported.map_err(errors::store)?.left_out;
    if left_out.files() == 0 { Ok(()) } else { warn_of(py, folder, &left_out) }
}

/// Warns whoever called the package.
fn warn_of(py: Python<'_>, folder: &Path, left_out: &LeftOut) -> PyResult<()> {
    let files = left_out.files();
    let told = format!(
        "{}: {files} files were left out: {left_out}; pictures are {ENDINGS_NAMED} files: convert others first",
        folder.display()
    );
    PyErr::warn(py, &py.get_type::<PyUserWarning>(), &CString::new(told.replace('\0', " "))?, 1)
}

/// The pictures that were imported into a keyspace, in the order of their paths. `len(images)` counts them; an item is a place from 0 on.
///
/// `store.import_images(folder)` and `store.images()` give it, and `tapetum.Loader` takes it.
#[pyclass(frozen, module = "tapetum")]
pub struct ImageSet {
    set: Arc<tapetum::images::ImageSet>,
    keyspace: Handle<KeyspaceHandle>,
    name: String,
}

impl ImageSet {
    pub fn load(
        py: Python<'_>,
        keyspace: &KeyspaceHandle,
        handles: &Arc<StoreHandles>,
        name: &str,
    ) -> PyResult<ImageSet> {
        let set = py.detach(|| tapetum::images::ImageSet::load(keyspace, name)).map_err(errors::store)?;
        Ok(ImageSet { set: Arc::new(set), keyspace: handles.hold(keyspace.clone())?, name: name.into() })
    }
}

#[pymethods]
impl ImageSet {
    fn __len__(&self) -> usize {
        self.set.len()
    }

    fn __repr__(&self) -> String {
        format!("<tapetum.ImageSet {:?}: {} pictures, {} classes>", self.name, self.set.len(), self.set.classes().len())
    }

    /// The name of its keyspace.
    #[getter]
    fn name(&self) -> &str {
        &self.name
    }

    /// The names of the classes, which are those of their folders; a label is a place among them, from 0 on.
    #[getter]
    fn classes(&self) -> Vec<String> {
        self.set.classes().to_vec()
    }

    /// The keyspace that has the files.
    #[getter]
    fn keyspace(&self) -> PyResult<Keyspace> {
        Keyspace::of((*self.keyspace.get()?).clone(), self.keyspace.all())
    }

    /// The key of an item, which is its path below the folder, as bytes. An IndexError if there is no such item.
    fn key<'py>(&self, py: Python<'py>, item: usize) -> PyResult<Bound<'py, PyBytes>> {
        self.check(item)?;
        Ok(PyBytes::new(py, self.set.key(item)))
    }

    /// The label of an item, its place in `classes`. An IndexError if there is no such item.
    fn label(&self, item: usize) -> PyResult<u32> {
        self.check(item)?;
        Ok(self.set.labels()[item])
    }
}

impl ImageSet {
    fn check(&self, item: usize) -> PyResult<()> {
        let missing = || format!("there is no item {item}: the set has {}", self.set.len());
        if item < self.set.len() { Ok(()) } else { Err(pyo3::exceptions::PyIndexError::new_err(missing())) }
    }
}

/// Threads that make batches ahead. The classes of the package that are written in Python say which.
#[pyclass(frozen, module = "tapetum")]
pub struct NativeLoader {
    loader: Handle<PictureLoader>,
    application: String,
    shape: ((u32, u32, u32), &'static str),
}

/// Rows that failed, why, and whether they were late.
type Failures = Vec<(usize, String, bool)>;

/// Samples, labels, items and failures of a batch.
type TakenBatch = (Samples, Vec<u32>, Vec<u64>, Failures);

#[pymethods]
impl NativeLoader {
    /// `file_bytes` is what files take of which the set does not say it.
    #[new]
    #[pyo3(signature = (set, pipeline, threads, *, application, file_bytes=None))]
    fn new(
        py: Python<'_>,
        set: &ImageSet,
        pipeline: &Pipeline,
        threads: usize,
        application: String,
        file_bytes: Option<ByteSize>,
    ) -> PyResult<NativeLoader> {
        let keyspace = set.keyspace.get()?;
        let no_batch = || errors::pipeline("the pipeline ends in no batch: add one, such as batch 128");
        let (_, shape) = pipeline.plan.batch().ok_or_else(no_batch)?;
        let mut options = LoaderOptions { threads, ..LoaderOptions::default() };
        if let Some(ByteSize(bytes)) = file_bytes {
            options.file_bytes = usize::try_from(bytes).unwrap_or(usize::MAX / 4).min(usize::MAX / 4);
        }
        let start = || {
            let bound = BoundPlan::new(keyspace.store(), &pipeline.plan)?;
            let bound = bound.of_application(keyspace.store().application(&application)?);
            PictureLoader::start(&keyspace, &set.set, &bound, options)
        };
        let started = py.detach(start).map_err(errors::store)?;
        let loader = set.keyspace.all().hold(started)?;
        Ok(NativeLoader { loader, application, shape: shape_of(shape) })
    }

    /// Asks for a batch of these items.
    fn submit(&self, items: Vec<u64>, seed: u64, epoch: u64) -> PyResult<()> {
        self.loader.get()?.submit(BatchRequest { items, seed, epoch });
        Ok(())
    }

    #[getter]
    fn pending(&self) -> PyResult<u64> {
        Ok(self.loader.get()?.pending())
    }

    #[getter]
    fn shape(&self) -> ((u32, u32, u32), &'static str) {
        self.shape
    }

    /// The next batch that was asked for: samples, labels, items, and the rows that failed, which `skip` leaves out. None when it is not
    /// there within so many seconds.
    fn next(&self, py: Python<'_>, timeout: f64, skip: bool) -> PyResult<Option<TakenBatch>> {
        let loader = self.loader.get()?;
        let timeout = Duration::try_from_secs_f64(timeout).unwrap_or_default();
        let Some(batch) = py.detach(|| loader.next(timeout)) else { return Ok(None) };
        let batch = batch.map_err(errors::store)?;
        let failure = |(row, error): &(usize, tapetum::images::PictureError)| {
            (*row, error.words(), error.image_error() == Some(ImageError::TooLong))
        };
        let failures = batch.failed.iter().map(failure).collect();
        let batch = if skip { py.detach(|| batch.without_failed()) } else { batch };
        let PictureBatch { samples, labels, items, .. } = batch;
        Ok(Some((Samples::new(samples), labels, items, failures)))
    }

    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let loader = self.loader.get()?;
        let of = loader.stats();
        let stats = PyDict::new(py);
        stats.set_item("batches", of.batches)?;
        stats.set_item("pictures", of.pictures)?;
        stats.set_item("failed", of.failed)?;
        stats.set_item("threads", of.threads)?;
        stats.set_item("waited_us", of.waited_us)?;
        stats.set_item("application", &self.application)?;
        let applications = loader.keyspace().store().applications();
        if let Some(own) = applications.iter().find(|of| of.name == self.application) {
            stats.set_item("weight", own.weight)?;
            stats.set_item("unit_us", own.unit_us)?;
        }
        Ok(stats)
    }
}

/// The items of a set in the order of an epoch, as 64-bit numbers.
#[pyfunction]
pub fn epoch_order(py: Python<'_>, count: u64, seed: u64, epoch: u64) -> Samples {
    let order = py.detach(|| order_of(count, seed, epoch).into_iter().flat_map(u64::to_le_bytes).collect());
    Samples::new(order)
}
