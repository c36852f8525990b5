//! `warm`: copies the items of a running memcached server into a store, or to another server.
//!
//! ```text
//!  source ── lru_crawler metadump all ──► keys and expiries ─► batches ── get ──► items ─► sink
//! ```
//! What the destination has already stays as it is: somebody may have written it since. An item that left the source meanwhile is
//! left out. It may be run again. One thread.

use std::io::{self, BufRead, BufReader, IsTerminal, Read, Write};

use indicatif::{ProgressBar, ProgressStyle};

use super::item_lines::ItemLine;
use super::load::{Failure, Sink, Verdict};
use crate::protocol::KEY_BYTES_MAX;
use crate::remote::Stream;

/// Keys that are asked for at once.
const BATCH: usize = 64;
/// The longest line of either answer.
const LINE_BYTES_MAX: u64 = 4096;
/// The largest value that is believed.
const VALUE_BYTES_MAX: usize = 1 << 30;
/// Items left out that are told one by one.
const LEFT_OUT_TOLD: u64 = 10;

/// What became of the items of the source.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Warmed {
    pub copied: u64,
    /// They were in the destination.
    pub kept: u64,
    /// They were listed, and had gone or changed when they were asked for.
    pub gone: u64,
    /// They cannot be copied.
    pub left_out: u64,
}

/// An item of the source's list.
#[derive(Debug, PartialEq, Eq)]
struct Listed {
    key: Vec<u8>,
    /// Unix seconds; 0 is never.
    expiry: u32,
    /// What it is known by until it changes; its expiry may change then too.
    stamp: u64,
}

/// Copies what the server behind `list` and `values`, two connections to it, has. It is said to have `expected` items.
pub fn warm(
    list: Box<dyn Stream>,
    values: Box<dyn Stream>,
    expected: Option<u64>,
    sink: &mut dyn Sink,
) -> Result<Warmed, String> {
    let bar = progress(expected);
    let (list, values) = (BufReader::new(list), BufReader::new(values));
    let mut copy = Copy { list, values, sink, verdicts: Vec::new(), numbered: 0, warmed: Warmed::default(), bar };
    let outcome = copy.all();
    copy.bar.finish_and_clear();
    let Warmed { copied, .. } = copy.warmed;
    outcome.map_err(|why| format!("{why}; items copied before it: {copied}. Run it again to go on"))?;
    Ok(copy.warmed)
}

fn progress(expected: Option<u64>) -> ProgressBar {
    if !io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let (bar, template) = match expected {
        Some(items) => (ProgressBar::new(items), "{wide_bar} {percent}% {human_pos} items, {per_sec}, {eta} left"),
        None => (ProgressBar::new_spinner(), "{spinner} {human_pos} items, {per_sec}"),
    };
    match ProgressStyle::with_template(template) {
        Ok(style) => bar.with_style(style),
        Err(_) => bar,
    }
}

fn in_words(failure: Failure) -> String {
    failure.told("item")
}

struct Copy<'a> {
    list: BufReader<Box<dyn Stream>>,
    values: BufReader<Box<dyn Stream>>,
    sink: &'a mut dyn Sink,
    verdicts: Vec<(u64, Verdict)>,
    /// Items that were given to the sink.
    numbered: u64,
    warmed: Warmed,
    bar: ProgressBar,
}

impl Copy<'_> {
    fn all(&mut self) -> Result<(), String> {
        self.list.get_mut().write_all(b"lru_crawler metadump all\r\n").map_err(source_lost)?;
        let mut batch = Vec::with_capacity(BATCH);
        let outcome = loop {
            let step = match read_line(&mut self.list).map_err(source_lost) {
                Ok(line) if line == b"END" => break self.copy(&mut batch),
                Ok(line) => self.take(&line, &mut batch),
                Err(why) => Err(why),
            };
            if step.is_err() {
                break step;
            }
        };
        // What is on its way is stored all the same, and counted.
        let finished = self.sink.finish(&mut self.verdicts).map_err(in_words);
        self.judge();
        outcome.and(finished)
    }

    /// Takes a line of the list.
    fn take(&mut self, line: &[u8], batch: &mut Vec<Listed>) -> Result<(), String> {
        match listed(line)? {
            Ok(item) => batch.push(item),
            Err(why) => self.leave_out(&why),
        }
        if batch.len() == BATCH { self.copy(batch) } else { Ok(()) }
    }

    /// Asks for the items of a batch, and gives them to the sink.
    fn copy(&mut self, batch: &mut Vec<Listed>) -> Result<(), String> {
        if batch.is_empty() {
            return Ok(());
        }
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
            // Values come in the order of the keys; those between are gone.
            let item = loop {
                match wanted.next() {
                    Some(item) if item.key == key => break item,
                    Some(_) => self.warmed.gone += 1,
                    None => return Err(not_memcached(&line)),
                }
            };
            let value = read_value(&mut self.values, value_bytes).map_err(source_lost)?;
            if item.stamp != stamp {
                self.warmed.gone += 1;
                continue;
            }
            let expiry = item.expiry;
            self.numbered += 1;
            let item = ItemLine { key, value, flags, expiry };
            self.sink.put(self.numbered, &item, &mut self.verdicts).map_err(in_words)?;
        }
        self.warmed.gone += wanted.count() as u64;
        self.judge();
        Ok(())
    }

    fn judge(&mut self) {
        for (_, verdict) in std::mem::take(&mut self.verdicts) {
            match verdict {
                Verdict::Stored => self.warmed.copied += 1,
                Verdict::Kept => self.warmed.kept += 1,
                Verdict::Bad(why) => self.leave_out(&why),
            }
        }
        let Warmed { copied, kept, gone, left_out } = self.warmed;
        self.bar.set_position(copied + kept + gone + left_out);
    }

    fn leave_out(&mut self, why: &str) {
        self.warmed.left_out += 1;
        if self.warmed.left_out <= LEFT_OUT_TOLD {
            self.bar.suspend(|| {
                // Where nobody listens, the count must do.
                let _ = writeln!(io::stderr(), "an item is left out: {why}");
            });
        }
    }
}

fn source_lost(error: io::Error) -> String {
    format!("the server that is copied from does not answer any more: {error}")
}

fn not_memcached(line: &[u8]) -> String {
    format!("the server that is copied from answers like no memcached: {:?}", String::from_utf8_lossy(line))
}

fn read_line(input: &mut impl BufRead) -> io::Result<Vec<u8>> {
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

/// A value of so many bytes, and its line end.
fn read_value(input: &mut impl Read, bytes: usize) -> io::Result<Vec<u8>> {
    let mut value = Vec::new();
    input.take(bytes as u64 + 2).read_to_end(&mut value)?;
    if !value.ends_with(b"\r\n") || value.len() != bytes + 2 {
        return Err(io::ErrorKind::InvalidData.into());
    }
    value.truncate(bytes);
    Ok(value)
}

/// A line of the list: `key=<percent-encoded> exp=<unix seconds or -1> …`. Outer errors end it; inner ones say why this item
/// is left out.
fn listed(line: &[u8]) -> Result<Result<Listed, String>, String> {
    let text = String::from_utf8_lossy(line);
    if text.starts_with("BUSY") {
        return Err("the server that is copied from is being listed by somebody else: try again in a while".into());
    }
    if !text.starts_with("key=") {
        return Err(format!(
            "the server that is copied from does not list its items ({text:?}): it must be a memcached with its LRU crawler \
             on (1.6.18 has been tried)"
        ));
    }
    let field = |name: &str| text.split(' ').find_map(|word| word.strip_prefix(name)?.strip_prefix('='));
    let number = |name: &str| field(name).and_then(|text| text.parse::<i64>().ok());
    let stamp = field("cas").and_then(|text| text.parse::<u64>().ok());
    let (Some(key), Some(expiry), Some(stamp)) = (field("key").and_then(percent_decoded), number("exp"), stamp) else {
        return Ok(Err(format!("its line in the list is {text:?}")));
    };
    if key.is_empty() || key.len() > KEY_BYTES_MAX || key.iter().any(|byte| *byte <= b' ' || *byte == 0x7f) {
        return Ok(Err(format!(
            "its key, {:?}, cannot be asked for by the text protocol",
            String::from_utf8_lossy(&key)
        )));
    }
    let expiry = if expiry <= 0 { 0 } else { u32::try_from(expiry).unwrap_or(u32::MAX) };
    Ok(Ok(Listed { key, expiry, stamp }))
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

/// `VALUE <key> <flags> <bytes> <stamp>`
fn value_head(line: &[u8]) -> Result<(Vec<u8>, u32, usize, u64), String> {
    let words: Vec<&[u8]> = line.split(|byte| *byte == b' ').collect();
    let number = |word: &[u8]| std::str::from_utf8(word).ok()?.parse::<u64>().ok();
    match words[..] {
        [b"VALUE", key, flags, bytes, stamp] => match (number(flags), number(bytes), number(stamp)) {
            (Some(flags), Some(bytes), Some(stamp)) if bytes <= VALUE_BYTES_MAX as u64 => {
                // Flags have 32 bits; memcached could be built with more.
                Ok((key.to_vec(), flags as u32, bytes as usize, stamp))
            }
            _ => Err(not_memcached(line)),
        },
        _ => Err(not_memcached(line)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;
    use std::io::Cursor;

    /// What a server answers, whatever it is sent.
    struct Answers(Cursor<Vec<u8>>);

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

    impl Stream for Answers {}

    /// Has "old" already, and no room for "large".
    #[derive(Default)]
    struct Memory(BTreeMap<Vec<u8>, ItemLine>);

    impl Sink for Memory {
        fn put(&mut self, number: u64, item: &ItemLine, verdicts: &mut Vec<(u64, Verdict)>) -> Result<(), Failure> {
            let verdict = match &item.key[..] {
                b"old" => Verdict::Kept,
                b"large" => Verdict::Bad("it is large".into()),
                _ => {
                    self.0.insert(item.key.clone(), item.clone());
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

    fn copied(list: &str, values: &str) -> (Result<Warmed, String>, Memory) {
        let answers = |text: &str| Box::new(Answers(Cursor::new(text.into())));
        let mut memory = Memory::default();
        let outcome = warm(answers(list), answers(values), None, &mut memory);
        (outcome, memory)
    }

    #[test]
    fn items_come_with_flags_and_expiry_and_what_is_gone_is_counted() {
        let list = "key=a exp=-1 la=1 cas=1 fetch=no cls=1 size=65\r\nkey=gone exp=5 cas=2\nkey=b%25c exp=4000000000 cas=3\n\
                    key=a%20space exp=-1 cas=4\nkey=old exp=-1 cas=5\nkey=large exp=-1 cas=6\nkey=changed exp=-1 cas=7\n\
                    key=last exp=-1 cas=8\nEND\r\n";
        let values = "VALUE a 7 3 1\r\nx\r\n\r\nVALUE b%c 0 0 3\r\n\r\nVALUE old 0 1 5\r\n1\r\nVALUE large 0 1 6\r\n1\r\n\
                      VALUE changed 0 1 70\r\n1\r\nEND\r\n";
        let (outcome, Memory(items)) = copied(list, values);
        assert_eq!(outcome, Ok(Warmed { copied: 2, kept: 1, gone: 3, left_out: 2 }));
        let item =
            |key: &str, value: &str, flags, expiry| ItemLine { key: key.into(), value: value.into(), flags, expiry };
        let expected = [item("a", "x\r\n", 7, 0), item("b%c", "", 0, 4_000_000_000)];
        assert_eq!(items.into_values().collect::<Vec<_>>(), expected);
    }

    #[test]
    fn a_source_that_fails_says_what_was_done_and_what_to_do() {
        let error = |list, values| copied(list, values).0.unwrap_err();
        let lost = error("key=a exp=-1 cas=1\nEND\n", "VALUE a 0 5 1\r\nab");
        assert!(lost.contains("does not answer") && lost.contains("Run it again"), "{lost}");
        assert!(error("key=a exp=-1 cas=1\nkey=b exp=-1 cas=2\n", "").contains("does not answer"));
        assert!(error("BUSY currently processing crawler request\r\n", "").contains("try again"));
        assert!(error("CLIENT_ERROR lru crawler disabled\r\n", "").contains("LRU crawler on"));
        assert!(error("key=a exp=-1 cas=1\nEND\n", "VALUE b 0 1 1\r\nx\r\nEND\r\n").contains("like no memcached"));
        assert!(error("key=a exp=-1 cas=1\nEND\n", "VALUE a 0 99999999999999 1\r\n").contains("like no memcached"));
    }
}
