//! How a controller sleeps: until its flash, the units that run its pipelines, or the next deadline wakes it.

use super::Controller;
use crate::event::is_readable_within;
use std::os::fd::{AsRawFd, RawFd};
use std::time::Duration;

impl Controller {
    /// Whether the drive's units are running pipelines of this controller.
    pub fn is_computing(&self) -> bool {
        self.compute.as_ref().is_some_and(|compute| compute.event_fd().is_some() && compute.is_busy())
    }

    /// The next deadline of its pipelines. Only a poll of this controller ends them, so whoever sleeps must wake by then.
    pub fn deadline_next_us(&self) -> Option<u64> {
        self.compute.as_ref()?.deadline_next_us()
    }

    /// The descriptor that wakes a sleeper of this controller. It stays the same.
    pub fn wake_fd(&self) -> Option<RawFd> {
        match (&self.both_events, self.compute.as_ref().and_then(|compute| compute.event_fd())) {
            (Some(both), _) => Some(both.as_raw_fd()),
            (None, Some(ends)) => Some(ends),
            (None, None) => self.queue.event_fd(),
        }
    }

    /// A command is in flight whose end raises no descriptor: the caller must keep polling.
    pub fn is_deaf(&self) -> bool {
        self.both_events.is_none() && self.queue.event_fd().is_none() && (self.in_flash > 0 || !self.is_computing())
    }

    /// Starts submitted commands, then sleeps until flash or units have something, a deadline, or the timeout.
    pub(super) fn sleep(&mut self, timeout: Option<Duration>) {
        let timeout = self.until_deadline(timeout);
        if !self.is_computing() {
            return self.queue.wait(timeout);
        }
        if self.in_flash > 0 {
            // The descriptor is raised only after a poll that gave nothing. Completions found here are kept for the next poll.
            self.queue.poll(&mut self.flash_done);
        }
        if let Some(fd) = self.wake_fd().filter(|_| self.flash_done.is_empty() && !self.is_deaf()) {
            is_readable_within(fd, timeout);
        }
    }

    fn until_deadline(&self, timeout: Option<Duration>) -> Option<Duration> {
        let Some(deadline_us) = self.deadline_next_us() else { return timeout };
        let left = Duration::from_micros(deadline_us.saturating_sub(self.device.env.now_us()));
        Some(timeout.map_or(left, |timeout| timeout.min(left)))
    }
}
