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
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use arrow_array::builder::{BinaryBuilder, TimestampMillisecondBuilder, UInt32Builder};
use arrow_array::{RecordBatch, RecordBatchOptions};
use arrow_flight::FlightData;
use arrow_flight::encode::FlightDataEncoderBuilder;
use arrow_flight::error::FlightError;
use arrow_schema::{ArrowError, DataType, Field, Schema, SchemaRef, TimeUnit};
use futures::StreamExt;
use futures::stream::{self, BoxStream};
use tapetum::query::ResultColumn;
use tapetum::{Place, Store};
use tapetum_arrow::ArrowBatches;
use tapetum_kernels::scan::Scalar;
use tapetum_service::caller::{Caller, CallerLeft, Gathering};
use tapetum_service::execute::{OpenStore, execute};
use tapetum_service::failure::{Failure, FailureKind};
use tapetum_service::reply::{ItemRow, Reply};
use tapetum_service::request::{Request, Role};
use tapetum_service::serving_store::ServingStore;
use tokio::runtime::Handle;
use tokio::sync::mpsc::{self, Sender, error::TrySendError};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tonic::Status;

use crate::moments::Moments;
use crate::status::status_of;
use crate::ticket::TicketOffice;

/// The most answers at once: each has a thread.
pub const ANSWERS_MAX: usize = 32;
/// Bytes of a batch, about: clients take them whole, and some refuse messages of more than 16 MiB.
const BATCH_BYTES: usize = 1 << 20;
/// A row of a query has so many bytes beside its strings, at the most.
const COLUMN_BYTES: usize = 8;
/// Batches that wait for the client.
const BATCHES_WAITING: usize = 2;
/// How often a thread that waits for its client looks whether to go on.
const LOOK: Duration = Duration::from_millis(20);
/// How often it looks whether there is memory again.
const MEMORY_LOOK: Duration = Duration::from_millis(2);
/// After this time a client that reads nothing is let go, if others wait for its thread or its memory.
const STALLED: Duration = Duration::from_secs(10);
/// After this time it is let go in any case.
const PATIENCE: Duration = Duration::from_secs(60);
/// A client may hold so much without asking, so that small answers go on when there is no memory.
const FREE_BYTES: usize = 16 << 10;

pub type DataStream = BoxStream<'static, Result<FlightData, Status>>;

/// What all calls share.
pub struct DoorShared {
    pub source: Box<dyn ServingStore>,
    pub place: Place,
    pub compute_units: Vec<(String, u16)>,
    pub office: TicketOffice,
    pub moments: Arc<Moments>,
    pub is_stopping: AtomicBool,
    threads: Arc<Semaphore>,
    /// Calls that wait for a thread.
    waiting: AtomicUsize,
    client_next: AtomicU64,
}

impl DoorShared {
    pub fn new(
        source: Box<dyn ServingStore>,
        place: Place,
        compute_units: Vec<(String, u16)>,
        office: TicketOffice,
        moments: Arc<Moments>,
    ) -> DoorShared {
        DoorShared {
            source,
            place,
            compute_units,
            office,
            moments,
            is_stopping: AtomicBool::new(false),
            threads: Arc::new(Semaphore::new(ANSWERS_MAX)),
            waiting: AtomicUsize::new(0),
            client_next: AtomicU64::new(0),
        }
    }

    /// The store, or why there is none.
    pub fn store(&self) -> Result<Arc<Store>, Failure> {
        self.source.store().map_err(|error| Failure::new(FailureKind::Unavailable, error.to_string()))
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
        self.waiting.fetch_add(1, Ordering::Relaxed);
        let thread = Arc::clone(&self.threads).acquire_owned().await;
        self.waiting.fetch_sub(1, Ordering::Relaxed);
        thread.expect("nobody closes it")
    }

    /// Answers a request, whatever it is, if it may come through this door.
    ///
    /// # Errors
    /// Also if the server's lease has ended: nobody may be told of anything then.
    pub fn execute(&self, request: Request, caller: &mut dyn Caller) -> Result<(), Failure> {
        if request.needs().0 == Role::Admin {
            return Err(Failure::bad(
                "what changes keyspaces or sizes, and backups, go through the socket of the store's owner: give the command --data or \
                 --drive on the server's machine",
            ));
        }
        let store = self.store()?;
        let (place, compute_units) = (&self.place, &self.compute_units[..]);
        let open = OpenStore { store: &store, place, compute_units, server: Some(&*self.source) };
        let done = execute(open, request, caller);
        match (done, self.source.store()) {
            _ if self.source.is_fenced() => {
                Err(Failure::new(FailureKind::Unavailable, tapetum::Error::Fenced.to_string()))
            }
            (Err(_), _) if self.is_stopping.load(Ordering::Acquire) => {
                Err(Failure::new(FailureKind::Unavailable, "the server stops: ask again when it serves again"))
            }
            // The reason is a better one.
            (Err(Failure { kind: FailureKind::Cancelled, .. }), Err(error)) => {
                Err(Failure::new(FailureKind::Unavailable, error.to_string()))
            }
            (done, _) => done,
        }
    }

    /// Asks for what is told in few replies.
    pub fn gather(&self, request: Request) -> Result<Vec<Reply>, Failure> {
        let mut gathering = Gathering::default();
        self.execute(request, &mut gathering)?;
        Ok(gathering.replies)
    }

    /// The rows that a request is answered with.
    pub fn rows(self: &Arc<Self>, wanted: RowsWanted, schema: SchemaRef) -> DataStream {
        let RowsWanted { request, rows_max, freeze } = wanted;
        let (out, mut batches) = mpsc::channel(BATCHES_WAITING);
        let shared = Arc::clone(self);
        let handle = Handle::current();
        tokio::spawn(async move {
            let thread = shared.thread().await;
            tokio::task::spawn_blocking(move || {
                let _thread = thread;
                let _reading = freeze.map(|freeze| shared.moments.read(freeze));
                let mut caller = BatchCaller::new(&shared, handle, out, rows_max);
                let done = shared.execute(request, &mut caller);
                caller.end(done.map_err(|failure| shared.why_too_old(freeze).unwrap_or(failure)));
            });
        });
        let batches = stream::poll_fn(move |context| batches.poll_recv(context));
        let batches = batches.map(|charged: Result<ChargedBatch, Status>| {
            charged.map(|charged| charged.batch).map_err(|status| FlightError::Tonic(Box::new(status)))
        });
        encoded(schema, batches)
    }

    /// Why a freeze can be read no more, if that is so.
    fn why_too_old(&self, freeze: Option<u64>) -> Option<Failure> {
        let store = self.source.store().ok()?;
        store.frozen(freeze?).err().map(|error| too_old(&error))
    }

    /// Waits until the server has memory for so many bytes.
    ///
    /// # Errors
    /// If `is_wanted` says that nobody needs it any more.
    pub fn charge(
        self: &Arc<Self>,
        bytes: usize,
        mut is_wanted: impl FnMut() -> bool,
    ) -> Result<Option<Charge>, CallerLeft> {
        if bytes <= FREE_BYTES {
            return Ok(None);
        }
        let client = self.client_next.fetch_add(1, Ordering::Relaxed) | FLIGHT;
        if !self.source.take_memory(client, bytes) {
            self.source.wait_for_memory(true);
            let is_taken = loop {
                std::thread::sleep(MEMORY_LOOK);
                if self.source.take_memory(client, bytes) {
                    break true;
                }
                if !is_wanted() {
                    break false;
                }
            };
            self.source.wait_for_memory(false);
            if !is_taken {
                return Err(CallerLeft);
            }
        }
        Ok(Some(Charge { shared: Arc::clone(self), client, bytes }))
    }

    /// Waits until a client takes something.
    ///
    /// # Errors
    /// If it takes nothing for too long, or has left.
    pub fn hand_over<T>(&self, handle: &Handle, out: &Sender<T>, message: T) -> Result<(), Unsent> {
        let message = match out.try_send(message) {
            Ok(()) => return Ok(()),
            Err(TrySendError::Closed(_)) => return Err(Unsent { why: None }),
            Err(TrySendError::Full(message)) => message,
        };
        let began = Instant::now();
        loop {
            let waiting = async { tokio::time::timeout(LOOK, out.reserve()).await };
            match handle.block_on(waiting) {
                Ok(Ok(room)) => {
                    room.send(message);
                    return Ok(());
                }
                Ok(Err(_)) => return Err(Unsent { why: None }),
                Err(_) => self.stay(began)?,
            }
        }
    }

    /// Whether to wait on for a client that reads nothing.
    fn stay(&self, began: Instant) -> Result<(), Unsent> {
        let is_in_the_way = self.waiting.load(Ordering::Relaxed) > 0 || self.source.is_memory_wanted();
        let limit = if is_in_the_way { STALLED } else { PATIENCE };
        if began.elapsed() >= limit {
            tracing::warn!("let a Flight client go that read nothing for {} s", limit.as_secs());
            let told = format!("the client read nothing for {} s: ask again, and read faster", limit.as_secs());
            return Err(Unsent { why: Some(Failure::new(FailureKind::Unavailable, told)) });
        }
        if self.is_ending() { Err(Unsent { why: None }) } else { Ok(()) }
    }

    pub fn is_ending(&self) -> bool {
        self.is_stopping.load(Ordering::Acquire) || self.source.store().is_err()
    }
}

/// The rows that a ticket is for.
pub struct RowsWanted {
    pub request: Request,
    pub rows_max: Option<u64>,
    /// The freeze that is read.
    pub freeze: Option<u64>,
}

/// What whoever reads a freeze is told that has ended.
pub fn too_old(error: &tapetum::FreezeError) -> Failure {
    Failure::new(FailureKind::TooOld, format!("snapshot too old: {error}; ask the question again"))
}

/// What a client did not take.
pub struct Unsent {
    /// Why it is let go, if it has not left by itself.
    why: Option<Failure>,
}

/// Tells this door's clients from those of the socket, which share the memory.
const FLIGHT: u64 = 1 << 61;

/// Memory that was taken. The drop gives it back.
pub struct Charge {
    shared: Arc<DoorShared>,
    client: u64,
    bytes: usize,
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.shared.source.give_memory(self.client, self.bytes, true);
    }
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
    handle: Handle,
    out: Sender<Result<ChargedBatch, Status>>,
    rows: Option<ArrowBatches>,
    /// Rows that the client still wants.
    rows_left: u64,
    /// When it was last looked for.
    looked: Instant,
    has_left: bool,
    /// Why it takes no more, if it has not left by itself.
    why: Option<Failure>,
}

impl<'a> BatchCaller<'a> {
    fn new(
        shared: &'a Arc<DoorShared>,
        handle: Handle,
        out: Sender<Result<ChargedBatch, Status>>,
        rows_max: Option<u64>,
    ) -> BatchCaller<'a> {
        let rows_left = rows_max.unwrap_or(u64::MAX);
        BatchCaller { shared, handle, out, rows: None, rows_left, looked: Instant::now(), has_left: false, why: None }
    }

    fn send(&mut self, batch: RecordBatch) -> Result<(), CallerLeft> {
        if self.has_left {
            return Err(CallerLeft);
        }
        let sent = self.charged(batch).and_then(|batch| {
            self.shared.hand_over(&self.handle, &self.out, Ok(batch)).map_err(|unsent| {
                self.why = unsent.why;
                CallerLeft
            })
        });
        self.has_left |= sent.is_err();
        sent
    }

    fn charged(&mut self, batch: RecordBatch) -> Result<ChargedBatch, CallerLeft> {
        let (shared, out) = (self.shared, &self.out);
        let is_wanted = || !out.is_closed() && !shared.is_ending();
        let charge = shared.charge(batch.get_array_memory_size(), is_wanted)?;
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

    /// Tells the client how it ended, after the last rows.
    fn end(mut self, done: Result<(), Failure>) {
        let has_all = self.rows_left == 0;
        let done = if has_all { Ok(()) } else { done.and_then(|()| Ok(self.finish()?)) };
        if let Err(failure) = done {
            let failure = self.why.take().unwrap_or(failure);
            let last = self.out.reserve();
            // A client that reads nothing does not hear why.
            let waiting = async { tokio::time::timeout(LOOK, last).await };
            if let Ok(Ok(room)) = self.handle.block_on(waiting) {
                room.send(Err(status_of(&failure)));
            }
        }
    }

    fn finish(&mut self) -> Result<(), CallerLeft> {
        match self.rows.take().map(|mut rows| rows.take()) {
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
            // What else is told is for people.
            _ => Ok(()),
        }
    }

    fn row(&mut self, values: &[Option<Scalar<'_>>]) {
        if self.has_left {
            return;
        }
        let Some(rows) = &mut self.rows else { unreachable!("rows come behind their columns") };
        match rows.push(values) {
            Ok(None) => {}
            // What could not be sent is noticed by whoever asks whether it has left.
            Ok(Some(batch)) => drop(self.send(batch)),
            Err(error) => {
                self.broken(&error);
                self.has_left = true;
            }
        }
    }

    fn has_left(&mut self) -> bool {
        self.has_left |= self.out.is_closed();
        if !self.has_left && self.looked.elapsed() >= LOOK {
            self.looked = Instant::now();
            self.has_left = self.shared.is_ending();
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
