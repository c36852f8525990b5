//! The programs of the drive that the store needs, and their ids there.

use crate::error::Error;
use crate::media::io::Io;
use tapetum_drive::programs::fields::FIELDS;
use tapetum_drive::programs::match_fields::MATCH_FIELDS;
use tapetum_drive::programs::own_pages::OWN_PAGES;
use tapetum_drive::programs::{CRC32C_CHECK, ZSTD_DECOMPRESS, match_record};
use tapetum_drive::{Identity, IdentityError, ProgramId};

/// Bytes of the first attempt to read an identity. Later ones have at most [`IDENTITY_BYTES_MAX`].
const IDENTITY_BYTES: usize = 4 << 10;
/// Room for all programs that ids can name.
const IDENTITY_BYTES_MAX: usize = Identity::encoded_bytes(u16::MAX as usize).next_power_of_two();

/// Ids of the drive's programs, looked up once.
#[derive(Clone, Copy, Debug)]
pub struct DrivePrograms {
    pub match_record: ProgramId,
    /// `None`: large values are read by the host before programs run over them.
    pub large: Option<LargePrograms>,
    /// `None`: key tables are searched by the host.
    pub own_pages: Option<ProgramId>,
    /// `None`: fields of a value are got by a second command.
    pub fields: Option<FieldsPrograms>,
}

/// The program that runs a query over a record, and the one that finds the record before.
#[derive(Clone, Copy, Debug)]
pub struct FieldsPrograms {
    pub fields: ProgramId,
    pub match_fields: ProgramId,
}

/// The programs that load a large value in a pipeline: they check and inflate its stored bytes.
#[derive(Clone, Copy, Debug)]
pub struct LargePrograms {
    pub crc32c_check: ProgramId,
    pub zstd_decompress: ProgramId,
}

impl DrivePrograms {
    pub async fn find(io: &Io) -> Result<DrivePrograms, Error> {
        let identity = identify(io).await?;
        let find = |name, version| identity.program(name, version).ok_or_else(|| lacks(&identity, name, version));
        let known = |(name, version)| identity.program(name, version);
        let large = known(CRC32C_CHECK).zip(known(ZSTD_DECOMPRESS));
        let large = large.map(|(crc32c_check, zstd_decompress)| LargePrograms { crc32c_check, zstd_decompress });
        Ok(DrivePrograms {
            match_record: find(match_record::NAME, match_record::VERSION)?,
            large,
            own_pages: known(OWN_PAGES),
            fields: known(FIELDS)
                .zip(known(MATCH_FIELDS))
                .map(|(fields, match_fields)| FieldsPrograms { fields, match_fields }),
        })
    }
}

/// Reads the drive's identity.
pub async fn identify(io: &Io) -> Result<Identity, Error> {
    let mut bytes = IDENTITY_BYTES;
    loop {
        let mut buffer = io.allocate(bytes).await?;
        io.identify(&mut buffer).await?;
        match Identity::decode(io.look(&buffer, 0..buffer.len())) {
            Ok(identity) => return Ok(identity),
            Err(IdentityError::TooShort | IdentityError::Version(0)) if bytes < IDENTITY_BYTES_MAX => bytes *= 2,
            Err(error) => return Err(Error::Unusable(error.to_string())),
        }
    }
}

fn lacks(identity: &Identity, name: &str, version: u16) -> Error {
    let mut has: Vec<String> =
        identity.programs.iter().map(|program| format!("{} {}", program.name, program.version)).collect();
    if has.is_empty() {
        has.push("none".into());
    }
    Error::Unusable(format!(
        "the drive lacks the program {name}, version {version}, which reads of items need; it has: {}. \
         Use a drive of this version",
        has.join(", ")
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::media::io::run;
    use std::sync::Arc;
    use tapetum_drive::program::{Context, Program, ProgramDescriptor, ProgramResult};
    use tapetum_drive::{Drive, Env, LocalMemory, MemoryFlash, Status, programs};

    /// Another version of a program that the store needs.
    struct Newer;

    impl Program for Newer {
        fn descriptor(&self) -> ProgramDescriptor {
            ProgramDescriptor { name: match_record::NAME, version: match_record::VERSION + 1, is_stream: false }
        }

        fn run(&self, _: Context<'_>) -> ProgramResult {
            (Status::Unsupported, [0; 2])
        }
    }

    fn find(programs: Vec<Box<dyn Program>>) -> Result<DrivePrograms, Error> {
        let flash = Arc::new(MemoryFlash::new(1 << 20));
        let drive = Drive::new(flash, LocalMemory::new(1 << 20).unwrap(), programs, Env::simulated(1).0);
        let io = Io::new(drive.queue_pair(4).unwrap());
        run(&io, DrivePrograms::find(&io), || false).unwrap()
    }

    #[test]
    fn programs_are_found_wherever_the_drive_has_them() {
        let mut programs = programs::built_in();
        programs.rotate_left(1);
        let last = programs.len() as u16 - 1;
        assert_eq!(find(programs).unwrap().match_record, ProgramId(last));
        let many = (0..100).map(|_| Box::new(Newer) as Box<dyn Program>).chain(programs::built_in()).collect();
        assert_eq!(find(many).unwrap().match_record, ProgramId(100));
    }

    #[test]
    fn a_drive_that_lacks_one_is_told_which() {
        let told = |programs| find(programs).unwrap_err().to_string();
        assert!(told(Vec::new()).contains("lacks the program match-record, version 3"), "{}", told(Vec::new()));
        assert!(told(vec![Box::new(Newer)]).contains("it has: match-record 4."), "{}", told(vec![Box::new(Newer)]));
    }
}
