//! Wakes a session that sleeps: an eventfd beside a flag, so that nobody pays for a session that does not sleep.

use crate::memory::memory_word::Word;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use tapetum_drive::Event;

/// Whether somebody is about to look whether they may go on, and to sleep if not. They set it before they look; who changes
/// what they look at asks for it afterwards. So the one sees the change or the other sees the flag, whatever the change's own
/// order is.
#[derive(Default)]
struct Waiting<W>(W);

impl<W: Word> Waiting<W> {
    fn set(&self, waiting: bool) {
        self.0.store(waiting.into(), Ordering::Relaxed);
        W::fence(Ordering::SeqCst);
    }

    fn is_set(&self) -> bool {
        W::fence(Ordering::SeqCst);
        self.0.load(Ordering::Relaxed) != 0
    }
}

#[derive(Default)]
pub struct Notifier {
    waiting: Waiting<AtomicU64>,
    event: OnceLock<Option<Event>>,
}

impl Notifier {
    /// A descriptor that is readable after [`Notifier::notify`], until [`Notifier::drain`].
    pub fn event_fd(&self) -> Option<RawFd> {
        let event = self.event.get_or_init(|| Event::new().ok());
        event.as_ref().map(Event::as_raw_fd)
    }

    /// Says whether the session wants to hear of changes; before it looks whether it must wait for one.
    pub fn set_waiting(&self, waiting: bool) {
        self.waiting.set(waiting);
    }

    /// After a change.
    pub fn notify(&self) {
        if self.waiting.is_set() {
            self.raise();
        }
    }

    /// Wakes the session from its sleep, or the next one.
    pub fn raise(&self) {
        if let Some(Some(event)) = self.event.get() {
            event.raise();
        }
    }

    pub fn drain(&self) {
        if let Some(Some(event)) = self.event.get() {
            event.clear();
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

#[cfg(test)]
mod models {
    use super::*;
    use crate::memory::memory_word::model::*;

    /// A session waits for room, which comes beside it.
    fn nobody_sleeps_beside_room<const WEAK: u8>(look_first: bool) {
        use loom::sync::Arc;
        loom::model(move || {
            let waiting: Arc<Waiting<ModelWord<WEAK>>> = Arc::default();
            let room: Arc<ModelWord<WEAK>> = Arc::default();
            let maker = {
                let (waiting, room) = (waiting.clone(), room.clone());
                loom::thread::spawn(move || {
                    room.store(1, Ordering::Relaxed);
                    waiting.is_set()
                })
            };
            let may_go_on = || room.load(Ordering::Relaxed) == 1;
            let mut goes_on = look_first && may_go_on();
            waiting.set(true);
            goes_on = if look_first { goes_on } else { may_go_on() };
            let notified = maker.join().unwrap();
            assert!(goes_on || notified, "it sleeps although there is room");
        });
    }

    #[test]
    fn who_waits_sees_the_change_or_is_notified() {
        nobody_sleeps_beside_room::<SOUND>(false);
    }

    #[test]
    #[should_panic]
    fn without_fences_the_model_fails() {
        nobody_sleeps_beside_room::<NO_FULL_FENCE>(false);
    }

    #[test]
    #[should_panic]
    fn with_a_look_before_the_flag_the_model_fails() {
        nobody_sleeps_beside_room::<SOUND>(true);
    }
}
