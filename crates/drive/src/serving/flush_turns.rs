//! Flushes of one namespace, whose hosts share a file or device: one at a time, and none succeeds after one has failed.
//!
//! A drive whose flush failed may have lost writes of any host, and reports the next flush as a success: the kernel tells a failure once. So a
//! host must not be told that its flush went well while another one's is on its way, or has failed.
//!
//! A queue that waits for its turn is woken by an event of its own, which its descriptor includes.

use crate::event::{Event, EventSet};
use crate::flash::FlashQueue;
use crate::locks::whole;
use crate::protocol::{Command, Completion, Operation};
use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// The turns of one namespace.
#[derive(Default)]
pub struct FlushTurns {
    queue: Mutex<TurnQueue>,
    numbers: AtomicU64,
    has_failed: AtomicBool,
}

#[derive(Default)]
struct TurnQueue {
    /// The number of the queue whose flush is on its way.
    holder: Option<u64>,
    waiting: VecDeque<(u64, Arc<Event>)>,
}

impl FlushTurns {
    /// Whether it has its turn. If not, its event is raised when it has.
    fn begin(&self, number: u64, event: &Arc<Event>) -> bool {
        let mut queue = whole(self.queue.lock());
        if *queue.holder.get_or_insert(number) == number {
            return true;
        }
        if queue.waiting.iter().all(|(other, _)| *other != number) {
            queue.waiting.push_back((number, event.clone()));
        }
        false
    }

    /// The turn of a queue is over, or it is gone.
    fn end(&self, number: u64) {
        let mut queue = whole(self.queue.lock());
        queue.waiting.retain(|(other, _)| *other != number);
        if queue.holder == Some(number) {
            queue.holder = None;
        }
        // Handed over: who ends a flush and has another one does not go first.
        if queue.holder.is_none()
            && let Some((next, event)) = queue.waiting.pop_front()
        {
            queue.holder = Some(next);
            event.raise();
        }
    }
}

/// A queue of a partition, which takes turns with those of the others: its addresses are inside the partition.
pub struct TurnedQueue {
    // First, so that its flush has ended before its turn does.
    below: Box<dyn FlashQueue>,
    /// The partition's start on flash.
    start: u64,
    turns: Arc<FlushTurns>,
    number: u64,
    event: Arc<Event>,
    both: Option<EventSet>,
    /// Flushes that wait for a turn.
    waiting: VecDeque<Command>,
    /// The tag of the flush that is on its way.
    flushing: Option<u64>,
}

impl TurnedQueue {
    /// # Errors
    /// The operating system's, when it has no more descriptors.
    pub fn open(below: Box<dyn FlashQueue>, start: u64, turns: &Arc<FlushTurns>) -> io::Result<Box<dyn FlashQueue>> {
        let event = Arc::new(Event::new()?);
        let both = below.event_fd().map(|below| EventSet::new(&[below, event.as_raw_fd()])).transpose()?;
        let number = turns.numbers.fetch_add(1, Ordering::Relaxed);
        let (turns, waiting) = (turns.clone(), VecDeque::new());
        Ok(Box::new(TurnedQueue { below, start, turns, number, event, both, waiting, flushing: None }))
    }

    fn start_flush(&mut self) {
        if self.flushing.is_some() || self.waiting.is_empty() {
            return;
        }
        self.event.clear();
        if self.turns.begin(self.number, &self.event)
            && let Some(flush) = self.waiting.pop_front()
        {
            self.flushing = Some(flush.tag);
            // SAFETY: a flush names no memory.
            unsafe { self.below.submit(&flush) };
        }
    }

    /// The flush on its way ended with this completion.
    fn end_flush(&mut self, completion: &mut Completion) {
        self.flushing = None;
        if !completion.is_success() && !self.turns.has_failed.swap(true, Ordering::SeqCst) {
            tracing::error!(
                "a flush failed (errno {}): each flush of every store there fails, until the drive is started again",
                completion.errno
            );
        }
        if self.turns.has_failed.load(Ordering::SeqCst) && completion.is_success() {
            *completion = Completion::failed(completion.tag, libc::EIO);
        }
        self.turns.end(self.number);
    }
}

impl FlashQueue for TurnedQueue {
    unsafe fn submit(&mut self, command: &Command) {
        let mut command = *command;
        match &mut command.operation {
            Operation::Flush => return self.waiting.push_back(command),
            Operation::Read { flash, .. } | Operation::Write { flash, .. } | Operation::Discard { flash, .. } => {
                *flash += self.start;
            }
            _ => {}
        }
        // SAFETY: by our caller's word; the partition lies inside the flash.
        unsafe { self.below.submit(&command) };
    }

    fn poll(&mut self, completions: &mut Vec<Completion>) {
        self.start_flush();
        let mut first = completions.len();
        loop {
            self.below.poll(completions);
            let Some(tag) = self.flushing else { return };
            let Some(ended) = completions[first..].iter_mut().find(|completion| completion.tag == tag) else { return };
            self.end_flush(ended);
            // The next one may end at once. A flush that was submitted and not polled raises no event.
            first = completions.len();
            self.start_flush();
        }
    }

    fn wait(&mut self, timeout: Option<Duration>) {
        self.start_flush();
        match self.waiting.is_empty() || self.flushing.is_some() {
            true => self.below.wait(timeout),
            // Another one's turn.
            false => std::thread::yield_now(),
        }
    }

    fn event_fd(&self) -> Option<RawFd> {
        self.both.as_ref().map(AsRawFd::as_raw_fd)
    }

    fn rest(&mut self) {
        self.below.rest();
    }
}

impl Drop for TurnedQueue {
    fn drop(&mut self) {
        // The flush on its way is waited for here: the turn ends behind it.
        self.below = Box::new(Nothing);
        self.turns.end(self.number);
    }
}

/// In place of a queue that was dropped.
struct Nothing;

impl FlashQueue for Nothing {
    unsafe fn submit(&mut self, _: &Command) {}

    fn poll(&mut self, _: &mut Vec<Completion>) {}

    fn wait(&mut self, _: Option<Duration>) {}

    fn event_fd(&self) -> Option<RawFd> {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flush(queue: &mut dyn FlashQueue, tag: u64) {
        // SAFETY: a flush names no memory.
        unsafe { queue.submit(&Command::new(tag, Operation::Flush)) };
    }

    fn polled(queue: &mut dyn FlashQueue) -> Vec<(u64, bool)> {
        let mut completions = Vec::new();
        queue.poll(&mut completions);
        completions.iter().map(|completion| (completion.tag, completion.is_success())).collect()
    }

    /// A queue whose flushes end when they are told to, and how.
    struct Told(Arc<Mutex<Option<bool>>>, Vec<u64>);

    impl FlashQueue for Told {
        unsafe fn submit(&mut self, command: &Command) {
            self.1.push(command.tag);
        }

        fn poll(&mut self, completions: &mut Vec<Completion>) {
            if self.1.is_empty() {
                return;
            }
            if let Some(succeeds) = whole(self.0.lock()).take() {
                let tag = self.1.remove(0);
                completions.push(if succeeds { Completion::success(tag) } else { Completion::failed(tag, libc::EIO) });
            }
        }

        fn wait(&mut self, _: Option<Duration>) {}

        fn event_fd(&self) -> Option<RawFd> {
            None
        }
    }

    #[test]
    fn flushes_of_two_hosts_take_turns_and_a_failure_is_both_theirs() {
        let turns = Arc::new(FlushTurns::default());
        let told = [(); 2].map(|()| Arc::new(Mutex::new(None)));
        let [mut first, mut second] =
            told.each_ref().map(|told| TurnedQueue::open(Box::new(Told(told.clone(), Vec::new())), 0, &turns).unwrap());
        let tell = |number: usize, succeeds: bool| *whole(told[number].lock()) = Some(succeeds);
        flush(&mut *first, 1);
        flush(&mut *second, 2);
        assert!(polled(&mut *first).is_empty());
        tell(1, true);
        assert!(polled(&mut *second).is_empty(), "it waits for its turn");
        tell(0, true);
        assert_eq!(polled(&mut *first), [(1, true)]);
        assert_eq!(polled(&mut *second), [(2, true)]);
        flush(&mut *first, 3);
        flush(&mut *second, 4);
        assert!(polled(&mut *first).is_empty());
        tell(0, false);
        assert_eq!(polled(&mut *first), [(3, false)]);
        tell(1, true);
        assert_eq!(polled(&mut *second), [(4, false)], "the kernel tells of a failure once");
    }

    #[test]
    fn a_queue_that_is_gone_keeps_no_turn() {
        let turns = Arc::new(FlushTurns::default());
        let queue = |told| TurnedQueue::open(Box::new(Told(told, Vec::new())), 0, &turns).unwrap();
        let mut first = queue(Arc::default());
        flush(&mut *first, 1);
        assert!(polled(&mut *first).is_empty());
        let mut second = queue(Arc::new(Mutex::new(Some(true))));
        flush(&mut *second, 2);
        assert!(polled(&mut *second).is_empty());
        drop(first);
        assert_eq!(polled(&mut *second), [(2, true)]);
    }
}
