//! The lines that `tapetum load` reads and `tapetum dump` writes.

use tapetum::fuzzing::Input;
use tapetum_kernels::expiry::Expiry;
use tapetum_server::tools::item_lines::{Format, parse, write};
use tapetum_service::reply::ItemRow;

/// A parsed item can be written in either format, and reads back unchanged.
pub fn item_lines(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let format = if input.u8() & 1 == 0 { Format::Tsv } else { Format::Jsonl };
    let Ok(item) = parse(format, input.rest()) else { return };
    assert!(!item.key.is_empty());
    let mut line = Vec::new();
    write(Format::Jsonl, &item, &mut line);
    assert_eq!(parse(Format::Jsonl, without_end(&line)), Ok(item.clone()));
    line.clear();
    write(Format::Tsv, &item, &mut line);
    assert_eq!(parse(Format::Tsv, without_end(&line)), Ok(ItemRow { flags: 0, expiry: Expiry::NONE, ..item }));
}

fn without_end(line: &[u8]) -> &[u8] {
    let (end, line) = line.split_last().expect("a line has an end");
    assert!(*end == b'\n' && !line.contains(&b'\n'), "one line");
    line
}
