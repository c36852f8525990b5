//! A decoded picture on its way from stage to stage: a header, then its samples.

use super::crop::PictureSize;
use super::{FRAME_BYTES_MAX, PIXELS_MAX};
use crate::image_error::ImageError;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SampleType {
    U8,
    /// Little-endian.
    F32,
}

impl SampleType {
    pub fn bytes(self) -> usize {
        match self {
            SampleType::U8 => 1,
            SampleType::F32 => 4,
        }
    }
}

/// The order of samples, by the index that changes slowest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SampleOrder {
    /// Rows of pixels.
    Hwc,
    /// A plane for each channel.
    Chw,
}

/// The layout of a frame's samples.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameShape {
    pub width: u32,
    pub height: u32,
    /// 1 or 3.
    pub channels: u8,
    pub sample: SampleType,
    pub order: SampleOrder,
}

// A frame, little endian:
//
//   0         1          2        3       4       8        12     16
//   | version | channels | sample | order | width | height | zero | samples |
//   | u8 1    | u8       | u8     | u8    | u32   | u32    | u32  |         |
//
//   sample: 0 u8, 1 f32      order: 0 HWC, 1 CHW
const VERSION: u8 = 1;
pub const HEADER_BYTES: usize = 16;

impl FrameShape {
    pub const ENCODED_BYTES: usize = HEADER_BYTES;
    /// The most bytes of samples that a frame holds.
    pub const BYTES_MAX: usize = FRAME_BYTES_MAX - HEADER_BYTES;

    /// The shape of decoded pixels.
    pub fn of_pixels(width: u32, height: u32, channels: u8) -> FrameShape {
        FrameShape { width, height, channels, sample: SampleType::U8, order: SampleOrder::Hwc }
    }

    pub fn size(&self) -> PictureSize {
        PictureSize { width: self.width, height: self.height }
    }

    pub fn samples(&self) -> usize {
        self.width as usize * self.height as usize * usize::from(self.channels)
    }

    /// Bytes of the samples alone, without the header.
    pub fn bytes(&self) -> usize {
        self.samples() * self.sample.bytes()
    }

    pub fn row_samples(&self) -> usize {
        self.width as usize * usize::from(self.channels)
    }

    fn is_sound(&self) -> bool {
        let pixels = u64::from(self.width) * u64::from(self.height);
        matches!(self.channels, 1 | 3) && (1..=PIXELS_MAX).contains(&pixels)
    }

    pub fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        bytes[..4].copy_from_slice(&[VERSION, self.channels, self.sample as u8, self.order as u8]);
        bytes[4..8].copy_from_slice(&self.width.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.height.to_le_bytes());
        bytes
    }

    pub fn decode(bytes: &[u8; HEADER_BYTES]) -> Result<FrameShape, ImageError> {
        let word = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let [version, channels, sample, order, ..] = *bytes;
        let sample = match sample {
            0 => SampleType::U8,
            1 => SampleType::F32,
            _ => return Err(ImageError::NotAFrame),
        };
        let order = match order {
            0 => SampleOrder::Hwc,
            1 => SampleOrder::Chw,
            _ => return Err(ImageError::NotAFrame),
        };
        let shape = FrameShape { width: word(4), height: word(8), channels, sample, order };
        if version != VERSION || word(12) != 0 || !shape.is_sound() {
            return Err(ImageError::NotAFrame);
        }
        Ok(shape)
    }
}

/// A whole frame.
#[derive(Clone, Copy, Debug)]
pub struct Frame<'a> {
    pub shape: FrameShape,
    /// The samples' bytes, as many as the shape says.
    pub samples: &'a [u8],
}

impl<'a> Frame<'a> {
    pub fn decode(bytes: &'a [u8]) -> Result<Frame<'a>, ImageError> {
        let (header, samples) = bytes.split_first_chunk().ok_or(ImageError::NotAFrame)?;
        let shape = FrameShape::decode(header)?;
        if samples.len() != shape.bytes() {
            return Err(ImageError::NotAFrame);
        }
        Ok(Frame { shape, samples })
    }

    /// Decodes a frame of decoded pixels. Any other frame is an error.
    pub fn pixels(bytes: &'a [u8]) -> Result<Frame<'a>, ImageError> {
        let frame = Frame::decode(bytes)?;
        if frame.shape.sample != SampleType::U8 || frame.shape.order != SampleOrder::Hwc {
            return Err(ImageError::WrongSamples);
        }
        Ok(frame)
    }
}

/// A frame's bytes, with room for its samples, which are zero.
pub fn blank(shape: FrameShape) -> Result<Vec<u8>, ImageError> {
    if shape.bytes() > FrameShape::BYTES_MAX {
        return Err(ImageError::OutputTooLarge);
    }
    let mut bytes = vec![0; HEADER_BYTES + shape.bytes()];
    bytes[..HEADER_BYTES].copy_from_slice(&shape.encode());
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_layout_does_not_drift() {
        let shape =
            FrameShape { width: 0x0102, height: 3, channels: 3, sample: SampleType::F32, order: SampleOrder::Chw };
        assert_eq!(shape.encode(), [1, 3, 1, 1, 2, 1, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(FrameShape::decode(&shape.encode()), Ok(shape));
        assert_eq!(blank(shape).unwrap().len(), 16 + 0x0102 * 3 * 3 * 4);
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_frame_or_an_error(bytes in proptest::collection::vec(0..5_u8, 0..64)) {
            if let Ok(frame) = Frame::decode(&bytes) {
                prop_assert_eq!(frame.samples.len() + HEADER_BYTES, bytes.len());
            }
        }
    }

    #[test]
    fn a_frame_has_the_samples_that_it_says() {
        let mut bytes = blank(FrameShape::of_pixels(4, 2, 3)).unwrap();
        assert!(Frame::pixels(&bytes).is_ok());
        bytes.push(0);
        assert_eq!(Frame::decode(&bytes).unwrap_err(), ImageError::NotAFrame);
        let huge = FrameShape::of_pixels(1 << 14, 1 << 12, 3);
        assert_eq!(blank(huge).unwrap_err(), ImageError::OutputTooLarge);
    }
}
