//! The roots of a store that may be damaged: superblock, manifest and log, as far as they can be read.

use super::log::{FoundLog, read_log};
use super::lost_groups::find_lost_groups;
use super::report::{Loss, RepairReport};
use super::tree_mend::is_ordered;
use crate::engines::empty_clients;
use crate::hashed::catalog::Catalog;
use crate::hashed::large::verify::read_value;
use crate::hashed::large::{Claims, LargeEntries, LargeSpace};
use crate::hashed::opening::claims::{claim_large, claim_segments};
use crate::ordered::anchor_checkpoint::{self, AnchorMedia, AnchorRoot, CheckpointKeyspace};
use crate::ordered::slabs::claims::claim_groups;
use crate::ordered::slabs::group_table::{GroupEdit, GroupTable};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Range;
use std::sync::{Arc, Mutex};
use tapetum_base::error::Error;
use tapetum_base::installer::Installer;
use tapetum_base::keyspace::KeyspaceId;
use tapetum_base::keyspace::catalogue::Catalogue;
use tapetum_base::keyspace::hasher::KeyHasher;
use tapetum_base::keyspace_kind::KeyspaceKind;
use tapetum_base::manifest::Manifest;
use tapetum_base::manifest::base_marks::BaseMarks;
use tapetum_base::media::extents::Extents;
use tapetum_base::media::geometry::SUPERBLOCK_BYTES;
use tapetum_base::media::io::Io;
use tapetum_base::media::superblock::{FoundSuperblock, Superblock};
use tapetum_base::recover::{read_superblock, refuse_lost_end, refuse_other_kinds, replay_log};
use tapetum_drive::Drive;
use tapetum_kernels::data_page::PAGE_BYTES;
use tapetum_kernels::hash::HashKey;
use tapetum_kernels::record::{Codec, Record};
use tapetum_kernels::reference::Reference;

/// Bytes read at once to find unreadable ranges.
const PROBE_BYTES: usize = 256 << 10;
/// Versions that groups may have been given by frames of the manifest which cannot be read.
const VERSIONS_SKIPPED: u64 = 1 << 32;

pub struct Roots {
    pub superblock: Superblock,
    pub hasher: KeyHasher,
    /// The copy of the superblock that is to be written again.
    pub behind: Option<u64>,
    pub installer: Installer,
    /// The manifest is to be begun anew.
    pub is_changed: bool,
    /// Frames of it cannot be read: it is as it was some time ago.
    pub is_manifest_damaged: bool,
    /// The anchors of ordered keyspaces that a clean stop left, if they hold.
    pub anchors: BTreeMap<KeyspaceId, CheckpointKeyspace>,
    pub log: FoundLog,
    /// The log's latest record of each key: a stamp.
    pub newest: HashMap<HashKey, u64>,
    pub space: LargeSpace,
    /// By the segment's number.
    pub large: BTreeMap<u32, LargeEntries>,
    /// Holds the extents that the log's records name.
    _claims: Claims,
}

impl Roots {
    /// Makes the log one that is to be rewritten, without some records' values.
    pub fn delete_from_log(&mut self, stamps: &BTreeSet<u64>) {
        let mut found = Vec::new();
        self.log.each(|group, record| {
            if stamps.contains(&record.header.stamp) {
                found.push((group, record.header.stamp));
            }
        });
        found.into_iter().for_each(|(group, stamp)| self.log.delete(group, stamp));
        self.note_log();
    }

    /// A log that is to be written anew is to be named so.
    fn note_log(&mut self) {
        if !self.log.is_damaged {
            return;
        }
        self.is_changed = true;
        let (marks, log) = (&mut self.installer.marks, &self.log);
        marks.trim.buffer_next = log.buffer_first().max(marks.trim.buffer_next);
        marks.opening.stamp_base = marks.opening.stamp_base.max(log.stamp_seen + 1);
        marks.end_log_at(marks.trim.stamp_max.max(log.stamp_last()));
    }
}

/// Reads the roots on a drive whose writes change nothing: unreadable ranges are zeros there.
pub async fn read_roots(drive: &Drive, io: &Io, report: &mut RepairReport) -> Result<Roots, Error> {
    zero_unreadable(io, 0..(2 * SUPERBLOCK_BYTES).min(drive.capacity_bytes()), report).await?;
    let FoundSuperblock { superblock, behind } = read_superblock(drive, io).await?;
    let (geometry, hasher) = (superblock.geometry, KeyHasher::new(superblock.secret, superblock.features.routes()));
    zero_unreadable(io, 2 * SUPERBLOCK_BYTES..geometry.extents_offset(), report).await?;
    if let Some(copy) = behind {
        report.made_anew.push(format!("copy {copy} of the superblock"));
    }
    let (recovered, damage) =
        Manifest::recover_readable(io, drive.local(), &geometry, superblock.store_id, empty_clients).await?;
    let mut installer = Installer::from(recovered);
    let copies_damaged: Vec<String> = installer.manifest.summary().copies_damaged().collect();
    refuse_other_kinds(&installer, &[KeyspaceKind::Hashed, KeyspaceKind::Ordered])?;
    let is_log_damaged = match &damage {
        Some(_) => true,
        None => match replay_log(io, &superblock, &hasher, &installer).await {
            Ok(replayed) => refuse_lost_end(replayed.chain.stamp_last, &installer.marks).is_err(),
            Err(Error::Corrupt(_)) => true,
            Err(error) => return Err(error),
        },
    };
    let mut log = read_log(io, &geometry, superblock.store_id, &installer.marks, is_log_damaged).await?;
    if damage.is_some() {
        tell_of_manifest(&mut log, &installer.marks);
    }
    report.losses.append(&mut log.losses);
    let mut extents = Extents::new(geometry.extents(superblock.capacity_bytes));
    claim_segments(&mut extents, &superblock, installer.of::<Catalog>())?;
    claim_groups(&mut extents, installer.of::<GroupTable>())?;
    let extents = Arc::new(Mutex::new(extents));
    let space = LargeSpace::new(extents);
    let mut claims = Claims::new(space.clone());
    let mut large = BTreeMap::new();
    for descriptor in installer.of::<Catalog>().segments.values().map(|state| &state.descriptor) {
        large.insert(descriptor.number, claim_large(&mut claims, descriptor)?);
    }
    let keyspaces = &installer.keyspaces;
    let newest = newest(&hasher, keyspaces, &log);
    let lost = delete_lost_values(io, &superblock, &hasher, keyspaces, &mut log, &mut claims, &newest).await;
    report.losses.extend(lost);
    let is_manifest_damaged = damage.is_some();
    let anchors = match is_manifest_damaged || log.is_damaged {
        true => BTreeMap::new(),
        false => anchors(drive, io, &superblock, &installer, &log).await,
    };
    if is_manifest_damaged {
        let (keyspaces, groups) = (installer.keyspaces.clone(), installer.of_mut::<GroupTable>());
        let found = find_lost_groups(io, &superblock, &keyspaces, groups, &space.allocator).await?;
        if found > 0 {
            let what =
                format!("the manifest's word on {found} groups of data nodes, which were found by the nodes in them");
            report.made_anew.push(what);
        }
        // Versions that it gave since.
        let edit = GroupEdit::Versions(installer.of::<GroupTable>().version_next() + VERSIONS_SKIPPED);
        installer.of_mut::<GroupTable>().edit(&edit).map_err(Error::Corrupt)?;
        installer.roots.set(KeyspaceKind::Ordered, Vec::new());
    }
    let mut roots = Roots {
        superblock,
        hasher,
        behind,
        installer,
        is_changed: is_manifest_damaged || !copies_damaged.is_empty(),
        is_manifest_damaged,
        anchors,
        log,
        newest,
        space,
        large,
        _claims: claims,
    };
    report.made_anew.extend(copies_damaged);
    roots.note_log();
    Ok(roots)
}

/// The checkpoint of anchors, if it is that of the last clean stop and can be read. A repair can do without it.
async fn anchors(
    drive: &Drive,
    io: &Io,
    superblock: &Superblock,
    installer: &Installer,
    log: &FoundLog,
) -> BTreeMap<KeyspaceId, CheckpointKeyspace> {
    let Ok(root) = AnchorRoot::parse(installer.roots.get(KeyspaceKind::Ordered)) else { return BTreeMap::new() };
    if root.generation != installer.marks.opening.generation || log.stamp_last() > root.stamp {
        return BTreeMap::new();
    }
    let Superblock { geometry, store_id, capacity_bytes, .. } = superblock;
    let extents = geometry.extents(*capacity_bytes);
    let media = AnchorMedia { geometry, store_id: *store_id, local: drive.local(), extents };
    anchor_checkpoint::read(&media, io, &root, u64::MAX).await.unwrap_or_default()
}

/// Records that are missing before the log's first group are lost because the manifest does not name them any more.
fn tell_of_manifest(log: &mut FoundLog, marks: &BaseMarks) {
    let first = marks.trim.stamp_max + 1;
    for loss in &mut log.losses {
        if let Loss::Writes { stamps, place } = loss
            && *stamps.start() == first
        {
            *place = "frames of the manifest that cannot be read".into();
        }
    }
}

/// Writes zeros where a range cannot be read.
async fn zero_unreadable(io: &Io, range: Range<u64>, report: &mut RepairReport) -> Result<(), Error> {
    let mut buffer = io.allocate(PROBE_BYTES).await?;
    for flash in range.clone().step_by(PROBE_BYTES) {
        let length = PROBE_BYTES.min((range.end - flash) as usize);
        if io.read(flash, &mut buffer, 0, length).await.is_ok() {
            continue;
        }
        for page in (flash..flash + length as u64).step_by(PAGE_BYTES) {
            let length = PAGE_BYTES.min((range.end - page) as usize);
            if io.read(page, &mut buffer, 0, length).await.is_err() {
                io.fill(&mut buffer, 0..length).fill(0);
                io.write(page, &mut buffer, length).await?;
                report.made_anew.push(format!("{length} bytes from byte {page} of the drive on, which cannot be read"));
            }
        }
    }
    Ok(())
}

fn newest(hasher: &KeyHasher, keyspaces: &Catalogue, log: &FoundLog) -> HashMap<HashKey, u64> {
    let mut newest = HashMap::new();
    log.each(|_, record| {
        if !record.key.is_empty() && keyspaces.is_live(KeyspaceId::of(&record.header)) {
            newest.insert(hasher.hash_of(&record.header, record.key), record.header.stamp);
        }
    });
    newest
}

/// Turns records of the log whose values are lost into deletions. Returns the losses: those that are the newest of their keys.
async fn delete_lost_values(
    io: &Io,
    superblock: &Superblock,
    hasher: &KeyHasher,
    keyspaces: &Catalogue,
    log: &mut FoundLog,
    claims: &mut Claims,
    newest: &HashMap<HashKey, u64>,
) -> Vec<Loss> {
    let (mut references, mut losses) = (Vec::new(), Vec::new());
    log.each(|group, Record { header, key, stored }| {
        let id = KeyspaceId::of(&header);
        // Extents that records of dropped keyspaces name may be another one's.
        if header.codec == Codec::OutOfLine && keyspaces.is_live(id) && !is_ordered(keyspaces, id) {
            references.push((group, header, key.to_vec(), Reference::parse(stored).ok()));
        }
    });
    for (group, header, key, reference) in references {
        let is_newest = newest.get(&hasher.hash_of(&header, &key)) == Some(&header.stamp);
        let is_whole = match &reference {
            None => false,
            Some(reference) => {
                let (geometry, store_id) = (&superblock.geometry, superblock.store_id);
                let is_free = claims.claim(&reference.runs, String::new).is_ok();
                let read = async { read_value(io, geometry, store_id, reference, header.raw_bytes).await.is_ok() };
                is_free && (!is_newest || read.await)
            }
        };
        if !is_whole {
            log.delete(group, header.stamp);
            if is_newest {
                losses.push(Loss::Item { key, place: "its large value is damaged".into() });
            }
        }
    }
    losses
}
