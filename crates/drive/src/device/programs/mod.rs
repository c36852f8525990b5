//! The built-in programs.

pub mod betweenness;
mod digests;
pub mod extension;
pub mod fields;
#[cfg(feature = "images")]
mod images;
pub mod match_fields;
pub mod match_record;
pub mod node;
pub mod own_pages;
mod replaced_keys;
pub mod scan;
mod transforms;

use crate::device::program::{Program, TaskState};
use crate::protocol::{PipelineFailure, PipelineReason, Status};
use std::cell::RefCell;
use tapetum_kernels::codec::Decompressor;

pub use digests::{Crc32cProgram, Sha256Program};
pub use transforms::{
    CRC32C_CHECK, Concat, Crc32cCheck, SnappyCompress, SnappyDecompress, WHOLE_BYTES_MAX, ZSTD_DECOMPRESS,
    ZstdCompress, ZstdDecompress,
};

/// The input is damaged: its parts do not match each other.
pub const CORRUPT: Status = Status::Program(2);
/// The output is too small: the result's first word says how many bytes it takes.
pub const OUTPUT_SHORT: Status = Status::Program(3);
/// The input is longer than the program takes.
pub const TOO_LARGE: Status = Status::Program(4);
/// A status above this says how many pages of room the output needs: the status minus this.
const NEEDS_ROOM: u16 = 0x8000;
const ROOM_PAGE_BYTES: usize = 4096;

/// The output needs so many bytes, and has less room: the caller retries with as much. Beyond some 128 MiB, [`TOO_LARGE`].
pub fn needs_room(bytes: usize) -> Status {
    let pages = u16::try_from(bytes.div_ceil(ROOM_PAGE_BYTES)).ok().filter(|pages| *pages < u16::MAX - NEEDS_ROOM);
    pages.map_or(TOO_LARGE, |pages| Status::Program(NEEDS_ROOM + pages))
}

/// The bytes of output that a failure asks for, if the output was too small.
pub fn room_needed(failure: &PipelineFailure) -> Option<usize> {
    let pages = failure.detail.checked_sub(NEEDS_ROOM.into()).filter(|pages| *pages < u32::from(u16::MAX - NEEDS_ROOM));
    let pages = pages.filter(|_| failure.reason == PipelineReason::Program)?;
    Some(pages as usize * ROOM_PAGE_BYTES)
}

/// The built-in programs, including those over pictures with the feature `images`.
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
        Box::new(node::NodeScan),
        Box::new(node::NodeRealign),
        Box::new(node::NodeSplit),
        Box::new(node::NodeSplitRest),
        Box::new(node::NodeMerge),
        Box::new(scan::ScanProgram),
        Box::new(betweenness::BetweennessProgram),
        Box::new(fields::FieldsProgram),
        Box::new(match_fields::MatchFields),
        Box::new(extension::ExtensionProgram),
        Box::new(own_pages::OwnPagesProgram),
    ];
    #[cfg(feature = "images")]
    programs.extend(images::image_programs());
    programs
}

thread_local! {
    static DECOMPRESSOR: RefCell<Option<Decompressor>> = const { RefCell::new(None) };
}

/// Fills `value` from a frame, which must inflate to exactly its length.
fn inflate(frame: &[u8], value: &mut [u8]) -> bool {
    DECOMPRESSOR.with_borrow_mut(|slot| {
        if slot.is_none() {
            *slot = Decompressor::new().ok();
        }
        slot.as_mut().is_some_and(|decompressor| decompressor.decompress(frame, value).is_ok())
    })
}

/// The state that a program keeps between the runs of a task. The first run makes it; `None` if `begin` fails.
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
