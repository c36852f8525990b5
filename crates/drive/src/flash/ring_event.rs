//! What wakes the owner of a ring whose completions wait until they are asked for: an eventfd that the kernel raises when
//! there are some to make. The ring's own descriptor would not do: `epoll` is not told of them.
//!
//! The kernel raises it only while it is armed, which is from a poll that gave nothing to the next one, so that a busy owner
//! pays nothing; and never for one that did not ask for the descriptor. Used by one thread at a time.
//!
//! A processor that was about to raise it when it was disarmed may do so at any time later. With something in the ring it is armed,
//! and cleared, again. With nothing in it, it is cleared at every so many polls: else whoever sleeps on it would never sleep.

use std::cell::Cell;
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::atomic::{Ordering, fence};

use io_uring::IoUring;

use crate::event::Event;

/// Of so many polls with an empty ring, one clears it.
const IDLE_POLLS: u32 = 64;

pub(super) struct RingEvent {
    event: Event,
    /// Somebody may sleep on it.
    asked: Cell<bool>,
    /// It may have been raised since it was last cleared.
    armed: Cell<bool>,
    /// Polls with an empty ring since it was disarmed.
    idle_polls: Cell<u32>,
}

impl RingEvent {
    /// For a ring that is disabled still: later only the thread that it belongs to may register.
    pub(super) fn register(ring: &mut IoUring) -> io::Result<RingEvent> {
        let event = Event::new()?;
        ring.completion().disable_eventfd();
        ring.submitter().register_eventfd(event.as_raw_fd())?;
        Ok(RingEvent { event, asked: Cell::new(false), armed: Cell::new(false), idle_polls: Cell::new(0) })
    }

    /// The descriptor. Who asks for the first time may sleep without another poll, so with something in the ring it is
    /// readable for now.
    pub(super) fn ask(&self, ring_is_empty: bool) -> RawFd {
        if !self.asked.replace(true) && !ring_is_empty {
            self.armed.set(true);
            self.event.raise();
        }
        self.event.as_raw_fd()
    }

    /// From now on the kernel raises it, for what comes. Whether anybody listens: who does looks at the ring once more.
    pub(super) fn arm(&self, ring: &mut IoUring) -> bool {
        if self.asked.get() && !self.armed.replace(true) {
            ring.completion().enable_eventfd();
            // The kernel says that there is something, then looks whether to raise; here it is the other way round.
            fence(Ordering::SeqCst);
        }
        self.asked.get()
    }

    /// Should the kernel be about to raise it, that wakes for nothing, a few times.
    pub(super) fn disarm(&self, ring: &mut IoUring) {
        if self.armed.replace(false) {
            ring.completion().disable_eventfd();
            self.event.clear();
            self.idle_polls.set(1);
        }
    }

    /// A poll with an empty ring: what raised it since it was disarmed, if anything, was late.
    pub(super) fn rest(&self) {
        let polls = self.idle_polls.get();
        self.idle_polls.set(polls.wrapping_add(1));
        if self.asked.get() && polls.is_multiple_of(IDLE_POLLS) {
            self.event.clear();
        }
    }
}
