//! Every readable item of a store that may be damaged, or that does not open.

use super::report::RepairReport;
use super::roots::{Roots, read_roots};
use super::segments::{key_of, look as look_at_segment};
use super::trees::{FoundTree, TreeLog, look_at_tree, read_image, records_of};
use super::{Patient, stopped};
use crate::hashed::catalog::Catalog;
use crate::hashed::key_tables::key_mend::records::Records;
use crate::hashed::large::verify::read_value as read_large_value;
use crate::ordered::check::read_value;
use std::collections::{BTreeMap, HashMap};
use std::ops::ControlFlow;
use tapetum_base::error::Error;
use tapetum_base::keyspace::KeyspaceId;
use tapetum_base::keyspace::catalogue::Keyspace;
use tapetum_base::keyspace::deletion_mark::{DeletionMarks, note_deletion};
use tapetum_base::keyspace_kind::KeyspaceKind;
use tapetum_base::media::io::{Io, run};
use tapetum_drive::Drive;
use tapetum_kernels::codec::Decompressor;
use tapetum_kernels::expiry::Expiry;
use tapetum_kernels::hash::HashKey;
use tapetum_kernels::ordered::NodeRecord;
use tapetum_kernels::ordered::extension::ExtensionReference;
use tapetum_kernels::record::{Codec, Header, Kind, Record};
use tapetum_kernels::reference::Reference;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SalvagedItem<'a> {
    pub key: &'a [u8],
    pub value: &'a [u8],
    /// The client's flags.
    pub flags: u32,
    pub expiry: Expiry,
    pub stamp: u64,
}

/// Shows `visit` every live item of the named keyspace that can be read, until it breaks off, and reports those that cannot. Nothing is written.
pub fn salvage(
    drive: &Drive,
    keyspace: &str,
    visit: impl FnMut(SalvagedItem<'_>) -> ControlFlow<()>,
) -> Result<RepairReport, Error> {
    let patient = Patient::new(drive)?;
    let walk = async {
        let mut report = RepairReport::default();
        let roots = read_roots(&patient.above, &patient.io, &mut report).await?;
        let named = roots.installer.keyspaces.find(keyspace).map_err(Error::Keyspace)?.clone();
        let keyspace = named.id;
        let decompressor = Decompressor::new().map_err(|error| Error::Io(error.to_string()))?;
        let deleted = Deleted::of(&roots, patient.above.env().unix_millis());
        let mut shown =
            SalvageVisit { io: &patient.io, roots: &roots, keyspace, deleted, decompressor, value: Vec::new(), visit };
        if named.kind == KeyspaceKind::Ordered {
            shown.tree(&named, &mut report).await?;
        } else if shown.log().await.is_continue() {
            shown.segments(&mut report).await?;
        }
        Ok(report)
    };
    run(&patient.io, walk, || false).ok_or_else(stopped)?
}

/// The marks by which an item is gone although its record is there.
struct Deleted {
    marks: DeletionMarks,
    now_ms: u64,
}

impl Deleted {
    fn of(roots: &Roots, now_ms: u64) -> Deleted {
        let mut marks = roots.installer.marks.deletions.clone();
        roots.log.each(|_, record| note_deletion(&mut marks, &record));
        // The time that was planned has come while no store was open.
        let due = marks.values_mut().filter(|mark| Expiry::from_secs(mark.planned_at).has_passed(now_ms));
        due.for_each(|mark| mark.watermark = u64::MAX);
        Deleted { marks, now_ms }
    }

    fn spares(&self, header: &Header) -> bool {
        let watermark = self.marks.get(&KeyspaceId::of(header)).map_or(0, |mark| mark.watermark);
        header.kind == Kind::Value && header.stamp > watermark && !header.expiry.has_passed(self.now_ms)
    }
}

struct SalvageVisit<'a, V> {
    io: &'a Io,
    roots: &'a Roots,
    keyspace: KeyspaceId,
    deleted: Deleted,
    decompressor: Decompressor,
    value: Vec<u8>,
    visit: V,
}

impl<V: FnMut(SalvagedItem<'_>) -> ControlFlow<()>> SalvageVisit<'_, V> {
    async fn log(&mut self) -> ControlFlow<()> {
        let mut newest: HashMap<HashKey, Vec<u8>> = HashMap::new();
        let roots = self.roots;
        roots.log.each(|_, record| {
            let hash = roots.hasher.hash_of(&record.header, record.key);
            if roots.newest.get(&hash) == Some(&record.header.stamp) && self.wants(&record.header) {
                let mut bytes = vec![0; record.header.record_bytes()];
                record.encode(&mut bytes);
                newest.insert(hash, bytes);
            }
        });
        for bytes in newest.into_values() {
            self.show(&bytes).await?;
        }
        ControlFlow::Continue(())
    }

    async fn segments(&mut self, report: &mut RepairReport) -> Result<(), Error> {
        let mut bytes = Vec::new();
        for state in self.roots.installer.of::<Catalog>().segments.values() {
            let found = look_at_segment(self.io, self.roots, state, report).await?;
            let mut records = Records::new(&found.segment, self.io, self.roots.hasher.clone()).await?;
            for &(_, address) in &found.readable {
                let Some(header) = records.copy(address, &mut bytes).await else { continue };
                let hash = self.roots.hasher.hash_of(&header, key_of(&header, &bytes));
                let is_old = self.roots.newest.contains_key(&hash);
                if !is_old && self.wants(&header) && self.show(&bytes).await.is_break() {
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    /// Data nodes, with what the log has of their keys, in the order of keys.
    async fn tree(&mut self, keyspace: &Keyspace, report: &mut RepairReport) -> Result<(), Error> {
        let found = look_at_tree(self.io, self.roots, keyspace, report).await?;
        let log = TreeLog::of(self.roots, keyspace.id);
        let log = log.records();
        for range in found.ranges() {
            let image = match range.tile {
                Some(tile) => read_image(self.io, &found, &found.live.tiles[tile]).await?,
                None => Vec::new(),
            };
            let lost = range.tile.and_then(|tile| found.lost.get(&tile));
            let mut records: BTreeMap<&[u8], Record<'_>> = BTreeMap::new();
            if range.tile.is_some() {
                let of_image = records_of(&image, range.low, range.high)?;
                let readable = of_image.iter().filter(|record| lost.is_none_or(|lost| !lost.contains(record.key)));
                records.extend(readable.map(|&NodeRecord { header, key, stored, .. }| {
                    (key, Record { header: Header { keyspace: keyspace.id.0, ..header }, key, stored })
                }));
            }
            for &record in log.above(range.stamp, range.low, range.high) {
                if found.lost_in_log.contains(&record.header.stamp) || record.header.kind != Kind::Value {
                    records.remove(record.key);
                } else {
                    records.insert(record.key, record);
                }
            }
            for record in records.values() {
                if self.wants(&record.header) && self.show_of_tree(&found, record).await.is_break() {
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    /// Shows an item of an ordered keyspace.
    async fn show_of_tree(&mut self, found: &FoundTree, record: &Record<'_>) -> ControlFlow<()> {
        let Header { flags, expiry, stamp, codec, raw_bytes, .. } = record.header;
        let mut stored = Vec::new();
        let whole = match codec {
            Codec::OutOfLine => {
                let Ok(reference) = ExtensionReference::parse(record.stored) else { return ControlFlow::Continue(()) };
                let take = |part: &[u8]| stored.extend_from_slice(part);
                let read = read_value(self.io, &found.slots, &reference, record.key, raw_bytes, take).await;
                if !read.unwrap_or(false) {
                    return ControlFlow::Continue(());
                }
                let header = Header { codec: reference.codec, stored_bytes: reference.stored_bytes, ..record.header };
                Record { header, key: record.key, stored: &stored }
            }
            _ => *record,
        };
        if self.decompressor.inflate(&whole, &mut self.value).is_err() {
            return ControlFlow::Continue(());
        }
        (self.visit)(SalvagedItem { key: record.key, value: &self.value, flags, expiry, stamp })
    }

    fn wants(&self, header: &Header) -> bool {
        KeyspaceId::of(header) == self.keyspace && self.deleted.spares(header)
    }

    async fn show(&mut self, bytes: &[u8]) -> ControlFlow<()> {
        let Ok(record) = Record::parse(bytes) else { return ControlFlow::Continue(()) };
        let Header { flags, expiry, stamp, codec, raw_bytes, .. } = record.header;
        if codec == Codec::OutOfLine {
            let (geometry, store_id) = (&self.roots.superblock.geometry, self.roots.superblock.store_id);
            let Ok(reference) = Reference::parse(record.stored) else { return ControlFlow::Continue(()) };
            let read = read_large_value(self.io, geometry, store_id, &reference, raw_bytes).await;
            let Ok(value) = read else { return ControlFlow::Continue(()) };
            self.value = value;
        } else if self.decompressor.inflate(&record, &mut self.value).is_err() {
            return ControlFlow::Continue(());
        }
        (self.visit)(SalvagedItem { key: record.key, value: &self.value, flags, expiry, stamp })
    }
}
