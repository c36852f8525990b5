//! Recovery of an ordered keyspace: it finds the live images and the slots in use.
//!
//! ```text
//! read all groups of nodes, a thread a core ─► heads of intact images, torn slots, extensions that records name
//!   ─► the live rule ─► shares of the slots of live images and extensions
//!   ─► (first writes) torn slots zeroed; parts of images, images that may be in nothing but the drive's cache, and those that lack records
//!      of the log, written again, with these
//!   ─► flush
//! ```
//! 1. Nothing is written before all images were read and the live rule held for all keys.
//! 2. A slot without an intact image is torn, and free, under two conditions: it may have been in use for writes when the store stopped
//!    ([`slot_round`](super::slabs::slot_round)), and all images are there that were durable then, as far as one of them attests. Otherwise it is
//!    damage.
//! 3. Afterwards each node has an image with exactly its fences, in a slot of which one share is kept, and all images are durable. The next manifest
//!    frame may record *opened*.
//! 4. Before that, no image is overwritten that would be live if images in the drive's cache vanished.
//! 5. A rewritten image includes all log records of its keys above the old image's stamp, which are durable by then. Its own stamp is above theirs
//!    and so claims that it has them.
//! 6. If recovery is cut short, the next opening runs it again: the images that it wrote count like others.
//!
//! Threads: one for each core reads; the caller's does the rest.

mod image_reader;
mod log_records;
pub mod mend;
mod node_ids;
mod rewrite;

use self::image_reader::{ReadImages, read_images};
pub use self::log_records::LogRecords;
use self::node_ids::NodeIds;
use self::rewrite::{Replaced, Rewrite};
use super::images::{Gap, ImageHead, LiveImages, NodeImages, SameStamp, Tile};
use super::slabs::SlotSpace;
use super::slabs::growth::GroupLog;
use super::slabs::keyspace_slots::KeyspaceSlots;
use std::collections::BTreeSet;
use std::fmt;
use std::sync::Mutex;
use tapetum_base::error::Error;
use tapetum_base::media::extents::Extents;
use tapetum_base::media::io::Io;
use tapetum_drive::{Drive, Purpose, fail_point};

/// The most places that an error names.
const PLACES_MAX: usize = 4;

/// The inputs of recovery.
#[derive(Clone, Copy, Debug)]
pub struct RecoverOptions {
    /// Images with a stamp up to this one are durable, whatever they attest: the last opening saw them.
    pub stamp_durable: u64,
    /// The first stamp for images that are written, unless existing ones have higher stamps.
    pub stamp_next: u64,
    /// Bytes that images, and the extensions that they name, may take in memory.
    pub memory_bytes: u64,
}

/// A keyspace after recovery.
pub struct RecoveredKeyspace {
    set: NodeImages,
    nodes: Vec<RecoveredNode>,
    /// The stamp for the next image.
    pub stamp_next: u64,
    pub counts: RecoveryCounts,
}

#[derive(Clone, Copy, Debug)]
struct RecoveredNode {
    tile: Tile,
    stamp: u64,
    /// The slot of its image, of which a share is kept.
    slot: u32,
    /// `None` while another node has the id in its image.
    id: Option<u32>,
}

#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct RecoveryCounts {
    /// Intact images on flash.
    pub images: u64,
    /// Images that are live for no key.
    pub images_dead: u64,
    pub slots_torn: u64,
    /// Live images, or parts of them, that were rewritten.
    pub rewritten: u64,
    /// Live extensions.
    pub extensions: u64,
    /// Records of the log that no image had.
    pub made_again: u64,
}

impl fmt::Display for RecoveryCounts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let RecoveryCounts { images, images_dead, slots_torn, rewritten, extensions, made_again } = self;
        write!(
            f,
            "{images} images, {images_dead} of them dead, {slots_torn} torn slots, {rewritten} images written again, {extensions} \
             extensions, {made_again} records of the log made again"
        )
    }
}

impl RecoveredKeyspace {
    /// The nodes as recovery found or wrote them, in the order of their keys. Empty: nothing was ever durable in the keyspace. No two nodes have the
    /// same id. A share of each slot is kept: [`super::slabs::SlotSpace::resume`] takes it up.
    pub fn nodes(&self) -> impl ExactSizeIterator<Item = ImageHead<'_>> {
        self.nodes.iter().map(|node| {
            let (low, high) = self.set.fences_of(&node.tile);
            let id = node.id.expect("each node has one by now");
            let records = self.set.get(node.tile.image()).records;
            ImageHead { low, high, stamp: node.stamp, slot: node.slot, id, records }
        })
    }
}

/// The part of an image that is live and need not be rewritten.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum ImageUse {
    Dead,
    Whole,
    /// Parts of it are live, or all of it without the log's records.
    Parts,
}

/// Kept shares of the slots of dead images that may not be overwritten yet. The drop gives them up.
struct DeadImages {
    space: SlotSpace,
    slots: Vec<u32>,
}

impl Drop for DeadImages {
    fn drop(&mut self) {
        self.slots.iter().for_each(|slot| drop(self.space.resume(*slot)));
    }
}

/// Recovers a keyspace. Before, all of its slots are free; afterwards those in use on flash are claimed.
pub async fn recover(
    drive: &Drive,
    io: &Io,
    slots: &KeyspaceSlots,
    options: &RecoverOptions,
    records: &LogRecords<'_>,
    extents: &Mutex<Extents>,
    log: &mut impl GroupLog,
) -> Result<RecoveredKeyspace, Error> {
    let io = &io.of(Purpose::Recover);
    let found = read_images(drive, io, slots.nodes(), options.memory_bytes).await?;
    none_missing(slots, &found)?;
    let live = live_images(slots, &found.set)?;
    let mut uses = uses(&found.set, &live);
    let mut ids = NodeIds::default();
    let stamp_durable = options.stamp_durable.max(found.stamp_durable);
    let claimed = live.tiles.iter().map(|tile| claim_node(slots, &found.set, stamp_durable, &uses, &mut ids, *tile));
    let nodes = claimed.collect::<Result<Vec<_>, _>>()?;
    for tile in live.tiles.iter().filter(|tile| lacks_records(&found.set, tile, records)) {
        uses[tile.image() as usize] = ImageUse::Parts;
    }
    let dead = hold_dead(slots, &found.set, &uses, stamp_durable)?;
    let mut extensions = claim_extensions(slots, &found, &uses)?;
    let mut counts = RecoveryCounts {
        images: found.set.len() as u64,
        images_dead: uses.iter().filter(|image| **image == ImageUse::Dead).count() as u64,
        slots_torn: found.torn.len() as u64,
        ..RecoveryCounts::default()
    };
    let ReadImages { mut set, torn, .. } = found;
    let stamp_next = options.stamp_next.max(set.stamp_last() + 1);
    let mut rewrite = Rewrite::new(io, slots, extents, log, stamp_durable, stamp_next).await?;
    rewrite.zero(&torn).await?;
    let mut recovered = Vec::with_capacity(nodes.len());
    for node in nodes {
        let is_unsure = node.stamp > stamp_durable && !fail_point!(OrderedTrustCachedImage);
        // A part of an image has no id.
        if node.id.is_some() && !is_unsure && !lacks_records(&set, &node.tile, records) {
            recovered.push(node);
            continue;
        }
        let is_part = uses[node.tile.image() as usize] == ImageUse::Parts;
        let replaced = Replaced { node, is_part, lost: &BTreeSet::new() };
        extensions += rewrite.write_again(&mut set, &replaced, records, &mut ids, &mut recovered).await?;
        counts.rewritten += 1;
    }
    if live.tiles.is_empty() && !records.is_empty() {
        extensions += rewrite.write_new(&mut set, &[], None, records, &mut ids, &mut recovered).await?;
    }
    counts.made_again = rewrite.made_again;
    let stamp_next = rewrite.end().await?;
    // The contents of the dead images are in durable ones by now.
    drop(dead);
    counts.extensions = extensions;
    Ok(RecoveredKeyspace { set, nodes: recovered, stamp_next, counts })
}

/// An error if images are missing that were durable, although a write that was cut short looks the same.
fn none_missing(slots: &KeyspaceSlots, found: &ReadImages) -> Result<(), Error> {
    let missing = found.of_round.missing();
    if missing == 0 {
        return Ok(());
    }
    let keyspace = slots.keyspace().0;
    let places: Vec<String> = found.torn.iter().take(PLACES_MAX).map(|slot| place(slots, *slot)).collect();
    let more = if found.torn.len() > PLACES_MAX { ", …" } else { "" };
    Err(Error::Corrupt(match places.is_empty() {
        true => format!("{missing} data nodes of keyspace {keyspace} were written, and are not there"),
        false => format!(
            "{missing} data nodes of keyspace {keyspace} were written, and are not there: those places hold no intact one: {}{more}",
            places.join(", ")
        ),
    }))
}

/// Applies the live rule. Damage is an error.
fn live_images(slots: &KeyspaceSlots, set: &NodeImages) -> Result<LiveImages, Error> {
    let keyspace = slots.keyspace().0;
    let live = set.live().map_err(|same| same_stamp(slots, &same))?;
    match live.gaps.first() {
        None => Ok(live),
        Some(Gap { from, to }) => {
            let to = to.as_ref().map_or("the end".into(), |to| format!("\"{}\"", to.escape_ascii()));
            Err(Error::Corrupt(format!(
                "no data node of keyspace {keyspace} has the keys from \"{}\" to {to} ({} such gaps)",
                from.escape_ascii(),
                live.gaps.len()
            )))
        }
    }
}

fn same_stamp(slots: &KeyspaceSlots, same: &SameStamp) -> Error {
    let places = same.slots.map(|slot| place(slots, slot)).join(" and ");
    let (keyspace, stamp) = (slots.keyspace().0, same.stamp);
    Error::Corrupt(format!(
        "two data nodes of keyspace {keyspace} have the stamp {stamp} and a key in common: {places}"
    ))
}

/// The place of a slot, for a person who looks for it.
fn place(slots: &KeyspaceSlots, number: u32) -> String {
    let map = slots.nodes().map();
    let address = map.address(number);
    format!("slot {} of extent {} (byte {} of the drive)", address.page(), address.extent().number(), map.flash(number))
}

fn uses(set: &NodeImages, live: &LiveImages) -> Vec<ImageUse> {
    let mut uses = vec![ImageUse::Dead; set.len()];
    for tile in &live.tiles {
        uses[tile.image() as usize] = if set.is_whole(tile) { ImageUse::Whole } else { ImageUse::Parts };
    }
    uses
}

/// Whether the log has records of a tile that its image lacks.
fn lacks_records(set: &NodeImages, tile: &Tile, records: &LogRecords<'_>) -> bool {
    let (low, high) = set.fences_of(tile);
    records.above(set.get(tile.image()).stamp, low, high).next().is_some()
}

/// Claims the slot of a tile's image, and its id if the tile is the whole image.
fn claim_node(
    slots: &KeyspaceSlots,
    set: &NodeImages,
    stamp_durable: u64,
    uses: &[ImageUse],
    ids: &mut NodeIds,
    tile: Tile,
) -> Result<RecoveredNode, Error> {
    let head = set.get(tile.image());
    let is_whole = uses[tile.image() as usize] == ImageUse::Whole;
    let id = (is_whole && ids.take(head.id)).then_some(head.id);
    Ok(RecoveredNode { tile, stamp: head.stamp, slot: claim(slots, &head, stamp_durable)?, id })
}

/// Claims the slot of an image, and keeps the share.
fn claim(slots: &KeyspaceSlots, head: &ImageHead<'_>, stamp_durable: u64) -> Result<u32, Error> {
    let share = slots.nodes().claim(head.slot);
    let share =
        share.ok_or_else(|| Error::Corrupt(format!("a data node is in no slot: {}", place(slots, head.slot))))?;
    if head.stamp > stamp_durable {
        slots.nodes().doubt(head.slot);
    }
    Ok(share.keep())
}

/// Holds the dead images that would become live if some images above `stamp_durable` vanished: all dead ones above it, and those that are live
/// without any above it.
fn hold_dead(
    slots: &KeyspaceSlots,
    set: &NodeImages,
    uses: &[ImageUse],
    stamp_durable: u64,
) -> Result<DeadImages, Error> {
    let mut held = DeadImages { space: slots.nodes().clone(), slots: Vec::new() };
    let all = || (0..set.len() as u32).map(|image| (image, set.get(image)));
    if !all().any(|(_, head)| head.stamp > stamp_durable) || fail_point!(OrderedForgetOlder) {
        return Ok(held);
    }
    let mut needed = vec![false; set.len()];
    let durable = set.live_up_to(stamp_durable).map_err(|same| same_stamp(slots, &same))?;
    durable.tiles.iter().for_each(|tile| needed[tile.image() as usize] = true);
    for (image, head) in all() {
        let may_be_live = needed[image as usize] || head.stamp > stamp_durable;
        if may_be_live && uses[image as usize] == ImageUse::Dead {
            held.slots.push(claim(slots, &head, stamp_durable)?);
        }
    }
    Ok(held)
}

/// Claims the extensions named by images that are live as a whole, and keeps the shares. Returns their number.
fn claim_extensions(slots: &KeyspaceSlots, found: &ReadImages, uses: &[ImageUse]) -> Result<u64, Error> {
    let live = found.named.iter().filter(|named| uses[named.image as usize] == ImageUse::Whole);
    live.map(|named| claim_extension(slots, named.pages, named.slot)).sum()
}

/// Claims an extension, and keeps the share.
fn claim_extension(slots: &KeyspaceSlots, pages: u32, slot: Option<u32>) -> Result<u64, Error> {
    match slot.and_then(|slot| slots.claim_extension(pages, slot)) {
        Some(share) => {
            let _ = share.keep();
            Ok(1)
        }
        None => Err(Error::Corrupt(format!(
            "a data node of keyspace {} names an extension of {pages} pages in {}, where no slot of that size is free for it",
            slots.keyspace().0,
            slot.map_or("an extent of another drive".into(), |slot| place(slots, slot)),
        ))),
    }
}

#[cfg(test)]
mod batch_tests;
#[cfg(test)]
mod crash_site;
#[cfg(test)]
mod crash_tests;
#[cfg(test)]
mod damage_tests;
#[cfg(test)]
mod round_tests;
