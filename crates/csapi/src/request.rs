//! Requests of C's, copied from its structs and checked in form. What needs the device is checked when the request runs.

use crate::handles::Handle;
use crate::pointers::{HostBytes, In};
use crate::types::{
    ARGUMENT_MEMORY, ARGUMENT_VALUE_32, ARGUMENT_VALUE_64, BATCH_COMPUTE, BATCH_COPY, BATCH_STORAGE, COPY_FROM_DEVICE,
    COPY_TO_DEVICE, CsBatchRequest, CsBlockIo, CsBlockRange, CsComputeArg, CsComputeRequest, CsCopyMemRequest,
    CsDevAfdm, CsStatus, CsStorageRequest, STORAGE_BLOCK_IO, STORAGE_FILE_IO, STORAGE_LOAD, STORAGE_STORE,
};
use std::mem::{offset_of, size_of};
use tapetum_drive::Identity;

/// Ranges of flash of one request.
pub const RANGES_MAX: usize = 128;
/// Arguments of one compute request.
pub const ARGUMENTS_MAX: usize = 32;

/// A place in device memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryPlace {
    pub memory: Handle,
    pub offset: u64,
}

#[derive(Clone, Copy)]
pub struct CopyRequest {
    pub is_to_device: bool,
    pub host: HostBytes,
    pub at: MemoryPlace,
    pub bytes: u32,
}

/// `lba` and `blocks` are in sectors of the drive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockRange {
    pub lba: u64,
    pub blocks: u32,
}

/// Ranges of flash, and device memory in which they lie one behind the other.
#[derive(Clone, Debug)]
pub struct StorageRequest {
    pub device: Handle,
    pub is_load: bool,
    pub at: MemoryPlace,
    pub ranges: Vec<BlockRange>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Argument {
    Memory(MemoryPlace),
    Value32(u32),
    Value64(u64),
}

#[derive(Clone, Debug)]
pub struct ComputeRequest {
    pub function: u32,
    pub arguments: Vec<Argument>,
}

#[derive(Clone)]
pub enum Request {
    Copy(CopyRequest),
    Storage(StorageRequest),
    Compute(ComputeRequest),
}

impl From<CsDevAfdm> for MemoryPlace {
    fn from(place: CsDevAfdm) -> MemoryPlace {
        MemoryPlace { memory: place.memory, offset: place.byte_offset }
    }
}

impl Request {
    pub fn read_copy(request: In<CsCopyMemRequest>) -> Result<Request, CsStatus> {
        let CsCopyMemRequest { direction, host, at, bytes } = request.read().ok_or(CsStatus::InvalidArg)?;
        let is_to_device = one_of(direction, COPY_TO_DEVICE, COPY_FROM_DEVICE)?;
        if host.is_null() {
            return Err(CsStatus::InvalidArg);
        }
        Ok(Request::Copy(CopyRequest { is_to_device, host, at: at.into(), bytes }))
    }

    pub fn read_storage(request: In<CsStorageRequest>) -> Result<Request, CsStatus> {
        let mode = request.field::<u32>(offset_of!(CsStorageRequest, mode)).read().ok_or(CsStatus::InvalidArg)?;
        match mode {
            STORAGE_BLOCK_IO => {}
            STORAGE_FILE_IO => return Err(CsStatus::Unsupported),
            _ => return Err(CsStatus::InvalidOption),
        }
        let CsStorageRequest { device, block_io, .. } = request.read().ok_or(CsStatus::InvalidArg)?;
        let CsBlockIo { direction, storage_index, at, range_count, .. } = block_io;
        let is_load = one_of(direction, STORAGE_LOAD, STORAGE_STORE)?;
        let count = count_of(range_count, RANGES_MAX)?;
        if storage_index != 0 {
            return Err(CsStatus::InvalidOption);
        }
        let first = offset_of!(CsStorageRequest, block_io) + offset_of!(CsBlockIo, ranges);
        let ranges = request.field::<CsBlockRange>(first).read_array(count).ok_or(CsStatus::InvalidArg)?;
        if ranges.iter().any(|range| range.namespace != Identity::FLASH_NAMESPACE) {
            return Err(CsStatus::InvalidOption);
        }
        let range = |range: CsBlockRange| BlockRange { lba: range.start_lba, blocks: range.blocks };
        let ranges = ranges.into_iter().map(range).collect();
        Ok(Request::Storage(StorageRequest { device, is_load, at: at.into(), ranges }))
    }

    pub fn read_compute(request: In<CsComputeRequest>) -> Result<Request, CsStatus> {
        let function = request.field::<u32>(offset_of!(CsComputeRequest, function)).read();
        let count = request.field::<i32>(offset_of!(CsComputeRequest, argument_count)).read();
        let (Some(function), Some(count)) = (function, count) else { return Err(CsStatus::InvalidArg) };
        let arguments = request.field::<CsComputeArg>(offset_of!(CsComputeRequest, arguments));
        let arguments = arguments.read_array(count_of(count, ARGUMENTS_MAX)?).ok_or(CsStatus::InvalidArg)?;
        let arguments = arguments.iter().map(argument).collect::<Result<Vec<_>, _>>()?;
        Ok(Request::Compute(ComputeRequest { function, arguments }))
    }

    /// Its length must have room for the arrays at its end.
    pub fn read_batch_entry(request: In<CsBatchRequest>) -> Result<Request, CsStatus> {
        let kind = request.field::<u32>(offset_of!(CsBatchRequest, kind)).read();
        let bytes = request.field::<u32>(offset_of!(CsBatchRequest, bytes)).read();
        let (Some(kind), Some(bytes)) = (kind, bytes) else { return Err(CsStatus::InvalidArg) };
        let at = offset_of!(CsBatchRequest, request);
        let room = (bytes as usize).checked_sub(at).ok_or(CsStatus::InvalidLength)?;
        let fits = |needed: usize| if needed <= room { Ok(()) } else { Err(CsStatus::InvalidLength) };
        match kind {
            BATCH_COPY => {
                fits(size_of::<CsCopyMemRequest>())?;
                Request::read_copy(request.field(at))
            }
            BATCH_STORAGE => {
                fits(size_of::<CsStorageRequest>())?;
                let count_at = offset_of!(CsStorageRequest, block_io) + offset_of!(CsBlockIo, range_count);
                let more = more_than_one(request.field(at + count_at), RANGES_MAX)?;
                fits(size_of::<CsStorageRequest>() + more * size_of::<CsBlockRange>())?;
                Request::read_storage(request.field(at))
            }
            BATCH_COMPUTE => {
                fits(size_of::<CsComputeRequest>())?;
                let more =
                    more_than_one(request.field(at + offset_of!(CsComputeRequest, argument_count)), ARGUMENTS_MAX)?;
                fits(size_of::<CsComputeRequest>() + more * size_of::<CsComputeArg>())?;
                Request::read_compute(request.field(at))
            }
            _ => Err(CsStatus::InvalidOption),
        }
    }

    /// The device memory by which its device is found, where it names none.
    pub fn first_memory(&self) -> Option<Handle> {
        match self {
            Request::Copy(CopyRequest { at, .. }) | Request::Storage(StorageRequest { at, .. }) => Some(at.memory),
            Request::Compute(ComputeRequest { arguments, .. }) => {
                arguments.iter().find_map(|argument| match argument {
                    Argument::Memory(place) => Some(place.memory),
                    Argument::Value32(_) | Argument::Value64(_) => None,
                })
            }
        }
    }
}

/// Whether a direction is the first of two.
fn one_of(given: u32, first: u32, second: u32) -> Result<bool, CsStatus> {
    if given == first || given == second { Ok(given == first) } else { Err(CsStatus::InvalidOption) }
}

fn count_of(count: i32, max: usize) -> Result<usize, CsStatus> {
    let count = usize::try_from(count).ok().filter(|count| (1..=max).contains(count));
    count.ok_or(CsStatus::InvalidArg)
}

/// How many more than the one element that the struct itself has.
fn more_than_one(count: In<i32>, max: usize) -> Result<usize, CsStatus> {
    Ok(count_of(count.read().ok_or(CsStatus::InvalidArg)?, max)? - 1)
}

fn argument(argument: &CsComputeArg) -> Result<Argument, CsStatus> {
    match argument.kind {
        ARGUMENT_MEMORY => Ok(Argument::Memory(argument.value.member::<CsDevAfdm>().into())),
        ARGUMENT_VALUE_32 => Ok(Argument::Value32(argument.value.member())),
        ARGUMENT_VALUE_64 => Ok(Argument::Value64(argument.value.member())),
        // Streams and descriptors.
        4 | 5 => Err(CsStatus::Unsupported),
        _ => Err(CsStatus::InvalidOption),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A batch entry of this kind, with these bytes behind its head.
    fn entry(kind: u32, length: u32, rest: &[u8]) -> Vec<u8> {
        [&kind.to_le_bytes(), &length.to_le_bytes(), rest].concat()
    }

    fn read(bytes: &[u8]) -> Result<Request, CsStatus> {
        Request::read_batch_entry(In::over(bytes))
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        /// Under Miri, that nothing is read behind the length.
        #[test]
        fn a_batch_entry_is_read_as_far_as_its_length(
            kind in 0..5_u32, counts in (-1..6_i32, -1..6_i32), mut rest in proptest::collection::vec(any::<u8>(), 0..300),
        ) {
            // The count of arguments, the mode and the count of ranges of a storage request.
            for (at, number) in [(4, counts.0), (0, 1), (40, counts.1)] {
                if let Some(place) = rest.get_mut(at..at + 4) && (kind == BATCH_STORAGE) != (at == 4) {
                    place.copy_from_slice(&number.to_le_bytes());
                }
            }
            let bytes = entry(kind, 8 + rest.len() as u32, &rest);
            if let Ok(Request::Compute(compute)) = read(&bytes) {
                prop_assert!(8 + compute.arguments.len() * size_of::<CsComputeArg>() <= rest.len());
            }
        }
    }

    #[test]
    fn an_entry_has_room_for_its_arrays() {
        let mut compute = vec![0; 8 + 3 * 24];
        compute[0] = 5;
        compute[4] = 3;
        for (place, kind) in [(8, 1), (32, 2), (56, 3)] {
            compute[place] = kind;
            compute[place + 8] = 7;
        }
        let Ok(Request::Compute(request)) = read(&entry(BATCH_COMPUTE, 88, &compute)) else { panic!("it is whole") };
        let memory = Argument::Memory(MemoryPlace { memory: Handle(7), offset: 0 });
        assert_eq!(request.arguments, [memory, Argument::Value32(7), Argument::Value64(7)]);
        assert_eq!(request.function, 5);
        assert!(matches!(read(&entry(BATCH_COMPUTE, 87, &compute)), Err(CsStatus::InvalidLength)));
        assert!(matches!(read(&entry(BATCH_COMPUTE, 7, &compute)), Err(CsStatus::InvalidLength)));
    }
}
