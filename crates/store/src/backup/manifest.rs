//! The manifest of a backup: what the backup consists of, and where in the depot it is. It is written last; its name has its digest, so one that is
//! cut or rotten is none.
//!
//! ```text
//!  0 magic "TBACKUP\0"   8 version u32   12 zero u32   16 fields, in the order of [`BackupManifest`]; lists with their u32 count
//!  part:  kind u8 · two numbers u64 · extensions u32 · pieces u32, each: flash u64 · bytes u32 · pack u32 · offset u32
//!
//!  kind      first number         second number
//!  1 state   0                    0                     items of the store's manifest, as in a frame of it
//!  2 log     buffer               offset in its zone
//!  3 segment number               version
//!  4 large   its first extent     the record's stamp
//!  5 node    its place on flash   the image's stamp     the extensions that it names follow it
//!  6 extension  likewise          its stamp
//! ```
//! Numbers are little-endian. Within one history of a store, and for the log within one opening, a kind and its numbers name the same bytes for ever:
//! so a later backup takes such parts over without reading them.

use super::digest::{DIGEST_BYTES, Digest};
use tapetum_base::manifest::base_marks::History;
use tapetum_base::media::wire::{Reader, Short, Writer};

const MAGIC: [u8; 8] = *b"TBACKUP\0";
pub const VERSION: u32 = 1;
const HEAD_BYTES: usize = 16;
const PIECE_BYTES: usize = 20;
const PART_BYTES: usize = 25;
const PACK_BYTES: usize = DIGEST_BYTES + 4;
/// A longer list of names than a store can have keyspaces.
const NAME_BYTES_MAX: usize = 1 << 10;

/// Bytes of the drive, and where they are in the depot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Piece {
    /// Their place on the drive; of the state, 0.
    pub flash: u64,
    pub bytes: u32,
    /// The place of their pack in the manifest's list.
    pub pack: u32,
    pub offset: u32,
}

impl Piece {
    /// Whether another one lies behind it, on the drive and in their pack.
    pub fn is_before(&self, other: &Piece) -> bool {
        self.flash + u64::from(self.bytes) == other.flash
            && self.pack == other.pack
            && self.offset + self.bytes == other.offset
    }
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum PartKey {
    State,
    Log { buffer: u64, position: u64 },
    Segment { number: u64, version: u64 },
    Large { first: u64, stamp: u64 },
    Node { flash: u64, stamp: u64 },
    Extension { flash: u64, stamp: u64 },
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Part {
    pub key: PartKey,
    /// How many of the parts behind a node are the extensions that it names.
    pub extensions: u32,
    pub pieces: Vec<Piece>,
}

/// An object that holds pieces.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PackEntry {
    pub digest: Digest,
    pub bytes: u32,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BackupManifest {
    pub store_id: u64,
    pub history: History,
    /// The lease's generation under which it was made.
    pub generation: u64,
    /// Counts the backups of a depot.
    pub sequence: u64,
    /// How often the store had been opened.
    pub opening: u64,
    pub moment_unix_ms: u64,
    /// The last stamp that it shows.
    pub stamp: u64,
    pub capacity_bytes: u64,
    /// Bytes that were put into the depot for it.
    pub copied_bytes: u64,
    pub superblock: Vec<u8>,
    pub keyspaces: Vec<String>,
    pub packs: Vec<PackEntry>,
    pub parts: Vec<Part>,
}

/// Why bytes are no manifest.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ManifestError {
    NoManifest,
    /// Of this version, which is unknown.
    Version(u32),
}

impl From<Short> for ManifestError {
    fn from(_: Short) -> ManifestError {
        ManifestError::NoManifest
    }
}

impl PartKey {
    /// Whether two backups of one history that have this key have the same bytes. `is_one_opening`: both are of one opening of the store.
    pub fn names_bytes(self, is_one_opening: bool) -> bool {
        match self {
            PartKey::State => false,
            // After a crash, a zone may have other groups behind those that were durable.
            PartKey::Log { .. } => is_one_opening,
            _ => true,
        }
    }

    fn words(self) -> (u8, u64, u64) {
        match self {
            PartKey::State => (1, 0, 0),
            PartKey::Log { buffer, position } => (2, buffer, position),
            PartKey::Segment { number, version } => (3, number, version),
            PartKey::Large { first, stamp } => (4, first, stamp),
            PartKey::Node { flash, stamp } => (5, flash, stamp),
            PartKey::Extension { flash, stamp } => (6, flash, stamp),
        }
    }

    fn of_words(kind: u8, one: u64, other: u64) -> Option<PartKey> {
        Some(match kind {
            1 => PartKey::State,
            2 => PartKey::Log { buffer: one, position: other },
            3 => PartKey::Segment { number: one, version: other },
            4 => PartKey::Large { first: one, stamp: other },
            5 => PartKey::Node { flash: one, stamp: other },
            6 => PartKey::Extension { flash: one, stamp: other },
            _ => return None,
        })
    }
}

impl Part {
    fn encode(&self, writer: &mut Writer) {
        let (kind, one, other) = self.key.words();
        writer.u8(kind);
        [one, other].into_iter().for_each(|number| writer.u64(number));
        writer.u32(self.extensions);
        writer.u32(self.pieces.len() as u32);
        for Piece { flash, bytes, pack, offset } in &self.pieces {
            writer.u64(*flash);
            [bytes, pack, offset].into_iter().for_each(|number| writer.u32(*number));
        }
    }

    fn parse(reader: &mut Reader<'_>, packs: &[PackEntry]) -> Result<Part, Short> {
        let [kind] = reader.array()?;
        let key = PartKey::of_words(kind, reader.u64()?, reader.u64()?).ok_or(Short)?;
        let extensions = reader.u32()?;
        let piece = |reader: &mut Reader<'_>| {
            let (flash, bytes) = (reader.u64()?, reader.u32()?);
            let piece = Piece { flash, bytes, pack: reader.u32()?, offset: reader.u32()? };
            let end = u64::from(piece.offset) + u64::from(piece.bytes);
            let is_inside = packs.get(piece.pack as usize).is_some_and(|pack| end <= pack.bytes.into());
            if is_inside { Ok(piece) } else { Err(Short) }
        };
        let count = reader.count(PIECE_BYTES)?;
        Ok(Part { key, extensions, pieces: (0..count).map(|_| piece(reader)).collect::<Result<_, _>>()? })
    }
}

impl Part {
    pub fn bytes(&self) -> u64 {
        self.pieces.iter().map(|piece| u64::from(piece.bytes)).sum()
    }
}

impl BackupManifest {
    pub fn encode(&self) -> Vec<u8> {
        let mut writer = Writer::default();
        writer.raw(&MAGIC);
        writer.u32(VERSION);
        writer.u32(0);
        writer.u64(self.store_id);
        writer.u64(self.history.id);
        writer.raw(&self.history.parent);
        let BackupManifest { generation, sequence, opening, moment_unix_ms, .. } = self;
        let BackupManifest { stamp, capacity_bytes, copied_bytes, .. } = self;
        for number in [generation, sequence, opening, moment_unix_ms, stamp, capacity_bytes, copied_bytes] {
            writer.u64(*number);
        }
        let mut text = |bytes: &[u8]| {
            writer.u32(bytes.len() as u32);
            writer.raw(bytes);
        };
        text(&self.superblock);
        text(self.keyspaces.join("\n").as_bytes());
        writer.u32(self.packs.len() as u32);
        for pack in &self.packs {
            writer.raw(&pack.digest.0);
            writer.u32(pack.bytes);
        }
        writer.u32(self.parts.len() as u32);
        self.parts.iter().for_each(|part| part.encode(&mut writer));
        writer.into_bytes()
    }

    /// # Errors
    /// If these bytes are no manifest that this version knows.
    pub fn parse(bytes: &[u8]) -> Result<BackupManifest, ManifestError> {
        let mut reader = Reader::new(bytes);
        let (magic, version) = (reader.array::<{ MAGIC.len() }>()?, reader.u32()?);
        if magic != MAGIC {
            return Err(ManifestError::NoManifest);
        }
        if version != VERSION {
            return Err(ManifestError::Version(version));
        }
        reader.u32()?;
        let (store_id, id) = (reader.u64()?, reader.u64()?);
        let history = History { id, parent: reader.array()? };
        let (generation, sequence, opening) = (reader.u64()?, reader.u64()?, reader.u64()?);
        let (moment_unix_ms, stamp) = (reader.u64()?, reader.u64()?);
        let (capacity_bytes, copied_bytes) = (reader.u64()?, reader.u64()?);
        let count = reader.count(1)?;
        let superblock = reader.take(count)?.to_vec();
        let count = reader.count(1)?;
        let names = String::from_utf8(reader.take(count)?.to_vec()).map_err(|_| Short)?;
        let keyspaces: Vec<String> = names.lines().map(String::from).collect();
        if keyspaces.iter().any(|name| name.len() > NAME_BYTES_MAX) {
            return Err(ManifestError::NoManifest);
        }
        let pack = |reader: &mut Reader<'_>| {
            let digest = Digest(reader.array()?);
            Ok(PackEntry { digest, bytes: reader.u32()? })
        };
        let count = reader.count(PACK_BYTES)?;
        let packs = (0..count).map(|_| pack(&mut reader)).collect::<Result<Vec<_>, Short>>()?;
        let count = reader.count(PART_BYTES)?;
        let parts = (0..count).map(|_| Part::parse(&mut reader, &packs)).collect::<Result<Vec<_>, Short>>()?;
        if !reader.is_empty() {
            return Err(ManifestError::NoManifest);
        }
        Ok(BackupManifest {
            store_id,
            history,
            generation,
            sequence,
            opening,
            moment_unix_ms,
            stamp,
            capacity_bytes,
            copied_bytes,
            superblock,
            keyspaces,
            packs,
            parts,
        })
    }

    /// The bytes of the drive that it has.
    pub fn drive_bytes(&self) -> u64 {
        self.parts.iter().filter(|part| part.key != PartKey::State).map(Part::bytes).sum()
    }
}

const _: () = assert!(HEAD_BYTES == MAGIC.len() + 4 + 4);

#[cfg(test)]
mod tests {
    use super::*;

    fn manifest() -> BackupManifest {
        let pack = |text: &[u8]| PackEntry { digest: Digest::of(text), bytes: 4096 };
        let piece = |flash, pack| Piece { flash, bytes: 512, pack, offset: 3584 };
        let part = |key, extensions, pieces| Part { key, extensions, pieces };
        BackupManifest {
            store_id: 7,
            history: History { id: 9, parent: [3; 16] },
            generation: 2,
            sequence: 11,
            opening: 4,
            moment_unix_ms: 1 << 41,
            stamp: 1 << 40,
            capacity_bytes: 1 << 30,
            copied_bytes: 5000,
            superblock: vec![1; 152],
            keyspaces: vec!["default".into(), "disk".into()],
            packs: vec![pack(b"one"), pack(b"two")],
            parts: vec![
                part(PartKey::State, 0, vec![piece(0, 0)]),
                part(PartKey::Log { buffer: 3, position: 512 }, 0, vec![]),
                part(PartKey::Segment { number: 1, version: 2 }, 0, vec![piece(1 << 20, 1), piece(1 << 21, 0)]),
                part(PartKey::Large { first: 8, stamp: 9 }, 0, vec![piece(1 << 22, 1)]),
                part(PartKey::Node { flash: 4096, stamp: 10 }, 1, vec![piece(4096, 1)]),
                part(PartKey::Extension { flash: 8192, stamp: 9 }, 0, vec![piece(8192, 1)]),
            ],
        }
    }

    #[test]
    fn a_manifest_reads_back_and_anything_shorter_or_longer_is_none() {
        let bytes = manifest().encode();
        assert_eq!(BackupManifest::parse(&bytes), Ok(manifest()));
        for length in 0..bytes.len() {
            assert_eq!(BackupManifest::parse(&bytes[..length]), Err(ManifestError::NoManifest), "{length} bytes");
        }
        assert_eq!(BackupManifest::parse(&[&bytes[..], &[0]].concat()), Err(ManifestError::NoManifest));
        assert_eq!(manifest().drive_bytes(), 5 * 512);
    }

    #[test]
    fn another_version_and_pieces_outside_of_packs_are_refused() {
        let mut newer = manifest().encode();
        newer[8] = 2;
        assert_eq!(BackupManifest::parse(&newer), Err(ManifestError::Version(2)));
        for (pack, offset) in [(2, 0), (0, 3585)] {
            let mut outside = manifest();
            outside.parts[0].pieces[0] = Piece { flash: 0, bytes: 512, pack, offset };
            assert_eq!(BackupManifest::parse(&outside.encode()), Err(ManifestError::NoManifest));
        }
    }
}
