//! Puts a backup onto a drive, which then has what the store's drive had after a crash at the backup's moment. Whoever opens it recovers it as such.
//!
//! ```text
//! packs, each verified ─► pieces to their places ─► flush ─► the store's manifest ─► superblocks
//! ```
//! The drive is blank: what the backup does not have reads as zeros. Its superblocks come last, so that a restore which is cut short is no store.
//! A drive that holds an earlier backup, and was never written to since, is brought to a later one: its superblocks go first, then what the later one
//! does not have is zeroed, and what it has is put there.
//!
//! Threads: the task's.

use super::depot::Depot;
use super::error::BackupError;
use super::manifest::{BackupManifest, Part, PartKey, Piece};
use super::name::{self, BackupName};
use super::verify::read_pack;
use crate::engines::engine_clients;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use tapetum_base::error::Error;
use tapetum_base::installer::Clients;
use tapetum_base::manifest::Manifest;
use tapetum_base::manifest::base_marks::History;
use tapetum_base::manifest::client::ManifestClients;
use tapetum_base::manifest::items::FrameItems;
use tapetum_base::media::geometry::SUPERBLOCK_BYTES;
use tapetum_base::media::io::Io;
use tapetum_base::media::superblock::Superblock;
use tapetum_base::media::transfer::Transfer;
use tapetum_drive::{Drive, LocalBuffer};

/// Bytes of one write, and how many are on their way.
const WRITE_BYTES: usize = 256 << 10;
const WRITES: usize = 4;

/// How a backup is restored.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Restore<'a> {
    /// All of it, or nothing.
    Whole,
    /// What is left of it.
    Partial,
    /// All of it, onto a drive that holds this backup of the same store, with as much capacity.
    Over(&'a BackupManifest),
}

/// What was restored.
#[derive(Clone, PartialEq, Debug)]
pub struct Restored {
    pub name: BackupName,
    /// Of the store that it is now.
    pub history: History,
    pub moment_unix_ms: u64,
    pub drive_bytes: u64,
    /// Packs that are gone, cut or rotten.
    pub lacking: Vec<String>,
    /// What was in them.
    pub lost: LostParts,
}

#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct LostParts {
    pub log: u64,
    pub segments: u64,
    pub large_values: u64,
    pub nodes: u64,
    pub extensions: u64,
}

/// The superblock of the store that a backup is of.
pub fn superblock(manifest: &BackupManifest) -> Result<Superblock, Error> {
    let mut copy = manifest.superblock.clone();
    copy.resize(SUPERBLOCK_BYTES as usize, 0);
    let copies = [&copy[..], &copy[..]].concat();
    Ok(Superblock::read(&copies, manifest.capacity_bytes)?.superblock)
}

/// Puts a backup onto a blank drive.
///
/// # Errors
/// [`BackupError::Damaged`], unless a part is wanted as well; without the state of the store nothing can be restored.
pub async fn restore(
    (drive, io): (&Drive, &Io),
    depot: &dyn Depot,
    (name, manifest): (&BackupName, &BackupManifest),
    how: Restore<'_>,
) -> Result<Restored, BackupError> {
    let superblock = superblock(manifest)?;
    let (mut state, mut lacking, mut lost) = (BTreeMap::new(), Vec::new(), LostParts::default());
    let mut writer = PieceWriter::new(io, drive);
    let mut stays = BTreeSet::new();
    if let Restore::Over(has) = how {
        stays = common(has, manifest);
        clear(&mut writer, &superblock, has, &stays).await?;
    }
    for (pack, pieces) in by_pack(manifest, &stays) {
        let entry = &manifest.packs[pack as usize];
        let Some(bytes) = read_pack(depot, entry)? else {
            lacking.push(name::pack(entry.digest));
            pieces.iter().for_each(|(key, _, _)| lost.count(*key));
            continue;
        };
        let of = |piece: &Piece| &bytes[piece.offset as usize..][..piece.bytes as usize];
        let mut runs: Vec<Piece> = Vec::new();
        for (key, place, piece) in pieces {
            match (key, runs.last_mut()) {
                (PartKey::State, _) => drop(state.insert(place, of(&piece).to_vec())),
                (_, Some(run)) if run.is_before(&piece) => run.bytes += piece.bytes,
                _ => runs.push(piece),
            }
        }
        for run in &runs {
            writer.write(run.flash, of(run)).await?;
        }
    }
    let is_state_whole = manifest
        .parts
        .iter()
        .filter(|part| part.key == PartKey::State)
        .all(|part| (0..part.pieces.len()).all(|place| state.contains_key(&place)) && !part.pieces.is_empty());
    let is_enough = how == Restore::Partial && is_state_whole;
    if !lacking.is_empty() && !is_enough {
        return Err(BackupError::Damaged { place: depot.place(), name: *name, packs: lacking });
    }
    writer.end().await?;
    io.flush().await?;
    let mut clients = clients_of(&state)?;
    let history = descendant(drive, name);
    clients.marks.history = history;
    Manifest::create(io, &superblock.geometry, superblock.store_id, &clients).await?;
    superblock.write(io, &[0, 1]).await?;
    Ok(Restored {
        name: *name,
        history,
        moment_unix_ms: manifest.moment_unix_ms,
        drive_bytes: manifest.drive_bytes(),
        lacking,
        lost,
    })
}

/// Zeros all of a backup that does not stay. The superblocks go first: what is left is no store.
async fn clear(
    writer: &mut PieceWriter<'_>,
    superblock: &Superblock,
    has: &BackupManifest,
    stays: &BTreeSet<PartKey>,
) -> Result<(), Error> {
    writer.zero(0, 2 * SUPERBLOCK_BYTES).await?;
    writer.end().await?;
    writer.io.flush().await?;
    for area in 0..2 {
        let at = superblock.geometry.manifest_offset(area);
        writer.zero(at, manifest_bytes_max(has).min(superblock.geometry.manifest_bytes)).await?;
    }
    let goes = has.parts.iter().filter(|part| part.key != PartKey::State && !stays.contains(&part.key));
    for piece in goes.flat_map(|part| &part.pieces) {
        writer.zero(piece.flash, piece.bytes.into()).await?;
    }
    // The next writes may go to the same places.
    writer.end().await
}

/// The history of a store that begins with a backup.
fn descendant(drive: &Drive, name: &BackupName) -> History {
    History { id: drive.env().random_u64().max(1), parent: name.parent() }
}

impl LostParts {
    fn count(&mut self, key: PartKey) {
        let count = match key {
            PartKey::State => return,
            PartKey::Log { .. } => &mut self.log,
            PartKey::Segment { .. } => &mut self.segments,
            PartKey::Large { .. } => &mut self.large_values,
            PartKey::Node { .. } => &mut self.nodes,
            PartKey::Extension { .. } => &mut self.extensions,
        };
        *count += 1;
    }
}

/// The most bytes of the manifest of a restored store that nobody has opened to write: frames are padded, and hold a part of an item at least.
fn manifest_bytes_max(manifest: &BackupManifest) -> u64 {
    let state = manifest.parts.iter().filter(|part| part.key == PartKey::State);
    (2 * state.map(Part::bytes).sum::<u64>() + (64 << 10)).next_multiple_of(SUPERBLOCK_BYTES)
}

/// Parts that are the same in both.
fn common(has: &BackupManifest, manifest: &BackupManifest) -> BTreeSet<PartKey> {
    // In other histories, the same numbers may name other bytes.
    if has.history != manifest.history {
        return BTreeSet::new();
    }
    let is_one_opening = has.opening == manifest.opening;
    // A part of the log may end elsewhere: then it is another one, with the same beginning.
    let keys = |of: &BackupManifest| {
        let named = of.parts.iter().filter(|part| part.key.names_bytes(is_one_opening));
        named.map(|part| (part.key, part.bytes())).collect::<BTreeSet<_>>()
    };
    keys(has).intersection(&keys(manifest)).map(|(key, _)| *key).collect()
}

/// The pieces in each pack, with their parts and places there, but of parts that stay.
fn by_pack(manifest: &BackupManifest, stays: &BTreeSet<PartKey>) -> BTreeMap<u32, Vec<(PartKey, usize, Piece)>> {
    let mut by_pack: BTreeMap<u32, Vec<_>> = BTreeMap::new();
    for Part { key, pieces, .. } in manifest.parts.iter().filter(|part| !stays.contains(&part.key)) {
        for (place, piece) in pieces.iter().enumerate() {
            by_pack.entry(piece.pack).or_default().push((*key, place, *piece));
        }
    }
    by_pack
}

fn clients_of(state: &BTreeMap<usize, Vec<u8>>) -> Result<Clients, Error> {
    let mut clients = Clients::empty(engine_clients);
    let no_sense = || Error::Corrupt("the state of the store in the backup makes no sense".into());
    for payload in state.values() {
        for (id, item) in FrameItems::parse(payload).map_err(|_| no_sense())? {
            let client = clients.each_mut().into_iter().find(|client| client.id() == id);
            client.ok_or_else(no_sense)?.load(item)?;
        }
    }
    Ok(clients)
}

/// Writes with some on their way.
struct PieceWriter<'a> {
    io: &'a Io,
    drive: &'a Drive,
    under_way: VecDeque<Transfer>,
    spare: Vec<LocalBuffer>,
}

impl<'a> PieceWriter<'a> {
    fn new(io: &'a Io, drive: &'a Drive) -> PieceWriter<'a> {
        PieceWriter { io, drive, under_way: Default::default(), spare: Vec::new() }
    }

    async fn write(&mut self, flash: u64, bytes: &[u8]) -> Result<(), Error> {
        let each = WRITE_BYTES.min(self.drive.local().bytes_total() / 8);
        for (number, part) in bytes.chunks(each).enumerate() {
            if self.under_way.len() == WRITES {
                self.wait().await?;
            }
            let mut buffer = match self.spare.pop() {
                Some(buffer) => buffer,
                None => self.io.allocate(each).await?,
            };
            self.io.fill(&mut buffer, 0..part.len()).copy_from_slice(part);
            let mut transfer = Transfer::new(self.io, buffer);
            transfer.start_write(flash + (number * each) as u64, 0, part.len(), false);
            self.under_way.push_back(transfer);
        }
        Ok(())
    }

    async fn zero(&mut self, flash: u64, bytes: u64) -> Result<(), Error> {
        let zeros = vec![0; bytes.min(WRITE_BYTES as u64) as usize];
        for at in (0..bytes).step_by(WRITE_BYTES) {
            self.write(flash + at, &zeros[..zeros.len().min((bytes - at) as usize)]).await?;
        }
        Ok(())
    }

    async fn wait(&mut self) -> Result<(), Error> {
        let Some(transfer) = self.under_way.pop_front() else { return Ok(()) };
        let (buffer, written) = transfer.end("write").await;
        self.spare.push(buffer);
        written
    }

    async fn end(&mut self) -> Result<(), Error> {
        while !self.under_way.is_empty() {
            self.wait().await?;
        }
        Ok(())
    }
}
