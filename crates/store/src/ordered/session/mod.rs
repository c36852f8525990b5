//! The ordered engine's part of a session: its operations, from the request to the answer.
//!
//! ```text
//! start ─► Begins ── attempt ─► InLine ── take_turn ─┬─ cached ──► Look ──► Looks ────┬─ get ───────────────────────► Answer
//!            ▲                    ▲                  │   (or Change) ┌────── decided ─┘  └─ value elsewhere ─► ReadsExtension
//!            │                    │ Busy, Starves    │               ▼
//!            │ Again              └──────────────────┤             Change ──► Changes ─┬─ made, or refused ──────────► Answer
//!            │                                       │               └─ value too long │
//!            │                                       │                  ▼              └─ no room ─► MakeRoom ─► Again, Split
//!            │                                       │             WritesExtension                      └─ none ─► AwaitsRoom
//!            │                                       └─ not ─► Read ──► Reads ─┬─ get ─────────────────────────────► Answer
//!            │                                                                └─ other ─► AwaitsPlace ── placed ─► Turn
//!            └── AwaitsRoom, AwaitsExtension, ReadsExtension, WritesExtension: when what they wait for is there
//! ```
//! A get through programs ([`through`]) goes to them in the place of ReadsExtension, or of the answer with its value: Computes ──► Answer.
//!
//! [`OpStage`] names the stage of an operation, [`Step`] the next action on it. The parts of the session work on an operation in hand and return a
//! step. [`Waits::advance`] is the one `match` that carries steps out. The parts know neither each other nor the session.
//! [`OrderedSession::complete`] leads completions to their parts; [`OrderedSession::poll`] continues waiting operations.
//!
//! 1. A session gives a taken page back before its poll returns. It takes pages only for programs: never across a read or a write.
//! 2. A page that a session reads is its own until it has arrived. It is installed if the node has not changed meanwhile. So no session waits for
//!    another one's read, and none waits at a page: a session that finds one taken by another thread retries. Operations of one session wait in line
//!    at a node ([`node_turns`]).
//! 3. Only its page tells which keys a node has: fences decide. An operation whose key they do not cover asks the search layer again.
//! 4. An answer goes out when an image of each page with the shown records is durable (at `always`). This applies to reads too ([`queues`]).
//! 5. Stamps of records are given while the page is taken, so they rise with the changes of a key.
//! 6. An operation is in its slot or in hand ([`in_hand`]). Dropping it puts it back.
//!
//! An operation may wait for flash; for a page that another thread has, which gives it back without waiting for anybody; for an earlier one of its
//! session in a line; or for room in the cache or a durable image, for both of which it advances the write-back itself. A waiting operation is
//! attempted when the event has come, or one of many at a time, so that a poll costs as much as it gets done.
//!
//! Threads: the session's. [`OrderedState`] is shared.

mod attempt;
mod batch_pages;
pub mod batch_part;
mod changes;
mod context;
mod extension_read;
mod extension_write;
mod extensions;
mod fetches;
mod groups;
mod in_hand;
mod looks;
mod merges;
mod node_turns;
pub mod node_walk;
mod op_state;
mod page_reads;
mod poll;
mod preparation;
mod purges;
mod queues;
mod scan_ahead;
pub mod scan_op;
pub mod scans;
mod scratch;
mod splits;
#[cfg(test)]
mod tests;
mod through;

use super::batches::BatchList;
use super::gate::GatePass;
use super::node_table::{HomedNode, NodeId};
use super::tree::{OrderedState, TreeSource};
use crate::ordered::cache::page_meta::PageUse;
use crate::ordered::cache::{PageLook, lost};
use batch_part::{OrderedBatch, SessionParts};
use context::{Context, OrderedMeans};
use extensions::of_piece_tag;
use fetches::Fetches;
use in_hand::{GroupNumbers, OpInHand, Ops};
use merges::Merges;
use node_turns::{LineWait, NodeTurns};
use op_state::{FetchedPage, OpStage, OrderedOp, Step, TakenPage};
use page_reads::{PageReader, PageReads};
use preparation::Preparation;
pub use preparation::is_large;
use queues::{ExtensionQueue, HeldAnswers, RoomQueue};
use scans::Scans;
use std::sync::Arc;
use tapetum_base::error::Error;
use tapetum_base::keyspace::states::KeyspaceRef;
use tapetum_base::media::piece_transfer::ReturnedPiece;
use tapetum_base::request::key_range::{KeyRange, ScanReply};
use tapetum_base::request::{Outcome, Request};
use tapetum_base::session::asks::Ask;
use tapetum_base::session::batch::{BatchPart, BatchStop, Write};
use tapetum_base::session::engine_session::{EngineSession, EngineSlot, EngineWait};
use tapetum_base::session::near::NearGet;
use tapetum_base::session::order::OpTarget;
use tapetum_base::session::session_core::SessionCore;
use tapetum_base::wake::shared_event::SharedEvent;
use tapetum_drive::Returned;
use tapetum_kernels::ordered::extension::REFERENCE_BYTES;

/// This bit marks the tag of a scan's command.
const TAG_SCAN: u64 = 1 << 57;
/// This bit marks a read of a page for a merge or a batch.
const TAG_PAGE: u64 = 1 << 56;
/// This bit marks a write of a value of a batch.
const TAG_VALUE: u64 = 1 << 55;
/// This bit marks a read-ahead of a scan.
const TAG_AHEAD: u64 = 1 << 54;
/// This bit marks a command that a step waits for ([`Context::run`]).
const TAG_RUN: u64 = 1 << 53;

/// Bound of attempts without a wait between them. Another session changed the search layer before each retry, unless search layer and nodes
/// disagree.
const RETRIES_MAX: u32 = 1 << 16;

/// The states of waiting operations. Each part has its own and knows no other.
struct Waits {
    /// Operations that know their nodes.
    turns: NodeTurns,
    /// Pages that are read for operations, or wait for a place.
    fetches: Fetches,
    room: RoomQueue,
    extensions: ExtensionQueue,
    held: HeldAnswers,
    /// Nobody waits for merges.
    merges: Merges,
}

pub struct OrderedSession {
    ops: Ops,
    waits: Waits,
    scans: Scans,
    /// Pages that are read for merges and batches.
    reads: PageReads,
    preparation: Preparation,
    batches: Arc<BatchList>,
    /// Away during a poll, which holds it.
    pass: Option<GatePass>,
    cx: Context,
}

impl Waits {
    /// Carries out the steps of an operation, until it waits for something or has ended. `at` is its node, if it is at one.
    fn advance(&mut self, (cx, core): OrderedMeans<'_>, mut op: OpInHand<'_>, at: Option<NodeId>, mut step: Step) {
        let node = || at.expect("it is at a node");
        loop {
            if matches!(step, Step::Later | Step::AwaitRoom | Step::AwaitExtension | Step::OnItsWay) {
                op.kept.retries = 0;
            }
            step = match step {
                // The operation is at its node, and works on its page.
                Step::Turn(used) => self.take_turn(cx, &op, node(), used),
                Step::Read(home) => {
                    self.fetches.read((cx, core), &mut self.turns, &mut op, HomedNode { node: node(), home })
                }
                Step::Look(page) => looks::look((cx, core), &mut self.turns, &mut op, TakenPage { node: node(), page }),
                Step::Change(page) => {
                    changes::change((cx, core), &mut self.turns, &mut op, TakenPage { node: node(), page })
                }
                Step::MakeRoom(page) => {
                    splits::make_room((cx, core), &mut self.merges, &mut op, TakenPage { node: node(), page })
                }
                Step::Split => {
                    self.room.found(op.others());
                    // Operations in line may need the upper half.
                    while let Some(behind) = self.turns.take_next(node()) {
                        op.others().attempt_again(behind);
                    }
                    Step::Again
                }
                // The operation stays there.
                Step::AtNode => return,
                Step::AwaitPlace(fetched) => return self.fetches.await_place(cx, &mut op, fetched),
                Step::BackInLine(wait) => {
                    op.kept.stage = OpStage::InLine;
                    break self.turns.step_back(node(), op.number(), wait);
                }
                // The operation leaves.
                Step::Again if op.kept.retries == RETRIES_MAX => Step::Fail(nowhere(&op)),
                Step::Again => {
                    cx.again.tries = true;
                    op.kept.retries += 1;
                    op.kept.stage = OpStage::Begins;
                    break op.attempt_again();
                }
                Step::Later => break op.attempt_again(),
                Step::Join(node) => {
                    op.kept.stage = OpStage::InLine;
                    break self.turns.join(node, op.number());
                }
                Step::AwaitRoom => break self.room.join(&mut op),
                Step::AwaitExtension => break self.extensions.join(&mut op),
                Step::BeginExtension => break self.room.found(op.others()),
                Step::OnItsWay => break,
                Step::Ask(value_bytes) => {
                    core.asks.add(Ask { token: op.token, value_bytes }, (cx.slot, op.number()));
                    op.kept.stage = OpStage::Asks;
                    break op.step_aside();
                }
                Step::Answer(shown, outcome @ Outcome::Value { .. }) if op.kept.near.is_some() => {
                    through::compute_value((cx, core), &mut op, shown, outcome)
                }
                Step::Answer(shown, outcome) => {
                    match cx.state.write_back.is_closed() {
                        // The operation's change may be lost.
                        true => core.answer(op.token, Outcome::Failed(Error::Closed)),
                        false => self.held.answer(core, op.token, shown, outcome),
                    }
                    break op.forget();
                }
                Step::Fail(error) => {
                    op.kept.scratch.take().into_iter().for_each(|scratch| cx.give_scratch(core, scratch));
                    if let OpStage::AwaitsPlace(FetchedPage { page, .. }) = std::mem::take(&mut op.kept.stage) {
                        self.fetches.end(cx, page);
                    }
                    core.answer(op.token, Outcome::Failed(error));
                    break op.forget();
                }
            }
        }
        if let Some(node) = at {
            self.leave(cx, node);
        }
    }

    /// An operation has left a node: it is the next one's turn.
    fn leave(&mut self, cx: &mut Context, node: NodeId) {
        self.turns.left(node);
        cx.again.tries |= self.turns.are_ready();
    }

    /// Takes the page for an operation whose turn it is at a node.
    fn take_turn(&self, cx: &mut Context, op: &OrderedOp, node: NodeId, used: PageUse) -> Step {
        #[cfg(test)]
        {
            cx.attempts += 1;
        }
        if !cx.may_change && !matches!(op.request.borrow(), Request::Get { .. }) {
            // A freeze is being made, and it may change the page: it goes on in a later poll.
            return Step::BackInLine(LineWait::Gate);
        }
        match cx.state.cache.take(node, op.keyspace.id().0, used) {
            PageLook::Taken(page) if attempt::looks_first(op) => Step::Look(page),
            PageLook::Taken(page) => Step::Change(page),
            PageLook::Busy => {
                cx.again.tries = true;
                Step::BackInLine(LineWait::Page)
            }
            // The operations behind it find out the same.
            PageLook::Gone => Step::Again,
            PageLook::Lost => Step::Fail(lost(node)),
            PageLook::Absent(_) if self.fetches.left() == 0 => Step::BackInLine(LineWait::Reads),
            PageLook::Absent(home) => Step::Read(home),
        }
    }
}

/// The search layer leads to a node that does not cover the key.
fn nowhere(op: &OrderedOp) -> Error {
    let key = String::from_utf8_lossy(&op.request.key).into_owned();
    Error::Corrupt(format!(
        "no data node of an ordered keyspace has the place of the key {key:?}: end this process without closing the store, and open it again, \
         which reads all data nodes"
    ))
}

impl OrderedSession {
    pub fn new(
        state: Arc<OrderedState>,
        source: Arc<dyn TreeSource>,
        batches: Arc<BatchList>,
        slot: EngineSlot,
    ) -> OrderedSession {
        OrderedSession {
            ops: Ops::default(),
            waits: Waits {
                turns: NodeTurns::default(),
                fetches: Fetches::new(state.cache.pages()),
                room: RoomQueue::default(),
                extensions: ExtensionQueue::default(),
                held: HeldAnswers::default(),
                merges: Merges::default(),
            },
            scans: Scans::default(),
            reads: PageReads::default(),
            preparation: Preparation::default(),
            batches,
            pass: Some(state.gate.pass()),
            cx: Context::new(state, source, slot),
        }
    }

    /// Attempts everything that waits, with a pass of the gate.
    fn attempt_in_pass(&mut self, core: &mut SessionCore) {
        let pass = self.pass.take().expect("it is away during a poll alone");
        let passing = pass.pass();
        self.cx.may_change = passing.may_change;
        self.attempt_all(core);
        self.cx.may_change = false;
        drop(passing);
        self.pass = Some(pass);
    }

    /// Takes the completion of an operation's command.
    fn complete_op(&mut self, core: &mut SessionCore, number: usize, piece: ReturnedPiece) {
        let OrderedSession { ops, waits, cx, .. } = self;
        let mut op = OpInHand::take(ops, number);
        let is_get = matches!(op.request.borrow(), Request::Get { .. });
        let stage = std::mem::take(&mut op.kept.stage);
        if matches!(stage, OpStage::Looks(..) | OpStage::Changes(..)) {
            cx.page_returned();
        }
        let (at, step) = match stage {
            OpStage::Looks(node, others) if is_get => {
                drop(op);
                let group = GroupNumbers { first: number, others: &others };
                return waits.gets_looked((cx, core), ops, group, node, None, piece.returned);
            }
            OpStage::Reads(node, home, others) if is_get => {
                drop(op);
                let group = GroupNumbers { first: number, others: &others };
                return waits.gets_looked((cx, core), ops, group, node, Some(home), piece.returned);
            }
            OpStage::Changes(node, others) if !others.is_empty() => {
                drop(op);
                let group = GroupNumbers { first: number, others: &others };
                return waits.group_changed((cx, core), ops, group, node, piece.returned);
            }
            OpStage::Looks(node, _) => (Some(node), looks::looked((cx, core), &mut op, node, piece.returned)),
            OpStage::Changes(node, _) => {
                (Some(node), changes::changed((cx, core), &mut waits.merges, &mut op, node, piece.returned))
            }
            OpStage::Reads(node, home, _) => {
                (Some(node), waits.fetches.was_read((cx, core), &mut op, HomedNode { node, home }, piece.returned))
            }
            OpStage::ReadsExtension(head, read) => {
                (None, extensions::was_read_out_of_line((cx, core), &mut op, head, read, piece))
            }
            OpStage::Computes(answer) => (None, through::computed(core, &mut op, *answer, piece.returned)),
            OpStage::WritesExtension(write) => (None, extensions::was_written((cx, core), &mut op, write, piece)),
            _ => unreachable!("it has a command on its way"),
        };
        waits.advance((cx, core), op, at, step);
    }
}

impl EngineSession for OrderedSession {
    fn start(&mut self, core: &mut SessionCore, target: OpTarget, request: &Request<'_>) {
        match attempt::refuse(core, request) {
            Ok(()) => self.ops.wait(target, request),
            Err(error) => core.answer(target.token, Outcome::Failed(error)),
        }
    }

    fn start_through(&mut self, core: &mut SessionCore, target: OpTarget, key: &[u8], near: Box<NearGet>) {
        let request = Request::Get { key };
        if let Err(error) = attempt::refuse(core, &request) {
            return core.answer(target.token, Outcome::Failed(error));
        }
        let number = self.ops.keep(target, &request);
        self.ops.get_mut(number).expect("it is in its slot").kept.near = Some(near);
        self.ops.wait_for_turn(target.hash, number);
    }

    fn cancel_through(&mut self, core: &mut SessionCore, token: u64) {
        let slot = self.cx.slot;
        for (number, op) in self.ops.iter_mut().filter(|(_, op)| op.token == token) {
            if let Some(near) = &mut op.kept.near {
                near.cancel(core, slot.tag(number as u64));
            }
        }
    }

    fn complete(&mut self, core: &mut SessionCore, returned: Returned) {
        let OrderedSession { waits, scans, reads, preparation, cx, .. } = self;
        let (own, slot) = of_piece_tag(EngineSlot::own(returned.completion.tag));
        let number = |tag: u64| (own & !tag) as usize;
        if own & TAG_SCAN != 0 {
            scans.complete((cx, core), &mut waits.merges, number(TAG_SCAN), ReturnedPiece { slot, returned });
        } else if own & TAG_PAGE != 0 {
            match reads.was_read((cx, core), number(TAG_PAGE), returned) {
                (PageReader::Merge(wish), end) => waits.merges.page_was_read(wish, &end),
                (PageReader::Batch, end) => preparation.page_was_read(end),
            }
        } else if own & TAG_VALUE != 0 {
            preparation.value_was_written((cx, core), number(TAG_VALUE), ReturnedPiece { slot, returned });
        } else if own & TAG_AHEAD != 0 {
            scans.was_read_ahead(number(TAG_AHEAD), returned);
        } else {
            self.complete_op(core, own as usize, ReturnedPiece { slot, returned });
        }
    }

    fn allow_value(&mut self, _: &mut SessionCore, number: usize, value_bytes: usize) {
        let mut op = self.ops.take(number);
        (op.value_bytes_allowed, op.kept.stage) = (value_bytes, OpStage::Begins);
        let hash = op.hash;
        self.ops.enter(number, op);
        self.ops.wait_for_turn(hash, number);
    }

    fn give_up_value(&mut self, number: usize) {
        let op = self.ops.take(number);
        self.ops.end(number, op);
    }

    fn start_scan(&mut self, keyspace: KeyspaceRef, token: u64, range: KeyRange, items_max: usize) {
        self.scans.start(keyspace, token, range, items_max);
    }

    fn take_scanned(&mut self, replies: &mut Vec<ScanReply>) {
        self.scans.take_replies(replies);
    }

    fn prepare<'a>(
        &'a mut self,
        core: &SessionCore,
        writes: &'a [Write<'a>],
    ) -> Result<Box<dyn BatchPart + 'a>, BatchStop> {
        let OrderedSession { ops, waits, reads, preparation, batches, cx, pass, .. } = self;
        // Trees are made before the parts of a batch lock anything.
        for write in writes {
            cx.tree_of(write.keyspace().id()).map_err(BatchStop::Refused)?;
        }
        let pass = pass.as_ref().expect("no batch begins amid a poll");
        let session = SessionParts { cx, preparation, reads, merges: &mut waits.merges };
        Ok(Box::new(OrderedBatch::prepare(session, ops, core, (batches, pass), writes)?))
    }

    fn send(&mut self, core: &mut SessionCore) {
        self.preparation.send((&mut self.cx, core), &mut self.reads);
    }

    fn in_flight(&self) -> usize {
        self.ops.count() + self.waits.held.count() + self.scans.count()
    }

    fn tokens(&self) -> Vec<u64> {
        self.ops.tokens().chain(self.waits.held.tokens()).chain(self.scans.tokens()).collect()
    }

    fn kept_bytes(&self) -> usize {
        self.ops.kept_bytes() + self.waits.held.value_bytes()
    }

    fn poll(&mut self, core: &mut SessionCore) {
        self.attempt_in_pass(core);
        self.waits.merges.want_sweeps(&mut self.cx);
    }

    fn fail_waiting(&mut self, core: &mut SessionCore) {
        self.fail_all_waiting(core);
    }

    fn leave(&mut self, core: &mut SessionCore) {
        self.await_pages(core);
    }

    fn waits(&self) -> EngineWait {
        self.wait_reason()
    }

    fn shared_event(&self) -> Option<&SharedEvent> {
        Some(&self.cx.state.write_back.event)
    }

    fn logged_bytes(&self, write: &Write<'_>) -> usize {
        if is_large(write) { REFERENCE_BYTES } else { write.value().len() }
    }
}
