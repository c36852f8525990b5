//! The desk where passwords are looked at: a queue, and two threads with memory of the server's budget.
//!
//! ```text
//!   attempt ─► queue (by the time at which its turn is) ─► thread: memory, hash ─► done(verdict)
//! ```
//! 1. Two passwords are hashed at once at the most, each with memory that was taken from the budget before.
//! 2. One origin has at most [`OF_ORIGIN_MAX`] attempts in the queue, all together [`WAITING_MAX`]: the next is refused at once.
//! 3. An attempt waits for its turn as its origin's failures demand, whatever its password is.
//!
//! Threads: any may queue; the two are the desk's own, and end with it.

#![allow(clippy::disallowed_methods)] // The server is above the simulator: clocks and threads are the system's.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::password::{Hash, Password};
use crate::slowness::{Origin, Slowness};

const THREADS: usize = 2;
pub const WAITING_MAX: usize = 256;
pub const OF_ORIGIN_MAX: usize = 32;
/// How often a thread looks whether there is memory again.
const MEMORY_LOOK: Duration = Duration::from_millis(2);
/// Failures are told in the log so often at the most.
const TOLD_EVERY: Duration = Duration::from_secs(60);

/// The budget from which hashes take their memory.
pub trait LoginMemory: Send + Sync + 'static {
    /// Takes memory for one of the desk's threads; whether there is so much now.
    fn take(&self, thread: usize, bytes: usize) -> bool;
    fn give(&self, thread: usize, bytes: usize);
    /// Hears of a thread that begins or ends waiting.
    fn wait(&self, begins: bool);
}

/// A password to look at.
pub struct Attempt {
    pub hash: Hash,
    pub password: Password,
    pub origin: Origin,
    /// Told whether it is right; `None` if the desk closes before it was looked at.
    pub done: Box<dyn FnOnce(Option<bool>) + Send>,
}

#[derive(Default)]
struct Queue {
    /// By when their turn is, and by number.
    waiting: BTreeMap<(Instant, u64), Attempt>,
    by_origin: HashMap<Origin, usize>,
    number: u64,
    slowness: Slowness,
    /// Failures that the log has not told yet.
    untold: HashMap<Origin, u64>,
    told_at: Option<Instant>,
    is_ended: bool,
}

struct Shared {
    queue: Mutex<Queue>,
    changed: Condvar,
}

/// See the [module](self).
pub struct Desk {
    shared: Arc<Shared>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl Desk {
    pub fn new() -> Desk {
        let shared = Shared { queue: Mutex::default(), changed: Condvar::new() };
        Desk { shared: Arc::new(shared), threads: Mutex::default() }
    }

    /// Begins to look at passwords; earlier attempts wait until then.
    ///
    /// # Errors
    /// If the system refuses threads.
    pub fn open(&self, memory: Arc<dyn LoginMemory>) -> io::Result<()> {
        let mut threads = lock(&self.threads);
        for number in 0..THREADS {
            let (shared, memory) = (Arc::clone(&self.shared), Arc::clone(&memory));
            let life = move || shared.work(number, &*memory);
            threads.push(std::thread::Builder::new().name("logins".into()).spawn(life)?);
        }
        Ok(())
    }

    /// Queues an attempt, unless too many wait; whether there was room.
    pub fn queue(&self, attempt: Attempt) -> bool {
        let mut queue = lock(&self.shared.queue);
        let of_origin = queue.by_origin.get(&attempt.origin).copied().unwrap_or(0);
        if queue.waiting.len() >= WAITING_MAX || of_origin >= OF_ORIGIN_MAX || queue.is_ended {
            return false;
        }
        let now = Instant::now();
        let turn = now + queue.slowness.wait(attempt.origin, now);
        queue.number += 1;
        queue.by_origin.insert(attempt.origin, of_origin + 1);
        let place = (turn, queue.number);
        queue.waiting.insert(place, attempt);
        self.shared.changed.notify_one();
        true
    }

    /// Whether an attempt from there waits for its turn.
    pub fn is_slowed(&self, origin: Origin) -> bool {
        let now = Instant::now();
        !lock(&self.shared.queue).slowness.wait(origin, now).is_zero()
    }

    /// Notes a failure that needed no hash: without a password, or of a token.
    pub fn note_failure(&self, origin: Origin) {
        let mut queue = lock(&self.shared.queue);
        queue.failed(origin, Instant::now());
        // A thread tells of it in time.
        self.shared.changed.notify_one();
    }

    /// Ends the threads. Attempts that wait are not looked at any more.
    pub fn close(&self) {
        let waiting = {
            let mut queue = lock(&self.shared.queue);
            queue.is_ended = true;
            queue.by_origin.clear();
            std::mem::take(&mut queue.waiting)
        };
        self.shared.changed.notify_all();
        waiting.into_values().for_each(|attempt| (attempt.done)(None));
        for thread in lock(&self.threads).drain(..) {
            // A thread that panicked has said so.
            let _ = thread.join();
        }
    }
}

impl Queue {
    fn failed(&mut self, origin: Origin, now: Instant) {
        self.slowness.failed(origin, now);
        let place = if self.untold.len() < OF_ORIGIN_MAX { origin } else { Origin::Elsewhere };
        *self.untold.entry(place).or_default() += 1;
    }

    /// Tells the log of failures, if it was not told lately. Returns when to look again.
    fn tell(&mut self, now: Instant) -> Option<Instant> {
        if self.untold.is_empty() {
            return None;
        }
        let next = self.told_at.map_or(now, |told| told + TOLD_EVERY);
        if now < next {
            return Some(next);
        }
        let total: u64 = self.untold.values().sum();
        let most = self.untold.drain().max_by_key(|(_, count)| *count);
        if let Some((origin, count)) = most {
            let logins = if total == 1 { "login" } else { "logins" };
            tracing::warn!("{total} {logins} failed lately, {count} of them {origin}; they are told once a minute");
        }
        self.told_at = Some(now);
        None
    }

    /// The attempt whose turn it is; else how long nobody's is.
    fn next(&mut self, now: Instant) -> Result<Attempt, Option<Duration>> {
        let told = self.tell(now);
        match self.waiting.first_entry() {
            Some(first) if first.key().0 <= now => {
                let attempt = first.remove();
                if let Some(count) = self.by_origin.get_mut(&attempt.origin) {
                    *count -= 1;
                    if *count == 0 {
                        self.by_origin.remove(&attempt.origin);
                    }
                }
                Ok(attempt)
            }
            first => {
                let next = first.map(|first| first.key().0).into_iter().chain(told).min();
                Err(next.map(|next| next.saturating_duration_since(now)))
            }
        }
    }
}

impl Shared {
    fn work(&self, number: usize, memory: &dyn LoginMemory) {
        while let Some(attempt) = self.next() {
            let Attempt { hash, password, origin, done } = attempt;
            let bytes = hash.memory_bytes();
            if !self.take(number, bytes, memory) {
                return done(None);
            }
            let is_right = hash.is_of(&password);
            memory.give(number, bytes);
            if !is_right {
                lock(&self.queue).failed(origin, Instant::now());
                self.changed.notify_one();
            }
            done(Some(is_right));
        }
    }

    /// Waits for the next attempt; `None` at the end.
    fn next(&self) -> Option<Attempt> {
        let mut queue = lock(&self.queue);
        loop {
            if queue.is_ended {
                return None;
            }
            queue = match queue.next(Instant::now()) {
                Ok(attempt) => return Some(attempt),
                Err(None) => self.changed.wait(queue).unwrap_or_else(PoisonError::into_inner),
                Err(Some(wait)) => self.changed.wait_timeout(queue, wait).unwrap_or_else(PoisonError::into_inner).0,
            };
        }
    }

    /// Waits for memory; `false` at the end.
    fn take(&self, number: usize, bytes: usize, memory: &dyn LoginMemory) -> bool {
        if memory.take(number, bytes) {
            return true;
        }
        memory.wait(true);
        let is_taken = loop {
            std::thread::sleep(MEMORY_LOOK);
            if memory.take(number, bytes) {
                break true;
            }
            if lock(&self.queue).is_ended {
                break false;
            }
        };
        memory.wait(false);
        is_taken
    }
}

/// The queue is whole even if its last holder panicked.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::mpsc::channel;

    #[derive(Default)]
    struct Counted {
        used: AtomicUsize,
        most: AtomicUsize,
    }

    impl LoginMemory for Counted {
        fn take(&self, _thread: usize, bytes: usize) -> bool {
            let used = self.used.fetch_add(bytes, Ordering::SeqCst) + bytes;
            self.most.fetch_max(used, Ordering::SeqCst);
            true
        }
        fn give(&self, _thread: usize, bytes: usize) {
            self.used.fetch_sub(bytes, Ordering::SeqCst);
        }
        fn wait(&self, _begins: bool) {}
    }

    fn origin(last: u8) -> Origin {
        Origin::of(Some(std::net::IpAddr::from([192, 0, 2, last])))
    }

    #[test]
    fn two_are_looked_at_at_once_and_each_is_told_what_is_so() {
        let (desk, memory) = (Desk::new(), Arc::new(Counted::default()));
        let (right, wrong) = (Password::new(b"right").unwrap(), Password::new(b"wrong").unwrap());
        let hash = Hash::of(&right).unwrap();
        let (sender, verdicts) = channel();
        for number in 0..8u8 {
            let sender = sender.clone();
            let password = if number < 6 { right.clone() } else { wrong.clone() };
            let done = Box::new(move |is_right: Option<bool>| sender.send((number, is_right.unwrap())).unwrap());
            let attempt = Attempt { hash: hash.clone(), password, origin: origin(number), done };
            assert!(desk.queue(attempt));
        }
        desk.open(memory.clone()).unwrap();
        let mut told: Vec<(u8, bool)> = verdicts.iter().take(8).collect();
        told.sort_unstable();
        assert_eq!(told, (0..8).map(|number| (number, number < 6)).collect::<Vec<_>>());
        desk.close();
        assert_eq!(memory.used.load(Ordering::SeqCst), 0);
        assert!(memory.most.load(Ordering::SeqCst) <= 2 * hash.memory_bytes());
    }

    #[test]
    fn one_origin_does_not_fill_the_queue() {
        let desk = Desk::new();
        let attempt = |last| Attempt {
            hash: Hash::of_nobody(),
            password: Password::new(b"x").unwrap(),
            origin: origin(last),
            done: Box::new(|_| {}),
        };
        for _ in 0..OF_ORIGIN_MAX {
            assert!(desk.queue(attempt(1)));
        }
        assert!(!desk.queue(attempt(1)) && desk.queue(attempt(2)));
        let (sender, verdicts) = channel();
        assert!(desk.queue(Attempt { done: Box::new(move |is_right| sender.send(is_right).unwrap()), ..attempt(3) }));
        desk.close();
        assert_eq!(verdicts.recv(), Ok(None), "whoever waits is told");
        assert!(!desk.queue(attempt(4)));
    }
}
