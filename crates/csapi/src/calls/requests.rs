//! Requests, and events that tell of their ends.

use super::guarded;
use crate::events::Event;
use crate::handles::Handle;
use crate::library::{LIBRARY, Told};
use crate::pointers::{Callback, Context, In, Out};
use crate::request::Request;
use crate::types::{CsComputeRequest, CsCopyMemRequest, CsStatus, CsStorageRequest};
use std::sync::Arc;
use tapetum_drive::locks::whole;

#[unsafe(no_mangle)]
pub extern "C" fn csQueueCopyMemRequest(
    given: In<CsCopyMemRequest>,
    context: Context,
    callback: Callback,
    event: Handle,
    request: Out<Handle>,
    value: Out<u64>,
) -> CsStatus {
    let told = Told { context, callback, event, request, value };
    guarded(|| LIBRARY.start(vec![Request::read_copy(given)?], &told))
}

#[unsafe(no_mangle)]
pub extern "C" fn csQueueStorageRequest(
    given: In<CsStorageRequest>,
    context: Context,
    callback: Callback,
    event: Handle,
    request: Out<Handle>,
    value: Out<u64>,
) -> CsStatus {
    let told = Told { context, callback, event, request, value };
    guarded(|| LIBRARY.start(vec![Request::read_storage(given)?], &told))
}

#[unsafe(no_mangle)]
pub extern "C" fn csQueueComputeRequest(
    given: In<CsComputeRequest>,
    context: Context,
    callback: Callback,
    event: Handle,
    request: Out<Handle>,
    value: Out<u64>,
) -> CsStatus {
    let told = Told { context, callback, event, request, value };
    guarded(|| LIBRARY.start(vec![Request::read_compute(given)?], &told))
}

/// The library aborts nothing: a request that has begun ends by itself, and soon.
#[unsafe(no_mangle)]
pub extern "C" fn csAbortRequest(_request: Handle) -> CsStatus {
    CsStatus::Unsupported
}

#[unsafe(no_mangle)]
pub extern "C" fn csCreateEvent(event: Out<Handle>) -> CsStatus {
    guarded(|| {
        if event.is_null() {
            return Err(CsStatus::InvalidArg);
        }
        let handle = whole(LIBRARY.events.lock()).insert(Arc::new(Event::default()));
        event.write(handle.ok_or(CsStatus::OutOfResources)?).ok_or(CsStatus::InvalidArg)
    })
}

/// Requests that it was to tell of go on, and nobody hears of their ends.
#[unsafe(no_mangle)]
pub extern "C" fn csDeleteEvent(event: Handle) -> CsStatus {
    guarded(|| whole(LIBRARY.events.lock()).remove(event).map(drop).ok_or(CsStatus::InvalidEvent))
}

#[unsafe(no_mangle)]
pub extern "C" fn csPollEvent(event: Handle, context: Context) -> CsStatus {
    guarded(|| {
        let event = whole(LIBRARY.events.lock()).get(event).cloned().ok_or(CsStatus::InvalidEvent)?;
        match event.poll(context) {
            CsStatus::Success => Ok(()),
            other => Err(other),
        }
    })
}
