//! `load`: loads items from a file or standard input into a store, or to a server.
//!
//! ```text
//! lines ─► items ─► sink: many on their way at once ─► verdicts, each with its item's number, which is that of its line
//! ```
//! A bad line ends the load or, with `--skip-bad`, is counted and skipped. Any other failure always ends it. One thread.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, BufRead, BufReader, IsTerminal, Write};
use std::path::Path;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use tapetum_drive::Env;

use super::item_lines::{self, Format};
use crate::protocol::KEY_BYTES_MAX;
use crate::tools::remote::RemoteStream;
use crate::tools::text_file;
use tapetum_service::reply::ItemRow;
use tapetum_service::reply::{self, Reply};
use tapetum_service::request::Request;
use tapetum_service::service::Service;

/// The longest line: the largest value with every byte escaped, which takes six bytes in JSON.
const LINE_BYTES_MAX: usize = 6 * (16 << 20) + (1 << 20);
/// The most items and bytes in flight.
const IN_FLIGHT_ITEMS: usize = 1024;
const IN_FLIGHT_BYTES: usize = 4 << 20;
/// The most items, and bytes of more than one, that are stored by one request.
const BATCH_ITEMS: usize = 4096;
const BATCH_BYTES: usize = 4 << 20;
/// The most bad lines that are reported one by one.
const BAD_LINES_TOLD: u64 = 10;

/// The result for an item.
pub enum Verdict {
    Stored,
    /// The sink had an item of this key, and was told not to overwrite it.
    Kept,
    /// The item is invalid for this sink.
    Bad(String),
}

/// The reason why a load ended, and the number of the item, if it is known.
pub struct Failure {
    number: Option<u64>,
    why: String,
}

impl Failure {
    pub(super) fn at(number: u64, why: String) -> Failure {
        Failure { number: Some(number), why }
    }

    /// The failure in words. `what` names the numbered thing, such as a line.
    pub fn told(self, what: &str) -> String {
        self.told_of(|number| format!("{what} {number}"))
    }

    /// The failure in words, and the thing by its name.
    pub fn told_of(self, name: impl FnOnce(u64) -> String) -> String {
        match self.number {
            Some(number) => format!("{}: {}", name(number), self.why),
            None => self.why,
        }
    }
}

/// A destination of items. Verdicts come later, with the item's number.
pub trait Sink {
    fn put(&mut self, number: u64, item: ItemRow, verdicts: &mut Vec<(u64, Verdict)>) -> Result<(), Failure>;
    /// Waits for the verdicts of all items in flight.
    fn finish(&mut self, verdicts: &mut Vec<(u64, Verdict)>) -> Result<(), Failure>;
    /// A warning about items that were stored differently from their input.
    fn warnings(&self) -> Option<String> {
        None
    }
}

/// The treatment of an item whose key the sink already has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Existing {
    Replace,
    Keep,
}

/// Whether memcached's clients can ask for this key.
fn is_of_memcached(key: &[u8]) -> bool {
    key.len() <= KEY_BYTES_MAX && key.iter().all(|byte| *byte > b' ' && *byte != 0x7f)
}

/// One keyspace of a store, which this process or a server has open.
pub struct ServiceSink<'a> {
    service: &'a mut Service,
    keyspace: String,
    /// Whether memcached's clients may use the keyspace: it has no format.
    is_for_memcached: bool,
    /// Number of items by keys that those clients cannot ask for, and the first one's number.
    unasked: u64,
    first_unasked: u64,
    existing: Existing,
    /// Items that are not sent yet, and the number of each: some may have been left out.
    items: Vec<ItemRow>,
    numbers: Vec<u64>,
    items_bytes: usize,
}

impl<'a> ServiceSink<'a> {
    /// For a keyspace that has a format or not.
    pub fn new(service: &'a mut Service, keyspace: &str, has_format: bool, existing: Existing) -> ServiceSink<'a> {
        ServiceSink {
            service,
            keyspace: keyspace.into(),
            is_for_memcached: !has_format,
            unasked: 0,
            first_unasked: 0,
            existing,
            items: Vec::new(),
            numbers: Vec::new(),
            items_bytes: 0,
        }
    }

    fn send(&mut self, verdicts: &mut Vec<(u64, Verdict)>) -> Result<(), Failure> {
        if self.items.is_empty() {
            return Ok(());
        }
        let (keyspace, items) = (self.keyspace.clone(), std::mem::take(&mut self.items));
        self.items_bytes = 0;
        let request = Request::Store { keyspace, items, keeps_existing: self.existing == Existing::Keep };
        let told = self.service.gather(request).map_err(|failure| Failure { number: None, why: failure.message })?;
        let all = told.into_iter().filter_map(|reply| if let Reply::Verdicts(all) = reply { Some(all) } else { None });
        for (number, verdict) in std::mem::take(&mut self.numbers).into_iter().zip(all.flatten()) {
            let verdict = match verdict {
                reply::Verdict::Stored => Verdict::Stored,
                reply::Verdict::Kept => Verdict::Kept,
                reply::Verdict::Bad(why) => Verdict::Bad(why),
                reply::Verdict::Failed(why) => return Err(Failure::at(number, why)),
            };
            verdicts.push((number, verdict));
        }
        Ok(())
    }
}

impl Sink for ServiceSink<'_> {
    fn put(&mut self, number: u64, item: ItemRow, verdicts: &mut Vec<(u64, Verdict)>) -> Result<(), Failure> {
        if self.is_for_memcached && !is_of_memcached(&item.key) {
            self.first_unasked = if self.unasked == 0 { number } else { self.first_unasked };
            self.unasked += 1;
        }
        let item_bytes = item.key.len() + item.value.len();
        if self.items_bytes + item_bytes > BATCH_BYTES || self.items.len() >= BATCH_ITEMS {
            self.send(verdicts)?;
        }
        self.items_bytes += item_bytes;
        self.items.push(item);
        self.numbers.push(number);
        Ok(())
    }

    fn finish(&mut self, verdicts: &mut Vec<(u64, Verdict)>) -> Result<(), Failure> {
        self.send(verdicts)
    }

    fn warnings(&self) -> Option<String> {
        let ServiceSink { unasked, first_unasked, .. } = self;
        (*unasked > 0).then(|| {
            format!(
                "memcached clients cannot ask for {unasked} of the keys, the first of them that of item {first_unasked}: they take none that \
                 is longer than {KEY_BYTES_MAX} bytes or has spaces or control characters; `tapetum get` and programs find all"
            )
        })
    }
}

/// Puts items one after the other. Every one must be stored.
pub struct Loader<'a> {
    sink: &'a mut dyn Sink,
    taken: u64,
    verdicts: Vec<(u64, Verdict)>,
}

impl<'a> Loader<'a> {
    pub fn new(sink: &'a mut dyn Sink) -> Loader<'a> {
        Loader { sink, taken: 0, verdicts: Vec::new() }
    }

    /// # Errors
    /// An error of this item, or of an earlier one.
    pub fn put(&mut self, item: ItemRow) -> Result<(), String> {
        self.taken += 1;
        self.sink.put(self.taken, item, &mut self.verdicts).map_err(|failure| failure.told("item"))?;
        self.judge()
    }

    fn judge(&mut self) -> Result<(), String> {
        match self.verdicts.drain(..).find(|(_, verdict)| !matches!(verdict, Verdict::Stored)) {
            None => Ok(()),
            Some((number, Verdict::Bad(why))) => Err(format!("item {number} is not stored: {why}")),
            Some((number, _)) => Err(format!("item {number} is not stored")),
        }
    }

    /// Waits for all items. Returns how many there were.
    pub fn finish(mut self) -> Result<u64, String> {
        self.sink.finish(&mut self.verdicts).map_err(|failure| failure.told("item"))?;
        self.judge()?;
        Ok(self.taken)
    }
}

/// A server with memcached's text protocol.
pub struct WireSink {
    stream: BufReader<Box<dyn RemoteStream>>,
    existing: Existing,
    /// Commands that are not sent yet.
    unsent: Vec<u8>,
    /// Numbers of the items whose answers are outstanding.
    waiting: VecDeque<u64>,
    /// The last expiry, in unix seconds, that the server can keep, and how many items had a later one.
    expiry_max: u32,
    cut_expiries: u64,
}

/// The last time that fits into 32 bits with a sign, 2038-01-19 03:14:07 UTC. memcached (1.6.18) answers STORED to a later expiry, but
/// takes the number for a negative one, and the item is gone.
const MEMCACHED_EXPIRY_MAX: u32 = i32::MAX as u32;
/// memcached takes greater numbers for -1.
const TAPETUM_EXPIRY_MAX: u32 = u32::MAX - 1;

impl WireSink {
    /// # Errors
    /// If the server does not say which software it is.
    pub fn new(stream: Box<dyn RemoteStream>, existing: Existing) -> io::Result<WireSink> {
        let mut stream = BufReader::new(stream);
        stream.get_mut().write_all(b"version\r\n")?;
        let mut version = String::new();
        if stream.read_line(&mut version)? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let expiry_max = if version.contains("tapetum") { TAPETUM_EXPIRY_MAX } else { MEMCACHED_EXPIRY_MAX };
        let (unsent, waiting) = (Vec::new(), VecDeque::new());
        Ok(WireSink { stream, existing, unsent, waiting, expiry_max, cut_expiries: 0 })
    }

    fn exchange(&mut self, verdicts: &mut Vec<(u64, Verdict)>) -> io::Result<Result<(), Failure>> {
        self.stream.get_mut().write_all(&self.unsent)?;
        self.stream.get_mut().flush()?;
        self.unsent.clear();
        let mut answer = String::new();
        while let Some(number) = self.waiting.pop_front() {
            answer.clear();
            if self.stream.read_line(&mut answer)? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            let answer = answer.trim_end();
            if answer == "STORED" {
                verdicts.push((number, Verdict::Stored));
            } else if answer == "NOT_STORED" && self.existing == Existing::Keep {
                verdicts.push((number, Verdict::Kept));
            } else if answer.starts_with("SERVER_ERROR object too large") {
                let why = "the value is larger than the server takes: split it, or start the server with a larger limit (tapetum serve \
                           --item-size, to 16MiB; memcached -I)";
                verdicts.push((number, Verdict::Bad(why.into())));
            } else if answer.starts_with("SERVER_ERROR out of memory") {
                let why = "the server is full: give it more room (its log names the option), then load again";
                return Ok(Err(Failure::at(number, why.into())));
            } else {
                return Ok(Err(Failure::at(number, format!("the server answered {answer:?}"))));
            }
        }
        Ok(Ok(()))
    }
}

impl Sink for WireSink {
    fn put(&mut self, number: u64, item: ItemRow, verdicts: &mut Vec<(u64, Verdict)>) -> Result<(), Failure> {
        let ItemRow { key, value, flags, expiry } = item;
        if !is_of_memcached(&key) {
            let why = "memcached carries keys of at most 250 bytes, without spaces and control characters";
            verdicts.push((number, Verdict::Bad(why.into())));
            return Ok(());
        }
        self.cut_expiries += u64::from(expiry.secs() > self.expiry_max && self.expiry_max == MEMCACHED_EXPIRY_MAX);
        let head = format!(" {flags} {} {}\r\n", exptime(expiry.secs().min(self.expiry_max)), value.len());
        let command: &[u8] = match self.existing {
            Existing::Replace => b"set ",
            Existing::Keep => b"add ",
        };
        for part in [command, &key, head.as_bytes(), &value, b"\r\n"] {
            self.unsent.extend_from_slice(part);
        }
        self.waiting.push_back(number);
        // The outstanding answers fit into any socket's buffer, so the two sides cannot wait for each other.
        if self.unsent.len() >= IN_FLIGHT_BYTES / 8 || self.waiting.len() >= IN_FLIGHT_ITEMS {
            return self.finish(verdicts);
        }
        Ok(())
    }

    fn finish(&mut self, verdicts: &mut Vec<(u64, Verdict)>) -> Result<(), Failure> {
        let lost = |error| Failure {
            number: None,
            why: format!("the server does not answer any more: {error}; look into its log, then load again"),
        };
        self.exchange(verdicts).map_err(lost)?
    }

    fn warnings(&self) -> Option<String> {
        let count = self.cut_expiries;
        (count > 0).then(|| {
            let expire = if count == 1 { "item expires" } else { "items expire" };
            format!("{count} {expire} after 2038-01-19 03:14:07 UTC, the last time that memcached can keep, and so at that time there")
        })
    }
}

/// An expiry in memcached's form. memcached takes numbers up to 30 days as seconds from now, so times in 1970 are sent as passed.
fn exptime(expiry: u32) -> i64 {
    match expiry {
        1..=2_592_000 => -1,
        other => i64::from(other),
    }
}

/// Logs the sink's warning, if it has one.
pub fn warn(sink: &dyn Sink) {
    if let Some(told) = sink.warnings() {
        tracing::warn!("{told}");
    }
}

#[derive(Debug, Default, PartialEq, Eq)]
pub struct Loaded {
    pub items: u64,
    /// The items whose expiry had passed. Each removes the key's older value, and nobody sees it.
    pub expired: u64,
    pub bad_lines: u64,
}

/// Loads `path`, or standard input, into `sink`.
pub fn load(
    path: Option<&Path>,
    format: Option<Format>,
    skip_bad: bool,
    sink: &mut dyn Sink,
) -> Result<Loaded, String> {
    let format = format.or_else(|| Format::of_name(path?)).unwrap_or(Format::Tsv);
    let Some(path) = path else {
        return load_text(io::stdin().lock(), "the standard input", format, skip_bad, progress(None), sink);
    };
    let file = open_file(path)?;
    let metadata = file.metadata().map_err(cannot_read(path))?;
    let length_bytes = metadata.is_file().then_some(metadata.len());
    let input = BufReader::with_capacity(1 << 20, file);
    load_text(input, &path.display().to_string(), format, skip_bad, progress(length_bytes), sink)
}

/// An error if the file cannot be opened. A file that can be read only once, such as a pipe, is not opened.
pub fn check_file(path: &Path) -> Result<(), String> {
    let metadata = path.metadata().map_err(cannot_read(path))?;
    if metadata.is_dir() {
        return Err(format!("{} is a folder: give a file of items", path.display()));
    }
    if metadata.is_file() { open_file(path).map(drop) } else { Ok(()) }
}

fn open_file(path: &Path) -> Result<File, String> {
    File::open(path).map_err(cannot_read(path))
}

fn cannot_read(path: &Path) -> impl Fn(io::Error) -> String {
    move |error| format!("cannot read {}: {error}", path.display())
}

/// Loads a text, which may begin with a byte order mark. A text in another encoding than UTF-8 is refused whole.
fn load_text(
    mut input: impl BufRead,
    shown: &str,
    format: Format,
    skip_bad: bool,
    bar: ProgressBar,
    sink: &mut dyn Sink,
) -> Result<Loaded, String> {
    let begin = text_file::take_mark(&mut input).map_err(|why| format!("cannot read {shown}: {why}"))?;
    Lines::new(io::Read::chain(&begin[..], input), format, skip_bad, bar).load(sink)
}

/// A progress bar, shown only on a terminal.
fn progress(length_bytes: Option<u64>) -> ProgressBar {
    if !io::stderr().is_terminal() {
        return ProgressBar::with_draw_target(length_bytes, ProgressDrawTarget::hidden());
    }
    let (bar, template) = match length_bytes {
        Some(bytes) => (ProgressBar::new(bytes), "{wide_bar} {percent}% {binary_bytes_per_sec}, {msg}, {eta} left"),
        None => (ProgressBar::new_spinner(), "{spinner} {binary_bytes}, {binary_bytes_per_sec}, {msg}"),
    };
    match ProgressStyle::with_template(template) {
        Ok(style) => bar.with_style(style),
        Err(_) => bar,
    }
}

struct Lines<R> {
    input: R,
    format: Format,
    skip_bad: bool,
    bar: ProgressBar,
    loaded: Loaded,
    /// Unix seconds.
    began_ms: u64,
    /// Lines that were taken, and those of them that a verdict has come for.
    taken: u64,
    judged: u64,
    verdicts: Vec<(u64, Verdict)>,
}

impl<R: BufRead> Lines<R> {
    fn new(input: R, format: Format, skip_bad: bool, bar: ProgressBar) -> Lines<R> {
        let (loaded, began_ms) = (Loaded::default(), Env::system().unix_millis());
        Lines { input, format, skip_bad, bar, loaded, began_ms, taken: 0, judged: 0, verdicts: Vec::new() }
    }

    fn load(mut self, sink: &mut dyn Sink) -> Result<Loaded, String> {
        let outcome = self.load_lines(sink);
        // Items in flight are stored anyway, and counted.
        let finished = sink.finish(&mut self.verdicts).map_err(in_words);
        let outcome = outcome.and(finished).and(self.judge()).and_then(|()| self.expect_all_judged());
        self.bar.finish_and_clear();
        let stored = |why| format!("{why}; items stored before it: {}", self.loaded.items);
        outcome.map_err(stored)?;
        warn(sink);
        Ok(self.loaded)
    }

    fn load_lines(&mut self, sink: &mut dyn Sink) -> Result<(), String> {
        let mut line = Vec::new();
        let mut position_bytes = 0;
        for number in 1.. {
            let read = read_line(&mut self.input, &mut line);
            let read = read.map_err(|error| format!("line {number} cannot be read: {error}"))?;
            if read == 0 {
                return Ok(());
            }
            position_bytes += read;
            let text = line.strip_suffix(b"\n").unwrap_or(&line);
            let text = text.strip_suffix(b"\r").unwrap_or(text);
            self.taken += u64::from(!text.is_empty());
            if line.len() > LINE_BYTES_MAX {
                self.verdicts.push((number, Verdict::Bad("it is longer than any item".into())));
            } else if !text.is_empty() {
                match item_lines::parse(self.format, text) {
                    Ok(item) => {
                        self.loaded.expired += u64::from(item.expiry.has_passed(self.began_ms));
                        sink.put(number, item, &mut self.verdicts).map_err(in_words)?;
                    }
                    Err(why) => self.verdicts.push((number, Verdict::Bad(why))),
                }
            }
            self.judge()?;
            if number % 1024 == 0 {
                self.bar.set_position(position_bytes);
                self.bar.set_message(format!("{} items", self.loaded.items));
            }
        }
        Ok(())
    }

    /// An error if an item has no verdict.
    fn expect_all_judged(&self) -> Result<(), String> {
        let Lines { taken, judged, .. } = self;
        match taken == judged {
            true => Ok(()),
            false => Err(format!("of {taken} items {judged} were answered for: load them again")),
        }
    }

    /// Counts the verdicts. Returns the first bad line, if a bad line is an error.
    fn judge(&mut self) -> Result<(), String> {
        let mut outcome = Ok(());
        self.judged += self.verdicts.len() as u64;
        for (line, verdict) in self.verdicts.drain(..) {
            match verdict {
                Verdict::Stored => self.loaded.items += 1,
                Verdict::Kept => unreachable!("a load writes over what there is"),
                Verdict::Bad(why) if self.skip_bad => {
                    self.loaded.bad_lines += 1;
                    if self.loaded.bad_lines <= BAD_LINES_TOLD {
                        self.bar.suspend(|| {
                            // An error of standard error is ignored: the count is reported as well.
                            let _ = writeln!(io::stderr(), "line {line} is left out: {why}");
                        });
                    }
                }
                Verdict::Bad(why) => {
                    let told = format!("line {line}: {why}; correct it, or leave out bad lines with --skip-bad");
                    outcome = outcome.and(Err(told));
                }
            }
        }
        outcome
    }
}

fn in_words(failure: Failure) -> String {
    failure.told("line")
}

/// Reads a line with its end. Returns its length in bytes. A line that is too long is cut off in `line`, but is too long there as well.
fn read_line(input: &mut impl BufRead, line: &mut Vec<u8>) -> io::Result<u64> {
    line.clear();
    let mut read = 0;
    loop {
        let chunk = match input.fill_buf() {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            other => other?,
        };
        let end = chunk.iter().position(|&byte| byte == b'\n').map(|at| at + 1);
        let taken = end.unwrap_or(chunk.len());
        if line.len() <= LINE_BYTES_MAX {
            line.extend_from_slice(&chunk[..taken]);
        }
        input.consume(taken);
        read += taken as u64;
        if end.is_some() || taken == 0 {
            return Ok(read);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixStream;

    #[derive(Default)]
    struct LoadedMemory {
        items: Vec<(u64, Vec<u8>)>,
        waiting: Vec<(u64, Verdict)>,
    }

    /// Answers late, and rejects the keys in `bad`.
    impl Sink for LoadedMemory {
        fn put(&mut self, line: u64, item: ItemRow, verdicts: &mut Vec<(u64, Verdict)>) -> Result<(), Failure> {
            verdicts.append(&mut self.waiting);
            match &item.key[..] {
                b"bad" => self.waiting.push((line, Verdict::Bad("it is bad".into()))),
                b"fatal" => return Err(Failure::at(line, "no room".into())),
                _ => {
                    self.items.push((line, item.key.clone()));
                    self.waiting.push((line, Verdict::Stored));
                }
            }
            Ok(())
        }

        fn finish(&mut self, verdicts: &mut Vec<(u64, Verdict)>) -> Result<(), Failure> {
            verdicts.append(&mut self.waiting);
            Ok(())
        }
    }

    fn load(input: &[u8], skip_bad: bool) -> (Result<Loaded, String>, LoadedMemory) {
        let mut memory = LoadedMemory::default();
        let lines = Lines::new(input, Format::Tsv, skip_bad, ProgressBar::hidden());
        (lines.load(&mut memory), memory)
    }

    #[test]
    fn an_expiry_is_sent_so_that_memcached_takes_it_for_a_time() {
        assert_eq!([0, 1, 2_592_000, 2_592_001, 4_000_000_000].map(exptime), [0, -1, -1, 2_592_001, 4_000_000_000]);
    }

    /// The command that a sink sends for an item with this expiry to a server of this version, and whether it warns.
    fn sent(version: &str, expiry: u32) -> (String, bool) {
        let expiry = tapetum::Expiry::from_secs(expiry);
        let (mut server, client) = UnixStream::pair().unwrap();
        server.write_all(format!("VERSION {version}\r\nSTORED\r\n").as_bytes()).unwrap();
        let mut sink = WireSink::new(Box::new(client), Existing::Replace).unwrap();
        let (item, mut verdicts) = (ItemRow { key: b"k".into(), expiry, ..ItemRow::default() }, Vec::new());
        assert!(sink.put(1, item, &mut verdicts).is_ok() && sink.finish(&mut verdicts).is_ok());
        assert!(matches!(verdicts[..], [(1, Verdict::Stored)]));
        let warns = sink.warnings().is_some();
        drop(sink);
        let mut sent = String::new();
        io::Read::read_to_string(&mut server, &mut sent).unwrap();
        (sent.lines().nth(1).unwrap().to_owned(), warns)
    }

    #[test]
    fn an_expiry_that_memcached_cannot_keep_is_its_last_one_there_and_told() {
        for (version, expiry, line, warns) in [
            ("1.6.18", 2_147_483_647, "set k 0 2147483647 0", false),
            ("1.6.18", 2_147_483_648, "set k 0 2147483647 0", true),
            ("1.6.18", u32::MAX, "set k 0 2147483647 0", true),
            ("1.6.18", 0, "set k 0 0 0", false),
            ("1.6.18-tapetum-0.1.0", 4_000_000_000, "set k 0 4000000000 0", false),
            ("1.6.18-tapetum-0.1.0", u32::MAX, "set k 0 4294967294 0", false),
        ] {
            assert_eq!(sent(version, expiry), (line.to_owned(), warns));
        }
    }

    #[test]
    fn lines_end_in_any_way_and_empty_ones_do_not_count() {
        let (loaded, memory) = load(b"a\t1\r\n\nb\t2\n\r\nc\t3", false);
        assert_eq!(loaded, Ok(Loaded { items: 3, expired: 0, bad_lines: 0 }));
        let lines: Vec<u64> = memory.items.iter().map(|item| item.0).collect();
        assert_eq!(lines, [1, 3, 5]);
    }

    #[test]
    fn items_that_have_expired_are_counted() {
        let input =
            b"{\"key\":\"a\",\"value\":\"1\",\"expiry\":1}\n{\"key\":\"b\",\"value\":\"1\",\"expiry\":4294967294}\n";
        let lines = Lines::new(&input[..], Format::Jsonl, false, ProgressBar::hidden());
        assert_eq!(lines.load(&mut LoadedMemory::default()), Ok(Loaded { items: 2, expired: 1, bad_lines: 0 }));
    }

    #[test]
    fn a_byte_order_mark_is_no_part_of_the_first_key() {
        let load = |input: &[u8], format| {
            let mut memory = LoadedMemory::default();
            (load_text(input, "a file", format, true, ProgressBar::hidden(), &mut memory), memory.items)
        };
        for (format, text) in
            [(Format::Tsv, "fruit\tred\r\n"), (Format::Jsonl, "{\"key\":\"fruit\",\"value\":\"red\"}\n")]
        {
            let (loaded, items) = load(&[b"\xef\xbb\xbf", text.as_bytes()].concat(), format);
            assert_eq!(
                (loaded, items),
                (Ok(Loaded { items: 1, expired: 0, bad_lines: 0 }), vec![(1, b"fruit".to_vec())])
            );
        }
        let (loaded, items) = load(b"\xff\xfef\0\t\0x\0\n\0", Format::Tsv);
        let error = loaded.unwrap_err();
        assert!(error.contains("a file: ") && error.contains("UTF-16LE") && error.contains("iconv"), "{error}");
        assert!(items.is_empty());
    }

    #[test]
    fn bad_lines_end_the_load_or_are_counted() {
        let input = b"a\t1\nnonsense\nbad\t1\nb\t2\n";
        let error = load(input, false).0.unwrap_err();
        assert!(error.starts_with("line 2: ") && error.contains("--skip-bad; items stored before it: 1"), "{error}");
        assert_eq!(load(input, true).0, Ok(Loaded { items: 2, expired: 0, bad_lines: 2 }));
        let error = load(b"a\t1\nbad\t1\n", false).0.unwrap_err();
        assert!(error.starts_with("line 2: it is bad"), "{error}");
        let error = load(b"a\t1\nfatal\t1\nb\t1\n", true).0.unwrap_err();
        assert_eq!(error, "line 2: no room; items stored before it: 1");
    }

    #[test]
    fn a_line_longer_than_any_item_is_passed_over_in_bounded_memory() {
        let long = io::Read::take(io::repeat(b'x'), 3 * LINE_BYTES_MAX as u64);
        let input = io::Read::chain(long, &b"\nb\t2\n"[..]);
        let mut memory = LoadedMemory::default();
        let lines = Lines::new(BufReader::new(input), Format::Tsv, true, ProgressBar::hidden());
        assert_eq!(lines.load(&mut memory), Ok(Loaded { items: 1, expired: 0, bad_lines: 1 }));
    }
}
