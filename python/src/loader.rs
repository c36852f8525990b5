//! Sets of pictures, and the threads that make batches of them.

use crate::errors;
use crate::keyspace::Keyspace;
use crate::owned::Owned;
use crate::pipeline::{Pipeline, shape_of};
use crate::samples::Samples;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tapetum::KeyspaceHandle;
use tapetum::images::{BatchRequest, BoundPlan, LoaderOptions, PictureBatch, PictureLoader, epoch_order as order_of};

/// How often `progress` is called: each so many files.
const PROGRESS_FILES: u64 = 64;

/// Imports a folder.
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
    match raised {
        Some(error) => Err(error),
        None => imported.map(|_| ()).map_err(errors::store),
    }
}

/// The pictures that were imported into a keyspace, in order.
#[pyclass(frozen, module = "tapetum")]
pub struct ImageSet {
    set: Arc<tapetum::images::ImageSet>,
    keyspace: Owned<KeyspaceHandle>,
    name: String,
}

impl ImageSet {
    pub fn load(py: Python<'_>, keyspace: &KeyspaceHandle, name: &str) -> PyResult<ImageSet> {
        let set = py.detach(|| tapetum::images::ImageSet::load(keyspace, name)).map_err(errors::store)?;
        Ok(ImageSet { set: Arc::new(set), keyspace: Owned::new(keyspace.clone()), name: name.into() })
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

    #[getter]
    fn name(&self) -> &str {
        &self.name
    }

    /// The names of the classes; a label is a place among them.
    #[getter]
    fn classes(&self) -> Vec<String> {
        self.set.classes().to_vec()
    }

    #[getter]
    fn keyspace(&self) -> PyResult<Keyspace> {
        Ok(Keyspace::of(self.keyspace.get()?.clone()))
    }

    fn key<'py>(&self, py: Python<'py>, item: usize) -> PyResult<Bound<'py, PyBytes>> {
        self.check(item)?;
        Ok(PyBytes::new(py, self.set.key(item)))
    }

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
    loader: Owned<PictureLoader>,
    shape: ((u32, u32, u32), &'static str),
}

/// Rows that failed, and why.
type Failures = Vec<(usize, String)>;

/// Samples, labels, items and failures of a batch.
type TakenBatch = (Samples, Vec<u32>, Vec<u64>, Failures);

#[pymethods]
impl NativeLoader {
    #[new]
    fn new(py: Python<'_>, set: &ImageSet, pipeline: &Pipeline, threads: usize) -> PyResult<NativeLoader> {
        let keyspace = set.keyspace.get()?;
        let no_batch = || errors::pipeline("the pipeline ends in no batch: add one, such as batch 128");
        let (_, shape) = pipeline.plan.batch().ok_or_else(no_batch)?;
        let start = || {
            let bound = BoundPlan::new(keyspace.store(), &pipeline.plan)?;
            PictureLoader::start(keyspace, &set.set, &bound, LoaderOptions { threads, ..LoaderOptions::default() })
        };
        let loader = Owned::new(py.detach(start).map_err(errors::store)?);
        Ok(NativeLoader { loader, shape: shape_of(shape) })
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
        let failures = batch.failed.iter().map(|(row, error)| (*row, error.to_string())).collect();
        let batch = if skip { py.detach(|| batch.without_failed()) } else { batch };
        let PictureBatch { samples, labels, items, .. } = batch;
        Ok(Some((Samples::new(samples), labels, items, failures)))
    }

    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let of = self.loader.get()?.stats();
        let stats = PyDict::new(py);
        stats.set_item("batches", of.batches)?;
        stats.set_item("pictures", of.pictures)?;
        stats.set_item("failed", of.failed)?;
        stats.set_item("threads", of.threads)?;
        stats.set_item("waited_us", of.waited_us)?;
        Ok(stats)
    }
}

/// The items of a set in the order of an epoch, as 64-bit numbers.
#[pyfunction]
pub fn epoch_order(py: Python<'_>, count: u64, seed: u64, epoch: u64) -> Samples {
    let order = py.detach(|| order_of(count, seed, epoch).into_iter().flat_map(u64::to_le_bytes).collect());
    Samples::new(order)
}
