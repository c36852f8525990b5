//! Decodes JPEG files to pixels, with libjpeg-turbo. For a crop, only its region is decoded, with a margin that
//! upsampling reads.
//!
//! 1. A truncated file is an error, whatever region is wanted: both a file without an end of image and one whose data
//!    ends early.
//! 2. The result depends on its file alone. Each file has its own decoder (0.3 µs), since libjpeg-turbo keeps tables of
//!    the file before, and after some errors takes no other file.
//! 3. `unsafe` is confined to calls of libjpeg-turbo, whose errors jump between frames of C alone.
//! 4. A decode ends at its deadline: it reads the clock between bands of rows, in each pass over the picture.

use super::crop::{PictureSize, PixelRect};
use super::exif::Orientation;
use super::frame::{FrameShape, HEADER_BYTES, blank};
use super::libjpeg::{DecodeCall, Refusal};
use super::stage::DecodeOptions;
use super::work_clock::{WorkClock, WorkDeadline};
use super::{EXPANSION_FREE_PIXELS, EXPANSION_MAX, FRAME_BYTES_MAX, ImageChance, PIXELS_MAX, pixels};
use crate::image_error::{FileKind, ImageError};
use std::ffi::{CStr, c_int};
use std::ptr::NonNull;
use turbojpeg_sys as tj;

/// The most pixels in all passes together. This limits the time of a progressive file to a few seconds.
const SCAN_PIXELS_MAX: u64 = 1 << 30;
/// The number of passes that a file of any size may have. Common files have ten.
const SCANS_LEAST: u64 = 16;
const SCANS_MOST: u64 = 500;
/// Pixels around a crop that upsampled colours depend on: one sample of a colour is at most two pixels wide there.
const MARGIN: u32 = 2;

/// Decodes the part of a file that the options name to a frame, within their deadline by `clock`.
pub fn decode_jpeg(
    file: &[u8],
    options: &DecodeOptions,
    chance: ImageChance,
    clock: &mut WorkClock<'_>,
) -> Result<Vec<u8>, ImageError> {
    check_ends(file)?;
    let deadline = WorkDeadline::new(clock, options.deadline_ms)?;
    JpegDecoder::new().ok_or(ImageError::OutputTooLarge)?.decode(file, options, chance, deadline)
}

/// The decoder of one file and its header.
struct JpegDecoder {
    handle: NonNull<std::ffi::c_void>,
}

/// The fields of a file's header that a decode needs.
struct JpegHeader {
    width: u32,
    height: u32,
    /// Columns that are decoded together. `None`: the file is decoded whole.
    column_step: Option<u32>,
    colours: c_int,
    scans_max: u32,
}

/// The pixels to decode, in the file's orientation. `scale` of them a side become one.
#[derive(Clone, Copy)]
struct DecodeRegion {
    rect: PixelRect,
    scale: u32,
}

impl JpegDecoder {
    /// `None` if there is no memory.
    fn new() -> Option<JpegDecoder> {
        // SAFETY: no preconditions.
        let handle = unsafe { tj::tj3Init(tj::TJINIT_TJINIT_DECOMPRESS as c_int) };
        let decoder = JpegDecoder { handle: NonNull::new(handle.cast())? };
        // No colour profiles.
        decoder.set(tj::TJPARAM_TJPARAM_SAVEMARKERS, 0);
        Some(decoder)
    }

    fn decode(
        self,
        file: &[u8],
        options: &DecodeOptions,
        chance: ImageChance,
        mut deadline: WorkDeadline<'_, '_>,
    ) -> Result<Vec<u8>, ImageError> {
        let header = self.header(file)?;
        let turn = if options.orient { Orientation::of_jpeg(file) } else { Orientation::default() };
        let stored = PictureSize { width: header.width, height: header.height };
        let upright = if turn.transposed { PictureSize { width: stored.height, height: stored.width } } else { stored };
        let wanted = options.crop.rect(upright, &mut chance.draws(options.place))?;
        let scale = scale_of(wanted, options.scale_to);
        let wanted = DecodeRegion { rect: turned_back(wanted, upright, turn), scale }.scaled(stored);
        let channels = if options.grey { 1 } else { 3 };
        let shape = FrameShape::of_pixels(wanted.rect.width, wanted.rect.height, channels);
        let mut frame = blank(shape)?;
        let call = header.call(file, wanted, channels);
        header.decode_region(&call, wanted, &mut deadline, channels, &mut frame[HEADER_BYTES..])?;
        if turn == Orientation::default() { Ok(frame) } else { pixels::turn(&frame, turn) }
    }

    fn header(&self, file: &[u8]) -> Result<JpegHeader, ImageError> {
        // SAFETY: the file is as long as is said.
        let read = unsafe { tj::tj3DecompressHeader(self.raw(), file.as_ptr(), file.len() as tj::size_t) };
        self.judge(read)?;
        if self.get(tj::TJPARAM_TJPARAM_PRECISION) != 8 || self.get(tj::TJPARAM_TJPARAM_LOSSLESS) != 0 {
            return Err(ImageError::Unsupported);
        }
        let size = |parameter| u32::try_from(self.get(parameter)).ok().filter(|size| *size > 0);
        let width = size(tj::TJPARAM_TJPARAM_JPEGWIDTH).ok_or(ImageError::Corrupt)?;
        let height = size(tj::TJPARAM_TJPARAM_JPEGHEIGHT).ok_or(ImageError::Corrupt)?;
        let pixels = u64::from(width) * u64::from(height);
        if pixels > PIXELS_MAX {
            return Err(ImageError::TooManyPixels);
        }
        if pixels > EXPANSION_FREE_PIXELS && 3 * pixels / file.len() as u64 > EXPANSION_MAX {
            return Err(ImageError::Bomb);
        }
        let scans_max = (SCAN_PIXELS_MAX / pixels).clamp(SCANS_LEAST, SCANS_MOST) as u32;
        let column_step = match self.get(tj::TJPARAM_TJPARAM_SUBSAMP) as tj::TJSAMP {
            tj::TJSAMP_TJSAMP_444 | tj::TJSAMP_TJSAMP_GRAY | tj::TJSAMP_TJSAMP_440 | tj::TJSAMP_TJSAMP_441 => Some(8),
            tj::TJSAMP_TJSAMP_422 | tj::TJSAMP_TJSAMP_420 => Some(16),
            tj::TJSAMP_TJSAMP_411 => Some(32),
            _ => None,
        };
        Ok(JpegHeader { width, height, column_step, colours: self.get(tj::TJPARAM_TJPARAM_COLORSPACE), scans_max })
    }

    /// Judges the end of a call by the rules that `jpeg_decode.c` has for decodes.
    fn judge(&self, ended: c_int) -> Result<(), ImageError> {
        if ended == 0 {
            return Ok(());
        }
        let message = self.message();
        let has = |part: &str| message.contains(part);
        // SAFETY: the handle lives.
        let code = unsafe { tj::tj3GetErrorCode(self.raw()) };
        if code == tj::TJERR_TJERR_WARNING as c_int && (has("extraneous") || has("JFIF") || has("Adobe")) {
            return Ok(());
        }
        Err(match () {
            () if has("remature end") => ImageError::Truncated,
            () if has("Insufficient memory") || has("too large") || has("Maximum supported") => {
                ImageError::TooManyPixels
            }
            () => ImageError::Corrupt,
        })
    }

    fn message(&self) -> String {
        // SAFETY: the handle lives, and has a message that is C's, which is copied before the next call.
        unsafe { CStr::from_ptr(tj::tj3GetErrorStr(self.raw())) }.to_string_lossy().into_owned()
    }

    fn raw(&self) -> tj::tjhandle {
        self.handle.as_ptr().cast()
    }

    fn set(&self, parameter: tj::TJPARAM, value: c_int) {
        // SAFETY: the handle lives; a value that does not fit is refused.
        let set = unsafe { tj::tj3Set(self.raw(), parameter as c_int, value) };
        debug_assert_eq!(set, 0, "{}", self.message());
    }

    fn get(&self, parameter: tj::TJPARAM) -> c_int {
        // SAFETY: the handle lives.
        unsafe { tj::tj3Get(self.raw(), parameter as c_int) }
    }
}

impl Drop for JpegDecoder {
    fn drop(&mut self) {
        // SAFETY: the handle lives, and nobody has it any more.
        unsafe { tj::tj3Destroy(self.raw()) };
    }
}

impl JpegHeader {
    fn is_cmyk(&self) -> bool {
        matches!(self.colours as tj::TJCS, tj::TJCS_TJCS_CMYK | tj::TJCS_TJCS_YCCK)
    }

    fn call<'a>(&self, file: &'a [u8], wanted: DecodeRegion, channels: u8) -> DecodeCall<'a> {
        let samples = if self.is_cmyk() { 4 } else { channels.into() };
        DecodeCall { file, region: wanted.rect, scale: wanted.scale, samples, scans_max: self.scans_max }
    }

    /// Fills `out` with the pixels of a region.
    fn decode_region(
        &self,
        call: &DecodeCall<'_>,
        wanted: DecodeRegion,
        deadline: &mut WorkDeadline<'_, '_>,
        channels: u8,
        out: &mut [u8],
    ) -> Result<(), ImageError> {
        let picture = wanted.picture(self);
        let all = PixelRect::whole(picture);
        let with_margin = self.column_step.map_or(all, |step| wanted.with_margin(step, picture));
        let part = DecodeCall { region: with_margin, ..*call };
        match self.decode_cut(&part, wanted.rect, deadline, channels, out) {
            // The file's sampling is not what its header says: decode the whole file.
            Err(Refusal::Region) => {
                let whole = DecodeCall { region: all, ..*call };
                self.decode_cut(&whole, wanted.rect, deadline, channels, out).map_err(Refusal::error)
            }
            other => other.map_err(Refusal::error),
        }
    }

    /// Decodes the region of a call, and copies the wanted part of it.
    fn decode_cut(
        &self,
        call: &DecodeCall<'_>,
        wanted: PixelRect,
        deadline: &mut WorkDeadline<'_, '_>,
        channels: u8,
        out: &mut [u8],
    ) -> Result<(), Refusal> {
        let (from, samples) = (call.region, call.samples);
        if from == wanted && !self.is_cmyk() {
            return call.decode(deadline, out);
        }
        let bytes = from.width as usize * from.height as usize * samples;
        if bytes > 2 * FRAME_BYTES_MAX {
            return Err(Refusal::Error(ImageError::OutputTooLarge));
        }
        let mut decoded = vec![0; bytes];
        call.decode(deadline, &mut decoded)?;
        let (left, top) = (wanted.x - from.x, wanted.y - from.y);
        let row_bytes = wanted.width as usize * samples;
        let rows = decoded.chunks_exact(from.width as usize * samples).skip(top as usize);
        let out_rows = out.chunks_exact_mut(wanted.width as usize * usize::from(channels));
        for (row, into) in rows.zip(out_rows) {
            let row = &row[left as usize * samples..][..row_bytes];
            if self.is_cmyk() { pixels::cmyk_row(row, into, channels) } else { into.copy_from_slice(row) }
        }
        Ok(())
    }
}

/// Checks that a file begins with the marker of a JPEG and has an end of image somewhere behind it.
fn check_ends(file: &[u8]) -> Result<(), ImageError> {
    match file {
        [] => Err(ImageError::Empty),
        [0xff, 0xd8, 0xff, ..] => {
            let has_end = file.windows(2).rev().any(|pair| pair == [0xff, 0xd9]);
            if has_end { Ok(()) } else { Err(ImageError::Truncated) }
        }
        _ => Err(ImageError::NotJpeg(FileKind::of(file))),
    }
}

/// The pixels a side that become one: the most, 1 to 8, with which the crop still has its wanted size.
fn scale_of(crop: PixelRect, wanted: Option<(u16, u16)>) -> u32 {
    let Some((width, height)) = wanted else { return 1 };
    let suffices = |scale: &u32| crop.width / scale >= width.into() && crop.height / scale >= height.into();
    [8, 4, 2].into_iter().find(suffices).unwrap_or(1)
}

/// A rectangle of the upright picture, in the file's orientation.
pub(super) fn turned_back(rect: PixelRect, upright: PictureSize, turn: Orientation) -> PixelRect {
    let PixelRect { mut x, mut y, width, height } = rect;
    if turn.upside_down {
        y = upright.height - y - height;
    }
    if turn.mirrored {
        x = upright.width - x - width;
    }
    if turn.transposed {
        return PixelRect { x: y, y: x, width: height, height: width };
    }
    PixelRect { x, y, width, height }
}

impl DecodeRegion {
    /// The size of the picture in pixels of this region's scale.
    fn picture(&self, header: &JpegHeader) -> PictureSize {
        PictureSize { width: header.width.div_ceil(self.scale), height: header.height.div_ceil(self.scale) }
    }

    /// The same region in pixels of its scale, rounded outwards.
    fn scaled(self, picture: PictureSize) -> DecodeRegion {
        let DecodeRegion { rect, scale } = self;
        let (x, y) = (rect.x / scale, rect.y / scale);
        let right = (rect.x + rect.width).div_ceil(scale).min(picture.width.div_ceil(scale));
        let low = (rect.y + rect.height).div_ceil(scale).min(picture.height.div_ceil(scale));
        DecodeRegion { rect: PixelRect { x, y, width: right - x, height: low - y }, scale }
    }

    /// The region with the pixels around it that its own depend on, from a column at which the decoder can begin.
    fn with_margin(&self, column_step: u32, picture: PictureSize) -> PixelRect {
        let step = (column_step / self.scale).max(1);
        let rect = self.rect;
        let x = rect.x.saturating_sub(MARGIN) / step * step;
        let y = rect.y.saturating_sub(MARGIN);
        let right = (rect.x + rect.width + MARGIN).min(picture.width);
        let low = (rect.y + rect.height + MARGIN).min(picture.height);
        PixelRect { x, y, width: right - x, height: low - y }
    }
}
