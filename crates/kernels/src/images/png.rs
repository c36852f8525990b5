//! Reads PNG files: of each colour type and depth, interlaced or not. Samples of 16 bits keep their upper 8, a palette becomes its colours.
//! An animation becomes its default picture, which programs without animations show.
//!
//! A truncated file is an error, also one whose picture is whole, and so is one with a wrong checksum.

use super::crop::PictureSize;
use super::exif::Orientation;
use super::picture_file::{WholePicture, check_size};
use crate::image_error::ImageError;
use png::{ColorType, Decoder, DecodingError, Limits, Transformations};
use std::io::{Cursor, ErrorKind};

/// The most bytes that the decoder takes for itself: rows, palettes and EXIF.
const OWN_BYTES_MAX: usize = 16 << 20;

pub(super) fn read(file: &[u8]) -> Result<WholePicture, ImageError> {
    let mut decoder = Decoder::new_with_limits(Cursor::new(file), Limits { bytes: OWN_BYTES_MAX });
    decoder.set_transformations(Transformations::EXPAND | Transformations::STRIP_16);
    decoder.set_ignore_text_chunk(true);
    decoder.set_ignore_iccp_chunk(true);
    let header = decoder.read_header_info().map_err(|error| error_of(&error))?;
    let size = PictureSize { width: header.width, height: header.height };
    // Before the reader takes memory for a row.
    check_size(file, size, 1)?;
    let mut reader = decoder.read_info().map_err(|error| error_of(&error))?;
    let channels = match reader.output_color_type().0 {
        ColorType::Grayscale => 1,
        ColorType::GrayscaleAlpha => 2,
        ColorType::Rgb => 3,
        ColorType::Rgba => 4,
        ColorType::Indexed => return Err(ImageError::Corrupt),
    };
    check_size(file, size, channels)?;
    let bytes = reader.output_buffer_size().ok_or(ImageError::OutputTooLarge)?;
    let mut samples = vec![0; bytes];
    reader.next_frame(&mut samples).map_err(|error| error_of(&error))?;
    reader.finish().map_err(|error| error_of(&error))?;
    // The frame of an animation may be smaller than its canvas; the picture that is not part of it is never.
    if bytes != size.width as usize * size.height as usize * channels {
        return Err(ImageError::Corrupt);
    }
    let turn = reader.info().exif_metadata.as_deref().map(Orientation::of_tiff).unwrap_or_default();
    Ok(WholePicture { size, channels, samples, turn })
}

fn error_of(error: &DecodingError) -> ImageError {
    match error {
        DecodingError::IoError(error) if error.kind() == ErrorKind::UnexpectedEof => ImageError::Truncated,
        DecodingError::LimitsExceeded => ImageError::OutputTooLarge,
        _ => ImageError::Corrupt,
    }
}
