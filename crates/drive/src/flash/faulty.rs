//! Flash that fails like real drives, decided by a seed: for simulations and tests.
//!
//! - Commands complete in random order, some later than others.
//! - A completed write sits in a volatile cache until a flush submitted after its completion, unless it forces unit
//!   access. A crash loses, keeps or tears it at a grain of 512 bytes, together with the writes still in flight.
//! - Reads, writes and flushes fail when told to, or by chance, once or for ever. A failed write leaves any of its
//!   sectors written, a failed read any of its bytes read; a failed flush leaves writes that no later flush saves,
//!   though reads still see them.
//! - The file system is full for some writes, which fail with ENOSPC and leave any of their sectors written.
//! - A write can be made to stay in flight for some polls.
//! - A short transfer moves a part now and the rest later, like a backend that continues after the kernel moved less than asked. Other
//!   commands, or a crash, may come between.
//! - Writes go astray: they succeed, and their bytes are elsewhere or nowhere. Durable bytes rot.
//! - A discarded sector keeps its bytes or turns to zero.
//! - Local memory is watched: if the owner of a command touches its range before the completion, this panics. Until then a read's range
//!   holds garbage.
//!
//! All of it is one state behind a mutex, shared by clones and queues, and driven by one thread. The same seed and the same calls give the
//! same run, which [`FaultyFlash::trace_hash`] can verify.

mod cut;
mod fault;
mod image;
mod queue;

use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::{Flash, FlashError, FlashQueue};
use crate::SplitMix64;
use crate::memory::PairMemory;
use crate::protocol::{Command, Opcode, Operation};
pub use cut::Cut;
use fault::FULL_WRITES_MAX;
pub use fault::{FAULTS, Fault, Faults, Report, Struck};
use image::{Image, SECTOR_BYTES};
use queue::FaultyQueue;
use tapetum_kernels::checksum::{Salt, crc32c_salted};

/// Damage that a crash did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CrashReport {
    /// A write in flight did not survive whole.
    pub lost_or_torn: bool,
    pub commands_in_flight: u64,
    /// Writes in flight that were lost, that survived in part, that survived whole.
    pub writes_lost: u64,
    pub writes_torn: u64,
    pub writes_kept: u64,
    /// Sectors that completed writes had left in the cache, and how many of them did not survive.
    pub sectors_unsynced: u64,
    pub sectors_unsynced_lost: u64,
    /// `unsynced_torn`: only a part of some completed write survived. `unsynced_reordered`: a later completed write survived, at least in
    /// part, and an earlier one did not.
    pub unsynced_torn: bool,
    pub unsynced_reordered: bool,
}

/// A flash to crash. Clones share it.
#[derive(Clone)]
pub struct FaultyFlash {
    state: Arc<Mutex<FaultyState>>,
}

struct FaultyState {
    capacity_bytes: u64,
    image: Image,
    random: SplitMix64,
    faults: Faults,
    /// (opcode, n): the nth command of the opcode from now fails, counting from one.
    to_fail: Vec<(Opcode, u64)>,
    /// (n, polls): the nth write from now, counting from one, takes so many polls.
    to_stall: Option<(u64, u32)>,
    in_flight: Vec<InFlight>,
    queues: u64,
    writes_completed: u64,
    /// Commands submitted, by opcode.
    submitted: [u64; Opcode::COUNT],
    events: u64,
    crash_at_event: Option<u64>,
    crashed: Option<CrashReport>,
    trace: u64,
    report: Report,
    /// Writes that were misplaced or lost since the faults were set.
    astray: u64,
    /// All writes fail.
    read_only: bool,
    /// Number of further writes that will find the file system full.
    full_writes: u64,
    /// The image and the commands in flight when the power was cut, before survival was decided.
    before_crash: Option<(Image, Vec<InFlight>)>,
    /// Cuts recorded at every event. `None` if they are not recorded.
    cuts: Option<Vec<Cut>>,
}

struct InFlight {
    queue: u64,
    command: Command,
    fate: Fate,
    /// Number of polls of its queue before it may complete.
    stalled_polls: u32,
    /// Sectors that were moved already.
    moved: usize,
    /// The bytes of a write; empty for a flush.
    bytes: Vec<u8>,
    /// Writes completed when this was submitted: a flush covers these.
    writes_before: u64,
}

/// The outcome that a command will have.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Fate {
    Succeeds,
    Fails,
    /// The write finds the file system full.
    NoSpace,
    /// The command moves a part, and the rest later.
    Short,
}

impl FaultyFlash {
    /// A flash of zeros of `capacity_bytes` rounded down to 512. It fails only by a crash.
    pub fn new(capacity_bytes: u64, seed: u64) -> FaultyFlash {
        let capacity_bytes = capacity_bytes - capacity_bytes % SECTOR_BYTES as u64;
        FaultyFlash::with_image(capacity_bytes, Image::default(), SplitMix64::new(seed), Faults::default(), 0)
    }

    /// The same, with atomic writes: a write of `bytes` (a power of two) at a multiple of `bytes` survives a crash whole or not at all.
    #[must_use]
    pub fn with_atomic_writes(self, bytes: u32) -> FaultyFlash {
        self.lock().image.atomic_sectors = u64::from(bytes) / SECTOR_BYTES as u64;
        self
    }

    fn with_image(capacity_bytes: u64, image: Image, random: SplitMix64, faults: Faults, trace: u64) -> FaultyFlash {
        let state = FaultyState {
            capacity_bytes,
            image,
            random,
            faults,
            to_fail: Vec::new(),
            to_stall: None,
            in_flight: Vec::new(),
            queues: 0,
            writes_completed: 0,
            submitted: [0; Opcode::COUNT],
            events: 0,
            crash_at_event: None,
            crashed: None,
            trace,
            report: Report::default(),
            astray: 0,
            read_only: false,
            full_writes: 0,
            before_crash: None,
            cuts: None,
        };
        FaultyFlash { state: Arc::new(Mutex::new(state)) }
    }

    /// Sets the chances with which commands fail.
    pub fn set_faults(&self, faults: Faults) {
        let mut state = self.lock();
        (state.faults, state.astray, state.full_writes) = (faults, 0, 0);
    }

    /// Faults that struck since the last call.
    pub fn take_report(&self) -> Report {
        std::mem::take(&mut self.lock().report)
    }

    /// Repairs permanent failures: sectors can be read, and writes succeed again.
    pub fn heal(&self) {
        let mut state = self.lock();
        state.image.heal();
        state.read_only = false;
    }

    /// A copy that holds the durable bytes of this flash, and never fails.
    pub fn fork_durable(&self, seed: u64) -> FaultyFlash {
        let state = self.lock();
        let image = state.image.without_cache();
        FaultyFlash::with_image(state.capacity_bytes, image, SplitMix64::new(seed), Faults::default(), seed)
    }

    /// A copy with the same bytes, whose randomness follows from `seed`. No command may be in flight.
    pub fn fork(&self, seed: u64) -> FaultyFlash {
        let state = self.lock();
        assert!(state.in_flight.is_empty(), "a flash is copied at rest");
        FaultyFlash::with_image(state.capacity_bytes, state.image.clone(), SplitMix64::new(seed), state.faults, seed)
    }

    /// Records the state before each event, for [`FaultyFlash::take_cuts`].
    pub fn keep_cuts(&self) {
        self.lock().cuts = Some(Vec::new());
    }

    /// The cuts recorded since the last call.
    pub fn take_cuts(&self) -> Vec<Cut> {
        self.lock().cuts.as_mut().map_or_else(Vec::new, std::mem::take)
    }

    /// The state of this moment.
    pub fn cut(&self) -> Cut {
        Cut::of(&self.lock())
    }

    /// The `nth` command of this opcode submitted from now fails with EIO; the next one is the first.
    pub fn fail_nth(&self, opcode: Opcode, nth: u64) {
        assert!(nth > 0, "commands count from one");
        self.lock().to_fail.push((opcode, nth));
    }

    /// The next `writes` writes find the file system full.
    pub fn fill(&self, writes: u64) {
        self.lock().full_writes = writes;
    }

    /// The `nth` write submitted from now does not complete before its queue was polled `polls` times; the next one is
    /// the first.
    pub fn stall_nth_write(&self, nth: u64, polls: u32) {
        assert!(nth > 0, "writes count from one");
        self.lock().to_stall = Some((nth, polls));
    }

    /// Whether a write that was told to stall is still in flight.
    pub fn has_stalled(&self) -> bool {
        self.lock().in_flight.iter().any(|flying| flying.stalled_polls > 0)
    }

    /// Cuts the power at the `nth` event from now; an event is a submission or a completion, the next one is the
    /// first. That command, all others in flight and all later ones never complete.
    pub fn crash_after(&self, nth: u64) {
        assert!(nth > 0, "events count from one");
        let mut state = self.lock();
        state.crash_at_event = Some(state.events + nth);
    }

    /// Cuts the power now, if it is not cut already.
    pub fn crash(&self) -> CrashReport {
        self.lock().crash()
    }

    pub fn crashed(&self) -> bool {
        self.crash_report().is_some()
    }

    pub fn crash_report(&self) -> Option<CrashReport> {
        self.lock().crashed
    }

    /// The flash as the next start finds it after a crash: the surviving bytes and the same faults; the random stream and the trace
    /// continue. Can be called once; this flash stays dead.
    pub fn reopen(&self) -> FaultyFlash {
        let mut state = self.lock();
        assert!(state.crashed.is_some(), "only a crashed flash is reopened; share this one instead");
        let image = std::mem::take(&mut state.image);
        let random = SplitMix64::new(state.random.next_u64());
        FaultyFlash::with_image(state.capacity_bytes, image, random, state.faults, state.trace)
    }

    /// Another possible outcome of the same crash, with its own randomness.
    pub fn reopen_otherwise(&self, seed: u64) -> (FaultyFlash, CrashReport) {
        let state = self.lock();
        let Some((before, in_flight)) = &state.before_crash else { panic!("only a crashed flash is reopened") };
        let (mut image, mut random) = (before.clone(), SplitMix64::new(seed));
        let report = settle(&mut image, in_flight, &mut random);
        (FaultyFlash::with_image(state.capacity_bytes, image, random, Faults::default(), seed), report)
    }

    /// Submissions and completions so far.
    pub fn events(&self) -> u64 {
        self.lock().events
    }

    /// Commands of this opcode submitted so far.
    pub fn submitted(&self, opcode: Opcode) -> u64 {
        self.lock().submitted[opcode.index()]
    }

    /// Writes submitted and not completed: what a crash now may lose or tear.
    pub fn writes_in_flight(&self) -> usize {
        self.writes_in_flight_from(0)
    }

    /// Writes in flight that begin at `start` or behind it.
    pub fn writes_in_flight_from(&self, start: u64) -> usize {
        let counts = |flying: &&InFlight| match flying.command.operation {
            Operation::Write { flash, .. } => flash >= start,
            _ => false,
        };
        self.lock().in_flight.iter().filter(counts).count()
    }

    /// A digest of all submissions and completions with their bytes: two runs that did the same have the same.
    pub fn trace_hash(&self) -> u64 {
        self.lock().trace
    }

    /// The bytes that a read would return.
    pub fn peek(&self, flash: u64, length: u64) -> Vec<u8> {
        let state = self.lock();
        state.sectors(flash, length).flat_map(|sector| state.image.read(sector)).collect()
    }

    /// Rot: flips `bits` of the durable byte at `flash`.
    pub fn flip(&self, flash: u64, bits: u8) {
        let mut state = self.lock();
        assert!(flash < state.capacity_bytes, "byte {flash} of {}", state.capacity_bytes);
        let (sector, at) = (flash / SECTOR_BYTES as u64, flash as usize % SECTOR_BYTES);
        let mut bytes = state.image.read(sector);
        bytes[at] ^= bits;
        state.image.write_durable(sector, &bytes);
        state.report.struck.count(Fault::Rot);
        state.damage(sector);
    }

    /// Ignores poisoning: the simulation is one thread, and after its panic it still prints what the flash knows.
    fn lock(&self) -> MutexGuard<'_, FaultyState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Flash for FaultyFlash {
    fn capacity_bytes(&self) -> u64 {
        self.lock().capacity_bytes
    }

    /// Grows at once, durably. A flash whose power was cut stays as it is.
    fn grow(&self, capacity_bytes: u64) -> Result<(), FlashError> {
        let mut state = self.lock();
        if state.crashed.is_none() {
            let capacity_bytes = capacity_bytes.next_multiple_of(SECTOR_BYTES as u64);
            state.capacity_bytes = state.capacity_bytes.max(capacity_bytes);
            state.trace = mix(state.trace, &state.capacity_bytes.to_le_bytes());
        }
        Ok(())
    }

    fn sector_bytes(&self) -> u32 {
        SECTOR_BYTES as u32
    }

    fn atomic_write_bytes(&self) -> u32 {
        (self.lock().image.atomic_sectors * SECTOR_BYTES as u64) as u32
    }

    fn describe(&self) -> String {
        format!("faulty memory for tests, {} bytes", self.capacity_bytes())
    }

    fn open_queue(&self, memory: &PairMemory, _depth: u32) -> io::Result<Box<dyn FlashQueue>> {
        let mut state = self.lock();
        state.queues += 1;
        let number = state.queues;
        Ok(Box::new(FaultyQueue { flash: self.clone(), memory: memory.clone(), number, impatient: false }))
    }
}

impl FaultyState {
    fn sectors(&self, flash: u64, length: u64) -> std::ops::Range<u64> {
        let sector_bytes = SECTOR_BYTES as u64;
        assert!(
            flash.is_multiple_of(sector_bytes)
                && length.is_multiple_of(sector_bytes)
                && flash.checked_add(length).is_some_and(|end| end <= self.capacity_bytes),
            "{flash}+{length} of {}",
            self.capacity_bytes
        );
        flash / sector_bytes..(flash + length) / sector_bytes
    }

    /// Counts an event, before it takes effect. Returns true if the power is off.
    fn event(&mut self, command: &Command, kind: u64) -> bool {
        self.events += 1;
        self.trace = mix(mix(self.trace, &command.encode()), &kind.to_le_bytes());
        if let Some(mut cuts) = self.cuts.take() {
            let cut = Cut::of(self);
            if cuts.last().is_none_or(|last| !last.is_like(&cut)) {
                cuts.push(cut);
            }
            self.cuts = Some(cuts);
        }
        if self.crash_at_event.is_some_and(|at| self.events >= at) {
            self.crash();
        }
        self.crashed.is_some()
    }

    /// Draws the fate of a command that is being submitted.
    fn draw_fate(&mut self, operation: &Operation) -> Fate {
        let (opcode, range) = (operation.opcode(), moves(operation));
        let reaches = range.is_none_or(|(flash, _)| self.faults.reach(flash));
        let one_in = match opcode {
            Opcode::Read => self.faults.read_one_in,
            Opcode::Write => self.faults.write_one_in,
            Opcode::Flush => self.faults.flush_one_in,
            Opcode::Discard
            | Opcode::Execute
            | Opcode::Pipeline
            | Opcode::Compute
            | Opcode::Cancel
            | Opcode::Identify => 0,
        };
        let mut fails = reaches && self.random.one_in(one_in);
        self.to_fail.retain_mut(|(to_fail, nth)| {
            if *to_fail == opcode {
                *nth -= 1;
                fails |= *nth == 0;
            }
            *nth > 0
        });
        let for_ever = self.faults.for_ever;
        match *operation {
            Operation::Read { flash, length, .. } => {
                let sectors = self.sectors(flash, u64::from(length));
                if fails && for_ever {
                    let sector = sectors.start + self.random.below(sectors.end - sectors.start);
                    self.image.make_unreadable(sector);
                }
                if self.image.is_unreadable(sectors) {
                    self.report.struck.count(Fault::ReadErrorForEver);
                    return Fate::Fails;
                }
                if fails {
                    self.report.struck.count(Fault::ReadError);
                }
            }
            Operation::Write { .. } => {
                self.read_only |= fails && for_ever;
                if self.read_only {
                    self.report.struck.count(Fault::WriteErrorForEver);
                    return Fate::Fails;
                }
                if fails {
                    self.report.struck.count(Fault::WriteError);
                } else if self.is_full(reaches) {
                    self.report.struck.count(Fault::NoSpace);
                    return Fate::NoSpace;
                }
            }
            Operation::Flush if fails => self.report.struck.count(Fault::FlushError),
            _ => {}
        }
        let long = range.is_some_and(|(_, length)| length > SECTOR_BYTES as u32);
        match fails {
            true => Fate::Fails,
            false if long && reaches && self.random.one_in(self.faults.short_one_in) => Fate::Short,
            false => Fate::Succeeds,
        }
    }

    /// Whether a write that is being submitted finds the file system full.
    fn is_full(&mut self, reaches: bool) -> bool {
        if self.full_writes == 0 && reaches && self.random.one_in(self.faults.full_one_in) {
            self.full_writes = 1 + self.random.below(FULL_WRITES_MAX);
        }
        let full = self.full_writes > 0;
        self.full_writes -= u64::from(full);
        full
    }

    /// Draws the number of polls for which a command that is being submitted stays in flight.
    fn draw_stall(&mut self, operation: &Operation) -> u32 {
        let Some((nth, polls)) = &mut self.to_stall else { return 0 };
        if operation.opcode() != Opcode::Write {
            return 0;
        }
        *nth -= 1;
        if *nth > 0 {
            return 0;
        }
        let polls = *polls;
        self.to_stall = None;
        polls
    }

    /// Draws where a completed write's bytes go: to their sector, to another one, or nowhere.
    fn draw_place(&mut self, first: u64, sectors: u64) -> Option<u64> {
        let Faults { misplace_one_in, lose_one_in, astray_max, .. } = self.faults;
        let flash = first * SECTOR_BYTES as u64;
        if !self.faults.reach(flash) || (astray_max > 0 && self.astray >= astray_max) {
            return Some(first);
        }
        if self.random.one_in(lose_one_in) {
            self.astray += 1;
            self.report.struck.count(Fault::LostWrite);
            return None;
        }
        if self.random.one_in(misplace_one_in) {
            self.astray += 1;
            self.report.struck.count(Fault::MisplacedWrite);
            // Usually nearby, like a drive whose head or mapping table is off by a little.
            let last = self.capacity_bytes / SECTOR_BYTES as u64 - sectors;
            let near = (first + 1 + self.random.below(16)).saturating_sub(8);
            let place = if self.random.one_in(3) { self.random.below(last + 1) } else { near.min(last) };
            return Some(place);
        }
        Some(first)
    }

    /// Marks a sector as holding other bytes than were written there.
    fn damage(&mut self, sector: u64) {
        self.image.damage(sector);
        let at = sector * SECTOR_BYTES as u64;
        match self.report.damaged.last_mut() {
            Some(last) if last.end == at => last.end += SECTOR_BYTES as u64,
            _ => self.report.damaged.push(at..at + SECTOR_BYTES as u64),
        }
    }

    fn crash(&mut self) -> CrashReport {
        if let Some(report) = self.crashed {
            return report;
        }
        let in_flight = std::mem::take(&mut self.in_flight);
        let before = self.image.clone();
        let report = settle(&mut self.image, &in_flight, &mut self.random);
        self.before_crash = Some((before, in_flight));
        self.crashed = Some(report);
        report
    }
}

/// Decides which bytes that are not durable survive.
fn settle(image: &mut Image, in_flight: &[InFlight], random: &mut SplitMix64) -> CrashReport {
    let mut report = CrashReport { commands_in_flight: in_flight.len() as u64, ..CrashReport::default() };
    let cache = image.crash(random);
    (report.sectors_unsynced, report.sectors_unsynced_lost) = (cache.sectors, cache.sectors_lost);
    (report.unsynced_torn, report.unsynced_reordered) = (cache.torn, cache.reordered);
    let mut in_flight: Vec<&InFlight> = in_flight.iter().collect();
    shuffle(&mut in_flight, random);
    for InFlight { command, bytes, moved, .. } in in_flight {
        let Operation::Write { flash, .. } = command.operation else { continue };
        let first = flash / SECTOR_BYTES as u64 + *moved as u64;
        let kept = image.crash_write(first, &bytes[moved * SECTOR_BYTES..], random);
        match moved + kept as usize {
            0 => report.writes_lost += 1,
            kept if kept * SECTOR_BYTES == bytes.len() => report.writes_kept += 1,
            _ => report.writes_torn += 1,
        }
    }
    report.lost_or_torn = report.writes_lost + report.writes_torn > 0;
    report
}

/// Offset and length of the bytes on flash that a command moves.
fn moves(operation: &Operation) -> Option<(u64, u32)> {
    match *operation {
        Operation::Read { flash, length, .. } | Operation::Write { flash, length, .. } => Some((flash, length)),
        _ => None,
    }
}

fn shuffle<T>(items: &mut [T], random: &mut SplitMix64) {
    for last in (1..items.len()).rev() {
        items.swap(last, random.below(last as u64 + 1) as usize);
    }
}

/// Folds bytes into a hash.
fn mix(digest: u64, bytes: &[u8]) -> u64 {
    let sum = crc32c_salted(Salt { store: digest, address: 0, version: 0 }, bytes);
    (digest ^ u64::from(sum)).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29)
}

#[cfg(test)]
mod tests;
