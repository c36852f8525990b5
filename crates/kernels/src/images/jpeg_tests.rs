use super::chance::ImageChance;
use super::crop::{CropRule, PictureSize, PixelRect};
use super::frame::{Frame, HEADER_BYTES};
use super::jpeg::decode_jpeg;
use super::jpeg_encode::{JpegQuality, encode};
use super::pixels;
use super::stage::{DECODE_DEADLINE_MS, DecodeOptions};
use super::testing::{exif_segment, jpeg, picture, scan_bomb};
use super::work_clock::standing_clock;
use crate::image_error::{FileKind, ImageError};
use proptest::prelude::*;
use turbojpeg_sys as tj;

const WHOLE: DecodeOptions = DecodeOptions {
    any_kind: false,
    grey: false,
    orient: false,
    crop: CropRule::Whole,
    place: 0,
    scale_to: None,
    deadline_ms: DECODE_DEADLINE_MS,
};

fn decode(file: &[u8], options: DecodeOptions) -> Result<Vec<u8>, ImageError> {
    decode_item(file, options, 0)
}

fn decode_item(file: &[u8], options: DecodeOptions, item: u64) -> Result<Vec<u8>, ImageError> {
    decode_jpeg(file, &options, ImageChance { item, ..ImageChance::default() }, &mut standing_clock)
}

/// The file with a segment behind its first marker.
fn with_segment(file: &[u8], segment: &[u8]) -> Vec<u8> {
    [&file[..2], segment, &file[2..]].concat()
}

/// The offset of the bytes of a picture's header that hold its height and width.
fn frame_header(file: &[u8]) -> usize {
    file.windows(2).position(|pair| matches!(pair, [0xff, 0xc0 | 0xc2])).unwrap() + 5
}

fn with_size(file: &[u8], width: u16, height: u16) -> Vec<u8> {
    let (mut file, at) = (file.to_vec(), frame_header(file));
    file[at..at + 2].copy_from_slice(&height.to_be_bytes());
    file[at + 2..at + 4].copy_from_slice(&width.to_be_bytes());
    file
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Covers all samplings, sequential and progressive files, upright and turned.
    #[test]
    fn a_region_is_what_a_full_decode_has_there(
        (width, height) in (1..150_u32, 1..120_u32),
        sampling in prop_oneof![Just(0_u8), Just(1), Just(2), Just(4), Just(5), Just(6)],
        (progressive, grey, tag) in (any::<bool>(), any::<bool>(), 1..=8_u16),
        item: u64,
    ) {
        let file = jpeg(width, height, JpegQuality { quality: 80, sampling, progressive });
        let file = with_segment(&file, &exif_segment(tag, true));
        let crop = CropRule::RandomResized { scale: (0.02, 0.9), ratio: (0.4, 2.5) };
        let options = DecodeOptions { grey, orient: true, crop, place: 3, ..WHOLE };
        let cut = decode_item(&file, options, item).unwrap();
        let full = decode(&file, DecodeOptions { crop: CropRule::Whole, ..options }).unwrap();
        let full = Frame::pixels(&full).unwrap();
        let mut draws = ImageChance { item, ..ImageChance::default() }.draws(3);
        let rect = crop.rect(full.shape.size(), &mut draws).unwrap();
        prop_assert!(cut == pixels::cut(full, rect).unwrap(), "{:?} of {:?}", rect, full.shape);
    }

    #[test]
    fn damage_is_an_error_or_pixels_of_that_size(place in 0..3000_usize, byte: u8, progressive: bool) {
        let mut file = jpeg(60, 40, JpegQuality { progressive, ..JpegQuality::default() });
        let place = place % file.len();
        file[place] = byte;
        if let Ok(frame) = decode(&file, WHOLE) {
            prop_assert!(Frame::pixels(&frame).is_ok());
        }
    }
}

#[test]
fn a_file_becomes_about_the_pixels_that_it_was_made_of() {
    let original = picture(61, 47);
    for progressive in [false, true] {
        let file = jpeg(61, 47, JpegQuality { progressive, ..JpegQuality::default() });
        let decoded = decode(&file, WHOLE).unwrap();
        assert_eq!(decoded[..HEADER_BYTES], original[..HEADER_BYTES]);
        let pairs = decoded[HEADER_BYTES..].iter().zip(&original[HEADER_BYTES..]);
        let difference: u64 = pairs.map(|(one, other)| u64::from(one.abs_diff(*other))).sum();
        assert!(difference < 8 * 61 * 47 * 3, "{difference}");
    }
}

#[test]
fn scaling_gives_at_least_the_size_that_is_wanted() {
    let file = jpeg(800, 600, JpegQuality { sampling: 2, ..JpegQuality::default() });
    let size = |scale_to, crop| {
        let frame = decode(&file, DecodeOptions { scale_to: Some(scale_to), crop, ..WHOLE }).unwrap();
        let shape = Frame::pixels(&frame).unwrap().shape;
        (shape.width, shape.height)
    };
    assert_eq!(size((100, 75), CropRule::Whole), (100, 75));
    assert_eq!(size((101, 75), CropRule::Whole), (200, 150));
    assert_eq!(size((401, 300), CropRule::Whole), (800, 600));
    // The crop begins at an odd pixel, so it grows by one.
    assert_eq!(size((100, 100), CropRule::Center { width: 202, height: 202 }), (102, 102));
}

#[test]
fn inks_are_mixed() {
    let inks: Vec<u8> = (0..64 * 48).flat_map(|_| [255, 0, 128, 200]).collect();
    let file =
        encode(&inks, PictureSize { width: 64, height: 48 }, tj::TJPF_TJPF_CMYK, JpegQuality::default()).unwrap();
    let frame = decode(&file, WHOLE).unwrap();
    let pixel = &frame[HEADER_BYTES..HEADER_BYTES + 3];
    let expected = [200, 0, 100];
    assert!(pixel.iter().zip(expected).all(|(one, other)| one.abs_diff(other) <= 3), "{pixel:?}");
    let crop = CropRule::Center { width: 10, height: 20 };
    let grey = decode(&file, DecodeOptions { grey: true, crop, ..WHOLE }).unwrap();
    assert_eq!(Frame::pixels(&grey).unwrap().shape.bytes(), 200);
}

#[test]
fn files_that_are_no_pictures_are_named() {
    let refused = |file: &[u8]| decode(file, WHOLE).unwrap_err();
    assert_eq!(refused(b""), ImageError::Empty);
    assert_eq!(refused(b"\x89PNG\r\n\x1a\n"), ImageError::NotJpeg(FileKind::Png));
    assert_eq!(refused(b"hello"), ImageError::NotJpeg(FileKind::Unknown));
    assert_eq!(refused(&[0xff, 0xd8, 0xff, 0xd9]), ImageError::Corrupt);
    let file = jpeg(160, 120, JpegQuality::default());
    for end in [file.len() - 2, file.len() / 2, 20] {
        assert_eq!(refused(&file[..end]), ImageError::Truncated, "{end}");
    }
    // The file has half of its data, and an end of image behind it.
    let stump = [&file[..file.len() / 2], &[0xff, 0xd9]].concat();
    assert_eq!(refused(&stump), ImageError::Truncated);
    let crop = CropRule::Center { width: 161, height: 5 };
    assert_eq!(decode(&file, DecodeOptions { crop, ..WHOLE }).unwrap_err(), ImageError::CropTooLarge);
}

#[test]
fn enormous_pictures_are_refused_before_memory_is_taken() {
    let file = jpeg(16, 16, JpegQuality::default());
    let refused = |width, height| decode(&with_size(&file, width, height), WHOLE).unwrap_err();
    assert!(matches!(refused(65_535, 65_535), ImageError::TooManyPixels | ImageError::Corrupt));
    assert_eq!(refused(60_000, 60_000), ImageError::TooManyPixels);
    assert_eq!(refused(8000, 8000), ImageError::Bomb);
    // This header claims few pixels, but their data is missing.
    assert_eq!(refused(1000, 1000), ImageError::Truncated);
}

#[test]
fn passes_over_a_picture_are_counted() {
    assert_eq!(decode(&scan_bomb(64, 64, 600), WHOLE).unwrap_err(), ImageError::TooManyScans);
    // Below the limit, all passes are made; they do not fit each other.
    assert_eq!(decode(&scan_bomb(64, 64, 400), WHOLE).unwrap_err(), ImageError::Corrupt);
    // A larger picture may have fewer passes, since each takes longer.
    assert_eq!(decode(&scan_bomb(2200, 1600, 400), WHOLE).unwrap_err(), ImageError::TooManyScans);
    assert!(decode(&scan_bomb(64, 64, 0), WHOLE).is_ok());
}

/// Decodes with a clock that is a second later each time it is read. Returns how often it was read, and the result.
fn decode_timed(file: &[u8], deadline_ms: u32) -> (u64, Result<Vec<u8>, ImageError>) {
    let mut asked = 0;
    let mut clock = || {
        asked += 1;
        Some(asked * 1_000_000)
    };
    let decoded = decode_jpeg(file, &DecodeOptions { deadline_ms, ..WHOLE }, ImageChance::default(), &mut clock);
    (asked, decoded)
}

#[test]
fn a_decode_ends_at_its_deadline() {
    // One file has many passes over few pixels, one has a few passes over many, and one has a single pass.
    let bomb = scan_bomb(64, 64, 400);
    let progressive = jpeg(1100, 900, JpegQuality { progressive: true, ..JpegQuality::default() });
    let sequential = jpeg(1100, 900, JpegQuality::default());
    for file in [&bomb, &progressive, &sequential] {
        let (asked, whole) = decode_timed(file, 86_400_000);
        assert_eq!(whole, decode(file, WHOLE), "a deadline that is kept changes nothing");
        assert!(asked > 8, "asked {asked} times");
        // The first reading is its beginning.
        assert_eq!(decode_timed(file, 5_000), (6, Err(ImageError::TooLong)));
    }
    assert_eq!(decode_timed(&sequential, 1), (2, Err(ImageError::TooLong)));
    // A short decode does not read the clock again, so it is never late.
    let small = jpeg(64, 64, JpegQuality::default());
    assert_eq!(decode_timed(&small, 1), (1, decode(&small, WHOLE)));
}

#[test]
fn a_decode_that_nobody_wants_any_more_ends() {
    let file = jpeg(1100, 900, JpegQuality::default());
    let mut left = 3;
    let mut clock = || {
        left -= 1;
        (left > 0).then_some(0)
    };
    let decoded = decode_jpeg(&file, &WHOLE, ImageChance::default(), &mut clock);
    assert_eq!((decoded, left), (Err(ImageError::TooLong), 0));
}

/// Each file is decoded as if it were the first, even if it lacks tables that the file before had.
#[test]
fn a_file_leaves_nothing_behind() {
    for progressive in [false, true] {
        let file = jpeg(40, 30, JpegQuality { progressive, ..JpegQuality::default() });
        let expected = decode(&file, WHOLE);
        let table = file.windows(2).position(|pair| pair == [0xff, 0xdb]).unwrap();
        let table_end = table + 2 + usize::from(u16::from_be_bytes([file[table + 2], file[table + 3]]));
        let without = [&file[..table], &file[table_end..]].concat();
        let mut damaged = 0;
        for place in 2..file.len() {
            let mut other = file.clone();
            other[place] ^= 0xff;
            damaged += u32::from(decode(&other, WHOLE).is_err());
            assert!(decode(&file, WHOLE) == expected, "after byte {place}");
            assert_eq!(decode(&without, WHOLE).unwrap_err(), ImageError::Corrupt, "after byte {place}");
        }
        assert!(damaged > 100, "{damaged}");
    }
}

#[test]
fn lossless_files_are_refused() {
    let mut file = jpeg(16, 16, JpegQuality::default());
    let at = frame_header(&file) - 1;
    // The byte is the bits a sample.
    file[at] = 12;
    assert_eq!(decode(&file, WHOLE).unwrap_err(), ImageError::Unsupported);
}

#[test]
fn a_rectangle_of_the_whole_is_the_whole() {
    assert_eq!(PixelRect::whole(PictureSize { width: 3, height: 4 }), PixelRect { x: 0, y: 0, width: 3, height: 4 });
}
