//! What the ordered engine keeps with an operation, and with an answer that waits.

use super::extension_read::ExtensionRead;
use crate::ordered::cache::durability_ticket::DurabilityTicket;
use crate::ordered::node_table::{NodeHome, NodeId};
use crate::ordered::slabs::SlotShare;
use crate::ordered::slabs::large_groups::SlotWant;
use crate::ordered::tree::OrderedTree;
use std::sync::Arc;
use tapetum_base::keyspace::decide::Answer;
use tapetum_base::keyspace::item::ItemHead;
use tapetum_base::keyspace::request::Outcome;
use tapetum_base::media::piece_transfer::PieceTransfer;
use tapetum_base::session::joined_bytes::JoinedShare;
use tapetum_base::session::order::Op;
use tapetum_drive::LocalBuffer;
use tapetum_kernels::ordered::extension::ExtensionReference;
use tapetum_kernels::record::Marks;

#[derive(Default)]
pub enum OpStage {
    /// It is to be attempted.
    #[default]
    Begins,
    /// A program looks at the cached page of this node.
    Looks(NodeId),
    /// A program changes it.
    Changes(NodeId),
    /// The page of this node is read from its home, and looked at.
    Reads(NodeId, NodeHome),
    /// The page was read, and waits for a place in the cache.
    Fetched(NodeId, NodeHome, LocalBuffer),
    /// The extension of this item is read.
    ReadsExtension(ItemHead, Box<ExtensionRead>),
    /// The extension for its record is written.
    WritesExtension(Box<ExtensionWrite>),
}

impl OpStage {
    /// The node that the operation is at: others of its session that want it stand in line.
    pub fn node(&self) -> Option<NodeId> {
        match self {
            OpStage::Looks(node) | OpStage::Changes(node) => Some(*node),
            OpStage::Reads(node, _) | OpStage::Fetched(node, ..) => Some(*node),
            OpStage::Begins | OpStage::ReadsExtension(..) | OpStage::WritesExtension(_) => None,
        }
    }
}

/// What a request writes, once that is decided.
pub struct Change {
    pub flags: u32,
    pub expiry: u32,
    pub marks: Marks,
    pub value: ChangeValue,
    pub answer: Option<Answer>,
    /// The value that the answer shows.
    pub shown: Vec<u8>,
    /// The stamp of the item that it was decided on; 0 without one.
    pub basis: u64,
}

pub enum ChangeValue {
    /// The key is removed.
    Removed,
    /// It is the request's.
    Given,
    Bytes(Vec<u8>),
    /// It stays in the extension where it is.
    Kept {
        reference: ExtensionReference,
        raw_bytes: u32,
    },
}

/// An extension that is being written.
pub struct ExtensionWrite {
    pub reference: ExtensionReference,
    pub share: SlotShare,
    /// What its value was made of ([`Change::basis`]); `None` for the request's.
    pub basis: Option<u64>,
    /// What is in front of the value.
    pub prefix: Vec<u8>,
    pub transfer: PieceTransfer,
}

/// An extension that was written, and that no record names yet.
pub struct NewExtension {
    pub reference: ExtensionReference,
    pub share: SlotShare,
    pub basis: Option<u64>,
    /// Done when it is durable.
    pub flushed: Arc<DurabilityTicket>,
}

#[derive(Default)]
pub struct OrderedOpState {
    pub stage: OpStage,
    /// Of one with a command on its way: those that go along ([`super::groups`]).
    pub group: Vec<usize>,
    /// The tree that it is of, once it was attempted.
    pub tree: Option<Arc<OrderedTree>>,
    /// What it writes, where that had to be decided.
    pub change: Option<Change>,
    /// The stamp of its record, once it has one.
    pub stamp: u64,
    /// It must know its key's record before it writes: that names an extension.
    pub looks_first: bool,
    /// What the record names that is there, and that goes.
    pub replaced: Option<ExtensionReference>,
    /// Where its value is, which its record is to name.
    pub extension: Option<Box<NewExtension>>,
    /// A slot for that was asked for.
    pub want: Option<Arc<SlotWant>>,
    /// A slot that it has, and no memory to write through yet.
    pub slot: Option<SlotShare>,
    /// The memory of an operation that makes a value of one in an extension.
    pub joined: Option<JoinedShare>,
    /// The value of the item with this stamp, from its extension.
    pub read: Option<(u64, Vec<u8>)>,
    /// What was not to be found in its place.
    pub mismatched: Option<ExtensionReference>,
    /// Of one whose page was read: it keeps its scratch, lest others read in turn and evict each other's pages.
    pub scratch: Option<LocalBuffer>,
    /// What is to be durable before the value is shown that it reads.
    pub ticket: Option<Arc<DurabilityTicket>>,
}

pub type OrderedOp = Op<OrderedOpState>;

/// What an answer shows, that may not be durable yet.
#[derive(Default)]
pub struct Shown {
    /// Of a page.
    pub ticket: Option<Arc<DurabilityTicket>>,
    /// The stamp of the deletion of everything that took its item; 0 if none did.
    pub deleted_by: u64,
    /// Flash was read for it.
    pub read_flash: bool,
}

impl Shown {
    pub fn of(ticket: Option<Arc<DurabilityTicket>>) -> Shown {
        Shown { ticket, deleted_by: 0, read_flash: false }
    }
}

/// An answer that waits for what it shows to be durable.
pub struct HeldAnswer {
    pub token: u64,
    pub ticket: Arc<DurabilityTicket>,
    pub deleted_by: u64,
    pub read_flash: bool,
    pub outcome: Outcome,
    /// What the outcome's value is.
    pub value: Vec<u8>,
}
