//! Helpers for this crate's tests of queue pairs.

use super::{Drive, Lease, QueuePair, Returned};
use crate::device::arbiter::UnitCount;
use crate::device::engine::EngineOptions;
use crate::device::program::Program;
use crate::env::Env;
use crate::flash::Flash;
use crate::memory::{LocalBuffer, LocalMemory};
use crate::protocol::{Command, Completion, Operation};
use std::cell::Cell;
use std::sync::Arc;

/// The threads that run the device half of a test's drives.
#[derive(Clone, Copy)]
enum DeviceHalf {
    Host,
    DriveThread,
    /// Two units for each of some programs, and the mover.
    Units,
    /// A drive thread and units.
    ThreadAndUnits,
}

thread_local! {
    static DEVICE_HALF: Cell<DeviceHalf> = const { Cell::new(DeviceHalf::Host) };
}

fn on(half: DeviceHalf, test: fn()) {
    DEVICE_HALF.set(half);
    test();
    DEVICE_HALF.set(DeviceHalf::Host);
}

/// Whether compute units run the pipelines of this test's drives.
pub fn has_units() -> bool {
    matches!(DEVICE_HALF.get(), DeviceHalf::Units | DeviceHalf::ThreadAndUnits)
}

/// Runs a test with the device half of its drives on their own thread.
pub fn on_a_drive_thread(test: fn()) {
    on(DeviceHalf::DriveThread, test);
}

/// Runs a test with its pipelines on compute units: once with the rest on the host's thread, and once with it on a drive thread.
pub fn on_units(test: fn()) {
    on(DeviceHalf::Units, test);
    on(DeviceHalf::ThreadAndUnits, test);
}

/// The named tests of other modules, each run by a function such as [`on_units`].
macro_rules! once_more {
    ($on:ident; $($module:ident: $($test:ident)*;)*) => {
        $($(
            #[test]
            fn $test() {
                $on(super::$module::$test);
            }
        )*)*
    };
}
pub(super) use once_more;

/// Options with units for the programs that have one of these names.
pub fn units_of(drive: &Drive, names: &[(&str, u16)]) -> EngineOptions {
    let programs = drive.identity().programs;
    let count = |(name, units): &(&str, u16)| {
        let program = programs.iter().find(|program| program.name == *name)?.id;
        Some(UnitCount { program, units: *units })
    };
    EngineOptions::with_units(names.iter().filter_map(count).collect())
}

/// A drive with 1 MiB of local memory, whose device half runs where the current test wants it.
pub fn drive_of(flash: Arc<dyn Flash>, programs: Vec<Box<dyn Program>>, seed: u64) -> Drive {
    drive_with(flash, 1 << 20, programs, seed)
}

/// Like [`drive_of`], with this much local memory.
pub fn drive_with(flash: Arc<dyn Flash>, local_bytes: usize, programs: Vec<Box<dyn Program>>, seed: u64) -> Drive {
    let local = LocalMemory::new(local_bytes).unwrap();
    let half = DEVICE_HALF.get();
    if matches!(half, DeviceHalf::Host) {
        return Drive::new(flash, local, programs, Env::simulated(seed).0);
    }
    let mut drive = Drive::new(flash, local, programs, Env::system());
    if matches!(half, DeviceHalf::DriveThread | DeviceHalf::ThreadAndUnits) {
        drive = drive.with_threads(1).unwrap();
    }
    if has_units() {
        let units = units_of(&drive, &[("zstd-compress", 2), ("zstd-decompress", 2), ("sha256", 2), ("add-byte", 2)]);
        let EngineOptions { sub_buffers, sub_buffer_bytes, .. } = EngineOptions::of_a_queue_pair();
        drive = drive.with_compute_units(&EngineOptions { sub_buffers, sub_buffer_bytes, ..units });
    }
    drive
}

pub fn submit(pair: &mut QueuePair, tag: u64, operation: Operation, lease: impl Into<Lease>) {
    pair.submit(Command::new(tag, operation), lease.into()).unwrap();
}

/// The ends of `count` commands, in their order.
pub fn finish(pair: &mut QueuePair, count: usize) -> Vec<Returned> {
    let mut returned = Vec::new();
    while returned.len() < count {
        if pair.poll(&mut returned) == 0 {
            pair.wait(None);
        }
    }
    assert_eq!(returned.len(), count);
    returned
}

/// Runs one command, which is lent `lease`, to its end, on a queue pair with nothing else in flight.
pub fn run_with(pair: &mut QueuePair, operation: Operation, lease: Lease) -> Returned {
    assert_eq!(pair.in_flight(), 0);
    submit(pair, u64::MAX, operation, lease);
    let Some(returned) = finish(pair, 1).pop() else { unreachable!("it ended") };
    assert_eq!((returned.completion.tag, pair.in_flight()), (u64::MAX, 0));
    returned
}

/// Like [`run_with`], for a command that is lent a buffer.
pub fn run(pair: &mut QueuePair, operation: Operation, buffer: &mut LocalBuffer) -> Completion {
    let returned = run_with(pair, operation, buffer.take().into());
    *buffer = returned.lease.into_buffer();
    returned.completion
}
