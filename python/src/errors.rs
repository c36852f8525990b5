//! Exceptions.

use pyo3::PyErr;
use pyo3::create_exception;
use pyo3::exceptions::PyException;
use std::fmt::Display;

create_exception!(tapetum, TapetumError, PyException, "What the store says; its text tells what to do.");
create_exception!(tapetum, PipelineError, TapetumError, "A pipeline is wrong, or failed at a stage.");
create_exception!(tapetum, ClosedError, TapetumError, "The store was closed, or belongs to another process.");

pub fn store(error: impl Display) -> PyErr {
    TapetumError::new_err(error.to_string())
}

pub fn pipeline(error: impl Display) -> PyErr {
    PipelineError::new_err(error.to_string())
}
