//! Programs over pictures: one for each operation of [`tapetum_kernels::images`], by its name.
//!
//! ```text
//! attachment:  what chance depends on ([`ImageChance`]); none is all zero
//! input:       jpeg_decode: a JPEG file; the others: a frame
//! output:      a frame; of batch its samples alone
//! ```
//! A failure is [`Status::Program`] with the code of an [`ImageError`].

use super::transforms::run_whole;
use crate::device::program::{Context, Program, ProgramDescriptor, ProgramResult};
use crate::protocol::Status;
use tapetum_kernels::images::{IMAGE_PROGRAMS, ImageChance, ImageError, ImageStage};

/// One of [`IMAGE_PROGRAMS`].
struct ImageProgram(&'static str);

pub(super) fn image_programs() -> impl Iterator<Item = Box<dyn Program>> {
    IMAGE_PROGRAMS.into_iter().map(|name| Box::new(ImageProgram(name)) as Box<dyn Program>)
}

fn failed(error: ImageError) -> Status {
    match error {
        ImageError::Parameters => Status::InvalidField,
        error => Status::Program(error.code()),
    }
}

impl Program for ImageProgram {
    fn descriptor(&self) -> ProgramDescriptor {
        ProgramDescriptor { name: self.0, version: 1, is_stream: true }
    }

    fn run(&self, context: Context<'_>) -> ProgramResult {
        // Refused before input is gathered.
        let (parameters, attachment) = (context.parameters, context.task.attachment.clone());
        let asked =
            ImageStage::decode(self.0, parameters).and_then(|stage| Ok((stage, ImageChance::decode(&attachment)?)));
        let (stage, chance) = match asked {
            Ok(asked) => asked,
            Err(error) => return (failed(error), [0; 2]),
        };
        run_whole(context, |input| stage.apply(input, chance).map_err(failed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::compute_bench::{ComputeBench, SOURCE, bench, pipeline};
    use crate::protocol::{PipelineFailure, PipelinePlace, PipelineReason, PipelineResult};
    use tapetum_kernels::images::{FileKind, ImagePlan, JpegQuality, testing};

    const CHANCE: ImageChance = ImageChance { seed: 3, epoch: 1, item: 7 };
    /// Where a test's attachment is in the bench's buffer.
    const ATTACHMENT: u64 = 60 << 10;

    /// What the operations make of a file, without a drive.
    fn expected(plan: &ImagePlan, file: &[u8]) -> Vec<u8> {
        plan.stages().iter().fold(file.to_vec(), |bytes, planned| planned.stage.apply(bytes, CHANCE).unwrap())
    }

    fn run(bench: &mut ComputeBench, plan: &ImagePlan, file: &[u8]) -> Result<Vec<u8>, PipelineFailure> {
        let stages: Vec<_> = plan.stages().iter().map(|planned| &planned.stage).collect();
        let stages: Vec<_> = stages.iter().map(|stage| bench.stage_with(stage.name(), &stage.encode())).collect();
        bench.buffer.bytes_mut()[SOURCE as usize..][..file.len()].copy_from_slice(file);
        let chance = CHANCE.encode();
        bench.buffer.bytes_mut()[ATTACHMENT as usize..][..chance.len()].copy_from_slice(&chance);
        // Of the next list of ranges.
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

    #[test]
    fn parameters_of_another_version_are_refused() {
        for name in IMAGE_PROGRAMS {
            let (mut task, mut output) = (crate::device::program::TaskState::default(), [0; 64]);
            let context = Context { parameters: &[0xff; 3], inputs: &[b"x"], output: &mut output, task: &mut task };
            assert_eq!(ImageProgram(name).run(context).0, Status::InvalidField, "{name}");
        }
    }
}
