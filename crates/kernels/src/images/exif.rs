//! The one EXIF field that changes pixels: which way up the camera was held.

use super::frame::FrameShape;

/// The turn that makes stored pixels stand upright: EXIF's 1 to 8.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Orientation {
    /// Rows and columns change places, before the other turns.
    pub transposed: bool,
    pub mirrored: bool,
    pub upside_down: bool,
}

impl Orientation {
    fn of_tag(tag: u16) -> Option<Orientation> {
        let (transposed, mirrored, upside_down) = match tag {
            1 => (false, false, false),
            2 => (false, true, false),
            3 => (false, true, true),
            4 => (false, false, true),
            5 => (true, false, false),
            6 => (true, true, false),
            7 => (true, true, true),
            8 => (true, false, true),
            _ => return None,
        };
        Some(Orientation { transposed, mirrored, upside_down })
    }

    /// The shape of a frame of shape `stored` after the turn.
    pub fn shape_of(self, stored: FrameShape) -> FrameShape {
        let FrameShape { width, height, .. } = stored;
        if self.transposed { FrameShape { width: height, height: width, ..stored } } else { stored }
    }

    /// The orientation of a JPEG file. A file is upright if it states none, or none that can be read.
    pub fn of_jpeg(file: &[u8]) -> Orientation {
        find_exif(file).map(Orientation::of_tiff).unwrap_or_default()
    }

    /// The same of EXIF alone, which is a TIFF without pictures.
    pub fn of_tiff(tiff: &[u8]) -> Orientation {
        tag_of(tiff).and_then(Orientation::of_tag).unwrap_or_default()
    }
}

/// Finds the TIFF in the segment APP1. Segments lie one behind the other before the first scan.
fn find_exif(file: &[u8]) -> Option<&[u8]> {
    let mut rest = file.get(2..)?;
    loop {
        let [0xff, marker, high, low, ..] = *rest else { return None };
        let length = usize::from(u16::from_be_bytes([high, low]));
        let segment = rest.get(4..2 + length)?;
        match (marker, segment.strip_prefix(b"Exif\0\0")) {
            (0xe1, Some(tiff)) => return Some(tiff),
            // The picture begins.
            (0xda, _) => return None,
            _ => rest = &rest[2 + length..],
        }
    }
}

/// The entry 0x0112 of the TIFF's first directory.
fn tag_of(tiff: &[u8]) -> Option<u16> {
    const ORIENTATION: u16 = 0x0112;
    let is_little = match tiff.first_chunk()? {
        b"II" => true,
        b"MM" => false,
        _ => return None,
    };
    let short = |at: usize| {
        let bytes = tiff.get(at..)?.first_chunk()?;
        Some(if is_little { u16::from_le_bytes(*bytes) } else { u16::from_be_bytes(*bytes) })
    };
    let bytes = tiff.get(4..)?.first_chunk()?;
    let directory = if is_little { u32::from_le_bytes(*bytes) } else { u32::from_be_bytes(*bytes) } as usize;
    let entries = usize::from(short(directory)?);
    let mut places = (0..entries).filter_map(|entry| directory.checked_add(2 + 12 * entry));
    let place = places.find(|place| short(*place) == Some(ORIENTATION))?;
    short(place + 8)
}

#[cfg(test)]
mod tests {
    use super::super::testing::exif_segment;
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_tag_is_found_in_both_byte_orders() {
        for is_little in [true, false] {
            let file = [&[0xff, 0xd8, 0xff, 0xe0, 0, 4, 1, 1][..], &exif_segment(6, is_little)].concat();
            let turned = Orientation { transposed: true, mirrored: true, upside_down: false };
            assert_eq!(Orientation::of_jpeg(&file), turned);
            for length in 0..file.len() {
                Orientation::of_jpeg(&file[..length]);
            }
        }
        let odd = [&[0xff, 0xd8][..], &exif_segment(9, true)].concat();
        assert_eq!(Orientation::of_jpeg(&odd), Orientation::default());
    }

    proptest! {
        #[test]
        fn any_bytes_are_read(place in 0..40_usize, byte: u8) {
            let mut file = [&[0xff, 0xd8][..], &exif_segment(3, true)].concat();
            let place = place % file.len();
            file[place] = byte;
            Orientation::of_jpeg(&file);
        }
    }
}
