//! The file format of the list of hot keys.
//!
//! ```text
//!  0       8          16     24        28    32
//!  +-------+----------+------+---------+-----+-----------------------------------------------------+
//!  | magic | store id | keys | version | crc | blocks: up to 4096 hash keys of 16 bytes, a crc u32 │
//!  +-------+----------+------+---------+-----+-----------------------------------------------------+
//! ```
//! All blocks but the last are full; the hottest keys come first. The head's crc covers the bytes before it; a block's crc covers its keys.
//! Both are salted with the store's id and the offset in the file, so the list of another store fails the check. The length of the file
//! follows from the number of keys, so a truncated list is detected before any of it is used.
//!
//! A list only names keys that were hot once: its reader looks up what the store has now.

use std::fmt;
use std::fs::File;
use std::io::{self, BufReader, BufWriter, Read, Seek, SeekFrom, Write};
use std::path::Path;

use tapetum::KeyDigest;
use tapetum_kernels::checksum::{Salt, checksum};

const MAGIC: [u8; 8] = *b"TapHotKs";
const VERSION: u32 = 1;

const STORE_AT: usize = 8;
const KEYS_AT: usize = 16;
const VERSION_AT: usize = 24;
const CRC_AT: usize = 28;
const HEAD_BYTES: usize = 32;
const KEY_BYTES: usize = size_of::<u128>();
const CRC_BYTES: usize = 4;
const BLOCK_KEYS: usize = 4096;
const BLOCK_BYTES_MAX: usize = BLOCK_KEYS * KEY_BYTES + CRC_BYTES;
const _: () = assert!(STORE_AT == MAGIC.len() && KEYS_AT == STORE_AT + 8 && VERSION_AT == KEYS_AT + 8);
const _: () = assert!(CRC_AT == VERSION_AT + 4 && HEAD_BYTES == CRC_AT + CRC_BYTES && BLOCK_BYTES_MAX == 65540);

/// Why a list is rejected.
#[derive(Debug)]
pub enum HotListError {
    NotAList,
    Version(u32),
    /// It belongs to another store.
    Foreign,
    /// It is longer or shorter than its number of keys requires.
    Torn,
    /// A checksum does not hold.
    Damaged,
    Io(io::Error),
}

impl fmt::Display for HotListError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            HotListError::NotAList => f.write_str("it is no list of hot keys"),
            HotListError::Version(version) => write!(f, "it is of version {version}, and this is {VERSION}"),
            HotListError::Foreign => f.write_str("it is of another store"),
            HotListError::Torn => f.write_str("it is not whole"),
            HotListError::Damaged => f.write_str("it is damaged"),
            HotListError::Io(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for HotListError {}

impl From<io::Error> for HotListError {
    fn from(error: io::Error) -> HotListError {
        match error.kind() {
            io::ErrorKind::UnexpectedEof => HotListError::Torn,
            _ => HotListError::Io(error),
        }
    }
}

/// Bytes of a list of so many keys. `None` if a list cannot have so many.
fn list_bytes(keys: u64) -> Option<u64> {
    let crcs = keys.div_ceil(BLOCK_KEYS as u64).checked_mul(CRC_BYTES as u64)?;
    keys.checked_mul(KEY_BYTES as u64)?.checked_add(crcs)?.checked_add(HEAD_BYTES as u64)
}

fn head(store: u64, keys: u64) -> [u8; HEAD_BYTES] {
    let mut head = [0; HEAD_BYTES];
    head[..STORE_AT].copy_from_slice(&MAGIC);
    head[STORE_AT..KEYS_AT].copy_from_slice(&store.to_le_bytes());
    head[KEYS_AT..VERSION_AT].copy_from_slice(&keys.to_le_bytes());
    head[VERSION_AT..CRC_AT].copy_from_slice(&VERSION.to_le_bytes());
    let crc = checksum(salt(store, 0), &[&head[..CRC_AT]]);
    head[CRC_AT..].copy_from_slice(&crc.to_le_bytes());
    head
}

fn salt(store: u64, address: u64) -> Salt {
    Salt { store, address, version: VERSION.into() }
}

/// Writes a list. Without [`ListWriter::finish`] the file is not a valid list.
pub struct ListWriter<W: Write + Seek> {
    out: BufWriter<W>,
    store: u64,
    keys: u64,
    block: Vec<u8>,
}

impl<W: Write + Seek> ListWriter<W> {
    pub fn new(out: W, store: u64) -> io::Result<ListWriter<W>> {
        let mut out = BufWriter::with_capacity(BLOCK_BYTES_MAX, out);
        out.write_all(&[0; HEAD_BYTES])?;
        Ok(ListWriter { out, store, keys: 0, block: Vec::with_capacity(BLOCK_BYTES_MAX) })
    }

    pub fn push(&mut self, KeyDigest(key): KeyDigest) -> io::Result<()> {
        self.block.extend_from_slice(&key.to_le_bytes());
        self.keys += 1;
        if self.block.len() == BLOCK_KEYS * KEY_BYTES { self.end_block() } else { Ok(()) }
    }

    /// The number of keys pushed.
    pub fn keys(&self) -> u64 {
        self.keys
    }

    fn end_block(&mut self) -> io::Result<()> {
        let first = self.keys - (self.block.len() / KEY_BYTES) as u64;
        let crc = checksum(salt(self.store, address_of(first)), &[&self.block]);
        self.out.write_all(&self.block)?;
        self.out.write_all(&crc.to_le_bytes())?;
        self.block.clear();
        Ok(())
    }

    /// Writes the head, which makes the list valid. Returns the output, and the number of keys.
    pub fn finish(mut self) -> io::Result<(W, u64)> {
        if !self.block.is_empty() {
            self.end_block()?;
        }
        self.out.seek(SeekFrom::Start(0))?;
        self.out.write_all(&head(self.store, self.keys))?;
        let out = self.out.into_inner().map_err(io::IntoInnerError::into_error)?;
        Ok((out, self.keys))
    }
}

/// Whether a file begins like a list of any version and store.
pub fn is_list(path: &Path) -> io::Result<bool> {
    let mut begin = [0; MAGIC.len()];
    File::open(path)?.read_exact(&mut begin)?;
    Ok(begin == MAGIC)
}

/// Whether a file may be an unfinished list, whose head is still zero.
pub fn may_be_unfinished(path: &Path) -> io::Result<bool> {
    let mut begin = Vec::new();
    File::open(path)?.take(MAGIC.len() as u64).read_to_end(&mut begin)?;
    Ok(begin == MAGIC || begin.iter().all(|&byte| byte == 0))
}

/// The offset of the block that begins with the key of this number.
fn address_of(key: u64) -> u64 {
    HEAD_BYTES as u64 + key * KEY_BYTES as u64 + key / BLOCK_KEYS as u64 * CRC_BYTES as u64
}

/// Reads a list, some blocks at a time.
pub struct ListReader<R: Read> {
    input: BufReader<R>,
    store: u64,
    keys: u64,
    passed: u64,
}

impl<R: Read> ListReader<R> {
    /// Begins to read a list that must belong to `store`; the file is `bytes` long.
    pub fn new(input: R, bytes: u64, store: u64) -> Result<ListReader<R>, HotListError> {
        let mut input = BufReader::with_capacity(BLOCK_BYTES_MAX, input);
        let mut found = [0; HEAD_BYTES];
        input.read_exact(&mut found)?;
        let long = |at: usize| u64::from_le_bytes(std::array::from_fn(|byte| found[at + byte]));
        let version = long(VERSION_AT) as u32;
        if found[..STORE_AT] != MAGIC {
            return Err(HotListError::NotAList);
        }
        if version != VERSION {
            return Err(HotListError::Version(version));
        }
        if long(STORE_AT) != store {
            return Err(HotListError::Foreign);
        }
        let keys = long(KEYS_AT);
        if found != head(store, keys) {
            return Err(HotListError::Damaged);
        }
        if list_bytes(keys) != Some(bytes) {
            return Err(HotListError::Torn);
        }
        Ok(ListReader { input, store, keys, passed: 0 })
    }

    /// The number of keys according to the head.
    pub fn keys(&self) -> u64 {
        self.keys
    }

    /// Appends the next keys, at most about `keys_max` (whole blocks, at least one). Returns whether there were any. After an error, keys
    /// that were appended are valid.
    pub fn next(&mut self, keys: &mut Vec<KeyDigest>, keys_max: usize) -> Result<bool, HotListError> {
        let before = keys.len();
        let mut block = Vec::new();
        while self.passed < self.keys && (keys.len() == before || keys.len() - before + BLOCK_KEYS <= keys_max) {
            let count = (self.keys - self.passed).min(BLOCK_KEYS as u64) as usize;
            block.resize(count * KEY_BYTES + CRC_BYTES, 0);
            self.input.read_exact(&mut block)?;
            let (of_keys, crc) = block.split_at(count * KEY_BYTES);
            let address = address_of(self.passed);
            if crc != checksum(salt(self.store, address), &[of_keys]).to_le_bytes() {
                return Err(HotListError::Damaged);
            }
            let (of_keys, _) = of_keys.as_chunks::<KEY_BYTES>();
            keys.extend(of_keys.iter().map(|key| KeyDigest(u128::from_le_bytes(*key))));
            self.passed += count as u64;
        }
        Ok(keys.len() > before)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Cursor;

    const STORE: u64 = 0x1234_5678_9abc_def0;

    fn key(n: u64) -> KeyDigest {
        KeyDigest(u128::from(n).wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835))
    }

    fn list(keys: u64) -> Vec<u8> {
        let mut writer = ListWriter::new(Cursor::new(Vec::new()), STORE).unwrap();
        (0..keys).for_each(|n| writer.push(key(n)).unwrap());
        let (out, written) = writer.finish().unwrap();
        assert_eq!(written, keys);
        out.into_inner()
    }

    fn read(bytes: &[u8], store: u64) -> Result<Vec<KeyDigest>, HotListError> {
        let mut reader = ListReader::new(bytes, bytes.len() as u64, store)?;
        let mut keys = Vec::new();
        while reader.next(&mut keys, 3 * BLOCK_KEYS)? {}
        assert_eq!(keys.len() as u64, reader.keys());
        Ok(keys)
    }

    #[test]
    fn what_is_written_is_read_also_nothing_and_many_blocks() {
        for keys in [0, 1, 4095, 4096, 4097, 20_000] {
            let bytes = list(keys);
            assert_eq!(Some(bytes.len() as u64), list_bytes(keys));
            assert_eq!(read(&bytes, STORE).unwrap(), (0..keys).map(key).collect::<Vec<_>>());
        }
    }

    #[test]
    fn keys_come_in_bounded_lots() {
        let bytes = list(20_000);
        let mut reader = ListReader::new(&bytes[..], bytes.len() as u64, STORE).unwrap();
        let mut lots = Vec::new();
        let mut keys = Vec::new();
        while reader.next(&mut keys, 10_000).unwrap() {
            lots.push(keys.len());
            keys.clear();
        }
        assert_eq!(lots, [8192, 8192, 3616]);
    }

    #[test]
    fn a_list_that_was_cut_or_never_finished_is_none() {
        let bytes = list(5000);
        for length in [0, 7, 31, 32, 33, 65_000, 65_572, bytes.len() - 1] {
            assert!(matches!(read(&bytes[..length], STORE), Err(HotListError::Torn)), "{length} bytes");
        }
        let longer = [&bytes[..], &[0]].concat();
        assert!(matches!(read(&longer, STORE), Err(HotListError::Torn)));
        let mut unfinished = bytes.clone();
        unfinished[..HEAD_BYTES].fill(0);
        assert!(matches!(read(&unfinished, STORE), Err(HotListError::NotAList)));
    }

    #[test]
    fn a_list_of_another_store_or_version_is_none() {
        let mut bytes = list(10);
        assert!(matches!(read(&bytes, STORE + 1), Err(HotListError::Foreign)));
        bytes[VERSION_AT] += 1;
        assert!(matches!(read(&bytes, STORE), Err(HotListError::Version(2))));
    }

    #[test]
    fn damage_anywhere_is_seen() {
        let bytes = list(4100);
        for at in (0..HEAD_BYTES).chain((HEAD_BYTES..bytes.len()).step_by(97)).chain(bytes.len() - 4..bytes.len()) {
            let mut damaged = bytes.clone();
            damaged[at] ^= 0x40;
            assert!(read(&damaged, STORE).is_err(), "byte {at}");
        }
    }
}
