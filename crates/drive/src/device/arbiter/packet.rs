//! The task packet: all that the arbiter tells a compute unit about a task (ProcPIPE, section 3.1).

use crate::protocol::ProgramId;

/// The most stages of a pipeline that the arbiter schedules: eight programs, a source and a sink.
pub const PIPELINE_STAGES_MAX: usize = 10;
/// Bytes of arguments that a stage gets beside its input.
pub const ARGUMENTS_BYTES: usize = 28;

/// A part of local memory that the arbiter hands out, by its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SubBuffer(pub u16);

/// One run of one stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TaskPacket {
    /// The pipeline's number.
    pub sequence: u32,
    /// The index of the stage to run.
    pub stage: u8,
    pub stage_count: u8,
    pub application: u16,
    /// The output of the stage before. `None` for the first stage, which brings its bytes from the source.
    pub input: Option<SubBuffer>,
    pub output: SubBuffer,
    /// No further part of the input follows this one.
    pub input_is_last: bool,
    /// The run before this one left more to produce from the same input.
    pub resumes: bool,
    /// The programs of the whole pipeline, in order.
    pub stages: [ProgramId; PIPELINE_STAGES_MAX],
    pub arguments: [u8; ARGUMENTS_BYTES],
}

// A packet, little endian: a cache line.
//
//   0              4          5             6                8            10           12         13     16           36          64
//   | sequence u32 | stage u8 | stages' u8  | application    | input u16  | output u16 | flags u8 | zero | programs   | arguments |
//   |              |          | number      | u16            |            |            |          |      | 10 × u16   |           |
//
//   flags: bit 0 there is an input, bit 1 it is the last part, bit 2 resumes
const STAGE: usize = 4;
const STAGE_COUNT: usize = 5;
const APPLICATION: usize = 6;
const INPUT: usize = 8;
const OUTPUT: usize = 10;
const FLAGS: usize = 12;
const PROGRAMS: usize = 16;
const ARGUMENTS: usize = 36;
const _: () = assert!(PROGRAMS + 2 * PIPELINE_STAGES_MAX == ARGUMENTS);
const _: () = assert!(ARGUMENTS + ARGUMENTS_BYTES == TaskPacket::ENCODED_BYTES);

const FLAG_INPUT: u8 = 1;
const FLAG_LAST: u8 = 2;
const FLAG_RESUMES: u8 = 4;

impl TaskPacket {
    pub const ENCODED_BYTES: usize = 64;

    pub fn encode(&self) -> [u8; Self::ENCODED_BYTES] {
        let mut bytes = [0; Self::ENCODED_BYTES];
        bytes[..STAGE].copy_from_slice(&self.sequence.to_le_bytes());
        (bytes[STAGE], bytes[STAGE_COUNT]) = (self.stage, self.stage_count);
        bytes[APPLICATION..INPUT].copy_from_slice(&self.application.to_le_bytes());
        let SubBuffer(input) = self.input.unwrap_or(SubBuffer(0));
        bytes[INPUT..OUTPUT].copy_from_slice(&input.to_le_bytes());
        bytes[OUTPUT..FLAGS].copy_from_slice(&self.output.0.to_le_bytes());
        let flag = |is: bool, flag| if is { flag } else { 0 };
        bytes[FLAGS] = flag(self.input.is_some(), FLAG_INPUT)
            | flag(self.input_is_last, FLAG_LAST)
            | flag(self.resumes, FLAG_RESUMES);
        for (place, program) in self.stages.iter().enumerate() {
            bytes[PROGRAMS + 2 * place..PROGRAMS + 2 * place + 2].copy_from_slice(&program.0.to_le_bytes());
        }
        bytes[ARGUMENTS..].copy_from_slice(&self.arguments);
        bytes
    }

    /// `None` if the bytes are not a valid packet: the stage is beyond the list, or a bit without meaning is set.
    pub fn decode(bytes: &[u8; Self::ENCODED_BYTES]) -> Option<TaskPacket> {
        let word = |at: usize| u16::from_le_bytes([bytes[at], bytes[at + 1]]);
        let (stage, stage_count, flags) = (bytes[STAGE], bytes[STAGE_COUNT], bytes[FLAGS]);
        if usize::from(stage_count) > PIPELINE_STAGES_MAX || stage >= stage_count {
            return None;
        }
        let packet = TaskPacket {
            sequence: u32::from(word(0)) | u32::from(word(2)) << 16,
            stage,
            stage_count,
            application: word(APPLICATION),
            input: (flags & FLAG_INPUT != 0).then(|| SubBuffer(word(INPUT))),
            output: SubBuffer(word(OUTPUT)),
            input_is_last: flags & FLAG_LAST != 0,
            resumes: flags & FLAG_RESUMES != 0,
            stages: std::array::from_fn(|place| ProgramId(word(PROGRAMS + 2 * place))),
            arguments: std::array::from_fn(|place| bytes[ARGUMENTS + place]),
        };
        (packet.encode() == *bytes).then_some(packet)
    }

    pub fn program(&self) -> ProgramId {
        self.stages[usize::from(self.stage)]
    }

    /// The output of this stage is the output of the pipeline.
    pub fn is_last_stage(&self) -> bool {
        self.stage + 1 == self.stage_count
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_layout_does_not_drift() {
        let packet = TaskPacket {
            sequence: 0x0403_0201,
            stage: 1,
            stage_count: 2,
            application: 0x0605,
            input: Some(SubBuffer(0x0807)),
            output: SubBuffer(0x0a09),
            input_is_last: true,
            resumes: false,
            stages: [1, 2, 0, 0, 0, 0, 0, 0, 0, 0].map(ProgramId),
            arguments: [7; ARGUMENTS_BYTES],
        };
        let mut expected = [0; 64];
        expected[..13].copy_from_slice(&[1, 2, 3, 4, 1, 2, 5, 6, 7, 8, 9, 10, 3]);
        (expected[16], expected[18]) = (1, 2);
        expected[36..].fill(7);
        assert_eq!(packet.encode(), expected);
        assert_eq!(TaskPacket::decode(&expected), Some(packet));
    }

    proptest! {
        #[test]
        fn what_decodes_encodes_to_the_same_bytes(
            head in any::<[u8; 32]>(), stage in 0..12_u8, stage_count in 0..12_u8, flags in 0..10_u8, zero: bool,
        ) {
            let mut bytes = [0; 64];
            bytes[..32].copy_from_slice(&head);
            (bytes[STAGE], bytes[STAGE_COUNT], bytes[FLAGS]) = (stage, stage_count, flags);
            if zero { bytes[FLAGS + 1..PROGRAMS].fill(0); }
            if let Some(packet) = TaskPacket::decode(&bytes) {
                prop_assert!(packet.stage < packet.stage_count);
                prop_assert_eq!(packet.encode(), bytes);
            }
        }
    }
}
