//! A drive that falls behind, while changes are acknowledged before they are durable: writers wait, so that a crash loses at most some seconds.

use super::bench::Bench;
use super::model_tests::put;
use crate::hashed::collect::victim::tests::SMALL_BYTES;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tapetum_base::log::Sync;
use tapetum_base::request::{Outcome, Request};
use tapetum_drive::{
    Command, Completion, Env, Flash, FlashError, FlashQueue, MemoryFlash, Opcode, PairMemory, SimClock,
};

const SECOND_US: u64 = 1_000_000;
/// More leaves than the write-back has copies, and less than a quarter of the cache's pages, at which they would be written at once.
const KEYS: u32 = 600;
const PAGES: usize = 2048;

/// A flash that holds writes back while it is stuck.
#[derive(Clone)]
struct StuckFlash {
    flash: Arc<MemoryFlash>,
    is_stuck: Arc<AtomicBool>,
}

struct StuckQueue {
    of: StuckFlash,
    queue: Box<dyn FlashQueue>,
    kept: Vec<Command>,
}

impl Flash for StuckFlash {
    fn capacity_bytes(&self) -> u64 {
        self.flash.capacity_bytes()
    }

    fn grow(&self, capacity_bytes: u64) -> Result<(), FlashError> {
        self.flash.grow(capacity_bytes)
    }

    fn sector_bytes(&self) -> u32 {
        self.flash.sector_bytes()
    }

    fn describe(&self) -> String {
        self.flash.describe()
    }

    fn open_queue(&self, memory: &PairMemory, depth: u32) -> std::io::Result<Box<dyn FlashQueue>> {
        let queue = self.flash.open_queue(memory, depth)?;
        Ok(Box::new(StuckQueue { of: self.clone(), queue, kept: Vec::new() }))
    }
}

impl FlashQueue for StuckQueue {
    unsafe fn submit(&mut self, command: &Command) {
        if command.operation.opcode() == Opcode::Write && self.of.is_stuck.load(Ordering::SeqCst) {
            return self.kept.push(*command);
        }
        // SAFETY: the caller guarantees it.
        unsafe { self.queue.submit(command) };
    }

    fn poll(&mut self, completions: &mut Vec<Completion>) {
        if !self.of.is_stuck.load(Ordering::SeqCst) {
            // SAFETY: the submitters keep the commands' memory until the completions come.
            self.kept.drain(..).for_each(|command| unsafe { self.queue.submit(&command) });
        }
        self.queue.poll(completions);
    }

    fn wait(&mut self, timeout: Option<Duration>) {
        self.queue.wait(timeout);
    }

    fn event_fd(&self) -> Option<RawFd> {
        self.queue.event_fd()
    }
}

fn key(number: u32) -> [u8; 4] {
    number.to_be_bytes()
}

fn stuck_bench() -> (Bench, StuckFlash, SimClock) {
    let flash = StuckFlash { flash: Arc::new(MemoryFlash::new(SMALL_BYTES)), is_stuck: Arc::default() };
    let (env, clock) = Env::simulated(1);
    (Bench::timed(Arc::new(flash.clone()), PAGES, Sync::EverySecond, env), flash, clock)
}

#[test]
fn writers_wait_for_a_drive_that_is_a_second_behind_and_readers_do_not() {
    let (bench, flash, clock) = stuck_bench();
    let mut client = bench.client();
    for number in 0..KEYS {
        assert!(matches!(client.run(put(&key(number), &[1; 1000])).0, Outcome::Stored { .. }));
    }
    while bench.state.write_back.has_work() {
        clock.advance_us(SECOND_US);
        client.step();
    }
    flash.is_stuck.store(true, Ordering::SeqCst);
    for number in 0..KEYS {
        assert!(matches!(client.run(put(&key(number), &[2; 1000])).0, Outcome::Stored { .. }), "it is not durable yet");
    }
    for second in 0..2 {
        assert!(!bench.state.write_back.is_behind(), "after {second} seconds");
        clock.advance_us(SECOND_US);
        (0..20).for_each(|_| client.step());
    }
    assert!(bench.state.write_back.is_behind());
    let waits = client.start(put(&key(0), b"late"));
    (0..100).for_each(|_| client.step());
    assert_eq!(client.take_answer(waits), None, "what a crash takes would grow without end");
    assert_eq!(client.run(Request::Get { key: &key(1) }).1, [2; 1000]);
    flash.is_stuck.store(false, Ordering::SeqCst);
    assert!(matches!(client.answer(waits).0, Outcome::Stored { .. }));
    assert!(!bench.state.write_back.is_behind());
}

#[test]
fn a_page_that_is_changed_while_its_image_is_on_its_way_is_on_flash_a_second_later() {
    let (bench, flash, clock) = stuck_bench();
    let mut client = bench.client();
    client.run(put(&key(0), b"first"));
    flash.is_stuck.store(true, Ordering::SeqCst);
    clock.advance_us(SECOND_US);
    (0..20).for_each(|_| client.step());
    client.run(put(&key(0), b"second"));
    clock.advance_us(SECOND_US);
    (0..20).for_each(|_| client.step());
    assert!(bench.state.write_back.has_work());
    flash.is_stuck.store(false, Ordering::SeqCst);
    (0..100).for_each(|_| client.step());
    assert!(!bench.state.write_back.has_work(), "the second value waits for another second");
}
