//! A drive that is filled. Writes are refused then, and nothing of what was acknowledged is lost; deletions make room, and writes are taken
//! again.
//!
//! ```text
//! hashed    large values until some are refused ─► works on
//! ordered   a keyspace ─► values beyond the slabs, of slabs, of nodes, each until some are refused ─► works on ─► perhaps the power fails
//!             ─► all is deleted, and nothing of that refused ─► each keyspace takes a value again ─► one is dropped ─► closed
//! ```

use super::{Life, Press};
use crate::model::operation::Kind;
use crate::run::{Stop, World, wrong};
use crate::tally::{Event, State};
use crate::workload::Draw;
use std::cell::Cell;
use tapetum::{Condition, Expiry};

/// Writes of one kind that are refused before the next kind has its turn.
const REFUSALS: u64 = 8;
/// Writes of a kind at most, where none is refused.
const WRITES_MAX: u32 = 600;
/// How much time passes at once, and how many polls of maintenance are between: what waits for room tries again by the clock.
const TICK_US: u64 = 50_000;
const POLLS_PER_TICK: u32 = 64;
/// Ticks within which room that was made is found.
const TICKS_MAX: u32 = 400;

impl Life {
    /// Fills the drive with large values until the store has refused some, and works on.
    pub fn fill(&mut self, world: &mut World) -> Result<(), Stop> {
        for _ in 0..400 {
            self.step(world, Some(Press::Large))?;
        }
        for _ in 0..50 {
            self.step(world, None)?;
        }
        self.drain(world)
    }

    /// Fills the drive with values of ordered keyspaces, of each size, until some were refused.
    pub fn fill_ordered(&mut self, world: &mut World) -> Result<(), Stop> {
        self.make_ordered(world)?;
        let keys = world.workload.keys_open_ordered().len() as u64;
        let most = world.options.value_bytes_max as u64;
        let enough = (2 * world.capacity.known_bytes / keys.max(1)).clamp(80 << 10, most.min(1 << 20));
        let before = world.tally.events(Event::Full);
        for bytes in [enough, 24 << 10, 1400] {
            self.fill_with(world, bytes)?;
        }
        let refused = world.tally.events(Event::Full) - before;
        if refused == 0 && keys * enough > 2 * world.capacity.known_bytes {
            return wrong("more was written than the drive holds, and nothing was refused");
        }
        // Keyspaces come and go, too.
        for _ in 0..100 {
            self.step(world, None)?;
        }
        self.drain(world)
    }

    /// Puts values of about this size to keys of ordered keyspaces.
    fn fill_with(&mut self, world: &mut World, bytes: u64) -> Result<(), Stop> {
        let before = world.tally.events(Event::Full);
        for _ in 0..WRITES_MAX {
            if world.tally.events(Event::Full) - before >= REFUSALS {
                break;
            }
            let session = world.random.below(self.sessions.len() as u64) as usize;
            self.use_freezes(world)?;
            if let Some(draw) = world.workload.draw_ordered_put(&world.model, bytes) {
                self.submit(world, session, draw)?;
            }
            for _ in 0..8 {
                self.maintain(world)?;
                self.poll(world, session)?;
            }
            if self.sessions[session].in_flight() >= super::IN_FLIGHT_MAX {
                self.drain(world)?;
            }
        }
        self.drain(world)
    }

    /// Makes an ordered keyspace, if there is none.
    fn make_ordered(&mut self, world: &mut World) -> Result<(), Stop> {
        let mut left = TICKS_MAX;
        while world.workload.keys_open_ordered().is_empty() {
            self.change_keyspaces(world)?;
            self.drain(world)?;
            self.tick(world)?;
            left -= 1;
            if left == 0 {
                return wrong("an ordered keyspace is never made");
            }
        }
        Ok(())
    }

    /// Deletes all that ordered keyspaces have, and writes again.
    pub fn make_room(&mut self, world: &mut World) -> Result<(), Stop> {
        for _ in 0..TICKS_MAX {
            if self.changing.is_some() {
                self.tick(world)?;
            }
        }
        let refused = world.tally.events(Event::Full);
        for key in world.workload.keys_open_ordered() {
            let id = world.workload.operation_id();
            self.submit(world, 0, Draw::One { id, key, kind: Kind::Delete { stamp: None } })?;
            self.drain(world)?;
        }
        if world.tally.events(Event::Full) > refused {
            return wrong("a deletion was refused for want of room");
        }
        for slot in 0..world.slots.len() {
            if self.keyspaces[slot].is_some() && world.slots[slot].is_ordered() {
                self.write_again(world, slot)?;
            }
        }
        Ok(())
    }

    /// Puts a value until it is taken.
    fn write_again(&mut self, world: &mut World, slot: usize) -> Result<(), Stop> {
        let Some(key) = world.workload.keys_of(slot).next() else { return Ok(()) };
        for _ in 0..TICKS_MAX {
            let id = world.workload.operation_id();
            let value = format!("v{id}.").into_bytes().into();
            let kind = Kind::Put { value, flags: 0, expiry: Expiry::NONE, condition: Condition::Always };
            let refused = world.tally.events(Event::Full);
            self.submit(world, 0, Draw::One { id, key, kind })?;
            self.drain(world)?;
            if world.tally.events(Event::Full) == refused {
                return Ok(());
            }
            self.tick(world)?;
        }
        wrong(format!("slot {slot} takes no value though all was deleted: {:?}", self.store.stats()))
    }

    /// Drops an ordered keyspace.
    pub fn drop_ordered(&mut self, world: &mut World) -> Result<(), Stop> {
        let of = |slot: &usize| world.slots[*slot].is_ordered() && self.keyspaces[*slot].is_some();
        let Some(slot) = (0..world.slots.len()).find(of) else { return Ok(()) };
        for _ in 0..TICKS_MAX {
            if self.changing.is_none() {
                let Some(wish) = world.slots[slot].ask_to_drop() else { return Ok(()) };
                world.workload.set_open(slot, false);
                self.drain(world)?;
                world.model.note_everywhere(&format!("{wish:?}"));
                match self.store.begin_keyspace_change(wish) {
                    Ok(change) => self.changing = Some((slot, change)),
                    Err(error) => return wrong(format!("a keyspace is not dropped: {error}")),
                }
            }
            self.tick(world)?;
        }
        wrong("a keyspace is never dropped")
    }

    /// After so many polls of a drain some time passes, where it may be waited for: freezes give flash to writers by the clock, too.
    pub(super) fn pass_time(&self, world: &mut World, polls: u32) {
        if (self.in_time || self.freezes.has_any()) && polls.is_multiple_of(POLLS_PER_TICK) {
            world.clock.advance_us(TICK_US);
            world.model.pass_time(world.env.unix_millis());
        }
    }

    /// Lets time pass, and maintenance find what it has to do.
    fn tick(&mut self, world: &mut World) -> Result<(), Stop> {
        self.pass_time(world, 0);
        for _ in 0..POLLS_PER_TICK {
            self.maintain(world)?;
        }
        Ok(())
    }

    /// Closes the store, which has room for all that it took.
    pub fn close_full(&mut self, world: &mut World) -> Result<(), Stop> {
        self.drain(world)?;
        let looks = Cell::new(0);
        let closed = self.store.close_with(|| looks.replace(looks.get() + 1) > super::PATIENCE);
        self.look(world).inspect_err(|_| world.state = State::Close)?;
        closed.or_else(|error| wrong(format!("a full store does not close: {error}")))?;
        world.model.note_everywhere("closed");
        world.model.settle();
        Ok(())
    }
}
