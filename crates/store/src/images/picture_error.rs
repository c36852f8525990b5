//! Why a picture did not come, with its key and the stage as it was written.

use std::fmt;
use tapetum_base::error::Error;
use tapetum_drive::{PipelineFailure, PipelinePlace, PipelineReason};
use tapetum_kernels::images::{ImageError, ImagePlan};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PictureError {
    pub key: Vec<u8>,
    pub problem: PictureProblem,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PictureProblem {
    /// There is no such key.
    Missing,
    /// A stage failed: its place among those that were written, and its name.
    Stage {
        stage: usize,
        name: &'static str,
        failure: PipelineFailure,
    },
    /// The output has another length than the batch's pictures have.
    Length {
        bytes: usize,
    },
    Store(Error),
}

impl PictureError {
    pub(super) fn of(key: &[u8], plan: &ImagePlan, error: Error) -> PictureError {
        let stage = match &error {
            Error::Pipeline(PipelineFailure { place: PipelinePlace::Stage(stage), detail, .. }) => {
                plan.written_name(usize::from(*stage), *detail)
            }
            _ => None,
        };
        let problem = match (stage, error) {
            (Some((stage, name)), Error::Pipeline(failure)) => PictureProblem::Stage { stage, name, failure },
            (_, error) => PictureProblem::Store(error),
        };
        PictureError { key: key.to_vec(), problem }
    }
}

impl PictureError {
    /// The error of the operation, if one failed.
    pub fn image_error(&self) -> Option<ImageError> {
        match &self.problem {
            PictureProblem::Stage { failure, .. } if failure.reason == PipelineReason::Program => {
                ImageError::of_code(failure.detail)
            }
            _ => None,
        }
    }
}

impl fmt::Display for PictureError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", String::from_utf8_lossy(&self.key))?;
        match &self.problem {
            PictureProblem::Missing => write!(f, "there is no such key: import the folder again"),
            PictureProblem::Stage { stage, name, failure } => write!(f, "stage {stage}, {name}: {}", failure.explain()),
            PictureProblem::Length { bytes } => {
                write!(f, "its output has {bytes} bytes, which no picture of the batch has")
            }
            PictureProblem::Store(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for PictureError {}
