//! An open store between two crashes: sessions and maintenance, randomly interleaved.

mod backups;
mod devices;
mod freezes;
mod full;
mod queries;
mod scans;

use super::trouble::Trouble;
use super::{Aim, Capacity, Stop, World, wrong};
use crate::keyspaces::{Fate, Slot};
use crate::model::operation::{Kind, Told};
use crate::tally::{Event, State};
use crate::workload::{Draw, request, told, told_at_once, write};
use backups::BackupAsked;
use devices::DevicesAsked;
use freezes::Freezes;
use queries::QueryAsked;
use scans::ScanAsked;
use std::collections::BTreeMap;
use std::ops::ControlFlow;
use tapetum::{
    Ask, Error, Full, KeyspaceChange, KeyspaceError, KeyspaceRef, KeyspaceWish, Phase, Reply, Request, Resizing,
    Session, Store, Sync, Warming,
};
use tapetum_drive::{Drive, Faults, SplitMix64};

const IN_FLIGHT_MAX: usize = 12;
/// One step in so many changes a keyspace, in a run that has several.
const CHANGE_ONE_IN: u64 = 80;
/// The same when a long-lived keyspace is missing.
const MAKE_ONE_IN: u64 = 8;
/// After so many polls without an end the store counts as hung.
const PATIENCE: u32 = 20_000;
/// For so many of these polls, only one session is polled.
const ALONE: u32 = 2000;
/// In one of so many lives one write takes very long, while others complete.
const STALL_ONE_IN: u64 = 6;
/// In one of so many lives the store is left alone until it has counted its items.
const COUNT_ONE_IN: u64 = 8;
/// Counts that may be wrong because an item has expired meanwhile.
const COUNTS_MAX: u32 = 5;
/// Steps for which a failed store is watched.
const POISONED_STEPS_MAX: u32 = 60;

/// The writes of sessions while maintenance is not run.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Press {
    Small,
    /// Values that lie in extents of their own.
    Large,
}

pub struct Life {
    // Dropped in this order: a session before its store, a store before its drive.
    sessions: Vec<Session>,
    /// A pending filtered scan.
    query: Option<Box<QueryAsked>>,
    freezes: Freezes,
    /// A pending backup.
    backup: Option<Box<BackupAsked>>,
    /// A pending fill of the DRAM tier from a list.
    warming: Option<Warming>,
    store: Store,
    _drive: Drive,
    /// Keys of the pending operations; `None` for a batch or a deletion of everything.
    on_their_way: BTreeMap<u64, Option<usize>>,
    /// Pending parts of scans.
    scans: BTreeMap<u64, ScanAsked>,
    devices: DevicesAsked,
    /// Replies are the first reads of keys since the store was opened.
    reading_all: bool,
    replies: Vec<Reply>,
    /// Requests for room, with the session's number. Allowed at the session's next poll.
    asks: Vec<(usize, Ask)>,
    /// Pending operations that may ask for room: session, key and operation. Others of the session may overtake them, which the model does
    /// not foresee, so no other operation of the key is submitted.
    may_ask: Vec<(usize, usize, u64)>,
    /// The drive was told to fail commands; the store has noticed, and takes no more writes.
    faulty: bool,
    /// Reads may return other bytes than were written.
    damaged: bool,
    poisoned: bool,
    /// A read was refused while every key was read.
    refused: bool,
    evicting: bool,
    /// Time passes while operations are waited for.
    in_time: bool,
    resizing: Option<Resizing>,
    /// By slot.
    keyspaces: Vec<Option<KeyspaceRef>>,
    /// A pending change of a slot's keyspace.
    changing: Option<(usize, KeyspaceChange)>,
    /// Gets that found an item, since the last reset.
    found: u64,
}

impl Life {
    /// `trouble`: the drive's faults, because of which some errors are right.
    pub fn new(
        drive: Drive,
        store: Store,
        sessions: usize,
        slots: &[Slot],
        trouble: Option<Trouble>,
    ) -> Result<Life, Stop> {
        let find =
            |slot: &Slot| slot.name().map(|name| store.keyspace(name).map(|handle| handle.keyspace())).transpose();
        let keyspaces = slots.iter().map(find).collect::<Result<Vec<_>, Error>>();
        let keyspaces = keyspaces.or_else(|error| wrong(format!("a keyspace is not found: {error}")))?;
        let made: Result<Vec<Session>, Error> = (0..sessions).map(|_| store.session()).collect();
        let sessions = made.or_else(|error| wrong(format!("no session: {error}")))?;
        let (on_their_way, replies, asks) = (BTreeMap::new(), Vec::new(), Vec::new());
        let faulty = trouble.is_some_and(Trouble::fails);
        let damaged = trouble.is_some_and(Trouble::damages);
        let (reading_all, poisoned, refused, evicting) = (false, false, false, false);
        let has_ordered = slots.iter().any(Slot::is_ordered);
        let has_devices = slots.iter().any(|slot| slot.device().is_some());
        Ok(Life {
            sessions,
            query: None,
            freezes: Freezes::default(),
            backup: None,
            warming: None,
            store,
            _drive: drive,
            on_their_way,
            scans: BTreeMap::new(),
            devices: DevicesAsked::default(),
            reading_all,
            replies,
            asks,
            may_ask: Vec::new(),
            faulty,
            damaged,
            poisoned,
            refused,
            evicting,
            in_time: has_ordered && (has_devices || trouble == Some(Trouble::Full)),
            resizing: None,
            keyspaces,
            changing: None,
            found: 0,
        })
    }

    /// Whether the store takes no more writes.
    pub fn has_failed(&self) -> bool {
        self.poisoned
    }

    /// Whether a key could not be read when every one was asked for.
    pub fn was_refused(&self) -> bool {
        self.refused
    }

    /// The current state of the store.
    pub fn state(&self, world: &World) -> State {
        match State::of(&self.store.phases()) {
            State::LogAppend if world.faulty.writes_in_flight_from(world.log.end) > 0 => {
                if world.has_ordered {
                    State::Image
                } else {
                    State::LargeWrite
                }
            }
            state => state,
        }
    }

    /// Reads every key once.
    pub fn read_all(&mut self, world: &mut World) -> Result<(), Stop> {
        self.reading_all = true;
        self.get_all(world, 32)?;
        for slot in 0..world.slots.len() {
            if world.slots[slot].is_ordered() {
                self.scan_all(world, slot)?;
            }
        }
        self.reading_all = false;
        self.look_at_items(world).map(drop)
    }

    /// Gets every key, so many at once, and counts those that are found.
    fn get_all(&mut self, world: &mut World, at_once: usize) -> Result<(), Stop> {
        self.found = 0;
        for key in 0..world.workload.keys() {
            if world.workload.is_open(key) {
                let id = world.workload.operation_id();
                self.submit(world, 0, Draw::One { id, key, kind: Kind::Get })?;
            }
            if key % at_once == at_once - 1 {
                self.drain(world)?;
            }
        }
        self.drain(world)
    }

    /// Compares the number of items with the number found. Returns whether the comparison was possible.
    fn look_at_items(&self, world: &World) -> Result<bool, Stop> {
        if world.slots.iter().any(Slot::is_grouped) {
            // A group is one item on flash, but each of its blocks was found.
            return Ok(true);
        }
        let items = self.store.stats().items;
        // An eviction may have taken items since they were found.
        if items < self.found && world.options.full == Full::Error {
            return wrong(format!("there are at most {items} items, and {} were found", self.found));
        }
        // Expired records of ordered keyspaces count until they are removed.
        Ok(items == self.found || world.has_ordered)
    }

    /// Leaves the store alone until it has counted its items, and checks the number.
    fn count_items(&mut self, world: &mut World) -> Result<(), Stop> {
        if self.faulty || self.damaged || self.poisoned || world.options.full == Full::Evict {
            return Ok(());
        }
        self.drain(world)?;
        for _ in 0..COUNTS_MAX {
            for _ in 0..60 {
                world.clock.advance_us(500_000);
                world.model.pass_time(world.env.unix_millis());
                for _ in 0..100 {
                    self.maintain(world)?;
                }
            }
            self.get_all(world, 8)?;
            if self.look_at_items(world)? {
                return Ok(());
            }
        }
        let stats = self.store.stats();
        wrong(format!("{} items were found, and {} counted: {stats:?}", self.found, stats.items))
    }

    /// Runs sessions and maintenance until the power fails.
    pub fn run_until_crash(&mut self, world: &mut World, aim: Aim) -> Result<(), Stop> {
        // The index grows only with the tide of items.
        let steps_max = if aim == Aim::At(State::Grow) { 5000 } else { 150 + world.random.below(1200) };
        let steps_max = steps_max.min(world.setup.life_steps_max);
        if world.random.one_in(12) {
            self.faulty = true;
            let faults = draw_faults(&mut world.random);
            world.set_faults(faults);
            world.model.note_everywhere(&format!("{faults:?} under {:?}", world.options.sync));
        }
        if world.random.one_in(STALL_ONE_IN) {
            let (nth, polls) = (1 + world.random.below(64), 64 << world.random.below(7));
            world.faulty.stall_nth_write(nth, polls);
            world.model.note_everywhere(&format!("write {nth} from now takes {polls} polls"));
        }
        let count_at = world.random.one_in(COUNT_ONE_IN).then(|| world.random.below(steps_max));
        let mut poisoned_steps = 0;
        for step in 0..steps_max {
            if count_at == Some(step) {
                self.count_items(world)?;
            }
            poisoned_steps += u32::from(self.poisoned);
            if poisoned_steps > POISONED_STEPS_MAX {
                break;
            }
            let aimed = aim == Aim::At(self.state(world));
            if aimed && world.faulty.writes_in_flight() > 0 && world.random.one_in(3) {
                world.faulty.crash();
                return Err(Stop::Crash);
            }
            let resize_one_in = match aim {
                Aim::At(State::Resize) => 48,
                _ if world.roomy => 400,
                _ => 4000,
            };
            if world.random.one_in(resize_one_in) {
                self.resize(world)?;
            }
            let press = match aim {
                Aim::At(State::LargeWrite) => Some(Press::Large),
                _ if aimed && aim.lingers() => Some(Press::Small),
                _ => None,
            };
            self.step(world, press)?;
        }
        // The crash has not struck: let it strike soon, in whatever state.
        for _ in 0..200 {
            if world.faulty.writes_in_flight() > 0 {
                break;
            }
            self.step(world, None)?;
        }
        world.faulty.crash();
        Err(Stop::Crash)
    }

    /// One random step. `press`: write, and do not run maintenance.
    pub fn step(&mut self, world: &mut World, press: Option<Press>) -> Result<(), Stop> {
        self.use_freezes(world)?;
        self.use_backups(world)?;
        if world.slots.len() > 1 && press.is_none() {
            let is_missing = |slot: &Slot| slot.lasts() && slot.is_vacant();
            let change_one_in = if world.slots.iter().any(is_missing) { MAKE_ONE_IN } else { CHANGE_ONE_IN };
            if world.random.one_in(change_one_in) {
                return self.change_keyspaces(world);
            }
        }
        let session = world.random.below(self.sessions.len() as u64) as usize;
        match world.random.below(1000) {
            0..500 if self.sessions[session].in_flight() < IN_FLIGHT_MAX => {
                let now_ms = world.env.unix_millis();
                let draw = match press {
                    Some(Press::Small) => world.workload.draw_put(&world.model),
                    Some(Press::Large) => world.workload.draw_large_put(&world.model),
                    None => world.workload.draw(&world.model, now_ms),
                };
                match draw {
                    Some(draw) => self.submit(world, session, draw),
                    None => Ok(()),
                }
            }
            500..502 if press.is_none() => self.let_time_pass(world),
            502..506 if press.is_none() => self.submit_sync(world, session),
            502..700 if press != Some(Press::Small) => self.maintain(world),
            _ => self.poll(world, session),
        }
    }

    /// Makes the store grow on its drive, or changes its memory budget.
    fn resize(&mut self, world: &mut World) -> Result<(), Stop> {
        if self.resizing.is_some() || self.poisoned {
            return Ok(());
        }
        if world.random.one_in(4) {
            let memory_bytes = (16 << 20) + world.options.tier_bytes + world.random.below(16 << 20);
            let resized = self.store.resize_memory(memory_bytes);
            return resized.or_else(|error| wrong(format!("the memory is not resized: {error}")));
        }
        let Capacity { max_bytes, known_bytes, .. } = world.capacity;
        let step_bytes = match world.random.below(8) {
            0 => 0,
            1..4 if world.roomy => (128 << 10) + world.random.below(1 << 20),
            _ => 4096 * (1 + world.random.below(4)),
        };
        let asked_bytes = (known_bytes + step_bytes).min(max_bytes) / 4096 * 4096;
        match self.store.begin_resize_drive(asked_bytes) {
            Ok(resizing) => self.resizing = Some(resizing),
            Err(Error::Poisoned(_) | Error::NoSpace { .. }) if self.faulty => return Ok(()),
            Err(error) => return wrong(format!("the store does not grow to {asked_bytes}: {error}")),
        }
        world.capacity.asked_bytes = Some(asked_bytes);
        world.model.note_everywhere(&format!("to grow from {known_bytes} to {asked_bytes}"));
        self.look(world)
    }

    /// Creates, renames or drops a keyspace.
    fn change_keyspaces(&mut self, world: &mut World) -> Result<(), Stop> {
        if self.changing.is_some() || self.poisoned || self.is_freezing_for_backup() {
            return Ok(());
        }
        let slot = 1 + world.random.below(world.slots.len() as u64 - 1) as usize;
        let Some(wish) = world.slots[slot].draw(&mut world.random) else { return Ok(()) };
        let drops = matches!(wish, KeyspaceWish::Drop { .. });
        if drops {
            world.workload.set_open(slot, false);
            self.drain(world)?;
        }
        world.model.note_everywhere(&format!("{wish:?}"));
        match self.store.begin_keyspace_change(wish) {
            Ok(change) => self.changing = Some((slot, change)),
            Err(Error::Poisoned(_) | Error::NoSpace { .. }) if self.faulty => {
                world.slots[slot].refused();
                world.workload.set_open(slot, self.keyspaces[slot].is_some());
                return Ok(());
            }
            Err(error) => return wrong(format!("a keyspace is not changed: {error}")),
        }
        self.look(world)
    }

    /// Handles the end of a change of keyspaces.
    fn look_at_change(&mut self, world: &mut World) -> Result<(), Stop> {
        let Some((slot, result)) = self.changing.as_ref().and_then(|(slot, change)| Some((*slot, change.result()?)))
        else {
            return Ok(());
        };
        self.changing = None;
        world.model.note_everywhere(&format!("the change of slot {slot} came to {result:?}"));
        match result {
            Ok(()) => {
                if world.slots[slot].changed() == Fate::Emptied {
                    world.model.empty(world.workload.keys_of(slot));
                }
                let found = world.slots[slot].name().map(|name| self.store.keyspace(name)).transpose();
                let found = found.or_else(|error| wrong(format!("a keyspace is not found: {error}")))?;
                self.keyspaces[slot] = found.map(|handle| handle.keyspace());
            }
            Err(Error::Keyspace(KeyspaceError::NoRoom)) => world.slots[slot].refused(),
            // The outcome is unknown until the next opening.
            Err(_) if self.faulty || world.faulty.crashed() => return Ok(()),
            // The store was closed before.
            Err(Error::Closed) => return Ok(()),
            Err(error) => return wrong(format!("a change of keyspaces failed: {error}")),
        }
        world.workload.set_open(slot, self.keyspaces[slot].is_some());
        Ok(())
    }

    /// Handles the end of a resize.
    fn look_at_resize(&mut self, world: &mut World) -> Result<(), Stop> {
        let Some(result) = self.resizing.as_ref().and_then(Resizing::result) else { return Ok(()) };
        self.resizing = None;
        match result {
            Ok(()) => {
                let asked_bytes = world.capacity.asked_bytes.take().unwrap_or(0);
                let found_bytes = self.store.stats().flash_limit_bytes;
                if found_bytes != asked_bytes {
                    return wrong(format!("the store has {found_bytes} bytes after it grew to {asked_bytes}"));
                }
                world.capacity.known_bytes = asked_bytes;
                Ok(())
            }
            Err(_) if self.faulty || world.faulty.crashed() => {
                // It may have written its superblock.
                world.capacity.known_bytes = self.store.stats().flash_limit_bytes;
                Ok(())
            }
            Err(error) => wrong(format!("a resize failed: {error}")),
        }
    }

    /// Handles the begin and the end of an eviction.
    fn look_at_evictions(&mut self, world: &mut World, collector: Phase) {
        if collector == Phase::Evict && !self.evicting {
            self.evicting = true;
            world.model.evicted_through(self.store.evicted_through());
            world.model.eviction_begins();
        } else if self.evicting && self.store.failure().is_none() && matches!(collector, Phase::Idle | Phase::Collect) {
            // For the model, the eviction of a failed store has not ended: after a crash, one copy of the manifest may have its frame.
            self.evicting = false;
            world.model.evictions_end();
        }
    }

    /// Lets time pass, often while operations are pending.
    fn let_time_pass(&mut self, world: &mut World) -> Result<(), Stop> {
        let rests = world.random.one_in(2);
        if rests {
            self.drain(world)?;
        }
        if self.poisoned {
            return Ok(());
        }
        let by_us = world.random.below(6_000_000);
        world.clock.advance_us(by_us);
        world.model.pass_time(world.env.unix_millis());
        if rests && world.options.sync == Sync::EverySecond && by_us >= 1_000_000 && !self.faulty {
            // The second for the log is over: its write and flush complete within a few steps, unless something stalls them.
            let mut left = 200;
            while left > 0 {
                self.maintain(world)?;
                left = if world.faulty.has_stalled() { 200 } else { left - 1 };
            }
            world.model.settle();
        }
        Ok(())
    }

    /// Works for a while, and closes the store like a server that is told to stop: nothing may be lost. `strike`: the power fails while it
    /// is closed, or perhaps at any command then.
    pub fn work_and_close(mut self, world: &mut World, strike: bool) -> Result<(), Stop> {
        for _ in 0..world.random.below(600) {
            self.step(world, None)?;
        }
        self.drain(world)?;
        if !strike && world.random.one_in(6) {
            world.faulty.crash_after(1 + world.random.below(48));
        }
        let faulty = world.faulty.clone();
        let random = std::cell::RefCell::new(SplitMix64::new(world.random.next_u64()));
        let closed = self.store.close_with(|| {
            if strike && faulty.writes_in_flight() > 0 && random.borrow_mut().one_in(3) {
                faulty.crash();
            }
            faulty.crashed()
        });
        if world.options.full == Full::Evict {
            // An eviction that waited for its turn may have run.
            world.model.evicted_through(self.store.evicted_through());
            world.model.eviction_begins();
        }
        self.look(world).inspect_err(|_| world.state = State::Close)?;
        closed.or_else(|error| wrong(format!("the store does not close: {error}")))?;
        world.model.note_everywhere("closed");
        world.model.settle();
        if strike || world.random.one_in(6) {
            // It has not struck: strike now, before anything else is written.
            world.faulty.crash();
            return Err(Stop::Crash);
        }
        Ok(())
    }

    /// Closes a store whose drive fails. It may report an error.
    pub fn close(&mut self, world: &mut World) -> Result<(), Stop> {
        self.drain(world)?;
        let faulty = world.faulty.clone();
        let closed = self.store.close_with(|| faulty.crashed());
        if world.options.full == Full::Evict {
            world.model.evicted_through(self.store.evicted_through());
            world.model.eviction_begins();
        }
        world.state = State::Close;
        world.note_faults();
        if closed.is_ok() && self.poisoned {
            return wrong("a store that had failed closes as if it had not");
        }
        if closed.is_ok() && !self.damaged {
            world.model.settle();
        }
        Ok(())
    }

    /// Submits a barrier.
    fn submit_sync(&mut self, world: &mut World, session: usize) -> Result<(), Stop> {
        let id = world.workload.operation_id();
        self.sessions[session].submit_sync(id).expect("a session has room for a few");
        self.on_their_way.insert(id, None);
        world.model.submit_sync(id);
        self.look(world)
    }

    fn submit(&mut self, world: &mut World, session: usize, draw: Draw) -> Result<(), Stop> {
        if self.may_overtake(session, &draw) {
            return Ok(());
        }
        world.tally.operations += u64::from(!self.reading_all && world.trouble.is_none());
        world.tally.operations_on_copies += u64::from(!self.reading_all && world.trouble.is_some());
        let (open, keyspaces) = (&mut self.sessions[session], &self.keyspaces);
        let keyspace_of = |world: &World, key: usize| {
            keyspaces[world.workload.slot_of(key)].expect("operations are drawn for keyspaces that are there")
        };
        match draw {
            Draw::One { id, key, kind } => {
                let keyspace = keyspace_of(world, key);
                // Half of them are submitted like the server's: answered at once, if possible.
                if id % 2 == 0 {
                    // Not each time, because reading all figures takes long.
                    let written_bytes = id.is_multiple_of(64).then(|| self.store.stats().user_write_bytes);
                    if let Some(told) = told_at_once(open, keyspace, world.workload.key(key), &kind) {
                        world.trace(id);
                        world.model.submit(id, session, key, kind);
                        self.note(world, id, Some(key), &told)?;
                        return self.look(world);
                    }
                    if written_bytes.is_some_and(|before| self.store.stats().user_write_bytes != before) {
                        return wrong("what is to be submitted was written already");
                    }
                }
                // Some ask for room before they bring a long value.
                let request = request(world.workload.key(key), &kind);
                if id % 8 == 3 && request.shows_value() {
                    self.may_ask.push((session, key, id));
                    open.submit_within(keyspace, id, request, 200).expect("a session has room for a few");
                } else {
                    open.submit_to(keyspace, id, request).expect("a session has room for a few");
                }
                self.on_their_way.insert(id, Some(key));
                world.model.submit(id, session, key, kind);
            }
            Draw::Batch { id, parts } => {
                let write = |(key, kind): (usize, _)| write(keyspace_of(world, key), world.workload.key(key), kind);
                let writes: Vec<_> = parts.iter().map(|(key, kind)| write((*key, kind))).collect();
                if open.submit_batch(id, &writes).is_ok() {
                    self.on_their_way.insert(id, None);
                    parts.iter().for_each(|(key, _)| world.attested.written_by_group(*key));
                    world.model.submit_group(id, session, parts);
                }
            }
            Draw::Everything { id, slot, at } => {
                let Some(keyspace) = keyspaces[slot] else { return Ok(()) };
                open.submit_to(keyspace, id, Request::DeleteAll { at }).expect("a session has room for a few");
                self.on_their_way.insert(id, None);
                let kind = if at == 0 { Kind::Clear } else { Kind::ClearAt(at) };
                let parts = world.workload.keys_of(slot).map(|key| (key, kind.clone())).collect();
                world.model.submit_group(id, session, parts);
            }
            Draw::Device { slot, request } => self.submit_device(world, session, slot, request)?,
            Draw::Query { id, slot, range, filter } => self.begin_query(world, id, slot, range, filter)?,
            Draw::Scan { id, slot, range, items_max } => {
                self.submit_scan(world, id, ScanAsked { session, slot, range, items_max })?;
            }
        }
        self.look(world)
    }

    fn may_overtake(&self, session: usize, draw: &Draw) -> bool {
        let asks = |key: usize| self.may_ask.iter().any(|&(of, asked, _)| (of, asked) == (session, key));
        match draw {
            Draw::One { key, .. } => asks(*key),
            Draw::Batch { parts, .. } => parts.iter().any(|(key, _)| asks(*key)),
            Draw::Everything { .. } => self.may_ask.iter().any(|&(of, ..)| of == session),
            // These are in no order with others.
            Draw::Scan { .. } | Draw::Query { .. } | Draw::Device { .. } => false,
        }
    }

    fn maintain(&mut self, world: &mut World) -> Result<(), Stop> {
        self.store.maintain();
        self.warm(world);
        self.look(world)
    }

    /// A step of warming, from a list of any age, or from all keys.
    fn warm(&mut self, world: &mut World) {
        if world.options.tier_bytes == 0 {
            return;
        }
        if let Some(warming) = &mut self.warming {
            if warming.step() {
                self.warming = None;
            }
            return;
        }
        match world.random.below(200) {
            0..4 => {
                world.hot.clear();
                self.store.hot_keys(|keys| {
                    world.hot.extend_from_slice(keys);
                    ControlFlow::Continue(())
                });
            }
            4..10 => self.warming = self.store.warm(world.hot.clone()).ok(),
            10..20 => {
                let keyspace_of = |key: usize| self.keyspaces[world.workload.slot_of(key)].unwrap_or_default();
                let digest = |key: usize| self.sessions[0].digest(keyspace_of(key), world.workload.key(key));
                let keys = (0..world.workload.keys()).map(digest);
                self.warming = self.store.warm(keys.collect()).ok();
            }
            _ => {}
        }
    }

    fn poll(&mut self, world: &mut World, session: usize) -> Result<(), Stop> {
        self.take_replies(world, session)?;
        self.step_query(world)?;
        self.step_freezes(world)?;
        self.step_backup(world)?;
        self.look(world)
    }

    /// Notes the state of the store. An error when the power is off.
    fn look(&mut self, world: &mut World) -> Result<(), Stop> {
        let phases = self.store.phases();
        world.state = self.state(world);
        if self.faulty {
            world.note_faults();
        }
        self.look_at_marks(world, false);
        self.look_at_evictions(world, phases[1]);
        self.look_at_resize(world)?;
        self.look_at_change(world)?;
        if world.faulty.crashed() { Err(Stop::Crash) } else { Ok(()) }
    }

    /// Notes which keys of ordered keyspaces are attested. `begins`: the store was just opened.
    pub fn look_at_marks(&self, world: &mut World, begins: bool) {
        if !world.has_ordered {
            return;
        }
        let marks = self.keyspaces.iter().map(|keyspace| self.store.image_marks(keyspace.as_ref()?.id())).collect();
        world.attested.look(marks);
        if begins {
            let slots: Vec<usize> = (0..world.workload.keys()).map(|key| world.workload.slot_of(key)).collect();
            world.attested.begin(&slots);
        }
    }

    /// Allows the requests for room of a session's last poll.
    fn allow_asking(&mut self, session: usize) {
        for (_, Ask { token, value_bytes }) in self.asks.extract_if(.., |(of, _)| *of == session) {
            self.sessions[session].allow_value(token, value_bytes);
        }
    }

    fn take_replies(&mut self, world: &mut World, session: usize) -> Result<(), Stop> {
        self.allow_asking(session);
        let mut replies = std::mem::take(&mut self.replies);
        self.sessions[session].poll(&mut replies);
        for reply in replies.drain(..) {
            if let Some(reply) = self.go_on_with_device(world, session, reply)? {
                self.take_reply(world, session, reply)?;
            }
        }
        self.replies = replies;
        self.force_devices(world)?;
        self.take_scanned(world, session)?;
        let mut asks = Vec::new();
        self.sessions[session].take_asks(&mut asks);
        self.asks.extend(asks.into_iter().map(|ask| (session, ask)));
        Ok(())
    }

    fn take_reply(&mut self, world: &mut World, session: usize, reply: Reply) -> Result<(), Stop> {
        let id = reply.token;
        let Some(key) = self.on_their_way.remove(&id) else {
            return wrong(format!("a reply to {id}, which is not on its way: {:?}", reply.outcome));
        };
        world.trace(id);
        self.may_ask.retain(|(.., asked)| *asked != id);
        let told = match told(&self.sessions[session], reply.outcome) {
            // A batch that is too large as a whole, which the model does not foresee.
            Ok(Told::TooLarge) if key.is_none() => Told::Refused,
            Ok(Told::Refused) => {
                world.tally.event(world.state, Event::Full);
                Told::Refused
            }
            Ok(told) => told,
            Err(Error::Io(_)) if self.faulty => Told::Refused,
            Err(Error::Corrupt(_)) if self.damaged => Told::Refused,
            Err(Error::Poisoned(_) | Error::NoSpace { .. }) if self.faulty => {
                self.poisoned = true;
                world.model.doubt(id);
                return Ok(());
            }
            Err(error) => return wrong(format!("operation {id} on key {key:?} failed: {error}")),
        };
        self.refused |= self.reading_all && matches!(told, Told::Refused);
        self.note(world, id, key, &told)
    }

    /// Checks the reply to operation `id` against the model.
    fn note(&mut self, world: &mut World, id: u64, key: Option<usize>, told: &Told) -> Result<(), Stop> {
        let stamp = match told.item() {
            Some(item) => {
                self.found += 1;
                item.stamp
            }
            None => told.written_stamp(),
        };
        world.trace(stamp.unwrap_or(0));
        if world.has_ordered {
            self.look_at_marks(world, false);
            let wrote = told.written_stamp().is_some() || matches!(told, Told::Deleted);
            if let Some(key) = key {
                world.attested.shown(key, world.workload.slot_of(key), wrote);
            }
        }
        if let Some(key) = key {
            if let Some(stamp) = stamp {
                world.workload.saw_stamp(key, stamp);
            }
            if self.reading_all {
                world.model.read_after_crash(key, told);
            }
        }
        world.model.reply(id, told).map_err(Stop::Wrong)
    }

    /// Polls until nothing is pending: first one session alone, which must make progress without the others; then all, because a session
    /// that is not polled holds the buffers of its reads, and others may wait for that room.
    fn drain(&mut self, world: &mut World) -> Result<(), Stop> {
        self.finish_query(world)?;
        let mut patience = PATIENCE;
        while let Some(first) = self.sessions.iter().position(|session| session.in_flight() > 0) {
            let is_alone = patience > PATIENCE - ALONE;
            let polled = if is_alone { first..first + 1 } else { first..self.sessions.len() };
            for session in polled {
                self.poll(world, session)?;
            }
            if !self.reading_all {
                self.maintain(world)?;
            }
            patience -= 1;
            self.pass_time(world, patience);
            if patience == 0 {
                let left = (&self.on_their_way, &self.scans);
                let (phases, stats) = (self.store.phases(), self.store.stats());
                let why = format!("these operations (and their keys) get no reply: {left:?}");
                let key = self.on_their_way.values().flatten().next();
                let report = key.map(|key| world.model.report(*key, "as one of them")).unwrap_or_default();
                let local = (world.local.bytes_used(), world.local.bytes_total());
                return wrong(format!(
                    "{why}\n{:?}, local memory {local:?}\n{phases:?} {stats:?}\n{report}",
                    self.freezes
                ));
            }
        }
        Ok(())
    }

    /// After a power failure: replies that were due still arrive, and count.
    pub fn last_replies(&mut self, world: &mut World) -> Result<(), Stop> {
        for _ in 0..3 {
            for session in 0..self.sessions.len() {
                self.take_replies(world, session)?;
            }
        }
        Ok(())
    }
}

/// One kind of command fails sometimes.
fn draw_faults(random: &mut SplitMix64) -> Faults {
    let mut faults = Faults::default();
    match random.below(4) {
        0 => faults.read_one_in = 50 + random.below(500),
        1 => faults.write_one_in = 20 + random.below(300),
        2 => faults.full_one_in = 20 + random.below(300),
        _ => faults.flush_one_in = 1 + random.below(10),
    }
    faults
}
