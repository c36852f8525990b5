//! Submits drawn pipelines: from memory, flash or a kept result, to any of them, some with too little room.

use super::pipelines::{DrawnPipeline, DrawnSource, PipelineFate, SimKept, SimPipeline, SimSink};
use super::world::{DeviceWorld, OWNER, SECTOR_BYTES, SLOT_BYTES};
use tapetum_drive::engine::{JobRequest, SinkRequest, SourceRequest};
use tapetum_drive::{LocalBuffer, PipelineFailure, PipelinePlace, PipelineReason, PipelineStage, SourceRange};

/// Numbers of kept results.
pub const KEPT: u64 = 6;

impl DeviceWorld {
    /// Submits a pipeline. Whether it was taken.
    pub fn submit(&mut self, drawn: DrawnPipeline, application: u16, deadline_us: Option<u64>) -> Result<bool, String> {
        let DrawnPipeline { source, stages, mut expected } = drawn;
        let Some(slot) = self.slots_free.first().copied() else { return Ok(false) };
        let (from, at) = (2 * slot * SLOT_BYTES, (2 * slot + 1) * SLOT_BYTES);
        let Some((source, kept_source)) = self.place_source(source, from) else { return Ok(false) };
        let kept = if let SourceRequest::Kept { id, stays } = source { Some((id, stays)) } else { None };
        let Some((sink, kept_sink)) = self.place_sink(at, &mut expected) else { return Ok(false) };
        let token = self.token_next;
        self.token_next += 1;
        let request = JobRequest {
            owner: OWNER,
            token,
            application,
            deadline_us,
            stages: stages.clone(),
            source,
            sink,
            attachment: std::sync::Arc::default(),
        };
        let sequence = match self.core.submit(request) {
            Ok(sequence) => sequence,
            Err(failure) => {
                self.tally.refused += 1;
                let is_right = self.is_right_refusal(&failure, application, &stages, kept);
                let told = || format!("pipeline {token} was refused: {failure:?}, {stages:?}");
                return if is_right { Ok(false) } else { Err(told()) };
            }
        };
        if stages.iter().any(|stage| self.is_gone(stage.program)) {
            return Err(format!("pipeline {token} was taken, and no unit runs one of its programs: {stages:?}"));
        }
        let mut fate = PipelineFate::new(stages, deadline_us, expected);
        if let Some((id, stays)) = kept {
            fate.awaits = match self.kept.get(&id) {
                Some(SimKept::Promised(maker, _)) => Some(*maker),
                Some(SimKept::Kept(_)) => None,
                _ => return Err(format!("pipeline {token} was taken, and nothing is kept under {id}")),
            };
            if !stays {
                self.kept.remove(&id);
            }
        }
        if let SimSink::Kept { id } = kept_sink {
            self.kept.insert(id, SimKept::Promised(token, fate.expected.clone()));
        }
        let pipeline = SimPipeline { sequence, application, slot, fate, _source: kept_source, sink: kept_sink };
        self.slots_free.remove(&slot);
        self.pipelines.insert(token, pipeline);
        self.tally.accepted += 1;
        self.take_ends()?;
        Ok(true)
    }

    fn is_right_refusal(
        &self,
        failure: &PipelineFailure,
        application: u16,
        stages: &[PipelineStage],
        kept: Option<(u64, bool)>,
    ) -> bool {
        match failure.reason {
            PipelineReason::UnknownApplication => usize::from(application) >= self.options.weights.len(),
            PipelineReason::QueueFull => self.in_flight_of(application) >= self.options.pipelines_max,
            PipelineReason::TooLarge => stages.len() + 2 > usize::from(self.options.sub_buffers),
            PipelineReason::NoUnitLeft => stages.iter().any(|stage| self.is_gone(stage.program)),
            PipelineReason::UnknownKept => kept.is_some_and(|(id, _)| !self.kept.contains_key(&id)),
            PipelineReason::KeptFailed => kept.is_some_and(
                |(id, _)| matches!(self.kept.get(&id), Some(SimKept::Failed(maker)) if *failure == maker.of_reader()),
            ),
            PipelineReason::NoLocalMemory => true,
            _ => false,
        }
    }

    /// Puts the bytes into local memory, or in up to three ranges to flash.
    fn place_source(&mut self, source: DrawnSource, from: u64) -> Option<(SourceRequest, Option<LocalBuffer>)> {
        let raw = match source {
            DrawnSource::Kept { id, stays } => return Some((SourceRequest::Kept { id, stays }, None)),
            DrawnSource::Flash(ranges) => return Some((SourceRequest::Flash(ranges), None)),
            DrawnSource::Bytes(raw) => raw,
        };
        if self.random.one_in(2) {
            let mut buffer = self.bytes.local.allocate(raw.len())?;
            buffer.bytes_mut().copy_from_slice(&raw);
            let range = SourceRange { offset: buffer.offset(), bytes: raw.len() as u64 };
            return Some((SourceRequest::Local(vec![range]), Some(buffer)));
        }
        let (mut ranges, mut at, mut rest) = (Vec::new(), from, &raw[..]);
        for number in 0..3 {
            let most = rest.len() as u64;
            let bytes = if number < 2 { self.random.below(most + 1) } else { most };
            let (first, later) = rest.split_at(bytes as usize);
            self.bytes.flash[at as usize..][..first.len()].copy_from_slice(first);
            ranges.push(SourceRange { offset: at, bytes });
            (at, rest) = ((at + bytes).next_multiple_of(u64::from(SECTOR_BYTES)), later);
        }
        Some((SourceRequest::Flash(ranges), None))
    }

    fn place_sink(
        &mut self,
        at: u64,
        expected: &mut Result<Vec<u8>, PipelineFailure>,
    ) -> Option<(SinkRequest, SimSink)> {
        if self.random.one_in(4) {
            let durable = self.random.one_in(2);
            return Some((SinkRequest::Flash { flash: at, bytes_max: SLOT_BYTES, durable }, SimSink::Flash { at }));
        }
        let mut room = SLOT_BYTES as u32;
        if let Ok(bytes) = expected
            && !bytes.is_empty()
            && self.random.one_in(self.rates.short_sink)
        {
            room = self.random.below(bytes.len() as u64) as u32;
            let failure = PipelineFailure::new(PipelinePlace::Sink, PipelineReason::OutputTooLong);
            *expected = Err(failure.with(room));
        }
        if self.random.one_in(5) {
            let id = self.random.below(KEPT);
            return Some((SinkRequest::Kept { id, bytes_max: room }, SimSink::Kept { id }));
        }
        let buffer = self.bytes.local.allocate(room as usize)?;
        Some((SinkRequest::Host(buffer.range()), SimSink::Host(buffer)))
    }
}
