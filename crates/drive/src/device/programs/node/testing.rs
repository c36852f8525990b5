//! Shared fixtures of these programs' tests: a queue pair, a page, and parameters.

use super::*;
use crate::host::testing::{drive_of, run_with};
use crate::memory::LocalBuffer;
use crate::programs::built_in;
use crate::protocol::{Completion, LocalRange, Operation, ProgramId};
use crate::{Drive, Lease, MemoryFlash, QueuePair};
use std::sync::Arc;
use tapetum_kernels::extent_address::ExtentAddress;
use tapetum_kernels::ordered::extension::{ExtensionReference, REFERENCE_BYTES};
use tapetum_kernels::ordered::{NewNode, NodeMut, NodePage};
use tapetum_kernels::record::{Codec, Header, Record};

pub(super) const PARAMETERS_AT: usize = 0;
pub(super) const PAGE_AT: usize = 32 << 10;
pub(super) const OUTPUT_AT: usize = 36 << 10;
pub(super) const BUFFER_BYTES: usize = 64 << 10;
pub(super) const OUTPUT_BYTES: usize = BUFFER_BYTES - OUTPUT_AT;

/// A queue pair, and a buffer that holds a page.
pub(super) struct Bench {
    drive: Drive,
    pair: QueuePair,
    buffer: LocalBuffer,
}

impl Bench {
    pub fn new(page: &NodePage) -> Bench {
        let drive = drive_of(Arc::new(MemoryFlash::new(1 << 20)), built_in(), 1);
        let pair = drive.queue_pair(4).unwrap();
        let mut buffer = drive.local().allocate(BUFFER_BYTES).unwrap();
        buffer.bytes_mut()[PAGE_AT..OUTPUT_AT].copy_from_slice(page);
        Bench { drive, pair, buffer }
    }

    pub fn program(&self, (name, version): (&str, u16)) -> ProgramId {
        self.drive.identity().program(name, version).expect("it is built in")
    }

    pub fn range(&self, at: usize, length: usize) -> LocalRange {
        LocalRange { offset: self.buffer.offset() + at as u64, length: length as u32 }
    }

    /// Runs a program with this output range. Returns its completion; the output is in the buffer.
    pub fn run_in(&mut self, name: (&str, u16), parameters: &[u8], output: LocalRange) -> Completion {
        let is_in_place = self.range(PAGE_AT, 0).offset == output.offset;
        self.buffer.bytes_mut()[PARAMETERS_AT..PARAMETERS_AT + parameters.len()].copy_from_slice(parameters);
        let input = if is_in_place { LocalRange::EMPTY } else { self.range(PAGE_AT, NODE_BYTES) };
        let parameters = self.range(PARAMETERS_AT, parameters.len());
        let operation = Operation::Execute { program: self.program(name), parameters, input, output };
        let returned = run_with(&mut self.pair, operation, Lease::Buffer(self.buffer.take()));
        self.buffer = returned.lease.into_buffer();
        returned.completion
    }

    pub fn run(&mut self, name: (&str, u16), parameters: &[u8], output_bytes: usize) -> Completion {
        self.buffer.bytes_mut()[OUTPUT_AT..].fill(0xee);
        let output = self.range(OUTPUT_AT, output_bytes);
        self.run_in(name, parameters, output)
    }

    pub fn output(&self) -> &[u8] {
        &self.buffer.bytes()[OUTPUT_AT..]
    }

    pub fn page(&self) -> &[u8] {
        &self.buffer.bytes()[PAGE_AT..OUTPUT_AT]
    }

    /// Copies the page from the output to the input.
    pub fn take_page(&mut self) {
        self.buffer.bytes_mut().copy_within(OUTPUT_AT..OUTPUT_AT + NODE_BYTES, PAGE_AT);
    }

    pub fn outcomes(&self, count: usize) -> Vec<PutOutcome> {
        let (outcomes, _) = self.output()[NODE_BYTES..put_output_bytes(count)].as_chunks();
        outcomes.iter().map(|outcome| PutOutcome::parse(outcome).unwrap()).collect()
    }

    pub fn put(&mut self, arguments: &NodeArguments, requests: &[(PutCondition, Record<'_>)]) -> Vec<PutResult> {
        let completion = self.run(NODE_PUT, &put_parameters(arguments, requests), OUTPUT_BYTES);
        assert_eq!(completion.status, Status::Success);
        let outcomes = self.outcomes(requests.len());
        let effects = outcomes.iter().filter(|outcome| outcome.result.took_effect()).count();
        assert_eq!(completion.result, [put_output_bytes(requests.len()) as u64, effects as u64]);
        outcomes.iter().map(|outcome| outcome.result).collect()
    }

    pub fn items(&self, completion: &Completion) -> Vec<NodeItem<'_>> {
        let items: Vec<_> = ItemReader::new(&self.output()[..completion.result[0] as usize]).collect();
        assert_eq!(items.len() as u64, completion.result[1] & 0xffff_ffff);
        items
    }

    pub fn get(&mut self, arguments: &NodeArguments, keys: &[&[u8]]) -> Completion {
        self.run(NODE_GET, &get_parameters(arguments, keys), OUTPUT_BYTES)
    }

    pub fn scan(&mut self, arguments: &NodeArguments, from: ScanBound<'_>, to: ScanBound<'_>) -> Vec<String> {
        let mut parameters = Vec::new();
        NodeScanRequest { from, to, limit: 1000 }.encode(arguments, &mut parameters);
        let completion = self.run(NODE_SCAN, &parameters, OUTPUT_BYTES);
        assert_eq!(completion.status, Status::Success);
        self.items(&completion).iter().map(|item| String::from_utf8(item.key.to_vec()).unwrap()).collect()
    }
}

pub(super) fn salt() -> SlotSalt {
    SlotSalt { store: 5, slot: SlotAddress::new(ExtentAddress::new(0, 3), 7), version: 11 }
}

pub(super) fn arguments(flags: NodeFlags) -> NodeArguments {
    NodeArguments {
        salt: salt(),
        id: 17,
        stamp: 0,
        watermark: 10,
        seal: ImageSeal { stamp: 99, durable: 88, round_images: 0 },
        now_ms: 1000,
        flags,
    }
}

pub(super) fn put_parameters(arguments: &NodeArguments, requests: &[(PutCondition, Record<'_>)]) -> Vec<u8> {
    let mut parameters = Vec::new();
    let mut list = PutRequests::new(arguments, &mut parameters);
    requests.iter().for_each(|(condition, record)| list.push(*condition, record));
    parameters
}

pub(super) fn get_parameters(arguments: &NodeArguments, keys: &[&[u8]]) -> Vec<u8> {
    let mut parameters = Vec::new();
    let mut list = GetRequests::new(arguments, &mut parameters);
    keys.iter().for_each(|key| list.push(key));
    parameters
}

pub(super) fn raw<'a>(stamp: u64, key: &'a [u8], stored: &'a [u8]) -> Record<'a> {
    Record { header: Header::value(stamp, key.len(), stored.len()), key, stored }
}

pub(super) fn tombstone(key: &[u8]) -> Record<'_> {
    Record { header: Header::tombstone(50, key.len()), key, stored: &[] }
}

pub(super) fn reference() -> ExtensionReference {
    ExtensionReference { stamp: 20, slot: salt().slot, codec: Codec::Raw, stored_bytes: 5000 }
}

pub(super) fn outside<'a>(key: &'a [u8], stored: &'a [u8; REFERENCE_BYTES]) -> Record<'a> {
    let mut header = Header::value(20, key.len(), stored.len());
    (header.codec, header.raw_bytes) = (Codec::OutOfLine, 5000);
    Record { header, key, stored }
}

/// A sealed node of keys from `b` to `x`, with these records.
pub(super) fn node(records: &[Record<'_>]) -> Box<NodePage> {
    let mut page = Box::new([0; NODE_BYTES]);
    let new = NewNode { keyspace: 3, id: 17, low_fence: b"b", high_fence: Some(b"x") };
    let mut node = NodeMut::format(&mut page, &new).unwrap();
    records.iter().for_each(|record| assert_eq!(node.put(record), Ok(None)));
    node.seal(salt(), ImageSeal { stamp: 60, durable: 0, round_images: 0 });
    page
}

/// Records with keys k00, k01 and so on, and values of so many bytes.
pub(super) fn numbered(count: usize, value: &[u8]) -> Box<NodePage> {
    let keys: Vec<String> = (0..count).map(|n| format!("k{n:02}")).collect();
    let records: Vec<Record<'_>> = keys.iter().map(|key| raw(20, key.as_bytes(), value)).collect();
    node(&records)
}

/// Valid parameters for each program.
pub(super) fn parameters_of(name: (&str, u16), arguments: &NodeArguments) -> Vec<u8> {
    let mut parameters = Vec::new();
    match name {
        NODE_GET => return get_parameters(arguments, &[b"k01"]),
        NODE_PUT => return put_parameters(arguments, &[(PutCondition::Present, tombstone(b"k01"))]),
        NODE_SCAN => {
            let (from, to) = (ScanBound::Included(&b"k"[..]), ScanBound::Excluded(&b"l"[..]));
            NodeScanRequest { from, to, limit: 9 }.encode(arguments, &mut parameters);
        }
        NODE_SPLIT => {
            let cut = NodeCutAt::Key(b"k01");
            NodeSplitRequest { upper_id: 18, cut }.encode(arguments, &mut parameters);
        }
        _ => arguments.encode(&mut parameters),
    }
    parameters
}
