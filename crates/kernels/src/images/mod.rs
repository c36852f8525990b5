//! Pictures: JPEG, PNG and WebP files become pixels, and pixels become what a training step takes.
//!
//! Every operation takes the bytes of one picture and gives the bytes of one: a file, or a `Frame`, which says its size, the type of
//! its samples and their order. `ImageStage` is one operation with its parameters, as a program of the drive gets them; `ImagePlan`
//! is a list of them that was written as text and checked.
//!
//! 1. A region is decoded with a margin, which is cut off: its pixels equal those of a full decode.
//!    But of a progressive file that lacks passes: libjpeg-turbo smooths its blocks by those around them, which lie beyond the margin.
//! 2. Chance depends on nothing but seed, epoch, item and the operation's place (`ImageChance`).
//! 3. What a file says of itself is checked before memory is taken for it. Each limit is an [`ImageError`].
//! 4. A decode that its file makes long ends at its deadline, by the clock of who asks for it.
//!
//! Threads: all functions are pure.

mod chance;
mod crop;
mod exif;
mod frame;
#[doc(hidden)]
pub mod fuzzing;
mod jpeg;
mod jpeg_encode;
#[cfg(test)]
mod jpeg_tests;
mod libjpeg;
mod order;
mod picture_file;
#[cfg(test)]
mod picture_file_tests;
mod pixels;
mod plan;
mod plan_text;
mod png;
mod resize;
mod stage;
#[doc(hidden)]
pub mod testing;
mod webp;
mod work_clock;

pub use self::{
    chance::ImageChance,
    crop::{CropRule, PictureSize, PixelRect},
    frame::{Frame, FrameShape, SampleOrder, SampleType},
    jpeg::decode_jpeg,
    jpeg_encode::{JpegQuality, encode_jpeg},
    order::epoch_order,
    picture_file::decode_picture,
    plan::{BATCH_MAX, ImagePlan, PLAN_STAGES_MAX, PlanError, PlanProblem, PlannedStage, WrittenStage},
    resize::ResizeRule,
    stage::{DECODE_DEADLINE_MS, DECODE_DEADLINE_MS_MAX, DecodeOptions, IMAGE_PROGRAMS, ImageStage},
    work_clock::{WorkClock, standing_clock},
};
pub use crate::image_error::{FileKind, ImageError};

/// The most pixels of a picture: 8192 × 8192.
pub const PIXELS_MAX: u64 = 1 << 26;
/// The most bytes of a frame, as of all that a program holds whole.
pub const FRAME_BYTES_MAX: usize = 64 << 20;
/// A file that would become more bytes of pixels for each of its own is a bomb. A picture of one colour is at 512 in a progressive file.
pub const EXPANSION_MAX: u64 = 1000;
/// Files of fewer pixels are no bombs, whatever their ratio.
pub const EXPANSION_FREE_PIXELS: u64 = 1 << 20;
