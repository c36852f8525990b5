//! The state of the library: tables of all that C has handles of.
//!
//! Threads: any. No call holds two of these locks, or one of them while a request runs.

use crate::device::{Device, Outcome};
use crate::events::Event;
use crate::handles::{Handle, Kind, Table, place_and_generation};
use crate::pointers::{Callback, Context, Out};
use crate::queue::{Notice, OpenDevice};
use crate::request::Request;
use crate::types::CsStatus;
use std::cell::RefCell;
use std::sync::{Arc, Mutex};
use tapetum_drive::locks::whole;

/// Devices at a time: their place is part of a function's id.
const DEVICES_MAX: usize = 255;
const MEMORIES_MAX: usize = 1 << 16;
const EVENTS_MAX: usize = 4096;
const BATCHES_MAX: usize = 4096;

/// Requests of a batch, in their order.
pub struct Batch {
    pub requests: Vec<Request>,
    pub requests_max: usize,
}

pub struct Library {
    pub devices: Mutex<Table<Arc<OpenDevice>>>,
    /// The device of each memory.
    pub memories: Mutex<Table<Handle>>,
    pub events: Mutex<Table<Arc<Event>>>,
    pub batches: Mutex<Table<Batch>>,
}

pub static LIBRARY: Library = Library {
    devices: Mutex::new(Table::new(Kind::Device, DEVICES_MAX)),
    memories: Mutex::new(Table::new(Kind::Memory, MEMORIES_MAX)),
    events: Mutex::new(Table::new(Kind::Event, EVENTS_MAX)),
    batches: Mutex::new(Table::new(Kind::Batch, BATCHES_MAX)),
};

thread_local! {
    /// Why the last device was not opened or made by this thread.
    pub static LAST_ERROR: RefCell<String> = const { RefCell::new(String::new()) };
}

/// How a request is told of, in C's words.
pub struct Told {
    pub context: Context,
    pub callback: Callback,
    pub event: Handle,
    pub request: Out<Handle>,
    pub value: Out<u64>,
}

impl Library {
    pub fn device(&self, handle: Handle) -> Result<Arc<OpenDevice>, CsStatus> {
        whole(self.devices.lock()).get(handle).cloned().ok_or(CsStatus::InvalidHandle)
    }

    pub fn add_device(&self, device: Device) -> Result<Handle, CsStatus> {
        let open = Arc::new(OpenDevice::new(device));
        let handle = whole(self.devices.lock()).insert(open.clone()).ok_or(CsStatus::OutOfResources)?;
        let (place, generation) = place_and_generation(handle);
        open.device.tag((place as u16 + 1) << 8 | (generation & 0xff) as u16);
        Ok(handle)
    }

    /// Its memories' handles end with it.
    pub fn close_device(&self, handle: Handle, thread: std::thread::ThreadId) -> Result<(), CsStatus> {
        if self.device(handle)?.is_worker(thread) {
            return Err(CsStatus::HandleInUse);
        }
        let open = whole(self.devices.lock()).remove(handle).ok_or(CsStatus::InvalidHandle)?;
        let mut memories = whole(self.memories.lock());
        let of_device: Vec<_> = memories.iter().filter(|(_, of)| **of == handle).map(|(memory, _)| memory).collect();
        for memory in &of_device {
            memories.remove(*memory);
        }
        drop(memories);
        open.close();
        of_device.into_iter().for_each(|memory| open.device.free(memory));
        Ok(())
    }

    /// The handle of the device that a request is for.
    fn device_of(&self, request: &Request) -> Result<Handle, CsStatus> {
        let memory = request.first_memory().ok_or(CsStatus::InvalidArg)?;
        let of_memory = whole(self.memories.lock()).get(memory).copied();
        match request {
            Request::Storage(storage) => {
                self.device(storage.device)?;
                if of_memory.is_some_and(|of| of == storage.device) {
                    Ok(storage.device)
                } else {
                    Err(CsStatus::UnknownMemory)
                }
            }
            Request::Copy(_) | Request::Compute(_) => of_memory.ok_or(CsStatus::UnknownMemory),
        }
    }

    /// Runs requests of one device, or queues them, as C asks.
    pub fn start(&self, requests: Vec<Request>, told: &Told) -> Result<(), CsStatus> {
        let devices = requests.iter().map(|request| self.device_of(request)).collect::<Result<Vec<_>, _>>()?;
        let [first, rest @ ..] = &devices[..] else { return Err(CsStatus::InvalidArg) };
        if rest.iter().any(|device| device != first) {
            return Err(CsStatus::InvalidOption);
        }
        let open = self.device(*first)?;
        // No request can be aborted: there is nothing to give back.
        let _ = told.request.write(Handle(0));
        let notice = match (told.callback.is_null(), told.event) {
            (true, Handle(0)) => {
                let Outcome { status, value } = open.device.run(&requests);
                let _ = told.value.write(value);
                return if status == CsStatus::Success { Ok(()) } else { Err(status) };
            }
            (false, Handle(0)) => Notice::Callback(told.callback, told.context),
            (true, event) => {
                let event = whole(self.events.lock()).get(event).cloned().ok_or(CsStatus::InvalidEvent)?;
                let ticket = event.begin(told.context).ok_or(CsStatus::OutOfResources)?;
                return match open.put(requests, Notice::Event(event.clone(), ticket), told.value) {
                    Ok(()) => Err(CsStatus::Queued),
                    Err(status) => {
                        event.forget(ticket);
                        Err(status)
                    }
                };
            }
            (false, _) => return Err(CsStatus::InvalidOption),
        };
        open.put(requests, notice, told.value)?;
        Err(CsStatus::Queued)
    }
}
