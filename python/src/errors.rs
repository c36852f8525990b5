//! Exceptions.

use crate::words::PythonWords;
use pyo3::exceptions::PyException;
use pyo3::types::PyAnyMethods;
use pyo3::{PyErr, Python, create_exception};
use std::fmt::Display;
use tapetum::images::{ImageError, PictureError};
use tapetum::query::{Clause, QueryTextError};
use tapetum_kernels::scan::FormatTextError;

// Named as in Python's `tapetum`, because pickle and tracebacks look for them there.
create_exception!(tapetum, Error, PyException, "What the store says; its text tells what to do.");
create_exception!(tapetum, PipelineError, Error, "A pipeline is wrong, or failed at a stage.");
create_exception!(
    tapetum,
    DeadlineError,
    PipelineError,
    "A picture was not decoded within the deadline of its pipeline."
);
create_exception!(tapetum, ClosedError, Error, "The store was closed, or belongs to another process.");
create_exception!(
    tapetum,
    QueryError,
    Error,
    "A query's text is wrong: at `column`, from 1 on, of the argument `clause`, where `word` stands; no word, where one is missing."
);

pub fn store(error: impl PythonWords) -> PyErr {
    Error::new_err(error.words())
}

pub fn pipeline(error: impl Display) -> PyErr {
    PipelineError::new_err(error.to_string())
}

/// The exception for a picture that could not be made.
pub fn picture(error: &PictureError) -> PyErr {
    match error.image_error() {
        Some(ImageError::TooLong) => DeadlineError::new_err(error.words()),
        _ => pipeline(error.words()),
    }
}

pub fn query(py: Python<'_>, error: &QueryTextError) -> PyErr {
    let clause = match error.clause {
        Clause::Where => "where",
        Clause::Select => "select",
        Clause::GroupBy => "group_by",
        Clause::Having => "having",
        Clause::OrderBy => "order_by",
    };
    at_word(py, error, clause, error.column, &error.word)
}

pub fn fields(py: Python<'_>, error: &FormatTextError) -> PyErr {
    at_word(py, format!("fields, {error}"), "fields", error.column, &error.word)
}

fn at_word(py: Python<'_>, told: impl Display, clause: &str, column: usize, word: &str) -> PyErr {
    let error = QueryError::new_err(told.to_string());
    let value = error.value(py);
    let placed = value.setattr("clause", clause).and_then(|()| value.setattr("column", column));
    placed.and_then(|()| value.setattr("word", word)).err().unwrap_or(error)
}
