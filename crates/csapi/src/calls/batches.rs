//! Batches: requests that are given once and run in their order.

use super::guarded;
use crate::handles::Handle;
use crate::library::{Batch, LIBRARY, Told};
use crate::pointers::{Callback, Context, In, Out};
use crate::request::Request;
use crate::types::{BATCH_SERIAL, CsBatchRequest, CsStatus};
use tapetum_drive::locks::whole;

pub const REQUESTS_MAX: usize = 256;

fn count(requests: i32) -> Result<usize, CsStatus> {
    let count = usize::try_from(requests).ok().filter(|count| (1..=REQUESTS_MAX).contains(count));
    count.ok_or(CsStatus::InvalidArg)
}

fn with_batch(batch: Handle, change: impl FnOnce(&mut Batch) -> Result<(), CsStatus>) -> Result<(), CsStatus> {
    change(whole(LIBRARY.batches.lock()).get_mut(batch).ok_or(CsStatus::InvalidHandle)?)
}

#[unsafe(no_mangle)]
pub extern "C" fn csAllocBatchRequest(mode: u32, requests_max: i32, batch: Out<Handle>) -> CsStatus {
    guarded(|| {
        let requests_max = count(requests_max)?;
        match mode {
            BATCH_SERIAL if !batch.is_null() => {}
            BATCH_SERIAL => return Err(CsStatus::InvalidArg),
            // Parallel, hybrid.
            2 | 3 => return Err(CsStatus::Unsupported),
            _ => return Err(CsStatus::InvalidOption),
        }
        let made = Batch { requests: Vec::new(), requests_max };
        let handle = whole(LIBRARY.batches.lock()).insert(made).ok_or(CsStatus::OutOfResources)?;
        batch.write(handle).ok_or(CsStatus::InvalidArg)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn csFreeBatchRequest(batch: Handle) -> CsStatus {
    guarded(|| whole(LIBRARY.batches.lock()).remove(batch).map(drop).ok_or(CsStatus::InvalidHandle))
}

/// A serial batch grows at its end: nothing is before it, and the last entry, or nothing, is said to be after.
#[unsafe(no_mangle)]
pub extern "C" fn csAddBatchEntry(
    batch: Handle,
    given: In<CsBatchRequest>,
    before: u32,
    after: u32,
    entry: Out<u32>,
) -> CsStatus {
    guarded(|| {
        let request = Request::read_batch_entry(given)?;
        with_batch(batch, |batch| {
            let last = batch.requests.len() as u32;
            if before != 0 || (after != 0 && after != last) {
                return Err(CsStatus::InvalidOption);
            }
            if batch.requests.len() == batch.requests_max {
                return Err(CsStatus::OutOfResources);
            }
            batch.requests.push(request);
            // It may be null.
            let _ = entry.write(last + 1);
            Ok(())
        })
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn csHelperReconfigureBatchEntry(batch: Handle, entry: u32, given: In<CsBatchRequest>) -> CsStatus {
    guarded(|| {
        let request = Request::read_batch_entry(given)?;
        with_batch(batch, |batch| {
            let place = (entry as usize).checked_sub(1).ok_or(CsStatus::InvalidArg)?;
            *batch.requests.get_mut(place).ok_or(CsStatus::InvalidArg)? = request;
            Ok(())
        })
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn csHelperResizeBatchRequest(batch: Handle, requests_max: i32) -> CsStatus {
    guarded(|| {
        let requests_max = count(requests_max)?;
        with_batch(batch, |batch| {
            if batch.requests.len() > requests_max {
                return Err(CsStatus::InvalidArg);
            }
            batch.requests_max = requests_max;
            Ok(())
        })
    })
}

/// The batch may be queued again, and freed at once.
#[unsafe(no_mangle)]
pub extern "C" fn csQueueBatchRequest(
    batch: Handle,
    context: Context,
    callback: Callback,
    event: Handle,
    request: Out<Handle>,
    value: Out<u64>,
) -> CsStatus {
    let told = Told { context, callback, event, request, value };
    guarded(|| {
        let mut requests = Vec::new();
        with_batch(batch, |batch| {
            requests.clone_from(&batch.requests);
            Ok(())
        })?;
        LIBRARY.start(requests, &told)
    })
}
