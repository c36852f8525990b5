//! The native half of the Python package `tapetum`.
//!
//! 1. No call holds the interpreter while it waits for the store.
//! 2. What was opened in one process is refused in a child that was forked from it, and is not closed there.
//! 3. What was made of a store is refused when the store was closed.
//! 4. Bytes given to Python are Python's: nothing here reads or writes them again.
//!
//! Threads: all classes may be used from several.

mod byte_size;
mod errors;
mod freeze;
mod handles;
mod key;
mod keyspace;
mod loader;
mod pipeline;
mod reading;
mod rows;
mod samples;
mod store;
mod tensorflow_files;
mod words;

use pyo3::prelude::*;

#[pymodule]
fn _tapetum(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add("Error", module.py().get_type::<errors::Error>())?;
    module.add("PipelineError", module.py().get_type::<errors::PipelineError>())?;
    module.add("DeadlineError", module.py().get_type::<errors::DeadlineError>())?;
    module.add("ClosedError", module.py().get_type::<errors::ClosedError>())?;
    module.add("QueryError", module.py().get_type::<errors::QueryError>())?;
    module.add_class::<keyspace::Keyspace>()?;
    module.add_class::<store::Store>()?;
    module.add_class::<freeze::Freeze>()?;
    module.add_class::<freeze::FrozenKeyspace>()?;
    module.add_class::<reading::Items>()?;
    module.add_class::<rows::Rows>()?;
    module.add_class::<pipeline::Pipeline>()?;
    module.add_class::<loader::ImageSet>()?;
    module.add_class::<loader::NativeLoader>()?;
    module.add_class::<samples::Samples>()?;
    module.add_function(wrap_pyfunction!(byte_size::byte_size, module)?)?;
    module.add_function(wrap_pyfunction!(tensorflow_files::mount, module)?)?;
    module.add_function(wrap_pyfunction!(tensorflow_files::unmount, module)?)?;
    module.add_function(wrap_pyfunction!(loader::epoch_order, module)?)?;
    Ok(())
}
