//! Programs over pictures: one for each operation of [`tapetum_kernels::images`], by its name.
//!
//! ```text
//! attachment:  the random choices' seed ([`ImageChance`]); without one it is all zero
//! input:       jpeg_decode: a JPEG file, or a PNG or WebP where its parameters allow it; the others: a frame
//! output:      a frame; of batch its samples alone
//! ```
//! A failure is [`Status::Program`] with the code of an [`ImageError`]. A long stage ends when its picture is no longer wanted, and at its
//! deadline. The deadline counts processor time of its thread, so that neither a busy machine nor a long queue makes a picture late.

use super::transforms::run_whole;
use crate::cpu::thread_cpu_us;
use crate::device::program::{Context, Program, ProgramDescriptor, ProgramResult};
use crate::protocol::Status;
use tapetum_kernels::images::{IMAGE_PROGRAMS, ImageChance, ImageError, ImageStage};

/// One of [`IMAGE_PROGRAMS`].
struct ImageProgram {
    name: &'static str,
    /// Processor time of the calling thread, in microseconds.
    clock: fn() -> u64,
}

pub(super) fn image_programs() -> impl Iterator<Item = Box<dyn Program>> {
    let program = |name| Box::new(ImageProgram { name, clock: thread_cpu_us }) as Box<dyn Program>;
    IMAGE_PROGRAMS.into_iter().map(program)
}

fn failed(error: ImageError) -> Status {
    match error {
        ImageError::Parameters => Status::InvalidField,
        error => Status::Program(error.code()),
    }
}

impl Program for ImageProgram {
    fn descriptor(&self) -> ProgramDescriptor {
        // Version 2 of jpeg_decode has a deadline among its parameters, version 3 takes PNG and WebP.
        let version = if self.name == "jpeg_decode" { 3 } else { 1 };
        ProgramDescriptor { name: self.name, version, is_stream: true }
    }

    fn run(&self, context: Context<'_>) -> ProgramResult {
        // Refuse before input is gathered.
        let (parameters, attachment) = (context.parameters, context.task.attachment.clone());
        let asked =
            ImageStage::decode(self.name, parameters).and_then(|stage| Ok((stage, ImageChance::decode(&attachment)?)));
        let (stage, chance) = match asked {
            Ok(asked) => asked,
            Err(error) => return (failed(error), [0; 2]),
        };
        let cancelled = context.task.cancel_flag();
        let mut clock = || if cancelled.is_raised() { None } else { Some((self.clock)()) };
        run_whole(context, |input| stage.apply_timed(input, chance, &mut clock).map_err(failed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::program::{CancelFlag, TaskState};
    use crate::host::compute_bench::{ComputeBench, SOURCE, bench, pipeline};
    use crate::protocol::{PipelineFailure, PipelinePlace, PipelineReason, PipelineResult};
    use std::cell::Cell;
    use tapetum_kernels::images::{FileKind, ImagePlan, JpegQuality, testing};

    const CHANCE: ImageChance = ImageChance { seed: 3, epoch: 1, item: 7 };
    /// Offset of a test's attachment in the bench's buffer.
    const ATTACHMENT: u64 = 60 << 10;

    /// The result of the operations on a file, without a drive.
    fn expected(plan: &ImagePlan, file: &[u8]) -> Vec<u8> {
        plan.stages().iter().fold(file.to_vec(), |bytes, planned| planned.stage.apply(bytes, CHANCE).unwrap())
    }

    fn run(bench: &mut ComputeBench, plan: &ImagePlan, file: &[u8]) -> Result<Vec<u8>, PipelineFailure> {
        let stages: Vec<_> = plan.stages().iter().map(|planned| &planned.stage).collect();
        let stages: Vec<_> = stages.iter().map(|stage| bench.stage_with(stage.name(), &stage.encode())).collect();
        bench.buffer.bytes_mut()[SOURCE as usize..][..file.len()].copy_from_slice(file);
        let chance = CHANCE.encode();
        bench.buffer.bytes_mut()[ATTACHMENT as usize..][..chance.len()].copy_from_slice(&chance);
        // The next list of ranges.
        bench.put(&[]);
        let half = file.len() as u64 / 2;
        let source = bench.local(&[(SOURCE, half), (SOURCE + half, file.len() as u64 - half)]);
        let mut asked = pipeline(&stages, source, bench.sink(0, 60 << 10));
        asked.attachment = bench.at(ATTACHMENT, chance.len() as u32);
        match bench.run(&[asked])[0] {
            PipelineResult::Finished { bytes } => Ok(bench.output(0, bytes as usize).to_vec()),
            PipelineResult::Failed(failure) => Err(failure),
        }
    }

    #[test]
    fn the_drive_makes_what_the_operations_make() {
        let file = testing::jpeg(300, 200, JpegQuality { sampling: 2, ..JpegQuality::default() });
        let mut bench = bench();
        for text in [
            "jpeg_decode | random_resized_crop 64 | flip | batch 1",
            "jpeg_decode | resize 80 | random_crop 70 | normalize | layout chw | batch 1",
            "jpeg_decode | resize 90 | random_resized_crop 33x44 | flip 1",
            "jpeg_decode grey | center_crop 150x100",
        ] {
            let plan: ImagePlan = text.parse().unwrap();
            assert!(run(&mut bench, &plan, &file) == Ok(expected(&plan, &file)), "{text}");
        }
        let ran = bench.drive.stage_counters();
        let tasks = |name| ran.iter().find(|stage| stage.name == name).unwrap().tasks;
        assert!(tasks("jpeg_decode") >= 4 && tasks("batch") >= 2 && tasks("random_resized_crop") > 0);
    }

    #[test]
    fn failures_are_told_with_their_stage() {
        let mut bench = bench();
        let file = testing::jpeg(60, 40, JpegQuality::default());
        let plan: ImagePlan = "jpeg_decode | resize 30 | center_crop 31".parse().unwrap();
        let mut refused = |file: &[u8]| run(&mut bench, &plan, file).unwrap_err();
        let at = |stage, error: ImageError| {
            PipelineFailure::new(PipelinePlace::Stage(stage), PipelineReason::Program).with(error.code().into())
        };
        assert_eq!(refused(b"\x89PNG and so on"), at(0, ImageError::NotJpeg(FileKind::Png)));
        assert_eq!(refused(&file[..file.len() - 9]), at(0, ImageError::Truncated));
        let small = refused(&file);
        assert_eq!(small, at(2, ImageError::CropTooLarge));
        assert_eq!(small.to_string(), "stage 2: the picture is smaller than the crop: resize it first");
        assert_eq!(refused(b""), at(0, ImageError::Empty));
    }

    thread_local! {
        /// Seconds of a clock that advances by one each time it is read.
        static SECONDS: Cell<u64> = const { Cell::new(0) };
    }

    fn decode_by_the_second(file: &[u8], text: &str, flag: &CancelFlag) -> Status {
        let plan: ImagePlan = text.parse().unwrap();
        let clock = || SECONDS.replace(SECONDS.get() + 1) * 1_000_000;
        let mut task = TaskState::with_flag(flag.clone(), ImageChance::default().encode().as_slice().into());
        let parameters = plan.stages()[0].stage.encode();
        let context = Context { parameters: &parameters, inputs: &[file], output: &mut [0; 64], task: &mut task };
        ImageProgram { name: "jpeg_decode", clock }.run(context).0
    }

    #[test]
    fn a_decode_ends_at_the_deadline_that_its_stage_has() {
        let file = testing::jpeg(1100, 900, JpegQuality { progressive: true, ..JpegQuality::default() });
        let decode = |text| decode_by_the_second(&file, text, &CancelFlag::default());
        let late = Status::Program(ImageError::TooLong.code());
        assert_eq!(decode("jpeg_decode deadline=86400"), Status::More);
        assert_eq!(decode("jpeg_decode"), late, "twenty seconds");
        assert_eq!(decode("jpeg_decode deadline=0.5"), late);
        let cancelled = CancelFlag::default();
        cancelled.raise();
        assert_eq!(decode_by_the_second(&file, "jpeg_decode deadline=86400", &cancelled), late);
    }

    #[test]
    fn parameters_of_another_version_are_refused() {
        for name in IMAGE_PROGRAMS {
            let (mut task, mut output) = (TaskState::default(), [0; 64]);
            let context = Context { parameters: &[0xff; 3], inputs: &[b"x"], output: &mut output, task: &mut task };
            assert_eq!(ImageProgram { name, clock: || 0 }.run(context).0, Status::InvalidField, "{name}");
        }
    }
}
