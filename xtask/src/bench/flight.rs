//! The cost of Flight: queries in this process and through the Flight door of a server that has a copy of the store, in turns, both to batches of
//! Arrow; rows that are put, beside `tapetum load` of the same ones; and the same questions to DuckDB's and SQLite's own files, and to three
//! nodes beside one, which python/bench/engines.py asks.

use std::fs;
use std::io::{BufWriter, Write};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::Instant;

use arrow_array::{ArrayRef, RecordBatch, StringArray};
use arrow_flight::encode::FlightDataEncoderBuilder;
use arrow_flight::{FlightClient, FlightDescriptor};
use futures::{StreamExt, TryStreamExt, stream};
use tapetum::query::ResultColumn;
use tapetum::{Options, Place};
use tapetum_arrow::ArrowBatches;
use tapetum_bench::process;
use tapetum_bench::server::{Server, ServerOptions, free_address};
use tapetum_kernels::scan::Scalar;
use tapetum_service::caller::{Caller, CallerLeft};
use tapetum_service::reply::Reply;
use tapetum_service::service::{Access, Service};
use tokio::runtime::Runtime;
use tonic::transport::Endpoint;

use super::service::{FIELDS, MEMORY, MEMORY_BYTES, fill_twice, query};
use crate::arguments::Arguments;
use crate::results::outcome::{Outcome, Reach};
use crate::results::spread::Spread;
use crate::{Failure, python, workspace};

const SCAN_LEAST: f64 = 0.7;
const SCAN_CPU_MOST: f64 = 1.5;
const FEW_LEAST: f64 = 0.95;
const FIRST_MS_MOST: f64 = 3.0;
const PUT_LEAST: f64 = 0.8;
/// Rows of a batch that is put.
const PUT_ROWS: usize = 8192;

pub fn run(arguments: &Arguments) -> Result<(), Failure> {
    let records = arguments.number("items", 1_000_000)?;
    let rounds = arguments.number("rounds", 9)?;
    let engines = arguments.number("engines", 1)? > 0;
    arguments.finish()?;
    let binary = arguments.measured_server(None)?;
    let scratch = workspace::Scratch::new("flight")?;
    let [here, there] = fill_twice(scratch.folder(), records)?;
    let about = format!("{records} records of 100 bytes in a hashed keyspace; --memory {MEMORY}");
    let mut outcome = Outcome::new(arguments, "flight", about);
    let server = serve(&binary, &there)?;
    compare(&mut outcome, &here, &server, rounds)?;
    ingest(&mut outcome, &binary, (&there, scratch.folder()), &server, (records, rounds))?;
    server.server.terminate()?;
    if engines {
        ask_engines(&mut outcome, &binary, scratch.folder(), records)?;
    }
    outcome.end()
}

/// A server, and a client of its door.
struct Served {
    server: Server,
    runtime: Runtime,
    client: FlightClient,
}

fn serve(binary: &Path, data: &Path) -> Result<Served, Failure> {
    let door = free_address()?.to_string();
    let options = ["--memory", MEMORY, "--sync", "no", "--flight", &door];
    let server = ServerOptions::new(binary, data, &options)?.start()?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let channel = runtime.block_on(async {
        let endpoint = tapetum_flight::client::for_much(Endpoint::from_shared(format!("http://{door}"))?);
        loop {
            match endpoint.connect().await {
                Ok(channel) => return Ok::<_, tonic::transport::Error>(channel),
                // The door opens a moment after memcached's.
                Err(_) => tokio::time::sleep(std::time::Duration::from_millis(10)).await,
            }
        }
    })?;
    Ok(Served { server, runtime, client: FlightClient::new(channel) })
}

/// Makes batches of the rows that it is told, as whoever wants Arrow does.
#[derive(Default)]
struct InArrow {
    batches: Option<ArrowBatches>,
    rows: u64,
}

impl Caller for InArrow {
    fn take(&mut self, reply: Reply) -> Result<(), CallerLeft> {
        match (reply, &mut self.batches) {
            (Reply::Columns(columns), _) => {
                let columns: Vec<ResultColumn> = columns.iter().map(ResultColumn::from).collect();
                self.batches = Some(ArrowBatches::new(&columns));
            }
            (Reply::Queried(_), Some(batches)) => {
                let last = batches.take().map_err(|_| CallerLeft)?;
                self.rows += last.map_or(0, |batch| batch.num_rows() as u64);
            }
            _ => {}
        }
        Ok(())
    }

    fn row(&mut self, values: &[Option<Scalar<'_>>]) {
        let Some(batches) = &mut self.batches else { unreachable!("rows come behind their columns") };
        if let Ok(Some(batch)) = batches.push(values) {
            self.rows += batch.num_rows() as u64;
        }
    }

    fn has_left(&mut self) -> bool {
        false
    }
}

struct Asked {
    seconds: f64,
    first_ms: f64,
    cpu_us: f64,
    rows: u64,
}

/// Queries in process and through the door, in turns.
fn compare(outcome: &mut Outcome, here: &Path, served: &Served, rounds: u64) -> Result<(), Failure> {
    let options = Options::new().memory_bytes(MEMORY_BYTES);
    let mut opened = Service::reach(&Place::at(here), &options, Access::Read)?;
    for (name, condition, least, cpu_most) in [
        ("a full scan", None, SCAN_LEAST, Reach::AtMost(SCAN_CPU_MOST)),
        ("a query of 0.1 %", Some("place < 1"), FEW_LEAST, Reach::Reported),
    ] {
        let (mut rate, mut cpu, mut first) = (Vec::new(), Vec::new(), Vec::new());
        for round in 0..=rounds {
            let within = ask_here(&mut opened, condition)?;
            let over = ask_there(served, condition)?;
            if within.rows != over.rows {
                return Err(format!("{name}: {} rows here, and {} there", within.rows, over.rows).into());
            }
            // The first round warms caches.
            if round > 0 {
                rate.push(within.seconds / over.seconds);
                cpu.push(over.cpu_us / within.cpu_us);
                first.push(over.first_ms);
            }
        }
        let rate = Spread::of(rate);
        println!("  {name}: {}", rate.shown());
        outcome.hold(format!("{name}, rate over Flight ÷ in process"), rate, Reach::AtLeast(least));
        outcome.hold(format!("{name}, CPU over Flight ÷ in process"), Spread::of(cpu), cpu_most);
        let reach = if condition.is_some() { Reach::AtMost(FIRST_MS_MOST) } else { Reach::Reported };
        outcome.hold(
            format!("{name}, ms from the question to the first message over Flight"),
            Spread::of(first),
            reach,
        );
    }
    opened.close()?;
    Ok(())
}

fn ask_here(service: &mut Service, condition: Option<&str>) -> Result<Asked, Failure> {
    let own = [std::process::id()];
    let (before, begun, mut arrow) = (process::Usage::of(&own)?, Instant::now(), InArrow::default());
    service.call(query("hashed", condition, "id, year, text"), &mut arrow)?;
    let seconds = begun.elapsed().as_secs_f64();
    let cpu_us = process::Usage::of(&own)?.since(&before).cpu_us as f64;
    Ok(Asked { seconds, first_ms: 0.0, cpu_us: cpu_us.max(1.0), rows: arrow.rows })
}

fn ask_there(served: &Served, condition: Option<&str>) -> Result<Asked, Failure> {
    let both = [std::process::id(), served.server.process()];
    let asked = serde_json::json!({
        "query": {"keyspace": "hashed", "fields": FIELDS, "select": "id, year, text", "where": condition}
    });
    let descriptor = FlightDescriptor::new_cmd(asked.to_string());
    let (before, begun) = (process::Usage::of(&both)?, Instant::now());
    let mut client = FlightClient::new_from_inner(served.client.inner().clone());
    let (rows, first_ms) = served.runtime.block_on(async {
        let info = client.get_flight_info(descriptor).await?;
        let ticket = info.endpoint.into_iter().find_map(|endpoint| endpoint.ticket).unwrap_or_default();
        let mut batches = client.do_get(ticket).await?;
        let (mut rows, mut first_ms) = (0, 0.0);
        while let Some(batch) = batches.try_next().await? {
            if rows == 0 {
                first_ms = begun.elapsed().as_secs_f64() * 1000.0;
            }
            rows += batch.num_rows() as u64;
        }
        Ok::<_, arrow_flight::error::FlightError>((rows, first_ms))
    })?;
    let seconds = begun.elapsed().as_secs_f64();
    let cpu_us = process::Usage::of(&both)?.since(&before).cpu_us as f64;
    Ok(Asked { seconds, first_ms, cpu_us: cpu_us.max(1.0), rows })
}

/// The same items by `DoPut` and by `tapetum load`, into a keyspace of each, in turns.
fn ingest(
    outcome: &mut Outcome,
    binary: &Path,
    (data, scratch): (&Path, &Path),
    served: &Served,
    (items, rounds): (u64, u64),
) -> Result<(), Failure> {
    let items = (items / 4).max(1);
    let (keys, value): (Vec<String>, String) =
        ((0..items).map(|id| format!("key {id:012}")).collect(), "value ".repeat(17));
    let lines = scratch.join("items.tsv");
    let mut file = BufWriter::new(fs::File::create(&lines)?);
    keys.iter().try_for_each(|key| writeln!(file, "{key}\t{value}"))?;
    file.flush()?;
    for keyspace in ["put", "loaded"] {
        tapetum(binary, &["keyspace", "create", keyspace, "--data"], data)?;
    }
    let batches: Vec<RecordBatch> = keys
        .chunks(PUT_ROWS)
        .map(|keys| {
            let keys = Arc::new(StringArray::from_iter_values(keys)) as ArrayRef;
            let values = Arc::new(StringArray::from(vec![&value[..]; keys.len()])) as ArrayRef;
            RecordBatch::try_from_iter([("key", keys), ("value", values)])
        })
        .collect::<Result<_, _>>()?;
    let mut ratios = Vec::new();
    for _ in 0..rounds {
        let begun = Instant::now();
        put(served, batches.clone())?;
        let putting = begun.elapsed().as_secs_f64();
        let begun = Instant::now();
        tapetum(binary, &["load", &lines.to_string_lossy(), "--keyspace", "loaded", "--data"], data)?;
        ratios.push(begun.elapsed().as_secs_f64() / putting);
    }
    outcome.hold("items a second by DoPut ÷ by tapetum load", Spread::of(ratios), Reach::AtLeast(PUT_LEAST));
    Ok(())
}

fn put(served: &Served, batches: Vec<RecordBatch>) -> Result<(), Failure> {
    let descriptor = FlightDescriptor::new_cmd(r#"{"put": {"keyspace": "put"}}"#);
    let encoder = FlightDataEncoderBuilder::new().with_flight_descriptor(Some(descriptor));
    let mut client = FlightClient::new_from_inner(served.client.inner().clone());
    served.runtime.block_on(async {
        let messages = encoder.build(stream::iter(batches.into_iter().map(Ok)));
        let told: Vec<_> = client.do_put(messages).await?.collect().await;
        told.into_iter().collect::<Result<Vec<_>, _>>()
    })?;
    Ok(())
}

fn tapetum(binary: &Path, words: &[&str], data: &Path) -> Result<(), Failure> {
    workspace::succeed(
        Command::new(binary).args(words).arg(data).arg("--quiet"),
        format!("`tapetum {}` failed", words[0]),
    )
}

/// The rows of python/bench/engines.py: `NAME<tab>NUMBER…` a line.
fn ask_engines(outcome: &mut Outcome, binary: &Path, scratch: &Path, records: u64) -> Result<(), Failure> {
    let python = python::flight_environment()?.join("bin/python");
    let output = Command::new(python)
        .arg(workspace::root().join("python/bench/engines.py"))
        .args(["--server".as_ref(), binary.as_os_str()])
        .args(["--scratch".as_ref(), scratch.join("engines").as_os_str()])
        .args(["--records", &records.to_string()])
        .env("PYTHONPATH", workspace::root().join("python"))
        .stderr(std::process::Stdio::inherit())
        .output()?;
    if !output.status.success() {
        return Err("python/bench/engines.py failed; its message is above".into());
    }
    for line in String::from_utf8_lossy(&output.stdout).lines() {
        let mut words = line.split('\t');
        let name = words.next().unwrap_or_default().to_owned();
        let numbers: Vec<f64> = words.map(str::parse).collect::<Result<_, _>>()?;
        outcome.hold(name, Spread::of(numbers), Reach::Reported);
    }
    Ok(())
}
