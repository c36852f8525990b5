//! The state of an operation of the ordered engine: its stage, its next step, and its data.

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
use tapetum_base::session::near::NearGet;
use tapetum_base::session::order::Op;
use tapetum_drive::LocalBuffer;
use tapetum_kernels::expiry::Expiry;
use tapetum_kernels::ordered::extension::ExtensionReference;
use tapetum_kernels::record::Marks;

/// The stage of an operation: the event it waits for, and the data it has meanwhile. There is nothing else that it may wait for.
#[derive(Default)]
pub enum OpStage {
    /// It waits to be attempted, or for earlier operations of its key.
    #[default]
    Begins,
    /// It waits in line at a node ([`super::node_turns`]). The first of the line may wait for [`LineWait`].
    InLine,
    /// It waits for the command of the first of its group ([`super::groups`]).
    GoesAlong,
    /// It is at this node; a program looks at the cached page for it and for these others.
    Looks(NodeId, Vec<usize>),
    /// It is at this node; a program changes the page for it and for these others.
    Changes(NodeId, Vec<usize>),
    /// It is at this node, whose page is read from its home and looked at, also for these others.
    Reads(NodeId, NodeHome, Vec<usize>),
    /// It is at the node of this page, which waits for a place in the cache ([`super::fetches`]).
    AwaitsPlace(FetchedPage),
    /// It waits for another node, a slot or much memory ([`super::queues`]).
    AwaitsRoom,
    /// It waits for a slot for its extension, or for that to be durable ([`super::queues`]).
    AwaitsExtension,
    /// The extension of this item is read.
    ReadsExtension(ItemHead, Box<ExtensionRead>),
    /// The drive's programs run over its value.
    Computes(Box<NearAnswer>),
    /// The extension that its record will name is being written.
    WritesExtension(Box<ExtensionWrite>),
    /// It asks whether it may bring a long value ([`tapetum_base::session::asks`]).
    Asks,
}

/// A node's page that the session has taken from the cache.
pub struct TakenPage {
    pub node: NodeId,
    pub page: LocalBuffer,
}

/// A page that was read for an operation.
pub struct FetchedPage {
    pub node: NodeId,
    pub home: NodeHome,
    pub page: LocalBuffer,
}

/// The next action on an operation. Each part that worked on it returns one, and [`super::Waits::advance`] carries it out.
pub(super) enum Step {
    /// Attempt it again in this poll.
    Again,
    /// Attempt it again in another poll.
    Later,
    /// Let it wait in line at this node.
    Join(NodeId),
    /// Let it go on at its node, and count this use of the page.
    Turn(PageUse),
    /// Put it back at the front of the line at its node.
    BackInLine(LineWait),
    /// Read the node's page from here.
    Read(NodeHome),
    /// It has the page: look at its record.
    Look(LocalBuffer),
    /// It has the page: change it.
    Change(LocalBuffer),
    /// It has the page, which has no room for its record.
    MakeRoom(LocalBuffer),
    /// Its node was split: attempt it again, and those in its line.
    Split,
    /// A command for its node is in flight: it stays there.
    AtNode,
    /// Its page was read: it stays at its node and waits for a place in the cache.
    AwaitPlace(FetchedPage),
    /// Let it wait for room.
    AwaitRoom,
    /// Let it wait for its extension.
    AwaitExtension,
    /// The first pieces of an extension are in flight: it had room for them.
    BeginExtension,
    /// More pieces of an extension are in flight.
    OnItsWay,
    /// Let it ask whether it may bring a value of so many bytes.
    Ask(usize),
    Answer(Shown, Outcome),
    Fail(Error),
}

/// The change that a request makes, once it is decided.
pub struct Change {
    pub flags: u32,
    pub expiry: Expiry,
    pub marks: Marks,
    pub value: ChangeValue,
    pub answer: Option<Answer>,
    /// The value that the answer shows.
    pub shown: Vec<u8>,
    /// The stamp of the item on which it was decided; 0 without one.
    pub basis: u64,
}

pub enum ChangeValue {
    /// The key is removed.
    Removed,
    /// The value is the request's own.
    Given,
    Bytes(Vec<u8>),
    /// The value stays in its extension.
    Kept {
        reference: ExtensionReference,
        raw_bytes: u32,
    },
}

/// An extension that was written, and that no record names yet.
pub struct NewExtension {
    pub written: WrittenExtension,
    /// The stamp of the item from which its value was made ([`Change::basis`]); `None` for the request's own value.
    pub basis: Option<u64>,
    /// Done when the extension is durable.
    pub flushed: Arc<DurabilityTicket>,
}

/// The answer of a get whose value goes through programs, as soon as it has their result.
pub struct NearAnswer {
    pub shown: Shown,
    pub outcome: Outcome,
    /// The extension that the programs read.
    pub reference: Option<ExtensionReference>,
}

#[derive(Default)]
pub struct OrderedOpState {
    pub stage: OpStage,
    /// The tree of its keyspace, once it was attempted.
    pub tree: Option<Arc<OrderedTree>>,
    /// Its change, if that had to be decided first.
    pub change: Option<Change>,
    /// The stamp of its record, once it has one.
    pub stamp: u64,
    /// It must read its key's record before it writes, as that names an extension.
    pub looks_first: bool,
    /// The drive says that its node has room for its record.
    pub fits: bool,
    /// The extension that the present record names, and that is removed.
    pub replaced: Option<ExtensionReference>,
    /// The extension with its value, which its record will name.
    pub extension: Option<Box<NewExtension>>,
    /// A pending request for a slot for that extension.
    pub want: Option<Arc<SlotWant>>,
    /// A slot that it has, while it lacks memory to write through.
    pub slot: Option<SlotShare>,
    /// The memory share of an operation that makes a value from one in an extension.
    pub joined: Option<JoinedShare>,
    /// The value of the item with this stamp, read from its extension.
    pub read: Option<(u64, Vec<u8>)>,
    /// The extension that was not found in its slot.
    pub mismatched: Option<ExtensionReference>,
    /// The scratch of an operation whose page was read. It is kept so that operations do not read in turn and evict each other's pages.
    pub scratch: Option<LocalBuffer>,
    /// The ticket that must be done before the value it read may be shown.
    pub ticket: Option<Arc<DurabilityTicket>>,
    /// State of a get whose value goes through programs of the drive.
    pub near: Option<Box<NearGet>>,
    /// The number of attempts since it last waited.
    pub retries: u32,
}

pub type OrderedOp = Op<OrderedOpState>;

/// The dependencies of an answer that may not be durable yet.
#[derive(Default)]
pub struct Shown {
    /// The ticket of a page.
    pub ticket: Option<Arc<DurabilityTicket>>,
    /// The stamp of the deletion of everything that deleted the item, or that is the operation itself; 0 if there is none.
    pub deleted_by: u64,
    /// The answer needed a flash read.
    pub read_flash: bool,
}

impl Shown {
    pub fn of(ticket: Option<Arc<DurabilityTicket>>) -> Shown {
        Shown { ticket, deleted_by: 0, read_flash: false }
    }
}
