//! A drive's identity: its sizes and limits, and its programs.
//!
//! In the words of SNIA's Computational Storage architecture: the drive is a CSx, its flash the device storage, local memory the
//! function data memory (FDM), a program a computational storage function (CSF).

use super::command::ProgramId;
use super::wire::{get, put};
use std::fmt;

/// The version of the encoded [`Identity`].
const IDENTITY_VERSION: u16 = 1;
pub const PROGRAM_NAME_BYTES: usize = 32;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProgramIdentity {
    pub id: ProgramId,
    /// Version of the meaning of its parameters, inputs and output. Another version is another program.
    pub version: u16,
    /// It takes its input and gives its output in parts.
    pub is_stream: bool,
    pub name: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    pub flash_bytes: u64,
    pub local_bytes: u64,
    pub sector_bytes: u32,
    pub stages_max: u16,
    pub inputs_max: u16,
    pub programs: Vec<ProgramIdentity>,
}

/// Why bytes are not a valid identity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IdentityError {
    /// The drive is newer or older than this code.
    Version(u16),
    TooShort,
    /// A name is invalid, or an unknown flag is set.
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

// An identity, little endian: a head, and an entry for each program.
//
//   0             2              4            8             16            24           26           28     64
//   | version u16 | programs u16 | sector u32 | flash bytes | local bytes | stages max | inputs max | zero |
//   |             |              |            | u64         | u64         | u16        | u16        |      |
//
//   0        2             4       6      32                 64
//   | id u16 | version u16 | flags | zero | name, then zeros |
//   |        |             | u16   |      |                  |
//
//   flags: bit 0 stream
const HEAD_BYTES: usize = 64;
const ENTRY_BYTES: usize = 64;
const NAME: usize = 32;
const _: () = assert!(NAME + PROGRAM_NAME_BYTES == ENTRY_BYTES);
const FLAG_STREAM: u16 = 1;

impl Identity {
    /// The bytes that an identity with so many programs takes.
    pub const fn encoded_bytes(programs: usize) -> usize {
        HEAD_BYTES + programs * ENTRY_BYTES
    }

    pub fn program(&self, name: &str, version: u16) -> Option<ProgramId> {
        self.programs.iter().find(|program| program.name == name && program.version == version).map(|found| found.id)
    }

    /// # Panics
    /// When a program's name is empty, or longer than [`PROGRAM_NAME_BYTES`].
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = vec![0; Identity::encoded_bytes(self.programs.len())];
        put(&mut bytes, 0, IDENTITY_VERSION.to_le_bytes());
        put(&mut bytes, 2, (self.programs.len() as u16).to_le_bytes());
        put(&mut bytes, 4, self.sector_bytes.to_le_bytes());
        put(&mut bytes, 8, self.flash_bytes.to_le_bytes());
        put(&mut bytes, 16, self.local_bytes.to_le_bytes());
        put(&mut bytes, 24, self.stages_max.to_le_bytes());
        put(&mut bytes, 26, self.inputs_max.to_le_bytes());
        for (program, entry) in self.programs.iter().zip(bytes[HEAD_BYTES..].chunks_mut(ENTRY_BYTES)) {
            let name = program.name.as_bytes();
            assert!((1..=PROGRAM_NAME_BYTES).contains(&name.len()), "a name of {} bytes", name.len());
            put(entry, 0, program.id.0.to_le_bytes());
            put(entry, 2, program.version.to_le_bytes());
            put(entry, 4, if program.is_stream { FLAG_STREAM } else { 0 }.to_le_bytes());
            entry[NAME..NAME + name.len()].copy_from_slice(name);
        }
        bytes
    }

    /// Strict, like all decoding here. Bytes behind the last program are ignored.
    pub fn decode(bytes: &[u8]) -> Result<Identity, IdentityError> {
        let head = bytes.get(..HEAD_BYTES).ok_or(IdentityError::TooShort)?;
        let version = u16::from_le_bytes(get(head, 0));
        if version != IDENTITY_VERSION {
            return Err(IdentityError::Version(version));
        }
        let count = usize::from(u16::from_le_bytes(get(head, 2)));
        let whole = bytes.get(..Identity::encoded_bytes(count)).ok_or(IdentityError::TooShort)?;
        let mut programs = Vec::with_capacity(count);
        for (place, entry) in whole[HEAD_BYTES..].chunks(ENTRY_BYTES).enumerate() {
            let name = entry[NAME..].split(|byte| *byte == 0).next().unwrap_or_default();
            let Some(name) = std::str::from_utf8(name).ok().filter(|name| !name.is_empty()) else {
                return Err(IdentityError::Malformed { offset: HEAD_BYTES + place * ENTRY_BYTES + NAME });
            };
            programs.push(ProgramIdentity {
                id: ProgramId(u16::from_le_bytes(get(entry, 0))),
                version: u16::from_le_bytes(get(entry, 2)),
                is_stream: u16::from_le_bytes(get(entry, 4)) & FLAG_STREAM != 0,
                name: name.to_owned(),
            });
        }
        let identity = Identity {
            flash_bytes: u64::from_le_bytes(get(head, 8)),
            local_bytes: u64::from_le_bytes(get(head, 16)),
            sector_bytes: u32::from_le_bytes(get(head, 4)),
            stages_max: u16::from_le_bytes(get(head, 24)),
            inputs_max: u16::from_le_bytes(get(head, 26)),
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
            name: name.to_owned(),
        };
        Identity {
            flash_bytes: 1 << 30,
            local_bytes: 1 << 20,
            sector_bytes: 4096,
            stages_max: 256,
            inputs_max: 3,
            programs: vec![program(0, "match-record"), program(1, &"n".repeat(PROGRAM_NAME_BYTES))],
        }
    }

    #[test]
    fn an_identity_survives_its_encoding() {
        let identity = identity();
        let mut bytes = identity.encode();
        assert_eq!((bytes[0], bytes[2], bytes[64 + 32]), (1, 2, b'm'));
        assert_eq!(Identity::decode(&bytes), Ok(identity.clone()));
        assert_eq!(
            (identity.program("match-record", 3), identity.program("match-record", 4)),
            (Some(ProgramId(0)), None)
        );
        bytes.push(9);
        assert_eq!(Identity::decode(&bytes), Ok(identity));
    }

    #[test]
    fn damaged_bytes_are_refused() {
        let bytes = identity().encode();
        let damaged = |at: usize, byte: u8| {
            let mut bytes = bytes.clone();
            bytes[at] = byte;
            Identity::decode(&bytes)
        };
        assert_eq!(damaged(0, 2), Err(IdentityError::Version(2)));
        assert_eq!(damaged(2, 3), Err(IdentityError::TooShort));
        assert_eq!(damaged(63, 1), Err(IdentityError::Malformed { offset: 63 }));
        assert_eq!(damaged(64 + 5, 1), Err(IdentityError::Malformed { offset: 69 }));
        assert_eq!(damaged(64 + 32, 0), Err(IdentityError::Malformed { offset: 96 }));
        assert_eq!(damaged(64 + 63, b'x'), Err(IdentityError::Malformed { offset: 127 }));
        assert_eq!(Identity::decode(&bytes[..bytes.len() - 1]), Err(IdentityError::TooShort));
    }

    proptest! {
        #[test]
        fn what_decodes_encodes_to_the_same_bytes(at in 0..192_usize, byte: u8) {
            let mut bytes = identity().encode();
            bytes[at] = byte;
            if let Ok(decoded) = Identity::decode(&bytes) {
                prop_assert_eq!(&decoded.encode()[..], &bytes[..decoded.encode().len()]);
            }
        }
    }
}
