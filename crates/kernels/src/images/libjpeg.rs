//! The call of libjpeg-turbo that decodes: `jpeg_decode.c`.

use super::crop::PixelRect;
use super::work_clock::WorkDeadline;
use crate::image_error::ImageError;
use std::ffi::{c_int, c_uint, c_void};
// The call is linked with this crate's library.
use turbojpeg_sys as _;

/// Memory that the decoder may take for the coefficients of a progressive file, in MiB: three samples of two bytes for
/// each pixel.
const MEMORY_MAX_MIB: c_uint = 448;

/// A request to decode a region of a file.
#[derive(Clone, Copy)]
pub(super) struct DecodeCall<'a> {
    pub file: &'a [u8],
    /// In pixels of its scale: `scale` of the file's a side are one.
    pub region: PixelRect,
    pub scale: u32,
    /// Samples a pixel: 1 grey, 3 RGB, 4 inks.
    pub samples: usize,
    /// The most passes over the picture.
    pub scans_max: u32,
}

/// The reason that a region was not decoded.
pub(super) enum Refusal {
    /// The decoder does not take this region: decode the whole picture.
    Region,
    Error(ImageError),
}

// The fields are those of `struct decode_request` in `jpeg_decode.c`.
#[repr(C)]
struct DecodeRequest {
    file: *const u8,
    file_bytes: usize,
    out: *mut u8,
    goes_on: unsafe extern "C" fn(*mut c_void) -> c_int,
    asked: *mut c_void,
    scale: c_uint,
    x: c_uint,
    y: c_uint,
    width: c_uint,
    height: c_uint,
    samples: c_uint,
    scans_max: c_uint,
    memory_max_mib: c_uint,
}

unsafe extern "C" {
    /// Fills `out`, and returns a value of `enum decode_end`.
    fn tapetum_jpeg_decode(request: *const DecodeRequest) -> c_int;
}

/// # Safety
/// `asked` is a [`WorkDeadline`] that nobody else uses.
unsafe extern "C" fn goes_on(asked: *mut c_void) -> c_int {
    // SAFETY: by our caller's word.
    let deadline = unsafe { &mut *asked.cast::<WorkDeadline<'_, '_>>() };
    deadline.goes_on().into()
}

impl DecodeCall<'_> {
    /// Fills `out`, which is as long as the region's samples.
    pub fn decode(&self, deadline: &mut WorkDeadline<'_, '_>, out: &mut [u8]) -> Result<(), Refusal> {
        let DecodeCall { file, region, scale, samples, scans_max } = *self;
        let PixelRect { x, y, width, height } = region;
        assert_eq!(out.len(), width as usize * height as usize * samples, "room for the region");
        let request = DecodeRequest {
            file: file.as_ptr(),
            file_bytes: file.len(),
            out: out.as_mut_ptr(),
            goes_on,
            asked: std::ptr::from_mut(deadline).cast(),
            scale,
            x,
            y,
            width,
            height,
            samples: samples as c_uint,
            scans_max,
            memory_max_mib: MEMORY_MAX_MIB,
        };
        // SAFETY: the file is as long as is said, and read only. The region is checked there against the picture before a row of it is
        // written, as wide as `out` has room for, and as many. The deadline is this call's alone.
        let ended = unsafe { tapetum_jpeg_decode(&request) };
        Err(match ended {
            0 => return Ok(()),
            1 => Refusal::Region,
            2 => Refusal::Error(ImageError::Truncated),
            4 => Refusal::Error(ImageError::TooManyPixels),
            5 => Refusal::Error(ImageError::TooManyScans),
            6 => Refusal::Error(ImageError::TooLong),
            _ => Refusal::Error(ImageError::Corrupt),
        })
    }
}

impl Refusal {
    pub fn error(self) -> ImageError {
        match self {
            Refusal::Region => ImageError::Corrupt,
            Refusal::Error(error) => error,
        }
    }
}
