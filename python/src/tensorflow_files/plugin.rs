//! The functions that TensorFlow calls. Each reports its result in a status; a panic is reported there too.
//!
//! Paths are C strings that TensorFlow keeps during the call. Memory that TensorFlow is given to keep comes from `malloc`, and it frees it
//! with `free`.

use super::abi::*;
use super::files::{FILE_BYTES_MAX, FileError, FileErrorCode, FileName};
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;
use std::sync::{Mutex, OnceLock, PoisonError};

type SetStatus = unsafe extern "C" fn(*mut TfStatus, c_int, *const c_char);

/// `TF_SetStatus` of the TensorFlow that loads this library.
static SET_STATUS: OnceLock<Option<SetStatus>> = OnceLock::new();

fn set_status() -> Option<SetStatus> {
    *SET_STATUS.get_or_init(|| {
        // SAFETY: the names are C strings. This does not load the library, but only finds it.
        let found = unsafe {
            let framework = libc::dlopen(c"libtensorflow_framework.so.2".as_ptr(), libc::RTLD_NOW | libc::RTLD_NOLOAD);
            let library = if framework.is_null() { libc::RTLD_DEFAULT } else { framework };
            libc::dlsym(library, c"TF_SetStatus".as_ptr())
        };
        // SAFETY: that function has this signature.
        (!found.is_null()).then(|| unsafe { std::mem::transmute::<*mut c_void, SetStatus>(found) })
    })
}

/// # Safety
/// The status is TensorFlow's.
unsafe fn tell(status: *mut TfStatus, code: c_int, told: &str) {
    let told = CString::new(told.replace('\0', " ")).unwrap_or_default();
    if let Some(set) = set_status() {
        // SAFETY: as above; the text is copied.
        unsafe { set(status, code, told.as_ptr()) };
    }
}

/// Runs `work` and reports its result.
///
/// # Safety
/// The status is TensorFlow's.
unsafe fn answer<T>(status: *mut TfStatus, otherwise: T, work: impl FnOnce() -> Result<T, FileError>) -> T {
    let panicked = |_| Err(FileError::new(FileErrorCode::Internal, "it panicked: what it said is on standard error"));
    let (value, code, told) = match catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(panicked) {
        Ok(value) => (value, 0, String::new()),
        Err(error) => (otherwise, error.code as c_int, error.told),
    };
    // SAFETY: the caller's.
    unsafe { tell(status, code, &told) };
    value
}

/// # Safety
/// `path` is a C string.
unsafe fn name_of(path: *const c_char) -> Result<FileName, FileError> {
    // SAFETY: the caller's.
    let text = unsafe { CStr::from_ptr(path) }.to_str();
    let text = text.map_err(|_| FileError::new(FileErrorCode::InvalidArgument, "a name is UTF-8"))?;
    FileName::parse(text)
}

/// A copy in memory from `malloc`.
fn text_of_c(text: &[u8]) -> *mut c_char {
    let text: Vec<u8> = text.iter().copied().take_while(|byte| *byte != 0).chain([0]).collect();
    // SAFETY: `strdup` reads to the zero at the end.
    unsafe { libc::strdup(text.as_ptr().cast()) }
}

/// # Safety
/// `own` is of this type, and alive.
unsafe fn own<'a, T>(handle: *const TfHandle) -> &'a T {
    // SAFETY: the caller's.
    unsafe { &*(*handle).own.cast::<T>() }
}

/// # Safety
/// `own` is from `Box::into_raw` of this type, or null.
unsafe extern "C" fn cleanup<T>(handle: *mut TfHandle) {
    // SAFETY: the caller's.
    let own = unsafe { std::mem::replace(&mut (*handle).own, ptr::null_mut()) };
    if !own.is_null() {
        // SAFETY: as above.
        drop(unsafe { Box::from_raw(own.cast::<T>()) });
    }
}

unsafe extern "C" fn init(_filesystem: *mut TfHandle, status: *mut TfStatus) {
    // SAFETY: TensorFlow's status.
    unsafe { answer(status, (), || Ok(())) }
}

unsafe extern "C" fn cleanup_filesystem(_filesystem: *mut TfHandle) {}

/// A file opened to read. It is small enough to be read whole.
struct FileContent(Vec<u8>);

unsafe extern "C" fn new_random_access_file(
    _filesystem: *const TfHandle,
    path: *const c_char,
    file: *mut TfHandle,
    status: *mut TfStatus,
) {
    // SAFETY: TensorFlow's path, file and status.
    unsafe {
        let opened = answer(status, None, || name_of(path)?.read().map(Some));
        (*file).own = opened.map_or(ptr::null_mut(), |bytes| Box::into_raw(Box::new(FileContent(bytes))).cast());
    }
}

unsafe extern "C" fn read(
    file: *const TfHandle,
    offset: u64,
    count: usize,
    into: *mut c_char,
    status: *mut TfStatus,
) -> i64 {
    // SAFETY: the file is of `new_random_access_file`.
    let FileContent(bytes) = unsafe { own::<FileContent>(file) };
    let rest = usize::try_from(offset).ok().and_then(|offset| bytes.get(offset..)).unwrap_or_default();
    let part = &rest[..count.min(rest.len())];
    // SAFETY: `into` has room for `count` bytes, and is TensorFlow's, as the status is.
    unsafe {
        ptr::copy_nonoverlapping(part.as_ptr().cast(), into, part.len());
        match part.len() < count {
            true => tell(status, FileErrorCode::OutOfRange as c_int, "the file ends there"),
            false => tell(status, 0, ""),
        }
    }
    part.len() as i64
}

/// A file being written. It becomes an item when it is flushed, synced or closed.
struct FileDraft {
    name: FileName,
    bytes: Mutex<(Vec<u8>, bool)>,
}

impl FileDraft {
    fn save(&self) -> Result<(), FileError> {
        let mut held = self.bytes.lock().unwrap_or_else(PoisonError::into_inner);
        if !held.1 {
            self.name.write(&held.0)?;
            held.1 = true;
        }
        Ok(())
    }

    fn append(&self, part: &[u8]) -> Result<(), FileError> {
        let mut held = self.bytes.lock().unwrap_or_else(PoisonError::into_inner);
        if held.0.len() + part.len() > FILE_BYTES_MAX {
            let told = "a file becomes one value, of at most 16MiB: write several";
            return Err(FileError::new(FileErrorCode::ResourceExhausted, told));
        }
        held.0.extend_from_slice(part);
        held.1 = false;
        Ok(())
    }
}

/// # Safety
/// As [`new_writable_file`].
unsafe fn begin_draft(path: *const c_char, keeps: bool, file: *mut TfHandle, status: *mut TfStatus) {
    // SAFETY: TensorFlow's path, file and status.
    unsafe {
        let begun = answer(status, None, || {
            let name = name_of(path)?;
            let begins = match name.read() {
                Ok(bytes) if keeps => bytes,
                Err(error) if keeps && error.code != FileErrorCode::NotFound => return Err(error),
                _ => Vec::new(),
            };
            let draft = FileDraft { name, bytes: Mutex::new((begins, false)) };
            // Save once now, so that an item that cannot be written is reported before much is written.
            draft.save()?;
            Ok(Some(draft))
        });
        (*file).own = begun.map_or(ptr::null_mut(), |draft| Box::into_raw(Box::new(draft)).cast());
    }
}

unsafe extern "C" fn new_writable_file(
    _filesystem: *const TfHandle,
    path: *const c_char,
    file: *mut TfHandle,
    status: *mut TfStatus,
) {
    // SAFETY: as the function called.
    unsafe { begin_draft(path, false, file, status) }
}

unsafe extern "C" fn new_appendable_file(
    _filesystem: *const TfHandle,
    path: *const c_char,
    file: *mut TfHandle,
    status: *mut TfStatus,
) {
    // SAFETY: as the function called.
    unsafe { begin_draft(path, true, file, status) }
}

unsafe extern "C" fn append(file: *const TfHandle, from: *const c_char, count: usize, status: *mut TfStatus) {
    // SAFETY: the file is of `begin_draft`; `from` has `count` bytes.
    unsafe {
        let part = if count == 0 { &[][..] } else { std::slice::from_raw_parts(from.cast::<u8>(), count) };
        answer(status, (), || own::<FileDraft>(file).append(part));
    }
}

unsafe extern "C" fn tell_place(file: *const TfHandle, status: *mut TfStatus) -> i64 {
    // SAFETY: the file is of `begin_draft`.
    unsafe {
        let draft = own::<FileDraft>(file);
        answer(status, -1, || Ok(draft.bytes.lock().unwrap_or_else(PoisonError::into_inner).0.len() as i64))
    }
}

unsafe extern "C" fn save(file: *const TfHandle, status: *mut TfStatus) {
    // SAFETY: the file is of `begin_draft`.
    unsafe { answer(status, (), || own::<FileDraft>(file).save()) }
}

/// Folders exist without being made.
unsafe extern "C" fn on_folder(_filesystem: *const TfHandle, path: *const c_char, status: *mut TfStatus) {
    // SAFETY: TensorFlow's path and status.
    unsafe { answer(status, (), || name_of(path).map(|_| ())) }
}

unsafe extern "C" fn delete_file(_filesystem: *const TfHandle, path: *const c_char, status: *mut TfStatus) {
    // SAFETY: TensorFlow's path and status.
    unsafe { answer(status, (), || name_of(path)?.delete()) }
}

unsafe extern "C" fn rename_file(
    _filesystem: *const TfHandle,
    from: *const c_char,
    to: *const c_char,
    status: *mut TfStatus,
) {
    // SAFETY: TensorFlow's paths and status.
    unsafe { answer(status, (), || name_of(from)?.rename(&name_of(to)?)) }
}

/// The length, and whether it is a folder.
///
/// # Safety
/// `path` is a C string.
unsafe fn facts(path: *const c_char) -> Result<(i64, bool), FileError> {
    // SAFETY: the caller's.
    let name = unsafe { name_of(path) }?;
    match name.read() {
        Ok(bytes) => Ok((bytes.len() as i64, false)),
        Err(error) if error.code == FileErrorCode::NotFound && name.is_directory()? => Ok((0, true)),
        Err(error) => Err(error),
    }
}

unsafe extern "C" fn path_exists(_filesystem: *const TfHandle, path: *const c_char, status: *mut TfStatus) {
    // SAFETY: TensorFlow's path and status.
    unsafe { answer(status, (), || facts(path).map(|_| ())) }
}

unsafe extern "C" fn stat(
    _filesystem: *const TfHandle,
    path: *const c_char,
    statistics: *mut TfFileStatistics,
    status: *mut TfStatus,
) {
    // SAFETY: TensorFlow's path, statistics and status.
    unsafe {
        let (length, is_directory) = answer(status, (0, false), || facts(path));
        statistics.write(TfFileStatistics { length, modified_ns: 0, is_directory });
    }
}

unsafe extern "C" fn is_directory(_filesystem: *const TfHandle, path: *const c_char, status: *mut TfStatus) -> bool {
    // SAFETY: TensorFlow's path and status.
    unsafe {
        answer(status, false, || match facts(path)? {
            (_, true) => Ok(true),
            _ => Err(FileError::new(FileErrorCode::FailedPrecondition, "it is a file")),
        })
    }
}

unsafe extern "C" fn get_file_size(_filesystem: *const TfHandle, path: *const c_char, status: *mut TfStatus) -> i64 {
    // SAFETY: TensorFlow's path and status.
    unsafe { answer(status, -1, || facts(path).map(|(length, _)| length)) }
}

/// Names stay unchanged: they are not paths of another file system.
unsafe extern "C" fn translate_name(_filesystem: *const TfHandle, path: *const c_char) -> *mut c_char {
    // SAFETY: the path is a C string.
    unsafe { libc::strdup(path) }
}

unsafe extern "C" fn get_children(
    _filesystem: *const TfHandle,
    path: *const c_char,
    entries: *mut *mut *mut c_char,
    status: *mut TfStatus,
) -> c_int {
    // SAFETY: TensorFlow's path, place for the list and status. The list has room for all names.
    unsafe {
        let names = answer(status, None, || name_of(path)?.children().map(Some));
        let Some(names) = names else { return -1 };
        let list = libc::malloc(names.len().max(1) * size_of::<*mut c_char>()).cast::<*mut c_char>();
        if list.is_null() {
            tell(status, FileErrorCode::ResourceExhausted as c_int, "no memory for a folder's names");
            return -1;
        }
        for (at, name) in names.iter().enumerate() {
            list.add(at).write(text_of_c(name.as_bytes()));
        }
        entries.write(list);
        names.len() as c_int
    }
}

unsafe extern "C" fn allocate(bytes: usize) -> *mut c_void {
    // SAFETY: no preconditions.
    unsafe { libc::malloc(bytes) }
}

unsafe extern "C" fn free(memory: *mut c_void) {
    // SAFETY: it is from `malloc`.
    unsafe { libc::free(memory) }
}

/// A table in memory from `malloc`. TensorFlow copies and frees it.
fn table<T>(ops: T) -> TfOps<T> {
    // SAFETY: the memory is of `malloc`, as large and aligned as it takes, and written before anybody reads it.
    let place = unsafe {
        let place = libc::malloc(size_of::<T>()).cast::<T>();
        if !place.is_null() {
            place.write(ops);
        }
        place
    };
    TfOps { abi: 0, api: 0, bytes: size_of::<T>(), ops: place }
}

/// Called by `tf.experimental.register_filesystem_plugin`.
///
/// # Safety
/// `info` is TensorFlow's, and this fills it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TF_InitPlugin(info: *mut TfFilesystemPluginInfo) {
    let filesystem = TfFilesystemOps {
        init,
        cleanup: cleanup_filesystem,
        new_random_access_file,
        new_writable_file,
        new_appendable_file,
        new_read_only_memory_region_from_file: None,
        create_dir: on_folder,
        recursively_create_dir: on_folder,
        delete_file,
        delete_dir: on_folder,
        delete_recursively: None,
        rename_file,
        copy_file: None,
        path_exists,
        paths_exist: None,
        stat,
        is_directory,
        get_file_size,
        translate_name,
        get_children,
        get_matching_paths: None,
        flush_caches: None,
        transactions: [None; 6],
        configuration: [None; 5],
    };
    let readable = TfRandomAccessFileOps { cleanup: cleanup::<FileContent>, read };
    let writable = TfWritableFileOps {
        cleanup: cleanup::<FileDraft>,
        append,
        tell: tell_place,
        flush: save,
        sync: save,
        close: save,
    };
    let ops = TfFilesystemPluginOps {
        scheme: text_of_c(b"tapetum"),
        filesystem: table(filesystem),
        random_access_file: table(readable),
        writable_file: table(writable),
        read_only_memory_region: TfOps { abi: 0, api: 0, bytes: 3 * 8, ops: ptr::null_mut() },
    };
    // SAFETY: the caller's.
    unsafe { info.write(TfFilesystemPluginInfo { schemes: 1, ops: table(ops).ops, allocate, free }) };
}
