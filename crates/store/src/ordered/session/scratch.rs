//! A session's scratch buffer for one command over a page: the program's parameters and its output.
//!
//! ```text
//!  0          128            4096                   16 KiB
//!  +----------+--------------+---------------+
//!  | stages   | parameters   | output        |
//!  +----------+--------------+---------------+
//! ```
//! The parameters of a program that changes a page, and has no output here, may take the output's place too.

use tapetum_base::session::spare_buffers::BUFFER_BYTES;
use tapetum_drive::programs::node::{ARGUMENTS_BYTES, NODE_ITEM_HEAD_BYTES};
use tapetum_drive::{Execution, LocalBuffer, LocalRange, Operation, ProgramId, Purpose, QueuePair, Stage};
use tapetum_kernels::ordered::{NODE_BYTES, NODE_KEY_BYTES_MAX, NODE_RECORD_BYTES_MAX};

const PARAMETERS_AT: usize = 2 * Stage::ENCODED_BYTES;
const OUTPUT_AT: usize = 4096;
/// The most bytes of parameters for a program with output in the scratch, and for one that changes a page.
pub const GET_PARAMETERS_MAX: usize = OUTPUT_AT - PARAMETERS_AT;
pub const PUT_PARAMETERS_MAX: usize = SCRATCH_BYTES - PARAMETERS_AT;
/// Bytes in front of a request's record or of a scan's bounds, plus the crc, which a record in a node lacks.
const REQUEST_HEAD_BYTES: usize = 16 + 4;
const _: () = assert!(PARAMETERS_AT + ARGUMENTS_BYTES + REQUEST_HEAD_BYTES + NODE_RECORD_BYTES_MAX <= OUTPUT_AT);
const _: () = assert!(PARAMETERS_AT + ARGUMENTS_BYTES + REQUEST_HEAD_BYTES + 2 * NODE_KEY_BYTES_MAX <= OUTPUT_AT);

/// The size of a session's spare buffers. The output has room for any item of a node.
pub const SCRATCH_BYTES: usize = BUFFER_BYTES;
const _: () = assert!(SCRATCH_BYTES - OUTPUT_AT >= NODE_ITEM_HEAD_BYTES + NODE_BYTES);

fn part(buffer: &LocalBuffer, at: usize, length: usize) -> LocalRange {
    LocalRange { offset: buffer.offset() + at as u64, length: length as u32 }
}

/// Writes parameters into a scratch. Returns their range.
fn place_parameters(queue: &QueuePair, purpose: Purpose, scratch: &mut LocalBuffer, parameters: &[u8]) -> LocalRange {
    let end = PARAMETERS_AT + parameters.len();
    queue.fill(purpose, scratch, PARAMETERS_AT..end).copy_from_slice(parameters);
    part(scratch, PARAMETERS_AT, parameters.len())
}

fn output(scratch: &LocalBuffer) -> LocalRange {
    part(scratch, OUTPUT_AT, scratch.len() - OUTPUT_AT)
}

/// A command for a program that reads a page and has output in the scratch.
pub fn look(
    queue: &QueuePair,
    purpose: Purpose,
    program: ProgramId,
    parameters: &[u8],
    page: LocalRange,
    scratch: &mut LocalBuffer,
) -> Operation {
    let parameters = place_parameters(queue, purpose, scratch, parameters);
    Operation::Execute { program, parameters, input: page, output: output(scratch) }
}

/// As [`look`], over the page that the program before has left at the output's begin.
pub fn go_on(
    queue: &QueuePair,
    purpose: Purpose,
    program: ProgramId,
    parameters: &[u8],
    scratch: &mut LocalBuffer,
) -> Operation {
    let parameters = place_parameters(queue, purpose, scratch, parameters);
    Operation::Execute { program, parameters, input: LocalRange::EMPTY, output: output(scratch) }
}

/// A command for a program that makes a page of the one at the output's begin.
pub fn take_page(
    queue: &QueuePair,
    purpose: Purpose,
    program: ProgramId,
    parameters: &[u8],
    page: &LocalBuffer,
    scratch: &mut LocalBuffer,
) -> Operation {
    let parameters = place_parameters(queue, purpose, scratch, parameters);
    Operation::Execute { program, parameters, input: part(scratch, OUTPUT_AT, NODE_BYTES), output: page.range() }
}

/// As [`look`], for a page that is read from flash first.
pub fn read_and_look(
    queue: &QueuePair,
    purpose: Purpose,
    program: ProgramId,
    flash: u64,
    parameters: &[u8],
    page: &LocalBuffer,
    scratch: &mut LocalBuffer,
) -> Operation {
    let parameters = place_parameters(queue, purpose, scratch, parameters);
    let stages = [
        Stage::Read { flash, local: page.offset(), length: NODE_BYTES as u32 },
        Stage::Execute(Execution::new(program, parameters, &[page.range()], output(scratch))),
    ];
    let bytes = queue.fill(purpose, scratch, 0..PARAMETERS_AT);
    let (encoded, _) = bytes.as_chunks_mut::<{ Stage::ENCODED_BYTES }>();
    encoded.iter_mut().zip(stages).for_each(|(to, stage)| *to = stage.encode());
    Operation::Pipeline { stages: part(scratch, 0, PARAMETERS_AT) }
}

/// A command for a program that changes a page in place.
pub fn change(
    queue: &QueuePair,
    purpose: Purpose,
    program: ProgramId,
    parameters: &[u8],
    page: &LocalBuffer,
    scratch: &mut LocalBuffer,
) -> Operation {
    let parameters = place_parameters(queue, purpose, scratch, parameters);
    Operation::Execute { program, parameters, input: LocalRange::EMPTY, output: page.range() }
}

/// A program over some of the pages that a command has.
pub struct PageStage<'a> {
    pub program: ProgramId,
    pub parameters: &'a [u8],
    pub inputs: &'a [LocalRange],
    pub output: LocalRange,
}

/// A command for programs that make pages of pages, one after the other.
pub fn make_pages(
    queue: &QueuePair,
    purpose: Purpose,
    programs: &[PageStage<'_>],
    scratch: &mut LocalBuffer,
) -> Operation {
    assert!(programs.len() * Stage::ENCODED_BYTES <= PARAMETERS_AT, "the stages have their room");
    let mut at = PARAMETERS_AT;
    for (number, PageStage { program, parameters, inputs, output }) in programs.iter().enumerate() {
        queue.fill(purpose, scratch, at..at + parameters.len()).copy_from_slice(parameters);
        let execution = Execution::new(*program, part(scratch, at, parameters.len()), inputs, *output);
        let stage = number * Stage::ENCODED_BYTES..(number + 1) * Stage::ENCODED_BYTES;
        queue.fill(purpose, scratch, stage).copy_from_slice(&Stage::Execute(execution).encode());
        at += parameters.len();
    }
    Operation::Pipeline { stages: part(scratch, 0, programs.len() * Stage::ENCODED_BYTES) }
}

/// The part of the output that a program wrote.
pub fn filled<'a>(queue: &QueuePair, purpose: Purpose, scratch: &'a LocalBuffer, bytes: u64) -> &'a [u8] {
    filled_from(queue, purpose, scratch, 0, bytes as usize)
}

/// The same, without the first bytes.
pub fn filled_from<'a>(
    queue: &QueuePair,
    purpose: Purpose,
    scratch: &'a LocalBuffer,
    from: usize,
    bytes: usize,
) -> &'a [u8] {
    let end = bytes.min(scratch.len() - OUTPUT_AT);
    queue.look(purpose, scratch, OUTPUT_AT + from.min(end)..OUTPUT_AT + end)
}
