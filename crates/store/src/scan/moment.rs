//! The moment that a query, a graph or a scan sees: the one of a freeze, or one of its own.

use super::query_scan::QueryError;
use super::query_task::range_of;
use super::segment_lists::SegmentLists;
use crate::api::blocking::KeyspaceHandle;
use crate::freeze::FrozenPart;
use crate::hashed::snapshot::{BufferedRecords, Snapshot};
use crate::ordered::frozen::image_lists::layout_of;
use crate::ordered::frozen::scan::FrozenScan;
use crate::ordered::frozen::{FrozenTree, KeySpan};
use std::collections::VecDeque;
use std::sync::Arc;
use tapetum_base::engine::scan_layout::{LayoutError, ListLimits, ScanLayout, ScanList};
use tapetum_base::error::{Error, KeyspaceError};
use tapetum_base::keyspace_kind::KeyspaceKind;
use tapetum_base::media::io::{Io, Task};
use tapetum_drive::{Purpose, SourceRange};
use tapetum_kernels::scan::access::ValueHome;
use tapetum_kernels::scan::result::{DeferredRecord, MissedKeys, StoppedRun};

/// Commands on their way at once while a keyspace is frozen.
const FREEZE_DEPTH: u32 = 16;

/// An error if nothing of the keyspace can be read any more: its freeze has ended, or it was dropped.
pub(super) fn refuse_ended(keyspace: &KeyspaceHandle) -> Result<(), QueryError> {
    let store = keyspace.store();
    store.refuse_forked()?;
    match keyspace.frozen() {
        Some((frozen, _)) => Ok(frozen.check()?),
        None => Ok(store.base().refuse_dropped(keyspace.keyspace())?),
    }
}

/// As [`refuse_ended`]; and if it is a block device whose records on flash are of groups.
pub(super) fn refuse_unreadable(keyspace: &KeyspaceHandle) -> Result<(), QueryError> {
    refuse_ended(keyspace)?;
    if keyspace.keyspace().is_grouped() {
        return Err(Error::Keyspace(KeyspaceError::IsGrouped).into());
    }
    Ok(())
}

/// Means to take a moment.
pub(super) fn moment_io(keyspace: &KeyspaceHandle) -> Result<Io, Error> {
    let queue = keyspace.store().drive().queue_pair(FREEZE_DEPTH).map_err(|error| Error::Io(error.to_string()))?;
    Ok(Io::new(queue).of(Purpose::Scan))
}

/// Takes the moment of a span of the keyspace's keys. All of it is held, but by a freeze of the caller's only as long as that lasts.
pub(super) fn take_moment(keyspace: &KeyspaceHandle, span: KeySpan, io: Io) -> Task<Result<FrozenPart, Error>> {
    let (of, hashed) = (keyspace.keyspace(), keyspace.store().hashed().clone());
    if let Some((frozen, entry)) = keyspace.frozen() {
        let part = frozen.part(entry);
        return Box::pin(async move {
            Ok(match part {
                FrozenPart::Hashed(snapshot) => FrozenPart::Hashed(snapshot.located(&hashed, &io).await),
                FrozenPart::Ordered(tree) => FrozenPart::Ordered(tree),
            })
        });
    }
    match of.kind() {
        KeyspaceKind::Hashed => Box::pin(async move {
            let snapshot = Snapshot::take(hashed.clone(), io.clone(), of).await?;
            Ok(FrozenPart::Hashed(snapshot.located(&hashed, &io).await))
        }),
        _ => {
            let (ordered, list) = (keyspace.store().ordered().clone(), keyspace.store().freezes_list().clone());
            Box::pin(async move {
                ordered.write_changed(&io).await;
                let tree = ordered.freeze_now(of, &span)?;
                tree.iter().try_for_each(|tree| list.note_own(hashed.drive.env().now_us(), tree))?;
                Ok(FrozenPart::Ordered(tree))
            })
        }
    }
}

/// The node of one key, now or in a freeze. `None`: there is none.
pub(super) fn node_of_key(keyspace: &KeyspaceHandle, span: &KeySpan) -> Result<Option<Arc<FrozenTree>>, Error> {
    match keyspace.frozen().map(|(frozen, entry)| frozen.part(entry)) {
        Some(FrozenPart::Ordered(tree)) => Ok(tree),
        Some(FrozenPart::Hashed(_)) => Ok(None),
        None => keyspace.store().ordered().node_now(keyspace.keyspace(), span),
    }
}

/// A moment as a query at the drive reads it.
pub(super) struct MomentLayout {
    /// What write buffers had, for the host.
    pub records: Arc<BufferedRecords>,
    pub layout: Box<dyn ScanLayout>,
    pub segments: usize,
    /// The tree of an ordered keyspace, for keys that the query misses.
    pub tree: Option<Arc<FrozenTree>>,
}

impl MomentLayout {
    pub fn of(part: FrozenPart, span: KeySpan) -> Result<MomentLayout, Error> {
        Ok(match part {
            FrozenPart::Hashed(snapshot) => {
                let (records, segments) = (snapshot.records(), snapshot.segments());
                MomentLayout { records, layout: Box::new(SegmentLists::new(snapshot)), segments, tree: None }
            }
            FrozenPart::Ordered(tree) => MomentLayout {
                records: Arc::default(),
                layout: match &tree {
                    Some(tree) => layout_of(tree, span)?,
                    None => Box::new(NoRecords),
                },
                segments: 0,
                tree,
            },
        })
    }
}

/// The layout of a keyspace that nobody had written to.
struct NoRecords;

impl ScanLayout for NoRecords {
    fn next(&mut self, _: &ListLimits) -> Result<Option<ScanList>, LayoutError> {
        Ok(None)
    }

    fn again(&mut self, _: u64, _: Option<&StoppedRun>) -> Result<(), LayoutError> {
        Ok(())
    }

    fn release(&mut self, _: u64) {}

    fn value(&self, _: &DeferredRecord) -> Result<Option<(ValueHome, Vec<SourceRange>)>, LayoutError> {
        Ok(None)
    }
}

/// Reads the keys that a query at the drive missed, of the same moment, part by part.
pub(super) struct MissedRead {
    tree: Arc<FrozenTree>,
    io: Io,
    missed: VecDeque<MissedKeys>,
    scan: Option<FrozenScan>,
}

/// Keys and values of a part.
pub(super) type MissedPart = Vec<(Vec<u8>, Vec<u8>)>;

impl MissedRead {
    pub fn new(tree: Arc<FrozenTree>, io: Io, missed: Vec<MissedKeys>) -> MissedRead {
        MissedRead { tree, io, missed: missed.into(), scan: None }
    }

    /// The next part, and the rest; `None`: nothing is left.
    pub async fn part(mut self) -> Result<(MissedPart, Option<MissedRead>), LayoutError> {
        let mut scan = match (self.scan.take(), self.missed.pop_front()) {
            (Some(scan), keys) => {
                keys.into_iter().for_each(|keys| self.missed.push_front(keys));
                scan
            }
            (None, Some(keys)) => FrozenScan::new(self.tree.clone(), self.io.clone(), &range_of(keys))?,
            (None, None) => return Ok((MissedPart::new(), None)),
        };
        let (mut found, mut part) = (Vec::new(), MissedPart::new());
        let has_more = scan.step(&mut found).await?;
        for record in found {
            let value = scan.read(&record).await?;
            part.push((record.key, value));
        }
        self.scan = has_more.then_some(scan);
        let is_over = self.scan.is_none() && self.missed.is_empty();
        Ok((part, (!is_over).then_some(self)))
    }
}
