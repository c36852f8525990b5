//! The only source of time, randomness and threads for everything below the server.
//!
//! [`Env::system`] is the machine's. [`Env::simulated`] has a seed, and a clock that only its handle moves: the same seed gives the same
//! run. Handles are cheap to clone and safe to share.
//!
//! The wall clock is read once a process, when the first `Env::system` is made. From then on unix time is that reading and the
//! time that has passed since, so that a wall clock that is set, by hand or by NTP, changes no time to live, no timeout and no
//! uptime of a running process. The next process reads the wall clock anew.
#![allow(clippy::disallowed_methods)] // The bans point here.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::cpu::DriveClock;
use crate::locks::whole;
use tapetum_kernels::random::SplitMix64;

/// Source of time, randomness and threads.
#[derive(Clone)]
pub struct Env {
    source: Source,
}

#[derive(Clone)]
enum Source {
    System { start: Instant, unix: UnixClock },
    Simulated { clock: SimClock, random: Arc<Mutex<SplitMix64>> },
}

impl Env {
    /// The machine's own. `now_us` counts from this call.
    pub fn system() -> Env {
        static UNIX: OnceLock<UnixClock> = OnceLock::new();
        let read = || UnixClock::new(SystemTime::now(), time_since_boot());
        Env { source: Source::System { start: Instant::now(), unix: *UNIX.get_or_init(read) } }
    }

    /// An environment whose random numbers follow from `seed`. Its clock stands at [`SimClock::UNIX_SECONDS_AT_START`] until the handle
    /// moves it.
    pub fn simulated(seed: u64) -> (Env, SimClock) {
        let clock = SimClock { now_us: Arc::new(AtomicU64::new(0)) };
        let random = Arc::new(Mutex::new(SplitMix64::new(seed)));
        (Env { source: Source::Simulated { clock: clock.clone(), random } }, clock)
    }

    /// Microseconds on a clock that never goes back, from an origin that differs between runs.
    pub fn now_us(&self) -> u64 {
        match &self.source {
            Source::System { start, .. } => start.elapsed().as_micros() as u64,
            Source::Simulated { clock, .. } => clock.now_us(),
        }
    }

    /// Milliseconds since 1970 on a clock that never goes back while the process lives.
    pub fn unix_millis(&self) -> u64 {
        match &self.source {
            Source::System { unix, .. } => unix.millis_at(time_since_boot()),
            Source::Simulated { clock, .. } => {
                u64::from(SimClock::UNIX_SECONDS_AT_START) * 1000 + clock.now_us() / 1000
            }
        }
    }

    /// [`Env::unix_millis`] in whole seconds. Saturates in the year 2106.
    pub fn unix_seconds(&self) -> u32 {
        u32::try_from(self.unix_millis() / 1000).unwrap_or(u32::MAX)
    }

    /// A number that nobody can guess, or the seed's next one.
    pub fn random_u64(&self) -> u64 {
        let mut bytes = [0; 8];
        self.random_bytes(&mut bytes);
        u64::from_le_bytes(bytes)
    }

    /// Fills `bytes` from the kernel's generator, or from the seed. Each call asks the kernel: for many numbers that need not be secret,
    /// draw a seed here and feed a [`SplitMix64`].
    pub fn random_bytes(&self, bytes: &mut [u8]) {
        match &self.source {
            Source::System { .. } => kernel_random(bytes),
            Source::Simulated { random, .. } => {
                whole(random.lock()).fill(bytes);
            }
        }
    }

    pub fn is_simulated(&self) -> bool {
        matches!(self.source, Source::Simulated { .. })
    }

    /// Yields to other threads for a moment; for polling a condition that no event reports.
    pub fn rest(&self) {
        const MOMENT: Duration = Duration::from_micros(50);
        match &self.source {
            Source::System { .. } => thread::sleep(MOMENT),
            Source::Simulated { .. } => thread::yield_now(),
        }
    }

    /// How many threads can run in parallel; one in a simulation.
    pub fn parallelism(&self) -> usize {
        match &self.source {
            Source::System { .. } => thread::available_parallelism().map_or(1, usize::from),
            Source::Simulated { .. } => 1,
        }
    }

    /// Starts a thread. Fails as the operating system does, when it has no more to give.
    ///
    /// # Panics
    /// In a simulation: there, whoever owns the order of events runs the work itself.
    pub fn spawn<T, F>(&self, name: &str, work: F) -> io::Result<JoinHandle<T>>
    where
        F: FnOnce() -> T + Send + 'static,
        T: Send + 'static,
    {
        match &self.source {
            Source::System { .. } => {
                let work = crate::planted::carried(work);
                thread::Builder::new().name(name.to_owned()).spawn(work)
            }
            Source::Simulated { .. } => panic!("thread {name:?} asked for in a simulation, which has only one"),
        }
    }

    /// As [`Env::spawn`], for a thread that does the drive's work: its processor time counts as the drive's ([`drive_cpu_us`]).
    ///
    /// [`drive_cpu_us`]: crate::drive_cpu_us
    pub fn spawn_drive_thread<T, F>(&self, name: &str, work: F) -> io::Result<JoinHandle<T>>
    where
        F: FnOnce() -> T + Send + 'static,
        T: Send + 'static,
    {
        self.spawn(name, move || {
            let _clock = DriveClock::of_this_thread();
            work()
        })
    }
}

/// One reading of the wall clock, carried on by a clock that nobody can set.
#[derive(Clone, Copy)]
struct UnixClock {
    /// The wall clock's time at boot. Zero if it was before 1970.
    boot: Duration,
}

impl UnixClock {
    fn new(wall: SystemTime, since_boot: Duration) -> UnixClock {
        let boot = wall.duration_since(UNIX_EPOCH).unwrap_or_default().saturating_sub(since_boot);
        UnixClock { boot }
    }

    fn millis_at(&self, since_boot: Duration) -> u64 {
        u64::try_from((self.boot + since_boot).as_millis()).unwrap_or(u64::MAX)
    }
}

/// Time since the machine was started. It goes on while the machine is suspended, which [`Instant`] does not: a time to live
/// passes in a closed laptop too.
fn time_since_boot() -> Duration {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the pointer is to a live, writable timespec.
    let result = unsafe { libc::clock_gettime(libc::CLOCK_BOOTTIME, &mut now) };
    // Linux has had this clock since 2.6.39, and reading it cannot fail.
    assert_eq!(result, 0, "clock_gettime: {}", io::Error::last_os_error());
    Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
}

/// Moves the time of a simulated [`Env`].
#[derive(Clone)]
pub struct SimClock {
    now_us: Arc<AtomicU64>,
}

impl SimClock {
    /// `unix_seconds` before the clock first moves: late enough that no relative expiry looks absolute.
    pub const UNIX_SECONDS_AT_START: u32 = 1_700_000_000;

    pub fn advance_us(&self, by_us: u64) {
        self.now_us.fetch_add(by_us, Ordering::SeqCst);
    }

    pub fn now_us(&self) -> u64 {
        self.now_us.load(Ordering::SeqCst)
    }
}

fn kernel_random(bytes: &mut [u8]) {
    let mut filled = 0;
    while filled < bytes.len() {
        let rest = &mut bytes[filled..];
        // SAFETY: the pointer and the length are those of a live, writable slice.
        let got = unsafe { libc::getrandom(rest.as_mut_ptr().cast(), rest.len(), 0) };
        if got < 0 {
            let error = io::Error::last_os_error();
            // Only an interruption can fail here; a kernel without getrandom runs none of this crate.
            assert_eq!(error.raw_os_error(), Some(libc::EINTR), "getrandom: {error}");
        } else {
            filled += got as usize;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_decides_a_simulation() {
        let draw = |seed| {
            let (env, _) = Env::simulated(seed);
            let mut bytes = [0; 13];
            env.random_bytes(&mut bytes);
            (env.random_u64(), bytes)
        };
        assert_eq!(draw(1), draw(1));
        assert_ne!(draw(1), draw(2));
    }

    #[test]
    fn simulated_time_moves_only_when_told() {
        let (env, clock) = Env::simulated(0);
        assert_eq!((env.now_us(), env.unix_seconds()), (0, SimClock::UNIX_SECONDS_AT_START));
        clock.advance_us(2_500_000);
        assert_eq!((env.clone().now_us(), env.unix_seconds()), (2_500_000, SimClock::UNIX_SECONDS_AT_START + 2));
        assert_eq!(env.unix_millis(), u64::from(SimClock::UNIX_SECONDS_AT_START) * 1000 + 2_500);
    }

    #[test]
    fn unix_time_is_the_wall_clock_at_the_start_and_the_time_since() {
        let wall = UNIX_EPOCH + Duration::from_millis(1_700_000_000_600);
        let unix = UnixClock::new(wall, Duration::from_millis(5_100));
        let after = |ms: u64| unix.millis_at(Duration::from_millis(5_100 + ms));
        assert_eq!((after(0), after(1)), (1_700_000_000_600, 1_700_000_000_601));
        assert_eq!(after(3_600_000), 1_700_003_600_600);
    }

    #[test]
    fn a_wall_clock_before_1970_counts_from_there() {
        let unix = UnixClock::new(UNIX_EPOCH - Duration::from_secs(9), Duration::from_secs(60));
        assert_eq!(unix.millis_at(Duration::from_secs(61)), 61_000);
    }

    #[test]
    fn all_handles_of_a_process_have_the_same_unix_seconds() {
        let first = Env::system();
        let [before, between, after] = [first.clone(), Env::system(), first].map(|env| env.unix_seconds());
        assert!(before <= between && between <= after, "{before} {between} {after}");
    }

    #[test]
    #[should_panic(expected = "only one")]
    fn a_simulation_has_no_threads() {
        let _ = Env::simulated(0).0.spawn("worker", || ());
    }

    #[test]
    fn the_system_gives_all_three() {
        let env = Env::system();
        assert_ne!((env.random_u64(), env.random_u64()), (0, 0));
        assert!(env.unix_seconds() > SimClock::UNIX_SECONDS_AT_START);
        let inside = env.clone();
        let before = env.now_us();
        let after = env.spawn("clock", move || inside.now_us()).unwrap().join().unwrap();
        assert!(after >= before);
    }
}
