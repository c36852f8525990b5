//! Keys and formats as Python gives them.

use crate::errors;
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyString};
use tapetum_kernels::scan::Format;

/// Bytes, or text, which is stored as UTF-8.
pub struct Key(Vec<u8>);

impl Key {
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.0).into_owned()
    }

    pub fn bytes(&self) -> &[u8] {
        &self.0
    }

    pub fn into_bytes(self) -> Vec<u8> {
        self.0
    }
}

impl<'py> FromPyObject<'_, 'py> for Key {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, 'py, PyAny>) -> PyResult<Key> {
        if let Ok(bytes) = object.cast::<PyBytes>() {
            return Ok(Key(bytes.as_bytes().to_vec()));
        }
        if let Ok(text) = object.cast::<PyString>() {
            return Ok(Key(text.to_cow()?.as_bytes().to_vec()));
        }
        let view = pyo3::buffer::PyBuffer::<u8>::get(&object);
        let view = view.map_err(|_| PyTypeError::new_err("keys and values are bytes, str, or a buffer of bytes"))?;
        Ok(Key(view.to_vec(object.py())?))
    }
}

/// The format of records, parsed from its text.
pub fn fields_of(py: Python<'_>, text: &str) -> PyResult<Format> {
    Format::parse(text).map_err(|error| errors::fields(py, &error))
}
