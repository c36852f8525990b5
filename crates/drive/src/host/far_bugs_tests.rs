//! Bugs planted in both halves of a drive in another process: tests notice each.

use super::far_tests::{Served, drive, who_takes_a_partition_over_leaves_the_other_host_none};
use super::{AttachedFlash, Attaching};
use crate::MemoryFlash;
use crate::env::Env;
use crate::flash::{Flash, FlashError, FlashQueue};
use crate::fuzzing;
use crate::locks::whole;
use crate::memory::PairMemory;
use crate::protocol::{Command, Completion};
use std::io;
use std::os::fd::RawFd;
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::time::Duration;

const FLASH_BYTES: u64 = 64 << 20;

#[test]
#[should_panic(expected = "a host that was replaced has its partition again")]
fn an_epoch_that_is_not_checked_is_noticed() {
    planted("EpochUnchecked", who_takes_a_partition_over_leaves_the_other_host_none);
}

/// Takes a partition over from a host with a read on its way, which ends when it is let to. Whether it was handed over before that, within
/// `patience`.
fn is_handed_over_early(patience: Duration) -> bool {
    let flash = Arc::new(SlowToEnd { below: MemoryFlash::new(FLASH_BYTES), gate: Arc::default() });
    let served = Served::over(flash.clone());
    let first = served.made("a");
    let pair = drive(&first).queue_pair(1).unwrap();
    let held = whole(flash.gate.lock());
    let (path, (tell, told)) = (served.path.to_path_buf(), channel());
    let second = Env::system().spawn("second", move || {
        let take_over = Attaching { take_over: true, ..Attaching::default() };
        let second = AttachedFlash::attach(&path, "a", take_over, &Env::system());
        tell.send(()).unwrap();
        second.map(drop)
    });
    let is_early = told.recv_timeout(patience).is_ok();
    drop(held);
    second.unwrap().join().unwrap().unwrap();
    drop(pair);
    is_early
}

#[test]
fn a_partition_is_handed_over_when_all_has_ended() {
    assert!(!is_handed_over_early(Duration::from_millis(50)));
}

#[test]
fn memory_that_is_free_before_all_has_ended_is_noticed() {
    planted("FreeBeforeDrained", || assert!(is_handed_over_early(Duration::from_secs(20))));
}

#[test]
#[should_panic(expected = "ended twice")]
fn an_end_that_is_believed_twice_is_noticed() {
    // The drive ends slot 3, and again.
    planted("EndTwice", || fuzzing::hostile_drive(&[2, 3, 103, 0, 2, 3, 103, 0]));
}

/// With a bug planted in all threads of the test.
fn planted(bug: &'static str, body: impl FnOnce()) {
    // SAFETY: these bugs lend no memory twice.
    unsafe { crate::planted::with(bug, body) }
}

/// Flash whose queues are not dropped while somebody holds the gate.
struct SlowToEnd {
    below: MemoryFlash,
    gate: Arc<Mutex<()>>,
}

impl Flash for SlowToEnd {
    fn capacity_bytes(&self) -> u64 {
        self.below.capacity_bytes()
    }

    fn grow(&self, capacity_bytes: u64) -> Result<(), FlashError> {
        self.below.grow(capacity_bytes)
    }

    fn sector_bytes(&self) -> u32 {
        self.below.sector_bytes()
    }

    fn describe(&self) -> String {
        self.below.describe()
    }

    fn open_queue(&self, memory: &PairMemory, depth: u32) -> io::Result<Box<dyn FlashQueue>> {
        Ok(Box::new(SlowQueue { below: self.below.open_queue(memory, depth)?, gate: self.gate.clone() }))
    }
}

struct SlowQueue {
    below: Box<dyn FlashQueue>,
    gate: Arc<Mutex<()>>,
}

impl FlashQueue for SlowQueue {
    unsafe fn submit(&mut self, command: &Command) {
        // SAFETY: by our caller's word.
        unsafe { self.below.submit(command) };
    }

    fn poll(&mut self, completions: &mut Vec<Completion>) {
        self.below.poll(completions);
    }

    fn wait(&mut self, timeout: Option<Duration>) {
        self.below.wait(timeout);
    }

    fn event_fd(&self) -> Option<RawFd> {
        self.below.event_fd()
    }
}

impl Drop for SlowQueue {
    fn drop(&mut self) {
        drop(whole(self.gate.lock()));
    }
}
