//! `node-split`, `node-split-rest` and `node-merge`, as a host sends them: over pages in buffers of their own.

use super::testing::{arguments, node, numbered, parameters_of, raw};
use super::*;
use crate::host::testing::{drive_of, run_with};
use crate::memory::LocalBuffer;
use crate::programs::built_in;
use crate::protocol::{Completion, Execution, LocalRange, Operation, Stage};
use crate::{Drive, Lease, MemoryFlash, QueuePair};
use std::sync::Arc;
use tapetum_kernels::ordered::{Arrival, NewNode, NodeMut, NodePage};

const PARAMETERS_AT: usize = 2 * Stage::ENCODED_BYTES;

/// A program, its parameters, the pages that it reads and the one that it makes.
struct PageStage<'a> {
    program: (&'a str, u16),
    parameters: Vec<u8>,
    inputs: &'a [usize],
    output: usize,
}

/// A queue pair, three pages, and the buffer of the parameters.
struct Bench {
    drive: Drive,
    pair: QueuePair,
    pages: [LocalBuffer; 4],
}

impl Bench {
    fn new(pages: &[&NodePage]) -> Bench {
        let drive = drive_of(Arc::new(MemoryFlash::new(1 << 20)), built_in(), 1);
        let pair = drive.queue_pair(4).unwrap();
        let mut all = std::array::from_fn(|_| drive.local().allocate(NODE_BYTES).unwrap());
        for (page, to) in pages.iter().zip(&mut all) {
            to.bytes_mut()[..NODE_BYTES].copy_from_slice(&page[..]);
        }
        Bench { drive, pair, pages: all }
    }

    /// Runs stages in one command.
    fn run(&mut self, stages: &[PageStage<'_>]) -> Completion {
        let mut at = PARAMETERS_AT;
        for (number, PageStage { program: (name, version), parameters, inputs, output }) in stages.iter().enumerate() {
            let program = self.drive.identity().program(name, *version).expect("it is built in");
            let inputs: Vec<LocalRange> = inputs.iter().map(|page| self.page_range(*page)).collect();
            let range = LocalRange { offset: self.pages[3].offset() + at as u64, length: parameters.len() as u32 };
            let execution = Execution::new(program, range, &inputs, self.page_range(*output));
            let bytes = self.pages[3].bytes_mut();
            bytes[at..at + parameters.len()].copy_from_slice(parameters);
            let (encoded, _) = bytes.as_chunks_mut::<{ Stage::ENCODED_BYTES }>();
            encoded[number] = Stage::Execute(execution).encode();
            at = (at + parameters.len()).next_multiple_of(8);
        }
        let length = (stages.len() * Stage::ENCODED_BYTES) as u32;
        let operation = Operation::Pipeline { stages: LocalRange { offset: self.pages[3].offset(), length } };
        let pages = self.pages.each_mut().map(LocalBuffer::take);
        let returned = run_with(&mut self.pair, operation, Lease::Pages(Box::new(pages)));
        let Lease::Pages(pages) = returned.lease else { panic!("{:?}", returned.lease) };
        self.pages = *pages;
        returned.completion
    }

    fn page_range(&self, page: usize) -> LocalRange {
        LocalRange { offset: self.pages[page].offset(), length: NODE_BYTES as u32 }
    }

    fn node(&self, page: usize) -> NodeRef<'_> {
        NodeRef::look(&self.pages[page].bytes()[..NODE_BYTES]).unwrap()
    }

    fn split(&mut self, cut: NodeCutAt<'_>) -> Completion {
        let arguments = arguments(NodeFlags::NONE);
        let mut parameters = Vec::new();
        NodeSplitRequest { upper_id: 18, cut }.encode(&arguments, &mut parameters);
        let rest = parameters_of(NODE_SPLIT_REST, &arguments);
        self.run(&[
            PageStage { program: NODE_SPLIT, parameters, inputs: &[0], output: 2 },
            PageStage { program: NODE_SPLIT_REST, parameters: rest, inputs: &[0, 2], output: 1 },
        ])
    }

    fn merge(&mut self, used_bytes_max: usize) -> Completion {
        let mut parameters = Vec::new();
        encode_merge(&NodeArguments { id: ANY_NODE, ..arguments(NodeFlags::NONE) }, used_bytes_max, &mut parameters);
        self.run(&[PageStage { program: NODE_MERGE, parameters, inputs: &[0, 1], output: 2 }])
    }
}

#[test]
fn a_split_makes_two_pages_and_says_what_they_use() {
    let whole = numbered(20, &[7; 100]);
    let mut bench = Bench::new(&[&whole]);
    let arrival = Arrival { key: b"k10x", record_bytes: 1900 };
    for cut in [NodeCutAt::Best(arrival), NodeCutAt::Middle, NodeCutAt::Key(b"k05")] {
        let completion = bench.split(cut);
        assert_eq!(completion.status, Status::Success);
        let halves = SplitHalves::of_result(completion.result);
        let [lower, upper] = [1, 2].map(|page| bench.node(page));
        assert_eq!([lower.used_bytes(), upper.used_bytes()], [halves.lower_used_bytes, halves.upper_used_bytes]);
        assert_eq!((lower.id(), upper.id(), lower.count() + upper.count()), (17, 18, 20));
        let separator = &bench.pages[2].bytes()[NODE_BYTES - halves.separator_bytes..NODE_BYTES];
        assert_eq!((separator, lower.high_fence()), (upper.low_fence(), Some(separator)));
        assert_eq!(bench.pages[0].bytes()[..NODE_BYTES], whole[..], "the node is as it was");
    }
    assert_eq!(bench.node(2).low_fence(), b"k05");
}

#[test]
fn a_key_too_long_for_a_fence_cuts_in_the_middle() {
    let full = numbered(19, &[7; 190]);
    let mut bench = Bench::new(&[&full]);
    let long = [&b"k18"[..], &[b'x'; 1000]].concat();
    assert_eq!(bench.split(NodeCutAt::Key(&long)).status, Status::Success);
    assert!(bench.node(2).low_fence().len() <= 3);
}

#[test]
fn a_page_that_cannot_be_split_is_refused() {
    let long = [7; 1900];
    let mut bench = Bench::new(&[&node(&[raw(20, b"c", &long)])]);
    let arrival = |key| NodeCutAt::Best(Arrival { key, record_bytes: 4000 });
    for cut in [arrival(b"c"), arrival(b"y"), arrival(b""), NodeCutAt::Key(b"b")] {
        let completion = bench.split(cut);
        assert_eq!((completion.status, completion.stage), (CORRUPT, 0), "{cut:?}");
    }
    let rest = parameters_of(NODE_SPLIT_REST, &arguments(NodeFlags::NONE));
    let other = node(&[]);
    bench.pages[2].bytes_mut()[..NODE_BYTES].copy_from_slice(&other[..]);
    let rest = PageStage { program: NODE_SPLIT_REST, parameters: rest, inputs: &[0, 2], output: 1 };
    assert_eq!(bench.run(&[rest]).status, CORRUPT, "no half of it");
}

#[test]
fn neighbours_become_one_as_far_as_it_may_be_filled() {
    let mut upper: NodePage = [0; NODE_BYTES];
    let new = NewNode { keyspace: 3, id: 18, low_fence: b"x", high_fence: None };
    NodeMut::format(&mut upper, &new).unwrap().put(&raw(30, b"xyz", b"value")).unwrap();
    let mut bench = Bench::new(&[&numbered(3, b"value"), &upper]);
    let completion = bench.merge(NODE_BYTES);
    let merged = bench.node(2);
    assert_eq!((completion.status, completion.result), (Status::Success, [merged.used_bytes() as u64, 0]));
    assert_eq!((merged.id(), merged.count(), merged.low_fence(), merged.high_fence()), (17, 4, &b"b"[..], None));
    let used = merged.used_bytes();
    let completion = bench.merge(used - 1);
    assert_eq!((completion.status, completion.result), (NO_ROOM, [used as u64, 0]));
    bench.pages.swap(0, 1);
    assert_eq!(bench.merge(NODE_BYTES).status, CORRUPT, "the other way round they are no neighbours");
}
