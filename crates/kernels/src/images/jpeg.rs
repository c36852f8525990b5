//! JPEG files become pixels, by libjpeg-turbo. Of a crop, only that is decoded, and a margin that upsampling looks at.
//!
//! 1. A truncated file is an error, whatever is cut out of it: one without an end of image, and one whose data ends early.
//! 2. What is decoded depends on its file alone: each has a decoder of its own (0.3 µs), since libjpeg-turbo keeps tables of the file before,
//!    and after some errors takes no other.
//! 3. `unsafe` is confined to calls of libjpeg-turbo, whose errors jump between frames of C alone.

use super::crop::PixelRect;
use super::exif::Orientation;
use super::frame::{FrameShape, HEADER_BYTES, blank};
use super::stage::JpegOptions;
use super::{EXPANSION_FREE_PIXELS, EXPANSION_MAX, FRAME_BYTES_MAX, ImageChance, PIXELS_MAX, pixels};
use crate::image_error::{FileKind, ImageError};
use std::ffi::{CStr, c_int};
use std::ptr::NonNull;
use turbojpeg_sys as tj;

/// What the decoder may take for the coefficients of a progressive file, in mebibytes: three samples of two bytes for each pixel.
const MEMORY_MAX_MIB: c_int = 448;
/// Passes over pixels: what limits the time of a progressive file, with a few seconds at most.
const SCAN_PIXELS_MAX: u64 = 1 << 30;
/// Passes of a file of any size. Common ones have ten.
const SCANS_LEAST: u64 = 16;
const SCANS_MOST: u64 = 500;
/// Pixels around a crop that upsampled colours depend on: one sample of a colour is at most two pixels wide there.
const MARGIN: u32 = 2;

/// The frame of what the options want of a file.
pub fn decode_jpeg(file: &[u8], options: &JpegOptions, chance: ImageChance) -> Result<Vec<u8>, ImageError> {
    check_ends(file)?;
    JpegDecoder::new().ok_or(ImageError::OutputTooLarge)?.decode(file, options, chance)
}

/// Of one file.
struct JpegDecoder {
    handle: NonNull<std::ffi::c_void>,
}

/// What a file says of itself.
struct JpegHeader {
    width: u32,
    height: u32,
    /// Columns that are decoded together. `None`: the file is decoded whole.
    column_step: Option<u32>,
    colours: c_int,
}

/// The pixels to be decoded, as the file has them, each `scale` of them a side as one.
#[derive(Clone, Copy)]
struct DecodeRegion {
    rect: PixelRect,
    scale: u32,
}

impl JpegDecoder {
    /// `None` where there is no memory.
    fn new() -> Option<JpegDecoder> {
        // SAFETY: no preconditions.
        let handle = unsafe { tj::tj3Init(tj::TJINIT_TJINIT_DECOMPRESS as c_int) };
        let decoder = JpegDecoder { handle: NonNull::new(handle.cast())? };
        decoder.set(tj::TJPARAM_TJPARAM_MAXMEMORY, MEMORY_MAX_MIB);
        // No colour profiles.
        decoder.set(tj::TJPARAM_TJPARAM_SAVEMARKERS, 0);
        Some(decoder)
    }

    fn decode(mut self, file: &[u8], options: &JpegOptions, chance: ImageChance) -> Result<Vec<u8>, ImageError> {
        let header = self.header(file)?;
        let turn = if options.orient { Orientation::of_jpeg(file) } else { Orientation::default() };
        let stored = (header.width, header.height);
        let upright = if turn.transposed { (stored.1, stored.0) } else { stored };
        let wanted = options.crop.rect(upright, &mut chance.draws(options.place))?;
        let scale = scale_of(wanted, options.scale_to);
        let wanted = DecodeRegion { rect: turned_back(wanted, upright, turn), scale }.scaled(stored);
        let channels = if options.grey { 1 } else { 3 };
        let shape = FrameShape::of_pixels(wanted.rect.width, wanted.rect.height, channels);
        if options.header_only {
            return Ok(turn.shape_of(shape).encode().to_vec());
        }
        let mut frame = blank(shape)?;
        self.decode_region(file, (&header, wanted), (channels, &mut frame[HEADER_BYTES..]))?;
        if turn == Orientation::default() { Ok(frame) } else { pixels::turn(&frame, turn) }
    }

    fn header(&mut self, file: &[u8]) -> Result<JpegHeader, ImageError> {
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
        let scans = (SCAN_PIXELS_MAX / pixels).clamp(SCANS_LEAST, SCANS_MOST);
        self.set(tj::TJPARAM_TJPARAM_SCANLIMIT, scans as c_int);
        let column_step = match self.get(tj::TJPARAM_TJPARAM_SUBSAMP) as tj::TJSAMP {
            tj::TJSAMP_TJSAMP_444 | tj::TJSAMP_TJSAMP_GRAY | tj::TJSAMP_TJSAMP_440 | tj::TJSAMP_TJSAMP_441 => Some(8),
            tj::TJSAMP_TJSAMP_422 | tj::TJSAMP_TJSAMP_420 => Some(16),
            tj::TJSAMP_TJSAMP_411 => Some(32),
            _ => None,
        };
        Ok(JpegHeader { width, height, column_step, colours: self.get(tj::TJPARAM_TJPARAM_COLORSPACE) })
    }

    /// Fills `out` with the pixels of a region.
    fn decode_region(
        &mut self,
        file: &[u8],
        (header, wanted): (&JpegHeader, DecodeRegion),
        (channels, out): (u8, &mut [u8]),
    ) -> Result<(), ImageError> {
        let all = wanted.picture(header);
        let with_margin = header.column_step.map_or(PixelRect::whole(all), |step| wanted.with_margin(step, all));
        match self.decode_cut(file, (header, wanted), with_margin, (channels, out)) {
            // A file whose sampling is not what it seems.
            Err(Refusal::Region) => {
                let whole = PixelRect::whole(all);
                let retried = self.decode_cut(file, (header, wanted), whole, (channels, out));
                retried.map_err(|refusal| refusal.error())
            }
            other => other.map_err(|refusal| refusal.error()),
        }
    }

    /// Decodes `from` and copies what is wanted of it.
    fn decode_cut(
        &mut self,
        file: &[u8],
        (header, wanted): (&JpegHeader, DecodeRegion),
        from: PixelRect,
        (channels, out): (u8, &mut [u8]),
    ) -> Result<(), Refusal> {
        let is_cmyk = matches!(header.colours as tj::TJCS, tj::TJCS_TJCS_CMYK | tj::TJCS_TJCS_YCCK);
        let (format, samples) = match (is_cmyk, channels) {
            (true, _) => (tj::TJPF_TJPF_CMYK, 4),
            (false, 1) => (tj::TJPF_TJPF_GRAY, 1),
            (false, _) => (tj::TJPF_TJPF_RGB, 3),
        };
        if from == wanted.rect && !is_cmyk {
            return self.decompress(file, (wanted.scale, from), (format, samples, out));
        }
        let bytes = from.width as usize * from.height as usize * samples;
        if bytes > 2 * FRAME_BYTES_MAX {
            return Err(Refusal::Error(ImageError::OutputTooLarge));
        }
        let mut decoded = vec![0; bytes];
        self.decompress(file, (wanted.scale, from), (format, samples, &mut decoded))?;
        let (left, top) = (wanted.rect.x - from.x, wanted.rect.y - from.y);
        let row_bytes = wanted.rect.width as usize * samples;
        let rows = decoded.chunks_exact(from.width as usize * samples).skip(top as usize);
        let out_rows = out.chunks_exact_mut(wanted.rect.width as usize * usize::from(channels));
        for (row, into) in rows.zip(out_rows) {
            let row = &row[left as usize * samples..][..row_bytes];
            if is_cmyk { pixels::cmyk_row(row, into, channels) } else { into.copy_from_slice(row) }
        }
        Ok(())
    }

    /// One call of libjpeg-turbo: `out` is `samples` bytes for each pixel of the region.
    fn decompress(
        &mut self,
        file: &[u8],
        (scale, region): (u32, PixelRect),
        (format, samples, out): (tj::TJPF, usize, &mut [u8]),
    ) -> Result<(), Refusal> {
        assert_eq!(out.len(), region.width as usize * region.height as usize * samples, "room for the region");
        let region = tj::tjregion {
            x: region.x as c_int,
            y: region.y as c_int,
            w: region.width as c_int,
            h: region.height as c_int,
        };
        let none = tj::tjregion { x: 0, y: 0, w: 0, h: 0 };
        // SAFETY: the handle lives. What is set is checked there, and refused if it does not fit the file whose header was read; only
        // where all of it was taken is the picture decompressed: it fills as many rows and columns as the region has, one
        // behind the other (pitch zero), which `out` has room for.
        let ended = unsafe {
            let is_taken = tj::tj3SetCroppingRegion(self.raw(), none) == 0
                && tj::tj3SetScalingFactor(self.raw(), tj::tjscalingfactor { num: 1, denom: scale as c_int }) == 0
                && tj::tj3SetCroppingRegion(self.raw(), region) == 0;
            if !is_taken {
                return Err(Refusal::Region);
            }
            let (handle, pitch) = (self.raw(), (region.w as usize * samples) as c_int);
            tj::tj3Decompress8(
                handle,
                file.as_ptr(),
                file.len() as tj::size_t,
                out.as_mut_ptr(),
                pitch,
                format as c_int,
            )
        };
        if ended != 0 && self.message().contains("Unexplained mismatch") {
            return Err(Refusal::Region);
        }
        self.judge(ended).map_err(Refusal::Error)
    }

    /// What the end of a call means. Of warnings those are errors that tell of missing or damaged pixels.
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
            () if has("scans") => ImageError::TooManyScans,
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

/// Why a region was not decoded.
enum Refusal {
    /// The decoder does not take it: decode all.
    Region,
    Error(ImageError),
}

impl Refusal {
    fn error(self) -> ImageError {
        match self {
            Refusal::Region => ImageError::Corrupt,
            Refusal::Error(error) => error,
        }
    }
}

/// A JPEG begins with its marker, and has an end of image somewhere behind.
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

/// How many pixels a side become one: the most, 1 to 8, with which the crop still has the size that is wanted of it.
fn scale_of(crop: PixelRect, wanted: Option<(u16, u16)>) -> u32 {
    let Some((width, height)) = wanted else { return 1 };
    let suffices = |scale: &u32| crop.width / scale >= width.into() && crop.height / scale >= height.into();
    [8, 4, 2].into_iter().find(suffices).unwrap_or(1)
}

/// A rectangle of the upright picture as the file has it.
fn turned_back(rect: PixelRect, upright: (u32, u32), turn: Orientation) -> PixelRect {
    let PixelRect { mut x, mut y, width, height } = rect;
    if turn.upside_down {
        y = upright.1 - y - height;
    }
    if turn.mirrored {
        x = upright.0 - x - width;
    }
    if turn.transposed {
        return PixelRect { x: y, y: x, width: height, height: width };
    }
    PixelRect { x, y, width, height }
}

impl DecodeRegion {
    /// The size of the picture in pixels of this region.
    fn picture(&self, header: &JpegHeader) -> (u32, u32) {
        (header.width.div_ceil(self.scale), header.height.div_ceil(self.scale))
    }

    /// The same region in pixels of its scale, outwards.
    fn scaled(self, (width, height): (u32, u32)) -> DecodeRegion {
        let DecodeRegion { rect, scale } = self;
        let (x, y) = (rect.x / scale, rect.y / scale);
        let right = (rect.x + rect.width).div_ceil(scale).min(width.div_ceil(scale));
        let low = (rect.y + rect.height).div_ceil(scale).min(height.div_ceil(scale));
        DecodeRegion { rect: PixelRect { x, y, width: right - x, height: low - y }, scale }
    }

    /// With the pixels around it that its own depend on, from a column at which the decoder can begin.
    fn with_margin(&self, column_step: u32, (width, height): (u32, u32)) -> PixelRect {
        let step = (column_step / self.scale).max(1);
        let rect = self.rect;
        let x = rect.x.saturating_sub(MARGIN) / step * step;
        let y = rect.y.saturating_sub(MARGIN);
        let right = (rect.x + rect.width + MARGIN).min(width);
        let low = (rect.y + rect.height + MARGIN).min(height);
        PixelRect { x, y, width: right - x, height: low - y }
    }
}
