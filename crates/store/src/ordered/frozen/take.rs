//! How ordered keyspaces are frozen: the gate is closed, the nodes are walked, what is in use is held.
//!
//! Pages that differ from their images are copied while the gate is closed. So that these are few, they are written before it is closed.

use super::{CopyTo, FrozenTree, KeySpan, TreeMoment};
use crate::ordered::engine::{OrderedEngine, OrderedShared};
use crate::ordered::gate::ClosedGate;
use crate::ordered::slabs::group_table::Group;
use std::sync::Arc;
use tapetum_base::error::{Error, KeyspaceError};
use tapetum_base::keyspace::KeyspaceId;
use tapetum_base::keyspace::states::KeyspaceRef;
use tapetum_base::keyspace_kind::KeyspaceKind;
use tapetum_base::media::extents::ExtentOwner;
use tapetum_base::media::io::{Io, lock};

/// Changed pages that a freeze copies rather than waits for: a MiB of them.
const CHANGED_FEW: usize = 256;
/// How long it waits for pages to be written. On a full flash none may be.
const PATIENCE_US: u64 = 200_000;
/// How often it looks meanwhile, where time stands still.
const LOOKS_MAX: u32 = 100_000;

impl OrderedEngine {
    /// Writes changed pages, until few are left or it takes too long.
    pub async fn write_changed(&self, io: &Io) {
        let Some(OrderedShared { state, .. }) = self.shared() else { return };
        let until_us = self.base.drive.env().now_us() + PATIENCE_US;
        for _ in 0..LOOKS_MAX {
            let are_few = state.write_back.listed() <= CHANGED_FEW;
            if are_few || state.write_back.is_starved() || self.base.log.poisoned().is_err() {
                return;
            }
            if self.base.drive.env().now_us() >= until_us {
                return;
            }
            state.write_back.advance(state, true);
            io.pause().await;
        }
    }

    /// Closes the gate of writers of ordered keyspaces; `None`: there is none to write to.
    ///
    /// # Errors
    /// When there is no memory for what all ordered keyspaces share.
    pub fn close_gate(&self) -> Result<Option<ClosedGate<'_>>, Error> {
        let are_there = || self.base.keyspaces.list_open().iter().any(|(entry, _)| entry.kind == KeyspaceKind::Ordered);
        if self.shared().is_none() && are_there() {
            // The first write might make it amid the moment.
            let _slots = lock(&self.slots);
            self.make_shared()?;
        }
        Ok(self.shared().map(|shared| shared.state.gate.close()))
    }

    /// Freezes a span of a keyspace's keys. `None`: nobody has written to the keyspace.
    ///
    /// # Errors
    /// [`KeyspaceError::Gone`], also when it is dropped meanwhile; otherwise as [`FrozenTree::take`].
    pub fn freeze(
        &self,
        gate: Option<&ClosedGate<'_>>,
        keyspace: KeyspaceId,
        span: &KeySpan,
        (moment, to): (TreeMoment, CopyTo),
    ) -> Result<Option<Arc<FrozenTree>>, Error> {
        let (Some(gate), Some(OrderedShared { state, .. })) = (gate, self.shared()) else { return Ok(None) };
        let Some(tree) = state.tree(keyspace) else { return Ok(None) };
        let slots = lock(&self.slots).get(&keyspace).cloned();
        let Some(slots) = slots else { return Ok(None) };
        let frozen = FrozenTree::take(state, gate, (&tree, &slots), span, (moment, to))?;
        // Its groups stay from here on, and were there as long as the keyspace was.
        if tree.is_dropped() || !self.base.keyspaces.has(keyspace) {
            return Err(Error::Keyspace(KeyspaceError::Gone));
        }
        Ok(Some(Arc::new(frozen)))
    }

    /// A span of a keyspace's keys as it is now, closed for a moment to those who change nodes.
    ///
    /// # Errors
    /// As [`OrderedEngine::freeze`].
    pub fn freeze_now(&self, keyspace: KeyspaceRef, span: &KeySpan) -> Result<Option<Arc<FrozenTree>>, Error> {
        self.base.refuse_dropped(keyspace)?;
        let gate = self.close_gate()?;
        let moment = self.moment_now(keyspace.id());
        let frozen = self.freeze(gate.as_ref(), keyspace.id(), span, (moment, CopyTo::Local));
        drop(gate);
        self.base.log.wake();
        frozen
    }

    /// The node of one key as it is, of which nothing is held. `None`: nobody has written to the keyspace.
    ///
    /// # Errors
    /// As [`FrozenTree::of_key`].
    pub fn node_now(&self, keyspace: KeyspaceRef, span: &KeySpan) -> Result<Option<Arc<FrozenTree>>, Error> {
        self.base.refuse_dropped(keyspace)?;
        let Some(OrderedShared { state, .. }) = self.shared() else { return Ok(None) };
        let Some(tree) = state.tree(keyspace.id()) else { return Ok(None) };
        let moment = self.moment_now(keyspace.id());
        Ok(Some(Arc::new(FrozenTree::of_key(state, &tree, span, moment)?)))
    }

    /// What deletions of everything and the clock say of a keyspace now.
    pub fn moment_now(&self, keyspace: KeyspaceId) -> TreeMoment {
        let states = &self.base.keyspaces;
        let (deleted_through, deleted_by) = (states.watermark(keyspace), states.mark(keyspace).watermark);
        // Everything in a dropped keyspace is deleted, by no mark of the log.
        let deleted_by = if deleted_by == u64::MAX { 0 } else { deleted_by };
        TreeMoment { deleted_through, deleted_by, now_ms: self.base.now_ms() }
    }

    /// Hands the extents of dropped keyspaces that freezes hold over to them.
    pub fn hand_over_dropped(&self) {
        for keyspace in self.dropped().into_iter().filter(|id| self.is_held(*id)) {
            let groups =
                lock(&self.slots).get(&keyspace).map(|slots| slots.spaces().flat_map(|space| space.groups()).collect());
            let groups: Vec<Group> = groups.unwrap_or_default();
            let mut extents = lock(&self.base.extents);
            groups
                .iter()
                .for_each(|group| extents.hand_over(group.first..group.first + group.extents, ExtentOwner::Freeze));
        }
    }

    /// Whether a freeze holds flash of a keyspace.
    pub fn is_held(&self, keyspace: KeyspaceId) -> bool {
        lock(&self.slots).get(&keyspace).is_some_and(|slots| slots.spaces().any(|space| space.is_held()))
    }
}
