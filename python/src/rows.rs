//! `tapetum.Rows`: the result of a query, as a stream of Arrow.
//!
//! A thread runs the query and makes batches, and the reader of the stream takes them. Each stream runs the query again.
//!
//! 1. At most [`BATCHES_AHEAD`] batches wait. When the reader goes away, the run ends.
//! 2. A reader on the main thread notices Ctrl-C while it waits. Readers on other threads never ask for the interpreter, which their
//!    starter may hold.

use crate::errors;
use crate::handles::{Handle, StoreHandles};
use crate::words::PythonWords;
use arrow_array::ffi_stream::FFI_ArrowArrayStream;
use arrow_array::{RecordBatch, RecordBatchReader};
use arrow_schema::ffi::FFI_ArrowSchema;
use arrow_schema::{ArrowError, SchemaRef};
use pyo3::ffi::PyErr_SetInterrupt;
use pyo3::prelude::*;
use pyo3::types::{PyCapsule, PyDict};
use std::process;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;
use tapetum::query::{CompiledQuery, OrderedRows};
use tapetum::{KeyRange, QueryReport, ReadKeyspace};
use tapetum_arrow::ArrowBatches;
use tapetum_kernels::scan::Scalar;

/// The most batches that wait for the reader.
const BATCHES_AHEAD: usize = 2;
/// How often a waiting reader checks for Ctrl-C.
const SIGNALS_EVERY: Duration = Duration::from_millis(100);

/// Rows of a query. pyarrow, pandas, Polars, DuckDB and others take it as a table, by `__arrow_c_stream__`.
#[pyclass(frozen, module = "tapetum")]
pub struct Rows {
    keyspace: Handle<ReadKeyspace>,
    query: Arc<CompiledQuery>,
    range: KeyRange,
    report: Arc<Mutex<Option<QueryReport>>>,
}

impl Rows {
    /// # Errors
    /// [`errors::ClosedError`].
    pub fn new(
        keyspace: ReadKeyspace,
        all: &Arc<StoreHandles>,
        query: CompiledQuery,
        range: KeyRange,
    ) -> PyResult<Rows> {
        let keyspace = all.hold(keyspace)?;
        Ok(Rows { keyspace, query: Arc::new(query), range, report: Arc::default() })
    }
}

#[pymethods]
impl Rows {
    /// The names of the columns, in their order.
    #[getter]
    fn columns(&self) -> Vec<String> {
        self.query.columns.iter().map(|column| column.name.clone()).collect()
    }

    fn __repr__(&self) -> String {
        format!("<tapetum.Rows: {}>", self.columns().join(", "))
    }

    /// Runs the query. A requested schema is left to the reader, as the interface allows.
    #[pyo3(signature = (requested_schema=None))]
    fn __arrow_c_stream__<'py>(
        &self,
        py: Python<'py>,
        requested_schema: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyCapsule>> {
        let _ = requested_schema;
        let keyspace = (*self.keyspace.get()?).clone();
        let (query, range, report) = (self.query.clone(), self.range.clone(), self.report.clone());
        let batches = ArrowBatches::new(&query.columns);
        let schema = batches.schema().clone();
        let (sender, receiver) = sync_channel(BATCHES_AHEAD);
        let stopped = Arc::new(AtomicBool::new(false));
        let mut run = QueryRun { batches, sender, stopped: stopped.clone(), is_gone: false };
        let env = keyspace.store().drive().env().clone();
        let work = move || run.run(&keyspace, &query, &range, &report);
        let thread = env
            .spawn("tapetum-query", work)
            .map_err(|error| errors::store(format!("no thread for a query: {error}")))?;
        let running = RunningQuery { receiver: Some(receiver), stopped, thread: Some(thread) };
        let reader = BatchReader { schema, running: self.keyspace.all().hold(Mutex::new(running))?, is_over: false };
        let stream = FFI_ArrowArrayStream::new(Box::new(reader));
        PyCapsule::new_with_value(py, stream, c"arrow_array_stream")
    }

    fn __arrow_c_schema__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyCapsule>> {
        let batches = ArrowBatches::new(&self.query.columns);
        let schema =
            FFI_ArrowSchema::try_from(batches.schema().as_ref()).map_err(|error| errors::store(error.to_string()))?;
        PyCapsule::new_with_value(py, schema, c"arrow_schema")
    }

    /// Counts of the last run that finished: `records` that were read, `kept`, and `misfits` that were left out; `flash_bytes`, `sent_bytes`
    /// and `returned_bytes`. None before.
    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyDict>>> {
        let report = self.report.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let Some(report) = report else { return Ok(None) };
        let stats = PyDict::new(py);
        stats.set_item("records", report.counts.records)?;
        stats.set_item("kept", report.counts.kept)?;
        stats.set_item("misfits", report.counts.misfits)?;
        stats.set_item("flash_bytes", report.flash_bytes)?;
        stats.set_item("sent_bytes", report.sent_bytes)?;
        stats.set_item("returned_bytes", report.returned_bytes)?;
        Ok(Some(stats))
    }
}

/// The steps of a run, in order. The last one is `Failed` or `End`.
enum RunStep {
    Batch(RecordBatch),
    Failed(String),
    End,
}

/// The half of a run that makes batches.
struct QueryRun {
    batches: ArrowBatches,
    sender: SyncSender<RunStep>,
    stopped: Arc<AtomicBool>,
    /// The reader is gone.
    is_gone: bool,
}

impl QueryRun {
    fn run(
        &mut self,
        keyspace: &ReadKeyspace,
        query: &CompiledQuery,
        range: &KeyRange,
        report: &Mutex<Option<QueryReport>>,
    ) {
        let last = match self.rows(keyspace, query, range) {
            Ok(Some(of_run)) => {
                *report.lock().unwrap_or_else(PoisonError::into_inner) = Some(of_run);
                RunStep::End
            }
            Ok(None) => return,
            Err(told) => RunStep::Failed(told),
        };
        // If the reader is gone, nobody misses it.
        let _ = self.sender.send(last);
    }

    /// `None` if the reader is gone.
    fn rows(
        &mut self,
        keyspace: &ReadKeyspace,
        query: &CompiledQuery,
        range: &KeyRange,
    ) -> Result<Option<QueryReport>, String> {
        let mut task = keyspace.begin_query(&query.query, range).map_err(|error| error.words())?;
        let (mut ordered, mut failed) = (OrderedRows::new(query.group_order.clone()), None);
        let report = loop {
            let mut take = |row: &[Option<Scalar<'_>>]| ordered.push(row, &mut |row| self.push(row, &mut failed));
            let step = task.step(&mut take);
            if let Some(error) = failed {
                return Err(error);
            }
            match step.map_err(|error| error.words())? {
                _ if self.is_gone || self.stopped.load(Ordering::Relaxed) => return Ok(None),
                Some(report) => break report,
                None => task.wait(),
            }
        };
        ordered.finish(&mut |row| self.push(row, &mut failed));
        let rest = self.batches.take().map_err(|error| error.to_string())?;
        if let Some(batch) = rest {
            self.send(batch);
        }
        match failed {
            Some(error) => Err(error),
            None => Ok((!self.is_gone).then_some(report)),
        }
    }

    fn push(&mut self, row: &[Option<Scalar<'_>>], failed: &mut Option<String>) {
        match self.batches.push(row) {
            Ok(Some(batch)) => self.send(batch),
            Ok(None) => {}
            Err(error) => *failed = Some(error.to_string()),
        }
    }

    fn send(&mut self, batch: RecordBatch) {
        self.is_gone |= self.sender.send(RunStep::Batch(batch)).is_err();
    }
}

/// The reader's handle to a run. Dropping it ends the run.
struct RunningQuery {
    receiver: Option<Receiver<RunStep>>,
    stopped: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for RunningQuery {
    fn drop(&mut self) {
        self.stopped.store(true, Ordering::Relaxed);
        drop(self.receiver.take());
        // A panic was reported by the thread.
        self.thread.take().map(JoinHandle::join);
    }
}

struct BatchReader {
    schema: SchemaRef,
    running: Handle<Mutex<RunningQuery>>,
    is_over: bool,
}

impl BatchReader {
    fn receive(&self) -> Result<Option<RecordBatch>, ArrowError> {
        let other = |told: String| ArrowError::ExternalError(told.into());
        let held = self.running.get().map_err(|error| other(error.to_string()))?;
        let running = held.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(receiver) = &running.receiver else { return Ok(None) };
        loop {
            match receiver.recv_timeout(SIGNALS_EVERY) {
                Ok(RunStep::Batch(batch)) => return Ok(Some(batch)),
                Ok(RunStep::End) => return Ok(None),
                Ok(RunStep::Failed(told)) => return Err(other(told)),
                Err(RecvTimeoutError::Timeout) if is_interrupted() => {
                    return Err(other("the query was interrupted".into()));
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => {
                    return Err(other("the query's thread has ended: what it said is on standard error".into()));
                }
            }
        }
    }
}

/// Whether a signal handler raised an exception. It is raised again after the call, because the caller only gets an error of Arrow.
fn is_interrupted() -> bool {
    // SAFETY: no preconditions.
    let thread = unsafe { libc::gettid() };
    if u32::try_from(thread).ok() != Some(process::id()) {
        return false;
    }
    Python::attach(|py| {
        let is_raised = py.check_signals().is_err();
        if is_raised {
            // SAFETY: the interpreter runs.
            unsafe { PyErr_SetInterrupt() };
        }
        is_raised
    })
}

impl Iterator for BatchReader {
    type Item = Result<RecordBatch, ArrowError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.is_over {
            return None;
        }
        let taken = self.receive().transpose();
        self.is_over = !matches!(taken, Some(Ok(_)));
        taken
    }
}

impl RecordBatchReader for BatchReader {
    fn schema(&self) -> SchemaRef {
        self.schema.clone()
    }
}
