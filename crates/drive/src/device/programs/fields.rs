//! `fields`: extracts chosen fields of one record at the drive (nKV's `NDP_GET`).
//!
//! ```text
//! attachment:  0         1      4      8           12
//!              +---------+------+------+-----------+-------+-----+
//!              | version | zero | room | query     | query | key |
//!              | u8      | 3    | u32  | bytes u32 |       |     |
//!              +---------+------+------+-----------+-------+-----+
//! input:       the value
//! output:      frames ([`tapetum_kernels::scan::run`])
//! ```
//! Its statuses: [`TOO_LARGE`] for a value of more than [`VALUE_BYTES_MAX`], and for groups or ordered rows beyond their limits;
//! [`needs_room`] if the frames take more than `room` bytes. The last frame names a record that does not fit the query.

use super::{CORRUPT, TOO_LARGE, needs_room};
use crate::device::program::{Context, Program, ProgramDescriptor, ProgramResult};
use crate::protocol::Status;
use tapetum_kernels::scan::wire::{ScanReader, WireError};
use tapetum_kernels::scan::{Query, QueryRun, RowBatch, RunError};

/// Its name, and the version of its attachment.
pub const FIELDS: (&str, u16) = ("fields", 2);
/// An upper bound: no store has longer values.
pub const VALUE_BYTES_MAX: usize = 64 << 20;

/// The attachment for an encoded query over the record of a key, with `room` bytes for frames.
pub fn encode_fields_request(room: u32, query: &[u8], key: &[u8]) -> Vec<u8> {
    let mut out = vec![FIELDS.1 as u8, 0, 0, 0];
    out.extend_from_slice(&room.to_le_bytes());
    out.extend_from_slice(&(query.len() as u32).to_le_bytes());
    out.extend_from_slice(query);
    out.extend_from_slice(key);
    out
}

pub struct FieldsProgram;

/// An attachment's parts.
struct FieldsRequest<'a> {
    room: usize,
    query: &'a [u8],
    key: &'a [u8],
}

impl FieldsRequest<'_> {
    fn parse(attachment: &[u8]) -> Result<FieldsRequest<'_>, WireError> {
        let mut reader = ScanReader::new(attachment);
        let [version, 0, 0, 0] = reader.array()? else { return Err(WireError::Malformed) };
        if u16::from(version) != FIELDS.1 {
            return Err(WireError::Version(version));
        }
        let (room, query_bytes) = (reader.u32()? as usize, reader.u32()? as usize);
        Ok(FieldsRequest { room, query: reader.take(query_bytes)?, key: reader.rest() })
    }
}

fn decode_query(encoded: &[u8]) -> Result<Query, WireError> {
    let mut reader = ScanReader::new(encoded);
    let query = Query::decode(&mut reader)?;
    if reader.is_empty() { Ok(query) } else { Err(WireError::Malformed) }
}

/// Appends the frames of a query over one record.
fn run_over(run: &mut QueryRun, room: usize, record: &RowBatch, frames: &mut Vec<u8>) -> Result<(), Status> {
    match run.run(record, frames) {
        // The run's counts include it.
        Ok(()) | Err(RunError::Misfit(_)) => {}
        Err(RunError::TooManyGroups | RunError::TopTooLarge) => return Err(TOO_LARGE),
    }
    run.finish(frames);
    if frames.len() > room { Err(needs_room(frames.len())) } else { Ok(()) }
}

/// Runs queries over one record each, and keeps the last query: the next one is usually the same, over another record.
#[derive(Default)]
pub(super) struct RecordQueries {
    last: Option<LastQuery>,
    record: RowBatch,
}

struct LastQuery {
    encoded: Box<[u8]>,
    query: Query,
    run: QueryRun,
}

impl RecordQueries {
    /// Appends the frames of an attachment's query over a record. `fill` writes its value, of `value_bytes` bytes; false: that is damaged.
    pub fn run(
        &mut self,
        attachment: &[u8],
        value_bytes: usize,
        fill: impl FnOnce(&mut [u8]) -> bool,
        frames: &mut Vec<u8>,
    ) -> Result<(), Status> {
        let FieldsRequest { room, query, key } = FieldsRequest::parse(attachment).map_err(|_| Status::InvalidField)?;
        self.record.clear();
        let is_filled = self.record.push_with(key.len(), value_bytes, |into_key, into_value| {
            into_key.copy_from_slice(key);
            fill(into_value)
        });
        if !is_filled {
            return Err(CORRUPT);
        }
        let run = match &mut self.last {
            Some(last) if *last.encoded == *query => {
                last.run.start_over(&last.query);
                &mut last.run
            }
            last => {
                let (encoded, query) = (query.into(), decode_query(query).map_err(|_| Status::InvalidField)?);
                let run = QueryRun::new(&query);
                &mut last.insert(LastQuery { encoded, query, run }).run
            }
        };
        run_over(run, room, &self.record, frames)
    }
}

/// State of one task, kept from part to part.
struct FieldsTask {
    run: QueryRun,
    room: usize,
    key: Box<[u8]>,
    value: Vec<u8>,
    /// Frames, and how many of their bytes are given out.
    pending: Vec<u8>,
    given: usize,
}

impl FieldsTask {
    fn begin(attachment: &[u8]) -> Result<FieldsTask, WireError> {
        let FieldsRequest { room, query, key } = FieldsRequest::parse(attachment)?;
        let run = QueryRun::new(&decode_query(query)?);
        Ok(FieldsTask { run, room, key: key.into(), value: Vec::new(), pending: Vec::new(), given: 0 })
    }

    fn finish(&mut self) -> Result<(), Status> {
        let mut record = RowBatch::new();
        record.push(&self.key, &std::mem::take(&mut self.value));
        run_over(&mut self.run, self.room, &record, &mut self.pending)
    }
}

impl Program for FieldsProgram {
    fn descriptor(&self) -> ProgramDescriptor {
        ProgramDescriptor { name: FIELDS.0, version: FIELDS.1, is_stream: true }
    }

    fn run(&self, Context { inputs, output, task, .. }: Context<'_>) -> ProgramResult {
        let attachment = task.attachment.clone();
        let (consumed, more_input) = (task.consumed, task.more_input);
        let kept = super::keep(task, || FieldsTask::begin(&attachment).ok());
        let Some(fields) = kept else { return (Status::InvalidField, [0; 2]) };
        if consumed == 0 {
            for input in inputs {
                if fields.value.len() + input.len() > VALUE_BYTES_MAX {
                    return (TOO_LARGE, [0; 2]);
                }
                fields.value.extend_from_slice(input);
            }
            if !more_input && let Err(status) = fields.finish() {
                return (status, [0; 2]);
            }
        }
        let pending = &fields.pending[fields.given..];
        let bytes = pending.len().min(output.len());
        output[..bytes].copy_from_slice(&pending[..bytes]);
        fields.given += bytes;
        let is_more = fields.given < fields.pending.len();
        // `consumed` is at least 1 while output is left, so that an input of no bytes is not taken twice.
        task.consumed = if is_more { inputs.iter().map(|input| input.len()).sum::<usize>().max(1) } else { 0 };
        (if is_more { Status::More } else { Status::Success }, [bytes as u64, 0])
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::device::program::{CancelFlag, TaskState};
    use tapetum_kernels::scan::program::{Instruction, Program as ScanInstructions};
    use tapetum_kernels::scan::query::{MisfitPolicy, QueryOutput};
    use tapetum_kernels::scan::{Format, QueryResult, Scalar};

    pub fn query() -> Query {
        let format = Format::parse("key: id u32be; value: year u16le, title string").unwrap();
        let types: Vec<_> = format.fields().iter().map(|field| field.kind.scalar_type()).collect();
        let program =
            ScanInstructions::new(vec![Instruction::Field(0), Instruction::Field(2)], vec![], &types).unwrap();
        let output = QueryOutput::Rows { columns: vec![1, 0], order: None, limit: None };
        Query::new(format, program, output, MisfitPolicy::Fail).unwrap()
    }

    fn run(attachment: Vec<u8>, value: &[u8], bytes: usize) -> Result<Vec<u8>, Status> {
        let mut task = TaskState::with_flag(CancelFlag::default(), attachment.into());
        let (mut out, mut output) = (Vec::new(), vec![0; bytes]);
        let parts: Vec<&[u8]> = value.chunks(bytes).collect();
        for (number, part) in parts.iter().enumerate() {
            task.more_input = number + 1 < parts.len();
            loop {
                let context = Context { parameters: &[], inputs: &[part], output: &mut output, task: &mut task };
                let (status, [filled, _]) = FieldsProgram.run(context);
                out.extend_from_slice(&output[..filled as usize]);
                match status {
                    Status::More => {}
                    Status::Success => break,
                    status => return Err(status),
                }
            }
        }
        Ok(out)
    }

    #[test]
    fn the_chosen_fields_come_out() {
        let mut encoded = Vec::new();
        query().encode(&mut encoded);
        let title = "a title of some length".repeat(9);
        let value = [&2000u16.to_le_bytes(), title.as_bytes()].concat();
        for bytes in [3, 50, 4096] {
            let frames = run(encode_fields_request(4096, &encoded, &7u32.to_be_bytes()), &value, bytes).unwrap();
            let (mut result, mut rows) = (QueryResult::new(&query()), Vec::new());
            let mut take = |row: &[Option<Scalar<'_>>]| {
                rows.push(row.iter().map(|value| value.map(Scalar::to_owned)).collect::<Vec<_>>());
            };
            result.merge(&frames, &mut take).unwrap();
            let expected = [Scalar::Text(&title), Scalar::Int(7)].map(|value| Some(value.to_owned()));
            assert_eq!((rows, result.counts().kept), (vec![expected.to_vec()], 1));
        }
        assert_eq!(run(encode_fields_request(200, &encoded, &[7; 4]), &value, 4096), Err(needs_room(4096)));
        let short = run(encode_fields_request(4096, &encoded, b"odd"), &value, 4096).unwrap();
        let mut result = QueryResult::new(&query());
        result.merge(&short, &mut |_: &[Option<Scalar<'_>>]| ()).unwrap();
        assert_eq!(result.counts().misfits, 1);
        let mut newer = encode_fields_request(4096, &encoded, b"key");
        newer[0] = 3;
        assert_eq!(run(newer, &value, 4096), Err(Status::InvalidField));
        assert_eq!(run(Vec::new(), &value, 4096), Err(Status::InvalidField));
    }
}
