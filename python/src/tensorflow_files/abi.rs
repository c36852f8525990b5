//! TensorFlow's C interface of file systems, as far as it is used: layouts are facts of
//! `tensorflow/c/experimental/filesystem/filesystem_interface.h`, of interface 0. Functions that are left out are null, and TensorFlow goes on
//! without them.

use std::ffi::{c_char, c_int, c_void};

/// How something ended; TensorFlow's own.
pub type TfStatus = c_void;

/// A function that is left out.
pub type Absent = Option<unsafe extern "C" fn()>;

/// A file, a memory region or a file system: what it points to is the plugin's.
#[repr(C)]
pub struct TfHandle {
    pub own: *mut c_void,
}

#[repr(C)]
pub struct TfFileStatistics {
    pub length: i64,
    pub modified_ns: i64,
    pub is_directory: bool,
}

const _: () = assert!(size_of::<TfFileStatistics>() == 24);

#[repr(C)]
pub struct TfRandomAccessFileOps {
    pub cleanup: unsafe extern "C" fn(*mut TfHandle),
    pub read: unsafe extern "C" fn(*const TfHandle, u64, usize, *mut c_char, *mut TfStatus) -> i64,
}

const _: () = assert!(size_of::<TfRandomAccessFileOps>() == 2 * 8);

pub type OnFile = unsafe extern "C" fn(*const TfHandle, *mut TfStatus);

#[repr(C)]
pub struct TfWritableFileOps {
    pub cleanup: unsafe extern "C" fn(*mut TfHandle),
    pub append: unsafe extern "C" fn(*const TfHandle, *const c_char, usize, *mut TfStatus),
    pub tell: unsafe extern "C" fn(*const TfHandle, *mut TfStatus) -> i64,
    pub flush: OnFile,
    pub sync: OnFile,
    pub close: OnFile,
}

const _: () = assert!(size_of::<TfWritableFileOps>() == 6 * 8);

pub type OnPath = unsafe extern "C" fn(*const TfHandle, *const c_char, *mut TfStatus);
pub type NewFile = unsafe extern "C" fn(*const TfHandle, *const c_char, *mut TfHandle, *mut TfStatus);

#[repr(C)]
pub struct TfFilesystemOps {
    pub init: unsafe extern "C" fn(*mut TfHandle, *mut TfStatus),
    pub cleanup: unsafe extern "C" fn(*mut TfHandle),
    pub new_random_access_file: NewFile,
    pub new_writable_file: NewFile,
    pub new_appendable_file: NewFile,
    pub new_read_only_memory_region_from_file: Absent,
    pub create_dir: OnPath,
    pub recursively_create_dir: OnPath,
    pub delete_file: OnPath,
    pub delete_dir: OnPath,
    pub delete_recursively: Absent,
    pub rename_file: unsafe extern "C" fn(*const TfHandle, *const c_char, *const c_char, *mut TfStatus),
    pub copy_file: Absent,
    pub path_exists: OnPath,
    pub paths_exist: Absent,
    pub stat: unsafe extern "C" fn(*const TfHandle, *const c_char, *mut TfFileStatistics, *mut TfStatus),
    pub is_directory: unsafe extern "C" fn(*const TfHandle, *const c_char, *mut TfStatus) -> bool,
    pub get_file_size: unsafe extern "C" fn(*const TfHandle, *const c_char, *mut TfStatus) -> i64,
    pub translate_name: unsafe extern "C" fn(*const TfHandle, *const c_char) -> *mut c_char,
    pub get_children:
        unsafe extern "C" fn(*const TfHandle, *const c_char, *mut *mut *mut c_char, *mut TfStatus) -> c_int,
    pub get_matching_paths: Absent,
    pub flush_caches: Absent,
    pub transactions: [Absent; 6],
    pub configuration: [Absent; 5],
}

const _: () = assert!(size_of::<TfFilesystemOps>() == 33 * 8);

/// A table of functions, with its version and size.
#[repr(C)]
pub struct TfOps<T> {
    pub abi: c_int,
    pub api: c_int,
    pub bytes: usize,
    pub ops: *mut T,
}

const _: () = assert!(size_of::<TfOps<TfFilesystemOps>>() == 24);

#[repr(C)]
pub struct TfFilesystemPluginOps {
    pub scheme: *mut c_char,
    pub filesystem: TfOps<TfFilesystemOps>,
    pub random_access_file: TfOps<TfRandomAccessFileOps>,
    pub writable_file: TfOps<TfWritableFileOps>,
    pub read_only_memory_region: TfOps<c_void>,
}

const _: () = assert!(size_of::<TfFilesystemPluginOps>() == 104);

#[repr(C)]
pub struct TfFilesystemPluginInfo {
    pub schemes: usize,
    pub ops: *mut TfFilesystemPluginOps,
    pub allocate: unsafe extern "C" fn(usize) -> *mut c_void,
    pub free: unsafe extern "C" fn(*mut c_void),
}

const _: () = assert!(size_of::<TfFilesystemPluginInfo>() == 32);
