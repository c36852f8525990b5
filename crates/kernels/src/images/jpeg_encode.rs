//! Pixels become a JPEG file: pictures to look at, and those of tests.

use super::crop::PictureSize;
use super::frame::Frame;
use crate::image_error::ImageError;
use std::ffi::c_int;
use std::ptr;
use turbojpeg_sys as tj;

/// How a file is written.
#[derive(Clone, Copy, Debug)]
pub struct JpegQuality {
    /// 1 to 100.
    pub quality: u8,
    /// libjpeg-turbo's number of a sampling of colours: 0 is 4:4:4, 1 is 4:2:2, 2 is 4:2:0.
    pub sampling: u8,
    pub progressive: bool,
}

impl Default for JpegQuality {
    fn default() -> JpegQuality {
        JpegQuality { quality: 95, sampling: 0, progressive: false }
    }
}

/// The file of a frame of pixels.
pub fn encode_jpeg(frame: Frame<'_>, quality: JpegQuality) -> Result<Vec<u8>, ImageError> {
    let format = if frame.shape.channels == 1 { tj::TJPF_TJPF_GRAY } else { tj::TJPF_TJPF_RGB };
    encode(frame.samples, frame.shape.size(), format, quality)
}

/// `samples` are as many as `format` has for so many pixels.
pub(super) fn encode(
    samples: &[u8],
    PictureSize { width, height }: PictureSize,
    format: tj::TJPF,
    JpegQuality { quality, sampling, progressive }: JpegQuality,
) -> Result<Vec<u8>, ImageError> {
    let a_pixel = match format {
        tj::TJPF_TJPF_GRAY => 1,
        tj::TJPF_TJPF_RGB => 3,
        _ => 4,
    };
    if samples.len() != width as usize * height as usize * a_pixel {
        return Err(ImageError::NotAFrame);
    }
    let colours = if a_pixel == 4 { Some(tj::TJCS_TJCS_CMYK) } else { None };
    let sampling = if format == tj::TJPF_TJPF_GRAY { tj::TJSAMP_TJSAMP_GRAY } else { tj::TJSAMP::from(sampling) };
    let mut parameters = vec![
        (tj::TJPARAM_TJPARAM_QUALITY, c_int::from(quality)),
        (tj::TJPARAM_TJPARAM_SUBSAMP, sampling as c_int),
        (tj::TJPARAM_TJPARAM_PROGRESSIVE, progressive.into()),
    ];
    parameters.extend(colours.map(|colours| (tj::TJPARAM_TJPARAM_COLORSPACE, colours as c_int)));
    let (mut file, mut bytes) = (ptr::null_mut(), 0);
    // SAFETY: the handle is made and destroyed here. `samples` has all rows, as was checked. The file is libjpeg-turbo's memory of so many
    // bytes, copied before it is freed.
    unsafe {
        let handle = tj::tj3Init(tj::TJINIT_TJINIT_COMPRESS as c_int);
        if handle.is_null() {
            return Err(ImageError::OutputTooLarge);
        }
        let are_set = parameters.iter().all(|(name, value)| tj::tj3Set(handle, *name as c_int, *value) == 0);
        let (width, height, format) = (width as c_int, height as c_int, format as c_int);
        let is_made =
            are_set && tj::tj3Compress8(handle, samples.as_ptr(), width, 0, height, format, &mut file, &mut bytes) == 0;
        let made = is_made.then(|| std::slice::from_raw_parts(file, bytes as usize).to_vec());
        tj::tj3Free(file.cast());
        tj::tj3Destroy(handle);
        made.ok_or(ImageError::Parameters)
    }
}
