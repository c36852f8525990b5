//! `warm`: copies the items of a running memcached server into a store, or to another server.
//!
//! ```text
//!  source ── lru_crawler metadump all ──► list of keys and expiries, to its end ─► batches ── gets ──► items ─► sink
//!     ▲                                                                                 │
//!     └───────── again, until a list brings nothing new and nothing had changed ◄───────┘
//! ```
//! Items that the destination already has stay unchanged: somebody may have written them since. Items that left the source meanwhile are
//! skipped. The number listed is compared with the source's count. It can be repeated. One thread.

use std::fmt;
use std::io::{self, BufReader, IsTerminal, Read, Write};

use indicatif::{ProgressBar, ProgressStyle};

use super::key_list::{KeyList, KeyLister, ListedItem, read_line, source_lost};
use super::load::{self, Failure, Sink, Verdict};
use crate::protocol::base64;
use crate::tools::remote::RemoteStream;
use tapetum_service::reply::ItemRow;

/// Keys to ask for at once.
const BATCH: usize = 64;
/// The most lists to take: a source under write has new items in each.
const LISTS_MAX: u32 = 5;
/// The longest value that a source may announce: memcached's own limit.
const VALUE_BYTES_MAX: usize = 1 << 30;
/// The most skipped items that are reported one by one.
const LEFT_OUT_TOLD: u64 = 10;

/// Counts of the source's items, by outcome.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Warmed {
    pub copied: u64,
    /// The destination had them.
    pub kept: u64,
    /// They were listed, but had gone or changed when they were asked for.
    pub gone: u64,
    /// They cannot be copied.
    pub left_out: u64,
    /// The source's count at its last list, and how many of these no list had.
    pub counted: u64,
    pub not_listed: u64,
}

impl fmt::Display for Warmed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Warmed { copied, kept, gone, left_out, counted, not_listed } = self;
        write!(
            f,
            "{copied} of {counted} items copied; {kept} were there already, {gone} had gone, {left_out} left out"
        )?;
        if *not_listed > 0 {
            write!(
                f,
                "\n{not_listed} that the source counts are not in its lists: expired ones, which it counts until it frees them; or items \
                 that a memcached had in use each time: run it again to look for these; or items that a Tapetum counts twice until their \
                 overwrites are flushed"
            )?;
        }
        Ok(())
    }
}

/// The source: a memcached server.
pub struct WarmSource<'a> {
    /// Two connections to it, one for lists and one for gets.
    pub list: Box<dyn RemoteStream>,
    pub values: Box<dyn RemoteStream>,
    /// The source's count of its items.
    pub count: &'a dyn Fn() -> Result<u64, String>,
    /// Copy only keys with this prefix.
    pub prefix: &'a [u8],
    /// Its lists are complete, as Tapetum's are. memcached's lists skip items that are in use.
    pub lists_all: bool,
}

pub fn warm(source: WarmSource<'_>, sink: &mut dyn Sink) -> Result<Warmed, String> {
    let bar = progress((source.count)()?);
    let WarmSource { list, values, count, prefix, lists_all } = source;
    let mut copy = Copy {
        list: KeyLister::new(list),
        values: BufReader::new(values),
        prefix,
        lists_all,
        sink,
        verdicts: Vec::new(),
        numbered: 0,
        judged: 0,
        changed: 0,
        warmed: Warmed::default(),
        bar,
    };
    let outcome = copy.all(count);
    copy.bar.finish_and_clear();
    let Warmed { copied, .. } = copy.warmed;
    outcome.map_err(|why| format!("{why}; items copied before it: {copied}. Run it again to go on"))?;
    load::warn(&*copy.sink);
    Ok(copy.warmed)
}

fn progress(items: u64) -> ProgressBar {
    if !io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let bar = ProgressBar::new(items);
    match ProgressStyle::with_template("{wide_bar} {percent}% {human_pos} items, {per_sec}, {eta} left") {
        Ok(style) => bar.with_style(style),
        Err(_) => bar,
    }
}

fn in_words(failure: Failure) -> String {
    failure.told("item")
}

struct Copy<'a> {
    list: KeyLister,
    values: BufReader<Box<dyn RemoteStream>>,
    prefix: &'a [u8],
    lists_all: bool,
    sink: &'a mut dyn Sink,
    verdicts: Vec<(u64, Verdict)>,
    /// Items given to the sink, and how many of them have a verdict.
    numbered: u64,
    judged: u64,
    /// Items of the current list that had changed when they were asked for. The next list has them again.
    changed: u64,
    warmed: Warmed,
    bar: ProgressBar,
}

impl Copy<'_> {
    fn all(&mut self, count: &dyn Fn() -> Result<u64, String>) -> Result<(), String> {
        let outcome = self.all_lists(count);
        // Items in flight are stored anyway, and counted.
        let finished = self.sink.finish(&mut self.verdicts).map_err(in_words);
        self.judge();
        self.warmed.gone += self.changed;
        outcome.and(finished)?;
        // No item may be lost silently.
        match self.numbered == self.judged {
            true => Ok(()),
            false => Err(format!("of {} items {} were answered for by the destination", self.numbered, self.judged)),
        }
    }

    fn all_lists(&mut self, count: &dyn Fn() -> Result<u64, String>) -> Result<(), String> {
        for _ in 0..LISTS_MAX {
            let list = self.list.list()?;
            self.warmed.counted = count()?;
            self.warmed.not_listed = self.warmed.counted.saturating_sub(self.list.listed());
            let lacks_none = self.lists_all || self.warmed.not_listed == 0;
            let had_changed = std::mem::take(&mut self.changed) > 0;
            if list.is_empty() && !had_changed {
                break;
            }
            self.copy_list(list)?;
            if (lacks_none && self.changed == 0) || !self.list.remembers_all() {
                break;
            }
        }
        Ok(())
    }

    fn copy_list(&mut self, mut list: KeyList) -> Result<(), String> {
        let mut batch = Vec::with_capacity(BATCH);
        while let Some(item) = list.next()? {
            match item {
                Ok(item) if !item.key.starts_with(self.prefix) => {}
                Ok(item) => match item.why_unnamed() {
                    None => batch.push(item),
                    Some(why) => self.leave_out(&why),
                },
                Err(why) => self.leave_out(&why),
            }
            if batch.len() == BATCH {
                self.copy(&mut batch)?;
            }
        }
        self.copy(&mut batch)
    }

    /// Asks for the items of a batch, and gives them to the sink.
    fn copy(&mut self, batch: &mut Vec<ListedItem>) -> Result<(), String> {
        let in_base64: Vec<ListedItem> = batch.extract_if(.., |item| !item.is_text()).collect();
        if !batch.is_empty() {
            self.copy_text(batch)?;
        }
        for item in in_base64 {
            self.copy_in_base64(item)?;
        }
        self.judge();
        Ok(())
    }

    /// Asks for an item whose key `gets` cannot name.
    fn copy_in_base64(&mut self, item: ListedItem) -> Result<(), String> {
        let mut request = b"mg ".to_vec();
        base64::push(&mut request, &item.key);
        request.extend_from_slice(b" b f c v\r\n");
        self.values.get_mut().write_all(&request).map_err(source_lost)?;
        let line = read_line(&mut self.values).map_err(source_lost)?;
        if line == b"EN" {
            self.warmed.gone += 1;
            return Ok(());
        }
        let (flags, value_bytes, stamp) = meta_head(&line)?;
        let value = read_value(&mut self.values, value_bytes).map_err(source_lost)?;
        self.take(item, value, flags, stamp)
    }

    /// Handles the source's answer for an item.
    fn take(&mut self, item: ListedItem, value: Vec<u8>, flags: u32, stamp: u64) -> Result<(), String> {
        if item.stamp != stamp {
            self.changed += 1;
            self.list.forget(&item);
            return Ok(());
        }
        self.numbered += 1;
        let item = ItemRow { key: item.key, value, flags, expiry: item.expiry };
        self.sink.put(self.numbered, item, &mut self.verdicts).map_err(in_words)
    }

    fn copy_text(&mut self, batch: &mut Vec<ListedItem>) -> Result<(), String> {
        let mut request = b"gets".to_vec();
        for item in batch.iter() {
            request.push(b' ');
            request.extend_from_slice(&item.key);
        }
        request.extend_from_slice(b"\r\n");
        self.values.get_mut().write_all(&request).map_err(source_lost)?;
        let mut wanted = batch.drain(..);
        loop {
            let line = read_line(&mut self.values).map_err(source_lost)?;
            if line == b"END" {
                break;
            }
            let (key, flags, value_bytes, stamp) = value_head(&line)?;
            // Values come in the order of the keys; keys between them are gone.
            let item = loop {
                match wanted.next() {
                    Some(item) if item.key == key => break item,
                    Some(_) => self.warmed.gone += 1,
                    None => return Err(not_memcached(&line)),
                }
            };
            let value = read_value(&mut self.values, value_bytes).map_err(source_lost)?;
            self.take(item, value, flags, stamp)?;
        }
        self.warmed.gone += wanted.count() as u64;
        Ok(())
    }

    fn judge(&mut self) {
        self.judged += self.verdicts.len() as u64;
        for (_, verdict) in std::mem::take(&mut self.verdicts) {
            match verdict {
                Verdict::Stored => self.warmed.copied += 1,
                Verdict::Kept => self.warmed.kept += 1,
                Verdict::Bad(why) => self.leave_out(&why),
            }
        }
        let Warmed { copied, kept, gone, left_out, .. } = self.warmed;
        self.bar.set_position(copied + kept + gone + left_out);
    }

    fn leave_out(&mut self, why: &str) {
        self.warmed.left_out += 1;
        if self.warmed.left_out <= LEFT_OUT_TOLD {
            self.bar.suspend(|| {
                // An error of standard error is ignored: the count is reported as well.
                let _ = writeln!(io::stderr(), "an item is left out: {why}");
            });
        }
    }
}

pub(super) fn not_memcached(line: &[u8]) -> String {
    format!("the source server does not answer like memcached: {:?}", String::from_utf8_lossy(line))
}

/// Reads a value of so many bytes, and its line end.
fn read_value(input: &mut impl Read, bytes: usize) -> io::Result<Vec<u8>> {
    let mut value = Vec::new();
    input.take(bytes as u64 + 2).read_to_end(&mut value)?;
    if !value.ends_with(b"\r\n") || value.len() != bytes + 2 {
        return Err(io::ErrorKind::InvalidData.into());
    }
    value.truncate(bytes);
    Ok(value)
}

/// `VALUE <key> <flags> <bytes> <stamp>`
fn value_head(line: &[u8]) -> Result<(Vec<u8>, u32, usize, u64), String> {
    let words: Vec<&[u8]> = line.split(|byte| *byte == b' ').collect();
    let number = |word: &[u8]| std::str::from_utf8(word).ok()?.parse::<u64>().ok();
    match words[..] {
        [b"VALUE", key, flags, bytes, stamp] => match (number(flags), number(bytes), number(stamp)) {
            (Some(flags), Some(bytes), Some(stamp)) if bytes <= VALUE_BYTES_MAX as u64 => {
                // Flags have 32 bits, though memcached can be built with more.
                Ok((key.to_vec(), flags as u32, bytes as usize, stamp))
            }
            _ => Err(not_memcached(line)),
        },
        _ => Err(not_memcached(line)),
    }
}

/// `VA <bytes> f<flags> c<stamp>`: flags, bytes and stamp.
fn meta_head(line: &[u8]) -> Result<(u32, usize, u64), String> {
    let words: Vec<&[u8]> = line.split(|byte| *byte == b' ').collect();
    let number = |word: &[u8]| std::str::from_utf8(word).ok()?.parse::<u64>().ok();
    match words[..] {
        [b"VA", bytes, [b'f', flags @ ..], [b'c', stamp @ ..]] => match (number(bytes), number(flags), number(stamp)) {
            (Some(bytes), Some(flags), Some(stamp)) if bytes <= VALUE_BYTES_MAX as u64 => {
                Ok((flags as u32, bytes as usize, stamp))
            }
            _ => Err(not_memcached(line)),
        },
        _ => Err(not_memcached(line)),
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use std::cell::Cell;
    use std::collections::BTreeMap;
    use std::io::Cursor;
    use tapetum::Expiry;

    /// A server with fixed answers, whatever it is sent.
    pub struct Answers(Cursor<Vec<u8>>);

    impl Answers {
        pub fn boxed(text: &str) -> Box<dyn RemoteStream> {
            Box::new(Answers(Cursor::new(text.into())))
        }
    }

    impl Read for Answers {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            self.0.read(buffer)
        }
    }

    impl Write for Answers {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    impl RemoteStream for Answers {}

    /// A sink that already has "old", and no room for "large".
    #[derive(Default)]
    struct WarmedMemory(BTreeMap<Vec<u8>, ItemRow>);

    impl Sink for WarmedMemory {
        fn put(&mut self, number: u64, item: ItemRow, verdicts: &mut Vec<(u64, Verdict)>) -> Result<(), Failure> {
            let verdict = match &item.key[..] {
                b"old" => Verdict::Kept,
                b"large" => Verdict::Bad("it is large".into()),
                _ => {
                    self.0.insert(item.key.clone(), item);
                    Verdict::Stored
                }
            };
            verdicts.push((number, verdict));
            Ok(())
        }

        fn finish(&mut self, _: &mut Vec<(u64, Verdict)>) -> Result<(), Failure> {
            Ok(())
        }
    }

    /// `counts` are the source's answers for its number of items, in order; the last one repeats.
    fn copied(list: &str, values: &str, counts: &[u64]) -> (Result<Warmed, String>, WarmedMemory) {
        copied_from(false, list, values, counts)
    }

    fn copied_from(
        lists_all: bool,
        list: &str,
        values: &str,
        counts: &[u64],
    ) -> (Result<Warmed, String>, WarmedMemory) {
        let asked = Cell::new(0);
        let count = || Ok(counts[asked.replace(asked.get() + 1).min(counts.len() - 1)]);
        let (list, values) = (Answers::boxed(list), Answers::boxed(values));
        let source = WarmSource { list, values, count: &count, prefix: b"", lists_all };
        let mut memory = WarmedMemory::default();
        let outcome = warm(source, &mut memory);
        (outcome, memory)
    }

    #[test]
    fn items_come_with_flags_and_expiry_and_what_is_gone_is_counted() {
        let list = "key=a exp=-1 la=1 cas=1 fetch=no cls=1 size=65\r\nkey=gone exp=5 cas=2\nkey=b%25c exp=4000000000 cas=3\n\
                    key=%20%zz exp=-1 cas=4\nkey=old exp=-1 cas=5\nkey=large exp=-1 cas=6\nkey=last exp=-1 cas=8\nEND\r\n";
        let values = "VALUE a 7 3 1\r\nx\r\n\r\nVALUE b%c 0 0 3\r\n\r\nVALUE old 0 1 5\r\n1\r\nVALUE large 0 1 6\r\n1\r\nEND\r\n";
        let (outcome, WarmedMemory(items)) = copied(list, values, &[7]);
        assert_eq!(outcome, Ok(Warmed { copied: 2, kept: 1, gone: 2, left_out: 2, counted: 7, not_listed: 0 }));
        let item = |key: &str, value: &str, flags, expiry| ItemRow {
            key: key.into(),
            value: value.into(),
            flags,
            expiry: Expiry::from_secs(expiry),
        };
        let expected = [item("a", "x\r\n", 7, 0), item("b%c", "", 0, 4_000_000_000)];
        assert_eq!(items.into_values().collect::<Vec<_>>(), expected);
    }

    #[test]
    fn what_a_list_passed_over_is_in_the_next_one_and_what_none_has_is_counted() {
        let list = "key=a exp=-1 cas=1\nEND\nkey=b exp=-1 cas=2\nEND\nkey=b exp=-1 cas=2\nkey=a exp=-1 cas=1\nEND\n";
        let values = "VALUE a 0 1 1\r\n1\r\nEND\r\nVALUE b 0 1 2\r\n2\r\nEND\r\n";
        let (outcome, WarmedMemory(items)) = copied(list, values, &[3]);
        assert_eq!(outcome, Ok(Warmed { copied: 2, counted: 3, not_listed: 1, ..Warmed::default() }));
        assert_eq!(items.len(), 2);
    }

    #[test]
    fn what_a_source_counts_beyond_a_list_of_all_is_told_and_not_looked_for() {
        let (list, values) = ("key=a exp=-1 cas=1\nEND\n", "VALUE a 0 1 1\r\n1\r\nEND\r\n");
        let (outcome, _) = copied_from(true, list, values, &[2]);
        let warmed = outcome.unwrap();
        assert_eq!(warmed, Warmed { copied: 1, counted: 2, not_listed: 1, ..Warmed::default() });
        let told = warmed.to_string();
        assert!(told.starts_with("1 of 2 items copied") && told.contains("\n1 that the source counts"), "{told}");
    }

    #[test]
    fn what_changed_after_it_was_listed_is_listed_again() {
        let changed = "key=a exp=-1 cas=1\nEND\nkey=a exp=9 cas=2\nEND\n";
        let values = "VALUE a 0 1 2\r\n1\r\nEND\r\nVALUE a 0 1 2\r\n1\r\nEND\r\n";
        let (outcome, WarmedMemory(items)) = copied(changed, values, &[1]);
        assert_eq!(outcome, Ok(Warmed { copied: 1, counted: 1, ..Warmed::default() }));
        assert_eq!(items.into_values().map(|item| item.expiry.secs()).collect::<Vec<_>>(), [9]);
        let each_time = (1..=5).map(|cas| format!("key=a exp=-1 cas={cas}\nEND\n")).collect::<String>();
        let (outcome, _) = copied(&each_time, &"VALUE a 0 1 9\r\n1\r\nEND\r\n".repeat(5), &[1]);
        assert_eq!(outcome, Ok(Warmed { gone: 1, counted: 1, not_listed: 0, ..Warmed::default() }));
        let gone_then = "key=a exp=-1 cas=1\nEND\nEND\n";
        let (outcome, _) = copied(gone_then, "VALUE a 0 1 9\r\n1\r\nEND\r\n", &[1, 1, 0]);
        assert_eq!(outcome, Ok(Warmed { counted: 0, ..Warmed::default() }));
    }

    #[test]
    fn a_source_that_fails_says_what_was_done_and_what_to_do() {
        let error = |list, values| copied(list, values, &[2]).0.unwrap_err();
        let lost = error("key=a exp=-1 cas=1\nEND\n", "VALUE a 0 5 1\r\nab");
        assert!(lost.contains("does not answer") && lost.contains("Run it again"), "{lost}");
        assert!(error("key=a exp=-1 cas=1\nkey=b exp=-1 cas=2\n", "").contains("does not answer"));
        assert!(error("CLIENT_ERROR lru crawler disabled\r\n", "").contains("LRU crawler on"));
        assert!(error("key=a exp=-1 cas=1\nEND\n", "VALUE b 0 1 1\r\nx\r\nEND\r\n").contains("answer like memcached"));
        assert!(error("key=a exp=-1 cas=1\nEND\n", "VALUE a 0 99999999999999 1\r\n").contains("answer like memcached"));
    }
}
