//! The repair of a keyspace. It writes nodes without the keys whose values are lost, and empty nodes where no readable one is left.
//!
//! 1. All readable images stay as they are: the new ones have higher stamps, and slots that nobody had.
//! 2. Torn slots are zeroed, and the repair ends the round, leaving none in which a slot may be torn. So lost images are not reported as missing.
//! 3. As in recovery, a new image includes the log's records of its keys.

use super::super::images::{LiveImages, NodeImages};
use super::super::slabs::growth::GroupLog;
use super::super::slabs::keyspace_slots::KeyspaceSlots;
use super::node_ids::NodeIds;
use super::rewrite::{Replaced, Rewrite};
use super::{LogRecords, RecoveredNode, claim};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;
use tapetum_base::error::Error;
use tapetum_base::media::extents::Extents;
use tapetum_base::media::io::Io;

/// The images of a keyspace's nodes, and the damage to them.
pub struct TreeDamage<'a> {
    /// All readable images. The new ones are added.
    pub set: &'a mut NodeImages,
    /// Slots with neither an image nor zeros.
    pub bad: &'a [u32],
    /// Keys to remove, by the number of the tile.
    pub lost: &'a BTreeMap<usize, BTreeSet<Vec<u8>>>,
    pub live: &'a LiveImages,
}

/// Repairs a keyspace whose slots are all free before. Images get stamps from `stamp_next` on. Returns the stamp for the next image.
pub async fn mend(
    io: &Io,
    slots: &KeyspaceSlots,
    TreeDamage { set, bad, lost, live }: TreeDamage<'_>,
    records: &LogRecords<'_>,
    extents: &Mutex<Extents>,
    log: &mut impl GroupLog,
    stamp_next: u64,
) -> Result<u64, Error> {
    for image in 0..set.len() as u32 {
        claim(slots, &set.get(image), u64::MAX)?;
    }
    let mut ids = NodeIds::default();
    for tile in &live.tiles {
        ids.take(set.get(tile.image()).id);
    }
    let mut rewrite = Rewrite::new(io, slots, extents, log, 0, stamp_next).await?;
    rewrite.zero(bad).await?;
    let mut written = Vec::new();
    for (number, lost) in lost.iter() {
        let tile = live.tiles[*number];
        let stamp = set.get(tile.image()).stamp;
        let node = RecoveredNode { tile, stamp, slot: claim(slots, &set.get(tile.image()), u64::MAX)?, id: None };
        let replaced = Replaced { node, is_part: false, lost };
        rewrite.write_again(set, &replaced, records, &mut ids, &mut written).await?;
    }
    for gap in &live.gaps {
        rewrite.write_new(set, &gap.from, gap.to.as_deref(), records, &mut ids, &mut written).await?;
    }
    rewrite.end_round().await
}
