//! Resizing: bilinear over the whole area that becomes a pixel, as PIL does it, by fast_image_resize.

use super::FRAME_BYTES_MAX;
use super::crop::PictureSize;
use super::frame::{Frame, FrameShape, HEADER_BYTES, blank};
use crate::image_error::ImageError;
use fast_image_resize::images::{TypedImage, TypedImageRef};
use fast_image_resize::pixels::{U8, U8x3};
use fast_image_resize::{FilterType, PixelTrait, ResizeAlg, ResizeOptions, Resizer};
use std::cell::RefCell;

/// The most bytes between the two passes, of which the first makes rows as long as the result's, as many as the picture has.
const BETWEEN_BYTES_MAX: u64 = 4 * FRAME_BYTES_MAX as u64;
/// Buffers beyond this are not kept for the next picture.
const BETWEEN_BYTES_KEPT: u64 = 16 << 20;

/// The size that a picture becomes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResizeRule {
    /// The shorter side; the other keeps the ratio, rounded down as torchvision does.
    Short(u16),
    Exact {
        width: u16,
        height: u16,
    },
}

impl ResizeRule {
    pub fn size(self, picture: PictureSize) -> PictureSize {
        let long = |short: u16, one: u32, other: u32| {
            u32::try_from(u64::from(short) * u64::from(other) / u64::from(one)).unwrap_or(u32::MAX)
        };
        let PictureSize { width, height } = picture;
        match self {
            ResizeRule::Exact { width, height } => PictureSize { width: width.into(), height: height.into() },
            ResizeRule::Short(side) if width <= height => {
                PictureSize { width: side.into(), height: long(side, width, height) }
            }
            ResizeRule::Short(side) => PictureSize { width: long(side, height, width), height: side.into() },
        }
    }
}

thread_local! {
    /// It keeps its buffers.
    static RESIZER: RefCell<Resizer> = RefCell::new(Resizer::new());
}

/// A frame of pixels in another size.
pub fn resize(frame: Frame<'_>, rule: ResizeRule) -> Result<Vec<u8>, ImageError> {
    let size = rule.size(frame.shape.size());
    let PictureSize { width, height } = size;
    let shape = FrameShape { width, height, ..frame.shape };
    if u64::from(width) * u64::from(height) > super::PIXELS_MAX {
        return Err(ImageError::OutputTooLarge);
    }
    let between_bytes = u64::from(width) * u64::from(frame.shape.height) * u64::from(shape.channels);
    if between_bytes > BETWEEN_BYTES_MAX {
        return Err(ImageError::OutputTooLarge);
    }
    let mut out = blank(shape)?;
    RESIZER.with_borrow_mut(|resizer| {
        let samples = &mut out[HEADER_BYTES..];
        let resized = match shape.channels {
            1 => fill::<U8>(resizer, frame, size, samples),
            _ => fill::<U8x3>(resizer, frame, size, samples),
        };
        if between_bytes > BETWEEN_BYTES_KEPT {
            resizer.reset_internal_buffers();
        }
        resized
    })?;
    Ok(out)
}

/// By type, not by a value that names it: the library would be compiled for every kind of pixel that it knows.
fn fill<P: PixelTrait>(
    resizer: &mut Resizer,
    frame: Frame<'_>,
    size: PictureSize,
    samples: &mut [u8],
) -> Result<(), ImageError> {
    let odd = |_| ImageError::NotAFrame;
    let from = TypedImageRef::<P>::from_buffer(frame.shape.width, frame.shape.height, frame.samples).map_err(odd)?;
    let mut into = TypedImage::<P>::from_buffer(size.width, size.height, samples).map_err(odd)?;
    let options = ResizeOptions::new().resize_alg(ResizeAlg::Convolution(FilterType::Bilinear));
    resizer.resize_typed(&from, &mut into, &options).map_err(|_| ImageError::NotAFrame)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_torchvisions() {
        let size = |width, height| PictureSize { width, height };
        assert_eq!(ResizeRule::Short(256).size(size(500, 375)), size(341, 256));
        assert_eq!(ResizeRule::Short(256).size(size(375, 500)), size(256, 341));
        assert_eq!(ResizeRule::Exact { width: 3, height: 4 }.size(size(500, 375)), size(3, 4));
    }

    #[test]
    fn areas_are_averaged() {
        let mut bytes = blank(FrameShape::of_pixels(4, 2, 1)).unwrap();
        bytes[HEADER_BYTES..].copy_from_slice(&[0, 0, 200, 200, 0, 0, 200, 200]);
        let half = resize(Frame::pixels(&bytes).unwrap(), ResizeRule::Exact { width: 2, height: 1 }).unwrap();
        let [low, high] = half[HEADER_BYTES..] else { panic!("two pixels") };
        // The filter reaches half a pixel into its neighbour.
        assert!((20..=30).contains(&low) && (170..=180).contains(&high), "{low} {high}");
        let tall = blank(FrameShape::of_pixels(8, 65_000, 3)).unwrap();
        let wide = ResizeRule::Exact { width: 60_000, height: 100 };
        assert_eq!(resize(Frame::pixels(&tall).unwrap(), wide).unwrap_err(), ImageError::OutputTooLarge);
        let long = ResizeRule::Short(60_000);
        assert_eq!(resize(Frame::pixels(&bytes).unwrap(), long).unwrap_err(), ImageError::OutputTooLarge);
    }
}
