//! `list` and `dump` of a running server: its list of keys, and then gets. A dump has each key that was not written during the dump. A key
//! that was written has one of its values, unless it changed each time it was asked for. One thread.

use std::io::{self, BufReader, Write};

use super::item_lines::{self, Format};
use super::key_list::{KeyLister, ListedItem, read_line, source_lost};
use super::load::{Failure, Sink, Verdict};
use super::warm::{self, WarmSource, Warmed};
use crate::protocol::base64;
use crate::tools::remote::RemoteStream;
use tapetum_service::escapes;
use tapetum_service::reply::ItemRow;

/// Bytes to gather before a write.
const TEXT_BYTES: usize = 256 << 10;
/// Items to ask for at once.
const BATCH: usize = 64;

/// Prints items as lines that `load` reads.
struct LineSink<'a> {
    format: Format,
    text: Vec<u8>,
    out: &'a mut dyn Write,
    /// The reader of the output has closed it, like `| head`.
    is_over: bool,
}

impl LineSink<'_> {
    fn write(&mut self, number: u64) -> Result<(), Failure> {
        let written = self.out.write_all(&self.text).and_then(|()| self.out.flush());
        self.text.clear();
        written.map_err(|error| {
            self.is_over = error.kind() == io::ErrorKind::BrokenPipe;
            Failure::at(number, error.to_string())
        })
    }
}

impl Sink for LineSink<'_> {
    fn put(&mut self, number: u64, item: ItemRow, verdicts: &mut Vec<(u64, Verdict)>) -> Result<(), Failure> {
        item_lines::write(self.format, &item, &mut self.text);
        verdicts.push((number, Verdict::Stored));
        if self.text.len() >= TEXT_BYTES { self.write(number) } else { Ok(()) }
    }

    fn finish(&mut self, _: &mut Vec<(u64, Verdict)>) -> Result<(), Failure> {
        if self.is_over { Ok(()) } else { self.write(0) }
    }
}

/// Prints the items of a server.
///
/// # Errors
/// Also after everything possible was printed, if something had to be left out.
pub fn dump(source: WarmSource<'_>, format: Format, out: &mut dyn Write) -> Result<(), String> {
    let mut sink = LineSink { format, text: Vec::new(), out, is_over: false };
    let lists_all = source.lists_all;
    let dumped = warm::warm(source, &mut sink);
    if sink.is_over {
        return Ok(());
    }
    let Warmed { copied, gone, left_out, not_listed, .. } = dumped?;
    // An error of standard error is ignored: the lines on standard output matter.
    let _ = writeln!(io::stderr(), "{copied} items printed; {gone} had gone, or changed each time they were asked for");
    if not_listed > 0 && !lists_all {
        let _ =
            writeln!(io::stderr(), "{not_listed} that the server counts are not in its lists: expired ones, or in use");
    }
    match left_out {
        0 => Ok(()),
        _ => Err(format!("{left_out} items are not among what was printed; the first are named above")),
    }
}

/// Prints the keys of a server that begin with `prefix`, one a line; `long` adds bytes of the value, flags and expiry.
pub fn list(
    list: Box<dyn RemoteStream>,
    values: Box<dyn RemoteStream>,
    prefix: &[u8],
    long: bool,
    out: &mut dyn Write,
) -> Result<(), String> {
    let (mut keys, mut values) = (KeyLister::new(list).list()?, BufReader::new(values));
    let (mut text, mut batch) = (Vec::new(), Vec::new());
    loop {
        let item = keys.next()?;
        let is_end = item.is_none();
        batch.extend(item.transpose()?.filter(|item: &ListedItem| item.key.starts_with(prefix)));
        if batch.len() == BATCH || is_end {
            match long {
                true => push_long(&batch, &mut values, &mut text)?,
                false => batch.iter().for_each(|item| {
                    escapes::escape(&item.key, &mut text);
                    text.push(b'\n');
                }),
            }
            batch.clear();
        }
        if text.len() >= TEXT_BYTES || is_end {
            match out.write_all(&text).and_then(|()| out.flush()) {
                Err(error) if error.kind() == io::ErrorKind::BrokenPipe => return Ok(()),
                written => written.map_err(|error| error.to_string())?,
            }
            text.clear();
        }
        if is_end {
            return Ok(());
        }
    }
}

/// Asks about items with meta commands, all at once. Items that are gone are left out.
fn push_long(
    items: &[ListedItem],
    values: &mut BufReader<Box<dyn RemoteStream>>,
    text: &mut Vec<u8>,
) -> Result<(), String> {
    if let Some(why) = items.iter().find_map(ListedItem::why_unnamed) {
        return Err(format!("--long cannot look an item up: {why}"));
    }
    let mut request = Vec::new();
    for item in items {
        request.extend_from_slice(b"mg ");
        match item.is_text() {
            true => request.extend_from_slice(&item.key),
            false => base64::push(&mut request, &item.key),
        }
        request.extend_from_slice(if item.is_text() { b" s f\r\n" } else { b" b s f\r\n" });
    }
    values.get_mut().write_all(&request).map_err(source_lost)?;
    for item in items {
        let line = read_line(values).map_err(source_lost)?;
        if line == b"EN" {
            continue;
        }
        let words: Vec<&[u8]> = line.split(|byte| *byte == b' ').collect();
        let number = |letter: u8| {
            let word = words.iter().skip(1).find(|word| word.first() == Some(&letter))?;
            std::str::from_utf8(&word[1..]).ok()?.parse::<u64>().ok()
        };
        let (Some(&b"HD"), Some(bytes), Some(flags)) = (words.first(), number(b's'), number(b'f')) else {
            return Err(warm::not_memcached(&line));
        };
        escapes::escape(&item.key, text);
        text.extend_from_slice(format!("\t{bytes}\t{flags}\t{}\n", item.expiry).as_bytes());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tools::warm::tests::Answers;

    fn dumped(list: &str, values: &str) -> (Result<(), String>, String) {
        let mut out = Vec::new();
        let source = WarmSource {
            list: Answers::boxed(list),
            values: Answers::boxed(values),
            count: &|| Ok(0),
            prefix: b"",
            lists_all: true,
        };
        let outcome = dump(source, Format::Tsv, &mut out);
        (outcome, String::from_utf8(out).unwrap())
    }

    #[test]
    fn items_are_lines_and_what_cannot_be_asked_for_fails_the_dump() {
        let list = "key=a exp=-1 cas=1\nkey=hello%20world exp=-1 cas=2\nkey=b exp=7 cas=3\nEND\r\n";
        let values = "VALUE a 0 1 1\r\nx\r\nVALUE b 0 2 3\r\n\t2\r\nEND\r\nVA 1 f0 c2\r\ny\r\n";
        assert_eq!(dumped(list, values), (Ok(()), "a\tx\nb\t\\t2\nhello world\ty\n".into()));
        let long = "%20".repeat(200);
        let list = format!("key=a exp=-1 cas=1\nkey={long} exp=-1 cas=2\nEND\r\n");
        let (outcome, lines) = dumped(&list, "VALUE a 0 1 1\r\nx\r\nEND\r\n");
        assert!(outcome.unwrap_err().starts_with("1 items"));
        assert_eq!(lines, "a\tx\n");
    }

    #[test]
    fn keys_are_listed_with_what_the_meta_commands_tell() {
        let list_of = |long| {
            let keys = "key=a exp=-1 cas=1\nkey=other exp=-1 cas=1\nkey=a%20b exp=9 cas=2\nkey=ac exp=9 cas=2\nEND\r\n";
            let answers = "HD s3 f5\r\nHD s1 f0\r\nEN\r\n";
            let mut out = Vec::new();
            list(Answers::boxed(keys), Answers::boxed(answers), b"a", long, &mut out).unwrap();
            String::from_utf8(out).unwrap()
        };
        assert_eq!(list_of(false), "a\na b\nac\n");
        assert_eq!(list_of(true), "a\t3\t5\t0\na b\t1\t0\t9\n");
    }
}
