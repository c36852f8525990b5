//! Zstandard frames of any length, part by part: bytes in as they come, bytes out as there is room.

use std::io;
use zstd::stream::raw::{Decoder, Encoder, InBuffer, Operation, OutBuffer};

/// How far one step came.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StreamStep {
    /// Bytes of the input that are used up.
    pub consumed: usize,
    /// Bytes of the output that are filled.
    pub filled: usize,
    /// More is to come out, without more going in.
    pub has_more: bool,
}

/// Makes frames.
pub struct FrameEncoder(Encoder<'static>);

impl FrameEncoder {
    pub fn new(level: i32) -> io::Result<FrameEncoder> {
        Ok(FrameEncoder(Encoder::new(level)?))
    }

    /// `is_last`: the frame ends with this input.
    pub fn step(&mut self, input: &[u8], output: &mut [u8], is_last: bool) -> io::Result<StreamStep> {
        let mut from = InBuffer::around(input);
        let mut into = OutBuffer::around(output);
        while from.pos < input.len() && into.pos() < into.capacity() {
            self.0.run(&mut from, &mut into)?;
        }
        let mut has_more = from.pos < input.len();
        if is_last && !has_more {
            has_more = self.0.finish(&mut into, true)? > 0;
        }
        Ok(StreamStep { consumed: from.pos, filled: into.pos(), has_more })
    }
}

/// Takes frames, one behind the other.
pub struct FrameDecoder {
    decoder: Decoder<'static>,
    in_frame: bool,
}

impl FrameDecoder {
    pub fn new() -> io::Result<FrameDecoder> {
        Ok(FrameDecoder { decoder: Decoder::new()?, in_frame: false })
    }

    /// `is_last`: no more comes, so a frame that has not ended is damage.
    pub fn step(&mut self, input: &[u8], output: &mut [u8], is_last: bool) -> io::Result<StreamStep> {
        let mut from = InBuffer::around(input);
        let mut into = OutBuffer::around(output);
        let capacity = into.capacity();
        while into.pos() < capacity && (from.pos < input.len() || self.in_frame) {
            let before = (from.pos, into.pos());
            self.in_frame = self.decoder.run(&mut from, &mut into)? > 0;
            if (from.pos, into.pos()) == before {
                break;
            }
        }
        let is_full = into.pos() == capacity;
        let has_more = from.pos < input.len() || is_full && self.in_frame;
        if is_last && self.in_frame && !is_full {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok(StreamStep { consumed: from.pos, filled: into.pos(), has_more })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// All steps over `input` in parts of `part` bytes with room for `room`.
    fn run(
        mut step: impl FnMut(&[u8], &mut [u8], bool) -> io::Result<StreamStep>,
        input: &[u8],
        part: usize,
        room: usize,
    ) -> io::Result<Vec<u8>> {
        let (mut out, mut at) = (Vec::new(), 0);
        let mut buffer = vec![0; room];
        loop {
            let end = input.len().min(at + part);
            let StreamStep { consumed, filled, has_more } = step(&input[at..end], &mut buffer, end == input.len())?;
            out.extend_from_slice(&buffer[..filled]);
            at += consumed;
            if at == input.len() && !has_more {
                return Ok(out);
            }
            assert!(consumed > 0 || filled > 0, "a step that does nothing would go on for ever");
        }
    }

    proptest! {
        #[test]
        fn any_parts_make_the_same(raw in proptest::collection::vec(0..5_u8, 0..3000), part in 1..700_usize, room in 1..700_usize) {
            let mut encoder = FrameEncoder::new(3).unwrap();
            let frame = run(|from, into, last| encoder.step(from, into, last), &raw, part, room).unwrap();
            let mut decoder = FrameDecoder::new().unwrap();
            let back = run(|from, into, last| decoder.step(from, into, last), &frame, room, part).unwrap();
            prop_assert_eq!(back, raw);
        }

        #[test]
        fn damage_never_panics_nor_goes_on(bytes in proptest::collection::vec(any::<u8>(), 0..200), room in 1..100_usize) {
            let mut decoder = FrameDecoder::new().unwrap();
            let _ = run(|from, into, last| decoder.step(from, into, last), &bytes, 40, room);
        }
    }

    #[test]
    fn a_frame_that_is_cut_short_is_damage() {
        let frame =
            run(|from, into, last| FrameEncoder::new(1).unwrap().step(from, into, last), &[1; 100], 100, 100).unwrap();
        let mut decoder = FrameDecoder::new().unwrap();
        assert!(run(|from, into, last| decoder.step(from, into, last), &frame[..frame.len() - 1], 100, 500).is_err());
    }
}
