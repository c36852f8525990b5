//! A queue pair and a buffer for tests of `Compute`.

use super::testing::{drive_with, run};
use super::{Drive, QueuePair};
use crate::device::programs::built_in;
use crate::flash::Flash;
use crate::flash::memory::MemoryFlash;
use crate::memory::LocalBuffer;
use crate::protocol::{
    LocalRange, MemoryAddress, Operation, PipelineDescriptor, PipelineFailure, PipelinePlace, PipelineReason,
    PipelineResult, PipelineSink, PipelineSource, PipelineStage, SourceRange, Status,
};
use std::sync::Arc;
use tapetum_kernels::sha256::Sha256;

pub const FLASH_BYTES: u64 = 1 << 20;
pub const BYTES: usize = 256 << 10;
/// Offsets in the buffer: descriptors, lists of ranges, bytes for sources, room for sinks.
pub const RANGES: u64 = 64 << 10;
pub const SOURCE: u64 = 96 << 10;
pub const SINK: u64 = 192 << 10;

pub struct ComputeBench {
    pub drive: Drive,
    pub pair: QueuePair,
    pub buffer: LocalBuffer,
    ranges_at: u64,
}

pub fn pattern(at: usize) -> u8 {
    (at * 11 / 7) as u8
}

impl ComputeBench {
    pub fn new(flash: Arc<dyn Flash>) -> ComputeBench {
        ComputeBench::on(drive_with(flash, 2 << 20, built_in(), 1))
    }

    pub fn on(drive: Drive) -> ComputeBench {
        let mut pair = drive.queue_pair(4).unwrap();
        let mut buffer = drive.local().allocate(BYTES).unwrap();
        (0..).zip(buffer.bytes_mut()).for_each(|(at, byte): (usize, _)| *byte = pattern(at));
        let write =
            Operation::Write { flash: 0, from: MemoryAddress::local(buffer.offset()), length: BYTES as u32, fua: true };
        assert!(run(&mut pair, write, &mut buffer).is_success());
        ComputeBench { drive, pair, buffer, ranges_at: RANGES }
    }

    pub fn stage(&self, name: &str) -> PipelineStage {
        self.stage_with(name, &[])
    }

    pub fn stage_with(&self, name: &str, parameters: &[u8]) -> PipelineStage {
        let identity = self.drive.identity();
        let id = identity.programs.iter().find(|program| program.name == name).unwrap().id;
        PipelineStage::new(id, parameters).unwrap()
    }

    pub fn at(&self, at: u64, length: u32) -> LocalRange {
        LocalRange { offset: self.buffer.offset() + at, length }
    }

    pub fn list(&mut self, ranges: &[(u64, u64)]) -> LocalRange {
        let list = self.at(self.ranges_at, (ranges.len() * SourceRange::ENCODED_BYTES) as u32);
        for (offset, bytes) in ranges {
            let at = self.ranges_at as usize;
            let range = SourceRange { offset: *offset, bytes: *bytes };
            self.buffer.bytes_mut()[at..at + SourceRange::ENCODED_BYTES].copy_from_slice(&range.encode());
            self.ranges_at += SourceRange::ENCODED_BYTES as u64;
        }
        list
    }

    pub fn flash(&mut self, ranges: &[(u64, u64)]) -> PipelineSource {
        PipelineSource::Flash { list: self.list(ranges) }
    }

    pub fn local(&mut self, ranges: &[(u64, u64)]) -> PipelineSource {
        let base = self.buffer.offset();
        let ranges: Vec<_> = ranges.iter().map(|(at, bytes)| (base + at, *bytes)).collect();
        PipelineSource::Local { list: self.list(&ranges) }
    }

    pub fn sink(&self, at: u64, length: u32) -> PipelineSink {
        PipelineSink::Host { into: self.at(SINK + at, length) }
    }

    pub fn put(&mut self, pipelines: &[PipelineDescriptor]) -> LocalRange {
        self.ranges_at = RANGES;
        for (number, pipeline) in pipelines.iter().enumerate() {
            let at = number * PipelineDescriptor::ENCODED_BYTES;
            let bytes = pipeline.encode();
            self.buffer.bytes_mut()[at..at + bytes.len()].copy_from_slice(&bytes);
        }
        self.at(0, (pipelines.len() * PipelineDescriptor::ENCODED_BYTES) as u32)
    }

    pub fn results(&self, count: usize) -> Vec<PipelineResult> {
        let result = |number: usize| {
            let at = number * PipelineDescriptor::ENCODED_BYTES + PipelineDescriptor::RESULT_AT;
            let bytes = self.buffer.bytes()[at..].first_chunk().unwrap();
            PipelineResult::decode(bytes).unwrap().expect("it has ended")
        };
        (0..count).map(result).collect()
    }

    /// Runs all of them with one command.
    pub fn run(&mut self, pipelines: &[PipelineDescriptor]) -> Vec<PipelineResult> {
        let list = self.put(pipelines);
        let completion = run(&mut self.pair, Operation::Compute { pipelines: list }, &mut self.buffer);
        let results = self.results(pipelines.len());
        let failed = results.iter().filter(|result| matches!(result, PipelineResult::Failed(_))).count();
        assert_eq!((completion.status, completion.result), (Status::Success, [failed as u64, 0]));
        results
    }

    pub fn output(&self, at: u64, bytes: usize) -> &[u8] {
        &self.buffer.bytes()[(SINK + at) as usize..][..bytes]
    }
}

pub fn bench() -> ComputeBench {
    ComputeBench::new(Arc::new(MemoryFlash::new(FLASH_BYTES)))
}

pub fn pipeline(stages: &[PipelineStage], source: PipelineSource, sink: PipelineSink) -> PipelineDescriptor {
    PipelineDescriptor::new(stages, source, sink).unwrap()
}

pub fn failed(place: PipelinePlace, reason: PipelineReason) -> PipelineFailure {
    PipelineFailure::new(place, reason)
}

pub fn digest(parts: &[&[u8]]) -> [u8; 32] {
    let mut sha = Sha256::default();
    parts.iter().for_each(|part| sha.update(part));
    sha.finish()
}

pub fn written(from: usize, bytes: usize) -> Vec<u8> {
    (from..from + bytes).map(pattern).collect()
}
