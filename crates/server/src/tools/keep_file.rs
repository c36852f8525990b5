//! The file in which a repair keeps what it replaces, so that it can be undone.
//!
//! ```text
//!  16 bytes "TAPETUM KEPT 1\n\0", then ranges in the order in which they were replaced:
//!  offset on the drive u64 · length u64 · crc32c of both and the bytes u32 · zero u32 · the bytes
//! ```
//! Numbers are little-endian. A file that ends amid a range, or has a wrong checksum, is refused as a whole.

use std::fs::{self, File};
use std::io::{self, BufReader, BufWriter, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use tapetum::Error;
use tapetum::repair::Keeper;
use tapetum_kernels::checksum::{Salt, checksum};

const MAGIC: [u8; 16] = *b"TAPETUM KEPT 1\n\0";
const HEAD_BYTES: usize = 24;
/// No range is longer.
const RANGE_BYTES_MAX: u64 = 16 << 20;
const SALT: Salt = Salt { store: 0, address: 0, version: 0 };

/// Keeps into a file that is made when there is something to keep.
pub struct KeepFile {
    path: PathBuf,
    file: Option<BufWriter<File>>,
}

impl KeepFile {
    /// A new file beside that of the drive, or the one that is asked for; an error for a device without one.
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
        Ok(KeepFile { path, file: None })
    }

    /// The file, if something was kept.
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

    fn failed(&self, error: &io::Error) -> Error {
        Error::Io(format!(
            "what is replaced cannot be kept in {} ({error}); nothing more was changed",
            self.path.display()
        ))
    }
}

impl Keeper for KeepFile {
    fn keep(&mut self, offset: u64, bytes: &[u8]) -> Result<(), Error> {
        self.append(offset, bytes).map_err(|error| self.failed(&error))
    }

    fn sync(&mut self) -> Result<(), Error> {
        self.sync_all().map_err(|error| self.failed(&error))
    }
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

/// Puts back what a repair replaced and kept in `kept`; how many bytes. `drive` is locked by the caller.
pub fn undo(kept: &Path, drive: &Path) -> Result<u64, String> {
    let failed = |error: io::Error| format!("cannot read {}: {error}", kept.display());
    let ranges = ranges(kept).map_err(failed)?;
    let ranges = ranges.ok_or_else(|| {
        format!("{} is incomplete, or not a file that a repair kept: nothing was written", kept.display())
    })?;
    let file = File::open(kept).map_err(failed)?;
    let put = || -> io::Result<u64> {
        let drive = File::options().write(true).open(drive)?;
        let mut sum = 0;
        for (at, offset, length) in ranges.into_iter().rev() {
            let mut bytes = vec![0; length];
            file.read_exact_at(&mut bytes, at)?;
            drive.write_all_at(&bytes, offset)?;
            sum += length as u64;
        }
        drive.sync_all()?;
        Ok(sum)
    };
    put().map_err(|error| format!("cannot put back what {} had: {error}; try again", drive.display()))
}

/// Of each range: its place in the file, its place on the drive, and its length. `None` if a length or a checksum is wrong.
fn ranges(kept: &Path) -> io::Result<Option<Vec<(u64, u64, usize)>>> {
    let mut file = BufReader::new(File::open(kept)?);
    let end = file.seek(SeekFrom::End(0))?;
    file.rewind()?;
    let mut magic = [0; MAGIC.len()];
    if file.read_exact(&mut magic).is_err() || magic != MAGIC {
        return Ok(None);
    }
    let (mut at, mut ranges) = (MAGIC.len() as u64, Vec::new());
    while at < end {
        let mut head = [0; HEAD_BYTES];
        if file.read_exact(&mut head).is_err() {
            return Ok(None);
        }
        let number = |from: usize| head[from..from + 8].iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte));
        let (offset, length) = (number(0), number(8));
        let mut bytes = vec![0; length.min(RANGE_BYTES_MAX) as usize];
        if length > RANGE_BYTES_MAX || file.read_exact(&mut bytes).is_err() || head_of(offset, &bytes) != head {
            return Ok(None);
        }
        at += HEAD_BYTES as u64;
        ranges.push((at, offset, bytes.len()));
        at += length;
    }
    Ok(Some(ranges))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_kept_is_put_back_in_the_other_order_and_a_file_that_is_not_whole_is_refused() {
        let folder = crate::folder::Folder::new("keep");
        let drive = folder.join("drive");
        fs::write(&drive, [9; 100]).unwrap();
        let mut keeper = KeepFile::beside(&drive, None).unwrap();
        assert_eq!(keeper.path(), None);
        keeper.keep(10, &[1; 20]).unwrap();
        keeper.keep(20, &[2; 20]).unwrap();
        keeper.sync().unwrap();
        let kept = keeper.path().unwrap().to_path_buf();
        assert_eq!(kept, folder.join("drive.before-repair-1"));
        assert_eq!(KeepFile::beside(&drive, None).unwrap().path, folder.join("drive.before-repair-2"));
        assert!(KeepFile::beside(&drive, Some(&kept)).is_err());
        assert_eq!(undo(&kept, &drive), Ok(40));
        let expected = [&[9; 10][..], &[1; 20], &[2; 10], &[9; 60]].concat();
        assert_eq!(fs::read(&drive).unwrap(), expected);
        let whole = fs::read(&kept).unwrap();
        for damaged in [&whole[..whole.len() - 1], &whole[1..], &[&whole[..60], &[7], &whole[61..]].concat()] {
            fs::write(&kept, damaged).unwrap();
            assert!(undo(&kept, &drive).unwrap_err().contains("nothing was written"));
        }
        assert_eq!(fs::read(&drive).unwrap(), expected);
    }
}
