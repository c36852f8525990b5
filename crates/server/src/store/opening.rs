//! Signals while a store is opened or made, which may take minutes. A signal that stops a server ends it at once: no client is served yet,
//! and an opening may be cut short at any point, as by a crash.

// The server is above the simulator: this is a thread of the system.
#![allow(clippy::disallowed_methods)]

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use tapetum_drive::Event;

use crate::os::{self, Epoll, Interest};

/// For the log's thread to write its last lines.
const LAST_LINES_TIME: Duration = Duration::from_millis(200);

const ID_SIGNALS: u64 = 0;
const ID_DONE: u64 = 1;

/// Watches until it is dropped.
pub struct Opening {
    done: Arc<Event>,
    thread: Option<JoinHandle<()>>,
}

impl Opening {
    pub fn watch(signals: BorrowedFd<'_>) -> io::Result<Opening> {
        let (done, signals) = (Arc::new(Event::new()?), signals.try_clone_to_owned()?);
        let epoll = Epoll::new()?;
        epoll.add(signals.as_raw_fd(), ID_SIGNALS, Interest::READ)?;
        epoll.add(done.as_raw_fd(), ID_DONE, Interest::READ)?;
        let life = move || {
            let mut ready = Vec::new();
            while ready.is_empty() {
                if epoll.wait(-1, &mut ready).is_err() {
                    return;
                }
            }
            // Whoever opened the store reads the signal, if it is open by now.
            if ready.iter().any(|one| one.id == ID_DONE) {
                return;
            }
            if let Ok(signal) = os::wait_for_signal(signals.as_fd()) {
                tracing::info!("stopping after {}: the store was not open yet", os::signal_name(signal));
                std::thread::sleep(LAST_LINES_TIME);
                std::process::exit(0);
            }
        };
        let thread = std::thread::Builder::new().name("opening".into()).spawn(life)?;
        Ok(Opening { done, thread: Some(thread) })
    }
}

impl Drop for Opening {
    fn drop(&mut self) {
        self.done.raise();
        if let Some(thread) = self.thread.take() {
            // A panic there has been reported, and the store is open.
            let _ = thread.join();
        }
    }
}
