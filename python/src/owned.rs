//! What belongs to the process that made it.
//!
//! A child that was forked has the memory of a store, but none of its threads, and its rings are the parent's. So it may neither use nor
//! drop what it has of one: both would wait for threads that are not there, or write to the parent's drive.

use crate::errors::ClosedError;
use pyo3::PyResult;
use std::mem::ManuallyDrop;
use std::process;

pub struct Owned<T> {
    value: ManuallyDrop<T>,
    process: u32,
}

impl<T> Owned<T> {
    pub fn new(value: T) -> Owned<T> {
        Owned { value: ManuallyDrop::new(value), process: process::id() }
    }

    pub fn get(&self) -> PyResult<&T> {
        if self.process != process::id() {
            return Err(ClosedError::new_err(
                "this was opened before the process was forked, and a store does not survive a fork: open it in the child \
                 with read_only=True, or use the start methods spawn or forkserver",
            ));
        }
        Ok(&self.value)
    }
}

impl<T> Drop for Owned<T> {
    fn drop(&mut self) {
        if self.process == process::id() {
            // SAFETY: it is dropped once, here.
            unsafe { ManuallyDrop::drop(&mut self.value) };
        }
    }
}
