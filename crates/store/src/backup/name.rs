//! Names of objects in a depot.
//!
//! ```text
//!  store                                           what the depot is, and whose
//!  packs/DIGEST                                    bytes of drives
//!  backups/GENERATION-SEQUENCE-DIGEST              a backup's manifest
//!  generations/GENERATION                          where a generation began
//!  numbers/LAST-FIRST                              which numbers backups were given ([`super::numbers`])
//!  lease/NUMBER                                    who may make backups ([`super::lease`])
//! ```

use super::digest::Digest;

pub const STORE: &str = "store";
pub const PACKS: &str = "packs";
pub const BACKUPS: &str = "backups";
pub const GENERATIONS: &str = "generations";
pub const NUMBERS: &str = "numbers";
pub const LEASE: &str = "lease";

/// The name of a backup. Names are ordered as backups were made.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct BackupName {
    pub generation: u64,
    pub sequence: u64,
    pub digest: Digest,
}

impl BackupName {
    pub fn object(&self) -> String {
        let BackupName { generation, sequence, digest } = self;
        format!("{BACKUPS}/{generation:08}-{sequence:012}-{digest}")
    }

    /// How the history of a store names it that begins with it.
    pub fn parent(&self) -> [u8; 16] {
        std::array::from_fn(|at| self.digest.0[at])
    }

    pub fn parse(object: &str) -> Option<BackupName> {
        let mut parts = object.strip_prefix(BACKUPS)?.strip_prefix('/')?.splitn(3, '-');
        let mut number = || parts.next()?.parse().ok();
        let (generation, sequence) = (number()?, number()?);
        Some(BackupName { generation, sequence, digest: Digest::parse(parts.next()?)? })
    }
}

pub fn pack(digest: Digest) -> String {
    format!("{PACKS}/{digest}")
}

pub fn generation(number: u64) -> String {
    format!("{GENERATIONS}/{number:08}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_read_back_and_sort_as_backups_were_made() {
        let name = |generation, sequence| BackupName { generation, sequence, digest: Digest::of(b"") };
        assert_eq!(BackupName::parse(&name(3, 14).object()), Some(name(3, 14)));
        assert!(name(3, 14).object() < name(3, 100).object() && name(3, 100).object() < name(20, 1).object());
        for other in ["backups/3-x-00", "packs/ab", "backups/.unfinished-3"] {
            assert_eq!(BackupName::parse(other), None);
        }
    }
}
