//! `match-fields`: finds a record in data pages, and runs a query over it: a GET of chosen fields in one step (nKV's `NDP_GET`).
//!
//! ```text
//! parameters: those of [`match_record`] · the attachment of [`fields`]
//! input:      data pages as read, from the page in which the record may start
//! output:     the head of [`match_record`]'s output · frames
//! result:     length of the frames · entry
//! ```
//! In the head, `place` is 1 and `value length` that of the frames. Of a value out of line it is 2, with the place and the length of the value's
//! reference, and there are no frames. The frames have as much room as the output; the attachment's `room` counts as well.
//! Stateless, but for memory that each thread keeps.

use super::fields::RecordQueries;
use super::match_record::{Match, Matched, OUTPUT_HEAD_BYTES, Place, find, prefetch_pages};
use super::{OUTPUT_SHORT, inflate};
use crate::device::program::{Context, Program, ProgramDescriptor, ProgramResult};
use crate::protocol::Status;
use std::cell::RefCell;
use tapetum_kernels::record::Codec;

/// Its name, and the version of its parameters.
pub const MATCH_FIELDS: (&str, u16) = ("match-fields", 1);

pub struct MatchFields;

/// Memory of a thread.
#[derive(Default)]
struct Scratch {
    /// The bytes of a compressed value.
    compressed: Vec<u8>,
    frames: Vec<u8>,
    queries: RecordQueries,
}

thread_local! {
    static SCRATCH: RefCell<Scratch> = RefCell::default();
}

impl Program for MatchFields {
    fn descriptor(&self) -> ProgramDescriptor {
        ProgramDescriptor { name: MATCH_FIELDS.0, version: MATCH_FIELDS.1, is_stream: false }
    }

    fn run(&self, Context { parameters, inputs, output, .. }: Context<'_>) -> ProgramResult {
        match find(parameters, inputs, output) {
            Ok(found) => SCRATCH.with_borrow_mut(|scratch| deliver(&found, scratch, output)),
            Err(result) => result,
        }
    }

    fn prefetch(&self, round: usize, parameters: &[u8], inputs: &[&[u8]]) {
        prefetch_pages(round, parameters, inputs);
    }
}

fn deliver(
    Match { run, record, rest: asked }: &Match<'_>,
    Scratch { compressed, frames, queries }: &mut Scratch,
    output: &mut [u8],
) -> ProgramResult {
    let mut matched = Matched::of(record);
    frames.clear();
    if record.header.codec != Codec::OutOfLine {
        let fill = |value: &mut [u8]| match record.header.codec {
            Codec::Raw => run.copy(record.stored_address(), value) == value.len(),
            _ => {
                compressed.resize(record.header.stored_bytes as usize, 0);
                run.copy(record.stored_address(), compressed);
                inflate(compressed, value)
            }
        };
        if let Err(status) = queries.run(asked, record.header.raw_bytes as usize, fill, frames) {
            return (status, [0; 2]);
        }
        (matched.place, matched.value_bytes) = (Place::Output, frames.len() as u32);
    }
    let needed = OUTPUT_HEAD_BYTES + frames.len();
    if output.len() < needed {
        return (OUTPUT_SHORT, [needed as u64, 0]);
    }
    matched.encode(output);
    output[OUTPUT_HEAD_BYTES..needed].copy_from_slice(frames);
    (Status::Success, [frames.len() as u64, matched.entry.into()])
}

#[cfg(test)]
mod tests {
    use super::super::CORRUPT;
    use super::super::fields::encode_fields_request;
    use super::super::fields::tests::query;
    use super::super::match_record::tests::{page, pages};
    use super::super::match_record::{encode_parameters, parameters_bytes};
    use super::*;
    use crate::device::program::TaskState;
    use tapetum_kernels::scan::{QueryResult, Scalar};

    fn run(page: &[u8], asked: &[u8], output: &mut [u8]) -> ProgramResult {
        let mut parameters = vec![0; parameters_bytes(b"key")];
        encode_parameters(pages(), 5, b"key", &mut parameters);
        parameters.extend_from_slice(asked);
        let task = &mut TaskState::default();
        MatchFields.run(Context { parameters: &parameters, inputs: &[page], output, task })
    }

    #[test]
    fn the_chosen_fields_of_raw_and_of_compressed_values_come_out() {
        let mut encoded = Vec::new();
        query().encode(&mut encoded);
        // The key is that of the query's format.
        let asked = encode_fields_request(4096, &encoded, &7u32.to_be_bytes());
        for title in ["short".to_owned(), "mirror ".repeat(100)] {
            let page = page(&[&2000u16.to_le_bytes(), title.as_bytes()].concat());
            let mut output = vec![0; 4096];
            let (status, [bytes, entry]) = run(&page, &asked, &mut output);
            assert_eq!((status, entry), (Status::Success, 3));
            let matched = Matched::parse(output[..OUTPUT_HEAD_BYTES].try_into().unwrap());
            assert_eq!((matched.place, matched.value_bytes, matched.stamp), (Place::Output, bytes as u32, 9));
            assert_eq!(matched.raw_bytes as usize, 2 + title.len());
            let (mut result, mut rows) = (QueryResult::new(&query()), Vec::new());
            let mut take = |row: &[Option<Scalar<'_>>]| {
                rows.push(row.iter().map(|value| value.map(Scalar::to_owned)).collect::<Vec<_>>());
            };
            result.merge(&output[OUTPUT_HEAD_BYTES..][..bytes as usize], &mut take).unwrap();
            let expected = [Scalar::Text(&title), Scalar::Int(7)].map(|value| Some(value.to_owned()));
            assert_eq!(rows, [expected.to_vec()]);
            let short = run(&page, &asked, &mut [0; OUTPUT_HEAD_BYTES + 1]);
            assert_eq!(short, (OUTPUT_SHORT, [OUTPUT_HEAD_BYTES as u64 + bytes, 0]));
        }
        let page = page(b"raw");
        assert_eq!(run(&page, b"no request", &mut [0; 4096]).0, Status::InvalidField);
        assert_eq!(run(&page[..100], &asked, &mut [0; 4096]).0, CORRUPT);
    }
}
