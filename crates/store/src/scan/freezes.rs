//! Freezes as an application holds them: the store at one moment, whose keyspaces can be read again and again.

use super::frozen_blocks::FrozenBlocks;
use super::query_scan::{QueryError, QueryReport, QuerySide};
use super::query_task::QueryTask;
use super::snapshot_items::{ItemsTask, SnapshotItems};
use super::{GraphOptions, GraphProgress, GraphReport};
use crate::api::blocking::KeyspaceHandle;
use crate::api::session::Application;
use crate::api::store::Store;
use crate::freeze::image::{TakeImage, no_image, store_image};
use crate::freeze::list::FreezePlace;
use crate::freeze::{FreezeEnd, FreezeError, FreezeOptions, FreezeReport, FrozenPart, FrozenStore};
use crate::ordered::frozen::KeySpan;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;
use tapetum_base::error::{Error, KeyspaceError};
use tapetum_base::keyspace::catalogue::Keyspace;
use tapetum_base::keyspace::states::KeyspaceRef;
use tapetum_base::keyspace_kind::KeyspaceKind;
use tapetum_base::media::io::{Io, Task, poll_once};
use tapetum_base::request::key_range::{KeyBound, KeyRange};
use tapetum_drive::{OfProcess, Purpose};
use tapetum_kernels::scan::result::RowSink;
use tapetum_kernels::scan::{Format, Query};

/// A range that is read by itself has at least so many pages: a MiB.
const PART_NODES_MIN: usize = 256;

/// Commands on their way at once while a store is frozen.
const DEPTH: u32 = 64;

/// A store at one moment: all of its keyspaces and block devices. What is read of it is the same each time. The drop releases it.
///
/// It keeps flash that was overwritten or deleted since, until it is released, its time is over ([`Freeze::renew`]), or writers need that flash:
/// then its readers get [`QueryError::SnapshotTooOld`], and calls on it [`FreezeError::Ended`].
pub struct Freeze {
    view: FrozenView,
    /// The drop releases it.
    is_owned: bool,
}

/// A freeze of whoever named it by its id: its drop releases nothing.
#[derive(Clone)]
pub struct FrozenView {
    store: Store,
    frozen: Arc<FrozenStore>,
}

/// A freeze that is being made, step by step. A step never waits. Dropping the task gives it up.
pub struct FreezeTask {
    store: Store,
    /// `None` when it is over.
    place: OfProcess<Option<FreezePlace>>,
    io: Io,
    taking: OfProcess<Task<Result<FrozenStore, FreezeError>>>,
}

/// A keyspace to be read at one moment: the one of a freeze, or for each call one of its own.
#[derive(Clone, Debug)]
pub struct ReadKeyspace {
    handle: KeyspaceHandle,
}

/// A keyspace of a freeze, whether it still exists or not.
#[derive(Clone, Debug)]
pub struct FrozenKeyspace {
    reading: ReadKeyspace,
    entry: Keyspace,
}

impl Store {
    /// Freezes all keyspaces. Writers of ordered ones wait meanwhile: for a walk over the anchors of all nodes.
    ///
    /// # Errors
    /// [`FreezeError::TooMany`], [`FreezeError::TooManyOfOwner`], [`FreezeError::Lasts`]; the store's, if it has failed.
    pub fn freeze(&self, options: &FreezeOptions) -> Result<Freeze, FreezeError> {
        let mut task = self.begin_freeze(options)?;
        let taken = self.hashed().run_beside_maintenance(&task.io, &mut *task.taking)??;
        Ok(task.add(taken))
    }

    /// Begins to freeze all keyspaces, for a caller that goes on step by step.
    ///
    /// # Errors
    /// As [`Store::freeze`].
    pub fn begin_freeze(&self, options: &FreezeOptions) -> Result<FreezeTask, FreezeError> {
        self.begin_freeze_with(options, no_image)
    }

    /// Begins a freeze that a backup is made from.
    pub(crate) fn begin_backup_freeze(&self, options: &FreezeOptions) -> Result<FreezeTask, FreezeError> {
        self.begin_freeze_with(options, store_image)
    }

    fn begin_freeze_with(&self, options: &FreezeOptions, image: TakeImage) -> Result<FreezeTask, FreezeError> {
        self.refuse_forked()?;
        let place = self.freezes_list().begin(options)?;
        let queue = self.drive().queue_pair(DEPTH).map_err(|error| Error::Io(error.to_string()))?;
        let io = Io::new(queue).of(Purpose::Scan);
        let (hashed, ordered, list) = (self.hashed().clone(), self.ordered().clone(), self.freezes_list().clone());
        let (of_task, options) = (io.clone(), options.clone());
        let taking =
            Box::pin(async move { FrozenStore::take((&hashed, &ordered), &list, &of_task, &options, image).await });
        let (place, taking) = (OfProcess::new(Some(place)), OfProcess::new(taking as Task<_>));
        Ok(FreezeTask { store: self.clone(), place, io, taking })
    }

    /// The freezes there are, the oldest first.
    pub fn freezes(&self) -> Vec<FreezeReport> {
        if self.refuse_forked().is_err() {
            return Vec::new();
        }
        self.freezes_list().reports(self.hashed())
    }

    /// The freeze with this id.
    ///
    /// # Errors
    /// [`FreezeError::Ended`], [`FreezeError::Unknown`].
    pub fn frozen(&self, id: u64) -> Result<FrozenView, FreezeError> {
        self.refuse_forked()?;
        Ok(FrozenView { store: self.clone(), frozen: self.freezes_list().find(id)? })
    }

    /// Lets a freeze last so long from now on.
    ///
    /// # Errors
    /// As [`Store::frozen`]; [`FreezeError::Lasts`].
    pub fn renew_freeze(&self, id: u64, lasts: Duration) -> Result<(), FreezeError> {
        self.refuse_forked()?;
        self.freezes_list().renew(id, self.drive().env().now_us(), lasts)
    }

    /// Ends a freeze.
    ///
    /// # Errors
    /// As [`Store::frozen`].
    pub fn release_freeze(&self, id: u64) -> Result<(), FreezeError> {
        self.frozen(id)?;
        self.freezes_list().end(id, FreezeEnd::Released);
        Ok(())
    }
}

impl FreezeTask {
    /// Goes on as far as that is possible without waiting; the freeze, when it is made.
    ///
    /// # Errors
    /// As [`Store::freeze`].
    ///
    /// # Panics
    /// When it is over.
    pub fn step(&mut self) -> Result<Option<Freeze>, FreezeError> {
        self.store.refuse_forked()?;
        self.io.pump();
        match poll_once(&mut self.taking) {
            Some(taken) => Ok(Some(self.add(taken?))),
            None => self.store.hashed().refuse_stopped(&self.io).map(|()| None).map_err(FreezeError::Store),
        }
    }

    fn add(&mut self, taken: FrozenStore) -> Freeze {
        let Some(place) = self.place.take() else { panic!("the freeze is made") };
        let frozen = place.add(taken);
        // Maintenance ends it when its time is over.
        self.store.base().wakeup.wake();
        Freeze { view: FrozenView { store: self.store.clone(), frozen }, is_owned: true }
    }
}

impl Freeze {
    /// Lets it last so long from now on.
    ///
    /// # Errors
    /// [`FreezeError::Ended`], [`FreezeError::Lasts`].
    pub fn renew(&self, lasts: Duration) -> Result<(), FreezeError> {
        self.view.store.renew_freeze(self.view.id(), lasts)
    }

    /// Ends it. Readers that have begun end with [`QueryError::SnapshotTooOld`].
    pub fn release(&self) {
        self.view.store.freezes_list().end(self.view.id(), FreezeEnd::Released);
    }

    /// Leaves it until its time is over, or it is released by its id.
    pub fn leave(mut self) -> FrozenView {
        self.is_owned = false;
        self.view.clone()
    }

    pub fn view(&self) -> &FrozenView {
        &self.view
    }
}

impl std::ops::Deref for Freeze {
    type Target = FrozenView;

    fn deref(&self) -> &FrozenView {
        &self.view
    }
}

impl Drop for Freeze {
    fn drop(&mut self) {
        let store = &self.view.store;
        if self.is_owned && store.refuse_forked().is_ok() {
            store.freezes_list().end(self.view.id(), FreezeEnd::Released);
        }
    }
}

impl fmt::Debug for Freeze {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.view.fmt(f)
    }
}

impl fmt::Debug for FrozenView {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "freeze {} of {:?}", self.frozen.id, self.frozen.owner)
    }
}

impl FrozenView {
    /// The id by which others name it. No other freeze of the store has it, also of another opening.
    pub fn id(&self) -> u64 {
        self.frozen.id
    }

    pub fn report(&self) -> FreezeReport {
        self.frozen.report(self.store.hashed())
    }

    /// An error if it has ended.
    pub fn check(&self) -> Result<(), FreezeError> {
        self.frozen.check()
    }

    /// Whether the store is still as it shows: nothing was written since its moment, and no keyspace was made, dropped or changed.
    pub fn is_now(&self) -> bool {
        let base = self.store.base();
        // The id is a stamp that is given when the freeze is made. Whatever was written between its moment and that has one as well.
        let is_next = self.frozen.id == self.frozen.stamp() + 1;
        is_next && base.log.stamp_given() == self.frozen.id && self.frozen.keyspaces() == base.keyspaces.list_open()
    }

    pub(crate) fn frozen_store(&self) -> &Arc<FrozenStore> {
        &self.frozen
    }

    /// All keyspaces that there were, by their names.
    pub fn keyspaces(&self) -> Vec<FrozenKeyspace> {
        let all = self.frozen.keyspaces().iter();
        all.map(|(entry, keyspace)| self.keyspace_of(entry, *keyspace)).collect()
    }

    /// The keyspace that had this name.
    ///
    /// # Errors
    /// [`KeyspaceError::Unknown`].
    pub fn keyspace(&self, name: &str) -> Result<FrozenKeyspace, Error> {
        let found = self.frozen.keyspaces().iter().find(|(entry, _)| entry.name == name);
        let unknown = || Error::Keyspace(KeyspaceError::Unknown { name: name.to_string() });
        found.map(|(entry, keyspace)| self.keyspace_of(entry, *keyspace)).ok_or_else(unknown)
    }

    fn keyspace_of(&self, entry: &Keyspace, keyspace: KeyspaceRef) -> FrozenKeyspace {
        let handle = KeyspaceHandle::of_freeze(self.store.clone(), keyspace, self.frozen.clone(), entry.clone());
        FrozenKeyspace { reading: ReadKeyspace { handle }, entry: entry.clone() }
    }
}

impl FrozenKeyspace {
    /// What the store's catalogue said of it: its name, kind, options and format.
    pub fn entry(&self) -> &Keyspace {
        &self.entry
    }

    /// The same, for whoever reads it as any other.
    pub fn reading(&self) -> &ReadKeyspace {
        &self.reading
    }

    /// Ranges that make up `range`, in their order, with about as many pages each: at most so many, and few where there is little to read. A
    /// hashed keyspace has one.
    ///
    /// # Errors
    /// If a key of the range is too long, or the freeze has ended.
    pub fn ranges(&self, range: &KeyRange, parts: usize) -> Result<Vec<KeyRange>, QueryError> {
        let Some((frozen, entry)) = self.reading.handle.frozen() else { return Ok(vec![range.clone()]) };
        let FrozenPart::Ordered(Some(tree)) = frozen.part(entry) else { return Ok(vec![range.clone()]) };
        let separators = tree.separators(&KeySpan::of(range)?, parts, PART_NODES_MIN);
        let (mut ranges, mut from) = (Vec::new(), range.from.clone());
        for separator in separators {
            let to = KeyBound::Excluded(separator.to_vec());
            ranges.push(KeyRange { from, to, is_reverse: range.is_reverse });
            from = KeyBound::Included(separator.to_vec());
        }
        ranges.push(KeyRange { from, to: range.to.clone(), is_reverse: range.is_reverse });
        if range.is_reverse {
            ranges.reverse();
        }
        Ok(ranges)
    }

    /// The blocks of a block device.
    ///
    /// # Errors
    /// [`KeyspaceError::Options`], if another version made it, or it is none.
    pub fn blocks(&self) -> Result<FrozenBlocks, QueryError> {
        let device = self.entry.block_device().map_err(Error::Keyspace)?;
        let device =
            device.ok_or_else(|| Error::Options(format!("the keyspace {:?} is no block device", self.entry.name)))?;
        FrozenBlocks::new(&self.reading.handle, device)
    }

    /// As [`ReadKeyspace::items`], of a range if it is an ordered keyspace, for a caller that goes on step by step.
    pub fn begin_items(&self, range: &KeyRange) -> Result<ItemsTask, QueryError> {
        ItemsTask::begin(&self.reading.handle, range)
    }
}

impl std::ops::Deref for FrozenKeyspace {
    type Target = ReadKeyspace;

    fn deref(&self) -> &ReadKeyspace {
        &self.reading
    }
}

impl From<KeyspaceHandle> for ReadKeyspace {
    fn from(handle: KeyspaceHandle) -> ReadKeyspace {
        ReadKeyspace { handle }
    }
}

impl ReadKeyspace {
    pub fn store(&self) -> &Store {
        self.handle.store()
    }

    pub fn kind(&self) -> KeyspaceKind {
        self.handle.keyspace().kind()
    }

    /// The format of its keys and values, if one was recorded.
    ///
    /// # Errors
    /// As [`KeyspaceHandle::format`].
    pub fn format(&self) -> Result<Option<Format>, Error> {
        match self.handle.frozen() {
            Some((_, entry)) => entry.format().map_err(Error::Keyspace),
            None => self.handle.format(),
        }
    }

    /// As [`KeyspaceHandle::of_application`].
    pub fn of_application(self, application: Application) -> ReadKeyspace {
        ReadKeyspace { handle: self.handle.of_application(application) }
    }

    /// The items whose keys begin with `prefix`, in the order of the keys if it is an ordered keyspace.
    pub fn items(&self, prefix: &[u8]) -> Result<SnapshotItems, QueryError> {
        self.handle.snapshot_items(prefix)
    }

    /// As [`KeyspaceHandle::scan`].
    pub fn scan(&self, range: KeyRange) -> Result<SnapshotItems, QueryError> {
        self.handle.scan(range)
    }

    /// As [`KeyspaceHandle::query_while`].
    pub fn query_while(
        &self,
        query: &Query,
        side: QuerySide,
        range: &KeyRange,
        rows: &mut dyn RowSink,
        go_on: &mut dyn FnMut() -> bool,
    ) -> Result<QueryReport, QueryError> {
        self.handle.query_while(query, side, range, rows, go_on)
    }

    /// As [`KeyspaceHandle::begin_query`].
    pub fn begin_query(&self, query: &Query, range: &KeyRange) -> Result<QueryTask, QueryError> {
        self.handle.begin_query(query, range)
    }

    /// As [`KeyspaceHandle::betweenness`].
    pub fn betweenness(
        &self,
        edges: &Query,
        options: &GraphOptions,
        side: QuerySide,
        go_on: &mut dyn FnMut(GraphProgress) -> bool,
    ) -> Result<GraphReport, QueryError> {
        self.handle.betweenness(edges, options, side, go_on)
    }
}
