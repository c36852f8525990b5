//! The place of a crop: rules, and the rectangle that a rule gives for a picture and its draws.

use super::chance::ImageDraws;
use crate::image_error::ImageError;

/// The size of a picture in pixels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PictureSize {
    pub width: u32,
    pub height: u32,
}

/// Pixels of a picture that stands upright.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PixelRect {
    pub x: u32,
    pub y: u32,
    pub width: u32,
    pub height: u32,
}

impl PixelRect {
    pub fn whole(size: PictureSize) -> PixelRect {
        PixelRect { x: 0, y: 0, width: size.width, height: size.height }
    }
}

/// The part of a picture that is wanted.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum CropRule {
    Whole,
    Center {
        width: u16,
        height: u16,
    },
    /// A rectangle at any place, with equal chance.
    Random {
        width: u16,
        height: u16,
    },
    /// A rectangle of any share of the area and any ratio of width to height within these bounds, as torchvision's
    /// RandomResizedCrop draws them.
    RandomResized {
        scale: (f32, f32),
        ratio: (f32, f32),
    },
}

// A rule in a stage's parameters, little endian:
//
//   0      1         3          ... 17
//   | kind | width   | height     |      center 1, random 2
//   | kind | scale least, most, ratio least, most: f32 |      random resized 3
const KIND_WHOLE: u8 = 0;
const KIND_CENTER: u8 = 1;
const KIND_RANDOM: u8 = 2;
const KIND_RANDOM_RESIZED: u8 = 3;
/// The number of draws after which torchvision takes the middle.
const ATTEMPTS: usize = 10;

impl CropRule {
    pub const ENCODED_BYTES: usize = 17;

    pub fn encode(self) -> [u8; Self::ENCODED_BYTES] {
        let mut bytes = [0; Self::ENCODED_BYTES];
        let mut put_size = |kind, width: u16, height: u16| {
            bytes[0] = kind;
            bytes[1..3].copy_from_slice(&width.to_le_bytes());
            bytes[3..5].copy_from_slice(&height.to_le_bytes());
        };
        match self {
            CropRule::Whole => {}
            CropRule::Center { width, height } => put_size(KIND_CENTER, width, height),
            CropRule::Random { width, height } => put_size(KIND_RANDOM, width, height),
            CropRule::RandomResized { scale, ratio } => {
                bytes[0] = KIND_RANDOM_RESIZED;
                for (place, bound) in bytes[1..].chunks_exact_mut(4).zip([scale.0, scale.1, ratio.0, ratio.1]) {
                    place.copy_from_slice(&bound.to_le_bytes());
                }
            }
        }
        bytes
    }

    pub fn decode(bytes: &[u8; Self::ENCODED_BYTES]) -> Result<CropRule, ImageError> {
        let short = |at: usize| u16::from_le_bytes([bytes[at], bytes[at + 1]]);
        let bound = |at: usize| f32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let rule = match bytes[0] {
            KIND_WHOLE => CropRule::Whole,
            KIND_CENTER => CropRule::Center { width: short(1), height: short(3) },
            KIND_RANDOM => CropRule::Random { width: short(1), height: short(3) },
            KIND_RANDOM_RESIZED => {
                CropRule::RandomResized { scale: (bound(1), bound(5)), ratio: (bound(9), bound(13)) }
            }
            _ => return Err(ImageError::Parameters),
        };
        if rule.is_sound() { Ok(rule) } else { Err(ImageError::Parameters) }
    }

    /// Whether the rule's bounds are valid.
    pub fn is_sound(self) -> bool {
        let is_range = |(least, most): (f32, f32), limit: f32| 0.0 < least && least <= most && most <= limit;
        match self {
            CropRule::Whole => true,
            CropRule::Center { width, height } | CropRule::Random { width, height } => width > 0 && height > 0,
            CropRule::RandomResized { scale, ratio } => is_range(scale, 1.0) && is_range(ratio, 1000.0),
        }
    }

    /// The rectangle that the rule gives in a picture of this size.
    pub fn rect(self, picture: PictureSize, draws: &mut ImageDraws) -> Result<PixelRect, ImageError> {
        match self {
            CropRule::Whole => Ok(PixelRect::whole(picture)),
            CropRule::Center { width, height } => {
                center(picture, PictureSize { width: width.into(), height: height.into() })
            }
            CropRule::Random { width, height } => {
                let (width, height) = (u32::from(width), u32::from(height));
                let free_x = picture.width.checked_sub(width).ok_or(ImageError::CropTooLarge)?;
                let free_y = picture.height.checked_sub(height).ok_or(ImageError::CropTooLarge)?;
                let (x, y) = (draws.below(free_x + 1), draws.below(free_y + 1));
                Ok(PixelRect { x, y, width, height })
            }
            CropRule::RandomResized { scale, ratio } => random_resized(picture, scale, ratio, draws),
        }
    }
}

fn center(picture: PictureSize, crop: PictureSize) -> Result<PixelRect, ImageError> {
    let middle = |all: u32, part: u32| {
        let free = all.checked_sub(part).ok_or(ImageError::CropTooLarge)?;
        Ok((f64::from(free) / 2.0).round_ties_even() as u32)
    };
    let (x, y) = (middle(picture.width, crop.width)?, middle(picture.height, crop.height)?);
    Ok(PixelRect { x, y, width: crop.width, height: crop.height })
}

fn random_resized(
    picture: PictureSize,
    scale: (f32, f32),
    ratio: (f32, f32),
    draws: &mut ImageDraws,
) -> Result<PixelRect, ImageError> {
    let PictureSize { width, height } = picture;
    let (ratio_least, ratio_most) = (f64::from(ratio.0), f64::from(ratio.1));
    let area = f64::from(width) * f64::from(height);
    for _ in 0..ATTEMPTS {
        let target = area * draws.between(scale.0.into(), scale.1.into());
        let aspect = draws.between(ratio_least.ln(), ratio_most.ln()).exp();
        let w = (target * aspect).sqrt().round_ties_even() as u32;
        let h = (target / aspect).sqrt().round_ties_even() as u32;
        if (1..=width).contains(&w) && (1..=height).contains(&h) {
            let (y, x) = (draws.below(height - h + 1), draws.below(width - w + 1));
            return Ok(PixelRect { x, y, width: w, height: h });
        }
    }
    let own = f64::from(width) / f64::from(height);
    let (w, h) = if own < ratio_least {
        (width, (f64::from(width) / ratio_least).round_ties_even() as u32)
    } else if own > ratio_most {
        ((f64::from(height) * ratio_most).round_ties_even() as u32, height)
    } else {
        (width, height)
    };
    center(picture, PictureSize { width: w.clamp(1, width), height: h.clamp(1, height) })
}

#[cfg(test)]
mod tests {
    use super::super::chance::ImageChance;
    use super::*;
    use proptest::prelude::*;

    const RESNET: CropRule = CropRule::RandomResized { scale: (0.08, 1.0), ratio: (0.75, 4.0 / 3.0) };

    fn rules() -> impl Strategy<Value = CropRule> {
        let sizes = (1..900_u16, 1..900_u16);
        prop_oneof![
            Just(CropRule::Whole),
            sizes.clone().prop_map(|(width, height)| CropRule::Center { width, height }),
            sizes.prop_map(|(width, height)| CropRule::Random { width, height }),
            (0.01..0.5_f32, 0.5..=1.0_f32, 0.1..1.0_f32, 1.0..5.0_f32)
                .prop_map(|(a, b, c, d)| CropRule::RandomResized { scale: (a, b), ratio: (c, d) }),
        ]
    }

    proptest! {
        #[test]
        fn a_crop_lies_in_its_picture(rule in rules(), width in 1..2000_u32, height in 1..2000_u32, item: u64) {
            let draws = || ImageChance { seed: 1, epoch: 2, item }.draws(0);
            prop_assert_eq!(CropRule::decode(&rule.encode()), Ok(rule));
            match rule.rect(PictureSize { width, height }, &mut draws()) {
                Ok(rect) => {
                    prop_assert!(rect.width > 0 && rect.x + rect.width <= width);
                    prop_assert!(rect.height > 0 && rect.y + rect.height <= height);
                    prop_assert_eq!(rule.rect(PictureSize { width, height }, &mut draws()), Ok(rect));
                }
                Err(error) => prop_assert_eq!(error, ImageError::CropTooLarge),
            }
        }
    }

    #[test]
    fn random_crops_share_the_area_evenly() {
        let (mut share, mut reaches) = (0.0, [false; 2]);
        for item in 0..2000 {
            let picture = PictureSize { width: 500, height: 375 };
            let rect = RESNET.rect(picture, &mut ImageChance { item, ..ImageChance::default() }.draws(0)).unwrap();
            share += f64::from(rect.width * rect.height) / (500.0 * 375.0 * 2000.0);
            let ratio = f64::from(rect.width) / f64::from(rect.height);
            assert!((0.73..1.37).contains(&ratio), "{rect:?}");
            reaches[0] |= rect.x == 0;
            reaches[1] |= rect.x + rect.width == 500;
        }
        assert!((0.4..0.54).contains(&share), "{share}");
        assert_eq!(reaches, [true; 2]);
    }

    #[test]
    fn a_long_picture_gives_its_middle() {
        let mut draws = ImageChance::default().draws(0);
        let rule = CropRule::RandomResized { scale: (1.0, 1.0), ratio: (0.75, 4.0 / 3.0) };
        let rect = rule.rect(PictureSize { width: 1000, height: 10 }, &mut draws).unwrap();
        assert_eq!(rect, PixelRect { x: 494, y: 0, width: 13, height: 10 });
        let (picture, crop) = (PictureSize { width: 5, height: 5 }, PictureSize { width: 2, height: 4 });
        assert_eq!(center(picture, crop), Ok(PixelRect { x: 2, y: 0, width: 2, height: 4 }));
    }

    #[test]
    fn bounds_without_a_meaning_are_refused() {
        for rule in [
            CropRule::Center { width: 0, height: 3 },
            CropRule::RandomResized { scale: (0.5, 0.1), ratio: (1.0, 1.0) },
            CropRule::RandomResized { scale: (f32::NAN, 1.0), ratio: (1.0, 1.0) },
        ] {
            assert_eq!(CropRule::decode(&rule.encode()), Err(ImageError::Parameters));
        }
        assert_eq!(CropRule::decode(&[4; 17]), Err(ImageError::Parameters));
    }
}
