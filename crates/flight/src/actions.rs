//! Actions: requests that are answered whole. Those of `tapetum.request` are any request, as frames; the others are for programs of any language,
//! with JSON in their bodies.
//!
//! Threads: any.

use std::io;
use std::sync::Arc;

use arrow_flight::{Action, ActionType};
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use futures::StreamExt;
use futures::stream::{self, BoxStream};
use serde::Deserialize;
use serde_json::{Value, json};
use tapetum::Expiry;
use tapetum_service::caller::CallerLeft;
use tapetum_service::failure::{Failure, FailureKind};
use tapetum_service::reply::{Counted, FreezeRow, ItemRow, KeyspaceRow, Reply, Verdict};
use tapetum_service::request::{Freeze, Increment, Request};
use tapetum_service::socket::frame::{FrameKind, PROTOCOL_VERSION, REQUEST_BYTES_MAX, framed_data};
use tapetum_service::socket::framing::{FrameCaller, FrameOut};
use tonic::Status;

use tapetum_access::served::Charge;

use crate::answering::DoorShared;
use crate::call::Call;
use crate::command::Bytes;
use crate::outlet::{self, Outlet};
use crate::status::status_of;

/// Any request, as frames: for `tapetum --server`.
pub const REQUEST: &str = "tapetum.request";
const GET: &str = "tapetum.get";
/// Bytes before the request: the version of the frames.
pub const VERSION_BYTES: usize = 2;
/// The most keys of one action.
const KEYS_MAX: usize = 10_000;

pub type ResultStream = BoxStream<'static, Result<arrow_flight::Result, Status>>;

/// The actions there are, and what is in their bodies.
pub fn types() -> Vec<ActionType> {
    [
        (REQUEST, "a request of the command line of this version, as frames"),
        ("tapetum.keyspaces", r#"{"name": TEXT or null, "freeze": ID or null} → a list of keyspaces"#),
        (GET, r#"{"keyspace": TEXT, "keys": [BASE64, …]} → a result for each: 0, or 1 and the value"#),
        ("tapetum.delete", r#"{"keyspace": TEXT, "keys": [BASE64, …]} → {"deleted": N}"#),
        ("tapetum.gets", r#"{"keyspace": TEXT, "key": BASE64} → {"value": BASE64, "token": N}, or {}"#),
        (
            "tapetum.cas",
            r#"{"keyspace": TEXT, "key": BASE64, "value": BASE64, "token": N or null, "expires_unix_ms": N or null} → {"stored": BOOL}"#,
        ),
        (
            "tapetum.increment",
            r#"{"keyspace": TEXT, "key": BASE64, "by": N, "down": BOOL, "initial": N or null} → {"number": N or null, "found": BOOL}"#,
        ),
        ("tapetum.freeze", r#"{"owner": TEXT, "seconds": NUMBER, "flash_bytes": N or null} → a freeze"#),
        ("tapetum.freezes", "{} → a list of freezes"),
        ("tapetum.renew_freeze", r#"{"id": ID, "seconds": NUMBER} → a freeze"#),
        ("tapetum.release_freeze", r#"{"id": ID} → {}"#),
        ("tapetum.stats", "{} → figures"),
    ]
    .into_iter()
    .map(|(name, description)| ActionType { r#type: name.into(), description: description.into() })
    .collect()
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct KeyspacesBody {
    name: Option<String>,
    freeze: Option<u64>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct KeysBody {
    keyspace: String,
    keys: Vec<Bytes>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct KeyBody {
    keyspace: String,
    key: Bytes,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct CasBody {
    keyspace: String,
    key: Bytes,
    value: Bytes,
    token: Option<u64>,
    expires_unix_ms: Option<u64>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct IncrementBody {
    keyspace: String,
    key: Bytes,
    by: u64,
    #[serde(default)]
    down: bool,
    initial: Option<u64>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FreezeBody {
    owner: String,
    seconds: f64,
    flash_bytes: Option<u64>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RenewBody {
    id: u64,
    seconds: f64,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct IdBody {
    id: u64,
}

/// Answers an action that is this door's own.
///
/// # Errors
/// Says what is wrong with it.
pub async fn answer(call: &Call, action: Action) -> Result<ResultStream, Status> {
    match &*action.r#type {
        REQUEST => return Ok(frames(call, action.body.to_vec())),
        GET => return Ok(values(call, action.body.to_vec())),
        _ => {}
    }
    let bodies = call.on_thread(move |call| answered(call, &action)).await?;
    let results = bodies.into_iter().map(|body| Ok(arrow_flight::Result { body: body.into() }));
    Ok(stream::iter(results.collect::<Vec<_>>()).boxed())
}

fn answered(call: &Call, action: &Action) -> Result<Vec<Vec<u8>>, Failure> {
    let body = &action.body[..];
    let one = |value: Value| Ok(vec![value.to_string().into_bytes()]);
    match &*action.r#type {
        "tapetum.keyspaces" => {
            let KeyspacesBody { name, freeze } = parsed(body)?;
            let told = call.gather(Request::Keyspaces { name, freeze })?;
            let rows =
                told.iter().filter_map(|reply| if let Reply::Keyspaces(rows) = reply { Some(rows) } else { None });
            one(rows.flatten().map(keyspace).collect())
        }
        "tapetum.delete" => {
            let KeysBody { keyspace, keys } = of_few_keys(parsed(body)?)?;
            let keys = keys.into_iter().map(|Bytes(key)| key.into()).collect();
            let told = call.gather(Request::DeleteMany { keyspace, keys })?;
            let count = told.iter().find_map(|reply| if let Reply::Count(count) = reply { Some(*count) } else { None });
            one(json!({ "deleted": count.unwrap_or_default() }))
        }
        "tapetum.gets" => one(stamped(call, parsed(body)?)?),
        "tapetum.cas" => one(compare_and_set(call, parsed(body)?)?),
        "tapetum.increment" => one(increment(call, parsed(body)?)?),
        "tapetum.freeze" => {
            let FreezeBody { owner, seconds, flash_bytes } = parsed(body)?;
            let asked = Freeze { owner, lasts_ms: millis(seconds)?, flash_bytes_max: flash_bytes };
            one(first_freeze(call.gather(Request::Freeze(asked))?))
        }
        "tapetum.freezes" => one(freezes(&call.gather(Request::Freezes)?)),
        "tapetum.renew_freeze" => {
            let RenewBody { id, seconds } = parsed(body)?;
            one(first_freeze(call.gather(Request::RenewFreeze { id, lasts_ms: millis(seconds)? })?))
        }
        "tapetum.release_freeze" => {
            let IdBody { id } = parsed(body)?;
            call.gather(Request::ReleaseFreeze { id })?;
            one(json!({}))
        }
        "tapetum.stats" => {
            let figures = call.gather(Request::Figures)?.into_iter().filter_map(Reply::into_figures).flatten();
            one(Value::Object(figures.map(|(name, text)| (name, text.into())).collect()))
        }
        other => {
            let names: Vec<String> = types().into_iter().map(|action| action.r#type).collect();
            Err(Failure::bad(format!("there is no action {other:?}: there are {}", names.join(", "))))
        }
    }
}

/// Reads a body as that of every action that has one.
#[cfg(feature = "fuzzing")]
pub fn parse_all(body: &[u8]) {
    drop(parsed::<KeyspacesBody>(body));
    drop(parsed::<KeysBody>(body).and_then(of_few_keys));
    drop(parsed::<KeyBody>(body));
    drop(parsed::<CasBody>(body).and_then(|body| expiry(body.expires_unix_ms)));
    drop(parsed::<IncrementBody>(body));
    drop(parsed::<FreezeBody>(body).and_then(|body| millis(body.seconds)));
    drop(parsed::<RenewBody>(body).and_then(|body| millis(body.seconds)));
    drop(parsed::<IdBody>(body));
}

fn parsed<'de, T: Deserialize<'de>>(body: &'de [u8]) -> Result<T, Failure> {
    let body = if body.is_empty() { b"{}" } else { body };
    serde_json::from_slice(body).map_err(|error| Failure::bad(format!("the action's body makes no sense: {error}")))
}

fn of_few_keys(body: KeysBody) -> Result<KeysBody, Failure> {
    match body.keys.len() {
        ..=KEYS_MAX => Ok(body),
        keys => Err(Failure::bad(format!("{keys} keys are too many for one action: give {KEYS_MAX} at most"))),
    }
}

fn millis(seconds: f64) -> Result<u64, Failure> {
    let is_time = seconds.is_finite() && seconds >= 0.0;
    // A longer time than a freeze may last is refused where freezes are made.
    if is_time { Ok((seconds * 1000.0) as u64) } else { Err(Failure::bad("seconds are 0 or more")) }
}

fn get(call: &Call, keyspace: &str, key: Vec<u8>) -> Result<Vec<u8>, Failure> {
    let told = call.gather(Request::Get { keyspace: keyspace.into(), key })?;
    let item = told.into_iter().find_map(|reply| if let Reply::Items(mut items) = reply { items.pop() } else { None });
    Ok(match item {
        None => vec![0],
        Some(ItemRow { value, .. }) => [&[1][..], &value].concat(),
    })
}

fn stamped(call: &Call, body: KeyBody) -> Result<Value, Failure> {
    let told = call.gather(Request::GetStamped { keyspace: body.keyspace, key: body.key.0 })?;
    let found = told.into_iter().find_map(|reply| if let Reply::Stamped(found) = reply { found } else { None });
    Ok(found.map_or(
        json!({}),
        |(ItemRow { value, .. }, stamp)| json!({ "value": BASE64_STANDARD.encode(value), "token": stamp }),
    ))
}

fn compare_and_set(call: &Call, body: CasBody) -> Result<Value, Failure> {
    let CasBody { keyspace, key: Bytes(key), value: Bytes(value), token, expires_unix_ms } = body;
    let item = ItemRow { key, value, flags: 0, expiry: expiry(expires_unix_ms)? };
    let told = call.gather(Request::CompareAndSet { keyspace, item, stamp: token })?;
    let is_stored =
        told.iter().any(|reply| matches!(reply, Reply::Verdicts(verdicts) if verdicts[..] == [Verdict::Stored]));
    Ok(json!({ "stored": is_stored }))
}

fn increment(call: &Call, body: IncrementBody) -> Result<Value, Failure> {
    let IncrementBody { keyspace, key: Bytes(key), by, down, initial } = body;
    let asked = Increment { keyspace, key, delta: by, is_decrement: down, initial };
    let told = call.gather(Request::Increment(asked))?;
    let counted =
        told.into_iter().find_map(|reply| if let Reply::Counted(counted) = reply { Some(counted) } else { None });
    Ok(match counted {
        Some(Counted::Number(number)) => json!({ "number": number, "found": true }),
        Some(Counted::NoNumber) => json!({ "number": null, "found": true }),
        Some(Counted::NoKey) | None => json!({ "number": null, "found": false }),
    })
}

fn expiry(unix_ms: Option<u64>) -> Result<Expiry, Failure> {
    match unix_ms {
        None => Ok(Expiry::NONE),
        Some(at) if at < Expiry::NEVER.millis() => Ok(Expiry::from_millis(at)),
        Some(at) => Err(Failure::bad(format!("expires_unix_ms is {at}, after the year 10889: leave it out for never"))),
    }
}

fn keyspace(row: &KeyspaceRow) -> Value {
    json!({
        "name": row.name,
        "is_ordered": row.is_ordered,
        "items": row.items,
        "format": row.format,
        "block_device_bytes": row.block_device.map(|device| device.size_bytes),
    })
}

fn freezes(told: &[Reply]) -> Value {
    let rows = told.iter().filter_map(|reply| if let Reply::Freezes(rows) = reply { Some(rows) } else { None });
    rows.flatten().map(freeze).collect()
}

fn first_freeze(told: Vec<Reply>) -> Value {
    match freezes(&told) {
        Value::Array(mut rows) if !rows.is_empty() => rows.swap_remove(0),
        _ => Value::Null,
    }
}

fn freeze(row: &FreezeRow) -> Value {
    json!({
        "id": row.id,
        "owner": row.owner,
        "moment_unix_ms": row.moment_unix_ms,
        "age_us": row.age_us,
        "left_us": row.left_us,
        "keyspaces": row.keyspaces,
        "flash_bytes": row.flash_bytes,
        "memory_bytes": row.memory_bytes,
    })
}

/// A request as the socket takes it, answered with frames.
fn frames(call: &Call, body: Vec<u8>) -> ResultStream {
    let asked = call.clone();
    streamed(&call.shared, move |out| {
        let mut caller = FrameCaller::new(out);
        let done = request_of(&body).and_then(|request| asked.execute(request, &mut caller));
        let end = match done.and_then(|()| Ok(caller.finish_rows()?)) {
            Ok(()) => framed_data(FrameKind::Done, &()),
            Err(failure) => framed_data(FrameKind::Failed, &failure),
        };
        // A client that has left does not hear how it ended.
        let _ = end.and_then(|end| caller.out.send_one(end));
    })
}

/// The values of keys, each as soon as it is there.
fn values(call: &Call, body: Vec<u8>) -> ResultStream {
    let asked = call.clone();
    streamed(&call.shared, move |mut out| {
        let mut read = || -> Result<(), Failure> {
            let KeysBody { keyspace, keys } = of_few_keys(parsed(&body)?)?;
            for Bytes(key) in keys {
                let value = get(&asked, &keyspace, key)?;
                out.send_one(value).map_err(|_| CallerLeft)?;
            }
            Ok(())
        };
        if let Err(failure) = read() {
            out.fail(&failure);
        }
    })
}

/// The results that a thread of its own sends a client.
fn streamed(shared: &Arc<DoorShared>, work: impl FnOnce(ResultOut) + Send + 'static) -> ResultStream {
    let (out, results) = outlet::channel();
    let out = ResultOut { shared: Arc::clone(shared), out };
    let shared = Arc::clone(shared);
    tokio::spawn(async move {
        // A failure is told in the stream.
        let done = shared.on_thread(move |_| {
            work(out);
            Ok(())
        });
        let _ = done.await;
    });
    let body = |(body, _charge): Charged| Ok(arrow_flight::Result { body: body.into() });
    results.map(move |result: Result<Charged, Status>| result.and_then(body)).boxed()
}

type Charged = (Vec<u8>, Option<Charge>);

/// The way of results to a client.
struct ResultOut {
    shared: Arc<DoorShared>,
    out: Outlet<Result<Charged, Status>>,
}

impl ResultOut {
    fn send_one(&mut self, body: Vec<u8>) -> io::Result<()> {
        let gone = || io::Error::from(io::ErrorKind::ConnectionAborted);
        let charge = self.shared.served.charge(body.len(), || !self.looks_gone()).map_err(|_| gone())?;
        self.shared.hand_over(&mut self.out, Ok((body, charge))).map_err(|_| gone())
    }

    fn fail(&mut self, failure: &Failure) {
        // A client that has left does not hear it.
        let _ = self.shared.hand_over(&mut self.out, Err(status_of(failure)));
    }
}

impl FrameOut for ResultOut {
    fn send(&mut self, frame: Vec<u8>) -> (io::Result<()>, Vec<u8>) {
        (self.send_one(frame), Vec::new())
    }

    fn looks_gone(&self) -> bool {
        self.out.is_closed() || self.shared.served.is_ending()
    }
}

/// The request of the body of [`REQUEST`].
///
/// # Errors
/// If it is of another version, or makes no sense.
pub fn request_of(body: &[u8]) -> Result<Request, Failure> {
    let (version, request) = body.split_first_chunk::<VERSION_BYTES>().unwrap_or((&[0; VERSION_BYTES], &[]));
    let version = u16::from_le_bytes(*version);
    if version != PROTOCOL_VERSION {
        let own = env!("CARGO_PKG_VERSION");
        return Err(Failure::new(
            FailureKind::OtherVersion,
            format!(
                "the running server is tapetum {own} (protocol {PROTOCOL_VERSION}), and the request is of protocol {version}: use the server's own"
            ),
        ));
    }
    if request.len() > REQUEST_BYTES_MAX {
        return Err(Failure::bad(format!("a request has at most {REQUEST_BYTES_MAX} bytes")));
    }
    postcard::from_bytes(request)
        .map_err(|error| Failure::bad(format!("the request makes no sense to this server: {error}")))
}
