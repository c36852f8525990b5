//! A store on flash that completes commands late and in any order, and fails when told to. Writes are answered when they are durable, so
//! outcomes come late, and not in the order of the requests.

use std::os::fd::{AsRawFd, RawFd};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use crate::common::{drive_of, flush, new_on};
use crate::wrapped_flash::WrappedFlash;
use tapetum::{Store, StoreOptions};
use tapetum_drive::{Command, Completion, Drive, Env, Event, FaultyFlash, FlashQueue};

const CAPACITY_BYTES: u64 = 256 << 20;
/// Items that only flash has, each with its key as the value.
pub const COLD_KEYS: usize = 40;

pub fn cold_key(number: usize) -> String {
    format!("cold{}", number % COLD_KEYS)
}

pub fn late_store() -> Store {
    late_store_on_flash().1
}

pub fn late_store_on_flash() -> (FaultyFlash, Store) {
    let flash = COLD_ITEMS.get_or_init(cold_items).fork(1);
    (flash.clone(), Store::open_on(&drive_on(flash), &options()).unwrap())
}

/// The flash of a closed store with the cold keys, of which each test has a copy.
static COLD_ITEMS: OnceLock<FaultyFlash> = OnceLock::new();

fn cold_items() -> FaultyFlash {
    let flash = FaultyFlash::new(CAPACITY_BYTES, 1);
    let store = new_on(&drive_on(flash.clone()), &options());
    for number in 0..COLD_KEYS {
        store.put(cold_key(number).as_bytes(), cold_key(number).as_bytes()).unwrap();
    }
    flush(&store);
    store.close().unwrap();
    flash
}

fn options() -> StoreOptions {
    StoreOptions::new(CAPACITY_BYTES, 128 << 20).with_write_buffers_of(1 << 20)
}

fn drive_on(flash: FaultyFlash) -> Drive {
    let wrap = |queue| Ok(Box::new(LateQueue { queue, event: Event::new()?, in_flight: 0 }) as Box<dyn FlashQueue>);
    drive_of(Arc::new(WrappedFlash(flash, wrap)), &options(), Env::system())
}

/// As the queue in it, which nobody wakes, with an event.
struct LateQueue {
    queue: Box<dyn FlashQueue>,
    /// Raised while commands are in flight.
    event: Event,
    in_flight: usize,
}

impl FlashQueue for LateQueue {
    unsafe fn submit(&mut self, command: &Command) {
        self.in_flight += 1;
        // SAFETY: by our caller's word.
        unsafe { self.queue.submit(command) };
    }

    fn poll(&mut self, completions: &mut Vec<Completion>) {
        self.event.clear();
        let before = completions.len();
        self.queue.poll(completions);
        self.in_flight -= completions.len() - before;
        if self.in_flight > 0 {
            self.event.raise();
        }
    }

    fn wait(&mut self, timeout: Option<Duration>) {
        self.queue.wait(timeout);
    }

    fn event_fd(&self) -> Option<RawFd> {
        Some(self.event.as_raw_fd())
    }
}
