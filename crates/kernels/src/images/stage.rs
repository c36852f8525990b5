//! One operation and its parameters, as a program of the drive gets them.

use super::chance::ImageChance;
use super::crop::{CropRule, PictureSize};
use super::frame::{Frame, FrameShape, HEADER_BYTES, SampleOrder, SampleType};
use super::picture_file::decode_picture;
use super::resize::{ResizeRule, resize};
use super::work_clock::{WorkClock, standing_clock};
use super::{FRAME_BYTES_MAX, pixels};
use crate::image_error::ImageError;

/// The names of programs over pictures.
pub const IMAGE_PROGRAMS: [&str; 9] = [
    "jpeg_decode",
    "resize",
    "center_crop",
    "random_crop",
    "random_resized_crop",
    "flip",
    "normalize",
    "layout",
    "batch",
];

/// The deadline of a picture's decode, in milliseconds, unless the plan sets one. The longest files that pass all
/// limits take less on common machines.
pub const DECODE_DEADLINE_MS: u32 = 20_000;
/// The longest deadline that a plan can set: a day.
pub const DECODE_DEADLINE_MS_MAX: u32 = 86_400_000;

/// The part of a picture's file to decode, and how to decode it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DecodeOptions {
    /// Whether files of other kinds than JPEG are decoded too.
    pub any_kind: bool,
    /// One channel instead of three.
    pub grey: bool,
    /// Whether the picture is turned upright as EXIF says.
    pub orient: bool,
    pub crop: CropRule,
    /// The crop's place in its pipeline, for its chance.
    pub place: u8,
    /// A crop of a JPEG that is at least twice as large as this is decoded at a half, a quarter or an eighth of its size: less work, other pixels.
    pub scale_to: Option<(u16, u16)>,
    /// A decode that works longer on one picture is an error.
    pub deadline_ms: u32,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum ImageStage {
    JpegDecode(DecodeOptions),
    Resize(ResizeRule),
    /// Crops decoded pixels.
    Crop {
        crop: CropRule,
        place: u8,
        /// The size to which a random resized crop is resized.
        size: Option<(u16, u16)>,
    },
    /// Swaps left and right with this probability.
    Flip {
        probability: f32,
        place: u8,
    },
    Normalize {
        mean: [f32; 3],
        deviation: [f32; 3],
    },
    Layout(SampleOrder),
    /// Gives the samples alone, of a picture of this shape.
    Batch(FrameShape),
}

// Parameters, little-endian. All begin with a byte of flags:
//
//   jpeg_decode    flags u8 (1 grey, 2 orient, 4 scaled, 8 any kind) · place u8 · width u16 · height u16 · crop 17 · deadline in ms u32
//   resize         flags u8 (1 short) · width u16 · height u16
//   *_crop         flags u8 (1 resized) · place u8 · width u16 · height u16 · crop 17
//   flip           flags u8 · place u8 · probability f32
//   normalize      mean 3 × f32 · deviation 3 × f32
//   layout         order u8
//   batch          a frame's header
const FLAG_GREY: u8 = 1;
const FLAG_ORIENT: u8 = 2;
const FLAG_SCALED: u8 = 4;
const FLAG_ANY_KIND: u8 = 8;
const FLAG_SHORT: u8 = 1;
const FLAG_RESIZED: u8 = 1;

/// Reads numbers from parameters.
struct Parameters<'a>(&'a [u8]);

impl Parameters<'_> {
    fn take<const BYTES: usize>(&mut self) -> Result<[u8; BYTES], ImageError> {
        let (bytes, rest) = self.0.split_first_chunk().ok_or(ImageError::Parameters)?;
        self.0 = rest;
        Ok(*bytes)
    }

    fn byte(&mut self) -> Result<u8, ImageError> {
        Ok(self.take::<1>()?[0])
    }

    fn size(&mut self) -> Result<(u16, u16), ImageError> {
        Ok((u16::from_le_bytes(self.take()?), u16::from_le_bytes(self.take()?)))
    }

    fn word(&mut self) -> Result<u32, ImageError> {
        Ok(u32::from_le_bytes(self.take()?))
    }

    fn float(&mut self) -> Result<f32, ImageError> {
        Ok(f32::from_le_bytes(self.take()?))
    }

    fn end<T>(self, value: T) -> Result<T, ImageError> {
        if self.0.is_empty() { Ok(value) } else { Err(ImageError::Parameters) }
    }
}

fn put_crop(out: &mut Vec<u8>, place: u8, size: Option<(u16, u16)>, crop: CropRule) {
    let (width, height) = size.unwrap_or_default();
    out.push(place);
    out.extend_from_slice(&width.to_le_bytes());
    out.extend_from_slice(&height.to_le_bytes());
    out.extend_from_slice(&crop.encode());
}

impl ImageStage {
    /// The name of its program.
    pub fn name(&self) -> &'static str {
        match self {
            ImageStage::JpegDecode(_) => "jpeg_decode",
            ImageStage::Resize(_) => "resize",
            ImageStage::Crop { crop: CropRule::Center { .. } | CropRule::Whole, .. } => "center_crop",
            ImageStage::Crop { crop: CropRule::Random { .. }, .. } => "random_crop",
            ImageStage::Crop { crop: CropRule::RandomResized { .. }, .. } => "random_resized_crop",
            ImageStage::Flip { .. } => "flip",
            ImageStage::Normalize { .. } => "normalize",
            ImageStage::Layout(_) => "layout",
            ImageStage::Batch(_) => "batch",
        }
    }

    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        match *self {
            ImageStage::JpegDecode(DecodeOptions { any_kind, grey, orient, crop, place, scale_to, deadline_ms }) => {
                let flag = |is: bool, flag| if is { flag } else { 0 };
                let of_pixels = flag(grey, FLAG_GREY) | flag(orient, FLAG_ORIENT);
                out.push(of_pixels | flag(scale_to.is_some(), FLAG_SCALED) | flag(any_kind, FLAG_ANY_KIND));
                put_crop(&mut out, place, scale_to, crop);
                out.extend_from_slice(&deadline_ms.to_le_bytes());
            }
            ImageStage::Resize(rule) => {
                let (flags, width, height) = match rule {
                    ResizeRule::Short(side) => (FLAG_SHORT, side, side),
                    ResizeRule::Exact { width, height } => (0, width, height),
                };
                out.push(flags);
                out.extend_from_slice(&width.to_le_bytes());
                out.extend_from_slice(&height.to_le_bytes());
            }
            ImageStage::Crop { crop, place, size } => {
                out.push(if size.is_some() { FLAG_RESIZED } else { 0 });
                put_crop(&mut out, place, size, crop);
            }
            ImageStage::Flip { probability, place } => {
                out.extend_from_slice(&[0, place]);
                out.extend_from_slice(&probability.to_le_bytes());
            }
            ImageStage::Normalize { mean, deviation } => {
                [mean, deviation].as_flattened().iter().for_each(|number| out.extend_from_slice(&number.to_le_bytes()));
            }
            ImageStage::Layout(order) => out.push(order as u8),
            ImageStage::Batch(shape) => out.extend_from_slice(&shape.encode()),
        }
        out
    }

    /// Decodes the parameters of the program with this name.
    pub fn decode(name: &str, parameters: &[u8]) -> Result<ImageStage, ImageError> {
        let mut from = Parameters(parameters);
        let stage = match name {
            "jpeg_decode" => {
                let (flags, place, size) = (from.byte()?, from.byte()?, from.size()?);
                let (crop, deadline_ms) = (CropRule::decode(&from.take()?)?, from.word()?);
                let is_known = flags & !(FLAG_GREY | FLAG_ORIENT | FLAG_SCALED | FLAG_ANY_KIND) == 0;
                if !is_known || !(1..=DECODE_DEADLINE_MS_MAX).contains(&deadline_ms) {
                    return Err(ImageError::Parameters);
                }
                ImageStage::JpegDecode(DecodeOptions {
                    any_kind: flags & FLAG_ANY_KIND != 0,
                    grey: flags & FLAG_GREY != 0,
                    orient: flags & FLAG_ORIENT != 0,
                    crop,
                    place,
                    scale_to: (flags & FLAG_SCALED != 0).then_some(size),
                    deadline_ms,
                })
            }
            "resize" => {
                let (flags, (width, height)) = (from.byte()?, from.size()?);
                if flags > FLAG_SHORT || width == 0 || height == 0 {
                    return Err(ImageError::Parameters);
                }
                let is_short = flags == FLAG_SHORT;
                ImageStage::Resize(if is_short {
                    ResizeRule::Short(width)
                } else {
                    ResizeRule::Exact { width, height }
                })
            }
            "center_crop" | "random_crop" | "random_resized_crop" => {
                let (flags, place, (width, height)) = (from.byte()?, from.byte()?, from.size()?);
                let crop = CropRule::decode(&from.take()?)?;
                let is_resized = flags == FLAG_RESIZED;
                if flags > FLAG_RESIZED || (is_resized && (width == 0 || height == 0)) {
                    return Err(ImageError::Parameters);
                }
                ImageStage::Crop { crop, place, size: is_resized.then_some((width, height)) }
            }
            "flip" => {
                let (flags, place, probability) = (from.byte()?, from.byte()?, from.float()?);
                if flags != 0 || !(0.0..=1.0).contains(&probability) {
                    return Err(ImageError::Parameters);
                }
                ImageStage::Flip { probability, place }
            }
            "normalize" => {
                let mut numbers = [0.0; 6];
                for number in &mut numbers {
                    *number = from.float()?;
                }
                let [a, b, c, d, e, f] = numbers;
                ImageStage::Normalize { mean: [a, b, c], deviation: [d, e, f] }
            }
            "layout" => ImageStage::Layout(match from.byte()? {
                0 => SampleOrder::Hwc,
                1 => SampleOrder::Chw,
                _ => return Err(ImageError::Parameters),
            }),
            "batch" => ImageStage::Batch(FrameShape::decode(&from.take()?).map_err(|_| ImageError::Parameters)?),
            _ => return Err(ImageError::Parameters),
        };
        from.end(stage)
    }

    /// Like [`ImageStage::apply_timed`], for a caller that waits however long it takes.
    pub fn apply(&self, input: Vec<u8>, chance: ImageChance) -> Result<Vec<u8>, ImageError> {
        self.apply_timed(input, chance, &mut standing_clock)
    }

    /// Applies the stage to `input`: a picture's file, or a frame.
    pub fn apply_timed(
        &self,
        input: Vec<u8>,
        chance: ImageChance,
        clock: &mut WorkClock<'_>,
    ) -> Result<Vec<u8>, ImageError> {
        if input.len() > FRAME_BYTES_MAX {
            return Err(ImageError::OutputTooLarge);
        }
        match *self {
            ImageStage::JpegDecode(ref options) => decode_picture(&input, options, chance, clock),
            ImageStage::Resize(rule) => resize(Frame::pixels(&input)?, rule),
            ImageStage::Crop { crop, place, size } => {
                let frame = Frame::pixels(&input)?;
                let rect = crop.rect(frame.shape.size(), &mut chance.draws(place))?;
                let cut = pixels::cut(frame, rect)?;
                let Some((width, height)) = size else { return Ok(cut) };
                resize(Frame::pixels(&cut)?, ResizeRule::Exact { width, height })
            }
            ImageStage::Flip { probability, place } => {
                let mut frame = input;
                Frame::pixels(&frame)?;
                if chance.draws(place).unit() < f64::from(probability) {
                    pixels::mirror(&mut frame)?;
                }
                Ok(frame)
            }
            ImageStage::Normalize { mean, deviation } => pixels::normalize(&input, mean, deviation),
            ImageStage::Layout(order) => pixels::reorder(&input, order),
            ImageStage::Batch(shape) => {
                if Frame::decode(&input)?.shape != shape {
                    return Err(ImageError::WrongShape);
                }
                let mut samples = input;
                samples.drain(..HEADER_BYTES);
                Ok(samples)
            }
        }
    }
}

impl ImageStage {
    /// The output's shape for this input, as far as it is known, or the reason that the stage does not take the input.
    pub(super) fn shape_after(&self, input: KnownShape) -> Result<KnownShape, ImageError> {
        let is_pixels = input.sample == SampleType::U8 && input.order == SampleOrder::Hwc;
        let takes_pixels = matches!(self, ImageStage::Resize(_) | ImageStage::Crop { .. } | ImageStage::Flip { .. });
        if takes_pixels && !is_pixels {
            return Err(ImageError::WrongSamples);
        }
        let exact = |width: u16, height: u16| KnownShape {
            size: Some(PictureSize { width: width.into(), height: height.into() }),
            ..input
        };
        let cut = |crop, size: Option<(u16, u16)>, input: KnownShape| match (crop, size) {
            (_, Some((width, height)))
            | (CropRule::Center { width, height } | CropRule::Random { width, height }, None) => {
                KnownShape { size: Some(PictureSize { width: width.into(), height: height.into() }), ..input }
            }
            (CropRule::RandomResized { .. }, None) => KnownShape { size: None, ..input },
            (CropRule::Whole, None) => input,
        };
        Ok(match *self {
            ImageStage::JpegDecode(options) => {
                let channels = if options.grey { 1 } else { 3 };
                cut(options.crop, None, KnownShape { channels, ..KnownShape::UNKNOWN })
            }
            ImageStage::Resize(ResizeRule::Exact { width, height }) => exact(width, height),
            ImageStage::Resize(ResizeRule::Short(_)) => {
                let size = if let (ImageStage::Resize(rule), Some(size)) = (self, input.size) {
                    Some(rule.size(size))
                } else {
                    None
                };
                KnownShape { size, ..input }
            }
            ImageStage::Crop { crop, size, .. } => cut(crop, size, input),
            ImageStage::Flip { .. } => input,
            ImageStage::Normalize { .. } if input.sample != SampleType::U8 => return Err(ImageError::WrongSamples),
            ImageStage::Normalize { .. } => KnownShape { sample: SampleType::F32, ..input },
            ImageStage::Layout(order) => KnownShape { order, ..input },
            ImageStage::Batch(_) => input,
        })
    }
}

/// The shape of a frame as far as it is known before the frame exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct KnownShape {
    /// `None`: each picture has its own.
    pub size: Option<PictureSize>,
    pub channels: u8,
    pub sample: SampleType,
    pub order: SampleOrder,
}

impl KnownShape {
    pub const UNKNOWN: KnownShape =
        KnownShape { size: None, channels: 3, sample: SampleType::U8, order: SampleOrder::Hwc };

    pub fn frame(self) -> Option<FrameShape> {
        let PictureSize { width, height } = self.size?;
        Some(FrameShape { width, height, channels: self.channels, sample: self.sample, order: self.order })
    }
}
