//! Reads WebP files, lossy and lossless. Animations are refused.
//!
//! The decoder takes memory for what an inner header says before it compares that with the outer one. So all sizes are compared here first.

use super::crop::PictureSize;
use super::exif::Orientation;
use super::picture_file::{WholePicture, check_size};
use crate::image_error::ImageError;
use image_webp::{DecodingError, WebPDecoder};
use std::io::{Cursor, ErrorKind};

/// `RIFF`, a size, `WEBP`.
const HEAD_BYTES: usize = 12;
/// A name and a size.
const CHUNK_HEAD_BYTES: usize = 8;
const ANIMATION_FLAG: u8 = 2;

/// The chunks of a file that matter here, each the first of its kind, as the decoder takes them.
#[derive(Default)]
struct Chunks<'a> {
    extended: Option<&'a [u8]>,
    lossy: Option<&'a [u8]>,
    exif: Option<&'a [u8]>,
    is_animated: bool,
}

pub(super) fn read(file: &[u8]) -> Result<WholePicture, ImageError> {
    let chunks = Chunks::find(file)?;
    if chunks.is_animated
        || chunks.extended.is_some_and(|head| head.first().is_some_and(|flags| flags & ANIMATION_FLAG != 0))
    {
        return Err(ImageError::Animated);
    }
    let mut decoder = WebPDecoder::new(Cursor::new(file)).map_err(|error| error_of(&error))?;
    let (width, height) = decoder.dimensions();
    let size = PictureSize { width, height };
    if chunks.lossy.is_some_and(|frame| lossy_size(frame) != Some(size)) {
        return Err(ImageError::Corrupt);
    }
    let channels = if decoder.has_alpha() { 4 } else { 3 };
    // Without opacity a lossless file takes as much as with it, beside the result.
    check_size(file, size, 4)?;
    let bytes = decoder.output_buffer_size().ok_or(ImageError::OutputTooLarge)?;
    let mut samples = vec![0; bytes];
    decoder.read_image(&mut samples).map_err(|error| error_of(&error))?;
    let turn = chunks.exif.map(exif_of).map(Orientation::of_tiff).unwrap_or_default();
    Ok(WholePicture { size, channels, samples, turn })
}

/// Some programs write the TIFF with the head that it has in a JPEG.
fn exif_of(chunk: &[u8]) -> &[u8] {
    chunk.strip_prefix(b"Exif\0\0").unwrap_or(chunk)
}

impl<'a> Chunks<'a> {
    fn find(file: &'a [u8]) -> Result<Chunks<'a>, ImageError> {
        let size = |at: usize| {
            let bytes = file.get(at..).and_then(<[u8]>::first_chunk::<4>);
            bytes.map(|bytes| u32::from_le_bytes(*bytes) as usize).ok_or(ImageError::Truncated)
        };
        let end = size(4)?.checked_add(CHUNK_HEAD_BYTES).ok_or(ImageError::Corrupt)?;
        let body = file.get(..end).ok_or(ImageError::Truncated)?;
        let mut chunks = Chunks::default();
        let mut at = HEAD_BYTES;
        while at + CHUNK_HEAD_BYTES <= body.len() {
            let bytes = size(at + 4)?;
            let from = at + CHUNK_HEAD_BYTES;
            let data = body[from..].get(..bytes).ok_or(ImageError::Truncated)?;
            match &body[at..at + 4] {
                b"VP8X" => chunks.extended = chunks.extended.or(Some(data)),
                b"VP8 " => chunks.lossy = chunks.lossy.or(Some(data)),
                b"EXIF" => chunks.exif = chunks.exif.or(Some(data)),
                b"ANMF" => chunks.is_animated = true,
                _ => {}
            }
            // To an even place.
            at = from + bytes + bytes % 2;
        }
        Ok(chunks)
    }
}

/// The size in the head of a lossy frame: three bytes of a tag, a start code, then width and height, whose upper bits are scales.
fn lossy_size(frame: &[u8]) -> Option<PictureSize> {
    let [width, width_high, height, height_high] = *frame.get(6..)?.first_chunk()?;
    let side = |low, high| u32::from(u16::from_le_bytes([low, high]) & 0x3fff);
    Some(PictureSize { width: side(width, width_high), height: side(height, height_high) })
}

fn error_of(error: &DecodingError) -> ImageError {
    match error {
        DecodingError::IoError(error) if error.kind() == ErrorKind::UnexpectedEof => ImageError::Truncated,
        DecodingError::ImageTooLarge | DecodingError::MemoryLimitExceeded => ImageError::OutputTooLarge,
        _ => ImageError::Corrupt,
    }
}
