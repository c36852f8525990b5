//! Observers of requests: `watch`, which shows a client the requests of others, and the counts by prefix of `stats detail`.
//!
//! 1. Without observers, a request costs one relaxed load ([`Observers::wants`]).
//! 2. A watcher's lines wait in its own buffer of bounded size, which its client is charged with. Lines that do not fit are dropped and
//!    counted, and the watcher is told how many. No worker waits for a watcher.
//! 3. The table of prefixes takes at most 3 MiB ([`PREFIXES_MAX`], [`PREFIX_BYTES_MAX`]). Further prefixes are not counted.
//!
//! Threads: workers write lines, each under the watcher's lock for the copy of a line. A watcher's own worker takes its lines. While
//! prefixes are counted, all workers share the lock of their table, as in memcached.

// The server is above the simulator: lines have the time of day, to the microsecond.
#![allow(clippy::disallowed_methods)]

use crate::protocol::kinds;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

/// The most watchers, as in memcached.
const WATCHERS_MAX: usize = 20;
/// The most bytes of lines that wait for one watcher.
pub const WATCHER_BYTES_MAX: usize = 256 << 10;
const PREFIXES_MAX: usize = 10_000;
/// The most bytes of all prefixes together.
const PREFIX_BYTES_MAX: usize = 1 << 20;
/// The longest line of a prefix, without the prefix: words, and four numbers of at most 20 digits.
const PREFIX_LINE_BYTES_MAX: usize = 112;

/// Wakes a client, by the numbers of its worker and its own.
type Wake = Box<dyn Fn(usize, u32) + Send + Sync>;

#[derive(Default)]
pub struct Observers {
    wanted: AtomicU8,
    watchers: Mutex<Vec<Arc<Watcher>>>,
    line_next: AtomicU64,
    sent: AtomicU64,
    skipped: AtomicU64,
    prefixes: Mutex<PrefixCounts>,
    wake: OnceLock<Wake>,
}

struct Watcher {
    kinds: u8,
    worker: usize,
    client: u32,
    lines: Mutex<WatchedLines>,
    has_lines: AtomicBool,
}

#[derive(Default)]
struct WatchedLines {
    text: Vec<u8>,
    /// Lines dropped for lack of room since the last take.
    skipped: u64,
}

/// The right to watch: dropping it ends the watching.
pub struct WatchSeat {
    observers: Arc<Observers>,
    watcher: Arc<Watcher>,
}

/// Requests for keys with one prefix.
#[derive(Clone, Copy, Default)]
struct PrefixCount {
    gets: u64,
    hits: u64,
    sets: u64,
    deletes: u64,
}

#[derive(Default)]
struct PrefixCounts {
    by_prefix: BTreeMap<Box<[u8]>, PrefixCount>,
    /// Bytes of the prefixes themselves.
    prefix_bytes: usize,
}

impl PrefixCounts {
    /// The count of a prefix. `None` if it is new and there is no room for it.
    fn of(&mut self, prefix: &[u8]) -> Option<&mut PrefixCount> {
        if !self.by_prefix.contains_key(prefix) {
            if self.by_prefix.len() >= PREFIXES_MAX || self.prefix_bytes + prefix.len() > PREFIX_BYTES_MAX {
                return None;
            }
            self.prefix_bytes += prefix.len();
            self.by_prefix.insert(prefix.into(), PrefixCount::default());
        }
        self.by_prefix.get_mut(prefix)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyRequest {
    Get { is_hit: bool },
    Set,
    Delete,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Ignores poisoning: the data is consistent even if a holder panicked.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Observers {
    /// Sets the function that wakes a client of a worker.
    pub fn serve(&self, wake: impl Fn(usize, u32) + Send + Sync + 'static) {
        self.wake.get_or_init(|| Box::new(wake));
    }

    /// Whether anybody observes one of these kinds.
    #[inline]
    pub fn wants(&self, kinds: u8) -> bool {
        self.wanted.load(Ordering::Relaxed) & kinds != 0
    }

    /// Begins watching. `None` if there are already the most watchers.
    pub fn watch(self: &Arc<Observers>, kinds: u8, worker: usize, client: u32) -> Option<WatchSeat> {
        let mut watchers = lock(&self.watchers);
        if watchers.len() >= WATCHERS_MAX {
            return None;
        }
        let (lines, has_lines) = (Mutex::default(), AtomicBool::new(false));
        let watcher = Arc::new(Watcher { kinds, worker, client, lines, has_lines });
        watchers.push(Arc::clone(&watcher));
        self.wanted.fetch_or(kinds, Ordering::Relaxed);
        Some(WatchSeat { observers: Arc::clone(self), watcher })
    }

    fn leave(&self, watcher: &Arc<Watcher>) {
        let mut watchers = lock(&self.watchers);
        watchers.retain(|other| !Arc::ptr_eq(other, watcher));
        let watched = watchers.iter().fold(0, |kinds, watcher| kinds | watcher.kinds);
        self.wanted.fetch_and(watched | kinds::DETAIL, Ordering::Relaxed);
    }

    /// Tells the watchers of `kind`. `write` appends the rest of the line behind time and number.
    pub fn tell(&self, kind: u8, write: impl FnOnce(&mut Vec<u8>)) {
        if !self.wants(kind) {
            return;
        }
        let watchers = lock(&self.watchers);
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let number = self.line_next.fetch_add(1, Ordering::Relaxed) + 1;
        let mut line = format!("ts={}.{:06} gid={number} ", now.as_secs(), now.subsec_micros()).into_bytes();
        write(&mut line);
        line.push(b'\n');
        for watcher in watchers.iter().filter(|watcher| watcher.kinds & kind != 0) {
            let was_empty = {
                let mut lines = lock(&watcher.lines);
                if lines.text.len() + line.len() > WATCHER_BYTES_MAX {
                    lines.skipped += 1;
                    self.skipped.fetch_add(1, Ordering::Relaxed);
                    continue;
                }
                lines.text.extend_from_slice(&line);
                !watcher.has_lines.swap(true, Ordering::Relaxed)
            };
            self.sent.fetch_add(1, Ordering::Relaxed);
            if was_empty && let Some(wake) = self.wake.get() {
                wake(watcher.worker, watcher.client);
            }
        }
    }

    /// Numbers of watchers, of lines given to them, and of lines dropped.
    pub fn watched(&self) -> (usize, u64, u64) {
        let watchers = lock(&self.watchers).len();
        (watchers, self.sent.load(Ordering::Relaxed), self.skipped.load(Ordering::Relaxed))
    }

    /// Starts or stops counting by prefix. Existing counts stay.
    pub fn count_prefixes(&self, on: bool) {
        match on {
            true => self.wanted.fetch_or(kinds::DETAIL, Ordering::Relaxed),
            false => self.wanted.fetch_and(!kinds::DETAIL, Ordering::Relaxed),
        };
    }

    pub fn counts_prefixes(&self) -> bool {
        self.wants(kinds::DETAIL)
    }

    /// Counts a request for a key by its prefix, which is the part before the first colon. A key without a colon is not counted.
    pub fn note_key(&self, key: &[u8], request: KeyRequest) {
        let Some(end) = key.iter().position(|byte| *byte == b':').filter(|_| self.counts_prefixes()) else { return };
        let mut counts = lock(&self.prefixes);
        let Some(count) = counts.of(&key[..end]) else { return };
        match request {
            KeyRequest::Get { is_hit } => {
                count.gets += 1;
                count.hits += u64::from(is_hit);
            }
            KeyRequest::Set => count.sets += 1,
            KeyRequest::Delete => count.deletes += 1,
        }
    }

    pub fn forget_prefixes(&self) {
        *lock(&self.prefixes) = PrefixCounts::default();
    }

    /// An upper bound on the length of [`Observers::prefix_lines`].
    pub fn prefix_lines_bytes_max(&self) -> usize {
        let counts = lock(&self.prefixes);
        counts.prefix_bytes + (counts.by_prefix.len() + 1) * PREFIX_LINE_BYTES_MAX
    }

    /// The text of `stats detail dump`.
    pub fn prefix_lines(&self) -> Vec<u8> {
        let mut text = Vec::new();
        for (prefix, PrefixCount { gets, hits, sets, deletes }) in &lock(&self.prefixes).by_prefix {
            text.extend_from_slice(b"PREFIX ");
            text.extend_from_slice(prefix);
            text.extend_from_slice(format!(" get {gets} hit {hits} set {sets} del {deletes}\r\n").as_bytes());
        }
        text.extend_from_slice(b"END\r\n");
        text
    }
}

impl WatchSeat {
    /// Whether there are lines to take.
    pub fn has_lines(&self) -> bool {
        self.watcher.has_lines.load(Ordering::Relaxed)
    }

    /// Bytes that its waiting lines may take.
    pub fn held_bytes(&self) -> usize {
        if self.has_lines() { WATCHER_BYTES_MAX } else { 0 }
    }

    /// Takes the waiting lines, and a line with the number of dropped ones.
    pub fn take(&self) -> Vec<u8> {
        let mut lines = lock(&self.watcher.lines);
        self.watcher.has_lines.store(false, Ordering::Relaxed);
        let WatchedLines { mut text, skipped } = std::mem::take(&mut *lines);
        if skipped > 0 {
            text.extend_from_slice(format!("skipped={skipped}\n").as_bytes());
        }
        text
    }
}

impl Drop for WatchSeat {
    fn drop(&mut self) {
        self.observers.leave(&self.watcher);
    }
}

/// Appends a key in the form of `watch` lines.
pub fn push_key(line: &mut Vec<u8>, key: &[u8]) {
    for &byte in key {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => line.push(byte),
            _ => line.extend_from_slice(format!("%{byte:02X}").as_bytes()),
        }
    }
}

/// The address of a client in lines about its connection. `None`: it came through a Unix socket.
pub fn transport_words(peer: Option<SocketAddr>) -> String {
    match peer {
        Some(peer) => format!("rip={} rport={} transport=tcp", peer.ip(), peer.port()),
        None => "rip=unix rport=0 transport=local".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn observers() -> (Arc<Observers>, Arc<AtomicU64>) {
        let (observers, woken) = (Arc::new(Observers::default()), Arc::new(AtomicU64::new(0)));
        let counter = Arc::clone(&woken);
        observers.serve(move |_, _| {
            counter.fetch_add(1, Ordering::Relaxed);
        });
        (observers, woken)
    }

    #[test]
    fn who_watches_is_told_what_it_asked_for_and_woken_once() {
        let (observers, woken) = observers();
        assert!(!observers.wants(kinds::REQUESTS));
        let fetchers = observers.watch(kinds::FETCHERS, 0, 1).unwrap();
        let both = observers.watch(kinds::FETCHERS | kinds::MUTATIONS, 1, 2).unwrap();
        observers.tell(kinds::FETCHERS, |line| line.extend_from_slice(b"type=item_get"));
        observers.tell(kinds::MUTATIONS, |line| line.extend_from_slice(b"type=item_store"));
        observers.tell(kinds::CONNECTIONS, |_| panic!("nobody wants it"));
        let told = |seat: &WatchSeat| String::from_utf8(seat.take()).unwrap();
        assert!(told(&fetchers).ends_with(" gid=1 type=item_get\n"));
        assert_eq!(told(&both).lines().count(), 2);
        assert_eq!((woken.load(Ordering::Relaxed), fetchers.has_lines()), (2, false));
        drop(both);
        assert!(observers.wants(kinds::FETCHERS) && !observers.wants(kinds::MUTATIONS));
        drop(fetchers);
        assert!(!observers.wants(u8::MAX));
    }

    #[test]
    fn a_watcher_that_takes_nothing_keeps_little_and_hears_how_much_it_missed() {
        let (observers, _) = observers();
        let seat = observers.watch(kinds::FETCHERS, 0, 1).unwrap();
        for _ in 0..1000 {
            observers.tell(kinds::FETCHERS, |line| line.resize(1000, b'x'));
        }
        assert_eq!(seat.held_bytes(), WATCHER_BYTES_MAX);
        let text = seat.take();
        assert_eq!(seat.held_bytes(), 0);
        assert!(text.len() < WATCHER_BYTES_MAX + 100, "{}", text.len());
        let said = String::from_utf8_lossy(&text[text.len() - 16..]).into_owned();
        assert!(said.contains("skipped=7"), "{said}");
        let (_, sent, skipped) = observers.watched();
        assert_eq!(sent + skipped, 1000);
    }

    #[test]
    fn no_more_watch_than_may_and_who_leaves_makes_room() {
        let (observers, _) = observers();
        let mut seats: Vec<_> = (0..WATCHERS_MAX).map(|_| observers.watch(kinds::FETCHERS, 0, 1).unwrap()).collect();
        assert!(observers.watch(kinds::FETCHERS, 0, 2).is_none());
        seats.pop();
        assert!(observers.watch(kinds::FETCHERS, 0, 2).is_some());
    }

    #[test]
    fn prefixes_are_counted_while_that_is_on() {
        let (observers, _) = observers();
        observers.count_prefixes(true);
        observers.note_key(b"x:y", KeyRequest::Get { is_hit: true });
        observers.note_key(b"x:z", KeyRequest::Set);
        observers.note_key(b"x:z", KeyRequest::Delete);
        observers.note_key(b"q:z", KeyRequest::Get { is_hit: false });
        observers.note_key(b"none", KeyRequest::Set);
        let lines = "PREFIX q get 1 hit 0 set 0 del 0\r\nPREFIX x get 1 hit 1 set 1 del 1\r\nEND\r\n";
        assert_eq!(String::from_utf8(observers.prefix_lines()).unwrap(), lines);
        observers.forget_prefixes();
        assert_eq!(observers.prefix_lines(), b"END\r\n");
    }

    #[test]
    fn prefixes_take_no_more_than_they_may() {
        let (observers, _) = observers();
        observers.count_prefixes(true);
        let long = |number: usize| [format!("{number:06}").as_bytes(), &[b'x'; 243], b":"].concat();
        for number in 0..2 * PREFIXES_MAX {
            observers.note_key(&long(number), KeyRequest::Set);
        }
        let lines = observers.prefix_lines();
        assert!(lines.len() <= observers.prefix_lines_bytes_max());
        assert_eq!(lines.split(|byte| *byte == b'\n').count() - 2, PREFIX_BYTES_MAX / 249);
        observers.forget_prefixes();
        for number in 0..2 * PREFIXES_MAX {
            observers.note_key(format!("{number}:").as_bytes(), KeyRequest::Get { is_hit: true });
        }
        // A prefix that is already counted is still counted.
        observers.note_key(b"0:", KeyRequest::Delete);
        let lines = observers.prefix_lines();
        assert!(lines.len() <= observers.prefix_lines_bytes_max());
        assert_eq!(lines.split(|byte| *byte == b'\n').count() - 2, PREFIXES_MAX);
        assert!(lines.starts_with(b"PREFIX 0 get 1 hit 1 set 0 del 1\r\n"));
    }

    #[test]
    fn clients_are_named_as_memcached_names_them() {
        assert_eq!(transport_words("127.0.0.1:45896".parse().ok()), "rip=127.0.0.1 rport=45896 transport=tcp");
        assert_eq!(transport_words("[::1]:5".parse().ok()), "rip=::1 rport=5 transport=tcp");
        assert_eq!(transport_words(None), "rip=unix rport=0 transport=local");
    }
}
