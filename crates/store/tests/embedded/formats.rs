//! Stores that this version does not open, since an earlier one made them.

use super::fixtures::{assert_store_is_whole, unpacked};
use std::fs;
use std::io::Cursor;
use tapetum::repair::{self, Keeper};
use tapetum::{Error, OpenError, Options, Place, Store, inspect_at};

/// Made by the binary of commit 5b1bba4, the last of format 5: `tapetum serve --capacity 2MiB --write-buffer 64KiB`, 65 items in a
/// segment and in the log, closed cleanly. Compressed with `zstd -19`.
const FORMAT_5: &[u8] = include_bytes!("../fixtures/format-5.zst");
/// Made as [`super::fixtures`] says, at commit 47fa412d, the last of format 6; closed cleanly.
const FORMAT_6: &[u8] = include_bytes!("../fixtures/format-6.zst");

/// Made as [`super::fixtures`] says: one closed cleanly, one not. What this version opens it opens for as long as its superblock says so.
const FORMAT_7: [(&[u8], bool); 2] =
    [(include_bytes!("../fixtures/format-7.zst"), false), (include_bytes!("../fixtures/format-7-killed.zst"), true)];

struct NoKeeper;

impl Keeper for NoKeeper {
    fn keep(&mut self, _offset: u64, _bytes: &[u8]) -> Result<(), Error> {
        panic!("nothing is replaced")
    }

    fn sync(&mut self) -> Result<(), Error> {
        panic!("nothing is replaced")
    }

    fn end(&mut self, _store_id: u64, _roots_bytes: u64) -> Result<(), Error> {
        panic!("no repair begins")
    }
}

#[test]
fn a_store_of_an_earlier_format_is_refused_with_what_to_do_and_left_as_it_is() {
    for (number, packed) in [(5, FORMAT_5), (6, FORMAT_6)] {
        refused_and_left_as_it_is(number, packed);
    }
}

fn refused_and_left_as_it_is(number: u32, packed: &[u8]) {
    let bytes = zstd::decode_all(Cursor::new(packed)).unwrap();
    let directory = crate::common::folder::Folder::new("formats");
    let drive = directory.join("drive");
    fs::write(&drive, &bytes).unwrap();
    let (options, place) = (Options::new().memory_bytes(32 << 20), Place::from(&*directory));
    let refusals = [
        Store::open(&*directory).err(),
        options.clone().capacity_bytes(64 << 20).open(&*directory).err(),
        Store::open_read_only(&*directory).err(),
        inspect_at(&place).err(),
        options.examine(&place, Store::open_read_only_on).err(),
        options.examine(&place, |drive, _| repair::look(drive)).err(),
        options.operate(&place, |drive| repair::repair(drive, &mut NoKeeper)).err(),
        options.grow(&place, 64 << 20).err(),
    ];
    for refusal in refusals {
        let Some(OpenError::Store { error: Error::OtherFormat(refusal), .. }) = refusal else { panic!("{refusal:?}") };
        for part in [
            &format!("format {number}"),
            "`tapetum dump` of the tapetum",
            "`tapetum load` of this one",
            "nothing was written",
        ] {
            assert!(refusal.contains(part), "{refusal}");
        }
    }
    assert!(fs::read(&drive).unwrap() == bytes);
}

#[test]
fn a_store_of_format_7_is_opened_and_whole() {
    for (packed, is_killed) in FORMAT_7 {
        let directory = crate::common::folder::Folder::new(&format!("format-7-{is_killed}"));
        fs::write(directory.join("drive"), unpacked(packed)).unwrap();
        let options = Options::new().memory_bytes(32 << 20);
        // A read without writing shows the same as an opening, and a second one.
        assert_store_is_whole(&options.open_read_only(&*directory).unwrap(), is_killed);
        for _ in 0..2 {
            let store = options.open(&*directory).unwrap();
            assert_store_is_whole(&store, is_killed);
            store.close().unwrap();
        }
    }
}
