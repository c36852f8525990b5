//! Shares of hosts in a drive that they load together, by the weights of their partitions.
//!
//! ```text
//! ring of a host ─ may it start one? ─ yes: on its way, charged ─► its end: whoever waits is woken
//!       ▲                │ no
//!       └── stays there ─┘
//! ```
//! 1. While fewer than [`Shares::at_once`] commands are on their way for all hosts, each starts at once. Nobody is held back from a drive
//!    that has room.
//! 2. While there are as many, hosts go by their virtual time: the cost of what they started, divided by their weight. A cost of one is a
//!    command, 4 KiB of its memory, or a microsecond of the drive's thread.
//! 3. A host that wanted less begins near the time of the others: nobody saves up.
//! 4. A host whose thread was not at work for a while is not waited for, and what it has on its way does not count: it may be stuck.
//!
//! Threads: any. All is atomic, and near enough: two that decide at once may both start.

use crate::env::Env;
use crate::locks::whole;
use crate::wakeup::Waker;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering, fence};
use std::sync::{Arc, OnceLock, RwLock};

/// A host that waits asks again within this time.
const WAITING_US: u64 = 5_000;
/// A thread that is not stuck is at work within this time.
const STUCK_US: u64 = 100_000;
/// Virtual time of a cost of one at weight 1.
const VIRTUAL: u64 = 1 << 10;
/// How far a host may be ahead of one that waits, as a cost at weight 1: they then change places less often.
const AHEAD: u64 = 64 * VIRTUAL;

/// All hosts of a drive.
pub(crate) struct Shares {
    at_once: u32,
    env: Env,
    hosts: RwLock<Vec<Arc<HostShare>>>,
    count: AtomicUsize,
    /// The latest virtual time at which a command started.
    now: AtomicU64,
}

struct HostShare {
    weight: u64,
    virtual_time: AtomicU64,
    on_their_way: AtomicU32,
    /// The time at which its thread was last at work.
    seen_us: AtomicU64,
    /// When it was last told to wait; 0: it is not waiting.
    waits_us: AtomicU64,
    waker: OnceLock<Waker>,
}

/// One host's share. Dropping it leaves.
pub(crate) struct Share {
    shares: Arc<Shares>,
    host: Arc<HostShare>,
}

impl Shares {
    pub fn new(at_once: u32, env: Env) -> Arc<Shares> {
        let (count, now) = (AtomicUsize::new(0), AtomicU64::new(0));
        let at_once = at_once.max(1);
        Arc::new(Shares { at_once, env, hosts: RwLock::default(), count, now })
    }

    /// A new host.
    pub fn join(self: &Arc<Shares>, weight: u32) -> Share {
        let host = Arc::new(HostShare {
            weight: u64::from(weight).clamp(1, VIRTUAL),
            virtual_time: AtomicU64::new(self.now.load(Ordering::Relaxed)),
            on_their_way: AtomicU32::new(0),
            seen_us: AtomicU64::new(self.env.now_us() + 1),
            waits_us: AtomicU64::new(0),
            waker: OnceLock::new(),
        });
        let mut hosts = whole(self.hosts.write());
        hosts.push(host.clone());
        self.count.store(hosts.len(), Ordering::Relaxed);
        Share { shares: self.clone(), host }
    }
}

impl HostShare {
    fn is_waiting(&self, now_us: u64) -> bool {
        let waits_us = self.waits_us.load(Ordering::Relaxed);
        waits_us != 0 && now_us.saturating_sub(waits_us) < WAITING_US
    }

    /// Commands on their way that count.
    fn counted(&self, now_us: u64) -> u32 {
        let is_stuck = now_us.saturating_sub(self.seen_us.load(Ordering::Relaxed)) > STUCK_US;
        if is_stuck { 0 } else { self.on_their_way.load(Ordering::Relaxed) }
    }
}

impl Share {
    /// The thread of this host, which is woken when it may go on.
    pub fn wake_by(&self, waker: Waker) {
        // It has one thread.
        let _ = self.host.waker.set(waker);
    }

    /// Whether another host has a share.
    pub fn is_shared(&self) -> bool {
        self.shares.count.load(Ordering::Relaxed) > 1
    }

    /// Whether the host may start a command. If not, it is woken when it may, and asks again within a few milliseconds.
    pub fn may_start(&self) -> bool {
        if !self.is_shared() {
            return true;
        }
        // 0 is never.
        let (host, now_us) = (&*self.host, self.shares.env.now_us() + 1);
        host.seen_us.store(now_us, Ordering::Relaxed);
        let saved_most = self.shares.now.load(Ordering::Relaxed).saturating_sub(2 * AHEAD);
        host.virtual_time.fetch_max(saved_most, Ordering::Relaxed);
        let hosts = whole(self.shares.hosts.read());
        let others = hosts.iter().filter(|other| !std::ptr::eq(&raw const ***other, host));
        let first = others.filter(|other| other.is_waiting(now_us));
        let first = first.map(|other| other.virtual_time.load(Ordering::Relaxed)).min();
        let is_behind = |first| host.virtual_time.load(Ordering::Relaxed) <= first + AHEAD;
        let has_room = || hosts.iter().map(|host| host.counted(now_us)).sum::<u32>() < self.shares.at_once;
        let is_next = first.is_none_or(is_behind);
        if !(is_next && has_room()) {
            host.waits_us.store(now_us, Ordering::Relaxed);
            // Whoever ends a command from here on sees that it waits; what ended before is seen by the second look.
            fence(Ordering::SeqCst);
        }
        let may = is_next && has_room();
        if may {
            host.waits_us.store(0, Ordering::Relaxed);
        }
        may
    }

    /// The host's thread is at work.
    pub fn seen(&self) {
        self.host.seen_us.store(self.shares.env.now_us() + 1, Ordering::Relaxed);
    }

    /// A command has started, with so many bytes of memory.
    pub fn start(&self, bytes: u64) {
        self.host.on_their_way.fetch_add(1, Ordering::Relaxed);
        self.shares.now.fetch_max(self.host.virtual_time.load(Ordering::Relaxed), Ordering::Relaxed);
        self.charge(1 + bytes / 4096);
    }

    /// The host pays for its use of the drive.
    pub fn charge(&self, cost: u64) {
        self.host.virtual_time.fetch_add(cost * VIRTUAL / self.host.weight, Ordering::Relaxed);
    }

    /// Commands of this number have ended. Hosts that wait look again.
    pub fn end(&self, count: u32) {
        self.host.on_their_way.fetch_sub(count, Ordering::Relaxed);
        if self.is_shared() {
            fence(Ordering::SeqCst);
            let hosts = whole(self.shares.hosts.read());
            let waiting = hosts.iter().filter(|host| host.waits_us.load(Ordering::Relaxed) != 0);
            wake(waiting);
        }
    }

    pub fn now_us(&self) -> u64 {
        self.shares.env.now_us()
    }
}

fn wake<'a>(hosts: impl Iterator<Item = &'a Arc<HostShare>>) {
    for waker in hosts.filter_map(|host| host.waker.get()) {
        waker.wake();
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        let mut hosts = whole(self.shares.hosts.write());
        hosts.retain(|host| !Arc::ptr_eq(host, &self.host));
        self.shares.count.store(hosts.len(), Ordering::Relaxed);
        wake(hosts.iter());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::env::SimClock;
    use std::collections::VecDeque;

    const AT_ONCE: u32 = 8;

    /// A drive whose commands take 10 µs, one after the other, and the clock.
    struct Loaded {
        shares: Vec<Share>,
        clock: SimClock,
        on_their_way: VecDeque<usize>,
    }

    impl Loaded {
        fn new(weights: &[u32]) -> Loaded {
            let (env, clock) = Env::simulated(1);
            let shares = Shares::new(AT_ONCE, env);
            let shares = weights.iter().map(|weight| shares.join(*weight)).collect();
            Loaded { shares, clock, on_their_way: VecDeque::new() }
        }

        /// Commands of this number end; each host has as many on their way or waiting as it wants. Returns how many of each ended.
        fn run(&mut self, wants: &[usize], ends: usize) -> Vec<usize> {
            let mut ended = vec![0; self.shares.len()];
            for number in 0..ends {
                for place in (0..self.shares.len()).map(|place| (place + number) % self.shares.len()) {
                    let share = &self.shares[place];
                    let has = |way: &VecDeque<usize>| way.iter().filter(|host| **host == place).count();
                    while has(&self.on_their_way) < wants[place] && share.may_start() {
                        share.start(4096);
                        self.on_their_way.push_back(place);
                    }
                }
                self.clock.advance_us(10);
                if let Some(host) = self.on_their_way.pop_front() {
                    self.shares[host].end(1);
                    ended[host] += 1;
                }
            }
            ended
        }
    }

    #[test]
    fn a_loaded_drive_is_divided_by_weight() {
        let ended = Loaded::new(&[1, 3]).run(&[100, 100], 40_000);
        let ratio = ended[1] as f64 / ended[0] as f64;
        assert!((2.9..=3.1).contains(&ratio), "{ended:?}");
    }

    #[test]
    fn who_wants_less_than_its_share_has_it_and_the_rest_is_the_others() {
        let ended = Loaded::new(&[1, 3]).run(&[100, 2], 10_000);
        assert!((1500..5000).contains(&ended[1]), "{ended:?}");
        assert_eq!(ended.iter().sum::<usize>(), 10_000, "nothing is left unused");
    }

    #[test]
    fn nobody_waits_while_there_is_room_and_nobody_saves_up() {
        let mut loaded = Loaded::new(&[1, 1]);
        let ended = loaded.run(&[4, 4], 1000);
        assert!(ended[0].abs_diff(ended[1]) <= 1, "{ended:?}");
        loaded.run(&[100, 0], 1000);
        let ended = loaded.run(&[100, 100], 1000);
        assert!(ended[0].abs_diff(ended[1]) < 200, "{ended:?}");
    }

    #[test]
    fn who_wanted_less_is_not_favoured_later() {
        for wants in [[100, 1], [6, 1]] {
            let mut loaded = Loaded::new(&[1, 1]);
            loaded.run(&wants, 100_000);
            let ended = loaded.run(&[100, 100], 10_000);
            assert!(ended[0].abs_diff(ended[1]) < 500, "{ended:?} after {wants:?}");
        }
    }

    #[test]
    fn nobody_waits_for_a_host_that_is_stuck() {
        let loaded = Loaded::new(&[1, 100]);
        while loaded.shares[1].may_start() {
            loaded.shares[1].start(0);
        }
        assert!(!loaded.shares[0].may_start());
        loaded.clock.advance_us(2 * STUCK_US);
        assert!(loaded.shares[0].may_start());
    }

    #[test]
    fn one_alone_is_not_asked() {
        let Loaded { shares, .. } = Loaded::new(&[1]);
        (0..100).for_each(|_| {
            assert!(shares[0].may_start());
            shares[0].start(1 << 20);
        });
    }
}
