//! The event of a ring whose completions wait until its owner enters the kernel: an eventfd that the kernel raises when there are some. The
//! ring's own descriptor would not do, because `epoll` does not hear of such completions.
//!
//! The kernel raises it only while it is armed: from a poll that gave nothing until the next one. So a busy owner pays nothing, and neither
//! does one that never asked for the descriptor. One thread uses it at a time.
//!
//! A processor that was about to raise it at the moment of disarming may still do so later. While commands are in the ring, the next arming
//! cleans that up. With an empty ring, one poll in [`IDLE_POLLS`] clears it; otherwise an owner that sleeps on the descriptor would never
//! sleep.

use std::cell::Cell;
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::atomic::{Ordering, fence};

use io_uring::IoUring;

use crate::event::Event;

/// One of so many polls with an empty ring clears the event.
const IDLE_POLLS: u32 = 64;

pub(super) struct RingEvent {
    event: Event,
    /// The owner has asked for the descriptor, and may sleep on it.
    asked: Cell<bool>,
    /// It may have been raised since the last clearing.
    armed: Cell<bool>,
    /// Polls with an empty ring since it was disarmed.
    idle_polls: Cell<u32>,
}

impl RingEvent {
    /// Registers an eventfd with a ring that is still disabled: afterwards only the ring's thread may register.
    pub(super) fn register(ring: &mut IoUring) -> io::Result<RingEvent> {
        let event = Event::new()?;
        ring.completion().disable_eventfd();
        ring.submitter().register_eventfd(event.as_raw_fd())?;
        Ok(RingEvent { event, asked: Cell::new(false), armed: Cell::new(false), idle_polls: Cell::new(0) })
    }

    /// The descriptor. After the first call the caller may sleep without another poll, so unless the ring is empty, the descriptor is made
    /// readable.
    pub(super) fn ask(&self, ring_is_empty: bool) -> RawFd {
        if !self.asked.replace(true) && !ring_is_empty {
            self.armed.set(true);
            self.event.raise();
        }
        self.event.as_raw_fd()
    }

    /// Lets the kernel raise the event for new completions. Returns whether the descriptor was ever asked for; then the caller must look at
    /// the ring once more.
    pub(super) fn arm(&self, ring: &mut IoUring) -> bool {
        if self.asked.get() && !self.armed.replace(true) {
            ring.completion().enable_eventfd();
            // The kernel publishes a completion, then checks whether to raise. We arm, then look for completions.
            fence(Ordering::SeqCst);
        }
        self.asked.get()
    }

    /// A raise by the kernel that is already under way may wake the owner without cause, a few times.
    pub(super) fn disarm(&self, ring: &mut IoUring) {
        if self.armed.replace(false) {
            ring.completion().disable_eventfd();
            self.event.clear();
            self.idle_polls.set(1);
        }
    }

    /// For a poll with an empty ring: clears a raise that came after the disarming.
    pub(super) fn rest(&self) {
        let polls = self.idle_polls.get();
        self.idle_polls.set(polls.wrapping_add(1));
        if self.asked.get() && polls.is_multiple_of(IDLE_POLLS) {
            self.event.clear();
        }
    }
}
