//! The calls that C makes, as the header declares them. Each copies what C points at, asks the library, and writes back.
//!
//! Nothing that C passes may end its process: a panic here ends a call with `CS_FATAL_ERROR`.

mod batches;
mod discovery;
mod memory;
mod requests;

use crate::pointers::Out;
use crate::types::CsStatus;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// A status that is no failure may come as an error: of a request that was queued.
fn guarded(call: impl FnOnce() -> Result<(), CsStatus>) -> CsStatus {
    match catch_unwind(AssertUnwindSafe(call)) {
        Ok(Ok(())) => CsStatus::Success,
        Ok(Err(status)) => status,
        Err(_) => CsStatus::FatalError,
    }
}

/// A length of C's: `int` or `unsigned int`.
trait Length: crate::pointers::Plain + TryFrom<usize> + TryInto<usize> {}
impl Length for i32 {}
impl Length for u32 {}

/// Writes values to a buffer, and the length that they take in bytes. With a null buffer only the length; with a short one the length,
/// and an error.
fn give<T: Copy, L: Length>(values: &[T], length: Out<L>, buffer: Out<T>) -> Result<(), CsStatus> {
    let needed = size_of_val(values);
    let given: usize = length.read().ok_or(CsStatus::InvalidArg)?.try_into().unwrap_or(0);
    let needed_length = L::try_from(needed).map_err(|_| CsStatus::InvalidLength)?;
    length.write(needed_length).ok_or(CsStatus::InvalidArg)?;
    if buffer.is_null() {
        return Ok(());
    }
    if given < needed {
        return Err(CsStatus::InvalidLength);
    }
    buffer.write_array(values).ok_or(CsStatus::InvalidArg)
}
