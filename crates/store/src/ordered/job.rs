//! The ordered engine's job of maintenance: finding slots, writing pages, sweeping trees, and removing dropped
//! keyspaces.

use super::engine::{OrderedEngine, OrderedShared};
use super::quiet::Quiet;
use super::slabs::group_table::{Group, GroupEdit};
use super::slabs::keyspace_slots::KeyspaceSlots;
use super::slabs::tending::tend;
use super::sweeps::Sweeps;
use crate::ordered::slabs::group_table::GroupTable;
use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;
use tapetum_base::engine::job::{Job, Others};
use tapetum_base::error::Error;
use tapetum_base::keyspace::KeyspaceId;
use tapetum_base::manifest::client::Misfit;
use tapetum_base::manifest::items::FrameItems;
use tapetum_base::media::io::{Io, Task, lock, poll_once};
use tapetum_drive::Purpose;

pub struct OrderedJob {
    engine: Arc<OrderedEngine>,
    io: Io,
    task: Option<Task<Result<(), Error>>>,
    /// When to search for slots again, for each keyspace that had no room.
    tries_us: BTreeMap<KeyspaceId, u64>,
    quiet: Quiet,
    sweeps: Sweeps,
    /// The keyspace that was tended last. The search for the next one begins behind it.
    last: KeyspaceId,
}

/// Microseconds without another search after one found no slots.
const FULL_US: u64 = 100_000;

impl OrderedJob {
    pub fn new(engine: Arc<OrderedEngine>, io: &Io) -> OrderedJob {
        OrderedJob {
            engine,
            io: io.of(Purpose::Flush),
            task: None,
            tries_us: BTreeMap::new(),
            quiet: Quiet::default(),
            sweeps: Sweeps::new(),
            last: KeyspaceId(0),
        }
    }

    /// The next task on groups, if there is one.
    fn next(&mut self) -> Option<Task<Result<(), Error>>> {
        if let Some(id) = self.dropped() {
            return Some(Box::pin(remove(self.engine.clone(), id)));
        }
        let now_us = self.engine.base.drive.env().now_us();
        self.tries_us.retain(|_, try_us| *try_us > now_us);
        let may = |slots: &KeyspaceSlots| {
            let id = slots.keyspace();
            let waits = self.tries_us.contains_key(&id) && !slots.nodes().wants_round();
            // A keyspace without room refuses writes before they ask for slots, so this has to search again.
            let is_wanted = slots.want_change() || self.engine.is_full(slots);
            self.engine.base.keyspaces.has(id) && !waits && is_wanted
        };
        let slots = {
            let all = lock(&self.engine.slots);
            self.quiet.retain(|id| all.contains_key(&id));
            all.values().for_each(|slots| self.quiet.look(slots, now_us));
            let (behind, before) = ((Bound::Excluded(self.last), Bound::Unbounded), ..=self.last);
            let mut in_turn = all.range(behind).chain(all.range(before)).map(|(_, slots)| slots);
            in_turn.find(|slots| may(slots)).cloned()?
        };
        self.last = slots.keyspace();
        if self.engine.is_full(&slots) || slots.is_full() {
            self.tries_us.insert(self.last, now_us + FULL_US);
        }
        let (engine, io) = (self.engine.clone(), self.io.clone());
        Some(Box::pin(async move {
            tend(&engine.base, &io, &slots).await?;
            engine.tended(&slots);
            Ok(())
        }))
    }

    /// A dropped keyspace whose groups may be freed: nothing of it is in flight to flash, and no freeze holds any.
    fn dropped(&self) -> Option<KeyspaceId> {
        let is_free = |id: &KeyspaceId| self.engine.forget_pages(*id) && !self.engine.is_held(*id);
        self.engine.dropped().into_iter().find(is_free)
    }
}

/// Frees all groups of a dropped keyspace.
async fn remove(engine: Arc<OrderedEngine>, id: KeyspaceId) -> Result<(), Error> {
    let base = &engine.base;
    let mut installer = base.take_installer().await;
    let groups: Vec<_> = installer.of::<GroupTable>().of_keyspace(id).copied().collect();
    let edits = [GroupEdit::Remove(groups.iter().map(|group| group.first).collect())];
    let mut items = FrameItems::default();
    GroupEdit::put(&edits, &mut items);
    if !groups.is_empty() {
        installer.append(&items).await?;
        edits.iter().try_for_each(|edit| installer.of_mut::<GroupTable>().edit(edit)).map_err(Misfit)?;
    }
    {
        let mut extents = lock(&base.extents);
        let of_group = |group: &Group| group.first..group.first + group.extents;
        groups.iter().flat_map(of_group).for_each(|extent| extents.release(extent));
    }
    drop(installer);
    engine.forget(id);
    Ok(())
}

impl Job for OrderedJob {
    fn step(&mut self, _: Others) -> bool {
        if let Some(OrderedShared { state, .. }) = self.engine.shared()
            && state.write_back.has_work()
        {
            state.write_back.advance(state, self.engine.batches.wants_checkpoint());
        }
        self.sweeps.step(&self.engine, self.engine.base.drive.env().now_us());
        if self.task.is_none() {
            self.task = self.next();
        }
        let Some(done) = self.task.as_mut().and_then(poll_once) else { return false };
        self.task = None;
        match done {
            Ok(()) => self.engine.base.log.wake(),
            Err(error) => self.engine.base.log.poison("a change of the groups of an ordered keyspace", error),
        }
        true
    }

    fn is_changing(&self) -> bool {
        self.task.is_some()
    }

    fn rests(&self) -> bool {
        let has_work = self.engine.shared().is_some_and(|shared| shared.state.write_back.has_work());
        self.task.is_none() && !has_work && self.sweeps.are_at_rest()
    }

    fn give_up(&mut self) {
        self.task = None;
        self.sweeps.give_up();
    }

    fn wind_down(&mut self) {
        self.sweeps.give_up();
        if let Some(Some(done)) = self.task.as_mut().map(poll_once) {
            self.task = None;
            if let Err(error) = done {
                self.engine.base.log.poison("a change of the groups of an ordered keyspace", error);
            }
        }
    }
}
