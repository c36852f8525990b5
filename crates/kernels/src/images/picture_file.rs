//! Decodes a picture's file, of whichever kind its first bytes say: JPEG, PNG or WebP.
//!
//! 1. PNG and WebP are decoded whole, and what is wanted is cut out: neither can be decoded in part.
//! 2. Transparency is dropped, as PIL's `convert("RGB")` drops it: a pixel's colours are those that the file has for it.
//! 3. The deadline is looked at before and after the decode of a PNG or WebP, whose time its size bounds.

use super::crop::PictureSize;
use super::exif::Orientation;
use super::frame::{FrameShape, HEADER_BYTES, blank};
use super::jpeg::{decode_jpeg, turned_back};
use super::stage::DecodeOptions;
use super::work_clock::{WorkClock, WorkDeadline};
use super::{EXPANSION_FREE_PIXELS, EXPANSION_MAX, FRAME_BYTES_MAX, ImageChance, PIXELS_MAX, pixels, png, webp};
use crate::image_error::{FileKind, ImageError};

/// The most bytes of a whole picture's samples.
const WHOLE_BYTES_MAX: usize = 2 * FRAME_BYTES_MAX;

/// All pixels of a file, 8 bits a sample.
pub(super) struct WholePicture {
    pub size: PictureSize,
    /// 1 or 2: grey; 3 or 4: colours. The last of 2 or 4 is opacity.
    pub channels: usize,
    pub samples: Vec<u8>,
    pub turn: Orientation,
}

/// Decodes the part of a file that the options name to a frame, within their deadline by `clock`.
pub fn decode_picture(
    file: &[u8],
    options: &DecodeOptions,
    chance: ImageChance,
    clock: &mut WorkClock<'_>,
) -> Result<Vec<u8>, ImageError> {
    let read = match FileKind::of(file) {
        FileKind::Png if options.any_kind => png::read,
        FileKind::WebP if options.any_kind => webp::read,
        _ => return decode_jpeg(file, options, chance, clock),
    };
    let mut deadline = WorkDeadline::new(clock, options.deadline_ms)?;
    let whole = read(file)?;
    let frame = whole.cut(options, chance)?;
    if deadline.goes_on() { Ok(frame) } else { Err(ImageError::TooLong) }
}

/// Checks what a file says of itself before memory is taken for its pixels.
pub(super) fn check_size(file: &[u8], size: PictureSize, channels: usize) -> Result<(), ImageError> {
    let pixels = u64::from(size.width) * u64::from(size.height);
    if pixels == 0 {
        return Err(ImageError::Corrupt);
    }
    if pixels > PIXELS_MAX {
        return Err(ImageError::TooManyPixels);
    }
    if pixels > EXPANSION_FREE_PIXELS && 3 * pixels / file.len() as u64 > EXPANSION_MAX {
        return Err(ImageError::Bomb);
    }
    if pixels * channels as u64 > WHOLE_BYTES_MAX as u64 { Err(ImageError::OutputTooLarge) } else { Ok(()) }
}

impl WholePicture {
    fn cut(&self, options: &DecodeOptions, chance: ImageChance) -> Result<Vec<u8>, ImageError> {
        let turn = if options.orient { self.turn } else { Orientation::default() };
        let PictureSize { width, height } = self.size;
        let upright = if turn.transposed { PictureSize { width: height, height: width } } else { self.size };
        let rect = options.crop.rect(upright, &mut chance.draws(options.place))?;
        let rect = turned_back(rect, upright, turn);
        let channels = if options.grey { 1 } else { 3 };
        let shape = FrameShape::of_pixels(rect.width, rect.height, channels);
        let mut frame = blank(shape)?;
        let left = rect.x as usize * self.channels;
        let row_bytes = rect.width as usize * self.channels;
        let rows = self.samples.chunks_exact(width as usize * self.channels).skip(rect.y as usize);
        for (row, into) in rows.zip(frame[HEADER_BYTES..].chunks_exact_mut(shape.row_samples())) {
            let row = &row[left..][..row_bytes];
            let into = into.chunks_exact_mut(channels.into());
            row.chunks_exact(self.channels).zip(into).for_each(|(pixel, into)| opaque(pixel, into));
        }
        if turn == Orientation::default() { Ok(frame) } else { pixels::turn(&frame, turn) }
    }
}

/// One pixel without its opacity, as grey or in colours.
fn opaque(pixel: &[u8], into: &mut [u8]) {
    match (pixel, into) {
        ([grey] | [grey, _], into) => into.fill(*grey),
        ([r, g, b, ..], [into]) => *into = pixels::luminance([*r, *g, *b]),
        ([r, g, b, ..], into) => into.copy_from_slice(&[*r, *g, *b]),
        _ => {}
    }
}
