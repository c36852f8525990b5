//! An item's value through programs at the drive: of what is on flash only the result comes to the host.
//!
//! ```text
//! get ─ on flash ─► pages, match: the value lies in local memory ──┐
//!   ├─ in a write buffer, or the DRAM tier ─► copied to local memory ┼─► Compute ─► result to the host
//!   └─ in extents of its own ─► read by the host, copied back ───────┘
//! ```
//! One at a time, on a session that does nothing else.

use super::Session;
use super::flash_read::FlashRead;
use crate::error::Error;
use tapetum_drive::programs::match_record::Matched;
use tapetum_drive::{
    Command, Lease, LocalBuffer, LocalRange, Operation, PARAMETERS_MAX, PROGRAMS_MAX, PipelineDescriptor,
    PipelineResult, PipelineSink, PipelineSource, PipelineStage, ProgramId, Purpose, Returned, SourceRange,
};

/// What is done to an item's value at the drive.
#[derive(Clone, Debug, Default)]
pub struct ItemPipeline {
    /// Programs of the drive and their parameters, in order: at most [`PROGRAMS_MAX`], with [`PARAMETERS_MAX`] bytes each.
    pub stages: Vec<(ProgramId, Vec<u8>)>,
    /// A longer output is an error. So much local memory is taken meanwhile.
    pub output_bytes_max: u32,
    /// From the value's arrival; zero: none.
    pub deadline_us: u64,
}

/// Of a session whose next get is to leave its value at the drive.
#[derive(Default)]
pub(super) struct NearFetch {
    found: Option<NearValue>,
}

/// A value in local memory.
struct NearValue {
    buffer: LocalBuffer,
    ranges: Vec<SourceRange>,
}

impl NearFetch {
    /// The get's value is on flash, and in local memory by now: it stays there, unless it is in too many parts.
    pub fn keep(&mut self, read: &mut FlashRead, matched: &Matched) -> bool {
        self.found = read.take_value(matched).map(|(buffer, ranges)| NearValue { buffer, ranges });
        self.found.is_some()
    }
}

impl Session {
    /// Has the next get leave its value at the drive, where that is on flash.
    pub(crate) fn begin_near(&mut self) {
        self.local.near = Some(Box::default());
    }

    /// Runs the pipeline over the value of the get that has ended: over `value`, if that came to the host.
    pub(crate) fn finish_near(&mut self, pipeline: &ItemPipeline, value: &[u8]) -> Result<Vec<u8>, Error> {
        let near = self.local.near.take().and_then(|near| near.found);
        let near = match near {
            Some(near) => near,
            None => self.near_value_of(value)?,
        };
        self.compute(pipeline, near)
    }

    /// Nothing was found.
    pub(crate) fn forget_near(&mut self) {
        self.local.near = None;
    }

    fn near_value_of(&self, value: &[u8]) -> Result<NearValue, Error> {
        let mut buffer = self.near_buffer(value.len())?;
        self.local.queue.fill(Purpose::Pipeline, &mut buffer, 0..value.len()).copy_from_slice(value);
        let ranges = vec![SourceRange { offset: buffer.offset(), bytes: value.len() as u64 }];
        Ok(NearValue { buffer, ranges })
    }

    fn near_buffer(&self, bytes: usize) -> Result<LocalBuffer, Error> {
        let none =
            || Error::Options(format!("local memory has no {bytes} bytes for a pipeline: give the store more memory"));
        self.shared.drive.local().allocate(bytes).ok_or_else(none)
    }

    fn compute(&mut self, pipeline: &ItemPipeline, value: NearValue) -> Result<Vec<u8>, Error> {
        const LIST_AT: usize = PipelineDescriptor::ENCODED_BYTES;
        let NearValue { buffer: source, ranges } = value;
        let list_bytes = ranges.len() * SourceRange::ENCODED_BYTES;
        let sink_at = LIST_AT + list_bytes;
        let mut work = self.near_buffer(sink_at + pipeline.output_bytes_max as usize)?;
        let at = |at: usize, length: u32| LocalRange { offset: work.offset() + at as u64, length };
        let list = at(LIST_AT, list_bytes as u32);
        let descriptor = descriptor(pipeline, list, at(sink_at, pipeline.output_bytes_max))?;
        let command = Operation::Compute { pipelines: at(0, LIST_AT as u32) };
        let mut asked = descriptor.encode().to_vec();
        ranges.iter().for_each(|range| asked.extend_from_slice(&range.encode()));
        self.local.queue.fill(Purpose::Pipeline, &mut work, 0..sink_at).copy_from_slice(&asked);
        let lease = Lease::Buffers([work, source]);
        let Returned { completion, lease } = self.run_alone(Command::new(0, command).of(Purpose::Pipeline), lease)?;
        let Lease::Buffers([work, _]) = lease else { unreachable!("two buffers were lent") };
        if !completion.is_success() {
            return Err(Error::of_command(&self.shared.drive, "pipeline", &completion));
        }
        let result_at = PipelineDescriptor::RESULT_AT;
        let encoded = self.local.queue.copy_array_to_host(Purpose::Pipeline, &work, result_at);
        match PipelineResult::decode(&encoded) {
            Ok(Some(PipelineResult::Finished { bytes })) => {
                let mut result = Vec::with_capacity(bytes as usize);
                let bytes = sink_at..sink_at + bytes as usize;
                self.local.queue.copy_to_host(Purpose::Pipeline, &work, bytes, &mut result);
                Ok(result)
            }
            Ok(Some(PipelineResult::Failed(failure))) => Err(Error::Pipeline(failure)),
            Ok(None) | Err(_) => Err(Error::Io("the drive gave no result of a pipeline that has ended".into())),
        }
    }

    /// Runs a command on a session that has nothing else on its way.
    fn run_alone(&mut self, command: Command, lease: Lease) -> Result<Returned, Error> {
        let queue = &mut self.local.queue;
        queue.submit(command, lease).map_err(|full| Error::Io(full.to_string()))?;
        let mut returned = Vec::new();
        loop {
            if queue.poll(&mut returned) > 0 {
                let Some(returned) = returned.pop() else { unreachable!("something was polled") };
                return Ok(returned);
            }
            queue.wait(None);
        }
    }
}

fn descriptor(pipeline: &ItemPipeline, list: LocalRange, into: LocalRange) -> Result<PipelineDescriptor, Error> {
    let stage = |(program, parameters): &(ProgramId, Vec<u8>)| {
        let long =
            || Error::Options(format!("a stage has more than {PARAMETERS_MAX} bytes of parameters: give it fewer"));
        PipelineStage::new(*program, parameters).ok_or_else(long)
    };
    let stages = pipeline.stages.iter().map(stage).collect::<Result<Vec<_>, Error>>()?;
    let many = || Error::Options(format!("a pipeline has at most {PROGRAMS_MAX} programs: split it in two"));
    let (source, sink) = (PipelineSource::Local { list }, PipelineSink::Host { into });
    let mut descriptor = PipelineDescriptor::new(&stages, source, sink).ok_or_else(many)?;
    descriptor.deadline_us = pipeline.deadline_us;
    Ok(descriptor)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Store;
    use crate::hashed::collect::victim::tests::{RECORD_BYTES, store_of_equal_records, wait_for_flush};
    use crate::media::io::lock;
    use tapetum_drive::{Drive, PipelineFailure, PipelinePlace, PipelineReason};
    use tapetum_kernels::sha256::Sha256;

    fn pipeline(drive: &Drive, names: &[&str]) -> ItemPipeline {
        let identity = drive.identity();
        let id = |name: &&str| identity.programs.iter().find(|program| program.name == *name).unwrap().id;
        let stages = names.iter().map(|name| (id(name), Vec::new())).collect();
        ItemPipeline { stages, output_bytes_max: 1 << 16, deadline_us: 0 }
    }

    fn flushed() -> (Drive, Store) {
        let (drive, store) = store_of_equal_records(64 << 10, RECORD_BYTES);
        wait_for_flush(store.shared());
        while lock(&store.shared().installer).is_none() {
            std::thread::yield_now();
        }
        (drive, store)
    }

    #[test]
    fn only_the_digest_of_an_item_on_flash_comes_to_the_host() {
        let (drive, store) = flushed();
        let digest = pipeline(&drive, &["sha256"]);
        let (mut compared, mut on_flash) = (0, 0);
        for number in 0..16 {
            let key = format!("key:{number:04x}");
            let value = store.get(key.as_bytes()).unwrap().unwrap().value;
            let mut sha = Sha256::default();
            sha.update(&value);
            let before = drive.counters();
            let through = store.get_through(key.as_bytes(), &digest).unwrap().unwrap();
            assert_eq!(through, sha.finish());
            let after = drive.counters();
            if after.flash_to_local_bytes > before.flash_to_local_bytes {
                on_flash += 1;
                let moved = after.local_to_host_bytes - before.local_to_host_bytes;
                // The digest, and what says where the record and the result are.
                assert!(moved < 32 + 128, "{moved} bytes of a value of {}", value.len());
                assert!(value.len() > 128);
            }
            compared += 1;
        }
        assert!(on_flash > 0 && compared == 16, "{on_flash} of {compared}");
    }

    #[test]
    fn items_in_memory_and_large_ones_give_the_same() {
        let (drive, store) = flushed();
        let there_and_back = pipeline(&drive, &["zstd-compress", "zstd-decompress"]);
        let both = ItemPipeline { output_bytes_max: 1 << 20, ..there_and_back };
        store.put(b"fresh", b"in a write buffer").unwrap();
        let large: Vec<u8> = (0..700_000_u32).map(|at| (at % 253) as u8).collect();
        store.put(b"large", &large).unwrap();
        assert_eq!(store.get_through(b"fresh", &both).unwrap().unwrap(), b"in a write buffer");
        assert_eq!(store.get_through(b"large", &both).unwrap().unwrap(), large);
        assert_eq!(store.get_through(b"nothing", &both), Ok(None));
        assert_eq!(store.get(b"fresh").unwrap().unwrap().value, b"in a write buffer", "the session is as before");
    }

    #[test]
    fn what_fails_names_its_stage() {
        let (drive, store) = flushed();
        let damaged = pipeline(&drive, &["concat", "zstd-decompress"]);
        let failure = PipelineFailure::new(PipelinePlace::Stage(1), PipelineReason::Program).with(2);
        assert_eq!(store.get_through(b"key:0001", &damaged), Err(Error::Pipeline(failure)));
        let short = ItemPipeline { output_bytes_max: 10, ..pipeline(&drive, &["sha256"]) };
        let failure = PipelineFailure::new(PipelinePlace::Sink, PipelineReason::OutputTooLong).with(10);
        assert_eq!(store.get_through(b"key:0001", &short), Err(Error::Pipeline(failure)));
        let digest = pipeline(&drive, &["sha256"]);
        assert_eq!(store.get_through(b"key:0001", &digest).unwrap().unwrap().len(), 32);
        let many = pipeline(&drive, &["concat"; 9]);
        assert!(matches!(store.get_through(b"key:0001", &many), Err(Error::Options(_))));
    }
}
