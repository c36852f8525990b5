//! Scans beside other operations: their parts are requested one after the other, and each is checked against the model.

use super::super::{Stop, World, wrong};
use super::Life;
use crate::model::operation::{Item, Told};
use crate::workload::holds;
use std::collections::BTreeMap;
use tapetum::{Error, KeyRange, ScanPart, ScanReply, ScannedItem};

/// The most parts of scans pending at once: each is an operation on all of its keys.
const SCANS_MAX: usize = 2;
/// One scan in so many is abandoned before its end.
const GIVE_UP_ONE_IN: u64 = 8;

/// A part of a scan that was requested.
#[derive(Clone, Debug)]
pub(super) struct ScanAsked {
    pub session: usize,
    pub slot: usize,
    pub range: KeyRange,
    pub items_max: usize,
}

impl Life {
    pub(super) fn submit_scan(&mut self, world: &mut World, id: u64, asked: ScanAsked) -> Result<(), Stop> {
        let Some(keyspace) = self.keyspaces[asked.slot].filter(|_| self.scans.len() < SCANS_MAX) else { return Ok(()) };
        let session = &mut self.sessions[asked.session];
        if let Err(error) = session.submit_scan(keyspace, id, asked.range.clone(), asked.items_max) {
            return wrong(format!("a scan is not begun: {error}"));
        }
        let keys = world.workload.keys_of(asked.slot);
        let keys = keys.filter(|key| holds(&asked.range, world.workload.key(*key))).collect();
        world.model.submit_scan(id, keys);
        self.scans.insert(id, asked);
        Ok(())
    }

    /// Scans the whole keyspace of a slot.
    pub(super) fn scan_all(&mut self, world: &mut World, slot: usize) -> Result<(), Stop> {
        let range = KeyRange { is_reverse: world.random.one_in(2), ..KeyRange::default() };
        let (id, items_max) = (world.workload.operation_id(), world.workload.items_max());
        self.submit_scan(world, id, ScanAsked { session: 0, slot, range, items_max: items_max.max(8) })?;
        self.drain(world)
    }

    /// Handles the answers of a session's scans, and requests the next parts.
    pub(super) fn take_scanned(&mut self, world: &mut World, session: usize) -> Result<(), Stop> {
        let mut replies: Vec<ScanReply> = Vec::new();
        self.sessions[session].take_scanned(&mut replies);
        for ScanReply { token: id, part } in replies {
            let Some(asked) = self.scans.remove(&id) else {
                return wrong(format!("an answer to the scan {id}, which is not on its way"));
            };
            world.trace(id);
            match part {
                Ok(part) => self.take_part(world, id, asked, part)?,
                Err(error) => {
                    let is_right = match &error {
                        Error::Io(_) => self.faulty,
                        Error::Corrupt(_) => self.damaged,
                        Error::Poisoned(_) | Error::NoSpace { .. } => self.faulty,
                        _ => false,
                    };
                    if !is_right {
                        return wrong(format!("the scan {id} ({asked:?}) failed: {error}"));
                    }
                    self.poisoned |= matches!(error, Error::Poisoned(_) | Error::NoSpace { .. });
                    world.model.reply_scan(id, &BTreeMap::new()).map_err(Stop::Wrong)?;
                }
            }
        }
        Ok(())
    }

    fn take_part(&mut self, world: &mut World, id: u64, asked: ScanAsked, part: ScanPart) -> Result<(), Stop> {
        let told = told_by(world, &asked, &part);
        let told = told.or_else(|why| wrong(format!("the scan {id} ({asked:?}) {why}")))?;
        told.values().filter_map(Told::item).for_each(|item| world.trace(item.stamp.unwrap_or(0)));
        world.model.reply_scan(id, &told).map_err(Stop::Wrong)?;
        match part.rest {
            Some(range) if self.reading_all || !world.random.one_in(GIVE_UP_ONE_IN) => {
                let (id, items_max) = (world.workload.operation_id(), world.workload.items_max());
                self.submit_scan(world, id, ScanAsked { range, items_max, ..asked })
            }
            _ => Ok(()),
        }
    }
}

/// The answer of a part for each key that it got to. An error if the answer contradicts itself.
fn told_by(world: &World, asked: &ScanAsked, part: &ScanPart) -> Result<BTreeMap<usize, Told>, String> {
    let ScanPart { items, rest } = part;
    if items.len() > asked.items_max || (items.is_empty() && rest.is_some()) {
        return Err(format!("has {} items, and goes on from {rest:?}", items.len()));
    }
    let is_in_order = |one: &ScannedItem, other: &ScannedItem| {
        if asked.range.is_reverse { one.key > other.key } else { one.key < other.key }
    };
    if !items.is_sorted_by(is_in_order) {
        let keys: Vec<_> = items.iter().map(|item| item.key.escape_ascii().to_string()).collect();
        return Err(format!("has keys twice, or out of their order: {keys:?}"));
    }
    let is_rest = |key: &[u8]| rest.as_ref().is_some_and(|rest| holds(rest, key));
    let mut shown: BTreeMap<&[u8], &ScannedItem> = items.iter().map(|item| (&item.key[..], item)).collect();
    let mut told = BTreeMap::new();
    for key in world.workload.keys_of(asked.slot) {
        let name = world.workload.key(key);
        match (holds(&asked.range, name), is_rest(name)) {
            (true, false) => told.insert(key, shown.remove(name).map_or(Told::Missing, value)),
            (false, true) => return Err(format!("goes on with {}, which is outside", name.escape_ascii())),
            _ => None,
        };
    }
    match shown.keys().next() {
        Some(key) => Err(format!("shows {}, which it has no business to", key.escape_ascii())),
        None => Ok(told),
    }
}

fn value(item: &ScannedItem) -> Told {
    let ScannedItem { value, flags, expiry, stamp, .. } = item;
    let (value, stamp) = (value[..].into(), Some(*stamp));
    Told::Value(Item { value, flags: *flags, expiry: *expiry, stamp, marks: None, writer: 0 })
}
