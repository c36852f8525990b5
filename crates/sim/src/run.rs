//! One run: a store is created, then lives and dies many times on the bytes that survive on its drive, all decided by a seed.
//!
//! ```text
//! open ──► read every key ──► sessions and maintenance, interleaved ──► crash ─┐
//!  ▲  └─ crash ─┐ └─ sometimes: close, with writes or without, open and read   │
//!  └────────────┴──────────────────────────────────────────────────────────────┘
//! ```
//! A run ends with a [`Failure`] if the model ([`crate::model`]) does not allow an answer, or the store panics.

mod aim;
mod attested;
mod backups;
mod dying_units;
mod life;
mod trouble;

use crate::bugs::{Bug, with_bug};
use crate::keyspaces::{Fate, Slot, find_all};
use crate::model::Model;
use crate::tally::{State, Tally};
use crate::workload::{Load, Workload};
use aim::Aim;
use attested::Attested;
use backups::Backups;
use dying_units::DyingUnits;
use life::Life;
use std::any::Any;
use std::backtrace::BacktraceStatus;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use tapetum::inspect::AreaKind;
use tapetum::{BlockDevice, Error, Full, KeyDigest, KeyspaceKind, Store, StoreOptions, Sync};
use tapetum_drive::{Drive, Env, Faults, FaultyFlash, LocalMemory, SimClock, SplitMix64};
use trouble::Trouble;

const SEGMENT_BYTES: u64 = 64 << 10;
/// The segment size if blocks lie in groups: larger, because a segment holds few groups.
const GROUPED_SEGMENT_BYTES: u64 = 256 << 10;
const MEMORY_BYTES: u64 = 16 << 20;
/// More than the number of blocks in a run.
const DEVICE_BYTES: u64 = 4 << 20;

/// One seed in so many has backups.
const BACKUPS_EVERY: u64 = 3;
/// After one in this many troubles of a run with ordered keyspaces, compute units die.
const UNITS_DIE_EVERY: u64 = 3;

/// The setup of a run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Setup {
    pub seed: u64,
    /// Limits on crashes, and on operations (except those on copies), after which the run ends.
    pub crashes_max: u32,
    pub operations_max: u64,
    /// After each crash, so many copies of the store meet trouble.
    pub troubles: u64,
    /// For each crash, so many more outcomes are judged.
    pub twins: u32,
    /// Limits on the seed's choices, to make a failure smaller.
    pub sessions_max: u64,
    pub keys_max: u64,
    pub life_steps_max: u64,
    pub bug: Option<Bug>,
    /// Replaces the load that the seed would choose.
    pub load: Option<Load>,
    /// Backups may be made.
    pub backups: bool,
    /// The boundary of processes is between the store and its drive.
    pub across: bool,
    /// Records the events of each key, for the report of a failure.
    pub record_events: bool,
}

impl Setup {
    /// A run that ends after `crashes_max` crashes.
    pub fn new(seed: u64, crashes_max: u32) -> Setup {
        Setup {
            seed,
            crashes_max,
            operations_max: u64::MAX,
            troubles: 1,
            twins: 2,
            sessions_max: 3,
            keys_max: 1000,
            life_steps_max: 5000,
            bug: None,
            load: None,
            backups: true,
            across: false,
            record_events: false,
        }
    }
}

/// The outcome of a run.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Outcome {
    pub tally: Tally,
    /// Hash of every command of the drive and every reply.
    pub trace_hash: u64,
    pub failure: Option<Failure>,
}

/// The store was wrong.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Failure {
    pub seed: u64,
    /// Number of crashes before the failure.
    pub crashes: u32,
    pub what: String,
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "seed {} failed after {} crashes:\n{}", self.seed, self.crashes, self.what)
    }
}

/// The power is off, or the store is wrong.
enum Stop {
    Crash,
    /// On a drive that fails, the store did not open, and said why.
    Refused,
    Wrong(String),
}

fn wrong<T>(what: impl Into<String>) -> Result<T, Stop> {
    Err(Stop::Wrong(what.into()))
}

/// The parts of a run that outlive a store.
struct World {
    setup: Setup,
    random: SplitMix64,
    faulty: FaultyFlash,
    env: Env,
    clock: SimClock,
    options: StoreOptions,
    model: Model,
    workload: Workload,
    tally: Tally,
    /// Every store uses this memory, with the bytes that the store before it left.
    local: LocalMemory,
    /// Hash of the replies.
    replies: u64,
    /// The state of the store at the last look.
    state: State,
    capacity: Capacity,
    /// Resizes take large steps, to segment numbers for which the index must be rebuilt.
    roomy: bool,
    /// The state in which the power fails most often.
    often: Option<State>,
    /// There are slots of ordered keyspaces. Then hashed keyspaces get no large values.
    has_ordered: bool,
    /// The offsets of the manifest's areas, and of the log zones.
    manifest: std::ops::Range<u64>,
    log: std::ops::Range<u64>,
    /// The current faults of the drive, besides crashes.
    trouble: Option<Trouble>,
    /// Damage since the store was opened may hide its last groups.
    log_is_damaged: bool,
    /// Damage since the store was opened may hide that it was opened, and evictions.
    manifest_is_damaged: bool,
    /// Damage since the store was opened may hide the newest images of ordered keyspaces.
    images_are_damaged: bool,
    /// Number of places damaged since the store was opened, outside manifest and log.
    images_damaged: usize,
    attested: Attested,
    troubles: u64,
    units: DyingUnits,
    slots: Vec<Slot>,
    /// A client takes freezes.
    has_freezes: bool,
    /// Decides what it does with them: apart from `random`, so that runs without freezes are as they would be without.
    freeze_random: SplitMix64,
    backups: Backups,
    /// Keys that were hot at some look, in this life or an earlier one.
    hot: Vec<KeyDigest>,
}

/// The parts of a world that copies of the store must not change.
struct Kept {
    faulty: FaultyFlash,
    model: Model,
    workload: Workload,
    slots: Vec<Slot>,
    capacity: Capacity,
}

/// The capacities that the store may report.
#[derive(Clone, Copy)]
struct Capacity {
    /// The largest capacity that it can grow to.
    max_bytes: u64,
    /// The capacity that it last reported.
    known_bytes: u64,
    /// The size of a resize that had no answer before the power failed.
    asked_bytes: Option<u64>,
}

/// Local memory of a drive across the boundary beside its host's.
const DRIVE_OWN_BYTES: usize = 8 << 20;

fn local_memory(options: &StoreOptions) -> LocalMemory {
    match LocalMemory::new(options.local_memory_bytes() as usize) {
        Ok(local) => local,
        Err(error) => panic!("no local memory for the simulation: {error}"),
    }
}

/// Runs one seed.
pub fn run(setup: &Setup) -> Outcome {
    with_bug(setup.bug, || run_alone(setup))
}

fn run_alone(setup: &Setup) -> Outcome {
    let mut world = World::new(setup);
    let mut crashes = 0;
    let what = match caught(|| world.live_and_die(setup, &mut crashes)) {
        Ok(Ok(())) => None,
        Ok(Err(what)) => Some(what),
        Err(panic) => Some(format!("the store {panic}")),
    };
    let what = what.map(|what| format!("{what}\nat {:?}", world.options.sync));
    let failure = what.map(|what| Failure { seed: setup.seed, crashes, what });
    Outcome { tally: world.tally, trace_hash: world.trace_hash(), failure }
}

/// The result of `work`, or the place and text of its panic.
pub(crate) fn caught<T>(work: impl FnOnce() -> T) -> Result<T, String> {
    let told = |panic: Box<dyn Any + Send>| format!("panicked{}: {}", panic_place(), panic_message(&*panic));
    catch_unwind(AssertUnwindSafe(work)).map_err(told)
}

thread_local! {
    static PANIC_PLACE: std::cell::RefCell<String> = const { std::cell::RefCell::new(String::new()) };
}

/// Keeps the place of a panic for the report of its run, instead of printing a message.
pub fn keep_panics_quiet() {
    std::panic::set_hook(Box::new(|panic| {
        let place = panic.location().map_or(String::new(), |place| format!(" at {place}"));
        let trace = std::backtrace::Backtrace::capture();
        let trace = if trace.status() == BacktraceStatus::Captured { format!("\n{trace}") } else { String::new() };
        PANIC_PLACE.with_borrow_mut(|kept| *kept = place + &trace);
    }));
}

fn panic_place() -> String {
    PANIC_PLACE.with_borrow_mut(std::mem::take)
}

fn panic_message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "without a message".into())
}

/// Draws the kinds of the keyspaces in a run's slots.
fn draw_kinds(random: &mut SplitMix64, load: Load) -> Vec<KeyspaceKind> {
    let slots = 1 + random.below(4);
    match load {
        Load::Ordered => vec![KeyspaceKind::Ordered; slots.clamp(2, 3) as usize],
        Load::Block => vec![KeyspaceKind::Hashed; slots.clamp(2, 3) as usize],
        Load::Brim => vec![KeyspaceKind::Hashed, KeyspaceKind::Ordered, KeyspaceKind::Hashed],
        Load::Tidal | Load::Mixed | Load::Heavy | Load::Evicting => vec![KeyspaceKind::Hashed; slots as usize],
    }
}

/// Draws the block device of a run.
fn draw_device(random: &mut SplitMix64) -> BlockDevice {
    let device = BlockDevice::new(DEVICE_BYTES).expect("a size that devices have");
    device.in_groups_of([1, 1, 2, 4, 8][random.below(5) as usize]).expect("groups that devices have")
}

impl World {
    fn new(setup: &Setup) -> World {
        let mut random = SplitMix64::new(setup.seed);
        let drawn = Load::draw(&mut random);
        let load = setup.load.unwrap_or(drawn);
        let often = match load {
            Load::Evicting => Some(State::Evict),
            Load::Tidal => Some(State::Grow),
            Load::Ordered => Some(State::Image),
            Load::Mixed | Load::Heavy | Load::Block | Load::Brim => None,
        };
        let (evicts, roomy) = (load == Load::Evicting, load == Load::Heavy);
        let kinds = draw_kinds(&mut random, load);
        let device = matches!(load, Load::Block | Load::Brim).then(|| draw_device(&mut random));
        let is_grouped = device.is_some_and(|device| device.group_blocks() > 1);
        let slots: Vec<Slot> = (0..).zip(kinds).map(|(number, kind)| Slot::new(number, kind, device)).collect();
        let has_ordered = slots.iter().any(Slot::is_ordered);
        let more = match () {
            () if evicts => 0,
            () if load == Load::Brim && is_grouped => 20 + random.below(6),
            () if load == Load::Brim => 6 + random.below(6),
            // Groups of slots take room beside segments.
            () if has_ordered => 16 + random.below(8),
            () if is_grouped => 28 + random.below(24),
            () if load == Load::Block => 4 + random.below(8),
            () => random.below(5),
        };
        let capacity_bytes = (5 << 18) + more * (256 << 10);
        let faulty = FaultyFlash::new(capacity_bytes, random.next_u64());
        let (env, clock) = Env::simulated(random.next_u64());
        let sync = match random.below(8) {
            0 => Sync::EverySecond,
            1 => Sync::No,
            _ => Sync::Always,
        };
        // No DRAM tier, a small one that evicts all the time, one in which all items stay.
        let tier_bytes = [0, 32 << 10, 1 << 20][random.below(3) as usize];
        let options = StoreOptions {
            segment_bytes: if is_grouped { GROUPED_SEGMENT_BYTES } else { SEGMENT_BYTES },
            partition_bits: if load == Load::Tidal { 0 } else { random.below(4) as u32 },
            // Key checks always read, sometimes read, or never read.
            key_tables_bytes_max: [0, 64 << 10, u64::MAX][random.below(3) as usize],
            // A mirror cache of a few sets, of a part of the nodes, of all nodes.
            node_cache_bytes_max: [32 << 10, 64 << 10, 256 << 10, u64::MAX][random.below(4) as usize],
            sync,
            full: if evicts { Full::Evict } else { Full::Error },
            ..StoreOptions::new(capacity_bytes, MEMORY_BYTES).with_tier(tier_bytes)
        };
        let workload = Workload::new(SplitMix64::new(random.next_u64()), load, setup.keys_max, &slots);
        let mut model = Model::new(workload.keys(), sync != Sync::Always, env.unix_millis());
        model.put_in_pages((0..workload.keys()).filter(|key| workload.is_ordered(*key)));
        if setup.record_events {
            model.record_events();
        }
        let mut freeze_random = SplitMix64::new(!setup.seed);
        let has_freezes = freeze_random.one_in(2) || setup.bug.is_some_and(|bug| bug.starts_with("Freeze"));
        let has_backups = match setup.bug {
            None => setup.seed.is_multiple_of(BACKUPS_EVERY),
            Some(bug) => bug.starts_with("Backup"),
        };
        let backups = Backups::new(SplitMix64::new(setup.seed.rotate_left(32)), has_backups && setup.backups);
        let (tally, replies, state) = (Tally::default(), 0, State::Recover);
        let capacity = Capacity { max_bytes: 4 * capacity_bytes, known_bytes: capacity_bytes, asked_bytes: None };
        let local = local_memory(&options);
        World {
            setup: *setup,
            random,
            faulty,
            env,
            clock,
            options,
            model,
            workload,
            tally,
            local,
            replies,
            state,
            capacity,
            roomy,
            often,
            has_ordered,
            manifest: 0..0,
            log: 0..0,
            trouble: None,
            log_is_damaged: false,
            manifest_is_damaged: false,
            images_are_damaged: false,
            images_damaged: 0,
            attested: Attested::default(),
            troubles: setup.seed,
            units: DyingUnits::new(SplitMix64::new(setup.seed.rotate_left(16))),
            slots,
            has_freezes,
            freeze_random,
            backups,
            hot: Vec::new(),
        }
    }

    fn trace_hash(&self) -> u64 {
        SplitMix64::new(self.faulty.trace_hash() ^ self.replies).next_u64()
    }

    fn live_and_die(&mut self, setup: &Setup, crashes: &mut u32) -> Result<(), String> {
        self.create()?;
        self.manifest = self.find(&[AreaKind::Manifest, AreaKind::ManifestCopy]);
        self.log = self.find(&[AreaKind::Log]);
        while *crashes < setup.crashes_max && self.tally.operations < setup.operations_max {
            let ended = self.live();
            self.after_crash(ended)?;
            *crashes += 1;
            for _ in 0..setup.troubles {
                self.troubles += 1;
                let ended = self.suffer(Trouble::number(self.troubles));
                self.judge(ended)?;
                if self.has_ordered && self.troubles.is_multiple_of(UNITS_DIE_EVERY) {
                    let ended = self.suffer(Trouble::UnitsDie);
                    self.judge(ended)?;
                }
            }
            self.tend_backups()?;
        }
        // Once more, to judge the state that the last crash left.
        let ended = self.open_and_read(None).map(drop);
        self.judge(ended)
    }

    /// The reason why a run is wrong, if it is.
    fn judge(&self, ended: Result<(), Stop>) -> Result<(), String> {
        match ended {
            Err(Stop::Wrong(what)) => Err(what),
            Err(Stop::Refused) => Err("the store does not open on a drive that works".into()),
            Ok(()) | Err(Stop::Crash) => Ok(()),
        }
    }

    fn after_crash(&mut self, ended: Result<(), Stop>) -> Result<(), String> {
        self.judge(ended)?;
        let report = self.faulty.crash();
        self.tally.crash(self.state, &report);
        self.note_faults();
        self.model.crash();
        for _ in 0..self.setup.twins {
            self.judge_twin()?;
        }
        self.model.note_everywhere(&format!("struck in {:?}: {report:?}", self.state));
        self.faulty = self.faulty.reopen();
        self.set_faults(Faults::default());
        Ok(())
    }

    /// Sets the faults of the drive.
    fn set_faults(&mut self, faults: Faults) {
        self.model.set_drive_fails(faults != Faults::default());
        self.faulty.set_faults(faults);
    }

    /// Opens another possible outcome of the same crash.
    fn judge_twin(&mut self) -> Result<(), String> {
        let (twin, report) = self.faulty.reopen_otherwise(self.random.next_u64());
        if !report.lost_or_torn {
            return Ok(());
        }
        let state = self.state;
        self.tally.crash(state, &report);
        let kept = self.keep(twin);
        self.model.note_everywhere(&format!("a twin, struck in {state:?}: {report:?}"));
        let ended = self.open_and_read(None).map(drop);
        self.judge(ended)?;
        self.restore(kept);
        self.state = state;
        Ok(())
    }

    /// Replaces the flash, and keeps copies of everything that events on the other flash must not change.
    fn keep(&mut self, other: FaultyFlash) -> Kept {
        let faulty = std::mem::replace(&mut self.faulty, other);
        let (model, workload) = (self.model.clone(), self.workload.clone());
        Kept { faulty, model, workload, slots: self.slots.clone(), capacity: self.capacity }
    }

    fn restore(&mut self, kept: Kept) {
        let Kept { faulty, model, workload, slots, capacity } = kept;
        (self.faulty, self.model, self.workload) = (faulty, model, workload);
        (self.slots, self.capacity) = (slots, capacity);
        self.model.pass_time(self.env.unix_millis());
    }

    /// Creates the store, after a few attempts during which the power or commands fail.
    fn create(&mut self) -> Result<(), String> {
        for _ in 0..self.random.below(24) {
            let (drive, faulty) = (self.drive(), self.faulty.clone());
            let random = std::cell::RefCell::new(SplitMix64::new(self.random.next_u64()));
            if self.random.one_in(3) {
                let faults = trouble::faults_of_creation(&mut self.random);
                self.set_faults(faults);
            }
            let made = Store::create_with(&drive, &self.options, || {
                if faulty.writes_in_flight() > 0 && random.borrow_mut().one_in(6) {
                    faulty.crash();
                }
                faulty.crashed()
            });
            drop(drive);
            self.state = State::Create;
            self.note_faults();
            self.set_faults(Faults::default());
            if made.is_ok() && !self.faulty.crashed() {
                return Ok(());
            }
            let report = self.faulty.crash();
            self.tally.crash(State::Create, &report);
            self.faulty = self.faulty.reopen();
            let drive = self.drive();
            // There is an empty store then, or none.
            match Store::open_with(&drive, &self.options, || false) {
                Ok(store) if store.stats().index_entries == 0 => return Ok(()),
                Ok(_) => return Err("a store that was half made has items".into()),
                Err(Error::Unusable(_)) => {}
                Err(error) => return Err(format!("half a store does not say that it is none: {error}")),
            }
        }
        let created = Store::create_with(&self.drive(), &self.options, || false);
        created.map_err(|error| format!("a store cannot be made: {error}"))
    }

    fn drive(&self) -> Drive {
        self.drive_of(self.faulty.clone())
    }

    fn drive_of(&self, faulty: FaultyFlash) -> Drive {
        if self.setup.across {
            let bytes = (self.options.local_memory_bytes() as usize, DRIVE_OWN_BYTES);
            let drive = Drive::across(Arc::new(faulty), bytes, self.units.programs(), self.env.clone());
            return drive.unwrap_or_else(|error| panic!("no memory: {error}"));
        }
        let local = match self.local.bytes_used() {
            0 => self.local.clone(),
            _ => local_memory(&self.options),
        };
        Drive::new(Arc::new(faulty), local, self.units.programs(), self.env.clone())
    }

    /// One life, up to its crash.
    fn live(&mut self) -> Result<(), Stop> {
        let aim = match Aim::draw(&mut self.random, self.often) {
            // Large values would fill the drive, and do not exercise ordered keyspaces.
            Aim::At(State::LargeWrite) if self.has_ordered => Aim::At(State::Image),
            aim => aim,
        };
        if aim == Aim::Anywhere && self.random.one_in(2) {
            let within = [16, 128, 1024][self.random.below(3) as usize];
            self.faulty.crash_after(1 + self.random.below(within));
        }
        let mut life = self.open_and_read((aim == Aim::Recover).then_some(()))?;
        if self.random.one_in(4) {
            self.model.note_everywhere("closed without a write and opened again");
            drop(life);
            life = self.open_and_read(None)?;
        }
        if aim == Aim::Close || (aim != Aim::Anywhere && self.random.one_in(6)) {
            life.work_and_close(self, aim == Aim::Close)?;
            life = self.open_and_read(None)?;
        }
        let ended = life.run_until_crash(self, aim);
        if let Err(Stop::Crash) = ended {
            // Replies that were due when the power failed still arrive.
            life.last_replies(self)?;
        }
        ended
    }

    /// Opens the store and reads every key, which decides what the crash left. With `strike`, the power may fail during recovery.
    fn open_and_read(&mut self, strike: Option<()>) -> Result<Life, Stop> {
        let life = self.open(strike)?;
        self.all_read()?;
        Ok(life)
    }

    fn all_read(&mut self) -> Result<(), Stop> {
        self.model.all_read().map_err(Stop::Wrong)?;
        self.tally.log_ends_lost += u64::from(self.trouble.is_some_and(Trouble::damages) && self.model.has_lost());
        self.model.settle();
        Ok(())
    }

    /// Opens the store and asks for every key.
    fn open(&mut self, strike: Option<()>) -> Result<Life, Stop> {
        self.state = State::Recover;
        self.model.release_freezes();
        let drive = self.drive();
        let opened = match strike {
            None => {
                let faulty = self.faulty.clone();
                Store::open_with(&drive, &self.options, move || faulty.crashed())
            }
            Some(()) => self.open_and_strike(&drive),
        };
        self.note_faults();
        let store = match opened {
            _ if self.faulty.crashed() => return Err(Stop::Crash),
            Ok(store) => store,
            Err(
                Error::Corrupt(_) | Error::Io(_) | Error::Unusable(_) | Error::OtherFormat(_) | Error::NoSpace { .. },
            ) if self.trouble.is_some_and(Trouble::fails) => {
                return Err(Stop::Refused);
            }
            Err(error) => {
                let why = format!("the store does not open after a crash: {error}");
                return wrong(format!("{why}\n{}", self.model.report(0, "as one of all")));
            }
        };
        self.state = State::LogAppend;
        self.model.set_value_bytes_max(store.value_bytes_max());
        self.look_at_capacity(&store)?;
        self.look_at_keyspaces(&store)?;
        self.model.evictions_end();
        let sessions = 1 + self.random.below(self.setup.sessions_max) as usize;
        let mut life = Life::new(drive, store, sessions, &self.slots, self.trouble)?;
        life.look_at_marks(self, true);
        life.read_all(self)?;
        Ok(life)
    }

    /// After a crash during a resize, the store has the old size or the new one.
    fn look_at_capacity(&mut self, store: &Store) -> Result<(), Stop> {
        let found_bytes = store.stats().flash_limit_bytes;
        let asked_bytes = self.capacity.asked_bytes.take();
        if found_bytes != self.capacity.known_bytes && Some(found_bytes) != asked_bytes {
            let (known, asked) = (self.capacity.known_bytes, asked_bytes);
            return wrong(format!("the store has {found_bytes} bytes; it had {known}, and was to grow to {asked:?}"));
        }
        self.capacity.known_bytes = found_bytes;
        Ok(())
    }

    /// After a crash, a keyspace is as it was, or as a pending change would make it.
    fn look_at_keyspaces(&mut self, store: &Store) -> Result<(), Stop> {
        let lenient = self.trouble.is_some_and(Trouble::damages);
        let fates = find_all(&mut self.slots, &store.keyspaces(), lenient).map_err(Stop::Wrong)?;
        for (slot, fate) in fates.into_iter().enumerate() {
            self.workload.set_open(slot, self.slots[slot].name().is_some());
            if fate == Fate::Emptied {
                self.model.empty(self.workload.keys_of(slot));
            }
        }
        Ok(())
    }

    /// Cuts the power while recovery writes.
    fn open_and_strike(&mut self, drive: &Drive) -> Result<Store, Error> {
        let faulty = self.faulty.clone();
        let seed = self.random.next_u64();
        let random = std::cell::RefCell::new(SplitMix64::new(seed));
        Store::open_with(drive, &self.options, || {
            if faulty.writes_in_flight() > 0 && random.borrow_mut().one_in(3) {
                faulty.crash();
            }
            faulty.crashed()
        })
    }

    /// Adds a reply to the trace's hash.
    fn trace(&mut self, word: u64) {
        self.replies = (self.replies ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(23);
    }
}
