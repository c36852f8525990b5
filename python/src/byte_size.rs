//! Numbers of bytes as people write them.

use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyString;

/// Bytes: a number, or text such as "64MiB".
#[derive(Clone, Copy)]
pub struct ByteSize(pub u64);

impl<'py> FromPyObject<'_, 'py> for ByteSize {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, 'py, PyAny>) -> PyResult<ByteSize> {
        let Ok(text) = object.cast::<PyString>() else {
            let bytes = object.extract::<u64>();
            let wrong = |_| PyTypeError::new_err("a size is a number of bytes, or text such as \"64MiB\"");
            return bytes.map(ByteSize).map_err(wrong);
        };
        let text = text.to_cow()?;
        let wrong = || {
            let told = format!("{text:?} is not a size: write bytes, or a whole number with KiB, MiB, GiB or TiB");
            PyValueError::new_err(told)
        };
        parse(&text).map(ByteSize).ok_or_else(wrong)
    }
}

fn parse(text: &str) -> Option<u64> {
    let digits = text.find(|character: char| !character.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let power = match unit.trim().to_ascii_lowercase().as_str() {
        "" | "b" => 0,
        "kib" => 1,
        "mib" => 2,
        "gib" => 3,
        "tib" => 4,
        _ => return None,
    };
    number.parse::<u64>().ok()?.checked_mul(1 << (10 * power))
}

/// Bytes of a number, or of text such as "64MiB".
#[pyfunction]
pub fn byte_size(size: ByteSize) -> u64 {
    size.0
}
