//! Samples moved and changed one by one: turning, cutting, mirroring, normalising, and the order of channels.

use super::crop::PixelRect;
use super::exif::Orientation;
use super::frame::{Frame, FrameShape, HEADER_BYTES, SampleOrder, SampleType, blank};
use crate::image_error::ImageError;

/// The colours of a row of CMYK as Adobe stores them, each inverted.
pub fn cmyk_row(row: &[u8], out: &mut [u8], channels: u8) {
    for (inks, pixel) in row.chunks_exact(4).zip(out.chunks_exact_mut(usize::from(channels))) {
        let mixed = |ink: u8| ((u32::from(ink) * u32::from(inks[3]) + 127) / 255) as u8;
        let colours = [mixed(inks[0]), mixed(inks[1]), mixed(inks[2])];
        match pixel {
            [grey] => *grey = luminance(colours),
            pixel => pixel.copy_from_slice(&colours),
        }
    }
}

/// Red, green and blue as one grey, with the weights of ITU-R BT.601.
pub fn luminance(colours: [u8; 3]) -> u8 {
    let [r, g, b] = colours.map(u32::from);
    ((19595 * r + 38470 * g + 7471 * b + 0x8000) >> 16) as u8
}

/// A frame of pixels stood upright.
pub fn turn(bytes: &[u8], turn: Orientation) -> Result<Vec<u8>, ImageError> {
    let Frame { shape, samples } = Frame::pixels(bytes)?;
    let turned = turn.shape_of(shape);
    let (width, height) = (turned.width, turned.height);
    let mut out = blank(turned)?;
    let channels = usize::from(shape.channels);
    let pixels = out[HEADER_BYTES..].chunks_exact_mut(channels);
    let places = (0..height).flat_map(|y| (0..width).map(move |x| (x, y)));
    for (pixel, (x, y)) in pixels.zip(places) {
        let x = if turn.mirrored { width - 1 - x } else { x };
        let y = if turn.upside_down { height - 1 - y } else { y };
        let (x, y) = if turn.transposed { (y, x) } else { (x, y) };
        let at = (y as usize * shape.width as usize + x as usize) * channels;
        pixel.copy_from_slice(&samples[at..at + channels]);
    }
    Ok(out)
}

/// A part of a frame of pixels.
pub fn cut(frame: Frame<'_>, rect: PixelRect) -> Result<Vec<u8>, ImageError> {
    let shape = FrameShape { width: rect.width, height: rect.height, ..frame.shape };
    let mut out = blank(shape)?;
    let left = rect.x as usize * usize::from(shape.channels);
    let rows = frame.samples.chunks_exact(frame.shape.row_samples()).skip(rect.y as usize);
    for (into, row) in out[HEADER_BYTES..].chunks_exact_mut(shape.row_samples()).zip(rows) {
        into.copy_from_slice(&row[left..left + shape.row_samples()]);
    }
    Ok(out)
}

/// Left becomes right, in place.
pub fn mirror(frame: &mut [u8]) -> Result<(), ImageError> {
    let shape = Frame::pixels(frame)?.shape;
    for row in frame[HEADER_BYTES..].chunks_exact_mut(shape.row_samples()) {
        if shape.channels == 1 {
            row.reverse();
            continue;
        }
        let (pixels, _) = row.as_chunks_mut::<3>();
        pixels.reverse();
    }
    Ok(())
}

/// Samples become floats: (sample ÷ 255 − mean) ÷ deviation, by channel.
pub fn normalize(bytes: &[u8], mean: [f32; 3], deviation: [f32; 3]) -> Result<Vec<u8>, ImageError> {
    let frame = Frame::decode(bytes)?;
    if frame.shape.sample != SampleType::U8 {
        return Err(ImageError::WrongSamples);
    }
    let mut out = blank(FrameShape { sample: SampleType::F32, ..frame.shape })?;
    // All 256 results of each channel: a look-up takes less than a division.
    let tables: [[f32; 256]; 3] = std::array::from_fn(|channel| {
        std::array::from_fn(|sample| (sample as f32 / 255.0 - mean[channel]) / deviation[channel])
    });
    let floats = &mut out[HEADER_BYTES..];
    let plane = frame.shape.samples() / usize::from(frame.shape.channels);
    if (frame.shape.channels, frame.shape.order) == (3, SampleOrder::Hwc) {
        let (pixels, _) = frame.samples.as_chunks::<3>();
        let (floats, _) = floats.as_chunks_mut::<12>();
        for (floats, [red, green, blue]) in floats.iter_mut().zip(pixels) {
            let [reds, greens, blues] = &tables;
            let floats = floats.as_chunks_mut::<4>().0;
            floats[0] = reds[usize::from(*red)].to_le_bytes();
            floats[1] = greens[usize::from(*green)].to_le_bytes();
            floats[2] = blues[usize::from(*blue)].to_le_bytes();
        }
    } else {
        let planes = floats.chunks_exact_mut(plane * 4).zip(frame.samples.chunks_exact(plane));
        for ((floats, samples), table) in planes.zip(&tables) {
            let (floats, _) = floats.as_chunks_mut::<4>();
            floats
                .iter_mut()
                .zip(samples)
                .for_each(|(float, sample)| *float = table[usize::from(*sample)].to_le_bytes());
        }
    }
    Ok(out)
}

/// The same samples in another order.
pub fn reorder(bytes: &[u8], order: SampleOrder) -> Result<Vec<u8>, ImageError> {
    let frame = Frame::decode(bytes)?;
    if frame.shape.order == order {
        return Ok(bytes.to_vec());
    }
    let mut out = blank(FrameShape { order, ..frame.shape })?;
    let (samples, into) = (frame.samples, &mut out[HEADER_BYTES..]);
    match (frame.shape.channels, frame.shape.sample) {
        (3, SampleType::U8) => reorder_colours::<1>(samples, into, order),
        (3, SampleType::F32) => reorder_colours::<4>(samples, into, order),
        _ => into.copy_from_slice(samples),
    }
    Ok(out)
}

/// Pixels of three samples of `BYTES` each become three planes, or the other way round: one pass, as each picture of a batch takes it.
fn reorder_colours<const BYTES: usize>(from: &[u8], into: &mut [u8], order: SampleOrder) {
    let (from, into) = (from.as_chunks::<BYTES>().0, into.as_chunks_mut::<BYTES>().0);
    let plane = from.len() / 3;
    match order {
        SampleOrder::Chw => {
            let (reds, rest) = into.split_at_mut(plane);
            let (greens, blues) = rest.split_at_mut(plane);
            let planes = reds.iter_mut().zip(greens).zip(blues);
            for (((red, green), blue), pixel) in planes.zip(from.as_chunks::<3>().0) {
                [*red, *green, *blue] = *pixel;
            }
        }
        SampleOrder::Hwc => {
            let (reds, rest) = from.split_at(plane);
            let (greens, blues) = rest.split_at(plane);
            let planes = reds.iter().zip(greens).zip(blues);
            for (((red, green), blue), pixel) in planes.zip(into.as_chunks_mut::<3>().0) {
                *pixel = [*red, *green, *blue];
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 3 × 2 pixels, whose channels are 10 × row + column, and that plus 100 and 200.
    fn frame() -> Vec<u8> {
        let mut bytes = blank(FrameShape::of_pixels(3, 2, 3)).unwrap();
        for (place, sample) in bytes[HEADER_BYTES..].iter_mut().enumerate() {
            *sample = (place / 9 * 10 + place / 3 % 3 + place % 3 * 100) as u8;
        }
        bytes
    }

    fn reds(bytes: &[u8]) -> Vec<u8> {
        Frame::pixels(bytes).unwrap().samples.chunks_exact(3).map(|pixel| pixel[0]).collect()
    }

    #[test]
    fn pictures_are_turned_as_exif_says() {
        let turned = |transposed, mirrored, upside_down| {
            reds(&turn(&frame(), Orientation { transposed, mirrored, upside_down }).unwrap())
        };
        assert_eq!(turned(false, false, false), [0, 1, 2, 10, 11, 12]);
        assert_eq!(turned(false, true, true), [12, 11, 10, 2, 1, 0]);
        // A quarter clockwise: the left column becomes the top row, from below.
        assert_eq!(turned(true, true, false), [10, 0, 11, 1, 12, 2]);
        assert_eq!(turned(true, false, true), [2, 12, 1, 11, 0, 10]);
    }

    #[test]
    fn pixels_are_cut_and_mirrored() {
        let bytes = frame();
        let cut = cut(Frame::pixels(&bytes).unwrap(), PixelRect { x: 1, y: 1, width: 2, height: 1 }).unwrap();
        assert_eq!(&cut[HEADER_BYTES..], [11, 111, 211, 12, 112, 212]);
        let mut mirrored = frame();
        mirror(&mut mirrored).unwrap();
        assert_eq!(reds(&mirrored), [2, 1, 0, 12, 11, 10]);
        assert_eq!(&mirrored[HEADER_BYTES..HEADER_BYTES + 3], [2, 102, 202]);
    }

    #[test]
    fn normalising_and_reordering_go_either_way_round() {
        let (mean, deviation) = ([0.5, 0.25, 0.0], [0.5, 0.25, 2.0]);
        let one = reorder(&normalize(&frame(), mean, deviation).unwrap(), SampleOrder::Chw).unwrap();
        let other = normalize(&reorder(&frame(), SampleOrder::Chw).unwrap(), mean, deviation).unwrap();
        assert_eq!(one, other);
        let float = |at: usize| f32::from_le_bytes(one[HEADER_BYTES + 4 * at..][..4].try_into().unwrap());
        assert_eq!(float(0), -1.0);
        assert_eq!(float(6), (100.0 / 255.0 - 0.25) / 0.25);
        assert_eq!(reorder(&reorder(&frame(), SampleOrder::Chw).unwrap(), SampleOrder::Hwc).unwrap(), frame());
        assert_eq!(normalize(&one, mean, deviation).unwrap_err(), ImageError::WrongSamples);
        assert_eq!(mirror(&mut one.clone()).unwrap_err(), ImageError::WrongSamples);
    }

    #[test]
    fn inks_become_colours() {
        let mut out = [0; 6];
        cmyk_row(&[255, 0, 128, 255, 255, 255, 255, 0], &mut out, 3);
        assert_eq!(out, [255, 0, 128, 0, 0, 0]);
        let mut grey = [0; 1];
        cmyk_row(&[255, 255, 255, 255], &mut grey, 1);
        assert_eq!(grey, [255]);
    }
}
