//! Requests for scans and their answers. Plain data, shared with the front doors: no state, no threading.

use crate::error::Error;
use tapetum_kernels::expiry::Expiry;

/// An end of a range of keys.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub enum KeyBound {
    #[default]
    Unbounded,
    Included(Vec<u8>),
    Excluded(Vec<u8>),
}

impl KeyBound {
    /// The key of the bound; empty if unbounded.
    pub fn key(&self) -> &[u8] {
        match self {
            KeyBound::Unbounded => &[],
            KeyBound::Included(key) | KeyBound::Excluded(key) => key,
        }
    }
}

/// The range of a scan.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct KeyRange {
    /// The lower bound, in either direction.
    pub from: KeyBound,
    pub to: KeyBound,
    pub is_reverse: bool,
}

impl KeyRange {
    /// The range of one key.
    pub fn of_key(key: &[u8]) -> KeyRange {
        let bound = || KeyBound::Included(key.to_vec());
        KeyRange { from: bound(), to: bound(), is_reverse: false }
    }

    /// Whether the range is of one key.
    pub fn is_of_key(&self) -> bool {
        matches!((&self.from, &self.to), (KeyBound::Included(from), KeyBound::Included(to)) if from == to)
    }
}

/// An item that a scan returns.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ScannedItem {
    pub key: Vec<u8>,
    pub value: Vec<u8>,
    pub flags: u32,
    pub expiry: Expiry,
    pub stamp: u64,
}

/// A part of a scan's answer.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ScanPart {
    /// In the scan's order.
    pub items: Vec<ScannedItem>,
    /// The rest of the range; `None`: the scan is complete.
    pub rest: Option<KeyRange>,
}

/// The answer to a scan.
#[derive(Debug)]
pub struct ScanReply {
    pub token: u64,
    pub part: Result<ScanPart, Error>,
}
