//! Fuzz targets of pictures: files, stages with parameters and frames, and pipelines as text. `tapetum-fuzzing` lists
//! them with the others. They lie here because they use private items.

use super::chance::ImageChance;
use super::crop::{CropRule, PictureSize};
use super::frame::{Frame, HEADER_BYTES};
use super::picture_file::decode_picture;
use super::plan::ImagePlan;
use super::stage::{DECODE_DEADLINE_MS, DecodeOptions, IMAGE_PROGRAMS, ImageStage};
use super::work_clock::standing_clock;
use super::{FRAME_BYTES_MAX, pixels};

/// Length of the decode options in front of a file: flags (1 grey, 2 orient, 4 scaled, 8 and 16 the crop's rule, the
/// rest its place) and two sizes.
const OPTIONS_BYTES: usize = 3;

fn chance_of(options: &DecodeOptions) -> ImageChance {
    ImageChance { seed: 1, epoch: 2, item: u64::from(options.place) }
}

fn decode(file: &[u8], options: &DecodeOptions) -> Option<Vec<u8>> {
    let decoded = decode_picture(file, options, chance_of(options), &mut standing_clock).ok()?;
    assert!(Frame::pixels(&decoded).is_ok() && decoded.len() <= FRAME_BYTES_MAX, "a frame of pixels");
    Some(decoded)
}

/// Three bytes of decode options precede the file, which may be a PNG or WebP too. If the whole file decodes too, a region has the same pixels as
/// there.
pub fn jpeg_decode(input: &[u8]) {
    let Some((&[flags, across, down], file)) = input.split_first_chunk::<OPTIONS_BYTES>() else { return };
    let (width, height) = (u16::from(across) + 1, u16::from(down) + 1);
    let crop = match flags >> 3 & 3 {
        0 => CropRule::Whole,
        1 => CropRule::Center { width, height },
        2 => CropRule::Random { width, height },
        _ => {
            CropRule::RandomResized { scale: (f32::from(width) / 256.0, 1.0), ratio: (0.25, 0.25 + f32::from(height)) }
        }
    };
    let scale_to = (flags & 4 != 0).then_some((width, height));
    let (grey, orient) = (flags & 1 != 0, flags & 2 != 0);
    let (place, deadline_ms) = (flags >> 5, DECODE_DEADLINE_MS);
    let options = DecodeOptions { any_kind: true, grey, orient, crop, place, scale_to, deadline_ms };
    let cut = decode(file, &options);
    let whole = decode(file, &DecodeOptions { crop: CropRule::Whole, scale_to: None, ..options });
    let (Some(cut), Some(whole), None) = (&cut, &whole, scale_to) else { return };
    if file.windows(2).any(|pair| pair == [0xff, 0xc2]) {
        // Passes may be missing; see the module's first invariant.
        return;
    }
    let whole = Frame::pixels(whole).expect("checked");
    let rect = crop.rect(whole.shape.size(), &mut chance_of(&options).draws(options.place));
    let expected = rect.and_then(|rect| pixels::cut(whole, rect));
    assert!(expected.as_ref() == Ok(cut), "a region is what a full decode has there");
}

/// The first byte names a program, the second is the length of its parameters, and a frame or a file follows. A sound
/// frame is made of a header and whatever samples there are, since a length seldom fits by chance.
pub fn image_stage(input: &[u8]) {
    let Some((&[program, length], rest)) = input.split_first_chunk::<2>() else { return };
    let name = IMAGE_PROGRAMS[usize::from(program) % IMAGE_PROGRAMS.len()];
    let (parameters, frame) = rest.split_at(usize::from(length).min(rest.len()));
    let Ok(stage) = ImageStage::decode(name, parameters) else { return };
    assert_eq!(ImageStage::decode(stage.name(), &stage.encode()).map(|stage| stage.encode()), Ok(stage.encode()));
    let mut whole = frame.to_vec();
    if let Some(shape) = frame.first_chunk().and_then(|header| super::FrameShape::decode(header).ok()) {
        if shape.bytes() > 1 << 20 {
            return;
        }
        whole.resize(HEADER_BYTES + shape.bytes(), 0x55);
    }
    // Large results, and many rows between the passes of a resize, are slow with a sanitizer and find nothing.
    let pixel = PictureSize { width: 1, height: 1 };
    let from = Frame::decode(&whole).map_or(pixel, |frame| frame.shape.size());
    let into = match stage {
        ImageStage::Resize(rule) => rule.size(from),
        ImageStage::Crop { size: Some((width, height)), .. } => {
            PictureSize { width: width.into(), height: height.into() }
        }
        _ => pixel,
    };
    if u64::from(into.width) * u64::from(into.height.max(from.height)) > 1 << 20 {
        return;
    }
    let chance = ImageChance { seed: 3, epoch: 4, item: u64::from(program) };
    for input in [frame.to_vec(), whole] {
        let made = stage.apply(input.clone(), chance);
        assert!(made == stage.apply(input, chance), "the same of the same");
        let Ok(made) = made else { continue };
        match stage {
            ImageStage::Batch(shape) => assert_eq!(made.len(), shape.bytes()),
            _ => assert!(Frame::decode(&made).is_ok() && made.len() <= FRAME_BYTES_MAX, "a frame"),
        }
    }
}

/// A plan that parses is written as text with the same meaning, and its stages are encoded to parameters and decoded
/// again.
pub fn image_plan(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else { return };
    let plan: ImagePlan = match text.parse() {
        Ok(plan) => plan,
        Err(error) => return assert!(!error.to_string().is_empty()),
    };
    assert_eq!(plan.to_string().parse().as_ref(), Ok(&plan));
    for planned in plan.stages() {
        let decoded = ImageStage::decode(planned.stage.name(), &planned.stage.encode());
        assert_eq!(decoded.map(|stage| stage.encode()), Ok(planned.stage.encode()));
        assert!(plan.written_name(0, 0).is_some());
    }
}
