//! The bounds of bytes that cross between host and drive: `cargo x figures crossing` prints the whole table.

use std::path::PathBuf;
use tapetum_bench::crossing::{Load, measure};

/// Operations whose bound is not met yet.
const NOT_MET: [&str; 3] = ["hashed: delete", "ordered: write of a batch of 32", "ordered: an item of a scan of 100"];

#[test]
fn no_more_crosses_than_an_operation_needs() {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("crossing-{}", std::process::id()));
    let load = Load { items: 2000, value_bytes: 1000, capacity_bytes: 256 << 20, memory_bytes: 64 << 20 };
    let table = measure(&folder, load).unwrap();
    std::fs::remove_dir_all(&folder).unwrap();
    table.iter().for_each(|row| println!("{row:?}"));
    let missed: Vec<&str> = table.iter().filter(|row| !row.is_met()).map(|row| &row.name[..]).collect();
    assert_eq!(missed, NOT_MET);
}
