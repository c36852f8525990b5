//! The list of a running memcached's items: `lru_crawler metadump all`, taken to its end before any of them is asked for.
//!
//! memcached's crawler skips an item that is in use at that moment: a client gets it, or its lock is held for another item. So a list lacks
//! some items if we get items while we read it, and may always lack some of a busy server's. We therefore read a list to its end, into a
//! file, before we get anything, and take lists until one has nothing new: the keys of earlier lists are remembered by their hashes. The
//! file has no name, so it goes with the process. One thread.

// The server is above the simulator: the command line may wait.
#![allow(clippy::disallowed_methods)]

use std::collections::HashSet;
use std::fs::File;
use std::hash::{DefaultHasher, Hasher};
use std::io::{self, BufRead, BufReader, BufWriter, Read, Seek, Write};
use std::path::PathBuf;
use std::time::Duration;
use tapetum::Expiry;

use crate::protocol::KEY_BYTES_MAX;
use crate::protocol::base64::DECODED_BYTES_MAX;
use crate::tools::remote::RemoteStream;
use tapetum_service::escapes;

/// The longest line of the source's answers.
const LINE_BYTES_MAX: u64 = 4096;
/// Items that are remembered, some 16 bytes each. A larger source is listed once.
const REMEMBERED_MAX: usize = 1 << 25;
/// How often a source whose crawler is busy is asked again, over 60 s: its own crawls take seconds.
const BUSY_TRIES: u32 = 300;
const BUSY_PAUSE: Duration = Duration::from_millis(200);

#[derive(Debug, PartialEq, Eq)]
pub struct ListedItem {
    pub key: Vec<u8>,
    pub expiry: Expiry,
    /// The source's CAS unique: it changes when the item does.
    pub stamp: u64,
    /// A hash of the key, by which the lister remembers it.
    pub mark: u64,
}

impl ListedItem {
    /// Whether commands name its key as it is, and not in base64.
    pub fn is_text(&self) -> bool {
        self.key.iter().all(|byte| *byte > b' ' && *byte != 0x7f)
    }

    /// Why no command can name its key, if none can.
    pub fn why_unnamed(&self) -> Option<String> {
        let bytes_max = if self.is_text() { KEY_BYTES_MAX } else { DECODED_BYTES_MAX };
        let is_unnamed = self.key.is_empty() || self.key.len() > bytes_max;
        let key = escapes::escaped(&self.key);
        is_unnamed.then(|| format!("its key, \"{key}\", cannot be asked for by the text protocol"))
    }
}

/// Lists one source again and again.
pub struct KeyLister {
    stream: BufReader<Box<dyn RemoteStream>>,
    remembered: HashSet<u64>,
    forgotten: u64,
    busy_pause: Duration,
}

/// The items of one list that no list before it had.
pub struct KeyList {
    /// `None` if there are no new items.
    file: Option<BufReader<File>>,
}

impl KeyLister {
    pub fn new(stream: Box<dyn RemoteStream>) -> KeyLister {
        KeyLister { stream: BufReader::new(stream), remembered: HashSet::new(), forgotten: 0, busy_pause: BUSY_PAUSE }
    }

    /// How many items all lists had together.
    pub fn listed(&self) -> u64 {
        self.remembered.len() as u64 + self.forgotten
    }

    /// Whether another list would tell new items from those it had.
    pub fn remembers_all(&self) -> bool {
        self.remembered.len() < REMEMBERED_MAX
    }

    /// Takes the list to its end.
    pub fn list(&mut self) -> Result<KeyList, String> {
        let mut line = self.first_line()?;
        let mut file = None;
        while line != b"END" {
            if !line.starts_with(b"key=") {
                return Err(no_list(&line));
            }
            if self.is_new(&line) {
                let file = match &mut file {
                    Some(file) => file,
                    none => none.insert(BufWriter::new(nameless_file()?)),
                };
                line.push(b'\n');
                file.write_all(&line).map_err(no_room)?;
            }
            line = read_line(&mut self.stream).map_err(source_lost)?;
        }
        let rewound = |file: BufWriter<File>| -> io::Result<BufReader<File>> {
            let mut file = file.into_inner()?;
            file.rewind()?;
            Ok(BufReader::new(file))
        };
        Ok(KeyList { file: file.map(rewound).transpose().map_err(no_room)? })
    }

    /// The next list has it again.
    pub fn forget(&mut self, item: &ListedItem) {
        self.remembered.remove(&item.mark);
    }

    /// Asks for the list until the crawler is free.
    fn first_line(&mut self) -> Result<Vec<u8>, String> {
        for _ in 0..BUSY_TRIES {
            self.stream.get_mut().write_all(b"lru_crawler metadump all\r\n").map_err(source_lost)?;
            let line = read_line(&mut self.stream).map_err(source_lost)?;
            if !line.starts_with(b"BUSY") {
                return Ok(line);
            }
            std::thread::sleep(self.busy_pause);
        }
        Err("the LRU crawler of the source server is busy all the time: try again later".into())
    }

    fn is_new(&mut self, line: &[u8]) -> bool {
        if self.remembers_all() {
            return self.remembered.insert(mark(line));
        }
        self.forgotten += 1;
        true
    }
}

impl KeyList {
    pub fn is_empty(&self) -> bool {
        self.file.is_none()
    }

    /// The next item, or why it cannot be copied; None at the end.
    pub fn next(&mut self) -> Result<Option<Result<ListedItem, String>>, String> {
        let Some(file) = &mut self.file else { return Ok(None) };
        match read_line(file) {
            Ok(line) => Ok(Some(parse(&line))),
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(None),
            Err(error) => Err(format!("the list of keys in {} cannot be read: {error}", folder().display())),
        }
    }
}

/// A hash of the key as it is listed.
fn mark(line: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    hasher.write(line.split(|byte| *byte == b' ').next().unwrap_or_default());
    hasher.finish()
}

fn folder() -> PathBuf {
    std::env::temp_dir()
}

fn nameless_file() -> Result<File, String> {
    let path = folder().join(format!("tapetum-keys-{}", std::process::id()));
    let made = File::options().read(true).write(true).create_new(true).open(&path);
    made.and_then(|file| std::fs::remove_file(&path).map(|()| file)).map_err(no_room)
}

fn no_room(error: io::Error) -> String {
    let folder = folder();
    format!("the list of keys cannot be kept in {}: {error}; name a folder with room in TMPDIR", folder.display())
}

pub fn source_lost(error: io::Error) -> String {
    format!("the source server does not answer any more: {error}")
}

fn no_list(line: &[u8]) -> String {
    let text = String::from_utf8_lossy(line);
    if text.contains("damaged") {
        return format!(
            "the source server cannot list its items ({text:?}): stop it, and take `tapetum dump --skip-bad`"
        );
    }
    format!(
        "the source server does not list its items ({text:?}): it must be a memcached with its LRU crawler \
         on (1.6.18 and 1.6.38 have been tried)"
    )
}

/// A line without its end.
pub fn read_line(input: &mut impl BufRead) -> io::Result<Vec<u8>> {
    let mut line = Vec::new();
    input.take(LINE_BYTES_MAX).read_until(b'\n', &mut line)?;
    if line.pop() != Some(b'\n') {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    if line.last() == Some(&b'\r') {
        line.pop();
    }
    Ok(line)
}

/// A line of the list: `key=<percent-encoded> exp=<unix seconds or -1> …`.
fn parse(line: &[u8]) -> Result<ListedItem, String> {
    let text = String::from_utf8_lossy(line);
    let field = |name: &str| text.split(' ').find_map(|word| word.strip_prefix(name)?.strip_prefix('='));
    let number = |name: &str| field(name).and_then(|text| text.parse::<i64>().ok());
    let stamp = field("cas").and_then(|text| text.parse::<u64>().ok());
    let (Some(key), Some(expiry), Some(stamp)) = (field("key").and_then(percent_decoded), number("exp"), stamp) else {
        return Err(format!("its line in the list is {text:?}"));
    };
    let expiry = Expiry::from_secs(if expiry <= 0 { 0 } else { u32::try_from(expiry).unwrap_or(u32::MAX) });
    Ok(ListedItem { key, expiry, stamp, mark: mark(line) })
}

fn percent_decoded(text: &str) -> Option<Vec<u8>> {
    let mut rest = text.as_bytes();
    let mut decoded = Vec::with_capacity(rest.len());
    while let [first, after @ ..] = rest {
        rest = after;
        if *first != b'%' {
            decoded.push(*first);
            continue;
        }
        let (digits, after) = rest.split_at_checked(2)?;
        decoded.push(u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?);
        rest = after;
    }
    Some(decoded)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tools::warm::tests::Answers;

    fn lister(answers: &str) -> KeyLister {
        KeyLister { busy_pause: Duration::ZERO, ..KeyLister::new(Answers::boxed(answers)) }
    }

    fn keys(list: &mut KeyList) -> Vec<String> {
        let mut keys = Vec::new();
        while let Some(item) = list.next().unwrap() {
            keys.push(item.map_or_else(|why| why, |item| String::from_utf8(item.key).unwrap()));
        }
        keys
    }

    #[test]
    fn a_list_brings_what_those_before_lacked_and_what_is_to_be_listed_again() {
        let mut lister = lister(
            "key=a exp=-1 cas=1\nkey=b%25 exp=7 cas=2 la=1\nkey=a exp=-1 cas=1\nEND\r\n\
             BUSY currently processing crawler request\r\nBUSY\r\nkey=c exp=-1 cas=3\nkey=a exp=-1 cas=4\nkey=b%25 exp=7 cas=2\nEND\r\n\
             key=a exp=-1 cas=4\nEND\r\n",
        );
        let mut list = lister.list().unwrap();
        let first = list.next().unwrap().unwrap().unwrap();
        assert_eq!(keys(&mut list), ["b%"]);
        assert_eq!(lister.listed(), 2);
        lister.forget(&first);
        assert_eq!(keys(&mut lister.list().unwrap()), ["c", "a"]);
        assert_eq!(lister.listed(), 3);
        assert!(lister.list().unwrap().is_empty());
    }

    #[test]
    fn a_source_that_lists_nothing_says_why() {
        let error = |answers: &str| lister(answers).list().err().unwrap();
        assert!(error(&"BUSY currently processing crawler request\r\n".repeat(300)).contains("try again"));
        assert!(error("CLIENT_ERROR lru crawler disabled\r\n").contains("LRU crawler on"));
        assert!(error("key=a exp=-1 cas=1\nkey=b").contains("does not answer"));
    }
}
