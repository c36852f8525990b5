//! The way of messages from a thread that works to a client that reads.
//!
//! 1. Two messages wait at most: a client that reads nothing stops its thread at the third.
//! 2. A client that is let go, because it reads nothing, loses what waits for it: memory that was taken for that is free at once, also while
//!    the connection still stands.
//!
//! Threads: one sends and waits; the receiving half is polled by the door's threads.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use futures::Stream;
use futures::stream;
use tokio::runtime::Handle;
use tokio::sync::mpsc::{self, Receiver, Sender, error::TrySendError};

/// Messages that wait for the client.
const WAITING: usize = 2;
/// How often a thread that waits for its client looks whether to go on.
pub const LOOK: Duration = Duration::from_millis(20);

/// A message, until it is taken or taken back.
type Slot<T> = Arc<Mutex<Option<T>>>;

fn take<T>(slot: &Slot<T>) -> Option<T> {
    slot.lock().unwrap_or_else(PoisonError::into_inner).take()
}

/// The sending half. See the [module](self).
pub struct Outlet<T> {
    handle: Handle,
    out: Sender<Slot<T>>,
    /// Those that may not have been taken yet, the oldest first.
    sent: VecDeque<Slot<T>>,
}

/// The client takes no more.
pub struct Closed;

/// Both halves. The receiving one ends where a message was taken back.
pub fn channel<T: Send + 'static>() -> (Outlet<T>, impl Stream<Item = T> + Send + 'static) {
    let (out, slots) = mpsc::channel(WAITING);
    let outlet = Outlet { handle: Handle::current(), out, sent: VecDeque::new() };
    let messages = stream::unfold(slots, |mut slots: Receiver<Slot<T>>| async move {
        let slot = slots.recv().await?;
        take(&slot).map(|message| (message, slots))
    });
    (outlet, messages)
}

impl<T> Outlet<T> {
    pub fn is_closed(&self) -> bool {
        self.out.is_closed()
    }

    /// Whether a message would be sent at once.
    pub fn has_room(&self) -> bool {
        self.out.capacity() > 0
    }

    /// Sends a message as soon as there is room. `go_on` hears every now and then since when it has waited, and says whether it goes on.
    ///
    /// # Errors
    /// If the client has left, or it does not go on: then what waits is taken back.
    pub fn send(&mut self, message: T, mut go_on: impl FnMut(Instant) -> bool) -> Result<(), Closed> {
        let slot = Arc::new(Mutex::new(Some(message)));
        if self.sent.len() > WAITING {
            self.sent.pop_front();
        }
        self.sent.push_back(Arc::clone(&slot));
        let slot = match self.out.try_send(slot) {
            Ok(()) => return Ok(()),
            Err(TrySendError::Closed(_)) => return Err(Closed),
            Err(TrySendError::Full(slot)) => slot,
        };
        let began = Instant::now();
        loop {
            let waiting = async { tokio::time::timeout(LOOK, self.out.reserve()).await };
            match self.handle.block_on(waiting) {
                Ok(Ok(room)) => {
                    room.send(slot);
                    return Ok(());
                }
                Ok(Err(_)) => return Err(Closed),
                Err(_) if go_on(began) => {}
                Err(_) => {
                    self.sent.drain(..).for_each(|slot| drop(take(&slot)));
                    return Err(Closed);
                }
            }
        }
    }
}
