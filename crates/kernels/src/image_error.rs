//! Errors of pictures, as a number that a program's status carries and as words.

use std::fmt;

/// The kind of a picture's file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileKind {
    Png,
    Gif,
    WebP,
    Bmp,
    Tiff,
    Heif,
    Unknown,
}

impl FileKind {
    /// Recognizes a file by its first bytes. A JPEG is unknown here.
    pub fn of(bytes: &[u8]) -> FileKind {
        let brand = bytes.get(4..8);
        match bytes {
            [0x89, b'P', b'N', b'G', ..] => FileKind::Png,
            [b'G', b'I', b'F', b'8', ..] => FileKind::Gif,
            [b'R', b'I', b'F', b'F', _, _, _, _, b'W', b'E', b'B', b'P', ..] => FileKind::WebP,
            [b'B', b'M', ..] => FileKind::Bmp,
            [b'I', b'I', 42, 0, ..] | [b'M', b'M', 0, 42, ..] => FileKind::Tiff,
            _ if brand == Some(b"ftyp") => FileKind::Heif,
            _ => FileKind::Unknown,
        }
    }
}

/// The reason that a picture could not be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ImageError {
    /// The value has no bytes.
    Empty,
    NotJpeg(FileKind),
    /// The file ends before its picture does.
    Truncated,
    Corrupt,
    /// More than `images::PIXELS_MAX` pixels.
    TooManyPixels,
    /// More than `images::EXPANSION_MAX` bytes of pixels for each byte of the file.
    Bomb,
    /// More passes over the picture than a camera or an editor makes.
    TooManyScans,
    /// Lossless, or of more than 8 bits a sample.
    Unsupported,
    /// More than `images::FRAME_BYTES_MAX` bytes of pixels.
    OutputTooLarge,
    /// The picture is smaller than the crop.
    CropTooLarge,
    /// The input is not a picture that an earlier stage decoded.
    NotAFrame,
    /// The stage takes samples of another type or another order.
    WrongSamples,
    /// The picture's shape differs from the batch's.
    WrongShape,
    /// The stage's parameters are invalid in this version.
    Parameters,
    /// The decode did not end by its deadline.
    TooLong,
    /// A file of several pictures.
    Animated,
}

impl ImageError {
    const ALL: [ImageError; 22] = [
        ImageError::Empty,
        ImageError::NotJpeg(FileKind::Png),
        ImageError::NotJpeg(FileKind::Gif),
        ImageError::NotJpeg(FileKind::WebP),
        ImageError::NotJpeg(FileKind::Bmp),
        ImageError::NotJpeg(FileKind::Tiff),
        ImageError::NotJpeg(FileKind::Heif),
        ImageError::NotJpeg(FileKind::Unknown),
        ImageError::Truncated,
        ImageError::Corrupt,
        ImageError::TooManyPixels,
        ImageError::Bomb,
        ImageError::TooManyScans,
        ImageError::Unsupported,
        ImageError::OutputTooLarge,
        ImageError::CropTooLarge,
        ImageError::NotAFrame,
        ImageError::WrongSamples,
        ImageError::WrongShape,
        ImageError::Parameters,
        ImageError::TooLong,
        ImageError::Animated,
    ];
    /// Statuses below are those of other programs.
    const CODE_FIRST: u16 = 32;

    /// The status of a program that fails with this error.
    pub fn code(self) -> u16 {
        let place = ImageError::ALL.iter().position(|known| *known == self);
        let Some(place) = place else { unreachable!("{self:?} is not listed") };
        ImageError::CODE_FIRST + place as u16
    }

    pub fn of_code(code: u32) -> Option<ImageError> {
        let place = code.checked_sub(ImageError::CODE_FIRST.into())?;
        ImageError::ALL.get(place as usize).copied()
    }
}

impl fmt::Display for ImageError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ImageError::Empty => "the value is empty, so there is no picture in it: import the file again",
            ImageError::NotJpeg(FileKind::Png) => "the file is a PNG, not a JPEG: write decode in place of jpeg_decode",
            ImageError::NotJpeg(FileKind::WebP) => {
                "the file is a WebP, not a JPEG: write decode in place of jpeg_decode"
            }
            ImageError::NotJpeg(FileKind::Gif) => "the file is a GIF: convert it to JPEG, PNG or WebP first",
            ImageError::NotJpeg(FileKind::Bmp) => "the file is a BMP: convert it to JPEG, PNG or WebP first",
            ImageError::NotJpeg(FileKind::Tiff) => "the file is a TIFF: convert it to JPEG, PNG or WebP first",
            ImageError::NotJpeg(FileKind::Heif) => "the file is a HEIF or AVIF: convert it to JPEG, PNG or WebP first",
            ImageError::NotJpeg(FileKind::Unknown) => "the value is no picture: leave its key out",
            ImageError::Truncated => "the file ends before its picture does: import the file again",
            ImageError::Corrupt => "the picture's file is damaged: import the file again",
            ImageError::TooManyPixels => "the picture has more than 67,108,864 pixels: make it smaller first",
            ImageError::Bomb => "the file would become more than 1,000 times its size: it is no photograph",
            ImageError::TooManyScans => "the progressive JPEG has more passes than its size justifies: save it anew",
            ImageError::Unsupported => "the JPEG is lossless or has more than 8 bits a sample: save it as a common one",
            ImageError::OutputTooLarge => "the pixels take more than 64MiB: decode a crop, or a smaller picture",
            ImageError::CropTooLarge => "the picture is smaller than the crop: resize it first",
            ImageError::NotAFrame => "its input is no decoded picture: let decode or jpeg_decode come first",
            ImageError::WrongSamples => {
                "its input has samples of another type or order: let it come before normalize and layout"
            }
            ImageError::WrongShape => "the picture has another shape than the batch: resize or crop all to one",
            ImageError::Parameters => "its parameters are of another version: use a drive of this version",
            ImageError::TooLong => {
                "the decode did not end by its deadline: leave the picture out, or give the decode a longer one"
            }
            ImageError::Animated => "the WebP is an animation: save one of its pictures by itself",
        })
    }
}

impl std::error::Error for ImageError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_error_has_a_code_of_its_own() {
        for error in ImageError::ALL {
            assert_eq!(ImageError::of_code(error.code().into()), Some(error));
            assert!(error.to_string().contains(": ") || error.to_string().contains(','), "{error}");
        }
        assert_eq!(ImageError::of_code(31), None);
        assert_eq!(ImageError::of_code(32 + ImageError::ALL.len() as u32), None);
    }

    #[test]
    fn files_are_known_by_their_first_bytes() {
        assert_eq!(FileKind::of(b"\x89PNG\r\n"), FileKind::Png);
        assert_eq!(FileKind::of(b"RIFF....WEBPVP8 "), FileKind::WebP);
        assert_eq!(FileKind::of(b"\0\0\0\x1cftypavif"), FileKind::Heif);
        assert_eq!(FileKind::of(b"GI"), FileKind::Unknown);
    }
}
