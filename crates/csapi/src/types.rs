//! Structs and numbers of the header, as Rust has them. `include/tapetum_cs.h` has the same, with what they mean; a test compares their sizes.

use crate::handles::Handle;
use crate::pointers::{HostBytes, Union, plain};

/// How a call ended, in the numbers of the header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum CsStatus {
    Success = 0,
    CouldNotMapMemory = 1,
    DeviceError = 2,
    DeviceNotAvailable = 3,
    EntityNotOnDevice = 7,
    ErrorInExecution = 9,
    FatalError = 10,
    HandleInUse = 11,
    InvalidHandle = 12,
    InvalidArg = 13,
    InvalidEvent = 14,
    InvalidLength = 16,
    InvalidOption = 17,
    InvalidFunctionName = 19,
    NoPermissions = 23,
    NotDone = 24,
    NotEnoughMemory = 25,
    NoSuchEntityExists = 26,
    OutOfResources = 27,
    Queued = 28,
    UnknownMemory = 29,
    UnknownComputeFunction = 30,
    Unsupported = 31,
}

pub const COPY_TO_DEVICE: u32 = 1;
pub const COPY_FROM_DEVICE: u32 = 2;
pub const STORAGE_BLOCK_IO: u32 = 1;
pub const STORAGE_FILE_IO: u32 = 2;
pub const STORAGE_LOAD: u32 = 1;
pub const STORAGE_STORE: u32 = 2;
pub const ARGUMENT_MEMORY: u32 = 1;
pub const ARGUMENT_VALUE_32: u32 = 2;
pub const ARGUMENT_VALUE_64: u32 = 3;
pub const BATCH_SERIAL: u32 = 1;
pub const BATCH_COPY: u32 = 1;
pub const BATCH_STORAGE: u32 = 2;
pub const BATCH_COMPUTE: u32 = 3;
pub const MEMORY_KEPT: u32 = 0;
pub const MEMORY_CLEAR: u32 = 1;
pub const NAME_BYTES: usize = 32;

#[repr(C)]
#[derive(Clone, Copy)]
pub struct CsDevAfdm {
    pub memory: Handle,
    pub byte_offset: u64,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct CsMemFlags {
    pub fdm_id: u32,
    pub flags: u32,
    pub fill_value: u32,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct CsCopyMemRequest {
    pub direction: u32,
    pub host: HostBytes,
    pub at: CsDevAfdm,
    pub bytes: u32,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct CsBlockRange {
    pub namespace: u32,
    pub start_lba: u64,
    pub blocks: u32,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct CsBlockIo {
    pub direction: u32,
    pub storage_index: u32,
    pub at: CsDevAfdm,
    pub range_count: i32,
    pub ranges: [CsBlockRange; 1],
}

/// The union is a `CsBlockIo`; C's other member, `CsFileIo`, is smaller, and not supported.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct CsStorageRequest {
    pub mode: u32,
    pub device: Handle,
    pub block_io: CsBlockIo,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct CsComputeArg {
    pub kind: u32,
    pub value: Union<16>,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct CsComputeRequest {
    pub function: u32,
    pub argument_count: i32,
    pub arguments: [CsComputeArg; 1],
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct CsBatchRequest {
    pub kind: u32,
    /// Of the whole request, with the arrays at its end.
    pub bytes: u32,
    pub request: Union<72>,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct CsfUniqueId {
    pub name: [u8; NAME_BYTES],
    pub global_id: u64,
}

/// A function data memory as a function sees it.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct FdmAccess {
    pub fdm_id: u32,
    pub relative_performance: u8,
    pub relative_power: u8,
    pub flags: u64,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct CsfIdInfo {
    pub function: u32,
    pub relative_performance: u8,
    pub count: u8,
    pub fdm_count: u8,
    /// Of the library, for ever.
    pub fdms: &'static FdmAccess,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct CseProperties {
    pub hardware_version: u16,
    pub software_version: u16,
    pub unique_name: [u8; NAME_BYTES],
    pub built_in_functions: u16,
    pub requests_per_batch_max: u32,
    pub function_parameters_max: u32,
    pub concurrent_instances_max: u32,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct CsxProperties {
    pub hardware_version: u16,
    pub software_version: u16,
    pub vendor: u16,
    pub device: u16,
    pub friendly_name: [u8; NAME_BYTES],
    pub cfm_mib: u32,
    pub fdm_mib: u32,
    pub flags: u64,
    pub engine_count: u16,
    pub engines: [CseProperties; 1],
}

/// A namespace, as NVMe identifies it. Not of the standard.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct TapetumNamespace {
    pub number: u32,
    pub command_set: u32,
    pub size: u64,
    pub unit: u32,
    pub reserved: u32,
}

plain!(CsDevAfdm, CsMemFlags, CsCopyMemRequest, CsBlockRange, CsBlockIo, CsStorageRequest, CsComputeArg);
plain!(CsfUniqueId, CseProperties, CsxProperties);

#[cfg(test)]
mod tests {
    use super::*;
    use std::mem::offset_of;

    /// `tests/misuse.c` has the same numbers.
    #[test]
    fn structs_are_as_the_header_has_them() {
        assert_eq!([size_of::<CsDevAfdm>(), size_of::<CsMemFlags>(), size_of::<CsCopyMemRequest>()], [16, 12, 40]);
        assert_eq!([size_of::<CsBlockRange>(), size_of::<CsBlockIo>(), size_of::<CsStorageRequest>()], [24, 56, 72]);
        assert_eq!(
            [size_of::<CsComputeArg>(), size_of::<CsComputeRequest>(), size_of::<CsBatchRequest>()],
            [24, 32, 80]
        );
        assert_eq!([size_of::<CsfUniqueId>(), size_of::<FdmAccess>(), size_of::<CsfIdInfo>()], [40, 16, 16]);
        assert_eq!(
            [size_of::<CseProperties>(), size_of::<CsxProperties>(), size_of::<TapetumNamespace>()],
            [52, 112, 24]
        );
        assert_eq!(offset_of!(CsStorageRequest, block_io) + offset_of!(CsBlockIo, ranges), 48);
        assert_eq!([offset_of!(CsBatchRequest, request), offset_of!(CsComputeRequest, arguments)], [8, 8]);
        assert_eq!(offset_of!(CsxProperties, flags), 48);
    }
}
