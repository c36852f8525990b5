//! The mailbox in which the shared engine leaves the ends of one queue pair's pipelines, with an event for sleepers.
//!
//! 1. It never holds more ends than the queue pair has running pipelines, whose number credits and batches bound.
//! 2. The event is readable exactly while there is an end: it is raised and cleared under the lock that guards the ends. When the engine is
//!    lost, it stays readable.

use super::JobEnd;
use crate::event::Event;
use crate::locks::whole;
use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

pub(crate) struct Mailbox {
    ends: Mutex<VecDeque<JobEnd>>,
    /// Whether there are ends. Pollers read this before they lock.
    has_ends: AtomicBool,
    event: Event,
}

impl Mailbox {
    pub fn new() -> io::Result<Mailbox> {
        Ok(Mailbox { ends: Mutex::default(), has_ends: AtomicBool::new(false), event: Event::new()? })
    }

    pub fn put(&self, end: JobEnd) {
        let mut ends = whole(self.ends.lock());
        if ends.is_empty() {
            self.has_ends.store(true, Ordering::Release);
            self.event.raise();
        }
        ends.push_back(end);
    }

    /// Takes all ends, in the order of arrival.
    pub fn take(&self) -> VecDeque<JobEnd> {
        if !self.has_ends() {
            return VecDeque::new();
        }
        let mut ends = whole(self.ends.lock());
        self.has_ends.store(false, Ordering::Release);
        self.event.clear();
        std::mem::take(&mut *ends)
    }

    pub fn has_ends(&self) -> bool {
        self.has_ends.load(Ordering::Acquire)
    }

    /// Wakes sleepers even if there is no end.
    pub fn ring(&self) {
        self.event.raise();
    }

    pub fn event_fd(&self) -> RawFd {
        self.event.as_raw_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::super::JobResult;
    use super::*;
    use crate::env::Env;
    use crate::event::is_readable_within;
    use crate::protocol::PipelineResult;
    use std::sync::Arc;
    use std::time::Duration;

    /// A reader that sleeps whenever there is no end gets every end once, whatever order the writing threads run in.
    #[test]
    fn nothing_is_slept_over_and_nothing_comes_twice() {
        const BRINGERS: u64 = 3;
        const ENDS: u64 = 20_000;
        let mailbox = Arc::new(Mailbox::new().unwrap());
        let finished = |bytes| JobResult::Pipeline(PipelineResult::Finished { bytes });
        let bring = |owner: u64| {
            let mailbox = mailbox.clone();
            let end = move |token| JobEnd { owner, token, result: finished(token) };
            Env::system().spawn("bringer", move || (0..ENDS).for_each(|token| mailbox.put(end(token)))).unwrap()
        };
        let bringers: Vec<_> = (0..BRINGERS).map(bring).collect();
        let mut next = [0; BRINGERS as usize];
        while next != [ENDS; BRINGERS as usize] {
            let ends = mailbox.take();
            if ends.is_empty() {
                let patience = Some(Duration::from_secs(20));
                assert!(is_readable_within(mailbox.event_fd(), patience), "it sleeps over {next:?}");
            }
            for JobEnd { owner, token, .. } in ends {
                assert_eq!(token, next[owner as usize]);
                next[owner as usize] += 1;
            }
        }
        bringers.into_iter().for_each(|bringer| bringer.join().unwrap());
        assert!(!mailbox.has_ends() && !is_readable_within(mailbox.event_fd(), Some(Duration::ZERO)));
    }
}
