//! Where an operation of the ordered engine is, what becomes of it, and what is kept with it.

use super::extension_read::ExtensionRead;
use super::extension_write::{ExtensionWrite, WrittenExtension};
use super::node_turns::LineWait;
use crate::ordered::cache::durability_ticket::DurabilityTicket;
use crate::ordered::cache::page_meta::PageUse;
use crate::ordered::node_table::{NodeHome, NodeId};
use crate::ordered::slabs::SlotShare;
use crate::ordered::slabs::large_groups::SlotWant;
use crate::ordered::tree::OrderedTree;
use std::sync::Arc;
use tapetum_base::error::Error;
use tapetum_base::request::Outcome;
use tapetum_base::request::decide::Answer;
use tapetum_base::request::item::ItemHead;
use tapetum_base::session::joined_bytes::JoinedShare;
use tapetum_base::session::order::Op;
use tapetum_drive::LocalBuffer;
use tapetum_kernels::expiry::Expiry;
use tapetum_kernels::ordered::extension::ExtensionReference;
use tapetum_kernels::record::Marks;

/// Where an operation is: what it waits for, and what it has meanwhile. There is nothing else that it may wait for.
#[derive(Default)]
pub enum OpStage {
    /// It waits to be attempted, or for those of its key that come before it.
    #[default]
    Begins,
    /// It stands in line at a node ([`super::node_turns`]). The first of the line may wait for what [`LineWait`] names.
    InLine,
    /// It waits for the command of the first of its group ([`super::groups`]).
    GoesAlong,
    /// It is at this node, and a program looks at the cached page for it and for these others.
    Looks(NodeId, Vec<usize>),
    /// It is at this node, and a program changes the page for it and for these others.
    Changes(NodeId, Vec<usize>),
    /// It is at this node, whose page is read from its home and looked at, for these others, too.
    Reads(NodeId, NodeHome, Vec<usize>),
    /// It is at the node of this page, which waits for a place in the cache ([`super::fetches`]).
    AwaitsPlace(FetchedPage),
    /// It waits for another node, a slot or much memory ([`super::queues`]).
    AwaitsRoom,
    /// It waits for a slot for its extension, or for that to be durable ([`super::queues`]).
    AwaitsExtension,
    /// The extension of this item is read.
    ReadsExtension(ItemHead, Box<ExtensionRead>),
    /// The extension is written that its record is to name.
    WritesExtension(Box<ExtensionWrite>),
    /// It asks whether it may bring a long value ([`tapetum_base::session::asks`]).
    Asks,
}

/// A page that was read for an operation.
pub struct FetchedPage {
    pub node: NodeId,
    pub home: NodeHome,
    pub page: LocalBuffer,
}

/// What becomes of an operation: each part that worked on it says so, and [`super::Waits::advance`] does it.
pub(super) enum Step {
    /// It is attempted anew, in this poll.
    Again,
    /// It is attempted anew in another poll.
    Later,
    /// It stands in line at this node.
    Join(NodeId),
    /// It goes on at the node that it is at, whose page is used like this.
    Turn(PageUse),
    /// It steps back into the line at its node, as the first.
    BackInLine(LineWait),
    /// The node's page is to be read from here.
    Read(NodeHome),
    /// It has the page, and looks at its record.
    Look(LocalBuffer),
    /// It has the page, and changes it.
    Change(LocalBuffer),
    /// It has the page, which has no room for its record.
    MakeRoom(LocalBuffer),
    /// Its node was split: it is attempted anew, as are those in its line.
    Split,
    /// A command for its node is on its way: it stays there.
    AtNode,
    /// Its page was read: it stays at its node, and waits for a place in the cache.
    AwaitPlace(FetchedPage),
    /// It waits for room.
    AwaitRoom,
    /// It waits for its extension.
    AwaitExtension,
    /// The first pieces of an extension are on their way: it had room for them.
    BeginExtension,
    /// More pieces of an extension are on their way.
    OnItsWay,
    /// It asks whether it may bring a value of so many bytes.
    Ask(usize),
    Answer(Shown, Outcome),
    Fail(Error),
}

/// What a request writes, once that is decided.
pub struct Change {
    pub flags: u32,
    pub expiry: Expiry,
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

/// An extension that was written, and that no record names yet.
pub struct NewExtension {
    pub written: WrittenExtension,
    /// What its value was made of ([`Change::basis`]); `None` for the request's.
    pub basis: Option<u64>,
    /// Done when it is durable.
    pub flushed: Arc<DurabilityTicket>,
}

#[derive(Default)]
pub struct OrderedOpState {
    pub stage: OpStage,
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
    /// How often it was attempted anew within a poll.
    pub retries: u32,
}

pub type OrderedOp = Op<OrderedOpState>;

/// What an answer shows, that may not be durable yet.
#[derive(Default)]
pub struct Shown {
    /// Of a page.
    pub ticket: Option<Arc<DurabilityTicket>>,
    /// The stamp of the deletion of everything that took its item, or that it is; 0 if none did.
    pub deleted_by: u64,
    /// Flash was read for it.
    pub read_flash: bool,
}

impl Shown {
    pub fn of(ticket: Option<Arc<DurabilityTicket>>) -> Shown {
        Shown { ticket, deleted_by: 0, read_flash: false }
    }
}
