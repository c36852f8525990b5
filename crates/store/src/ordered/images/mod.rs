//! The live rule: for each key it finds the live image.
//!
//! ```text
//!            −∞        d        k              t       +∞
//! stamp 9              |---------------|
//! stamp 5    |---------|
//! stamp 3    |------------------------------------------|
//! tiles      |    5    |       9       |        3       |
//! ```
//! For each key the image with the highest stamp whose fences cover it is live. A **tile** is a range of keys for which one image is live; an image
//! may have several, or none. The rule ignores everything else, such as the order in which images are found, and ids of nodes.
//!
//! 1. Tiles do not overlap, are in the order of their keys, and no two neighbours have the same image.
//! 2. A key without a tile is in a gap: no image covers it.
//!
//! The rule is a sweep over the low fences with a heap of stamps: n log n steps for n images, and a bounded number of bytes for each
//! ([`IMAGE_BYTES_MAX`]).

use std::cmp::Ordering;
use std::collections::BinaryHeap;

/// The most bytes of an image while the rule is applied, without its fences: the image, its places in order and heap, and two tiles. While images
/// are sorted, each exists twice, with its place before and after; that takes no more.
pub const IMAGE_BYTES_MAX: u64 =
    (size_of::<PackedImage>() + size_of::<(u64, u32)>() + size_of::<HeapImage>() + 2 * size_of::<Tile>()) as u64;
const _: () = assert!(size_of::<PackedImage>() == 32 && size_of::<Tile>() == 12 && IMAGE_BYTES_MAX == 88);
const _: () =
    assert!(2 * size_of::<PackedImage>() + size_of::<(u64, u32)>() + size_of::<u32>() <= IMAGE_BYTES_MAX as usize);
/// The most images: fences of later ones have no name.
const IMAGES_MAX: usize = 1 << 31;
const NO_FENCE: u16 = u16::MAX;

/// The head of an intact image.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ImageHead<'a> {
    /// The first key that it covers; empty if there is no lower bound.
    pub low: &'a [u8],
    /// The first key that it does not cover. `None`: it covers all keys from the low fence on.
    pub high: Option<&'a [u8]>,
    pub stamp: u64,
    /// The number of its slot.
    pub slot: u32,
    /// The id of its node. The live rule ignores it.
    pub id: u32,
    /// The number of its records.
    pub records: u16,
}

/// The heads of many images.
#[derive(Default)]
pub struct NodeImages {
    images: Vec<PackedImage>,
    /// The low and high fence of each image.
    fences: Vec<u8>,
}

#[derive(Clone, Copy)]
struct PackedImage {
    stamp: u64,
    /// The offset in `fences` of the low fence, which the high one follows.
    fences_at: u64,
    slot: u32,
    id: u32,
    low_bytes: u16,
    /// Or [`NO_FENCE`].
    high_bytes: u16,
    records: u16,
}

/// The name of a fence: twice the place of its image, plus one for the high fence.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct FenceName(u32);

/// A range of keys for which an image is live.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Tile {
    low: FenceName,
    high: FenceName,
    /// The place of the image in the set.
    image: u32,
}

/// A range of keys that no image covers.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Gap {
    /// Empty if there is no lower bound.
    pub from: Vec<u8>,
    /// `None`: there is no upper bound.
    pub to: Option<Vec<u8>>,
}

/// Two images for the same keys, with the same stamp: one of them is damaged.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SameStamp {
    pub stamp: u64,
    /// The numbers of their slots.
    pub slots: [u32; 2],
}

/// The live images of all keys.
#[derive(PartialEq, Eq, Debug)]
pub struct LiveImages {
    pub tiles: Vec<Tile>,
    /// Empty unless there is damage. An empty set has no gap: nothing was ever written.
    pub gaps: Vec<Gap>,
}

/// An image whose low fence the sweep has passed.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct HeapImage {
    stamp: u64,
    image: u32,
}

impl NodeImages {
    /// Adds an image. Returns its place.
    ///
    /// # Panics
    /// At 2³¹ images, which are 8 TiB of nodes, and if a fence is longer than a key.
    pub fn push(&mut self, head: &ImageHead<'_>) -> u32 {
        assert!(self.images.len() < IMAGES_MAX, "more images than have a place");
        let length = |fence: &[u8]| u16::try_from(fence.len()).ok().filter(|bytes| *bytes < NO_FENCE);
        let image = PackedImage {
            stamp: head.stamp,
            fences_at: self.fences.len() as u64,
            slot: head.slot,
            id: head.id,
            records: head.records,
            low_bytes: length(head.low).expect("a fence is as long as a key at most"),
            high_bytes: head.high.map_or(NO_FENCE, |high| length(high).expect("so is the other")),
        };
        self.fences.extend_from_slice(head.low);
        self.fences.extend_from_slice(head.high.unwrap_or_default());
        self.images.push(image);
        self.images.len() as u32 - 1
    }

    /// Adds the images of another set, behind these.
    pub fn append(&mut self, other: &NodeImages) {
        assert!(self.images.len() + other.images.len() < IMAGES_MAX, "more images than have a place");
        let behind = self.fences.len() as u64;
        let moved = |image: &PackedImage| PackedImage { fences_at: behind + image.fences_at, ..*image };
        self.images.extend(other.images.iter().map(moved));
        self.fences.extend_from_slice(&other.fences);
    }

    pub fn len(&self) -> usize {
        self.images.len()
    }

    pub fn is_empty(&self) -> bool {
        self.images.is_empty()
    }

    pub fn get(&self, image: u32) -> ImageHead<'_> {
        let PackedImage { stamp, slot, id, records, .. } = self.images[image as usize];
        ImageHead { low: self.low(image), high: self.high(image), stamp, slot, id, records }
    }

    /// The highest stamp; 0 without images.
    pub fn stamp_last(&self) -> u64 {
        self.images.iter().map(|image| image.stamp).max().unwrap_or(0)
    }

    /// Bytes that the set takes, including those for the rule. Fences exist twice while images are sorted.
    pub fn bytes(&self) -> u64 {
        self.images.len() as u64 * IMAGE_BYTES_MAX + 2 * self.fences.len() as u64
    }

    /// Sorts the images by their low fences, so that a pass over the keys is also a pass over memory. Returns the new place of the image at each old
    /// place.
    pub fn put_in_order(&mut self) -> Vec<u32> {
        let by_low = self.by_low(0..self.images.len() as u32);
        let mut ordered =
            NodeImages { images: Vec::with_capacity(by_low.len()), fences: Vec::with_capacity(self.fences.len()) };
        let mut places = vec![0; by_low.len()];
        for (_, image) in by_low {
            places[image as usize] = ordered.push(&self.get(image));
        }
        *self = ordered;
        places
    }

    /// Images in the order of their low fences, each with the first bytes of its fence: these decide most comparisons without a look at the fence.
    fn by_low(&self, images: impl Iterator<Item = u32>) -> Vec<(u64, u32)> {
        let mut by_low: Vec<(u64, u32)> = images.map(|image| (first_bytes(self.low(image)), image)).collect();
        // This sort is fast on long runs in order.
        by_low.sort_by(|a, b| a.0.cmp(&b.0).then_with(|| self.low(a.1).cmp(self.low(b.1))));
        by_low
    }

    fn low(&self, image: u32) -> &[u8] {
        let image = &self.images[image as usize];
        let at = image.fences_at as usize;
        &self.fences[at..at + usize::from(image.low_bytes)]
    }

    fn high(&self, image: u32) -> Option<&[u8]> {
        let image = &self.images[image as usize];
        let at = image.fences_at as usize + usize::from(image.low_bytes);
        (image.high_bytes != NO_FENCE).then(|| &self.fences[at..at + usize::from(image.high_bytes)])
    }

    /// `None`: the fence is behind all keys.
    fn fence(&self, name: FenceName) -> Option<&[u8]> {
        match name.0 % 2 {
            0 => Some(self.low(name.0 / 2)),
            _ => self.high(name.0 / 2),
        }
    }

    /// The fences of a tile, in the form of an image's fences.
    pub fn fences_of(&self, tile: &Tile) -> (&[u8], Option<&[u8]>) {
        (self.fence(tile.low).unwrap_or_default(), self.fence(tile.high))
    }

    /// Whether the tile is the whole range of its image.
    pub fn is_whole(&self, tile: &Tile) -> bool {
        self.fences_of(tile) == (self.low(tile.image), self.high(tile.image))
    }

    /// The live image of each key.
    ///
    /// # Errors
    /// If two images with the same stamp would be live for a key.
    pub fn live(&self) -> Result<LiveImages, SameStamp> {
        self.live_up_to(u64::MAX)
    }

    /// As [`NodeImages::live`], without images with higher stamps.
    pub fn live_up_to(&self, stamp: u64) -> Result<LiveImages, SameStamp> {
        let images = (0..self.images.len() as u32).filter(|image| self.images[*image as usize].stamp <= stamp);
        let by_low: Vec<u32> = self.by_low(images).into_iter().map(|(_, image)| image).collect();
        let sweep = Sweep {
            set: self,
            by_low: &by_low,
            passed: 0,
            heap: BinaryHeap::new(),
            tiles: Vec::new(),
            gaps: Vec::new(),
        };
        sweep.run()
    }
}

impl Tile {
    /// The tile of an image's whole range.
    pub fn whole(image: u32) -> Tile {
        Tile { low: FenceName(2 * image), high: FenceName(2 * image + 1), image }
    }

    /// The place of the tile's image in the set.
    pub fn image(&self) -> u32 {
        self.image
    }
}

/// A number that orders keys by their first eight bytes.
fn first_bytes(key: &[u8]) -> u64 {
    let mut bytes = [0; 8];
    let length = key.len().min(8);
    bytes[..length].copy_from_slice(&key[..length]);
    u64::from_be_bytes(bytes)
}

struct Sweep<'a> {
    set: &'a NodeImages,
    /// All images, sorted by their low fences.
    by_low: &'a [u32],
    /// The number of images that begin at or before the sweep's position.
    passed: usize,
    /// The passed images that are still open. The top one ends behind the position.
    heap: BinaryHeap<HeapImage>,
    tiles: Vec<Tile>,
    gaps: Vec<Gap>,
}

/// Orders fences; `None` is behind all keys.
fn by_key(a: Option<&[u8]>, b: Option<&[u8]>) -> Ordering {
    match (a, b) {
        (Some(a), Some(b)) => a.cmp(b),
        (a, b) => a.is_none().cmp(&b.is_none()),
    }
}

impl Sweep<'_> {
    fn run(mut self) -> Result<LiveImages, SameStamp> {
        let Some(&first) = self.by_low.first() else { return Ok(LiveImages { tiles: Vec::new(), gaps: Vec::new() }) };
        let mut at = FenceName(2 * first);
        if !self.set.low(first).is_empty() {
            self.gap(Some(&[]), Some(at));
        }
        while let Some(key) = self.set.fence(at) {
            self.pass(key);
            let next = self.by_low.get(self.passed).map(|image| FenceName(2 * image));
            let Some(top) = self.top(key)? else {
                self.gap(Some(key), next);
                let Some(next) = next else { break };
                at = next;
                continue;
            };
            let high = FenceName(2 * top + 1);
            let until = match next {
                Some(next) if by_key(self.set.fence(next), self.set.fence(high)).is_lt() => next,
                _ => high,
            };
            self.tile(top, at, until);
            at = until;
        }
        Ok(LiveImages { tiles: self.tiles, gaps: self.gaps })
    }

    /// Adds all images that begin at `key` or before.
    fn pass(&mut self, key: &[u8]) {
        while let Some(&image) = self.by_low.get(self.passed)
            && self.set.low(image) <= key
        {
            self.heap.push(HeapImage { stamp: self.set.images[image as usize].stamp, image });
            self.passed += 1;
        }
    }

    /// The live image at `key`.
    fn top(&mut self, key: &[u8]) -> Result<Option<u32>, SameStamp> {
        self.drop_ended(key);
        let Some(top) = self.heap.pop() else { return Ok(None) };
        self.drop_ended(key);
        if let Some(other) = self.heap.peek().filter(|other| other.stamp == top.stamp) {
            let slots = [top, *other].map(|image| self.set.images[image.image as usize].slot);
            return Err(SameStamp { stamp: top.stamp, slots });
        }
        self.heap.push(top);
        Ok(Some(top.image))
    }

    fn drop_ended(&mut self, key: &[u8]) {
        while let Some(top) = self.heap.peek()
            && self.set.high(top.image).is_some_and(|high| high <= key)
        {
            self.heap.pop();
        }
    }

    /// Records that the image is live from `at` until `until`.
    fn tile(&mut self, image: u32, at: FenceName, until: FenceName) {
        match self.tiles.last_mut().filter(|last| last.image == image) {
            // No other image was live in between, and there was no gap, as this image covers all keys up to here.
            Some(last) => last.high = until,
            None => self.tiles.push(Tile { low: at, high: until, image }),
        }
    }

    fn gap(&mut self, from: Option<&[u8]>, to: Option<FenceName>) {
        let to = to.and_then(|to| self.set.fence(to)).map(<[u8]>::to_vec);
        self.gaps.push(Gap { from: from.unwrap_or_default().to_vec(), to });
    }
}

#[cfg(test)]
mod history;
#[cfg(test)]
mod history_tests;
#[cfg(test)]
mod tests;
