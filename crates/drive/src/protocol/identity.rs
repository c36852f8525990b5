//! A drive's identity: its namespaces, its limits, and its programs, in the words of two standards.
//!
//! In NVMe's words a drive has three namespaces, each of another command set: flash (NVM), local memory (SLM), programs
//! (computational programs). In the words of SNIA's Computational Storage architecture the drive is a CSx, its flash the device
//! storage, local memory the function data memory (FDM), a program a computational storage function (CSF). `docs/STANDARDS.md` has
//! the whole table.

use super::command::ProgramId;
use super::wire::{get, put};
use std::fmt;
use tapetum_kernels::sha256::Sha256;

/// The version of the encoded [`Identity`].
const IDENTITY_VERSION: u16 = 2;
pub const PROGRAM_NAME_BYTES: usize = 32;

/// NVMe's command set identifier of a namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum CommandSet {
    /// NVM: blocks of flash.
    Flash = 0,
    /// Subsystem local memory (SLM).
    LocalMemory = 3,
    /// Computational programs.
    Programs = 4,
}

/// A namespace of a drive, as NVMe identifies it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NamespaceIdentity {
    /// NSID.
    pub number: u32,
    pub command_set: CommandSet,
    /// Flash: its bytes. Local memory: its bytes. Programs: how many there are.
    pub size: u64,
    /// Flash: bytes of a sector (an LBA). Local memory: bytes of the unit of allocation. Programs: 1.
    pub unit: u32,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProgramIdentity {
    /// NVMe's program index.
    pub id: ProgramId,
    /// Version of the meaning of its parameters, inputs and output. Another version is another program.
    pub version: u16,
    /// It takes its input and gives its output in parts.
    pub is_stream: bool,
    /// It came with the drive. The alternative is a program that a host loaded.
    pub is_built_in: bool,
    pub name: String,
}

impl ProgramIdentity {
    /// The same number for this program on every drive (NVMe: PUID; SNIA: global id of a CSF): the first eight bytes of the SHA-256 of
    /// its name and version. Never zero, which the standards use for no number.
    pub fn unique_number(&self) -> u64 {
        let mut digest = Sha256::default();
        digest.update(format!("tapetum program {} {}", self.name, self.version).as_bytes());
        u64::from_le_bytes(get(&digest.finish(), 0)).max(1)
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    pub flash_bytes: u64,
    pub local_bytes: u64,
    pub sector_bytes: u32,
    /// The unit in which local memory is handed out.
    pub local_unit_bytes: u32,
    pub stages_max: u16,
    pub inputs_max: u16,
    /// The most buffers of local memory that one command may name.
    pub buffers_max: u16,
    pub programs: Vec<ProgramIdentity>,
}

/// Why bytes are not a valid identity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IdentityError {
    /// The drive is newer or older than this code.
    Version(u16),
    TooShort,
    /// A name is invalid, a namespace is not the one of its place, or an unknown flag is set.
    Malformed {
        offset: usize,
    },
}

impl fmt::Display for IdentityError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            IdentityError::Version(version) => write!(
                f,
                "the drive identifies itself in form {version}, and this version reads {IDENTITY_VERSION}: \
                 run the same one on both sides"
            ),
            IdentityError::TooShort => write!(f, "the drive's identity ends before its last program"),
            IdentityError::Malformed { offset } => {
                write!(f, "byte {offset} of the drive's identity has no meaning: the drive is newer, or it is damaged")
            }
        }
    }
}

impl std::error::Error for IdentityError {}

// An identity, little endian: a head, an entry for each namespace, an entry for each program.
//
//   0             2            4            6            8            10            16
//   | version u16 | namespaces | programs   | stages max | inputs max | buffers max | zero to 64 |
//   |             | u16, = 3   | u16        | u16        | u16        | u16         |            |
//
//   A namespace; flash is number 1, local memory 2, programs 3:
//   0            4                8          12     16         24
//   | number u32 | command set u8 | unit u32 | zero | size u64 | zero to 64 |
//
//   A program:
//   0        2             4       6      8                   16     32                 64
//   | id u16 | version u16 | flags | zero | unique number u64 | zero | name, then zeros |
//   |        |             | u16   |      |                   |      |                  |
//
//   flags: bit 0 stream, bit 1 built in
const HEAD_BYTES: usize = 64;
const ENTRY_BYTES: usize = 64;
const NAMESPACES: usize = 3;
const NAMESPACE_SET: usize = 4;
const NAMESPACE_UNIT: usize = 8;
const NAMESPACE_SIZE: usize = 16;
const PROGRAMS_AT: usize = HEAD_BYTES + NAMESPACES * ENTRY_BYTES;
const NAME: usize = 32;
const _: () = assert!(NAME + PROGRAM_NAME_BYTES == ENTRY_BYTES);
const FLAG_STREAM: u16 = 1;
const FLAG_BUILT_IN: u16 = 2;

impl Identity {
    /// Numbers of the namespaces (NSIDs).
    pub const FLASH_NAMESPACE: u32 = 1;
    pub const LOCAL_NAMESPACE: u32 = 2;
    pub const PROGRAM_NAMESPACE: u32 = 3;

    /// The bytes that an identity with so many programs takes.
    pub const fn encoded_bytes(programs: usize) -> usize {
        PROGRAMS_AT + programs * ENTRY_BYTES
    }

    pub fn program(&self, name: &str, version: u16) -> Option<ProgramId> {
        self.programs.iter().find(|program| program.name == name && program.version == version).map(|found| found.id)
    }

    /// Its namespaces, in the order of their numbers.
    pub fn namespaces(&self) -> [NamespaceIdentity; NAMESPACES] {
        let namespace = |number, command_set, size, unit| NamespaceIdentity { number, command_set, size, unit };
        [
            namespace(Identity::FLASH_NAMESPACE, CommandSet::Flash, self.flash_bytes, self.sector_bytes),
            namespace(Identity::LOCAL_NAMESPACE, CommandSet::LocalMemory, self.local_bytes, self.local_unit_bytes),
            namespace(Identity::PROGRAM_NAMESPACE, CommandSet::Programs, self.programs.len() as u64, 1),
        ]
    }

    /// # Panics
    /// When a program's name is empty, or longer than [`PROGRAM_NAME_BYTES`].
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = vec![0; Identity::encoded_bytes(self.programs.len())];
        put(&mut bytes, 0, IDENTITY_VERSION.to_le_bytes());
        put(&mut bytes, 2, (NAMESPACES as u16).to_le_bytes());
        put(&mut bytes, 4, (self.programs.len() as u16).to_le_bytes());
        put(&mut bytes, 6, self.stages_max.to_le_bytes());
        put(&mut bytes, 8, self.inputs_max.to_le_bytes());
        put(&mut bytes, 10, self.buffers_max.to_le_bytes());
        for (namespace, entry) in self.namespaces().iter().zip(bytes[HEAD_BYTES..].chunks_mut(ENTRY_BYTES)) {
            put(entry, 0, namespace.number.to_le_bytes());
            entry[NAMESPACE_SET] = namespace.command_set as u8;
            put(entry, NAMESPACE_UNIT, namespace.unit.to_le_bytes());
            put(entry, NAMESPACE_SIZE, namespace.size.to_le_bytes());
        }
        for (program, entry) in self.programs.iter().zip(bytes[PROGRAMS_AT..].chunks_mut(ENTRY_BYTES)) {
            let name = program.name.as_bytes();
            assert!((1..=PROGRAM_NAME_BYTES).contains(&name.len()), "a name of {} bytes", name.len());
            let flags = [(program.is_stream, FLAG_STREAM), (program.is_built_in, FLAG_BUILT_IN)];
            let flags = flags.into_iter().filter(|(is_set, _)| *is_set).fold(0, |all, (_, flag)| all | flag);
            put(entry, 0, program.id.0.to_le_bytes());
            put(entry, 2, program.version.to_le_bytes());
            put(entry, 4, flags.to_le_bytes());
            put(entry, 8, program.unique_number().to_le_bytes());
            entry[NAME..NAME + name.len()].copy_from_slice(name);
        }
        bytes
    }

    /// Strict, like all decoding here. Bytes behind the last program are ignored.
    pub fn decode(bytes: &[u8]) -> Result<Identity, IdentityError> {
        let version = u16::from_le_bytes(*bytes.first_chunk().ok_or(IdentityError::TooShort)?);
        if version != IDENTITY_VERSION {
            return Err(IdentityError::Version(version));
        }
        let head = bytes.get(..PROGRAMS_AT).ok_or(IdentityError::TooShort)?;
        let count = usize::from(u16::from_le_bytes(get(head, 4)));
        let whole = bytes.get(..Identity::encoded_bytes(count)).ok_or(IdentityError::TooShort)?;
        let mut programs = Vec::with_capacity(count);
        for (place, entry) in whole[PROGRAMS_AT..].chunks(ENTRY_BYTES).enumerate() {
            let name = entry[NAME..].split(|byte| *byte == 0).next().unwrap_or_default();
            let Some(name) = std::str::from_utf8(name).ok().filter(|name| !name.is_empty()) else {
                return Err(IdentityError::Malformed { offset: PROGRAMS_AT + place * ENTRY_BYTES + NAME });
            };
            let flags = u16::from_le_bytes(get(entry, 4));
            programs.push(ProgramIdentity {
                id: ProgramId(u16::from_le_bytes(get(entry, 0))),
                version: u16::from_le_bytes(get(entry, 2)),
                is_stream: flags & FLAG_STREAM != 0,
                is_built_in: flags & FLAG_BUILT_IN != 0,
                name: name.to_owned(),
            });
        }
        let of_namespace = |number: u32, at: usize| HEAD_BYTES + (number as usize - 1) * ENTRY_BYTES + at;
        let size = |number| u64::from_le_bytes(get(head, of_namespace(number, NAMESPACE_SIZE)));
        let unit = |number| u32::from_le_bytes(get(head, of_namespace(number, NAMESPACE_UNIT)));
        let identity = Identity {
            flash_bytes: size(Identity::FLASH_NAMESPACE),
            local_bytes: size(Identity::LOCAL_NAMESPACE),
            sector_bytes: unit(Identity::FLASH_NAMESPACE),
            local_unit_bytes: unit(Identity::LOCAL_NAMESPACE),
            stages_max: u16::from_le_bytes(get(head, 6)),
            inputs_max: u16::from_le_bytes(get(head, 8)),
            buffers_max: u16::from_le_bytes(get(head, 10)),
            programs,
        };
        match identity.encode().iter().zip(whole).position(|(expected, given)| expected != given) {
            None => Ok(identity),
            Some(offset) => Err(IdentityError::Malformed { offset }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn identity() -> Identity {
        let program = |id, name: &str| ProgramIdentity {
            id: ProgramId(id),
            version: 3,
            is_stream: id == 1,
            is_built_in: true,
            name: name.to_owned(),
        };
        Identity {
            flash_bytes: 1 << 30,
            local_bytes: 1 << 20,
            sector_bytes: 4096,
            local_unit_bytes: 4096,
            stages_max: 256,
            inputs_max: 3,
            buffers_max: 4,
            programs: vec![program(0, "match-record"), program(1, &"n".repeat(PROGRAM_NAME_BYTES))],
        }
    }

    #[test]
    fn an_identity_survives_its_encoding() {
        let identity = identity();
        let mut bytes = identity.encode();
        assert_eq!((bytes[0], bytes[2], bytes[4], bytes[PROGRAMS_AT + 32]), (2, 3, 2, b'm'));
        assert_eq!(Identity::decode(&bytes), Ok(identity.clone()));
        assert_eq!(
            (identity.program("match-record", 3), identity.program("match-record", 4)),
            (Some(ProgramId(0)), None)
        );
        bytes.push(9);
        assert_eq!(Identity::decode(&bytes), Ok(identity));
    }

    #[test]
    fn namespaces_have_the_numbers_of_nvme() {
        let all = identity().namespaces().map(|of| (of.number, of.command_set as u8, of.size, of.unit));
        assert_eq!(all, [(1, 0, 1 << 30, 4096), (2, 3, 1 << 20, 4096), (3, 4, 2, 1)]);
    }

    #[test]
    fn another_name_or_version_is_another_number() {
        let [first, second] = identity().programs.try_into().unwrap();
        let later = ProgramIdentity { version: 4, ..first.clone() };
        let moved = ProgramIdentity { id: ProgramId(9), ..first.clone() };
        assert_eq!(moved.unique_number(), first.unique_number(), "its place on a drive does not count");
        assert!(first.unique_number() != second.unique_number() && first.unique_number() != later.unique_number());
    }

    #[test]
    fn damaged_bytes_are_refused() {
        let bytes = identity().encode();
        let damaged = |at: usize, byte: u8| {
            let mut bytes = bytes.clone();
            bytes[at] = byte;
            Identity::decode(&bytes)
        };
        assert_eq!(damaged(0, 1), Err(IdentityError::Version(1)));
        assert_eq!(damaged(2, 4), Err(IdentityError::Malformed { offset: 2 }));
        assert_eq!(damaged(4, 3), Err(IdentityError::TooShort));
        let malformed = |at: usize, byte| assert_eq!(damaged(at, byte), Err(IdentityError::Malformed { offset: at }));
        malformed(63, 1);
        malformed(64 + NAMESPACE_SET, 2);
        malformed(128, 3);
        malformed(PROGRAMS_AT + 4, 4);
        malformed(PROGRAMS_AT + 8, 0);
        malformed(PROGRAMS_AT + 32, 0);
        malformed(PROGRAMS_AT + 63, b'x');
        assert_eq!(Identity::decode(&bytes[..bytes.len() - 1]), Err(IdentityError::TooShort));
        assert_eq!(Identity::decode(&bytes[..64]), Err(IdentityError::TooShort));
        assert_eq!(Identity::decode(&[1, 0]), Err(IdentityError::Version(1)), "an earlier one may be shorter");
    }

    proptest! {
        #[test]
        fn what_decodes_encodes_to_the_same_bytes(at in 0..384_usize, byte: u8) {
            let mut bytes = identity().encode();
            bytes[at] = byte;
            if let Ok(decoded) = Identity::decode(&bytes) {
                prop_assert_eq!(&decoded.encode()[..], &bytes[..decoded.encode().len()]);
            }
        }
    }
}
