//! A toy engine: a map in memory. Its puts are records of the log, and its checkpoints lie in extents of its own. It stands on the
//! [`Base`] alone, as any engine can.
//!
//! ```text
//!  the store's last extents, in two halves, to which checkpoints are written in turn
//!  half: crc u32 · length u32 · sequence u64 · records, each of a live item
//! ```
//! 1. A checkpoint has every item as it was at one stamp, up to which the log was durable before.
//! 2. Of two records of a key the one with the higher stamp counts, wherever it is.

use crate::base::Base;
use crate::error::Error;
use crate::keyspace::KeyspaceId;
use crate::keyspace::catalogue::KeyspaceKind;
use crate::keyspace::engine::Engine;
use crate::keyspace::states::KeyspaceRef;
use crate::log::client::LogClient;
use crate::log::{AppendError, Draft, Place};
use crate::maintenance::job::{Job, Others};
use crate::media::io::{Io, Task, lock, poll_once};
use crate::media::wire::{Reader, Short, Writer};
use crate::session::engine_session::{EngineSession, EngineSlot};
use crate::session::toy_session::ToySession;
use crate::stats::Stats;
use crate::tools::check::CheckReport;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use tapetum_kernels::checksum::{Salt, checksum};
use tapetum_kernels::record::{Header, Kind, Record};

pub const TOY: KeyspaceKind = KeyspaceKind::Other(250);
const HALF_BYTES: u64 = 64 << 10;

/// An item's stamp and its value, which a deleted one has none of.
type ToyItem = (u64, Option<Vec<u8>>);

#[derive(Default)]
pub struct ToyState {
    items: BTreeMap<(KeyspaceId, Vec<u8>), ToyItem>,
    /// Records up to this stamp are in the last checkpoint, or not needed by it.
    checkpointed: u64,
    /// A checkpoint is to go so far.
    wanted: u64,
    /// The last checkpoint's.
    sequence: u64,
    /// The keyspaces that it has items of.
    on_flash: BTreeSet<KeyspaceId>,
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
                Err(AppendError::Poisoned) => self.base.log.poisoned()?,
                Err(AppendError::BufferFull) => {}
            }
            drop(state);
            if !self.base.rotate() {
                return Ok(None);
            }
        }
    }

    /// Checkpoints that were made.
    pub fn checkpoints(&self) -> u64 {
        lock(&self.state).sequence
    }

    pub fn get(&self, keyspace: KeyspaceRef, key: &[u8]) -> Option<Vec<u8>> {
        self.look_up(keyspace, key).map(|(_, value)| value)
    }

    /// The stamp and the value of a key that is there.
    pub fn look_up(&self, keyspace: KeyspaceRef, key: &[u8]) -> Option<(u64, Vec<u8>)> {
        let (state, id) = (lock(&self.state), keyspace.id());
        let (stamp, value) = state.items.get(&(id, key.to_vec()))?;
        let is_live = self.base.keyspaces.is_open(keyspace) && self.base.is_live_stamp(id, *stamp, 0, 0);
        value.clone().filter(|_| is_live).map(|value| (*stamp, value))
    }

    /// Where a checkpoint goes.
    fn half(&self, sequence: u64) -> Range<u64> {
        let extents = self.extents();
        let start = self.base.geometry.extent_offset(extents.start) + sequence % 2 * HALF_BYTES;
        start..start + HALF_BYTES
    }

    fn extents(&self) -> Range<u32> {
        let geometry = &self.base.geometry;
        let end = geometry.extents(geometry.created_bytes);
        end - (2 * HALF_BYTES).div_ceil(geometry.extent_bytes) as u32..end
    }

    fn crc(&self, half: u64, bytes: &[u8]) -> u32 {
        checksum(Salt { store: self.base.store_id, address: half, version: 0 }, &[bytes])
    }

    /// A checkpoint of all items, its keyspaces, and the stamp up to which it has them.
    fn image(&self) -> (Vec<u8>, BTreeSet<KeyspaceId>, u64) {
        let mut state = lock(&self.state);
        let base = &self.base;
        state.items.retain(|(id, _), _| base.keyspaces.has(*id));
        let (sequence, mut body, mut keyspaces) = (state.sequence + 1, Writer::default(), BTreeSet::new());
        body.u64(sequence);
        for ((id, key), (stamp, value)) in &state.items {
            let Some(stored) = value else { continue };
            let header = Header { keyspace: id.0, ..Header::value(*stamp, key.len(), stored.len()) };
            let start = body.bytes.len();
            body.bytes.resize(start + header.record_bytes(), 0);
            Record { header, key, stored }.encode(&mut body.bytes[start..]);
            keyspaces.insert(*id);
        }
        let mut image = Writer::default();
        image.u32(self.crc(self.half(sequence).start, &body.bytes));
        image.u32(body.bytes.len() as u32);
        image.bytes.append(&mut body.bytes);
        (image.bytes, keyspaces, base.log.stamp_last())
    }

    async fn checkpoint(&self, io: &Io) -> Result<(), Error> {
        let (image, keyspaces, stamp) = self.image();
        if image.len() as u64 > HALF_BYTES {
            return Err(Error::FullFlash);
        }
        self.base.log.make_durable(io, stamp, || self.base.drive.env().now_us()).await?;
        let mut buffer = io.allocate(HALF_BYTES as usize).await?;
        io.fill(&mut buffer, 0..HALF_BYTES as usize).fill(0);
        io.fill(&mut buffer, 0..image.len()).copy_from_slice(&image);
        let half = self.half(lock(&self.state).sequence + 1);
        io.write(half.start, &mut buffer, HALF_BYTES as usize).await?;
        self.base.log.flush_elsewhere(io).await?;
        let mut state = lock(&self.state);
        state.items.retain(|_, (of, value)| *of > stamp || value.is_some());
        (state.checkpointed, state.on_flash) = (stamp, keyspaces);
        state.sequence += 1;
        Ok(())
    }

    /// The items of a half's checkpoint.
    fn parse(&self, half: u64, bytes: &[u8]) -> Result<(u64, Vec<u8>), Short> {
        let mut reader = Reader::new(bytes);
        let (crc, length) = (reader.u32()?, reader.u32()?);
        let body = reader.take(length as usize)?;
        let sequence = Reader::new(body).u64()?;
        if self.crc(half, body) == crc { Ok((sequence, body[8..].to_vec())) } else { Err(Short) }
    }

    async fn read(&self, io: &Io) -> Result<(), Error> {
        let mut checkpoints = Vec::new();
        for half in [self.half(0), self.half(1)] {
            let mut buffer = io.allocate(HALF_BYTES as usize).await?;
            io.read(half.start, &mut buffer, 0, HALF_BYTES as usize).await?;
            checkpoints.extend(self.parse(half.start, io.look(&buffer, 0..HALF_BYTES as usize)));
        }
        let Some((sequence, records)) = checkpoints.into_iter().max() else { return Ok(()) };
        let (mut state, mut at) = (lock(&self.state), 0);
        state.sequence = sequence;
        while let Ok(record) = Record::parse(&records[at..]) {
            state.take(&record);
            state.on_flash.insert(KeyspaceId::of(&record.header));
            at += record.header.record_bytes();
        }
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

    fn recover(self: Arc<Self>, io: Io) -> Task<Result<(), Error>> {
        let mut extents = lock(&self.base.extents);
        let are_free = self.extents().all(|extent| extents.claim(extent));
        drop(extents);
        Box::pin(async move {
            match are_free {
                true => self.read(&io).await,
                false => Err(Error::Corrupt("extents of the toy are taken".into())),
            }
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

    fn add_stats(&self, stats: &mut Stats) {
        stats.items += lock(&self.state).items.values().filter(|(_, value)| value.is_some()).count() as u64;
    }

    fn check(self: Arc<Self>, io: Io) -> Task<Result<CheckReport, Error>> {
        Box::pin(async move {
            let (mut report, sequence) = (CheckReport::default(), lock(&self.state).sequence);
            let half = self.half(sequence);
            let mut buffer = io.allocate(HALF_BYTES as usize).await?;
            io.read(half.start, &mut buffer, 0, HALF_BYTES as usize).await?;
            if sequence > 0 && self.parse(half.start, io.look(&buffer, 0..HALF_BYTES as usize)).is_err() {
                report.problems.push("the toy's checkpoint".into());
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
