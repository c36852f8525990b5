//! A file system of TensorFlow, `tapetum://`: read is a lookup, through a pipeline if the name asks for one, and write an insert.
//!
//! It is in the package's own library, which TensorFlow loads a second time and so finds the stores that the process has open.
//!
//! 1. A name is looked up when it is used: a store that was unmounted, closed or went through a fork is an error, never a crash.
//! 2. Memory that TensorFlow frees is from `malloc`.
//!
//! Threads: TensorFlow calls from any, without the interpreter.

mod abi;
mod files;
mod plugin;

use crate::store::{Store, handles_of, store_of};
use pyo3::prelude::*;

/// Shows a store as `tapetum://NAME/`.
#[pyfunction]
pub fn mount(store: &Bound<'_, Store>, name: &str) -> PyResult<()> {
    files::mount(name, handles_of(store).hold(store_of(store)?)?);
    Ok(())
}

/// Whether there was one.
#[pyfunction]
pub fn unmount(name: &str) -> bool {
    files::unmount(name)
}
