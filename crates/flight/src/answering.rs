//! Answers: work on threads of its own, and rows on their way to a client.
//!
//! ```text
//!   execute ─► batch ─ memory for it ─► channel of two ─► encoder (library) ─► client
//! ```
//! 1. At most [`ANSWERS_MAX`] threads work; who comes later waits for one.
//! 2. A client that reads nothing stops its thread at the third batch. It is let go when others wait for the thread or for memory, and
//!    at the latest after [`PATIENCE`]; a client that goes away, a store that is wanted back and a server that stops end the work at once.
//! 3. Each batch on its way has been taken from the server's memory.
//!
//! Threads: a worker of the door's pool for each answer; the streams are polled by the door's threads.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use arrow_array::builder::{BinaryBuilder, TimestampMillisecondBuilder, UInt32Builder};
use arrow_array::{RecordBatch, RecordBatchOptions};
use arrow_flight::FlightData;
use arrow_flight::encode::FlightDataEncoderBuilder;
use arrow_flight::error::FlightError;
use arrow_schema::{ArrowError, DataType, Field, Schema, SchemaRef, TimeUnit};
use futures::StreamExt;
use futures::stream::BoxStream;
use tapetum::query::ResultColumn;
use tapetum_access::asker::Asker;
use tapetum_access::gate::Gate;
use tapetum_access::served::{Charge, Served};
use tapetum_arrow::ArrowBatches;
use tapetum_kernels::scan::Scalar;
use tapetum_service::caller::{Caller, CallerLeft};
use tapetum_service::failure::{Failure, FailureKind};
use tapetum_service::reply::{ItemRow, Reply};
use tapetum_service::request::Request;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tonic::Status;

use crate::moments::{Moment, Moments, Reading};
use crate::outlet::{self, LOOK, Outlet};
use crate::status::status_of;
use crate::ticket::TicketOffice;

/// The most answers at once: each has a thread.
pub const ANSWERS_MAX: usize = 32;
/// Bytes of a batch, about: clients take them whole, and some refuse messages of more than 16 MiB.
const BATCH_BYTES: usize = 1 << 20;
/// A row of a query has so many bytes beside its strings, at the most.
const COLUMN_BYTES: usize = 8;
/// After this time without a batch the rows that there are go.
const FEW: Duration = Duration::from_millis(2);
/// After this time a client that reads nothing is let go, if others wait for its thread or its memory.
const STALLED: Duration = Duration::from_secs(10);
/// After this time it is let go in any case.
const PATIENCE: Duration = Duration::from_secs(60);
/// How long a statement waits for a moment, and how often it looks for one.
const MOMENT_PATIENCE: Duration = Duration::from_secs(20);
const MOMENT_LOOK: Duration = Duration::from_millis(10);

pub type DataStream = BoxStream<'static, Result<FlightData, Status>>;

/// The part of the door that all calls share.
pub struct DoorShared {
    pub served: Arc<Served>,
    pub office: TicketOffice,
    pub moments: Arc<Moments>,
    /// The users who may log in; without, everybody may do all but what an admin does.
    pub gate: Option<Arc<Gate>>,
    threads: Arc<Semaphore>,
    /// Calls that wait for a thread.
    waiting: AtomicUsize,
}

impl DoorShared {
    pub fn new(
        served: Arc<Served>,
        office: TicketOffice,
        moments: Arc<Moments>,
        gate: Option<Arc<Gate>>,
    ) -> DoorShared {
        DoorShared {
            served,
            office,
            moments,
            gate,
            threads: Arc::new(Semaphore::new(ANSWERS_MAX)),
            waiting: AtomicUsize::new(0),
        }
    }

    /// Does work that waits or computes, on a thread of its own.
    pub async fn on_thread<T: Send + 'static>(
        self: &Arc<Self>,
        work: impl FnOnce(&DoorShared) -> Result<T, Failure> + Send + 'static,
    ) -> Result<T, Status> {
        let (shared, thread) = (Arc::clone(self), self.thread().await);
        let done = tokio::task::spawn_blocking(move || {
            let _thread = thread;
            work(&shared)
        });
        match done.await {
            Ok(done) => done.map_err(|failure| status_of(&failure)),
            Err(_) => Err(Status::internal("the server failed at this request: its log says why")),
        }
    }

    async fn thread(self: &Arc<Self>) -> OwnedSemaphorePermit {
        // A call that is given up while it waits is dropped.
        let _waiting = Waiting::begin(&self.waiting);
        Arc::clone(&self.threads).acquire_owned().await.expect("nobody closes it")
    }

    /// The rows that a request is answered with.
    pub fn rows(self: &Arc<Self>, asker: Asker, wanted: RowsWanted, schema: SchemaRef) -> DataStream {
        let RowsWanted { request, rows_max, freeze } = wanted;
        let (out, batches) = outlet::channel();
        let shared = Arc::clone(self);
        tokio::spawn(async move {
            let thread = shared.thread().await;
            tokio::task::spawn_blocking(move || {
                let _thread = thread;
                let reading = freeze.map(|freeze| shared.moments.read(freeze));
                let mut caller = BatchCaller::new(&shared, out, rows_max);
                let done = shared.served.execute(&asker, request, &mut caller);
                let is_whole = caller.end(done.map_err(|failure| shared.why_too_old(freeze).unwrap_or(failure)));
                reading.filter(|_| is_whole).into_iter().for_each(Reading::finish);
            });
        });
        let batches = batches.map(|charged: Result<ChargedBatch, Status>| {
            charged.map(|charged| charged.batch).map_err(|status| FlightError::Tonic(Box::new(status)))
        });
        encoded(schema, batches)
    }

    /// Why a freeze can be read no more, if that is so.
    fn why_too_old(&self, freeze: Option<u64>) -> Option<Failure> {
        let store = self.served.source.store().ok()?;
        store.frozen(freeze?).err().map(|error| too_old(&error))
    }

    /// A moment for a statement.
    ///
    /// # Errors
    /// If there is none for long, or the server stops.
    pub async fn moment(self: &Arc<Self>) -> Result<Moment, Status> {
        let came = Instant::now();
        loop {
            // Whoever waits holds no thread, and no store.
            let taken = self.on_thread(move |shared| shared.moments.take(&shared.served.store()?, came)).await?;
            match taken {
                Some(moment) => return Ok(moment),
                None if came.elapsed() >= MOMENT_PATIENCE || self.served.is_ending() => {
                    let told = "as many moments of the store are read as may be: ask again when other readers are done";
                    return Err(Status::unavailable(told));
                }
                None => tokio::time::sleep(MOMENT_LOOK).await,
            }
        }
    }

    /// Sends a client a message, and waits until there is room for it.
    ///
    /// # Errors
    /// If the client takes nothing for too long, or has left.
    pub fn hand_over<T>(&self, out: &mut Outlet<T>, message: T) -> Result<(), Unsent> {
        let mut why = None;
        let sent = out.send(message, |since| match self.stay(since) {
            Ok(()) => true,
            Err(unsent) => {
                why = unsent.why;
                false
            }
        });
        sent.map_err(|_| Unsent { why })
    }

    /// Whether to wait on for a client that reads nothing.
    fn stay(&self, since: Instant) -> Result<(), Unsent> {
        let is_in_the_way = self.waiting.load(Ordering::Relaxed) > 0 || self.served.source.is_memory_wanted();
        let limit = if is_in_the_way { STALLED } else { PATIENCE };
        if since.elapsed() >= limit {
            tracing::warn!("let a Flight client go that read nothing for {} s", limit.as_secs());
            let told = format!("the client read nothing for {} s: ask again, and read faster", limit.as_secs());
            return Err(Unsent { why: Some(Failure::new(FailureKind::Unavailable, told)) });
        }
        if self.served.is_ending() { Err(Unsent { why: None }) } else { Ok(()) }
    }
}

/// The rows that a ticket is for.
pub struct RowsWanted {
    pub request: Request,
    pub rows_max: Option<u64>,
    /// The freeze that is read.
    pub freeze: Option<u64>,
}

/// The failure of reading a freeze that has ended.
pub fn too_old(error: &tapetum::FreezeError) -> Failure {
    Failure::new(FailureKind::TooOld, format!("snapshot too old: {error}; ask the question again"))
}

/// A call that waits for a thread.
struct Waiting<'a>(&'a AtomicUsize);

impl Waiting<'_> {
    fn begin(count: &AtomicUsize) -> Waiting<'_> {
        count.fetch_add(1, Ordering::Relaxed);
        Waiting(count)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A message that a client did not take.
pub struct Unsent {
    /// Why it is let go, if it has not left by itself.
    why: Option<Failure>,
}

/// Batches as messages, the schema first.
pub fn encoded(
    schema: SchemaRef,
    batches: impl futures::Stream<Item = Result<RecordBatch, FlightError>> + Send + 'static,
) -> DataStream {
    // A batch is one message: it is not cut again.
    let encoder = FlightDataEncoderBuilder::new().with_schema(schema).with_max_flight_data_size(usize::MAX);
    let messages = encoder.build(batches).map(|message| {
        message.map_err(|error| match error {
            FlightError::Tonic(status) => *status,
            error => Status::internal(error.to_string()),
        })
    });
    messages.boxed()
}

/// The columns of items as they are.
pub fn item_schema() -> SchemaRef {
    Arc::new(Schema::new(vec![
        Field::new("key", DataType::Binary, false),
        Field::new("value", DataType::Binary, false),
        Field::new("flags", DataType::UInt32, false),
        Field::new("expires", DataType::Timestamp(TimeUnit::Millisecond, Some("UTC".into())), true),
    ]))
}

/// The columns of a query's rows.
pub fn row_schema(columns: &[ResultColumn]) -> SchemaRef {
    Arc::clone(ArrowBatches::new(columns).schema())
}

struct ChargedBatch {
    batch: RecordBatch,
    _charge: Option<Charge>,
}

/// A client of whom batches are on their way.
struct BatchCaller<'a> {
    shared: &'a Arc<DoorShared>,
    out: Outlet<Result<ChargedBatch, Status>>,
    rows: Option<ArrowBatches>,
    /// Rows that the client still wants.
    rows_left: u64,
    /// Rows that no batch was sent with yet.
    rows_waiting: usize,
    /// When the last batch was sent.
    sent: Instant,
    /// When it was last looked for.
    looked: Instant,
    has_left: bool,
    /// Why it takes no more, if it has not left by itself.
    why: Option<Failure>,
}

impl<'a> BatchCaller<'a> {
    fn new(
        shared: &'a Arc<DoorShared>,
        out: Outlet<Result<ChargedBatch, Status>>,
        rows_max: Option<u64>,
    ) -> BatchCaller<'a> {
        let rows_left = rows_max.unwrap_or(u64::MAX);
        BatchCaller {
            shared,
            out,
            rows: None,
            rows_left,
            rows_waiting: 0,
            sent: Instant::now(),
            looked: Instant::now(),
            has_left: false,
            why: None,
        }
    }

    fn send(&mut self, batch: RecordBatch) -> Result<(), CallerLeft> {
        if self.has_left {
            return Err(CallerLeft);
        }
        let sent = self.charged(batch).and_then(|batch| {
            self.shared.hand_over(&mut self.out, Ok(batch)).map_err(|unsent| {
                self.why = unsent.why;
                CallerLeft
            })
        });
        self.has_left |= sent.is_err();
        self.sent = Instant::now();
        sent
    }

    fn charged(&mut self, batch: RecordBatch) -> Result<ChargedBatch, CallerLeft> {
        let (shared, out) = (self.shared, &self.out);
        let is_wanted = || !out.is_closed() && !shared.served.is_ending();
        let charge = shared.served.charge(batch.get_array_memory_size(), is_wanted)?;
        Ok(ChargedBatch { batch, _charge: charge })
    }

    fn send_items(&mut self, items: &[ItemRow]) -> Result<(), CallerLeft> {
        let wanted = usize::try_from(self.rows_left).unwrap_or(usize::MAX).min(items.len());
        if wanted > 0 {
            let batch = item_batch(&items[..wanted]).map_err(|error| self.broken(&error))?;
            self.send(batch)?;
            self.rows_left -= wanted as u64;
        }
        // Whoever has all that he wanted leaves.
        if self.rows_left == 0 { Err(CallerLeft) } else { Ok(()) }
    }

    fn broken(&mut self, error: &ArrowError) -> CallerLeft {
        self.why = Some(Failure::new(FailureKind::Store, format!("rows that Arrow cannot hold: {error}")));
        CallerLeft
    }

    /// Tells the client how it ended, after the last rows; whether it has all of them.
    fn end(mut self, done: Result<(), Failure>) -> bool {
        let done = match done {
            // It left when it had all that it wanted.
            Err(Failure { kind: FailureKind::Cancelled, .. }) if self.rows_left == 0 => Ok(()),
            done => done.and_then(|()| Ok(self.finish()?)),
        };
        let Err(failure) = done else { return true };
        let failure = self.why.take().unwrap_or(failure);
        // A client that reads nothing does not hear why.
        let _ = self.out.send(Err(status_of(&failure)), |_| false);
        false
    }

    /// Sends the rows that there are, where nothing was sent for a moment: few rows of a long query are not to wait for a full batch.
    fn send_few(&mut self) {
        if self.has_left || self.rows_waiting == 0 || self.sent.elapsed() < FEW {
            return;
        }
        if self.out.has_room() {
            // The client is asked about again.
            let _ = self.finish();
        }
    }

    fn finish(&mut self) -> Result<(), CallerLeft> {
        self.rows_waiting = 0;
        match self.rows.as_mut().map(ArrowBatches::take) {
            Some(Ok(Some(batch))) => self.send(batch),
            Some(Err(error)) => Err(self.broken(&error)),
            Some(Ok(None)) | None => Ok(()),
        }
    }
}

impl Caller for BatchCaller<'_> {
    fn take(&mut self, reply: Reply) -> Result<(), CallerLeft> {
        match reply {
            Reply::Columns(columns) => {
                let columns: Vec<ResultColumn> = columns.iter().map(ResultColumn::from).collect();
                let rows_max = BATCH_BYTES / (COLUMN_BYTES * columns.len()).max(1);
                self.rows = Some(ArrowBatches::new(&columns).in_batches_of(rows_max.max(1), BATCH_BYTES));
                Ok(())
            }
            Reply::Items(items) => self.send_items(&items),
            // Other replies are for people.
            _ => Ok(()),
        }
    }

    fn row(&mut self, values: &[Option<Scalar<'_>>]) {
        if self.has_left {
            return;
        }
        let Some(rows) = &mut self.rows else { unreachable!("rows come behind their columns") };
        match rows.push(values) {
            Ok(None) => self.rows_waiting += 1,
            // Whoever asks whether the client has left notices what could not be sent.
            Ok(Some(batch)) => {
                self.rows_waiting = 0;
                let _ = self.send(batch);
            }
            Err(error) => {
                self.broken(&error);
                self.has_left = true;
            }
        }
    }

    fn has_left(&mut self) -> bool {
        self.has_left |= self.out.is_closed();
        self.send_few();
        if !self.has_left && self.looked.elapsed() >= LOOK {
            self.looked = Instant::now();
            self.has_left = self.shared.served.is_ending();
        }
        self.has_left
    }
}

fn item_batch(items: &[ItemRow]) -> Result<RecordBatch, ArrowError> {
    let bytes = |of: fn(&ItemRow) -> &Vec<u8>| items.iter().map(|item| of(item).len()).sum();
    let mut keys = BinaryBuilder::with_capacity(items.len(), bytes(|item| &item.key));
    let mut values = BinaryBuilder::with_capacity(items.len(), bytes(|item| &item.value));
    let mut flags = UInt32Builder::with_capacity(items.len());
    let mut expires = TimestampMillisecondBuilder::with_capacity(items.len()).with_timezone("UTC");
    for item in items {
        keys.append_value(&item.key);
        values.append_value(&item.value);
        flags.append_value(item.flags);
        expires.append_option((!item.expiry.is_none()).then(|| item.expiry.millis() as i64));
    }
    let columns = vec![
        Arc::new(keys.finish()) as _,
        Arc::new(values.finish()) as _,
        Arc::new(flags.finish()) as _,
        Arc::new(expires.finish()) as _,
    ];
    RecordBatch::try_new_with_options(item_schema(), columns, &RecordBatchOptions::default())
}
