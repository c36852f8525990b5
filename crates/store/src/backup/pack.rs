//! Packs: objects in which the pieces of a backup lie one behind the other, named by their digests.

use super::depot::Depot;
use super::digest::Digest;
use super::error::BackupError;
use super::manifest::PackEntry;
use super::name;
use super::verify::read_pack;
use std::collections::HashMap;
use std::sync::Arc;
use tapetum_drive::fail_point;

/// A pack ends before the piece that would make it longer.
const PACK_BYTES_MAX: usize = 8 << 20;

/// Writes packs, and lists them with those of earlier backups that are taken over.
pub struct PackWriter {
    depot: Arc<dyn Depot>,
    /// All packs; the one that is being filled has its place already.
    packs: Vec<PackEntry>,
    /// Places of packs that were taken over, by their digests.
    taken_over: HashMap<Digest, u32>,
    open: Vec<u8>,
    open_place: Option<u32>,
    copied_bytes: u64,
}

impl PackWriter {
    pub fn new(depot: Arc<dyn Depot>) -> PackWriter {
        PackWriter {
            depot,
            packs: Vec::new(),
            taken_over: HashMap::new(),
            open: Vec::new(),
            open_place: None,
            copied_bytes: 0,
        }
    }

    /// Adds bytes. Returns the place of their pack, and their offset in it.
    pub fn add(&mut self, bytes: &[u8]) -> Result<(u32, u32), BackupError> {
        if self.is_full_for(bytes.len()) {
            self.end_pack()?;
        }
        let place = *self.open_place.get_or_insert_with(|| {
            self.packs.push(PackEntry { digest: Digest::of(&[]), bytes: 0 });
            self.packs.len() as u32 - 1
        });
        let offset = self.open.len() as u32;
        self.open.extend_from_slice(bytes);
        Ok((place, offset))
    }

    /// The place of a pack of an earlier backup.
    pub fn take_over(&mut self, pack: PackEntry) -> u32 {
        let packs = &mut self.packs;
        *self.taken_over.entry(pack.digest).or_insert_with(|| {
            packs.push(pack);
            packs.len() as u32 - 1
        })
    }

    /// Whether the next bytes of this length come into another pack.
    pub fn is_full_for(&self, bytes: usize) -> bool {
        !self.open.is_empty() && self.open.len() + bytes > PACK_BYTES_MAX
    }

    fn end_pack(&mut self) -> Result<(), BackupError> {
        let Some(place) = self.open_place.take() else { return Ok(()) };
        let pack = PackEntry { digest: Digest::of(&self.open), bytes: self.open.len() as u32 };
        if !fail_point!(BackupNameEarly) {
            self.put(&pack)?;
        }
        self.packs[place as usize] = pack;
        self.copied_bytes += u64::from(pack.bytes);
        self.open.clear();
        Ok(())
    }

    /// Puts the open pack. Where there is one of its name, a backup that was cut short has left it, or another has the same bytes.
    fn put(&self, pack: &PackEntry) -> Result<(), BackupError> {
        let name = name::pack(pack.digest);
        if !self.depot.put_new(&name, &self.open)? && read_pack(&*self.depot, pack)?.is_none() {
            self.depot.delete(&name)?;
            self.depot.put_new(&name, &self.open)?;
        }
        Ok(())
    }

    /// Puts the last pack. Returns all of them.
    pub fn end(mut self) -> Result<(Vec<PackEntry>, u64), BackupError> {
        self.end_pack()?;
        Ok((self.packs, self.copied_bytes))
    }
}
