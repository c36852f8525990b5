//! Changes of keyspaces. Callers request them, and maintenance makes them, since it alone writes the manifest.

use super::block_device::BlockDevice;
use super::catalogue::{Catalogue, KeyspaceEdit};
use crate::error::{Error, KeyspaceError};
use crate::keyspace_kind::KeyspaceKind;
use crate::media::io::lock;
use crate::wake::under_way::UnderWay;
use std::collections::VecDeque;
use std::sync::Mutex;
use tapetum_kernels::scan::Format;

/// The most waiting changes. Each keeps a caller waiting.
const WAITING_MAX: usize = 256;

/// The requested change.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum KeyspaceWish {
    Create { name: Vec<u8>, kind: KeyspaceKind, options: Vec<u8> },
    Rename { from: String, to: Vec<u8> },
    Drop { name: String },
    SetFormat { name: String, format: Option<Format> },
    ResizeDevice { name: String, device: BlockDevice },
}

impl KeyspaceWish {
    /// The edit that makes the change.
    pub fn edit(&self, catalogue: &Catalogue) -> Result<KeyspaceEdit, KeyspaceError> {
        match self {
            KeyspaceWish::Create { name, kind, options } => catalogue.create(name, *kind, options.clone()),
            KeyspaceWish::Rename { from, to } => catalogue.rename(from, to),
            KeyspaceWish::Drop { name } => catalogue.drop(name),
            KeyspaceWish::SetFormat { name, format } => catalogue.set_format(name, format.as_ref()),
            KeyspaceWish::ResizeDevice { name, device } => catalogue.resize_device(name, *device),
        }
    }
}

pub type KeyspaceChange = UnderWay<KeyspaceWish>;

/// Changes in the order of the requests.
#[derive(Default)]
pub struct KeyspaceChanges {
    waiting: Mutex<VecDeque<KeyspaceChange>>,
}

impl KeyspaceChanges {
    pub fn ask(&self, wish: KeyspaceWish) -> Result<KeyspaceChange, Error> {
        let mut waiting = lock(&self.waiting);
        if waiting.len() >= WAITING_MAX {
            return Err(Error::Options("many keyspaces are being changed: try again when that is done".into()));
        }
        let change = UnderWay::new(wish);
        waiting.push_back(change.clone());
        Ok(change)
    }

    pub fn next(&self) -> Option<KeyspaceChange> {
        lock(&self.waiting).pop_front()
    }
}
