//! Rows that are put: items as they are, or records by the format of their keyspace.
//!
//! Each batch is stored before the next one is read. Rows that were stored before an error stay stored, and the error names its row.
//!
//! Threads: the batches come by the door's; they are stored on a thread of its own.

use std::sync::Arc;

use arrow_array::RecordBatch;
use arrow_flight::decode::FlightRecordBatchStream;
use arrow_flight::error::FlightError;
use arrow_flight::sql::{Command, CommandStatementIngest, DoPutUpdateResult};
use futures::TryStreamExt;
use prost::Message;
use serde_json::json;
use tapetum_kernels::scan::Format;
use tapetum_service::failure::{Failure, FailureKind};
use tapetum_service::reply::{Reply, Verdict};
use tapetum_service::request::Request;
use tonic::Status;

use crate::call::Call;
use crate::command::PutCommand;
use crate::plan::format_of;
use crate::records;
use crate::status::status_of;

/// The most batches that are looked at for the values of parameters.
const BATCHES_MAX: usize = 16;

/// The keyspace to which rows go, and the form of the answer.
pub struct Target {
    keyspace: String,
    keeps_existing: bool,
    is_sql: bool,
}

impl Target {
    pub fn of_command(put: PutCommand) -> Result<Target, Failure> {
        let PutCommand { keyspace, keep_existing } = put;
        Ok(Target { keyspace, keeps_existing: keep_existing, is_sql: false })
    }

    pub fn of_keyspace(keyspace: String) -> Result<Target, Failure> {
        Ok(Target { keyspace, keeps_existing: false, is_sql: false })
    }

    pub fn of_sql(command: Command) -> Result<Target, Failure> {
        match command {
            Command::CommandStatementIngest(CommandStatementIngest {
                table,
                table_definition_options,
                temporary,
                ..
            }) => {
                if temporary {
                    return Err(Failure::bad("there are no temporary keyspaces: leave temporary out"));
                }
                // A choice for tables that exist: the mode "create" of ADBC fails then, and "replace" would drop them.
                let if_exists = table_definition_options.map_or(0, |options| options.if_exists);
                match if_exists {
                    0 | 2 => Ok(Target { keyspace: table, keeps_existing: false, is_sql: true }),
                    _ => Err(Failure::bad(format!(
                        "keyspaces are made on the server's machine: `tapetum keyspace create {table}` with its format, then append to it (ADBC: mode=\"append\")"
                    ))),
                }
            }
            Command::CommandStatementUpdate(_) | Command::CommandPreparedStatementUpdate(_) => Err(Failure::bad(
                "statements read here: rows are put with DoPut or ADBC's ingest, and deleted with the action tapetum.delete",
            )),
            other => Err(Failure::bad(format!("nothing is put by {}", other.type_url()))),
        }
    }

    fn told(&self, stored: u64) -> Vec<u8> {
        match self.is_sql {
            true => DoPutUpdateResult { record_count: i64::try_from(stored).unwrap_or(i64::MAX) }.encode_to_vec(),
            false => json!({ "stored": stored }).to_string().into_bytes(),
        }
    }
}

pub fn of_stream(error: FlightError) -> Status {
    match error {
        FlightError::Tonic(status) => *status,
        error => Status::invalid_argument(format!("what was put is no stream of Arrow: {error}")),
    }
}

/// The batches up to the first one with a row, and the one behind it: more than one row is too much.
pub async fn first_rows(mut batches: FlightRecordBatchStream) -> Result<Vec<RecordBatch>, Status> {
    let mut rows: Vec<RecordBatch> = Vec::new();
    let mut seen = 0;
    while let Some(batch) = batches.try_next().await.map_err(of_stream)? {
        seen += 1;
        if batch.num_rows() > 0 {
            rows.push(batch);
        }
        if rows.len() > 1 || seen >= BATCHES_MAX {
            break;
        }
    }
    Ok(rows)
}

/// Stores rows, and says how many.
///
/// # Errors
/// Names the row, and how many were stored before.
pub async fn put(call: &Call, target: Target, mut batches: FlightRecordBatchStream) -> Result<Vec<u8>, Status> {
    // A put without rows needs the right, too, and so does one of a keyspace that is not there.
    let nothing =
        Request::Store { keyspace: target.keyspace.clone(), items: Vec::new(), keeps_existing: target.keeps_existing };
    call.asker.allow(&nothing).map_err(|failure| status_of(&failure))?;
    let keyspace = target.keyspace.clone();
    let format = call.on_thread(move |call| format_of(call, &keyspace, None)).await?;
    let format = format.fields.as_deref().map(Format::parse).transpose();
    let format =
        format.map_err(|error| Status::failed_precondition(format!("the format of {}: {error}", target.keyspace)))?;
    let format = Arc::new(format);
    let (mut stored, mut seen) = (0, 0);
    while let Some(batch) = batches.try_next().await.map_err(of_stream)? {
        let rows = batch.num_rows() as u64;
        let part = Part { keyspace: target.keyspace.clone(), keeps_existing: target.keeps_existing, before: seen };
        let of_part = Arc::clone(&format);
        stored += call.on_thread(move |call| part.store(call, &batch, (*of_part).as_ref())).await?;
        seen += rows;
    }
    Ok(target.told(stored))
}

/// A batch on its way to the store.
struct Part {
    keyspace: String,
    keeps_existing: bool,
    /// Rows that came before.
    before: u64,
}

impl Part {
    fn store(self, call: &Call, batch: &RecordBatch, format: Option<&Format>) -> Result<u64, Failure> {
        // As columns, and as items.
        let charged = call.served.charge(2 * batch.get_array_memory_size(), || !call.served.is_ending());
        let _charge = charged.map_err(|_| {
            Failure::new(FailureKind::Unavailable, "the server stops: put the rest when it serves again")
        })?;
        let items = records::items(batch, format, &self.keyspace)?;
        let items = items.map_err(|(row, why)| self.failure(row as u64, FailureKind::BadRequest, &why))?;
        let request = Request::Store { keyspace: self.keyspace.clone(), items, keeps_existing: self.keeps_existing };
        let told = call.gather(request)?;
        let verdicts = told
            .into_iter()
            .find_map(|reply| if let Reply::Verdicts(verdicts) = reply { Some(verdicts) } else { None });
        let verdicts = verdicts.unwrap_or_default();
        for (row, verdict) in verdicts.iter().enumerate() {
            match verdict {
                Verdict::Stored | Verdict::Kept => {}
                Verdict::Bad(why) => return Err(self.failure(row as u64, FailureKind::BadRequest, why)),
                Verdict::Failed(why) => return Err(self.failure(row as u64, FailureKind::Full, why)),
            }
        }
        Ok(verdicts.iter().filter(|verdict| **verdict == Verdict::Stored).count() as u64)
    }

    fn failure(&self, row: u64, kind: FailureKind, why: &str) -> Failure {
        let row = self.before + row;
        Failure::new(kind, format!("row {row} was not stored, and those of its batch before it may be: {why}"))
    }
}
