//! The desk where passwords are looked at: a queue, and two threads with memory of the server's budget.
//!
//! ```text
//!   attempt ─► queue (by the time at which its turn is) ─► thread: memory, hash ─► done(verdict)
//! ```
//! 1. Two passwords are hashed at once at the most, each with memory that was taken from the budget before.
//! 2. An attempt waits for its turn as its origin's failures demand, whatever its password is.
//! 3. One origin has at most [`OF_ORIGIN_MAX`] attempts here, [`OF_FAILED_MAX`] if it has failed; at most [`WAITING_MAX`] whose turn it is, and
//!    [`SLOWED_MAX`] whose turn it is not: those who are slowed take nobody's place. The next is refused at once.
//! 4. The same attempt again waits for the same verdict.
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
pub const SLOWED_MAX: usize = 1024;
pub const OF_ORIGIN_MAX: usize = 32;
pub const OF_FAILED_MAX: usize = 2;
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

/// Told whether a password is right; `None` if the desk closes before it was looked at.
pub type Done = Box<dyn FnOnce(Option<bool>) + Send>;

/// The same for the same name, hash and password, and for no others.
pub type Print = [u8; 32];

/// A password to look at.
pub struct Attempt {
    pub hash: Hash,
    pub password: Password,
    pub origin: Origin,
    pub print: Print,
    pub done: Done,
}

/// Those who wait for one verdict.
struct Waiting {
    hash: Hash,
    password: Password,
    key: (Origin, Print),
    done: Vec<Done>,
}

enum Place {
    Waits((Instant, u64)),
    /// It is hashed now; these have come meanwhile.
    Hashed(Vec<Done>),
}

#[derive(Default)]
struct Queue {
    /// By when their turn is, and by number.
    waiting: BTreeMap<(Instant, u64), Waiting>,
    places: HashMap<(Origin, Print), Place>,
    /// Attempts that wait or are hashed.
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
        let is_taken = lock(&self.shared.queue).take(attempt, Instant::now());
        if is_taken {
            self.shared.changed.notify_one();
        }
        is_taken
    }

    /// Whether nobody from there has failed lately, and no attempt from there is under way: an answer at once tells no guesser anything.
    pub fn is_quiet(&self, origin: Origin) -> bool {
        let queue = lock(&self.shared.queue);
        !queue.by_origin.contains_key(&origin) && !queue.slowness.has_failed(origin, Instant::now())
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
            std::mem::take(&mut queue.waiting)
        };
        self.shared.changed.notify_all();
        waiting.into_values().flat_map(|waiting| waiting.done).for_each(|done| done(None));
        for thread in lock(&self.threads).drain(..) {
            // A thread that panicked has said so.
            let _ = thread.join();
        }
    }
}

impl Queue {
    /// Takes an attempt in, if there is room.
    fn take(&mut self, attempt: Attempt, now: Instant) -> bool {
        let Attempt { hash, password, origin, print, done } = attempt;
        let key = (origin, print);
        if self.is_ended {
            return false;
        }
        match self.places.get_mut(&key) {
            Some(Place::Hashed(more)) => more.push(done),
            Some(Place::Waits(place)) => {
                let place = *place;
                self.waiting.entry(place).and_modify(|waiting| waiting.done.push(done));
            }
            None => {
                let wait = self.slowness.wait(origin, now);
                let of_origin = self.by_origin.get(&origin).copied().unwrap_or(0);
                let of_origin_max = if self.slowness.has_failed(origin, now) { OF_FAILED_MAX } else { OF_ORIGIN_MAX };
                let due = self.waiting.range(..=(now, u64::MAX)).count();
                let is_full = match wait.is_zero() {
                    true => due >= WAITING_MAX,
                    false => self.waiting.len() - due >= SLOWED_MAX,
                };
                if is_full || of_origin >= of_origin_max {
                    return false;
                }
                self.number += 1;
                let place = (now + wait, self.number);
                self.by_origin.insert(origin, of_origin + 1);
                self.places.insert(key, Place::Waits(place));
                self.waiting.insert(place, Waiting { hash, password, key, done: vec![done] });
            }
        }
        true
    }

    /// An attempt was looked at. Returns those who have come for its verdict meanwhile.
    fn end(&mut self, key: (Origin, Print)) -> Vec<Done> {
        if let Some(count) = self.by_origin.get_mut(&key.0) {
            *count -= 1;
            if *count == 0 {
                self.by_origin.remove(&key.0);
            }
        }
        match self.places.remove(&key) {
            Some(Place::Hashed(done)) => done,
            Some(Place::Waits(_)) | None => Vec::new(),
        }
    }

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
    fn next(&mut self, now: Instant) -> Result<Waiting, Option<Duration>> {
        let told = self.tell(now);
        match self.waiting.first_entry() {
            Some(first) if first.key().0 <= now => {
                let waiting = first.remove();
                self.places.insert(waiting.key, Place::Hashed(Vec::new()));
                Ok(waiting)
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
        while let Some(Waiting { hash, password, key, done }) = self.next() {
            let bytes = hash.memory_bytes();
            let verdict = self.take(number, bytes, memory).then(|| {
                let is_right = hash.is_of(&password);
                memory.give(number, bytes);
                is_right
            });
            let more = {
                let mut queue = lock(&self.queue);
                if verdict == Some(false) {
                    queue.failed(key.0, Instant::now());
                }
                queue.end(key)
            };
            self.changed.notify_one();
            done.into_iter().chain(more).for_each(|done| done(verdict));
        }
    }

    /// Waits for the next attempt; `None` at the end.
    fn next(&self) -> Option<Waiting> {
        let mut queue = lock(&self.queue);
        loop {
            if queue.is_ended {
                return None;
            }
            queue = match queue.next(Instant::now()) {
                Ok(waiting) => return Some(waiting),
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
            let attempt = Attempt { hash: hash.clone(), password, origin: origin(number), print: [number; 32], done };
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

    fn attempt(last: u8, print: u8) -> Attempt {
        Attempt {
            hash: Hash::of_nobody(),
            password: Password::new(b"x").unwrap(),
            origin: origin(last),
            print: [print; 32],
            done: Box::new(|_| {}),
        }
    }

    #[test]
    fn one_origin_does_not_fill_the_queue_and_the_same_attempt_takes_one_place() {
        let desk = Desk::new();
        for print in 0..OF_ORIGIN_MAX as u8 {
            assert!(desk.queue(attempt(1, print)));
        }
        assert!(!desk.queue(attempt(1, 200)) && desk.queue(attempt(2, 200)));
        assert!(desk.queue(attempt(1, 0)), "it waits for the verdict of the first");
        assert!(!desk.is_quiet(origin(1)) && desk.is_quiet(origin(3)));
        let (sender, verdicts) = channel();
        assert!(
            desk.queue(Attempt { done: Box::new(move |is_right| sender.send(is_right).unwrap()), ..attempt(3, 0) })
        );
        desk.close();
        assert_eq!(verdicts.recv(), Ok(None), "whoever waits is told");
        assert!(!desk.queue(attempt(4, 0)));
    }

    #[test]
    fn those_who_are_slowed_take_nobodys_place() {
        let desk = Desk::new();
        for last in 0..200 {
            desk.note_failure(origin(last));
            for print in 0..4 {
                assert_eq!(desk.queue(attempt(last, print)), usize::from(print) < OF_FAILED_MAX, "{last}, {print}");
            }
        }
        assert!(desk.queue(attempt(250, 0)), "one who has not failed");
        desk.close();
    }

    #[test]
    fn who_asks_the_same_while_it_is_looked_at_is_told_the_same() {
        let (desk, memory) = (Desk::new(), Arc::new(Counted::default()));
        let right = Password::new(b"right").unwrap();
        let hash = Hash::of(&right).unwrap();
        let (sender, verdicts) = channel();
        desk.open(memory).unwrap();
        for _ in 0..100 {
            let sender = sender.clone();
            let done = Box::new(move |is_right| sender.send(is_right).unwrap());
            let same = Attempt { hash: hash.clone(), password: right.clone(), origin: origin(1), print: [1; 32], done };
            assert!(desk.queue(same));
        }
        assert!(verdicts.iter().take(100).all(|verdict| verdict == Some(true)));
        desk.close();
        assert!(desk.is_quiet(origin(1)));
    }
}
