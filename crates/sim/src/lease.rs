//! The lease of a depot, with several holders over it.
//!
//! ```text
//! holders, a thread each ─► one at a time, from one operation of the depot to its next ─► depot, whose operations fail by chance
//!                            └ paused before any of them for as long as it pleases; time passes
//! ```
//! 1. At no time do two holders believe that they have the lease, each by its own clock.
//! 2. A backup that was put after a later generation had begun is not believed.
//! 3. A backup is believed that was put by whoever had the lease, and had begun the last generation with it.
//!
//! One seed decides one run: a thread runs only while it has the turn.

use crate::bugs::{Bug, with_bug};
use crate::depot::{DepotFaults, SimDepot};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::JoinHandle;
use tapetum::backup::lease::{Lease, Seen, Watch};
use tapetum::backup::{self, BackupError, BackupName, Depot, DepotError, Digest, ObjectEntry};
use tapetum_drive::{Env, SimClock, SplitMix64};

/// The most runs within which a planted bug must show.
pub const RUNS_PER_BUG_MAX: u64 = 400;
/// Turns of a run, each of some operations.
const TURNS: u64 = 150;
/// How long a lease lasts.
const LASTS_MS: u64 = 100;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LeaseSetup {
    pub seed: u64,
    pub bug: Option<Bug>,
}

/// Counts of many runs.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct LeaseTally {
    pub taken: u64,
    pub lost: u64,
    pub promotions: u64,
    pub backups: u64,
    pub backups_not_believed: u64,
    pub failures: u64,
}

impl LeaseTally {
    fn merge(&mut self, other: &LeaseTally) {
        self.taken += other.taken;
        self.lost += other.lost;
        self.promotions += other.promotions;
        self.backups += other.backups;
        self.backups_not_believed += other.backups_not_believed;
        self.failures += other.failures;
    }
}

impl std::fmt::Display for LeaseTally {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let LeaseTally { taken, lost, promotions, backups, backups_not_believed, failures } = self;
        write!(
            f,
            "leases taken {taken} times, lost {lost} times; {promotions} promotions; {backups} backups, {backups_not_believed} of them not \
             believed; {failures} operations of the depot failed"
        )
    }
}

/// What holders have done, which is judged.
#[derive(Default)]
struct History {
    tally: LeaseTally,
    /// Generations that have begun.
    generations: Vec<u64>,
    /// All backups, and the last generation that had begun when each was put.
    backups: BTreeMap<BackupName, u64>,
    wrong: Option<String>,
}

/// What the holders of a run share.
struct Shared {
    depot: SimDepot,
    history: Mutex<History>,
    /// By holder: when it ceases to believe that it has the lease, on its clock. 0: it does not believe that.
    ends_ms: Vec<AtomicU64>,
    envs: Vec<Env>,
}

impl Shared {
    fn history(&self) -> MutexGuard<'_, History> {
        self.history.lock().expect("no holder panics")
    }

    fn believes(&self, holder: usize) -> bool {
        self.envs[holder].unix_millis() < self.ends_ms[holder].load(Ordering::SeqCst)
    }

    fn judge(&self) -> Result<(), String> {
        if let Some(wrong) = &self.history().wrong {
            return Err(wrong.clone());
        }
        let believers: Vec<usize> = (0..self.envs.len()).filter(|holder| self.believes(*holder)).collect();
        if believers.len() > 1 {
            return Err(format!("holders {believers:?} believe at once that they have the lease"));
        }
        let all = backup::list_all(&self.depot).map_err(|error| error.to_string())?;
        let history = self.history();
        for (name, is_believed) in all {
            let last = history.backups.get(&name).copied().unwrap_or(name.generation);
            if is_believed && last > name.generation {
                return Err(format!("{name:?} is believed, and was put after generation {last} had begun"));
            }
        }
        Ok(())
    }
}

/// One holder's way to the depot: it has to wait for its turn before each operation.
struct HolderDepot {
    shared: Arc<Shared>,
    turn: Mutex<Turn>,
}

struct Turn {
    goes: Receiver<()>,
    stops: Sender<()>,
}

impl HolderDepot {
    /// Waits for the next turn.
    fn wait(&self) -> Result<(), DepotError> {
        let turn = self.turn.lock().expect("no holder panics");
        let is_over = turn.stops.send(()).is_err() || turn.goes.recv().is_err();
        let over = || DepotError { doing: "go on".into(), why: "the run is over".into(), is_full: false };
        if is_over { Err(over()) } else { Ok(()) }
    }
}

impl Depot for HolderDepot {
    fn put_new(&self, name: &str, bytes: &[u8]) -> Result<bool, DepotError> {
        self.wait()?;
        let was_there = self.shared.depot.has(name);
        let put = self.shared.depot.put_new(name, bytes);
        if !was_there && self.shared.depot.has(name) {
            let mut history = self.shared.history();
            if let Some(generation) = name.strip_prefix("generations/") {
                history.generations.extend(generation.parse::<u64>().ok());
            }
            if let Some(name) = BackupName::parse(name) {
                let last = history.generations.iter().max().copied().unwrap_or(1);
                history.backups.insert(name, last);
            }
        }
        put
    }

    fn get(&self, name: &str) -> Result<Option<Vec<u8>>, DepotError> {
        self.wait()?;
        self.shared.depot.get(name)
    }

    fn list(&self, folder: &str) -> Result<Vec<ObjectEntry>, DepotError> {
        self.wait()?;
        self.shared.depot.list(folder)
    }

    fn delete(&self, name: &str) -> Result<(), DepotError> {
        self.wait()?;
        self.shared.depot.delete(name)
    }

    fn clean(&self) -> Result<(), DepotError> {
        self.shared.depot.clean()
    }

    fn place(&self) -> String {
        self.shared.depot.place()
    }
}

/// A server, or a standby, that wants the lease.
struct Holder {
    number: usize,
    shared: Arc<Shared>,
    depot: Arc<dyn Depot>,
    own: Arc<HolderDepot>,
    env: Env,
    random: SplitMix64,
    watch: Watch,
    lease: Option<Lease>,
    /// The generation that it has begun with this lease.
    generation: Option<u64>,
}

impl Holder {
    fn live(&mut self) {
        while self.own.wait().is_ok() {
            match self.lease.take() {
                None => self.take(),
                Some(lease) => self.act(lease),
            }
        }
    }

    fn note(&self, note: impl FnOnce(&mut LeaseTally)) {
        note(&mut self.shared.history().tally);
    }

    /// Believes in the lease until its time is over, or not at all.
    fn believe(&self, lease: Option<&Lease>) {
        self.shared.ends_ms[self.number].store(lease.map_or(0, Lease::ends_ms), Ordering::SeqCst);
    }

    fn take(&mut self) {
        let Ok(Seen::Free { number, generation }) = self.watch.look(&*self.depot, &self.env) else { return };
        if let Ok(Some(lease)) = Lease::take(&self.depot, &self.env, (number, generation), (LASTS_MS, None), "a holder")
        {
            self.believe(Some(&lease));
            self.note(|tally| tally.taken += 1);
            (self.lease, self.generation) = (Some(lease), None);
        }
    }

    fn act(&mut self, mut lease: Lease) {
        let done = match (self.random.below(12), self.generation) {
            (0, _) => {
                self.believe(None);
                // An error: it ends by itself.
                let _ = lease.release();
                return;
            }
            (1..6, None) => self.promote(&mut lease),
            (1..6, Some(generation)) => self.back_up(generation),
            _ => lease.renew(),
        };
        match done {
            Err(BackupError::LostLease { .. }) => {
                self.believe(None);
                self.note(|tally| tally.lost += 1);
            }
            // After any other error it may be tried again.
            _ => {
                self.believe(Some(&lease));
                self.lease = Some(lease);
            }
        }
    }

    fn promote(&mut self, lease: &mut Lease) -> Result<(), BackupError> {
        let Some(last) = backup::list(&*self.depot)?.pop() else { return Ok(()) };
        self.generation = Some(lease.promote(self.number as u64 + 1, &last)?);
        self.note(|tally| tally.promotions += 1);
        Ok(())
    }

    /// Puts the manifest of a backup, as whoever makes one does in the end.
    fn back_up(&mut self, generation: u64) -> Result<(), BackupError> {
        let sequence = backup::list_all(&*self.depot)?.iter().map(|(name, _)| name.sequence).max().unwrap_or(0) + 1;
        let bytes = self.random.next_u64().to_le_bytes();
        let name = BackupName { generation, sequence, digest: Digest::of(&bytes) };
        self.depot.put_new(&name.object(), &bytes)?;
        // No other has had a turn since it was put.
        let all = backup::list_all(&self.shared.depot)?;
        let is_believed = all.contains(&(name, true));
        let mut history = self.shared.history();
        history.tally.backups += 1;
        history.tally.backups_not_believed += u64::from(!is_believed);
        if !is_believed && self.shared.believes(self.number) {
            history.wrong = Some(format!("{name:?} of holder {}, who has the lease, is not believed", self.number));
        }
        Ok(())
    }
}

/// A run, and its holders.
struct LeaseWorld {
    random: SplitMix64,
    shared: Arc<Shared>,
    clocks: Vec<SimClock>,
    /// By holder: lets it go on, and hears that it waits.
    turns: Vec<(Sender<()>, Receiver<()>)>,
    threads: Vec<JoinHandle<()>>,
}

impl LeaseWorld {
    fn new(setup: &LeaseSetup) -> LeaseWorld {
        let mut random = SplitMix64::new(setup.seed);
        let count = 2 + random.below(2) as usize;
        let (envs, clocks): (Vec<Env>, Vec<SimClock>) = (0..count).map(|_| Env::simulated(random.next_u64())).unzip();
        // No two clocks tell the same time.
        clocks.iter().for_each(|clock| clock.advance_us(random.below(1 << 40)));
        let depot = SimDepot::new(random.next_u64());
        let first = BackupName { generation: 1, sequence: 1, digest: Digest::of(b"first") };
        depot.put_new(&first.object(), b"first").expect("it has no faults yet");
        depot.set_faults(DepotFaults { full_one_in: 40, fails_one_in: 30, cut_one_in: 0 });
        let ends_ms = (0..count).map(|_| AtomicU64::new(0)).collect();
        let shared = Arc::new(Shared { depot, history: Mutex::default(), ends_ms, envs });
        let mut world = LeaseWorld { random, shared, clocks, turns: Vec::new(), threads: Vec::new() };
        (0..count).for_each(|number| world.begin(number, setup.bug));
        world
    }

    fn begin(&mut self, number: usize, bug: Option<Bug>) {
        let ((go, goes), (stops, stopped)) = (channel(), channel());
        let (shared, env) = (self.shared.clone(), self.shared.envs[number].clone());
        let own = Arc::new(HolderDepot { shared: shared.clone(), turn: Mutex::new(Turn { goes, stops }) });
        let (depot, random) = (own.clone(), SplitMix64::new(self.random.next_u64()));
        let watch = Watch::default();
        let mut holder = Holder { number, shared, depot, own, env, random, watch, lease: None, generation: None };
        let live = move || with_bug(bug, || holder.live());
        let thread = Env::system().spawn(&format!("holder-{number}"), live).expect("there is room for a few threads");
        stopped.recv().expect("the holder waits for its first turn");
        self.turns.push((go, stopped));
        self.threads.push(thread);
    }

    fn run(&mut self) -> Result<(), String> {
        for _ in 0..TURNS {
            let holder = self.random.below(self.turns.len() as u64) as usize;
            // Some turns in a row: whoever has none meanwhile is paused.
            let within = [1, 8, 64][self.random.below(3) as usize];
            for _ in 0..1 + self.random.below(within) {
                self.pass_time();
                let (go, stopped) = &self.turns[holder];
                let _ = go.send(());
                stopped.recv().map_err(|_| format!("holder {holder} panicked"))?;
                self.shared.judge()?;
            }
        }
        Ok(())
    }

    fn pass_time(&mut self) {
        let by_ms = match self.random.below(20) {
            0 => self.random.below(2 * LASTS_MS),
            1..8 => self.random.below(8),
            _ => 0,
        };
        self.clocks.iter().for_each(|clock| clock.advance_us(by_ms * 1000));
    }

    /// Ends the holders.
    fn end(self) -> LeaseTally {
        let LeaseWorld { shared, turns, threads, .. } = self;
        drop(turns);
        for thread in threads {
            // A panic was seen when the holder did not come back.
            let _ = thread.join();
        }
        LeaseTally { failures: shared.depot.failures(), ..shared.history().tally }
    }
}

pub fn run(setup: &LeaseSetup) -> (LeaseTally, Result<(), String>) {
    let mut world = LeaseWorld::new(setup);
    let done = with_bug(setup.bug, || world.run());
    (world.end(), done)
}

/// Runs seeds from the first one on until one fails. Returns the sum of their tallies, how many there were, and the failure.
pub fn run_all(first: &LeaseSetup, runs: u64) -> (LeaseTally, u64, Option<String>) {
    let mut all = LeaseTally::default();
    for number in 0..runs {
        let (tally, done) = run(&LeaseSetup { seed: first.seed.wrapping_add(number), ..*first });
        all.merge(&tally);
        if let Err(what) = done {
            return (all, number + 1, Some(what));
        }
    }
    (all, runs, None)
}
