//! The reasons why a keyspace was not created, renamed or dropped.

use crate::debug_as_text;
use crate::keyspace_kind::KeyspaceKind;
use std::fmt;
use tapetum_drive::Size;

#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum KeyspaceError {
    NameEmpty,
    NameTooLong {
        bytes: usize,
        limit_bytes: usize,
    },
    NameNotUtf8,
    NameHasControl,
    NameTaken {
        name: String,
    },
    Unknown {
        name: String,
    },
    /// The keyspace exists and is of this kind.
    IsOfKind {
        name: String,
        kind: KeyspaceKind,
    },
    /// The default keyspace is neither renamed nor dropped.
    IsDefault,
    /// The keyspace was dropped before, and its data is being freed.
    IsDropped {
        name: String,
    },
    /// The request names a keyspace that was dropped since.
    Gone,
    /// The request names a keyspace of another store.
    OfOtherStore,
    TooMany {
        limit: usize,
    },
    OptionsTooLong {
        limit_bytes: usize,
    },
    /// The store was opened without an engine for this kind of keyspace.
    NoEngine {
        name: String,
        kind: KeyspaceKind,
    },
    /// The request is for keyspaces of another kind.
    OtherKind {
        kind: KeyspaceKind,
    },
    /// The keyspace is ordered: its items come from a scan of a range of keys.
    Ordered,
    /// The keyspace is hashed: its keys have no order, so it has no scan of a range.
    Unordered,
    /// Another version set the format of its keys and values.
    Format {
        name: String,
        version: u8,
    },
    FormatsTooLong {
        limit_bytes: usize,
    },
    /// Another version made the keyspace, with options that this one does not know.
    Options {
        name: String,
    },
    /// No block device has this size.
    DeviceSize {
        size_bytes: u64,
        limit_bytes: u64,
    },
    /// No block device has groups of this size.
    GroupBlocks {
        blocks: u64,
    },
    /// A group of `blocks` blocks is too large for the store's segments.
    GroupsTooLarge {
        blocks: u64,
        segment_bytes: u64,
    },
    /// The keyspace is a block device with groups of blocks, whose items cannot be accessed one by one.
    IsGrouped,
    /// The block device has no block of this number.
    NoBlock {
        block: u64,
        blocks: u64,
    },
    /// The keyspace is no block device.
    NoDevice {
        name: String,
    },
    /// A block device does not become smaller.
    DeviceShrinks {
        size_bytes: u64,
    },
    /// The manifest has no room for another name or format.
    NoRoom,
}

impl fmt::Display for KeyspaceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            KeyspaceError::NameEmpty => write!(f, "the keyspace's name is empty: give at least one byte"),
            KeyspaceError::NameTooLong { bytes, limit_bytes } => {
                write!(f, "the keyspace's name has {bytes} bytes: use at most {limit_bytes}")
            }
            KeyspaceError::NameNotUtf8 => write!(f, "the keyspace's name is not UTF-8: use text"),
            KeyspaceError::NameHasControl => {
                write!(f, "the keyspace's name has a control character: leave tabs, line ends and the like out")
            }
            KeyspaceError::NameTaken { name } => {
                write!(f, "there is a keyspace {name:?} already: use it, or choose another name")
            }
            KeyspaceError::Unknown { name } => {
                write!(f, "there is no keyspace {name:?}: create it first, or list those there are")
            }
            KeyspaceError::IsDefault => write!(
                f,
                "the default keyspace is always there: create a keyspace of another name for what is to be renamed or dropped"
            ),
            KeyspaceError::IsDropped { name } => {
                write!(f, "the keyspace {name:?} was dropped already: nothing is left to do")
            }
            KeyspaceError::Gone => write!(f, "the keyspace was dropped: look its name up again, or create it anew"),
            KeyspaceError::OfOtherStore => write!(
                f,
                "the keyspace is one of another store: take it from the store that the request goes to, by `Store::keyspace`"
            ),
            KeyspaceError::TooMany { limit } => {
                write!(
                    f,
                    "the store has {limit} keyspaces, dropped ones included that are being freed: drop one and wait"
                )
            }
            KeyspaceError::OptionsTooLong { limit_bytes } => {
                write!(f, "the keyspace's options take more than {limit_bytes} bytes: give fewer")
            }
            KeyspaceError::NoEngine { name, kind } => write!(
                f,
                "the keyspace {name:?} is of a kind ({kind}) that this version has no engine for: use the version that made it"
            ),
            KeyspaceError::OtherKind { kind } => {
                write!(f, "keyspaces of this kind ({kind}) do not take such requests: use one of another kind")
            }
            KeyspaceError::Ordered => write!(
                f,
                "the keyspace is ordered, and its items come in the order of their keys: use `KeyspaceHandle::scan`, with a range of keys"
            ),
            KeyspaceError::Unordered => write!(
                f,
                "the keyspace is hashed, and its keys have no order: create an ordered one for scans, and load its items there; \
                 `KeyspaceHandle::items_with_prefix` has its items in no order"
            ),
            KeyspaceError::Format { name, version } => write!(
                f,
                "the format of the keyspace {name:?} is of version {version}, which this version does not know: use the newer one that set \
                 it, or set another format"
            ),
            KeyspaceError::FormatsTooLong { limit_bytes } => write!(
                f,
                "the formats of all keyspaces would take more than {limit_bytes} bytes: use fewer fields or shorter names, or remove formats"
            ),
            KeyspaceError::Options { name } => write!(
                f,
                "the keyspace {name:?} has options that this version does not know: use the newer one that made it"
            ),
            KeyspaceError::DeviceSize { size_bytes, limit_bytes } => write!(
                f,
                "a block device cannot have {size_bytes} bytes: give a multiple of 4096, at most {}",
                Size(*limit_bytes)
            ),
            KeyspaceError::GroupBlocks { blocks } => {
                write!(f, "a block device cannot have groups of {blocks} blocks: give 1, 2, 4, 8 or 16")
            }
            KeyspaceError::GroupsTooLarge { blocks, segment_bytes } => write!(
                f,
                "groups of {blocks} blocks are too large for segments of {}: give fewer, or make a store with larger ones",
                Size(*segment_bytes)
            ),
            KeyspaceError::IsGrouped => write!(
                f,
                "the keyspace is a block device with groups of blocks, which takes whole blocks and no other request: read and write it as \
                 a block device"
            ),
            KeyspaceError::NoBlock { block, blocks } => write!(
                f,
                "the block device has {blocks} blocks, from 0 on, and none of the number {block}: give a smaller one, or make the device larger"
            ),
            KeyspaceError::IsOfKind { name, kind } => {
                write!(f, "the keyspace {name:?} is there, and is {kind}: take it as it is, or give another name")
            }
            KeyspaceError::NoDevice { name } => {
                write!(f, "the keyspace {name:?} is no block device: only one that was created as such has a size")
            }
            KeyspaceError::DeviceShrinks { size_bytes } => {
                write!(f, "the block device has {}, and becomes no smaller: give a larger size", Size(*size_bytes))
            }
            KeyspaceError::NoRoom => write!(
                f,
                "the store has no room for another keyspace's name or format: use shorter names, drop keyspaces, or create a store of a \
                 larger capacity"
            ),
        }
    }
}

impl std::error::Error for KeyspaceError {}

debug_as_text!(KeyspaceError);
