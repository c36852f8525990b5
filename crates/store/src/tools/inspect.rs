//! Seeing inside: what superblock and manifest say, and what lies where on the drive. Plain data, for tools.
//!
//! [`inspect`] asks an open store, [`inspect_drive`] reads a drive that no store has open, and writes nothing.

use crate::error::Error;
use crate::hashed::HashedEngine;
use crate::hashed::catalog::SegmentState;
use crate::installer::{Clients, Installer};
use crate::keyspace::KeyspaceId;
use crate::keyspace::catalogue::KeyspaceKind;
use crate::manifest::Manifest;
use crate::media::geometry::{BUFFERS, Geometry, SUPERBLOCK_BYTES};
use crate::media::io::{Io, lock, run};
use crate::media::superblock::Superblock;
use crate::ordered::anchor_checkpoint::AnchorRoot;
use crate::ordered::slabs::group_table::GroupTable;
use crate::ordered::slabs::slot_class::{PAGE_BYTES as NODE_PAGE_BYTES, SlotClass};
use crate::recover::read_superblock;
use crate::store::Store;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use tapetum_drive::{Drive, Purpose};

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Inspection {
    /// Names and figures.
    pub superblock: Vec<(String, u64)>,
    pub manifest: Vec<(String, u64)>,
    pub segments: Vec<SegmentInspection>,
    /// Of ordered keyspaces, by keyspace and class.
    pub groups: Vec<GroupInspection>,
    /// Of ordered keyspaces; none while nobody has the store open.
    pub trees: Vec<TreeInspection>,
    /// The drive from its first byte to its last.
    pub areas: Vec<Area>,
}

impl Inspection {
    /// A figure of the superblock or the manifest; 0 if there is no such.
    pub fn field(&self, name: &str) -> u64 {
        let all = self.superblock.iter().chain(&self.manifest);
        all.clone().find(|field| field.0 == name).map_or(0, |field| field.1)
    }
}

/// A run of neighbouring bytes of the drive that serve one purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Area {
    pub offset_bytes: u64,
    pub length_bytes: u64,
    pub kind: AreaKind,
    /// The segment it belongs to, of [`AreaKind::Data`], [`AreaKind::Keys`] and [`AreaKind::Large`].
    pub segment: Option<u32>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum AreaKind {
    Superblock,
    /// The manifest, and its copy.
    Manifest,
    ManifestCopy,
    /// The log zones.
    Log,
    /// Data pages of a segment.
    Data,
    /// The key table of a segment.
    Keys,
    /// Large values whose records are in a segment.
    Large,
    /// Taken, by what is being written, or read for the last time.
    Held,
    /// Groups of slots for data nodes of ordered keyspaces.
    Nodes,
    /// Groups of slots for their values that no node takes.
    Extensions,
    /// The index, and the anchors of ordered keyspaces, as a clean close left them. Their extents are free as soon as the store is open.
    Checkpoint,
    Free,
    /// What rounding leaves.
    Unused,
}

/// Names, for those who print kinds and read them again.
pub const AREA_KINDS: [(AreaKind, &str); 13] = [
    (AreaKind::Superblock, "superblock"),
    (AreaKind::Manifest, "manifest"),
    (AreaKind::ManifestCopy, "manifest-copy"),
    (AreaKind::Log, "log"),
    (AreaKind::Data, "data"),
    (AreaKind::Keys, "keys"),
    (AreaKind::Large, "large"),
    (AreaKind::Held, "held"),
    (AreaKind::Nodes, "nodes"),
    (AreaKind::Extensions, "extensions"),
    (AreaKind::Checkpoint, "checkpoint"),
    (AreaKind::Free, "free"),
    (AreaKind::Unused, "unused"),
];

macro_rules! named_numbers {
    ($what:literal, $of:ident, $($name:ident: $help:literal,)*) => {
        #[doc = $what]
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct $of { $(#[doc = $help] pub $name: u64,)* }

        impl $of {
            /// Every field by its name.
            pub fn fields(&self) -> Vec<(&'static str, u64)> {
                vec![$((stringify!($name), self.$name),)*]
            }

            /// Takes a field by its name; whether there is one.
            pub fn set(&mut self, name: &str, value: u64) -> bool {
                match name {
                    $(stringify!($name) => self.$name = value,)*
                    _ => return false,
                }
                true
            }
        }
    };
}

named_numbers!(
    "What the manifest says of a segment.",
    SegmentInspection,
    number: "Its place in the segment table.",
    version: "Unique in the store's life.",
    entries: "Records that it was written with.",
    valid_entries: "Those that are still valid.",
    record_bytes: "Bytes of all records.",
    valid_bytes: "Bytes of the valid ones.",
    data_pages: "Pages that hold records.",
    data_page_bytes: "The size of such a page.",
    data_extents: "Extents that hold those pages.",
    key_extents: "Extents that hold its key table.",
    stamp_max: "The highest stamp in it: how young it is.",
    expiry_max: "When the last of its records expires, in unix seconds; 4294967295 where some never do, 0 where none does.",
);

named_numbers!(
    "What the groups of one class come to that an ordered keyspace has.",
    GroupInspection,
    keyspace: "Its id.",
    class: "Of their slots: see [`SLOT_CLASSES`].",
    groups: "How many there are.",
    groups_open: "Those that images are written to.",
    extents: "That they have together.",
    slots: "In all of them.",
    slots_used: "Held by live images or extensions, or by those on their way; 0 while nobody has the store open.",
);

named_numbers!(
    "The tree of an ordered keyspace.",
    TreeInspection,
    keyspace: "Its id.",
    items: "Records in all data nodes.",
    nodes: "Data nodes.",
    nodes_unwritten: "Those that never had an image on flash.",
    depth_max: "Nodes of the search layer on the longest way to a data node.",
    depth_mean_tenths: "On the mean way, in tenths.",
    search_bytes: "What the search layer takes in memory.",
);

/// Names of the classes of slots, by their codes.
pub const SLOT_CLASSES: [&str; 7] = ["nodes", "4KiB", "8KiB", "16KiB", "32KiB", "64KiB", "large"];

/// What an open store has on its drive now. Flush and collector wait meanwhile.
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
    Ok(inspection)
}

fn of_installed(engine: &Arc<HashedEngine>, installer: &Installer) -> Inspection {
    let superblock = *lock(&engine.superblock);
    let extents = lock(&engine.extents);
    let is_free = |extent| extents.is_free(extent);
    describe(&superblock, installer, is_free, AreaKind::Held)
}

/// What superblock and manifest on a drive say that no store has open. Nothing is written, and the log is not read.
pub fn inspect_drive(drive: &Drive) -> Result<Inspection, Error> {
    let io = Io::new(drive.queue_pair(16).map_err(|error| Error::Io(error.to_string()))?).of(Purpose::Check);
    let read = async {
        let superblock = &read_superblock(drive, &io).await?.superblock;
        let recovered = Manifest::recover(&io, drive.local(), &superblock.geometry, superblock.store_id).await?;
        let installer = Installer::from(recovered);
        let checkpoint: BTreeSet<u32> =
            installer.catalog.checkpoint.iter().flat_map(|checkpoint| checkpoint.extents()).copied().collect();
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
    let (summary, marks, catalog) = (installer.manifest.summary(), &installer.marks, &installer.catalog);
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
    let groups = groups(&installer.groups, geometry);
    Inspection { superblock: superblock_fields, manifest, segments, groups, trees: Vec::new(), areas }
}

/// What the manifest says of groups, by keyspace and class.
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
        expiry_max: u64::from(descriptor.expiry_max),
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
    for group in clients.groups.iter() {
        let kind = if group.class == SlotClass::Nodes { AreaKind::Nodes } else { AreaKind::Extensions };
        let owned = owners.iter_mut().skip(group.first as usize).take(group.extents as usize);
        owned.for_each(|owner| *owner = Some((kind, None)));
    }
    for descriptor in clients.catalog.segments.values().map(|state| &state.descriptor) {
        let large = descriptor.large.iter().flat_map(|large| &large.runs);
        let large: Vec<u32> = large.flat_map(|run| run.first..run.first.saturating_add(run.count)).collect();
        let parts = [
            (AreaKind::Data, &descriptor.data_extents),
            (AreaKind::Keys, &descriptor.key_extents),
            (AreaKind::Large, &large),
        ];
        for (kind, extents) in parts {
            for &extent in extents {
                // A manifest that names an extent there is not is found when the store is opened.
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
