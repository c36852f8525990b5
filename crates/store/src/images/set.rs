//! A set of pictures: which keys of its keyspace are in it, in order, and the class of each.
//!
//! It lies in the keyspace itself, as items under names that no path has: a head, and lists of entries. The head is written last, so a set that was
//! not wholly imported does not exist.

use crate::api::blocking::KeyspaceHandle;
use std::fmt;
use std::ops::Range;
use tapetum_base::debug_as_text;
use tapetum_base::error::Error;

// The head, little endian, under HEAD_KEY:
//
//   0         4         8       16           20                 ...
//   | version | classes | count | entries    | names of classes   |
//   | u32 2   | u32     | u64   | a list u32 | u16 length, UTF-8  |
//
// A list, under the key LIST_KEY and its number in eight hexadecimal digits: entries of label u32, bytes of the file u32 (0: unknown),
// length u16, key. Version 1 has entries without the bytes.
const HEAD_KEY: &[u8] = b"\0tapetum-images";
const LIST_KEY: &str = "\0tapetum-images-";
const VERSION: u32 = 2;
/// The last version that does not have the sizes of files.
const VERSION_WITHOUT_BYTES: u32 = 1;
/// At 32 bytes a key, an eighth of a mebibyte: a value that every store takes.
const ENTRIES_OF_A_LIST: u32 = 4096;
/// The most classes, so that a damaged head takes no memory.
const CLASSES_MAX: u32 = 1 << 24;

/// Keys and labels, in the order of their import.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ImageSet {
    classes: Vec<String>,
    labels: Vec<u32>,
    /// Zero where it is not known.
    file_bytes: Vec<u32>,
    keys: Vec<u8>,
    /// The end of each key in `keys`.
    ends: Vec<usize>,
}

#[derive(Clone, PartialEq, Eq)]
pub enum SetError {
    /// The keyspace has none.
    None {
        keyspace: String,
    },
    Version(u32),
    Damaged,
    Store(Error),
}

impl fmt::Display for SetError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SetError::None { keyspace } => {
                write!(f, "no pictures were imported into the keyspace {keyspace}: tapetum import images DIR")
            }
            SetError::Version(version) => write!(f, "the set of pictures is of version {version}: use a newer Tapetum"),
            SetError::Damaged => write!(f, "the list of the set's pictures is damaged: import the folder again"),
            SetError::Store(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for SetError {}

debug_as_text!(SetError);

impl From<Error> for SetError {
    fn from(error: Error) -> SetError {
        SetError::Store(error)
    }
}

impl ImageSet {
    pub fn new(classes: Vec<String>) -> ImageSet {
        ImageSet { classes, ..ImageSet::default() }
    }

    /// Adds a picture whose file has `file_bytes`; 0 if the size is unknown.
    pub fn push(&mut self, key: &[u8], label: u32, file_bytes: u32) {
        self.keys.extend_from_slice(key);
        self.ends.push(self.keys.len());
        self.labels.push(label);
        self.file_bytes.push(file_bytes);
    }

    /// # Panics
    /// When the set has no such item.
    pub fn file_bytes(&self, item: usize) -> Option<usize> {
        Some(self.file_bytes[item] as usize).filter(|bytes| *bytes > 0)
    }

    /// The mean of the files whose size is known; `None` when none is.
    pub fn file_bytes_mean(&self) -> Option<usize> {
        let known = self.file_bytes.iter().filter(|bytes| **bytes > 0);
        let (count, sum) = known.fold((0, 0), |(count, sum), bytes| (count + 1, sum + u64::from(*bytes)));
        sum.checked_div(count).map(|mean: u64| mean as usize)
    }

    pub fn len(&self) -> usize {
        self.labels.len()
    }

    pub fn is_empty(&self) -> bool {
        self.labels.is_empty()
    }

    pub fn classes(&self) -> &[String] {
        &self.classes
    }

    pub fn labels(&self) -> &[u32] {
        &self.labels
    }

    /// # Panics
    /// When the set has no such item.
    pub fn key(&self, item: usize) -> &[u8] {
        let from = item.checked_sub(1).map_or(0, |before| self.ends[before]);
        &self.keys[from..self.ends[item]]
    }

    /// Writes it to the keyspace that its keys are in.
    pub fn save(&self, keyspace: &KeyspaceHandle) -> Result<(), Error> {
        self.items().try_for_each(|(key, value)| keyspace.put(&key, &value).map(drop))
    }

    /// Keys and values of the items that it is kept as. The last one is to be written when all others have been.
    pub fn items(&self) -> impl Iterator<Item = (Vec<u8>, Vec<u8>)> + '_ {
        let step = ENTRIES_OF_A_LIST as usize;
        let lists = (0..self.len()).step_by(step).enumerate().map(move |(number, from)| {
            (list_key(number as u64).into_bytes(), self.list(from..self.len().min(from + step)))
        });
        lists.chain(std::iter::once_with(|| (HEAD_KEY.to_vec(), self.head())))
    }

    fn list(&self, items: Range<usize>) -> Vec<u8> {
        let mut list = Vec::new();
        for item in items {
            let key = self.key(item);
            list.extend_from_slice(&self.labels[item].to_le_bytes());
            list.extend_from_slice(&self.file_bytes[item].to_le_bytes());
            list.extend_from_slice(&(key.len() as u16).to_le_bytes());
            list.extend_from_slice(key);
        }
        list
    }

    fn head(&self) -> Vec<u8> {
        let mut head = Vec::new();
        head.extend_from_slice(&VERSION.to_le_bytes());
        head.extend_from_slice(&(self.classes.len() as u32).to_le_bytes());
        head.extend_from_slice(&(self.len() as u64).to_le_bytes());
        head.extend_from_slice(&ENTRIES_OF_A_LIST.to_le_bytes());
        for class in &self.classes {
            head.extend_from_slice(&(class.len() as u16).to_le_bytes());
            head.extend_from_slice(class.as_bytes());
        }
        head
    }

    /// Reads the set of a keyspace.
    ///
    /// # Errors
    /// [`SetError::None`] where it has none.
    pub fn load(keyspace: &KeyspaceHandle, name: &str) -> Result<ImageSet, SetError> {
        let head = keyspace.get(HEAD_KEY)?.ok_or_else(|| SetError::None { keyspace: name.into() })?.value;
        let mut from = SetReader(&head);
        let version = from.u32()?;
        if !(VERSION_WITHOUT_BYTES..=VERSION).contains(&version) {
            return Err(SetError::Version(version));
        }
        let (class_count, count, a_list) = (from.u32()?, from.u64()?, from.u32()?);
        if class_count > CLASSES_MAX || a_list == 0 {
            return Err(SetError::Damaged);
        }
        let mut set = ImageSet::default();
        for _ in 0..class_count {
            let name = from.short_bytes()?;
            set.classes.push(String::from_utf8(name.to_vec()).map_err(|_| SetError::Damaged)?);
        }
        for number in 0..count.div_ceil(a_list.into()) {
            let list = keyspace.get(list_key(number).as_bytes())?.ok_or(SetError::Damaged)?.value;
            let mut from = SetReader(&list);
            while !from.0.is_empty() {
                let label = from.u32()?;
                let file_bytes = if version == VERSION_WITHOUT_BYTES { 0 } else { from.u32()? };
                let key = from.short_bytes()?;
                set.push(key, label, file_bytes);
            }
        }
        if set.len() as u64 != count {
            return Err(SetError::Damaged);
        }
        Ok(set)
    }
}

fn list_key(number: u64) -> String {
    format!("{LIST_KEY}{number:08x}")
}

struct SetReader<'a>(&'a [u8]);

impl<'a> SetReader<'a> {
    fn take<const BYTES: usize>(&mut self) -> Result<[u8; BYTES], SetError> {
        let (bytes, rest) = self.0.split_first_chunk().ok_or(SetError::Damaged)?;
        self.0 = rest;
        Ok(*bytes)
    }

    fn u32(&mut self) -> Result<u32, SetError> {
        Ok(u32::from_le_bytes(self.take()?))
    }

    fn u64(&mut self) -> Result<u64, SetError> {
        Ok(u64::from_le_bytes(self.take()?))
    }

    fn short_bytes(&mut self) -> Result<&'a [u8], SetError> {
        let length = u16::from_le_bytes(self.take()?);
        let (bytes, rest) = self.0.split_at_checked(length.into()).ok_or(SetError::Damaged)?;
        self.0 = rest;
        Ok(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::opening::Options;

    /// Sets that were imported before files' sizes were kept.
    #[test]
    fn a_set_of_the_version_before_is_read() {
        let folder = crate::folder::Folder::new("set");
        let store = Options::new().capacity_bytes(64 << 20).memory_bytes(32 << 20).open(&*folder).unwrap();
        let keyspace = store.create_keyspace("pictures").unwrap();
        let words = |words: &[u32]| words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<u8>>();
        let head = [words(&[1, 1, 2, 0, 4096]), b"\x04\0cats".to_vec()].concat();
        let list = [words(&[0]), b"\x05\0a.jpg".to_vec(), words(&[0]), b"\x05\0b.jpg".to_vec()].concat();
        keyspace.put(HEAD_KEY, &head).unwrap();
        keyspace.put(list_key(0).as_bytes(), &list).unwrap();
        let mut set = ImageSet::new(vec!["cats".into()]);
        [b"a.jpg", b"b.jpg"].into_iter().for_each(|key| set.push(key, 0, 0));
        let loaded = ImageSet::load(&keyspace, "pictures").unwrap();
        assert_eq!((loaded.file_bytes(1), loaded.file_bytes_mean(), &loaded), (None, None, &set));
        keyspace.put(HEAD_KEY, &words(&[3, 0, 0, 0, 4096])).unwrap();
        assert_eq!(ImageSet::load(&keyspace, "pictures"), Err(SetError::Version(3)));
        store.close().unwrap();
    }
}
