//! The job of maintenance that makes changes of keyspaces: durable in the manifest first, then seen.
//!
//! ```text
//! wish ─► edit of the catalogue ─► manifest frame, durable ─► with every shard held: requests see it ─► answer
//! ```
//! Engines get rid of what was dropped afterwards. The id is forgotten, and free, when none holds anything of it
//! ([`Engine::holds`](crate::engine::Engine::holds)).

use crate::base::Base;
use crate::engine::job::{Job, Others};
use crate::error::{Error, KeyspaceError};
use crate::installer::Installer;
use crate::keyspace::KeyspaceId;
use crate::keyspace::catalogue::KeyspaceEdit;
use crate::keyspace::changing::{KeyspaceChange, KeyspaceWish};
use crate::manifest::base_marks::MarksEdit;
use crate::manifest::client::Misfit;
use crate::manifest::items::FrameItems;
use crate::media::io::{Task, poll_once};
use std::sync::Arc;
use tapetum_drive::fail_point;

pub struct KeyspaceJob {
    base: Arc<Base>,
    under_way: Option<(KeyspaceChange, Task<Result<(), Error>>)>,
    /// Ids of which nothing is left are being forgotten.
    forgetting: Option<Task<Result<(), Error>>>,
}

impl KeyspaceJob {
    pub fn new(base: &Arc<Base>) -> KeyspaceJob {
        KeyspaceJob { base: base.clone(), under_way: None, forgetting: None }
    }

    fn poll(&mut self) -> bool {
        let Some((change, task)) = &mut self.under_way else { return false };
        let Some(done) = poll_once(task) else { return false };
        change.end(done);
        self.under_way = None;
        true
    }

    fn poll_forgetting(&mut self) -> bool {
        let Some(done) = self.forgetting.as_mut().and_then(poll_once) else { return false };
        self.forgetting = None;
        done.unwrap_or_else(|error| self.base.log.poison("a change of keyspaces", error));
        true
    }

    fn end_all(&mut self, error: &Error) {
        let under_way = self.under_way.take().map(|(change, _)| change);
        under_way.into_iter().for_each(|change| change.end(Err(error.clone())));
        while let Some(change) = self.base.keyspace_changes.next() {
            change.end(Err(error.clone()));
        }
    }
}

impl Job for KeyspaceJob {
    fn step(&mut self, _: Others) -> bool {
        if self.under_way.is_none()
            && let Some(change) = self.base.keyspace_changes.next()
        {
            let task = Box::pin(make(self.base.clone(), change.asked().clone()));
            self.under_way = Some((change, task));
        }
        if self.forgetting.is_none() && self.base.keyspaces.has_dropped() {
            let held = |id: &KeyspaceId| self.base.engines.hold(*id);
            let free: Vec<_> = self.base.keyspaces.dropped().into_iter().filter(|id| !held(id)).collect();
            if !free.is_empty() {
                self.forgetting = Some(Box::pin(forget(self.base.clone(), free)));
            }
        }
        self.poll() | self.poll_forgetting()
    }

    fn is_changing(&self) -> bool {
        self.under_way.is_some() || self.forgetting.is_some()
    }

    fn give_up(&mut self) {
        self.forgetting = None;
        if let Some((change, _)) = self.under_way.take() {
            change.end(Err(Error::Closed));
        }
    }

    fn wind_down(&mut self) {
        self.poll();
        self.poll_forgetting();
    }

    fn fail(&mut self, error: &Error) {
        self.end_all(error);
    }

    fn close(&mut self) {
        self.end_all(&Error::Closed);
    }
}

async fn make(base: Arc<Base>, wish: KeyspaceWish) -> Result<(), Error> {
    let mut installer = base.take_installer().await;
    match edit_of(&base, &installer, &wish) {
        Ok(edit) => apply(&base, &mut installer, &edit).await,
        Err(refused) => Err(Error::Keyspace(refused)),
    }
}

/// Forgets ids of dropped keyspaces.
async fn forget(base: Arc<Base>, ids: Vec<KeyspaceId>) -> Result<(), Error> {
    let mut installer = base.take_installer().await;
    for id in ids {
        apply(&base, &mut installer, &KeyspaceEdit::Forget(id)).await?;
    }
    Ok(())
}

fn edit_of(base: &Base, installer: &Installer, wish: &KeyspaceWish) -> Result<KeyspaceEdit, KeyspaceError> {
    let edit = wish.edit(&installer.keyspaces)?;
    let grows = match &edit {
        KeyspaceEdit::Create(_) | KeyspaceEdit::Rename { .. } => true,
        KeyspaceEdit::SetFormat { format, .. } => !format.is_empty(),
        // A device's options are as long as before.
        KeyspaceEdit::SetOptions { .. } | KeyspaceEdit::Drop(_) | KeyspaceEdit::Forget(_) => false,
    };
    if grows && !base.engines.have_room_for_keyspace() { Err(KeyspaceError::NoRoom) } else { Ok(edit) }
}

/// Makes an edit durable and then seen.
pub async fn apply(base: &Base, installer: &mut Installer, edit: &KeyspaceEdit) -> Result<(), Error> {
    let unmarked = match edit {
        KeyspaceEdit::Drop(id) => vec![MarksEdit::Drop(*id)],
        _ => Vec::new(),
    };
    let mut items = FrameItems::default();
    edit.put(&mut items);
    MarksEdit::put(&unmarked, &mut items);
    if !(fail_point!(DropUndurably) && matches!(edit, KeyspaceEdit::Drop(_))) {
        let written = installer.append(&items).await;
        written.inspect_err(|error| base.log.poison("a change of keyspaces", error.clone()))?;
    }
    installer.keyspaces.apply(edit).map_err(Misfit)?;
    unmarked.iter().for_each(|edit| installer.marks.edit(edit));
    // No write slips between what it is decided on and what it is told.
    base.hold_writers(|| {
        let applied = base.keyspaces.apply(edit, base.log.stamp_last());
        assert_eq!(applied, Ok(()), "requests see the catalogue that the manifest has");
        base.log.keep_for_planned(base.keyspaces.planned_count());
    });
    base.engines.keyspaces_changed();
    Ok(())
}
