//! Pipelines for pictures as text: `jpeg_decode | random_resized_crop 224 | flip`.

use super::crop::CropRule;
use super::frame::SampleOrder;
use super::plan::{BATCH_MAX, ImagePlan, PlanError, PlanProblem, WrittenStage};
use super::resize::ResizeRule;
use super::stage::{DECODE_DEADLINE_MS, DECODE_DEADLINE_MS_MAX};
use std::fmt;
use std::str::FromStr;

/// Compositions that have a name: ProcPIPE's for ResNet-50, and that of AlexNet.
const NAMED: [(&str, &str); 2] = [
    ("resnet50", "jpeg_decode | random_resized_crop 224 | flip"),
    ("alexnet", "jpeg_decode | resize 256 | random_crop 224 | flip"),
];
/// The mean and deviation of ImageNet, as everyone who trains on it uses them.
const MEAN: [f32; 3] = [0.485, 0.456, 0.406];
const DEVIATION: [f32; 3] = [0.229, 0.224, 0.225];
const SCALE: (f32, f32) = (0.08, 1.0);
const RATIO: (f32, f32) = (3.0 / 4.0, 4.0 / 3.0);
const FLIP: f32 = 0.5;

impl FromStr for ImagePlan {
    type Err = PlanError;

    fn from_str(text: &str) -> Result<ImagePlan, PlanError> {
        let mut stages = Vec::new();
        for part in text.split('|') {
            let part = part.trim();
            match NAMED.iter().find(|(name, _)| *name == part) {
                Some((_, whole)) => stages.extend(whole.split('|').map(str::trim)),
                None => stages.push(part),
            }
        }
        let written = stages.iter().enumerate().map(|(place, text)| {
            let name = text.split_whitespace().next().unwrap_or_default().to_owned();
            stage(text).map_err(|problem| PlanError { stage: place, name, problem })
        });
        ImagePlan::new(written.collect::<Result<_, _>>()?)
    }
}

fn stage(text: &str) -> Result<WrittenStage, PlanProblem> {
    let mut words = text.split_whitespace();
    let name = words.next().ok_or(PlanProblem::Empty)?;
    let words: Vec<&str> = words.collect();
    match name {
        "decode" => decode(true, &words),
        "jpeg_decode" => decode(false, &words),
        "resize" => Ok(WrittenStage::Resize(match only(&words)?.ok_or(PlanProblem::NoSize)? {
            word if word.contains('x') => {
                let (width, height) = size(word)?;
                ResizeRule::Exact { width, height }
            }
            word => ResizeRule::Short(number(word)?),
        })),
        "center_crop" | "random_crop" => {
            let (width, height) = size(only(&words)?.ok_or(PlanProblem::NoSize)?)?;
            let is_center = name == "center_crop";
            let crop = if is_center { CropRule::Center { width, height } } else { CropRule::Random { width, height } };
            Ok(WrittenStage::Crop { crop, size: None })
        }
        "random_resized_crop" => random_resized(&words),
        "flip" => {
            let word = only(&words)?;
            let probability = word.map_or(Ok(FLIP), float)?;
            match (0.0..=1.0).contains(&probability) {
                true => Ok(WrittenStage::Flip { probability }),
                false => Err(PlanProblem::BadNumber(word.unwrap_or_default().into())),
            }
        }
        "normalize" => normalize(&words),
        "layout" => match only(&words)? {
            Some("chw") => Ok(WrittenStage::Layout(SampleOrder::Chw)),
            Some("hwc") => Ok(WrittenStage::Layout(SampleOrder::Hwc)),
            word => Err(PlanProblem::UnknownWord(word.unwrap_or_default().into())),
        },
        "batch" => {
            let word = only(&words)?.ok_or_else(|| PlanProblem::BadNumber(String::new()))?;
            let count = word.parse().ok().filter(|count| (1..=BATCH_MAX).contains(count));
            Ok(WrittenStage::Batch(count.ok_or_else(|| PlanProblem::BadNumber(word.into()))?))
        }
        _ => Err(PlanProblem::UnknownStage),
    }
}

fn decode(any_kind: bool, words: &[&str]) -> Result<WrittenStage, PlanProblem> {
    let (mut grey, mut orient, mut scaled, mut deadline_ms) = (false, false, false, DECODE_DEADLINE_MS);
    for word in words {
        match (*word, word.split_once('=')) {
            ("grey" | "gray", _) => grey = true,
            ("orient", _) => orient = true,
            ("scaled", _) => scaled = true,
            (_, Some(("deadline", seconds))) => deadline_ms = milliseconds(seconds)?,
            (word, _) => return Err(PlanProblem::UnknownWord(word.into())),
        }
    }
    Ok(WrittenStage::JpegDecode { any_kind, grey, orient, scaled, deadline_ms })
}

fn random_resized(words: &[&str]) -> Result<WrittenStage, PlanProblem> {
    let (mut wanted, mut scale, mut ratio) = (None, SCALE, RATIO);
    for word in words {
        let bounds = |text: &str| {
            let (least, most) = text.split_once("..").ok_or_else(|| PlanProblem::BadNumber((*word).into()))?;
            Ok((float(least)?, float(most)?))
        };
        match word.split_once('=') {
            Some(("scale", text)) => scale = bounds(text)?,
            Some(("ratio", text)) => ratio = bounds(text)?,
            None if wanted.is_none() => wanted = Some(size(word)?),
            _ => return Err(PlanProblem::UnknownWord((*word).into())),
        }
    }
    let crop = CropRule::RandomResized { scale, ratio };
    if !crop.is_sound() {
        return Err(PlanProblem::BadNumber(words.join(" ")));
    }
    Ok(WrittenStage::Crop { crop, size: Some(wanted.ok_or(PlanProblem::NoSize)?) })
}

fn normalize(words: &[&str]) -> Result<WrittenStage, PlanProblem> {
    let (mut mean, mut deviation) = (MEAN, DEVIATION);
    for word in words {
        let bad = || PlanProblem::BadNumber((*word).into());
        let three = |text: &str| {
            let numbers: Vec<f32> = text.split(',').map(float).collect::<Result<_, _>>()?;
            <[f32; 3]>::try_from(numbers).map_err(|_| bad())
        };
        match word.split_once('=') {
            Some(("mean", text)) => mean = three(text)?,
            Some(("std", text)) => deviation = three(text)?,
            _ => return Err(PlanProblem::UnknownWord((*word).into())),
        }
        if deviation.contains(&0.0) {
            return Err(bad());
        }
    }
    Ok(WrittenStage::Normalize { mean, deviation })
}

fn only<'a>(words: &[&'a str]) -> Result<Option<&'a str>, PlanProblem> {
    match words {
        [] => Ok(None),
        [word] => Ok(Some(word)),
        [_, word, ..] => Err(PlanProblem::UnknownWord((*word).into())),
    }
}

/// Width and height, or one number for both.
fn size(word: &str) -> Result<(u16, u16), PlanProblem> {
    let (width, height) = word.split_once('x').unwrap_or((word, word));
    Ok((number(width)?, number(height)?))
}

fn number(word: &str) -> Result<u16, PlanProblem> {
    word.parse().ok().filter(|number| *number > 0).ok_or_else(|| PlanProblem::BadNumber(word.into()))
}

/// Parses seconds, and returns milliseconds.
fn milliseconds(word: &str) -> Result<u32, PlanProblem> {
    let bad = || PlanProblem::BadNumber(word.into());
    let ms = (word.parse::<f64>().map_err(|_| bad())? * 1000.0).round();
    if (1.0..=f64::from(DECODE_DEADLINE_MS_MAX)).contains(&ms) { Ok(ms as u32) } else { Err(bad()) }
}

fn float(word: &str) -> Result<f32, PlanProblem> {
    let parsed = word.parse::<f32>().ok().filter(|number| number.is_finite());
    parsed.ok_or_else(|| PlanProblem::BadNumber(word.into()))
}

/// Writes text that parses back to the plan, without values that equal their defaults.
impl fmt::Display for ImagePlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (place, stage) in self.written().iter().enumerate() {
            write!(f, "{}{stage}", if place == 0 { "" } else { " | " })?;
        }
        Ok(())
    }
}

impl fmt::Display for WrittenStage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())?;
        let size = |width: u16, height: u16| {
            if width == height { format!(" {width}") } else { format!(" {width}x{height}") }
        };
        let numbers = |numbers: &[f32]| numbers.iter().map(f32::to_string).collect::<Vec<_>>().join(",");
        match *self {
            WrittenStage::JpegDecode { grey, orient, scaled, deadline_ms, .. } => {
                let words = [(grey, " grey"), (orient, " orient"), (scaled, " scaled")];
                words.iter().filter(|(is, _)| *is).try_for_each(|(_, word)| f.write_str(word))?;
                match deadline_ms {
                    DECODE_DEADLINE_MS => Ok(()),
                    ms => write!(f, " deadline={}", f64::from(ms) / 1000.0),
                }
            }
            WrittenStage::Resize(ResizeRule::Short(side)) => write!(f, " {side}"),
            WrittenStage::Resize(ResizeRule::Exact { width, height }) => write!(f, " {width}x{height}"),
            WrittenStage::Crop {
                crop: CropRule::Center { width, height } | CropRule::Random { width, height },
                ..
            } => f.write_str(&size(width, height)),
            WrittenStage::Crop { crop, size: wanted } => {
                let (width, height) = wanted.unwrap_or_default();
                f.write_str(&size(width, height))?;
                let CropRule::RandomResized { scale, ratio } = crop else { return Ok(()) };
                if scale != SCALE {
                    write!(f, " scale={}..{}", scale.0, scale.1)?;
                }
                if ratio != RATIO {
                    write!(f, " ratio={}..{}", ratio.0, ratio.1)?;
                }
                Ok(())
            }
            WrittenStage::Flip { probability } if probability == FLIP => Ok(()),
            WrittenStage::Flip { probability } => write!(f, " {probability}"),
            WrittenStage::Normalize { mean, deviation } => {
                if mean != MEAN {
                    write!(f, " mean={}", numbers(&mean))?;
                }
                if deviation != DEVIATION {
                    write!(f, " std={}", numbers(&deviation))?;
                }
                Ok(())
            }
            WrittenStage::Layout(SampleOrder::Chw) => f.write_str(" chw"),
            WrittenStage::Layout(SampleOrder::Hwc) => f.write_str(" hwc"),
            WrittenStage::Batch(count) => write!(f, " {count}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::frame::{FrameShape, SampleType};
    use super::super::stage::ImageStage;
    use super::super::{ImageChance, testing};
    use super::*;
    use crate::image_error::ImageError;
    use crate::images::jpeg_encode::JpegQuality;

    fn plan(text: &str) -> ImagePlan {
        text.parse().unwrap()
    }

    fn told(text: &str) -> String {
        text.parse::<ImagePlan>().unwrap_err().to_string()
    }

    fn run(plan: &ImagePlan, file: &[u8], item: u64) -> Vec<u8> {
        let chance = ImageChance { seed: 5, epoch: 1, item };
        plan.stages().iter().fold(file.to_vec(), |bytes, PlannedStage { stage, .. }| {
            let again = ImageStage::decode(stage.name(), &stage.encode()).unwrap();
            assert_eq!(again, *stage);
            again.apply(bytes, chance).unwrap()
        })
    }
    use super::super::plan::PlannedStage;

    #[test]
    fn a_plan_is_printed_as_it_is_written() {
        for text in [
            "jpeg_decode",
            "jpeg_decode grey orient scaled | random_resized_crop 224x160 scale=0.25..1 ratio=1..2 | flip 0.25",
            "jpeg_decode scaled",
            "decode",
            "decode grey orient deadline=3 | center_crop 9",
            "jpeg_decode deadline=0.001",
            "jpeg_decode orient deadline=86400",
            "jpeg_decode | resize 256 | center_crop 224 | normalize mean=0,0,0 std=1,1,0.5 | layout chw | batch 128",
            "jpeg_decode | resize 30x20 | random_crop 10x20 | flip | layout hwc | batch 1",
        ] {
            assert_eq!(plan(text).to_string(), text);
        }
        assert_eq!(plan("jpeg_decode deadline=20").to_string(), "jpeg_decode");
        let hasty = plan("resnet50").with_deadline_ms(1500).unwrap();
        assert_eq!(hasty.to_string(), "jpeg_decode deadline=1.5 | random_resized_crop 224 | flip");
        assert_eq!(plan("resnet50|batch 2").to_string(), "jpeg_decode | random_resized_crop 224 | flip | batch 2");
        assert_eq!(plan("alexnet").to_string(), "jpeg_decode | resize 256 | random_crop 224 | flip");
    }

    #[test]
    fn crops_go_to_the_decoder() {
        let names = |text| plan(text).stages().iter().map(|planned| planned.stage.name()).collect::<Vec<_>>();
        assert_eq!(names("resnet50"), ["jpeg_decode", "resize", "flip"]);
        assert_eq!(names("jpeg_decode | center_crop 9"), ["jpeg_decode"]);
        assert_eq!(names("decode | random_resized_crop 9 | flip"), ["jpeg_decode", "resize", "flip"]);
        assert_eq!(plan("decode | flip").written_name(0, 2), Some((0, "decode")));
        assert_eq!(names("alexnet | batch 1"), ["jpeg_decode", "resize", "random_crop", "flip", "batch"]);
        let written = plan("resnet50 | batch 9");
        assert_eq!(written.written_name(1, 2), Some((1, "random_resized_crop")));
        assert_eq!(written.written_name(3, 2), Some((3, "batch")));
        assert_eq!(written.written_name(4, 2), None);
        let small = ImageError::CropTooLarge.code().into();
        assert_eq!(written.written_name(0, small), Some((1, "random_resized_crop")));
        assert_eq!(written.written_name(0, 2), Some((0, "jpeg_decode")));
    }

    #[test]
    fn what_comes_out_has_the_shape_that_was_said() {
        let file = testing::jpeg(320, 240, JpegQuality::default());
        for text in [
            "resnet50 | batch 1",
            "alexnet | normalize | batch 1",
            "jpeg_decode grey | center_crop 99x50 | layout chw | normalize | batch 1",
            "jpeg_decode scaled | resize 64x48 | flip 1 | batch 1",
            "jpeg_decode scaled | random_resized_crop 32 | batch 1",
        ] {
            let plan = plan(text);
            let (_, shape) = plan.batch().unwrap();
            let one = run(&plan, &file, 1);
            assert_eq!(one.len(), shape.bytes(), "{text}");
            assert_eq!(one, run(&plan, &file, 1));
            assert_eq!(one != run(&plan, &file, 2), text.contains("random") || text.contains("net"), "{text}");
        }
        let (_, shape) = plan("jpeg_decode grey | resize 4x3 | normalize | layout chw | batch 7").batch().unwrap();
        let floats = FrameShape { width: 4, height: 3, channels: 1, sample: SampleType::F32, order: SampleOrder::Chw };
        assert_eq!(shape, floats);
        assert_eq!(plan("jpeg_decode").shape(), None);
        assert_eq!(plan("resnet50").with_batch(3).unwrap().batch().unwrap().0, 3);
    }

    /// The decoder decodes only the crop. A full decode and a cut give the same pixels.
    #[test]
    fn a_fused_crop_equals_a_crop_of_all() {
        let file = testing::jpeg(200, 150, JpegQuality { sampling: 2, ..JpegQuality::default() });
        for item in 0..20 {
            let chance = ImageChance { item, ..ImageChance::default() };
            let whole = plan("jpeg_decode").stages()[0].stage.apply(file.clone(), chance).unwrap();
            let fused = plan("jpeg_decode | random_resized_crop 64x48");
            let fused =
                fused.stages().iter().fold(file.clone(), |bytes, planned| planned.stage.apply(bytes, chance).unwrap());
            let crop = CropRule::RandomResized { scale: SCALE, ratio: RATIO };
            let apart = ImageStage::Crop { crop, place: 1, size: Some((64, 48)) }.apply(whole, chance).unwrap();
            assert!(fused == apart, "item {item}");
        }
    }

    #[test]
    fn pictures_beyond_what_a_frame_holds_are_refused() {
        for (stage, text) in [
            (1, "jpeg_decode | resize 20000x20000"),
            (1, "jpeg_decode | resize 65535"),
            (1, "jpeg_decode grey | resize 8193x8192"),
            (1, "jpeg_decode | random_resized_crop 5000"),
            (1, "jpeg_decode | center_crop 20000"),
            (2, "jpeg_decode | flip | random_crop 20000"),
            (2, "jpeg_decode | resize 1x65535 | resize 65535"),
            (2, "jpeg_decode | resize 4096x4096 | normalize"),
        ] {
            let told = told(text);
            assert!(told.starts_with(&format!("stage {stage}, ")), "{text}: {told}");
            assert!(told.ends_with("67108864 pixels and 64MiB are the most, so give a smaller size"), "{text}: {told}");
        }
        for text in
            ["jpeg_decode | resize 4728x4728", "jpeg_decode grey | resize 8191x8191", "jpeg_decode | resize 4000"]
        {
            plan(text);
        }
    }

    #[test]
    fn errors_name_the_stage() {
        assert!(told("flip").starts_with("stage 0, flip: its input is a file"));
        assert!(told("").starts_with("stage 0, nothing: write stages"));
        assert!(told("jpeg_decode | | flip").starts_with("stage 1, nothing"));
        assert!(told("jpeg_decode | blur 3").starts_with("stage 1, blur: there is no such stage"));
        assert!(told("jpeg_decode | jpeg_decode").starts_with("stage 1, jpeg_decode: its input is decoded"));
        assert!(told("jpeg_decode | resize").contains("needs a size"));
        assert!(told("jpeg_decode | resize 0").contains("\"0\" is no number"));
        assert!(told("jpeg_decode | resize 2 3").contains("\"3\" means nothing"));
        assert!(told("jpeg_decode | normalize | flip").starts_with("stage 2, flip: it takes pixels"));
        assert!(told("jpeg_decode | layout chw | resize 8").starts_with("stage 2, resize: it takes pixels"));
        assert!(told("jpeg_decode | normalize | normalize").starts_with("stage 2, normalize: it takes"));
        assert!(told("jpeg_decode | resize 256 | batch 8").starts_with("stage 2, batch: pictures have sizes"));
        assert!(told("resnet50 | batch 8 | flip").starts_with("stage 4, flip: a batch is the end"));
        assert!(told("jpeg_decode scaled | flip").starts_with("stage 0, jpeg_decode: scaled needs"));
        assert!(told("jpeg_decode | random_resized_crop 8 scale=0..1").contains("is no number"));
        assert!(told("jpeg_decode | flip 1.5").contains("\"1.5\""));
        assert!(told("jpeg_decode | normalize std=0,1,1").contains("\"std=0,1,1\""));
        assert!(told("resnet50 | flip | flip | flip | flip").contains("at most 6"));
        assert!(told("jpeg_decode | batch 0").contains("\"0\""));
        for count in [0, BATCH_MAX + 1] {
            let error = plan("resnet50").with_batch(count).unwrap_err().to_string();
            assert_eq!(error, format!("stage 3, batch: a batch of {count} pictures: give 1 to 65536"));
        }
        for bad in ["0", "0.0001", "-1", "86401", "NaN", "soon"] {
            assert!(told(&format!("jpeg_decode deadline={bad}")).contains(&format!("{bad:?} is no number")), "{bad}");
        }
    }
}
