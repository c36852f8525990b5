//! Why files or devices are no set of members.

use std::fmt;
use std::path::PathBuf;
use tapetum_base::media::member_label::MEMBERS_MAX;
use tapetum_drive::Size;

/// Said of one of the paths that were given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MemberError {
    TooMany {
        given: usize,
    },
    /// A partition of a drive in another process.
    Partition,
    /// Both paths lead to one file or device.
    Twice {
        other: PathBuf,
    },
    /// It holds something that is no member.
    NoMember,
    /// It is a store by itself.
    StoreAlone,
    /// It is a member, and was given by itself.
    Alone {
        members: u16,
    },
    /// It belongs to another set than the first one that was given.
    OtherSet {
        other: PathBuf,
    },
    /// Both have one place: one is a copy.
    Copy {
        other: PathBuf,
    },
    /// Members of its set that were not given.
    Missing {
        places: Vec<u16>,
        members: u16,
        /// Its path was given, and nothing is there.
        is_given: bool,
    },
    /// All members of the set are there without it, and nothing is there.
    NotOfSet {
        members: u16,
    },
    /// It was absent while the others went on.
    Stale {
        member_generation: u64,
        generation: u64,
    },
    CutShort {
        has_bytes: u64,
        needed_bytes: u64,
    },
    /// More members of a set with redundancy are missing, or were away, than it bears.
    TooFew {
        places: Vec<u16>,
        members: u16,
    },
    /// The other member of a mirror is missing, and may have gone on without this one.
    NotTold {
        places: Vec<u16>,
    },
    /// Two members were each told that the other is absent.
    WentApart,
    /// Its label is of a newer version.
    Newer {
        version: u32,
    },
}

impl fmt::Display for MemberError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            MemberError::TooMany { given } => {
                write!(f, "it is one of {given} members, and a set has {MEMBERS_MAX} at most: give fewer")
            }
            MemberError::Partition => f.write_str(
                "it is a partition of a drive in another process, which is a store's drive by itself: give files or block devices, or this \
                 partition alone",
            ),
            MemberError::Twice { other } => {
                write!(f, "it is the same as {}: give each member once; nothing was written", other.display())
            }
            MemberError::NoMember => f.write_str(
                "it holds something that is no member of a set: give another path, or remove it if it is not needed; nothing was written",
            ),
            MemberError::StoreAlone => f.write_str(
                "it is a store by itself, and a set is made of new files or blank devices: give it alone; nothing was written",
            ),
            MemberError::Alone { members } => {
                write!(f, "it is one of the {members} members of a set: give them all, each with --drive; nothing was written")
            }
            MemberError::OtherSet { other } => write!(
                f,
                "it belongs to another set than {}: give the members of one set; nothing was written",
                other.display()
            ),
            MemberError::Copy { other } => write!(
                f,
                "it has the same place in its set as {}: one of them is a copy, leave it out; nothing was written",
                other.display()
            ),
            MemberError::Missing { places, members, is_given } => {
                let here = if *is_given { "nothing is there, and " } else { "" };
                write!(
                    f,
                    "{here}of the {members} members of the set number {} is missing: a set without redundancy needs them all, so put it back, \
                     or restore a backup; nothing was written",
                    names_of(places)
                )
            }
            MemberError::NotOfSet { members } => {
                write!(f, "nothing is there, and the set has its {members} members without it: leave it out; nothing was written")
            }
            MemberError::Stale { member_generation, generation } => write!(
                f,
                "it was absent while the set changed (it is of generation {member_generation}, the others of {generation}): give the one that \
                 was there then; nothing was written"
            ),
            MemberError::CutShort { has_bytes, needed_bytes } => write!(
                f,
                "it has {} and its set uses {}: it was cut short, or is too small; restore it whole, or give a larger one; nothing was written",
                Size(*has_bytes),
                Size::at_least(*needed_bytes)
            ),
            MemberError::TooFew { places, members } => write!(
                f,
                "of the {members} members of the set number {} are missing or were away while it changed, and it bears one: put them back, or \
                 restore a backup; nothing was written",
                names_of(places)
            ),
            MemberError::NotTold { places } => write!(
                f,
                "member {} of the mirror is missing, and may have gone on without this one: put it back; or serve with --force, and what only \
                 the missing one has is lost; nothing was written",
                names_of(places)
            ),
            MemberError::WentApart => f.write_str(
                "the members of this mirror have each gone on without the other: give the one whose data is to stay alone, with the path of a \
                 file that is not there for the other; nothing was written",
            ),
            MemberError::Newer { version } => {
                write!(f, "its label has version {version}: use the newer tapetum that made the set; nothing was written")
            }
        }
    }
}

/// Members as people count them.
fn names_of(places: &[u16]) -> String {
    places.iter().map(|place| (place + 1).to_string()).collect::<Vec<_>>().join(", ")
}
