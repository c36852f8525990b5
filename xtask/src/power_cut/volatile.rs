//! A file on a drive with a volatile cache: after a power cut, each unsynced sector is lost or there, in no order.
//!
//! The backing file holds the durable bytes. All written versions of unsynced sectors are kept here, because the drive may have stored any
//! of them.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use tapetum_bench::random::Random;

/// The unit that a drive writes atomically.
pub const SECTOR_BYTES: usize = 512;

type Sector = [u8; SECTOR_BYTES];

pub struct VolatileFile {
    durable: File,
    length_bytes: u64,
    /// By sector: versions written since the last sync, oldest first.
    unsynced: BTreeMap<u64, Vec<Sector>>,
}

/// Counts of a power cut's losses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cut {
    /// Unsynced sectors that lost their last write.
    pub sectors_lost: u64,
    /// Unsynced sectors that kept it.
    pub sectors_kept: u64,
    /// Changes of names that had not been synced.
    pub names_lost: u64,
}

impl VolatileFile {
    /// `durable`, an empty file, gets the durable bytes.
    pub fn new(durable: File) -> VolatileFile {
        VolatileFile { durable, length_bytes: 0, unsynced: BTreeMap::new() }
    }

    pub fn length_bytes(&self) -> u64 {
        self.length_bytes
    }

    /// Lengths are durable at once, because a store's file has its length before its superblock.
    pub fn set_length(&mut self, length_bytes: u64) -> io::Result<()> {
        self.durable.set_len(length_bytes)?;
        self.unsynced.split_off(&length_bytes.div_ceil(SECTOR_BYTES as u64));
        self.length_bytes = length_bytes;
        Ok(())
    }

    /// The bytes from `offset` on, as far as there are any.
    pub fn read(&self, offset: u64, count: usize) -> io::Result<Vec<u8>> {
        let count = (self.length_bytes.saturating_sub(offset) as usize).min(count);
        let mut bytes = vec![0; count];
        self.durable.read_exact_at(&mut bytes, offset)?;
        let end = offset + count as u64;
        let first = offset / SECTOR_BYTES as u64;
        for (number, versions) in self.unsynced.range(first..end.div_ceil(SECTOR_BYTES as u64)) {
            let Some(last) = versions.last() else { continue };
            let sector = number * SECTOR_BYTES as u64;
            let (from, to) = (offset.max(sector), end.min(sector + SECTOR_BYTES as u64));
            bytes[(from - offset) as usize..(to - offset) as usize]
                .copy_from_slice(&last[(from - sector) as usize..(to - sector) as usize]);
        }
        Ok(bytes)
    }

    pub fn write(&mut self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let end = offset + bytes.len() as u64;
        if end > self.length_bytes {
            self.set_length(end)?;
        }
        for number in offset / SECTOR_BYTES as u64..end.div_ceil(SECTOR_BYTES as u64) {
            let sector = number * SECTOR_BYTES as u64;
            let (from, to) = (offset.max(sector), end.min(sector + SECTOR_BYTES as u64));
            let mut content = [0; SECTOR_BYTES];
            if to - from < SECTOR_BYTES as u64 {
                let whole = self.read(sector, SECTOR_BYTES)?;
                content[..whole.len()].copy_from_slice(&whole);
            }
            content[(from - sector) as usize..(to - sector) as usize]
                .copy_from_slice(&bytes[(from - offset) as usize..(to - offset) as usize]);
            self.unsynced.entry(number).or_default().push(content);
        }
        Ok(())
    }

    /// Makes everything written durable.
    pub fn sync(&mut self) -> io::Result<()> {
        let unsynced = std::mem::take(&mut self.unsynced);
        self.make_durable(unsynced)
    }

    /// Makes a range durable, which is all that a write with O_DSYNC promises.
    pub fn sync_range(&mut self, offset: u64, count: usize) -> io::Result<()> {
        let first = offset / SECTOR_BYTES as u64;
        let end = (offset + count as u64).div_ceil(SECTOR_BYTES as u64);
        let mut within = self.unsynced.split_off(&first);
        self.unsynced.append(&mut within.split_off(&end));
        self.make_durable(within)
    }

    fn make_durable(&mut self, sectors: BTreeMap<u64, Vec<Sector>>) -> io::Result<()> {
        for (number, versions) in sectors {
            if let Some(last) = versions.last() {
                self.put(number, last)?;
            }
        }
        Ok(())
    }

    fn put(&self, number: u64, sector: &Sector) -> io::Result<()> {
        let offset = number * SECTOR_BYTES as u64;
        let count = (self.length_bytes - offset).min(SECTOR_BYTES as u64) as usize;
        self.durable.write_all_at(&sector[..count], offset)
    }

    /// Cuts the power: each unsynced sector gets its durable version, or one of the written ones.
    pub fn cut(&mut self, random: &mut Random) -> io::Result<Cut> {
        // From no survivors to nearly all: a single write that survived reveals as much as a single one that was lost.
        let survive_one_in = [u64::MAX, 16, 2, 1][random.below(4) as usize];
        let spare_one_in = if survive_one_in == 1 { 16 } else { u64::MAX };
        let mut cut = Cut::default();
        for (number, versions) in std::mem::take(&mut self.unsynced) {
            let survives = random.one_in(survive_one_in) && !random.one_in(spare_one_in);
            let version = random.below(versions.len() as u64) as usize;
            if survives {
                self.put(number, &versions[version])?;
            }
            match survives && version + 1 == versions.len() {
                true => cut.sectors_kept += 1,
                false => cut.sectors_lost += 1,
            }
        }
        Ok(cut)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(name: &str) -> VolatileFile {
        let path = std::env::temp_dir().join(format!("volatile-{name}-{}", std::process::id()));
        let file = File::options().read(true).write(true).create(true).truncate(true).open(&path).unwrap();
        std::fs::remove_file(path).unwrap();
        VolatileFile::new(file)
    }

    #[test]
    fn what_is_written_is_read_whole_sectors_or_not() {
        let mut file = file("read");
        file.set_length(2000).unwrap();
        file.write(500, &[1; 100]).unwrap();
        file.write(510, &[2; 10]).unwrap();
        let mut expected = vec![0; 2000];
        expected[500..600].fill(1);
        expected[510..520].fill(2);
        assert_eq!(file.read(0, 4096).unwrap(), expected);
        assert_eq!(file.read(505, 10).unwrap(), expected[505..515]);
        file.write(1990, &[3; 20]).unwrap();
        assert_eq!((file.length_bytes(), file.read(2005, 100).unwrap()), (2010, vec![3; 5]));
    }

    #[test]
    fn a_cut_takes_nothing_that_was_synced_and_something_that_was_not() {
        let mut random = Random::new(1);
        let (mut lost, mut kept) = (0, 0);
        for _ in 0..50 {
            let mut file = file("cut");
            file.write(0, &[1; 4096]).unwrap();
            file.sync().unwrap();
            file.write(512, &[2; 1024]).unwrap();
            file.sync_range(512, 512).unwrap();
            let cut = file.cut(&mut random).unwrap();
            assert_eq!(cut.sectors_lost + cut.sectors_kept, 1);
            (lost, kept) = (lost + cut.sectors_lost, kept + cut.sectors_kept);
            let bytes = file.read(0, 4096).unwrap();
            let last = if cut.sectors_kept == 1 { 2 } else { 1 };
            for (sector, expected) in [1, 2, last, 1, 1, 1, 1, 1].into_iter().enumerate() {
                assert_eq!(bytes[sector * 512..(sector + 1) * 512], [expected; 512], "sector {sector}");
            }
        }
        assert!(lost > 5 && kept > 5, "{lost} lost, {kept} kept");
    }

    #[test]
    fn an_earlier_write_may_be_what_survives() {
        let mut random = Random::new(1);
        let mut seen = [false; 4];
        for _ in 0..200 {
            let mut file = file("versions");
            file.set_length(512).unwrap();
            for content in 1..4 {
                file.write(0, &[content; 512]).unwrap();
            }
            file.cut(&mut random).unwrap();
            seen[usize::from(file.read(0, 1).unwrap()[0])] = true;
        }
        assert_eq!(seen, [true; 4]);
    }
}
