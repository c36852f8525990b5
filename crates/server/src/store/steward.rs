//! Watches the served store, and reopens it when its file system was full and has room again.
//!
//! ```text
//!   serving ── a write found no space ─► full (reads go on) ── there is room ─► opening ─┬─► serving
//!      │                                  ▲                                             ├─► full (without a store)
//!      ├── a write failed otherwise ─► failed (reads go on)          no space again ────┘
//!      └── the file has no name any more ─► failed (reads go on)     another error ─────► failed (without a store)
//! ```
//! Invariants:
//! 1. A failed store gets no more writes. Its successor is a new object, which recovery builds from the drive.
//! 2. The drive stays open, and locked, from the first opening to the end of the process.
//! 3. Listeners and clients stay connected throughout: see [`crate::store::store_slot`].
//!
//! Threads: one, which blocks while the store is opened. A signal during that time ends the process ([`crate::store::opening`]).

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use tapetum::{Error, Options, Place, Sync};
use tapetum_drive::{Flash, Health};

use crate::store::fullness::{FullnessWatch, is_device};
use crate::store::hot_keys::{HotKeys, Keeper, WarmProgress};
use crate::store::opening::Opening;
use crate::store::room_probe::{self, Room};
use crate::store::store_slot::StoreSlot;
use tapetum_service::opening::{self, OpenError};

/// The most checks, one a second, between two tries, if a reopened store found no space again.
const LOOKS_MAX: u32 = 64;
/// Checks between two checks of how full the store is.
const LOOKS_PER_FULLNESS: u32 = 5;
/// Checks to skip after a test that wrote as much as there was room for.
const LOOKS_AFTER_WRITE: u32 = 4;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Condition {
    Serving,
    Full,
    /// The drive is another process, which is not there.
    Away,
    Failed,
}

pub struct Steward {
    slot: Arc<StoreSlot>,
    place: Place,
    options: Options,
    hot_keys: Option<HotKeys>,
    progress: Arc<WarmProgress>,
    keeper: Option<Keeper>,
    /// The descriptor of signals that stop the server.
    signals: OwnedFd,
    condition: Condition,
    /// The flash below, while there is no store.
    flash: Option<Arc<dyn Flash>>,
    /// The store's memory budget, which a resize may have changed.
    memory_bytes: u64,
    /// The result of the test for room on which the last opening relied.
    relied_on: Room,
    /// Whether a reservation of blocks is proof enough: no store has found no space soon after one.
    trusts_reservation: bool,
    /// Checks until the next try, and the number before the last try.
    looks_left: u32,
    looks_before: u32,
    /// Checks since the store was opened, up to [`LOOKS_MAX`].
    looks_served: u32,
    /// The last logged health of the file.
    health: Health,
    /// The last logged reason why the drive is not back.
    told_away: String,
    fullness: FullnessWatch,
    /// Checks since the last check of how full the store is.
    fullness_looks: u32,
}

impl Steward {
    /// `hot_keys`: the place of the list of hot keys, if one is kept.
    pub fn new(
        slot: Arc<StoreSlot>,
        place: Place,
        options: Options,
        hot_keys: Option<HotKeys>,
        progress: Arc<WarmProgress>,
        signals: BorrowedFd<'_>,
    ) -> io::Result<Steward> {
        let signals = signals.try_clone_to_owned()?;
        let mut steward = Steward {
            slot,
            place,
            options,
            hot_keys,
            progress,
            keeper: None,
            signals,
            condition: Condition::Serving,
            flash: None,
            memory_bytes: 0,
            relied_on: Room::Reserved,
            trusts_reservation: true,
            looks_left: 0,
            looks_before: 0,
            looks_served: 0,
            health: Health::Sound,
            told_away: String::new(),
            fullness: FullnessWatch::default(),
            fullness_looks: 0,
        };
        steward.keep_hot_keys();
        Ok(steward)
    }

    fn keep_hot_keys(&mut self) {
        let (Some(hot_keys), Ok(store)) = (&self.hot_keys, self.slot.store()) else { return };
        self.keeper = Keeper::start(tapetum::Store::clone(&store), hot_keys.clone(), Arc::clone(&self.progress))
            .inspect_err(|error| tracing::warn!("DRAM will not be warmed after a restart: {error}"))
            .ok();
    }

    /// To be called every second. Blocks while the store is reopened.
    pub fn look(&mut self) {
        self.look_at_file();
        match self.condition {
            Condition::Serving => self.look_at_store(),
            Condition::Full => self.look_for_room(),
            Condition::Away => self.look_for_drive(),
            Condition::Failed => {}
        }
    }

    /// A drive in another process may be back. Every look tries, since nothing is served meanwhile.
    fn look_for_drive(&mut self) {
        match self.exchange_store() {
            Ok(()) => {
                tracing::info!("the drive at {} is back: the store is open again", self.place.path().display());
                (self.condition, self.looks_served, self.health) = (Condition::Serving, 0, Health::Sound);
                self.keep_hot_keys();
            }
            Err(error) => {
                let why = error.to_string();
                self.slot.refuse(&Error::Unusable(format!("the drive is away: {why}")));
                if self.told_away != why {
                    tracing::warn!("the drive is not back: {why}");
                    self.told_away = why;
                }
            }
        }
    }

    /// Checks that the file still has its name: writes to a file without a name are lost with the process.
    fn look_at_file(&mut self) {
        let Ok(store) = self.slot.store() else { return };
        let health = store.drive().health();
        if health == self.health {
            return;
        }
        let path = self.place.path();
        let shown = path.display();
        match &health {
            Health::Sound => tracing::info!("{shown} is the file of this store again"),
            Health::Away => {
                // Before it is said.
                store.fail(Error::Io(format!(
                    "the drive at {shown} has ended, or has given this partition to another host"
                )));
                self.condition = Condition::Away;
                tracing::error!(
                    "the drive at {shown} is away: nothing is served until it is back, which is looked for every second"
                );
            }
            Health::Renamed => tracing::warn!(
                "{shown} is not the file of this store any more, which has another name now: move it back, or the next start will not \
                 find what is written"
            ),
            Health::Removed { rescue } => {
                // Before it is said.
                store.fail(Error::Removed { place: shown.to_string() });
                self.condition = Condition::Failed;
                tracing::error!(
                    "{shown} was deleted or replaced: all of the store is gone when this process ends. Writes are refused from now \
                     on, reads go on. To rescue it, copy it now: cp {} SAFE-FILE; then stop this server, move SAFE-FILE to \
                     {shown}, and start the server again",
                    rescue.display()
                );
            }
        }
        self.health = health;
    }

    fn look_at_store(&mut self) {
        let Some(failure) = self.slot.store().ok().and_then(|store| store.failure()) else {
            self.looks_served = (self.looks_served + 1).min(LOOKS_MAX);
            self.look_how_full();
            return;
        };
        if matches!(failure, Error::NoSpace { .. }) {
            tracing::error!("{failure}; reads go on, and the store is opened again when there is room");
            self.condition = Condition::Full;
            let soon = self.looks_served < LOOKS_MAX;
            self.trusts_reservation = !(soon && self.relied_on == Room::Reserved);
            match soon && self.relied_on == Room::Unknown {
                true => self.wait_longer(),
                false => (self.looks_left, self.looks_before) = (0, 0),
            }
        } else {
            tracing::error!("{failure}; reads go on, and writes are refused until the server is started again");
            self.condition = Condition::Failed;
        }
    }

    fn look_how_full(&mut self) {
        self.fullness_looks = (self.fullness_looks + 1) % LOOKS_PER_FULLNESS;
        let Ok(store) = self.slot.store() else { return };
        if self.fullness_looks == 0 {
            let has_devices = store.keyspaces().iter().any(is_device);
            let told = self.fullness.look(&store.stats(), self.options.full, has_devices);
            told.iter().for_each(|told| tracing::warn!("{told}"));
        }
    }

    fn look_for_room(&mut self) {
        if self.looks_left > 0 {
            self.looks_left -= 1;
            return;
        }
        let flash = self.flash.clone().or_else(|| Some(Arc::clone(self.slot.store().ok()?.drive().flash())));
        let Some(flash) = flash else { return };
        match room_probe::look(&*flash, &self.place.path(), self.trusts_reservation) {
            Ok(Room::No) => {}
            Ok(Room::TooLittle) => self.looks_left = LOOKS_AFTER_WRITE,
            Ok(Room::Unknown) => {
                // During a try, reads fail; so wait longer.
                self.wait_longer();
                self.open_again(Room::Unknown);
            }
            Ok(room) => self.open_again(room),
            Err(error) => {
                tracing::warn!("{error}; looking for room again later");
                self.wait_longer();
            }
        }
    }

    fn wait_longer(&mut self) {
        self.looks_before = (2 * self.looks_before).clamp(1, LOOKS_MAX);
        self.looks_left = self.looks_before;
    }

    fn open_again(&mut self, room: Room) {
        tracing::info!("there is room for {} again: opening the store again", self.place.path().display());
        self.relied_on = room;
        match self.exchange_store() {
            Ok(()) => {
                tracing::info!("the store is open again: writes are taken");
                if self.options.sync != Sync::Always {
                    tracing::warn!(
                        "writes that were acknowledged in the last second before that may be lost, as after a kill: see --sync"
                    );
                }
                (self.condition, self.looks_served) = (Condition::Serving, 0);
                self.keep_hot_keys();
            }
            Err(error) => match error.of_open_store() {
                Some(error @ Error::NoSpace { .. }) => {
                    tracing::error!("{error}; nothing is served until the store can be opened");
                    self.slot.refuse(error);
                    self.trusts_reservation &= room != Room::Reserved;
                    self.wait_longer();
                }
                _ => {
                    tracing::error!(
                        "the store cannot be opened again: {error}; nothing is served from it: repair this, and start the server again"
                    );
                    self.slot.refuse(&Error::Unusable(format!("the store cannot be opened again: {error}")));
                    self.condition = Condition::Failed;
                }
            },
        }
    }

    /// Closes the failed store, if that has not been done, and opens another one in its place.
    fn exchange_store(&mut self) -> Result<(), OpenError> {
        let path = self.place.path();
        let failed = OpenError::of_store(path.clone());
        // The keeper has a handle of the store. It keeps the list from which the next one warms DRAM.
        if let Some(keeper) = self.keeper.take() {
            keeper.stop();
        }
        let why = Error::Unusable("the store is being opened again: try again in a moment".into());
        match self.slot.withdraw(&why) {
            Some(store) => {
                self.memory_bytes = store.stats().memory_limit_bytes;
                self.flash = Some(store.abandon().map_err(&failed)?);
            }
            None => self.slot.refuse(&why),
        }
        let Some(flash) = self.flash.clone() else { unreachable!("a store that is over has left what it lay on") };
        let opening = Opening::watch(self.signals.as_fd()).map_err(|error| tapetum::OpenError::Io {
            path: path.clone(),
            doing: "watch for signals while opening",
            error,
        })?;
        let store = opening::open_again(&self.place, flash, &self.options)?;
        drop(opening);
        if store.stats().memory_limit_bytes != self.memory_bytes {
            store.resize_memory(self.memory_bytes).map_err(&failed)?;
        }
        self.slot.put(store).map_err(failed)?;
        self.flash = None;
        Ok(())
    }

    /// Saves the list of hot keys and closes the store. The server must have stopped.
    pub fn close(mut self) -> Result<(), Error> {
        if let Some(keeper) = self.keeper.take() {
            keeper.stop();
        }
        let closed = self.slot.store().and_then(|store| store.close());
        match closed {
            // Every acknowledged write is on the drive.
            Err(error @ Error::NoSpace { .. }) if self.options.sync == Sync::Always => {
                tracing::warn!("not closed: {error}; nothing is lost that was acknowledged");
                Ok(())
            }
            other => other,
        }
    }
}
