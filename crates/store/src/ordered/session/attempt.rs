//! An operation's attempt: from the order of its session to the line at its node.

use super::changes::{condition, large_value};
use super::context::Context;
use super::extensions::waits_for_extension;
use super::in_hand::OpInHand;
use super::op_state::{OrderedOp, Shown, Step};
use tapetum_base::error::Error;
use tapetum_base::request::{Outcome, Request};
use tapetum_base::session::session_core::SessionCore;
use tapetum_drive::programs::node::PutCondition;
use tapetum_kernels::ordered::NODE_KEY_BYTES_MAX;

/// An error if no node can hold the request's key, or its value is too large.
pub(super) fn refuse(core: &SessionCore, request: &Request<'_>) -> Result<(), Error> {
    check_value(core, request.payload_bytes() - request.key().len())?;
    match request.key().len() {
        0 if matches!(request, Request::DeleteAll { .. }) => Ok(()),
        0 => Err(Error::KeyEmpty),
        1..=NODE_KEY_BYTES_MAX => Ok(()),
        _ => Err(Error::KeyTooLong { limit_bytes: NODE_KEY_BYTES_MAX }),
    }
}

/// An error if a value is larger than the store takes.
pub(super) fn check_value(core: &SessionCore, bytes: usize) -> Result<(), Error> {
    let limit_bytes = core.base.value_bytes_max;
    if bytes > limit_bytes { Err(Error::ValueTooLarge { limit_bytes }) } else { Ok(()) }
}

/// Begins an operation, or begins it again: it joins the line at the node that its key seems to be in.
pub(super) fn attempt(cx: &mut Context, core: &mut SessionCore, op: &mut OpInHand<'_>) -> Step {
    #[cfg(test)]
    {
        cx.attempts += 1;
    }
    if let Err(error) = may_begin(core, op) {
        return Step::Fail(error);
    }
    if waits_for_extension(op) {
        // A poisoned store flushes nothing.
        return core.base.log.poisoned().map_or_else(Step::Fail, |()| Step::AwaitExtension);
    }
    if op.is_behind_deletion() {
        return Step::Later;
    }
    if let Request::DeleteAll { at } = op.request.borrow() {
        return delete_all(core, op, at);
    }
    let tree = match cx.tree_of(op.keyspace.id()) {
        Ok(tree) => tree,
        Err(error) => return Step::Fail(error),
    };
    op.kept.tree = Some(cx.trees[tree].tree.clone());
    if !cx.trees[tree].tree.is_made() {
        // The first node gets a page once other pages are written. A poisoned store writes none.
        return core.base.log.poisoned().map_or_else(Step::Fail, |()| Step::Later);
    }
    let is_get = matches!(op.request.borrow(), Request::Get { .. });
    if !cx.may_change && !is_get || cx.state.write_back.is_behind() && !op.request.borrow().reads() {
        return Step::AwaitRoom;
    }
    Step::Join(cx.node_of(tree, &op.request.key))
}

fn may_begin(core: &SessionCore, op: &OrderedOp) -> Result<(), Error> {
    core.base.refuse_dropped(op.keyspace)?;
    if op.request.borrow().reads() { Ok(()) } else { core.base.log.refuse_changes() }
}

/// Deletes everything in a keyspace, now or at a time, by a mark in the log, as in hashed keyspaces.
fn delete_all(core: &SessionCore, op: &OrderedOp, at: u32) -> Step {
    match core.base.mark_deletion(op.keyspace, at) {
        Ok(Some(stamp)) => Step::Answer(Shown { ticket: None, deleted_by: stamp, read_flash: false }, Outcome::Done),
        // The log has no room now.
        Ok(None) => Step::Later,
        Err(error) => Step::Fail(error),
    }
}

/// Whether an operation reads its record before it changes it: either the drive does not decide it, or its value goes to an extension, or its record
/// names one.
pub(super) fn looks_first(op: &OrderedOp) -> bool {
    op.kept.looks_first
        || match condition(&op.request.borrow()) {
            None => true,
            Some(PutCondition::Always) => false,
            Some(_) => large_value(op).is_some(),
        }
}
