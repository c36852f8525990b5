//! Makes a backup: copies what a freeze shows to a depot, but for what the backup before has.
//!
//! ```text
//! freeze, with the store's image ─► its parts: taken over, or read from flash ─► packs ─► the manifest, last
//! ```
//! 1. Each part is of the freeze's moment, and what the freeze holds is not overwritten: it is asked for that behind each pack, and before the manifest
//!    is put.
//! 2. A part is taken over if the backup before has one of the same kind and numbers, of the same history of the store ([`super::manifest`]), and its packs
//!    are in the depot.
//! 3. A page that differs from its image is sealed, in the slot that its node had or another free one, as if its image had landed by then.
//!
//! Threads: the task's.

use super::backups;
use super::depot::Depot;
use super::digest::Digest;
use super::error::BackupError;
use super::manifest::{BackupManifest, Part, PartKey, Piece};
use super::name::{self, BackupName};
use super::numbers;
use super::pack::PackWriter;
use crate::freeze::image::StoreImage;
use crate::freeze::{FrozenPart, FrozenStore};
use crate::hashed::catalog::Catalog;
use crate::ordered::frozen::FrozenTree;
use crate::ordered::frozen::images::FrozenImage;
use crate::ordered::slabs::group_table::GroupTable;
use crate::ordered::slabs::slot_class::PAGE_BYTES;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tapetum_base::base::Base;
use tapetum_base::manifest::client::ManifestClients;
use tapetum_base::manifest::items::FrameItems;
use tapetum_base::media::geometry::Geometry;
use tapetum_base::media::io::Io;
use tapetum_drive::{LocalBuffer, fail_point};
use tapetum_kernels::data_page;
use tapetum_kernels::ordered::extension::ExtensionReference;
use tapetum_kernels::ordered::{ImageSeal, NODE_BYTES, NodeMut, NodePage, NodeRef};
use tapetum_kernels::reference::{Reference, Run};

/// Bytes of one read.
const READ_BYTES: usize = 256 << 10;
/// Slots that lie as close as this are read together.
const SLOTS_BETWEEN_MAX: u32 = 3;
/// How long the freeze lasts from each pack on. A depot that takes longer for one is given up.
pub const FREEZE_LASTS: Duration = Duration::from_secs(120);

/// How a backup is made.
#[derive(Clone, Debug, Default)]
pub struct BackupOptions {
    /// The lease's generation.
    pub generation: u64,
    /// Takes nothing over from earlier backups.
    pub anew: bool,
}

/// Figures of a backup that was made.
#[derive(Clone, PartialEq, Debug)]
pub struct BackupReport {
    pub name: BackupName,
    pub moment_unix_ms: u64,
    /// The last stamp that it shows.
    pub stamp: u64,
    pub keyspaces: usize,
    /// Bytes of the drive that it has.
    pub drive_bytes: u64,
    /// Bytes that were put into the depot for it.
    pub copied_bytes: u64,
}

/// What the backup before has.
#[derive(Default)]
struct Before {
    manifest: Option<BackupManifest>,
    /// Places of parts in its list.
    places: HashMap<PartKey, usize>,
}

impl Before {
    /// The parts of the last backup from which some may be taken over.
    ///
    /// # Errors
    /// [`BackupError::OtherHistory`].
    fn find(depot: &dyn Depot, image: &StoreImage, options: &BackupOptions) -> Result<Before, BackupError> {
        match backups::last_of_history(depot, image.clients.marks.history)? {
            Some((_, manifest)) if !options.anew => Before::of(depot, image, manifest),
            _ => Ok(Before::default()),
        }
    }

    fn of(depot: &dyn Depot, image: &StoreImage, manifest: BackupManifest) -> Result<Before, BackupError> {
        let there: BTreeSet<(String, u64)> =
            depot.list(name::PACKS)?.into_iter().map(|entry| (entry.name, entry.bytes)).collect();
        let is_there = |pack: u32| {
            let pack = &manifest.packs[pack as usize];
            there.contains(&(name::pack(pack.digest), pack.bytes.into()))
        };
        let marks = &image.clients.marks;
        let is_one_opening = manifest.opening == marks.opening.generation && manifest.history == marks.history;
        let may_be_taken =
            |part: &Part| part.key.names_bytes(is_one_opening) && part.pieces.iter().all(|piece| is_there(piece.pack));
        let parts = manifest.parts.iter().enumerate().filter(|(_, part)| may_be_taken(part));
        let places = parts.map(|(place, part)| (trusted(part.key), place)).collect();
        Ok(Before { manifest: Some(manifest), places })
    }

    fn part(&self, key: PartKey) -> Option<(usize, &Part)> {
        let place = *self.places.get(&trusted(key))?;
        Some((place, &self.manifest.as_ref()?.parts[place]))
    }

    /// A node with the extensions that it names.
    fn node(&self, key: PartKey) -> Option<&[Part]> {
        let (place, node) = self.part(key)?;
        let all = self.manifest.as_ref()?.parts.get(place..=place + node.extensions as usize)?;
        all.iter().all(|part| self.places.contains_key(&part.key)).then_some(all)
    }
}

/// The key by which a part is found in the backup before.
fn trusted(key: PartKey) -> PartKey {
    match key {
        PartKey::Segment { number, .. } if fail_point!(BackupTrustNumbers) => PartKey::Segment { number, version: 0 },
        key => key,
    }
}

struct Copier<'a> {
    io: &'a Io,
    base: &'a Base,
    frozen: &'a FrozenStore,
    image: &'a StoreImage,
    /// Bytes that were copied so far, for whoever waits.
    copied: &'a AtomicU64,
    before: Before,
    packs: PackWriter,
    parts: Vec<Part>,
    buffer: LocalBuffer,
}

/// A backup that has all but its manifest.
pub struct Prepared {
    manifest: Vec<u8>,
    report: BackupReport,
}

impl Prepared {
    /// Puts the manifest: from then on there is a backup, whatever becomes of the rest. The caller has just seen that it has the lease.
    pub fn finish(self, frozen: &FrozenStore, depot: &dyn Depot) -> Result<BackupReport, BackupError> {
        frozen.check()?;
        depot.put_new(&self.report.name.object(), &self.manifest)?;
        numbers::note_made(depot, self.report.name.sequence)?;
        Ok(self.report)
    }
}

/// Copies what a freeze shows.
///
/// `None`: a node has no slot yet; another freeze is to be taken.
pub async fn copy(
    io: &Io,
    base: &Base,
    frozen: &FrozenStore,
    depot: Arc<dyn Depot>,
    options: &BackupOptions,
    copied: &AtomicU64,
) -> Result<Option<Prepared>, BackupError> {
    let image = frozen.image().expect("the freeze was made for a backup");
    let store_id = image.superblock.store_id;
    backups::claim(&*depot, store_id)?;
    let before = Before::find(&*depot, image, options)?;
    let packs = PackWriter::new(depot.clone());
    let buffer = io.allocate(READ_BYTES.min(base.drive.local().bytes_total() / 8)).await?;
    let mut copier = Copier { io, base, frozen, image, copied, before, packs, parts: Vec::new(), buffer };
    for tree in frozen.trees() {
        if !copier.tree(tree).await? {
            return Ok(None);
        }
    }
    copier.state().await?;
    copier.log().await?;
    copier.segments().await?;
    copier.large_values().await?;
    let Copier { packs, parts, .. } = copier;
    let marks = &image.clients.marks;
    let sequence = numbers::next(&*depot)?;
    let (packs, copied_bytes) = packs.end()?;
    let manifest = BackupManifest {
        store_id,
        history: marks.history,
        generation: options.generation,
        sequence,
        opening: marks.opening.generation,
        moment_unix_ms: frozen.moment_unix_ms(),
        stamp: frozen.stamp(),
        capacity_bytes: image.superblock.capacity_bytes,
        copied_bytes,
        superblock: without_padding(image.superblock.encode()),
        keyspaces: frozen.keyspaces().iter().map(|(keyspace, _)| keyspace.name.clone()).collect(),
        packs,
        parts,
    };
    let bytes = manifest.encode();
    let report = BackupReport {
        name: BackupName { generation: options.generation, sequence, digest: Digest::of(&bytes) },
        moment_unix_ms: manifest.moment_unix_ms,
        stamp: manifest.stamp,
        keyspaces: manifest.keyspaces.len(),
        drive_bytes: manifest.drive_bytes(),
        copied_bytes: copied_bytes + bytes.len() as u64,
    };
    Ok(Some(Prepared { manifest: bytes, report }))
}

/// A superblock without the zeros behind its fields.
fn without_padding(mut superblock: Vec<u8>) -> Vec<u8> {
    superblock.truncate(superblock.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1));
    superblock
}

/// The ranges of flash that so many pages take, from the first of these extents on; neighbours are one range.
fn ranges(geometry: &Geometry, extents: &[u32], pages: u32, page_bytes: usize) -> Vec<(u64, u64)> {
    let (each, mut left) = (geometry.pages_per_extent(page_bytes), pages);
    let mut ranges: Vec<(u64, u64)> = Vec::new();
    for extent in extents {
        let here = each.min(left);
        left -= here;
        add_range(&mut ranges, geometry.extent_offset(*extent), u64::from(here) * page_bytes as u64);
    }
    ranges
}

fn add_range(ranges: &mut Vec<(u64, u64)>, at: u64, bytes: u64) {
    match ranges.last_mut() {
        _ if bytes == 0 => {}
        Some((from, length)) if *from + *length == at => *length += bytes,
        _ => ranges.push((at, bytes)),
    }
}

fn ranges_of_runs(geometry: &Geometry, runs: &[Run]) -> Vec<(u64, u64)> {
    let range = |run: &Run| (geometry.extent_offset(run.first), u64::from(run.count) * geometry.extent_bytes);
    runs.iter().map(range).collect()
}

impl Copier<'_> {
    /// Lets the freeze last for one more pack.
    fn next_pack(&self) -> Result<(), BackupError> {
        self.frozen.check()?;
        self.frozen.renew(self.base.drive.env().now_us(), FREEZE_LASTS)?;
        Ok(())
    }

    fn add(&mut self, flash: u64, bytes: &[u8]) -> Result<Piece, BackupError> {
        if self.packs.is_full_for(bytes.len()) {
            self.next_pack()?;
        }
        let (pack, offset) = self.packs.add(bytes)?;
        self.copied.fetch_add(bytes.len() as u64, Ordering::Relaxed);
        Ok(Piece { flash, bytes: bytes.len() as u32, pack, offset })
    }

    /// Copies ranges of flash.
    async fn copied(&mut self, ranges: &[(u64, u64)]) -> Result<Vec<Piece>, BackupError> {
        let mut pieces = Vec::new();
        let each = self.buffer.len() as u64;
        for (from, length) in ranges {
            for at in (0..*length).step_by(each as usize) {
                let bytes = each.min(length - at) as usize;
                self.io.read(from + at, &mut self.buffer, 0, bytes).await?;
                let buffer = self.buffer.take();
                let piece = self.add(from + at, self.io.look(&buffer, 0..bytes));
                self.buffer = buffer;
                pieces.push(piece?);
                // Others go on between two reads.
                self.io.step().await;
            }
        }
        Ok(pieces)
    }

    /// Takes a part over, if the backup before has it.
    fn take_over(&mut self, key: PartKey) -> bool {
        let Some((_, part)) = self.before.part(key) else { return false };
        let part = Part { key, ..part.clone() };
        self.add_taken(part);
        true
    }

    fn add_taken(&mut self, mut part: Part) {
        let packs = &self.before.manifest.as_ref().expect("the part is one of its").packs;
        part.pieces.iter_mut().for_each(|piece| piece.pack = self.packs.take_over(packs[piece.pack as usize]));
        self.parts.push(part);
    }

    async fn part(&mut self, key: PartKey, ranges: &[(u64, u64)]) -> Result<(), BackupError> {
        if !self.take_over(key) {
            let pieces = self.copied(ranges).await?;
            self.parts.push(Part { key, extensions: 0, pieces });
        }
        Ok(())
    }

    async fn state(&mut self) -> Result<(), BackupError> {
        let (mut items, mut pieces) = (FrameItems::default(), Vec::new());
        let image = self.image;
        for client in image.clients.each() {
            for piece in client.snapshot() {
                items.put(client.id(), |writer| writer.raw(&piece));
                if items.payload().len() >= READ_BYTES {
                    pieces.push(self.add(0, std::mem::take(&mut items).payload())?);
                }
            }
        }
        if !items.payload().is_empty() {
            pieces.push(self.add(0, items.payload())?);
        }
        self.parts.push(Part { key: PartKey::State, extensions: 0, pieces });
        Ok(())
    }

    async fn log(&mut self) -> Result<(), BackupError> {
        let image = self.image;
        for zone in &image.log {
            let mut position = 0;
            while let key = (PartKey::Log { buffer: zone.buffer, position: position as u64 })
                && let Some((_, part)) = self.before.part(key)
                && let bytes = part.bytes() as usize
                && bytes > 0
                && position + bytes <= zone.groups.len()
            {
                self.take_over(key);
                position += bytes;
            }
            if position == zone.groups.len() {
                continue;
            }
            let (mut pieces, key) = (Vec::new(), PartKey::Log { buffer: zone.buffer, position: position as u64 });
            let flash = image.superblock.geometry.zone_offset(zone.buffer);
            for bytes in zone.groups[position..].chunks(READ_BYTES) {
                pieces.push(self.add(flash + position as u64, bytes)?);
                position += bytes.len();
            }
            self.parts.push(Part { key, extensions: 0, pieces });
        }
        Ok(())
    }

    async fn segments(&mut self) -> Result<(), BackupError> {
        let image = self.image;
        let geometry = &image.superblock.geometry;
        for state in image.clients.of::<Catalog>().segments.values() {
            let segment = &state.descriptor;
            let key = PartKey::Segment { number: segment.number.into(), version: segment.version };
            let mut all = ranges(geometry, &segment.data_extents, segment.data_pages, segment.data_page_size.bytes());
            let key_pages = segment.key_pages + segment.fence_pages;
            all.extend(ranges(geometry, &segment.key_extents, key_pages, data_page::PAGE_BYTES));
            self.part(key, &all).await?;
        }
        Ok(())
    }

    /// Large values of hashed keyspaces: those that segments name, and those of write buffers.
    async fn large_values(&mut self) -> Result<(), BackupError> {
        let image = self.image;
        let geometry = &image.superblock.geometry;
        // A touched value is named by two records.
        let mut values: BTreeMap<u32, (u64, Vec<Run>)> = BTreeMap::new();
        let mut add = |stamp: u64, runs: &[Run]| {
            if let Some(first) = runs.first() {
                values.entry(first.first).or_insert_with(|| (stamp, runs.to_vec()));
            }
        };
        let of_segments = image.clients.of::<Catalog>().segments.values().flat_map(|state| &state.descriptor.large);
        of_segments.for_each(|large| add(large.stamp, &large.runs));
        for (stamp, reference) in self.frozen.large_in_buffers() {
            let reference = Reference::parse(&reference).map_err(|_| {
                BackupError::BadSource(
                    "a record in a write buffer names a large value in a way that makes no sense".into(),
                )
            })?;
            add(stamp, &reference.runs);
        }
        for (first, (stamp, runs)) in values {
            let key = PartKey::Large { first: first.into(), stamp };
            self.part(key, &ranges_of_runs(geometry, &runs)).await?;
        }
        Ok(())
    }

    /// The nodes and extensions of an ordered keyspace. `false`: a node has no slot, and none is free.
    async fn tree(&mut self, tree: &FrozenTree) -> Result<bool, BackupError> {
        let (mut to_read, mut pages, mut used) = (Vec::new(), Vec::new(), BTreeSet::new());
        for image in tree.images() {
            match image {
                FrozenImage::Slot { slot, stamp } => {
                    used.insert(slot);
                    let key = PartKey::Node { flash: tree.node_flash(slot), stamp };
                    match self.before.node(key).map(<[Part]>::to_vec) {
                        Some(parts) => parts.into_iter().for_each(|part| self.add_taken(part)),
                        None => to_read.push((slot, stamp)),
                    }
                }
                FrozenImage::Page { page, had } => {
                    used.extend(had);
                    pages.push((page, had));
                }
            }
        }
        let table = self.image.clients.of::<GroupTable>();
        let mut free = tree.node_slots(table).filter(|slot| !used.contains(slot));
        for (page, had) in pages {
            let Some(slot) = had.or_else(|| free.next()) else { return Ok(false) };
            self.page(tree, slot, page).await?;
        }
        to_read.sort_unstable();
        self.slots(tree, &to_read).await?;
        Ok(true)
    }

    /// A page that differs from its image, as the image that would have come next.
    async fn page(&mut self, tree: &FrozenTree, slot: u32, page: &NodePage) -> Result<(), BackupError> {
        let mut image = *page;
        let stamp = self.base.log.give_stamp();
        let salt = tree.node_salt(self.image.clients.of(), slot).ok_or_else(|| bad_node(tree, slot))?;
        let mut node = NodeMut::look(&mut image).map_err(|_| bad_node(tree, slot))?;
        node.compact().map_err(|_| bad_node(tree, slot))?;
        // Wherever it is restored to, all is durable before the store is opened.
        node.seal(salt, ImageSeal { stamp, durable: stamp, round_images: 0 });
        self.node(tree, slot, &image).await
    }

    /// The nodes in these slots, ascending.
    async fn slots(&mut self, tree: &FrozenTree, slots: &[(u32, u64)]) -> Result<(), BackupError> {
        let slots_max = (self.buffer.len() / NODE_BYTES) as u32;
        let mut rest = slots;
        while let Some((first, _)) = rest.first() {
            let mut count = 1;
            while let (Some((before, _)), Some((next, _))) = (rest.get(count - 1), rest.get(count))
                && next - before <= SLOTS_BETWEEN_MAX
                && next - first < slots_max
                && tree.node_flash(*next) == tree.node_flash(*first) + u64::from(next - first) * PAGE_BYTES
            {
                count += 1;
            }
            let (run, behind) = rest.split_at(count);
            rest = behind;
            let bytes = (run[count - 1].0 - first + 1) as usize * NODE_BYTES;
            self.io.read(tree.node_flash(*first), &mut self.buffer, 0, bytes).await?;
            let read = self.io.look(&self.buffer, 0..bytes).to_vec();
            for (slot, stamp) in run {
                let at = (slot - first) as usize * NODE_BYTES;
                let page = NodePage::try_from(&read[at..at + NODE_BYTES]).expect("it has the bytes of a node");
                let salt = tree.node_salt(self.image.clients.of(), *slot).ok_or_else(|| bad_node(tree, *slot))?;
                let found = NodeRef::check(&page, salt).map(|node| node.stamp());
                if found != Ok(*stamp) {
                    self.frozen.check()?;
                    return Err(bad_node(tree, *slot));
                }
                self.node(tree, *slot, &page).await?;
            }
        }
        Ok(())
    }

    /// An image, and the extensions that it names.
    async fn node(&mut self, tree: &FrozenTree, slot: u32, image: &NodePage) -> Result<(), BackupError> {
        let node = NodeRef::look(image).map_err(|_| bad_node(tree, slot))?;
        let named: Vec<(ExtensionReference, usize)> =
            node.extensions().collect::<Result<_, _>>().map_err(|_| bad_node(tree, slot))?;
        let (key, stamp) = (tree.node_flash(slot), node.stamp());
        let piece = self.add(key, image)?;
        let key = PartKey::Node { flash: key, stamp };
        self.parts.push(Part { key, extensions: named.len() as u32, pieces: vec![piece] });
        for (reference, key_bytes) in named {
            let place = tree.extension_place(&reference, key_bytes).ok_or_else(|| bad_node(tree, slot))?;
            self.part(PartKey::Extension { flash: place.0, stamp: reference.stamp }, &[place]).await?;
        }
        Ok(())
    }
}

fn bad_node(tree: &FrozenTree, slot: u32) -> BackupError {
    let (keyspace, flash) = (tree.keyspace.0, tree.node_flash(slot));
    BackupError::BadSource(format!("the data node of keyspace {keyspace} at byte {flash} of the drive is damaged"))
}

impl FrozenStore {
    /// The stamp of each live record of a write buffer whose value is large, and the reference to that.
    fn large_in_buffers(&self) -> Vec<(u64, Vec<u8>)> {
        let mut large = Vec::new();
        for (keyspace, _) in self.keyspaces() {
            if let FrozenPart::Hashed(snapshot) = self.part(keyspace) {
                let records = snapshot.records();
                large
                    .extend(records.elsewhere.iter().map(|(header, record)| (header.stamp, record.reference.to_vec())));
            }
        }
        large
    }
}
