//! Wakes a session that sleeps: an eventfd beside a flag, so that nobody pays for a session that does not sleep.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsRawFd, FromRawFd, RawFd};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

#[derive(Default)]
pub struct Notifier {
    waiting: AtomicBool,
    event: OnceLock<Option<File>>,
}

impl Notifier {
    /// A descriptor that is readable after [`Notifier::notify`], until [`Notifier::drain`].
    pub fn event_fd(&self) -> Option<RawFd> {
        let event = self.event.get_or_init(|| {
            // SAFETY: eventfd takes no pointers; the descriptor it returns is owned by nobody else.
            let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
            // SAFETY: as above.
            (fd >= 0).then(|| unsafe { File::from_raw_fd(fd) })
        });
        event.as_ref().map(File::as_raw_fd)
    }

    /// Says whether the session wants to hear of changes.
    pub fn set_waiting(&self, waiting: bool) {
        self.waiting.store(waiting, Ordering::SeqCst);
    }

    pub fn notify(&self) {
        if self.waiting.load(Ordering::SeqCst)
            && let Some(Some(event)) = self.event.get()
        {
            // A full counter is readable already.
            let _ = (&mut &*event).write(&1u64.to_ne_bytes());
        }
    }

    pub fn drain(&self) {
        if let Some(Some(event)) = self.event.get() {
            // Empty is fine: nobody notified.
            let _ = (&mut &*event).read(&mut [0; 8]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn readable(fd: RawFd) -> bool {
        let mut poll = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
        // SAFETY: one valid pollfd, no waiting.
        unsafe { libc::poll(&mut poll, 1, 0) == 1 }
    }

    #[test]
    fn is_readable_only_between_a_wanted_notification_and_the_drain() {
        let notifier = Notifier::default();
        let fd = notifier.event_fd().expect("an eventfd");
        notifier.notify();
        assert!(!readable(fd), "nobody waits");
        notifier.set_waiting(true);
        notifier.notify();
        assert!(readable(fd));
        notifier.drain();
        assert!(!readable(fd));
    }
}
