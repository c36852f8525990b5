//! The built-in programs.

pub mod betweenness;
mod digests;
pub mod fields;
#[cfg(feature = "images")]
mod images;
pub mod match_record;
pub mod node;
mod replaced_keys;
pub mod scan;
mod transforms;

use crate::device::program::{Program, TaskState};
use crate::protocol::Status;
use std::cell::RefCell;
use tapetum_kernels::codec::Decompressor;

pub use digests::{Crc32cProgram, Sha256Program};
pub use transforms::{
    CRC32C_CHECK, Concat, Crc32cCheck, SnappyCompress, SnappyDecompress, WHOLE_BYTES_MAX, ZSTD_DECOMPRESS,
    ZstdCompress, ZstdDecompress,
};

/// What was to be read does not hold together.
pub const CORRUPT: Status = Status::Program(2);
/// The output is too small: the result's first word says how many bytes it takes.
pub const OUTPUT_SHORT: Status = Status::Program(3);
/// The input is longer than the program takes.
pub const TOO_LARGE: Status = Status::Program(4);

/// The built-in programs; with the feature `images`, those over pictures too.
pub fn built_in() -> Vec<Box<dyn Program>> {
    #[cfg_attr(not(feature = "images"), expect(unused_mut))]
    let mut programs: Vec<Box<dyn Program>> = vec![
        Box::new(match_record::MatchRecord),
        Box::new(Concat),
        Box::new(Crc32cProgram),
        Box::new(Sha256Program),
        Box::new(SnappyCompress),
        Box::new(SnappyDecompress),
        Box::new(ZstdCompress),
        Box::new(ZstdDecompress),
        Box::new(Crc32cCheck),
        Box::new(node::NodeGet),
        Box::new(node::NodePut),
        Box::new(node::NodeRemove),
        Box::new(node::NodeScan),
        Box::new(node::NodeRealign),
        Box::new(scan::ScanProgram),
        Box::new(betweenness::BetweennessProgram),
        Box::new(fields::FieldsProgram),
    ];
    #[cfg(feature = "images")]
    programs.extend(images::image_programs());
    programs
}

thread_local! {
    static DECOMPRESSOR: RefCell<Option<Decompressor>> = const { RefCell::new(None) };
}

/// Fills `value` from a frame, which must be as long as that.
fn inflate(frame: &[u8], value: &mut [u8]) -> bool {
    DECOMPRESSOR.with_borrow_mut(|slot| {
        if slot.is_none() {
            *slot = Decompressor::new().ok();
        }
        slot.as_mut().is_some_and(|decompressor| decompressor.decompress(frame, value).is_ok())
    })
}

/// What a program keeps between the runs of a task, made by the first of them. `None` where that fails.
fn keep<T: Send + 'static>(task: &mut TaskState, begin: impl FnOnce() -> Option<T>) -> Option<&mut T> {
    if task.kept.is_none() {
        task.kept = Some(Box::new(begin()?));
    }
    task.kept.as_mut()?.downcast_mut()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::PROGRAM_NAME_BYTES;

    #[test]
    fn names_are_apart_and_fit() {
        let mut names: Vec<_> = built_in().iter().map(|program| program.descriptor().name).collect();
        assert!(names.iter().all(|name| (1..=PROGRAM_NAME_BYTES).contains(&name.len())));
        let count = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), count);
    }
}
