//! Operations that look at their key's record: all that the drive does not decide.

use super::changes::{condition, large_value};
use super::groups::GroupKind;
use super::op_state::{Change, ChangeValue, OpStage, OrderedOp, Shown};
use super::{OrderedSession, scratch};
use crate::ordered::cache::PageLook;
use crate::ordered::cache::page_meta::PageUse;
use crate::ordered::node_table::NodeId;
use tapetum_base::error::Error;
use tapetum_base::keyspace::decide::{Answer, Current, Decision, NewValue, decide, needs_value};
use tapetum_base::keyspace::item::{Access, ItemHead};
use tapetum_base::keyspace::request::{Outcome, Request};
use tapetum_base::session::asks::Ask;
use tapetum_base::session::session_core::SessionCore;
use tapetum_drive::programs::node::{
    ANY_NODE, GetRequests, ItemPlace, ItemReader, NodeArguments, NodeFlags, NodeItem, PutCondition,
};
use tapetum_drive::{Lease, LocalBuffer, Purpose, Returned};
use tapetum_kernels::extent_address::ExtentAddress;
use tapetum_kernels::ordered::extension::ExtensionReference;
use tapetum_kernels::ordered::{ImageSeal, SlotAddress, SlotSalt};
use tapetum_kernels::record::Marks;

/// What `node-get` found of a key.
pub(super) enum Found {
    /// The key is another node's.
    OutsideFences,
    Missing,
    /// Its value is in the page, from this byte on.
    InPage(ItemHead, usize),
    /// Its value is in an extension.
    InExtension(ItemHead, ExtensionReference),
}

impl Found {
    pub fn head(&self) -> Option<&ItemHead> {
        match self {
            Found::InPage(head, _) | Found::InExtension(head, _) => Some(head),
            Found::Missing | Found::OutsideFences => None,
        }
    }

    fn of(item: &NodeItem<'_>) -> Option<Found> {
        let head = ItemHead {
            flags: item.flags,
            expiry: item.expiry,
            stamp: item.stamp,
            value_bytes: item.raw_bytes as usize,
            marks: item.marks,
        };
        match item.place {
            ItemPlace::OutsideFences => Some(Found::OutsideFences),
            ItemPlace::Missing => Some(Found::Missing),
            ItemPlace::Page(at) => Some(Found::InPage(head, at)),
            ItemPlace::Extension(reference) => Some(Found::InExtension(head, reference)),
            ItemPlace::Here(_) | ItemPlace::NotWanted => None,
        }
    }
}

/// An item that counts, and its value, as far as that is known.
#[derive(Clone, Copy)]
struct Item<'a> {
    head: ItemHead,
    value: &'a [u8],
}

impl OrderedSession {
    /// Begins an operation, or begins it anew: it stands in line at the node that its key seems to be in.
    pub(super) fn attempt(&mut self, core: &mut SessionCore, number: usize, mut op: Box<OrderedOp>) {
        #[cfg(test)]
        {
            self.attempts += 1;
        }
        if let Err(error) = self.may_begin(core, &op) {
            return self.fail(core, (number, op), error);
        }
        if Self::waits_for_extension(&op) {
            return match core.base.log.poisoned() {
                Ok(()) => {
                    self.ops.put(number, op);
                    self.waits.for_extensions.push(number);
                }
                // Nothing is flushed any more.
                Err(error) => self.fail(core, (number, op), error),
            };
        }
        if self.ops.is_behind_deletion(&op) {
            return self.ops.wait_again(number, op);
        }
        if let Request::DeleteAll { at } = op.request.borrow() {
            return self.delete_all(core, (number, op), at);
        }
        let tree = match self.tree_of(op.keyspace.id()) {
            Ok(tree) => tree,
            Err(error) => return self.fail(core, (number, op), error),
        };
        op.kept.tree = Some(self.trees[tree].tree.clone());
        if self.state.write_back.is_behind() && !op.request.borrow().reads() {
            return self.wait_for_room(number, op);
        }
        let node = self.node_of(tree, &op.request.key);
        self.ops.put(number, op);
        self.turns.join(node, number);
    }

    /// It is an operation's turn at a node.
    pub(super) fn take_turn(
        &mut self,
        core: &mut SessionCore,
        (number, op): (usize, Box<OrderedOp>),
        node: NodeId,
        used: PageUse,
    ) {
        #[cfg(test)]
        {
            self.attempts += 1;
        }
        match self.state.cache.take(node, op.keyspace.id().0, used) {
            PageLook::Taken(page) => self.begin(core, (number, op), node, page),
            PageLook::Busy => {
                self.again.tries = true;
                self.ops.put(number, op);
                self.turns.is_busy(node, number);
            }
            // Who is behind it has the same to find out.
            PageLook::Gone => self.try_again(number, op),
            PageLook::Absent(_) if self.fetches.on_their_way >= self.fetches.most => {
                self.ops.put(number, op);
                self.turns.park(node, number);
            }
            PageLook::Absent(home) => self.read(core, (number, op), (node, home)),
        }
    }

    /// Deletes everything in a keyspace, now or at a time: by a mark in the log, as in hashed keyspaces.
    fn delete_all(&mut self, core: &mut SessionCore, (number, op): (usize, Box<OrderedOp>), at: u32) {
        match core.base.mark_deletion(op.keyspace, at) {
            Ok(Some(stamp)) => {
                core.answer_after(op.token, stamp, Outcome::Done);
                self.ops.forget(number, op);
            }
            // The log has no room now.
            Ok(None) => self.ops.wait_again(number, op),
            Err(error) => self.fail(core, (number, op), error),
        }
    }

    fn may_begin(&self, core: &SessionCore, op: &OrderedOp) -> Result<(), Error> {
        core.base.refuse_dropped(op.keyspace)?;
        if op.request.borrow().reads() { Ok(()) } else { core.base.log.poisoned() }
    }

    /// Sends the program that an operation begins with.
    fn begin(
        &mut self,
        core: &mut SessionCore,
        (number, op): (usize, Box<OrderedOp>),
        node: NodeId,
        page: LocalBuffer,
    ) {
        match op.kept.looks_first || Self::looks(&op) {
            true => self.look(core, (number, op), node, page),
            false => self.change_with_others(core, (number, op), node, page),
        }
    }

    /// Whether an operation looks at its record before it changes it: if the drive does not decide it, or its value is written to an
    /// extension.
    fn looks(op: &OrderedOp) -> bool {
        match condition(&op.request.borrow()) {
            None => true,
            Some(PutCondition::Always) => false,
            Some(_) => large_value(op).is_some(),
        }
    }

    pub(super) fn look(
        &mut self,
        core: &mut SessionCore,
        (number, mut op): (usize, Box<OrderedOp>),
        node: NodeId,
        page: LocalBuffer,
    ) {
        let kept = op.kept.scratch.take();
        let Some(mut scratch) = kept.or_else(|| self.take_scratch(core)) else {
            self.state.cache.give_back(node, page, |_| ());
            return self.wait_for_memory((number, op), node);
        };
        self.push_gets(&mut op, node, &arguments(NodeFlags::RAW_IN_PAGE));
        let on = (&core.queue, Purpose::Get);
        let operation = scratch::look(on, self.state.programs.get, &self.reused.parameters, (&page, &mut scratch));
        op.kept.stage = OpStage::Looks(node);
        self.ops.put(number, op);
        self.pages_taken += 1;
        self.submit(core, (number as u64, Purpose::Get), operation, Lease::Buffers([page, scratch]));
    }

    /// Makes the parameters of a program that looks for an operation's key, and if that is a get for those of others.
    pub(super) fn push_gets(&mut self, op: &mut OrderedOp, node: NodeId, arguments: &NodeArguments) {
        op.kept.group = self.gather(op, node, GroupKind::Gets);
        let mut requests = GetRequests::new(arguments, &mut self.reused.parameters);
        requests.push(&op.request.key);
        for number in &op.kept.group {
            requests.push(&self.ops.get(*number).expect("it is kept").request.key);
        }
    }

    /// A program has looked at a cached page.
    pub(super) fn looked(
        &mut self,
        core: &mut SessionCore,
        (number, mut op): (usize, Box<OrderedOp>),
        node: NodeId,
        returned: Returned,
    ) {
        if let Request::Get { .. } = op.request.borrow() {
            return self.gets_looked(core, (number, op), (node, None), returned);
        }
        let Returned { completion, lease } = returned;
        let Lease::Buffers([page, scratch]) = lease else { unreachable!("it was lent both") };
        let found = match completion.is_success() {
            true => found_in(core, &scratch, completion.result[0]),
            false => None,
        };
        self.give_scratch(core, scratch);
        let Some(found) = found else {
            self.state.cache.give_back(node, page, |_| ());
            return self.fail(core, (number, op), damaged(node));
        };
        if matches!(found, Found::OutsideFences) {
            self.state.cache.give_back(node, page, |_| ());
            return self.try_again(number, op);
        }
        if let Some(value_bytes) = must_ask(core, &op, &found) {
            self.state.cache.give_back(node, page, |_| ());
            return self.ask(core, (number, op), value_bytes);
        }
        if let Found::InExtension(head, reference) = found
            && is_live(core, &op, &head)
            && needs_value(&op.request.borrow())
            && op.kept.read.as_ref().is_none_or(|(stamp, _)| *stamp != head.stamp)
        {
            op.kept.ticket = self.state.cache.give_back(node, page, |meta| meta.wait_for(head.stamp));
            return self.read_extension(core, (number, op), (head, reference));
        }
        if let Some(change) = self.decided(core, &op, &found, &page) {
            op.kept.change = Some(change);
            op.kept.replaced = if let Found::InExtension(_, reference) = found { Some(reference) } else { None };
            return self.change(core, (number, op), node, page);
        }
        let outcome = self.answer_of(core, &op, &found, &page);
        // An item that has expired hides the one that is durable, as a removal does.
        let seen = found.head().map(|head| head.stamp);
        let ticket = self.state.cache.give_back(node, page, |meta| meta.durability().wait_for(seen));
        let deleted_by = found.head().map_or(0, |head| deleted_by(core, &op, head));
        self.answer(core, op.token, Shown { ticket, deleted_by, read_flash: false }, outcome);
        self.ops.forget(number, op);
    }

    /// An operation that shows a longer value than it may bring asks first.
    pub(super) fn ask(&mut self, core: &mut SessionCore, (number, op): (usize, Box<OrderedOp>), value_bytes: usize) {
        core.asks.add(Ask { token: op.token, value_bytes }, (self.slot, number));
        self.ops.step_aside(number, op);
    }

    /// An operation that asked may bring so much, and goes on as if it was submitted now.
    pub fn allow_value(&mut self, number: usize, value_bytes: usize) {
        let mut op = self.ops.take(number);
        op.value_bytes_allowed = value_bytes;
        let hash = op.hash;
        self.ops.enter(number, op);
        self.ops.wait_for_turn(hash, number);
    }

    /// Ends an operation that asked; it was answered.
    pub fn give_up_value(&mut self, number: usize) {
        let op = self.ops.take(number);
        self.ops.end(number, op);
    }

    /// The item of what was found, if it counts.
    fn item<'a>(core: &SessionCore, op: &'a OrderedOp, found: &Found, page: &'a LocalBuffer) -> Option<Item<'a>> {
        let (head, value) = match *found {
            Found::InPage(head, at) => (head, core.queue.look(Purpose::Get, page, at..at + head.value_bytes)),
            Found::InExtension(head, _) => {
                (head, op.kept.read.as_ref().map(|(_, value)| &value[..]).unwrap_or_default())
            }
            Found::Missing | Found::OutsideFences => return None,
        };
        is_live(core, op, &head).then_some(Item { head, value })
    }

    fn decision(op: &OrderedOp, item: Option<Item<'_>>) -> Decision {
        let current = item.map(|item| Current::new(item.head, Access::default(), item.value));
        decide(&op.request.borrow(), current)
    }

    /// What an operation writes, if it does.
    fn decided(&self, core: &SessionCore, op: &OrderedOp, found: &Found, page: &LocalBuffer) -> Option<Change> {
        if let Request::Get { .. } = op.request.borrow() {
            return None;
        }
        let item = Self::item(core, op, found, page);
        let old = item.map(|item| item.value).unwrap_or_default();
        let (flags, expiry, marks, value, answer) = match Self::decision(op, item) {
            Decision::Answer(_) | Decision::Show => return None,
            Decision::Delete => (0, 0, Marks::NONE, ChangeValue::Removed, None),
            Decision::Store { flags, expiry, marks, value, answer } => {
                let value = match (value, found) {
                    (NewValue::Given, _) => ChangeValue::Given,
                    (NewValue::Same, Found::InExtension(head, reference)) => {
                        ChangeValue::Kept { reference: *reference, raw_bytes: head.value_bytes as u32 }
                    }
                    (NewValue::Same, _) => ChangeValue::Bytes(old.to_vec()),
                    (NewValue::Made(value), _) => ChangeValue::Bytes(value),
                };
                (flags, expiry, marks, value, Some(answer))
            }
        };
        let shown = if answer.is_some_and(Answer::shows_value) { old.to_vec() } else { Vec::new() };
        let basis = item.map_or(0, |item| item.head.stamp);
        Some(Change { flags, expiry, marks, value, answer, shown, basis })
    }

    /// The answer of an operation that writes nothing.
    pub(super) fn answer_of(
        &self,
        core: &mut SessionCore,
        op: &OrderedOp,
        found: &Found,
        page: &LocalBuffer,
    ) -> Outcome {
        let item = Self::item(core, op, found, page);
        match (Self::decision(op, item), item) {
            (Decision::Answer(outcome), _) => outcome,
            (Decision::Show, Some(Item { head, value })) => {
                let value = core.values.add(value);
                match op.request.borrow() {
                    Request::GetAndLease { .. } => {
                        tapetum_base::keyspace::decide::unchanged(head, Access::default(), value)
                    }
                    _ => Outcome::Value { flags: head.flags, stamp: head.stamp, expiry: head.expiry, value },
                }
            }
            // What writes is a change's, and nothing is shown of what is not there.
            _ => Outcome::Missing,
        }
    }
}

/// What a `node-get` of one key filled.
pub(super) fn found_in(core: &SessionCore, scratch: &LocalBuffer, filled: u64) -> Option<Found> {
    let item = ItemReader::new(scratch::filled(&core.queue, Purpose::Get, scratch, filled)).next()?;
    Found::of(&item)
}

/// What a `node-get` of several keys filled: an item for each that it came to; `None` in place of one that is none.
pub(super) fn founds_in(core: &SessionCore, scratch: &LocalBuffer, filled: u64) -> Vec<Option<Found>> {
    let items = ItemReader::new(scratch::filled(&core.queue, Purpose::Get, scratch, filled));
    items.map(|item| Found::of(&item)).collect()
}

/// Whether an item counts: not deleted with everything else, not expired.
pub(super) fn is_live(core: &SessionCore, op: &OrderedOp, head: &ItemHead) -> bool {
    let has_expired = head.expiry != 0 && head.expiry <= core.base.now();
    !has_expired && head.stamp > core.base.keyspaces.watermark(op.keyspace.id())
}

/// The stamp of the deletion of everything that took an item; 0 if none did.
pub(super) fn deleted_by(core: &SessionCore, op: &OrderedOp, head: &ItemHead) -> u64 {
    let watermark = core.base.keyspaces.watermark(op.keyspace.id());
    if head.stamp <= watermark { watermark } else { 0 }
}

/// The bytes for which an operation must ask first, if it does.
pub(super) fn must_ask(core: &SessionCore, op: &OrderedOp, found: &Found) -> Option<usize> {
    match found {
        Found::InPage(head, _) | Found::InExtension(head, _)
            if op.must_ask_for(head.value_bytes) && is_live(core, op, head) =>
        {
            Some(head.value_bytes)
        }
        _ => None,
    }
}

/// The arguments of a program over a page of the cache, whose checksum nobody looks at.
pub(super) fn arguments(flags: NodeFlags) -> NodeArguments {
    let salt = SlotSalt { store: 0, slot: SlotAddress::new(ExtentAddress::new(0, 0), 0), version: 0 };
    NodeArguments { salt, id: ANY_NODE, stamp: 0, watermark: 0, seal: ImageSeal::default(), now: 0, flags }
}

/// A page in memory is not what was put there.
pub(super) fn damaged(node: NodeId) -> Error {
    Error::Corrupt(format!("the cached page of data node {}", node.0))
}
