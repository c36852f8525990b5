//! Fetches. A page that is not cached is read, checked and looked at with one command. Then its operation waits for a place in the cache, in a line
//! for each full set. It goes on as soon as it has a place, before another page takes that.

use super::context::{Context, OrderedMeans};
use super::in_hand::OpInHand;
use super::looks::{found_in, push_gets};
use super::node_turns::NodeTurns;
use super::op_state::{FetchedPage, OpStage, Step};
use super::scratch;
use crate::ordered::cache::Installed;
use crate::ordered::cache::page_meta::{PageMeta, PageUse};
use crate::ordered::node_table::{HomedNode, NodeHome, NodeId};
use crate::ordered::slabs::SlotSpace;
use std::collections::VecDeque;
use tapetum_base::error::Error;
use tapetum_base::session::session_core::SessionCore;
use tapetum_drive::programs::CORRUPT;
use tapetum_drive::programs::node::{ANOTHER_NODE, ANY_NODE, NodeArguments, NodeFlags, corrupt_reason};
use tapetum_drive::{Completion, Lease, LocalBuffer, Purpose, Returned, Status};
use tapetum_kernels::ordered::ImageSeal;

/// The most operations of a session whose pages are read or wait for a place in the cache: one for so many places, within bounds.
const FETCHES_PART: usize = 16;
const FETCHES_MIN: usize = 16;
const FETCHES_MAX: usize = 256;

/// A full set of the cache, and the line for it: operations and their nodes.
struct PlaceLine {
    set: usize,
    line: VecDeque<(usize, HomedNode)>,
}

/// See the [module](self). No line is empty. Together they have no more operations than a session may fetch at once.
pub(super) struct Fetches {
    /// The number of pages that are read, or wait for a place.
    on_their_way: usize,
    most: usize,
    lines: Vec<PlaceLine>,
}

impl Fetches {
    /// For a cache of `pages` pages.
    pub fn new(pages: usize) -> Fetches {
        let most = (pages / FETCHES_PART).clamp(FETCHES_MIN, FETCHES_MAX);
        Fetches { on_their_way: 0, most, lines: Vec::new() }
    }

    /// The number of further pages that may be read.
    pub fn left(&self) -> usize {
        self.most.saturating_sub(self.on_their_way)
    }

    /// Reads the page of an operation's node.
    pub fn read(
        &mut self,
        (cx, core): OrderedMeans<'_>,
        turns: &mut NodeTurns,
        op: &mut OpInHand<'_>,
        HomedNode { node, home }: HomedNode,
    ) -> Step {
        let tree = op.kept.tree.clone().expect("it was attempted");
        // The slot belongs to another group by now.
        let Some(arguments) = arguments_of_flash(&tree.nodes, home, NodeFlags::RAW_IN_PAGE) else { return Step::Again };
        let Some(page) = cx.take_page(core) else { return cx.starves() };
        let kept = op.kept.scratch.take();
        let Some(mut scratch) = kept.or_else(|| cx.take_scratch(core)) else {
            cx.give_page(page);
            return cx.starves();
        };
        let group = push_gets(cx, turns, op, node, &arguments);
        let (program, flash) = (cx.state.programs.get, tree.nodes.map().flash(home.slot));
        let operation =
            scratch::read_and_look(&core.queue, Purpose::Get, program, flash, &cx.parameters, &page, &mut scratch);
        op.kept.stage = OpStage::Reads(node, home, group);
        self.on_their_way += 1;
        cx.submit(core, op.number() as u64, Purpose::Get, operation, Lease::Buffers([page, scratch]));
        Step::AtNode
    }

    /// Called when the page of an operation other than a get was read, or the read failed.
    pub fn was_read(
        &mut self,
        (cx, core): OrderedMeans<'_>,
        op: &mut OpInHand<'_>,
        HomedNode { node, home }: HomedNode,
        Returned { completion, lease }: Returned,
    ) -> Step {
        let Lease::Buffers([page, scratch]) = lease else { unreachable!("it was lent both") };
        let is_read = completion.is_success() && found_in(core, &scratch, completion.result[0]).is_some();
        if is_read {
            op.kept.scratch = Some(scratch);
            // The next round looks for a place.
            cx.again.tries = true;
            return Step::AwaitPlace(FetchedPage { node, home, page });
        }
        cx.give_scratch(core, scratch);
        self.end(cx, page);
        match cx.state.cache.is_current(node, home) {
            true => Step::Fail(read_error(core, HomedNode { node, home }, &completion)),
            // Another image is in the slot: the node has moved.
            false => Step::Again,
        }
    }

    /// Ends a fetch: the page is in the cache or not needed, and this is a buffer in exchange.
    pub fn end(&mut self, cx: &Context, page: LocalBuffer) {
        self.on_their_way -= 1;
        cx.give_page(page);
    }

    /// Lets an operation wait for a place for its page, behind the others.
    pub fn await_place(&mut self, cx: &Context, op: &mut OpInHand<'_>, fetched: FetchedPage) {
        let (number, homed) = (op.number(), HomedNode { node: fetched.node, home: fetched.home });
        op.kept.stage = OpStage::AwaitsPlace(fetched);
        let set = cx.state.cache.set_of(homed.node);
        match self.lines.iter_mut().find(|line| line.set == set) {
            Some(line) => line.line.push_back((number, homed)),
            None => self.lines.push(PlaceLine { set, line: VecDeque::from([(number, homed)]) }),
        }
    }

    /// Installs the page of the first operation of a line in the cache, or drops it if it is outdated.
    pub fn install(&mut self, cx: &Context, op: &mut OpInHand<'_>) -> Step {
        let OpStage::AwaitsPlace(FetchedPage { node, home, page }) = std::mem::take(&mut op.kept.stage) else {
            unreachable!("it waits for a place")
        };
        let meta = PageMeta::new(op.keyspace.id().0, PageUse::ByKey);
        match cx.state.cache.install(node, home, page, meta) {
            Installed::Done(page) | Installed::Stale(page) => {
                self.end(cx, page);
                Step::Turn(PageUse::Again)
            }
            // Another session was faster.
            Installed::NoRoom(page) => Step::AwaitPlace(FetchedPage { node, home, page }),
        }
    }

    pub fn await_places(&self) -> bool {
        !self.lines.is_empty()
    }

    pub fn lines(&self) -> usize {
        self.lines.len()
    }

    /// Whether there may be a place for the first operation of a line.
    pub fn has_place(&self, cx: &Context, line: usize) -> bool {
        let first = self.lines.get(line).map(|line| line.line[0].1);
        first.is_some_and(|HomedNode { node, home }| cx.state.cache.may_install(node, home))
    }

    /// Takes the first operation of a line, and its node.
    pub fn take(&mut self, line: usize) -> Option<(usize, NodeId)> {
        let (number, HomedNode { node, .. }) = self.lines[line].line.pop_front()?;
        if self.lines[line].line.is_empty() {
            self.lines.swap_remove(line);
        }
        Some((number, node))
    }

    /// Takes any operation that waits for a place.
    pub fn take_any(&mut self) -> Option<(usize, NodeId)> {
        self.lines.len().checked_sub(1).and_then(|line| self.take(line))
    }
}

/// The arguments of a program over a page from flash. `None`: its group of slots does not exist any more.
pub(super) fn arguments_of_flash(nodes: &SlotSpace, home: NodeHome, flags: NodeFlags) -> Option<NodeArguments> {
    let salt = nodes.salt(nodes.map().address(home.slot))?;
    let flags = flags.with(NodeFlags::CHECK);
    Some(NodeArguments {
        salt,
        id: ANY_NODE,
        stamp: home.stamp,
        watermark: 0,
        seal: ImageSeal::default(),
        now_ms: 0,
        flags,
    })
}

/// The error of a node's home.
pub(super) fn read_error(core: &SessionCore, HomedNode { node, home }: HomedNode, completion: &Completion) -> Error {
    let NodeHome { slot, stamp } = home;
    match completion.status {
        CORRUPT => {
            let reason = corrupt_reason(completion.result[0]);
            Error::Corrupt(format!("data node {} with stamp {stamp} in slot {slot} ({reason:?})", node.0))
        }
        ANOTHER_NODE => Error::Corrupt(format!(
            "slot {slot} holds an image with stamp {} in place of data node {} with stamp {stamp}",
            completion.result[1], node.0
        )),
        Status::Success => Error::Corrupt(format!("data node {} with stamp {stamp} in slot {slot}", node.0)),
        _ => Error::of_command(core.queue.drive(), "read", completion),
    }
}
