//! The list of hot keys: what is written reads back, what is damaged does not, and anything is borne.

use std::io::Cursor;

use tapetum::KeyDigest;
use tapetum::fuzzing::Input;
use tapetum_server::store::hot_keys::list::{ListReader, ListWriter};

const STORE: u64 = 7;

pub fn list(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    match input.u8() & 1 {
        0 => written(&mut input),
        _ => drop(read(input.rest())),
    }
}

/// All keys of what passes for a list, which are as many as it says.
fn read(bytes: &[u8]) -> Option<Vec<KeyDigest>> {
    let mut reader = ListReader::new(bytes, bytes.len() as u64, STORE).ok()?;
    let mut keys = Vec::new();
    while reader.next(&mut keys, 1).ok()? {}
    assert_eq!(keys.len() as u64, reader.keys());
    Some(keys)
}

/// Mostly a few; one in sixteen fills up to three blocks.
fn repeats(byte: u8) -> usize {
    match byte {
        0..240 => usize::from(byte) * 2,
        _ => usize::from(byte - 240) * 900,
    }
}

/// Writes a list of keys, reads it, and reads it with one byte changed or with its end cut off.
fn written(input: &mut Input<'_>) {
    let (repeats, at, mask) = (repeats(input.u8()), usize::from(input.u16()), input.u8());
    let mut keys = Vec::new();
    while !input.is_empty() {
        keys.push(KeyDigest(u128::from(input.u64()) << 64 | u128::from(input.u64())));
    }
    // More than a block of them.
    let more = keys.first().copied();
    keys.extend(more.into_iter().flat_map(|KeyDigest(key)| (0..repeats).map(move |n| KeyDigest(key ^ n as u128))));
    let mut writer = ListWriter::new(Cursor::new(Vec::new()), STORE).expect("memory takes all");
    keys.iter().for_each(|key| writer.push(*key).expect("memory takes all"));
    let (out, count) = writer.finish().expect("memory takes all");
    assert_eq!(count, keys.len() as u64);
    let mut list = out.into_inner();
    assert_eq!(read(&list), Some(keys));
    let at = at % list.len();
    assert_eq!(read(&list[..at]), None);
    list[at] ^= mask;
    assert_eq!(read(&list).is_some(), mask == 0);
}
