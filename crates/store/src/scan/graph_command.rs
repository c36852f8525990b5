//! The text of a command of pipelines: descriptors, and what belongs to them, in one buffer.

use tapetum_drive::{LocalRange, PipelineDescriptor, PipelineSink, PipelineSource, PipelineStage, SourceRange};

/// Descriptors, lists and attachments of a command, gathered before it is known where they lie.
pub(super) struct CommandText {
    pub base: u64,
    pub descriptors: Vec<PipelineDescriptor>,
    /// Behind the descriptors.
    pub tail: Vec<u8>,
    pub tail_at: usize,
}

impl CommandText {
    pub fn new(base: u64, pipelines: usize) -> CommandText {
        let tail_at = pipelines * PipelineDescriptor::ENCODED_BYTES;
        CommandText { base, descriptors: Vec::new(), tail: Vec::new(), tail_at }
    }

    pub fn push(&mut self, bytes: &[u8]) -> LocalRange {
        if bytes.is_empty() {
            return LocalRange::EMPTY;
        }
        let offset = self.base + (self.tail_at + self.tail.len()) as u64;
        self.tail.extend_from_slice(bytes);
        LocalRange { offset, length: bytes.len() as u32 }
    }

    pub fn push_ranges(&mut self, ranges: &[SourceRange]) -> LocalRange {
        let encoded: Vec<u8> = ranges.iter().flat_map(|range| range.encode()).collect();
        self.push(&encoded)
    }

    pub fn encode(&self) -> Vec<u8> {
        let mut encoded: Vec<u8> = self.descriptors.iter().flat_map(|descriptor| descriptor.encode()).collect();
        // A scan may leave room for descriptors unused.
        encoded.resize(self.tail_at, 0);
        encoded.extend_from_slice(&self.tail);
        encoded
    }
}

pub(super) fn descriptor(
    stage: PipelineStage,
    source: PipelineSource,
    attachment: LocalRange,
    sink: PipelineSink,
) -> PipelineDescriptor {
    let Some(mut descriptor) = PipelineDescriptor::new(&[stage], source, sink) else {
        unreachable!("a pipeline takes one program")
    };
    descriptor.attachment = attachment;
    descriptor
}
