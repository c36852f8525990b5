//! Small pictures for tests.

use super::frame::{Frame, FrameShape, HEADER_BYTES, blank};
use super::jpeg_encode::{JpegQuality, encode_jpeg};

/// A frame whose pixels change smoothly, with edges here and there, as a photograph's do.
pub fn picture(width: u32, height: u32) -> Vec<u8> {
    let mut frame = blank(FrameShape::of_pixels(width, height, 3)).unwrap_or_default();
    let pixels = frame[HEADER_BYTES..].chunks_exact_mut(3);
    for (pixel, (y, x)) in pixels.zip((0..height).flat_map(|y| (0..width).map(move |x| (y, x)))) {
        let edge = if (x / 23 + y / 31) % 3 == 0 { 90 } else { 0 };
        pixel.copy_from_slice(&[(x * 255 / width) as u8, (y * 255 / height) as u8 / 2 + edge, ((x * y) % 251) as u8]);
    }
    frame
}

/// Its file.
pub fn jpeg(width: u32, height: u32, quality: JpegQuality) -> Vec<u8> {
    let frame = picture(width, height);
    Frame::pixels(&frame).and_then(|frame| encode_jpeg(frame, quality)).unwrap_or_default()
}

/// A progressive file with this many passes beside its own: the second again and again.
pub fn scan_bomb(width: u32, height: u32, passes: usize) -> Vec<u8> {
    let file = jpeg(width, height, JpegQuality { progressive: true, ..JpegQuality::default() });
    let is_scan = |at: &usize| file[*at..].starts_with(&[0xff, 0xda]);
    let scans: Vec<usize> = (0..file.len()).filter(is_scan).collect();
    let [_, second, third, ..] = scans[..] else { return file };
    [&file[..third], &file[second..third].repeat(passes), &file[third..]].concat()
}

/// A segment APP1 that says nothing but an orientation.
#[cfg(test)]
pub(super) fn exif_segment(tag: u16, is_little: bool) -> Vec<u8> {
    let short = |number: u16| if is_little { number.to_le_bytes() } else { number.to_be_bytes() };
    let long = |number: u32| if is_little { number.to_le_bytes() } else { number.to_be_bytes() };
    let mut tiff = if is_little { b"II".to_vec() } else { b"MM".to_vec() };
    tiff.extend_from_slice(&short(42));
    tiff.extend_from_slice(&long(8));
    tiff.extend_from_slice(&short(1));
    for part in [&short(0x0112)[..], &short(3), &long(1), &short(tag), &short(0), &long(0)] {
        tiff.extend_from_slice(part);
    }
    let mut segment = vec![0xff, 0xe1];
    segment.extend_from_slice(&(tiff.len() as u16 + 8).to_be_bytes());
    segment.extend_from_slice(b"Exif\0\0");
    segment.extend_from_slice(&tiff);
    segment
}
