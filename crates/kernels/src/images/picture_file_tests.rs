use super::crop::CropRule;
use super::frame::{Frame, HEADER_BYTES};
use super::stage::{DECODE_DEADLINE_MS, DecodeOptions};
use super::testing::exif_segment;
use super::work_clock::standing_clock;
use super::{ImageChance, decode_picture};
use crate::image_error::{FileKind, ImageError};
use png::{BitDepth, ColorType};

const WHOLE: DecodeOptions = DecodeOptions {
    any_kind: true,
    grey: false,
    orient: false,
    crop: CropRule::Whole,
    place: 0,
    scale_to: None,
    deadline_ms: DECODE_DEADLINE_MS,
};

fn decode(file: &[u8], options: DecodeOptions) -> Result<Vec<u8>, ImageError> {
    decode_picture(file, &options, ImageChance::default(), &mut standing_clock)
}

fn samples(file: &[u8], options: DecodeOptions) -> Vec<u8> {
    let frame = decode(file, options).unwrap();
    assert!(Frame::pixels(&frame).is_ok());
    frame[HEADER_BYTES..].to_vec()
}

fn png_of(width: u32, height: u32, colour: ColorType, depth: BitDepth, data: &[u8]) -> Vec<u8> {
    let mut file = Vec::new();
    let mut encoder = png::Encoder::new(&mut file, width, height);
    encoder.set_color(colour);
    encoder.set_depth(depth);
    if colour == ColorType::Indexed {
        encoder.set_palette(vec![1, 2, 3, 200, 100, 50]);
        encoder.set_trns(vec![0, 255]);
    }
    let mut writer = encoder.write_header().unwrap();
    writer.write_image_data(data).unwrap();
    writer.finish().unwrap();
    file
}

fn webp_of(width: u32, height: u32, data: &[u8]) -> Vec<u8> {
    let mut file = Vec::new();
    image_webp::WebPEncoder::new(&mut file).encode(data, width, height, image_webp::ColorType::Rgb8).unwrap();
    file
}

#[test]
fn a_png_of_each_kind_becomes_colours() {
    for (colour, depth, data, wanted) in [
        (ColorType::Rgb, BitDepth::Eight, &[1, 2, 3, 4, 5, 6][..], [1, 2, 3, 4, 5, 6]),
        (ColorType::Rgba, BitDepth::Eight, &[1, 2, 3, 0, 4, 5, 6, 9], [1, 2, 3, 4, 5, 6]),
        (ColorType::Grayscale, BitDepth::Eight, &[7, 9], [7, 7, 7, 9, 9, 9]),
        (ColorType::GrayscaleAlpha, BitDepth::Eight, &[7, 0, 9, 0], [7, 7, 7, 9, 9, 9]),
        (ColorType::Grayscale, BitDepth::One, &[0b0100_0000], [0, 0, 0, 255, 255, 255]),
        (ColorType::Grayscale, BitDepth::Sixteen, &[7, 255, 9, 255], [7, 7, 7, 9, 9, 9]),
        (ColorType::Indexed, BitDepth::Two, &[0b0001_0000], [1, 2, 3, 200, 100, 50]),
    ] {
        let file = png_of(2, 1, colour, depth, data);
        assert_eq!(samples(&file, WHOLE), wanted, "{colour:?} {depth:?}");
    }
    let red = png_of(1, 1, ColorType::Rgb, BitDepth::Eight, &[255, 0, 0]);
    assert_eq!(samples(&red, DecodeOptions { grey: true, ..WHOLE }), [76]);
}

#[test]
fn what_is_wanted_is_cut_out() {
    let data: Vec<u8> = (0..5 * 4 * 3).collect();
    let crop = CropRule::Center { width: 1, height: 2 };
    for file in [png_of(5, 4, ColorType::Rgb, BitDepth::Eight, &data), webp_of(5, 4, &data)] {
        assert_eq!(samples(&file, WHOLE), data);
        assert_eq!(samples(&file, DecodeOptions { crop, ..WHOLE }), [21, 22, 23, 36, 37, 38]);
        let large = CropRule::Center { width: 6, height: 1 };
        assert_eq!(decode(&file, DecodeOptions { crop: large, ..WHOLE }), Err(ImageError::CropTooLarge));
        let only_jpeg = DecodeOptions { any_kind: false, ..WHOLE };
        assert_eq!(decode(&file, only_jpeg), Err(ImageError::NotJpeg(FileKind::of(&file))));
    }
}

#[test]
fn a_picture_stands_upright_as_its_exif_says() {
    let data = [10, 20, 30];
    let file = webp_of(1, 1, &data);
    let mut webp = Vec::new();
    let mut encoder = image_webp::WebPEncoder::new(&mut webp);
    let tiff = exif_segment(3, true).split_off(10);
    encoder.set_exif_metadata(tiff);
    encoder.encode(&[[1; 3], [2; 3]].concat(), 2, 1, image_webp::ColorType::Rgb8).unwrap();
    assert_eq!(samples(&webp, WHOLE), [1, 1, 1, 2, 2, 2]);
    assert_eq!(samples(&webp, DecodeOptions { orient: true, ..WHOLE }), [2, 2, 2, 1, 1, 1]);
    assert_eq!(samples(&file, DecodeOptions { orient: true, ..WHOLE }), data);
}

#[test]
fn a_file_that_ends_early_is_an_error() {
    let data: Vec<u8> = (0..32 * 32 * 3).map(|place: u32| (place * place % 251) as u8).collect();
    for file in [png_of(32, 32, ColorType::Rgb, BitDepth::Eight, &data), webp_of(32, 32, &data)] {
        for length in [13, 20, 40, file.len() / 2, file.len() - 1] {
            assert_eq!(decode(&file[..length], WHOLE), Err(ImageError::Truncated), "{length} of {}", file.len());
        }
        for place in 0..file.len() {
            let mut damaged = file.clone();
            damaged[place] ^= 0x40;
            // Any result but a panic.
            drop(decode(&damaged, WHOLE));
        }
    }
}

#[test]
fn headers_that_ask_for_much_memory_are_refused() {
    let png = png_of(1, 1, ColorType::Rgb, BitDepth::Eight, &[0; 3]);
    let sized = |width: u32, height: u32| {
        let mut file = png.clone();
        file[16..20].copy_from_slice(&width.to_be_bytes());
        file[20..24].copy_from_slice(&height.to_be_bytes());
        let sum = crc_of(&file[12..29]);
        file[29..33].copy_from_slice(&sum.to_be_bytes());
        file
    };
    assert_eq!(decode(&sized(1 << 16, 1 << 16), WHOLE), Err(ImageError::TooManyPixels));
    assert_eq!(decode(&sized(1 << 13, 1 << 13), WHOLE), Err(ImageError::Bomb));
    assert_eq!(decode(&sized(0, 1), WHOLE), Err(ImageError::Corrupt));
    assert_eq!(decode(&sized(9, 9), WHOLE), Err(ImageError::Corrupt), "too few rows");

    // A canvas of one pixel, and in it a frame of 16,383 a side.
    let frame = [0x10, 2, 0, 0x9d, 1, 0x2a, 0xff, 0x3f, 0xff, 0x3f];
    let webp = riff(&[(b"VP8X", &[0; 10]), (b"VP8 ", &frame)]);
    assert_eq!(decode(&webp, WHOLE), Err(ImageError::Corrupt));
    assert_eq!(decode(&riff(&[(b"VP8 ", &frame)]), WHOLE), Err(ImageError::TooManyPixels));
    let animated = riff(&[(b"VP8X", &[2, 0, 0, 0, 0, 0, 0, 0, 0, 0]), (b"ANMF", &[0; 24])]);
    assert_eq!(decode(&animated, WHOLE), Err(ImageError::Animated));
}

fn riff(chunks: &[(&[u8; 4], &[u8])]) -> Vec<u8> {
    let mut body = b"WEBP".to_vec();
    for (name, data) in chunks {
        body.extend_from_slice(*name);
        body.extend_from_slice(&(data.len() as u32).to_le_bytes());
        body.extend_from_slice(data);
    }
    [b"RIFF", &(body.len() as u32).to_le_bytes()[..], &body].concat()
}

/// PNG's checksum.
fn crc_of(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(!0, |crc, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| if crc & 1 == 0 { crc >> 1 } else { crc >> 1 ^ 0xedb8_8320 })
    })
}

#[test]
fn a_decode_that_is_late_is_an_error() {
    let file = png_of(1, 1, ColorType::Rgb, BitDepth::Eight, &[0; 3]);
    let mut now_us = 0;
    let mut clock = || {
        now_us += 2_000;
        Some(now_us)
    };
    let options = DecodeOptions { deadline_ms: 1, ..WHOLE };
    assert_eq!(decode_picture(&file, &options, ImageChance::default(), &mut clock), Err(ImageError::TooLong));
}
