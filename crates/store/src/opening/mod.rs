//! Stores at a path: found, made, opened ([`Options`]). Below this, a store knows a drive and no path.
//!
//! A directory holds the file `drive`; or the path is of a file or block device, or of a partition of a drive in another process, by way of its
//! socket. A new store is made under another name and renamed
//! when it is whole, so that an interrupted creation leaves nothing that looks like a store. Several files or devices are a set of members, one drive
//! together ([`members`]). A block device is taken only if it
//! holds a store, or zeros in its first and last MiB. Nothing foreign is ever written to.

// Files of the system are above the simulator: here a lock may be waited for.
#![allow(clippy::disallowed_methods)]

mod creation;
mod error;
mod member_error;
mod members;
#[cfg(test)]
mod members_tests;
mod place;
mod redundant_members;
#[cfg(test)]
mod redundant_members_tests;
mod restoring;
mod store_at_path;
#[cfg(test)]
mod tests;

pub use error::OpenError;
pub use member_error::MemberError;
pub use place::Place;
pub use restoring::{RestoreError, restore_at, restore_over};

use crate::api::store::Store;
use crate::hashed::resize::refuse_more_than_there_is;
use crate::tools::inspect::inspect_drive;
use std::fs;
use std::ops::RangeInclusive;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tapetum_base::engine::inspection::Inspection;
use tapetum_base::error::Error;
use tapetum_base::log::Sync;
use tapetum_base::options::{Full, Slabs, StoreOptions, TierSize};
use tapetum_drive::arbiter::{UnitCount, WEIGHT_MAX};
use tapetum_drive::engine::{DEFAULT_APPLICATION_NAME, EngineOptions};
use tapetum_drive::{
    AttachedFlash, Attaching, CarriedFlash, DRIVE_THREADS_MAX, Drive, Env, FileFlash, Flash, FlashError, Identity,
    IoEngine, ProgramIdentity, Redundancy, Size, programs,
};

/// The most that a new store that is served takes if its capacity is not given.
const CAPACITY_SERVED_BYTES: u64 = 10 << 30;
/// The first capacity of a store that grows by itself; it grows to four times as much.
const CAPACITY_GROWING_BYTES: u64 = 256 << 20;
/// A smaller capacity holds no store, or hardly an item.
const CAPACITY_LEAST_BYTES: u64 = 2 << 20;
/// Applications with weights.
const APPLICATIONS_MAX: usize = 64;
/// The write buffers that a new store may have.
const WRITE_BUFFER_BYTES: RangeInclusive<u64> = 64 << 10..=1 << 30;
/// Local memory to look at a superblock with.
const PROBE_BYTES: usize = 1 << 20;
/// Local memory to read a manifest with, of which only what is used is taken.
const INSPECT_BYTES: usize = 64 << 20;

/// How a store at a path is opened, or made. [`Options::new`] is for most; what it may take is told by methods.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let path = std::env::temp_dir().join(format!("tapetum-options-{}", std::process::id()));
/// use tapetum::{Options, Sync};
///
/// let store = Options::new().capacity_bytes(64 << 20).memory_bytes(32 << 20).sync(Sync::EverySecond).open(&path)?;
/// store.put(b"greeting", b"hello")?;
/// store.close()?;
/// # drop(store);
/// # std::fs::remove_dir_all(&path)?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Options {
    /// Flash that the store may take. `None`: `new_store` decides for a new store, and an existing one keeps its capacity.
    pub capacity_bytes: Option<u64>,
    /// Decides how much a new store takes whose capacity is not given.
    pub new_store: NewStore,
    /// `None`: 256 MiB, or what the store's write buffers need if that is more.
    pub memory_bytes: Option<u64>,
    pub write_buffer_bytes: Option<u64>,
    pub tier: TierSize,
    pub slabs: Slabs,
    pub value_bytes_max: usize,
    pub assume_atomic_writes: bool,
    /// See [`Options::cluster_slots`].
    pub cluster_slots: bool,
    pub node_cache_bytes: u64,
    pub sync: Sync,
    pub full: Full,
    pub create: bool,
    pub drive_threads: usize,
    /// Programs of the drive and how many threads each gets; see [`Options::compute_units`].
    pub compute_units: Vec<(String, u16)>,
    /// Applications that share these threads, and the weight of each; see [`Options::weights`].
    pub weights: Vec<(String, u32)>,
    /// How many threads compute for themselves at once; see [`Options::turns`].
    pub turns: Option<usize>,
    /// These threads stay on a core each, as long as there are enough.
    pub pin_units: bool,
    /// See [`Options::take_over`].
    pub take_over: bool,
    /// See [`Options::redundancy`].
    pub redundancy: Option<Redundancy>,
    /// See [`Options::force`].
    pub force: bool,
    /// Memory of a budget, in bytes, that the caller needs beside the store: none, unless a server sets it.
    pub memory_beside: fn(u64) -> u64,
}

/// How much flash a new store takes if its capacity is not given.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum NewStore {
    /// 256 MiB, and more by itself as it fills: up to 1 GiB.
    #[default]
    Growing,
    /// 10 GiB, or half of what is free there if that is less, at once: a server's.
    Served,
}

/// Events of the opening of a store, for a log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OpenNote {
    Made {
        capacity_bytes: u64,
        on_device: bool,
    },
    Grown {
        from_bytes: u64,
        to_bytes: u64,
    },
    /// A store does not shrink to a smaller capacity.
    KeptCapacity {
        has_bytes: u64,
        wanted_bytes: u64,
    },
    /// Of a set that was made: its members, and the bytes that are used of each.
    Members {
        used: Vec<(PathBuf, u64)>,
    },
    /// A set goes on without this member, counted from 0. `left_out`: it was given, and was away while the set changed.
    Degraded {
        place: u16,
        left_out: Option<PathBuf>,
    },
    /// The size of write buffers is decided when a store is made.
    KeptWriteBuffers {
        has_bytes: u64,
    },
}

impl Default for Options {
    fn default() -> Options {
        Options {
            capacity_bytes: None,
            new_store: NewStore::default(),
            memory_bytes: None,
            write_buffer_bytes: None,
            tier: TierSize::Bytes(0),
            slabs: Slabs::default(),
            value_bytes_max: usize::MAX,
            assume_atomic_writes: false,
            node_cache_bytes: 0,
            cluster_slots: false,
            sync: Sync::default(),
            full: Full::default(),
            create: true,
            drive_threads: 0,
            compute_units: Vec::new(),
            weights: Vec::new(),
            turns: None,
            pin_units: false,
            take_over: false,
            redundancy: None,
            force: false,
            memory_beside: |_| 0,
        }
    }
}

impl Options {
    /// The budget of memory if nothing is said.
    pub const MEMORY_DEFAULT_BYTES: u64 = 256 << 20;

    /// Makes a store where there is none, of 256 MiB, which grows by itself to 1 GiB, and takes 256 MiB of memory. A write is acknowledged
    /// when it is durable.
    pub fn new() -> Options {
        Options::default()
    }

    /// Flash that the store may take; it is reserved at once. A store that has less grows, one that has more keeps it; none grows by itself.
    pub fn capacity_bytes(self, bytes: u64) -> Options {
        Options { capacity_bytes: Some(bytes), ..self }
    }

    /// The budget for everything that the store keeps in memory; if nothing is said, 256 MiB, or what a store that is there needs if that is more.
    pub fn memory_bytes(self, bytes: u64) -> Options {
        Options { memory_bytes: Some(bytes), ..self }
    }

    /// The write buffers of a new store: a power of two from 64 KiB to 1 GiB. A value that is overwritten while it is in a buffer costs flash only
    /// its log record.
    pub fn write_buffer_bytes(self, bytes: u64) -> Options {
        Options { write_buffer_bytes: Some(bytes), ..self }
    }

    /// The part of the memory for copies in DRAM of items that are asked for often.
    pub fn tier_bytes(self, bytes: u64) -> Options {
        Options { tier: TierSize::Bytes(bytes), ..self }
    }

    /// The part of the memory for cached nodes of ordered keyspaces; 0, if nothing is said, for a sixteenth.
    pub fn node_cache_bytes(self, bytes: u64) -> Options {
        Options { node_cache_bytes: bytes, ..self }
    }

    /// Writes nodes of ordered keyspaces in place on a drive that does not promise atomic writes of 4 KiB: a power failure may lose nodes.
    pub fn assume_atomic_writes(self, assume: bool) -> Options {
        Options { assume_atomic_writes: assume, ..self }
    }

    /// A new store is made for a cluster: its key tables have the slot of each key of hashed keyspaces, as Redis Cluster counts them, so that a slot
    /// can be found without reading records. That takes up to four bytes an item on flash. A store that is there stays as it was made.
    pub fn cluster_slots(self, cluster_slots: bool) -> Options {
        Options { cluster_slots, ..self }
    }

    /// When a write is acknowledged.
    pub fn sync(self, sync: Sync) -> Options {
        Options { sync, ..self }
    }

    /// Whether writes evict items or are refused when there is no room.
    pub fn full(self, full: Full) -> Options {
        Options { full, ..self }
    }

    /// Whether a store is made where there is none.
    pub fn create(self, create: bool) -> Options {
        Options { create, ..self }
    }

    /// Threads that do the drive's work, at most [`DRIVE_THREADS_MAX`](tapetum_drive::DRIVE_THREADS_MAX): moving bytes and running
    /// programs. With none, each thread that asks the store for something does its own.
    pub fn drive_threads(self, threads: usize) -> Options {
        Options { drive_threads: threads, ..self }
    }

    /// Threads for programs of pipelines, by their names, such as `zstd-decompress`: pipelines of all sessions share them. Their
    /// sub-buffers take a little local memory beside the budget. With none, each thread that asks for a pipeline runs its own.
    pub fn compute_units(self, units: Vec<(String, u16)>) -> Options {
        Options { compute_units: units, ..self }
    }

    /// Applications, by names of the caller's own, and weights of 1 to 1024: while several have pipelines that wait, the time of the compute
    /// units is divided among them by their weights; without units, the turns of threads that compute for themselves. Pipelines that name none are of the application `default`, which weighs 1 if nothing else
    /// is said. See [`Store::application`](crate::Store::application).
    pub fn weights(self, weights: Vec<(String, u32)>) -> Options {
        Options { weights, ..self }
    }

    /// Of the threads that run programs for themselves, since there are no compute units for them, so many do so at once, and the others wait for
    /// their turn; else all do, or as many as there are cores if applications have weights.
    pub fn turns(self, at_once: usize) -> Options {
        Options { turns: Some(at_once), ..self }
    }

    /// Takes the partition of a drive in another process from the host that has it, which has it no more; a live one is else left alone.
    pub fn take_over(self, take_over: bool) -> Options {
        Options { take_over, ..self }
    }

    /// What a new set of several drives has beside each byte, so that one drive may be lost: a copy, or a share in a parity.
    pub fn redundancy(self, redundancy: Redundancy) -> Options {
        Options { redundancy: Some(redundancy), ..self }
    }

    /// Opens a mirror of which one drive is missing also if the other was not told of that: what only the missing one has is lost.
    pub fn force(self, force: bool) -> Options {
        Options { force, ..self }
    }

    /// Opens the store at a directory, file, block device or partition, with its maintenance thread. One that is in use is waited for, 3 seconds at
    /// most.
    ///
    /// # Errors
    /// Each says what to do; where one is returned, nothing foreign was changed.
    pub fn open(&self, place: impl Into<Place>) -> Result<Store, OpenError> {
        self.open_noting(&place.into(), |_| {})
    }

    /// As [`Options::open`]; `note` gets the events for a log. If a store could not be made, no folder stays.
    ///
    /// # Errors
    /// As [`Options::open`].
    pub fn open_noting(&self, place: &Place, mut note: impl FnMut(OpenNote)) -> Result<Store, OpenError> {
        let missing = if self.create { place::missing_folders(place) } else { Vec::new() };
        let opened = self.open_or_make(place, &mut note);
        if opened.is_err() {
            // One that is not empty stays, with those that it lies in.
            let _ = missing.iter().try_for_each(fs::remove_dir);
        }
        opened
    }

    fn open_or_make(&self, place: &Place, note: &mut impl FnMut(OpenNote)) -> Result<Store, OpenError> {
        let path = place.given_path()?;
        let env = Env::system();
        self.check().map_err(OpenError::store(&path))?;
        if let Place::Partition { socket, name } = place {
            let flash = creation::attach((socket, name), self, &env, note)?;
            let store = self.open_on(flash, &path, &env, note, Store::open_on)?;
            self.grow_as_told(&store, &path, note)?;
            return Ok(store);
        }
        if let Place::Members(members) = place {
            let flash = members::open_or_make(members, self, &env, note)?;
            let wanted_bytes = |bytes| members::wanted_bytes(&*flash, members, bytes);
            let capacity_bytes = self.capacity_bytes.map(wanted_bytes);
            let store = self.open_on(flash, &path, &env, note, Store::open_on)?;
            Options { capacity_bytes, ..self.clone() }.grow_as_told(&store, &path, note)?;
            return Ok(store);
        }
        if self.create
            && !place::is_there(&path)?
            && let Some(flash) = creation::create_file(place, self, &env, note)?
        {
            return self.open_on(flash, &path, &env, note, Store::open_on);
        }
        let Some(kind) = place::kind(&path)? else { return Err(OpenError::NoStore { path }) };
        let flash = open_flash(&path, &env)?;
        if kind.is_block_device() && self.create && place::is_blank(&path)? {
            let flash = creation::create_on_device(flash, &path, self, &env, note)?;
            return self.open_on(flash, &path, &env, note, Store::open_on);
        }
        let flash: Arc<dyn Flash> = Arc::new(flash);
        if kind.is_block_device() && self.create && !holds_store(&flash, &path, &env)? {
            return Err(OpenError::NotBlank { path });
        }
        let store = self.open_on(flash, &path, &env, note, Store::open_on)?;
        self.grow_as_told(&store, &path, note)?;
        Ok(store)
    }

    /// Opens a store to read: nothing is written, beside others that read, and without the right to write.
    ///
    /// # Errors
    /// As [`Options::open`].
    pub fn open_read_only(&self, place: impl Into<Place>) -> Result<Store, OpenError> {
        self.examine(&place.into(), Store::open_read_only_on)
    }

    /// Lets `work` read the drive of a store, beside others that read.
    ///
    /// # Errors
    /// As [`Options::open`], and what `work` says.
    pub fn examine<T>(
        &self,
        place: &Place,
        work: impl FnOnce(&Drive, &StoreOptions) -> Result<T, Error>,
    ) -> Result<T, OpenError> {
        let (path, env) = (place.given_path()?, Env::system());
        self.check().map_err(OpenError::store(&path))?;
        self.open_on(open_flash_read_only(place, &env)?, &path, &env, &mut |_| {}, work)
    }

    /// Lets `work` have the drive of a store, alone.
    ///
    /// # Errors
    /// As [`Options::examine`].
    pub fn operate<T>(&self, place: &Place, work: impl FnOnce(&Drive) -> Result<T, Error>) -> Result<T, OpenError> {
        self.open_on(lock(place)?, &place.path(), &Env::system(), &mut |_| {}, |drive, _| work(drive))
    }

    /// Opens the store that lies on `flash`, and that this process has had open before.
    ///
    /// # Errors
    /// As [`Options::open`].
    pub fn open_again(
        &self,
        place: &Place,
        flash: Arc<dyn Flash>,
        note: impl FnMut(OpenNote),
    ) -> Result<Store, OpenError> {
        let mut note = note;
        self.open_on(flash, &place.path(), &Env::system(), &mut note, Store::open_on)
    }

    /// Grows the store, which nobody has open, to `capacity_bytes`. One that has them is left as it is.
    ///
    /// # Errors
    /// As [`Options::open`], and when there is no room.
    pub fn grow(&self, place: &Place, capacity_bytes: u64) -> Result<(), OpenError> {
        let has = ("capacity_bytes".to_string(), store_bytes(capacity_bytes) / 4096 * 4096);
        if inspect_at(place)?.superblock.contains(&has) {
            return Ok(());
        }
        let store = self.open_noting(place, |_| {})?;
        let grown = store.resize_capacity(capacity_bytes);
        let closed = store.close();
        grown.and(closed).map_err(OpenError::store(&place.path()))
    }

    /// Whoever opens a store for writing with a larger capacity means it to have it. One that reads takes the store as it is.
    fn grow_as_told(&self, store: &Store, path: &Path, note: &mut impl FnMut(OpenNote)) -> Result<(), OpenError> {
        let Some(wanted_bytes) = self.capacity_bytes.filter(|_| self.create) else { return Ok(()) };
        let has_bytes = store.stats().flash_limit_bytes;
        // Both may have been rounded down.
        if wanted_bytes < has_bytes {
            note(OpenNote::KeptCapacity { has_bytes, wanted_bytes });
        } else if store_bytes(wanted_bytes) > has_bytes + 4096 {
            store.resize_capacity(wanted_bytes).map_err(OpenError::store(path))?;
            note(OpenNote::Grown { from_bytes: has_bytes, to_bytes: store_bytes(wanted_bytes) });
        }
        Ok(())
    }

    fn open_on<T>(
        &self,
        flash: Arc<dyn Flash>,
        path: &Path,
        env: &Env,
        note: &mut impl FnMut(OpenNote),
        open: impl FnOnce(&Drive, &StoreOptions) -> Result<T, Error>,
    ) -> Result<T, OpenError> {
        let probe = drive(&flash, PROBE_BYTES, path, env)?;
        let segment_bytes = Store::segment_bytes(&probe);
        let refused = |error| members::alone(&flash, path, env).unwrap_or_else(|| OpenError::store(path)(error));
        let segment_bytes = segment_bytes.map_err(refused)?;
        let opened = self.of_store(flash.capacity_bytes(), self.memory_for(flash.capacity_bytes(), segment_bytes));
        self.check_memory(path, &opened, segment_bytes)?;
        refuse_more_than_there_is(opened.memory_bytes).map_err(OpenError::store(path))?;
        if self.write_buffer_bytes.is_some_and(|bytes| bytes != segment_bytes) {
            note(OpenNote::KeptWriteBuffers { has_bytes: segment_bytes });
        }
        self.check_elsewhere(&probe).map_err(OpenError::store(path))?;
        let units = self.engine_options(&probe.identity()).map_err(OpenError::store(path))?;
        let units_bytes = units.as_ref().map_or(0, EngineOptions::sub_buffer_bytes_total);
        let mut drive = drive(&flash, (opened.local_memory_bytes() + units_bytes) as usize, path, env)?;
        if let Some(units) = &units {
            drive = drive.with_compute_units(units);
        } else if !drive.is_elsewhere() && (self.turns.is_some() || !self.weights.is_empty()) {
            let (names, weights) = self.applications().map_err(OpenError::store(path))?;
            let at_once = self.turns.unwrap_or_else(|| drive.env().parallelism());
            drive = drive.with_turns(at_once.max(1), &weights, &names);
        }
        if self.drive_threads > 0 {
            drive = drive.with_threads(self.drive_threads).map_err(OpenError::io(path, "have threads for"))?;
        }
        open(&drive, &opened).map_err(OpenError::store(path))
    }

    /// An error if no store can be opened so.
    fn check(&self) -> Result<(), Error> {
        let threads = self.drive_threads;
        if threads > DRIVE_THREADS_MAX {
            return Err(Error::Options(format!(
                "a drive cannot have {threads} threads: give {DRIVE_THREADS_MAX} at most"
            )));
        }
        if threads > 0 && self.compute_units.is_empty() && !self.weights.is_empty() {
            return Err(Error::Options(
                "weights divide the time of compute units, and threads of the drive run programs as they come: give some programs units, or the \
                 drive no threads"
                    .into(),
            ));
        }
        Ok(())
    }

    /// An error if this is asked of a drive in another process, which has its own.
    fn check_elsewhere(&self, drive: &Drive) -> Result<(), Error> {
        let asks = self.drive_threads > 0 || !self.compute_units.is_empty() || !self.weights.is_empty();
        match drive.is_elsewhere() && asks {
            true => Err(Error::Options(
                "threads, compute units and weights are the drive's, which is another process: leave them out".into(),
            )),
            false => Ok(()),
        }
    }

    /// An error if no store can be made so.
    fn check_new(&self) -> Result<(), Error> {
        let (least, most) = (Size(*WRITE_BUFFER_BYTES.start()), Size(*WRITE_BUFFER_BYTES.end()));
        match (self.write_buffer_bytes, self.capacity_bytes) {
            (Some(bytes), _) if !bytes.is_power_of_two() || !WRITE_BUFFER_BYTES.contains(&bytes) => {
                Err(Error::Options(format!(
                    "write buffers cannot have {bytes} bytes: give a power of two from {least} to {most}"
                )))
            }
            // If a larger capacity is still too small, the size of its segments shows it.
            (_, Some(bytes)) if bytes < CAPACITY_LEAST_BYTES / 2 => Err(Error::Options(format!(
                "a capacity of {bytes} bytes is too small for a store: give {} or more",
                Size(CAPACITY_LEAST_BYTES)
            ))),
            _ => Ok(()),
        }
    }

    /// For the programs that are to have threads, if any are.
    fn engine_options(&self, identity: &Identity) -> Result<Option<EngineOptions>, Error> {
        let mut units: Vec<UnitCount> = Vec::new();
        for (name, count) in &self.compute_units {
            let program = program_of_units(identity, name)?;
            if !(1..=64).contains(count) || units.iter().any(|other| other.program == program.id) {
                return Err(Error::Options(format!("{name} with {count} threads: name it once, with 1 to 64")));
            }
            units.push(UnitCount { program: program.id, units: *count });
        }
        if units.is_empty() {
            return Ok(None);
        }
        let (application_names, weights) = self.applications()?;
        let (pin, sub_buffer_bytes) = (self.pin_units, crate::scan::PART_BYTES as u32);
        let options = EngineOptions::with_units(units);
        Ok(Some(EngineOptions { pin, sub_buffer_bytes, application_names, weights, ..options }))
    }

    /// Names and weights by number; the default application is the first.
    fn applications(&self) -> Result<(Vec<String>, Vec<u32>), Error> {
        let (mut names, mut weights) = (vec![DEFAULT_APPLICATION_NAME.to_owned()], vec![1]);
        for (name, weight) in &self.weights {
            if !(1..=WEIGHT_MAX).contains(weight) {
                return Err(Error::Options(format!("{name:?} weighs {weight}: give it a weight of 1 to {WEIGHT_MAX}")));
            }
            match names.iter().position(|other| other == name) {
                Some(0) => weights[0] = *weight,
                None if !name.is_empty() && names.len() < APPLICATIONS_MAX => {
                    names.push(name.clone());
                    weights.push(*weight);
                }
                Some(_) => return Err(Error::Options(format!("{name:?} has two weights: name it once"))),
                None if name.is_empty() => {
                    return Err(Error::Options("an application has no name: give it one beside its weight".into()));
                }
                None => {
                    let error = format!("more than {APPLICATIONS_MAX} applications have weights: name fewer");
                    return Err(Error::Options(error));
                }
            }
        }
        Ok((names, weights))
    }

    /// The options for a store of `capacity_bytes` within `memory_bytes`.
    fn of_store(&self, capacity_bytes: u64, memory_bytes: u64) -> StoreOptions {
        // Segments by what is not the tier's, so that the largest value does not depend on what is beside the store.
        let tier_bytes = self.tier.bytes_of(memory_bytes);
        let beside_bytes = tier_bytes.saturating_add(self.node_cache_bytes);
        let whole = StoreOptions::new(capacity_bytes, memory_bytes.saturating_sub(beside_bytes));
        let whole = self.write_buffer_bytes.map_or(whole, |bytes| whole.with_write_buffers_of(bytes));
        StoreOptions {
            memory_bytes: memory_bytes.saturating_sub((self.memory_beside)(memory_bytes)),
            tier_bytes,
            slabs: self.slabs,
            value_bytes_max: self.value_bytes_max,
            assume_atomic_writes: self.assume_atomic_writes,
            node_cache_bytes: self.node_cache_bytes,
            grows: self.capacity_bytes.is_none(),
            cluster_slots: self.cluster_slots,
            sync: self.sync,
            full: self.full,
            ..whole
        }
    }

    /// An error if a store with segments of `segment_bytes` does not fit into the budget.
    fn check_memory(&self, path: &Path, store: &StoreOptions, segment_bytes: u64) -> Result<(), OpenError> {
        if store.check(segment_bytes).is_ok() {
            return Ok(());
        }
        let (tier, memory_bytes) = (self.tier, self.memory_bytes.unwrap_or(Self::MEMORY_DEFAULT_BYTES));
        let least_bytes = self.memory_least(store, segment_bytes);
        Err(OpenError::Memory { path: path.into(), memory_bytes, tier, least_bytes })
    }

    /// The least memory for a store with segments of `segment_bytes`, in whole MiB.
    fn memory_least(&self, store: &StoreOptions, segment_bytes: u64) -> u64 {
        let suffices = |total: &u64| {
            let memory_bytes = total.saturating_sub((self.memory_beside)(*total));
            StoreOptions { memory_bytes, tier_bytes: self.tier.bytes_of(*total), ..*store }.check(segment_bytes).is_ok()
        };
        let TierSize::Bytes(tier_bytes) = self.tier else { return first_of(0, suffices) };
        first_of(tier_bytes.saturating_add(self.node_cache_bytes) >> 20, suffices)
    }

    /// The budget that was given; or the usual one, or what a store with segments of `segment_bytes` needs if that is more.
    fn memory_for(&self, capacity_bytes: u64, segment_bytes: u64) -> u64 {
        self.memory_bytes.unwrap_or_else(|| {
            let usual = self.of_store(capacity_bytes, Self::MEMORY_DEFAULT_BYTES);
            self.memory_least(&usual, segment_bytes).max(Self::MEMORY_DEFAULT_BYTES)
        })
    }
}

/// The first size, in MiB from `mebibytes` on, that suffices. A size that is enough for the largest segments ends the search.
fn first_of(mebibytes: u64, suffices: impl FnMut(&u64) -> bool) -> u64 {
    let mut sizes = (mebibytes.max(1)..).take(1 << 20).map(|mebibytes| mebibytes.saturating_mul(1 << 20));
    sizes.find(suffices).unwrap_or(u64::MAX)
}

/// A program that stages of pipelines run, which alone take threads.
fn program_of_units<'a>(identity: &'a Identity, name: &str) -> Result<&'a ProgramIdentity, Error> {
    let program = identity.programs.iter().find(|program| program.name == name);
    if let Some(program) = program.filter(|program| program.is_stream) {
        return Ok(program);
    }
    let streams = identity.programs.iter().filter(|program| program.is_stream);
    let names = streams.map(|program| &program.name[..]).collect::<Vec<&str>>().join(", ");
    Err(Error::Options(match program {
        None => format!("there is no program {name:?} to give threads; those that take them are {names}"),
        Some(_) => format!(
            "the program {name:?} runs on the thread of whoever asks, and takes no others; those that do are {names}"
        ),
    }))
}

/// Reads superblock and manifest of a store that nobody has open. Nothing is written.
///
/// # Errors
/// As [`Options::open`].
pub fn inspect_at(place: &Place) -> Result<Inspection, OpenError> {
    let (path, env) = (place.given_path()?, Env::system());
    let drive = drive(&open_flash_read_only(place, &env)?, INSPECT_BYTES, &path, &env)?;
    inspect_drive(&drive).map_err(OpenError::store(&path))
}

/// The drive of a store, which nobody else has as long as this lives.
///
/// # Errors
/// As [`Options::open`].
pub fn lock(place: &Place) -> Result<Arc<dyn Flash>, OpenError> {
    let (path, env) = (place.given_path()?, Env::system());
    if let Place::Members(paths) = place {
        return members::open(paths, members::How::Alone, &env);
    }
    match carried(place, &env)? {
        Some(flash) => Ok(flash),
        None => Ok(Arc::new(open_flash(&path, &env)?)),
    }
}

/// The flash of a partition, for a tool, which nobody else has as long as this lives. `None`: the place is none.
fn carried(place: &Place, env: &Env) -> Result<Option<Arc<dyn Flash>>, OpenError> {
    let Place::Partition { socket, name } = place else { return Ok(None) };
    let attached = when_free(|| AttachedFlash::attach(socket, name, Attaching::default(), env));
    let attached = attached.map_err(OpenError::existing)?;
    if !attached.was_made() {
        return Err(OpenError::NoStore { path: place.path() });
    }
    Ok(Some(Arc::new(CarriedFlash::new(attached))))
}

fn open_flash(path: &Path, env: &Env) -> Result<FileFlash, OpenError> {
    when_free(|| FileFlash::open(path, IoEngine::Auto, env)).map_err(OpenError::existing)
}

fn open_flash_read_only(place: &Place, env: &Env) -> Result<Arc<dyn Flash>, OpenError> {
    if let Place::Members(paths) = place {
        return members::open(paths, members::How::ToRead, env);
    }
    if let Some(flash) = carried(place, env)? {
        return Ok(flash);
    }
    let path = place.path();
    let opened = when_free(|| FileFlash::open_read_only(&path, IoEngine::Auto, env));
    Ok(Arc::new(opened.map_err(OpenError::existing)?))
}

/// A process that was killed holds its file or device until its last writes have ended: it is waited for, a live one is not
/// for long.
///
/// # Errors
/// What `attempt` says at last.
pub fn when_free<T>(attempt: impl Fn() -> Result<T, FlashError>) -> Result<T, FlashError> {
    const WAIT: Duration = Duration::from_millis(50);
    for _ in 0..60 {
        match attempt() {
            Err(FlashError::Locked { .. } | FlashError::DeviceBusy { .. } | FlashError::Held { .. }) => {
                std::thread::sleep(WAIT)
            }
            other => return other,
        }
    }
    attempt()
}

/// Bytes of a store of that capacity: the file system keeps its own notes on a file, and with them it stays within the capacity too.
pub fn store_bytes(capacity_bytes: u64) -> u64 {
    capacity_bytes - capacity_bytes / 4096
}

fn drive(flash: &Arc<dyn Flash>, local_bytes: usize, path: &Path, env: &Env) -> Result<Drive, OpenError> {
    Drive::over(Arc::clone(flash), local_bytes, programs::built_in(), env.clone())
        .map_err(OpenError::io(path, "have memory for"))
}

fn holds_store(flash: &Arc<dyn Flash>, path: &Path, env: &Env) -> Result<bool, OpenError> {
    match Store::segment_bytes(&drive(flash, PROBE_BYTES, path, env)?) {
        Ok(_) => Ok(true),
        Err(Error::Unusable(_)) => members::alone(flash, path, env).map_or(Ok(false), Err),
        Err(error) => Err(OpenError::store(path)(error)),
    }
}
