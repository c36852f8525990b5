//! A model of the ordered engine for the tests: nodes in memory, images in flight to a drive with a cache, and crashes.
//!
//! Keys are bytes below [`KEYS`]. A node has the keys of its range, each with the number of the operation that wrote it. Slots are those of a real
//! [`SlotSpace`]; the model keeps their contents, durable or in the drive's cache. The model follows the rules of `docs/decisions/ordered-crash.md`,
//! or makes one [`Mistake`].

use super::{ImageHead, NodeImages};
use crate::ordered::slabs::group_table::Group;
use crate::ordered::slabs::slot_class::SlotClass;
use crate::ordered::slabs::slot_map::SlotMap;
use crate::ordered::slabs::{SlotShare, SlotSpace, SpaceOptions};
use std::collections::BTreeMap;
use tapetum_base::keyspace::KeyspaceId;
use tapetum_base::media::geometry::Geometry;

pub const KEYS: u8 = 12;
/// The number of slots: few, so that they are reused soon.
const SLOTS: u32 = 40;
/// The most images in flight.
const WRITES_MAX: usize = 4;

/// A broken rule.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mistake {
    None,
    /// An image's stamp counts the images of its node alone (the thesis' versions).
    StampOfNode,
    /// An image gives up the slots that it replaces as soon as it is sent.
    ShareGivenUpEarly,
    /// After a split only the lower half holds a share of the old slot.
    OneHalfHolds,
    /// A merged node holds a share of the left node's slot only.
    MergeHoldsLeft,
    /// Writes are acknowledged when they are written, before they are durable.
    AcknowledgeEarly,
    /// Recovery writes images with stamps below existing ones.
    StampsBeginAnew,
    /// Recovery takes images in the drive's cache for durable.
    TrustCache,
    /// Recovery overwrites images that would be live if images in the drive's cache vanished.
    ForgetOlder,
}

/// The state of a key: the operation that wrote or removed it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Written {
    pub operation: u64,
    pub is_removed: bool,
}

type Content = BTreeMap<u8, Written>;

/// An image, on flash or in flight.
#[derive(Clone, Debug)]
struct ModelImage {
    low: u8,
    /// [`KEYS`]: all keys from `low` on.
    high: u8,
    stamp: u64,
    /// All images up to this stamp were durable when this one was made.
    stamp_durable: u64,
    content: Content,
}

struct ModelNode {
    low: u8,
    high: u8,
    content: Content,
    /// Shares of the slots whose images a new one replaces.
    replaces: Vec<SlotShare>,
    /// The number of its images so far.
    version: u64,
    /// Its image may be only in the drive's cache, or has other fences.
    is_again: bool,
}

struct ModelWrite {
    image: ModelImage,
    slot: SlotShare,
    /// Shares to give up when the image is durable.
    replaced: Vec<SlotShare>,
    is_complete: bool,
}

/// The fate in a crash of an image that was not durable.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fate {
    NotWritten,
    Torn,
    Written,
}

pub struct History {
    mistake: Mistake,
    space: SlotSpace,
    /// The durable image in each slot.
    durable: BTreeMap<u32, ModelImage>,
    /// Images in the drive's cache that no flush will make durable, as one failed.
    cached: BTreeMap<u32, ModelImage>,
    /// Slots that recovery protects from overwriting.
    held: Vec<SlotShare>,
    writes: Vec<ModelWrite>,
    nodes: Vec<ModelNode>,
    stamp: u64,
    operations: u64,
    /// The states of each key, by operation. Operation 0: the key is absent.
    log: BTreeMap<u8, Vec<Written>>,
    /// The last acknowledged operation of each key.
    acknowledged: BTreeMap<u8, u64>,
}

fn fence(key: u8) -> Option<[u8; 1]> {
    (key > 0 && key < KEYS).then_some([key])
}

fn new_space() -> SlotSpace {
    let map = SlotMap::new(&Geometry::new(2 << 20, 64 << 10, 0, 512).unwrap()).unwrap();
    let class = SlotClass::Nodes;
    let options =
        SpaceOptions { store_id: 1, keyspace: KeyspaceId::DEFAULT, class, open_groups: 1, group_extents: SLOTS };
    let group = Group { first: 0, extents: SLOTS, keyspace: KeyspaceId::DEFAULT, class, version: 1, open: true };
    SlotSpace::new(map, options, [&group], None)
}

impl History {
    /// A keyspace with one node, whose image is durable.
    pub fn new(mistake: Mistake) -> History {
        let mut history = History {
            mistake,
            space: new_space(),
            durable: BTreeMap::new(),
            cached: BTreeMap::new(),
            held: Vec::new(),
            writes: Vec::new(),
            nodes: Vec::new(),
            stamp: 0,
            operations: 0,
            log: BTreeMap::new(),
            acknowledged: BTreeMap::new(),
        };
        let whole = ModelNode {
            low: 0,
            high: KEYS,
            content: Content::new(),
            replaces: Vec::new(),
            version: 0,
            is_again: false,
        };
        history.nodes.push(whole);
        history.send(0);
        history.complete(0);
        history.flush();
        history
    }

    pub fn nodes(&self) -> usize {
        self.nodes.len()
    }

    pub fn writes(&self) -> usize {
        self.writes.len()
    }

    pub fn write(&mut self, key: u8, is_removed: bool) {
        self.operations += 1;
        let written = Written { operation: self.operations, is_removed };
        self.log.entry(key).or_default().push(written);
        let node = self.nodes.iter_mut().find(|node| (node.low..node.high).contains(&key));
        node.expect("nodes cover all keys").content.insert(key, written);
    }

    /// Sends an image of a node, if there is a slot.
    pub fn send(&mut self, node: usize) {
        let near = self.nodes[node].replaces.first().map(SlotShare::address);
        if self.writes.len() == WRITES_MAX {
            return;
        }
        self.space.turn_round(self.stamp);
        let Some(slot) = self.space.take(near) else { return };
        let stamp_durable = self.stamp_durable();
        self.stamp += 1;
        let node = &mut self.nodes[node];
        node.version += 1;
        node.is_again = false;
        let stamp = if self.mistake == Mistake::StampOfNode { node.version } else { self.stamp };
        let image = ModelImage { low: node.low, high: node.high, stamp, stamp_durable, content: node.content.clone() };
        let mut replaced = std::mem::replace(&mut node.replaces, vec![slot.clone()]);
        if self.mistake == Mistake::ShareGivenUpEarly {
            replaced.clear();
        }
        self.writes.push(ModelWrite { image, slot, replaced, is_complete: false });
    }

    /// Completes a write: its image is in the drive's cache.
    pub fn complete(&mut self, write: usize) {
        self.writes[write].is_complete = true;
        if self.mistake == Mistake::AcknowledgeEarly {
            let image = self.writes[write].image.clone();
            self.acknowledge(&image);
        }
    }

    /// Makes the completed writes durable, by a flush that begins now.
    pub fn flush(&mut self) {
        let (durable, others) = std::mem::take(&mut self.writes).into_iter().partition(|write| write.is_complete);
        self.writes = others;
        let durable: Vec<ModelWrite> = durable;
        for write in durable {
            write.slot.settle(write.image.stamp);
            self.acknowledge(&write.image);
            self.cached.remove(&write.slot.number());
            self.durable.insert(write.slot.number(), write.image);
            drop(write.replaced);
        }
    }

    fn acknowledge(&mut self, image: &ModelImage) {
        for (key, written) in &image.content {
            let acknowledged = self.acknowledged.entry(*key).or_default();
            *acknowledged = written.operation.max(*acknowledged);
        }
    }

    pub fn split(&mut self, node: usize, at: u8) {
        let lower = &mut self.nodes[node];
        if at <= lower.low || at >= lower.high {
            return;
        }
        let upper = ModelNode {
            low: at,
            high: std::mem::replace(&mut lower.high, at),
            content: lower.content.split_off(&at),
            replaces: match self.mistake {
                Mistake::OneHalfHolds => Vec::new(),
                _ => lower.replaces.clone(),
            },
            version: 0,
            is_again: false,
        };
        self.nodes.insert(node + 1, upper);
    }

    /// Merges a node with the next one.
    pub fn merge(&mut self, node: usize) {
        if node + 1 == self.nodes.len() {
            return;
        }
        let right = self.nodes.remove(node + 1);
        let left = &mut self.nodes[node];
        left.high = right.high;
        left.content.extend(right.content);
        if self.mistake != Mistake::MergeHoldsLeft {
            left.replaces.extend(right.replaces);
        }
    }

    /// The stamp up to which images are durable.
    fn stamp_durable(&self) -> u64 {
        self.writes.iter().map(|write| write.image.stamp - 1).min().unwrap_or(self.stamp)
    }

    /// The number of images that are not durable: each has a fate.
    pub fn fates(&self) -> usize {
        self.cached.len() + self.writes.len()
    }

    /// The images on flash after a power failure, given the fates of those that were not durable.
    fn flash(&self, fates: &[Fate]) -> BTreeMap<u32, ModelImage> {
        let mut flash = self.durable.clone();
        let cached = self.cached.iter().map(|(slot, image)| (*slot, image));
        let writes = self.writes.iter().map(|write| (write.slot.number(), &write.image));
        for ((slot, image), fate) in cached.chain(writes).zip(fates) {
            match fate {
                Fate::NotWritten => None,
                Fate::Torn => flash.remove(&slot),
                Fate::Written => flash.insert(slot, image.clone()),
            };
        }
        flash
    }

    /// The error in the state that recovery would see, if there is one.
    pub fn check(&self, fates: &[Fate]) -> Result<(), String> {
        let flash = self.flash(fates);
        let set = set_of(&flash);
        let live = set.live().map_err(|same| format!("{same:?}"))?;
        if let Some(gap) = live.gaps.first() {
            return Err(format!("{gap:?}"));
        }
        for key in 0..KEYS {
            let holds = |low: &[u8], high: Option<&[u8]>| {
                low.first().is_none_or(|low| *low <= key) && high.is_none_or(|high| key < high[0])
            };
            let tile = live.tiles.iter().find(|tile| {
                let (low, high) = set.fences_of(tile);
                holds(low, high)
            });
            let tile = tile.ok_or_else(|| format!("key {key} has no image"))?;
            let shown = flash[&set.get(tile.image()).slot].content.get(&key).filter(|written| !written.is_removed);
            self.check_key(key, shown.map(|written| written.operation))?;
        }
        Ok(())
    }

    /// Checks that a key may be in the shown state: that of the last acknowledged operation or a later one.
    fn check_key(&self, key: u8, shown: Option<u64>) -> Result<(), String> {
        let acknowledged = self.acknowledged.get(&key).copied().unwrap_or(0);
        let first = Written { operation: 0, is_removed: true };
        let operations = self.log.get(&key).map_or(&[][..], |log| log);
        let may_be = |written: &Written| match shown {
            Some(operation) => written.operation == operation && !written.is_removed,
            None => written.is_removed,
        };
        let mut possible = [first].into_iter().chain(operations.iter().copied());
        match possible.any(|written| written.operation >= acknowledged && may_be(&written)) {
            true => Ok(()),
            false => Err(format!("key {key} shows operation {shown:?} after {acknowledged} was acknowledged")),
        }
    }

    /// The power fails, and the store is reopened.
    pub fn recover(&mut self, fates: &[Fate]) {
        self.durable = self.flash(fates);
        self.cached.clear();
        self.open(self.durable.clone());
    }

    /// A flush fails, the process ends, and the store is reopened: it sees the images in the drive's cache.
    pub fn recover_killed(&mut self) {
        let complete = std::mem::take(&mut self.writes).into_iter().filter(|write| write.is_complete);
        self.cached.extend(complete.map(|write| (write.slot.number(), write.image)));
        let mut seen = self.durable.clone();
        seen.extend(self.cached.clone());
        self.open(seen);
    }

    /// Makes nodes of the tiles of the images seen.
    fn open(&mut self, seen: BTreeMap<u32, ModelImage>) {
        (self.nodes, self.writes, self.held, self.space) = (Vec::new(), Vec::new(), Vec::new(), new_space());
        let set = set_of(&seen);
        let live = set.live().unwrap();
        let durable = match self.mistake {
            Mistake::TrustCache => u64::MAX,
            _ => seen.values().map(|image| image.stamp_durable).max().unwrap_or(0),
        };
        for tile in &live.tiles {
            let (low, high) = set.fences_of(tile);
            let (low, high) = (low.first().copied().unwrap_or(0), high.map_or(KEYS, |high| high[0]));
            let head = set.get(tile.image());
            let content = seen[&head.slot].content.range(low..high).map(|(key, written)| (*key, *written)).collect();
            let slot = self.space.claim(head.slot).unwrap();
            let is_again = head.stamp > durable || !set.is_whole(tile);
            self.nodes.push(ModelNode { low, high, content, replaces: vec![slot], version: head.stamp, is_again });
        }
        if self.mistake != Mistake::ForgetOlder {
            let without = set.live_up_to(durable).unwrap().tiles;
            let older = without.iter().map(|tile| set.get(tile.image()).slot);
            let unsure = seen.iter().filter(|(_, image)| image.stamp > durable).map(|(slot, _)| *slot);
            self.held = older.chain(unsure).map(|slot| self.space.claim(slot).unwrap()).collect();
        }
        self.stamp = match self.mistake {
            Mistake::StampsBeginAnew => self.stamp / 2,
            _ => self.stamp,
        };
        // Operations that were not written never will be: the log forgets them.
        for (key, log) in &mut self.log {
            let node = self.nodes.iter().find(|node| (node.low..node.high).contains(key));
            let is = node.and_then(|node| node.content.get(key)).map_or(0, |written| written.operation);
            log.retain(|written| written.operation <= is);
        }
    }

    /// Whether recovery rewrites a node.
    pub fn is_again(&self, node: usize) -> bool {
        self.nodes[node].is_again
    }

    /// Counts everything shown as acknowledged, once it is durable: recovery records *opened*.
    pub fn opened(&mut self) {
        let shown: Vec<(u8, Written)> = self.nodes.iter().flat_map(|node| node.content.clone()).collect();
        for (key, written) in shown {
            self.acknowledged.insert(key, written.operation);
        }
        self.held.clear();
    }
}

fn set_of(flash: &BTreeMap<u32, ModelImage>) -> NodeImages {
    let mut set = NodeImages::default();
    for (slot, image) in flash {
        let (low, high) = (fence(image.low), fence(image.high));
        let low = low.as_ref().map_or(&[][..], |low| low);
        set.push(&ImageHead {
            low,
            high: high.as_ref().map(|high| &high[..]),
            stamp: image.stamp,
            slot: *slot,
            id: 0,
            records: 0,
        });
    }
    set
}
