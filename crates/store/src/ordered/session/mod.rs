//! The ordered engine's part of a session: its operations, from the attempt to the answer.
//!
//! ```text
//!                                               ┌─ cached ─► program looks ─┬─ get ───────────────► answer
//! start ─► attempt: floor ─► turn at the node ──┤       └─ decide ─► program changes the page ─┬──► held until durable ─► answer
//!             ▲                   ▲             └─ not ─► read, and looked at ─► installed     └─ no room ─► split
//!             │                   └───────────────────────────────────────────────┘                          │
//!             └── the key is another node's ◄────────────────────────────────────────────────────────────────┘
//! ```
//! 1. A page that a session takes it gives back before its poll returns. It takes pages for programs alone, and for changes of two nodes:
//!    never across a read or a write.
//! 2. A page that a session reads is its own until it is there, and it is installed if the node has not changed meanwhile. So no session
//!    waits for what another one reads, and none waits at a page: who finds one taken by another thread tries again. Operations of one
//!    session stand in line at a node ([`node_turns`]).
//! 3. The node that a key is in is known when its page says so: fences decide, and whoever finds that they do not cover his key asks the
//!    search layer again.
//! 4. An answer goes out when an image of each page with what it shows is durable (at `always`). Reads are held to that too.
//! 5. Stamps of records are given while the page is taken. So they rise with the changes of a key.
//!
//! Who waits for whom: an operation waits for flash, for a page that another thread has (which that gives back without waiting for
//! anybody), for one of its session before it in a line, or for room in the cache or a durable image, for both of which it moves the
//! write-back on itself ([`waiting`]). What waits is attempted when that has come, or one of many at a time, so that a poll costs what it
//! gets done.
//!
//! Threads: the session's. What is shared is [`OrderedState`].

pub mod batch_part;
mod change_groups;
mod changes;
mod extension_read;
mod extensions;
mod fetches;
mod groups;
mod looks;
mod merges;
mod node_turns;
mod op_state;
mod page_reads;
mod preparation;
mod purges;
mod room_lines;
mod scan_ahead;
pub mod scan_op;
pub mod scans;
mod scratch;
mod splits;
#[cfg(test)]
mod tests;
mod waiting;

use super::search::{AnchorKey, SearchHandle};
use super::tree::{OrderedState, OrderedTree, of_search};
use crate::ordered::node_table::NodeId;
use extensions::of_piece_tag;
use groups::Members;
use merges::Merges;
use node_turns::NodeTurns;
use op_state::{HeldAnswer, OpStage, OrderedOp, OrderedOpState, Shown};
use page_reads::PageReads;
use preparation::Preparation;
pub use preparation::is_large;
use room_lines::RoomLines;
use scans::Scans;
use std::collections::VecDeque;
use std::sync::Arc;
use tapetum_base::engine::engine_session::EngineSlot;
use tapetum_base::error::Error;
use tapetum_base::keyspace::KeyspaceId;
use tapetum_base::keyspace::request::{Outcome, Request};
use tapetum_base::log::Sync;
use tapetum_base::session::order::{OpTarget, Operations};
use tapetum_base::session::session_core::SessionCore;
use tapetum_drive::{Command, Lease, LocalBuffer, Operation, Purpose, Returned};
use tapetum_kernels::ordered::{NODE_BYTES, NODE_KEY_BYTES_MAX, NodeOrder};

/// Operations of a session whose pages are read or wait for a place in the cache, at most: one in so many of its places, within bounds.
const FETCHES_PART: usize = 16;
const FETCHES_MIN: usize = 16;
const FETCHES_MAX: usize = 256;
/// Bit of a tag that says that it is a scan's.
const TAG_SCAN: u64 = 1 << 57;
/// That it reads a page for a merge or a batch.
const TAG_PAGE: u64 = 1 << 56;
/// That it writes a value of a batch.
const TAG_VALUE: u64 = 1 << 55;
/// That it reads pages ahead of a scan.
const TAG_AHEAD: u64 = 1 << 54;

/// A tree, and the session's way to ask its search layer.
struct SessionTree {
    tree: Arc<OrderedTree>,
    search: SearchHandle,
}

/// Operations whose pages are read, or wait for a place in the cache.
struct Fetches {
    on_their_way: usize,
    most: usize,
}

/// Operations that wait for what is no page.
#[derive(Default)]
struct Waits {
    /// For a place for a new node, for a slot, or for much memory.
    for_room: VecDeque<usize>,
    /// For their extensions to be durable, or to have slots.
    for_extensions: Vec<usize>,
    held: Vec<HeldAnswer>,
}

/// Why the next poll gets further, though nothing came.
#[derive(Default)]
struct Again {
    /// Something tries again that another thread kept from going on for a moment.
    tries: bool,
    /// Something waits for a place in the cache.
    wants_room: bool,
    /// An operation found no memory in this poll.
    is_short: bool,
}

/// Room that is used again.
struct Reused {
    /// For the operations of a group; empty.
    members: Members,
    /// Of its own, so that one command goes on however short memory is.
    own: Option<LocalBuffer>,
    completions: Vec<Returned>,
    parameters: Vec<u8>,
    anchor: AnchorKey,
    order: Box<NodeOrder>,
}

pub struct OrderedSession {
    state: Arc<OrderedState>,
    slot: EngineSlot,
    trees: Vec<SessionTree>,
    ops: Operations<OrderedOpState>,
    scans: Scans,
    fetches: Fetches,
    /// Operations that know their nodes.
    turns: NodeTurns,
    /// Operations whose pages wait for a place in the cache.
    rooms: RoomLines,
    waits: Waits,
    merges: Merges,
    page_reads: PageReads,
    preparation: Preparation,
    /// Pages that are with commands of this session.
    pages_taken: usize,
    again: Again,
    reused: Reused,
    /// How often operations were attempted, or had their turn.
    #[cfg(test)]
    attempts: usize,
}

impl OrderedSession {
    pub fn new(state: &Arc<OrderedState>, slot: EngineSlot) -> OrderedSession {
        OrderedSession {
            state: state.clone(),
            slot,
            trees: Vec::new(),
            ops: Operations::default(),
            scans: Scans::default(),
            fetches: Fetches {
                on_their_way: 0,
                most: (state.cache.pages() / FETCHES_PART).clamp(FETCHES_MIN, FETCHES_MAX),
            },
            turns: NodeTurns::default(),
            rooms: RoomLines::default(),
            waits: Waits::default(),
            merges: Merges::default(),
            page_reads: PageReads::default(),
            preparation: Preparation::default(),
            pages_taken: 0,
            again: Again::default(),
            reused: Reused {
                members: Members::new(),
                own: state.base.drive.local().allocate(scratch::SCRATCH_BYTES),
                completions: Vec::new(),
                parameters: Vec::new(),
                anchor: AnchorKey::new(),
                order: Box::new(NodeOrder::default()),
            },
            #[cfg(test)]
            attempts: 0,
        }
    }

    /// Starts an operation that the session has not refused.
    pub fn start(&mut self, core: &mut SessionCore, target: OpTarget, request: &Request<'_>) {
        match refuse(core, request) {
            Ok(()) => self.ops.wait(target, request),
            Err(error) => core.answer(target.token, Outcome::Failed(error)),
        }
    }

    /// Takes the completion of a command of this part.
    pub fn complete(&mut self, core: &mut SessionCore, returned: Returned) {
        let own = EngineSlot::own(returned.completion.tag);
        let (own, piece) = of_piece_tag(own);
        if own & TAG_SCAN != 0 {
            return self.complete_scan(core, (own & !TAG_SCAN) as usize, (piece, returned));
        }
        if own & TAG_PAGE != 0 {
            return self.page_was_read(core, (own & !TAG_PAGE) as usize, returned);
        }
        if own & TAG_VALUE != 0 {
            return self.value_was_written(core, (own & !TAG_VALUE) as usize, (piece, returned));
        }
        if own & TAG_AHEAD != 0 {
            return self.was_read_ahead((own & !TAG_AHEAD) as usize, returned);
        }
        let number = own as usize;
        let mut op = self.ops.take(number);
        match std::mem::take(&mut op.kept.stage) {
            OpStage::Looks(node) => {
                self.pages_taken -= 1;
                self.looked(core, (number, op), node, returned);
                self.step_off(number, node);
            }
            OpStage::Changes(node) => {
                self.pages_taken -= 1;
                self.changed(core, (number, op), node, returned);
                self.step_off(number, node);
            }
            OpStage::Reads(node, home) => {
                self.was_read(core, (number, op), (node, home), returned);
                self.step_off(number, node);
            }
            OpStage::ReadsExtension(head, read) => {
                self.was_read_out_of_line(core, (number, op), (head, read), (piece, returned));
            }
            OpStage::WritesExtension(write) => self.was_written(core, (number, op), write, (piece, returned)),
            OpStage::Begins | OpStage::Fetched(..) => unreachable!("it has a command on its way"),
        }
    }

    /// Before the session goes: no page stays with it.
    pub fn leave(&mut self, core: &mut SessionCore) {
        self.await_pages(core);
    }

    fn release_held(&mut self, core: &mut SessionCore) {
        if self.waits.held.is_empty() {
            return;
        }
        let poisoned = self.state.base.log.poisoned().err();
        let mut place = 0;
        while place < self.waits.held.len() {
            let is_durable = self.waits.held[place].ticket.is_done();
            if !is_durable && poisoned.is_none() {
                place += 1;
                continue;
            }
            let mut held = self.waits.held.swap_remove(place);
            match &poisoned {
                Some(error) if !is_durable => core.answer(held.token, Outcome::Failed(error.clone())),
                _ => {
                    if let Some(value) = held.outcome.value_mut() {
                        *value = core.values.add(&held.value);
                    }
                    core.answer_shown((held.token, held.deleted_by), held.outcome, held.read_flash);
                }
            }
        }
    }

    /// Answers when what was seen or written is durable, where that is waited for.
    fn answer(&mut self, core: &mut SessionCore, token: u64, shown: Shown, outcome: Outcome) {
        let Shown { ticket, deleted_by, read_flash } = shown;
        if self.state.write_back.is_closed() {
            return core.answer(token, Outcome::Failed(Error::Closed));
        }
        match ticket.filter(|ticket| self.state.base.log.sync() == Sync::Always && !ticket.is_done()) {
            None => core.answer_shown((token, deleted_by), outcome, read_flash),
            Some(ticket) => {
                let value = outcome.value().map(|value| core.values.bytes(value).to_vec()).unwrap_or_default();
                self.waits.held.push(HeldAnswer { token, ticket, deleted_by, read_flash, outcome, value });
            }
        }
    }

    /// Ends an operation with an error.
    pub(super) fn fail(&mut self, core: &mut SessionCore, (number, mut op): (usize, Box<OrderedOp>), error: Error) {
        if let Some(scratch) = op.kept.scratch.take() {
            self.give_scratch(core, scratch);
        }
        if let OpStage::Fetched(_, _, page) = std::mem::take(&mut op.kept.stage) {
            self.end_fetch(page);
        }
        core.answer(op.token, Outcome::Failed(error));
        self.ops.forget(number, op);
    }

    /// The place among the session's trees of a keyspace's.
    fn tree_of(&mut self, keyspace: KeyspaceId) -> Result<usize, Error> {
        if let Some(place) = self.trees.iter().position(|tree| tree.tree.keyspace == keyspace) {
            if !self.trees[place].tree.is_dropped() {
                self.again.wants_room |= !self.state.make(&self.trees[place].tree);
                return Ok(place);
            }
            self.trees.swap_remove(place);
        }
        let tree = self.state.tree(keyspace).ok_or(Error::Keyspace(tapetum_base::error::KeyspaceError::Gone))?;
        let search = tree.search.handle().map_err(of_search)?;
        self.again.wants_room |= !self.state.make(&tree);
        self.trees.push(SessionTree { tree, search });
        Ok(self.trees.len() - 1)
    }

    /// The node that a key seems to be in.
    fn node_of(&mut self, tree: usize, key: &[u8]) -> NodeId {
        NodeId(self.trees[tree].search.floor(key, &mut self.reused.anchor) as u32)
    }

    fn take_page(&mut self, core: &SessionCore) -> Option<LocalBuffer> {
        self.state.cache.spare_pages.take(|| core.spare_buffers.allocate(NODE_BYTES))
    }

    /// A page that was read for an operation is in the cache, or is not needed: a buffer in its place.
    fn end_fetch(&mut self, page: LocalBuffer) {
        self.fetches.on_their_way -= 1;
        self.give_page(page);
    }

    fn give_page(&mut self, page: LocalBuffer) {
        self.state.cache.spare_pages.give(page);
    }

    fn take_scratch(&mut self, core: &mut SessionCore) -> Option<LocalBuffer> {
        core.spare_buffers.take(scratch::SCRATCH_BYTES).or_else(|| self.reused.own.take())
    }

    fn give_scratch(&mut self, core: &mut SessionCore, scratch: LocalBuffer) {
        match &self.reused.own {
            None => self.reused.own = Some(scratch),
            Some(_) => core.spare_buffers.give(scratch),
        }
    }

    /// A page to read into, and a scratch.
    fn take_both(&mut self, core: &mut SessionCore) -> Option<(LocalBuffer, LocalBuffer)> {
        let page = self.take_page(core)?;
        match self.take_scratch(core) {
            Some(scratch) => Some((page, scratch)),
            None => {
                self.give_page(page);
                None
            }
        }
    }

    /// Whether another command may be sent. If not, what asks is to wait; programs give their credits back within the poll.
    fn has_credit(&mut self, core: &SessionCore) -> bool {
        let has = core.queue.credits() > 0;
        self.again.tries |= !has && self.pages_taken > 0;
        has
    }

    fn submit(&self, core: &mut SessionCore, (own, purpose): (u64, Purpose), operation: Operation, lease: Lease) {
        let command = Command::new(self.slot.tag(own), operation).of(purpose);
        core.queue.submit(command, lease).expect("a session has fewer commands on their way than its queue pair takes");
    }

    /// Operations that were not answered.
    pub fn in_flight(&self) -> usize {
        self.ops.count() + self.waits.held.len() + self.scans.count()
    }

    /// The tokens of its operations that are not answered.
    pub fn tokens(&self) -> Vec<u64> {
        self.ops.tokens().chain(self.waits.held.iter().map(|held| held.token)).chain(self.scans.tokens()).collect()
    }

    /// Bytes of keys and values that its operations keep.
    pub fn kept_bytes(&self) -> usize {
        self.ops.kept_bytes() + self.waits.held.iter().map(|held| held.value.len()).sum::<usize>()
    }
}

/// An error if no node takes what a request is about, or its value is larger than any.
fn refuse(core: &SessionCore, request: &Request<'_>) -> Result<(), Error> {
    check_value(core, request.payload_bytes() - request.key().len())?;
    match request.key().len() {
        0 if matches!(request, Request::DeleteAll { .. }) => Ok(()),
        0 => Err(Error::KeyEmpty),
        1..=NODE_KEY_BYTES_MAX => Ok(()),
        _ => Err(Error::KeyTooLong { limit_bytes: NODE_KEY_BYTES_MAX }),
    }
}

/// An error if a value is larger than the store takes.
fn check_value(core: &SessionCore, bytes: usize) -> Result<(), Error> {
    let limit_bytes = core.base.value_bytes_max;
    if bytes > limit_bytes { Err(Error::ValueTooLarge { limit_bytes }) } else { Ok(()) }
}
