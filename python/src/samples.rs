//! The bytes of a batch, which numpy and others look at without a copy.

use pyo3::exceptions::PyBufferError;
use pyo3::ffi;
use pyo3::prelude::*;
use std::ffi::{c_int, c_void};

/// Bytes in memory of their own. Buffers of it may be written to; it is freed when the last is gone.
#[pyclass(frozen, weakref, module = "tapetum")]
pub struct Samples {
    bytes: *mut [u8],
}

// SAFETY: the bytes are reached through buffers of the interpreter alone, whose users settle among themselves who writes, as with any
// buffer.
unsafe impl Send for Samples {}
// SAFETY: as above.
unsafe impl Sync for Samples {}

impl Samples {
    pub fn new(bytes: Vec<u8>) -> Samples {
        Samples { bytes: Box::into_raw(bytes.into_boxed_slice()) }
    }
}

#[pymethods]
impl Samples {
    fn __len__(&self) -> usize {
        self.bytes.len()
    }

    /// # Safety
    /// `view` is a buffer to be filled, as the interpreter gives it.
    unsafe fn __getbuffer__(slf: Bound<'_, Self>, view: *mut ffi::Py_buffer, flags: c_int) -> PyResult<()> {
        if view.is_null() {
            return Err(PyBufferError::new_err("there is no view to fill"));
        }
        let bytes = slf.get().bytes;
        // SAFETY: the view is the interpreter's. It keeps this object, and with it the bytes, until it is released.
        let filled = unsafe {
            ffi::PyBuffer_FillInfo(view, slf.as_ptr(), bytes.cast::<c_void>(), bytes.len() as ffi::Py_ssize_t, 0, flags)
        };
        if filled == 0 { Ok(()) } else { Err(PyErr::fetch(slf.py())) }
    }
}

impl Drop for Samples {
    fn drop(&mut self) {
        // SAFETY: made by `Box::into_raw`, and no buffer of it is left: each holds this object.
        drop(unsafe { Box::from_raw(self.bytes) });
    }
}
