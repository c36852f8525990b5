//! The file in which a repair keeps the bytes that it replaces, so that it can be undone.
//!
//! ```text
//!  16 bytes "TAPETUM KEPT 2\n\0", then ranges in the order in which they were replaced:
//!  offset on the drive u64 · length u64 · crc32c of both and the bytes u32 · zero u32 · the bytes
//!  and behind them, once the repair has ended, a range at offset 2⁶⁴−1, the bytes of which are:
//!  store id u64 · bytes of the roots u64 · crc32c of the roots' sectors that were not replaced u32 · zero u32 ·
//!  crc32c of each of the roots' sectors that was replaced, in their order u32
//! ```
//! Numbers are little-endian. A file that ends amid a range, or has a wrong checksum, is refused as a whole.
//!
//! The roots are the beginning of the drive: superblock and manifest. Opening a store to write changes them before anything else. So a
//! repair is undone only while each sector of the roots is as the repair left it. A sector that was replaced may also be as it was before,
//! because an interrupted undo is restarted.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::{self, BufReader, BufWriter, Read, Seek, Write};
use std::ops::Range;
use std::os::unix::fs::{FileExt, FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use tapetum::Error;
use tapetum::repair::Keeper;
use tapetum_kernels::checksum::{Salt, checksum, crc32c_append};

const MAGIC: [u8; 16] = *b"TAPETUM KEPT 2\n\0";
/// Files of this version do not name their store.
const MAGIC_1: [u8; 16] = *b"TAPETUM KEPT 1\n\0";
const HEAD_BYTES: usize = 24;
/// The longest range.
const RANGE_BYTES_MAX: u64 = 16 << 20;
/// The offset that marks the end.
const END_OFFSET: u64 = u64::MAX;
/// Bytes of the end before the checksums of sectors.
const END_HEAD_BYTES: usize = 24;
/// The unit of a drive's writes: a repair replaces whole sectors.
const SECTOR_BYTES: usize = 512;
/// Bytes of the roots to read at once.
const READ_BYTES: usize = 1 << 20;
const SALT: Salt = Salt { store: 0, address: 0, version: 0 };

/// Writes the file, which is created with the first range.
pub struct KeepFile {
    path: PathBuf,
    drive: PathBuf,
    file: Option<BufWriter<File>>,
    /// The ranges kept, by offset on the drive.
    ranges: Vec<Range<u64>>,
}

impl KeepFile {
    /// Chooses the path: a new file beside that of the drive, or `asked`. An error for a device if none is asked for.
    pub fn beside(drive: &Path, asked: Option<&Path>) -> Result<KeepFile, String> {
        let path = match asked {
            Some(path) if path.exists() => {
                return Err(format!("{} exists already: give another --keep", path.display()));
            }
            Some(path) => path.into(),
            None if fs::metadata(drive).is_ok_and(|metadata| metadata.file_type().is_block_device()) => {
                return Err("beside a block device is no place for what is replaced: give --keep FILE".into());
            }
            None => free_name(drive),
        };
        Ok(KeepFile { path, drive: drive.into(), file: None, ranges: Vec::new() })
    }

    /// The path, if anything was kept.
    pub fn path(&self) -> Option<&Path> {
        self.file.is_some().then_some(&self.path)
    }

    fn file(&mut self) -> io::Result<&mut BufWriter<File>> {
        if self.file.is_none() {
            let file = File::options().write(true).create_new(true).mode(0o600).open(&self.path)?;
            let mut file = BufWriter::new(file);
            file.write_all(&MAGIC)?;
            self.file = Some(file);
        }
        self.file.as_mut().ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    fn append(&mut self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let head = head_of(offset, bytes);
        let file = self.file()?;
        file.write_all(&head)?;
        file.write_all(bytes)
    }

    fn sync_all(&mut self) -> io::Result<()> {
        let Some(file) = &mut self.file else { return Ok(()) };
        file.flush()?;
        file.get_ref().sync_all()?;
        let folder = self.path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        File::open(folder)?.sync_all()
    }

    /// Appends the checksums of the roots when a repair has ended.
    fn append_end(&mut self, store_id: u64, roots_bytes: u64) -> io::Result<()> {
        if self.file.is_none() {
            return Ok(());
        }
        let sums = RootSums::of(&self.drive, roots_bytes, &sectors_of(&self.ranges))?;
        self.append(END_OFFSET, &RepairEnd { store_id, roots_bytes, sums }.encode())?;
        self.sync_all()
    }

    fn failed(&self, error: &io::Error) -> Error {
        Error::Io(format!(
            "what is replaced cannot be kept in {} ({error}); nothing more was changed",
            self.path.display()
        ))
    }
}

impl Keeper for KeepFile {
    fn keep(&mut self, offset: u64, bytes: &[u8]) -> Result<(), Error> {
        self.ranges.push(offset..offset + bytes.len() as u64);
        self.append(offset, bytes).map_err(|error| self.failed(&error))
    }

    fn sync(&mut self) -> Result<(), Error> {
        self.sync_all().map_err(|error| self.failed(&error))
    }

    fn end(&mut self, store_id: u64, roots_bytes: u64) -> Result<(), Error> {
        self.append_end(store_id, roots_bytes).map_err(|error| {
            Error::Io(format!(
                "the store is repaired, and {} cannot undo it: its end is not written ({error})",
                self.path.display()
            ))
        })
    }
}

/// Checksums of the roots; sectors that were replaced have their own.
#[derive(Debug, Default, PartialEq, Eq)]
struct RootSums {
    others: u32,
    replaced: Vec<u32>,
}

impl RootSums {
    /// The sums of the drive as it is. `replaced` are offsets of sectors.
    fn of(drive: &Path, roots_bytes: u64, replaced: &BTreeSet<u64>) -> io::Result<RootSums> {
        let mut drive = BufReader::with_capacity(READ_BYTES, File::open(drive)?);
        let (mut sector, mut sums) = ([0; SECTOR_BYTES], RootSums::default());
        for at in (0..roots_bytes).step_by(SECTOR_BYTES) {
            drive.read_exact(&mut sector)?;
            match replaced.contains(&at) {
                true => sums.replaced.push(crc32c_append(0, &sector)),
                false => sums.others = crc32c_append(sums.others, &sector),
            }
        }
        Ok(sums)
    }
}

/// Offsets of the sectors in some ranges.
fn sectors_of(ranges: &[Range<u64>]) -> BTreeSet<u64> {
    ranges.iter().flat_map(|range| range.clone().step_by(SECTOR_BYTES)).collect()
}

/// The end of a kept file: it identifies the store and its state after the repair.
#[derive(Debug, PartialEq, Eq)]
struct RepairEnd {
    store_id: u64,
    roots_bytes: u64,
    sums: RootSums,
}

impl RepairEnd {
    fn encode(&self) -> Vec<u8> {
        let RepairEnd { store_id, roots_bytes, sums: RootSums { others, replaced } } = self;
        let mut bytes = [store_id.to_le_bytes(), roots_bytes.to_le_bytes()].concat();
        [*others, 0].iter().chain(replaced).for_each(|crc| bytes.extend_from_slice(&crc.to_le_bytes()));
        bytes
    }

    fn decode(bytes: &[u8]) -> Option<RepairEnd> {
        let (head, replaced) = bytes.split_at_checked(END_HEAD_BYTES)?;
        let crc = |word: &[u8]| word.iter().rev().fold(0, |word, byte| word << 8 | u32::from(*byte));
        let sums = RootSums { others: crc(&head[16..20]), replaced: replaced.chunks(4).map(crc).collect() };
        Some(RepairEnd { store_id: number(&head[..8]), roots_bytes: number(&head[8..16]), sums })
    }
}

fn number(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte))
}

fn free_name(drive: &Path) -> PathBuf {
    let name = |number: u32| {
        let mut name = drive.as_os_str().to_owned();
        name.push(format!(".before-repair-{number}"));
        PathBuf::from(name)
    };
    (1..).map(name).find(|path| !path.exists()).unwrap_or_else(|| name(0))
}

fn head_of(offset: u64, bytes: &[u8]) -> [u8; HEAD_BYTES] {
    let mut head = [0; HEAD_BYTES];
    head[..8].copy_from_slice(&offset.to_le_bytes());
    head[8..16].copy_from_slice(&(bytes.len() as u64).to_le_bytes());
    let crc = checksum(SALT, &[&head[..16], bytes]);
    head[16..20].copy_from_slice(&crc.to_le_bytes());
    head
}

/// Undoes a repair with the bytes kept in `kept`. Returns how many bytes. The caller has locked `drive`, and read the store's id, if that
/// is readable.
pub fn undo(kept: &Path, drive: &Path, store_id: Option<u64>) -> Result<u64, String> {
    let kept_file = KeptFile::open(kept)?;
    let (kept, shown) = (kept.display(), drive.display());
    if store_id.is_some_and(|id| id != kept_file.end.store_id) {
        return Err(format!(
            "{kept} was kept of another store than the one at {shown}: give --data or --drive of that one; nothing was written"
        ));
    }
    let has_left =
        kept_file.is_as_left(drive).map_err(|error| format!("cannot compare {kept} with {shown}: {error}"))?;
    if !has_left {
        return Err(format!(
            "{shown} is not as the repair left it that kept {kept}: the store was written to since, or is another one; undoing the repair \
             would damage it; nothing was written"
        ));
    }
    kept_file.put_back(drive).map_err(|error| format!("cannot put back what {shown} had: {error}; try again"))
}

/// A range that a repair replaced.
struct KeptRange {
    /// Offset of its bytes in the file.
    at: u64,
    /// Offset on the drive.
    offset: u64,
    length: usize,
}

/// The contents of a kept file, completely checked.
struct KeptFile {
    file: File,
    ranges: Vec<KeptRange>,
    end: RepairEnd,
}

impl KeptFile {
    fn open(kept: &Path) -> Result<KeptFile, String> {
        let failed = |error: io::Error| format!("cannot read {}: {error}", kept.display());
        let refused = |why: &str| Err(format!("{} {why}: nothing was written", kept.display()));
        let mut file = BufReader::new(File::open(kept).map_err(failed)?);
        let mut magic = [0; MAGIC.len()];
        let has_magic = file.read_exact(&mut magic).is_ok();
        if has_magic && magic == MAGIC_1 {
            return refused("was kept by an earlier version of Tapetum, which alone can undo that repair");
        }
        let read = if has_magic && magic == MAGIC { read_ranges(&mut file).map_err(failed)? } else { None };
        let Some((ranges, end)) = read else { return refused("is incomplete, or not a file that a repair kept") };
        let Some(end) = end else {
            return refused(
                "is of a repair that was cut short, which `tapetum repair --yes` brings to its end and keeps a file of its own for",
            );
        };
        Ok(KeptFile { file: file.into_inner(), ranges, end })
    }

    fn bytes(&self, range: &KeptRange) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; range.length];
        self.file.read_exact_at(&mut bytes, range.at)?;
        Ok(bytes)
    }

    /// Whether the roots are as the repair left them, with some sectors perhaps as they were before it.
    fn is_as_left(&self, drive: &Path) -> io::Result<bool> {
        let RepairEnd { roots_bytes, sums, .. } = &self.end;
        let mut before: BTreeMap<u64, Vec<u32>> = BTreeMap::new();
        for range in self.ranges.iter().filter(|range| range.offset < *roots_bytes) {
            for (at, sector) in (range.offset..).step_by(SECTOR_BYTES).zip(self.bytes(range)?.chunks(SECTOR_BYTES)) {
                before.entry(at).or_default().push(crc32c_append(0, sector));
            }
        }
        before.retain(|at, _| at < roots_bytes);
        let now = match RootSums::of(drive, *roots_bytes, &before.keys().copied().collect()) {
            // The drive is too short.
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(false),
            sums => sums?,
        };
        let sectors = now.replaced.iter().zip(&sums.replaced).zip(before.values());
        let are_known = sectors.into_iter().all(|((now, left), before)| now == left || before.contains(now));
        Ok(now.others == sums.others && now.replaced.len() == sums.replaced.len() && are_known)
    }

    fn put_back(&self, drive: &Path) -> io::Result<u64> {
        let drive = File::options().write(true).open(drive)?;
        let mut sum = 0;
        for range in self.ranges.iter().rev() {
            drive.write_all_at(&self.bytes(range)?, range.offset)?;
            sum += range.length as u64;
        }
        drive.sync_all()?;
        Ok(sum)
    }
}

/// Everything behind the magic. `None` if it is invalid. The end is missing if the repair was interrupted.
fn read_ranges(file: &mut BufReader<File>) -> io::Result<Option<(Vec<KeptRange>, Option<RepairEnd>)>> {
    let mut at = file.stream_position()?;
    let file_end = file.get_ref().metadata()?.len();
    let mut ranges = Vec::new();
    while at < file_end {
        let mut head = [0; HEAD_BYTES];
        if file.read_exact(&mut head).is_err() {
            return Ok(None);
        }
        let (offset, length) = (number(&head[..8]), number(&head[8..16]));
        let mut bytes = vec![0; length.min(RANGE_BYTES_MAX) as usize];
        if length > RANGE_BYTES_MAX || file.read_exact(&mut bytes).is_err() || head_of(offset, &bytes) != head {
            return Ok(None);
        }
        at += HEAD_BYTES as u64;
        if offset == END_OFFSET {
            let is_last = at + length == file_end;
            return Ok(RepairEnd::decode(&bytes).filter(|_| is_last).map(|end| (ranges, Some(end))));
        }
        ranges.push(KeptRange { at, offset, length: bytes.len() });
        at += length;
    }
    Ok(Some((ranges, None)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const STORE: u64 = 7;
    /// The first four of six sectors.
    const ROOTS_BYTES: u64 = 4 * SECTOR_BYTES as u64;

    fn sectors(fill: [u8; 6]) -> Vec<u8> {
        fill.iter().flat_map(|byte| [*byte; SECTOR_BYTES]).collect()
    }

    /// A drive that is repaired from `[1, 1, 1, 1, 1, 1]` to `[1, 3, 3, 1, 1, 2]`, with the second sector replaced twice. Returns the drive
    /// and the kept file.
    fn repaired(folder: &Path) -> (PathBuf, PathBuf) {
        let (drive, at) = (folder.join("drive"), |sector: usize| (sector * SECTOR_BYTES) as u64);
        fs::write(&drive, sectors([1; 6])).unwrap();
        let mut keeper = KeepFile::beside(&drive, None).unwrap();
        assert_eq!(keeper.path(), None);
        keeper.keep(at(5), &[1; SECTOR_BYTES]).unwrap();
        keeper.keep(at(1), &[1; SECTOR_BYTES]).unwrap();
        fs::write(&drive, sectors([1, 2, 1, 1, 1, 2])).unwrap();
        keeper.keep(at(1), &[[2; SECTOR_BYTES], [1; SECTOR_BYTES]].concat()).unwrap();
        fs::write(&drive, sectors([1, 3, 3, 1, 1, 2])).unwrap();
        keeper.sync().unwrap();
        keeper.end(STORE, ROOTS_BYTES).unwrap();
        let kept = keeper.path().unwrap().to_path_buf();
        (drive, kept)
    }

    #[test]
    fn what_is_kept_is_put_back_also_where_that_was_cut_short() {
        let folder = crate::folder::Folder::new("keep");
        let (drive, kept) = repaired(&folder);
        assert_eq!(kept, folder.join("drive.before-repair-1"));
        assert_eq!(KeepFile::beside(&drive, None).unwrap().path, folder.join("drive.before-repair-2"));
        assert!(KeepFile::beside(&drive, Some(&kept)).is_err());
        for left in [[1, 3, 3, 1, 1, 2], [1, 2, 1, 1, 1, 2], [1, 1, 3, 1, 1, 2], [1; 6]] {
            fs::write(&drive, sectors(left)).unwrap();
            assert_eq!(undo(&kept, &drive, Some(STORE)), Ok(4 * SECTOR_BYTES as u64));
            assert_eq!(fs::read(&drive).unwrap(), sectors([1; 6]));
        }
    }

    #[test]
    fn nothing_is_put_back_over_another_store_or_later_writes() {
        let folder = crate::folder::Folder::new("keep-other");
        let (drive, kept) = repaired(&folder);
        let refuses = |store_id, why: &str| {
            let before = fs::read(&drive).unwrap();
            let refusal = undo(&kept, &drive, store_id).unwrap_err();
            assert!(refusal.contains(why) && refusal.contains("nothing was written"), "{refusal}");
            assert!(fs::read(&drive).unwrap() == before);
        };
        refuses(Some(STORE + 1), "of another store");
        // Both in sectors that the repair did not touch, and in those that it replaced.
        for written in [[1, 3, 3, 4, 1, 2], [4, 3, 3, 1, 1, 2], [1, 3, 4, 1, 1, 2], [1, 3, 2, 1, 1, 2]] {
            fs::write(&drive, sectors(written)).unwrap();
            refuses(Some(STORE), "was written to since");
            refuses(None, "was written to since");
        }
        fs::write(&drive, b"short").unwrap();
        refuses(None, "is another one");
    }

    #[test]
    fn a_file_that_is_not_whole_is_refused() {
        let folder = crate::folder::Folder::new("keep-damaged");
        let (drive, kept) = repaired(&folder);
        let (whole, before) = (fs::read(&kept).unwrap(), fs::read(&drive).unwrap());
        let end_bytes = HEAD_BYTES + END_HEAD_BYTES + 2 * 4;
        let turned = [&whole[..60], &[7], &whole[61..]].concat();
        for (damaged, why) in [
            (&whole[..whole.len() - 1], "is incomplete"),
            (&whole[1..], "not a file that a repair kept"),
            (&turned, "is incomplete"),
            (&[&whole[..], b"x"].concat(), "is incomplete"),
            (&whole[..whole.len() - end_bytes], "cut short"),
            (&[&MAGIC_1, &whole[16..]].concat(), "an earlier version"),
        ] {
            fs::write(&kept, damaged).unwrap();
            let refusal = undo(&kept, &drive, Some(STORE)).unwrap_err();
            assert!(refusal.contains(why) && refusal.contains("nothing was written"), "{refusal}");
        }
        assert!(fs::read(&drive).unwrap() == before);
    }
}
