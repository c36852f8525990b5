//! A batch's records at one page: the drive says whether they have room, and puts them there.
//!
//! ```text
//! room_for: page ─► node-put ─► scratch: the page as it would be ─► no room? node-split ─► the key in front of which the node is to be split
//! put:      page ─► node-put, in place ─┬─► done
//!                                       └─► a record names an extension: by way of the scratch, with outcomes that name it
//! ```

use super::context::{Context, OrderedMeans, StructureStop};
use super::looks::arguments;
use super::scratch::{self, GET_PARAMETERS_MAX};
use tapetum_base::session::session_core::SessionCore;
use tapetum_drive::programs::OUTPUT_SHORT;
use tapetum_drive::programs::node::{
    ARGUMENTS_BYTES, NODE_BARE_REQUESTS_MAX, NODE_OUTCOME_BYTES, NodeCutAt, NodeFlags, NodeSplitRequest, PutCondition,
    PutOutcome, PutRequests, PutResult, Realigned, put_output_bytes, put_request_bytes,
};
use tapetum_drive::{Completion, LocalBuffer, Operation, Purpose};
use tapetum_kernels::ordered::{Arrival, NODE_BYTES, node_record_bytes};
use tapetum_kernels::record::Record;

/// Calls `work` with the records that go in one command, one command after the other.
fn in_commands<'r>(
    records: &'r [Record<'r>],
    mut work: impl FnMut(&'r [Record<'r>]) -> Result<bool, StructureStop>,
) -> Result<(), StructureStop> {
    let mut rest = records;
    while !rest.is_empty() {
        let mut left = GET_PARAMETERS_MAX - ARGUMENTS_BYTES;
        let fits = |record: &&Record<'_>| {
            let bytes = left.checked_sub(put_request_bytes(record));
            left = bytes.unwrap_or(0);
            bytes.is_some()
        };
        let count = rest.iter().take(NODE_BARE_REQUESTS_MAX).take_while(fits).count();
        assert!(count > 0, "a record of a node fits in a command");
        let command;
        (command, rest) = rest.split_at(count);
        if !work(command)? {
            break;
        }
    }
    Ok(())
}

fn encode(cx: &mut Context, flags: NodeFlags, records: &[Record<'_>]) {
    let mut requests = PutRequests::new(&arguments(flags), &mut cx.parameters);
    records.iter().for_each(|record| requests.push(PutCondition::Always, record));
}

/// The outcomes behind the page in a scratch.
fn outcomes(core: &SessionCore, scratch: &LocalBuffer, count: usize) -> Option<Vec<PutOutcome>> {
    let end = put_output_bytes(count);
    let behind = scratch::filled_from(&core.queue, Purpose::Put, scratch, NODE_BYTES, end);
    let (outcomes, _) = behind.as_chunks::<NODE_OUTCOME_BYTES>();
    outcomes.iter().map(PutOutcome::parse).collect()
}

/// Whether a page has room for these records, all of them. If not, the key in front of which its node is to be split. The page stays as it is.
pub(super) fn room_for(
    (cx, core): OrderedMeans<'_>,
    page: &mut LocalBuffer,
    records: &[Record<'_>],
) -> Result<Option<Vec<u8>>, StructureStop> {
    let mut scratch = cx.take_scratch(core);
    let (mut cut, mut is_first) = (None, true);
    let done = in_commands(records, |command| {
        let mut own = scratch.take().ok_or(StructureStop::NoMemory)?;
        encode(cx, if is_first { NodeFlags::NONE } else { NodeFlags::IN_PLACE }, command);
        let (queue, program) = (&core.queue, cx.state.programs.put);
        let operation = match is_first {
            true => scratch::look(queue, Purpose::Put, program, &cx.parameters, page.range(), &mut own),
            false => scratch::go_on(queue, Purpose::Put, program, &cx.parameters, &mut own),
        };
        is_first = false;
        let completion;
        (completion, own) = cx.run_at(core, Purpose::Put, operation, page, own)?;
        let outcomes = completion.is_success().then(|| outcomes(core, &own, command.len())).flatten();
        let own = scratch.insert(own);
        let outcomes = outcomes.ok_or(StructureStop::Failed(completion.status))?;
        let Some(place) = outcomes.iter().position(|outcome| !outcome.result.took_effect()) else { return Ok(true) };
        if outcomes[place].result != PutResult::NoRoom {
            return Err(StructureStop::Failed(completion.status));
        }
        cut = Some(place_to_cut((cx, core), own, &command[place])?);
        Ok(false)
    });
    scratch.into_iter().for_each(|scratch| cx.give_scratch(core, scratch));
    done.map(|()| cut)
}

/// The key in front of which a node is best split for a record: the node has the page in the scratch.
fn place_to_cut(
    (cx, core): OrderedMeans<'_>,
    scratch: &mut LocalBuffer,
    record: &Record<'_>,
) -> Result<Vec<u8>, StructureStop> {
    let mut upper = cx.take_page(core).ok_or(StructureStop::NoMemory)?;
    let arrival = Arrival { key: record.key, record_bytes: node_record_bytes(&record.header) };
    let request = NodeSplitRequest { upper_id: 0, cut: NodeCutAt::Best(arrival) };
    request.encode(&arguments(NodeFlags::NONE), &mut cx.parameters);
    let (queue, program) = (&core.queue, cx.state.programs.split);
    let operation = scratch::take_page(queue, Purpose::Structure, program, &cx.parameters, &upper, scratch);
    let (completion, own) = cx.run_at(core, Purpose::Structure, operation, &mut upper, scratch.take())?;
    *scratch = own;
    let separator = completion.is_success().then(|| {
        let from = NODE_BYTES - (completion.result[0] as usize).min(NODE_BYTES);
        core.queue.look(Purpose::Structure, &upper, from..NODE_BYTES).to_vec()
    });
    cx.give_page(upper);
    separator.ok_or(StructureStop::Failed(completion.status))
}

/// The outcomes of a batch's records at a page.
pub(super) struct PutRecords {
    /// In the order of the records.
    pub outcomes: Vec<PutOutcome>,
    pub used_bytes: usize,
}

/// Puts records into a page that has room for them. After an error the page's content is undefined.
pub(super) fn put(
    (cx, core): OrderedMeans<'_>,
    page: &mut LocalBuffer,
    scratch: &mut LocalBuffer,
    records: &[Record<'_>],
) -> Result<PutRecords, StructureStop> {
    let mut done = PutRecords { outcomes: Vec::with_capacity(records.len()), used_bytes: 0 };
    in_commands(records, |command| {
        encode(cx, NodeFlags::IN_PLACE, command);
        let (queue, program) = (&core.queue, cx.state.programs.put);
        let operation = scratch::change(queue, Purpose::Put, program, &cx.parameters, page, scratch);
        let completion = run((cx, core), operation, page, scratch)?;
        match completion.status == OUTPUT_SHORT {
            true => put_with_outcomes((cx, core), page, scratch, command, &mut done)?,
            false => done.add_bare(&completion, command.len()).ok_or(StructureStop::Failed(completion.status))?,
        }
        Ok(true)
    })?;
    Ok(done)
}

fn run(
    (cx, core): OrderedMeans<'_>,
    operation: Operation,
    page: &mut LocalBuffer,
    scratch: &mut LocalBuffer,
) -> Result<Completion, StructureStop> {
    let (completion, own) = cx.run_at(core, Purpose::Put, operation, page, scratch.take())?;
    *scratch = own;
    Ok(completion)
}

/// Puts records by way of the scratch, where there is room to say which extensions go.
fn put_with_outcomes(
    (cx, core): OrderedMeans<'_>,
    page: &mut LocalBuffer,
    scratch: &mut LocalBuffer,
    records: &[Record<'_>],
    done: &mut PutRecords,
) -> Result<(), StructureStop> {
    encode(cx, NodeFlags::NONE, records);
    let programs = cx.state.programs;
    let operation = scratch::look(&core.queue, Purpose::Put, programs.put, &cx.parameters, page.range(), scratch);
    let completion = run((cx, core), operation, page, scratch)?;
    let outcomes = completion.is_success().then(|| outcomes(core, scratch, records.len())).flatten();
    done.outcomes.extend(outcomes.ok_or(StructureStop::Failed(completion.status))?);
    // Nothing is dead for these arguments: the page is copied.
    cx.encode(&arguments(NodeFlags::NONE));
    let operation = scratch::take_page(&core.queue, Purpose::Put, programs.realign, &cx.parameters, page, scratch);
    let completion = run((cx, core), operation, page, scratch)?;
    done.used_bytes = Realigned::of_result(completion.result).used_bytes;
    if completion.is_success() { Ok(()) } else { Err(StructureStop::Failed(completion.status)) }
}

impl PutRecords {
    /// Adds the outcomes of a program whose output was a page. `None`: not all took effect.
    fn add_bare(&mut self, completion: &Completion, count: usize) -> Option<()> {
        let (results, used_bytes) = match (completion.is_success(), count) {
            (false, _) => return None,
            (true, 1) => {
                let (outcome, used_bytes) = PutOutcome::of_result(completion.result)?;
                ([outcome.result; NODE_BARE_REQUESTS_MAX], used_bytes)
            }
            (true, _) => PutOutcome::of_results(completion.result, count)?,
        };
        self.used_bytes = used_bytes;
        let bare = |result: &PutResult| PutOutcome { result: *result, stamp: 0, extension: None };
        self.outcomes.extend(results[..count].iter().map(bare));
        results[..count].iter().all(|result| result.took_effect()).then_some(())
    }
}
