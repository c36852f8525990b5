//! Inspection of a store: its superblock and manifest, and a map of the drive. Plain data, for tools.
//!
//! [`inspect`] asks an open store, [`inspect_drive`] reads a drive that no store has open, and writes nothing.

use crate::api::store::Store;
use crate::engines::empty_clients;
use crate::freeze::FreezeReport;
use crate::hashed::HashedEngine;
use crate::hashed::catalog::{Catalog, SegmentState};
use crate::ordered::anchor_checkpoint::AnchorRoot;
use crate::ordered::slabs::group_table::GroupTable;
use crate::ordered::slabs::slot_class::{PAGE_BYTES as NODE_PAGE_BYTES, SlotClass};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
pub use tapetum_base::engine::inspection::*;
use tapetum_base::error::Error;
use tapetum_base::installer::{Clients, Installer};
use tapetum_base::keyspace::KeyspaceId;
use tapetum_base::keyspace_kind::KeyspaceKind;
use tapetum_base::manifest::Manifest;
use tapetum_base::media::geometry::{BUFFERS, Geometry, SUPERBLOCK_BYTES};
use tapetum_base::media::io::{Io, lock, run};
use tapetum_base::media::superblock::Superblock;
use tapetum_base::recover::read_superblock;
use tapetum_drive::{Drive, Purpose};

/// Inspects the drive of an open store. Flush and collector wait meanwhile.
pub fn inspect(store: &Store) -> Result<Inspection, Error> {
    store.refuse_forked()?;
    let engine = store.hashed();
    let io = Io::new(engine.drive.queue_pair(4).map_err(|error| Error::Io(error.to_string()))?).of(Purpose::Check);
    let ask = async {
        let installer = engine.take_installer().await;

        of_installed(engine, &installer)
    };
    let mut inspection = engine.run_beside_maintenance(&io, ask)?;
    store.engines().iter().try_for_each(|engine| engine.inspect(&mut inspection))?;
    inspection.freezes = store.freezes().iter().map(freeze).collect();
    Ok(inspection)
}

fn freeze(report: &FreezeReport) -> FreezeInspection {
    FreezeInspection {
        id: report.id,
        age_us: report.age_us,
        left_us: report.left_us,
        keyspaces: report.keyspaces as u64,
        flash_bytes: report.flash_bytes,
        memory_bytes: report.memory_bytes,
        pause_us: report.pause_us,
    }
}

fn of_installed(engine: &Arc<HashedEngine>, installer: &Installer) -> Inspection {
    let superblock = *lock(&engine.superblock);
    let extents = lock(&engine.extents);
    let is_free = |extent| extents.is_free(extent);
    describe(&superblock, installer, is_free, AreaKind::Held)
}

/// Inspects superblock and manifest of a drive that no store has open. Nothing is written, and the log is not read.
pub fn inspect_drive(drive: &Drive) -> Result<Inspection, Error> {
    let io = Io::new(drive.queue_pair(16).map_err(|error| Error::Io(error.to_string()))?).of(Purpose::Check);
    let read = async {
        let superblock = &read_superblock(drive, &io).await?.superblock;
        let recovered =
            Manifest::recover(&io, drive.local(), &superblock.geometry, superblock.store_id, empty_clients).await?;
        let installer = Installer::from(recovered);
        let checkpoint: BTreeSet<u32> =
            installer.of::<Catalog>().checkpoint.iter().flat_map(|checkpoint| checkpoint.extents()).copied().collect();
        let anchors = AnchorRoot::parse(installer.roots.get(KeyspaceKind::Ordered)).ok();
        let is_free = |extent| !checkpoint.contains(&extent) && !anchors.as_ref().is_some_and(|root| root.has(extent));
        Ok(describe(superblock, &installer, is_free, AreaKind::Checkpoint))
    };
    run(&io, read, || false).ok_or_else(|| Error::Io("the drive stopped answering".into()))?
}

fn describe(
    superblock: &Superblock,
    installer: &Installer,
    is_free: impl Fn(u32) -> bool,
    taken: AreaKind,
) -> Inspection {
    let (summary, marks, catalog) = (installer.manifest.summary(), &installer.marks, installer.of::<Catalog>());
    let named = |fields: &[(&str, u64)]| fields.iter().map(|&(name, value)| (name.to_string(), value)).collect();
    let Superblock { geometry, capacity_bytes, .. } = superblock;
    let superblock_fields = named(&[
        ("store_id", superblock.store_id),
        ("generation", superblock.generation),
        ("capacity_bytes", *capacity_bytes),
        ("created_bytes", geometry.created_bytes),
        ("capacity_max_bytes", geometry.capacity_max_bytes()),
        ("segment_bytes", geometry.segment_bytes),
        ("extent_bytes", geometry.extent_bytes),
        ("extents", u64::from(geometry.extents(*capacity_bytes))),
        ("manifest_bytes", geometry.manifest_bytes),
        ("sector_bytes", u64::from(geometry.sector_bytes)),
        ("partitions", geometry.partitions() as u64),
    ]);
    let manifest = named(&[
        ("epoch", summary.epoch),
        ("frames", summary.sequence),
        ("used_bytes", summary.position),
        ("generation", marks.opening.generation),
        ("buffer_next", marks.trim.buffer_next),
        ("watermark", marks.deletions.get(&KeyspaceId::DEFAULT).map_or(0, |mark| mark.watermark)),
        ("stamp_max", marks.trim.stamp_max),
        ("segments", catalog.segments.len() as u64),
    ]);
    let segments = catalog.segments.values().map(segment).collect();
    let areas = areas(superblock, installer, is_free, taken);
    let groups = groups(installer.of::<GroupTable>(), geometry);
    Inspection { superblock: superblock_fields, manifest, segments, groups, areas, ..Inspection::default() }
}

/// The groups in the manifest, by keyspace and class.
fn groups(table: &GroupTable, geometry: &Geometry) -> Vec<GroupInspection> {
    let mut all: BTreeMap<(u16, u8), GroupInspection> = BTreeMap::new();
    let extent_pages = geometry.pages_per_extent(NODE_PAGE_BYTES as usize);
    for group in table.iter() {
        let (keyspace, class) = (group.keyspace.0, group.class.code());
        let sum = all.entry((keyspace, class)).or_default();
        (sum.keyspace, sum.class) = (keyspace.into(), class.into());
        sum.groups += 1;
        sum.groups_open += u64::from(group.open);
        sum.extents += u64::from(group.extents);
        sum.slots += u64::from(group.class.slots(group.extents * extent_pages));
    }
    all.into_values().collect()
}

fn segment(state: &SegmentState) -> SegmentInspection {
    let descriptor = &state.descriptor;
    SegmentInspection {
        number: u64::from(descriptor.number),
        version: descriptor.version,
        entries: u64::from(descriptor.entries),
        valid_entries: u64::from(state.valid_entries),
        record_bytes: descriptor.record_bytes,
        valid_bytes: state.valid_bytes,
        data_pages: u64::from(descriptor.data_pages),
        data_page_bytes: descriptor.data_page_size.bytes() as u64,
        data_extents: descriptor.data_extents.len() as u64,
        key_extents: descriptor.key_extents.len() as u64,
        stamp_max: descriptor.stamp_max,
        expiry_max: u64::from(descriptor.expiry_max.secs()),
    }
}

fn areas(superblock: &Superblock, clients: &Clients, is_free: impl Fn(u32) -> bool, taken: AreaKind) -> Vec<Area> {
    let Superblock { geometry, capacity_bytes, .. } = superblock;
    let mut areas = Areas::default();
    areas.until(geometry.manifest_offset(0).min(2 * SUPERBLOCK_BYTES), AreaKind::Superblock, None);
    areas.until(geometry.manifest_offset(1), AreaKind::Manifest, None);
    areas.until(geometry.manifest_offset(2), AreaKind::ManifestCopy, None);
    areas.until(geometry.zone_offset(0) + BUFFERS * geometry.segment_bytes, AreaKind::Log, None);
    areas.until(geometry.extents_offset(), AreaKind::Unused, None);
    let mut owners = vec![None; geometry.extents(*capacity_bytes) as usize];
    for group in clients.of::<GroupTable>().iter() {
        let kind = if group.class == SlotClass::Nodes { AreaKind::Nodes } else { AreaKind::Extensions };
        let owned = owners.iter_mut().skip(group.first as usize).take(group.extents as usize);
        owned.for_each(|owner| *owner = Some((kind, None)));
    }
    for descriptor in clients.of::<Catalog>().segments.values().map(|state| &state.descriptor) {
        let large = descriptor.large.iter().flat_map(|large| &large.runs);
        let large: Vec<u32> = large.flat_map(|run| run.first..run.first.saturating_add(run.count)).collect();
        let parts = [
            (AreaKind::Data, &descriptor.data_extents),
            (AreaKind::Keys, &descriptor.key_extents),
            (AreaKind::Large, &large),
        ];
        for (kind, extents) in parts {
            for &extent in extents {
                // A manifest that names a nonexistent extent is found when the store is opened.
                if let Some(owner) = owners.get_mut(extent as usize) {
                    *owner = Some((kind, Some(descriptor.number)));
                }
            }
        }
    }
    for (extent, owner) in (0..).zip(owners) {
        let end = geometry.extent_offset(extent + 1);
        match owner {
            Some((kind, segment)) => areas.until(end, kind, segment),
            None if is_free(extent) => areas.until(end, AreaKind::Free, None),
            None => areas.until(end, taken, None),
        }
    }
    areas.until(*capacity_bytes, AreaKind::Unused, None);
    areas.list
}

/// Gathers areas in order; neighbours alike become one.
#[derive(Default)]
struct Areas {
    list: Vec<Area>,
    end: u64,
}

impl Areas {
    fn until(&mut self, end: u64, kind: AreaKind, segment: Option<u32>) {
        let Some(length_bytes) = end.checked_sub(self.end).filter(|length| *length > 0) else { return };
        match self.list.last_mut() {
            Some(last) if (last.kind, last.segment) == (kind, segment) => last.length_bytes += length_bytes,
            _ => self.list.push(Area { offset_bytes: self.end, length_bytes, kind, segment }),
        }
        self.end = end;
    }
}
