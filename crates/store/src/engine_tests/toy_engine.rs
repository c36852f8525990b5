//! A toy engine: a map in memory. Its puts are records of the log, and its checkpoints lie in extents of its own, which its root names. It
//! stands on the [`Base`] alone, as any engine can.
//!
//! ```text
//!  root:       stamp u64 · length u32 · crc u32 · extents: count u32, numbers
//!  checkpoint: records, each of a live item, in the order of keyspaces and keys
//! ```
//! 1. A checkpoint has every item as it was at its stamp, up to which the log was durable before.
//! 2. Of two records of a key the one with the higher stamp counts, wherever it is.

use crate::engine_tests::toy_session::ToySession;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use tapetum_base::base::Base;
use tapetum_base::engine::check_report::CheckReport;
use tapetum_base::engine::engine_session::{EngineSession, EngineSlot};
use tapetum_base::engine::job::{Job, Others};
use tapetum_base::engine::key_place::KeyPlace;
use tapetum_base::engine::{Engine, ItemCounts};
use tapetum_base::error::Error;
use tapetum_base::installer::Installer;
use tapetum_base::keyspace::KeyspaceId;
use tapetum_base::keyspace::states::KeyspaceRef;
use tapetum_base::keyspace_kind::KeyspaceKind;
use tapetum_base::log::client::LogClient;
use tapetum_base::log::{AppendError, Draft, Place};
use tapetum_base::media::extents::ExtentOwner;
use tapetum_base::media::io::{Io, Task, lock, poll_once};
use tapetum_base::media::wire::{Reader, Short, Writer};
use tapetum_base::stats::Stats;
use tapetum_kernels::checksum::{Salt, checksum};
use tapetum_kernels::expiry::Expiry;
use tapetum_kernels::record::{Header, Kind, Record};

pub const TOY: KeyspaceKind = KeyspaceKind::Other(250);

/// An item's stamp and its value, which a deleted one has none of.
type ToyItem = (u64, Option<Vec<u8>>);

#[derive(Default)]
pub struct ToyState {
    items: BTreeMap<(KeyspaceId, Vec<u8>), ToyItem>,
    /// Records up to this stamp are in the last checkpoint, or not needed by it.
    checkpointed: u64,
    /// A checkpoint is to go so far.
    wanted: u64,
    /// Where the last checkpoint is.
    place: Checkpoint,
    /// The keyspaces that it has items of.
    on_flash: BTreeSet<KeyspaceId>,
    /// Checkpoints since the store was opened.
    count: u64,
}

#[derive(Clone, PartialEq, Eq, Debug, Default)]
struct Checkpoint {
    stamp: u64,
    length: u32,
    crc: u32,
    extents: Vec<u32>,
}

impl Checkpoint {
    fn root(&self) -> Vec<u8> {
        let mut writer = Writer::default();
        writer.u64(self.stamp);
        writer.u32(self.length);
        writer.u32(self.crc);
        writer.list(&self.extents);
        writer.bytes
    }

    fn parse(root: &[u8]) -> Result<Checkpoint, Short> {
        let mut reader = Reader::new(root);
        Ok(Checkpoint { stamp: reader.u64()?, length: reader.u32()?, crc: reader.u32()?, extents: reader.list()? })
    }
}

impl ToyState {
    pub fn take(&mut self, record: &Record<'_>) {
        let (Header { kind, stamp, .. }, key) = (record.header, record.key.to_vec());
        let item = self.items.entry((KeyspaceId::of(&record.header), key)).or_default();
        if stamp > item.0 {
            *item = (stamp, (kind == Kind::Value).then(|| record.stored.to_vec()));
        }
    }
}

pub struct ToyEngine {
    pub base: Arc<Base>,
    pub state: Mutex<ToyState>,
    /// It makes no checkpoint, whoever asks.
    pub is_stubborn: AtomicBool,
}

impl ToyEngine {
    pub fn new(base: &Arc<Base>) -> Arc<ToyEngine> {
        Arc::new(ToyEngine { base: base.clone(), state: Mutex::default(), is_stubborn: AtomicBool::new(false) })
    }

    /// Puts a value, or, for `None`, deletes the key: the record's stamp. `None` where there is no room for now.
    pub fn write(&self, keyspace: KeyspaceRef, key: &[u8], value: Option<&[u8]>) -> Result<Option<u64>, Error> {
        let stored = value.unwrap_or_default();
        let header = match value {
            Some(_) => Header::value(0, key.len(), stored.len()),
            None => Header::tombstone(0, key.len()),
        };
        let header = Header { keyspace: keyspace.id().0, ..header };
        loop {
            if self.base.is_paced() {
                return Ok(None);
            }
            let mut state = lock(&self.state);
            // With writers held: after a drop, nothing is written.
            self.base.refuse_dropped(keyspace)?;
            let mut given = 0;
            match self.base.log.append(&[Draft { header, key, stored }], |_, stamp, _| given = stamp) {
                Ok(()) => {
                    state.take(&Record { header: Header { stamp: given, ..header }, key, stored });
                    return Ok(Some(given));
                }
                Err(AppendError::Refused(error)) => return Err(error),
                Err(AppendError::BufferFull) => {}
            }
            drop(state);
            if !self.base.rotate() {
                return Ok(None);
            }
        }
    }

    pub fn checkpoints(&self) -> u64 {
        lock(&self.state).count
    }

    pub fn get(&self, keyspace: KeyspaceRef, key: &[u8]) -> Option<Vec<u8>> {
        self.look_up(keyspace, key).map(|(_, value)| value)
    }

    /// The stamp and the value of a key that is there.
    pub fn look_up(&self, keyspace: KeyspaceRef, key: &[u8]) -> Option<(u64, Vec<u8>)> {
        let (state, id) = (lock(&self.state), keyspace.id());
        let (stamp, value) = state.items.get(&(id, key.to_vec()))?;
        let is_live = self.base.keyspaces.is_open(keyspace) && self.base.is_live_stamp(id, *stamp, Expiry::NONE, 0);
        value.clone().filter(|_| is_live).map(|value| (*stamp, value))
    }

    /// A checkpoint's bytes, the keyspaces that it has, and the stamp up to which it has all.
    fn image(&self) -> (Vec<u8>, BTreeSet<KeyspaceId>, u64) {
        let (mut state, base) = (lock(&self.state), &self.base);
        state.items.retain(|(id, _), _| base.keyspaces.has(*id));
        let (mut image, mut keyspaces) = (Vec::new(), BTreeSet::new());
        for ((id, key), (stamp, value)) in &state.items {
            let Some(stored) = value else { continue };
            let header = Header { keyspace: id.0, ..Header::value(*stamp, key.len(), stored.len()) };
            let start = image.len();
            image.resize(start + header.record_bytes(), 0);
            Record { header, key, stored }.encode(&mut image[start..]);
            keyspaces.insert(*id);
        }
        (image, keyspaces, base.log.stamp_last())
    }

    async fn checkpoint(&self, io: &Io) -> Result<(), Error> {
        let (base, (image, keyspaces, stamp)) = (&self.base, self.image());
        base.log.make_durable(io, stamp, || base.drive.env().now_us()).await?;
        let extent_bytes = base.geometry.extent_bytes as usize;
        let mut place =
            Checkpoint { stamp, length: image.len() as u32, crc: self.crc(stamp, &image), extents: Vec::new() };
        let mut buffer = io.allocate(extent_bytes).await?;
        for piece in image.chunks(extent_bytes) {
            let extent = lock(&base.extents).take_one().ok_or(Error::FullFlash)?;
            place.extents.push(extent);
            io.fill(&mut buffer, 0..extent_bytes).fill(0);
            io.fill(&mut buffer, 0..piece.len()).copy_from_slice(piece);
            io.write(base.geometry.extent_offset(extent), &mut buffer, extent_bytes).await?;
        }
        base.log.flush_elsewhere(io).await?;
        let root = if image.is_empty() { Vec::new() } else { place.root() };
        base.set_root(TOY, root).await?;
        let mut state = lock(&self.state);
        let before = std::mem::replace(&mut state.place, place);
        state.items.retain(|_, (of, value)| *of > stamp || value.is_some());
        (state.checkpointed, state.on_flash) = (stamp, keyspaces);
        state.count += 1;
        before.extents.into_iter().for_each(|extent| lock(&base.extents).release(extent));
        Ok(())
    }

    fn crc(&self, stamp: u64, image: &[u8]) -> u32 {
        checksum(Salt { store: self.base.store_id, address: 0, version: stamp }, &[image])
    }

    /// The bytes of a checkpoint, which hold.
    async fn read(&self, io: &Io, place: &Checkpoint) -> Result<Vec<u8>, Error> {
        let extent_bytes = self.base.geometry.extent_bytes as usize;
        let (mut image, mut buffer) = (Vec::new(), io.allocate(extent_bytes).await?);
        for extent in &place.extents {
            io.read(self.base.geometry.extent_offset(*extent), &mut buffer, 0, extent_bytes).await?;
            image.extend_from_slice(io.look(&buffer, 0..extent_bytes));
        }
        image.truncate(place.length as usize);
        let holds = image.len() == place.length as usize && self.crc(place.stamp, &image) == place.crc;
        if holds { Ok(image) } else { Err(Error::Corrupt("the checkpoint of the toy".into())) }
    }

    async fn load(&self, io: &Io, root: &[u8]) -> Result<(), Error> {
        let damaged = || Error::Corrupt("the root of the toy".into());
        let place = Checkpoint::parse(root).map_err(|Short| damaged())?;
        let are_free = place.extents.iter().all(|extent| lock(&self.base.extents).claim(ExtentOwner::Large, *extent));
        if !are_free {
            return Err(damaged());
        }
        let image = self.read(io, &place).await?;
        let (mut state, mut at) = (lock(&self.state), 0);
        while let Ok(record) = Record::parse(&image[at..]) {
            state.take(&record);
            state.on_flash.insert(KeyspaceId::of(&record.header));
            at += record.header.record_bytes();
        }
        (state.checkpointed, state.place) = (place.stamp, place);
        Ok(())
    }
}

impl LogClient for ToyEngine {
    fn stamp_needed(&self) -> u64 {
        let state = lock(&self.state);
        let stamps = state.items.values().map(|(stamp, _)| *stamp);
        stamps.filter(|stamp| *stamp > state.checkpointed).min().unwrap_or(u64::MAX)
    }

    fn checkpoint_through(&self, stamp: u64) {
        let mut state = lock(&self.state);
        state.wanted = state.wanted.max(stamp);
    }

    fn hold_writers(&self, change: &mut dyn FnMut() -> Option<u64>) {
        let _state = lock(&self.state);
        change();
    }
}

impl Engine for ToyEngine {
    fn kind(&self) -> KeyspaceKind {
        TOY
    }

    fn replay(&self, _: Place, record: &Record<'_>) -> Result<(), Error> {
        lock(&self.state).take(record);
        Ok(())
    }

    fn recover(self: Arc<Self>, io: Io, installer: Box<Installer>) -> Task<Result<Box<Installer>, Error>> {
        Box::pin(async move {
            let root = installer.roots.get(TOY);
            if !root.is_empty() {
                self.load(&io, root).await?;
            }
            Ok(installer)
        })
    }

    fn open_session(self: Arc<Self>, slot: EngineSlot) -> Box<dyn EngineSession> {
        Box::new(ToySession::new(self, slot))
    }

    fn jobs(self: Arc<Self>, io: &Io) -> Vec<Box<dyn Job>> {
        vec![Box::new(ToyJob { toy: self, io: io.clone(), task: None })]
    }

    fn holds(&self, keyspace: KeyspaceId) -> bool {
        let state = lock(&self.state);
        state.on_flash.contains(&keyspace) || state.items.keys().any(|(id, _)| *id == keyspace)
    }

    fn add_counts(&self, counts: &mut ItemCounts) {
        let state = lock(&self.state);
        let values = state.items.iter().filter(|(_, (_, value))| value.is_some());
        values.for_each(|((id, _), _)| *counts.entry(*id).or_default() += 1);
    }

    fn add_stats(&self, stats: &mut Stats) {
        stats.items += lock(&self.state).items.values().filter(|(_, value)| value.is_some()).count() as u64;
    }

    fn locate(self: Arc<Self>, _: Io, _: KeyspaceId, _: Vec<u8>) -> Task<Result<KeyPlace, Error>> {
        unreachable!("no tool is asked for its keys")
    }

    fn check(self: Arc<Self>, io: Io) -> Task<Result<CheckReport, Error>> {
        Box::pin(async move {
            let (mut report, place) = (CheckReport::default(), lock(&self.state).place.clone());
            if !place.extents.is_empty() {
                report.problems.extend(self.read(&io, &place).await.err().map(|error| error.to_string()));
            }
            Ok(report)
        })
    }

    fn close(self: Arc<Self>, _: Io) -> Task<Result<(), Error>> {
        Box::pin(async { Ok(()) })
    }
}

/// Makes checkpoints that were asked for, and one without a keyspace that was dropped.
struct ToyJob {
    toy: Arc<ToyEngine>,
    io: Io,
    task: Option<Task<Result<(), Error>>>,
}

impl Job for ToyJob {
    fn step(&mut self, _: Others) -> bool {
        let toy = &self.toy;
        let is_wanted = || {
            let state = lock(&toy.state);
            state.wanted > state.checkpointed
        };
        let has_dropped = || toy.base.keyspaces.dropped().into_iter().any(|id| toy.holds(id));
        if self.task.is_none() && !toy.is_stubborn.load(Ordering::SeqCst) && (is_wanted() || has_dropped()) {
            let (toy, io) = (toy.clone(), self.io.clone());
            self.task = Some(Box::pin(async move { toy.checkpoint(&io).await }));
        }
        let Some(done) = self.task.as_mut().and_then(poll_once) else { return false };
        self.task = None;
        done.unwrap_or_else(|error| self.toy.base.log.poison("a checkpoint of the toy", error));
        true
    }

    fn is_changing(&self) -> bool {
        self.task.is_some()
    }

    fn give_up(&mut self) {
        self.task = None;
    }

    fn wind_down(&mut self) {
        if self.task.is_some() {
            self.step(Others { are_changing: false });
        }
    }
}
