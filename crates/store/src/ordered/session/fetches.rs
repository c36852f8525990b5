//! Operations whose node is not cached: its page is read, checked and looked at with one command.

use super::looks::{Found, deleted_by, found_in, must_ask};
use super::op_state::{OpStage, OrderedOp, Shown};
use super::{OrderedSession, scratch};
use crate::error::Error;
use crate::keyspace::request::Request;
use crate::ordered::cache::Installed;
use crate::ordered::cache::page_meta::{PageMeta, PageUse};
use crate::ordered::node_table::{NodeHome, NodeId};
use crate::ordered::slabs::SlotSpace;
use crate::planted::Bug;
use crate::session::session_core::SessionCore;
use tapetum_drive::programs::CORRUPT;
use tapetum_drive::programs::node::{ANOTHER_NODE, ANY_NODE, GetRequests, NodeArguments, NodeFlags, corrupt_reason};
use tapetum_drive::{Completion, Lease, Purpose, Returned, Status};
use tapetum_kernels::ordered::ImageSeal;

impl OrderedSession {
    /// Reads the page of an operation's node.
    pub(super) fn read(
        &mut self,
        core: &mut SessionCore,
        (number, mut op): (usize, Box<OrderedOp>),
        (node, home): (NodeId, NodeHome),
    ) {
        let tree = op.kept.tree.clone().expect("it was attempted");
        // The slot was another's by now.
        let Some(arguments) = arguments_of_flash(&tree.nodes, home, NodeFlags::RAW_IN_PAGE) else {
            return self.try_again(number, op);
        };
        let Some(page) = self.take_page(core) else { return self.wait_for_memory((number, op), node) };
        let kept = op.kept.scratch.take();
        let Some(mut scratch) = kept.or_else(|| self.take_scratch(core)) else {
            self.give_page(page);
            return self.wait_for_memory((number, op), node);
        };
        GetRequests::new(&arguments, &mut self.parameters).push(&op.request.key);
        let on = (&core.queue, Purpose::Get);
        let what = (self.state.programs.get, tree.nodes.map().flash(home.slot));
        let operation = scratch::read_and_look(on, what, &self.parameters, (&page, &mut scratch));
        op.kept.stage = OpStage::Reads(node, home);
        self.fetches += 1;
        self.ops.put(number, op);
        self.submit(core, (number as u64, Purpose::Get), operation, Lease::Buffers([page, scratch]));
    }

    /// A page was read, or not.
    pub(super) fn was_read(
        &mut self,
        core: &mut SessionCore,
        (number, mut op): (usize, Box<OrderedOp>),
        (node, home): (NodeId, NodeHome),
        Returned { completion, lease }: Returned,
    ) {
        let Lease::Buffers([page, scratch]) = lease else { unreachable!("it was lent both") };
        let found = match completion.is_success() {
            true => found_in(core, &scratch, completion.result[0]),
            false => None,
        };
        let Some(found) = found else {
            self.give_scratch(core, scratch);
            self.end_fetch(page);
            return match self.state.cache.is_current(node, home) {
                true => {
                    let error = read_error(core, (node, home), &completion);
                    self.fail(core, (number, op), error)
                }
                // Another image is in the slot: the node has moved.
                false => self.try_again(number, op),
            };
        };
        let is_get = matches!(op.request.borrow(), Request::Get { .. });
        if !is_get || !matches!(found, Found::Missing | Found::InPage(..)) {
            op.kept.stage = OpStage::Fetched(node, home, page);
            op.kept.scratch = Some(scratch);
            self.ops.put(number, op);
            return self.await_place(core, number);
        }
        self.give_scratch(core, scratch);
        // The page is the node as it is, or the answer would be of the past.
        if !self.state.cache.is_current(node, home) && !core.base.planted.has(Bug::OrderedShowStale) {
            self.end_fetch(page);
            return self.try_again(number, op);
        }
        if let Some(value_bytes) = must_ask(core, &op, &found) {
            self.end_fetch(page);
            return self.ask(core, (number, op), value_bytes);
        }
        let outcome = self.answer_of(core, &op, &found, &page);
        let meta = PageMeta::new(op.keyspace.id().0, PageUse::ByKey);
        match self.state.cache.install(node, home, page, meta) {
            Installed::Done(page) | Installed::NoRoom(page) | Installed::Stale(page) => self.end_fetch(page),
        }
        let deleted_by = found.head().map_or(0, |head| deleted_by(core, &op, head));
        self.answer(core, op.token, Shown { ticket: None, deleted_by }, outcome);
        self.ops.forget(number, op);
    }
}

/// The arguments of a program over a page as it comes from flash. `None`: its group of slots is none any more.
pub(super) fn arguments_of_flash(nodes: &SlotSpace, home: NodeHome, flags: NodeFlags) -> Option<NodeArguments> {
    let salt = nodes.salt(nodes.map().address(home.slot))?;
    let flags = flags.with(NodeFlags::CHECK);
    Some(NodeArguments {
        salt,
        id: ANY_NODE,
        stamp: home.stamp,
        watermark: 0,
        seal: ImageSeal::default(),
        now: 0,
        flags,
    })
}

/// What is wrong with a node's home.
pub(super) fn read_error(core: &SessionCore, (node, home): (NodeId, NodeHome), completion: &Completion) -> Error {
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
