//! The requests of sessions: operations drawn from a seed over a small set of keys.

mod devices;
mod keys;
mod ranges;
mod requests;

pub use devices::DeviceRequest;
pub use ranges::holds;
pub use requests::{request, told, told_at_once, write};

use crate::keyspaces::Slot;
use crate::model::Model;
use crate::model::operation::{Filter, Kind};
use std::rc::Rc;
use tapetum::{Condition, Expiry, KeyRange};
use tapetum_drive::SplitMix64;

/// One operation in so many is a scan, if there are ordered keyspaces.
const SCAN_ONE_IN: u64 = 12;
/// One operation in so many is then a filtered scan of any keyspace.
const QUERY_ONE_IN: u64 = 16;

#[derive(Clone)]
pub struct Workload {
    random: SplitMix64,
    keys: Vec<Vec<u8>>,
    /// By slot: whether its keyspace exists. Key `n` belongs to slot `n % slots`.
    open: Vec<bool>,
    /// Slots of ordered keyspaces.
    ordered: Vec<usize>,
    /// Slots of block devices. Each of their keys is a block number.
    devices: Vec<usize>,
    /// The last stamp seen for each key.
    stamps: Vec<u64>,
    value_bytes_usual: u64,
    /// In the tenth of the values that may be large, one in so many is; 0 for none.
    large_one_in: u64,
    /// Hashed keyspaces get large values, too.
    has_large: bool,
    /// Eighths of the operations that are requests on block devices, if there are any.
    device_eighths: u64,
    /// One operation in so many deletes everything.
    clear_one_in: u64,
    /// Operations of a tide: keys are stored in one half and deleted in the other. 0 is none.
    tide: u64,
    operation_next: u64,
}

/// The load of a run.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub enum Load {
    Mixed,
    /// More items than the smallest drive holds; the store grows in large steps.
    Heavy,
    /// The same number of items, in a store that evicts.
    Evicting,
    /// Many small items are stored and deleted: the index grows and shrinks.
    Tidal,
    /// Ordered keyspaces beside a hashed one, with keys of many shapes and scans. Only by option: no seed chooses it.
    Ordered,
    /// Block devices beside a hashed keyspace, with requests of several blocks and of parts of them. Only by option.
    Block,
    /// More data than the drive holds, of everything that takes extents: items, large values, an ordered keyspace, a block device. Only by
    /// option.
    Brim,
}

impl Load {
    pub fn draw(random: &mut SplitMix64) -> Load {
        match random.below(16) {
            0..3 => Load::Evicting,
            3..8 => Load::Tidal,
            14.. => Load::Heavy,
            _ => Load::Mixed,
        }
    }
}

/// An operation to submit.
pub enum Draw {
    One {
        id: u64,
        key: usize,
        kind: Kind,
    },
    Batch {
        id: u64,
        parts: Vec<(usize, Kind)>,
    },
    Everything {
        id: u64,
        slot: usize,
        at: u32,
    },
    /// A part of a scan with at most so many items.
    Scan {
        id: u64,
        slot: usize,
        range: KeyRange,
        items_max: usize,
    },
    /// A filtered scan at the drive. The range is of an ordered keyspace.
    Query {
        id: u64,
        slot: usize,
        range: KeyRange,
        filter: Filter,
    },
    Device {
        slot: usize,
        request: DeviceRequest,
    },
}

impl Workload {
    /// At most `keys_max` keys, whatever the load, but at least one for each keyspace. Only the first keyspace exists at the start.
    pub fn new(mut random: SplitMix64, load: Load, keys_max: u64, slots: &[Slot]) -> Workload {
        let ordered: Vec<usize> = (0..slots.len()).filter(|slot| slots[*slot].is_ordered()).collect();
        let devices: Vec<usize> = (0..slots.len()).filter(|slot| slots[*slot].device().is_some()).collect();
        let device = devices.first().and_then(|slot| slots[*slot].device());
        let slots = slots.len();
        let count = match load {
            Load::Mixed => 40 + random.below(360),
            Load::Heavy | Load::Evicting => 300 + random.below(100),
            Load::Tidal => 450 + random.below(250),
            Load::Ordered => 100 + random.below(400),
            Load::Block => 60 + random.below(300),
            Load::Brim => 500 + random.below(300),
        };
        let count = count.min(keys_max).max(slots as u64);
        let names = count.div_ceil(slots as u64);
        let names = match (ordered.is_empty(), device) {
            (true, None) => (0..names).map(|number| keys::key(&mut random, number)).collect(),
            (_, Some(device)) => (0..names).map(|number| device.key(number).to_vec()).collect(),
            (false, None) => keys::shaped(&mut random, names as usize),
        };
        let keys = (0..count as usize).map(|number| names[number / slots].clone()).collect();
        let open = (0..slots).map(|slot| slot == 0).collect();
        let (value_bytes_usual, clear_one_in, tide) = match load {
            Load::Mixed => ([64, 512, 2048, 6144][random.below(4) as usize], 400, 0),
            Load::Heavy | Load::Evicting | Load::Brim => (8192, 8000, 0),
            Load::Tidal => (300 + random.below(500), 8000, 4 * count),
            Load::Ordered => {
                let tide = if random.one_in(2) { 4 * count } else { 0 };
                ([40, 300, 1000, 2000][random.below(4) as usize], 800, tide)
            }
            Load::Block => (2048, 4000, 0),
        };
        let large_one_in = if load == Load::Tidal { 0 } else { [0, 1, 2, 8][random.below(4) as usize] };
        let large_one_in = if load == Load::Brim { 1 } else { large_one_in };
        let (has_large, device_eighths) =
            (ordered.is_empty() || load == Load::Brim, if load == Load::Brim { 2 } else { 7 });
        let stamps = vec![0; count as usize];
        Workload {
            random,
            keys,
            open,
            ordered,
            devices,
            stamps,
            value_bytes_usual,
            large_one_in,
            has_large,
            device_eighths,
            clear_one_in,
            tide,
            operation_next: 1,
        }
    }

    pub fn keys(&self) -> usize {
        self.keys.len()
    }

    pub fn key(&self, key: usize) -> &[u8] {
        &self.keys[key]
    }

    /// The slot of a key.
    pub fn slot_of(&self, key: usize) -> usize {
        key % self.open.len()
    }

    /// The keys of a slot.
    pub fn keys_of(&self, slot: usize) -> impl Iterator<Item = usize> + use<> {
        (slot..self.keys.len()).step_by(self.open.len())
    }

    /// Whether a key belongs to an ordered keyspace.
    pub fn is_ordered(&self, key: usize) -> bool {
        self.ordered.contains(&self.slot_of(key))
    }

    /// The keys of ordered keyspaces that exist.
    pub fn keys_open_ordered(&self) -> Vec<usize> {
        (0..self.keys.len()).filter(|key| self.is_ordered(*key) && self.is_open(*key)).collect()
    }

    /// Whether a key's keyspace exists.
    pub fn is_open(&self, key: usize) -> bool {
        self.open[self.slot_of(key)]
    }

    pub fn set_open(&mut self, slot: usize, is_open: bool) {
        self.open[slot] = is_open;
    }

    pub fn saw_stamp(&mut self, key: usize, stamp: u64) {
        self.stamps[key] = stamp;
    }

    pub fn operation_id(&mut self) -> u64 {
        self.operation_next += 1;
        self.operation_next
    }

    /// The next operation, on keys that are not too busy; `now_ms` is the time.
    pub fn draw(&mut self, model: &Model, now_ms: u64) -> Option<Draw> {
        if !self.devices.is_empty() && self.random.below(8) >= 8 - self.device_eighths {
            return self.device_request(model);
        }
        let id = self.operation_id();
        if self.random.one_in(self.clear_one_in) {
            let slot = Some(self.random.below(self.open.len() as u64) as usize).filter(|slot| self.open[*slot]);
            let slot = slot.filter(|slot| !self.devices.contains(slot)).unwrap_or(0);
            // With large sectors one keyspace at a time may plan a deletion, so only the first one does.
            let is_now = slot > 0 || self.random.one_in(2);
            let at = if is_now { 0 } else { (now_ms / 1000) as u32 + 1 + self.random.below(5) as u32 };
            return Some(Draw::Everything { id, slot, at });
        }
        if self.random.one_in(25) {
            return self.batch(id, model, now_ms);
        }
        if !self.ordered.is_empty() && self.random.one_in(SCAN_ONE_IN) {
            let slot = self.ordered[self.random.below(self.ordered.len() as u64) as usize];
            return self.open[slot].then(|| self.scan(id, slot));
        }
        if !self.ordered.is_empty() && self.random.one_in(QUERY_ONE_IN) {
            return self.query(id);
        }
        let key = self.pick(model)?;
        let kind = match self.tide {
            tide if tide > 0 && !self.random.one_in(8) => self.tidal(id, key, id % tide < tide / 2),
            _ => self.operation(id, key, now_ms),
        };
        Some(Draw::One { id, key, kind })
    }

    /// Only a put, to keep the log busy.
    pub fn draw_put(&mut self, model: &Model) -> Option<Draw> {
        if !self.devices.is_empty() && !self.random.one_in(4) {
            return self.device_write(model);
        }
        let id = self.operation_id();
        let key = self.pick(model)?;
        let kind =
            Kind::Put { value: self.value(id, key), flags: 0, expiry: Expiry::NONE, condition: Condition::Always };
        Some(Draw::One { id, key, kind })
    }

    /// A put of a value that lies in extents of its own: to fill the drive.
    pub fn draw_large_put(&mut self, model: &Model) -> Option<Draw> {
        let id = self.operation_id();
        let key = self.pick(model)?;
        Some(self.put_of(id, key, 40 << 10))
    }

    /// A put of a value of this length to an ordered keyspace, to fill the drive.
    pub fn draw_ordered_put(&mut self, model: &Model, bytes: u64) -> Option<Draw> {
        let id = self.operation_id();
        let keys = self.keys_open_ordered();
        let key = *keys.get(self.random.below(keys.len().max(1) as u64) as usize)?;
        (model.pending(key) == 0).then(|| self.put_of(id, key, bytes as usize))
    }

    /// A put of incompressible bytes.
    fn put_of(&mut self, id: u64, key: usize, bytes: usize) -> Draw {
        let mut value = format!("v{id}.").into_bytes();
        let head = value.len();
        value.resize(bytes, 0);
        self.random.fill(&mut value[head..]);
        let kind = Kind::Put { value: value.into(), flags: 0, expiry: Expiry::NONE, condition: Condition::Always };
        Draw::One { id, key, kind }
    }

    /// A key with few pending operations. An eighth of the keys gets half of the operations.
    fn pick(&mut self, model: &Model) -> Option<usize> {
        const PENDING_MAX: usize = 4;
        let all = self.keys.len() as u64;
        let among = if self.tide == 0 && self.random.one_in(2) { all.div_ceil(8) } else { all };
        let mut key = self.random.below(among) as usize;
        if !self.is_open(key) || self.devices.contains(&self.slot_of(key)) {
            key -= self.slot_of(key);
        }
        (model.pending(key) < PENDING_MAX).then_some(key)
    }

    fn batch(&mut self, id: u64, model: &Model, now_ms: u64) -> Option<Draw> {
        let mut parts: Vec<(usize, Kind)> = Vec::new();
        for _ in 0..2 + self.random.below(5) {
            let key = self.pick(model)?;
            if parts.iter().any(|part| part.0 == key) {
                continue;
            }
            let kind = if self.random.one_in(4) {
                Kind::Drop
            } else {
                let (flags, expiry) = (self.random.below(3) as u32, self.expiry(now_ms));
                Kind::Put { value: self.small_value(id, key), flags, expiry, condition: Condition::Always }
            };
            parts.push((key, kind));
        }
        (parts.len() > 1).then_some(Draw::Batch { id, parts })
    }

    /// A range of a slot's keys, which may be empty.
    pub fn range(&self, random: &mut SplitMix64, slot: usize) -> KeyRange {
        let keys: Vec<usize> = self.keys_of(slot).collect();
        ranges::draw(random, |random| &self.keys[keys[random.below(keys.len() as u64) as usize]])
    }

    /// A scan of a range, which may be empty.
    fn scan(&mut self, id: u64, slot: usize) -> Draw {
        let mut random = self.random.clone();
        let range = self.range(&mut random, slot);
        self.random = random;
        Draw::Scan { id, slot, range, items_max: self.items_max() }
    }

    /// A filtered scan of an existing keyspace, which keeps about half of its values, or all.
    fn query(&mut self, id: u64) -> Option<Draw> {
        let slot = Some(self.random.below(self.open.len() as u64) as usize).filter(|slot| self.open[*slot])?;
        if self.devices.contains(&slot) {
            return None;
        }
        let below = (!self.random.one_in(4)).then(|| Rc::from(format!("v{}", self.random.below(10)).into_bytes()));
        let range = match (self.ordered.contains(&slot), self.scan(id, slot)) {
            (true, Draw::Scan { range, .. }) if !self.random.one_in(3) => range,
            _ => KeyRange::default(),
        };
        Some(Draw::Query { id, slot, range, filter: Filter { below } })
    }

    /// The most items of a part of a scan.
    pub fn items_max(&mut self) -> usize {
        [1, 2, 3 + self.random.below(40) as usize, 1000][self.random.below(4) as usize]
    }

    fn tidal(&mut self, id: u64, key: usize, rising: bool) -> Kind {
        if !rising {
            return Kind::Delete { stamp: None };
        }
        Kind::Put { value: self.value(id, key), flags: 0, expiry: Expiry::NONE, condition: Condition::Always }
    }

    fn operation(&mut self, id: u64, key: usize, now_ms: u64) -> Kind {
        let stamp = (self.random.one_in(4)).then(|| self.stamp(key));
        match self.random.below(100) {
            0..30 => Kind::Get,
            30..68 => {
                let condition = match self.random.below(10) {
                    0 => Condition::Absent,
                    1 => Condition::Present,
                    2 => Condition::Stamp(self.stamp(key)),
                    _ => Condition::Always,
                };
                let (flags, expiry) = (self.random.next_u64() as u32, self.expiry(now_ms));
                Kind::Put { value: self.value(id, key), flags, expiry, condition }
            }
            68..72 => Kind::Append { value: self.short_value(id), stamp },
            72..75 => Kind::Prepend { value: self.short_value(id), stamp },
            75..83 => {
                let initial = self.random.one_in(2).then(|| (self.random.below(1000), self.expiry(now_ms)));
                let delta = if self.random.one_in(8) { self.random.next_u64() } else { self.random.below(100) };
                Kind::Increment { delta, decrement: self.random.one_in(3), initial, stamp }
            }
            83..86 => Kind::Touch { expiry: self.expiry(now_ms) },
            86..88 => Kind::GetAndTouch { expiry: self.expiry(now_ms) },
            88..92 => {
                let recache_before =
                    self.random.one_in(2).then(|| Expiry::from_millis(now_ms + self.random.below(20_000)));
                Kind::Lease { recache_before, vivify: self.random.one_in(2).then(|| self.expiry(now_ms)) }
            }
            92..94 => Kind::Invalidate { stamp },
            _ => Kind::Delete { stamp },
        }
    }

    /// Usually the latest stamp, sometimes one that never existed.
    fn stamp(&mut self, key: usize) -> u64 {
        if self.random.one_in(8) { self.random.below(1 << 40) + 1 } else { self.stamps[key].max(1) }
    }

    /// Mostly never; sometimes soon, sometimes already past.
    fn expiry(&mut self, now_ms: u64) -> Expiry {
        match self.random.below(20) {
            0 => Expiry::from_secs(1),
            1..=3 => Expiry::from_millis(now_ms + 1 + self.random.below(20_000)),
            _ => Expiry::NONE,
        }
    }

    fn value(&mut self, id: u64, key: usize) -> Rc<[u8]> {
        if self.is_ordered(key) && self.large_one_in > 0 && self.random.one_in(6 * self.large_one_in) {
            // In an extension, of any size that those have.
            let more = 1 << (8 + self.random.below(8));
            let bytes = 1900 + self.random.below(more);
            return self.value_of(id, bytes);
        }
        let is_large = self.large_one_in > 0 && self.random.one_in(10 * self.large_one_in);
        if is_large && !self.is_ordered(key) && self.has_large {
            // Longer than an eighth of a segment, so that it lies in extents of its own, unless it compresses.
            let bytes = 8193 + self.random.below(40 << 10);
            return self.value_of(id, bytes);
        }
        self.small_value(id, key)
    }

    /// Every fifth key sometimes holds a number.
    fn small_value(&mut self, id: u64, key: usize) -> Rc<[u8]> {
        if key.is_multiple_of(5) && self.random.one_in(2) {
            return self.random.below(100_000).to_string().into_bytes().into();
        }
        let bytes = match self.random.below(10) {
            0 => self.random.below(12),
            1..=2 if self.tide == 0 => self.random.below(8192),
            _ => self.random.below(self.value_bytes_usual),
        };
        self.value_of(id, bytes)
    }

    /// A value that names its operation, so that no two are alike.
    fn value_of(&mut self, id: u64, bytes: u64) -> Rc<[u8]> {
        let mut value = format!("v{id}.").into_bytes();
        let head = value.len();
        value.resize(bytes as usize, b'-');
        if !self.random.one_in(5) && value.len() > head {
            self.random.fill(&mut value[head..]);
        }
        value.into()
    }

    fn short_value(&mut self, id: u64) -> Rc<[u8]> {
        format!("v{id}+").into_bytes().into()
    }
}
