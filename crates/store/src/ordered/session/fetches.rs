//! Operations whose node is not cached: its page is read, checked and looked at with one command.

use super::looks::found_in;
use super::op_state::{OpStage, OrderedOp};
use super::{OrderedSession, scratch};
use crate::ordered::node_table::{NodeHome, NodeId};
use crate::ordered::slabs::SlotSpace;
use tapetum_base::error::Error;
use tapetum_base::keyspace::request::Request;
use tapetum_base::session::session_core::SessionCore;
use tapetum_drive::programs::CORRUPT;
use tapetum_drive::programs::node::{ANOTHER_NODE, ANY_NODE, NodeArguments, NodeFlags, corrupt_reason};
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
        self.push_gets(&mut op, node, &arguments);
        let on = (&core.queue, Purpose::Get);
        let what = (self.state.programs.get, tree.nodes.map().flash(home.slot));
        let operation = scratch::read_and_look(on, what, &self.reused.parameters, (&page, &mut scratch));
        op.kept.stage = OpStage::Reads(node, home);
        self.fetches.on_their_way += 1;
        self.ops.put(number, op);
        self.submit(core, (number as u64, Purpose::Get), operation, Lease::Buffers([page, scratch]));
    }

    pub(super) fn was_read(
        &mut self,
        core: &mut SessionCore,
        (number, mut op): (usize, Box<OrderedOp>),
        (node, home): (NodeId, NodeHome),
        returned: Returned,
    ) {
        if let Request::Get { .. } = op.request.borrow() {
            return self.gets_looked(core, (number, op), (node, Some(home)), returned);
        }
        let Returned { completion, lease } = returned;
        let Lease::Buffers([page, scratch]) = lease else { unreachable!("it was lent both") };
        let is_read = completion.is_success() && found_in(core, &scratch, completion.result[0]).is_some();
        if is_read {
            op.kept.stage = OpStage::Fetched(node, home, page);
            op.kept.scratch = Some(scratch);
            self.ops.put(number, op);
            return self.await_place(number);
        }
        self.give_scratch(core, scratch);
        self.end_fetch(page);
        match self.state.cache.is_current(node, home) {
            true => {
                let error = read_error(core, (node, home), &completion);
                self.fail(core, (number, op), error);
            }
            // Another image is in the slot: the node has moved.
            false => self.try_again(number, op),
        }
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
