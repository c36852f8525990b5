//! A descriptor that all sessions share. It is readable when work that any session may do for all has made progress. One of the sleeping sessions at
//! a time watches it, so that an event wakes one and not all.
//!
//! ```text
//! about to sleep ─► nobody watches? ─► watches ─► woken, gives the watch up ─► rouses the next of those that wait
//!                   somebody does?  ─► waits by its own descriptors                 │
//!                          ▲                                                        ▼
//!                          └──────────────── there is more to wait for ◄── does the work for all
//! ```
//! 1. If a session waits, another one watches, or was roused and does the work when it polls.
//! 2. A session comes here only if it would do that work. All sessions are notified of the work's results ([`Log::wake`](crate::log::Log::wake)).
//!
//! Threads: any. The lock is held briefly, and no other lock is taken under it.

use super::notify::Notifier;
use crate::media::io::lock;
use std::collections::VecDeque;
use std::os::fd::RawFd;
use std::sync::{Arc, Mutex};

pub struct SharedEvent {
    /// `None`: the drive has no descriptors and completes its work in polls.
    pub fd: Option<RawFd>,
    sleepers: Mutex<Sleepers>,
}

#[derive(Default)]
struct Sleepers {
    is_watched: bool,
    /// The sessions that wait and can be roused.
    waiting: VecDeque<Arc<Notifier>>,
}

/// The way in which a session that is about to sleep learns of an event.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Sleep {
    /// The session watches the descriptor for all.
    Watches,
    /// The session is roused by the watching one.
    Waits,
    /// The session cannot be roused, so it polls the descriptor too, beside the watching one.
    Looks,
}

impl SharedEvent {
    pub fn new(fd: Option<RawFd>) -> SharedEvent {
        SharedEvent { fd, sleepers: Mutex::default() }
    }

    /// Called by a session that is about to sleep.
    pub fn begin_sleep(&self, notifier: &Arc<Notifier>) -> Sleep {
        let mut sleepers = lock(&self.sleepers);
        if !std::mem::replace(&mut sleepers.is_watched, true) {
            return Sleep::Watches;
        }
        if notifier.event_fd().is_none() {
            return Sleep::Looks;
        }
        sleepers.waiting.push_back(notifier.clone());
        Sleep::Waits
    }

    /// Called by the same session when it was woken.
    pub fn end_sleep(&self, notifier: &Arc<Notifier>, sleep: Sleep) {
        let mut sleepers = lock(&self.sleepers);
        match sleep {
            Sleep::Watches => {
                sleepers.is_watched = false;
                if let Some(next) = sleepers.waiting.pop_front() {
                    next.raise();
                }
            }
            Sleep::Waits => sleepers.waiting.retain(|other| !Arc::ptr_eq(other, notifier)),
            Sleep::Looks => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_roused(notifier: &Notifier) -> bool {
        let fd = notifier.event_fd().expect("an eventfd");
        let mut poll = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
        // SAFETY: one valid pollfd, no waiting.
        unsafe { libc::poll(&mut poll, 1, 0) == 1 }
    }

    #[test]
    fn one_watches_and_the_watch_goes_round() {
        let event = SharedEvent::new(None);
        let sessions: Vec<Arc<Notifier>> = (0..3).map(|_| Arc::default()).collect();
        let sleeps: Vec<Sleep> = sessions.iter().map(|session| event.begin_sleep(session)).collect();
        assert_eq!(sleeps, [Sleep::Watches, Sleep::Waits, Sleep::Waits]);
        event.end_sleep(&sessions[0], Sleep::Watches);
        assert_eq!(sessions.iter().map(|session| is_roused(session)).collect::<Vec<_>>(), [false, true, false]);
        assert_eq!(event.begin_sleep(&sessions[0]), Sleep::Watches, "nobody else has come to it yet");
        event.end_sleep(&sessions[1], Sleep::Waits);
        assert_eq!(event.begin_sleep(&sessions[1]), Sleep::Waits);
        event.end_sleep(&sessions[0], Sleep::Watches);
        assert!(is_roused(&sessions[2]), "each has its turn");
    }

    #[test]
    fn who_went_by_itself_is_not_roused_later() {
        let event = SharedEvent::new(None);
        let sessions: Vec<Arc<Notifier>> = (0..2).map(|_| Arc::default()).collect();
        event.begin_sleep(&sessions[0]);
        let sleep = event.begin_sleep(&sessions[1]);
        event.end_sleep(&sessions[1], sleep);
        event.end_sleep(&sessions[0], Sleep::Watches);
        assert!(!is_roused(&sessions[1]));
        assert_eq!(event.begin_sleep(&sessions[1]), Sleep::Watches);
    }
}
