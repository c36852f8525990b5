//! Puts a backup onto a drive, which then has what the store's drive had after a crash at the backup's moment. Whoever opens it recovers it as such.
//!
//! ```text
//! packs, each verified ─► pieces to their places ─► flush ─► the store's manifest ─► superblocks
//! ```
//! The drive is blank: what the backup does not have reads as zeros. Its superblocks come last, so that a restore which is cut short is no store.
//!
//! Threads: the task's.

use super::depot::Depot;
use super::error::BackupError;
use super::manifest::{BackupManifest, Part, PartKey, Piece};
use super::name::{self, BackupName};
use super::progress::BackupProgress;
use super::verify::read_pack;
use crate::engines::engine_clients;
use std::collections::BTreeMap;
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
use tapetum_drive::Drive;

/// Bytes of one write, and how many are on their way.
const WRITE_BYTES: usize = 256 << 10;
const WRITES: usize = 4;

/// How a backup is restored.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Restore {
    /// All of it, or nothing.
    Whole,
    /// What is left of it.
    Partial,
}

/// What was restored.
#[derive(Clone, PartialEq, Debug)]
pub struct Restored {
    pub name: BackupName,
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
    how: Restore,
    progress: &BackupProgress,
) -> Result<Restored, BackupError> {
    let superblock = superblock(manifest)?;
    let (mut state, mut lacking, mut lost) = (BTreeMap::new(), Vec::new(), LostParts::default());
    let mut writer = PieceWriter::new(io, drive);
    for (pack, pieces) in by_pack(manifest) {
        if !progress.goes_on() {
            return Err(BackupError::Cancelled);
        }
        let entry = &manifest.packs[pack as usize];
        let Some(bytes) = read_pack(depot, entry)? else {
            lacking.push(name::pack(entry.digest));
            pieces.iter().for_each(|(key, _, _)| lost.count(*key));
            continue;
        };
        for (key, place, Piece { flash, bytes: length, offset, .. }) in pieces {
            let piece = &bytes[offset as usize..][..length as usize];
            match key {
                PartKey::State => drop(state.insert(place, piece.to_vec())),
                _ => writer.write(flash, piece).await?,
            }
            progress.count(u64::from(length));
        }
    }
    let is_state_whole = manifest
        .parts
        .iter()
        .filter(|part| part.key == PartKey::State)
        .all(|part| (0..part.pieces.len()).all(|place| state.contains_key(&place)) && !part.pieces.is_empty());
    if !lacking.is_empty() && (how != Restore::Partial || !is_state_whole) {
        return Err(BackupError::Damaged { place: depot.place(), name: *name, packs: lacking });
    }
    writer.end().await?;
    io.flush().await?;
    let mut clients = clients_of(&state)?;
    clients.marks.history = descendant(drive, name);
    Manifest::create(io, &superblock.geometry, superblock.store_id, &clients).await?;
    superblock.write(io, &[0, 1]).await?;
    Ok(Restored {
        name: *name,
        moment_unix_ms: manifest.moment_unix_ms,
        drive_bytes: manifest.drive_bytes(),
        lacking,
        lost,
    })
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

/// The pieces in each pack, with their parts and places there.
fn by_pack(manifest: &BackupManifest) -> BTreeMap<u32, Vec<(PartKey, usize, Piece)>> {
    let mut by_pack: BTreeMap<u32, Vec<_>> = BTreeMap::new();
    for Part { key, pieces, .. } in &manifest.parts {
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
    under_way: std::collections::VecDeque<Transfer>,
    spare: Vec<tapetum_drive::LocalBuffer>,
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
