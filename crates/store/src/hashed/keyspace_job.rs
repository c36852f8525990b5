//! The job of maintenance that makes changes of keyspaces: durable in the manifest first, then seen.
//!
//! ```text
//! wish ─► edit of the catalogue ─► manifest frame, durable ─► with every shard held: requests see it ─► answer
//! ```
//! What is dropped is purged afterwards ([`crate::hashed::purge`]).

use crate::error::Error;
use crate::installer::Installer;
use crate::keyspace::catalogue::KeyspaceEdit;
use crate::keyspace::changing::{KeyspaceChange, KeyspaceWish};
use crate::keyspace::keyspace_error::KeyspaceError;
use crate::maintenance::job::{Job, Others};
use crate::manifest::base_marks::MarksEdit;
use crate::manifest::client::Misfit;
use crate::manifest::items::FrameItems;
use crate::media::io::{Task, poll_once};
use crate::planted::Bug;
use crate::shared::Shared;
use std::sync::Arc;

/// Write buffers that the manifest must be able to name beside the reserve, for one keyspace more.
const ROOM_SEGMENTS: u64 = 3;

pub struct KeyspaceJob {
    shared: Arc<Shared>,
    under_way: Option<(KeyspaceChange, Task<Result<(), Error>>)>,
}

impl KeyspaceJob {
    pub fn new(shared: &Arc<Shared>) -> KeyspaceJob {
        KeyspaceJob { shared: shared.clone(), under_way: None }
    }

    fn poll(&mut self) -> bool {
        let Some((change, task)) = &mut self.under_way else { return false };
        let Some(done) = poll_once(task) else { return false };
        change.end(done);
        self.under_way = None;
        true
    }

    fn end_all(&mut self, error: &Error) {
        let under_way = self.under_way.take().map(|(change, _)| change);
        under_way.into_iter().for_each(|change| change.end(Err(error.clone())));
        while let Some(change) = self.shared.keyspace_changes.next() {
            change.end(Err(error.clone()));
        }
    }
}

impl Job for KeyspaceJob {
    fn step(&mut self, _: Others) -> bool {
        if self.under_way.is_none()
            && let Some(change) = self.shared.keyspace_changes.next()
        {
            let task = Box::pin(make(self.shared.clone(), change.wish().clone()));
            self.under_way = Some((change, task));
        }
        self.poll()
    }

    fn is_changing(&self) -> bool {
        self.under_way.is_some()
    }

    fn give_up(&mut self) {
        if let Some((change, _)) = self.under_way.take() {
            change.end(Err(closed()));
        }
    }

    fn wind_down(&mut self) {
        self.poll();
    }

    fn fail(&mut self, error: &Error) {
        self.end_all(error);
    }

    fn close(&mut self) {
        self.end_all(&closed());
    }
}

fn closed() -> Error {
    Error::Options("the store was closed before the keyspace was changed: open it and try again".into())
}

async fn make(shared: Arc<Shared>, wish: KeyspaceWish) -> Result<(), Error> {
    let mut installer = shared.take_installer().await;
    let done = match edit_of(&shared, &installer, &wish) {
        Ok(edit) => apply(&shared, &mut installer, &edit).await,
        Err(refused) => Err(Error::Keyspace(refused)),
    };
    shared.return_installer(installer);
    done
}

fn edit_of(shared: &Shared, installer: &Installer, wish: &KeyspaceWish) -> Result<KeyspaceEdit, KeyspaceError> {
    let edit = wish.edit(&installer.keyspaces)?;
    let grows = matches!(edit, KeyspaceEdit::Create(_) | KeyspaceEdit::Rename { .. });
    if grows && shared.is_manifest_tight(ROOM_SEGMENTS) { Err(KeyspaceError::NoRoom) } else { Ok(edit) }
}

/// Makes an edit durable and then seen.
pub async fn apply(shared: &Shared, installer: &mut Installer, edit: &KeyspaceEdit) -> Result<(), Error> {
    let unmarked = match edit {
        KeyspaceEdit::Drop(id) => vec![MarksEdit::Drop(*id)],
        _ => Vec::new(),
    };
    let mut items = FrameItems::default();
    edit.put(&mut items);
    MarksEdit::put(&unmarked, &mut items);
    if !(shared.planted.has(Bug::DropUndurably) && matches!(edit, KeyspaceEdit::Drop(_))) {
        let written = installer.append(&items).await;
        written.inspect_err(|error| shared.log.poison("a change of keyspaces", error.clone()))?;
    }
    installer.keyspaces.apply(edit).map_err(Misfit)?;
    unmarked.iter().for_each(|edit| installer.marks.edit(edit));
    // No write slips between what it is decided on and what it is told.
    shared.engines.hold_writers(&mut || {
        let applied = shared.keyspaces.apply(edit, shared.log.stamp_last());
        assert_eq!(applied, Ok(()), "requests see the catalogue that the manifest has");
        shared.log.keep_for_planned(shared.keyspaces.planned_count());
        None
    });
    shared.forget_count();
    Ok(())
}
