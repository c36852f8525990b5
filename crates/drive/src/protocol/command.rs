//! Commands: what the host asks of a drive.

use super::Purpose;
use super::wire::{DecodeError, get, put, same_or_not_zero};

/// A request to a drive. `tag` is the caller's: the completion carries it back, and two commands in flight may share one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Command {
    pub tag: u64,
    pub operation: Operation,
    /// The purpose for which its bytes are counted.
    pub purpose: Purpose,
}

/// A region of memory that a drive can reach. A drive refuses a region that the queue pair does not have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RegionId(pub u8);

impl RegionId {
    /// The drive's own memory.
    pub const LOCAL: RegionId = RegionId(0);
    /// The memory of a queue pair's host ([`HostRegion`](crate::HostRegion)), which the drive reads and never writes.
    pub const HOST: RegionId = RegionId(1);
}

/// A place in a region, in bytes from its start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryAddress {
    pub region: RegionId,
    pub offset: u64,
}

impl MemoryAddress {
    pub const fn local(offset: u64) -> MemoryAddress {
        MemoryAddress { region: RegionId::LOCAL, offset }
    }

    pub const fn host(offset: u64) -> MemoryAddress {
        MemoryAddress { region: RegionId::HOST, offset }
    }
}

/// A range of local memory, in bytes from its start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LocalRange {
    pub offset: u64,
    pub length: u32,
}

impl LocalRange {
    /// The range of no bytes: a program's absent parameters, input or output.
    pub const EMPTY: LocalRange = LocalRange { offset: 0, length: 0 };

    /// Its end, if it is inside local memory, which cannot overflow.
    pub(crate) fn end(self) -> u64 {
        self.offset + u64::from(self.length)
    }
}

/// The place of a program in the list that the drive was built with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ProgramId(pub u16);

/// `flash`, `local` and `from` are byte offsets, `length` is in bytes. Flash offsets, memory offsets and lengths of `Read` and
/// `Write` are multiples of the drive's sector, and no length is zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Flash to local memory. The drive writes no other region, so there is no way to name one.
    Read { flash: u64, local: u64, length: u32 },
    /// Local memory, or the host's region, to flash. With `fua` (force unit access) it completes only when its bytes are durable. Otherwise
    /// they are durable after a `Flush` that is submitted after this write has completed.
    Write { flash: u64, from: MemoryAddress, length: u32, fua: bool },
    /// Makes durable every write that *completed* before this was submitted, on whatever queue pair of the drive.
    Flush,
    /// The bytes are no longer needed. What a later read of them returns is undefined.
    Discard { flash: u64, length: u64 },
    /// Runs a program over local memory. `output` must not overlap the other two.
    Execute { program: ProgramId, parameters: LocalRange, input: LocalRange, output: LocalRange },
    /// Runs a list of stages ([`Stage`](super::Stage)), which lie in local memory one behind the other, with one completion for all
    /// of them. The list's offset is a multiple of eight.
    Pipeline { stages: LocalRange },
    /// Runs pipelines of programs over sub-buffers. `pipelines` is up to 128 descriptors
    /// ([`PipelineDescriptor`](super::PipelineDescriptor)), one behind the other; its offset is a multiple of eight. The command
    /// ends when all of them have, each with its result in its descriptor; the result's first word says how many failed.
    Compute { pipelines: LocalRange },
    /// Cancels pipelines of every `Compute` with this tag on the same queue pair: the one with this index in its list, or all. Each ends
    /// with [`PipelineReason::Cancelled`](super::PipelineReason::Cancelled), now or when its running task does; the `Compute` completes as
    /// always. Always succeeds; the result's first word is the number of pipelines cancelled.
    Cancel { tag: u64, pipeline: Option<u16> },
    /// Writes the drive's [`Identity`](super::Identity) to local memory. The result's first word is its length in bytes; if the range is
    /// shorter, nothing is written.
    Identify { into: LocalRange },
}

/// An operation without its operands. Those below 0x80 have NVMe's numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Opcode {
    Flush = 0x00,
    Write = 0x01,
    Read = 0x02,
    Identify = 0x06,
    Discard = 0x09,
    Cancel = 0x18,
    Execute = 0x80,
    Pipeline = 0x81,
    Compute = 0x82,
}

impl Opcode {
    pub const COUNT: usize = Self::ALL.len();
    pub const ALL: [Opcode; 9] = [
        Opcode::Read,
        Opcode::Write,
        Opcode::Flush,
        Opcode::Discard,
        Opcode::Execute,
        Opcode::Pipeline,
        Opcode::Identify,
        Opcode::Compute,
        Opcode::Cancel,
    ];

    /// Its index in [`Opcode::ALL`].
    pub fn index(self) -> usize {
        match self {
            Opcode::Read => 0,
            Opcode::Write => 1,
            Opcode::Flush => 2,
            Opcode::Discard => 3,
            Opcode::Execute => 4,
            Opcode::Pipeline => 5,
            Opcode::Identify => 6,
            Opcode::Compute => 7,
            Opcode::Cancel => 8,
        }
    }

    pub fn name(self) -> &'static str {
        match self {
            Opcode::Read => "read",
            Opcode::Write => "write",
            Opcode::Flush => "flush",
            Opcode::Discard => "discard",
            Opcode::Execute => "execute",
            Opcode::Pipeline => "pipeline",
            Opcode::Identify => "identify",
            Opcode::Compute => "compute",
            Opcode::Cancel => "cancel",
        }
    }
}

impl Operation {
    pub fn opcode(&self) -> Opcode {
        match self {
            Operation::Read { .. } => Opcode::Read,
            Operation::Write { .. } => Opcode::Write,
            Operation::Flush => Opcode::Flush,
            Operation::Discard { .. } => Opcode::Discard,
            Operation::Execute { .. } => Opcode::Execute,
            Operation::Pipeline { .. } => Opcode::Pipeline,
            Operation::Identify { .. } => Opcode::Identify,
            Operation::Compute { .. } => Opcode::Compute,
            Operation::Cancel { .. } => Opcode::Cancel,
        }
    }
}

// A command, little endian:
//
//   0        8        9       10        12         16         20         24         32         40         48        49       50     64
//   | tag u64 | opcode | flags | program | length 0 | length 1 | length 2 | offset 0 | offset 1 | offset 2 | purpose | region | zero |
//   |         | u8     | u8    | u16     | u32      | u32      | u32      | u64      | u64      | u64      | u8      | u8     |      |
//
//   Every operation has a purpose.
//
//   operation   length 0     length 1   length 2   offset 0     offset 1   offset 2
//   Read        length       -          -          flash        local      -
//   Write       length       -          -          flash        from       -          flags bit 0: force unit access; region of `from`
//   Flush       -            -          -          -            -          -
//   Discard     -            -          -          flash        length     -
//   Execute     parameters   input      output     parameters   input      output     program
//   Pipeline    stages       -          -          stages       -          -
//   Identify    into         -          -          into         -          -
//   Compute     pipelines    -          -          pipelines    -          -
//   Cancel      -            -          -          tag          -          -          flags bit 1: one pipeline; program: its number
const TAG: usize = 0;
const OPCODE: usize = 8;
const FLAGS: usize = 9;
const PROGRAM: usize = 10;
const LENGTHS: [usize; 3] = [12, 16, 20];
const OFFSETS: [usize; 3] = [24, 32, 40];
const PURPOSE: usize = 48;
const REGION: usize = 49;
const COMMAND_END: usize = 50;
const _: () = assert!(LENGTHS[2] + 4 == OFFSETS[0] && OFFSETS[2] + 8 == PURPOSE);
const _: () = assert!(PURPOSE + 1 == REGION && REGION + 1 == COMMAND_END);
const _: () = assert!(COMMAND_END <= Command::ENCODED_BYTES);

const FLAG_FUA: u8 = 1;
const FLAG_ONE: u8 = 2;

/// The fields of a command, before the opcode gives them a meaning.
#[derive(Default)]
struct Fields {
    flags: u8,
    region: u8,
    program: u16,
    lengths: [u32; 3],
    offsets: [u64; 3],
}

impl Command {
    /// Bytes of an encoded command: a cache line.
    pub const ENCODED_BYTES: usize = 64;

    pub const fn new(tag: u64, operation: Operation) -> Command {
        Command { tag, operation, purpose: Purpose::Other }
    }

    #[must_use]
    pub const fn of(mut self, purpose: Purpose) -> Command {
        self.purpose = purpose;
        self
    }

    pub fn encode(&self) -> [u8; Self::ENCODED_BYTES] {
        let mut fields = Fields::default();
        match self.operation {
            Operation::Read { flash, local, length } => {
                fields.lengths[0] = length;
                fields.offsets = [flash, local, 0];
            }
            Operation::Write { flash, from, length, fua } => {
                fields.flags = if fua { FLAG_FUA } else { 0 };
                fields.region = from.region.0;
                fields.lengths[0] = length;
                fields.offsets = [flash, from.offset, 0];
            }
            Operation::Flush => {}
            Operation::Discard { flash, length } => fields.offsets = [flash, length, 0],
            Operation::Execute { program, parameters, input, output } => {
                fields.program = program.0;
                fields.lengths = [parameters.length, input.length, output.length];
                fields.offsets = [parameters.offset, input.offset, output.offset];
            }
            Operation::Pipeline { stages: range }
            | Operation::Identify { into: range }
            | Operation::Compute { pipelines: range } => {
                fields.lengths[0] = range.length;
                fields.offsets[0] = range.offset;
            }
            Operation::Cancel { tag, pipeline } => {
                fields.flags = if pipeline.is_some() { FLAG_ONE } else { 0 };
                fields.program = pipeline.unwrap_or(0);
                fields.offsets[0] = tag;
            }
        }
        let mut bytes = [0; Self::ENCODED_BYTES];
        put(&mut bytes, TAG, self.tag.to_le_bytes());
        bytes[OPCODE] = self.operation.opcode() as u8;
        bytes[FLAGS] = fields.flags;
        put(&mut bytes, PROGRAM, fields.program.to_le_bytes());
        for place in 0..3 {
            put(&mut bytes, LENGTHS[place], fields.lengths[place].to_le_bytes());
            put(&mut bytes, OFFSETS[place], fields.offsets[place].to_le_bytes());
        }
        bytes[PURPOSE] = self.purpose as u8;
        bytes[REGION] = fields.region;
        bytes
    }

    /// Checks only the form: the queue pair checks whether ranges lie inside the drive.
    pub fn decode(bytes: &[u8; Self::ENCODED_BYTES]) -> Result<Command, DecodeError> {
        let length = |place: usize| u32::from_le_bytes(get(bytes, LENGTHS[place]));
        let offset = |place: usize| u64::from_le_bytes(get(bytes, OFFSETS[place]));
        let range = |place: usize| LocalRange { offset: offset(place), length: length(place) };
        let program = u16::from_le_bytes(get(bytes, PROGRAM));
        let operation = match bytes[OPCODE] {
            code if code == Opcode::Read as u8 => {
                Operation::Read { flash: offset(0), local: offset(1), length: length(0) }
            }
            code if code == Opcode::Write as u8 => Operation::Write {
                flash: offset(0),
                from: MemoryAddress { region: RegionId(bytes[REGION]), offset: offset(1) },
                length: length(0),
                fua: bytes[FLAGS] & FLAG_FUA != 0,
            },
            code if code == Opcode::Flush as u8 => Operation::Flush,
            code if code == Opcode::Discard as u8 => Operation::Discard { flash: offset(0), length: offset(1) },
            code if code == Opcode::Execute as u8 => Operation::Execute {
                program: ProgramId(program),
                parameters: range(0),
                input: range(1),
                output: range(2),
            },
            code if code == Opcode::Pipeline as u8 => Operation::Pipeline { stages: range(0) },
            code if code == Opcode::Identify as u8 => Operation::Identify { into: range(0) },
            code if code == Opcode::Compute as u8 => Operation::Compute { pipelines: range(0) },
            code if code == Opcode::Cancel as u8 => {
                Operation::Cancel { tag: offset(0), pipeline: (bytes[FLAGS] & FLAG_ONE != 0).then_some(program) }
            }
            unknown => return Err(DecodeError::UnknownOpcode(unknown)),
        };
        let purpose = Purpose::of_number(bytes[PURPOSE]).ok_or(DecodeError::UnknownPurpose(bytes[PURPOSE]))?;
        let command = Command { tag: u64::from_le_bytes(get(bytes, TAG)), operation, purpose };
        same_or_not_zero(bytes, &command.encode())?;
        Ok(command)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn range() -> impl Strategy<Value = LocalRange> {
        (any::<u64>(), any::<u32>()).prop_map(|(offset, length)| LocalRange { offset, length })
    }

    fn operation() -> impl Strategy<Value = Operation> {
        prop_oneof![
            (any::<u64>(), any::<u64>(), any::<u32>()).prop_map(|(flash, local, length)| Operation::Read {
                flash,
                local,
                length
            }),
            (any::<u64>(), any::<u8>(), any::<u64>(), any::<u32>(), any::<bool>()).prop_map(
                |(flash, region, offset, length, fua)| {
                    let from = MemoryAddress { region: RegionId(region), offset };
                    Operation::Write { flash, from, length, fua }
                }
            ),
            Just(Operation::Flush),
            (any::<u64>(), any::<u64>()).prop_map(|(flash, length)| Operation::Discard { flash, length }),
            (any::<u16>(), range(), range(), range()).prop_map(|(program, parameters, input, output)| {
                Operation::Execute { program: ProgramId(program), parameters, input, output }
            }),
            range().prop_map(|stages| Operation::Pipeline { stages }),
            range().prop_map(|into| Operation::Identify { into }),
            range().prop_map(|pipelines| Operation::Compute { pipelines }),
            any::<(u64, Option<u16>)>().prop_map(|(tag, pipeline)| Operation::Cancel { tag, pipeline }),
        ]
    }

    proptest! {
        #[test]
        fn a_command_survives_its_encoding(
            tag: u64, operation in operation(), purpose in 0..Purpose::COUNT,
        ) {
            let command = Command { tag, operation, purpose: Purpose::ALL[purpose] };
            prop_assert_eq!(Command::decode(&command.encode()), Ok(command));
        }

        #[test]
        fn what_decodes_encodes_to_the_same_bytes(
            bytes in any::<[u8; COMMAND_END]>(), opcode in 0..=255_u8, keep_reserved: bool,
        ) {
            let mut whole = [0; 64];
            whole[..COMMAND_END].copy_from_slice(&bytes);
            whole[OPCODE] = opcode;
            if keep_reserved { whole[63] = bytes[0]; }
            if let Ok(command) = Command::decode(&whole) {
                prop_assert_eq!(command.encode(), whole);
            }
        }
    }

    #[test]
    fn the_layout_does_not_drift() {
        let operation =
            Operation::Write { flash: 0x1122, from: MemoryAddress::host(0x3344), length: 0x5566, fua: true };
        let command = Command::new(0x0807_0605_0403_0201, operation).of(Purpose::Log);
        let mut expected = [0; 64];
        expected[..8].copy_from_slice(&[1, 2, 3, 4, 5, 6, 7, 8]);
        expected[8] = 1;
        expected[9] = 1;
        expected[12..14].copy_from_slice(&[0x66, 0x55]);
        expected[24..26].copy_from_slice(&[0x22, 0x11]);
        expected[32..34].copy_from_slice(&[0x44, 0x33]);
        expected[48..50].copy_from_slice(&[3, 1]);
        assert_eq!(command.encode(), expected);
    }

    #[test]
    fn damaged_bytes_are_refused() {
        let flush = Command::new(7, Operation::Flush).encode();
        let damaged = |at: usize, byte: u8| {
            let mut bytes = flush;
            bytes[at] = byte;
            Command::decode(&bytes)
        };
        assert_eq!(damaged(OPCODE, 0x7f), Err(DecodeError::UnknownOpcode(0x7f)));
        assert_eq!(damaged(FLAGS, 1), Err(DecodeError::NotZero { offset: FLAGS }));
        assert_eq!(damaged(FLAGS, 2), Err(DecodeError::NotZero { offset: FLAGS }));
        assert_eq!(damaged(24, 1), Err(DecodeError::NotZero { offset: 24 }));
        assert_eq!(damaged(PURPOSE, 200), Err(DecodeError::UnknownPurpose(200)));
        assert_eq!(damaged(REGION, 1), Err(DecodeError::NotZero { offset: REGION }));
        assert_eq!(damaged(COMMAND_END, 1), Err(DecodeError::NotZero { offset: COMMAND_END }));
        assert_eq!(damaged(63, 1), Err(DecodeError::NotZero { offset: 63 }));
    }

    #[test]
    fn a_read_into_another_region_than_the_drives_own_has_no_form() {
        let read = Command::new(7, Operation::Read { flash: 0, local: 0, length: 512 });
        let mut bytes = read.encode();
        bytes[REGION] = RegionId::HOST.0;
        assert_eq!(Command::decode(&bytes), Err(DecodeError::NotZero { offset: REGION }));
    }

    #[test]
    fn opcodes_index_their_own_list() {
        for (place, opcode) in Opcode::ALL.into_iter().enumerate() {
            assert_eq!(opcode.index(), place);
        }
    }
}
