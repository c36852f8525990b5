//! `list`, `dump` and `scan`: the keys of a keyspace, or its items, as lines that `load` reads. In no order that means anything where the
//! keyspace is hashed, and in the order of the keys where it is ordered.

use std::error::Error;
use std::io::{self, IsTerminal, Write};

use indicatif::{ProgressBar, ProgressStyle};
use tapetum_kernels::scan::Scalar;
use tapetum_service::caller::{Caller, CallerLeft};
use tapetum_service::reply::{KeyRow, Reply};

use super::item_lines::{self, Format};
use super::key_text::KeyText;

/// Bytes of lines that are gathered before they are written.
const BATCH_BYTES: usize = 1 << 20;

/// How a line is made of what comes.
pub enum LineShape {
    Items(Format),
    /// Keys, and what is known of their values if that is wanted.
    Keys {
        keys: KeyText,
        is_long: bool,
    },
}

/// Takes items or keys, and prints a line of each.
pub struct LinesCaller<'a> {
    shape: LineShape,
    out: &'a mut dyn Write,
    text: Vec<u8>,
    bar: ProgressBar,
    printed: u64,
    pub counted: u64,
    failed: Option<io::Error>,
}

impl<'a> LinesCaller<'a> {
    pub fn new(shape: LineShape, out: &'a mut dyn Write) -> LinesCaller<'a> {
        LinesCaller { shape, out, text: Vec::new(), bar: progress(), printed: 0, counted: 0, failed: None }
    }

    /// Prints what is left; the error of the output, or that of `asked`.
    pub fn finish(mut self, asked: Result<(), Box<dyn Error>>) -> Result<(), Box<dyn Error>> {
        self.bar.finish_and_clear();
        // Lines that came before an error hold.
        self.write();
        match self.failed {
            // A reader that has closed the output (`| head`) has seen enough.
            Some(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
            Some(error) => Err(error.into()),
            None => asked,
        }
    }

    fn write(&mut self) {
        let written = self.out.write_all(&self.text).and_then(|()| self.out.flush());
        self.failed = self.failed.take().or(written.err());
        self.text.clear();
    }
}

/// Appends a line with a key, and, if wanted, the bytes of its value, flags and expiry.
fn write_key(keys: &KeyText, row: &KeyRow, is_long: bool, text: &mut Vec<u8>) {
    keys.print(&row.key, text);
    if is_long {
        text.extend_from_slice(format!("\t{}\t{}\t{}", row.value_bytes, row.flags, row.expiry).as_bytes());
    }
    text.push(b'\n');
}

impl Caller for LinesCaller<'_> {
    fn take(&mut self, reply: Reply) -> Result<(), CallerLeft> {
        match (reply, &self.shape) {
            (Reply::Items(items), LineShape::Items(format)) => {
                items.iter().for_each(|item| item_lines::write(*format, item, &mut self.text));
                self.printed += items.len() as u64;
                self.bar.set_position(self.printed);
            }
            (Reply::Keys(rows), LineShape::Keys { keys, is_long }) => {
                rows.iter().for_each(|row| write_key(keys, row, *is_long, &mut self.text));
            }
            (Reply::Progress { done, .. }, _) => self.bar.set_position(done),
            (Reply::Count(count), _) => self.counted = count,
            _ => {}
        }
        if self.text.len() >= BATCH_BYTES {
            self.write();
        }
        if self.failed.is_some() { Err(CallerLeft) } else { Ok(()) }
    }

    fn row(&mut self, _values: &[Option<Scalar<'_>>]) {}

    fn has_left(&mut self) -> bool {
        self.failed.is_some()
    }
}

/// A count of items where someone looks at it, and no line of the items goes to the same place.
fn progress() -> ProgressBar {
    if !io::stderr().is_terminal() || io::stdout().is_terminal() {
        return ProgressBar::hidden();
    }
    let bar = ProgressBar::new_spinner();
    match ProgressStyle::with_template("{spinner} {human_pos} items, {per_sec}") {
        Ok(style) => bar.with_style(style),
        Err(_) => bar,
    }
}
