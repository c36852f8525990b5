//! A pipeline for pictures, as its author wrote it and as the drive runs it.
//!
//! It is checked when it is made: each stage must take the output of the one before. A crop right behind `decode` or `jpeg_decode`
//! moves into the decoder, which then decodes only that part. So the drive's stages may be fewer than the written ones,
//! or others.

use super::crop::{CropRule, PictureSize};
use super::frame::FrameShape;
use super::resize::ResizeRule;
use super::stage::{DecodeOptions, ImageStage, KnownShape};
use super::{FRAME_BYTES_MAX, PIXELS_MAX};
use crate::image_error::ImageError;
use std::fmt;

/// The most stages of a drive's pipeline, besides two that a large value needs.
pub const PLAN_STAGES_MAX: usize = 6;
/// The most pictures of a batch.
pub const BATCH_MAX: u32 = 65_536;

#[derive(Clone, Debug, PartialEq)]
pub enum WrittenStage {
    /// `any_kind`: written as `decode`, which takes PNG and WebP too.
    JpegDecode {
        any_kind: bool,
        grey: bool,
        orient: bool,
        scaled: bool,
        deadline_ms: u32,
    },
    Resize(ResizeRule),
    Crop {
        crop: CropRule,
        size: Option<(u16, u16)>,
    },
    Flip {
        probability: f32,
    },
    Normalize {
        mean: [f32; 3],
        deviation: [f32; 3],
    },
    Layout(super::SampleOrder),
    Batch(u32),
}

/// A stage as the drive runs it.
#[derive(Clone, Debug, PartialEq)]
pub struct PlannedStage {
    pub stage: ImageStage,
    /// The place of the written stage that it comes from.
    pub written: usize,
}

#[derive(Clone, Debug, PartialEq)]
pub struct ImagePlan {
    written: Vec<WrittenStage>,
    stages: Vec<PlannedStage>,
    shape: KnownShape,
}

/// An error in a pipeline, and its place.
#[derive(Clone, Debug, PartialEq)]
pub struct PlanError {
    /// The stage's place among the written ones.
    pub stage: usize,
    pub name: String,
    pub problem: PlanProblem,
}

#[derive(Clone, Debug, PartialEq)]
pub enum PlanProblem {
    Empty,
    UnknownStage,
    UnknownWord(String),
    NoSize,
    BadNumber(String),
    /// The first stage is neither `decode` nor `jpeg_decode`.
    NotDecoded,
    DecodedTwice,
    ScaledToNothing,
    /// A batch of no picture, or of more than [`BATCH_MAX`].
    BatchCount(u32),
    Samples,
    NoShape,
    /// Something follows the batch.
    BehindBatch,
    /// A picture would have this many pixels, and take this many bytes.
    TooLarge {
        pixels: u64,
        bytes: u64,
    },
    TooMany,
}

impl fmt::Display for PlanError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let PlanError { stage, name, problem } = self;
        let name = if name.is_empty() { "nothing" } else { name };
        write!(f, "stage {stage}, {name}: ")?;
        match problem {
            PlanProblem::Empty => {
                write!(f, "write stages with | between them, such as 'jpeg_decode | random_resized_crop 224 | flip'")
            }
            PlanProblem::UnknownStage => {
                write!(
                    f,
                    "there is no such stage; there are decode, {}, resnet50, alexnet",
                    super::IMAGE_PROGRAMS.join(", ")
                )
            }
            PlanProblem::UnknownWord(word) => write!(f, "{word:?} means nothing to it"),
            PlanProblem::NoSize => write!(f, "it needs a size, such as 224 or 320x240 (width x height)"),
            PlanProblem::BadNumber(word) => write!(f, "{word:?} is no number that it takes"),
            PlanProblem::NotDecoded => {
                write!(f, "its input is a file, not a picture: let decode or jpeg_decode come first")
            }
            PlanProblem::DecodedTwice => write!(f, "its input is decoded already: leave it out"),
            PlanProblem::ScaledToNothing => {
                write!(f, "scaled needs the size that is wanted: let resize or random_resized_crop come next")
            }
            PlanProblem::BatchCount(count) => write!(f, "a batch of {count} pictures: give 1 to {BATCH_MAX}"),
            PlanProblem::Samples => {
                write!(f, "it takes pixels of 8 bits, channels last: let it come before normalize and layout")
            }
            PlanProblem::NoShape => write!(
                f,
                "pictures have sizes of their own there: let resize WIDTHxHEIGHT or a crop with a size come before it"
            ),
            PlanProblem::BehindBatch => write!(f, "a batch is the end of a pipeline: let it come before batch"),
            PlanProblem::TooLarge { pixels, bytes } => write!(
                f,
                "a picture of {pixels} pixels, {}MiB, is too large: {PIXELS_MAX} pixels and {}MiB are the most, so give a smaller size",
                bytes.div_ceil(1 << 20),
                FRAME_BYTES_MAX >> 20
            ),
            PlanProblem::TooMany => write!(f, "a pipeline has at most {PLAN_STAGES_MAX} stages at the drive"),
        }
    }
}

impl std::error::Error for PlanError {}

impl ImagePlan {
    pub fn new(written: Vec<WrittenStage>) -> Result<ImagePlan, PlanError> {
        let mut plan = ImagePlan { written: Vec::new(), stages: Vec::new(), shape: KnownShape::UNKNOWN };
        if written.is_empty() {
            return Err(PlanError { stage: 0, name: String::new(), problem: PlanProblem::Empty });
        }
        for (place, stage) in written.iter().enumerate() {
            let error = |problem| PlanError { stage: place, name: stage.name().into(), problem };
            plan.add(place, stage, written.get(place + 1)).map_err(error)?;
        }
        plan.written = written;
        Ok(plan)
    }

    fn add(&mut self, place: usize, stage: &WrittenStage, next: Option<&WrittenStage>) -> Result<(), PlanProblem> {
        let is_decode = matches!(stage, WrittenStage::JpegDecode { .. });
        match self.stages.last() {
            None if !is_decode => return Err(PlanProblem::NotDecoded),
            Some(_) if is_decode => return Err(PlanProblem::DecodedTwice),
            Some(PlannedStage { stage: ImageStage::Batch(_), .. }) => return Err(PlanProblem::BehindBatch),
            _ => {}
        }
        let added = match *stage {
            WrittenStage::JpegDecode { any_kind, grey, orient, scaled, deadline_ms } => {
                let scale_to = match next {
                    Some(next) if scaled => Some(next.wanted().ok_or(PlanProblem::ScaledToNothing)?),
                    // Alone, a decode is the beginning of a pipeline that methods compose.
                    _ => None,
                };
                ImageStage::JpegDecode(DecodeOptions {
                    any_kind,
                    grey,
                    orient,
                    crop: CropRule::Whole,
                    place: 0,
                    scale_to,
                    deadline_ms,
                })
            }
            WrittenStage::Crop { crop, size } => match self.decoder_before(place) {
                Some(options) => {
                    (options.crop, options.place) = (crop, place as u8);
                    self.shape =
                        self.stages[0].stage.shape_after(KnownShape::UNKNOWN).map_err(|_| PlanProblem::Samples)?;
                    refuse_too_large(self.shape, None)?;
                    let Some((width, height)) = size else { return Ok(()) };
                    ImageStage::Resize(ResizeRule::Exact { width, height })
                }
                None => ImageStage::Crop { crop, place: place as u8, size },
            },
            WrittenStage::Resize(rule) => ImageStage::Resize(rule),
            WrittenStage::Flip { probability } => ImageStage::Flip { probability, place: place as u8 },
            WrittenStage::Normalize { mean, deviation } => ImageStage::Normalize { mean, deviation },
            WrittenStage::Layout(order) => ImageStage::Layout(order),
            WrittenStage::Batch(count) if !(1..=BATCH_MAX).contains(&count) => {
                return Err(PlanProblem::BatchCount(count));
            }
            WrittenStage::Batch(_) => ImageStage::Batch(self.shape.frame().ok_or(PlanProblem::NoShape)?),
        };
        if self.stages.len() == PLAN_STAGES_MAX {
            return Err(PlanProblem::TooMany);
        }
        self.shape = added.shape_after(self.shape).map_err(|error| match error {
            ImageError::WrongSamples => PlanProblem::Samples,
            other => unreachable!("a shape says {other}"),
        })?;
        // A rule for the shorter side makes a square of that side, or a larger picture.
        let least = if let ImageStage::Resize(ResizeRule::Short(side)) = added { Some(side) } else { None };
        refuse_too_large(self.shape, least)?;
        self.stages.push(PlannedStage { stage: added, written: place });
        Ok(())
    }

    /// The decoder that takes over a crop at this place: the stage right before it, which has no crop yet.
    fn decoder_before(&mut self, place: usize) -> Option<&mut DecodeOptions> {
        match self.stages.last_mut() {
            Some(PlannedStage { stage: ImageStage::JpegDecode(options), written }) if *written + 1 == place => {
                // The decoder's `scale_to` already is the size that this crop wants.
                Some(options)
            }
            _ => None,
        }
    }

    pub fn written(&self) -> &[WrittenStage] {
        &self.written
    }

    pub fn stages(&self) -> &[PlannedStage] {
        &self.stages
    }

    /// The shape of all output pictures, if they have one shape.
    pub fn shape(&self) -> Option<FrameShape> {
        self.shape.frame()
    }

    /// The output's shape for a picture that decodes to `decoded`.
    pub fn shape_of(&self, decoded: FrameShape) -> Option<FrameShape> {
        let FrameShape { width, height, channels, .. } = decoded;
        let first = KnownShape { size: Some(PictureSize { width, height }), channels, ..KnownShape::UNKNOWN };
        let mut rest = self.stages.iter().skip(1);
        rest.try_fold(first, |shape, planned| planned.stage.shape_after(shape).ok())?.frame()
    }

    /// The number of pictures in a batch and the shape of each, if the pipeline ends in a batch.
    pub fn batch(&self) -> Option<(u32, FrameShape)> {
        let Some(WrittenStage::Batch(count)) = self.written.last() else { return None };
        Some((*count, self.shape()?))
    }

    /// The same pipeline with a batch of `count` pictures at its end. It replaces a batch that was there.
    pub fn with_batch(&self, count: u32) -> Result<ImagePlan, PlanError> {
        let is_batch = |stage: &WrittenStage| matches!(stage, WrittenStage::Batch(_));
        let mut written: Vec<_> = self.written.iter().filter(|stage| !is_batch(stage)).cloned().collect();
        written.push(WrittenStage::Batch(count));
        ImagePlan::new(written)
    }

    /// The same pipeline, in which a picture must decode within `within_ms` milliseconds.
    pub fn with_deadline_ms(&self, within_ms: u32) -> Result<ImagePlan, PlanError> {
        let mut written = self.written.clone();
        for stage in &mut written {
            if let WrittenStage::JpegDecode { deadline_ms, .. } = stage {
                *deadline_ms = within_ms;
            }
        }
        ImagePlan::new(written)
    }

    /// The written stage, its place and name, in which a stage of the drive failed with this status. If a crop moved
    /// into the decoder and the picture is too small for it, that is the crop.
    pub fn written_name(&self, stage: usize, status: u32) -> Option<(usize, &'static str)> {
        let planned = self.stages.get(stage)?;
        let written = match (&planned.stage, ImageError::of_code(status)) {
            (ImageStage::JpegDecode(options), Some(ImageError::CropTooLarge)) => usize::from(options.place),
            _ => planned.written,
        };
        Some((written, self.written[written].name()))
    }
}

/// Refuses a shape that no frame holds. A shape of unknown size is refused if a square of `side` would not fit.
fn refuse_too_large(shape: KnownShape, side: Option<u16>) -> Result<(), PlanProblem> {
    let size = shape.size.or(side.map(|side| PictureSize { width: side.into(), height: side.into() }));
    let Some(FrameShape { width, height, .. }) = (KnownShape { size, ..shape }).frame() else { return Ok(()) };
    let pixels = u64::from(width) * u64::from(height);
    // A picture that becomes long and thin has sides of up to 32 bits.
    let sample_bytes = u64::from(shape.channels) * shape.sample.bytes() as u64;
    let bytes = pixels.saturating_mul(sample_bytes);
    let fits = pixels <= PIXELS_MAX && bytes <= FrameShape::BYTES_MAX as u64;
    if fits { Ok(()) } else { Err(PlanProblem::TooLarge { pixels, bytes }) }
}

impl WrittenStage {
    pub fn name(&self) -> &'static str {
        match self {
            WrittenStage::JpegDecode { any_kind: true, .. } => "decode",
            WrittenStage::JpegDecode { .. } => "jpeg_decode",
            WrittenStage::Resize(_) => "resize",
            WrittenStage::Crop { crop: CropRule::Center { .. } | CropRule::Whole, .. } => "center_crop",
            WrittenStage::Crop { crop: CropRule::Random { .. }, .. } => "random_crop",
            WrittenStage::Crop { crop: CropRule::RandomResized { .. }, .. } => "random_resized_crop",
            WrittenStage::Flip { .. } => "flip",
            WrittenStage::Normalize { .. } => "normalize",
            WrittenStage::Layout(_) => "layout",
            WrittenStage::Batch(_) => "batch",
        }
    }

    /// The size that this stage wants of the picture, or the crop, before it.
    fn wanted(&self) -> Option<(u16, u16)> {
        match self {
            WrittenStage::Resize(ResizeRule::Short(side)) => Some((*side, *side)),
            WrittenStage::Resize(ResizeRule::Exact { width, height }) => Some((*width, *height)),
            WrittenStage::Crop { size, .. } => *size,
            _ => None,
        }
    }
}
